"""A session of a worker keeps the promises of ``Session``. Owner and worker are one process here: a socket is between
them all the same."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import Token
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
    CodecError,
    Compacted,
    DeadLetter,
    HoldLostError,
    ItemTooLargeError,
    Maintained,
    NotHeldError,
    NotServedError,
    OtherOptionsWarning,
    OutcomeUnknownError,
    PersistentQueue,
    PersistentQueueError,
    QueueFullError,
    QueueNotFoundError,
    ReentrantUseError,
    SessionInUseError,
    SessionLostError,
    SubscriptionNotFoundError,
    UnflushedWarning,
    codecs,
    connect,
    delete_queue,
    transaction,
)
from persistentqueue.codecs import BYTES
from persistentqueue.interrupts.call_guard import BUSY, FREE
from persistentqueue.options import Options
from persistentqueue.runtime import session_state
from persistentqueue.serving import calls, server
from persistentqueue.serving.protocol import ITEM_BYTES_MAX, MESSAGE_BYTES_MAX, Call, Flush, Message
from persistentqueue.storage.layout import SOCKET_NAME
from persistentqueue.system.disk import CURRENT_DISK, DISK
from persistentqueue.workers import SharedQueue, WorkerSession, connect_options
from persistentqueue.workers import owner as owners
from persistentqueue.workers.link import Attached, Going, Link
from persistentqueue.workers.presence import Presence

from ..conftest import QueueFactory
from ..support.disks import call_on
from ..support.left_holds import NoLocks
from ..support.limits import SECONDS
from ..support.queues import wait_for

Connect = Callable[..., SharedQueue[Any]]


@pytest.fixture
def served(tmp_path: Path, open_queue: QueueFactory) -> Iterator[Callable[..., tuple[PersistentQueue, Connect]]]:
    """Return a function that opens a queue which serves, and returns it with a function that connects to it."""
    opened: list[SharedQueue[Any]] = []

    def serve(**settings: Any) -> tuple[PersistentQueue, Connect]:
        queue = open_queue(serve=True, **settings)

        def join(**more: Any) -> SharedQueue[Any]:
            shared = connect(queue.path, queue.name, serve="never", **{"lock_timeout": 0.2, **more})
            opened.append(shared)
            return shared

        return queue, join

    yield serve
    for shared in opened:
        shared.close()


Serve = Callable[..., tuple[PersistentQueue, Connect]]


def put(queue: Any, *items: Any) -> None:
    """Enqueue the items in one flush."""
    with queue.transaction() as session:
        session.enqueue_many(items)


def drained(queue: Any) -> list[Any]:
    """Consume all ready items, and return them."""
    with queue.transaction() as session:
        items: list[Any] = session.dequeue_many(10**6)
    return items


def test_items_go_through_both_ways(served: Serve) -> None:
    """An item that a worker flushes is with the owner, and the other way round, in order."""
    queue, join = served()
    with join() as shared:
        assert not shared.owns
        put(shared, b"one", b"", b"three")
        assert drained(queue) == [b"one", b"", b"three"]
        put(queue, b"four")
        assert (len(shared), shared.peek(), drained(shared)) == (1, [b"four"], [b"four"])
        assert (shared.identity, shared.data_path) == (queue.identity, queue.data_path)


def test_enqueued_items_are_invisible_until_the_flush(served: Serve) -> None:
    """Items of a session are visible after its flush, and never after a rollback."""
    queue, join = served()
    with join() as shared, shared.session() as session:
        session.enqueue(b"one")
        assert len(queue) == 0
        session.rollback()
        assert session.flush() is True
        assert len(queue) == 0
        session.enqueue(b"two")
        assert session.flush() is True
        assert queue.peek(2) == [b"two"]


def test_held_items_go_back_in_order(served: Serve) -> None:
    """A rollback, a close and ``put_back`` release items to their old places."""
    queue, join = served()
    put(queue, *(b"%d" % number for number in range(6)))
    with join() as shared:
        session = shared.session()
        assert session.dequeue_many(4) == [b"0", b"1", b"2", b"3"]
        session.put_back(2)
        assert queue.peek(1) == [b"2"]
        with pytest.raises(ValueError, match="count"):
            session.put_back(3)
        session.rollback()
        assert queue.peek(9) == [b"%d" % number for number in range(6)]
        assert session.dequeue() == b"0"
        session.close()
        session.close()
        assert len(queue) == 6
        with pytest.raises(ClosedError):
            session.dequeue()


def test_the_end_of_a_connection_rolls_back_at_once(served: Serve) -> None:
    """If the socket of a worker is closed, a waiting consumer has its items at once."""
    queue, join = served()
    put(queue, b"one")
    with join() as shared, queue.session() as waiting:
        session = shared.session()
        assert session.dequeue() == b"one"
        assert isinstance(session, WorkerSession)
        assert session._link is not None
        session._link.close()  # as the kernel does when the process dies
        assert waiting.dequeue(timeout=30) == b"one"
        waiting.flush()
        with pytest.raises(SessionLostError, match="held 1 item for this session"):
            session.dequeue()
        assert session.dequeue() is None
        session.close()


def test_a_session_that_has_lost_its_items_is_freed_at_once() -> None:
    """The error of a session that has lost what it held keeps no session: its connection ends when it is dropped."""
    presence = Presence(NoLocks(), b"")
    session = WorkerSession("/q", "name", BYTES, b"", lambda *_: pytest.fail("no connection"), presence, float, False)
    session._held = 1
    there = weakref.ref(session)
    gc.disable()
    try:
        with pytest.raises(SessionLostError) as caught:
            session._need_whole()
        del caught, session
        assert there() is None
    finally:
        gc.enable()


def test_a_block_that_raises_rolls_back_without_a_warning(served: Serve) -> None:
    """Leaving the block by an exception rolls back; leaving it without a flush warns."""
    queue, join = served()
    put(queue, b"one")
    with join() as shared:
        with pytest.raises(RuntimeError, match="stop"), shared.session() as session:
            session.dequeue()
            raise RuntimeError("stop")
        assert len(queue) == 1
        with pytest.warns(UnflushedWarning), shared.session() as session:
            session.dequeue()
        assert len(queue) == 1


def test_work_that_is_lost_without_a_block(served: Serve) -> None:
    """If a session of a worker is dropped, or its queue is closed, and its enqueued items are lost, there is a warning.
    There is none if an exception leaves the block of the queue."""
    queue, join = served()
    with (
        pytest.warns(UnflushedWarning, match="was not flushed before its queue was closed") as caught,
        join() as shared,
    ):
        first = shared.session()
        first.enqueue(b"one")
    assert caught[0].filename == __file__
    with join() as shared:
        with pytest.warns(UnflushedWarning, match="was dropped without a flush"):
            shared.session().enqueue(b"two")
            gc.collect()
        with pytest.raises(KeyError), shared:
            second = shared.session()
            second.enqueue(b"three")
            raise KeyError
    with (
        pytest.warns(UnflushedWarning, match="1 enqueued item is dropped"),
        connect(queue.path, "owned") as owned,
    ):
        third = owned.session()
        third.enqueue(b"four")
    assert (first.closed, second.closed, third.closed, len(queue)) == (True, True, True, 0)


@pytest.mark.parametrize("opened", [connect, PersistentQueue])
def test_a_warning_of_the_dead_letters_that_is_an_error(tmp_path: Path, opened: Callable[..., Any]) -> None:
    """The warning of a session of the dead letters comes from the line that closes the queue. As an error, it comes
    when both queues are closed."""
    for kind in ("always", "error"):
        queue = opened(tmp_path, "q", max_attempts=1, dead_letter="dead")
        with queue.transaction() as session:
            session.enqueue(b"x")
        session = queue.dead_letters.session()
        session.enqueue(b"lost")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(kind, UnflushedWarning)
            with pytest.raises(UnflushedWarning) if kind == "error" else nullcontext():
                queue.close()
        assert [each.filename for each in caught] == ([__file__] if kind == "always" else [])
        for name in ("q", "dead"):
            PersistentQueue(tmp_path, name, lock_timeout=0).close()


def test_waiting_is_fair_and_wakes_for_every_source(served: Serve) -> None:
    """Waiting sessions get items in the order of their coming, from the owner and from other workers."""
    queue, join = served()
    got: list[tuple[int, Any]] = []
    with join() as shared:

        def take(number: int) -> None:
            with shared.session() as session:
                item = session.dequeue(timeout=30)
                session.flush()
                got.append((number, item))

        threads = []
        for number in range(4):
            threads.append(threading.Thread(target=take, args=(number,)))
            threads[-1].start()
            server = queue._server
            assert server is not None
            while sum(len(place.line) for place in server._service._waits._places.values()) <= number:
                time.sleep(0.001)
        put(queue, b"a")
        threads[0].join()
        put(shared, b"b")
        threads[1].join()
        put(queue, b"c", b"d")
        for thread in threads:
            thread.join()
    assert got[:2] == [(0, b"a"), (1, b"b")]
    assert sorted(got[2:]) == [(2, b"c"), (3, b"d")]


def test_a_wait_ends_in_time(served: Serve) -> None:
    """``dequeue`` and ``wait`` return when their time is over, and the session stays usable."""
    queue, join = served()
    with join() as shared, shared.session() as session:
        began = time.monotonic()
        assert session.dequeue(timeout=0.05) is None
        assert shared.wait(timeout=0.05) is False
        assert time.monotonic() - began >= 0.1
        put(queue, b"one")
        assert shared.wait(timeout=30) is True
        assert session.dequeue(timeout=30) == b"one"
        session.flush()
        with pytest.raises(ValueError, match="timeout"):
            session.dequeue(timeout=-1)


def test_items_of_producers_wake_a_worker(served: Serve) -> None:
    """A file that a ``Producer`` publishes wakes a session that waits."""
    from persistentqueue import Producer

    queue, join = served()
    with join() as shared, shared.session() as session:
        timer = threading.Timer(0.1, lambda: _publish(Producer, queue))
        timer.start()
        assert session.dequeue(timeout=30) == b"published"
        session.flush()
        timer.join()


def _publish(producer: Any, queue: PersistentQueue) -> None:
    with producer(queue.path, queue.name) as made:
        made.enqueue(b"published")
        made.flush()


def test_markers_and_repeated_work(served: Serve) -> None:
    """A flush with a marker that was reached commits nothing, and rolls back."""
    queue, join = served()
    put(queue, b"one")
    with join() as shared, shared.session() as session:
        session.enqueue(b"two")
        assert session.flush(marker=("batch", 7)) is True
        session.enqueue(b"again")
        assert session.dequeue() == b"one"
        assert session.flush(marker=("batch", 7)) is False
        assert shared.marker("batch") == 7
        assert shared.marker("other") is None
        assert queue.peek(9) == [b"one", b"two"]
        with pytest.raises(ValueError, match="marker"):
            session.flush(marker=("", 1))


def test_large_transactions_spill(served: Serve) -> None:
    """A session with more than 4 MiB moves its items to the owner ahead of the flush, in order."""
    queue, join = served()
    items = [bytes([number]) * 500_000 for number in range(30)]
    with join() as shared, shared.session() as session:
        for item in items[:15]:
            session.enqueue(item)
        session.enqueue_many(items[15:])
        assert len(queue) == 0
        session.flush()
        assert session.dequeue_many(100) == items
        session.flush()
    assert len(queue) == 0


def test_an_item_that_is_too_large_is_refused(served: Serve) -> None:
    """An item above the limit of a message is refused, and is not in the session."""
    _, join = served()
    with join() as shared, shared.session() as session:
        with pytest.raises(ItemTooLargeError, match="worker"):
            session.enqueue(bytes(ITEM_BYTES_MAX + 1))
        session.enqueue(b"one")
        session.flush()
        assert drained(shared) == [b"one"]


def test_a_codec_works_in_the_worker(served: Serve) -> None:
    """The codec encodes and decodes in the worker; items that it refuses raise ``CodecError``."""
    queue, join = served()
    with join(codec=codecs.JSON) as shared:
        put(shared, {"a": 1}, [2])
        assert queue.peek(1) == [b'{"a":1}'] or queue.peek(1) == [b'{"a": 1}']
        assert (shared.peek(2), drained(shared)) == ([{"a": 1}, [2]], [{"a": 1}, [2]])
        put(queue, b"[1]", b"no json", b"[3]")
        with shared.session() as session:
            with pytest.raises(CodecError):
                session.enqueue(object())
            assert session.dequeue_many(3) == [[1]]
            with pytest.raises(CodecError) as caught:
                session.dequeue()
            assert caught.value.item == b"no json"
            session.flush()
            assert queue.stats().undecodable == 1
            assert session.dequeue() == [3]
            session.flush()


def test_a_full_queue_refuses_or_waits(served: Serve) -> None:
    """With a limit, a flush is refused and keeps its items; with ``full="block"`` it waits for room."""
    queue, join = served(max_items=2)
    with join() as shared, shared.session() as session:
        session.enqueue_many([b"1", b"2", b"3"])
        with pytest.raises(QueueFullError):
            session.flush()
        session.rollback()
        session.enqueue_many([b"1", b"2"])
        session.flush()
        session.enqueue(b"3")
        for _ in range(2):
            with pytest.raises(QueueFullError):
                session.flush(timeout=0)
        assert drained(queue) == [b"1", b"2"]
        session.flush()
        assert drained(shared) == [b"3"]


def test_a_flush_waits_for_room(served: Serve) -> None:
    """With ``full="block"`` a flush waits until another session has made room, or its time is over."""
    queue, join = served(max_items=1, full="block")
    put(queue, b"1")
    with join() as shared, shared.session() as session:
        session.enqueue(b"2")
        with pytest.raises(QueueFullError):
            session.flush(timeout=0.05)
        service = queue._server._service  # type: ignore[union-attr]
        assert service is not None

        def later(call: Callable[[], object]) -> threading.Thread:
            """Start a thread that makes the call when the flush waits at the owner."""

            def run() -> None:
                wait_for(lambda: bool(service._blocked))
                call()

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        taken = later(lambda: drained(queue))
        assert session.flush(timeout=30) is True
        taken.join()
        session.enqueue(b"3")
        giving_up = later(session.give_up)
        with pytest.raises(QueueFullError):
            session.flush()
        giving_up.join()
        interrupt = later(partial(signal.pthread_kill, threading.get_ident(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            session.flush()
        interrupt.join()
        assert drained(shared) == [b"2"]
        assert session.flush() is True
        assert drained(shared) == [b"3"]


def test_subscriptions_of_a_worker(served: Serve) -> None:
    """A worker makes, uses and removes subscriptions, each of which gets every item."""
    queue, join = served()
    with join() as shared:
        billing = shared.subscribe("billing")
        put(shared, b"one", b"two")
        assert (len(billing), list(billing.browse()), billing.wait(0)) == (2, [b"one", b"two"], True)
        assert drained(billing) == [b"one", b"two"]
        assert (billing.name, len(billing), len(queue)) == ("billing", 0, 2)
        assert shared.subscriptions() == ["billing"]
        session = billing.session()
        assert session.dequeue() is None
        shared.unsubscribe("billing")
        assert billing.removed
        assert len(billing) == 0
        with pytest.raises(SubscriptionNotFoundError):
            session.dequeue()
        session.close()
        with pytest.raises(SubscriptionNotFoundError):
            shared.unsubscribe("billing")


@pytest.mark.parametrize("owns", [True, False], ids=["in the owner", "in a worker"])
def test_a_removed_subscription_is_not_made_again(tmp_path: Path, owns: bool) -> None:
    """No call of a removed subscription makes it again, and each one that takes items raises its error."""
    with connect(tmp_path, "q") as owner, connect(tmp_path, "q", serve="never") as worker:
        queue = owner if owns else worker
        put(queue, b"1")
        removed = queue.subscribe("a")
        queue.unsubscribe("a")

        def dequeue() -> None:
            with removed.session() as session:
                session.dequeue()

        def flush() -> None:
            with removed.transaction() as session:
                session.dequeue()

        for call in (dequeue, flush, lambda: list(removed.browse())):
            with pytest.raises(SubscriptionNotFoundError):
                call()
        assert (removed.removed, queue.subscriptions(), len(removed)) == (True, [], 0)


@pytest.mark.parametrize("is_far", [False, True], ids=["owner", "worker"])
def test_a_session_of_a_removed_subscription_does_not_get_a_new_one(served: Serve, is_far: bool) -> None:
    """A session stays with its subscription: when another one has the name, its error says so."""
    owner, join = served()
    with join() as shared:
        queue: Any = shared if is_far else owner
        with queue.subscribe("mails").session() as session:
            assert session.dequeue() is None
            queue.unsubscribe("mails")
            with queue.subscribe("mails").session() as later:
                put(owner, b"1")
                with pytest.raises(SubscriptionNotFoundError, match="was removed; another has its name: call"):
                    session.dequeue()
                assert later.dequeue() == b"1"
                later.flush()


def test_a_wait_of_a_removed_subscription_ends(served: Serve) -> None:
    """A wait ends at once with True if the subscription was removed, before the call or meanwhile: the next dequeue
    raises that."""
    queue, join = served()
    with join() as shared:
        removed, waiting = shared.subscribe("a"), shared.subscribe("b")
        queue.unsubscribe("a")
        assert removed.wait() is True
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(waiting.wait(timeout=30)))
        thread.start()
        service = queue._server._service  # type: ignore[union-attr]
        wait_for(lambda: service.waits)
        queue.unsubscribe("b")
        thread.join()
        assert found == [True]


def test_rejections_are_checked_as_those_of_the_owner(served: Serve) -> None:
    """A reason may have characters that UTF-8 has not, as the names of files do. Other mistakes are refused alike."""
    queue, join = served(dead_letter="dead")
    put(queue, b"bad")
    with join(dead_letter="dead") as shared, shared.session() as session:
        assert session.dequeue() == b"bad"
        with pytest.raises(TypeError, match=r"a reason must be text, not ValueError\('bad'\): pass repr\(error\)"):
            session.reject(b"bad", ValueError("bad"))  # type: ignore[arg-type]
        for item in (b"bad", b"other"):
            with pytest.raises(TypeError, match="a delay must be a number of seconds, not '1'"):
                session.reject(item, delay_seconds="1")  # type: ignore[arg-type]
        session.reject(b"bad", "no such file: \udcff", retry=False)
        session.flush()
        with shared.dead_letters as dead:
            (letter,) = map(DeadLetter.decode, drained(dead))
        assert letter.reason == "no such file: \udcff"


def test_a_peek_at_nothing_is_refused_as_any_other(served: Serve) -> None:
    """``peek(0)`` returns no items, and raises what ``peek(1)`` raises of a queue with ``fan_out``, or a closed one."""
    queue, join = served(fan_out=True)
    shared = join()
    for each in (shared, queue):
        with pytest.raises(SubscriptionNotFoundError):
            each.peek(0)
        each.close()
        with pytest.raises(ClosedError):
            each.peek(0)


def test_a_reason_that_no_message_holds_is_refused(served: Serve) -> None:
    """A long reason of a large item raises ``ItemTooLargeError``. The session goes on, and a shorter reason does."""
    queue, join = served(dead_letter="dead")
    put(queue, bytes(ITEM_BYTES_MAX))
    with join() as shared, shared.session() as session:
        item = session.dequeue()
        for size in (ITEM_BYTES_MAX, MESSAGE_BYTES_MAX - 99 - ITEM_BYTES_MAX):
            with pytest.raises(ItemTooLargeError, match=f"a reason of {size} bytes .* pass a shorter reason"):
                session.reject(item, "r" * size, retry=False)
        session.reject(item, "r" * (size - 1), retry=False, delay_seconds=1.7976931348623157e-308)
        session.flush()
    assert (len(queue), len(queue.dead_letters)) == (0, 1)


def test_attempts_and_dead_letters(served: Serve, tmp_path: Path) -> None:
    """Deliveries to workers are counted, and items that fail become dead letters with their reason."""
    queue, join = served(max_attempts=2, dead_letter="dead")
    put(queue, b"bad", b"worse")
    with join(max_attempts=2, dead_letter="dead") as shared:
        for _ in range(2):
            with pytest.raises(RuntimeError), shared.session() as session:
                assert session.dequeue() == b"bad"
                raise RuntimeError("broken")
        with shared.session() as session:
            assert session.dequeue() == b"worse"
            session.reject(b"worse", "no use", retry=False)
            session.flush()
            with pytest.raises(NotHeldError, match="holds no such item"):
                session.reject(b"other")
        with shared.dead_letters as dead:
            letters = [DeadLetter.decode(letter) for letter in drained(dead)]
        assert [(each.item, each.reason) for each in letters] == [
            (b"bad", "RuntimeError: broken"),
            (b"worse", "no use"),
        ]


class _Wordless(Exception):  # noqa: N818 - its text is what fails
    def __str__(self) -> str:
        raise LookupError("no words")


@pytest.mark.parametrize("count", [1, 5])
def test_a_worker_that_holds_a_last_attempt_does_not_wait(served: Serve, count: int) -> None:
    """A dequeue of a session that holds an item at its last attempt returns nothing at once, whatever its timeout is:
    the work of that item is to be flushed first. Behind the flush it waits again."""
    queue, join = served(max_attempts=1, dead_letter="dead")
    with join(max_attempts=1, dead_letter="dead") as shared:
        put(queue, b"1", b"2")
        for session in (queue.session(), shared.session()):
            with session:
                assert session.dequeue() is not None
                start = time.monotonic()
                assert session.dequeue_many(count, timeout=SECONDS) == []
                assert session.dequeue(timeout=SECONDS) is None
                assert time.monotonic() - start < SECONDS / 2
                session.flush()
        with shared.session() as session:
            assert session.dequeue(timeout=0.01) is None
            put(queue, b"3")
            assert session.dequeue(timeout=SECONDS) == b"3"
            assert session.dequeue(timeout=None) is None
            session.flush()


@pytest.mark.parametrize("error", [RuntimeError("long " * 2_000_000), _Wordless()], ids=["long", "wordless"])
def test_any_error_of_a_block_comes_out(served: Serve, error: Exception) -> None:
    """An error that leaves a block comes out as it is, also if no message can hold its text, or it has none. The item
    of a last attempt is a dead letter, at the latest when the next session asks for it."""
    queue, join = served(max_attempts=1, dead_letter="dead")
    put(queue, b"bad")
    with join(max_attempts=1, dead_letter="dead") as shared:
        with pytest.raises(type(error)) as raised, shared.session() as session:
            assert session.dequeue() == b"bad"
            raise error
        assert raised.value is error
        with shared.session() as session:
            assert session.dequeue() is None
        with shared.dead_letters as dead:
            assert [DeadLetter.decode(letter).item for letter in drained(dead)] == [b"bad"]


def test_a_hold_has_an_end(served: Serve) -> None:
    """With ``hold_seconds`` held items go back, the late flush commits nothing, and ``extend`` prolongs."""
    queue, join = served()
    put(queue, b"one")
    owner = server.server_of(queue._open().directory)
    assert owner is not None
    with join(hold_seconds=3600) as shared, shared.session() as session, queue.session() as other:
        assert session.dequeue() == b"one"
        session.enqueue(b"late")
        (client,) = owner._service.clients
        now = time.monotonic()
        assert client.expires >= now + 3000
        client.expires = now + 60
        session.extend()
        assert client.expires >= now + 3000
        client.expires = 0.0
        owner._ring()
        assert other.dequeue(timeout=30) == b"one"
        for call in (session.flush, session.dequeue, session.extend):
            with pytest.raises(HoldLostError, match="rollback"):
                call()
        other.flush()
        session.rollback()
        assert (session.flush(), len(queue)) == (True, 0)
        session.enqueue(b"in time")
        session.flush()
        assert session.dequeue() == b"in time"
        session.flush()


def test_other_calls_of_the_queue(served: Serve) -> None:
    """The calls beside sessions have their effect at the owner, and return what they return there."""
    queue, join = served()
    with join() as shared:
        put(shared, b"1", b"2", b"3")
        stats = shared.stats()
        assert (stats.ready, stats.enqueued, type(stats)) == (3, 3, type(queue.stats()))
        assert stats.flush_seconds.count >= 1
        assert [use.live for use in shared.explain()] == [3]
        assert list(shared.browse_all()) == [b"1", b"2", b"3"]
        shared.sync()
        shared.trim()
        assert shared.compact().segments == 0
        assert shared.maintain().copied_bytes == 0
        shared.resize(memory_bytes=1024)
        with pytest.raises(ValueError, match="memory_bytes"):
            shared.resize(memory_bytes=-1)
        assert queue.stats().memory_bytes == 1024
        assert shared.view().look().enqueued == 3
        assert shared.clear() == 3
        with pytest.raises(ValueError, match="dead"):
            shared.requeue()


def test_one_call_at_a_time(served: Serve) -> None:
    """A call during another call of the session is refused, and the other call goes on."""
    queue, join = served()
    with join() as shared, shared.session() as session:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(session.dequeue(timeout=30)))
        thread.start()
        while session._busy != BUSY:
            time.sleep(0.001)
        with pytest.raises(SessionInUseError):
            session.enqueue(b"one")
        put(queue, b"two")
        thread.join()
        assert found == [b"two"]
        session.flush()


def test_an_error_of_connect_says_how_to_start_an_owner(open_queue: QueueFactory) -> None:
    """Without an owner, ``connect`` says how to start one."""
    queue = open_queue()
    PersistentQueue(queue.path, "other").close()
    with pytest.raises(NotServedError, match=r"no process owns it: start an owner, by connect\(\) without serve="):
        connect(queue.path, "other", lock_timeout=0, serve="never")


def test_an_error_of_connect_says_that_there_is_no_queue_yet(tmp_path: Path) -> None:
    """A worker that waits for an owner of a queue that does not exist learns that an owner makes the queue."""
    with pytest.raises(NotServedError) as caught:
        connect(tmp_path, "new", lock_timeout=0, serve="never")
    assert str(caught.value) == (
        f'{tmp_path}/new: there is no queue yet to connect to: start an owner, by connect() without serve="never" or '
        "by the command persistentqueue serve, which makes the queue"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_waits_for_owners_learns_that_its_queue_is_gone(served: Serve) -> None:
    """A worker that may not own the queue raises ``QueueNotFoundError``, too, when the queue was deleted."""
    queue, join = served()
    with join(lock_timeout=0.0) as shared, shared.session() as session:
        put(shared, b"1")
        queue.close()
        delete_queue(queue.path, queue.name)
        for call in (shared.stats, session.dequeue):
            with pytest.raises(QueueNotFoundError, match="the queue that was connected is gone: bring it back, or"):
                call()


def test_a_rejection_without_attempts_names_the_owner(served: Serve) -> None:
    """A worker with options about attempts learns that the owner of the queue needs them."""
    queue, join = served()
    put(queue, b"1")
    with pytest.warns(OtherOptionsWarning, match="dead_letter='dead'"):
        shared = join(dead_letter="dead")
    with shared, shared.session() as session:
        item = session.dequeue()
        with pytest.raises(ValueError, match="does not count attempts: its owner needs max_attempts="):
            session.reject(item)
        assert session.flush()


def test_a_session_tells_of_items_that_have_moved_to_the_owner(served: Serve) -> None:
    """The ``repr`` of a worker's session tells that enqueued items wait at the owner for their flush."""
    _, join = served(max_items=1)
    with join() as shared, shared.session() as session:
        session.enqueue_many([b"1", b"2"])
        with pytest.raises(QueueFullError):
            session.flush()
        assert "0 enqueued, others at the owner, 0 dequeued, not flushed" in repr(session)
        session.rollback()
        assert "0 enqueued, 0 dequeued, not flushed" in repr(session)


