"""The queue compared with a plain list, under random programs of sessions, flushes, rollbacks, trims, reopenings and
crashes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from persistentqueue import PersistentQueue, Session, check
from tests.support.queues import crash

pytestmark = pytest.mark.filterwarnings("ignore::persistentqueue.UnflushedWarning")  # programs drop work on purpose
ITEM = st.one_of(
    st.binary(max_size=8),
    st.sampled_from([b"", b"x", b"y" * 64, b"PQBk" * 30, b"PQFr" + bytes(40), b"z" * 3000]),
)


class ModelSession:
    """Pending work of a session in the model: items to enqueue, and the numbers of the items that it holds."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.enqueued: list[bytes] = []
        self.held: list[int] = []


class QueueMachine(RuleBasedStateMachine):
    """Random programs and their model: every item that was ever committed, in order, and the numbers of the ready
    ones."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.items: list[bytes] = []
        self.ready: list[int] = []
        self.sessions: list[ModelSession] = []
        self.queue: PersistentQueue | None = None
        self.markers: dict[str, int] = {}

    @initialize(
        segment_bytes=st.sampled_from([10, 300, 5000, 1 << 20]),
        memory_bytes=st.sampled_from([0, 300, 10_000, 1 << 26]),
        inline_bytes=st.sampled_from([0, 200, 1 << 16]),
        spill_bytes=st.sampled_from([1, 500, 1 << 20]),
        sync=st.booleans(),
    )
    def open(self, segment_bytes: int, memory_bytes: int, inline_bytes: int, spill_bytes: int, sync: bool) -> None:
        self.settings: dict[str, Any] = {
            "segment_bytes": segment_bytes,
            "memory_bytes": memory_bytes,
            "inline_bytes": inline_bytes,
            "sync": sync,
            "log_bytes": 4096,
        }
        self.spill_bytes = spill_bytes
        self._open()

    def _open(self) -> None:
        self.queue = PersistentQueue(self.root, "q", **self.settings)
        report = check(self.root, "q")
        assert report.ok, report.problems

    def _number(self, index: int) -> ModelSession:
        return self.sessions[index % len(self.sessions)]

    def _forget_sessions(self) -> None:
        for each in self.sessions:
            self.ready = sorted(self.ready + each.held)
        self.sessions = []

    @rule()
    def session(self) -> None:
        assert self.queue is not None
        session = self.queue.session()
        session._spill_bytes = self.spill_bytes
        self.sessions.append(ModelSession(session))

    @precondition(lambda self: self.sessions)
    @rule(index=st.integers(0, 5), item=ITEM)
    def enqueue(self, index: int, item: bytes) -> None:
        each = self._number(index)
        each.session.enqueue(item)
        each.enqueued.append(item)

    @precondition(lambda self: self.sessions)
    @rule(index=st.integers(0, 5), items=st.lists(ITEM, max_size=12), lazily=st.booleans())
    def enqueue_many(self, index: int, items: list[bytes], lazily: bool) -> None:
        each = self._number(index)
        each.session.enqueue_many(iter(items) if lazily else items)
        each.enqueued += items

    @precondition(lambda self: self.sessions)
    @rule(index=st.integers(0, 5))
    def dequeue(self, index: int) -> None:
        each = self._number(index)
        item = each.session.dequeue()
        if self.ready:
            number = self.ready.pop(0)
            assert item == self.items[number]
            each.held.append(number)
        else:
            assert item is None

    @precondition(lambda self: self.sessions)
    @rule(index=st.integers(0, 5), count=st.integers(0, 20))
    def dequeue_many(self, index: int, count: int) -> None:
        each = self._number(index)
        numbers, self.ready = self.ready[:count], self.ready[count:]
        assert each.session.dequeue_many(count) == [self.items[number] for number in numbers]
        each.held += numbers

    @precondition(lambda self: self.sessions)
    @rule(index=st.integers(0, 5), marker=st.none() | st.tuples(st.sampled_from("ab"), st.integers(0, 3)))
    def flush(self, index: int, marker: tuple[str, int] | None) -> None:
        each = self._number(index)
        is_new = marker is None or marker[1] > self.markers.get(marker[0], -1)
        assert each.session.flush(marker) is is_new
        if is_new:
            self.ready += range(len(self.items), len(self.items) + len(each.enqueued))
            self.items += each.enqueued
            if marker is not None:
                self.markers[marker[0]] = marker[1]
        else:
            self.ready = sorted(self.ready + each.held)
        each.enqueued, each.held = [], []

    @precondition(lambda self: self.sessions)
    @rule(index=st.integers(0, 5), close=st.booleans())
    def rollback(self, index: int, close: bool) -> None:
        each = self._number(index)
        self.ready = sorted(self.ready + each.held)
        each.enqueued, each.held = [], []
        if close:
            each.session.close()
            self.sessions.remove(each)
        else:
            each.session.rollback()

    @rule()
    def trim(self) -> None:
        assert self.queue is not None
        self.queue.trim()

    @rule(memory_bytes=st.sampled_from([0, 300, 10_000, 1 << 26]), segment_bytes=st.sampled_from([10, 5000, 1 << 20]))
    def resize(self, memory_bytes: int, segment_bytes: int) -> None:
        assert self.queue is not None
        self.settings.update(memory_bytes=memory_bytes, segment_bytes=segment_bytes)
        self.queue.resize(memory_bytes=memory_bytes, segment_bytes=segment_bytes)
        assert self.queue.stats().cached_bytes <= memory_bytes

    @rule()
    def clear(self) -> None:
        assert self.queue is not None
        assert self.queue.clear() == len(self.ready)
        self.ready = []

    @rule(killed=st.booleans())
    def reopen(self, killed: bool) -> None:
        assert self.queue is not None
        if killed:
            crash(self.queue)
        else:
            self.queue.close()
        self._forget_sessions()
        self._open()

    @invariant()
    def agrees(self) -> None:
        if self.queue is None:
            return
        assert len(self.queue) == len(self.ready)
        assert list(self.queue.browse()) == [self.items[number] for number in self.ready]
        stats = self.queue.stats()
        assert stats.enqueued == len(self.items)
        assert stats.held == sum(len(each.held) for each in self.sessions)
        assert stats.dequeued == stats.enqueued - stats.ready - stats.held
        assert stats.cached_bytes <= self.settings["memory_bytes"] == stats.memory_bytes
        assert stats.cached <= stats.ready
        assert stats.flowed is (stats.cached < stats.ready)
        for name, version in self.markers.items():
            assert self.queue.marker(name) == version

    def teardown(self) -> None:
        if self.queue is not None:
            self.queue.close()
            report = check(self.root, "q")
            assert report.ok, report.problems
            assert report.sealed or report.transactions == 0
            assert not report.leftovers, report.leftovers
        shutil.rmtree(self.root)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(stateful_step_count=40, suppress_health_check=list(HealthCheck))
