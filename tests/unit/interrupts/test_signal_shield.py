"""``signal_shield``: a shielded call ends before its interruption comes out, whatever handlers the program has."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from persistentqueue.interrupts import signal_shield
from persistentqueue.interrupts.signal_shield import is_postponing, shielded
from tests.support.queues import wait_for

SECONDS = 60.0
MAIN = threading.main_thread().ident or 0


class InterruptionError(BaseException):
    """The handler of these tests raises this."""


def interrupt(*_: object) -> None:
    """Raise, as a handler of a program does."""
    raise InterruptionError


@contextmanager
def handling(number: signal.Signals, handler: Callable[..., Any] | signal.Handlers) -> Iterator[None]:
    """Let the signal call the handler, in the main thread."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.fixture(autouse=True)
def terminal() -> Iterator[None]:
    """Ctrl-C has the handler of Python: a test that has run in this process before may have started Spark, which sets
    its own."""
    with handling(signal.SIGINT, signal.default_int_handler):
        yield


@pytest.fixture
def no_helper() -> None:
    """Wait until the helper thread has ended by itself: the next shielded call has to start it."""
    wait_for(lambda: not signal_shield._HELPER._is_running)


def steps(number: signal.Signals, done: list[int]) -> Callable[[], int]:
    """Return a call of three steps, in each of which the signal comes to the main thread."""

    def call() -> int:
        for step in range(3):
            signal.pthread_kill(MAIN, number)
            done.append(step)
        return threading.get_ident()

    return call


def test_ctrl_c_is_postponed() -> None:
    """With the handlers of Python alone, the main thread makes the call itself. Ctrl-C is raised once, after it."""
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        shielded(steps(signal.SIGINT, done))
    assert done == [0, 1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert shielded(threading.get_ident) == MAIN  # and that Ctrl-C is over


def test_an_error_comes_out_as_it_is() -> None:
    """An error of the call itself is raised, and Ctrl-C has its handler again."""
    with pytest.raises(ZeroDivisionError):
        shielded(lambda: 1 / 0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with handling(signal.SIGALRM, interrupt), pytest.raises(ZeroDivisionError):
        shielded(lambda: 1 / 0)


def test_ctrl_c_replaces_an_error() -> None:
    """If the call fails and Ctrl-C came, ``KeyboardInterrupt`` is raised, in the context of the error."""

    def fail() -> None:
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError

    with pytest.raises(KeyboardInterrupt) as raised:
        shielded(fail)
    assert isinstance(raised.value.__context__, ZeroDivisionError)


def test_a_call_within_a_postponed_one_is_just_made() -> None:
    """A shielded call in a shielded call is part of it: Ctrl-C is raised after the outer one."""
    done: list[int] = []

    def call() -> None:
        shielded(steps(signal.SIGINT, done))
        assert is_postponing()
        done.append(9)

    with pytest.raises(KeyboardInterrupt):
        shielded(call)
    assert done == [0, 1, 2, 9]


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGINT])
def test_with_a_handler_of_the_program_another_thread_makes_the_call(number: signal.Signals) -> None:
    """If the program has a handler of its own, for whatever signal, the handler runs while a helper makes the call. Its
    error is raised when the call is over."""
    done: list[int] = []
    with handling(number, interrupt):
        with pytest.raises(InterruptionError):
            shielded(steps(number, done))
        assert done == [0, 1, 2]
        assert shielded(threading.get_ident) != MAIN
        wait_for(lambda: not signal_shield._HELPER._is_running)
        assert shielded(lambda: "another helper") == "another helper"


