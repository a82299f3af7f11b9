"""``compat.Queue``, as far as it exceeds the standard library's queue, and ``compat.FifoQueue``."""

from __future__ import annotations

import errno
import gc
import math
import os
import queue as standard
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CodecError,
    CorruptionError,
    MemoryShortageError,
    PersistentQueue,
    Producer,
    QueueLockedError,
    ReentrantUseError,
    UnflushedWarning,
    View,
    check,
    codecs,
)
from persistentqueue.compat import Empty, FifoQueue, Full, Queue, ShutDown
from persistentqueue.system.disk import DISK
from tests.support.disks import call_on
from tests.support.queues import crash, flip, put, segment_files, wait_for
from tests.unit.runtime.test_open_queue import Gate

OpenFace = Callable[..., Queue[Any]]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenFace]:
    """Yield a function that opens ``tmp_path/queue``; close its queues at the end."""
    queues: list[Queue[Any]] = []

    def factory(*arguments: Any, **settings: Any) -> Queue[Any]:
        queues.append(Queue(tmp_path / "queue", *arguments, **settings))
        return queues[-1]

    yield factory
    for queue in queues:
        queue.close()


def in_thread(work: Callable[[], Any]) -> Any:
    """Return the result of a call in another thread, which then ends."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join()
    return answers[0]


def get_and_end(queue: Queue[Any]) -> Any:
    """Get the first item, mark it as done, and return it."""
    item = queue.get()
    queue.task_done()
    return item


class Waiting(threading.Thread):
    """A thread that is blocked in a call; ``answer`` returns the result of the call, or its error."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        super().__init__()
        self._call, self._arguments = call, arguments
        self._outcome: Any = None
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._call(*self._arguments)
        except Exception as error:
            self._outcome = error.with_traceback(None)  # which has the frame of this call, and so this object

    def answer(self) -> Any:
        self.join(60)
        assert not self.is_alive()
        return self._outcome


def is_waiting(queue: Queue[Any]) -> bool:
    """Return whether a thread waits for an item, for room, or in ``join``."""
    conditions: list[Any] = [queue.not_full, queue.all_tasks_done]
    getters = queue.persistent._open_queue._waiters.count  # type: ignore[union-attr]
    return bool(getters or any(condition._waiters for condition in conditions))


def waiters_of(queue: Queue[Any]) -> list[Any]:
    """Return the threads that wait for a place, one lock each."""
    not_full: Any = queue.not_full
    return list(not_full._waiters)


# --- what is durable -------------------------------------------------------------------------------------------------


def test_what_is_not_done_comes_back(opened: OpenFace) -> None:
    """After a crash each item that was put and not done is there; items that were got come first, in order."""
    queue = opened()
    for number in range(5):
        queue.put(number)
    assert [queue.get() for _ in range(3)] == [0, 1, 2]
    queue.task_done()
    crash(queue.persistent)
    assert opened().get_many(10) == [1, 2, 3, 4]


def test_close_gives_back(opened: OpenFace) -> None:
    """An item that was got and not done is there again after ``close``."""
    with opened() as queue:
        queue.put_many(list("ab"))
        assert queue.get() == "a"
    assert opened().get_many(10) == ["a", "b"]


def test_what_was_left_is_unfinished(opened: OpenFace) -> None:
    """Items that are there when a queue is opened count for ``join`` and ``unfinished_tasks``."""
    with opened() as queue:
        queue.put_many([1, 2])
    queue = opened()
    assert queue.unfinished_tasks == 2
    joining = Waiting(queue.join)
    queue.get()
    queue.get()
    wait_for(lambda: is_waiting(queue))
    queue.task_done()
    assert joining.is_alive()
    queue.task_done()
    assert joining.answer() is None


def test_concurrent_puts_share_syncs(tmp_path: Path) -> None:
    """Puts that come while another put is synced share the next sync."""
    gate = Gate()
    with call_on(replace(DISK, failpoint=gate.failpoint), Queue[int], tmp_path / "queue") as queue:
        queue.put(0)
        groups, group = queue.persistent.stats().groups, queue.persistent._open_queue
        assert group is not None
        gate.armed = True
        putters = [Waiting(queue.put, 0)]
        assert gate.reached.wait(60)
        putters += [Waiting(queue.put, number) for number in range(1, 9)]
        wait_for(lambda: len(group._group_commit) == 8)
        gate.go_on.set()
        assert [putter.answer() for putter in putters] == [None] * 9
        assert queue.persistent.stats().groups - groups == 2
        assert queue.unfinished_tasks == 10


