"""Shielded calls: calls that no signal handler interrupts.

CPython runs signal handlers in the main thread of the main interpreter only, between two of its instructions. A handler
may raise, and the one for Ctrl-C does. Code that changes files, or changes shared memory in several steps, must not end
in the middle. So that thread makes such a call by ``shielded``, in one of two ways. An exception that a handler raises
meanwhile is raised when the call is over. Any other thread makes the call itself, and so does the main thread if no
handler is written in Python.

- *Postponed*: in most programs only Ctrl-C has a handler written in Python, and that is ``default_int_handler``. Then
  another handler takes its place for the time of the call, and notes that the signal came. After the call
  ``KeyboardInterrupt`` is raised. This takes about 4 microseconds. It undoes what the program has told the system about
  SIGINT beside Python's handler: ``signal.siginterrupt``, ``faulthandler.register``, or a handler written in C. Nothing
  shows these to Python. A program that needs them sets a handler of its own by ``signal.signal`` first.
- *By the helper*: a handler of the program may do anything, and a change of handlers would undo
  ``signal.siginterrupt``. So a helper thread makes the call, which no handler ever enters, and the main thread waits
  for it. The handlers run meanwhile. This takes some 50 microseconds.

The shortest commits and dequeues are not shielded. After an interruption they have done nothing, or have left something
that a shielded call can finish (see ``commit`` and ``reader``).

The helper thread starts with the first call that needs it, and ends by itself when it is idle. It keeps no reference to
a queue.

The engine below the threads needs shielded calls, too, but starts no thread. Its owner passes it a ``Shielded``:
``shielded`` in a program, or ``call_once`` if nothing interrupts, for instance in tests that simulate a disk.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from ..system.disk import after_fork_in_child
from .locks import RLock

T = TypeVar("T")
THREAD_NAME = "persistentqueue-shield"
_IDLE_SECONDS = 0.05
"""Idle time after which the helper thread ends, in seconds."""
_BEGIN_SECONDS = 5.0
"""Time in which the helper thread must take a call, in seconds. Without memory a new thread ends before it does."""


def _is_main_interpreter() -> bool:
    try:
        is_main: bool = _thread._is_main_interpreter()  # type: ignore[attr-defined]
    except AttributeError:  # pragma: no cover - Python 3.10 and 3.11
        # A statement, not a call of ``import_module``: programs such as PyInstaller find the modules to pack by it.
        import _xxsubinterpreters as interpreters  # type: ignore[import-not-found] # noqa: PLC0415

        is_main = interpreters.get_current() == interpreters.get_main()
    return is_main


class _Job(Generic[T]):
    """A call and its outcome. ``taken`` is locked by the thread that makes it; ``ended`` is released after the call."""

    __slots__ = ("call", "ended", "error", "is_over", "result", "taken")

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.result: T | None = None
        self.error: BaseException | None = None
        self.is_over = False
        self.taken, self.ended = threading.Lock(), threading.Lock()
        self.ended.acquire()

    def run(self) -> None:
        """Make the call, unless a thread has taken it, and wake the thread that waits for it."""
        if not self.taken.acquire(blocking=False):
            return
        try:
            self.result = self.call()
        except BaseException as error:
            self.error = error
        self.is_over = True
        self.ended.release()


class _Helper:
    """The helper thread, which makes one call after the other. Only the main thread submits calls."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job[Any]] = SimpleQueue()
        self._starting = RLock()
        """A signal handler may submit a call while the code that it interrupts starts the thread for another one."""
        self._is_running = False
        self.main = threading.main_thread().ident if _is_main_interpreter() else None
        """The only thread in which signal handlers run; None in a subinterpreter, which has none. A helper thread that
        outlives a subinterpreter would abort the process."""

    def run(self, job: _Job[Any]) -> None:
        """Have the job done, and wait for its end even if interrupted several times. Raises the first interruption."""
        try:
            self._jobs.put(job)  # one call of C: the job is submitted when an interruption comes after it
            self._see_to(job)
        except BaseException:
            # Between an interruption and the next ``try`` no instruction checks for another interruption.
            try:
                self._see_to(job)
            except BaseException:
                try:
                    self._see_to(job)
                except BaseException:
                    self._see_to(job)
                    raise
                raise
            raise

    def _see_to(self, job: _Job[Any]) -> None:
        """Wait until the submitted job is done. If interrupted, call it again."""
        self._start()
        while not job.is_over:
            if not self._is_running or not job.ended.acquire(timeout=_BEGIN_SECONDS):
                self._do_jobs()
                job.run()  # a thread has ended between the look into the queue and the call

    def _start(self) -> None:
        """Make sure that a thread takes the submitted job, if the system has one."""
        with self._starting:
            if self._is_running:
                return
            # No call until the thread is started, so a handler finds it started, or starts it itself.
            self._is_running = True
            try:
                _thread.start_new_thread(self._begin, ())  # one call of C; Thread.start() can be interrupted
            except RuntimeError:  # too many threads, or the interpreter is about to end
                self._is_running = False

    def _do_jobs(self) -> None:
        """Make the submitted calls in this thread, which handlers can interrupt: there is no helper thread."""
        self._is_running = False
        with suppress(Empty):
            while True:
                self._jobs.get_nowait().run()

    def _begin(self) -> None:
        """Start the helper thread, from a thread that no handler interrupts."""
        try:
            threading.Thread(target=self._work, name=THREAD_NAME, daemon=True).start()
        except (RuntimeError, MemoryError):
            self._work()

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._starting:  # a job is submitted before ``_start`` looks for a thread
                    if self._jobs.empty():
                        self._is_running = False
                        return
            else:
                job.run()
                del job  # the thread must not hold a queue that its user has dropped


