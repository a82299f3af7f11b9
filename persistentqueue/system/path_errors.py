"""Errors of system calls: which of them say something of the thing at a path, and which ones name a missing resource.

Signal handlers raise errors, too. The usual alarm that bounds a call raises a ``TimeoutError``, which is an
``OSError``, and it has to come out of the call. So each ``except`` clause for errors of calls names its classes by
``faults``, and ``suppress`` takes the place of the one of ``contextlib``. Then a handler's error takes the same way as
Ctrl-C.

A call that looks at a path may find nothing there, something that this user may not look into, or no plain file. Those
are facts, and only the errors named here state them. Any other error may pass, such as a lack of descriptors or memory,
or a network disk that times out. It states nothing, so the caller raises it. A lack of a resource gets a class of its
own, which says what to free. ``EIO`` is damage: see ``bad_pages``.
"""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from ..errors import (
    DiskFullError,
    MemoryShortageError,
    NoThreadError,
    OutOfMemoryError,
    PersistentQueueError,
    ResourceError,
    TooManyFilesError,
    UnusablePathError,
)
from ..errors.paths import ADVICE

E = TypeVar("E", bound=BaseException)

ABSENT = (FileNotFoundError, NotADirectoryError)
"""Classes of the errors of a path that names nothing."""
OUT_OF_REACH = (*ABSENT, PermissionError)
"""Classes of the errors of a path that names nothing, or something that this user may not look into."""

_OUT_OF_REACH = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG})
_NO_PLAIN_FILE = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV, errno.EMLINK})
_NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EISDIR})


def is_out_of_reach(error: OSError) -> bool:
    """Return whether the error is of ``OUT_OF_REACH``, or that of links that lead nowhere, or of too long a path."""
    return error.errno in _OUT_OF_REACH


def may_pass(error: Exception) -> bool:
    """Return whether the same call may succeed later, so that the error says nothing of the path.

    An error of the package says something, except that memory is short.
    """
    return isinstance(error, MemoryShortageError) or (isinstance(error, OSError) and not is_out_of_reach(error))


def _is_of_handler(error: BaseException | None) -> bool:
    """Return whether a signal handler of the program has raised the error. A call of the system gives a number."""
    return isinstance(error, TimeoutError) and error.errno is None


def faults(*kinds: type[E]) -> tuple[type[E], ...]:
    """Return the classes that an ``except`` clause handles: these, or none if a signal handler has raised the error.

    Python calls this when it looks for a clause, so the error is that under way.
    """
    return () if _is_of_handler(sys.exc_info()[1]) else kinds


class _Suppressed(contextlib.suppress):
    """The manager of ``suppress``."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return not _is_of_handler(error) and super().__exit__(kind, error, traceback)


def suppress(*kinds: type[BaseException]) -> _Suppressed:
    """Return a context manager that swallows errors of these classes, but none that a signal handler has raised."""
    return _Suppressed(*kinds)


def is_no_plain_file(error: OSError) -> bool:
    """Return whether an opening has failed because something else than a plain file has the path."""
    return error.errno in _NO_PLAIN_FILE


def has_no_locks(error: OSError) -> bool:
    """Return whether a lock of a directory has failed because its file system locks no directories."""
    return error.errno in _NO_LOCKS


def lacking(error: OSError, path: str, purpose: str, advice: str = "then flush again") -> ResourceError | None:
    """Return the error for the missing resource that ``error`` reports; None if ``error`` reports something else.

    ``error`` was raised before anything was committed. ``path`` is the file or directory of the failed call, and
    ``purpose`` says what the call was for, such as "to open the queue". ``advice`` says what to do once the resource is
    there.
    """
    for kind in (DiskFullError, TooManyFilesError, OutOfMemoryError):
        if error.errno in kind.errnos:
            return kind(path, error.errno, f"{kind.lacks} {purpose}", advice)
    return None


@contextmanager
def unless_lacking(path: str, purpose: str, advice: str = "then flush again") -> Iterator[None]:
    """Raise the ``ResourceError`` that ``lacking`` returns for an ``OSError`` of the block."""
    try:
        yield
    except OSError as error:
        lack = lacking(error, path, purpose, advice)
        if lack is None:
            raise
        raise lack from error


@contextmanager
def unless_no_thread(path: str, purpose: str, advice: str) -> Iterator[None]:
    """Raise ``NoThreadError`` for the ``RuntimeError`` of a thread that the block cannot start."""
    try:
        yield
    except RuntimeError as error:
        raise NoThreadError(path, errno.EAGAIN, f"{NoThreadError.lacks} {purpose} ({error})", advice) from error


@contextmanager
def unless_call_lacks(path: str, purpose: str, advice: str) -> Iterator[None]:
    """Raise each ``ResourceError`` of the block, and those of ``unless_lacking``, with this purpose and this advice.

    This is for a whole call: a step of it that other calls share names their purpose, such as "then flush again".
    """
    try:
        with unless_lacking(path, purpose, advice):
            yield
    except ResourceError as error:
        raise type(error)(error.path, error.errno, f"{error.lacks} {purpose}", advice) from error


@contextmanager
def naming_paths(path: str = "the queue's directory") -> Iterator[None]:
    """Raise ``UnusablePathError`` for an ``OSError`` with a known meaning; ``path`` replaces a missing file name."""
    try:
        yield
    except PersistentQueueError:
        raise
    except OSError as error:
        if error.errno not in ADVICE:
            raise
        kind = next((kind for kind in UnusablePathError.__subclasses__() if isinstance(error, kind.__bases__[1])), None)
        raise (kind or UnusablePathError)(error.errno, error.strerror, error.filename or path) from error
