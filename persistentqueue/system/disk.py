"""The interface to the operating system: files, the clock, randomness and the lock.

All modules above reach them through one ``Disk``: a bundle of callables with the signatures of ``os``. The real one
holds the ``os`` functions themselves, bound once, so that the indirection costs nothing. Tests pass others, which fail,
crash or forget. There are two real ones:

- ``DISK``, which ``import`` selects for this system. It uses ``pwritev`` with ``RWF_DSYNC`` if Linux has it. Its calls
  start at the descriptors of the directories that an owner holds (see ``directory_handles``), if the system can do so.
- ``PORTABLE``, which needs neither and passes the same tests. It writes, then syncs. Before each call below a held
  directory it checks that the name of the directory still leads there. Otherwise it raises ``QueueNotFoundError``.

A ``Disk`` knows nothing of queues. The module ``files`` completes the work that one of its calls may leave undone.
"""

from __future__ import annotations

import _thread
import errno
import mmap
import os
import signal
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from ..errors import (
    ClosedError,
    DiskFullError,
    OutOfMemoryError,
    PathMissingError,
    QueueNotFoundError,
    TooManyFilesError,
)
from .path_errors import ABSENT, faults

try:
    import fcntl
except ImportError:  # pragma: no cover - not a POSIX system
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
Buffers = Sequence[bytes | bytearray | memoryview]

