"""One bad connection harms no other one: bytes that no worker sends, items that are too long, a peer that never reads,
processes of other users, and failures of the owner's thread. The owner is this process."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from persistentqueue import (
    ItemTooLargeError,
    NotServedError,
    PathDeniedError,
    PersistentQueue,
    RefusedError,
    connect,
)
from persistentqueue.serving import server, service
from persistentqueue.serving.client import Client
from persistentqueue.serving.protocol import (
    FOR_EVER,
    HEADER_BYTES,
    ITEM_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    VERSION,
    Browse,
    Call,
    Flush,
    Hello,
    Message,
    Outcome,
    RollBack,
    Take,
    encode,
)
from persistentqueue.serving.server import Server
from persistentqueue.serving.service import Service
from persistentqueue.storage.layout import SOCKET_NAME
from persistentqueue.system import sockets
from persistentqueue.workers import SharedQueue
from tests.conftest import QueueFactory
from tests.support.limits import SECONDS
from tests.support.queues import drain, put, wait_for

SOMEBODY, GROUP = 65534, 5000


class Peer:
    """A socket that speaks the protocol, or does not."""

    def __init__(self, queue: PersistentQueue, **fields: Any) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(SECONDS)
        self.socket.connect(os.path.join(queue.path, str(queue.name), SOCKET_NAME))
        hello = {"versions": [VERSION, VERSION], "connection": os.urandom(16).hex(), "process": 1, "name": "peer"}
        self.hello = encode(Hello({**hello, **fields}), 1)

    def send(self, *messages: Message) -> None:
        """Send the messages, after the hello and its answer if it was not sent. A peer that was ended sends no more."""
        with suppress(ConnectionError):
            if self.hello:
                self.socket.sendall(self.hello)
                self.hello = b""
                self.socket.recv(1 << 16)
            self.socket.sendall(b"".join(encode(message, number) for number, message in enumerate(messages, 2)))

    def is_ended(self) -> bool:
        """Read until the owner ends the connection; return True. Return False if it does not within the limit."""
        try:
            while self.socket.recv(1 << 20):
                continue
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True


@pytest.fixture
def queue(open_queue: QueueFactory) -> PersistentQueue:
    """Return a queue that this process serves."""
    return open_queue(serve=True)


@pytest.fixture
def peer(queue: PersistentQueue) -> Iterator[Callable[..., Peer]]:
    """Return a function that connects to the queue."""
    made: list[Peer] = []

    def join(**fields: Any) -> Peer:
        made.append(Peer(queue, **fields))
        return made[-1]

    yield join
    for each in made:
        each.socket.close()


@pytest.fixture
def shared(queue: PersistentQueue) -> Iterator[SharedQueue[bytes]]:
    """Return a worker's queue, which must go on whatever other connections do."""
    with connect(queue.path, queue.name, serve="never", lock_timeout=SECONDS) as made:
        yield made


def header(length_bytes: int, kind: int) -> bytes:
    """Return the header of a message."""
    return length_bytes.to_bytes(4, "little") + bytes([kind]) + bytes(4)


MALFORMED = {
    "a kind that does not exist": header(5, 200),
    "a kind of the owner": header(5, 64),
    "a length above the maximum": header(MESSAGE_BYTES_MAX, 3),
    "a length below that of a header": header(HEADER_BYTES - 5, 3),
    "a length of zero": header(0, 3),
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "items without a count": header(5, 3),
    "more items than bytes": header(9, 3) + b"\xff\xff\xff\xff",
    "a take that is cut": header(6, 2) + b"x",
    "a json that is none": header(6, 10) + b"{",
    "a second hello": encode(Hello({}), 2),
    "a flush out of turn": encode(Flush(0, FOR_EVER, []), 2),
    "a call without a name": encode(Call({"arguments": 1}), 2),
}
"""Bytes that no worker sends, after its hello."""


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_bytes_end_their_connection_only(
    peer: Callable[..., Peer], queue: PersistentQueue, shared: SharedQueue[bytes], what: str
) -> None:
    """The owner ends a connection that sends such bytes, gives back what it held, and serves the others."""
    put(queue, b"one", b"two")
    with shared.session() as session:
        assert session.dequeue() == b"one"
        bad = peer()
        bad.send(Take(1, 0))
        bad.socket.recv(1 << 16)
        bad.socket.sendall(MALFORMED[what])
        assert bad.is_ended()
        assert session.dequeue(timeout=SECONDS) == b"two"
        assert session.flush() is True


