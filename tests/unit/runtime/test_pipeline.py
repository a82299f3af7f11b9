"""The pipeline of a session by itself, with a queue that only notes what is committed, and without its thread."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from persistentqueue import BrokenQueueError, ClosedError, InvalidTransactionError, PrecedingFlushError
from persistentqueue.engine.transaction import SPILL_BYTES, Transaction
from persistentqueue.runtime import pipeline
from persistentqueue.runtime.pipeline import Handed, Pipeline, Ticket


class NotedQueue:
    """Notes what is committed and discarded. A transaction with a bad item is refused."""

    directory = "q"

    def __init__(self) -> None:
        self.commits: list[list[bytes]] = []
        self.timeouts: list[float | None] = []
        self.discarded: list[Transaction] = []
        self.error: BaseException | None = None
        self.pipeline = Pipeline(self, self.discard)

    def commit(self, transaction: Transaction, timeout_seconds: float | None) -> None:
        """Note the items and the timeout, or refuse them."""
        if b"bad" in transaction.items:
            raise self.error or InvalidTransactionError("q", "a good item", "a bad one")
        self.commits.append(transaction.items)
        self.timeouts.append(timeout_seconds)

    def give_up(self, transaction: Transaction) -> None:
        """Do nothing: no transaction waits."""

    def check_outermost(self) -> None:
        """Do nothing: no call is under way."""

    def discard(self, transaction: Transaction) -> None:
        """Note the transaction; fail like a delay that the user computes."""
        self.discarded.append(transaction)
        raise ValueError("no such delay")

    def give(self, *items: bytes, timeout: float | None = None, marker: tuple[str, int] | None = None) -> Ticket:
        """Hand a transaction with these items over."""
        transaction, ticket = Transaction(), Ticket()
        transaction.add(items)
        transaction.marker = marker
        self.pipeline.waiting.append(Handed(transaction, ticket, timeout))
        return ticket


def test_neighbours_are_merged() -> None:
    """Everything that waits is one commit, in order. A marker or a timeout stands alone, and so does what is large."""
    queue = NotedQueue()
    large = bytes(SPILL_BYTES)
    queue.give(b"a")
    queue.give(b"b", b"c")
    queue.give(b"d", timeout=1.5)
    queue.give(b"e", marker=("m", 1))
    queue.give(b"f")
    queue.give(large)
    queue.give(b"g")
    last = queue.give(b"h")
    queue.pipeline.run_once()
    assert queue.commits == [[b"a", b"b", b"c"], [b"d"], [b"e"], [b"f"], [large], [b"g", b"h"]]
    assert queue.timeouts == [0.0, 1.5, None, None, None, 0.0] and last.result(0.0)


def test_what_is_refused_is_tried_one_by_one() -> None:
    """Of merged flushes, those before the first that is refused are committed, and those behind it are not."""
    queue = NotedQueue()
    tickets = [queue.give(each) for each in (b"a", b"b", b"bad", b"c")]
    queue.pipeline.run_once()
    assert queue.commits == [[b"a"], [b"b"]]
    kinds = [type(each.exception(0.0)) for each in tickets]
    assert kinds == [type(None), type(None), InvalidTransactionError, PrecedingFlushError]
    assert queue.discarded == [] and [each.items for each in queue.pipeline.left()] == [[b"bad"], [b"c"]]
    queue.pipeline.release()
    assert [each.items for each in queue.discarded] == [[b"bad"], [b"c"]] and queue.pipeline.left() == []


@pytest.mark.parametrize("error", [BrokenQueueError("broken"), MemoryError()])
def test_an_unknown_outcome_is_that_of_all_that_were_merged(error: BaseException) -> None:
    """If it is unknown whether a merged commit is durable, each of its flushes has that error, and none is repeated."""
    queue = NotedQueue()
    queue.error = error
    tickets = [queue.give(each) for each in (b"a", b"bad")]
    queue.pipeline.run_once()
    assert queue.commits == [] and [each.exception(0.0) for each in tickets] == [error, error]
    behind = queue.give(b"b")
    queue.pipeline.run_once()
    assert isinstance(behind.exception(0.0), PrecedingFlushError) and queue.commits == []


def test_an_error_behind_a_commit_is_none_of_its_flushes(caplog: pytest.LogCaptureFixture) -> None:
    """If a commit raises when it is durable, the tickets end well, and nothing that it has consumed is released."""

    class Late(NotedQueue):
        def commit(self, transaction: Transaction, timeout_seconds: float | None) -> None:
            super().commit(transaction, timeout_seconds)
            transaction.settled = True
            raise MemoryError

    queue = Late()
    tickets = [queue.give(b"a"), queue.give(b"b"), queue.give(b"c", marker=("m", 1))]
    queue.pipeline.run_once()
    assert all(each.result(0.0) for each in tickets) and queue.commits == [[b"a", b"b"], [b"c"]]
    queue.pipeline.release()
    assert queue.discarded == [] and "an error behind a flush, which is durable" in caplog.text


@pytest.mark.parametrize(("name", "kinds"), [("join_runs", [type(None)] * 2), ("_lots", [MemoryError] * 2)])
def test_a_lack_of_memory_leaves_no_thread_waiting(
    monkeypatch: pytest.MonkeyPatch, name: str, kinds: list[type]
) -> None:
    """If memory is too short to merge flushes, they are committed one by one. For any other step each flush fails."""
    queue = NotedQueue()

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(pipeline, name, fail)
    tickets, done = [queue.give(b"a"), queue.give(b"b")], threading.Lock()
    done.acquire()
    queue.pipeline._waiters.append(done)
    queue.pipeline.run_once()
    assert not done.locked() and [type(each.exception(0.0)) for each in tickets] == kinds


def test_an_error_behind_a_few_flushes_changes_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the thread of a session finds no memory to go on, the flushes that it has committed have ended well."""
    queue = NotedQueue()

    def fail(*_: object) -> bool:
        raise MemoryError

    monkeypatch.setattr(Pipeline, "_commit_merged", fail)
    first, *others = queue.give(b"a", timeout=1.0), queue.give(b"b"), queue.give(b"c")
    queue.pipeline.run_once()
    assert first.result(0.0) and [type(each.exception(0.0)) for each in others] == [MemoryError] * 2
    assert [each.items for each in queue.pipeline.left()] == [[b"b"], [b"c"]]


