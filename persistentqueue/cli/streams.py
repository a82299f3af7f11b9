"""The three standard streams, Ctrl-C and the signals that end a process, in a process of the command line.

A stream may be closed, full, in ASCII, or without a reader. No such stream may end in a traceback, in the status that
means "nothing to get", or in an error message within the answer. ``ready`` and ``finish`` enclose the verb.

With ``PYTHONUNBUFFERED`` stdout has no buffer, and may take only a part of a write. Another process may have made a
pipe non-blocking: a call then takes or gives nothing. ``write_whole``, ``flush_whole`` and ``stdin`` go on until all
bytes are written or read. The stdout of a notebook takes only text.

Ctrl-C has three phases. Before the verb it ends the process at once, because nothing is open yet. During the verb it
raises ``KeyboardInterrupt``. After the verb it is ignored, because the status is known. SIGTERM and SIGHUP do the same,
so that no file and no terminal is left as the verb uses it; at the end the process ends by the signal. If the process
was started with one of them ignored, as ``nohup`` does, it stays ignored.
"""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, Any, TextIO, cast

WELL, PROBLEMS, FAILED, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses: success, problems found or no item, an error, and the end by a signal."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a file for which there is no space."""
_PAUSE_MS, _LONGEST_PAUSE_MS = 1, 50
"""Milliseconds between two checks of what a pipe still holds: the first pause, and the longest."""


def ready(*, discards: bool = False) -> None:
    """Open a substitute for each standard stream that is closed, and let stdout and stderr escape any character.

    The substitute keeps the descriptor, so that no file that is opened later gets it. Reading a closed stdin raises
    ``OSError``, and so does writing to a closed stdout or stderr. With ``discards``, what is written there is dropped,
    as Python drops it: the output is not the answer of a verb, but that of a function of the user.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        with suppress(OSError):
            os.fstat(fd)
            if getattr(sys, name) is not None:
                continue
        fails = os.O_WRONLY if mode == "r" else os.O_RDONLY  # each use of it fails: EBADF
        opened = os.open(os.devnull, os.O_WRONLY if discards else fails)
        if opened != fd:
            os.dup2(opened, fd)
            os.close(opened)
        setattr(sys, name, open(fd, mode, encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def tell(line: str) -> None:
    """Write a line to stderr; ignore a stderr that cannot be written, because the exit status reports the failure."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


@contextmanager
def written(name: str, done: str = "") -> Iterator[None]:
    """Let errors of the block, which writes to stdout or to a file, name it, and say what to do.

    ``done`` says what the command has done before, and would do once more if it was repeated.
    Without it, a pipe that has no reader raises ``BrokenPipeError``, which ends a command silently.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError) and not done:
            raise
        advice = "give another output, or free some space" if error.errno in _FULL else "give another output"
        if done:
            advice = f"the command has {done}, so do not repeat it"
        kind = OSError if done else type(error)
        raise kind(f"{name} cannot be written: {error.strerror or error}: {advice}") from None


@contextmanager
def read(name: str) -> Iterator[None]:
    """Let errors of the block, which reads stdin or a file, name it, and say what to do."""
    try:
        yield
    except OSError as error:
        raise type(error)(f"{name} cannot be read: {error.strerror or error}: give another input") from None


def finish(status: int) -> int:
    """Flush stdout and stderr, and return the exit status.

    If stdout cannot be written, the status is 2, unless it was 130.
    """
    try:
        with written("stdout"):
            flush_whole(sys.stdout)
    except (OSError, ValueError) as error:
        if status not in {FAILED, INTERRUPTED}:
            status = FAILED
            if not isinstance(error, BrokenPipeError):
                tell(f"{type(error).__name__}: {error}")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            drop(stream)
    return status


def drop(stream: TextIO) -> None:
    """Redirect a broken stream to the null device, and flush it there, so that Python's flush at exit cannot fail."""
    with suppress(OSError, ValueError):
        fd = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, fd)
        os.close(nowhere)
        stream.flush()


def write_whole(file: IO[bytes], data: bytes) -> None:
    """Write all bytes to the file, or to its buffer. If the file is non-blocking, wait until it can be written."""
    rest = memoryview(data)
    while rest:
        try:
            count = file.write(rest)  # None if a file without a buffer takes none now
        except BlockingIOError as blocked:  # a buffer has taken a part
            count = blocked.characters_written
        if not count:
            _await(file, select.POLLOUT)
        rest = rest[count or 0 :]


def flush_whole(file: IO[Any]) -> None:
    """Write all that the buffer of the file has. If the file is non-blocking, wait until it can be written."""
    while True:
        try:
            file.flush()
        except BlockingIOError:
            _await(file, select.POLLOUT)
        else:
            return


def _await(file: IO[Any], event: int) -> None:
    """Wait until the non-blocking file can be read or written. Raise ``BlockingIOError`` if the system cannot tell."""
    try:
        fd = file.fileno()
    except (OSError, ValueError):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
    poll = select.poll()
    poll.register(fd, event)
    poll.poll()