READ, WRITE = os.O_RDONLY, os.O_RDWR
CREATE, CREATE_NEW = os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_EXCL
"""Flags of ``Disk.open``: ``READ`` reads, ``WRITE`` also writes, ``CREATE`` also makes a missing file. ``CREATE_NEW``
makes the file and fails if it exists.
"""
DIRECTORY = getattr(os, "O_DIRECTORY", 0)
"""Flag of ``Disk.open`` beside ``READ``: open a directory."""
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Flag of ``Disk.open`` beside ``DIRECTORY``: follow no link at the last component. For files it is always set."""
StrPath = str | os.PathLike[str]
StatResult = os.stat_result
basename, realpath, relpath, samestat = os.path.basename, os.path.realpath, os.path.relpath, os.path.samestat
"""Functions on paths and on what is found there. Above this module paths are text."""

DSYNC = getattr(os, "RWF_DSYNC", 2)
"""Flag of ``Disk.pwritev``: return only when the bytes are durable, and all that is needed to read them back."""

NO_SPACE = DiskFullError.errnos
"""Error numbers that mean "no space". Nothing is wrong with the device, and the same write may succeed later."""
NO_FILES = TooManyFilesError.errnos
"""Error numbers that mean "no descriptor". The call was not begun. No sync and no write raises them."""
LACKING = NO_SPACE | NO_FILES | OutOfMemoryError.errnos
"""Error numbers that mean that the system lacks a resource. The same call may succeed later, unless it is a sync."""

PAGE_BYTES = 4096
"""Unit of direct writes, in bytes. No disk in use has larger sectors."""
LOWEST_DESCRIPTOR = 3
"""Lowest number that a file of a queue has: those below are the standard streams."""
_STAT_BLOCK_BYTES = 512
_clock_ns = time.time_ns


@dataclass(frozen=True, repr=False)
class Disk:
    """The callables that the package may use.

    A callable that ``os`` also has keeps the signature and the errors of ``os``.
    """

    open: Callable[[str, int, int], int]
    """``open(path, flags, mode)``: return a descriptor above 2. It follows no link at the last component, except with
    the flag ``DIRECTORY``, which serves to sync names: a queue may be made where a link leads.
    """
    open_direct: Callable[[str], int | None]
    """``open_direct(path)``: open a file for writes that bypass the operating system's page cache. Their lengths and
    offsets are multiples of ``PAGE_BYTES``, and their data lies in ``page_memory``. None if the file cannot be opened
    so.
    """
    close_file: Callable[[int], None]
    """``close_file(fd)``; the package calls ``close``."""
    pread: Callable[[int, int, int], bytes]
    """``pread(fd, length_bytes, offset)``; may return fewer bytes."""
    pwritev: Callable[[int, Buffers, int, int], int]
    """``pwritev(fd, buffers, offset, flags)``; may write fewer bytes. ``flags`` is 0 or ``DSYNC``."""
    fdatasync: Callable[[int], None]
    start_sync: Callable[[int, int, int], None]
    """``start_sync(fd, offset, length_bytes)``: hint that the system should begin to write these bytes to the device.
    The call does not wait, and a later sync finds less to do. It promises nothing, and may do nothing.
    """
    fsync: Callable[[int], None]
    """``fsync(fd)`` of a directory: make the names in it durable."""
    ftruncate: Callable[[int, int], None]
    fallocate: Callable[[int, int, int], None]
    """``fallocate(fd, offset, length_bytes)``: reserve space and extend the file. The new bytes read as zeros."""
    rename: Callable[[str, str], None]
    link: Callable[[str, str], None]
    """``link(source, target)``: give a file another name. Raises ``FileExistsError`` if that name is taken."""
    unlink: Callable[[str], None]
    mkdir: Callable[[str, int], None]
    rmdir: Callable[[str], None]
    listdir: Callable[[str], list[str]]
    lstat: Callable[[str], os.stat_result]
    fstat: Callable[[int], os.stat_result]
    real_bytes: Callable[[int], int]
    """``real_bytes(fd)``: the number of bytes that the open file really stores, without its holes."""
    free_bytes: Callable[[str], int]
    """``free_bytes(path)``: the bytes that the file system of an existing path has free for processes other than
    root's.
    """
    lock: Callable[[int], bool]
    """``lock(fd)``: take the exclusive lock on the open file without waiting. Returns whether the lock was free."""
    urandom: Callable[[int], bytes]
    time_ns: Callable[[], int]
    """Nanoseconds since the epoch, never below 0. The time is information for people, and never decides an order."""
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    getpid: Callable[[], int]
    forks: Callable[[], int]
    """``forks()``: the number of forks from the first process to this one. A descendant may get the ``getpid`` of an
    ancestor that has ended, or that lives in another namespace of processes. It never has the ``forks`` of one.
    """
    geteuid: Callable[[], int | None]
    """The effective user of this process; None if the system has no users."""
    fchmod: Callable[[int, int], None]
    fchown: Callable[[int, int, int], None]
    """``fchown(fd, uid, gid)``; -1 leaves the user or the group as it is."""
    gethostname: Callable[[], str]
    failpoint: Callable[[str], None]
    """Called with the name of the next step, wherever a crash makes a difference. The real one does nothing."""
    hold: Callable[[str], None] = deque[str](maxlen=0).append
    """``hold(path)``: from now on, reach all paths below this one through the directory that it leads to now. Only the
    ``Disk`` of an owner does so (see ``directory_handles``); others do nothing.
    """

    def __repr__(self) -> str:
        """Return a short text: signatures show it."""
        return f"<{type(self).__name__}>"

    @contextmanager
    def opened(self, path: str, flags: int = READ, mode: int = 0) -> Iterator[int]:
        """Yield a descriptor of the file, and ``close`` it at the end of the block."""
        fd = self.open(path, flags, mode)
        try:
            yield fd
        finally:
            self.close(fd)

    def close(self, fd: int, told: Set[int] = frozenset()) -> None:
        """Close a file that was only read or synced, or whose unsynced bytes are not needed. Raises only errors in
        ``told``.

        On Linux a close that fails has closed the file, and is never repeated: its number may be another file's. NFS
        writes the rest of a file at its close. An error there says nothing of bytes that were read, or synced before.
        """
        _close(self.close_file, fd, told)


_CLOSED_BEFORE = frozenset({errno.EBADF})
"""No answer of a file system, but a bug."""


def _close(close: Callable[[int], None], fd: int, told: Set[int] = frozenset()) -> None:
    try:
        close(fd)
    except faults(OSError) as error:
        if error.errno in _CLOSED_BEFORE | told:
            raise


class _Descriptor:
    """A descriptor that is closed with the last reference to it. A closed directory has none: a Ctrl-C is lost in a
    finalizer."""

    __slots__ = ("_disk", "_fds")

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk, self._fds = disk, [fd]

    def __del__(self) -> None:
        try:
            fd = self._fds.pop()  # one of two threads gets it: the number may be another file's after the close
        except (AttributeError, IndexError):  # of an object that was interrupted before it had any
            return
        self._disk.close(fd)

    close = __del__


class Root:
    """A directory that is held open.

    One thread may use the descriptor while another thread closes the directory. Then the last call that ends closes the
    descriptor, so its number cannot become that of another file during a call.
    """

    __slots__ = ("_calls", "_descriptor", "_disk", "_forks", "_identity", "_is_closed", "fd", "path", "prefix")

    def __init__(self, disk: Disk, path: str, fd: int, found: os.stat_result) -> None:
        self._disk = disk
        self.path = path
        self.prefix = join(path, "")
        self.fd = fd
        self._descriptor: _Descriptor | None = _Descriptor(disk, fd)
        self._identity = found.st_dev, found.st_ino
        self._calls: list[None] = []
        """One entry for each call that is under way."""
        self._is_closed = False
        self._forks = disk.forks()

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

    def close(self) -> None:
        """Close the descriptor as soon as no call is under way.

        A forked child closes it at once: the threads that were in a call do not exist there.
        """
        self._is_closed = True
        if not self._calls or self._disk.forks() != self._forks:
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor, self.fd = self._descriptor, None, -1
        if descriptor is not None:
            descriptor.close()

    def is_found(self, found: os.stat_result) -> bool:
        """Return whether ``found`` describes this directory."""
        return (found.st_dev, found.st_ino) == self._identity

    def is_deleted(self) -> bool:
        """Return whether the directory was deleted."""
        with self as fd:
            return self._disk.fstat(fd).st_nlink == 0


class Below(str):
    """A path below a root, and ``rest``, the way to it from there.

    The calls of a ``Disk`` that take a path start at the root's descriptor if they get such a path. For code in
    between, such as the disks of tests, it is text like any other path.
    """

    __slots__ = ("rest", "root")

    root: Root
    rest: str


def below(path: str, root: Root, rest: str) -> Below:
    """Return the path as one below the root."""
    found = Below(path)
    found.root, found.rest = root, rest
    return found


def join(directory: str, name: str) -> str:
    """Return the path of ``name``, a relative one, in the directory; "" is the current directory."""
    # An opening makes dozens of paths. os.path.join takes any number of parts of any kind, and four times as long.
    return directory + name if directory[-1:] in {"", "/"} else f"{directory}/{name}"


def dirname(path: str) -> str:
    """Return the directory to which ``join`` added the last name of the path."""
    above, slash, _ = path.rpartition("/")
    return above.rstrip("/") or slash


def device_numbers(device: int) -> tuple[int, int]:
    """Return the major and the minor number of a device, as ``stat`` gives it."""
    return (device >> 8) & 0xFFF | (device >> 32) & ~0xFFF, device & 0xFF | (device >> 12) & ~0xFF


def page_memory(size_bytes: int) -> memoryview:
    """Return memory for direct writes: zeros, at an address that is a multiple of a page."""
    return memoryview(mmap.mmap(-1, size_bytes))


def range_lock_holder(path: str, start: int, length_bytes: int) -> int | None:
    """Return the process that has a POSIX lock on these bytes of the file; None if there is none, or none is known.

    The file is not changed. As always with POSIX locks, the call ends those that this process itself has on the file.
    """
    if not hasattr(fcntl, "F_GETLK"):  # pragma: no cover - not a POSIX system
        return None
    # The fields of ``struct flock``: type, whence, start, length, process; macOS has the first two last.
    form, first = ("qqihh", 3) if sys.platform == "darwin" else ("hhqqi0q", 0)
    fields: list[int] = [start, length_bytes, 0]
    fields[first:first] = [fcntl.F_WRLCK, os.SEEK_SET]
    fd = os.open(path, os.O_RDONLY)
    try:
        found = struct.unpack(form, fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(form, *fields)))
    finally:
        _close(os.close, fd)
    return None if found[first] == fcntl.F_UNLCK else found[2 if first else 4]


def fspath(path: StrPath, name: str = "path") -> str:
    """Return the path as text; ``name`` is that of the argument.

    Raises ``TypeError`` for bytes, and ``ValueError`` for a path that no file can have.
    """
    text: object = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(f"{name} must be text or a path object, such as pathlib.Path, not {text!r}")
    if not text:  # often that of a variable that is not set; the system would take it for the working directory
        raise ValueError(f'{name} is empty: pass the path of a directory; "." is the working directory')
    if "\0" in text:
        raise ValueError(f"{name} must not contain a NUL character, got {text!r}")
    return text


def abspath(path: StrPath, name: str = "path") -> str:
    """Return the path from the root. Raises the errors of ``fspath``, and ``PathMissingError``."""
    text = fspath(path, name)
    try:
        return os.path.abspath(text)
    except FileNotFoundError as error:
        what = "the working directory was deleted: change to another one, or pass an absolute path"
        raise PathMissingError(error.errno, what, text) from error


_CHILD_CALLS: list[Callable[[], object]] = []


def after_fork_in_child(callback: Callable[[], object]) -> None:
    """Register ``callback`` to be called in every child that this process forks. No signal handler interrupts it."""
    _CHILD_CALLS.append(callback)


def _begin_child() -> None:
    """Make the registered calls, in order, while all signals wait.

    Python only prints what a handler raises here. Then a call could stay half done: the child could keep the lock of
    its parent's queue, or use its parent's connection.
    """
    masks: list[set[int | signal.Signals]] = []
    try:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
    except BaseException:  # of a handler, before all signals were blocked
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
    with ExitStack() as stack:  # the error of a call keeps no other call from being made
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, masks[0])
        stack.callback(_postpone)
        for call in reversed(_CHILD_CALLS):
            stack.callback(call)


def _postpone() -> None:
    """Let the waiting signals with handlers of Python come behind the fork: here, the error of a handler is lost."""
    for number in signal.sigpending():
        if callable(signal.getsignal(number)):
            signal.sigwait((number,))
            _thread.start_new_thread(_send_later, (number,))


def _send_later(number: int) -> None:
    time.sleep(_BEHIND_FORK_SECONDS)
    os.kill(os.getpid(), number)


_BEHIND_FORK_SECONDS = 0.02
"""Time in which the calls of other packages behind a fork have ended, in seconds."""
if hasattr(os, "register_at_fork"):
    _ALL_SIGNALS = signal.valid_signals()
    os.register_at_fork(after_in_child=_begin_child)


_FORKS: list[None] = []
"""One entry for each fork from the first process to this one."""
after_fork_in_child(partial(_FORKS.append, None))


def _reach(call: Callable[..., T], path: str, *arguments: object) -> T:
    """Make the call with the path. Below a root, start at the root's descriptor."""
    if type(path) is not Below:
        return call(path, *arguments)
    with path.root as fd:
        try:
            return call(path.rest, *arguments, dir_fd=fd)
        except faults(OSError) as error:
            error.filename = str(path)
            raise