def test_a_connection_that_is_ended_leaves_no_record(
    peer: Callable[..., Peer], queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a flush is forgotten in time, too, if the owner has ended the connection for what it sent."""
    monkeypatch.setattr(service, "FORGET_SECONDS", 0.0)
    bad = peer()
    bad.send(Flush(1, FOR_EVER, [b"x"]))
    bad.socket.recv(1 << 16)
    assert len(queue._open()._store.state.flushes) == 1
    bad.socket.sendall(MALFORMED["text"])
    assert bad.is_ended()
    wait_for(lambda: not queue._open()._store.state.flushes)


@pytest.mark.parametrize(
    "fields",
    [
        {"versions": [2, 1]},
        {"versions": "1"},
        {"connection": "x"},
        {"connection": "00" * 16},
        {"hold_seconds": -1},
        {"hold_seconds": "1"},
        {"hold_seconds": [1]},
    ],
)
def test_hello_that_is_wrong(peer: Callable[..., Peer], shared: SharedQueue[bytes], fields: dict[str, Any]) -> None:
    """A hello with wrong fields makes no session, and disturbs no other connection."""
    bad = peer(**fields)
    bad.send(Outcome(1))
    assert bad.is_ended()
    assert len(shared) == 0


def test_time_to_hold_that_no_float_has(queue: PersistentQueue, shared: SharedQueue[bytes]) -> None:
    """A time to hold items beyond the range of floats has no end, and the owner goes on."""
    put(queue, b"one")
    with connect(queue.path, queue.name, serve="never", hold_seconds=10**400) as endless, endless.session() as session:
        assert session.dequeue() == b"one"
        assert session.flush() is True
    assert len(shared) == 0


def test_item_that_is_too_long_for_a_worker(queue: PersistentQueue, shared: SharedQueue[bytes]) -> None:
    """A worker that waits gets ``ItemTooLargeError`` for such an item, and holds nothing. The item stays the first
    one."""
    long = bytes(ITEM_BYTES_MAX + 1)
    errors: list[BaseException] = []

    def wait() -> None:
        with shared.session() as session:
            for timeout in (SECONDS, 0.0):
                try:
                    session.dequeue(timeout=timeout)
                except ItemTooLargeError as error:
                    errors.append(error)
            session.enqueue(b"later")
            session.flush()

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_for(lambda: bool(_service(queue).waits))
    put(queue, long)
    waiter.join()
    assert [str(len(long)) in str(error) for error in errors] == [True, True]
    assert drain(queue) == [long, b"later"]


def test_item_that_is_too_long_to_be_browsed(queue: PersistentQueue, shared: SharedQueue[bytes]) -> None:
    """A worker that browses gets the items before such an item, then ``ItemTooLargeError`` with its length."""
    long = bytes(ITEM_BYTES_MAX + 1)
    put(queue, b"short", long)
    items = shared.browse()
    assert next(items) == b"short"
    with pytest.raises(ItemTooLargeError, match=f"has {len(long)} bytes.*: browse it in the process that owns"):
        next(items)
    assert drain(queue) == [b"short", long]


def _service(queue: PersistentQueue) -> service.Service:
    server = queue._server
    assert server is not None
    return server._service


def test_peer_that_never_reads(peer: Callable[..., Peer], queue: PersistentQueue, shared: SharedQueue[bytes]) -> None:
    """A peer that does not read its answer holds up no other one. The owner reads nothing more from it."""
    put(queue, *(bytes(100_000) for _ in range(30)))
    bad = peer()
    bad.send(Take(30, 0))
    wait_for(lambda: _has_answers(queue))
    bad.send(RollBack())
    with shared.session() as session:
        for number in range(100):
            session.enqueue(b"%d" % number)
            assert session.flush() is True
    assert len(shared) == 100
    bad.socket.close()
    wait_for(lambda: len(shared) == 130)


@pytest.mark.parametrize("message", [Browse(0), Take(1, 0)], ids=["browse", "take"])
def test_peer_that_does_not_wait_for_answers(
    peer: Callable[..., Peer], queue: PersistentQueue, shared: SharedQueue[bytes], message: Message
) -> None:
    """A peer that sends calls without waiting for their answers is ended: its answers would fill the memory."""
    put(queue, *(bytes(100_000) for _ in range(50)))
    bad = peer()
    bad.send(*(message for _ in range(10_000)))
    assert bad.is_ended()
    wait_for(lambda: len(shared) == 50)


def test_long_answer_is_not_copied_for_each_part(queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer is sent in parts, and each rest is a view of the same bytes."""
    parts: list[memoryview] = []

    class Narrow:
        def send(self, data: memoryview, _flags: int) -> int:
            parts.append(data)
            return min(len(data), 1000)

    owner = queue._server
    assert owner is not None
    slow = server._Peer(Narrow(), Client([]))  # type: ignore[arg-type]
    slow.client.out.append(bytes(10_000))
    monkeypatch.setattr(owner, "_selector", SimpleNamespace(modify=lambda *_: None))
    owner._send(slow)
    while slow.left:
        owner._send(slow)
    monkeypatch.undo()
    assert [len(part) for part in parts] == list(range(10_000, 0, -1000))
    assert all(part.obj is parts[0] for part in parts[1:])


def test_flushes_that_come_meanwhile_share_a_sync(
    peer: Callable[..., Peer], queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that comes while another one is received is committed with it: one sync for both."""
    first, second = peer(), peer()
    for each in (first, second):
        each.send(Outcome(1))
        each.socket.recv(1 << 16)
    put(queue, b"0")  # the first segment needs more syncs
    before, receive = queue.stats(), Service.receive
    came: list[Client] = []

    def receive_slowly(self: Service, client: Client, data: bytes) -> None:
        receive(self, client, data)
        came.append(client)
        if len(came) == 1:
            second.send(Flush(1, FOR_EVER, [b"2"]))

    monkeypatch.setattr(Service, "receive", receive_slowly)
    first.send(Flush(1, FOR_EVER, [b"1"]))
    for each in (first, second):
        each.socket.recv(1 << 16)
    after = queue.stats()
    assert (after.transactions - before.transactions, after.syncs - before.syncs) == (2, 1)
    assert queue.peek(9) == [b"0", b"1", b"2"]


def _has_answers(queue: PersistentQueue) -> bool:
    assert queue._server is not None
    return any(peer.left for peer in list(queue._server._peers))


def test_failure_of_one_call_ends_one_connection(
    peer: Callable[..., Peer],
    queue: PersistentQueue,
    shared: SharedQueue[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An unexpected error in a call of one worker ends its connection, and is logged. The others are served."""

    def fail(*_: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setitem(service._HANDLERS, Outcome, fail)
    bad = peer()
    bad.send(Outcome(1))
    assert bad.is_ended()
    assert len(shared) == 0
    assert "its call has failed" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_failure_of_the_thread_ends_all_connections(
    queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the thread that serves has failed, workers get an error and do not wait for ever. The owner's queue works."""

    def fail(_: Server) -> None:
        raise KeyError("a bug")

    put(queue, b"one")
    with connect(queue.path, queue.name, serve="never", lock_timeout=5.0) as shared, shared.session() as session:
        assert session.dequeue() == b"one"
        monkeypatch.setattr(Server, "_answer", fail)
        with pytest.raises(NotServedError):
            session.extend()
        session.rollback()
    wait_for(lambda: len(queue) == 1)
    assert "has failed" in caplog.text


only_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)


@only_root
@pytest.mark.parametrize("opens_the_door", [False, True], ids=["closed socket", "open socket"])
def test_process_of_another_user_is_refused(opens_the_door: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A process of another user gets no item, and an error, even if it can reach the socket."""
    root = tempfile.mkdtemp()
    try:
        os.chmod(root, 0o755)
        with PersistentQueue(root, "orders", serve=True) as queue:
            put(queue, b"one")
            directory = Path(root, "orders")
            for path in (directory, directory / SOCKET_NAME) if opens_the_door else ():
                path.chmod(path.stat().st_mode | stat.S_IROTH | stat.S_IWOTH * path.is_socket() | stat.S_IXOTH)
            pid = os.fork()
            if not pid:
                os._exit(_use_as_somebody(root, RefusedError if opens_the_door else PathDeniedError))
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert caplog.text.count("another user was refused") == opens_the_door
            assert drain(queue) == [b"one"]
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize(("mode", "expected"), [(0o700, 0o600), (0o770, 0o660)])
def test_rights_of_the_socket(
    umask: int, mode: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user of the queue may connect under any umask, and so may a group that may write to its directory. The rights
    of the socket never allow it to other users."""
    tmp_path.chmod(mode)
    made: list[int] = []
    reach = sockets._reach

    def bind(directory: str, name: str, call: Callable[[str], None]) -> None:
        """Make the file, and note its rights."""
        reach(directory, name, call)
        made.append(stat.S_IMODE(os.lstat(tmp_path / name).st_mode))

    monkeypatch.setattr(sockets, "_reach", bind)
    before = os.umask(umask)
    try:
        sockets.listen(str(tmp_path), SOCKET_NAME).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.lstat(tmp_path / SOCKET_NAME).st_mode) == expected
    if sys.platform == "linux":
        assert [each & ~expected for each in made] == [0]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EPERM, "may have no sockets: put the queue on another one, or use"),
        (errno.EIO, "may have no sockets: put the queue on another one, or use"),
        (errno.ENOSYS, "may have no sockets: put the queue on another one, or use"),
        (errno.EOPNOTSUPP, "may have no sockets: put the queue on another one, or use"),
        (errno.EROFS, "Read-only file system(?!.*sockets)"),
        (errno.EACCES, "Permission denied(?!.*sockets)"),
    ],
)
def test_an_owner_without_a_socket(number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no socket can be made, the error of an owner names the path. It says what to do on a file system without
    sockets, such as exFAT. The queue can be used without serving."""

    def refuse(made: socket.socket, path: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "bind", refuse)
    for call in (lambda: connect(tmp_path, "q"), lambda: PersistentQueue(tmp_path, "q", serve=True)):
        with pytest.raises(OSError, match=advice) as caught:
            call()
        assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path / "q" / f"{SOCKET_NAME}.new"))
    with PersistentQueue(tmp_path, "q") as queue:
        put(queue, b"one")
        assert drain(queue) == [b"one"]


@pytest.mark.parametrize("put", [os.symlink, os.link])
def test_file_in_the_place_of_the_socket(
    put: Callable[[Path, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another process replaces the new socket by a link, the owner does not serve, and the other file keeps its
    rights."""
    directory, other = tmp_path / "q", tmp_path / "other"
    directory.mkdir()
    other.touch()
    other.chmod(0o640)
    reach = sockets._reach

    def bind(path: str, name: str, call: Callable[[str], None]) -> None:
        """Make the file, and put a link in its place."""
        reach(path, name, call)
        (directory / name).unlink()
        put(other, directory / name)

    monkeypatch.setattr(sockets, "_reach", bind)
    with pytest.raises(OSError, match="in the place of the new socket"):
        sockets.listen(str(directory), SOCKET_NAME)
    assert stat.S_IMODE(other.stat().st_mode) == 0o640


@pytest.mark.skipif(sys.platform != "linux", reason="other systems need no /proc")
def test_a_system_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``/proc``, the error tells how the owner can serve. It can if the umask takes nothing from the socket."""
    change = os.chmod

    def chmod(path: str, mode: int) -> None:
        """Change the rights, by a path that is not below ``/proc``."""
        change(path.replace("/proc", "/none"), mode)

    tmp_path.chmod(0o770)
    monkeypatch.setattr(os, "chmod", chmod)
    before = os.umask(0o027)
    try:
        with pytest.raises(OSError, match=f"without /proc: mount it, or set the umask to 007: .*{SOCKET_NAME}"):
            sockets.listen(str(tmp_path), SOCKET_NAME)
        os.umask(0o007)
        sockets.listen(str(tmp_path), SOCKET_NAME).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.lstat(tmp_path / SOCKET_NAME).st_mode) == 0o660


@only_root
@pytest.mark.parametrize("groups", [(), (GROUP,), (1, 2, GROUP)], ids=["primary", "supplementary", "several"])
def test_process_of_a_group_that_shares_the_queue(groups: tuple[int, ...]) -> None:
    """A process of another user takes items if any of its groups may write to the directory of the queue."""
    root = tempfile.mkdtemp()
    try:
        os.chmod(root, 0o755)
        directory = Path(root, "orders")
        directory.mkdir()
        os.chown(directory, -1, GROUP)
        directory.chmod(0o2770)
        with PersistentQueue(root, "orders", serve=True, trust=True) as queue:
            put(queue, b"one")
            pid = os.fork()
            if not pid:
                os._exit(_use_as_somebody(root, None, groups))
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert drain(queue) == []
    finally:
        shutil.rmtree(root)


def _use_as_somebody(root: str, refusal: type[Exception] | None, groups: Sequence[int] = ()) -> int:
    """Take an item as another user, with these groups, or without with a group of its own; return 0 if that had the
    outcome: this error, or none."""
    try:
        os.setgroups(groups)
        os.setgid(SOMEBODY if groups or refusal else GROUP)
        os.setuid(SOMEBODY)
        with (
            connect(root, "orders", serve="never", lock_timeout=SECONDS, trust=True) as queue,
            queue.transaction() as session,
        ):
            return int(refusal is not None or session.dequeue() != b"one")
    except BaseException as error:
        if refusal is not None and isinstance(error, refusal):
            return int(f"{root}/orders" not in str(error))
        print(repr(error), file=sys.stderr)
    return 1


def test_items_beyond_those_of_waiting_workers_are_not_missed(
    peer: Callable[..., Peer], queue: PersistentQueue, shared: SharedQueue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dequeue without a wait gets an item that is ready, also if the owner has not yet served those that wait."""
    entered, left = threading.Semaphore(0), threading.Semaphore(0)

    def halt(owner: service.Service, client: Client, call: int, message: Any) -> None:
        """Hold up the owner's thread."""
        entered.release()
        left.acquire()
        service.Service._outcome(owner, client, call, message)

    monkeypatch.setitem(service._HANDLERS, Outcome, halt)
    got: list[bytes | None] = []
    with shared.session() as session:
        waiter = threading.Thread(target=lambda: got.append(session.dequeue(timeout=SECONDS)))
        waiter.start()
        wait_for(lambda: bool(_service(queue).waits))
        first, second, taking = peer(), peer(), peer()
        for each in (second, taking):
            each.send()
        first.send(Outcome(1))
        entered.acquire()
        second.send(Outcome(1))  # the owner reads this and the next one together
        taking.send(Take(1, 0))
        left.release()
        entered.acquire()
        put(queue, b"a", b"b")
        left.release()
        waiter.join()
        assert taking.socket.recv(1 << 16).endswith(b"b")
        session.flush()
    assert got == [b"a"]


WITHOUT_SIGNALS = """
import os, signal, socket
from persistentqueue import connect
from persistentqueue.serving.protocol import VERSION, Hello, encode
from persistentqueue.storage.layout import SOCKET_NAME

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
hello = {"versions": [VERSION, VERSION], "connection": os.urandom(16).hex(), "process": 1, "name": "peer"}
with connect("queue") as owner, connect("queue") as worker, worker.session() as session:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(os.path.join("queue", SOCKET_NAME))
        peer.shutdown(socket.SHUT_RD)  # as if it had gone: the owner cannot answer
        peer.sendall(encode(Hello(hello), 1))
    session.enqueue(b"one")
    session.flush()
    owner.close()
    session.enqueue(b"two")  # the worker calls an owner that has gone
    session.flush()
    print(len(worker))
"""


def test_no_process_ends_with_its_peer(tmp_path: Path) -> None:
    """If a program sets SIGPIPE to its default effect, its process ends neither with a worker nor with the owner."""
    command = [sys.executable, "-c", WITHOUT_SIGNALS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
