"""``compat.Queue`` with ``shared=True``: one queue of the standard library in many processes, which may be killed."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
    CodecError,
    DeadLetter,
    HoldLostError,
    NotServedError,
    OtherOptionsWarning,
    PersistentQueue,
    ReentrantUseError,
    SessionLostError,
    TooManyFilesError,
    connect,
)
from persistentqueue.compat import Empty, Full, Queue, ShutDown
from persistentqueue.compat.standard_queue import UNDONE_CALLS_MAX
from persistentqueue.storage.layout import SOCKET_NAME
from persistentqueue.system import sockets
from persistentqueue.system.event_log import LOGGER
from persistentqueue.workers.owner import Owner
from tests.faces.test_compat import Waiting, get_and_end, in_thread
from tests.support.limits import SECONDS
from tests.support.queues import wait_for

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and signals")
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.worker_processes", "persistentqueue.serving.calls", "portalocker"])
ITEMS, WORKERS = 60, 3

Start = Callable[..., BaseProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a process, which is killed at the end of the test."""
    made: list[BaseProcess] = []

    def begin(work: Callable[..., object], *arguments: Any) -> BaseProcess:
        made.append(_CONTEXT.Process(target=work, args=arguments, daemon=True))
        made[-1].start()
        return made[-1]

    yield begin
    for each in made:
        each.kill()
        each.join()
        each.close()


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue[Any]]:
    """Return a shared queue that this process owns."""
    with Queue[Any](tmp_path / "queue", shared=True, lock_timeout=60.0) as opened:
        yield opened


def own(path: Path) -> None:
    """Own the queue until the end of the process."""
    queue = Queue[Any](path, shared=True)
    assert queue.persistent.owns  # type: ignore[attr-defined]
    queue.put("owned")
    signal.pause()


def move(source: Queue[Any], target: Queue[Any]) -> None:
    """Move items until ``None`` comes. An item that is lost comes again, and so does ``None``."""
    while True:
        item = source.get()
        if item is not None:
            target.put(item)
        try:
            source.task_done()
        except SessionLostError:
            continue
        if item is None:
            return


def get_and_stay(queue: Queue[Any], count: int) -> None:
    """Get so many items and do not end them."""
    queue.get_many(count)
    queue.put("got")
    signal.pause()


def owned_by(start: Start, path: Path) -> BaseProcess:
    """Start a process that owns the queue, and return it when it does."""
    owner = start(own, path)
    with Queue[Any](path, shared=True, serve="never", lock_timeout=60.0) as queue:
        assert get_and_end(queue) == "owned"
    return owner


# --- many processes ---------------------------------------------------------------------------------------------------


def test_processes_work_on_one_queue(start: Start, tmp_path: Path) -> None:
    """Pickled queues work in other processes. ``join`` waits for all of them, and each item comes once."""
    with (
        Queue[Any](tmp_path / "in", shared=True) as source,
        Queue[Any](tmp_path / "out", shared=True) as target,
    ):
        workers = [start(move, source, target) for _ in range(WORKERS)]
        source.put_many(range(ITEMS))
        for _ in workers:
            source.put(None)
        source.join()
        assert source.empty()
        assert sorted(target.get_many(ITEMS + 1)) == list(range(ITEMS))
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0


def test_items_of_one_call_are_done_together(queue: Queue[Any]) -> None:
    """The items of one ``get_many`` are unfinished for ``join`` until the last of them is done."""
    queue.put_many(["a", "b", "c"])
    assert queue.get_many(2) == ["a", "b"]
    queue.task_done()
    assert queue.unfinished_tasks == 3
    queue.task_done()
    assert queue.unfinished_tasks == 1


def test_items_of_a_killed_process_come_again(start: Start, queue: Queue[Any]) -> None:
    """The items of a killed process are got by another one, in order, and are unfinished all the while."""
    queue.put_many(["a", "b"])
    process = start(get_and_stay, queue, 2)
    wait_for(lambda: (queue.qsize(), queue.unfinished_tasks) == (1, 3))
    assert get_and_end(queue) == "got"
    assert (queue.qsize(), queue.unfinished_tasks) == (0, 2)
    waiting = Waiting(queue.get)
    process.kill()
    assert waiting.answer() == "a"
    assert queue.get() == "b"
    queue.task_done()
    queue.task_done()
    queue.join()