def _reach_by_name(call: Callable[..., T], path: str, *arguments: object) -> T:
    """Make the call with the path. Below a root, first check that the root's path still leads there."""
    if type(path) is Below:
        _need_name(path.root)
    return call(path, *arguments)


def _need_name(root: Root) -> None:
    with root, suppress(*ABSENT):
        if root.is_found(os.stat(root.path)):
            return
    raise QueueNotFoundError(
        f"{root.path}: the directory was renamed or deleted while it was open, and this system cannot reach it without "
        "its old name: close the queue, and open it under its present name"
    )


def _open(path: str, flags: int, mode: int) -> int:
    return _checked(_reach(os.open, path, _flags(flags), mode))


def _open_by_name(path: str, flags: int, mode: int) -> int:
    return _checked(_reach_by_name(os.open, path, _flags(flags), mode))


def _flags(flags: int) -> int:
    no_link = 0 if flags & DIRECTORY else NO_LINK
    # O_NONBLOCK: a pipe in the place of a file causes an error, and not an endless wait.
    return flags | os.O_CLOEXEC | os.O_NONBLOCK | no_link


def _checked(fd: int) -> int:
    if fd >= LOWEST_DESCRIPTOR:
        return fd
    # If a standard stream is closed, a file of the queue would get its number, and a stray print would write into it.
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR)
    finally:
        _close(os.close, fd)


