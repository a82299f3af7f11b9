"""The calls that are under way: those of a queue, by thread, and the one call of a session.

Code that interrupts a call of a queue may not call the queue.

A signal handler, a finalizer, a ``logging`` handler or the callable that gives a key can run in the middle of a call.
It runs in the thread of that call, and would wait for a lock that this thread holds. It gets ``ReentrantUseError`` at
once instead. A call that only waits, for an item or for room, holds no lock: then the queue may be called. A callable
that learns the progress of a compaction may call the queue, too, except to compact, maintain or close it.

Queues that take part in a transaction over several queues are *partners*. Code that interrupts a call of one queue may
not call a partner either. The partner might wait for a transaction over both, and that transaction waits for the
interrupted call.

A session or a producer is for one call at a time: see ``Exclusive``.
"""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from itertools import repeat
from typing import Any, Final, TypeVar, cast

from ..errors import ClosedError, ReentrantUseError, SessionInUseError
from ..pickling import Uncopyable
from .locks import Lock
from .signal_shield import shielded, surely

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])
Calls = TypeVar("Calls", bound="SessionCalls")
_thread = threading.get_ident
FREE_THREADED: Final = "t" in getattr(sys, "abiflags", "")
"""Whether this Python was built to run threads at once, without a lock around its interpreter."""
FREE, BUSY, TORN = (3 if FREE_THREADED else 0), 1, 2
"""States of a session: no call is under way; one is; or one was interrupted and its cleanup is still to be done.

On a free-threaded Python ``FREE`` is true, too: no call begins without ``_begin``."""
_TOKEN: Final = (None,)


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


def whole(method: Method) -> Method:
    """Make a method an ``outermost`` call that is shielded: an interruption finds all of it done, or nothing."""

    @wraps(method)
    def call(calls: CallGuard, *arguments: Any, **named: Any) -> Any:
        """Make the call, shielded."""
        return calls.shielded(partial(method, calls, *arguments, **named))

    return outermost(cast(Method, call))


class CallGuard:
    """The calls of one queue that are under way; base class of its open queue. For any number of threads."""

    directory = ""
    """Directory of the queue; empty before it is open: a queue whose opening was interrupted can be closed, too."""

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
        return shielded(partial(self.together, call))

    def surely(self, call: Callable[[], object]) -> None:
        """Make a shielded call that cleans up, also if the stack has no room for it, and that may be made again."""
        surely(partial(self.together, call))

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
        """Make the call as a call of this queue, within one of it or of a partner, or within a shielded call."""
        thread, inside = _thread(), self.inside
        if thread in inside:
            return call()
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


class Exclusive(Uncopyable):
    """The flag that lets one call at a time use an object. Base class of sessions and producers.

    A call begins with ``if self._busy: self._begin()`` and ``self._busy = BUSY``. It ends with ``self._busy = FREE``.
    Such an object can be neither copied nor pickled.
    """

    __slots__ = ("_busy", "_token")

    def __init__(self) -> None:
        self._busy = FREE
        """``FREE`` or ``BUSY``, and ``TORN`` for sessions. A call tests and sets it without a call in between. So only
        one of two threads finds the object free. That also holds for a call and the code that interrupts it."""
        if FREE_THREADED:
            self._token: list[None] = [*_TOKEN]

    def _begin(self) -> None:
        """Raise ``SessionInUseError`` if another call is under way."""
        if not self._claims():
            raise self._in_use()

    def _claims(self) -> bool:
        """Make the object busy, on a free-threaded Python; return False if another call is under way.

        Return False on other Pythons: there the caller has found that the object is not free.
        """
        return FREE_THREADED and self._claimed() != BUSY

    def _claimed(self) -> int:
        """Make the object busy, and return its state before. For any thread of a free-threaded Python.

        Threads run at once there, so two of them might find the object free. Only one can delete the token, by one
        instruction. It alone tests and sets the state. No call is made until the token is back, so no signal handler
        and no finalizer runs before.
        """
        token = self._token
        try:
            del token[0]
        except IndexError:  # a call of another thread is at this place
            return BUSY
        before = self._busy
        if before != BUSY:  # else the other call may end just now, and would be undone
            self._busy = BUSY
        token += _TOKEN
        return before

    @abstractmethod
    def _in_use(self) -> SessionInUseError:
        """Return the error for a call during another one."""


class SessionCalls(Exclusive):
    """The end of a call that raised. Base class of sessions.

    A call that raised ends with ``self._busy = TORN`` and ``self._end_badly()``: an interruption may come before the
    cleanup begins.
    """

    __slots__ = ("_is_ending",)

    def __init__(self) -> None:
        super().__init__()
        self._is_ending = False
        """True while a call cleans up. Code that interrupts it must not clean up as well, and then go on: the rest of
        that cleanup would release what the new call holds, or has consumed."""

    def _begin(self) -> None:
        """Clean up after an interrupted call. Raises ``SessionInUseError`` if another call is under way."""
        if self._busy == TORN and not FREE_THREADED:
            self._end_badly()
        if self._busy and not self._claims():
            raise self._in_use()

    def _claims(self) -> bool:
        if not FREE_THREADED:
            return False
        before = self._claimed()
        if before == TORN:
            try:
                self._clean_up()  # while other threads find the session busy
            except BaseException:
                self._busy = TORN
                raise
        return before != BUSY

    def _in_use(self) -> SessionInUseError:
        return SessionInUseError(
            "the session is in the middle of another call, made by another thread or by the code that this call "
            "interrupts; nothing was done: use one session for each thread"
        )

    def _end_badly(self) -> None:
        """Clean up a torn session, unless another thread does it, or has done it and is in a call since.

        If this is interrupted, the next call of the session cleans up first.
        """
        while FREE_THREADED and self._busy == TORN:  # again if a call that is refused had the token
            if self._claims():
                self._busy = FREE
                return
        if FREE_THREADED or self._busy != TORN or self._is_ending:
            return
        # No call here or in ``finally``, so no interruption and no other thread between this step and the next.
        self._is_ending = True
        try:
            self._clean_up()
        except BaseException:
            self._busy = TORN
            raise
        finally:
            self._is_ending = False
        self._busy = FREE

    @abstractmethod
    def _clean_up(self) -> None:
        """Undo the part of a call that its caller did not learn of. This may be interrupted, and is then repeated."""


def claims(session: SessionCalls) -> bool:
    """Make a session that is not known to be free busy, and return True; return False if the caller must leave it.

    Only a free-threaded Python asks for more than the flag (see ``FREE``).
    """
    return session._claims()


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
        try:
            any(tear)  # one call of C code: if the shield is interrupted before it begins, the next calls clean up
        except RecursionError:  # the stack has no room for calls
            for session in taken:
                session._busy = TORN
        shielded(partial(_end_all_torn, taken))
        raise
    else:
        return result


def _end_all_torn(sessions: Iterable[SessionCalls]) -> None:
    for session in sessions:
        session._end_badly()


def end_all(sessions: list[Calls]) -> None:
    """End the calls of these sessions, as after a call that raised, and take each of them out of the list before: from
    its cleanup on, another thread may be in a call of it."""
    while sessions:
        session = sessions[-1]
        session._busy = TORN
        del sessions[-1]
        session._end_badly()
