"""A program with threads on both sides of a ``compat.Queue`` is killed again and again: no item is lost or done twice.

``python -m tests.durability.test_compat_killed PATH LEDGER LIFE`` is that program. It writes a line to its ledger
before and after each call. So at the kill, only the state of the calls under way is unknown.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import persistentqueue
from persistentqueue.compat import Queue
from tests.support.queues import wait_for

SOURCES = Path(persistentqueue.__file__).parents[1]
PRODUCERS = CONSUMERS = 3
LIVES, LINES_PER_LIFE = 6, 300


def main() -> None:
    """Put and get without end."""
    path, ledger, life = sys.argv[1:]
    fd = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, item: str) -> None:
        os.write(fd, f"{what} {item}\n".encode())

    def produce(name: int) -> None:
        for number in range(1_000_000):
            item = f"{life}.{name}.{number}"
            note("putting", item)
            queue.put(item)
            note("put", item)

    def consume() -> None:
        while True:
            item = queue.get()
            note("got", item)
            note("ending", item)
            queue.task_done()
            note("ended", item)

    queue = Queue[str](path, maxsize=20)
    for name in range(PRODUCERS):
        threading.Thread(target=produce, args=(name,)).start()
    for _ in range(CONSUMERS):
        threading.Thread(target=consume).start()


def notes(ledger: Path) -> dict[str, Counter[str]]:
    """Return how often each kind of event was noted for each item."""
    found: dict[str, Counter[str]] = {what: Counter() for what in ("putting", "put", "got", "ending", "ended")}
    for line in ledger.read_text().splitlines() if ledger.exists() else []:
        what, _, item = line.partition(" ")
        found[what][item] += 1
    return found


def test_killed_again_and_again(tmp_path: Path) -> None:
    """After any number of kills, each item is ended once or is still there, and only unfinished items come again.

    The items of each thread come in the order in which it put them.
    """
    path, ledger = tmp_path / "queue", tmp_path / "ledger"
    command = [sys.executable, "-m", "tests.durability.test_compat_killed", str(path), str(ledger)]
    for life in range(LIVES):
        had = ledger.stat().st_size if ledger.exists() else 0
        with subprocess.Popen(
            [*command, str(life)], cwd=SOURCES, env=os.environ | {"PYTHONPATH": str(SOURCES)}
        ) as child:
            try:
                wait_for(lambda: ledger.exists() and ledger.stat().st_size > had + 15 * LINES_PER_LIFE)  # noqa: B023
            finally:
                child.send_signal(signal.SIGKILL)
    noted = notes(ledger)
    with Queue[str](path) as queue:
        left = queue.get_many(1_000) if queue.qsize() else []
    assert len(noted["ended"]) > LIVES * LINES_PER_LIFE / 10
    assert set(noted["ended"].values()) == {1}
    there = set(left) | set(noted["ended"])
    assert not set(noted["put"]) - there - set(noted["ending"])
    assert not set(left) & set(noted["ended"])
    assert len(left) == len(set(left))
    twice = [item for item, times in noted["got"].items() if times > 1]
    assert len(twice) <= CONSUMERS * LIVES
    for mine in (f"{life}.{name}." for life in range(LIVES) for name in range(PRODUCERS)):
        numbers = [int(item.rpartition(".")[2]) for item in left if item.startswith(mine)]
        assert numbers == sorted(numbers)


if __name__ == "__main__":
    main()
