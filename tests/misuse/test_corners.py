"""Rare branches, each taken once: files that cannot be read, publications that contradict themselves, and resources
that the system lacks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    CodecError,
    CorruptionError,
    InboxAccessError,
    MemoryShortageError,
    PersistentQueue,
    Producer,
    SessionInUseError,
    TooManyFilesError,
    check,
    repair,
    transaction,
)
from persistentqueue.core.frame import decode_lone_transaction as decode_lone
from persistentqueue.core.frame import encode_frame
from persistentqueue.core.operations import (
    Adoption,
    Dequeue,
    MarkerSet,
    Operation,
    SubscriptionOpened,
    encode_transaction,
)
from persistentqueue.core.page_cache import Pages
from persistentqueue.core.state import State
from persistentqueue.engine import inbox as inbox_module
from persistentqueue.engine import store
from persistentqueue.engine.inbox import Inbox
from persistentqueue.interprocess import producer
from persistentqueue.storage import inbox_limits, log_reader, publication
from persistentqueue.storage.inbox_access import is_shared, make_readable, publication_mode
from persistentqueue.storage.inbox_limits import Load
from persistentqueue.storage.log import Log
from persistentqueue.storage.publication import opened_dense, read_publication
from persistentqueue.storage.segment_files import Segments
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.hostile import forge
from tests.support.queues import drain, put

NAME = f"{1:016x}-{2:016x}.seg"
SALT = 5
OWN: list[Operation] = [Adoption(0, SALT, 0, NAME)]


class Interruption(BaseException):
    """Error that a signal handler raises."""


def refuse(*_: Any) -> Any:
    """Raise the error of a call that this process has no right to make."""
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def lack_files(*_: Any) -> Any:
    """Raise the error of a call that opens one file more than this process may."""
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def inbox_of(queue: PersistentQueue) -> Inbox:
    """Return the inbox as the owner of the queue sees it."""
    return queue._open()._store.inbox


def directory_of(queue: PersistentQueue) -> str:
    """Return the directory of a queue that is or was open."""
    assert queue._open_queue is not None
    return queue._open_queue.directory


def publish(directory: Path, *items: bytes) -> None:
    """Publish each item in a file of its own."""
    with Producer(directory) as publisher:
        for item in items:
            publisher.enqueue(item)
            publisher.flush()


# --- files of the inbox ----------------------------------------------------------------------------------------------


def test_what_may_not_be_read_is_passed_when_there_is_no_room(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that may not be read for now does not stop the search behind it, and is read again the next time."""
    queue = open_queue()
    publish(directory, b"one", b"two")
    inbox, refused = inbox_of(queue), [True]

    def read(*arguments: Any) -> Any:
        return refuse() if refused and refused.pop() else read_publication(*arguments)

    monkeypatch.setattr(inbox_module, "read_publication", read)
    inbox.look(insists=True)
    assert inbox.begin_behind(lambda request: True) == []
    assert drain(queue) == [b"one", b"two"]