def test_an_error_of_a_skipped_transaction_ends_its_ticket() -> None:
    """If what a skipped transaction holds cannot be released, its ticket has that error."""

    class Skipping(NotedQueue):
        def commit(self, transaction: Transaction, timeout_seconds: float | None) -> None:
            transaction.skipped = True

        def discard(self, transaction: Transaction) -> None:
            raise MemoryError

    queue = Skipping()
    ticket = queue.give(b"a", marker=("m", 1))
    queue.pipeline.run_once()
    assert isinstance(ticket.exception(0.0), MemoryError)


def test_flushes_of_nothing_write_nothing() -> None:
    """A flush of nothing is done in its turn, and nothing is committed for it."""
    queue = NotedQueue()
    tickets = [queue.give(), queue.give(), queue.give(timeout=1.0)]
    queue.pipeline.run_once()
    assert all(each.result(0.0) for each in tickets) and queue.commits == []


def test_a_forked_child_abandons_what_was_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a forked child, all tickets that are not done have a ``ClosedError``, though the lock of one may be taken."""
    queue = NotedQueue()
    ticket = queue.give(b"a")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "_ALIVE", {queue.pipeline})
        pipeline._abandon_all()
    assert isinstance(ticket.exception(0.0), ClosedError) and queue.commits == []


def test_the_end_of_a_process_waits_for_each_pipeline() -> None:
    """When a process ends, what was handed over is committed before. Later calls wait for nothing."""
    queue = NotedQueue()
    assert queue.pipeline.begin()
    ticket = queue.give(b"a")
    pipeline._finish_all()
    assert ticket.done() and queue.commits == [[b"a"]] and queue.pipeline.left() == []
    queue.pipeline.end()
    queue.pipeline.join()
    queue.pipeline.drain()


def test_a_pipeline_that_ends_serves_those_that_came_before() -> None:
    """A thread that waits for all flushes is told, also if the end comes between its arrival and the next look."""

    class Late(list[threading.Lock]):
        """The waiters: the first one comes behind the first look, and then the end."""

        def __bool__(self) -> bool:
            if made.pipeline._has_ended:
                return len(self) > 0
            self.append(threading.Lock())
            made.pipeline.end()
            return False

    made = NotedQueue()
    made.pipeline._waiters = Late()
    assert made.pipeline._awaits() is True
    made.pipeline._waiters.clear()
    assert made.pipeline._awaits() is False


def test_two_threads_may_ring_at_once() -> None:
    """A bell that another thread rings at the same time is rung once."""
    queue = NotedQueue()

    class Rung:
        """A lock that another thread releases just after the look at it."""

        def locked(self) -> bool:
            return True

        def release(self) -> None:
            raise RuntimeError("release unlocked lock")

    queue.pipeline._bell = Rung()  # type: ignore[assignment]
    queue.pipeline.ring()
    queue.pipeline.join()


def test_room_that_comes_before_the_wait() -> None:
    """A session that finds the pipeline full, and then not full any more, does not wait for the thread."""

    class Shrinking(list[Handed]):
        """A list that the thread empties just after the first look at it."""

        lengths = iter([10**6, 0])

        def __len__(self) -> int:
            return next(self.lengths, 0)

    queue = NotedQueue()
    queue.pipeline.waiting = Shrinking()
    queue.pipeline.make_room()


def test_a_join_while_the_thread_is_started(monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor) -> None:
    """A queue may be closed while the thread of a pipeline is started: the close waits for the start, and the end."""
    queue, start = NotedQueue(), threading.Thread.start
    joins: list[Future[None]] = []

    def start_late(thread: threading.Thread) -> None:
        if thread.name == pipeline.THREAD_NAME and not joins:
            queue.pipeline.end()
            joins.append(threads.submit(queue.pipeline.join))
            assert wait(joins, timeout=0.1).not_done
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    assert queue.pipeline.begin()
    joins[0].result(60)
    thread = queue.pipeline._thread
    assert thread is not None and not thread.is_alive()
