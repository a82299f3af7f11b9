"""The only door to the operating system.

Everything above this floor reaches files, the clock, randomness and the lock through one ``Disk``: a bundle of
callables with the signatures of ``os``. The real one *is* the ``os`` functions, bound once, so that the door costs
nothing; tests hand in others that fail, crash or forget. Two real ones exist:

- ``DISK``, what ``import`` chose for this system: ``pwritev`` with ``RWF_DSYNC`` where Linux has it.
  There calls go from the descriptors of the directories that an owner holds (see ``roots``).
- ``PORTABLE``, which needs neither and passes the same tests: write, then sync. Before each call below a held directory
  it looks whether the directory's name still leads there, and raises ``QueueNotFoundError`` otherwise.

A ``Disk`` knows nothing of queues. The three helpers below it only spell out what one call of the kernel may leave
undone: short writes, short reads, and names that are durable only once their directory is synced.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import portalocker

from ..errors import ClosedError, DiskFullError, OutOfMemoryError, QueueNotFoundError, TooManyFilesError

try:
    import fcntl
except ImportError:  # pragma: no cover - not a POSIX system
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
Buffers = Sequence[bytes | bytearray | memoryview]

READ, WRITE = os.O_RDONLY, os.O_RDWR
CREATE, CREATE_NEW = os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_EXCL
"""How ``Disk.open`` is asked for a file: to read, to write, to write and make it if it is missing, to make it."""
DIRECTORY = getattr(os, "O_DIRECTORY", 0)
"""The same for a directory: to read."""
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Beside ``DIRECTORY``: follow no link at the last component. Files are always opened so."""
StrPath = str | os.PathLike[str]
StatResult = os.stat_result
basename, abspath, relpath, fspath = os.path.basename, os.path.abspath, os.path.relpath, os.fspath
"""Paths are text to everybody above this floor."""

DSYNC = getattr(os, "RWF_DSYNC", 2)
"""Flag of ``Disk.pwritev``: return only when the bytes, and what is needed to read them back, are durable."""

NO_SPACE = DiskFullError.errnos
"""The errors that mean "no room": nothing is wrong with the device, and the same write may succeed later."""
NO_FILES = TooManyFilesError.errnos
"""The errors that mean "no descriptor": the call was not begun. No sync and no write raises them."""
LACKING = NO_SPACE | NO_FILES | OutOfMemoryError.errnos
"""The errors that mean that the system lacks something: the same call may succeed later, if it is no sync."""

# One call takes at most this many buffers (IOV_MAX on Linux) and this many bytes (MAX_RW_COUNT on Linux).
BUFFERS_PER_CALL = 1024
PAGE_BYTES = 4096
"""What direct writes are made of; no disk in use has larger sectors."""
_ZEROS = bytes(1024 * 1024)
_LOWEST_DESCRIPTOR = 3
_STAT_BLOCK_BYTES = 512
_clock_ns = time.time_ns


@dataclass(frozen=True)
class Disk:
    """The callables that the core may use; signatures and errors are those of ``os`` where it has the name."""

    open: Callable[[str, int, int], int]
    """``open(path, flags, mode)``. Never returns 0, 1 or 2, and follows no link at the last component, unless it is
    asked for a ``DIRECTORY``, to sync the names in it: a queue may be made where a link leads."""
    open_direct: Callable[[str], int | None]
    """``open_direct(path)``: open a file to write it past the page cache, in multiples of ``PAGE_BYTES`` at such
    offsets, out of ``page_memory``; None where that does not go."""
    close: Callable[[int], None]
    pread: Callable[[int, int, int], bytes]
    """``pread(fd, length_bytes, offset)``; may return less."""
    pwritev: Callable[[int, Buffers, int, int], int]
    """``pwritev(fd, buffers, offset, flags)``; may write less; ``flags`` is 0 or ``DSYNC``."""
    fdatasync: Callable[[int], None]
    start_sync: Callable[[int, int, int], None]
    """``start_sync(fd, offset, length_bytes)``: a hint to begin writing these bytes to the device, without waiting, so
    that a later sync finds less to do. Promises nothing, and may do nothing."""
    fsync: Callable[[int], None]
    """Used on directories: makes the names in them durable."""
    ftruncate: Callable[[int, int], None]
    fallocate: Callable[[int, int, int], None]
    """``fallocate(fd, offset, length_bytes)``: reserve room and extend the size; the new bytes read as zeros."""
    rename: Callable[[str, str], None]
    unlink: Callable[[str], None]
    mkdir: Callable[[str, int], None]
    rmdir: Callable[[str], None]
    listdir: Callable[[str], list[str]]
    lstat: Callable[[str], os.stat_result]
    fstat: Callable[[int], os.stat_result]
    real_bytes: Callable[[int], int]
    """``real_bytes(fd)``: how many bytes of the open file are there, without its holes."""
    free_bytes: Callable[[str], int]
    """``free_bytes(path)``: what the file system of an existing path has free for who is not root."""
    lock: Callable[[int], bool]
    """``lock(fd)``: take the exclusive lock on the open file without waiting; whether it was free."""
    urandom: Callable[[int], bytes]
    time_ns: Callable[[], int]
    """Nanoseconds since the epoch, never below 0: for people only, never for an order or a decision."""
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    getpid: Callable[[], int]
    geteuid: Callable[[], int | None]
    """The user that this process acts for; None if the system has no users."""
    fchmod: Callable[[int, int], None]
    gethostname: Callable[[], str]
    failpoint: Callable[[str], None]
    """Called with the name of the step that comes next, wherever a crash makes a difference. Does nothing."""
    hold: Callable[[str], None] = deque[str](maxlen=0).append
    """``hold(path)``: from now on reach what is below the path through the directory that it leads to now. Only an
    owner's door does so (see ``roots``); others do nothing."""