def test_a_session_that_a_fork_inherits_says_what_to_do(tmp_path: Path) -> None:
    """In a forked child, a session of the owner tells to get another one from the connected queue."""
    with connect(tmp_path, "a") as shared, shared.session() as session:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                session.enqueue(b"1")
            except ClosedError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        told = os.read(reading, 4096).decode()
        for each in (reading, writing):
            os.close(each)
    reason = "this belongs to the parent process: get a session of the connected queue in the child"
    assert told == f"{tmp_path}/a: {reason}"


def test_dead_letters_are_connected_once(served: Serve) -> None:
    """The dead-letter queue of a worker is one object, and its connection ends with the queue."""
    queue, join = served(max_attempts=1, dead_letter="dead")
    put(queue, b"bad")
    with join(dead_letter="dead") as shared:
        with shared.transaction() as session:
            session.reject(session.dequeue(), "no")
        dead = shared.dead_letters
        assert dead is shared.dead_letters
        assert [DeadLetter.decode(letter).item for letter in dead.browse()] == [b"bad"]
        assert len(dead) == 1
    assert dead.closed


@pytest.mark.parametrize("serve", ["auto", "never"])
def test_a_process_learns_that_it_has_the_queue_open_itself(open_queue: QueueFactory, serve: Any) -> None:
    """If this process has the queue open without serving it, the error says so, with advice for this process."""
    queue = open_queue()
    told = f"this process, {os.getpid()}, has it open without serve=True: use the queue object.*serve=True$"
    with pytest.raises(NotServedError, match=told):
        connect(queue.path, queue.name, serve=serve, lock_timeout=0)


