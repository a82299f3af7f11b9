"""Rows 12 and 21: each call in turn finds no descriptor, no memory, or no room for a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from persistentqueue import PersistentQueue, Producer, ResourceError, check
from persistentqueue.core.header import HEADER_BYTES
from tests.support.disks import call_on
from tests.support.queues import crash, spilling_session

from .test_scarce_resources import LACKS, Scarce

T = TypeVar("T")


class Story:
    """Steps of a queue and a producer on a scarce disk. A step that raises the expected error is repeated."""

    def __init__(self, scarce: Scarce, lack: type[ResourceError], settings: dict[str, Any]) -> None:
        self.scarce, self.lack, self.settings = scarce, lack, settings
        self.number = 0
        self.expected: list[bytes] = []
        self.errors = 0

    def step(self, call: Callable[[], T]) -> T:
        """Make the call, and repeat it if it raises the expected error."""
        try:
            return call()
        except ResourceError as error:
            self.hear(error)
            return call()

    def hear(self, error: ResourceError) -> None:
        """Check the error, and end the scarcity."""
        assert type(error) is self.lack, repr(error)
        assert "nothing was committed" in str(error)
        self.errors += 1
        self.scarce.heal()

    def open(self) -> PersistentQueue:
        """Open the queue."""
        return call_on(self.scarce.disk, PersistentQueue, "/queues", "q", **self.settings)

    def items(self, count: int, size_bytes: int = 120) -> list[bytes]:
        """Return new items, each of which differs from all others."""
        made = [b"%d " % number for number in range(self.number, self.number + count)]
        self.number += count
        return [item.ljust(size_bytes, b".") for item in made]

    def put(self, queue: PersistentQueue, items: list[bytes]) -> None:
        """Enqueue the items with a session that spills, and flush."""
        with spilling_session(queue, 400) as session:
            for item in items:
                self.step(lambda item=item: session.enqueue(item))  # type: ignore[misc]
            self.step(session.flush)
        self.expected += items

    def take(self, queue: PersistentQueue, count: int) -> None:
        """Dequeue ``count`` items, one call each, and flush."""
        with queue.session() as session:
            taken = [self.step(session.dequeue) for _ in range(count)]
            assert taken == self.expected[:count]
            assert self.step(queue.stats).held == count
            self.step(session.flush)
            assert self.step(queue.stats).held == 0
        del self.expected[:count]

    def publish(self, items: list[bytes], spill: bool) -> None:
        """Publish the items with a producer."""
        with self.step(lambda: call_on(self.scarce.disk, Producer, "/queues", "q")) as producer:
            for item in items:
                self.step(lambda item=item: producer.enqueue(item))  # type: ignore[misc]
                if spill:
                    self.step(producer._spill)
            assert producer.pending == len(items)
            self.step(lambda: producer.flush(marker=("m", self.number)))
        self.expected += items

    def run(self) -> None:
        """Make all steps."""
        queue = self.step(self.open)
        for _ in range(3):
            self.put(queue, self.items(5))
        self.put(queue, self.items(1, 3000))
        self.take(queue, 4)
        self.publish(self.items(2), spill=False)
        self.publish(self.items(3), spill=True)
        self.take(queue, len(self.expected))  # this adopts the publications
        put_items = self.items(9)
        self.put(queue, put_items)
        with self.step(lambda: queue.subscribe("s")).session() as session:
            assert self.step(session.dequeue) == self.expected[0]
            session.rollback()
        self.step(lambda: queue.unsubscribe("s"))
        with queue.session() as session:  # a gap, so that there is something to compact
            assert self.step(lambda: session.dequeue_many(7)) == self.expected[:7]
            session.put_back(1)
            self.step(session.flush)
        del self.expected[:6]
        self.step(lambda: queue.compact(below=1.0))
        self.step(queue.maintain)
        self.step(queue.trim)
        crash(queue)
        queue = self.step(self.open)
        self.take(queue, 1)
        try:
            queue.close()
        except ResourceError as error:
            self.hear(error)
        assert queue.closed
        queue = self.step(self.open)
        assert self.step(lambda: list(queue.browse())) == self.expected
        self.put(queue, self.items(2))
        self.take(queue, len(self.expected))
        self.scarce.heal()
        queue.close()
        report = call_on(self.scarce.sound, check, "/queues/q")
        assert (report.problems, report.items, report.published) == ((), 0, 0)
        assert not self.scarce.simulated.descriptors


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "for long"])
@pytest.mark.parametrize(("kinds", "code", "lack"), LACKS)
@pytest.mark.parametrize(
    "settings",
    [
        {"inline_bytes": 0, "segment_bytes": 600 + HEADER_BYTES, "memory_bytes": 0, "log_bytes": 4096},
        {"segment_bytes": 4096, "memory_bytes": 0, "log_bytes": 4096, "pool_min_bytes": 9000, "pool_max_bytes": 20_000},
    ],
    ids=["large", "small, with a pool"],
)
def test_row_12_and_21_every_call_that_lacks_something(
    settings: dict[str, Any], kinds: frozenset[str], code: int, lack: type[ResourceError], lasting: bool
) -> None:
    """Each call that finds no descriptor, no memory, or no room for a name raises the one named error, and can be
    repeated."""
    at = told = 0
    while True:
        at += 1 + lasting
        scarce = Scarce(kinds, at, code, lasting)
        story = Story(scarce, lack, settings)
        try:
            story.run()
        except BaseException as error:
            error.args = (*error.args, f"call {at} failed: {scarce.failed}")
            raise
        told += story.errors
        if not scarce.failed:
            break
    assert at > 20
    assert told > at // 4