class Root:
    """A directory that is held open.

    A thread may use the descriptor while another thread closes the directory: the last one of them closes the
    descriptor. So its number is not another file's while a call is under way.
    """

    __slots__ = ("_calls", "_disk", "_identity", "_is_closed", "_pid", "fd", "path", "prefix")

    def __init__(self, disk: Disk, path: str, fd: int, found: os.stat_result) -> None:
        self._disk = disk
        self.path = path
        self.prefix = join(path, "")
        self.fd = fd
        self._identity = found.st_dev, found.st_ino
        self._calls: list[None] = []
        """One entry for each call that is under way."""
        self._is_closed = False
        self._pid = disk.getpid()

    def __enter__(self) -> int:
        self._calls.append(None)
        if self._is_closed:
            self.__exit__()
            raise ClosedError(f"{self.path}: the queue of this directory is closed: open it again")
        return self.fd

    def __exit__(self, *_: object) -> None:
        self._calls.pop()
        if self._is_closed and not self._calls:
            self._close()

    def __del__(self) -> None:
        self._close()

    def close(self) -> None:
        """Close the descriptor, once no call is under way; in a forked child at once, where there are none."""
        self._is_closed = True
        if not self._calls or self._disk.getpid() != self._pid:
            self._close()

    def _close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._disk.close(fd)

    def is_found(self, found: os.stat_result) -> bool:
        """Return whether this is what was found under a name."""
        return (found.st_dev, found.st_ino) == self._identity

    def is_deleted(self) -> bool:
        """Return whether the directory was deleted."""
        with self as fd:
            return self._disk.fstat(fd).st_nlink == 0


class Below(str):
    """A path below a root, and ``rest``, the way to it from there.

    The calls of a ``Disk`` that take a path go from the root's descriptor if they are given one of these. It is text
    like any other path to what stands between, as the doors of tests do.
    """

    __slots__ = ("rest", "root")

    root: Root
    rest: str


def below(path: str, root: Root, rest: str) -> Below:
    """Make the path one below the root."""
    found = Below(path)
    found.root, found.rest = root, rest
    return found


def join(directory: str, name: str) -> str:
    """The path of what has this name, a relative one, in the directory; "" is the current one."""
    # An opening makes dozens of paths; os.path.join, for any number of parts of any kind, takes four times as long.
    return directory + name if directory[-1:] in {"", "/"} else f"{directory}/{name}"


def dirname(path: str) -> str:
    """What ``join`` joined the last name to."""
    above, slash, _ = path.rpartition("/")
    return above.rstrip("/") or slash


def write_all(disk: Disk, fd: int, buffers: Buffers, length_bytes: int, offset: int, flags: int = 0) -> None:
    """Write the buffers, ``length_bytes`` in all, one after the other at ``offset``.

    One call of the kernel in the usual case. With ``DSYNC`` in ``flags`` all of it is durable on return.
    """
    written_bytes = disk.pwritev(fd, buffers, offset, flags) if len(buffers) <= BUFFERS_PER_CALL else 0
    if written_bytes != length_bytes:
        _write_rest(disk, fd, buffers, offset, flags, written_bytes)


