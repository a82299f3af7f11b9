"""Output files of the command line, whose names the user chooses."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO

from .streams import flush_whole, read, stdin, stdout, write_whole, written

STDOUT = {"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}
"""Names of stdout."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_MODE = 0o600


class Output:
    """A binary file that is written. Its errors name it."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self._name = file, name

    def write(self, data: bytes) -> None:
        """Write the bytes to the file, or to its buffer."""
        with written(self._name):
            write_whole(self._file, data)

    def flush(self) -> None:
        """Write what the buffer of the file has."""
        with written(self._name):
            flush_whole(self._file)

    def close(self) -> None:
        """Write what the buffer of the file has, and close the file."""
        with written(self._name):
            self._file.close()

    def settle(self, mode: int) -> None:
        """Write what the buffer has, set the mode of the file, and sync the file."""
        with written(self._name):
            self._file.flush()
            os.fchmod(self._file.fileno(), mode)
            os.fsync(self._file.fileno())


@contextmanager
def _stdout() -> Iterator[Output]:
    """Yield stdout as a binary file; flush it before and after the block."""
    with written("stdout"):
        output = Output(stdout(), "stdout")
    yield output
    output.flush()


@contextmanager
def written_to(output: str) -> Iterator[Output]:
    """Yield a binary file that gets the name ``output`` only when it is complete and synced.

    Until then it has a random name in the same directory; it is created exclusively, and no link is followed. Its mode
    is that of the file that it replaces, or 0600. If the writing ends early, the file with the random name is removed.
    The directory is synced after the rename.

    If ``output`` is a symbolic link, the link stays, and the file behind it is replaced. A device or a pipe is written
    to directly.
    """
    if output in STDOUT:
        with _stdout() as file:
            yield file
        return
    path = Path(output)
    if _is_special(path):
        with _device(path) as file:
            yield file
        return
    path = path.resolve()
    directory = _opened(path.parent, output)
    try:
        with _replaced(directory, path) as file:
            yield file
    finally:
        os.close(directory)


def _is_special(path: Path) -> bool:
    """Return whether there is a device, a pipe or a directory at the path. An error names it, and says what to do."""
    with written(str(path)), suppress(FileNotFoundError, NotADirectoryError):  # of its directory, which is opened later
        return not stat.S_ISREG(path.stat().st_mode)
    return False


def _opened(directory: Path, output: str) -> int:
    """Return a descriptor of the directory of the file ``output``. An error names this file, and what to do."""
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{output}: the directory {directory} does not exist: make it, or give another FILE"
        ) from None
    except OSError as error:
        raise type(error)(
            f"{output}: the directory {directory} cannot be opened: {error.strerror}: give another FILE"
        ) from None


@contextmanager
def read_from(source: str) -> Iterator[tuple[Iterator[bytes], int | None]]:
    """Yield the lines of the file ``source``, and its size in bytes; those of stdin, and None, for ``-``. An error says
    what to do."""
    if source == "-":
        yield lines_of(stdin(), "stdin"), None
        return
    try:
        file = Path(source).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise type(error)(
            f"{source}: {error.strerror}: give -i a file that this user can read, or - for stdin"
        ) from None
    with file:
        yield lines_of(file, source), os.fstat(file.fileno()).st_size


def lines_of(file: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield the lines of the file. An error names it."""
    with read(name):
        yield from file


@contextmanager
def _device(path: Path) -> Iterator[Output]:
    with written(str(path)):
        fd = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)  # neither creates nor truncates a file
    with closing(Output(open(fd, "wb"), str(path))) as output:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            raise FileExistsError(
                f"{path}: this was a device or a pipe, and a regular file has replaced it: run the command again"
            )
        yield output


@contextmanager
def _replaced(directory: int, path: Path) -> Iterator[Output]:
    part = _free_name(directory)
    try:
        file = open(_made(part, directory, path), "wb")  # noqa: SIM115 - closed by ``closing``
        with closing(Output(file, str(path))) as output:
            yield output
            output.settle(_mode_of(directory, path.name))
        os.replace(part, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=directory)
        raise
    os.fsync(directory)


def _made(part: str, directory: int, path: Path) -> int:
    """Return the descriptor of the new file ``part``. An error names ``path``, which the user has chosen."""
    try:
        return os.open(part, _NEW, _NEW_MODE, dir_fd=directory)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _free_name(directory: int) -> str:
    """Return a random name that is not in use in the directory."""
    while True:
        name = f".{token_hex(8)}.part"
        try:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return name


def _mode_of(directory: int, name: str) -> int:
    """Return the permissions of the regular file with this name, or 0600 if there is none."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return _NEW_MODE
    return stat.S_IMODE(found) & 0o777 if stat.S_ISREG(found) else _NEW_MODE
