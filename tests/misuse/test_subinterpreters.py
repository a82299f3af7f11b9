"""Queues in a subinterpreter, and in a process that can have no further thread.

CPython starts no daemon thread in a subinterpreter, and aborts the process if a thread outlives one.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from persistentqueue import NoThreadError, PersistentQueue, connect
from tests.conftest import QueueFactory
from tests.support.limits import SECONDS
from tests.support.queues import drain, put

PROGRAM = """
import sys
from contextlib import ExitStack
from pathlib import Path

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

from persistentqueue import PersistentQueue

path, serves, code = sys.argv[1:]
with ExitStack() as stack:
    if serves:
        stack.enter_context(PersistentQueue(path, serve=True))
    run = getattr(interpreters, "exec", None) or interpreters.run_string
    number = interpreters.create()
    failure = run(number, f"import sys; sys.path[:] = {sys.path!r}; path = {path!r}\\n{code}")
    interpreters.destroy(number)
    if failure is not None:
        raise SystemExit(failure.errdisplay)
print("ended")
"""
"""Runs code in a subinterpreter, while the main interpreter serves the queue, or has none open."""


def run(path: Path, code: str, *, serves: bool = False) -> str:
    """Run the code in a subinterpreter, in a process of its own; return what it prints."""
    command = [sys.executable, "-c", PROGRAM, str(path), "serves" if serves else "", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert (done.returncode, done.stdout.endswith("ended\n")) == (0, True), done.stdout + done.stderr
    return done.stdout.removesuffix("ended\n")


@pytest.fixture(autouse=True, scope="module")
def _sound_python(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip the tests if Python aborts by itself: 3.12.1 does behind ``hashlib`` in a subinterpreter."""
    try:
        run(tmp_path_factory.mktemp("sound"), "import hashlib, json, socket, struct, threading")
    except AssertionError as error:
        pytest.skip(f"subinterpreters of this Python do not work: {str(error)[:200]}")


OWNING = """
import threading
from persistentqueue import PersistentQueue

queue = PersistentQueue(path, segment_bytes=100_000)
with queue.session() as session:
    session.enqueue_many([b"%d" % number * 1000 for number in range(2000)])
    assert session.flush()
    session.enqueue(b"last")
    ticket = session.flush(wait=False)
    assert ticket.done() and ticket.result()
    assert len(session.dequeue_many(2000)) == 2000
    session.flush()
    assert session.dequeue(timeout=1) == b"last"
    assert session.dequeue(timeout=0.01) is None
    session.rollback()
assert queue.stats().segments < 5
queue.maintain()
queue.compact()
threads = threading.enumerate()
assert len(threads) == 1, threads
dropped = queue.session()
assert dropped.dequeue() == b"last"
"""


def test_a_subinterpreter_owns_a_queue(directory: Path) -> None:
    """A queue in a subinterpreter does all that needs no thread, and gives space back. It may be left open."""
    run(directory, OWNING)
    with PersistentQueue(directory) as queue:
        assert drain(queue) == [b"last"]


CONNECTING = """
from persistentqueue import NoThreadError, NotServedError, PersistentQueue, connect
from persistentqueue.interrupts.signal_shield import is_exposed

assert not is_exposed()
with connect(path) as queue, queue.session() as session:
    item = session.dequeue(timeout=None)
    session.enqueue(item * 2)
    session.flush()
for opening in (lambda: PersistentQueue(path + "-own", serve=True), lambda: connect(path + "-own")):
    try:
        opening()
        raise SystemExit("it serves")
    except NoThreadError as error:
        print(error)
PersistentQueue(path + "-own").close()  # its lock is free
"""


def test_a_subinterpreter_connects(directory: Path) -> None:
    """A subinterpreter is a worker of the main interpreter. It cannot serve: the error says so, and frees the lock."""
    with PersistentQueue(directory) as queue:
        put(queue, b"ab")
    first, second = run(directory, CONNECTING, serves=True).splitlines()
    assert first == second
    assert "-own: no further thread to serve the queue (" in first
    assert first.endswith("then open it again; a subinterpreter can only connect to an owner elsewhere")
    with PersistentQueue(directory) as queue:
        assert drain(queue) == [b"abab"]


def test_a_process_without_threads_serves_nobody(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the process can have no further thread, an owner that shall serve raises ``NoThreadError``. The lock is
    free."""
    put(queue := open_queue(), b"kept")
    queue.close()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        with pytest.raises(NoThreadError, match=r"\(can't start new thread\); nothing was committed: end some threads"):
            PersistentQueue(directory, serve=True)
        with pytest.raises(NoThreadError):
            connect(directory)
    assert drain(open_queue()) == [b"kept"]


def test_an_owner_without_threads_refuses_slow_calls(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of a worker that needs a thread at the owner raises ``NoThreadError`` there. The connection goes on."""
    queue = open_queue(serve=True)
    with connect(directory, serve="never") as shared, shared.session() as session:
        session.enqueue(b"1")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _refuse)
            with pytest.raises(NoThreadError, match="for this call") as caught:
                shared.trim()
        assert caught.value.path == str(directory)
        shared.trim()
        session.flush()
    assert drain(queue) == [b"1"]


def _refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