def _open_direct(path: str) -> int | None:
    try:
        return _open(path, os.O_RDWR | os.O_DIRECT, 0)
    except faults(OSError):  # this file system cannot; the usual way reports any other error
        return None


def _reach_both(call: Callable[..., None], source: str, target: str) -> None:
    """Make a call with two paths. Below a root, each starts at its root's descriptor."""
    if type(source) is not Below and type(target) is not Below:
        call(source, target)
        return
    with _descriptor(source) as source_fd, _descriptor(target) as target_fd:
        try:
            call(_rest(source), _rest(target), src_dir_fd=source_fd, dst_dir_fd=target_fd)
        except faults(OSError) as error:
            error.filename, error.filename2 = str(source), str(target)
            raise


def _reach_both_by_name(call: Callable[..., None], source: str, target: str) -> None:
    for path in (source, target):
        if type(path) is Below:
            _need_name(path.root)
    call(source, target)


def _descriptor(path: str) -> AbstractContextManager[int | None]:
    return path.root if isinstance(path, Below) else nullcontext()


def _rest(path: str) -> str:
    return path.rest if isinstance(path, Below) else path


def _with_directory(call: Callable[..., T], path: str) -> T:
    """Make a call that takes a path or a descriptor, but no path relative to a descriptor."""
    if type(path) is not Below:
        return call(path)
    fd = _open(path, READ | DIRECTORY, 0)
    try:
        return call(fd)
    finally:
        _close(os.close, fd)


def _fallocate(fd: int, offset: int, length_bytes: int) -> None:
    try:
        os.posix_fallocate(fd, offset, length_bytes)
    except faults(OSError) as error:
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
    # Some file systems count blocks late, or compressed, or not at all. Then the holes are found by lseek.
    real_bytes = end = 0
    try:
        while True:
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
            real_bytes += end - start
    except faults(OSError) as error:  # ENXIO: only a hole follows; else unknown
        return real_bytes if error.errno == errno.ENXIO else found.st_size