def test_the_error_names_an_owner_that_does_not_serve(open_queue: QueueFactory) -> None:
    """A worker that may not own the queue learns the process that owns it without serving."""
    queue = open_queue()
    elsewhere = CURRENT_DISK.set(replace(DISK, gethostname=lambda: "another host"))  # a process there may have this id
    try:
        told = f"process {os.getpid()} owns it without serve=True: open it with serve=True in that process, or end"
        with pytest.raises(NotServedError, match=told) as caught:
            connect(queue.path, queue.name, serve="never", lock_timeout=0)
    finally:
        CURRENT_DISK.reset(elsewhere)
    assert caught.value.pid == os.getpid()


def test_dead_letters_that_another_queue_has_are_named(tmp_path: Path) -> None:
    """Two connected queues cannot own one dead-letter queue by its name. The error names it, and what to do."""
    with connect(tmp_path, "a", dead_letter="dead", max_attempts=3):
        with pytest.raises(NotServedError, match=rf"is open in process {os.getpid()}: name another one, or") as caught:
            connect(tmp_path, "b", dead_letter="dead", max_attempts=3, lock_timeout=0.1)
        assert caught.value.taken == str(tmp_path / "dead")
        assert not caught.value.is_here


def test_an_owner_closes_after_a_worker_has_waited(served: Serve) -> None:
    """The owner closes without an error after a worker has waited for an item in vain, and its lock is free."""
    queue, join = served()
    with join() as shared, shared.session() as session:
        assert session.dequeue(timeout=0.01) is None
        assert shared.wait(timeout=0.01) is False
        queue.close()
    PersistentQueue(queue.path, queue.name).close()


