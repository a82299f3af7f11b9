"""Row 2: an owner touches only its own directory, even if the directory was renamed or deleted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
    PersistentQueue,
    PersistentQueueError,
    Producer,
    QueueDeletedError,
    QueueNotFoundError,
    check,
    delete_queue,
    move_data,
    transaction,
)
from persistentqueue.interprocess.splits import look
from persistentqueue.system.directory_handles import Roots
from persistentqueue.system.disk import DIRECTORY, DISK, PORTABLE, READ, Below, Disk, Root, below
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import crash, drain, put, put_each, wait_for
from tests.unit.recovery.test_in_doubt import in_doubt

Action = Callable[[PersistentQueue], object]
SMALL: dict[str, Any] = {
    "segment_bytes": 4096,
    "log_bytes": 4096,
    "inline_bytes": 0,
    "pool_min_bytes": 8192,
    "pool_max_bytes": 65536,
}
"""Settings with which an owner makes, renames and deletes many files."""
OLD = [b"old %d" % n + b"." * 500 for n in range(40)]
NEW = [b"new %d" % n + b"." * 500 for n in range(40)]


def flush(queue: PersistentQueue) -> None:
    """Commit so much, with syncs of all kinds, that logs and segments are made, used again and deleted."""
    for _ in range(30):
        with queue.transaction() as session:
            session.enqueue_many(session.dequeue_many(8))
    with queue.transaction() as session:
        session.dequeue()


def adopt(queue: PersistentQueue) -> None:
    """Look for publications; there are none."""
    assert queue.wait(0) == bool(list(queue.browse()))


def subscribe(queue: PersistentQueue) -> None:
    """Make a subscription, and remove it."""
    queue.subscribe("s")
    queue.trim()
    queue.unsubscribe("s")


ACTIONS: dict[str, Action] = {
    "flush": flush,
    "trim": PersistentQueue.trim,
    "clear": PersistentQueue.clear,
    "maintain": PersistentQueue.maintain,
    "compact": lambda queue: queue.compact(below=1.0),
    "subscribe": subscribe,
    "adopt": adopt,
    "stats": lambda queue: (queue.stats(), queue.explain()),
    "close": PersistentQueue.close,
}


def tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Return the inode and the content of each file below a directory."""
    return {
        str(each.relative_to(directory)): (each.stat().st_ino, each.read_bytes() if each.is_file() else b"")
        for each in directory.rglob("*")
    }


def act(action: Action, queue: PersistentQueue) -> None:
    """Call the action, and then all other steps that an owner takes before it ends; ignore named errors."""
    for call in (action, PersistentQueue.trim, PersistentQueue.maintain, PersistentQueue.close):
        with suppress(PersistentQueueError):
            call(queue)


def holes(queue: PersistentQueue) -> None:
    """Consume items here and there, so that there is something to trim, to give back and to compact."""
    put_each(queue, OLD)
    with queue.session() as keeping, queue.session() as taking:
        keeping.dequeue_many(3)
        taking.dequeue_many(25)
        taking.flush()
        keeping.rollback()
        taking.rollback()


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
@pytest.mark.parametrize("above", [False, True], ids=["queue", "parent"])
def test_row_02_renamed_directory(action: Action, above: bool, open_queue: QueueFactory, path: Path) -> None:
    """An owner whose directory, or the one above, was renamed goes on in it, and does not touch a new queue under the
    old name."""
    old = open_queue("q", **SMALL)
    holes(old)
    moved = path.parent / "away" if above else path / "q.bak"
    (path if above else path / "q").rename(moved)
    new = open_queue("q", **SMALL)
    put_each(new, NEW)
    crash(new)  # a crash leaves all files: no generation, and no segment, may go
    before = tree(path / "q")
    action(old)
    expected = [] if old.closed else list(old.browse())
    if not old.closed:
        old.trim()
        old.maintain()
        old.close()
    assert tree(path / "q") == before
    assert drain(open_queue("q")) == NEW
    again = PersistentQueue(moved / "q" if above else moved)
    found = drain(again)
    again.close()
    assert found == expected or (not expected and found == OLD[:3] + OLD[28:])


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_row_02_deleted_directory(action: Action, again: bool, open_queue: QueueFactory, path: Path) -> None:
    """An owner whose directory was deleted raises only named errors, at the latest when it is closed, and touches no
    new queue."""
    old = open_queue("q", **SMALL)
    holes(old)
    shutil.rmtree(path / "q")
    before = {}
    if again:
        new = open_queue("q", **SMALL)
        put_each(new, NEW)
        crash(new)
        before = tree(path / "q")
    failed = []
    for call in (action, PersistentQueue.trim, PersistentQueue.maintain, PersistentQueue.close):
        try:
            call(old)
        except PersistentQueueError as error:
            failed.append(error)
    assert any(isinstance(error, QueueDeletedError) and str(path / "q") in str(error) for error in failed)
    assert old.closed
    if again:
        assert tree(path / "q") == before
        assert drain(open_queue("q")) == NEW
    else:
        assert not (path / "q").exists()