def test_the_owner_is_killed_while_others_wait(start: Start, tmp_path: Path) -> None:
    """``get`` and ``join`` go on, ``task_done`` raises ``SessionLostError``, and the item comes again."""
    owner = owned_by(start, tmp_path)
    with Queue[Any](tmp_path, shared=True) as queue, Queue[Any](tmp_path, shared=True) as other:
        queue.put_many([1, 2, 3])
        assert [queue.get(), *queue.get_many(2)] == [1, 2, 3]
        getting, joining = Waiting(other.get), Waiting(other.join)
        owner.kill()
        owner.join()
        with pytest.raises(SessionLostError):
            queue.task_done()
        queue.task_done()  # the first of the two
        with pytest.raises(SessionLostError):
            queue.task_done()
        with pytest.raises(ValueError, match="too many times"):
            queue.task_done()
        assert getting.answer() == 1
        assert queue.get_many(5) == [2, 3]
        queue.put(4)
        other.put(5)
        for _ in range(2):
            queue.task_done()
        other.task_done()  # the thread that has got the item has ended
        assert [get_and_end(queue), get_and_end(other)] == [4, 5]
        assert joining.answer() is None


def test_the_owner_is_killed_during_work(start: Start, tmp_path: Path) -> None:
    """No item is lost when the owner is killed. An item whose ``task_done`` was lost can come twice."""
    owner = owned_by(start, tmp_path / "in")
    with (
        Queue[Any](tmp_path / "in", shared=True, lock_timeout=60.0) as source,
        Queue[Any](tmp_path / "out", shared=True) as target,
    ):
        workers = [start(move, source, target) for _ in range(WORKERS)]
        for number in range(ITEMS):
            source.put(number)
            if number == ITEMS // 2:
                wait_for(lambda: target.qsize() > 0)
                owner.kill()
        source.join()
        found = target.get_many(10 * ITEMS)
        assert set(found) == set(range(ITEMS))
        assert len(found) <= ITEMS + WORKERS
        for _ in workers:
            source.put(None)
        source.join()


def test_a_hold_that_is_over(queue: Queue[Any]) -> None:
    """After ``hold_seconds`` the item is with another process, and the late ``task_done`` raises ``HoldLostError``."""
    with Queue[Any](queue.persistent.path, shared=True, hold_seconds=0.1) as slow:
        queue.put("item")
        assert slow.get() == "item"
        assert queue.get() == "item"
        with pytest.raises(HoldLostError):
            slow.task_done()
        with pytest.raises(ValueError, match="too many times"):
            slow.task_done()
        queue.task_done()


