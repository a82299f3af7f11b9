"""What wakes a thread when another process has put a file into a directory, or another thread rings.

Where Linux has it (``inotify``, and ``eventfd``) that takes no processor time and no time; elsewhere, and where the
system gives no more of them to this user, the thread looks every 50 ms. This is a door to the operating system, as
``disk`` is.

The directory is watched by its descriptor, through ``/proc``, since another directory may have its name by now. When
the directory is deleted the system ends the watch; from then on the thread looks every 50 ms.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
from contextlib import suppress

POLL_SECONDS = 0.05
LONGEST_SECONDS = 86_400.0
"""No single wait is longer: the system counts milliseconds in 31 bits."""
_IN_MOVED_TO = 0x00000080
_IN_IGNORED = 0x00008000
_EVENT = struct.Struct("=iIII")
_EVENTS_BYTES = 64 * 1024


class Wakeup:
    """Rings when a file is renamed into the directory, and by ``ring``. One thread waits at a time.

    ``directory`` is a descriptor of the directory, which the bell does not need any longer than its making takes.
    Raises ``OSError`` where the process has no descriptors left.
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
        """Return when it rings, or has rung since the last time, when the time is over, or before."""
        seconds = min(timeout_seconds, LONGEST_SECONDS if self._watch >= 0 else POLL_SECONDS)
        for fd, _ in self._poll.poll(1000 * seconds):
            with suppress(BlockingIOError):
                data = os.read(fd, _EVENTS_BYTES)
                if fd == self._watch and _is_over(data):
                    self._poll.unregister(fd)
                    self._watch = -1
                    os.close(fd)

    def ring(self) -> None:
        """Wake who waits, or will. For any thread."""
        with suppress(BlockingIOError):  # it has rung often enough
            if self._own >= 0:
                os.eventfd_write(self._own, 1)
            else:
                os.write(self._pipe[1], b"\0")

    def close(self) -> None:
        """Close its descriptors; nobody waits, or rings, any more."""
        for fd in (self._watch, self._own, *self._pipe):
            if fd >= 0:
                os.close(fd)
        self._watch = self._own = -1
        self._pipe = (-1, -1)


def _is_over(events: bytes) -> bool:
    """Return whether the system says among these events that it has ended the watch."""
    at, masks = 0, 0
    while at < len(events):
        _, mask, _, name_bytes = _EVENT.unpack_from(events, at)
        at, masks = at + _EVENT.size + name_bytes, masks | mask
    return bool(masks & _IN_IGNORED)


def _watch(directory: int) -> int:
    """A descriptor that can be read when a file was renamed into the directory; -1 where there is none to be had."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, AttributeError):
        return -1
    if fd >= 0 and libc.inotify_add_watch(fd, b"/proc/self/fd/%d" % directory, _IN_MOVED_TO) < 0:
        os.close(fd)
        return -1
    return fd
