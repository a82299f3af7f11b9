"""Large items: 5,000 items of 512 KiB to 1 MiB, put in one flush, closed, reopened, read and compared.

The suite of DiskQueue, the predecessor, has this test. The bare disk writes the same buffers one after the other to a
new file, with one ``fdatasync`` at the end. Then it reads, checksums and compares them. Both read right after writing,
when the system still has part of the data in memory.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

from persistentqueue import PersistentQueue
from persistentqueue.core.checksum import crc32

from ..harness import Row, met, spread

_SEED = 20081114
_LEAST_BYTES, _MOST_BYTES = 512 * 1024, 1024 * 1024
_DIFFERENT = 61
WRITE_BAR = 0.9
READ_BAR = 0.8


class Contender(NamedTuple):
    """One side. ``put`` puts all items, ``take`` takes and compares them, ``delete`` deletes the files."""

    put: Callable[[], None]
    take: Callable[[], None]
    delete: Callable[[], None]


def _queue(directory: Path, items: Callable[[], Iterator[bytes]]) -> Contender:
    opened: list[PersistentQueue] = []

    def put() -> None:
        with PersistentQueue(directory) as queue, queue.transaction() as session:
            for item in items():
                session.enqueue(item)

    def take() -> None:
        opened.append(PersistentQueue(directory))
        with opened[0].transaction() as session:
            for item in items():
                assert session.dequeue() == item
            assert session.dequeue() is None

    def delete() -> None:
        """Close the queue. Closing frees the space; in a running queue maintenance frees it after the flush."""
        while opened:
            opened.pop().close()

    return Contender(put, take, delete)


def _bare(path: Path, items: Callable[[], Iterator[bytes]]) -> Contender:
    def put() -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        for item in items():
            assert os.write(fd, item) == len(item)
        os.fdatasync(fd)
        os.close(fd)

    def take() -> None:
        fd = os.open(path, os.O_RDONLY)
        for item in items():
            found = os.read(fd, len(item))
            crc32(found)
            assert found == item
        os.close(fd)

    return Contender(put, take, lambda: path.unlink(missing_ok=True))


def rows(directory: Path, count: int, rounds: int) -> Iterator[Row]:
    """Yield the lines of the table: in, and out."""
    source = random.Random(_SEED)
    some = [source.randbytes(source.randint(_LEAST_BYTES, _MOST_BYTES)) for _ in range(min(_DIFFERENT, count))]

    def items() -> Iterator[bytes]:
        """Repeat a few items, so that making items takes no time of the measurement."""
        return islice(cycle(some), count)

    directory.mkdir(parents=True)
    sides = {"ours": _queue(directory / "queue", items), "bare": _bare(directory / "bare", items)}
    seconds: dict[str, dict[str, list[float]]] = {way: {name: [] for name in sides} for way in ("in", "out")}
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            side = sides[name]
            # One run is not timed: after it, each side finds memory as it left it itself. A virtual machine returns
            # free memory to its host, and getting it back may cost more time than writing to the disk.
            for is_timed in (False, True):
                start = time.perf_counter()
                side.put()
                middle = time.perf_counter()
                side.take()
                end = time.perf_counter()
                side.delete()
                if is_timed:
                    seconds["in"][name].append(middle - start)
                    seconds["out"][name].append(end - middle)
    megabytes = sum(map(len, items())) / 1e6
    for way, bar in (("in", WRITE_BAR), ("out", READ_BAR)):
        ours, bare = seconds[way]["ours"], seconds[way]["bare"]
        found = [theirs / own for own, theirs in zip(ours, bare, strict=True)]
        yield Row(
            f"{count:,} items of 512 KiB to 1 MiB, {way}",
            f"{megabytes / median(ours):,.0f} MB/s",
            f"bare disk {megabytes / median(bare):,.0f} MB/s",
            f"{spread(found)} × bare disk",
            f"{bar:g} × bare disk",
            met(median(found) >= bar),
        )