def test_row_02_flush_into_a_deleted_directory(open_queue: QueueFactory, path: Path) -> None:
    """A flush into a deleted directory raises ``QueueDeletedError``, and so does every call after it, until the queue
    is closed."""
    queue = open_queue("q", pool_min_bytes=4096)
    put(queue, b"1")
    shutil.rmtree(path / "q")
    wait_for(lambda: _is_refused(lambda: put(queue, b"2")))
    for call in (queue.trim, queue.maintain, queue.compact, queue.clear, lambda: put(queue, b"3")):
        with pytest.raises(QueueDeletedError):
            call()
    queue.close()
    with pytest.raises(QueueDeletedError, match="deleted"):
        crashes = open_queue("q")
        shutil.rmtree(path / "q")
        crashes.close()


def _is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except QueueDeletedError:
        return True
    return False


def test_row_02_new_process_under_the_old_name(open_queue: QueueFactory, path: Path) -> None:
    """Items that a new process has acknowledged under the old name survive all calls of the old owner, and its
    close."""
    old = open_queue("q", **SMALL)
    holes(old)
    (path / "q").rename(path / "q.bak")
    program = f"""
import sys
from persistentqueue import PersistentQueue
queue = PersistentQueue({str(path)!r}, "q", segment_bytes=4096, log_bytes=4096)
with queue.transaction() as session:
    session.enqueue_many([b"%d" % n for n in range(5)])
print("ready", flush=True)
sys.stdin.read()
with queue.transaction() as session:
    session.enqueue(session.dequeue())
queue.close()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"ready\n"
        flush(old)
        old.clear()
        old.maintain()
        old.close()
        other.communicate()
    assert other.returncode == 0
    assert check(path, "q").ok
    assert drain(open_queue("q")) == [b"1", b"2", b"3", b"4", b"0"]


@pytest.mark.parametrize("portable", [False, True], ids=["this system's", "portable"])
def test_row_02_place_of_segments(portable: bool, open_queue: QueueFactory, path: Path, tmp_path: Path) -> None:
    """An owner goes on after the location of its segments was renamed, and touches no segments of the new queue at the
    old place. A disk without calls by descriptor raises a named error instead."""
    disk = PORTABLE if portable else DISK
    old = open_queue("q", data_path=tmp_path / "media", disk=disk, **SMALL)
    holes(old)
    (path / "q").rename(path / "q.bak")
    (tmp_path / "media").rename(tmp_path / "away")
    new = open_queue("q", data_path=tmp_path / "media", **SMALL)
    put_each(new, NEW)
    crash(new)
    before = tree(path / "q"), tree(tmp_path / "media")
    if portable:
        with pytest.raises(PersistentQueueError, match="renamed"):
            flush(old)
    act(flush, old)
    assert (tree(path / "q"), tree(tmp_path / "media")) == before
    assert drain(open_queue("q")) == NEW
    again = PersistentQueue(path / "q.bak", data_path=tmp_path / "away" / "q")
    assert sorted(drain(again)) == sorted(OLD[:3] + OLD[28:]) if portable else len(drain(again)) == 14
    again.close()


def test_row_02_shared_pool(open_queue: QueueFactory, path: Path) -> None:
    """The user of a shared pool that was renamed goes on with it, and touches no file of a new pool."""
    old = open_queue("q", shared_pool=True, **SMALL)
    holes(old)
    old.maintain()
    (path / ".pool").rename(path / "pool.bak")
    new = open_queue("r", shared_pool=True, **SMALL)
    new.maintain()
    before = tree(path / ".pool")
    assert before and tree(path / "pool.bak")
    act(flush, old)
    assert tree(path / ".pool") == before
    assert new.stats().pool_files == len(before)


def test_row_02_wait(open_queue: QueueFactory, path: Path) -> None:
    """A consumer that waits in a renamed queue gets an item that is published there, and none of a new queue."""
    old = open_queue("q")
    with ThreadPoolExecutor(1) as pool, old.session() as session:
        (path / "q").rename(path / "q.bak")
        new = open_queue("q")
        waiting = pool.submit(session.dequeue, 60)
        wait_for(lambda: old._open_queue is not None and old._open_queue._waiters.keeper is not None)
        for directory, item in ((path / "q", b"new"), (path / "q.bak", b"old")):
            with Producer(directory) as producer:
                producer.enqueue(item)
                producer.flush()
        assert waiting.result(60) == b"old"
        session.rollback()
    assert drain(new) == [b"new"]


def test_row_02_wait_in_a_deleted_directory(open_queue: QueueFactory, path: Path) -> None:
    """A consumer that waits without a timeout gets ``QueueDeletedError`` when the directory is deleted."""
    queue = open_queue("q")
    with ThreadPoolExecutor(2) as pool, queue.session() as one, queue.session() as other:
        waiting = [pool.submit(session.dequeue, None) for session in (one, other)]
        wait_for(lambda: queue._open_queue is not None and queue._open_queue._waiters.count == 2)
        shutil.rmtree(path / "q" / "inbox")  # ends the watch before there is anything to notice
        shutil.rmtree(path / "q")
        for each in waiting:
            with pytest.raises(QueueDeletedError):
                each.result(60)


@pytest.mark.parametrize("is_made_again", [False, True])
def test_row_02_replaced_while_the_lock_is_taken(is_made_again: bool, path: Path) -> None:
    """If a directory is renamed between its opening and its locking, the opening takes the queue that has the name
    then."""
    with PersistentQueue(path, "q") as queue:
        put(queue, b"old")
    calls: list[int] = []

    def lock(fd: int) -> bool:
        calls.append(fd)
        if len(calls) == 1:
            (path / "q").rename(path / "q.bak")
            if is_made_again:
                with PersistentQueue(path, "q") as queue:
                    put(queue, b"new")
        return DISK.lock(fd)

    with call_on(replace(DISK, lock=lock), PersistentQueue, path, "q", lock_timeout=60) as queue:
        assert drain(queue) == [b"new"] * is_made_again
    with PersistentQueue(path / "q.bak") as queue:
        assert drain(queue) == [b"old"]


@pytest.mark.parametrize("step", ["trim.2", "trim.4", "trim.6"])
def test_row_02_renamed_while_it_is_opened(step: str, path: Path) -> None:
    """If a directory is renamed after its lock was taken, the opening goes on in it."""
    queue = PersistentQueue(path, "q")
    put(queue, b"old")
    crash(queue)

    def failpoint(name: str) -> None:
        if name.startswith(step) and not (path / "q.bak").exists():
            (path / "q").rename(path / "q.bak")
            with PersistentQueue(path, "q") as new:
                put(new, b"new")

    with call_on(replace(DISK, failpoint=failpoint), PersistentQueue, path, "q") as queue:
        assert drain(queue) == [b"old"]
    with PersistentQueue(path, "q") as queue:
        assert drain(queue) == [b"new"]
    assert check(path / "q.bak").items == 0


def test_row_02_renamed_while_it_is_made(path: Path) -> None:
    """A queue whose parent is renamed while it is made is made in the renamed parent."""

    def failpoint(name: str) -> None:
        if name.startswith("trim.2") and path.exists():
            path.rename(path.parent / "away")

    with call_on(replace(DISK, failpoint=failpoint), PersistentQueue, path, "q") as queue:
        put(queue, b"1")
    assert not path.exists() and check(path.parent / "away", "q").items == 1


@pytest.mark.parametrize("step", ["delete.1", "delete.2", "delete.3"])
def test_row_02_renamed_while_it_is_deleted(step: str, path: Path) -> None:
    """A deletion whose directory is renamed deletes that directory, and nothing of a new queue under the old name."""
    with PersistentQueue(path, "q", **SMALL) as queue:
        put_each(queue, OLD)

    def failpoint(name: str) -> None:
        if name.startswith(step):
            (path / "q").rename(path / "q.bak")
            with PersistentQueue(path, "q") as new:
                put(new, b"new")

    call_on(replace(DISK, failpoint=failpoint), delete_queue, path, "q")
    with PersistentQueue(path, "q") as queue:
        assert drain(queue) == [b"new"]
    assert not tree(path / "q.bak")


@pytest.mark.parametrize("step", ["move.1", "move.3", "move.4", "move.5"])
def test_row_02_renamed_while_its_segments_are_moved(step: str, path: Path, tmp_path: Path) -> None:
    """A move whose queue is renamed moves the segments of that queue, and none of a new queue under the old name."""
    with PersistentQueue(path, "q", **SMALL) as queue:
        put_each(queue, OLD)

    def failpoint(name: str) -> None:
        if name.startswith(step):
            (path / "q").rename(path / "q.bak")
            with PersistentQueue(path, "q", **SMALL) as new:
                put_each(new, NEW)

    call_on(replace(DISK, failpoint=failpoint), move_data, path, "q", data_path=tmp_path / "media")
    with PersistentQueue(path, "q") as queue:
        assert queue.data_path == str(path / "q") and drain(queue) == NEW
    with PersistentQueue(path / "q.bak") as queue:
        assert queue.data_path == str(tmp_path / "media" / "q") and drain(queue) == OLD


def test_row_02_transaction_over_several(open_queue: QueueFactory, path: Path) -> None:
    """A transaction over several queues is refused if one was moved away from the others, since they could not find
    each other after a crash. It goes on if all were moved together."""
    a, b = open_queue("a"), open_queue("b")
    put(a, b"1", b"2", b"3")

    def moves() -> None:
        with transaction(a, b) as (source, target):
            item = source.dequeue()
            assert item is not None
            target.enqueue(item)

    path.rename(path.parent / "away")
    moves()
    path = path.parent / "away"
    (path / "b").rename(path / "c")
    with pytest.raises(QueueNotFoundError, match="moved"):
        moves()
    other = PersistentQueue(path, "b")
    with pytest.raises(QueueNotFoundError, match="moved"):
        moves()
    other.close()
    delete_queue(path, "b")
    (path / "c").rename(path / "b")
    moves()
    assert (drain(a), drain(b)) == ([b"3"], [b"1", b"2"])


def test_row_02_decisions_of_a_coordinator(open_queue: QueueFactory, path: Path) -> None:
    """A coordinator whose parent is replaced by another directory while it is opened forgets no decision."""
    a, b = in_doubt(open_queue, decided=True)
    crash(a)
    crash(b)

    def listdir(name: str) -> list[str]:
        if isinstance(name, Below) and path.exists() and not (path.parent / "away").exists():
            path.rename(path.parent / "away")
            (path / "a").mkdir(parents=True)
        return DISK.listdir(name)

    open_queue("a", disk=replace(DISK, listdir=listdir)).close()
    shutil.rmtree(path)
    path = path.parent / "away"
    assert look(DISK, str(path / "a"))[1].state.decisions
    with PersistentQueue(path, "b") as queue:
        assert drain(queue) == [b"1"]


def test_row_02_view(open_queue: QueueFactory, path: Path) -> None:
    """An owner whose directory was renamed gives no view of the queue that has its name now."""
    queue = open_queue("q")
    put(queue, b"old")
    assert [each.data for each in queue.view().peek(2)] == [b"old"]
    (path / "q").rename(path / "q.bak")
    open_queue("q")
    with pytest.raises(QueueNotFoundError, match="renamed"):
        queue.view()


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_row_02_portable_disk(action: Action, open_queue: QueueFactory, path: Path) -> None:
    """Without calls by descriptor, an owner whose directory was renamed raises named errors, and touches nothing of a
    new queue."""
    old = open_queue("q", disk=PORTABLE, **SMALL)
    holes(old)
    (path / "q").rename(path / "q.bak")
    new = open_queue("q", disk=PORTABLE, **SMALL)
    put_each(new, NEW)
    crash(new)
    before = tree(path / "q")
    act(action, old)
    assert old.closed and tree(path / "q") == before
    assert drain(open_queue("q")) == NEW
    with PersistentQueue(path / "q.bak") as again:
        assert again.stats().ready in {0, 1, 14, 15}


def test_row_02_no_descriptor_is_left(open_queue: QueueFactory, path: Path, tmp_path: Path) -> None:
    """A queue that is closed, crashed or refused keeps no directory open, and neither does a forked child."""
    settings: dict[str, Any] = {"data_path": tmp_path / "media", "shared_pool": True}

    def held() -> list[str]:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sorted(os.readlink(link) for link in links if os.path.lexists(link) and os.path.isdir(link))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system does not show open descriptors")
    before = held()
    queue = open_queue("q", **settings)
    own = [str(path / "q"), *[str(tmp_path / "media" / "q")] * 2, str(tmp_path / "media" / ".pool")]
    assert sorted(before + own) == held()
    with pytest.raises(PersistentQueueError):
        PersistentQueue(path, "q")
    assert sorted(before + own) == held()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, b"%d" % (held() == before))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1) == b"1"
    os.close(reading)
    os.close(writing)
    queue.close()
    assert held() == before
    crash(open_queue("q"))
    assert held() == before


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    """Yield a directory that is held open."""
    fd = DISK.open(str(tmp_path), READ | DIRECTORY, 0)
    root = Root(DISK, str(tmp_path), fd, DISK.fstat(fd))
    yield root
    root.close()


def test_row_02_closed_under_a_call(root: Root, tmp_path: Path) -> None:
    """A directory that is released during a call of another thread stays open until the call has returned. Later calls
    fail, even if another file has the descriptor's number by then."""
    (tmp_path / "file").touch()
    fd, file = root.fd, below(str(tmp_path / "file"), root, "file")
    with root:
        root.close()
        assert os.fstat(fd).st_ino == tmp_path.stat().st_ino
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    for call in (DISK.unlink, DISK.lstat, PORTABLE.unlink):
        with pytest.raises(ClosedError, match="is closed"):
            call(file)
    assert (tmp_path / "file").exists()


