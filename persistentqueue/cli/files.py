"""Files that the command line writes, by names that its user chose."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO

_STDOUT = {"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_MODE = 0o600


@contextmanager
def stdout() -> Iterator[IO[bytes]]:
    """Yield stdout, for bytes."""
    sys.stdout.flush()
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


@contextmanager
def written_to(output: str) -> Iterator[IO[bytes]]:
    """Yield a file that gets its name when it is complete and synced, with its directory.

    Until then it has a random name beside its own, is created exclusively, and follows no link. Its mode is that of the
    file before, or 0600. Whatever ends the writing early, the file with the random name is removed.

    A link as ``output`` is the user's, and goes on leading to where it does. A device or a pipe is written to.
    """
    if output in _STDOUT:
        with stdout() as file:
            yield file
        return
    path = Path(output)
    if path.exists() and not path.is_file():
        with _device(path) as file:
            yield file
        return
    path = path.resolve()
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _replaced(directory, path.name) as file:
            yield file
    finally:
        os.close(directory)


@contextmanager
def _device(path: Path) -> Iterator[IO[bytes]]:
    fd = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)  # makes and cuts nothing, whatever stands there now
    with open(fd, "wb") as file:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            raise FileExistsError(f"{path}: it was no regular file, and is one now: write to it again")
        yield file


@contextmanager
def _replaced(directory: int, name: str) -> Iterator[IO[bytes]]:
    part = _free_name(directory)
    try:
        with open(os.open(part, _NEW, _NEW_MODE, dir_fd=directory), "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), _mode_of(directory, name))
            os.fsync(file.fileno())
        os.replace(part, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=directory)
        raise
    os.fsync(directory)


def _free_name(directory: int) -> str:
    """A random name that nothing in the directory has."""
    while True:
        name = f".{token_hex(8)}.part"
        try:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return name


def _mode_of(directory: int, name: str) -> int:
    """The permissions of a regular file that is there, or those of a new one."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return _NEW_MODE
    return stat.S_IMODE(found) & 0o777 if stat.S_ISREG(found) else _NEW_MODE