def test_a_fork_has_a_queue_of_its_own(queue: Queue[Any]) -> None:
    """A forked child puts and gets. It has got no items, and its parent keeps what it has got, and its shutdown."""
    queue.put_many([1, 2])
    assert queue.get() == 1
    queue.shutdown()
    child = os.fork()
    if not child:  # pragma: no cover - another process
        signal.alarm(60)
        told = False
        try:
            with pytest.raises(ValueError, match="too many times"):
                queue.task_done()
            assert get_and_end(queue) == 2
            queue.put(3)
            queue.close()
            told = True
        finally:
            os._exit(not told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    queue.task_done()
    assert get_and_end(queue) == 3


# --- limits and waits -------------------------------------------------------------------------------------------------


def test_maxsize_counts_the_items_of_all(queue: Queue[Any]) -> None:
    """``put`` waits until another process has made room, and raises ``Full`` at its time-out."""
    with Queue[Any](queue.persistent.path, 2, shared=True) as bounded:
        queue.put(1)
        bounded.put(2)
        assert bounded.full()
        with pytest.raises(Full):
            bounded.put_nowait(3)
        with pytest.raises(Full):
            bounded.put(3, timeout=0.01)
        with pytest.raises(ValueError, match="never fit"):
            bounded.put_many([1, 2, 3])
        putting = Waiting(bounded.put, 3)
        assert in_thread(lambda: get_and_end(queue)) == 1
        assert putting.answer() is None
        putting = Waiting(bounded.put_many, [4, 5])
        bounded.maxsize = 4
        assert putting.answer() is None
        assert queue.qsize() == bounded.qsize() == 4


def test_threads_of_one_process_never_exceed_maxsize(queue: Queue[Any]) -> None:
    """Many threads put at once, and there are never more items than ``maxsize``."""
    queue.maxsize = 3
    sizes: list[int] = []
    putting = [Waiting(queue.put, number) for number in range(12)]
    found: list[Any] = []
    while len(found) < 12:
        sizes.append(queue.qsize())
        found.append(get_and_end(queue))
    assert [each.answer() for each in putting] == [None] * 12
    assert sorted(found) == list(range(12))
    assert max(sizes) <= 3


def test_waits_end(queue: Queue[Any]) -> None:
    """``get`` waits for the items of other processes up to its time-out. A shutdown and ``close`` end all waits."""
    with Queue[Any](queue.persistent.path, 1, shared=True) as other:
        with pytest.raises(Empty):
            other.get_nowait()
        with pytest.raises(Empty):
            other.get(timeout=0.01)
        waiting = Waiting(other.get)
        queue.put("item")
        assert waiting.answer() == "item"
        waiting = Waiting(other.get)
        wait_for(lambda: bool(other.persistent._waiting))  # type: ignore[attr-defined]
        other.shutdown()
        assert isinstance(waiting.answer(), ShutDown)
        with pytest.raises(ShutDown):
            other.put(1)
        queue.put("after the shutdown of the other")
        assert other.get() == "after the shutdown of the other"
        other.shutdown(immediate=True)
        assert (other.qsize(), other.unfinished_tasks) == (0, 2)
    getting, joining = Waiting(queue.get), Waiting(queue.join)
    assert getting.answer() == "item"
    assert queue.get() == "after the shutdown of the other"
    getting = Waiting(queue.get)
    wait_for(lambda: bool(queue.persistent._waiting))  # type: ignore[attr-defined]
    queue.close()
    assert isinstance(getting.answer(), ClosedError)
    assert isinstance(joining.answer(), ClosedError)
    for call in (queue.get, queue.qsize, lambda: queue.put(1)):
        with pytest.raises(ClosedError):
            call()


def test_a_put_finds_the_next_owner_behind_a_shutdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``put`` that is committing while no process owns the queue goes on behind a shutdown, and succeeds."""
    looks: list[str] = []
    look_once = Owner._connect

    def look(owner: Owner[Any], hello: dict[str, Any]) -> Any:
        """Look for the owner, and note that there is none."""
        found = look_once(owner, hello)
        if found is None:
            looks.append(hello["thread"])
        return found

    limits: dict[str, Any] = {"full": "block", "max_bytes": 10**8}
    first = Queue[Any](tmp_path / "queue", shared=True, **limits)
    with Queue[Any](tmp_path / "queue", shared=True, serve="never", lock_timeout=60.0, **limits) as queue:
        queue.put(1)
        first.close()
        monkeypatch.setattr(Owner, "_connect", look)
        putting = Waiting(queue.put, 2)
        wait_for(lambda: bool(looks))
        queue.shutdown()
        before = len(looks)
        wait_for(lambda: len(looks) > before + 1 or not putting.is_alive())
        with Queue[Any](tmp_path / "queue", shared=True, **limits) as second:
            assert putting.answer() is None
            assert second.get_many(2) == [1, 2]


def test_close_ends_the_waits_of_its_queue_alone(queue: Queue[Any]) -> None:
    """``close`` of a queue whose owner goes on ends its own waits at once."""
    other = Queue[Any](queue.persistent.path, shared=True)
    ending, staying = Waiting(other.get), Waiting(queue.get)
    for each in (other, queue):
        wait_for(lambda: bool(each.persistent._waiting))  # type: ignore[attr-defined]  # noqa: B023
    other.close()
    assert isinstance(ending.answer(), ClosedError)
    queue.put("item")
    assert staying.answer() == "item"


def test_too_many_undone_calls(queue: Queue[Any]) -> None:
    """A process that never ends its items gets an error before it uses up all connections. One ``get_many`` is one."""
    queue.put_many(range(UNDONE_CALLS_MAX + 50))
    for number in range(UNDONE_CALLS_MAX - 1):
        assert queue.get() == number
    assert len(queue.get_many(30)) == 30
    with pytest.raises(TooManyFilesError, match="call task_done, or get several items by one get_many"):
        queue.get()
    queue.task_done()
    assert queue.get() == UNDONE_CALLS_MAX + 29


# --- delivery attempts, subscriptions, arguments ----------------------------------------------------------------------


def test_rejected_items(tmp_path: Path) -> None:
    """``reject`` works between processes; the owner keeps the attempts and the dead letters."""
    settings: dict[str, Any] = {"max_attempts": 2, "dead_letter": "dead"}
    with PersistentQueue(tmp_path / "q", serve=True, **settings) as owner:
        with Queue[Any](tmp_path / "q", shared=True, **settings) as queue:
            queue.put("bad")
            assert queue.get() == "bad"
            queue.reject("bad", "first", delay_seconds=0.2)
            assert queue.qsize() == queue.unfinished_tasks == 1
            assert queue.get(timeout=30) == "bad"
            queue.reject("bad", "second")
            queue.join()
            with pytest.raises(ValueError, match="no item was got"):
                queue.reject("bad")
            letters = [DeadLetter.decode(each) for each in queue.persistent.dead_letters.browse()]
            assert [(each.item, each.attempts, each.reason) for each in letters] == [(b'"bad"', 2, "second")]
            assert queue.persistent.requeue() == 1
            assert get_and_end(queue) == "bad"
        assert len(owner) == 0


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "shared"])
def test_a_rejection_that_is_wrong_is_named(tmp_path: Path, is_shared: bool) -> None:
    """The error of ``reject`` tells what is wrong, whatever else was got; then the item can be rejected."""
    with Queue[Any](tmp_path, shared=is_shared, retry_delay_seconds=0.01) as queue:
        for item in "abc":
            queue.put(item)
            queue.get()
        for item, arguments, match in (
            ("b", {"retry": False}, "retry=False needs a dead-letter queue"),
            ("b", {"delay_seconds": -1}, "a delay must be from 0"),
            ("d", {}, "holds no such item"),
        ):
            with pytest.raises(ValueError, match=match):
                queue.reject(item, **arguments)
        queue.reject("b")
        assert get_and_end(queue) == "b"
        for _ in "ac":
            queue.task_done()
        queue.join()


def test_a_rejection_after_the_owner_was_killed(start: Start, tmp_path: Path) -> None:
    """``reject`` of a lost item raises ``SessionLostError``: the item comes again, and ``task_done`` has none left."""
    owner = owned_by(start, tmp_path)
    with pytest.warns(OtherOptionsWarning, match="retry_delay_seconds=0.01"):
        queue = Queue[Any](tmp_path, shared=True, retry_delay_seconds=0.01)
    with queue:
        queue.put("item")
        assert queue.get() == "item"
        owner.kill()
        owner.join()
        with pytest.raises(SessionLostError):
            queue.reject("item")
        with pytest.raises(ValueError, match="too many times"):
            queue.task_done()
        assert get_and_end(queue) == "item"


def test_subscriptions(queue: Queue[Any]) -> None:
    """Each subscription gets all items, and counts its own; it is there in a pickled queue, too."""
    path = queue.persistent.path
    with Queue[Any](path, shared=True, subscription="billing") as billing:
        queue.put("item")
        assert (billing.qsize(), billing.unfinished_tasks) == (1, 1)
        with pickle.loads(pickle.dumps(billing)) as again:
            assert get_and_end(again) == "item"
        assert (billing.qsize(), billing.unfinished_tasks) == (0, 0)
        billing.join()
        assert queue.unfinished_tasks == 1


def test_bad_items(queue: Queue[Any]) -> None:
    """An item that the codec refuses counts as got, as in a queue of one process."""
    with queue.persistent.transaction() as session:
        session.enqueue("good")
    with connect(queue.persistent.path) as other, other.transaction() as session:
        session.enqueue(b"no json")
    assert get_and_end(queue) == "good"
    with pytest.raises(CodecError):
        queue.get()
    queue.task_done()
    queue.join()
    with pytest.raises(CodecError, match=r"codecs\.MessagePack"):
        queue.put({1})
    assert queue.empty()


def test_pickles(queue: Queue[Any], tmp_path: Path) -> None:
    """A pickled queue keeps ``maxsize`` and its class, and connects at its first use. A queue that is not shared
    cannot be pickled."""
    queue.maxsize = 7
    again = pickle.loads(pickle.dumps(queue))
    assert (type(again), again.maxsize) == (Queue, 7)
    queue.put("item")
    with again:
        assert again.get() == "item"
    assert queue.qsize() == 1
    with Queue[Any](tmp_path / "alone") as alone, pytest.raises(TypeError, match="cannot be copied, pickled"):
        pickle.dumps(alone)


def test_arguments(tmp_path: Path) -> None:
    """Arguments of shared queues are refused elsewhere. With ``serve="never"`` a queue never owns."""
    for arguments in ({"serve": "never"}, {"hold_seconds": 1.0}):
        with pytest.raises(ValueError, match="pass shared=True"):
            Queue(tmp_path, **arguments)
    with pytest.raises(NotServedError):
        Queue(tmp_path, shared=True, serve="never", lock_timeout=0.01)
    with pytest.raises(TypeError, match="codec must be"):
        Queue(tmp_path, shared=True, codec=object())  # type: ignore[arg-type]


def test_waits_of_a_shared_queue(tmp_path: Path) -> None:
    """``SharedQueue.wait`` has ``stop`` and ``wake``, as ``PersistentQueue.wait``, and ``sizes`` counts held items."""
    from persistentqueue import connect

    with connect(tmp_path) as queue:
        stops: list[bool] = []
        waiting = threading.Thread(target=lambda: stops.append(queue.wait(stop=lambda: is_over)))
        is_over = False
        waiting.start()
        wait_for(lambda: bool(queue._waiting))
        queue.wake()
        is_over = True
        while waiting.is_alive():
            queue.wake()
            time.sleep(0.001)
        assert stops == [False]
        assert not queue.wait(0.01)
        with queue.transaction() as session:
            session.enqueue_many([b"a", b"b"])
        with queue.session() as session:
            session.dequeue()
            assert queue.sizes() == (1, 2)
            session.rollback()
        assert queue.subscribe("s").sizes() == (2, 2)
        queue.unsubscribe("s")


def test_a_closed_queue_is_named_by_each_call(tmp_path: Path) -> None:
    """After ``close``, each call that needs the queue names it, and no session, which the caller does not know."""
    queue = Queue[Any](tmp_path / "queue", shared=True)
    queue.put(1)
    queue.close()
    told = f"{tmp_path / 'queue'}: the queue is closed: connect again"
    calls: list[Callable[[], object]] = [
        lambda: queue.put(2),
        lambda: queue.put_many([2]),
        queue.get,
        lambda: queue.get_many(2),
        queue.qsize,
        queue.join,
    ]
    for call in calls:
        with pytest.raises(ClosedError) as caught:
            call()
        assert str(caught.value) == told


def test_no_process_serves_the_queue(tmp_path: Path) -> None:
    """Each call looks for an owner for ``lock_timeout`` seconds, also if it must not block, and names what it lacks."""
    path = tmp_path / "queue"
    with (
        Queue[str](path, shared=True) as owner,
        Queue[str](path, shared=True, serve="never", lock_timeout=0.2) as queue,
    ):
        queue.put("item")
        owner.close()
        calls: list[Callable[[], object]] = [
            lambda: queue.put("other", block=False),
            lambda: queue.put_many(["other"], timeout=0.0),
            lambda: queue.get(timeout=0.0),
            lambda: queue.get_many(2, block=False),
            queue.join,
            queue.qsize,
        ]
        for call in calls:
            began = time.monotonic()
            with pytest.raises(NotServedError, match="no process owns it: start an owner"):
                call()
            assert time.monotonic() - began >= 0.2
        with Queue[str](path, shared=True):
            assert (queue.qsize(), queue.get_nowait()) == (1, "item")
            queue.task_done()


_DAEMONS = """
import sys, threading
from persistentqueue.compat import Queue

queue = Queue(sys.argv[1], shared=True)
for call in (queue.get, queue.get, lambda: queue.get(timeout=3600)):
    threading.Thread(target=call, daemon=True).start()
queue.put("one for one of them")
while sum(each.waits for each in queue.persistent.connections()) < 2:
    pass
"""


def test_daemon_threads_end_with_the_owner(tmp_path: Path) -> None:
    """If the process that owns the queue ends while its daemon threads wait in ``get``, it prints nothing. The log is
    sealed, and the item that no thread has marked as done is there again."""
    done = subprocess.run(
        [sys.executable, "-c", _DAEMONS, str(tmp_path / "queue")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with PersistentQueue(tmp_path / "queue") as core:
        assert core.recovery.clean
        assert len(core) == 1


def test_a_log_handler_that_puts_into_the_queue(tmp_path: Path) -> None:
    """A handler of ``logging`` gets ``ReentrantUseError`` in the thread that serves the queue, and that goes on."""
    refused: SimpleQueue[ReentrantUseError] = SimpleQueue()

    class Handler(logging.Handler):
        """Puts each message into the queue."""

        def emit(self, record: logging.LogRecord) -> None:
            """Put the message, or note the error."""
            try:
                shared.put(record.getMessage())
            except ReentrantUseError as error:
                refused.put(error)

    handler = Handler()
    LOGGER.addHandler(handler)
    try:
        with Queue(tmp_path / "q", shared=True) as shared:
            peer = sockets.connect(str(tmp_path / "q"), SOCKET_NAME, SECONDS)
            assert peer is not None
            with peer:
                peer.sendall(b"\xff" * 100)  # no worker sends this: the owner logs it
                assert "in the thread that serves this queue" in str(refused.get(timeout=SECONDS))
            shared.put("one")
            assert (shared.get(), shared.qsize()) == ("one", 0)
            shared.task_done()
    finally:
        LOGGER.removeHandler(handler)