class _Patient(io.RawIOBase):
    """Reads a file that may be non-blocking: a read waits until there are bytes, or the end."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._readinto = getattr(file, "readinto1", file.readinto)
        """One read at most: ``readinto`` of a buffer would wait until it is full."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer, and return the number of bytes; 0 only at the end."""
        while (count := self._readinto(buffer)) is None:
            _await(self._file, select.POLLIN)
        return int(count)


class _Text(io.RawIOBase):
    """Writes bytes to a stream that takes only text, such as the stdout of a notebook."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Write the bytes as text. Each byte that is no UTF-8 is escaped."""
        self._stream.write(bytes(data).decode(errors="backslashreplace"))
        return len(data)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


def takes_bytes(stream: TextIO) -> bool:
    """Return whether the stream has a binary file below it."""
    return hasattr(stream, "buffer")


def stdin() -> IO[bytes]:
    """Return stdin as a binary file, whose reads wait if it is non-blocking."""
    if not takes_bytes(sys.stdin):
        with read("stdin"):
            return io.BytesIO(sys.stdin.read().encode(errors="surrogateescape"))
    return io.BufferedReader(_Patient(sys.stdin.buffer))


def stdout() -> IO[bytes]:
    """Flush stdout, and return it as a binary file."""
    flush_whole(sys.stdout)
    return sys.stdout.buffer if takes_bytes(sys.stdout) else cast("IO[bytes]", _Text(sys.stdout))


def sync_stdout() -> None:
    """Make durable what was written to stdout, if it is a regular file."""
    with written("stdout"):
        if takes_bytes(sys.stdout) and _is(stat.S_ISREG, sys.stdout):
            os.fsync(sys.stdout.fileno())


def is_live(stream: TextIO) -> bool:
    """Return whether the stream is a terminal."""
    return stream.isatty()


def is_piped(stream: TextIO) -> bool:
    """Return whether the stream writes to a pipe."""
    return takes_bytes(stream) and _is(stat.S_ISFIFO, stream)


def _is(kind: Callable[[int], bool], stream: TextIO) -> bool:
    """Return whether the descriptor of the stream is of a kind of files; False if it has none."""
    try:
        return kind(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def lacks_reader(stream: TextIO) -> bool:
    """Return whether the stream is a pipe that no process reads any more."""
    with suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(stream, 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    return False


def await_reader(stream: TextIO) -> None:
    """Wait until the pipe's reader has taken all that was written.

    Return at once if the system does not report how much is left. Raises ``BrokenPipeError`` if the pipe has no reader.
    """
    import fcntl  # noqa: PLC0415 - not on every system
    import termios  # noqa: PLC0415

    fd, pause = stream.fileno(), _PAUSE_MS
    poll = select.poll()
    poll.register(fd, 0)  # an error, such as a missing reader, is reported without being asked for
    wait = 0
    while True:
        if any(event & select.POLLERR for _, event in poll.poll(wait)):
            raise BrokenPipeError
        try:
            (left,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
        except OSError:
            return
        if not left:
            return
        wait = pause
        pause = min(2 * pause, _LONGEST_PAUSE_MS)


def came_of_an_interrupt(error: BaseException | None) -> bool:
    """Return whether the error is a ``KeyboardInterrupt``, or was raised while one was handled."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


class Interrupts:
    """The handlers of SIGINT, SIGTERM and SIGHUP in this process, through the three phases of a verb."""

    def __init__(self) -> None:
        found = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        self._ours = [number for number in found if signal.getsignal(number) not in {signal.SIG_IGN, None}]
        if signal.SIGINT in self._ours:
            signal.signal(signal.SIGINT, _leave)
        self._swallowed = False
        self._ending: int | None = None
        """The signal by which the process ends."""

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Let each signal raise ``KeyboardInterrupt`` inside the block, and ignore it from then on."""
        before, sys.unraisablehook = sys.unraisablehook, self._unraisable(sys.unraisablehook)
        try:
            self._handle(self._interrupt)
            yield
        finally:
            self.end()
            sys.unraisablehook = before

    def end(self) -> None:
        """Ignore the signals from now on. If another one arrives during this call, remember it and try again."""
        while True:
            try:
                self._handle(signal.SIG_IGN)
            except KeyboardInterrupt:
                self._swallowed = True
            else:
                return

    def status(self, status: int) -> int:
        """Return the exit status: 130 if an interrupt did not reach the verb, else ``status``."""
        return INTERRUPTED if self._swallowed else status

    def obey(self) -> None:
        """End the process by SIGTERM or SIGHUP, if one has interrupted the verb: its parent sees it in the status."""
        if self._ending is not None:
            signal.signal(self._ending, signal.SIG_DFL)
            signal.raise_signal(self._ending)

    def _handle(self, handler: Any) -> None:
        for number in self._ours:
            signal.signal(number, handler)

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            self._ending = number
        raise KeyboardInterrupt

    def _unraisable(self, before: Callable[[sys.UnraisableHookArgs], Any]) -> Callable[[sys.UnraisableHookArgs], Any]:
        def hook(unraisable: sys.UnraisableHookArgs) -> None:
            """Remember an interrupt in a finalizer, where Python cannot raise it; pass on any other exception."""
            if came_of_an_interrupt(unraisable.exc_value):
                self._swallowed = True
            else:
                before(unraisable)

        return hook


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End the process at once: no queue is open, and nothing was written."""
    os._exit(INTERRUPTED)
