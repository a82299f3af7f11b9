"""The calls that are under way: those of a queue, by thread, and the one call of a session.

Code that interrupts a call of a queue may not call the queue.

A signal handler, a finalizer, a ``logging`` handler or the callable that gives a key can run in the middle of a call.
It runs in the thread of that call, and would wait for a lock that this thread holds. It gets ``ReentrantUseError`` at
once instead. A call that only waits, for an item or for room, holds no lock: then the queue may be called. A callable
that learns the progress of a compaction may call the queue, too, except to compact, maintain or close it.

Queues that take part in a transaction over several queues are *partners*. Code that interrupts a call of one queue may
not call a partner either. The partner might wait for a transaction over both, and that transaction waits for the
interrupted call.

A session is for one call at a time: see ``SessionCalls``.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from itertools import repeat
from typing import Any, TypeVar, cast

from ..errors import ClosedError, ReentrantUseError, SessionInUseError
from ..pickling import Uncopyable
from .locks import Lock
from .signal_shield import shielded

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])
_thread = threading.get_ident
FREE, BUSY, TORN = 0, 1, 2
"""States of a session: no call is under way; one is; or one was interrupted and its cleanup is still to be done."""


def outermost(method: Method) -> Method:
    """Make a method refuse a call with ``ReentrantUseError`` if the same thread is already in a call of the queue.

    Such a call comes from code that interrupts the other call. It would wait for a lock that its own thread holds.
    """

    @wraps(method)
    def call(calls: CallGuard, *arguments: Any, **named: Any) -> Any:
        """Make the call, if this thread is in no other."""
        thread, inside = _thread(), calls.inside
        if inside and (0 in inside or thread in inside):
            calls.check_outermost()
        # No call here or in ``finally``, so no interruption between this step and the next.
        inside[thread] = None
        try:
            return method(calls, *arguments, **named)
        finally:
            del inside[thread]

    return cast(Method, call)


class CallGuard:
    """The calls of one queue that are under way; base class of its open queue. For any number of threads."""

    directory: str
    """Directory of the queue; set when it is open."""

    def __init__(self) -> None:
        self.mutex = Lock()
        self.inside: dict[int, None] = {}
        """Threads that are in a call (see ``outermost``). The key 0, which is no thread, is present if there are
        partners."""
        self.partners: tuple[CallGuard, ...] = ()
        """Open queues that have been in a transaction with this one."""
        self.closed: str | None = "the queue is not open"
        """Reason why no call succeeds; None while the queue is open."""

    def add_partners(self, others: Sequence[CallGuard]) -> None:
        """Add the queues to the partners. The queue itself may be among them and is left out.

        No lock is taken. If two threads add partners at once, one may overwrite the other: the next transaction adds
        the lost ones.
        """
        new = [each for each in others if each is not self and each not in self.partners]
        if new:
            self.partners = (*(each for each in self.partners if each.closed is None), *new)
            self.inside[0] = None

    def shielded(self, call: Callable[[], T]) -> T:
        """Make a shielded call that refuses re-entrant calls, from a ``logging`` handler for example."""
        return shielded(partial(self._call_inside, call))

    def _call_inside(self, call: Callable[[], T]) -> T:
        thread, inside = _thread(), self.inside
        if thread in inside:
            return call()
        inside[thread] = None
        try:
            return call()
        finally:
            del inside[thread]

    def outside(self, call: Callable[[], None]) -> None:
        """Make a call that holds no lock and waits. Code that interrupts it may call the queue."""
        thread, inside = _thread(), self.inside
        # No call here or in ``finally``, so no interruption between this step and the next.
        del inside[thread]
        try:
            call()
        finally:
            inside[thread] = None

    def check_outermost(self) -> None:
        """Raise ``ReentrantUseError`` if this thread is in a call of the queue or of a partner."""
        thread = _thread()
        for each in (self, *self.partners):
            if thread in each.inside:
                raise ReentrantUseError(
                    f"{self.directory}: called in the middle of another call of {each.directory} in the same thread, "
                    "by a signal handler, a finalizer, a log handler or a callable that gives a key: make this call "
                    "after that call has ended"
                )

    def check_closed(self) -> None:
        """Raise ``ClosedError`` if the queue is closed."""
        if self.closed is not None:
            raise ClosedError(self.closed)

    def together(self, call: Callable[[], T]) -> T:
        """Make the call as a call of this queue, within a call of a partner that the caller has begun."""
        thread, inside = _thread(), self.inside
        # No call here or in ``finally``, so no interruption between this step and the next.
        inside[thread] = None
        try:
            return call()
        finally:
            del inside[thread]

    @outermost
    def around(self, call: Callable[[], T]) -> T:
        """Make the call as a call of this queue: code that interrupts it may not call the queue."""
        return call()

    @outermost
    def look(self, look: Callable[[], T]) -> T:
        """Call ``look`` with the mutex held and return its result."""
        with self.mutex:
            return look()


class SessionCalls(Uncopyable):
    """The flag that lets one call at a time use a session, and the end of a call that raised. Base class of sessions.

    A call begins with ``if self._busy: self._begin()`` and ``self._busy = BUSY``. It ends with ``self._busy = FREE``,
    or with ``_end_badly`` if it raised. A session can be neither copied nor pickled.
    """

    __slots__ = ("_busy",)

    def __init__(self) -> None:
        self._busy = FREE
        """One of ``FREE``, ``BUSY`` and ``TORN``. A call tests and sets it without a call in between. So only one of
        two threads finds the session free. That also holds for a call and the code that interrupts it."""

    def _begin(self) -> None:
        """Clean up after an interrupted call. Raises ``SessionInUseError`` if another call is under way."""
        if self._busy == TORN:
            self._end_badly()
        if self._busy:
            raise SessionInUseError(
                "the session is in the middle of another call, made by another thread or by the code that this call "
                "interrupts; nothing was done: use one session for each thread"
            )

    def _end_badly(self) -> None:
        """Clean up after a call that raised. If this is interrupted, the next call of the session does it first."""
        self._busy = TORN
        self._clean_up()
        self._busy = FREE

    @abstractmethod
    def _clean_up(self) -> None:
        """Undo the part of a call that its caller did not learn of. This may be interrupted, and is then repeated."""


def exclusively(sessions: Sequence[SessionCalls], call: Callable[[], T]) -> T:
    """Make the call while the sessions refuse other calls. Raises ``SessionInUseError`` if a session is in another
    call."""
    taken: list[SessionCalls] = []
    tear = map(setattr, taken, repeat("_busy"), repeat(TORN))  # when it is consumed
    try:
        for session in sessions:
            if session._busy:
                session._begin()
            # No call from here on: an interruption finds the session free, or busy and in the list.
            session._busy = BUSY
            taken += (session,)
        result = call()
        end_all(taken)
    except BaseException:
        any(tear)  # one call of C code: if the shield is interrupted before it begins, the next calls clean up
        shielded(partial(end_all, taken))
        raise
    else:
        return result


def end_all(sessions: Iterable[SessionCalls]) -> None:
    """End the calls of these sessions, as after a call that raised."""
    for session in sessions:
        session._end_badly()
