"""The access to the operating system: paths, links, locks, the portable disk, and low descriptors."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from itertools import count
from pathlib import Path

import portalocker
import pytest

from persistentqueue import PersistentQueue, QueueLockedError
from persistentqueue.system import disk as door
from persistentqueue.system.disk import DISK, PORTABLE, Disk, join
from persistentqueue.system.files import make_directory
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, put, put_each, wait_for

DISKS = {"this system's": DISK, "portable": PORTABLE}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the path of a file that does not exist."""
    return str(tmp_path / "file")


@pytest.mark.parametrize("disk", DISKS.values(), ids=DISKS)
def test_fallocate_extends_and_never_shrinks(disk: Disk, path: str) -> None:
    """Reserved bytes count into the size and read as zeros; a longer file stays as long as it is."""
    fd = disk.open(path, door.CREATE, 0o600)
    disk.fallocate(fd, 0, 100)
    assert (disk.fstat(fd).st_size, disk.pread(fd, 200, 0)) == (100, bytes(100))
    disk.fallocate(fd, 0, 10)
    assert disk.fstat(fd).st_size == 100
    disk.close(fd)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EIO])
def test_file_system_without_fallocate(code: int, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is extended even if the file system cannot reserve space; any other failure is raised."""

    def refuse(*_: int) -> None:
        raise OSError(code, "refused")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    fd = DISK.open(path, door.CREATE, 0o600)
    if code == errno.EOPNOTSUPP:
        DISK.fallocate(fd, 0, 50)
        assert DISK.fstat(fd).st_size == 50
    else:
        with pytest.raises(OSError, match="refused"):
            DISK.fallocate(fd, 0, 50)
    DISK.close(fd)


@pytest.mark.parametrize("code", [None, errno.ENOTSUP, errno.EIO])
def test_full_sync_of_macos(code: int | None, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that empties the cache of the drive is used if the system has one; if it is not supported, a plain sync
    follows."""
    calls: list[str] = []

    def full_sync(fd: int, command: int) -> int:
        calls.append("full")
        if code is not None:
            raise OSError(code, "refused")
        return 0

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("plain"))
    if code == errno.EIO:
        with pytest.raises(OSError, match="refused"):
            PORTABLE.fdatasync(0)
    else:
        PORTABLE.fdatasync(0)
    assert calls == (["full", "plain"] if code == errno.ENOTSUP else ["full"])


@pytest.mark.parametrize(
    ("arguments", "said"), [((), None), (("why",), "why"), (("why", OSError(errno.ENOLCK, "no locks")), "no locks")]
)
def test_lock_that_is_refused(arguments: tuple[object, ...], said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that no process holds, and that the system refuses all the same, raises ``OSError`` with its reason."""

    def lock(*_: object) -> None:
        raise portalocker.LockException(*arguments)

    monkeypatch.setattr(portalocker, "lock", lock)
    with pytest.raises(OSError, match=said):
        DISK.lock(0)


def test_links_are_not_followed(tmp_path: Path) -> None:
    """A link in the place of a file or of a queue's directory is refused."""
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(OSError, match="link"):
        DISK.open(str(tmp_path / "link"), door.CREATE, 0o600)
    (tmp_path / "directory").mkdir()
    (tmp_path / "linked").symlink_to("directory")
    with pytest.raises(NotADirectoryError, match="a file or a link"):
        make_directory(DISK, str(tmp_path / "linked"))
    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.mark.parametrize("directory", ["", ".", "/", "//", "a", "a/", "/a/b", "../a b/"])
def test_paths_are_those_of_the_system(directory: str) -> None:
    """``join`` makes the path that the standard library makes."""
    assert join(directory, "name") == os.path.join(directory, "name")


def test_queue_on_the_portable_disk(open_queue: QueueFactory) -> None:
    """A queue works through the portable disk, and can be opened through the other disk in between."""
    queue = open_queue(disk=PORTABLE, log_bytes=4096, segment_bytes=1000)
    put_each(queue, [b"%d" % n for n in range(100)])
    crash(queue)
    queue = open_queue()
    put(queue, b"more" * 30_000)
    queue.close()
    queue = open_queue(disk=PORTABLE)
    assert drain(queue) == [b"%d" % n for n in range(100)] + [b"more" * 30_000]


def test_standard_streams_are_never_a_queues_file(tmp_path: Path) -> None:
    """With descriptors 0 to 2 closed, no file of a queue gets their numbers."""
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(door.__file__).parents[2])!r})
from persistentqueue import PersistentQueue, QueueLockedError
out = os.dup(1)
os.closerange(0, 3)
with PersistentQueue({str(tmp_path)!r}, "q") as queue:
    with queue.transaction() as session:
        session.enqueue(b"x")
    low = [n for n in range(3) if os.path.exists(f"/proc/self/fd/{{n}}")]
    os.write(out, repr(low).encode())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.stdout == b"[]"