def _write_rest(disk: Disk, fd: int, buffers: Buffers, offset: int, flags: int, written_bytes: int) -> None:
    """Go on after a short write, or with more buffers than one call takes."""
    views: list[memoryview] = []
    skip_bytes = written_bytes
    for buffer in buffers:
        view = memoryview(buffer)
        if skip_bytes < len(view):
            views.append(view[skip_bytes:])
            skip_bytes = 0
        else:
            skip_bytes -= len(view)
    start = 0
    while start < len(views):
        chunk = views[start : start + BUFFERS_PER_CALL]
        count_bytes = disk.pwritev(fd, chunk, offset + written_bytes, flags)
        if count_bytes == 0:
            raise OSError(errno.EIO, "a write accepted no bytes")
        written_bytes += count_bytes
        while start < len(views) and count_bytes >= len(views[start]):
            count_bytes -= len(views[start])
            start += 1
        if count_bytes:
            views[start] = views[start][count_bytes:]


def read_all(disk: Disk, fd: int, length_bytes: int, offset: int) -> bytes:
    """Read up to ``length_bytes`` at ``offset``; less only where the file ends."""
    data = disk.pread(fd, length_bytes, offset)
    if len(data) == length_bytes or not data:
        return data
    parts = [data]
    have_bytes = len(data)
    while have_bytes < length_bytes:
        data = disk.pread(fd, length_bytes - have_bytes, offset + have_bytes)
        if not data:
            break
        parts.append(data)
        have_bytes += len(data)
    return b"".join(parts)


def write_zeros(disk: Disk, fd: int, start: int, end: int) -> None:
    """Write zeros to ``start … end`` of the file, not durably."""
    for at in range(start, end, len(_ZEROS)):
        chunk = _ZEROS[: end - at]
        write_all(disk, fd, [chunk], len(chunk), at)


def copy_file(disk: Disk, source_path: str, target_path: str) -> int:
    """Make a file with the same content, durable but for its name; how many bytes. Raises ``FileExistsError``."""
    source = disk.open(source_path, READ, 0)
    try:
        target = disk.open(target_path, CREATE_NEW, 0o600)
        try:
            offset = 0
            while data := disk.pread(source, len(_ZEROS), offset):
                write_all(disk, target, [data], len(data), offset)
                offset += len(data)
            disk.fdatasync(target)
        finally:
            disk.close(target)
    finally:
        disk.close(source)
    return offset


def wipe_file(disk: Disk, path: str) -> None:
    """Write zeros over all that the file holds, durably. Where the device keeps old copies, it keeps them.

    Not if it has other names: a power cut can bring an old one back beside that of a file which is needed.
    """
    fd = disk.open(path, WRITE, 0)
    try:
        found = disk.fstat(fd)
        write_zeros(disk, fd, 0, found.st_size if found.st_nlink == 1 else 0)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)


def page_memory(size_bytes: int) -> memoryview:
    """Memory for direct writes: zeros, at an address that is a multiple of a page."""
    return memoryview(mmap.mmap(-1, size_bytes))


def sync_directory(disk: Disk, path: str) -> None:
    """Make the names in the directory durable: those that came as well as those that went."""
    with names_of(disk, path) as sync:
        sync()


@contextmanager
def names_of(disk: Disk, path: str) -> Iterator[Callable[[], None]]:
    """Yield what makes the names in the directory durable, and needs no descriptor for it any more.

    A step that must not fail for want of a descriptor opens the directory before it begins.
    """
    fd = disk.open(path, READ | DIRECTORY, 0)
    try:
        yield partial(disk.fsync, fd)
    finally:
        disk.close(fd)


def make_directory(disk: Disk, path: str) -> None:
    """Make the directory, and those above it, with mode 0700 where they are missing, and their names durable.

    Refuses a link, or a file, in the place of the directory itself.
    """
    if not _has_directory(disk, path):
        _make_missing(disk, path)


def make_parts(disk: Disk, paths: Iterable[str]) -> list[str]:
    """The same for several that have what is above them, but for their names: the directories to sync for these."""
    missing = [path for path in paths if not _has_directory(disk, path)]
    for path in missing:
        _make(disk, path)
    return list(dict.fromkeys(dirname(path) or "." for path in missing))


def _has_directory(disk: Disk, path: str) -> bool:
    try:
        mode = disk.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, "expected a directory, and no link to one", path)
    return True