@pytest.mark.parametrize("disk", [DISK, PORTABLE], ids=["this system's", "portable"])
def test_row_02_errors_name_the_whole_path(disk: Disk, tmp_path: Path) -> None:
    """An error of a call below a held directory names the path that the caller knows."""
    roots, missing = Roots(disk), str(tmp_path / "missing" / "file")
    roots.hold(str(tmp_path))
    calls: list[Callable[[], object]] = [
        lambda: roots.disk.open(missing, READ, 0),
        lambda: roots.disk.unlink(missing),
        lambda: roots.disk.mkdir(missing, 0o700),
        lambda: roots.disk.rmdir(missing),
        lambda: roots.disk.listdir(missing),
        lambda: roots.disk.lstat(missing),
        lambda: roots.disk.free_bytes(missing),
        lambda: roots.disk.rename(missing, missing + "2"),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError) as raised:
            call()
        assert raised.value.filename == missing
    assert roots.disk.free_bytes(str(tmp_path)) > 0
    assert not roots.is_deleted(str(tmp_path)) and roots.is_named(str(tmp_path))
    tmp_path.rename(f"{tmp_path}.away")
    assert not roots.is_named(str(tmp_path))
    with pytest.raises(OSError, match=r"another name|was renamed"):
        roots.disk.rmdir(str(tmp_path))
    os.rename(f"{tmp_path}.away", tmp_path)
    roots.close()