@pytest.mark.damages
def test_what_may_not_be_read_is_set_aside(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that may not be read is set aside in its turn, and the error says what to do. The files behind it are
    adopted."""
    queue = open_queue()
    publish(directory, b"one", b"two")
    first = min((directory / "inbox").iterdir())

    def read(disk: Any, path: str) -> Any:
        return refuse() if path.endswith(first.name) else read_publication(disk, path)

    monkeypatch.setattr(inbox_module, "read_publication", read)
    assert drain(queue) == [b"two"]
    with pytest.raises(CorruptionError, match=f"{first.name}.*let its user grant the right to read it"):
        drain(queue)


@pytest.mark.damages
def test_more_items_than_there_are_sequences(open_queue: QueueFactory, directory: Path) -> None:
    """A publication whose items have no sequences left is damage, and is set aside."""
    queue = open_queue()
    publish(directory, b"one")
    inbox = inbox_of(queue)
    inbox.look(insists=True)
    assert inbox.begin(2**63, 1, lambda *_: True) == []
    with pytest.raises(CorruptionError, match="items with sequences below"):
        drain(queue)
    assert [path.suffix for path in (directory / "inbox").iterdir()] == [".damaged"]


@pytest.mark.damages
@pytest.mark.parametrize(
    ("error", "names", "told"),
    [(None, 1, 1), (FileNotFoundError(), 1, 0), (PermissionError(), 1, 1)],
    ids=["set aside", "gone", "skipped"],
)
def test_what_becomes_of_damage(
    open_queue: QueueFactory,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: OSError | None,
    names: int,
    told: int,
) -> None:
    """Damage is set aside, or skipped if that is not allowed. Damage that is gone by then is not reported."""
    queue = open_queue()
    publish(directory, b"one")
    (file,) = (directory / "inbox").iterdir()
    file.write_bytes(b"nothing of the kind")
    inbox, set_aside = inbox_of(queue), vars(inbox_module)["set_aside"]

    def fails(*arguments: Any) -> None:
        if error is not None:
            raise error
        set_aside(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(inbox_module, "set_aside", fails)
        for _ in range(2):
            inbox.look(insists=True)
            assert inbox.begin(0, 1, lambda *_: True) == []
    assert len(inbox.damage) == told
    assert len(list((directory / "inbox").iterdir())) == names
    assert inbox.set_aside == (error is None)
    inbox.damage.clear()
    file.unlink(missing_ok=True)
    assert drain(queue) == []


def test_what_is_skipped_is_told_once(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is skipped again for one reason is reported once. A file that is gone by then has no traits."""
    queue = open_queue()
    publish(directory, b"one")
    (file,) = (directory / "inbox").iterdir()
    inbox = inbox_of(queue)
    shortage = MemoryShortageError(str(file), 64, 100)
    skip = vars(Inbox)["_skip"]
    skip(inbox, file.name, shortage)
    skip(inbox, file.name, shortage)
    assert list(inbox.damage) == [shortage]
    inbox.damage.clear()
    taken = file.rename(directory / "taken")
    assert vars(Inbox)["_traits"](inbox, file.name) == (-1, -1)
    taken.rename(file)
    vars(inbox)["_skipped"].clear()
    assert drain(queue) == [b"one"]


def test_what_cannot_be_read_counts_for_no_limit(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A published file that a producer may not read counts for no limit of the queue."""
    queue = open_queue(max_items=10)
    publish(directory, b"one")
    asked, again = (inbox_limits.Bounds(DISK, str(directory), State) for _ in range(2))
    look = vars(inbox_limits.Bounds)["_look"]
    with monkeypatch.context() as patch:
        patch.setattr(inbox_limits, "read_publication", refuse)
        assert look(asked, str(directory / "inbox"), False) == Load(0, 0, 0)
    assert look(again, str(directory / "inbox"), False).items == 1
    assert drain(queue) == [b"one"]


# --- one transaction, as another process wrote it --------------------------------------------------------------------


def lone(body: bytes, transactions: int, operations: int) -> bytes:
    """Return a frame whose checksum is right."""
    return encode_frame(body, SALT, 0, 1, 0, transactions, operations)[0] + body


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lone(encode_transaction(OWN), 2, 1), "one transaction with 1 operations, found 2 with 1"),
        (lone(encode_transaction(OWN), 1, 2), "one transaction with 1 operations, found 1 with 2"),
        (lone(encode_transaction(OWN) + b"more", 1, 1), "the end of the frame, found 4 bytes more"),
        (lone(b"\1", 1, 1), "found"),
    ],
    ids=["two transactions", "two operations", "bytes behind", "no count"],
)
def test_a_lone_transaction_that_contradicts_itself(data: bytes, message: str) -> None:
    """The counts in a frame of another process are checked against the content of the frame."""
    with pytest.raises(CorruptionError, match=message):
        list(decode_lone(data, SALT, "file")[1])


@pytest.mark.parametrize(
    "operations",
    [
        [*OWN, SubscriptionOpened(0, 0, "late"), Dequeue(0, 0, 0)],  # it asks for no sequence
        [*OWN, Dequeue(0, 0, 1)],  # it names no subscription
        [MarkerSet("app", 1)],  # it names no file
    ],
    ids=["no end", "no name", "no file"],
)
def test_a_publication_of_other_operations(tmp_path: Path, operations: list[Operation]) -> None:
    """A published file is damage if its frame has operations that no publication has."""
    forge(tmp_path / NAME, operations)
    with pytest.raises(CorruptionError, match="a frame that enqueues"):
        read_publication(DISK, str(tmp_path / NAME))


def test_a_publication_that_the_memory_is_too_small_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame for which the process has no memory is not damage: the error names the file."""
    forge(tmp_path / NAME, OWN)

    def lacks(*_: Any, **__: Any) -> bytes:
        raise MemoryError

    monkeypatch.setattr(publication, "decode_lone_transaction", lacks)
    with pytest.raises(MemoryShortageError) as caught:
        read_publication(DISK, str(tmp_path / NAME))
    assert caught.value.file == str(tmp_path / NAME)


def test_a_file_that_cannot_be_opened_for_now(tmp_path: Path) -> None:
    """A file that cannot be opened for now raises the system's own error. A path that is no regular file any more is
    damage."""
    with pytest.raises(PermissionError), opened_dense(replace(DISK, open=refuse), str(tmp_path / NAME)):
        pass
    (tmp_path / NAME).symlink_to("elsewhere")
    with pytest.raises(CorruptionError, match="a regular file"), opened_dense(DISK, str(tmp_path / NAME)):
        pass


# --- who may publish -------------------------------------------------------------------------------------------------


def owned_by(user: int, mode: int, euid: int) -> Disk:
    """Return a disk on which everything has this user and mode, for a process of the user ``euid``."""
    found = os.stat_result((mode, 1, 1, 1, user, 7, 0, 0, 0, 0))
    return replace(DISK, lstat=lambda path: found, geteuid=lambda: euid)


@pytest.mark.parametrize(
    ("user", "mode", "euid", "expected"),
    [(1, 0o40700, 1, 0o600), (1, 0o42770, 1, 0o640), (1, 0o42770, 2, 0o640), (1, 0o40700, 0, 0o644)],
)
def test_the_mode_of_what_is_published(user: int, mode: int, euid: int, expected: int) -> None:
    """A published file is readable for its user alone, for the group of a shared inbox, or for all if root wrote it."""
    disk = owned_by(user, mode, euid)
    assert publication_mode(disk, "inbox") == expected
    assert is_shared(disk, "inbox") == (mode == 0o42770)


def test_a_stranger_may_not_publish() -> None:
    """Without a shared group, a process of another user is refused."""
    with pytest.raises(InboxAccessError, match="user 1's alone, and this process is user 2"):
        publication_mode(owned_by(1, 0o40700, 2), "inbox")


@pytest.mark.parametrize("umask", [0o077, 0o022])
def test_a_shared_file_is_readable_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    """``make_readable`` gives back the rights that the umask took, and no others."""
    before = os.umask(umask)
    try:
        for mode in (0o640, 0o600):
            fd = os.open(tmp_path / f"{mode:o}", os.O_CREAT | os.O_RDWR, mode)
            make_readable(DISK, fd, mode)
            assert os.fstat(fd).st_mode & 0o777 == mode
            os.close(fd)
    finally:
        os.umask(before)


def test_a_directory_that_may_not_be_entered(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer is told why it may not publish, whether it may look for the queue or not."""
    open_queue().close()
    with monkeypatch.context() as patch:
        patch.setattr(producer, "find_generations", refuse)
        with pytest.raises(InboxAccessError, match="this process may not enter or read it"):
            Producer(directory)
    with monkeypatch.context() as patch:
        patch.setattr(producer, "publication_mode", lambda *_: publication_mode(owned_by(1, 0o40700, 2), "inbox"))
        with pytest.raises(InboxAccessError, match="user 1's alone"):
            Producer(directory)


# --- what the system lacks -------------------------------------------------------------------------------------------


def test_a_half_whose_blocks_cannot_be_synced(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one of several queues lacks a descriptor before its sync, nothing is committed anywhere. The next flush
    commits all."""
    a, b = open_queue("a", inline_bytes=0), open_queue("b", inline_bytes=0)
    put(a, b"1")
    item = bytes(100)
    with transaction(a, b) as (source, target):
        for session in (source, target):
            session.enqueue(item)
        with monkeypatch.context() as patch:

            def lacks(_: Segments) -> None:
                raise TooManyFilesError("data", errno.EMFILE, "to sync")

            patch.setattr(Segments, "sync", lacks)
            with pytest.raises(TooManyFilesError):
                source.flush()
        assert target.flush()
    assert (drain(a), drain(b)) == ([b"1", item], [item])


def test_a_pool_that_gives_nothing_back(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that cannot be listed makes no room, and has no other effect."""
    queue = open_queue()
    put(queue, b"1")
    store = queue._open()._store
    with monkeypatch.context() as patch:
        patch.setattr(store.pool, "shrink", lack_files)
        assert vars(type(store))["_shrink_pool"](store, 0) is False
    assert drain(queue) == [b"1"]


@pytest.mark.parametrize("way", ["direct", "cached", "unsynced"])
@pytest.mark.parametrize("written", [True, False], ids=["behind the write", "before it"])
def test_an_append_that_was_interrupted(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, way: str, written: bool
) -> None:
    """A frame whose append was interrupted is written whole, whichever way the log is written."""
    door = replace(DISK, open_direct=lambda path: None) if way == "cached" else DISK
    queue = open_queue(disk=door, sync=way != "unsynced")
    put(queue, b"a")
    append, left = Log.append, [1]

    def interrupted(log: Log, *arguments: Any) -> None:
        if written or not left:
            append(log, *arguments)
        if left:
            left.clear()
            raise Interruption

    with queue.session() as session:
        session.enqueue(b"b")
        with monkeypatch.context() as patch:
            patch.setattr(Log, "append", interrupted)
            with pytest.raises(Interruption):
                session.flush()
    assert drain(queue) == [b"a", b"b"]
    queue.close()
    assert drain(open_queue()) == []


@pytest.mark.parametrize("marker", [None, ("m", 1)], ids=["short way", "long way"])
def test_an_interrupted_change_of_the_memory_that_finds_no_memory(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, marker: tuple[str, int] | None
) -> None:
    """A flush whose frame is written, and whose state can be neither finished nor rebuilt, breaks the queue: it is not
    committed a second time."""
    queue = open_queue()
    put(queue, b"a")

    def interrupted(*_: object) -> None:
        raise Interruption

    def lacking(_disk: Disk, path: str) -> None:
        raise MemoryShortageError(path, 0, 1)

    with queue.session() as session:
        session.enqueue(b"b")
        with monkeypatch.context() as patch:
            patch.setattr(Pages, "append", interrupted)
            patch.setattr(store, "read_log", lacking)
            with pytest.raises(BrokenQueueError, match="unknown"):
                session.flush(marker=marker)
        with pytest.raises(BrokenQueueError):
            session.flush(marker=marker)
    queue.close()
    assert drain(open_queue()) == [b"a", b"b"]


def test_a_log_for_which_there_was_no_descriptor(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a spare log could not be opened for lack of descriptors, a full log reports that lack, and not a full disk."""
    queue = open_queue()
    put(queue, b"1")
    store = queue._open()._store
    with monkeypatch.context() as patch:
        patch.setattr(store, "trim", lambda **_: None)
        patch.setattr(store.generations.log, "has_room", lambda *_: False)
        patch.setattr(store.generations, "shortage", OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        with pytest.raises(TooManyFilesError, match="keep a spare log"):
            put(queue, b"2")
    put(queue, b"3")
    assert drain(queue) == [b"1", b"3"]


@pytest.mark.damages
def test_a_log_that_the_memory_is_too_small_for(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log for which the process has no memory is not damage: opening, ``check`` and ``repair`` say how much memory it
    needs."""
    with open_queue() as queue:
        put(queue, b"1")

    def lacks(*_: Any, **__: Any) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patch:
        for name in ("read_needed", "read_around"):
            patch.setattr(log_reader, name, lacks)
        for call in (open_queue, lambda: check(directory_of(queue)), lambda: repair(directory_of(queue))):
            with pytest.raises(MemoryShortageError, match="needs at least 1048576 bytes of memory"):
                call()
    assert drain(open_queue()) == [b"1"]


def test_a_time_out_of_any_length(open_queue: QueueFactory) -> None:
    """A timeout may be a number of any size."""
    queue = open_queue(max_items=2, full="block")
    with queue.session() as session:
        session.enqueue(b"1")
        assert session.flush(timeout=10**400)
        assert queue.wait(10**400)
        assert session.dequeue(timeout=10**400) == b"1"
        session.put_back()
        assert session.dequeue_many(5, timeout=10**400) == [b"1"]
        assert session.flush()


# --- a producer in the middle of a call ----------------------------------------------------------------------------

BUSY_CALLS: dict[str, Callable[[Any], object]] = {
    "enqueue": lambda busy: busy.enqueue("other"),
    "enqueue_many": lambda busy: busy.enqueue_many(["other"]),
    "flush": lambda busy: busy.flush(),
    "rollback": lambda busy: busy.rollback(),
    "close": lambda busy: busy.close(),
}


class CallingBack:
    """A codec that calls the producer for which it encodes."""

    def __init__(self) -> None:
        self.call: Any = None

    def encode(self, item: str) -> bytes:
        if self.call is not None:
            self.call()
        return item.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


@pytest.mark.parametrize("outer", ["enqueue", "enqueue_many"])
@pytest.mark.parametrize("inner", list(BUSY_CALLS))
def test_a_producer_is_not_called_from_its_own_codec(
    open_queue: QueueFactory, directory: Path, outer: str, inner: str
) -> None:
    """A call of a producer from its own codec is refused. The outer call takes nothing, and the producer keeps its
    items."""
    queue = open_queue()
    codec = CallingBack()
    with Producer(directory, codec=codec) as busy:
        busy.enqueue("kept")
        codec.call = lambda: BUSY_CALLS[inner](busy)
        with pytest.raises(CodecError) as raised:
            BUSY_CALLS[outer](busy)
        assert isinstance(raised.value.__cause__, SessionInUseError)
        codec.call = None
        assert busy.pending == 1 and not busy.closed
        busy.flush()
    assert drain(queue) == [b"kept"]
