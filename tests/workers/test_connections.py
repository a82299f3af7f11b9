"""The owner tells which other processes are connected, what each session holds, for how long, and whether it waits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
    Connection,
    HoldLostError,
    NotServedError,
    PersistentQueue,
    Producer,
    View,
    connect,
    prometheus,
)
from persistentqueue.runtime.open_queue import OpenQueue
from persistentqueue.serving import connections as listed
from persistentqueue.serving.errors import encode_error
from persistentqueue.serving.protocol import FROM_WORKER, Failed, Incoming, Message, Result, Welcome, encode
from persistentqueue.storage.layout import SOCKET_NAME
from persistentqueue.system import sockets
from persistentqueue.system.sockets import process_name
from persistentqueue.workers import SharedQueue

from ..conftest import QueueFactory
from ..support.limits import SECONDS
from ..support.queues import put, wait_for

Join = Callable[..., SharedQueue[Any]]


@pytest.fixture
def join(directory: Path) -> Iterator[Join]:
    """Return a function that connects to the queue that another process owns, as a worker."""
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(
            connect(directory.parent, directory.name, serve="never", **{"lock_timeout": 0.2, **more})
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the time that sessions see, and return it in a list of one element that the test may set."""
    time = [1000.0]
    monkeypatch.setattr(OpenQueue, "now", lambda *_: time[0])
    return time


@contextmanager
def waiting(shared: SharedQueue[Any], name: str, timeout: float = 60.0) -> Iterator[None]:
    """Wait for an item in a thread of this name until the block ends, which must enqueue one."""

    def wait() -> None:
        with shared.session("waiter") as session:
            session.dequeue(timeout=timeout)
            session.flush()

    thread = threading.Thread(target=wait, name=name)
    thread.start()
    yield
    thread.join()


def test_it_is_known_who_holds_what_and_for_how_long(open_queue: QueueFactory, join: Join, clock: list[float]) -> None:
    """Each session of a worker is one connection with its process, its thread, its name, and what it holds. The longest
    hold comes first."""
    queue = open_queue(serve=True)
    queue.subscribe("audit")
    put(queue, *[b"x"] * 10)
    shared = join()
    quick, slow, idle = shared.session("quick"), shared.subscribe("audit").session("slow"), shared.session()
    slow.dequeue_many(2)
    clock[0] += 60
    quick.enqueue(b"y")
    quick.flush()
    quick.dequeue_many(3)
    clock[0] += 5
    idle.flush()
    idle.dequeue()
    idle.rollback()
    thread, process = threading.current_thread().name, (os.getpid(), process_name())
    expected = [
        Connection(*process, thread, "slow", "audit", 2, 65.0, False, False, 0),
        Connection(*process, thread, "quick", "", 3, 5.0, False, False, 1),
        Connection(*process, thread, thread, "", 0, 0.0, False, False, 0),
    ]
    assert queue.connections() == shared.connections() == queue.view().connections(SECONDS) == expected
    assert queue.view().connections(inf) == queue.view().connections(1e10) == expected
    assert (queue.stats().connections, shared.stats().connections) == (3, 3)
    slow.close()
    wait_for(lambda: len(queue.connections()) == 2)
    quick.rollback()
    assert [each.held for each in queue.connections()] == [0, 0]


def test_a_connection_that_waits(open_queue: QueueFactory, join: Join) -> None:
    """A connection that waits for an item says so, in the list and in the statistics."""
    queue = open_queue(serve=True)
    with waiting(join(), "consumer"):
        wait_for(lambda: queue.stats().connections_waiting == 1)
        (one,) = queue.connections()
        assert (one.thread, one.session, one.waits, one.held) == ("consumer", "waiter", True, 0)
        assert queue.stats().connections == 1
        put(queue, b"x")
    wait_for(lambda: not queue.connections())
    assert (queue.stats().connections, queue.stats().connections_waiting) == (0, 0)


def test_a_hold_that_was_lost(open_queue: QueueFactory, join: Join) -> None:
    """A session whose items went back by ``hold_seconds`` says so, until it is rolled back."""
    queue = open_queue(serve=True)
    put(queue, b"x")
    session = join(hold_seconds=0.05).session()
    session.dequeue()
    wait_for(lambda: queue.connections()[0].is_lost and not queue.connections()[0].held)
    with pytest.raises(HoldLostError):
        session.flush()
    session.rollback()
    assert not queue.connections()[0].is_lost


def test_explain_names_the_process_that_keeps_a_segment(open_queue: QueueFactory, join: Join) -> None:
    """The holder of a segment has the process in its name, and the thread unless the session is named like it."""
    queue = open_queue(serve=True)
    put(queue, b"x", b"y")
    shared = join()
    named, unnamed = shared.session("mailer"), shared.session()
    named.dequeue()
    unnamed.dequeue()
    thread, (use,) = threading.current_thread().name, queue.explain()
    names = {f"mailer (process {os.getpid()}, thread {thread})", f"{thread} (process {os.getpid()})"}
    assert {holder.session for holder in use.holders} == names
    assert f"'mailer (process {os.getpid()}, thread {thread})' holds 1" in str(use)


