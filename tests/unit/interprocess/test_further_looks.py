"""Looks that follow another one: they read what was appended to the log, and find what a first look finds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import CorruptionError, PersistentQueue, Session, Subscription, View, move_data
from persistentqueue.core.frame import END, FRAME_HEADER_BYTES, encode_frame
from persistentqueue.core.operations import encode_transaction
from persistentqueue.interprocess import splits as splits_module
from persistentqueue.interprocess.splits import Onlooker, look
from persistentqueue.recovery.check import _check_state
from persistentqueue.recovery.replay import Recovered
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, log_file, put, put_each

from .test_splits import Counting


@contextmanager
def whole_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record each look that reads the whole log."""
    found: list[str] = []

    def noted(*arguments: Any) -> Any:
        found.append(arguments[1])
        return look(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(splits_module, "look", noted)
        yield found


class Program:
    """A random program over one queue, as its owner runs it."""

    def __init__(self, directory: Path, elsewhere: Path, chance: random.Random, sync: bool) -> None:
        self._directory = directory
        self._elsewhere = elsewhere
        self._chance = chance
        self._settings: dict[str, Any] = {"sync": sync, "log_bytes": chance.choice((4096, 1 << 16))}
        self._held: list[Session] = []
        self._subscriptions: list[Subscription] = []
        self._queue = PersistentQueue(directory, **self._settings)

    def step(self) -> None:
        """Do something."""
        steps = (self._enqueue, self._consume, self._hold, self._subscribe, self._unsubscribe, self._mark)
        rare = (self._queue.compact, self._queue._open().trim, self.reopen, self._move)
        self._chance.choice(steps if self._chance.random() < 0.9 else rare)()

    def reopen(self) -> None:
        """Close the queue, or end it as a crash does, and open it again."""
        self._end()
        self._begin()

    def close(self) -> None:
        """Close the queue."""
        self._release()
        self._queue.close()

    def _begin(self) -> None:
        self._queue = PersistentQueue(self._directory, **self._settings)
        self._subscriptions = [self._queue.subscribe(name) for name in self._queue.subscriptions()]

    def _end(self) -> None:
        self._release()
        if self._chance.random() < 0.5:
            self._queue.close()
            return
        crash(self._queue)
        if self._chance.random() < 0.5:  # recovery cuts a torn tail
            end = look(DISK, str(self._directory))[1].replay.end
            with log_file(self._directory).open("r+b") as log:
                log.seek(end)
                log.write(b"PQFr" + bytes(20) + b"torn")

    def _move(self) -> None:
        self.close()
        self._elsewhere.mkdir(exist_ok=True)
        move_data(self._directory, data_path=self._elsewhere / str(self._chance.randrange(10**9)))
        self._begin()

    def _release(self) -> None:
        for session in self._held:
            session.rollback()
            session.close()
        self._held, self._subscriptions = [], []

    def _enqueue(self) -> None:
        length_bytes = self._chance.choice((0, 10, 300, 3000))
        put(self._queue, *[bytes(length_bytes)] * self._chance.choice((1, 3, 60)))

    def _consume(self) -> None:
        sources: list[PersistentQueue | Subscription] = [self._queue, *self._subscriptions]
        with self._chance.choice(sources).session() as session:
            session.dequeue_many(self._chance.randrange(1, 40))
            (session.flush if self._chance.random() < 0.7 else session.rollback)()

    def _hold(self) -> None:
        self._held.append(self._queue.session())
        self._held[-1].dequeue_many(3)

    def _subscribe(self) -> None:
        name = f"s{self._chance.randrange(4)}"
        self._subscriptions = [each for each in self._subscriptions if each.name != name]
        self._subscriptions.append(self._queue.subscribe(name))

    def _unsubscribe(self) -> None:
        if self._subscriptions:
            self._queue.unsubscribe(self._subscriptions.pop().name)

    def _mark(self) -> None:
        with self._queue.session() as session:
            session.enqueue(b"marked")
            session.flush(marker=("m", self._chance.randrange(9)))


def facts(recovered: Recovered) -> tuple[Any, ...]:
    """Return what a look tells of a queue, to compare it."""
    state = recovered.state
    assert not list(_check_state(state))
    subscriptions = {
        number: (each.name, each.frontier, each.consumed.runs()) for number, each in state.subscriptions.items()
    }
    shared = [number for number, each in state.subscriptions.items() if each is state.gone]
    segments = {n: (s.salt, s.end, s.ordinal, s.live, s.live_bytes) for n, s in state.segments.items()}
    extents = [extent.row() for extent in state.extents]
    numbers = state.next_sequence, state.next_segment, state.current_segment, state.gone.frontier
    rest = shared, state.markers, state.drained, state.live_bytes, state.identity, state.gone.consumed.runs()
    redo = [each._replace(inline=None) for each in recovered.redo]
    return (*numbers, subscriptions, segments, extents, *rest, redo, recovered.transactions, recovered.replay.end)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_a_further_look_finds_what_a_first_one_finds(
    directory: Path, tmp_path: Path, seed: int, sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any program, also over trims, compactions, moves, crashes and recoveries, both looks are equal."""
    chance = random.Random(seed)
    program = Program(directory, tmp_path / "elsewhere", chance, sync)
    onlooker, view, looks = Onlooker(DISK, str(directory)), View(directory), 0
    with whole_looks(monkeypatch) as whole:
        for _ in range(60):
            program.step()
            if chance.random() < 0.7:
                assert facts(onlooker.look()[1]) == facts(look(DISK, str(directory))[1])
                assert replace(view.look(), time_ns=0) == replace(View(directory).look(), time_ns=0)
                looks += 1
    program.close()
    assert replace(view.look(), time_ns=0) == replace(View(directory).look(), time_ns=0)
    assert len(whole) - looks < looks  # of each look at a new view; of the other two, most read further


def test_a_further_look_reads_what_was_appended(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs what was appended, whatever the log has: some short frames, or one that is longer than a step."""
    queue = open_queue()
    put_each(queue, [b"%d" % number for number in range(2000)])
    counting = Counting()
    onlooker = Onlooker(counting.disk, str(directory))
    onlooker.look()
    log_bytes = counting.told()[1]
    with whole_looks(monkeypatch) as whole:
        for count in (1, 50):
            put_each(queue, [b"x"] * count)
            onlooker.look()
            assert counting.told()[1] < log_bytes // 4
        drain(queue)
        assert onlooker.look()[1].state.gone_count == 2051
        with queue.session() as kept, queue.session() as consumed:
            put(queue, *[b"y"] * 10_000)
            for _ in range(5000):
                kept.dequeue(), consumed.dequeue()
            consumed.flush()  # 105,000 bytes
            assert onlooker.look()[1].state.gone_count == 2051 + 5000
            kept.rollback()
        assert not whole


def test_what_was_looked_at_does_not_change(open_queue: QueueFactory, directory: Path) -> None:
    """A further look leaves the result of the one before it as it was: a reader may still go through its items."""
    queue = open_queue()
    put(queue, b"a", b"b", b"c")
    onlooker, view = Onlooker(DISK, str(directory)), View(directory)
    before, blocks = onlooker.look()[1], view.browse()
    assert next(blocks).data == b"a"
    known = facts(before)
    put(queue, b"d")
    drain(queue)
    assert onlooker.look()[1].state.gone_count == view.look().dequeued == 4
    assert facts(before) == known


@pytest.mark.damages
@pytest.mark.parametrize("harm", ["older", "cut", "flipped", "end", "header"])
def test_a_log_that_is_not_what_was_read(directory: Path, monkeypatch: pytest.MonkeyPatch, harm: str) -> None:
    """A log that was put back or damaged is read as a whole. One that ends with its last frame is not."""
    queue = PersistentQueue(directory)
    put(queue, b"a")
    path = log_file(directory)
    older = path.read_bytes()
    put(queue, b"b")
    onlooker = Onlooker(DISK, str(directory))
    end = onlooker.look()[1].replay.end
    put(queue, b"c")
    newer = path.read_bytes()
    crash(queue)
    with whole_looks(monkeypatch) as whole:
        if harm == "older":
            path.write_bytes(older)
        elif harm == "cut":
            path.write_bytes(newer[: end + 10])
        elif harm == "flipped":
            path.write_bytes(newer[: end + FRAME_HEADER_BYTES] + b"\xff" + newer[end + FRAME_HEADER_BYTES + 1 :])
        elif harm == "end":
            path.write_bytes(newer[:end] + END + newer[end + len(END) :])
        else:
            path.write_bytes(newer[:end] + b"PQFr" + bytes(40))
        state = onlooker.look()[1].state
    assert state.next_sequence == (1 if harm == "older" else 2)
    assert bool(whole) == (harm != "end")


@pytest.mark.damages
def test_a_frame_that_follows_another_one(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A valid frame that does not follow the last one is damage, for a further look, too."""
    queue = PersistentQueue(directory)
    put(queue, b"a")
    onlooker = Onlooker(DISK, str(directory))
    replay = onlooker.look()[1].replay
    crash(queue)
    body = encode_transaction([])
    header, _ = encode_frame(body, replay.header.salt, replay.end, 99, 0, 1, 0)
    with log_file(directory).open("r+b") as log:
        log.seek(replay.end)
        log.write(header + body + END)
    with whole_looks(monkeypatch) as whole, pytest.raises(CorruptionError):
        onlooker.look()
    assert whole


@pytest.mark.damages
def test_a_log_that_ends_with_its_last_frame(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further look believes the end of a file for the end of a log, as a first look does."""
    queue = PersistentQueue(directory)
    put(queue, b"a")
    onlooker = Onlooker(DISK, str(directory))
    onlooker.look()
    put(queue, b"b")
    end = look(DISK, str(directory))[1].replay.end
    path = log_file(directory)
    path.write_bytes(path.read_bytes()[:end])
    with whole_looks(monkeypatch) as whole:
        assert onlooker.look()[1].state.next_sequence == 2
        assert onlooker.look()[1].state.next_sequence == 2
    assert not whole
    crash(queue)