def test_put_many_is_one_transaction(opened: OpenFace) -> None:
    """``put_many`` puts all items or none, with one sync. It puts none if an item cannot be encoded or the items do not
    fit."""
    queue = opened(5)
    groups = queue.persistent.stats().groups
    queue.put_many(range(3))
    queue.put_many([])
    assert queue.persistent.stats().groups == groups + 1
    with pytest.raises(CodecError):
        queue.put_many([3, object()])
    with pytest.raises(ValueError, match="maxsize=5"):
        queue.put_many(range(6))
    with pytest.raises(Full):
        queue.put_many(range(3), block=False)
    assert queue.get_many(10) == [0, 1, 2]


def test_get_many_is_done_with_its_last(opened: OpenFace) -> None:
    """Items of one ``get_many`` are consumed together by the last ``task_done``; before that, all of them come back."""
    queue = opened()
    queue.put_many(range(5))
    groups = queue.persistent.stats().groups
    assert queue.get_many(3) == [0, 1, 2]
    queue.task_done()
    queue.task_done()
    assert (queue.unfinished_tasks, queue.qsize()) == (3, 2)
    assert queue.persistent.stats().groups == groups
    queue.task_done()
    assert queue.persistent.stats().groups == groups + 1
    assert queue.get_many(2) == [3, 4]
    queue.task_done()
    crash(queue.persistent)
    queue = opened()
    assert queue.get_many(10) == [3, 4]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("count", [0, -1, True, 1.5, None, "1"], ids=repr)
def test_a_number_of_items_is_checked(opened: OpenFace, count: Any, shared: bool) -> None:
    """``get_many`` refuses a number that is not whole, or below 1, before it takes anything."""
    queue = opened(shared=shared)
    queue.put_many([1, 2, 3])
    is_number = type(count) is int
    text = f"must be at least 1, got {count}" if is_number else f"must be a whole number, not {count!r}"
    with pytest.raises(ValueError if is_number else TypeError, match=rf"^max_items {text}$"):
        queue.get_many(count)
    assert queue.get_many(3) == [1, 2, 3]


def test_thirty_two_thousand_at_once(opened: OpenFace) -> None:
    """Any number of items may be got and not done, and each is done on its own."""
    queue = opened(sync=False)
    queue.put_many(range(32_000))
    assert [queue.get() for _ in range(32_000)] == list(range(32_000))
    for _ in range(31_999):
        queue.task_done()
    crash(queue.persistent)
    assert opened().get_many(10) == [31_999]


# --- whose task is done ----------------------------------------------------------------------------------------------


def test_task_done_is_for_ones_own(opened: OpenFace) -> None:
    """``task_done`` of a worker is for the oldest item that the worker has got itself."""
    queue = opened()
    queue.put_many(list("abc"))
    assert queue.get() == "a"

    assert in_thread(lambda: get_and_end(queue)) == "b"
    crash(queue.persistent)
    assert opened().get_many(10) == ["a", "c"]


def test_task_done_by_somebody_else(opened: OpenFace) -> None:
    """``task_done`` of a thread that has got nothing is for the oldest item of all. That item is then done for the
    thread that got it, too."""
    queue = opened()
    queue.put_many(list("abc"))
    assert [queue.get(), queue.get()] == ["a", "b"]
    in_thread(queue.task_done)
    queue.task_done()
    with pytest.raises(ValueError, match="too many times"):
        queue.task_done()
    assert queue.get() == "c"
    assert list(queue._own_tasks()) == list(queue._tasks)
    crash(queue.persistent)
    assert opened().get_many(10) == ["c"]


def test_dead_workers_items_are_nobodys(opened: OpenFace) -> None:
    """An item of a thread that has ended stays held. ``task_done`` of a later thread is for its own item first, even if
    the system reuses the thread's identifier."""
    queue = opened()
    queue.put_many(list("abc"))
    assert in_thread(queue.get) == "a"

    assert in_thread(lambda: get_and_end(queue)) == "b"
    crash(queue.persistent)
    assert opened().get_many(10) == ["a", "c"]


# --- room ------------------------------------------------------------------------------------------------------------


def test_maxsize_counts_what_is_in_the_queue(opened: OpenFace) -> None:
    """An item that was got takes no place, done or not. After a reopening, each item that is there takes one."""
    with opened(2) as queue:
        queue.put_many([1, 2])
        assert queue.full()
        assert queue.get() == 1
        queue.put_nowait(3)
        with pytest.raises(Full):
            queue.put(4, timeout=0.001)
    queue = opened(2)
    assert (queue.qsize(), queue.full()) == (3, True)
    with pytest.raises(Full):
        queue.put_nowait(4)


def test_raising_maxsize_lets_in(opened: OpenFace) -> None:
    """Raising ``maxsize`` lets a waiting put in."""
    queue = opened(1)
    queue.put(1)
    waiting = Waiting(queue.put, 2)
    wait_for(lambda: is_waiting(queue))
    queue.maxsize = 2
    assert waiting.answer() is None
    assert (queue.maxsize, queue.get_many(10)) == (2, [1, 2])


