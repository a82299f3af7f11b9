"""Which errors of system calls state a fact about a path, and which ones may pass."""

from __future__ import annotations

import errno
import os

import pytest

from persistentqueue.errors import CorruptionError, MemoryShortageError
from persistentqueue.system.path_errors import (
    ABSENT,
    OUT_OF_REACH,
    faults,
    is_no_plain_file,
    is_out_of_reach,
    may_pass,
    suppress,
)

FACTS = ("ENOENT", "ENOTDIR", "EACCES", "EPERM", "ELOOP", "ENAMETOOLONG")
PASSING = ("EMFILE", "ENFILE", "ENOMEM", "ETIMEDOUT", "EIO", "ESTALE", "EINTR", "EAGAIN", "EBUSY", "ENOSPC", "EDQUOT")


def _error(name: str) -> OSError:
    code: int = getattr(errno, name)
    return OSError(code, os.strerror(code), "q")


@pytest.mark.parametrize("name", FACTS)
def test_an_error_that_states_a_fact_does_not_pass(name: str) -> None:
    assert is_out_of_reach(_error(name))
    assert not may_pass(_error(name))


@pytest.mark.parametrize("name", PASSING)
def test_an_error_that_may_pass_states_no_fact(name: str) -> None:
    error = _error(name)
    assert may_pass(error)
    assert not is_out_of_reach(error)
    assert not is_no_plain_file(error)
    assert not isinstance(error, OUT_OF_REACH)


def test_the_classes_and_the_numbers_agree() -> None:
    """Each error that ``except OUT_OF_REACH`` catches is out of reach by its number, too."""
    caught = [error for error in map(_error, errno.errorcode.values()) if isinstance(error, OUT_OF_REACH)]
    assert {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM} <= {error.errno for error in caught}
    assert all(map(is_out_of_reach, caught))
    assert {error.errno for error in caught if isinstance(error, ABSENT)} == {errno.ENOENT, errno.ENOTDIR}


def test_of_the_errors_of_the_package_only_a_lack_of_memory_passes() -> None:
    assert may_pass(MemoryShortageError("q", 0, 1))
    assert not may_pass(CorruptionError("q", 0, "a header", "zeros"))


def test_an_error_of_a_signal_handler_passes_by_a_clause_for_errors_of_calls() -> None:
    """``faults`` and ``suppress`` let out a ``TimeoutError`` without a number, and handle that of a system call."""
    with pytest.raises(TimeoutError, match=r"^the alarm$"):
        try:
            raise TimeoutError("the alarm")
        except faults(OSError, ValueError):
            pytest.fail("it was handled")
    with pytest.raises(TimeoutError, match=r"^the alarm$"), suppress(OSError, ValueError):
        raise TimeoutError("the alarm")
    for error in (_error("ETIMEDOUT"), OSError("of a codec"), ValueError()):
        with suppress(OSError, ValueError):
            raise error
        try:
            raise error
        except faults(OSError, ValueError):
            pass
    with pytest.raises(KeyError), suppress(OSError):
        raise KeyError
