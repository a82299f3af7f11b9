"""The signals that end a process gracefully, SIGTERM, SIGINT and SIGHUP, as numbers that a loop takes when it is ready.

A handler only notes its signal, so it interrupts no work. The interpreter also writes each signal to a pipe, which
wakes a loop that waits. A process that was started with a signal ignored, as ``nohup`` does, goes on ignoring it.

A child that the function of a worker forks has the handlers from before: else ``multiprocessing`` could not end it.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from persistentqueue.interrupts.members import Members
from persistentqueue.system.disk import after_fork_in_child

_REPEATED = getattr(signal, "SIGHUP", None)
"""The signal of which the first one counts: a shell repeats that of its terminal."""
ENDING = tuple(filter(None, (signal.SIGTERM, signal.SIGINT, _REPEATED)))
"""Signals that end a process gracefully."""


class Signals:
    """The ending signals that came since the block began. It takes others along, which only wake the loop.

    Until ``ready`` is called, the first ending signal raises ``KeyboardInterrupt``: so it ends an opening that waits.
    """

    def __init__(self, *others: signal.Signals) -> None:
        self._numbers = (*ENDING, *others)
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1
        self._raises = True
        self._reader = self._writer = -1
        self.came: list[int] = []
        """The ending signals that came, in their order."""

    def __enter__(self) -> Signals:
        self._reader, self._writer = os.pipe()
        for fd in (self._reader, self._writer):
            os.set_blocking(fd, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in self._numbers:
            if signal.getsignal(number) is not signal.SIG_IGN or number not in ENDING:
                self._before[number] = signal.signal(number, self._note)
        _NOTING.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _NOTING.discard(self)
        self._restore()
        os.close(self._reader)
        os.close(self._writer)

    def _restore(self) -> None:
        """Set the handlers from before."""
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def fileno(self) -> int:
        """Return the descriptor that is readable after a signal, for a selector."""
        return self._reader

    def ready(self) -> Signals:
        """Note signals from now on, and raise no error."""
        self._raises = False
        return self

    def interruptible(self, call: Callable[[], object], seen: int) -> None:
        """Make a call, unless more than ``seen`` signals came. The next ending signal ends it, without an error."""
        try:
            self._raises = True
            if len(self.came) == seen:
                call()
        except KeyboardInterrupt:  # the signal was noted
            pass
        finally:
            self._raises = False

    def clear(self) -> None:
        """Make the descriptor unreadable until the next signal."""
        with suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass

    def wait(self, seconds: float) -> bool:
        """Wait for an ending signal, at most for this time; return whether one has come since the block began."""
        if not self.came and select.select([self], [], [], seconds)[0]:
            self.clear()
        return bool(self.came)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number in ENDING and not (number == _REPEATED and number in self.came):
            self.came.append(number)
            if self._raises:
                self._raises = False  # the next signal may come while this one is handled
                raise KeyboardInterrupt


_NOTING: Members[Signals] = Members()


def _forget_parent() -> None:
    for signals in _NOTING:
        signals._restore()
    _NOTING.clear()  # the child may set handlers, which its own children keep


after_fork_in_child(_forget_parent)
