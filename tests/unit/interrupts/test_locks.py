"""Locks and condition variables for ``with`` statements, under signals whose handler raises."""

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from persistentqueue.interrupts.locks import Condition, Lock, RLock, WholeLock

_SIGNALS = 400
_SECONDS = 0.0003
"""Time from the beginning of a loop to its signal."""
_AGAIN_SECONDS = 1.0
"""Time to the next signal: CPython before 3.13 overlooks one that the system gives to a thread of a C library."""
_MAKERS: dict[str, Callable[[], threading.Lock]] = {
    "lock": Lock,
    "re-entrant lock": RLock,  # type: ignore[dict-item]
    "lock of Python 3.14": lambda: WholeLock(threading.Lock()),  # type: ignore[dict-item,return-value]
    "re-entrant lock of Python 3.14": lambda: WholeLock(threading.RLock()),  # type: ignore[dict-item,return-value]
    "condition variable": Condition,  # type: ignore[dict-item]
}


class _StopError(Exception):
    """The exception of the handler."""


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Let the first signal of the timer raise."""

    def stop(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise _StopError

    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def _use(lock: threading.Lock) -> None:
    signal.setitimer(signal.ITIMER_REAL, _SECONDS, _AGAIN_SECONDS)
    while True:
        with lock:
            pass


def _is_free(lock: threading.Lock) -> bool:
    """Return whether another thread gets the lock."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    return found == [True]


@pytest.mark.parametrize("make", _MAKERS.values(), ids=_MAKERS)
def test_no_interruption_leaves_a_lock_taken(make: Callable[[], threading.Lock]) -> None:
    """A ``with`` statement that a signal handler ends, wherever it is, has released its lock."""
    for _ in range(_SIGNALS):
        lock = make()
        with pytest.raises(_StopError):
            _use(lock)
        assert _is_free(lock)


@pytest.mark.parametrize("make", _MAKERS.values(), ids=_MAKERS)
def test_another_thread_waits_for_the_lock(make: Callable[[], threading.Lock]) -> None:
    """The block of a ``with`` statement has the lock for itself."""
    lock = make()
    with lock:
        assert not _is_free(lock)
    assert _is_free(lock)


def test_condition_variables_use_the_lock() -> None:
    """A condition variable releases such a lock while it waits, also if its owner acquired it twice."""
    lock = WholeLock(threading.RLock())
    condition = threading.Condition(lock)  # type: ignore[arg-type]
    told: list[str] = []

    def tell() -> None:
        with lock:
            told.append("told")
            condition.notify_all()

    thread = threading.Thread(target=tell)
    with lock, lock:
        thread.start()
        assert condition.wait_for(lambda: told, timeout=60)
    thread.join()
