"""queuelib's own tests, taken from its installation, on ``compat.FifoQueue``: the contract of Scrapy's queues."""

from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from persistentqueue.compat import FifoQueue

queues = pytest.importorskip("queuelib.tests.api.test_queue")
priorities = pytest.importorskip("queuelib.tests.test_pqueue")
rounds = pytest.importorskip("queuelib.tests.test_rrqueue")
queuelib = pytest.importorskip("queuelib.queue")
track_closed = pytest.importorskip("queuelib.tests").track_closed

LEFT_OUT = {
    "FifoDiskQueueTest.test_not_szhdr": "puts another file in the place of its own",
    "FifoDiskQueueTest.test_chunks": "counts its own files",
    "FifoDiskQueueTest.test_clear_removes_chunks": "likewise",
    "LifoDiskQueueTest": "a LIFO is no FIFO",
}
"""Excluded tests of its disk queues; the tests of its SQLite FIFO cover the rest without its files."""


def test_what_is_left_out_is_there() -> None:
    """Each exclusion names a test that the suite has."""
    for name in LEFT_OUT:
        group, _, test = name.partition(".")
        assert hasattr(getattr(queues, group), test or "queue"), name


def test_it_is_one_of_its_queues() -> None:
    """queuelib accepts the class as one of its queues."""
    assert issubclass(FifoQueue, queuelib.BaseQueue)


class TestFifo(queues.FifoSQLiteQueueTest):  # type: ignore[misc,name-defined]
    """FIFO order, persistence, and an empty directory that is deleted."""

    # The test passes, but it is marked as an expected failure because of Scrapy's own queues: run it without the mark.
    test_non_bytes_raises_typeerror = FunctionType(
        queues.PersistentTestMixin.test_non_bytes_raises_typeerror.__code__, vars(queues)
    )

    def queue(self) -> FifoQueue:
        return FifoQueue(self.qpath)


class Many:
    """A queue for each key, as Scrapy has them; the tests see if each was closed."""

    qdir: str

    def qfactory(self, key: Any) -> Any:
        return track_closed(FifoQueue)(Path(self.qdir, str(key)))


class TestPriorities(Many, priorities.FifoDiskPriorityQueueTest):  # type: ignore[misc,name-defined]
    """A queue for each priority."""


class TestRounds(Many, rounds.FifoDiskRRQueueTest):  # type: ignore[misc,name-defined]
    """A queue for each slot, in turn."""


class TestRoundsBegun(Many, rounds.FifoDiskRRQueueStartDomainsTest):  # type: ignore[misc,name-defined]
    """A queue for each slot, with slots to start with."""