def test_lowering_maxsize_refuses(opened: OpenFace) -> None:
    """Lowering ``maxsize`` refuses a waiting ``put_many`` that can never fit; a smaller put waits on."""
    queue = opened(3)
    queue.put_many([1, 2, 3])
    many, one = Waiting(queue.put_many, [4, 5, 6]), Waiting(queue.put, 7)
    wait_for(lambda: len(queue.not_full._waiters) == 2)  # type: ignore[attr-defined]
    queue.maxsize = 2
    assert "never fit into a queue with maxsize=2" in str(many.answer())
    assert [queue.get() for _ in range(3)] == [1, 2, 3]
    assert (one.answer(), queue.get()) == (None, 7)


def test_who_waits_for_many_places(opened: OpenFace) -> None:
    """A ``put_many`` that waits for several places does not keep other puts from one place. It goes on when all its
    places are free."""
    queue = opened(2)
    queue.put_many([1, 2])
    many = Waiting(queue.put_many, [3, 4])
    wait_for(lambda: queue._many_putters == 1)
    queue.get()
    one = Waiting(queue.put, 5)
    assert one.answer() is None
    assert queue.get_many(2) == [2, 5]
    assert many.answer() is None
    assert queue.get_many(2) == [3, 4]


def test_place_is_taken_while_an_item_is_written(tmp_path: Path) -> None:
    """A put that is being committed takes exactly one place."""
    writing, go = threading.Event(), threading.Event()

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if writing.is_set():
            writing.clear()
            go.wait()
        return DISK.pwritev(fd, buffers, offset, flags)

    with call_on(replace(DISK, pwritev=pwritev), Queue[int], tmp_path / "queue", 2) as queue:
        queue.put(0)
        queue.get()
        writing.set()
        first = Waiting(queue.put, 1)
        wait_for(lambda: not writing.is_set())
        second = Waiting(queue.put, 2)
        wait_for(lambda: queue._putting == 2)
        with pytest.raises(Full):
            queue.put_nowait(3)
        go.set()
        assert (first.answer(), second.answer(), queue.get_many(10)) == (None, None, [1, 2])


def test_never_full_where_there_is_room(opened: OpenFace) -> None:
    """Two threads that put at the same time into two free places both find one, each time."""
    queue = opened(2, sync=False)
    barrier = threading.Barrier(3)

    def put() -> None:
        for number in range(200):
            barrier.wait()
            queue.put_nowait(number)
            barrier.wait()

    putters = [Waiting(put) for _ in range(2)]
    for number in range(200):
        barrier.wait()
        barrier.wait()
        assert queue.get_many(2) == [number] * 2
    assert [putter.answer() for putter in putters] == [None] * 2


def test_a_refused_put_leaves_its_place(opened: OpenFace) -> None:
    """A put whose item the codec refuses, after a wait, leaves the free place to the next one."""
    queue = opened(1)
    queue.put(0)
    bad = Waiting(queue.put, object())
    wait_for(lambda: len(waiters_of(queue)) == 1)
    good = Waiting(queue.put, 1)
    wait_for(lambda: len(waiters_of(queue)) == 2)
    assert queue.get() == 0
    assert isinstance(bad.answer(), CodecError) and good.answer() is None


def test_limits_of_the_queue_beneath(opened: OpenFace) -> None:
    """A limit of ``PersistentQueue`` raises ``Full``, too. With ``full="block"`` a put waits for room below that limit
    as well."""
    with opened(max_items=1) as queue:
        queue.put(1)
        with pytest.raises(Full, match="max_items"):
            queue.put(2)
    queue = opened(max_items=1, full="block")
    for block, timeout in ((False, None), (True, 0.001)):
        with pytest.raises(Full, match="max_items"):
            queue.put(2, block, timeout)
    for timeout in (-1, -0.5, math.nan):
        with pytest.raises(ValueError, match="non-negative"):
            queue.put(2, timeout=timeout)
    waiting = Waiting(queue.put, 2)
    wait_for(lambda: queue.persistent.stats().waiting == 1)
    assert queue.get() == 1
    queue.task_done()
    assert (waiting.answer(), queue.get()) == (None, 2)


def test_what_is_cleared_beneath(opened: OpenFace) -> None:
    """A ``get`` finds the queue empty if the queue beneath is cleared meanwhile."""

    class Cleared(Queue[int]):
        """Queue that is cleared when an item is about to be got."""

        def _get(self) -> int:
            self.persistent.clear()
            return super()._get()

    path = opened().persistent.path + "-cleared"
    with Cleared(path) as queue:
        queue.put(1)
        with pytest.raises(Empty):
            queue.get_nowait()
        assert queue.unfinished_tasks == 0