def test_a_lock_whose_library_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first lock imports ``portalocker``: the error says how to install it, and what helps a process that can no
    longer read it."""
    monkeypatch.setitem(sys.modules, "portalocker", None)
    with pytest.raises(
        ImportError, match="pip install portalocker; if it is installed, import it before a process gives up rights"
    ) as raised:
        PersistentQueue(tmp_path)
    assert raised.value.name == "portalocker"
    monkeypatch.undo()
    PersistentQueue(tmp_path).close()


def test_a_lock_without_a_directory_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process opens its first queue also if no directory takes temporary files, as on a full or read-only disk.

    The import of ``portalocker`` fails then. The opening began again each time, and never ended.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "portalocker"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    first, second = (DISK.open(str(tmp_path / "file"), door.CREATE, 0o600) for _ in range(2))
    assert (DISK.lock(first), DISK.lock(second)) == (True, False)
    DISK.close(first)
    DISK.close(second)
    with PersistentQueue(tmp_path, "q"):
        monkeypatch.undo()
        with pytest.raises(QueueLockedError):  # by portalocker itself
            PersistentQueue(tmp_path, "q")


AT_EXIT = """
import atexit, sys
from persistentqueue import PersistentQueue

def save():
    with PersistentQueue(sys.argv[1]) as queue, queue.transaction() as session:
        session.enqueue(b"last words")

atexit.register(save)
"""


def test_a_lock_at_the_end_of_the_process(tmp_path: Path) -> None:
    """A process opens its first queue also when it ends. The import of ``portalocker`` fails then if it finds a package
    ``redis``, which loads thread pools."""
    (tmp_path / "redis.py").write_text("import concurrent.futures.thread", encoding="utf-8")
    path = os.pathsep.join((str(tmp_path), *sys.path))
    command = [sys.executable, "-c", AT_EXIT, str(tmp_path / "queue")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=False)
    assert done.stderr == b""
    with PersistentQueue(tmp_path / "queue") as queue:
        assert queue.peek() == [b"last words"]


FORKING = """
import os, signal, time
from persistentqueue.system.disk import after_fork_in_child

def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    made.append("whole")

made, parent = [], os.getpid()
after_fork_in_child(interrupted)
after_fork_in_child(lambda: made.append("next"))
try:
    child = os.fork()
    while os.getpid() != parent:
        time.sleep(0.001)
except KeyboardInterrupt:
    os._exit(made != ["whole", "next"] or bool(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_interruption_waits_for_the_calls_behind_a_fork() -> None:
    """Ctrl-C that comes to a forked child in the middle of a call behind the fork raises behind all these calls."""
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("at", range(4))
def test_an_interruption_before_the_calls_behind_a_fork(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls behind a fork are made if a signal handler raises before all signals wait for them, and if one of them
    raises. Then all signals come again as before."""
    made: list[object] = []
    set_mask, times = signal.pthread_sigmask, count()

    def interrupted(how: int, mask: Iterable[int]) -> object:
        found = set_mask(how, mask)
        if next(times) == at:
            raise KeyboardInterrupt
        return found

    def call() -> None:
        made.append(set_mask(signal.SIG_BLOCK, ()) >= {signal.SIGINT, signal.SIGALRM})
        raise ZeroDivisionError

    before = set_mask(signal.SIG_BLOCK, ())
    with monkeypatch.context() as patch:
        patch.setattr(signal, "pthread_sigmask", interrupted)
        patch.setattr(door, "_CHILD_CALLS", [call, partial(made.append, "next")])
        with pytest.raises((ZeroDivisionError, KeyboardInterrupt)):
            door._begin_child()
    assert (made, set_mask(signal.SIG_BLOCK, ())) == ([True, "next"], before)


def test_a_signal_that_waited_behind_a_fork_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that came during the calls behind a fork comes to its handler when they have ended, once."""
    came: list[int] = []
    made = [partial(signal.raise_signal, signal.SIGALRM), lambda: came.append(0)]
    monkeypatch.setattr(door, "_CHILD_CALLS", made)
    before = signal.signal(signal.SIGALRM, lambda number, _: came.append(number))
    try:
        door._begin_child()
        wait_for(lambda: len(came) > 1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert came == [0, signal.SIGALRM]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_are_counted() -> None:
    """A forked child has one fork more behind it than its parent, also one that gets the process id of an ancestor."""
    before = DISK.forks()
    child = os.fork()
    if not child:  # pragma: no cover - another process
        os._exit(DISK.forks() - before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert DISK.forks() == before