_HELPER = _Helper()

# --- a handler in place of that for Ctrl-C ---------------------------------------------------------------------------

# The functions of C below those of ``signal``: those convert all handlers to enumerations, which takes 12 times as long
# and can be interrupted half-way.
_handler_of: Callable[[int], object] = _signal.getsignal
_set_handler: Callable[[int, object], object] = _signal.signal
_CTRL_C = int(signal.SIGINT)
_OTHERS = tuple(map(int, signal.valid_signals() - {signal.SIGINT}))
_HARMLESS = frozenset(map(id, (_signal.SIG_DFL, _signal.SIG_IGN, None)))
"""Identities of the handlers that run no code of Python. ``None`` stands for a handler that is not of Python.

``default_int_handler`` is not harmless: a program that lets SIGTERM raise ``KeyboardInterrupt`` sets it for SIGTERM."""


class _Postponed:
    """The handler for the time of one call, which notes that the signal came.

    Code that the call reaches, such as a debugger, may keep it and set it again later. Then it raises at once.
    """

    __slots__ = ("has_come", "is_over")

    def __init__(self) -> None:
        self.has_come = self.is_over = False

    def __call__(self, _number: int, _frame: object) -> None:
        """Note that the signal came. Raises ``KeyboardInterrupt`` if the call is over."""
        if self.is_over:
            raise KeyboardInterrupt
        self.has_come = True


def is_postponing() -> bool:
    """Return whether the main thread is in a call that postpones Ctrl-C."""
    handler = _handler_of(_CTRL_C)
    return isinstance(handler, _Postponed) and not handler.is_over


def _only_ctrl_c() -> bool:
    """Return whether no signal but Ctrl-C has a handler written in Python."""
    return _HARMLESS.issuperset(map(id, map(_handler_of, _OTHERS)))


def _postponing(call: Callable[[], T]) -> T:
    """Make the call, and raise ``KeyboardInterrupt`` after it if Ctrl-C came meanwhile."""
    postponed = _Postponed()
    # Each change of the handler is one call of C, which looks for signals first. So each signal meets the handler of
    # its time. If the first change raises, nothing was done.
    try:
        _set_handler(_CTRL_C, postponed)
    except ValueError:  # Python was started by another program, in another thread: handlers run there
        return call()
    try:
        return call()
    finally:
        try:
            if _handler_of(_CTRL_C) is postponed:  # else code of the program that the call has reached has set another
                _set_handler(_CTRL_C, signal.default_int_handler)
        finally:
            postponed.is_over = True  # no call up to the next look: a signal was noted before this, or raises by itself
        if postponed.has_come:
            raise KeyboardInterrupt


# --- the choice ------------------------------------------------------------------------------------------------------


def is_exposed() -> bool:
    """Return whether signal handlers run in this thread. Calls of other threads need not be shielded."""
    return threading.get_ident() == _HELPER.main


def shielded(call: Callable[[], T]) -> T:
    """Make the call without interruption by signal handlers; return its result or raise its error.

    In the main thread, an exception that a handler raises meanwhile is raised after the call. It replaces the result or
    the error of the call, so the caller must look at what the call has changed. The call must not wait for a lock that
    the calling thread holds.
    """
    if not is_exposed() or is_postponing() or sys.is_finalizing():
        return call()
    if _only_ctrl_c():
        handler = _handler_of(_CTRL_C)
        if handler is signal.default_int_handler:
            return _postponing(call)
        if id(handler) in _HARMLESS:  # a process in the background of a shell ignores Ctrl-C
            return call()
    job = _Job(call)
    _HELPER.run(job)
    error, job.error = job.error, None
    if error is not None:
        try:
            raise error
        finally:
            del error, job  # no cycle of the error, its traceback, and this frame
    return job.result  # type: ignore[return-value]  # there is no error, so there is a result


def surely(call: Callable[[], object]) -> None:
    """Make a shielded call that cleans up, and may be made again. A deep stack, which may have ended what it cleans up
    after, does not end the call: then it is made in a new thread, with a stack of its own."""
    try:
        shielded(call)
    except RecursionError:
        ended = threading.Lock()
        ended.acquire()
        _thread.start_new_thread(_call_and_tell, (call, ended))
        ended.acquire()


def _call_and_tell(call: Callable[[], object], ended: threading.Lock) -> None:
    try:
        call()
    finally:
        ended.release()


def _begin_anew() -> None:
    # The child has no helper thread. If another thread of the parent forked, the child also has another main thread,
    # and the call that postponed Ctrl-C does not go on here.
    _HELPER.__init__()  # type: ignore[misc]
    if is_postponing():
        _set_handler(_CTRL_C, signal.default_int_handler)


after_fork_in_child(_begin_anew)


class Shielded(Protocol):
    """A callable that makes a call to its end, whatever signal handlers raise meanwhile."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """Make the call; return its result or raise its error.

        An exception that a handler raises meanwhile is raised after the call, in place of them.
        """


def call_once(call: Callable[[], T], /) -> T:
    """Make the call, without a shield."""
    return call()


def is_interruption(error: BaseException) -> bool:
    """Return whether a signal handler may have raised the error, so that it says nothing about the call that it ended.

    An ``OSError`` of the system has a number. One without a number comes from a handler, as ``TimeoutError`` often
    does.
    """
    return not isinstance(error, OSError) or error.errno is None