def test_hooks(opened: OpenFace) -> None:
    """Hooks of a subclass decide what is put and got: no item, one, or several. A hook that raises changes nothing."""

    class Words(Queue[str]):
        """Queue of the words of its texts, without words that it has had."""

        def _init(self, maxsize: int) -> None:
            self.known: set[str] = set()

        def _put(self, item: str) -> None:
            for word in item.split():
                if word == "bad":
                    raise LookupError(word)
                if word not in self.known:
                    super()._put(word)
                    self.known.add(word)

        def _get(self) -> str:
            return super()._get().upper()

    path = opened().persistent.path + "-words"
    with Words(path) as queue:
        queue.put("one two one")
        queue.put("two")
        with pytest.raises(LookupError):
            queue.put("three bad")
        assert queue.unfinished_tasks == 2
        assert queue.get_many(10) == ["ONE", "TWO"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_call_in_the_middle_of_another_one(opened: OpenFace, shared: bool) -> None:
    """A call by the thread that holds the mutex is refused at once, and changes nothing: it would wait for itself."""
    queue = opened(shared=shared)
    queue.put("item")
    calls: list[Callable[[], object]] = [
        queue.qsize,
        queue.get,
        queue.task_done,
        queue.join,
        queue.shutdown,
        queue.close,
        lambda: queue.put("other"),
        lambda: setattr(queue, "maxsize", 1),
        queue.mutex.acquire,
        queue.not_full.acquire,
    ]
    with queue.mutex:
        for call in calls:
            with pytest.raises(ReentrantUseError, match="in the middle of another call of this queue"):
                call()
        assert not queue.mutex.acquire(blocking=False)
        assert queue.mutex.locked()
        assert not in_thread(lambda: queue.mutex.acquire(timeout=0.001))
    assert not queue.mutex.locked()
    assert (queue.get(), queue.qsize(), queue.maxsize, queue.is_shutdown) == ("item", 0, 0, False)


def test_ctrl_c_while_a_get_wants_the_mutex_back(opened: OpenFace) -> None:
    """A ``get`` that is interrupted while another call holds the mutex raises that interruption, and no lock stays
    taken."""
    queue = opened()
    main = threading.get_ident()

    def hold_up() -> None:
        """End the wait of ``get`` while this thread holds the mutex, and interrupt it."""
        wait_for(lambda: queue.persistent._open()._waiters.count == 1)
        with queue.mutex:
            with queue.persistent.transaction() as session:
                session.enqueue("item")
            # It has left the wait for an item, and stands at the mutex in the code of this queue.
            wait_for(lambda: "compat" in sys._current_frames()[main].f_code.co_filename)
            signal.pthread_kill(main, signal.SIGINT)

    helper = threading.Thread(target=hold_up)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        queue.get()
    helper.join()
    assert queue.get() == "item"


def test_the_mutex_serves_conditions(opened: OpenFace) -> None:
    """Code that was written for the standard library can wait with the conditions of a queue, and notify them."""
    queue = opened()
    told: list[str] = []

    def wait() -> None:
        with queue.all_tasks_done:
            assert queue.all_tasks_done.wait_for(lambda: told, timeout=60.0)
            told.append("heard")

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for(lambda: len(queue.all_tasks_done._waiters) == 1)  # type: ignore[attr-defined]
    with queue.mutex:
        told.append("told")
        queue.all_tasks_done.notify_all()
    waiting.join()
    assert told == ["told", "heard"]
    with pytest.raises(RuntimeError, match="un-acquired lock"):
        queue.not_full.notify()


def test_batch_that_outgrows_memory_at_a_limit(opened: OpenFace) -> None:
    """A batch that has to be spilled and finds no room raises ``Full``, and none of its items is in the queue."""
    queue = opened(max_disk_bytes=6 * 2**20, codec=codecs.BYTES)
    with pytest.raises(Full, match="max_disk_bytes"):
        queue.put_many([bytes(2**20)] * 16)
    queue.put(b"small")
    assert queue.get_many(10) == [b"small"]


# --- other processes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("media", [None, "media"])
def test_publication_wakes_a_getter(media: str | None, opened: OpenFace, tmp_path: Path) -> None:
    """Items of a ``Producer`` wake a waiting ``get``, are found by a later ``get``, and are unfinished, also on other
    media."""
    queue = opened(data_path=tmp_path / media if media else None)
    waiting = Waiting(queue.get)
    wait_for(lambda: is_waiting(queue))
    with Producer(tmp_path / "queue") as producer:
        producer.enqueue_many([b"1", b"2"])
        producer.flush()
        assert waiting.answer() == 1
        assert queue.unfinished_tasks == 2
        assert queue.get_nowait() == 2
        producer.enqueue(b"3")
        producer.flush()
    assert queue.get_nowait() == 3
    for _ in range(3):
        queue.task_done()
    queue.join()


def test_second_opening_is_refused(opened: OpenFace) -> None:
    """A second opening of the directory is refused with ``QueueLockedError``."""
    opened()
    with pytest.raises(QueueLockedError):
        opened()


# --- codecs ----------------------------------------------------------------------------------------------------------


def test_none_is_an_item(opened: OpenFace) -> None:
    """The default codec keeps any JSON value, including ``None``."""
    queue = opened()
    items: list[Any] = [None, True, 1, 1.5, "é", [], {"a": [None]}]
    queue.put_many(items)
    assert [queue.get() for _ in items] == items


def test_what_is_no_json(opened: OpenFace) -> None:
    """The error for an item that is not JSON names other codecs, and the queue goes on without that item."""
    queue = opened(1)
    with pytest.raises(CodecError, match=r"MessagePack.*UNSAFE_PICKLE"):
        queue.put(object())
    queue.put(1)
    assert queue.get() == 1
    assert queue.unfinished_tasks == 1


def test_what_cannot_be_decoded(opened: OpenFace, tmp_path: Path) -> None:
    """An undecodable item raises once and counts as got: the items behind it come out, and ``task_done`` drops it."""
    with Producer(tmp_path / "queue") as producer:
        producer.enqueue_many([b"1", b"no JSON", b"2", b"3"])
        producer.flush()
    queue = opened()
    assert queue.get_many(10) == [1]
    queue.task_done()
    with pytest.raises(CodecError):
        queue.get_many(10)
    assert queue.get_many(10) == [2, 3]
    crash(queue.persistent)
    queue = opened()
    with pytest.raises(CodecError):
        queue.get()
    queue.task_done()
    assert queue.get() == 2
    crash(queue.persistent)
    assert opened().get_many(10) == [2, 3]


def test_publication_that_cannot_be_decoded(opened: OpenFace, tmp_path: Path) -> None:
    """An undecodable item of another process also raises once, and ``task_done`` drops it."""
    queue = opened()
    with Producer(tmp_path / "queue") as producer:
        producer.enqueue_many([b"no JSON", b"1"])
        producer.flush()
    with pytest.raises(CodecError):
        queue.get()
    assert queue.get() == 1
    queue.task_done()
    crash(queue.persistent)
    assert opened().get() == 1


def test_items_of_another_codec(opened: OpenFace) -> None:
    """The error for an item that another codec wrote names the codecs; with the right one, the item is there."""
    queue = opened(codec=codecs.UNSAFE_PICKLE)
    queue.put({"job": 1})
    queue.close()
    queue = opened()
    with pytest.raises(CodecError, match=r"open the queue with the codec .*UNSAFE_PICKLE"):
        queue.get(timeout=0)
    queue.close()
    assert opened(codec=codecs.UNSAFE_PICKLE).get(timeout=0) == {"job": 1}


def test_pickle_is_for_who_asks(opened: OpenFace) -> None:
    """With ``codec=codecs.UNSAFE_PICKLE`` an item may be an object that is not JSON."""
    queue = opened(codec=codecs.UNSAFE_PICKLE)
    queue.put({1, 2})
    assert queue.get() == {1, 2}


# --- the end ---------------------------------------------------------------------------------------------------------


def test_shutdown_loses_nothing(opened: OpenFace) -> None:
    """After ``shutdown(immediate=True)`` this queue is empty, and the next opening finds the remaining items."""
    queue = opened()
    queue.put_many([1, 2, 3])
    assert queue.get() == 1
    queue.shutdown(immediate=True)
    assert (queue.qsize(), queue.empty(), queue.unfinished_tasks) == (0, True, 1)
    with pytest.raises(ShutDown):
        queue.get_nowait()
    queue.task_done()
    queue.join()
    queue.close()
    assert opened().get_many(10) == [2, 3]


@pytest.mark.parametrize("immediate", [None, 0, "", 1], ids=repr)
def test_shutdown_takes_any_value_as_a_truth(opened: OpenFace, immediate: Any) -> None:
    """``shutdown`` tests its argument as the standard library does: each ``get`` of the empty queue raises
    ``ShutDown``."""
    queue = opened()
    queue.put("a")
    queue.shutdown(immediate)
    if not immediate:
        assert queue.get() == "a"
    for _ in range(2):
        with pytest.raises(ShutDown):
            queue.get(block=False)


def test_shutdown_wakes_all(opened: OpenFace) -> None:
    """``shutdown`` raises ``ShutDown`` in threads that wait for an item or for room."""
    queue = opened(1)
    getting = Waiting(queue.get)
    wait_for(lambda: is_waiting(queue))
    queue.shutdown()
    assert isinstance(getting.answer(), ShutDown)
    queue.close()
    queue = opened(1)
    queue.put(1)
    putting = Waiting(queue.put, 2)
    wait_for(lambda: is_waiting(queue))
    queue.shutdown()
    assert isinstance(putting.answer(), ShutDown)


@pytest.mark.parametrize("settings", [{}, {"max_attempts": 2, "dead_letter": "dead"}])
def test_join_ends_though_another_process_puts_behind_a_shutdown(
    settings: dict[str, Any], opened: OpenFace, tmp_path: Path
) -> None:
    """An item that a ``Producer`` publishes when ``get`` has ended by a shutdown is for the next opening: ``join`` does
    not wait for it."""
    queue = opened(**settings)
    queue.put(1)
    assert queue.get() == 1
    if settings:
        queue.task_done()  # before: a rejection could bring it back
    queue.shutdown()
    with pytest.raises(ShutDown):
        queue.get()
    with Producer(tmp_path / "queue") as producer:
        producer.enqueue(b"2")
        producer.flush()
    if not settings:
        queue.task_done()
    assert queue.persistent.wait(60)
    assert len(queue.persistent) == 1
    assert (queue.qsize(), queue.unfinished_tasks) == (0, 0)
    queue.join()
    with pytest.raises(ShutDown):
        queue.get_nowait()
    queue.close()
    assert opened(**settings).get_nowait() == 2


def test_a_rejected_item_outlives_a_shutdown(opened: OpenFace) -> None:
    """An item that is rejected when another ``get`` has ended by a shutdown is there again."""
    queue = opened(max_attempts=2, dead_letter="dead")
    queue.put(1)
    assert queue.get() == 1
    queue.shutdown()
    assert isinstance(Waiting(queue.get).answer(), ShutDown)
    queue.reject(1)
    assert (queue.qsize(), queue.get_nowait()) == (1, 1)
    queue.task_done()
    queue.join()


def test_shutdown_waits_for_a_put_that_commits(tmp_path: Path) -> None:
    """After ``shutdown``, a ``get`` returns the item of a put that was committing. Then it raises ``ShutDown``."""
    gate = Gate()
    with call_on(replace(DISK, failpoint=gate.failpoint), Queue[int], tmp_path / "queue") as queue:
        getters = [Waiting(get_and_end, queue) for _ in range(2)]
        wait_for(lambda: queue.persistent._open_queue._waiters.count == 2)  # type: ignore[union-attr]
        gate.armed = True
        putting = Waiting(queue.put, 1)
        assert gate.reached.wait(60)
        queue.shutdown()
        gate.go_on.set()
        assert putting.answer() is None
        answers = [getter.answer() for getter in getters]
        assert 1 in answers and any(isinstance(answer, ShutDown) for answer in answers)
        queue.join()


def test_shutdown_waits_for_no_put_that_is_refused(opened: OpenFace) -> None:
    """A ``get`` that waits for the item of a committing put raises ``ShutDown`` if that put gets an error."""
    queue = opened(max_items=1, full="block")
    queue.put(0)
    assert queue.get() == 0
    putter, getter = Waiting(queue.put, 1), Waiting(queue.get)
    wait_for(lambda: queue.persistent.stats().waiting == 1 and is_waiting(queue))
    queue.shutdown()
    assert isinstance(putter.answer(), ShutDown)
    assert isinstance(getter.answer(), ShutDown)


def test_shutdown_ends_a_put_that_waits_for_room(opened: OpenFace) -> None:
    """A put that waits for room of the persistent queue raises ``ShutDown``. Its item is not in the queue."""
    queue = opened(max_items=1, full="block")
    queue.put(0)
    putter = Waiting(queue.put, 1)
    wait_for(lambda: queue.persistent.stats().waiting == 1)
    queue.shutdown()
    assert isinstance(putter.answer(), ShutDown)
    assert get_and_end(queue) == 0 and queue.qsize() == 0


def test_close_wakes_all(opened: OpenFace) -> None:
    """``close`` raises ``ClosedError`` in threads that wait for an item, for room, or in ``join``."""
    for fill, call, arguments in ((0, "get", ()), (1, "put", (2,)), (1, "join", ())):
        queue = opened(1)
        if fill and not queue.qsize():
            queue.put(1)
        waiting = Waiting(getattr(queue, call), *arguments)
        wait_for(lambda: is_waiting(queue))  # noqa: B023 - it has come to its end by the next turn
        queue.close()
        queue.close()
        assert isinstance(waiting.answer(), ClosedError)
    with pytest.raises(ClosedError):
        queue.put(1)


def test_a_close_that_raises_wakes_all(opened: OpenFace) -> None:
    """If ``close`` raises, for instance a warning that is an error, a thread that waits for room gets its error."""
    queue = opened(1)
    queue.put(1)
    putter = Waiting(queue.put, 2)
    wait_for(lambda: is_waiting(queue))
    session = queue.persistent.session()
    session.enqueue(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnflushedWarning)
        with pytest.raises(UnflushedWarning):
            queue.close()
    assert isinstance(putter.answer(), ClosedError)


@pytest.mark.parametrize("immediate", [False, True])
def test_closed_behind_a_shutdown(immediate: bool, opened: OpenFace) -> None:
    """A queue that was shut down and then closed raises ``ClosedError``."""
    queue = opened()
    queue.put(1)
    queue.shutdown(immediate)
    queue.close()
    for call in (queue.qsize, queue.get, queue.get_nowait, queue.join, lambda: queue.put(2)):
        with pytest.raises(ClosedError):
            call()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_child_is_refused(opened: OpenFace) -> None:
    """In a forked child all calls raise and ``close`` does nothing, even if a thread of the parent was inside a call.
    The parent goes on."""
    queue = opened(maxsize=1)
    queue.put(1)
    told = []
    group = queue.persistent._open_queue
    assert group is not None
    with queue.mutex, group.mutex, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of a fork in a process with threads
        child = os.fork()
        if not child:  # pragma: no cover - another process
            signal.alarm(60)
            try:
                for call in (lambda: queue.put(2), queue.get, queue.qsize, queue.join, queue.close):
                    try:
                        call()
                        told.append(False)
                    except ClosedError:
                        told.append(True)
            finally:
                os._exit(told != [True, True, True, True, False])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert queue.get() == 1


def test_broken_queue_tells_all(tmp_path: Path) -> None:
    """After a failed sync all calls raise ``BrokenQueueError``, including those that wait. Items that were got are not
    done."""
    failing = threading.Event()

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if failing.is_set():
            raise OSError(errno.EIO, "broken")
        return DISK.pwritev(fd, buffers, offset, flags)

    with call_on(replace(DISK, pwritev=pwritev), Queue[int], tmp_path / "queue") as queue:
        queue.put_many([1, 2])
        assert [queue.get(), queue.get()] == [1, 2]
        waiting = Waiting(queue.get)
        wait_for(lambda: is_waiting(queue))
        failing.set()
        with pytest.raises(BrokenQueueError):
            queue.task_done()
        assert isinstance(waiting.answer(), BrokenQueueError)
        assert queue.unfinished_tasks == 2
        with pytest.raises(BrokenQueueError):
            queue.put(3)
        failing.clear()
    with Queue[int](tmp_path / "queue") as queue:
        assert queue.get() in {1, 2}


def test_dropped_queue_warns(tmp_path: Path) -> None:
    """A queue that is dropped warns, frees its lock and its descriptors, and loses no item."""
    queue = Queue[int](tmp_path / "queue")
    queue.put_many([1, 2])
    assert queue.get_many(3) == [1, 2]
    with pytest.raises(Empty):
        queue.get(timeout=0.001)  # opens the wake-up
    with pytest.warns(ResourceWarning, match="without close") as caught:
        del queue
        gc.collect()
        caught.clear()  # a caught warning refers to its source: the session that holds the items, and so the queue
    with Queue[int](tmp_path / "queue") as queue:
        assert queue.get_many(10) == [1, 2]


@pytest.mark.damages
def test_damage_costs_its_own_items(tmp_path: Path) -> None:
    """A damaged block raises once; ``get`` goes on behind it, and ``join`` does not wait for the lost item."""
    with Queue[str](tmp_path / "queue", memory_bytes=0, inline_bytes=0) as queue:
        queue.put("first")
        queue.put("second")
        (segment,) = segment_files(tmp_path / "queue")
        flip(segment, segment.read_bytes().index(b"first"))
        with pytest.raises(CorruptionError):
            queue.get()
        assert queue.get() == "second"
        queue.task_done()
        queue.join()
        queue.put("third")
        flip(segment, segment.read_bytes().index(b"third"))
        joining = Waiting(queue.join)
        wait_for(lambda: is_waiting(queue))
        with pytest.raises(CorruptionError):
            queue.get()
        assert joining.answer() is None
    assert check(tmp_path / "queue").problems


# --- the names -------------------------------------------------------------------------------------------------------


def test_it_is_a_queue(opened: OpenFace) -> None:
    """The queue is an instance of ``queue.Queue``, and raises the exceptions of the standard library if that has
    them."""
    assert isinstance(opened(), standard.Queue)
    assert (Empty, Full) == (standard.Empty, standard.Full)
    assert (ShutDown is getattr(standard, "ShutDown", None)) is (sys.version_info >= (3, 13))


@pytest.mark.parametrize("shared", [False, True])
def test_attributes_of_the_standard_library_alone(opened: OpenFace, shared: bool) -> None:
    """The attributes ``queue`` and ``not_empty`` raise an error with the call to make instead; a subclass may have
    them."""
    queue: Any = opened(shared=shared)
    queue.put("item")
    with queue.mutex, pytest.raises(AttributeError, match=r"call queue\.persistent\.clear\(\) to remove"):
        queue.queue.clear()
    with pytest.raises(AttributeError, match=r"queue\.persistent\.wait\(seconds\)"), queue.not_empty:
        pass
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = queue.nothing
    assert not hasattr(queue, "queue")
    assert queue.persistent.wait(0.0)
    assert list(queue.persistent.browse()) == ["item"]
    with queue.mutex:
        queue.persistent.clear()
    assert queue.empty()
    queue.queue = []
    assert queue.queue == []


def test_it_says_who_holds_what(opened: OpenFace) -> None:
    """``persistent`` is the queue beneath, and its ``explain`` names the thread that holds an item."""
    queue = opened()
    queue.put("item")
    queue.get()
    assert any(threading.current_thread().name in str(line) for line in queue.persistent.explain())
    assert repr(queue) == f"Queue({queue.persistent.path!r}, 0)"


# --- the FIFO of bytes -----------------------------------------------------------------------------------------------


def test_fifo_is_durable(tmp_path: Path) -> None:
    """A pushed item survives a crash, and a popped item is gone."""
    fifo = FifoQueue(tmp_path / "fifo")
    for item in (b"a", b"b", b"c"):
        fifo.push(item)
    assert (fifo.pop(), fifo.peek()) == (b"a", b"b")
    crash(fifo._persistent)
    with FifoQueue(tmp_path / "fifo") as fifo:
        assert (len(fifo), fifo.pop(), fifo.pop(), fifo.pop()) == (2, b"b", b"c", None)
    fifo.close()
    assert not (tmp_path / "fifo").exists()


def test_fifo_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    """Closing an empty FIFO deletes its own files only, and a directory with other files stays."""
    with FifoQueue(tmp_path / "fifo") as fifo:
        (tmp_path / "fifo" / "notes").write_text("mine")
        fifo.push(b"a")
        fifo.clear()
        with pytest.raises(TypeError, match="takes bytes, not str"):
            fifo.push("a")  # type: ignore[arg-type]
    assert [path.name for path in (tmp_path / "fifo").iterdir()] == ["notes"]


@pytest.mark.parametrize("kind", ["marker", "subscription", "published"])
def test_an_empty_fifo_that_has_to_be_remembered(tmp_path: Path, kind: str) -> None:
    """A FIFO without an item stays if it has a marker, a subscription, or a published file that memory was too short
    for."""
    path, armed = tmp_path / "fifo", [True]
    with PersistentQueue(path) as queue, queue.session() as session:
        session.flush(marker=("import", 7) if kind == "marker" else None)
        if kind == "subscription":
            queue.subscribe("audit")
    if kind == "published":
        with Producer(path) as producer:
            producer.enqueue(b"published")
            producer.flush()

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        if armed[0] and "/inbox/" in os.readlink(f"/proc/self/fd/{fd}") and offset > 64:
            raise MemoryError
        return DISK.pread(fd, length_bytes, offset)

    with call_on(replace(DISK, pread=pread), FifoQueue, path) as fifo:
        with suppress(MemoryShortageError):
            assert fifo.pop() is None
        armed[0] = False
    with PersistentQueue(path) as queue:
        assert queue.marker("import") == (7 if kind == "marker" else None)
        assert [*queue.subscriptions()] == (["audit"] if kind == "subscription" else [])
        assert queue.peek() == ([b"published"] if kind == "published" else [])


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
def test_a_fifo_is_closed_though_nothing_tells_whether_it_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """If the system lacks something for the look of ``close`` at the queue, the FIFO is closed, and stays."""
    path = tmp_path / "fifo"
    fifo = FifoQueue(path)
    with monkeypatch.context() as patched:
        patched.setattr(View, "look", Mock(side_effect=error))
        fifo.close()
    with FifoQueue(path) as fifo:  # which has the lock
        assert fifo.pop() is None


@pytest.mark.damages
@pytest.mark.parametrize("kind", ["damaged block", "damaged file", "subscription"])
def test_a_fifo_with_something_left_is_not_deleted(tmp_path: Path, kind: str) -> None:
    """A FIFO without anything to pop stays when it is closed, if it has the only copy of something.

    That is a damaged block, a published file that was set aside, or an item that a subscription needs.
    """
    path = tmp_path / "fifo"
    with PersistentQueue(path) as queue:
        if kind == "subscription":
            queue.subscribe("audit")
        put(queue, b"first")
    with Producer(path) as producer:
        producer.enqueue(b"second")
        producer.flush()
    (segment,), (published,) = segment_files(path), (path / "inbox").iterdir()
    if kind == "damaged block":
        flip(segment, segment.read_bytes().index(b"first"))
    elif kind == "damaged file":
        flip(published, published.read_bytes().index(b"second"))
    with FifoQueue(path) as fifo:
        while True:
            with suppress(CorruptionError):
                if fifo.pop() is None:
                    break
    assert path.exists()
