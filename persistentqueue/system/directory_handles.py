"""Handles of the directories that an owner holds open: calls start at a directory's descriptor, not at its name.

While a queue is open, its directory may be renamed or deleted, and another queue may be made under the old name. The
calls of this module reach each path below a held directory from the descriptor of that directory. So an owner reaches
its own files wherever they are, and never those of another queue. Paths stay text: for messages, and as keys.

The directory of a queue is held before its lock file is opened. It is held until the lock is released (see ``lock``).
An external location of segments is held before its id is read, and a shared pool when it has been made. Paths above and
outside of the held directories go by name. Nothing is written there, except the names of directories that an opening
makes.

Threads: ``hold`` and ``keep`` are for the thread that opens the queue. ``close`` and the calls of ``disk`` are for any
thread.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Container
from functools import partial
from typing import TypeVar

from .disk import DIRECTORY, READ, Below, Disk, Root, StatResult, below
from .path_errors import ABSENT

T = TypeVar("T")


class Roots:
    """The directories that one owner holds.

    ``disk`` reaches paths through these directories. It stays the same object when they change.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._roots: list[Root] = []
        # Each opening makes one. The constructor of a frozen dataclass sets field by field: four times as long.
        self.disk = object.__new__(Disk)
        vars(self.disk).update(
            vars(disk),
            open=partial(self._reach, disk.open),
            open_direct=partial(self._reach, disk.open_direct),
            rename=partial(self._reach_both, disk.rename),
            link=partial(self._reach_both, disk.link),
            unlink=partial(self._reach, disk.unlink),
            mkdir=partial(self._reach, disk.mkdir),
            rmdir=self._rmdir,
            listdir=partial(self._reach, disk.listdir),
            lstat=partial(self._reach, disk.lstat),
            free_bytes=partial(self._reach, disk.free_bytes),
            hold=self.hold,
        )

    def hold(self, path: str, flags: int = DIRECTORY, through: str = "") -> None:
        """Hold the directory that this path leads to now, unless the path is held already. Raises ``OSError``.

        ``through`` is another way to the directory. For the parent of a held directory it ends in ``..``, which leads
        to the present parent even after a rename.
        """
        if any(root.path == path for root in self._roots):
            return
        fd = self._disk.open(self._below(through or path), READ | flags, 0)
        try:
            found = self._disk.fstat(fd)
        except BaseException:
            self._disk.close(fd)
            raise
        self._roots.append(Root(self._disk, path, fd, found))
        self._roots.sort(key=lambda root: -len(root.path))  # the innermost first

    def keep(self, paths: Container[str]) -> None:
        """Close the held directories whose paths are not among these."""
        gone = [root for root in self._roots if root.path not in paths]
        self._roots = [root for root in self._roots if root.path in paths]
        for root in gone:
            root.close()

    def close(self) -> None:
        """Close all held directories. Later calls below them, from other threads, raise ``ClosedError``."""
        for root in self._roots:
            root.close()

    def is_named(self, path: str) -> bool:
        """Return whether this path still leads to the directory that is held under it."""
        found = self._named(path)
        return found is not None and self.is_held(path, found)

    def is_held(self, path: str, found: StatResult) -> bool:
        """Return whether ``found`` describes the directory that is held under this path."""
        return any(root.path == path and root.is_found(found) for root in self._roots)

    def is_deleted(self, path: str) -> bool:
        """Return whether the directory that is held under this path was deleted."""
        return any(root.path == path and root.is_deleted() for root in self._roots)

    def _named(self, path: str) -> StatResult | None:
        try:
            return self._disk.lstat(path)
        except ABSENT:
            return None

    def _below(self, path: str) -> str:
        """Return the path, with the way to it from the innermost held directory, if there is one."""
        for root in self._roots:
            if path.startswith(root.prefix):
                return below(path, root, path[len(root.prefix) :] or ".")
            if path == root.path:
                return below(path, root, ".")
        return path

    # --- the calls of ``disk`` ---------------------------------------------------------------------------------------

    def _reach(self, call: Callable[..., T], path: str, *arguments: object) -> T:
        return call(self._below(path), *arguments)

    def _reach_both(self, call: Callable[[str, str], None], source: str, target: str) -> None:
        call(self._below(source), self._below(target))

    def _rmdir(self, path: str) -> None:
        found = self._below(path)
        if type(found) is Below and found.rest == ".":
            # The name of a held directory stands in its parent. The system has no call that removes a name only if it
            # still leads to this directory, so that is checked first.
            if not self.is_named(path):
                raise FileNotFoundError(errno.ENOENT, "the directory was renamed or deleted while it was open", path)
            found = path
        self._disk.rmdir(found)