def _free_bytes_at(path: str | int) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _time_ns() -> int:
    """Return the time, or 0 if the clock is set to before 1970, since no format has a sign for it."""
    now_ns = _clock_ns()
    return now_ns if now_ns > 0 else 0  # max() takes as long as the clock itself


def _gethostname() -> str:
    return os.uname().nodename


def _start_sync(fd: int, offset: int, length_bytes: int) -> None:
    # On POSIX_FADV_DONTNEED Linux begins to write dirty pages. Pages that are being written stay in memory.
    os.posix_fadvise(fd, offset, length_bytes, os.POSIX_FADV_DONTNEED)


def _lock(fd: int) -> bool:
    try:  # late: with all that it loads, it takes a third of the package's import
        import portalocker  # noqa: PLC0415
    except ImportError as error:
        advice = "import it before a process gives up rights or changes its root directory"
        raise ImportError(
            f"a lock needs portalocker, which was not found: pip install portalocker; if it is installed, {advice}",
            name=error.name,
        ) from error
    except (FileNotFoundError, RuntimeError):
        # Its import looks for a directory for temporary files, and a full disk has none. Or it loads thread pools, by
        # way of the package redis, and Python refuses these once the main thread has ended.
        return _flock(fd)
    try:
        portalocker.lock(fd, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
    except (portalocker.AlreadyLocked, BlockingIOError):
        return False
    except portalocker.LockException as error:  # the lock is free, but the system refused it
        raise next((each for each in error.args if isinstance(each, OSError)), OSError(str(error))) from None
    return True


def _flock(fd: int) -> bool:
    """Take the lock that ``portalocker`` takes, without it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _portable_pwritev(fd: int, buffers: Buffers, offset: int, flags: int) -> int:
    written_bytes = os.pwrite(fd, b"".join(buffers), offset)
    if flags & DSYNC:
        _portable_sync(fd)
    return written_bytes


def _portable_sync(fd: int) -> None:
    """Sync the file: by ``fsync``, or on macOS by the call that also empties the drive's cache, if the file system has
    it.
    """
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        try:
            fcntl.fcntl(fd, full_sync)
        except faults(OSError) as error:
            if error.errno not in {errno.ENOTSUP, errno.EINVAL}:
                raise
        else:
            return
    os.fsync(fd)


PORTABLE = Disk(
    open=_open_by_name,
    open_direct=lambda _path: None,
    close_file=os.close,
    pread=os.pread,
    pwritev=_portable_pwritev,
    fdatasync=_portable_sync,
    start_sync=lambda _fd, _offset, _length_bytes: None,
    fsync=os.fsync,
    ftruncate=os.ftruncate,
    fallocate=_extend,
    rename=partial(_reach_both_by_name, os.replace),
    link=partial(_reach_both_by_name, os.link),
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
    forks=_FORKS.__len__,
    geteuid=getattr(os, "geteuid", lambda: None),
    fchmod=os.fchmod,
    fchown=os.fchown,
    gethostname=_gethostname,
    failpoint=deque[str](maxlen=0).append,  # takes anything and keeps nothing, at C speed
)

DISK = PORTABLE
if {
    os.open,
    os.rename,
    os.link,
    os.unlink,
    os.mkdir,
    os.rmdir,
    os.stat,
} <= os.supports_dir_fd and os.listdir in os.supports_fd:
    DISK = replace(
        DISK,
        open=_open,
        rename=partial(_reach_both, os.replace),
        link=partial(_reach_both, os.link),
        unlink=partial(_reach, os.unlink),
        mkdir=partial(_reach, os.mkdir),
        rmdir=partial(_reach, os.rmdir),
        listdir=partial(_with_directory, os.listdir),
        lstat=partial(_reach, os.lstat),
        free_bytes=partial(_with_directory, _free_bytes_at),
    )
if hasattr(os, "RWF_DSYNC") and hasattr(os, "pwritev"):
    DISK = replace(DISK, pwritev=os.pwritev, fdatasync=os.fdatasync, start_sync=_start_sync, fallocate=_fallocate)
if hasattr(os, "O_DIRECT"):
    DISK = replace(DISK, open_direct=_open_direct)

CURRENT_DISK: ContextVar[Disk] = ContextVar("disk", default=DISK)
"""The disk of the public calls in this context, and of the objects that they make. Only tests set another one."""


def current_disk() -> Disk:
    """Return the disk for the public call that is under way."""
    return CURRENT_DISK.get()