def _make(disk: Disk, path: str) -> None:
    with suppress(FileExistsError):  # another process came first
        disk.mkdir(path, 0o700)


def _make_missing(disk: Disk, path: str) -> None:
    above = dirname(path.rstrip("/")) or "."
    try:
        disk.lstat(above)
    except FileNotFoundError:
        _make_missing(disk, above)
    _make(disk, path)
    sync_directory(disk, above)


def sync_names(disk: Disk, path: str) -> None:
    """Make durable what is in the directory, its own name, and the names of those above it.

    For directories that are there already: whoever made them may have been killed before they were durable. One that
    cannot be read was not made by us.
    """
    while True:
        with suppress(PermissionError, FileNotFoundError):  # nor one whose name has changed meanwhile
            sync_directory(disk, path)
        above = dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")
        if path in {"/", "."}:
            return
        path = above


def after_fork_in_child(callback: Callable[[], None]) -> None:
    """Have ``callback`` called in every child that this process forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=callback)


def _reach(call: Callable[..., T], path: str, *arguments: object) -> T:
    """Make the call with the path; below a root, from the root's descriptor."""
    if type(path) is not Below:
        return call(path, *arguments)
    with path.root as fd:
        try:
            return call(path.rest, *arguments, dir_fd=fd)
        except OSError as error:
            error.filename = str(path)
            raise


def _reach_by_name(call: Callable[..., T], path: str, *arguments: object) -> T:
    """Make the call with the path; below a root, only if the root's path still leads there."""
    if type(path) is Below:
        _need_name(path.root)
    return call(path, *arguments)


def _need_name(root: Root) -> None:
    with root, suppress(FileNotFoundError, NotADirectoryError):
        if root.is_found(os.stat(root.path)):
            return
    raise QueueNotFoundError(
        f"{root.path}: the directory was renamed or deleted while it was open, and on this disk no call can follow it: "
        "close the queue, and open it by the name that it has now"
    )


def _open(path: str, flags: int, mode: int) -> int:
    return _checked(_reach(os.open, path, _flags(flags), mode))


def _open_by_name(path: str, flags: int, mode: int) -> int:
    return _checked(_reach_by_name(os.open, path, _flags(flags), mode))


def _flags(flags: int) -> int:
    no_link = 0 if flags & DIRECTORY else NO_LINK
    # Whoever puts a pipe where a file should be makes an error of it, and nobody wait.
    return flags | os.O_CLOEXEC | os.O_NONBLOCK | no_link


def _checked(fd: int) -> int:
    if fd >= _LOWEST_DESCRIPTOR:
        return fd
    # With a standard stream closed, a file of ours would take its number, and a stray print would write into it.
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_DESCRIPTOR)
    finally:
        os.close(fd)


def _open_direct(path: str) -> int | None:
    try:
        return _open(path, os.O_RDWR | os.O_DIRECT, 0)
    except OSError:  # not on this file system; whatever else is wrong the usual way will tell
        return None


def _rename(source: str, target: str) -> None:
    if type(source) is not Below and type(target) is not Below:
        os.replace(source, target)
        return
    with _descriptor(source) as source_fd, _descriptor(target) as target_fd:
        try:
            os.replace(_rest(source), _rest(target), src_dir_fd=source_fd, dst_dir_fd=target_fd)
        except OSError as error:
            error.filename, error.filename2 = str(source), str(target)
            raise


def _rename_by_name(source: str, target: str) -> None:
    for path in (source, target):
        if type(path) is Below:
            _need_name(path.root)
    os.replace(source, target)


def _descriptor(path: str) -> AbstractContextManager[int | None]:
    return path.root if isinstance(path, Below) else nullcontext()


def _rest(path: str) -> str:
    return path.rest if isinstance(path, Below) else path


def _listdir(path: str) -> list[str]:
    return _with_directory(_names_at, path)


def _names_at(path: str | int) -> list[str]:
    return os.listdir(path)


def _with_directory(call: Callable[[str | int], T], path: str) -> T:
    """Make a call that takes a path or a descriptor, and no path from a descriptor."""
    if type(path) is not Below:
        return call(path)
    fd = _open(path, READ | DIRECTORY, 0)
    try:
        return call(fd)
    finally:
        os.close(fd)


def _fallocate(fd: int, offset: int, length_bytes: int) -> None:
    try:
        os.posix_fallocate(fd, offset, length_bytes)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            raise
        _extend(fd, offset, length_bytes)


