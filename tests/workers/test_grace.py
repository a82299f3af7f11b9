"""An owner that closes its queue lets workers finish what they hold, and no worker sees an error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import Options, PersistentQueue, SessionLostError, connect
from persistentqueue.options import for_dead_letters
from persistentqueue.runtime.closing import Ending
from persistentqueue.serving.protocol import Put, encode
from persistentqueue.serving.server import Server
from persistentqueue.workers import SharedQueue, WorkerSession

from ..conftest import QueueFactory
from ..support.limits import SECONDS
from ..support.queues import wait_for

LONG = inf


def put(queue: Any, *items: bytes) -> None:
    """Enqueue the items in one flush."""
    with queue.transaction() as session:
        session.enqueue_many(items)


def _server(queue: PersistentQueue | SharedQueue[Any]) -> Server:
    """Return the server of a queue that this process owns."""
    owned = queue if isinstance(queue, PersistentQueue) else queue._owner.here()
    assert owned is not None
    assert owned._server is not None
    return owned._server


def begin_close(pool: ThreadPoolExecutor, queue: PersistentQueue | SharedQueue[Any]) -> Future[None]:
    """Close the queue in another thread. Return when the owner has begun to leave."""
    service = _server(queue)._service
    assert service is not None
    closing = pool.submit(queue.close)
    wait_for(lambda: service._is_leaving)
    return closing


def flush(session: WorkerSession[bytes]) -> None:
    """Consume what the session holds, and enqueue a result."""
    session.enqueue(b"result")
    assert session.flush() is True


ENDS: dict[str, tuple[Callable[[Any], object], list[bytes]]] = {
    "flush": (flush, [b"2", b"result"]),
    "rollback": (lambda session: session.rollback(), [b"1", b"2"]),
    "put back": (lambda session: session.put_back(1), [b"1", b"2"]),
    "close": (lambda session: session.close(), [b"1", b"2"]),
    "death": (lambda session: session._link.close(), [b"1", b"2"]),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_owner_stays_until_held_items_are_dealt_with(tmp_path: Path, threads: ThreadPoolExecutor, end: str) -> None:
    """The close waits for the session that holds an item, and ends with its work. The next owner has the effect."""
    deal, left = ENDS[end]
    with connect(tmp_path, "q", grace_seconds=LONG) as first, connect(tmp_path, "q") as second:
        put(first, b"1", b"2")
        session: Any = second.session()
        assert session.dequeue() == b"1"
        closing = begin_close(threads, first)
        assert not closing.done()
        deal(session)
        closing.result(SECONDS)
        assert not first.owns
        assert second.peek(9) == left
        assert second.owns
        if end == "death":
            with pytest.raises(SessionLostError):
                session.flush()
        session.close()


def test_items_that_were_put_are_flushed(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    """The close also waits for a session whose items are at the owner already, as large ones are."""
    with connect(tmp_path, "q", grace_seconds=LONG) as first, connect(tmp_path, "q") as second:
        with second.session() as session:
            session.enqueue_many([bytes(1 << 20)] * 6)
            assert session._has_put  # type: ignore[union-attr]
            closing = begin_close(threads, first)
            assert session.flush() is True
            closing.result(SECONDS)
        assert len(second) == 6


@pytest.mark.parametrize("begins", ["before", "after"])
@pytest.mark.parametrize("timeout", [0.0, 0.05, None])
def test_the_others_wait_for_the_next_owner(
    tmp_path: Path, threads: ThreadPoolExecutor, begins: str, timeout: float | None
) -> None:
    """While the owner leaves, a session without items gets none, and is not told that there is none."""
    with (
        connect(tmp_path, "q", grace_seconds=LONG) as first,
        connect(tmp_path, "q") as second,
        second.session() as holder,
        second.session() as other,
    ):
        put(first, b"1")
        assert holder.dequeue() == b"1"
        other.enqueue(b"known")
        other.flush()
        assert holder.dequeue() == b"known"
        taking: Future[bytes | None] | None = None
        if begins == "before" and timeout is None:
            taking = threads.submit(other.dequeue, timeout)
            wait_for(lambda: any(each.waits for each in first.connections()))
        closing = begin_close(threads, first)
        taking = taking or threads.submit(other.dequeue, timeout)
        wait_for(lambda: any(each.waits for each in second.connections()))
        put(second, b"2")
        assert len(second) == 1  # the answer comes behind the turn that could have handed the item out
        assert not taking.done()
        assert holder.flush() is True
        closing.result(SECONDS)
        assert taking.result(SECONDS) == b"2"
        assert other.flush() is True
        assert second.owns


@pytest.mark.parametrize("grace_seconds", [0.0, 0.05])
def test_the_time_of_grace_is_over(tmp_path: Path, grace_seconds: float) -> None:
    """Then the close ends all sessions. The next call of one that had items there raises ``SessionLostError``."""
    with connect(tmp_path, "q", grace_seconds=grace_seconds) as first, connect(tmp_path, "q") as second:
        put(first, b"1")
        with second.session() as session:
            assert session.dequeue() == b"1"
            session.enqueue_many([bytes(1 << 20)] * 6)
            assert session._has_put  # type: ignore[union-attr]
            first.close()
            with pytest.raises(SessionLostError, match="held 1 item"):
                session.flush()
            assert session.dequeue() == b"1"
            assert session.flush() is True


def test_a_flush_during_the_close_brings_no_items_ahead(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    """A session with ``prefetch`` gets its next items from the next owner."""
    with connect(tmp_path, "q", grace_seconds=LONG) as first, connect(tmp_path, "q", prefetch=True) as second:
        put(first, b"1", b"2", b"3")
        with second.session() as session:
            assert session.dequeue() == b"1"
            closing = begin_close(threads, first)
            assert session.flush() is True
            closing.result(SECONDS)
            assert session.dequeue_many(2) == [b"2", b"3"]
            assert session.flush() is True


def test_what_comes_behind_the_last_turn_is_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that puts items when the owner is about to leave puts them again at the next owner, and loses none."""
    with connect(tmp_path, "q", grace_seconds=LONG) as first, connect(tmp_path, "q") as second:
        session: Any = second.session()
        session.enqueue(b"1")
        session.flush()
        link = session._link
        original, answers = Server._may_leave, []

        def late(server: Server) -> bool:
            may_leave = original(server)
            if may_leave:
                link._socket.send(encode(Put([b"late"]), 9))
            return may_leave

        with monkeypatch.context() as patch:
            patch.setattr(Server, "_may_leave", late)
            first.close()
        with suppress(ConnectionResetError):
            answers.append(link._socket.recv(100))
        assert answers in ([], [b""])
        session.enqueue(b"2")
        assert session.flush() is True
        session.close()
        assert second.peek(9) == [b"1", b"2"]