def test_connections_without_a_session_are_not_listed(open_queue: QueueFactory, join: Join) -> None:
    """Connections that only make calls are no sessions: neither of a shared queue nor of a view."""
    queue = open_queue(serve=True)
    shared = join()
    assert (len(shared), shared.identity, shared.connections()) == (0, queue.identity, [])
    assert (queue.connections(), queue.stats().connections) == ([], 0)


def test_a_queue_that_does_not_serve_has_none(open_queue: QueueFactory, directory: Path) -> None:
    """Without ``serve`` there are no connections, and a view gets no answer. A closed queue raises."""
    queue = open_queue()
    assert (queue.connections(), queue.stats().connections, queue.view().connections(SECONDS)) == ([], 0, None)
    queue.close()
    with pytest.raises(ClosedError):
        queue.connections()
    assert View(directory).connections(SECONDS) is None


def test_a_connection_as_one_line() -> None:
    """``str`` names the process, the thread and the session, and what the session does."""
    one = Connection(4711, "squares.py", "MainThread", "mailer", "audit", 3, 2.25, True, False, 7)
    assert str(one) == (
        "process 4711 (squares.py), thread MainThread, session 'mailer' of the subscription 'audit': "
        "holds 3 for 2.2 s, waits for an item"
    )
    idle = one._replace(process_name="", subscription="", held=0, waits=False)
    assert str(idle) == "process 4711, thread MainThread, session 'mailer': idle"
    assert str(idle._replace(is_lost=True)).endswith("has lost its items by hold_seconds")


def test_the_text_of_a_connection_is_printable() -> None:
    """``str`` has no character that a terminal obeys, or that UTF-8 has not: the names come from the other process."""
    one = Connection(4711, "\udcff.py", "\x1b[31mThread", "a\n", "b\x1b", 0, 0.0, False, False, 7)
    assert str(one).isprintable()
    assert str(one).encode().startswith(rb"process 4711 (\udcff.py), thread \x1b[31mThread, session 'a\n'")