def _extend(fd: int, offset: int, length_bytes: int) -> None:
    if os.fstat(fd).st_size < offset + length_bytes:
        os.ftruncate(fd, offset + length_bytes)


def _real_bytes(fd: int) -> int:
    found = os.fstat(fd)
    if found.st_blocks * _STAT_BLOCK_BYTES >= found.st_size:
        return found.st_size
    # Some file systems count blocks late, or compressed, or not at all: those that know of holes are asked.
    real_bytes = end = 0
    try:
        while True:
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
            real_bytes += end - start
    except OSError as error:  # nothing but holes from here on, or nobody knows
        return real_bytes if error.errno == errno.ENXIO else found.st_size


def _free_bytes(path: str) -> int:
    return _with_directory(_free_bytes_at, path)


def _free_bytes_at(path: str | int) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _time_ns() -> int:
    """Return the time; 0 if the clock is set to before 1970, since no format has a sign for it."""
    now_ns = _clock_ns()
    return now_ns if now_ns > 0 else 0  # max() takes as long as the clock


def _start_sync(fd: int, offset: int, length_bytes: int) -> None:
    # Linux answers "not needed any more" by beginning to write what is dirty; what is being written stays in memory.
    os.posix_fadvise(fd, offset, length_bytes, os.POSIX_FADV_DONTNEED)


def _lock(fd: int) -> bool:
    try:
        portalocker.lock(fd, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
    except (portalocker.AlreadyLocked, BlockingIOError):
        return False
    except portalocker.LockException as error:  # not held by anybody, but refused
        raise next((each for each in error.args if isinstance(each, OSError)), OSError(str(error))) from None
    return True


def _portable_pwritev(fd: int, buffers: Buffers, offset: int, flags: int) -> int:
    written_bytes = os.pwrite(fd, b"".join(buffers), offset)
    if flags & DSYNC:
        _portable_sync(fd)
    return written_bytes


def _portable_sync(fd: int) -> None:
    """``fsync``, and on macOS the call that also empties the drive's cache, where the file system has it."""
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        try:
            fcntl.fcntl(fd, full_sync)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.EINVAL}:
                raise
        else:
            return
    os.fsync(fd)


PORTABLE = Disk(
    open=_open_by_name,
    open_direct=lambda _path: None,
    close=os.close,
    pread=os.pread,
    pwritev=_portable_pwritev,
    fdatasync=_portable_sync,
    start_sync=lambda _fd, _offset, _length_bytes: None,
    fsync=os.fsync,
    ftruncate=os.ftruncate,
    fallocate=_extend,
    rename=_rename_by_name,
    unlink=partial(_reach_by_name, os.unlink),
    mkdir=partial(_reach_by_name, os.mkdir),
    rmdir=partial(_reach_by_name, os.rmdir),
    listdir=partial(_reach_by_name, os.listdir),
    lstat=partial(_reach_by_name, os.lstat),
    fstat=os.fstat,
    real_bytes=_real_bytes,
    free_bytes=partial(_reach_by_name, _free_bytes_at),
    lock=_lock,
    urandom=os.urandom,
    time_ns=_time_ns,
    monotonic=time.monotonic,
    sleep=time.sleep,
    getpid=os.getpid,
    geteuid=getattr(os, "geteuid", lambda: None),
    fchmod=os.fchmod,
    gethostname=socket.gethostname,
    failpoint=deque[str](maxlen=0).append,  # takes anything, keeps nothing, and is no function of Python's
)

DISK = PORTABLE
if {os.open, os.rename, os.unlink, os.mkdir, os.rmdir, os.stat} <= os.supports_dir_fd and os.listdir in os.supports_fd:
    DISK = replace(
        DISK,
        open=_open,
        rename=_rename,
        unlink=partial(_reach, os.unlink),
        mkdir=partial(_reach, os.mkdir),
        rmdir=partial(_reach, os.rmdir),
        listdir=_listdir,
        lstat=partial(_reach, os.lstat),
        free_bytes=_free_bytes,
    )
if hasattr(os, "RWF_DSYNC") and hasattr(os, "pwritev"):
    DISK = replace(DISK, pwritev=os.pwritev, fdatasync=os.fdatasync, start_sync=_start_sync, fallocate=_fallocate)
if hasattr(os, "O_DIRECT"):
    DISK = replace(DISK, open_direct=_open_direct)
