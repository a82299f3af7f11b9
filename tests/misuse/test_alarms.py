"""An alarm whose handler raises ``TimeoutError``, the usual way to bound the time of a call.

That is an ``OSError``, although no call of the system has failed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from persistentqueue import PersistentQueue, View, connect
from persistentqueue.storage.layout import SOCKET_NAME
from persistentqueue.system import disk, sockets
from persistentqueue.system.byte_locks import LockFile
from persistentqueue.system.disk import below
from tests.conftest import QueueFactory
from tests.support.limits import SECONDS


def ring(_signal: int, _frame: FrameType | None) -> None:
    """Raise as handlers of programs do: without a number of the system."""
    raise TimeoutError("the alarm")


@pytest.fixture
def alarm() -> Iterator[Callable[[], object]]:
    """Return a function that sets the alarm."""
    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield partial(signal.setitimer, signal.ITIMER_REAL, 0.05)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["owner", "worker"])
def queue(request: pytest.FixtureRequest, open_queue: QueueFactory) -> Iterator[Any]:
    """Return a queue for one item, of its owner and of a worker."""
    owned: PersistentQueue = open_queue(serve=True, max_items=1, full="block")
    if request.param == "owner":
        yield owned
    else:
        with connect(owned.path, owned.name, serve="never") as shared:
            yield shared


def test_an_alarm_ends_a_wait_for_an_item(queue: Any, alarm: Callable[[], object]) -> None:
    """The error of the handler comes out of the wait, and the session keeps what it had enqueued."""
    with queue.session() as session:
        session.enqueue(b"kept")
        alarm()
        with pytest.raises(TimeoutError, match=r"^the alarm$"):
            session.dequeue(timeout=SECONDS)
        assert session.flush()
        assert session.dequeue() == b"kept"
        session.rollback()


def test_an_alarm_ends_a_wait_for_room(queue: Any, alarm: Callable[[], object]) -> None:
    """The error of the handler comes out of the flush, which has committed nothing and can be made again."""
    with queue.session() as session, queue.session() as other:
        other.enqueue(b"first")
        other.flush()
        session.enqueue(b"second")
        alarm()
        with pytest.raises(TimeoutError, match=r"^the alarm$"):
            session.flush(timeout=SECONDS)
        assert other.dequeue() == b"first"
        other.flush()
        assert session.flush()
        assert queue.peek() == [b"second"]


def test_an_alarm_ends_a_wait_for_an_owner_that_hangs(tmp_path: Path, alarm: Callable[[], object]) -> None:
    """The error of the handler comes out of the question. The end of its own time is None."""
    PersistentQueue(tmp_path, "q").close()
    with sockets.listen(str(tmp_path / "q"), SOCKET_NAME):
        view = View(tmp_path, "q")
        assert view.connections(timeout=0.01) is None
        alarm()
        with pytest.raises(TimeoutError, match=r"^the alarm$"):
            view.connections(timeout=SECONDS)


def test_an_alarm_in_a_call_of_the_system_gets_no_path() -> None:
    """An error of the handler keeps its text: the path of the call has nothing to do with it."""
    root: Any = nullcontext(0)
    path = below("/queues/orders/inbox", root, "inbox")
    with pytest.raises(TimeoutError, match=r"^the alarm$") as caught:
        disk._reach(lambda *_, dir_fd: ring(0, None), path)
    assert caught.value.filename is None


def test_an_alarm_is_no_lock_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the handler comes out of an attempt to lock: the byte is not taken for locked."""
    locks = LockFile(str(tmp_path), "locks")
    try:
        monkeypatch.setattr(LockFile, "_set", lambda *_: ring(0, None))
        with pytest.raises(TimeoutError, match=r"^the alarm$"):
            locks.lock(7)
    finally:
        locks.abandon()


class Slow:
    """A codec in whose calls an alarm rings, as often as told."""

    rings = 0

    def encode(self, item: str, /) -> bytes:
        self._ring()
        return item.encode()

    def decode(self, data: bytes, /) -> str:
        self._ring()
        return data.decode()

    def _ring(self) -> None:
        if self.rings:
            self.rings -= 1
            raise TimeoutError("the alarm")


def test_an_alarm_in_a_codec_says_nothing_of_the_item(open_queue: QueueFactory) -> None:
    """The error of the handler comes out as it is, and the item can be enqueued, or is ready again."""
    codec = Slow()
    queue: Any = open_queue(codec=codec, max_attempts=2, dead_letter="dead")
    with queue.session() as session:
        codec.rings = 1
        with pytest.raises(TimeoutError, match=r"^the alarm$"):
            session.enqueue("a")
        session.enqueue("a")
        session.flush()
        codec.rings = 1
        with pytest.raises(TimeoutError, match=r"^the alarm$"):
            session.dequeue()
        assert queue.stats().held == 0
        assert session.dequeue() == "a"
        codec.rings = 1
        with pytest.raises(TimeoutError, match=r"^the alarm$"):
            session.reject("a", retry=True)
        session.flush()
    assert len(queue) == 0
