"""The worker's end of a connection: calls that are given up or interrupted, and owners that end meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import pytest

from persistentqueue.codecs import BYTES
from persistentqueue.errors import NotHeldError, QueueFullError, SessionLostError, TooManyFilesError
from persistentqueue.serving.errors import encode_error
from persistentqueue.serving.protocol import (
    FROM_WORKER,
    Cancel,
    Done,
    Failed,
    Flush,
    GiveBack,
    Incoming,
    Message,
    Outcome,
    Put,
    Take,
    Taken,
    encode,
)
from persistentqueue.system.sockets import Socket
from persistentqueue.workers import link as links
from persistentqueue.workers.link import Attached, Link
from persistentqueue.workers.presence import Presence
from persistentqueue.workers.worker_session import WorkerSession
from tests.support.left_holds import NoLocks


def _nothing() -> None:
    pass


class Script:
    """A socket whose other end answers by a script. An exception in the script is raised."""

    def __init__(self, *answers: Message | BaseException | None, takes_bytes: int = 1 << 20) -> None:
        self.answers = list(answers)
        self.takes_bytes = takes_bytes
        self.sent = bytearray()
        self.calls = 0
        self.on_send: Callable[[], None] = _nothing

    @property
    def socket(self) -> Socket:
        """This object, as ``Link`` takes it."""
        return cast(Socket, self)

    def send(self, data: bytes, _flags: int = 0) -> int:
        """Take some bytes, then let another thread act."""
        count = min(len(data), self.takes_bytes)
        self.sent += data[:count]
        act, self.on_send = self.on_send, _nothing
        act()
        return count

    def recv(self, _size_bytes: int) -> bytes:
        """Return the next answer; no bytes for None, which ends the connection."""
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        calls = [call for call, message in self.messages() if type(message) is not Cancel]
        return b"" if answer is None else encode(answer, calls[-1])

    def close(self) -> None:
        """End the connection."""

    def messages(self) -> list[tuple[int, Message]]:
        """Return what was sent."""
        return Incoming(FROM_WORKER).feed(bytes(self.sent))


def session_on(*scripts: Script, prefetches: bool = False, counts: bool = False) -> WorkerSession[bytes]:
    """Return a session whose owners are these scripts, one after the other. They may count attempts."""
    links = iter([Link(script.socket, "") for script in scripts])
    presence = Presence(NoLocks(), bytes(16))  # so no owner keeps anything for it

    def attach(_connection: bytes, _stop: Callable[[], bool]) -> Attached:
        """Connect to the next owner."""
        return Attached(next(links), counts, 0)

    return WorkerSession("/q", "w", BYTES, bytes(16), attach, presence, lambda: 0.0, prefetches)


def test_a_flush_is_given_up_between_messages() -> None:
    """A flush that another thread gives up while it is being sent arrives whole, and the cancel behind it."""
    script = Script(Done(1), takes_bytes=10)
    session = session_on(script)
    session.enqueue(b"x" * 100)
    script.on_send = session.give_up
    assert session.flush() is True
    assert script.messages() == [(1, Flush(1, 2**32 - 1, [b"x" * 100])), (1, Cancel())]
    session.give_up()
    assert len(script.messages()) == 2


def test_no_message_begins_in_the_middle_of_a_cancel() -> None:
    """A thread that gives a call up sends its cancel whole, before the next call of the session."""
    is_sending, is_next, ends_late = threading.Event(), threading.Event(), 0.1

    class Slow(Script):
        """A socket that takes a cancel in two steps."""

        def send(self, data: bytes, _flags: int = 0) -> int:
            if threading.current_thread() is giving_up:
                is_sending.set()
                assert not is_next.wait(ends_late)
            elif is_sending.is_set():
                is_next.set()
            return super().send(data)

        def recv(self, size_bytes: int) -> bytes:
            if not is_sending.is_set():
                giving_up.start()
                is_sending.wait()
            return super().recv(size_bytes)

    script = Slow(Taken(0, [b"1"]), Done(1))
    session = session_on(script)
    giving_up = threading.Thread(target=session.give_up)
    assert session.dequeue(timeout=None) == b"1"
    assert session.flush() is True
    giving_up.join()
    assert [type(message) for _, message in script.messages()] == [Take, Cancel, Flush]


def test_an_answer_is_read_if_the_owner_takes_no_more() -> None:
    """If the owner has ended the connection before it took the whole call, its answer to it is read."""

    class Ended(Script):
        """A socket whose other end has answered and gone."""

        def send(self, data: bytes, _flags: int = 0) -> int:
            super().send(data)
            raise BrokenPipeError

    lack = encode_error(TooManyFilesError("/q", 24, "too many files are open"))
    link = Link(Ended(Failed(lack)).socket, "")
    assert link.call(Outcome(1)) == Failed(lack)


def test_a_child_waits_for_no_cancel_of_its_parent() -> None:
    """In a forked child, a call can be given up although a thread of the parent was sending a cancel."""
    link = Link(Script().socket, "")
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with link._cancelling:
            held.set()
            free.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    links._close_all()
    link.give_up()
    free.set()
    thread.join()


def test_items_that_the_owner_has_are_dropped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the owner has taken some items of a flush that failed, an interruption right then drops no others here."""

    def interrupted(_session: WorkerSession[bytes], _answer: Message) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    script = Script(Failed({**encode_error(ValueError("full")), "taken": 1}), Done(1))
    session = session_on(script)
    session.enqueue_many([b"1", b"2", b"3", b"4"])
    monkeypatch.setattr(WorkerSession, "_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.flush()
    assert session.flush() is True
    assert script.messages()[1] == (2, Flush(2, 2**32 - 1, [b"2", b"3", b"4"]))


def test_a_wait_that_is_interrupted_gives_its_items_back() -> None:
    """The items that arrive for an interrupted wait are given back, and the session keeps those of earlier calls."""
    script = Script(Taken(0, [b"1"]), KeyboardInterrupt(), Taken(0, [b"2", b"3"]), Done(1))
    session = session_on(script)
    assert session.dequeue() == b"1"
    with pytest.raises(KeyboardInterrupt):
        session.dequeue_many(2)
    assert [message for _, message in script.messages()] == [Take(1, 0), Take(2, 0), Cancel(), GiveBack(2)]
    assert "1 dequeued" in repr(session)


def test_an_interrupted_flush_waits_for_room_no_more() -> None:
    """The wait of an interrupted flush for room ends at once, and the items stay in the session."""
    full = encode_error(QueueFullError("/q", "max_items", 1, 1, 1, False))
    script = Script(KeyboardInterrupt(), Failed(full), Done(1))
    session = session_on(script)
    session.enqueue(b"x")
    with pytest.raises(KeyboardInterrupt):
        session.flush(timeout=5)
    assert script.messages() == [(1, Flush(1, 5000, [b"x"])), (1, Cancel())]
    assert session.flush() is True
    assert script.messages()[2:] == [(2, Flush(2, 2**32 - 1, [b"x"]))]


def test_an_interrupted_put_back_leaves_nothing_to_consume() -> None:
    """Items that an interrupted ``put_back`` has released count no more as those that the caller has. So an item that
    arrives for an interrupted dequeue behind it goes back as well."""
    interrupted, released = KeyboardInterrupt(), Done(1)
    script = Script(Taken(0, [b"1", b"2"]), interrupted, released, interrupted, Taken(0, [b"1"]), released)
    session = session_on(script)
    assert session.dequeue_many(2) == [b"1", b"2"]
    with pytest.raises(KeyboardInterrupt):
        session.put_back(2)
    with pytest.raises(KeyboardInterrupt):
        session.dequeue()
    assert [message for _, message in script.messages()][-2:] == [Cancel(), GiveBack(1)]
    assert (session.held, session.has_work) == (0, False)


def test_an_interrupted_put_back_leaves_nothing_to_reject() -> None:
    """An item that an interrupted ``put_back`` has released cannot be rejected: the session holds it no more."""
    script = Script(Taken(0, [b"1", b"2"]), KeyboardInterrupt(), Done(1), Done(1))
    session = session_on(script, counts=True)
    assert session.dequeue_many(2) == [b"1", b"2"]
    with pytest.raises(KeyboardInterrupt):
        session.put_back(1)
    with pytest.raises(NotHeldError, match="holds no such item"):
        session.reject(b"2")
    session.reject(b"1")


@pytest.mark.filterwarnings("ignore::persistentqueue.UnflushedWarning")
def test_a_second_interruption_gives_nothing_back_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the cleanup of an interrupted ``put_back`` is interrupted as well, the session still holds what it should."""
    script = Script(Taken(0, [b"1", b"2", b"3"]), KeyboardInterrupt(), Done(1))
    session, end = session_on(script), Link.end
    assert session.dequeue_many(3) == [b"1", b"2", b"3"]

    def interrupted(link: Link) -> None:
        monkeypatch.setattr(Link, "end", end)
        raise KeyboardInterrupt

    monkeypatch.setattr(Link, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.put_back(1)
    session.enqueue(b"4")
    assert session.held == 2


def test_an_interruption_hides_no_lost_session() -> None:
    """If the owner ends while an interrupted call gives its items back, the next call says that the session is lost."""
    script = Script(Taken(0, [b"1"]), KeyboardInterrupt(), Taken(0, [b"2"]), None)
    session = session_on(script, Script(Done(1)))
    assert session.dequeue() == b"1"
    session.enqueue(b"made of 1")
    with pytest.raises(KeyboardInterrupt):
        session.dequeue()
    with pytest.raises(SessionLostError):
        session.flush()


def test_a_put_goes_to_the_next_owner() -> None:
    """A session that has nothing at its owner spills to the next one, without an error."""
    first, second = Script(None), Script(Done(1), Done(1))
    session = session_on(first, second)
    session.enqueue_many([b"x" * 3_000_000, b"y" * 3_000_000])
    assert [type(message) for _, message in second.messages()] == [Put]
    assert session.flush() is True
