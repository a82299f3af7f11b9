"""The lock of a queue: an exclusive lock of the kernel on an open file. It allows one owner.

The file is deleted only with the queue.

The text in the file is for the error message only, and never decides which process holds the lock. The kernel frees the
lock with the last descriptor of the open file, however its process ended. So a forked child closes the descriptor.

The file also records its inode. A copy of the directory has another inode. There the opening looks for the original
before it records its own inode (see ``in_doubt.find_copy``).

After its commits, the owner also publishes samples here, for charts that other processes draw (see
``measuring.metrics``). They are written in place, and never synced: a lost or torn note costs a chart its past::

    offset  bytes  field
         0   4096  text           a JSON object: ``pid``, ``host``, ``since``, ``inode``; spaces up to the note
      4096      8  magic          ``PQ-NOTE\\n``
      4104      4  length         bytes of the note, 8192 at most
      4108      4  checksum       CRC-32 of the note
      4112         note           samples, the oldest first; 32 bytes each:

         0      8  time           nanoseconds since the epoch
         8      8  enqueued       items enqueued since the queue was made
        16      8  dequeued       items of these that all subscriptions have consumed
        24      8  live bytes     bytes of the blocks of the items that are left

A file without a note is shorter than 4096 bytes.

The directory is opened before its lock file, and held as long as the lock (see ``directory_handles``). The owner uses
the ``disk`` of the lock: it reaches the directory that was locked, even if that gets another name.

A queue with segments at another location also locks the directory of that location, under its own lock. A copy of the
queue's directory has a lock file of its own, and the location is the same: so only one of the two gets in.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from datetime import datetime, timezone
from functools import lru_cache
from stat import S_ISREG, filemode
from typing import Any, NamedTuple, TypeVar

from ..core.checksum import crc32
from ..drawing.text import printable
from ..errors import QueueLockedError, UntrustedError
from ..system.bad_pages import read_around
from ..system.directory_handles import Roots
from ..system.disk import CREATE, DIRECTORY, NO_LINK, READ, Disk, StatResult, device_numbers, dirname, join, samestat
from ..system.files import read_all, write_all
from ..system.path_errors import OUT_OF_REACH, faults, has_no_locks, is_no_plain_file, suppress

T = TypeVar("T")

LOCK_NAME = "lock"
NOTE_BYTES_MAX = 8192
_OWNER_BYTES_MAX = 4096
_NOTE = struct.Struct("<8sII")
_NOTE_MAGIC = b"PQ-NOTE\n"
_POLL_SECONDS = 0.01
_KERNEL_LOCKS = "/proc/locks"
_KERNEL_LOCKS_BYTES_MAX = 16 * 1024 * 1024
_LOOKS = 3
_PID_MAX = 2**32 - 1
_INODE = re.compile("[0-9a-f]{16}")
_OPEN_HERE = "that is this process: use the queue object that is open, in any number of threads, or close it"
_TEXT_CHARACTERS_MAX = 255
"""Most characters of a host's name, or of a time, that are believed."""


class Owner(NamedTuple):
    """The owner of a queue as it described itself in the lock file.

    For people only: the lock itself is held by the kernel, and the process may have ended since.
    """

    pid: int
    """The process id of the owner, on its host."""
    host: str
    """The name of its host."""
    since: str
    """The time when the owner took the lock, in ISO 8601, UTC."""


@lru_cache(1)  # one process opens many queues in a second
def _signature(pid: int, host: str, since_seconds: int) -> str:
    since = datetime.fromtimestamp(since_seconds, timezone.utc).isoformat()
    return json.dumps({"pid": pid, "host": host, "since": since})[:-1]


