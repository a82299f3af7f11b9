"""Flushes that a thread does not wait for (``flush(wait=False)``), beside flushes that it waits for.

- One thread: both take turns, round after round, each in a queue that stays open.
- Eight threads with a named queue each, beside the same threads that wait, and beside SQLite with a file each.

A round of tickets ends when all of them are done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from persistentqueue import PersistentQueue

from ..contenders import OURS_APART, SQLITE_APART, Lane
from ..harness import Row, met, spread

RATIO_BAR = 15.0
APART_BAR = 1.2
THREADS = 8
WAYS = ("in", "out")
TICKETS_PER_FLUSH = 10
"""Tickets for each flush that is waited for, so that both take about as long."""
_ITEM = b"x" * 100


def rates(directory: Path, count: int, rounds: int) -> dict[tuple[str, bool], list[float]]:
    """Return the flushes per second of each round, by the way and by whether they were waited for.

    Each round makes ``count`` flushes that are waited for, and ten times as many that are not.
    """
    found: dict[tuple[str, bool], list[float]] = {(way, waits): [] for way in WAYS for waits in (True, False)}
    with PersistentQueue(directory / "waiting") as waiting, PersistentQueue(directory / "tickets") as tickets:
        for number in range(rounds):
            for waits in (True, False)[:: 1 if number % 2 else -1]:
                queue, flushes = (waiting, count) if waits else (tickets, TICKETS_PER_FLUSH * count)
                for way in WAYS:
                    found[way, waits].append(flushes / _seconds(queue, way, flushes, waits=waits))
    return found


def _seconds(queue: PersistentQueue, way: str, flushes: int, *, waits: bool) -> float:
    """Return the seconds until this number of flushes, of one item each, is durable."""
    begun = time.perf_counter()
    with queue.session() as session:
        for _ in range(flushes):
            if way == "in":
                session.enqueue(_ITEM)
            else:
                assert session.dequeue() is not None
            session.flush(wait=waits)
    return time.perf_counter() - begun


Loop = Callable[[str, int], object]
"""Makes a number of flushes, in or out, in one thread. On return they are durable."""


@contextmanager
def _tickets_apart(directory: Path) -> Iterator[list[Loop]]:
    """Open a named queue for each thread, whose flushes are not waited for."""
    with ExitStack() as stack:
        queues = [stack.enter_context(PersistentQueue(directory, f"q{number}")) for number in range(THREADS)]
        yield [partial(_seconds, queue, waits=False) for queue in queues]


@contextmanager
def _waiting_apart(name: str, directory: Path) -> Iterator[list[Loop]]:
    """Open the files of the contender of this name, one for each thread, whose flushes are waited for."""
    contender = {each.name: each for each in (OURS_APART, SQLITE_APART)}[name]

    def loop(lane: Lane, way: str, flushes: int) -> None:
        for _ in range(flushes):
            if way == "in":
                lane.put([_ITEM])
            else:
                assert lane.take(1)

    with contender.open(directory, THREADS) as lanes:
        yield [partial(loop, lane) for lane in lanes]


def apart(directory: Path, count: int, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Return the flushes per second of each round of eight threads, by the way and the contender.

    Each thread makes ``count`` flushes that are waited for, and ten times as many that are not.
    """
    opened: dict[str, Callable[[Path], AbstractContextManager[list[Loop]]]] = {
        "tickets": _tickets_apart,
        OURS_APART.name: partial(_waiting_apart, OURS_APART.name),
        SQLITE_APART.name: partial(_waiting_apart, SQLITE_APART.name),
    }
    found: dict[tuple[str, str], list[float]] = {(way, name): [] for way in WAYS for name in opened}
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(THREADS))
        contenders: dict[str, Sequence[Loop]] = {}
        for name, call in opened.items():
            (directory / name.replace(" ", "-")).mkdir(parents=True)
            contenders[name] = stack.enter_context(call(directory / name.replace(" ", "-")))
        for number in range(rounds):
            for name in list(opened)[:: 1 if number % 2 else -1]:
                flushes = TICKETS_PER_FLUSH * count if name == "tickets" else count
                for way in WAYS:
                    begun = time.perf_counter()
                    for each in [threads.submit(loop, way, flushes) for loop in contenders[name]]:
                        each.result()
                    found[way, name].append(THREADS * flushes / (time.perf_counter() - begun))
    return found


def rows(directory: Path, count: int, rounds: int) -> Iterator[Row]:
    """Yield the lines of the table."""
    found = rates(directory, count, rounds)
    for way in WAYS:
        ratios = [ours / other for ours, other in zip(found[way, False], found[way, True], strict=True)]
        yield Row(
            f"One item of 100 B per flush that is not waited for, {way}",
            f"{median(found[way, False]):,.0f} flushes/s",
            f"{median(found[way, True]):,.0f} that are waited for",
            f"{spread(ratios)} × flushes that are waited for",
            f"{RATIO_BAR:g} × flushes that are waited for",
            met(median(ratios) >= RATIO_BAR),
        )
    each = apart(directory / "apart", max(count // THREADS, 1), rounds)
    for way in WAYS:
        ours, waiting, sqlite = each[way, "tickets"], each[way, OURS_APART.name], each[way, SQLITE_APART.name]
        ratios = [one / other for one, other in zip(ours, sqlite, strict=True)]
        yield Row(
            f"The same, {THREADS} threads with a named queue each, {way}",
            f"{median(ours):,.0f} flushes/s",
            f"{median(waiting):,.0f} that are waited for · {SQLITE_APART.name} {median(sqlite):,.0f}",
            f"{spread(ratios)} × {SQLITE_APART.name}",
            f"{APART_BAR:g} × {SQLITE_APART.name}",
            met(median(ratios) >= APART_BAR),
        )