def test_the_list_fits_into_one_message(open_queue: QueueFactory, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list has a bounded number of entries, those that hold for longest, and names are cut. The statistics count
    all connections."""
    monkeypatch.setattr(listed, "LISTED_MAX", 2)
    queue = open_queue(serve=True)
    put(queue, *[b"x"] * 3)
    shared = join()
    sessions = [shared.session(f"{number}\N{GRINNING FACE}" * 10_000) for number in range(3)]
    for session in reversed(sessions):
        session.dequeue()
    found = shared.connections()
    assert [each.session[0] for each in found] == ["2", "1"]
    assert {len(each.session) for each in found} == {64}
    assert queue.stats().connections == 3


def test_connections_come_and_go_while_others_ask(open_queue: QueueFactory, join: Join) -> None:
    """Any thread may ask at any time, while sessions are made, hold, flush and end."""
    queue = open_queue(serve=True)
    shared, errors, ended = join(), list[BaseException](), threading.Event()

    def ask() -> None:
        try:
            while not ended.is_set():
                assert all(0 <= each.held <= 3 for each in queue.connections())
                queue.stats()
                queue.explain()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(100):
        with shared.session() as session:
            session.enqueue_many([b"x"] * 3)
            session.flush()
            session.dequeue_many(3)
            if number % 2:
                session.flush()
            else:
                session.rollback()
    ended.set()
    for thread in threads:
        thread.join()
    assert errors == []


# --- other processes ------------------------------------------------------------------------------------------------

_WORKER = """
import sys, threading
from persistentqueue import connect
def work():
    with connect({path!r}, {name!r}, serve="never") as queue, queue.session("mailer") as session:
        session.dequeue_many(2)
        print("holds", flush=True)
        sys.stdin.read()
        session.rollback()
thread = threading.Thread(target=work, name="sender")
thread.start()
thread.join()
"""


def test_another_process_is_named(open_queue: QueueFactory, directory: Path, tmp_path: Path) -> None:
    """The owner, and a view, name the process and its program. When the process is killed, its connection is gone."""
    queue = open_queue(serve=True)
    put(queue, *[b"x"] * 3)
    program = tmp_path / "sending.py"
    program.write_text(_WORKER.format(path=str(directory.parent), name=directory.name), encoding="utf-8")
    with subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"holds\n"
        (one,) = queue.connections()
        assert one[:6] == (worker.pid, "sending.py", "sender", "mailer", "", 2)
        assert [each.process for each in View(directory).connections(SECONDS) or []] == [worker.pid]
        assert queue.explain()[0].holders[0].session == f"mailer (process {worker.pid}, thread sender)"
        worker.kill()
    wait_for(lambda: not queue.connections())


def test_the_name_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is that of the program, of the package that is run, or the one that ``multiprocessing`` gave it."""
    monkeypatch.delitem(sys.modules, "multiprocessing.process", raising=False)
    for path, name in (("/bin/squares.py", "squares.py"), ("/lib/worker/__main__.py", "worker"), ("-c", "-c")):
        monkeypatch.setattr(sys, "argv", [path])
        assert process_name() == name
    monkeypatch.setattr(sys, "argv", [])
    assert process_name() == ""

    class Child:
        """A process of ``multiprocessing``."""

        name = "Process-7"

    class Module:
        """The module that knows the present process."""

        current_process = Child

    monkeypatch.setitem(sys.modules, "multiprocessing.process", Module)
    assert process_name() == "Process-7"
    Child.name = "MainProcess"
    assert process_name() == ""


# --- an owner that gives no answer ----------------------------------------------------------------------------------


@contextmanager
def pretending(directory: Path, *answers: Message | bytes) -> Iterator[None]:
    """Serve the queue with these answers, one for each message of the first connection, then end it."""
    listener = sockets.listen(str(directory), SOCKET_NAME)
    listener.setblocking(True)

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            incoming = Incoming(FROM_WORKER)
            for answer in answers:
                while not incoming.feed(data := peer.recv(65536)):
                    assert data
                peer.sendall(answer if isinstance(answer, bytes) else encode(answer, 1))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        listener.close()
        (directory / SOCKET_NAME).unlink()


@pytest.mark.parametrize(
    "answers",
    [
        (),
        (b"\xff" * 100,),
        (b"\x20\x00\x00",),
        (Failed(encode_error(NotServedError("q", None))),),
        (Welcome({}),),
        (Welcome({}), Failed(encode_error(ClosedError("closed")))),
        (Welcome({}), Result({"result": {"kind": "Unknown"}})),
        (Welcome({}), Result({"result": [{"kind": "Connection", "fields": {"other": 1}}]})),
    ],
    ids=["ends", "nonsense", "cut", "refused", "ends later", "failed", "unknown", "other fields"],
)
def test_an_owner_that_gives_no_answer(open_queue: QueueFactory, directory: Path, answers: tuple[Message, ...]) -> None:
    """A view returns None if the owner refuses, ends, or sends what this version does not know."""
    open_queue()
    with pretending(directory, *answers):
        assert View(directory).connections(SECONDS) is None


def test_a_view_does_not_wait_for_an_owner_that_hangs(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view gives up after its timeout, whether the owner does not answer or does not even accept."""
    open_queue()
    monkeypatch.chdir(directory)  # the name of a socket has a short limit
    view = View(directory)
    with pytest.raises(ValueError, match="timeout"):
        view.connections(0.0)
    listener = sockets.listen(str(directory), SOCKET_NAME)
    try:
        assert view.connections(0.05) is None
        listener.listen(0)
        with ExitStack() as stack:
            for _ in range(3):
                crowd = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                crowd.setblocking(False)
                crowd.connect_ex(SOCKET_NAME)
            assert view.connections(0.05) is None
    finally:
        listener.close()
        (directory / SOCKET_NAME).unlink()


def test_a_view_asks_no_owner_of_another_user(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view sends nothing to a process of another user."""
    open_queue(serve=True)
    assert View(directory).connections(SECONDS) == []
    monkeypatch.setattr("persistentqueue.interprocess.questions.is_believed", lambda *_: False)
    assert View(directory).connections(SECONDS) is None


# --- metrics --------------------------------------------------------------------------------------------------------


def test_prometheus_gets_the_numbers(open_queue: QueueFactory, join: Join) -> None:
    """The numbers of connections are gauges of the collector."""
    queue: PersistentQueue = open_queue(serve=True)
    session = join().session()
    session.flush()
    session.dequeue()
    with waiting(join(), "consumer"):
        wait_for(lambda: queue.stats().connections_waiting == 1)
        found = {metric.name: metric for metric in prometheus.QueueCollector(queue).collect()}
        put(queue, b"x")
    for name, count in (("connections", 2), ("connections_waiting", 1)):
        metric = found[f"persistentqueue_{name}"]
        assert (metric.type, [sample.value for sample in metric.samples]) == ("gauge", [count])
    lines = repr(queue.stats()).splitlines()
    assert any(line.split()[0] == "connections_waiting" for line in lines)


def test_a_serving_owner_adopts_what_is_published(open_queue: QueueFactory, directory: Path) -> None:
    """An owner that serves adopts what other processes publish, although no consumer waits for an item: readers from
    outside see only what is adopted."""
    open_queue(serve=True)
    for number in range(1, 3):
        with Producer(directory) as producer:
            producer.enqueue(b"1")
            producer.flush()
        wait_for(lambda number=number: View(directory).look().depth == number)  # type: ignore[misc]
    # A published file goes behind the commit that adopted it.
    wait_for(lambda: View(directory).look().published == 0)