class Lock:
    """The lock on a queue's directory, held from ``acquire`` to ``release``."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._directory = dirname(path) or "."
        self._fd: int | None = None
        self._locations: dict[str, int] = {}
        """Descriptors of the locked locations, by their paths."""
        self._inode = ""
        self._recorded: object = None
        """Inode that the lock file recorded before this lock."""
        self._text = b""
        self.note = b""
        """The note behind the owner's text; at first, that of the last owner."""
        self.is_moved = False
        """Whether the file records no inode, or another one than its own. Then the directory may be a copy."""
        self.is_copied = False
        """Whether the file records another inode than its own. Then it was copied, unless the inode was lost by a file
        system that keeps none. A power cut may take what the file records, and never changes it to this."""
        self.roots = Roots(disk)
        """The directories that are held as long as the lock: that of the queue, and those that its owner adds."""

    @property
    def inode(self) -> str:
        """The inode of the lock file, as the file records it."""
        return self._inode

    @property
    def disk(self) -> Disk:
        """The interface of the owner: it reaches the held directories by their descriptors."""
        return self.roots.disk

    def is_named(self) -> bool:
        """Return whether the directory still has the name by which it was opened."""
        return self.roots.is_named(self._directory)

    def is_on(self, found: StatResult) -> bool:
        """Return whether ``found`` describes the directory that is held."""
        return self.roots.is_held(self._directory, found)

    def is_deleted(self) -> bool:
        """Return whether the directory was deleted since it was opened."""
        return self.roots.is_deleted(self._directory)

    def hold_above(self, directory: str) -> None:
        """Hold the parent of a held directory. Raises ``OSError``."""
        self.roots.hold(dirname(directory) or ".", through=join(directory, ".."))

    def acquire(self, timeout_seconds: float) -> None:
        """Take the lock, waiting for it up to ``timeout_seconds``, and describe this owner in the file.

        Sets ``is_moved`` and ``is_copied``. The next owner finds the same values, until ``settle`` is called.

        Raises ``QueueLockedError``; the owner notices nothing. Raises ``UntrustedError`` if the lock is no plain file,
        or has several names; then nothing is written to it.
        """
        deadline = self._disk.monotonic() + timeout_seconds
        while not self._try():
            if self._disk.monotonic() >= deadline:
                raise self._refusal()
            self._disk.sleep(_POLL_SECONDS)
        assert self._fd is not None
        recorded = self._recorded
        self.note = _note_in(self._disk, self._fd)
        self.is_moved = recorded != self._inode
        self.is_copied = _is_copied(recorded, self._inode)
        self._sign(str(recorded) if self.is_copied else "" if self.is_moved else self._inode)

    def hold_location(self, root: str) -> bool:
        """Lock the directory of a location until ``release``; return False if another owner has locked it.

        The lock may hold a location twice, also by two names. A file system that locks no directories, as NFS does not,
        lets every owner in. Raises ``OSError`` if the directory cannot be opened.
        """
        if root in self._locations:
            return True
        fd = self.disk.open(root, READ | DIRECTORY, 0)
        try:
            if not self._locks(fd):
                return False
            self._locations[root], fd = fd, -1
            return True
        finally:
            if fd >= 0:
                self._disk.close(fd)

    def free_locations(self) -> None:
        """Free the locked locations."""
        for root in tuple(self._locations):
            fd = self._locations[root]
            # No call between these steps, so no interruption leaves a location locked that is not known any more.
            del self._locations[root]
            self._disk.close(fd)

    def _locks(self, fd: int) -> bool:
        """Lock this directory; return False if another owner has locked it."""
        try:
            if self._disk.lock(fd):
                return True
        except faults(OSError) as error:
            if not has_no_locks(error):
                raise
            return True
        ours = map(self._disk.fstat, [fd, *self._locations.values()])
        first, *others = ((found.st_dev, found.st_ino) for found in ours)
        return first in others

    def settle(self) -> None:
        """Record that the directory is no copy of another one."""
        if self.is_moved and self._fd is not None:
            self._sign(self._inode)
            self.is_moved = self.is_copied = False

    def publish(self, note: bytes) -> None:
        """Write a note of at most ``NOTE_BYTES_MAX`` behind the owner's text, not durably. Does nothing without the
        lock, and if the file cannot be written."""
        if self._fd is None:
            return
        is_first, self.note = not self.note, note
        with suppress(OSError):
            if is_first:
                self._write()
            else:
                data = _packed(note)
                write_all(self._disk, self._fd, [data], len(data), _OWNER_BYTES_MAX)

    def release(self) -> None:
        """Free the lock. The file stays: after an unlink, two owners could hold two files of the same name."""
        try:
            self.roots.close()  # first: no call of this owner runs when the next owner has the lock
            self.free_locations()  # before the lock: the next owner of the queue finds its location free
        finally:
            if self._fd is not None:
                fd, self._fd = self._fd, None
                self._disk.close(fd)

    def _try(self) -> bool:
        fd = -1
        try:
            self.roots.hold(self._directory, DIRECTORY | NO_LINK)
            fd = self._open()
            if self._disk.lock(fd) and self._is_named(fd) and self.is_named():
                found = self._disk.fstat(fd)
                _need_plain(self.path, found)
                self._recorded = _signed(self._disk, fd).get("inode")
                self._inode = _inode_of(found)
                self._fd, fd = fd, -1  # last: an error before this frees the lock
                return True
        finally:
            if self._fd is None:
                self.roots.keep(())  # at the next try another directory may have the name
            if fd >= 0:
                self._disk.close(fd)
        return False

    def _open(self) -> int:
        """Open the lock file, or make it. Raises ``UntrustedError``."""
        with suppress(FileNotFoundError):
            _need_plain(self.path, self.disk.lstat(self.path))  # to open a device may have any effect
        try:
            return self.disk.open(self.path, CREATE, 0o600)
        except faults(OSError) as error:
            if is_no_plain_file(error):  # it was put there after the check
                raise _untrusted(self.path, str(error.strerror)) from error
            raise

    def _is_named(self, fd: int) -> bool:
        """Return whether the open file still has its name. Otherwise the queue was deleted during the wait."""
        try:
            return samestat(self._disk.fstat(fd), self.disk.lstat(self.path))
        except FileNotFoundError:
            return False

    def _refusal(self) -> QueueLockedError:
        """Return the error about the owner of the lock, with other advice if that is this process itself."""
        owner = read_owner(self._disk, self.path)
        if owner is None:
            return QueueLockedError(self.path, None, None, None)
        is_here = is_held_here(self._disk, self.path, owner.pid, owner.host)
        return QueueLockedError(self.path, *owner, _OPEN_HERE if is_here else "")

    def _sign(self, inode: str) -> None:
        assert self._fd is not None
        signature = _signature(self._disk.getpid(), self._disk.gethostname(), self._disk.time_ns() // 10**9)
        self._text = f'{signature}, "inode": "{inode}"}}'.encode()
        # A full disk must not prevent dequeueing. Without this text, only the message for a second opener says less.
        with suppress(OSError):
            self._disk.ftruncate(self._fd, self._write())  # last: a write that fails must not lose the recorded inode

    def _write(self) -> int:
        """Write the text of the owner, and the note if there is one; return their length in bytes.

        Spaces cover the rest of a longer text, so that a crash behind this leaves a text that can be read.
        """
        assert self._fd is not None
        if self.note:
            data = self._text.ljust(_OWNER_BYTES_MAX) + _packed(self.note)
            length_bytes = len(data)
        else:
            data = self._text.ljust(min(self._disk.fstat(self._fd).st_size, _OWNER_BYTES_MAX))
            length_bytes = len(self._text)
        write_all(self._disk, self._fd, [data], len(data), 0)
        return length_bytes


def _need_plain(path: str, found: StatResult) -> None:
    """Raise ``UntrustedError`` unless this is a plain file with at most one name: it will be written to."""
    if not S_ISREG(found.st_mode):
        raise _untrusted(path, filemode(found.st_mode))
    if found.st_nlink > 1:
        raise _untrusted(path, f"a file with {found.st_nlink} names, one of which may be a file of another program")


def _untrusted(path: str, found: str) -> UntrustedError:
    advice = "nothing was written to it: inspect it, close the queue everywhere, and remove the file"
    return UntrustedError(path, "a plain file with one name as the lock", found, advice)


def _inode_of(found: StatResult) -> str:
    return f"{found.st_ino:016x}"


def _is_copied(recorded: object, inode: str) -> bool:
    """Return whether a lock file with this inode records another one."""
    return recorded != inode and _INODE.fullmatch(str(recorded)) is not None


def read_inode(disk: Disk, path: str) -> tuple[str, bool]:
    """Return the inode of the lock file, and whether it was copied, as ``Lock.is_copied`` tells.

    An empty text and False if there is no such file, or this user may not read it. Raises ``OSError``.
    """
    try:
        inode = _inode_of(disk.lstat(path))
        return inode, _is_copied((_read(disk, path, _signed) or {}).get("inode"), inode)
    except OUT_OF_REACH:
        return "", False


def read_owner(disk: Disk, path: str) -> Owner | None:
    """Return the owner that the lock file describes, which may have ended since; None if it describes none.

    The file may hold anything: its texts are returned printable and of bounded length.
    """
    try:
        signed = _read(disk, path, _signed) or {}
        pid, texts = signed["pid"], (signed["host"], signed["since"])
    except faults(OSError, KeyError):
        return None
    if type(pid) is not int or not 0 < pid <= _PID_MAX or not all(isinstance(text, str) for text in texts):
        return None
    return Owner(pid, *(printable(text[:_TEXT_CHARACTERS_MAX]) for text in texts))


def read_note(disk: Disk, path: str) -> bytes:
    """Return the note that an owner has published in the lock file; empty if there is none.

    Its owner may write it at this moment. A note that is torn is read again.
    """
    with suppress(OSError):
        for _ in range(_LOOKS):
            note = _read(disk, path, _note_in)
            if note:
                return note
    return b""


def _read(disk: Disk, path: str, read: Callable[[Disk, int], T]) -> T | None:
    """Return what ``read`` finds in the lock file; None if that is no plain file. Raises ``OSError``."""
    if not S_ISREG(disk.lstat(path).st_mode):
        return None
    with disk.opened(path) as fd:
        return read(disk, fd)


def _packed(note: bytes) -> bytes:
    return _NOTE.pack(_NOTE_MAGIC, len(note), crc32(note)) + note


def _note_in(disk: Disk, fd: int) -> bytes:
    """Return the note of the lock file; empty if there is none. The file may hold anything."""
    with suppress(OSError, struct.error):
        data = read_all(disk, fd, _NOTE.size + NOTE_BYTES_MAX, _OWNER_BYTES_MAX)
        magic, length_bytes, checksum = _NOTE.unpack_from(data)
        note = data[_NOTE.size : _NOTE.size + length_bytes]
        if (magic, checksum) == (_NOTE_MAGIC, crc32(note)) and len(note) == length_bytes:
            return note
    return b""


def _signed(disk: Disk, fd: int) -> dict[str, Any]:
    """Return the fields of the lock file, or none if it is malformed. The file may hold anything."""
    with suppress(ValueError, RecursionError):
        signed = json.loads(read_around(disk, fd, _OWNER_BYTES_MAX, 0))
        if isinstance(signed, dict):
            return signed
    return {}


def is_held(disk: Disk, path: str) -> bool | None:
    """Return whether the system shows that the lock is held; None if that is not known.

    Only Linux shows locks. It hides those of processes in other containers: if it shows none, a lock that was taken on
    another host may be held. The lock itself is not tried: that would keep out, for a moment, a process that is about
    to take it.
    """
    try:
        named = disk.lstat(path)
    except FileNotFoundError:
        return False
    owner = read_owner(disk, path)
    try:
        # The system shows the locks page by page. One may be missed between two pages, while others come and go.
        if any(_is_lock_on(line.split(), named, owner) for _ in range(_LOOKS) for line in _kernel_locks(disk)):
            return True
    except faults(OSError):
        return None
    return False if owner is None or owner.host == disk.gethostname() else None


def is_held_here(disk: Disk, path: str, pid: int | None, host: str | None) -> bool:
    """Return whether the owner that the held lock describes is this process.

    Containers can have the same host name, and each of them has a process 1. The system hides the locks of the others.
    """
    return (pid, host) == (disk.getpid(), disk.gethostname()) and is_held(disk, path) is not False


def _kernel_locks(disk: Disk) -> list[str]:
    with disk.opened(_KERNEL_LOCKS) as fd:
        return read_all(disk, fd, _KERNEL_LOCKS_BYTES_MAX, 0).decode().splitlines()


def _is_lock_on(fields: list[str], named: StatResult, owner: Owner | None) -> bool:
    """Return whether a line such as ``1: FLOCK ADVISORY WRITE 4711 fe:00:815 0 EOF`` describes a lock on this file.

    On some file systems the device differs from the one that ``stat`` shows. Then the process id decides.
    """
    if len(fields) < 6 or fields[1] != "FLOCK":
        return False
    device, _, inode = fields[5].rpartition(":")
    major, minor = device_numbers(named.st_dev)
    is_ours = owner is not None and fields[4] == str(owner.pid)
    return inode == str(named.st_ino) and (is_ours or device == f"{major:02x}:{minor:02x}")