def test_a_signal_with_the_handler_of_ctrl_c_does_not_raise_in_the_middle() -> None:
    """If SIGTERM has the handler of Ctrl-C, its ``KeyboardInterrupt`` is raised when the call is over."""
    done: list[int] = []
    with handling(signal.SIGTERM, signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        shielded(steps(signal.SIGTERM, done))
    assert done == [0, 1, 2]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_without_any_handler_the_call_is_just_made(handler: signal.Handlers) -> None:
    """If Ctrl-C is ignored, or ends the process, no handler can interrupt the call: the main thread makes it."""
    with handling(signal.SIGINT, handler):
        assert shielded(threading.get_ident) == MAIN
        assert signal.getsignal(signal.SIGINT) is handler


def test_a_handler_that_the_call_sets_stays() -> None:
    """If code of the program sets a handler for Ctrl-C in the middle of the call, it stays set."""
    with handling(signal.SIGINT, signal.default_int_handler):
        shielded(lambda: signal.signal(signal.SIGINT, interrupt))
        assert signal.getsignal(signal.SIGINT) is interrupt


@pytest.mark.parametrize("chains", [False, True])
def test_a_handler_that_the_call_keeps_forgets_no_signal(chains: bool) -> None:
    """Code of the program, such as a debugger, may keep the handler that it finds during the call. If it sets or calls
    that handler after the call, Ctrl-C is raised."""
    with handling(signal.SIGINT, signal.default_int_handler):
        kept: Any = shielded(lambda: signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, partial(kept) if chains else kept)
        assert not is_postponing()
        done: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            shielded(steps(signal.SIGINT, done))
        assert done == [0, 1, 2]


def test_a_call_of_another_thread_is_made_there() -> None:
    """A shielded call in another thread needs no helper, because signal handlers run in the main thread alone."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: shielded(threading.get_ident) == threading.get_ident()).result(SECONDS)


def test_a_program_that_runs_python_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """If ``threading`` takes a thread for the main one in which no signal handlers run, that thread makes the call."""

    def call() -> int:
        monkeypatch.setattr(signal_shield._HELPER, "main", threading.get_ident())
        return shielded(threading.get_ident) - threading.get_ident()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(call).result(SECONDS) == 0


@pytest.mark.usefixtures("no_helper")
def test_without_threads_the_call_is_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, the main thread makes the shielded call itself."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refuse)
    with handling(signal.SIGALRM, interrupt):
        assert shielded(threading.get_ident) == MAIN


@pytest.mark.usefixtures("no_helper")
def test_a_thread_that_ends_at_its_start_keeps_no_call_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory is so short that the new thread ends before it takes the call, the main thread makes the call."""
    monkeypatch.setattr(signal_shield, "_BEGIN_SECONDS", 0.01)
    monkeypatch.setattr("_thread.start_new_thread", lambda *_: 0)
    with handling(signal.SIGALRM, interrupt):
        assert shielded(threading.get_ident) == MAIN


@pytest.mark.usefixtures("no_helper")
def test_a_thread_that_ends_with_the_call_keeps_no_call_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory is so short that the thread ends with the call in its hands, the main thread makes the call."""
    monkeypatch.setattr(signal_shield, "_BEGIN_SECONDS", 0.01)
    monkeypatch.setattr(signal_shield._HELPER, "_begin", signal_shield._HELPER._jobs.get)
    with handling(signal.SIGALRM, interrupt):
        assert shielded(threading.get_ident) == MAIN


@pytest.mark.usefixtures("no_helper")
def test_without_memory_for_a_named_thread_the_call_is_made_in_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory lacks for the helper thread, the thread that was to start it makes the call."""

    def refuse(**_: object) -> threading.Thread:
        raise MemoryError

    monkeypatch.setattr("threading.Thread", refuse)
    with handling(signal.SIGALRM, interrupt):
        assert shielded(threading.get_ident) != MAIN


def test_a_call_is_made_by_one_thread_alone() -> None:
    """If a second thread takes a call for lost that the helper thread still makes, the call is not made again."""
    made: list[int] = []

    def call() -> None:
        made.append(len(made))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(job.run).result(SECONDS)
        assert not job.is_over

    job = signal_shield._Job(call)
    job.run()
    assert job.is_over and job.error is None
    assert made == [0]


@pytest.mark.usefixtures("no_helper")
def test_a_handler_makes_a_shielded_call_while_the_helper_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler may use one queue while a call of another one has just started the helper thread."""
    start, answers = _thread.start_new_thread, []

    def interrupted(*arguments: Any) -> int:
        monkeypatch.setattr("_thread.start_new_thread", start)
        thread = start(*arguments)
        answers.append(shielded(lambda: "that of the handler"))
        return thread

    monkeypatch.setattr("_thread.start_new_thread", interrupted)
    with handling(signal.SIGALRM, interrupt):
        assert shielded(lambda: "that of the interrupted call") == "that of the interrupted call"
    assert answers == ["that of the handler"]


FORKING = """
import os, signal, threading, time
from persistentqueue.interrupts.signal_shield import shielded

began, forked = threading.Event(), threading.Event()

def fork():
    began.wait()
    child = os.fork()
    if child == 0:
        os._exit(signal.getsignal(signal.SIGINT) is not signal.default_int_handler)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    forked.set()

threading.Thread(target=fork).start()
shielded(lambda: (began.set(), forked.wait()))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_is_forked_meanwhile_can_be_interrupted() -> None:
    """If another thread forks in the middle of a shielded call, Ctrl-C ends the child: it has the handler of Python."""
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING]
    done = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stdout == "0\n", done.stderr
