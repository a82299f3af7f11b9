"""An import is killed again and again, while consumers take items: each item of the source is in the queue once.

``python -m tests.durability.test_import_killed --items 1000000 --kills 20`` does it for every kind, and prints times.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import pytest

from persistentqueue import PersistentQueue, codecs
from persistentqueue.importers import import_queue
from tests.support.foreign import KINDS, Kind, traits_of

ROOT = Path(__file__).parents[2]
WHOLE_KINDS = [kind for kind in KINDS if not kind.needs.startswith("aio")]
"""All kinds but the asynchronous ones, whose files are those of others."""
ITEM_BYTES = 100
CHILD = """
import json, sys
from persistentqueue.importers import import_queue
source, path, origin, options = sys.argv[1:]
def progress(done, total):
    print(done, flush=True)
    sys.stdin.readline()
import_queue(source, path, origin=origin, progress=progress, **json.loads(options))
"""
"""The program that is killed. After each batch it prints the number of items, and waits for a line."""


def items_of(kind: Kind, count: int) -> Iterator[Any]:
    """Yield items of about 100 bytes as the source stores them, each of them different."""
    for number in range(count):
        text = f"{number:0{ITEM_BYTES}d}"
        yield text.encode() if kind.origin == "queuelib" else text


def kill_and_consume(source: Path, path: Path, kind: Kind, count: int, kills: int) -> list[bytes]:
    """Kill the import ``kills`` times, at places that are spread over the items, and finish it.

    After each kill a consumer takes some items. Returns all items that came out of the queue, in order.
    """
    taken: list[bytes] = []
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", CHILD, str(source), str(path), kind.origin, json.dumps(kind.options)]
    for number in range(1, kills + 1):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(path.parent)}
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            for line in child.stdout:
                if int(line) >= number * count // (kills + 1):
                    child.send_signal(signal.SIGKILL)
                    break
                print(file=child.stdin, flush=True)
            assert child.wait() == -signal.SIGKILL
        with PersistentQueue(path) as queue, queue.transaction() as session:
            taken += session.dequeue_many(count // (2 * kills))
    finished = import_queue(source, path, origin=kind.origin, **kind.options)
    assert finished.count == count
    assert 0 < finished.added < count
    with PersistentQueue(path) as queue:
        return taken + list(queue.browse())


def check(kind: Kind, directory: Path, count: int, kills: int) -> str:
    """Make a source, kill its import, and compare what came out; return the times."""
    source, path = directory / "source", directory / "queue"
    begin = perf_counter()
    kind.make(source, items_of(kind, count))
    made = perf_counter()
    done = import_queue(source, directory / "whole", origin=kind.origin, **kind.options)
    whole = perf_counter()
    assert done.added == count
    before = traits_of(source)
    found = kill_and_consume(source, path, kind, count, kills)
    assert traits_of(source) == before
    decode = {"UNSAFE_PICKLE": pickle.loads, "JSON": codecs.JSON.decode, "BYTES": bytes}.get(kind.codec)
    expected = list(items_of(kind, count))[:: -1 if kind.newest_first else 1]
    if decode is not None:
        assert [decode(item) for item in found] == expected
    else:  # a text in MessagePack or CBOR ends with its bytes
        assert [item[-ITEM_BYTES:].decode() for item in found] == expected
    return (
        f"made in {made - begin:.1f} s, imported in {whole - made:.1f} s, "
        f"killed {kills} times in {perf_counter() - whole:.1f} s"
    )


@pytest.mark.parametrize("kind", WHOLE_KINDS, ids=lambda kind: kind.name)
def test_killed_again_and_again(kind: Kind, tmp_path: Path) -> None:
    """After any number of kills, each item was in the queue once, in order, and the source is unchanged."""
    if kind.is_missing:
        pytest.skip(f"{kind.needs} is not installed")
    check(kind, tmp_path, 50_000, 3)


def main() -> None:
    """Check every kind with the sizes of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kind", choices=[kind.name for kind in WHOLE_KINDS])
    chosen = parser.parse_args()
    for kind in WHOLE_KINDS:
        if (chosen.kind or kind.name) == kind.name and not kind.is_missing:
            with TemporaryDirectory() as directory:
                print(f"{kind.name}: {check(kind, Path(directory), chosen.items, chosen.kills)}", flush=True)


if __name__ == "__main__":
    main()
