"""The presence of a session: a lock that the kernel frees when the process ends.

By it, the next owner sees that the session still exists, and can come back for what it holds: see ``handover``.
"""

from __future__ import annotations

from ..serving.handover import place_of
from ..system.byte_locks import LockFile


class Presence:
    """The presence of one session. For one thread at a time; only ``close`` is for any thread.

    Where the system has no such locks, the session is never present.
    """

    __slots__ = ("_file", "_place", "is_held")

    def __init__(self, file: LockFile, connection: bytes) -> None:
        self._file: LockFile | None = file
        """None from the close on: the file is open as long as a session may need it."""
        self._place = place_of(connection)
        self.is_held = False
        """Whether owners see the session."""

    def hold(self) -> None:
        """Let owners see the session, if that is possible."""
        file = self._file
        if file is not None and not self.is_held:
            self.is_held = True  # first: behind an interruption, the lock is freed
            self.is_held = file.lock(self._place)
            if self._file is not file:  # closed meanwhile, by another thread, which has perhaps found no lock
                self.is_held = False
                file.unlock(self._place)

    def release(self) -> None:
        """Let the next owner release what the session held."""
        file = self._file
        if file is not None and self.is_held:
            file.unlock(self._place)
            self.is_held = False

    def close(self) -> None:
        """Release it for good. For any thread."""
        file = self._file
        self.release()
        self._file = None
        if file is not None:  # again: another thread may have been in ``hold``
            file.unlock(self._place)
        self.is_held = False
