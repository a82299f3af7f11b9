"""A disk in memory that forgets what was not synced.

It replaces ``persistentqueue.system.disk.DISK`` in tests: it has equal names, signatures and errors. It models the
states that a real disk hides:

- **Contents.** A file has durable content, content in the page cache of the operating system, and the writes between
  the two, in order. A sync makes all of them durable; a durable write makes only its own bytes durable.
- **Names** are separate from contents. They belong to the directory itself, not to its path: a directory that is
  deleted and made again is another one. A path below a held directory is resolved from that directory, even if it was
  renamed. Creating, renaming and deleting become durable by the sync of the directory, never by the sync of the file.
  For a rename, that is the directory of the new name.
- **A listing** is not atomic. If ``on_listing`` lets another process work in the middle of it, the listing has only the
  names that did not change meanwhile. A renamed file may be in it under neither of its names, as on btrfs.
- **A kill** leaves the cache. Pending writes stay pending: a power cut in a later life may still take them.
- **A power cut** leaves everything durable. ``pick`` decides about everything pending. A write is kept, dropped, or cut
  after a sector of 512 bytes, or its sectors are mixed from old, new, zeros and garbage. A name is kept or dropped.
- **A failed sync** behaves as on one of the file systems. On ext4 and XFS, the pending writes are neither durable nor
  tried again. On btrfs, the content falls back to the durable one. On ext4 with data=journal, only the next sync
  reports the failure.
- **A failed close** closes all the same. With EIO, a file that was open for writing loses its pending writes. Its next
  sync reports that, as on Linux.

The disk makes one assumption, SQLite's "powersafe overwrite": a write never damages bytes that it does not change, even
in its own sectors. Each call that changes something is a tick. At a tick, ``on_tick`` may look at the disk, copy it, or
raise ``Crash``; the change of the call is pending then.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, pairwise
from posixpath import normpath
from typing import Any

from persistentqueue.system.disk import DSYNC, LACKING, PAGE_BYTES, Below, Buffers, Disk

SECTOR_BYTES = 512
_ROOT = -1
_WRITE, _RESIZE = 0, 1
_FD_FIRST = 100
_TO_CREATE, _TO_WRITE, _EXCLUSIVELY = os.O_CREAT, os.O_RDWR | os.O_WRONLY, os.O_EXCL
_CONSTANT: dict[str, Callable[..., object]] = {
    "start_sync": lambda _fd, _offset, _length_bytes: None,
    "time_ns": lambda: 0,
    "monotonic": lambda: 0.0,
    "sleep": lambda _seconds: None,
    "getpid": lambda: 1,
    "forks": lambda: 0,
    "gethostname": lambda: "simulated",
    "hold": lambda _path: None,
}
"""Calls with a constant answer, for all machines."""

Pending = tuple[int, int, bytes]
"""A write: ``(_WRITE, offset, data)``. A new size: ``(_RESIZE, size, b"")``."""
Entry = tuple[int, str]
"""Inode of a directory, which is negative, and a name in it."""
Names = dict[int, dict[str, int]]
"""Inode of each name, by the inode of its directory."""
Pick = Callable[[int], int]
"""A function that chooses one of ``0 … n - 1``: at random, or one after the other to exhaust them."""
_SHORT_WRITES = 64
"""Most short writes that zeros are cut into. The zeros of a log are long, and all their parts are alike."""


class Crash(BaseException):
    """The end of the process or of the machine. No code may catch it."""


class Inode:
    """Contents of a file, and its number of names."""

    __slots__ = ("cache", "durable", "links", "locked_by", "pending")

    def __init__(self, durable: bytearray, cache: bytearray, pending: list[Pending], links: int) -> None:
        self.durable = durable
        self.cache = cache
        self.pending = pending
        self.links = links
        self.locked_by = 0
        """Descriptor that has the lock; 0 if none has."""

    def copy(self) -> Inode:
        """Return an inode with equal contents for another life: no descriptor has its lock."""
        return Inode(bytearray(self.durable), bytearray(self.cache), list(self.pending), self.links)


def _apply(content: bytearray, operation: Pending) -> None:
    kind, offset, data = operation
    if kind == _RESIZE:
        if offset < len(content):
            del content[offset:]
        else:
            content.extend(bytes(offset - len(content)))
        return
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _without(operation: Pending, start: int, end: int) -> list[Pending]:
    """Return the parts of a pending write that are still pending when ``start … end - 1`` became durable by another
    write."""
    kind, offset, data = operation
    stop = offset + len(data)
    if kind == _RESIZE or end <= offset or stop <= start:
        return [operation]
    left = [(_WRITE, offset, data[: start - offset])] if offset < start else []
    if end < stop:
        left.append((_WRITE, end, data[end - offset :]))
    return left


class SimulatedDisk:
    """Disk of one machine, with the process that uses it. ``disk`` is the object to give to the queue.

    At first it has the given directories, and those above them.
    """

    def __init__(self, directories: Iterable[str] = ("/queues",)) -> None:
        self.inodes: dict[int, Inode] = {}
        """Inodes of files, by number. Numbers of files are positive, those of directories negative."""
        self.directories: Names = {_ROOT: {}}
        """Names in each directory, now."""
        self.names = {"/": _ROOT}
        """Inodes of these names, by path."""
        self.entries: Names = {_ROOT: {}}
        """Names in each directory that are durable."""
        self.pending_names: list[tuple[int, Entry | None, Entry | None, int]] = []
        """``(directory whose sync makes it durable, name that goes, name that comes, inode)``, in order."""
        self.descriptors: dict[int, tuple[int, str, bool]] = {}
        """For each descriptor: the inode, the path, and True if it was opened for direct writes."""
        self.next_inode = 1
        self.next_directory = _ROOT - 1
        self.ticks = 0
        self.salt = 0
        self.on_tick: Callable[[], None] | None = None
        self.on_listing: Callable[[], None] | None = None
        """Function that is called in the middle of each listing. Another process may work in it."""
        self.locked: dict[int, int] = {}
        """Descriptors that have locked a directory, by its inode."""
        self.fault: Callable[[str, str], OSError | int | None] | None = None
        """Function that is asked at each call, with its name and path, for a fault.

        It returns an error to raise. For a "short write" it may return the bytes to take, for a "short read" the bytes
        to give.
        """
        self.free_bytes = 1 << 40
        """Free bytes that the disk reports, however much is written."""
        self.sync_failure = "ext4"
        self.refused: set[str] = set()
        """Calls that found no room, no descriptor or no memory in this life."""
        self.failed: set[str] = set()
        """Calls that have failed in this life."""
        self.sync_failed = False
        """True if a sync has failed in this life: pending data may be gone without a power cut."""
        self.owed: set[int] = set()
        """Inodes whose next sync reports the failure of the last one (data=journal)."""
        self.undo: tuple[Inode, int, bytearray, int] | None = None
        """How to take back the write that is under way: inode, offset, old bytes, old size."""
        self.trace: list[str] | None = None
        self.situation: Any = None
        """Knowledge of an explorer about this disk, which a crash keeps; an immutable value."""
        self._next_descriptor = _FD_FIRST
        self._writers: set[int] = set()
        """Descriptors that were opened to write."""
        self._door: Disk | None = None
        for path in directories:
            self._make_durable(path)

    def durable_names(self) -> dict[str, int]:
        """Return the paths that a power cut cannot take away."""
        return paths_of(self.entries) if self.pending_names else self.names

    def add_file(self, path: str, content: bytes) -> None:
        """Add a file with this content, durably."""
        number, self.next_inode = self.next_inode, self.next_inode + 1
        self.inodes[number] = Inode(bytearray(content), bytearray(content), [], 0)
        self._add_name(path, number)

    def add_link(self, path: str, of: str) -> None:
        """Add another name of a file, durably."""
        self._add_name(path, self._number(of))

    def _add_name(self, path: str, number: int) -> None:
        directory, name = self._entry(path)
        self.names[path] = self.directories[directory][name] = number
        self.entries.setdefault(directory, {})[name] = number
        self.inodes[number].links += 1

    def _make_durable(self, path: str) -> None:
        if path not in self.names:
            above = path.rpartition("/")[0] or "/"
            self._make_durable(above)
            directory, name = self._entry(path)
            self.entries.setdefault(directory, {})[name] = self._add_directory(path, directory, name)

    def _add_directory(self, path: str, directory: int, name: str) -> int:
        self.next_directory, number = self.next_directory - 1, self.next_directory
        self.names[path] = self.directories[directory][name] = number
        self.directories[number] = {}
        return number

    def is_locked(self, path: str) -> bool:
        """Return if a descriptor has the lock on the file."""
        number = self.names.get(path)
        return number is not None and bool(self.inodes[number].locked_by)

    def bytes_in(self, path: str) -> int:
        """Return the bytes of the files in a directory that has no subdirectories; 0 if there is no such directory."""
        directory, inodes = self.names.get(path), self.inodes
        return 0 if directory is None else sum([len(inodes[n].cache) for n in self.directories[directory].values()])

    def unmount(self, path: str, leave: bool) -> Callable[[], None]:
        """Hide the contents of a directory, and the directory itself unless ``leave``; return a call that restores
        them."""
        number, (above, name) = self.names[path], self._entry(path)
        inside, self.directories[number] = self.directories[number], {}
        hidden = {each: self.names.pop(each) for each in list(self.names) if each.startswith(path + "/")}
        if not leave:
            del self.directories[above][name], self.names[path]

        def mount() -> None:
            self.directories[above][name], self.directories[number] = number, inside
            self.names |= {path: number} | hidden

        return mount

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Let another process work: its calls do not fail, end early or tick, and its listings are atomic."""
        kept = self.on_tick, self.fault, self.on_listing
        self.on_tick = self.fault = self.on_listing = None
        try:
            yield
        finally:
            self.on_tick, self.fault, self.on_listing = kept

    def move_durably(self, source: str, target: str) -> None:
        """Rename a directory like another process that syncs the names."""
        with self.undisturbed():
            self._sync_above(source)
            self.rename(source, target)
            self._sync_above(target)

    def remove_durably(self, path: str) -> None:
        """Delete a directory and everything in it like another process that syncs the name."""
        with self.undisturbed():
            self._sync_above(path)
            inside = [each for each in self.names if each.startswith(path + "/")]
            dead = {number for each in (path, *inside) if (number := self.names[each]) < 0}
            for each in sorted(inside, key=len, reverse=True):
                self.unlink(each) if self.names[each] > 0 else self.rmdir(each)
            self.rmdir(path)
            self._sync_above(path)
            self.pending_names = [each for each in self.pending_names if each[0] not in dead]

    def _sync_above(self, path: str) -> None:
        fd = self.open(path.rpartition("/")[0] or "/", os.O_RDONLY, 0)
        self.fsync(fd)
        self.close(fd)

    def files_below(self, path: str) -> dict[str, tuple[int, bytes]]:
        """Return everything below a directory, by relative path: the inode, and the content of a file."""
        prefix = path + "/"
        return {
            each[len(prefix) :]: (number, bytes(self.inodes[number].cache) if number > 0 else b"")
            for each, number in self.names.items()
            if each.startswith(prefix)
        }

    def held(self, path: str) -> int:
        """Return the directory that was opened last under this path and is still open, even if it was renamed; 0 if
        none."""
        opened = (number for number, at, _ in reversed(self.descriptors.values()) if at == path and number < 0)
        return next(opened, 0)

    # --- crashing ----------------------------------------------------------------------------------------------------

    def kill(self, pick: Pick) -> SimulatedDisk:
        """Return the disk after the process was killed: a write under way is whole, cut after a page, or not begun."""
        other = SimulatedDisk(())
        other.inodes = {number: inode.copy() for number, inode in self.inodes.items()}
        other.directories, other.entries = _copy(self.directories), _copy(self.entries)
        other.names = dict(self.names)
        other.pending_names = list(self.pending_names)
        self._pass_on(other, "the process is killed")
        other.owed = set(self.owed)
        if self.undo is not None:
            inode, offset, old, size = self.undo
            number = next(number for number, each in self.inodes.items() if each is inode)
            _kind, _offset, data = inode.pending[-1]
            pages = 1 + (len(data) - 1) // PAGE_BYTES
            kept_bytes = len(data) if (kept := pick(pages + 1)) == 0 else (kept - 1) * PAGE_BYTES
            if kept_bytes < len(data):
                copied = other.inodes[number]
                copied.pending[-1:] = [(_WRITE, offset, data[:kept_bytes])] if kept_bytes else []
                copied.cache[offset + kept_bytes : offset + len(data)] = old[kept_bytes:]
                del copied.cache[max(size, offset + kept_bytes) :]
        return other

    def cut_power(self, pick: Pick) -> SimulatedDisk:
        """Return the disk after a power cut: everything durable, and of everything pending the part that ``pick``
        chooses."""
        names = self.names_after_cut(pick)
        return self.cut_to(names, {number: after_cut(self.inodes[number], pick) for number in self.unsure(names)})

    def unsure(self, names: Names) -> list[int]:
        """Return the inodes with these names that have pending writes."""
        pending = {number for number, inode in self.inodes.items() if inode.pending}
        return sorted(pending.intersection(chain.from_iterable(map(dict.values, names.values())))) if pending else []

    def cut_to(self, names: Names, contents: Mapping[int, bytes | bytearray]) -> SimulatedDisk:
        """Return the disk after a power cut that left these names, and ``contents`` of the files with pending
        writes."""
        other = SimulatedDisk(())
        self._pass_on(other, "the power goes")
        other.directories, other.entries = _copy(names), _copy(names)
        other.names = paths_of(names)
        for number in other.names.values():
            if number in other.inodes:
                other.inodes[number].links += 1
            elif number > 0:
                content = contents[number] if number in contents else self.inodes[number].durable
                other.inodes[number] = Inode(bytearray(content), bytearray(content), [], 1)
        return other

    def _pass_on(self, other: SimulatedDisk, event: str) -> None:
        other.next_inode, other.next_directory = self.next_inode, self.next_directory
        other.salt, other.sync_failure, other.free_bytes = self.salt, self.sync_failure, self.free_bytes
        other.situation = self.situation
        if self.trace is not None:
            other.trace = [*self.trace, f"{self.ticks:6}  ===== {event} ====="]

    def names_after_cut(self, pick: Pick) -> Names:
        """Return the names that a power cut leaves."""
        operations = self.pending_names
        if not operations:
            return _copy(self.directories)
        entries = _copy(self.entries)
        mode = pick(4)  # none, all, a prefix in the order of writing, or any subset
        until = pick(len(operations) + 1) if mode == 2 else len(operations)
        for at, (_, gone, came, inode) in enumerate(operations):
            if mode == 0 or at >= until or (mode == 3 and not pick(2)):
                continue
            _change(entries, gone, came, inode)
        return _reachable(entries)

    # --- the door ----------------------------------------------------------------------------------------------------

    @property
    def disk(self) -> Disk:
        """Functions of the disk, in the form that the queue uses."""
        if self._door is not None:
            return self._door
        # Made for every crash; a frozen dataclass sets its fields one by one, which takes ten times as long.
        door = self._door = object.__new__(Disk)
        vars(door).update(
            open=self.open,
            open_direct=self.open_direct,
            close_file=self.close,
            pread=self.pread,
            pwritev=self.pwritev,
            fdatasync=self.fdatasync,
            fsync=self.fsync,
            ftruncate=self.ftruncate,
            fallocate=self.fallocate,
            rename=self.rename,
            link=self.link,
            unlink=self.unlink,
            mkdir=self.mkdir,
            rmdir=self.rmdir,
            listdir=self.listdir,
            lstat=self.lstat,
            fstat=self.fstat,
            real_bytes=lambda fd: self.fstat(fd).st_size,
            geteuid=lambda: 0,
            fchmod=lambda fd, mode: None,
            fchown=lambda fd, uid, gid: None,
            free_bytes=lambda path: self._where(path) and self.free_bytes,
            lock=self.lock,
            urandom=self.urandom,
            failpoint=self.failpoint,
        )
        vars(door).update(_CONSTANT)
        return door

    def open(self, path: str, flags: int, mode: int) -> int:
        path = self._where(path)
        if self.fault is not None:
            self._may_fail("descriptor", path)
        number = self.names.get(path)
        if number is None:
            if not flags & _TO_CREATE:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            entry = self._entry(path)
            self._may_fail("open", path)
            number = self.next_inode
            self.next_inode += 1
            self.inodes[number] = Inode(bytearray(), bytearray(), [], 1)
            self.names[path] = self.directories[entry[0]][entry[1]] = number
            self._pend(None, entry, number)
            self._tick("create", path)
        elif flags & _EXCLUSIVELY:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        elif number < 0 and flags & _TO_WRITE:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        fd = self._descriptor(number, path, False)
        if flags & _TO_WRITE:
            self._writers.add(fd)
        return fd

    def open_direct(self, path: str) -> int | None:
        path = self._where(path)
        if self.fault is not None and isinstance(self.fault("descriptor", path), OSError):
            return None
        return self._descriptor(self._number(path), path, True)

    def close(self, fd: int) -> None:
        number, path, _ = self.descriptors.pop(fd)
        was_writer = fd in self._writers
        if self.locked.get(number) == fd:
            del self.locked[number]
        if number > 0 and self.inodes[number].locked_by == fd:
            self.inodes[number].locked_by = 0
        if self.fault is not None:  # last: on Linux the descriptor and its locks are gone even if the close fails
            try:
                self._may_fail("close", path)
            except OSError as error:
                if error.errno == errno.EIO and was_writer and self.inodes[number].pending:
                    self.inodes[number].pending = []
                    self.owed.add(number)
                    self.sync_failed = True
                raise

    def pread(self, fd: int, length_bytes: int, offset: int) -> bytes:
        number, path, _ = self.descriptors[fd]
        if self.fault is not None:
            self._may_fail("pread", path)
            given_bytes = self.fault("short read", path)
            if isinstance(given_bytes, int):
                length_bytes = min(length_bytes, given_bytes)
        return bytes(self.inodes[number].cache[offset : offset + length_bytes])

    def pwritev(self, fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        number, path, direct = self.descriptors[fd]
        data = b"".join(buffers)
        if direct and (offset % PAGE_BYTES or len(data) % PAGE_BYTES or len(buffers) != 1):
            raise OSError(errno.EINVAL, "a direct write that is not made of pages")
        inode = self.inodes[number]
        if self.fault is not None:
            if not flags:
                self._may_fail("pwritev" if offset + len(data) > len(inode.cache) else "overwrite", path)
            data = self._taken(data, path, direct)
        self.undo = (inode, offset, inode.cache[offset : offset + len(data)], len(inode.cache))
        operation = (_WRITE, offset, data)
        _apply(inode.cache, operation)
        inode.pending.append(operation)
        self._tick("pwritev" if not flags else "pwritev dsync", path, offset, len(data))
        if flags & DSYNC:
            if self._sync_fails(number, path, "pwritev dsync", [operation]):
                self.undo = None
                raise OSError(errno.EIO, "Input/output error", path)
            end = offset + len(data)
            inode.pending = [left for each in inode.pending[:-1] for left in _without(each, offset, end)]
            _apply(inode.durable, operation)
        self.undo = None
        return len(data)

    def fdatasync(self, fd: int) -> None:
        number, path, _ = self.descriptors[fd]
        self._tick("fdatasync", path)
        inode = self.inodes[number]
        if self._sync_fails(number, path, "fdatasync", inode.pending):
            raise OSError(errno.EIO, "Input/output error", path)
        for operation in inode.pending:
            _apply(inode.durable, operation)
        inode.pending = []

    def fsync(self, fd: int) -> None:
        number, path, _ = self.descriptors[fd]
        if number > 0:
            self.fdatasync(fd)
            return
        self._tick("fsync", path)
        self._may_fail("fsync", path)
        if not self.pending_names:
            return
        later = []
        for directory, gone, came, inode in self.pending_names:
            if directory != number:
                later.append((directory, gone, came, inode))
                continue
            _change(self.entries, gone, came, inode)
            # A name that went and came again is there: an earlier, still pending removal must not take it away.
            later = [(each[0], None if each[1] == came else each[1], *each[2:]) for each in later]
        self.pending_names = later

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        number, path, _ = self.descriptors[fd]
        self._resize(number, path, size_bytes, "ftruncate")

    def fallocate(self, fd: int, offset: int, length_bytes: int) -> None:
        number, path, _ = self.descriptors[fd]
        self._may_fail("fallocate", path)
        if len(self.inodes[number].cache) < offset + length_bytes:
            self._resize(number, path, offset + length_bytes, "fallocate")

    def rename(self, source: str, target: str) -> None:
        source, target = self._where(source), self._where(target)
        number, left, reached = self._number(source), self._entry(source), self._entry(target)
        self._may_fail("rename", target)
        if source != target and self.names.get(target) == number:  # two names of one file: POSIX leaves both
            return
        self._pend(left, reached, number)
        replaced = self.names.get(target, 0)
        if replaced > 0 and target != source:
            self.inodes[replaced].links -= 1
        del self.directories[left[0]][left[1]], self.names[source]
        self.names[target] = self.directories[reached[0]][reached[1]] = number
        if number < 0:
            for path in [path for path in self.names if path.startswith(source + "/")]:
                self.names[target + path[len(source) :]] = self.names.pop(path)
        self._tick("rename", source, target)

    def link(self, source: str, target: str) -> None:
        source, target = self._where(source), self._where(target)
        number, entry = self._number(source), self._entry(target)
        if target in self.names:
            raise FileExistsError(errno.EEXIST, "File exists", target)
        self._may_fail("link", target)
        self.inodes[number].links += 1
        self.names[target] = self.directories[entry[0]][entry[1]] = number
        self._pend(None, entry, number)
        self._tick("link", source, target)

    def unlink(self, path: str) -> None:
        path = self._where(path)
        number, entry = self._number(path), self._entry(path)
        self._pend(entry, None, number)
        del self.names[path], self.directories[entry[0]][entry[1]]
        self.inodes[number].links -= 1
        self._tick("unlink", path)

    def mkdir(self, path: str, mode: int) -> None:
        path = self._where(path)
        if path in self.names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        entry = self._entry(path)
        self._may_fail("mkdir", path)
        self._pend(None, entry, self._add_directory(path, *entry))
        self._tick("mkdir", path)

    def rmdir(self, path: str) -> None:
        path = self._where(path)
        if self._number(path) > 0:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        if self.directories[self._number(path)]:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        number, entry = self.names.pop(path), self._entry(path)
        self._pend(entry, None, number)
        del self.directories[number], self.directories[entry[0]][entry[1]]
        self._tick("rmdir", path)

    def listdir(self, path: str) -> list[str]:
        path = self._where(path)
        if self.fault is not None:
            self._may_fail("descriptor", path)
        number = self._number(path)
        if number > 0:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        before = self.directories[number]
        if self.on_listing is None:
            return list(before)
        before = dict(before)
        self.on_listing()
        after = self.directories.get(number, {})  # the directory itself may be deleted meanwhile
        return [name for name, inode in before.items() if after.get(name) == inode]

    def lstat(self, path: str) -> os.stat_result:
        return self._stat(self._number(self._where(path)))

    def fstat(self, fd: int) -> os.stat_result:
        return self._stat(self.descriptors[fd][0])

    def lock(self, fd: int) -> bool:
        number = self.descriptors[fd][0]
        if number < 0:
            return self.locked.setdefault(number, fd) == fd
        inode = self._inode(fd)
        inode.locked_by = inode.locked_by or fd
        return inode.locked_by == fd

    def urandom(self, size_bytes: int) -> bytes:
        self.salt += 1
        return _random_bytes(self.salt, size_bytes)

    def failpoint(self, name: str) -> None:
        if self.trace is not None:
            self.trace.append(f"         -- {name}")

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _tick(self, call: str, *arguments: Any) -> None:
        self.ticks += 1
        if self.trace is not None:
            self.trace.append(f"{self.ticks:6}  {call} {' '.join(map(str, arguments))}")
        if self.on_tick is not None:
            self.on_tick()

    def _may_fail(self, call: str, path: str) -> None:
        """Raise an error if a fault is due."""
        if self.fault is None:
            return
        failure = self.fault(call, path)
        if isinstance(failure, OSError):
            self.failed.add(call)
            if failure.errno in LACKING and call != "close":  # no reason for anything: see ``is_unexplained``
                self.refused.add(call)
            if self.trace is not None:
                self.trace.append(f"         !! {call} {path}: {failure}")
            raise failure

    def _taken(self, data: bytes, path: str, direct: bool) -> bytes:
        """Return the part of the data that a write takes."""
        assert self.fault is not None
        taken_bytes = self.fault("short write", path)
        if not isinstance(taken_bytes, int):
            return data
        if not data.strip(b"\0"):
            taken_bytes = max(taken_bytes, len(data) // _SHORT_WRITES)
        return data[: taken_bytes if not direct else max(SECTOR_BYTES, taken_bytes // SECTOR_BYTES * SECTOR_BYTES)]

    def _sync_fails(self, number: int, path: str, call: str, operations: list[Pending]) -> bool:
        """Return if this sync reports a failure. The effect of a failure on the contents depends on the file system."""
        if number in self.owed:
            self.owed.discard(number)
            self.sync_failed = True
            return True
        if self.fault is None or not isinstance(self.fault(call, path), OSError):
            return False
        self.failed.add(call)
        if self.trace is not None:
            self.trace.append(f"         !! {call} {path} fails as on {self.sync_failure}")
        if self.sync_failure == "ext4 data=journal":
            self.owed.add(number)
            return False
        self.sync_failed = True
        inode = self.inodes[number]
        failed = {id(operation) for operation in operations}
        inode.pending = [each for each in inode.pending if id(each) not in failed]
        if self.sync_failure == "btrfs":
            inode.cache = bytearray(inode.durable)
            for each in inode.pending:
                _apply(inode.cache, each)
        return True

    def _resize(self, number: int, path: str, size_bytes: int, call: str) -> None:
        inode = self.inodes[number]
        operation = (_RESIZE, size_bytes, b"")
        _apply(inode.cache, operation)
        inode.pending.append(operation)
        self._tick(call, path, size_bytes)

    def _pend(self, gone: Entry | None, came: Entry | None, number: int) -> None:
        """Note that a name of the inode goes, another comes, or both."""
        directory = (came or gone or (_ROOT, ""))[0]
        self.pending_names.append((directory, gone, came, number))

    def _where(self, path: str) -> str:
        """Return the current path of a file that may be below a held directory.

        Raises ``FileNotFoundError`` if that directory was deleted, and ``ClosedError`` if it is not held any more.
        """
        if type(path) is not Below:
            return path
        root = path.root
        with root as fd:
            if fd not in self.descriptors:
                raise OSError(errno.EBADF, "Bad file descriptor", path)
            number, found = self.descriptors[fd][0], root.path
        if self.names.get(found) != number:
            found = next((each for each, inode in self.names.items() if inode == number), "")
            if not found:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        elif not path.rest.startswith("."):
            return str(path)
        return normpath(f"{found}/{path.rest}")

    def _entry(self, path: str) -> Entry:
        """Return the directory of a path, and the name in it. Raises ``FileNotFoundError``."""
        above, _, name = path.rpartition("/")
        return self._number(above or "/"), name

    def _descriptor(self, number: int, path: str, direct: bool) -> int:
        self._next_descriptor += 1
        self.descriptors[self._next_descriptor] = (number, path, direct)
        return self._next_descriptor

    def _inode(self, fd: int) -> Inode:
        return self.inodes[self.descriptors[fd][0]]

    def _number(self, path: str) -> int:
        try:
            return self.names[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path) from None

    def _stat(self, number: int) -> os.stat_result:
        if number < 0:
            return _directory_stat(number, number in self.directories)
        inode = self.inodes[number]
        return _file_stat(number, inode.links, len(inode.cache))


@lru_cache(10_000)
def _directory_stat(number: int, is_there: bool) -> os.stat_result:
    values = (stat.S_IFDIR | 0o700, 2**40 - number, 0, int(is_there), 0, 0, 0, 0, 0, 0)
    return os.stat_result(values, {"st_mtime_ns": 0})


@lru_cache(10_000)
def _file_stat(number: int, links: int, size_bytes: int) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | 0o600, number, 0, links, 0, 0, size_bytes, 0, 0, 0), {"st_mtime_ns": 0})


@lru_cache(10_000)  # many lives ask for equal bytes
def _random_bytes(salt: int, size_bytes: int) -> bytes:
    return random.Random(salt).randbytes(size_bytes)


def _change(names: Names, gone: Entry | None, came: Entry | None, inode: int) -> None:
    """Take away a name of the inode, and add another."""
    if gone is not None and names.get(gone[0], {}).get(gone[1]) == inode:
        del names[gone[0]][gone[1]]
    if came is not None:
        names.setdefault(came[0], {})[came[1]] = inode


def _copy(names: Names) -> Names:
    return {directory: dict(inside) for directory, inside in names.items()}


def _reachable(names: Names) -> Names:
    """Return the names that can be reached from the root: a directory without a name is gone, with everything in it."""
    reachable: Names = {}
    reached = [_ROOT]
    for directory in reached:
        inside = reachable[directory] = names.get(directory, {})
        reached += [number for number in inside.values() if number < 0]
    return reachable


def paths_of(names: Names) -> dict[str, int]:
    """Return the inode of each path that these names add up to."""
    paths = {"/": _ROOT}
    reached = [("", _ROOT)]
    for path, directory in reached:
        for name, number in names.get(directory, {}).items():
            paths[f"{path}/{name}"] = number
            if number < 0:
                reached.append((f"{path}/{name}", number))
    return paths


def after_cut(inode: Inode, pick: Pick) -> bytearray:
    """Return the content of a file after a power cut."""
    content, pending = bytearray(inode.durable), inode.pending
    mode = pick(4)  # nothing, everything, a prefix in the order of writing, or any subset
    if mode == 0:
        return content
    until = pick(len(pending)) if mode == 2 else len(pending)
    for at, operation in enumerate(pending):
        if at > until:
            break
        if (mode == 2 and at == until) or (mode == 3 and pick(2)):
            _tear(content, operation, pick)
        else:
            _apply(content, operation)
    return content


def _same_bytes(old: bytes | bytearray, new: bytes) -> int:
    """Return how many bytes at the beginning of both are the same."""
    length = min(len(old), len(new))
    changes = int.from_bytes(old[:length], "little") ^ int.from_bytes(new[:length], "little")
    return ((changes & -changes).bit_length() - 1) // 8 if changes else length


def _tear(content: bytearray, operation: Pending, pick: Pick) -> None:
    """Apply a write in part: not at all, up to a sector, or sector by sector old, new, zero or garbage."""
    kind, offset, data = operation
    if kind == _RESIZE:
        if pick(2):
            _apply(content, operation)
        return
    how = pick(3)
    if how == 0:
        return
    stops = range(SECTOR_BYTES - offset % SECTOR_BYTES, len(data), SECTOR_BYTES)
    if how == 1:
        cuts = [0, *stops]
        cut = cuts[pick(len(cuts))]
        _apply(content, (_WRITE, offset, data[:cut]))
        return
    if pick(2) and offset + len(data) > len(content):
        content.extend(bytes(offset + len(data) - len(content)))  # the new size became durable before the data
    bounds = [0, *stops, len(data)]
    for start, stop in pairwise(bounds):
        fate = pick(4)
        if fate == 0 or offset + start > len(content):
            continue
        new = data[start:stop]
        if fate > 1:
            old = content[offset + start : offset + stop]
            same = _same_bytes(old, new)
            spoilt = bytes(len(new) - same) if fate == 2 else b"\xa5" * (len(new) - same)
            new = new[:same] + spoilt
        _apply(content, (_WRITE, offset + start, new))
