"""Waiting: how soon a consumer that waits has what was committed, and what waiting takes of a processor.

The time is from the moment at which the commit is durable and about to be shown to others (the failpoint of its fourth
step) to the return of ``dequeue`` in the other thread. The consumer waits again before the next commit. Of what a
``Producer`` publishes it is from the rename by which others can see it; the owner commits it in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from persistentqueue import ClosedError, PersistentQueue, Producer, group
from persistentqueue.disk import DISK
from persistentqueue.maintenance import THREAD_NAME

from .harness import Row, met, percentile

HALF_MS_BAR = 0.2
MOST_MS_BAR = 2.0
ADOPTED_MS_BAR = 50.0
IDLE_MS_BAR = 1.0
"""Of processor time in all the seconds; the calls that measure it take some of it."""
_IDLE_SECONDS = 2.0
_PAUSE_SECONDS = 0.001


def wake_ups(directory: Path, count: int) -> list[float]:
    """The seconds from commit to wake-up, of so many commits."""
    committed: list[float] = []

    def failpoint(name: str) -> None:
        if name == "commit.4 apply":
            committed.append(time.perf_counter())

    woken: list[float] = []
    got = threading.Semaphore(0)
    with PersistentQueue(directory, disk=replace(DISK, failpoint=failpoint)) as queue:

        def consume() -> None:
            with queue.session() as session:
                for _ in range(count):
                    assert session.dequeue(timeout=None) is not None
                    woken.append(time.perf_counter())
                    session.rollback()
                    got.release()
                    taking.wait()
                    taking.clear()

        taking = threading.Event()
        consumer = threading.Thread(target=consume)
        consumer.start()
        found = []
        with queue.session() as session:
            for _ in range(count):
                time.sleep(_PAUSE_SECONDS)  # until it waits again
                session.enqueue(b"x" * 100)
                session.flush()
                at = committed[-1]
                got.acquire()
                found.append(woken[-1] - at)
                assert session.dequeue() is not None
                session.flush()
                taking.set()
        consumer.join()
    return sorted(found)


def adoptions(directory: Path, count: int) -> list[float]:
    """The seconds from a publication to the wake-up of who waits for it in the owner's process, of so many."""
    published: list[float] = []

    def failpoint(name: str) -> None:
        if name == "publish.4 sync name":
            published.append(time.perf_counter())

    woken: list[float] = []
    got = threading.Semaphore(0)
    with PersistentQueue(directory) as queue:

        def consume() -> None:
            with queue.session() as session:
                for _ in range(count):
                    assert session.dequeue(timeout=None) is not None
                    woken.append(time.perf_counter())
                    session.flush()
                    got.release()

        consumer = threading.Thread(target=consume)
        consumer.start()
        with Producer(directory, disk=replace(DISK, failpoint=failpoint)) as producer:
            for _ in range(count):
                time.sleep(_PAUSE_SECONDS)  # until it waits again
                producer.enqueue(b"x" * 100)
                producer.flush()
                got.acquire()
        consumer.join()
    return sorted(after - before for before, after in zip(published, woken, strict=True))


def idle_seconds(directory: Path, *, waits: bool, seconds: float = _IDLE_SECONDS) -> float:
    """The processor time of an open queue that nobody uses, or for whose next item somebody waits."""
    before, group.IDLE_SECONDS = group.IDLE_SECONDS, 0.0  # what comes when it is idle comes at once
    try:
        with PersistentQueue(directory) as queue:
            with queue.transaction() as session:
                session.enqueue(b"x")
            with queue.transaction() as session:
                session.dequeue()

            def wait() -> None:
                with queue.session() as waiting, suppress(ClosedError):
                    waiting.dequeue(timeout=None)

            thread = threading.Thread(target=wait)
            if waits:
                thread.start()
            while any(each.name == THREAD_NAME for each in threading.enumerate()):
                time.sleep(_PAUSE_SECONDS)
            start = time.process_time()
            time.sleep(seconds)
            taken_seconds = time.process_time() - start
        if waits:
            thread.join()
    finally:
        group.IDLE_SECONDS = before
    return taken_seconds


def rows(directory: Path, count: int) -> Iterator[Row]:
    """The lines of the table."""
    seconds = wake_ups(directory / "wake", count)
    half_ms, most_ms = 1e3 * percentile(seconds, 0.5), 1e3 * percentile(seconds, 0.99)
    yield Row(
        f"From commit to wake-up, {count:,} times",
        f"half {half_ms:.3f} ms, 99 % {most_ms:.3f} ms, longest {1e3 * seconds[-1]:.3f} ms",
        "",
        "",
        f"{HALF_MS_BAR:g} ms, {MOST_MS_BAR:g} ms",
        met(half_ms <= HALF_MS_BAR and most_ms <= MOST_MS_BAR),
    )
    seconds = adoptions(directory / "adopt", count)
    half_ms, most_ms = 1e3 * percentile(seconds, 0.5), 1e3 * percentile(seconds, 0.99)
    yield Row(
        f"From a producer's rename to the wake-up of the owner's consumer, {count:,} times",
        f"half {half_ms:.3f} ms, 99 % {most_ms:.3f} ms, longest {1e3 * seconds[-1]:.3f} ms",
        "",
        "",
        f"{ADOPTED_MS_BAR:g} ms",
        met(most_ms <= ADOPTED_MS_BAR),
    )
    for what, waits in (("An idle open queue", False), ("A blocked dequeue(timeout=None)", True)):
        taken_ms = 1e3 * idle_seconds(directory / what.split()[1], waits=waits)
        yield Row(
            f"{what}, {_IDLE_SECONDS:g} s",
            f"{taken_ms:.2f} ms of processor time",
            "",
            "",
            f"under {IDLE_MS_BAR:g} ms",
            met(taken_ms < IDLE_MS_BAR),
        )
