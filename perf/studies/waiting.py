"""Waiting: the time from a commit to the wake-up of a waiting consumer, and the processor time of waiting.

The time begins when the commit is durable and about to become visible (the failpoint of its fourth step). It ends when
``dequeue`` returns in the other thread. The consumer waits again before the next commit. For an item of a ``Producer``
the time begins with the rename that publishes the file, and includes the commit by the owner.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from persistentqueue import ClosedError, PersistentQueue, Producer, Session
from persistentqueue.runtime import maintenance
from persistentqueue.runtime.background import THREAD_NAME
from persistentqueue.system.disk import DISK, Disk

from ..disks import using_disk
from ..harness import Row, met, percentile

HALF_MS_BAR = 0.2
MOST_MS_BAR = 2.0
ADOPTED_MS_BAR = 50.0
IDLE_MS_BAR = 1.0
"""Largest processor time in ``_IDLE_SECONDS``. The measuring calls take part of it."""
_IDLE_SECONDS = 2.0
_PAUSE_SECONDS = 0.001


def wake_ups(directory: Path, count: int) -> list[float]:
    """Return the seconds from commit to wake-up for this number of commits, sorted."""
    disk, committed = _recording("commit.4 apply")
    with using_disk(disk), PersistentQueue(directory) as queue, queue.session() as session:
        return _until_woken(queue, session, committed, count)


def adoptions(directory: Path, count: int) -> list[float]:
    """Return the seconds from a publication to the wake-up of a consumer in the owner's process, sorted."""
    disk, published = _recording("publish.4 sync name")
    with PersistentQueue(directory) as queue, using_disk(disk), Producer(directory) as producer:
        return _until_woken(queue, producer, published, count)


def _recording(name: str) -> tuple[Disk, list[float]]:
    """Return a disk, and the list of the times at which the calling thread reaches this failpoint."""
    thread = threading.get_ident()
    found: list[float] = []

    def failpoint(at: str) -> None:
        if at == name and threading.get_ident() == thread:
            found.append(time.perf_counter())

    return replace(DISK, failpoint=failpoint), found


def _until_woken(
    queue: PersistentQueue, putting: Session | Producer, shown: Sequence[float], count: int
) -> list[float]:
    """Put each item when a consumer waits for it. Return the seconds from ``shown`` to the wake-up, sorted.

    Raises ``ValueError`` if a flush was recorded twice, or never.
    """
    woken: list[float] = []
    got = threading.Semaphore(0)

    def consume() -> None:
        with queue.session() as session:
            for _ in range(count):
                assert session.dequeue(timeout=None) is not None
                woken.append(time.perf_counter())
                session.flush()
                got.release()

    consumer = threading.Thread(target=consume)
    consumer.start()
    for _ in range(count):
        time.sleep(_PAUSE_SECONDS)  # until the consumer waits again
        putting.enqueue(b"x" * 100)
        putting.flush()
        got.acquire()
    consumer.join()
    return sorted(after - before for before, after in zip(shown, woken, strict=True))


def idle_seconds(directory: Path, *, waits: bool, seconds: float = _IDLE_SECONDS) -> float:
    """Return the processor seconds of an open queue that is not used. With ``waits``, a consumer waits in it."""
    before, maintenance.IDLE_SECONDS = maintenance.IDLE_SECONDS, 0.0  # maintenance of an idle queue begins at once
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
        maintenance.IDLE_SECONDS = before
    return taken_seconds


def rows(directory: Path, count: int) -> Iterator[Row]:
    """Yield the lines of the table."""
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