def test_settings_are_checked(tmp_path: Path) -> None:
    """Settings out of range are refused before anything is made."""
    for wrong in ({"serve": "often"}, {"hold_seconds": 0}, {"hold_seconds": -1}, {"segment_bytes": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            connect(tmp_path, "q", **wrong)
    with pytest.raises(TypeError, match="segment_byte"):
        connect(tmp_path, "q", segment_byte=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="options must be Options"):
        connect(tmp_path, "q", options={"lock_timeout": 1})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_connection_waits_for_ten_seconds_unless_told_otherwise() -> None:
    """``lock_timeout`` has another default for connections. A keyword argument has precedence, also if it is 0."""
    assert connect_options(None, {}).lock_timeout == 10.0
    assert connect_options(Options(max_items=5), {}) == Options(max_items=5, lock_timeout=10.0)
    assert connect_options(Options(lock_timeout=3.0), {}).lock_timeout == 3.0
    assert connect_options(Options(lock_timeout=3.0), {"lock_timeout": 0.0}).lock_timeout == 0.0


def test_the_first_that_connects_owns(tmp_path: Path) -> None:
    """``connect`` makes the queue and owns it; when it closes, the next call of another one takes over."""
    with connect(tmp_path, "q") as first:
        assert first.owns
        with connect(tmp_path, "q") as second, second.session() as session:
            assert not second.owns
            put(second, b"one")
            assert session.dequeue() == b"one"
            first.close()
            assert session.flush() is True
            assert repr(second).startswith("<owned")
            put(second, b"two")
            assert drained(second) == [b"two"]
    with pytest.raises(ClosedError):
        second.session()


@pytest.mark.parametrize("is_served", [None, False, True])
def test_a_connection_stays_with_its_queue(tmp_path: Path, is_served: bool | None) -> None:
    """A queue that has the path now is not used in place of the connected one, served or not, and none is made."""
    owner = PersistentQueue(tmp_path / "queues", "q", serve=True)
    with connect(tmp_path / "queues", "q") as shared, shared.session() as session:
        session.enqueue(b"one")
        session.flush()
        (tmp_path / "queues").rename(tmp_path / "moved")
        other = None if is_served is None else PersistentQueue(tmp_path / "queues", "q", serve=True)
        if other is not None and not is_served:
            other.close()
        with pytest.raises(QueueNotFoundError, match=r"queues/q: the queue that was connected is gone.*connect again"):
            put(shared, b"two")
        assert not shared.owns
        session.enqueue(b"two")
        session.flush()
        assert owner.peek(9) == [b"one", b"two"]
        if other is None:
            assert not (tmp_path / "queues").exists()
            owner.close()
            (tmp_path / "moved").rename(tmp_path / "queues")
            assert shared.peek(9) == [b"one", b"two"]
        else:
            other.close()
            with PersistentQueue(tmp_path / "queues", "q") as other:
                assert len(other) == 0
    owner.close()


def test_a_relative_path_stays_that_of_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has changed its working directory takes over the queue that it has connected to, and its handle
    names that queue, too."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    paths: dict[str, Any] = {"data_path": Path("segments")}
    with PersistentQueue("queues", "q", serve=True, **paths) as owner, connect("queues", "q", **paths) as shared:
        put(owner, b"one")
        assert shared.path == str(tmp_path / "queues")
        handle = pickle.dumps(shared.handle())
        monkeypatch.chdir("elsewhere")
        owner.close()
        assert shared.peek() == [b"one"]
        assert shared.owns
        assert shared.data_path == str(tmp_path / "segments" / "q")
        assert shared.view().look().depth == 1
        shared.close()
        with pickle.loads(handle) as other:
            assert drained(other) == [b"one"]
            assert other.owns
        with connect("queues", "new", **paths) as made:
            monkeypatch.chdir(tmp_path)
            put(made, b"two")
            assert made.data_path == str(tmp_path / "elsewhere" / "segments" / "new")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["elsewhere", "queues", "segments"]


def test_a_new_queue_has_its_segments_where_the_connection_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative ``data_path`` of a queue that is made later counts from the working directory of the connection."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    made = SharedQueue("queues", "q", codecs.BYTES, Options(data_path="segments"), "auto", None)
    monkeypatch.chdir("elsewhere")
    with made:
        put(made, b"one")
        assert made.data_path == str(tmp_path / "segments" / "q")


def test_a_long_path_works(tmp_path: Path) -> None:
    """A path that is longer than the name of a socket may be works."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    with connect(deep, "q") as first, connect(deep, "q", serve="never") as second:
        put(second, b"one")
        assert drained(first) == [b"one"]


def test_a_shared_queue_can_be_pickled(served: Serve) -> None:
    """A pickled queue becomes a connection, with the settings of the original."""
    _, join = served()
    with join(codec=codecs.TEXT) as shared:
        with pickle.loads(pickle.dumps(shared.handle())) as other:
            put(other, "one")
            assert drained(shared) == ["one"]
        with pytest.raises(TypeError, match="connect"):
            pickle.dumps(shared.session())


def test_idle_connections_cost_nothing(served: Serve) -> None:
    """A server with idle connections takes no processor time."""
    _, join = served()
    with join() as shared:
        sessions = [shared.session() for _ in range(50)]
        for session in sessions:
            session.dequeue()
        began = time.process_time()
        assert sessions[0].dequeue(timeout=0.3) is None
        assert time.process_time() - began < 0.1
        for session in sessions:
            session.close()


def test_a_failed_sync_hands_the_queue_over(tmp_path: Path) -> None:
    """If the log of the owner cannot be written, workers get the truth from the next owner, not the error."""
    fails: list[bool] = []

    def pwritev(*arguments: Any) -> int:
        if fails:
            raise OSError(errno.EIO, "the device has failed")
        return DISK.pwritev(*arguments)

    with call_on(replace(DISK, pwritev=pwritev), connect, tmp_path, "q") as first, connect(tmp_path, "q") as second:
        put(second, b"before")
        with second.session() as session:
            assert session.dequeue() == b"before"
            fails.append(True)
            with pytest.raises(SessionLostError):
                session.flush()
            assert second.owns
            assert not first.owns
            assert session.dequeue() == b"before"
            assert session.flush() is True
        with second.session() as session:
            session.enqueue(b"after")
            session.flush()
        assert drained(first) == [b"after"]


def test_a_flush_in_doubt_learns_that_this_process_has_the_queue_open(
    served: Serve, open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the owner ends during a flush, and this process opens the queue without serving it, the error says so."""
    queue, join = served()
    call = Link.call

    def lose(link: Link, message: Message, *before: bytes) -> Message:
        if isinstance(message, Flush):
            monkeypatch.setattr(Link, "call", call)
            queue.close()
            open_queue()
            raise link._lost()
        return call(link, message, *before)

    with join() as shared, shared.session() as session:
        session.enqueue(b"lost")
        monkeypatch.setattr(Link, "call", lose)
        told = f"this process, {os.getpid()}, has it open without serve=True.*call flush"
        with pytest.raises(NotServedError, match=told) as found:
            session.flush()
        assert (found.value.in_doubt, found.value.is_here) == (True, True)
        session.rollback()


@pytest.mark.parametrize("marker", [None, ("m", 1)])
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_flush_without_a_next_owner_is_in_doubt(
    served: Serve,
    open_queue: QueueFactory,
    monkeypatch: pytest.MonkeyPatch,
    is_committed: bool,
    marker: tuple[str, int] | None,
) -> None:
    """If the owner ends during a flush and none follows, the error says so; the next flush commits once in any case."""
    queue, join = served()
    call = Link.call

    def lose(link: Link, message: Message, *before: bytes) -> Message:
        if not isinstance(message, Flush):
            return call(link, message, *before)
        monkeypatch.setattr(Link, "call", call)
        if is_committed:
            call(link, message, *before)
        queue.close()
        raise link._lost()

    with join() as shared, shared.session() as session:
        session.enqueue(b"once")
        monkeypatch.setattr(Link, "call", lose)
        with pytest.raises(NotServedError, match="call flush") as found:
            session.flush(marker)
        assert found.value.in_doubt
        with pytest.raises(NotServedError, match=r"command persistentqueue serve$") as found:
            len(shared)
        assert not found.value.in_doubt
        queue = open_queue(serve=True)
        assert session.flush(marker) is True
        assert queue.peek(9) == [b"once"]
        if marker is not None:
            assert [session.flush(each) for each in (marker, ("m", 2))] == [False, True]


def losing_owners(monkeypatch: pytest.MonkeyPatch, *opened: PersistentQueue[bytes]) -> Callable[..., Message]:
    """Return a ``call`` of links that closes the owners behind a flush of several queues, whose answer is lost."""
    call = Link.call

    def lose(link: Link, message: Message, *before: bytes) -> Message:
        answer = call(link, message, *before)
        if not (isinstance(message, Call) and message.fields["call"] == "flush_jointly"):
            return answer
        monkeypatch.setattr(Link, "call", call)
        for each in opened:
            each.close()
        raise link._lost()

    return lose


def test_a_block_that_ends_in_doubt_waits_for_no_owner(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the flush of a transaction has found no owner, the end of the block looks for none."""
    source, join_source = served(name="source")
    target, join_target = served(name="target")
    lose = losing_owners(monkeypatch, source, target)
    with join_source() as a, join_target() as b:
        with pytest.raises(NotServedError, match="call flush"), transaction(a, b) as (taking, putting):
            taking.enqueue(b"1")
            putting.enqueue(b"2")
            monkeypatch.setattr(Link, "call", lose)
            try:
                putting.flush()
            finally:
                monkeypatch.setattr(owners.Owner, "reach", lambda *_, **__: pytest.fail("it looks for an owner"))
        assert (taking.closed, putting.closed) == (True, True)


@pytest.mark.parametrize("again", [("m", 1), ("m", 2), ("other", 1)])
def test_a_joint_flush_without_a_next_owner_is_in_doubt(
    served: Serve,
    open_queue: QueueFactory,
    monkeypatch: pytest.MonkeyPatch,
    again: tuple[str, int],
) -> None:
    """If no owner follows that can tell the outcome, ``flush`` of any session tells it later. A marker of its own is
    recorded then."""
    source, join_source = served(name="source")
    target, join_target = served(name="target")
    lose = losing_owners(monkeypatch, source, target)
    with join_source() as a, join_target() as b, transaction(a, b) as (taking, putting):
        taking.enqueue(b"1")
        putting.enqueue(b"2")
        monkeypatch.setattr(Link, "call", lose)
        with pytest.raises(NotServedError, match="call flush"):
            putting.flush(marker=("m", 1))
        source, target = open_queue("source", serve=True), open_queue("target", serve=True)
        assert putting.flush(marker=again) is True
        assert putting.flush(marker=again) is False
        assert (source.peek(9), target.peek(9), target.marker(again[0])) == ([b"1"], [b"2"], again[1])


def test_a_queue_that_is_closed_while_a_session_connects(served: Serve) -> None:
    """A session whose queue is closed while it connects raises, and neither waits nor holds anything."""
    queue, join = served()
    with join() as shared:
        session = shared.session()
        assert isinstance(session, WorkerSession)
        attach = session._attach

        def attach_late(connection: bytes, stop: Callable[[], bool]) -> Attached:
            """Connect, and let another thread close the queue before the session knows of the connection."""
            found = attach(connection, stop)
            shared.close()
            return found

        session._attach = attach_late
        with pytest.raises(ClosedError):
            session.dequeue(timeout=2.0)
        wait_for(lambda: not queue.connections())


def test_a_renamed_queue_serves_on_and_leaves_the_next_one_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An owner whose directory was renamed serves workers under the new name. Its end leaves the socket of a queue that
    was made under the old name."""
    with PersistentQueue(tmp_path, "old", serve=True) as queue:
        (tmp_path / "old").rename(tmp_path / "new")
        put(queue, b"1")
        with connect(tmp_path, "new", serve="never", lock_timeout=SECONDS) as shared:
            assert drained(shared) == [b"1"]
        other = PersistentQueue(tmp_path, "old", serve=True)
    assert not (tmp_path / "new" / SOCKET_NAME).exists()
    with other, connect(tmp_path, "old", serve="never", lock_timeout=SECONDS) as shared:
        put(shared, b"2")
        assert drained(other) == [b"2"]
    assert "another user" not in caplog.text


@pytest.mark.parametrize("place", ["connect", "own"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_connect_that_fails_as_the_owner_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: type[BaseException]
) -> None:
    """If ``connect`` raises when this process has become the owner, the queue is closed, and its lock is free."""
    owning = owners.Owner._own

    def own_and_fail(queue: owners.Owner[bytes]) -> None:
        owning(queue)
        raise error

    class Reset:
        """A context variable; an error comes when it is reset."""

        set = staticmethod(CURRENT_DISK.set)

        def reset(self, token: Token[Any]) -> None:
            CURRENT_DISK.reset(token)
            raise error

    if place == "connect":
        monkeypatch.setattr(owners.Owner, "_own", own_and_fail)
    else:
        monkeypatch.setattr(owners, "CURRENT_DISK", Reset())
    with pytest.raises(error):
        connect(tmp_path, "q")
    monkeypatch.undo()
    PersistentQueue(tmp_path, "q").close()


def closing_in(
    monkeypatch: pytest.MonkeyPatch, queue: SharedQueue[Any], kind: type[Message], *, ends: bool = False
) -> None:
    """Let the queue be closed when its session makes the next call of this kind; then its owner may have ended."""
    call = Link.call

    def close_first(link: Link, message: Message, *before: bytes) -> Message:
        if not isinstance(message, kind):
            return call(link, message, *before)
        monkeypatch.setattr(Link, "call", call)
        queue.close()
        if ends:
            raise link._lost()
        return call(link, message, *before)

    monkeypatch.setattr(Link, "call", close_first)


def test_a_flush_tells_its_outcome_when_its_queue_is_closed(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that has begun when another thread closes the queue ends, and returns True. Its connection ends, too."""
    owner, join = served()
    shared = join()
    session = shared.session()
    session.enqueue(b"1")
    closing_in(monkeypatch, shared, Flush)
    assert session.flush() is True
    with pytest.raises(ClosedError, match="the queue is closed"):
        session.flush()
    assert drained(owner) == [b"1"]
    wait_for(lambda: not owner.connections())


def test_a_close_gives_no_item_of_one_session_to_another(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a queue closes, no session gets an item that the end of another one has released: all calls are refused."""
    owner, join = served()
    put(owner, b"1", b"2")
    with join() as shared:
        sessions = [shared.session() for _ in range(2)]
        assert [session.dequeue() for session in sessions] == [b"1", b"2"]
        refused: list[object] = []
        close = Link.close

        def close_first(link: Link) -> None:
            """End a connection, and make a call of each session behind it."""
            close(link)
            wait_for(lambda: len(owner) > 0)
            for session in sessions:
                with pytest.raises(ClosedError) as caught:
                    session.dequeue()
                refused.append(caught.value)

        with monkeypatch.context() as patch:
            patch.setattr(Link, "close", close_first)
            shared.close()
    assert len(refused) >= 4
    wait_for(lambda: len(owner) == 2)
    assert drained(owner) == [b"1", b"2"]


def test_a_queue_that_is_closed_just_before_a_flush_commits_nothing(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the queue is closed before the flush is sent, ``ClosedError`` is true: nothing is committed."""
    owner, join = served()
    shared = join()
    session = shared.session()
    session.enqueue(b"1")

    def close_before(_session: WorkerSession[Any], _expected: int) -> bytes:
        shared.close()
        return b""

    monkeypatch.setattr(WorkerSession, "_look_ahead", close_before)
    with pytest.raises(ClosedError, match="the queue is closed"):
        session.flush()
    wait_for(lambda: not owner.connections())
    assert len(owner) == 0


def test_a_flush_of_a_closed_queue_whose_owner_ends_is_unknown(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the owner ends as well, no later call can learn the outcome: the error says so."""
    _, join = served()
    shared = join()
    session = shared.session()
    session.enqueue(b"1")
    closing_in(monkeypatch, shared, Flush, ends=True)
    with pytest.raises(OutcomeUnknownError, match="and this process has closed the queue"):
        session.flush()


def test_a_flush_that_waits_for_room_ends_with_its_queue(served: Serve) -> None:
    """The close of the queue ends the wait of a flush for room with ``ClosedError``, and nothing of it is committed."""
    owner, join = served(max_items=1, full="block")
    put(owner, b"1")
    shared = join(max_items=1, full="block")
    session = shared.session()
    session.enqueue(b"2")
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(session.flush)
        server_ = owner._server
        assert server_ is not None
        blocked = server_._service._blocked
        wait_for(lambda: bool(blocked))
        shared.close()
        with pytest.raises(ClosedError, match="the queue is closed"):
            flushing.result(SECONDS)
    wait_for(lambda: not owner.connections())
    assert drained(owner) == [b"1"]


def test_a_flush_of_two_queues_tells_its_outcome_when_one_is_closed(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush over two queues that has begun when one of them is closed ends, and commits in both."""
    first, join = served(name="a")
    second, join_second = served(name="b")
    a, b = join(), join_second()
    with pytest.raises(ClosedError), transaction(a, b) as (one, other):
        one.enqueue(b"1")
        other.enqueue(b"2")
        closing_in(monkeypatch, a, Call)
        assert one.flush() is True  # that of the end of the block finds a closed queue
    assert (drained(first), drained(second)) == ([b"1"], [b"2"])
    wait_for(lambda: not first.connections())


def test_a_close_that_was_interrupted_is_finished(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the end of a server is interrupted, the next ``close`` finishes it, and no descriptor stays open."""
    queue, _ = served()
    assert queue._server is not None
    with monkeypatch.context() as patched:
        patched.setattr(queue._server, "_give_grace", lambda: None)
        patched.setattr(queue._server._thread, "join", lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            queue.close()
    queue.close()
    assert queue._server._bell is None


def test_threads_wait_for_an_owner_together(served: Serve) -> None:
    """However many threads wait for an owner, none waits longer than ``lock_timeout``, and then each gets the error."""
    queue, join = served()
    with join(lock_timeout=2.0) as shared:
        queue.close()
        began = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            calls: list[Callable[[], object]] = [partial(len, shared), partial(put, shared, b"x")]
            waiting = [pool.submit(call) for call in calls * 4]
        assert time.monotonic() - began < 10.0  # one behind the other, they would take 16
        assert [type(each.exception()) for each in waiting] == [NotServedError] * 8


@pytest.mark.parametrize("closes", ["another thread", "a signal handler"])
def test_close_during_a_takeover_leaves_no_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: str) -> None:
    """If a queue is closed that is about to own its files, nothing stays open, and the lock is free."""
    owner = PersistentQueue(tmp_path, "q", serve=True)
    shared = connect(tmp_path, "q")
    owner.close()
    own, closing = owners._OwnedQueue, threading.Thread(target=shared.close)

    def slowly(*arguments: Any, **settings: Any) -> Any:
        if closes == "a signal handler":
            shared.close()
        else:
            closing.start()
            wait_for(lambda: shared.closed)
        return own(*arguments, **settings)

    monkeypatch.setattr(owners, "_OwnedQueue", slowly)
    with pytest.raises(ClosedError):
        len(shared)
    if closes == "another thread":
        closing.join()
    assert not shared.owns
    PersistentQueue(tmp_path, "q", lock_timeout=0).close()


def test_equal_items_of_different_bytes_are_rejected_in_turn(served: Serve) -> None:
    """Items that are equal, and whose bytes differ, are rejected one by one, each time the first that is not yet."""
    owner, join = served(name="orders", max_attempts=3, dead_letter="orders.dead")
    put(owner, b'{"id": 7}', b'{"id":7}', b'{"id":8}', b'{"id":7}')
    with join(codec=codecs.JSON) as shared, shared.session() as session:
        items = session.dequeue_many(9)
        for item in items:
            if item == {"id": 7}:
                session.reject(item, retry=False)
        with pytest.raises(NotHeldError, match="the session holds no such item"):
            session.reject({"id": 7})
        session.flush()
    letters = map(DeadLetter.decode, owner.dead_letters.browse())
    assert [letter.item for letter in letters] == [b'{"id": 7}', b'{"id":7}', b'{"id":7}']


def test_a_session_tells_its_own_end_from_that_of_its_queue(served: Serve) -> None:
    """A call of a session that was closed says so; after the close of its queue, the error names the queue."""
    queue, join = served()
    with join() as shared:
        first, second = shared.session(), shared.session()
        first.close()
        with pytest.raises(ClosedError, match=r": the session is closed: get another one from "):
            first.dequeue()
    for session in (second, shared.session):
        with pytest.raises(ClosedError) as caught:
            (session if callable(session) else session.dequeue)()
        assert str(caught.value) == f"{queue.path}/{queue.name}: the queue is closed: connect again"


def test_a_transaction_over_two_connected_queues(served: Serve) -> None:
    """Sessions of two queues of one owner are flushed together, or neither of them is."""
    source, join_source = served(name="source", max_items=3)
    target, join_target = served(name="target", max_items=3)
    put(source, b"1", b"2", b"3")
    with join_source() as a, join_target() as b:
        with transaction(a, b) as (taking, putting):
            putting.enqueue(b"%s!" % taking.dequeue())
        assert (source.peek(9), target.peek(9)) == ([b"2", b"3"], [b"1!"])
        with transaction(a, b) as (taking, putting):
            putting.enqueue(b"%s!" % taking.dequeue())
            assert putting.flush(marker=("moved", 1)) is True
            putting.enqueue(b"%s!" % taking.dequeue())
            assert putting.flush(marker=("moved", 1)) is False
        assert (source.peek(9), target.peek(9)) == ([b"3"], [b"1!", b"2!"])
        with pytest.raises(QueueFullError), transaction(a, b) as (taking, putting):
            putting.enqueue_many([taking.dequeue()] * 2)
        assert (source.peek(9), target.peek(9)) == ([b"3"], [b"1!", b"2!"])
        with transaction(a.subscribe("all"), b) as (taking, putting):
            assert taking.dequeue() == b"3"
        with pytest.raises(ValueError, match="wait=True"), transaction(a, b) as (taking, putting):
            taking.flush(wait=False)
        with pytest.raises(ValueError, match="opened alike, and that have one owner, but 1 of 2 are reached through"):
            transaction(a, target).__enter__()


def test_an_interruption_at_the_end_of_a_joint_flush_leaves_its_sessions_free(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Ctrl-C comes while the sessions of a joint flush are set free, it is raised when all of them are."""
    _, join_source = served(name="source")
    target, join_target = served(name="target")
    end = WorkerSession._end_badly

    def interrupted(session: WorkerSession[Any]) -> None:
        signal.raise_signal(signal.SIGINT)
        end(session)

    with join_source() as a, join_target() as b:
        with pytest.raises(KeyboardInterrupt), transaction(a, b) as sessions:
            sessions[1].enqueue(b"1")
            monkeypatch.setattr(WorkerSession, "_end_badly", interrupted)
            try:
                sessions[0].flush()
            finally:
                monkeypatch.undo()
        assert [each._busy for each in sessions] == [FREE, FREE]
    assert target.peek(2) == [b"1"]


def test_a_transaction_needs_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues of different processes do not go together: the error says what to do, and nothing is committed."""
    with connect(tmp_path, "a") as a, connect(tmp_path, "b") as b:
        joined = [connect(tmp_path, name, serve="never") for name in "ab"]
        known = server.server_of
        monkeypatch.setattr(calls, "server_of", lambda directory: known(directory) if directory[-1] == "a" else None)
        with pytest.raises(ValueError, match="one owner"), transaction(*joined) as (taking, putting):
            taking.enqueue(b"1")
            putting.enqueue(b"2")
        assert (len(a), len(b)) == (0, 0)
        for each in joined:
            each.close()


@pytest.mark.parametrize("has_gone", [True, False])
def test_an_owner_that_closes_its_queues_during_a_flush_of_two_has_ended(
    served: Serve, monkeypatch: pytest.MonkeyPatch, has_gone: bool
) -> None:
    """If the owner closes one of two queues before their joint flush, the flush raises ``SessionLostError``.

    The items are back, and the work can be done again with the next owner.
    """
    source, join_source = served(name="source")
    target, join_target = served(name="target")
    put(source, b"1")
    known = server.server_of

    def closing(directory: str) -> server.Server | None:
        found = known(directory)
        if not directory.endswith("target"):
            return found
        target.close()
        return None if has_gone else found

    with join_source() as a, join_target() as b:
        with monkeypatch.context() as patch:
            patch.setattr(calls, "server_of", closing)
            with pytest.raises(SessionLostError, match="target"), transaction(a, b) as (taking, putting):
                putting.enqueue(b"%s!" % taking.dequeue())
        assert source.peek(2) == [b"1"]
        again, _ = served(name="target")
        with transaction(a, b) as (taking, putting):
            putting.enqueue(b"%s!" % taking.dequeue())
        assert (len(source), again.peek(2)) == (0, [b"1!"])


@pytest.mark.parametrize("is_late", [True, False])
def test_a_hold_that_ends_around_a_flush_of_two_queues(
    served: Serve, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """If the hold of one of two sessions ends just before their flush, nothing is committed, and the worker is told.

    If it ends just behind the commit, the flush has succeeded, and both sessions go on.
    """
    source, join_source = served(name="source")
    target, join_target = served(name="target")
    put(source, b"1", b"2")
    put(target, b"a", b"b")
    flush = session_state.flush_jointly
    owner = server.server_of(target._open().directory)
    assert owner is not None

    def end_hold() -> None:
        assert owner is not None
        (client,) = owner._service.clients
        client.expires = 0.0
        owner._ring()
        wait_for(lambda: client.is_lost)

    def around(*arguments: Any) -> bool:
        if is_late:
            end_hold()
        committed = flush(*arguments)
        end_hold()
        return committed

    monkeypatch.setattr(calls, "flush_jointly", around)
    with join_source() as a, join_target(hold_seconds=3600) as b, transaction(a, b) as (taking, other):
        assert (taking.dequeue(), other.dequeue()) == (b"1", b"a")
        if is_late:
            with pytest.raises(HoldLostError):
                taking.flush()
            for session in (taking, other):
                session.rollback()
            assert (source.peek(1), target.peek(1)) == ([b"1"], [b"a"])
        else:
            assert taking.flush() is True
            assert (taking.dequeue(), other.dequeue()) == (b"2", b"b")
            for session in (taking, other):
                session.rollback()
            assert (source.peek(1), target.peek(1)) == ([b"2"], [b"b"])


@pytest.mark.parametrize(("is_lost", "error"), [(True, HoldLostError), (False, SessionInUseError)])
def test_a_flush_of_two_queues_meets_the_end_of_a_hold(
    served: Serve, monkeypatch: pytest.MonkeyPatch, is_lost: bool, error: type[Exception]
) -> None:
    """If the owner ends a hold in the moment of the flush, the worker is told so, and not of a session in use."""
    source, join_source = served(name="source")
    _, join_target = served(name="target")
    put(source, b"1")
    owner = server.server_of(source._open().directory)
    assert owner is not None

    def meet(*_: Any) -> bool:
        assert owner is not None
        for client in owner._service.clients:
            client.is_lost = is_lost
        raise SessionInUseError("the hold ends now")

    monkeypatch.setattr(calls, "flush_jointly", meet)
    with join_source(hold_seconds=3600) as a, join_target() as b, transaction(a, b) as (taking, other):
        assert taking.dequeue() == b"1"
        with pytest.raises(error):
            taking.flush()
        for session in (taking, other):
            session.rollback()
    assert source.peek() == [b"1"]


def interrupt_joint_flush(monkeypatch: pytest.MonkeyPatch, *, loses_link: bool = False) -> None:
    """Let a signal handler raise once a flush of several queues was sent; perhaps the owner ends in that moment."""
    call, settle = Link.call, Link.settle

    def interrupted(link: Link, message: Message, *before: bytes) -> Message:
        if not (isinstance(message, Call) and message.fields["call"] == "flush_jointly"):
            return call(link, message, *before)
        monkeypatch.setattr(Link, "call", call)
        monkeypatch.setattr(Link, "_finish", sent_only)
        try:
            return call(link, message, *before)
        finally:
            monkeypatch.setattr(Link, "_finish", finish)

    def sent_only(link: Link, going: Going) -> Message:
        link._pump(going)
        raise KeyboardInterrupt

    def lost(link: Link) -> tuple[Message, Message] | None:
        if link.going is None:
            return settle(link)
        monkeypatch.setattr(Link, "settle", settle)
        settle(link)  # the owner has committed before it ends
        raise link._lost()

    finish = Link._finish
    monkeypatch.setattr(Link, "call", interrupted)
    if loses_link:
        monkeypatch.setattr(Link, "settle", lost)


@pytest.mark.parametrize("number", [2**64, 0, -1, "1", 1.0, True, None])
def test_a_wrong_number_of_a_joint_flush_breaks_nothing(served: Serve, number: object) -> None:
    """A flush of two queues with a number that the log cannot have is refused, and both queues go on."""
    source, join_source = served(name="source")
    target, join_target = served(name="target")
    with join_source() as a, join_target() as b, a.session() as taking, b.session() as putting:
        for session in (taking, putting):
            session.enqueue(b"1")
            session.flush()
            session.enqueue(b"2")
        (*one, _), (*other, good) = taking._part(), putting._part()  # type: ignore[union-attr]
        parts = [[*one, number], [*other, good]]
        for wrong in (parts, parts[::-1], []):
            with pytest.raises((ValueError, PersistentQueueError), match=r"number|needs a session"):
                a._owner.call_owner("flush_jointly", parts=wrong, marker=None)
        for session in (taking, putting):
            assert session.flush() is True
    assert (source.peek(9), target.peek(9)) == ([b"1", b"2"], [b"1", b"2"])


@pytest.mark.parametrize("loses_link", [False, True])
def test_an_interrupted_flush_of_two_queues_has_one_outcome(
    served: Serve, monkeypatch: pytest.MonkeyPatch, loses_link: bool
) -> None:
    """If a flush of two queues is interrupted and was committed, the sessions of both know it at their next call."""
    source, join_source = served(name="source")
    target, join_target = served(name="target")
    put(source, b"1", b"2")
    with join_source() as a, join_target() as b, transaction(a, b) as (taking, putting):
        putting.enqueue(b"%s!" % taking.dequeue())
        interrupt_joint_flush(monkeypatch, loses_link=loses_link)
        with pytest.raises(KeyboardInterrupt):
            putting.flush()
        assert putting.dequeue() == b"1!"
        assert putting.held == 1  # type: ignore[union-attr]
        putting.rollback()
        assert taking.held == 0  # type: ignore[union-attr]
        assert taking.dequeue() == b"2"
        taking.rollback()
    assert (source.peek(9), target.peek(9)) == ([b"2"], [b"1!"])


def test_code_that_interrupts_a_call_of_the_queue_must_not_call_it(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler that calls the queue in the middle of another call gets an error at once, and the other call
    goes on."""
    _, join = served()
    call = Link.call
    errors: list[ReentrantUseError] = []

    def interrupted(link: Link, message: Message, *before: bytes) -> Message:
        if isinstance(message, Call):
            monkeypatch.setattr(Link, "call", call)
            with pytest.raises(ReentrantUseError, match="after that call has ended") as found:
                shared.marker("a")
            errors.append(found.value)
        return call(link, message, *before)

    with join() as shared:
        monkeypatch.setattr(Link, "call", interrupted)
        assert (shared.marker("a"), len(errors)) == (None, 1)
        assert shared.marker("a") is None


@pytest.mark.parametrize("whose", ["of the queue", "that connected"])
def test_a_close_that_is_refused_serves_on(tmp_path: Path, open_queue: QueueFactory, whose: str) -> None:
    """A signal handler that closes the owner in the middle of a call gets an error. The queue stays open, and so do the
    sessions of this process and of workers."""
    if whose == "of the queue":
        queue: Any = open_queue(serve=True)
        open_of_it = queue._open_queue
    else:
        queue = connect(tmp_path / "queues", "orders")
        open_of_it = queue._owner.here()._open_queue
    with (
        queue,
        queue.session() as own,
        connect(tmp_path / "queues", "orders", serve="never", lock_timeout=0.2) as shared,
    ):
        put(queue, b"1", b"2")
        assert own.dequeue() == b"1"
        with shared.session() as session:
            assert session.dequeue() == b"2"
            with pytest.raises(ReentrantUseError, match="after that call has ended"):
                open_of_it.look(queue.close)
            assert not queue.closed
            assert session.flush() is True
            assert own.flush() is True
        assert len(shared) == 0


@pytest.mark.usefixtures("reports_each_step")
def test_a_close_by_the_progress_of_a_compaction_serves_on(served: Serve) -> None:
    """A close that would wait for the compaction of its own thread is refused, and workers do not notice it."""
    queue, join = served(segment_bytes=4096, inline_bytes=0)
    for _ in range(8):
        put(queue, *[b"x" * 1000] * 8)
    with queue.session() as session:
        session.dequeue_many(7)
        session.flush()
    with join() as shared, shared.session() as working:
        assert working.dequeue() is not None
        with pytest.raises(ReentrantUseError, match="would wait for itself"):
            queue.compact(below=1.0, progress=lambda *_: queue.close())
        assert working.flush() is True
        assert not queue.closed


@pytest.mark.parametrize(("call", "result"), [("compact", Compacted(2, 3)), ("maintain", Maintained(4, 5, 6))])
def test_a_long_call_holds_up_no_other_one(
    served: Serve, monkeypatch: pytest.MonkeyPatch, call: str, result: Compacted | Maintained
) -> None:
    """While a thread compacts the queue at its owner, other threads of its process ask the owner for other things."""
    owner, join = served()
    begun, go_on = threading.Event(), threading.Event()

    def long(**_: object) -> Compacted | Maintained:
        begun.set()
        assert go_on.wait(SECONDS)
        return result

    monkeypatch.setattr(owner, call, long)
    with join() as shared, ThreadPoolExecutor(2) as pool:
        put(shared, b"1")
        calling = pool.submit(getattr(shared, call))
        try:
            assert begun.wait(SECONDS)
            assert pool.submit(len, shared).result(SECONDS) == 1
        finally:
            go_on.set()
        assert calling.result(SECONDS) == result
        assert len(shared._owner._control) == 1  # the connection of the long call has ended


def test_a_call_that_is_interrupted_closes_its_connection(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a Ctrl-C no connection is left open until its object is collected, with a ``ResourceWarning``."""
    queue, join = served()
    put(queue, b"1")
    finish, links = Link._finish, list[Link]()

    def interrupted(link: Link, going: Going) -> Message:
        answer = finish(link, going)
        if isinstance(going.message, Call):
            links.append(link)
            raise KeyboardInterrupt
        return answer

    with join() as shared:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Link, "_finish", interrupted)
            len(shared)
        assert [link.is_lost for link in links] == [True]
        assert len(shared) == 1


@pytest.mark.parametrize("where", ["welcome", "end"])
def test_an_interruption_closes_the_connection_of_a_session(
    served: Serve, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A Ctrl-C behind the welcome of an owner, or while a session takes its leave, leaves no connection open."""
    _, join = served()
    close, closed = Link.close, list[Link]()

    def closing(link: Link) -> None:
        closed.append(link)
        close(link)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with join() as shared, shared.session() as session:
        if where == "end":
            session.dequeue()
        monkeypatch.setattr(Link, "close", closing)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            if where == "welcome":
                patch.setattr(owners, "without_effect", interrupt)
                session.dequeue()
            patch.setattr("persistentqueue.workers.link.encode", interrupt)
            session.close()
        assert len(closed) == 1


def test_a_call_that_must_not_be_repeated_is_not_repeated(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the owner ends during ``clear``, its outcome is unknown. A call that only looks is made again."""
    queue, join = served()
    put(queue, b"1")
    call = Link.call

    def lost_once(link: Link, message: Message, *before: bytes) -> Message:
        if isinstance(message, Call):
            monkeypatch.setattr(Link, "call", call)
            raise link._lost()
        return call(link, message, *before)

    with join() as shared:
        monkeypatch.setattr(Link, "call", lost_once)
        assert len(shared) == 1
        monkeypatch.setattr(Link, "call", lost_once)
        with pytest.raises(OutcomeUnknownError, match="clear"):
            shared.clear()
        assert shared.clear() == 1


def test_a_clear_that_was_not_sent_is_made_by_the_next_owner(tmp_path: Path) -> None:
    """If the owner has left before ``clear`` is sent, the next owner clears the queue."""
    owner = PersistentQueue(tmp_path, "q", serve=True)
    put(owner, b"1", b"2")
    with connect(tmp_path, "q") as shared:
        assert len(shared) == 2
        owner.close()
        assert shared.clear() == 2


def test_a_subscription_is_removed_once(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the owner ends when it has removed a subscription, ``unsubscribe`` returns; a further call finds none."""
    _, join = served()
    call = Link.call

    def lost_once(link: Link, message: Message, *before: bytes) -> Message:
        answer = call(link, message, *before)
        if isinstance(message, Call):
            monkeypatch.setattr(Link, "call", call)
            raise link._lost()
        return answer

    with join() as shared:
        shared.subscribe("mails")
        monkeypatch.setattr(Link, "call", lost_once)
        shared.unsubscribe("mails")
        with pytest.raises(SubscriptionNotFoundError):
            shared.unsubscribe("mails")
