"""The wake-up of a waiting thread: by a file that another process puts into a directory, or by another thread.

If Linux offers ``inotify`` and ``eventfd``, waiting costs no processor time, and the thread wakes at once. Otherwise,
and if the system grants this user no more of them, the thread looks every 50 ms. Like ``disk``, this module calls the
operating system directly.

The directory is watched by its descriptor, through ``/proc``, since another directory may have its name by now. When
the directory is deleted, the system ends the watch. From then on the thread looks every 50 ms.
"""

from __future__ import annotations

import os
import select
import struct
from contextlib import suppress

from .path_errors import faults

POLL_SECONDS = 0.05
LONGEST_SECONDS = 86_400.0
"""The longest single wait, in seconds. The system counts milliseconds in 31 bits."""
_IN_MOVED_TO = 0x00000080
_IN_IGNORED = 0x00008000
_EVENT = struct.Struct("=iIII")
_EVENTS_BYTES = 64 * 1024


class Wakeup:
    """A wake-up that comes when a file is renamed into the directory, or by ``ring``. One thread waits at a time.

    ``directory`` is a descriptor of the directory, which is needed only while this object is made. Raises ``OSError``
    if the process has no descriptors left.
    """

    def __init__(self, directory: int) -> None:
        self._own = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if hasattr(os, "eventfd") else -1
        self._pipe = (-1, -1)
        if self._own < 0:
            self._pipe = os.pipe()
            for fd in self._pipe:
                os.set_blocking(fd, False)
        self._watch = _watch(directory)
        self._poll = select.poll()
        for fd in (self._watch, self._own, self._pipe[0]):
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)

    def wait(self, timeout_seconds: float) -> None:
        """Return at a wake-up, at one that came since the last call, or when the time is over. It may also return
        earlier.
        """
        seconds = min(timeout_seconds, LONGEST_SECONDS if self._watch >= 0 else POLL_SECONDS)
        for fd, _ in self._poll.poll(1000 * seconds):
            self.take(fd)

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that become readable at a wake-up, for a thread that waits for other things as well. It calls
        ``take`` then, and never ``wait``."""
        return [fd for fd in (self._watch, self._own, self._pipe[0]) if fd >= 0]

    @property
    def watches(self) -> bool:
        """Whether the system tells of files that are renamed into the directory."""
        return self._watch >= 0

    def take(self, fd: int) -> bool:
        """Take the wake-ups of this descriptor; return whether they may come from a file.

        If the system has ended the watch, the descriptor is closed.
        """
        is_watch = fd == self._watch
        with suppress(BlockingIOError):
            data = os.read(fd, _EVENTS_BYTES)
            if is_watch and _is_over(data):
                self._poll.unregister(fd)
                self._watch = -1
                os.close(fd)
        return is_watch

    def ring(self) -> None:
        """Wake the thread that waits, or the next one that will wait. For any thread."""
        with suppress(BlockingIOError):  # full: enough wake-ups are pending
            if self._own >= 0:
                os.eventfd_write(self._own, 1)
            else:
                os.write(self._pipe[1], b"\0")

    def close(self) -> None:
        """Close the descriptors. No thread may wait or ring any more."""
        for fd in (self._watch, self._own, *self._pipe):
            if fd >= 0:
                os.close(fd)
        self._watch = self._own = -1
        self._pipe = (-1, -1)


def _is_over(events: bytes) -> bool:
    """Return whether one of these events says that the system has ended the watch."""
    at, masks = 0, 0
    while at < len(events):
        _, mask, _, name_bytes = _EVENT.unpack_from(events, at)
        at, masks = at + _EVENT.size + name_bytes, masks | mask
    return bool(masks & _IN_IGNORED)


def _watch(directory: int) -> int:
    """Return a descriptor that is readable once a file is renamed into the directory; -1 if the system gives none."""
    try:
        import ctypes  # noqa: PLC0415  late: a program that never waits needs none of it

        libc = ctypes.CDLL(None, use_errno=True)
        fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except faults(ImportError, OSError, AttributeError):
        return -1
    if fd >= 0 and libc.inotify_add_watch(fd, b"/proc/self/fd/%d" % directory, _IN_MOVED_TO) < 0:
        os.close(fd)
        return -1
    return fd