def test_an_interruption_ends_the_grace(
    tmp_path: Path, open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during the wait for workers closes the queue at once, and frees its lock."""

    def interrupted(_: Ending) -> None:
        raise KeyboardInterrupt

    queue = open_queue(serve=True, grace_seconds=LONG)
    put(queue, b"1")
    with connect(tmp_path / "queues", "orders") as shared, shared.session() as session:
        assert session.dequeue() == b"1"
        with monkeypatch.context() as patch:
            patch.setattr(Ending, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                queue.close()
        assert queue.closed
        assert session.flush() is True
        assert shared.owns


@pytest.mark.parametrize("works_on", [False, True], ids=["alone", "with a daemon"])
def test_the_end_of_the_process_waits_for_no_session_of_its_own(tmp_path: Path, works_on: bool) -> None:
    """A process that owns the queue ends at once with a session that holds an item, unless a thread can flush it."""
    program = (
        "import sys, threading\n"
        "from persistentqueue import connect\n"
        "first = connect(sys.argv[1], 'q', grace_seconds=0)\n"
        "queue = connect(sys.argv[1], 'q', grace_seconds=float(sys.argv[2]))\n"
        "session = queue.session()\n"
        "session.enqueue_many([b'1', b'2'])\n"
        "session.flush()\n"
        "first.close()\n"
        "assert session.dequeue() == b'1' and queue.owns\n"
        "def flush():\n"
        "    threading.main_thread().join()\n"
        "    session.flush()\n"
        "if len(sys.argv) > 3:\n"
        "    threading.Thread(target=flush, daemon=True).start()\n"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path), str(LONG), *(["daemon"] * works_on)]
    subprocess.run(command, check=True, timeout=SECONDS)
    with PersistentQueue(tmp_path, "q") as queue:
        assert queue.peek(3) == [b"1", b"2"][works_on:]


def test_a_broken_queue_gives_no_grace(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A queue whose log could not be written closes at once: its workers can finish nothing."""
    queue = open_queue(serve=True, grace_seconds=LONG)
    put(queue, b"1")
    with connect(tmp_path / "queues", "orders") as shared, shared.session() as session:
        assert session.dequeue() == b"1"
        queue._open().is_usable = False
        queue.close()
        with pytest.raises(SessionLostError):
            session.flush()


def test_the_option_is_checked(tmp_path: Path) -> None:
    """It is a number of at least 0, also for the queue of dead letters."""
    with pytest.raises(ValueError, match="grace_seconds must be at least 0"):
        PersistentQueue(tmp_path, "q", grace_seconds=-1.0)
    with pytest.raises(TypeError, match="grace_seconds must be a number"):
        connect(tmp_path, "q", grace_seconds=None)  # type: ignore[arg-type]
    assert for_dead_letters(Options(grace_seconds=7.0)).grace_seconds == 7.0
    assert not list(tmp_path.iterdir())
