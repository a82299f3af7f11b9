"""Shared parts of the explorers: how one runs, how deep it goes, and how calls of the disk are made to fail."""

from __future__ import annotations

import errno
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from persistentqueue.engine.transaction import Transaction
from persistentqueue.errors import InvalidTransactionError, ResourceError
from persistentqueue.recovery import check
from persistentqueue.system import files
from tests.support.disks import call_on

from .disk import SimulatedDisk

LIVES = 3
SCHEDULES_MAX = 2000
"""Number of schedules after which a seed crashes no more in the middle of a call.

A seed whose writes are all short makes tens of thousands of calls, which are all alike.
"""
_UNLINK_STEP_BYTES = 150
"""The segments of these programs are small: so they, too, are deleted in several steps."""
PATIENCE_SECONDS = 30.0
"""Processor time that a seed may take; it normally takes a few seconds. Other load of the machine does not count."""
_NEEDING_ROOM = {"open", "pwritev", "fallocate", "rename", "mkdir"}
_FAULTS = {
    "full": _NEEDING_ROOM,
    "files": {"descriptor"},
    "memory": {"descriptor", *_NEEDING_ROOM},
    "sync": {"fdatasync", "fsync", "pwritev dsync"},
    "read": {"pread"},
    "short write": {"short write"},
    "short read": {"short read"},
}
"""Calls of the disk that each kind of fault affects."""
_RARER = {2: ("files", (errno.EMFILE, errno.ENFILE)), 3: ("memory", (errno.ENOMEM, errno.ENOMEM))}
"""Other resources that the system may lack, in place of disk space: descriptors, memory."""


_CLOSE_ODDS = (0.0,) * 8 + (0.05, 1.0)
"""Odds that a close fails, for a life to choose from: in most lives none does."""
_CLOSE_ERRORS = (errno.EIO, errno.EINTR, errno.ENOSPC, errno.EDQUOT)


class ViolationError(AssertionError):
    """A state that the model does not allow."""


def require_valid(transaction: Transaction) -> None:
    """Raise ``ViolationError`` if the state has refused a transaction that the queue itself makes, such as a
    compaction."""
    if isinstance(transaction.error, InvalidTransactionError):
        raise ViolationError(f"{transaction.error!r}")


@contextmanager
def exploring(
    chance: random.Random, seed: int, faults: bool, trace: bool, style: str | None
) -> Iterator[SimulatedDisk]:
    """Yield a new disk to explore.

    Any exception of the block is raised as ``ViolationError`` with the command that replays it. A block that hangs
    raises it, too. Only the main thread can use it: the time limit needs the signal of a timer.
    """
    handler = signal.signal(signal.SIGVTALRM, _raise_hanging)
    signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE_SECONDS)
    disk = SimulatedDisk()
    disk.trace = [] if trace else None
    disk.sync_failure = chance.choice(["ext4", "ext4 data=journal", "btrfs"])
    try:
        with patch.object(files, "UNLINK_STEP_BYTES", _UNLINK_STEP_BYTES):
            yield disk
    except Exception as error:
        options = (" --faults" if faults else "") + (f" --style {style}" if style else "")
        replay = f"python -m tests.crash random --first {seed} --count 1 --trace{options}"
        raise ViolationError(f"{type(error).__name__}: {error}\nreplay with: {replay}") from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)


def _raise_hanging(_signal: int, _frame: object) -> None:
    raise ViolationError(f"after {PATIENCE_SECONDS} seconds of computing it is still there: it hangs")


def crash(disk: SimulatedDisk, chance: random.Random) -> SimulatedDisk:
    """Return the disk after a kill of the process, after a power cut, or after both."""
    how = chance.randrange(5)
    if how in {0, 1}:
        disk = disk.kill(chance.randrange)
    if how >= 1:
        disk = disk.cut_power(chance.randrange)
    return disk


@contextmanager
def living() -> Iterator[None]:
    """Run a life after a crash: any exception that it raises is a violation.

    Otherwise the surrounding life, which is in the middle of a call, would take it for an error of the disk.
    """
    try:
        yield
    except ViolationError:
        raise
    except Exception as error:
        raise ViolationError(repr(error)) from error


def require_sound(disk: SimulatedDisk, path: str, names: Sequence[str]) -> None:
    """Raise ``ViolationError`` if ``check`` reports a problem of one of these queues. Queues without a log are
    skipped."""
    for name in names:
        if any(each.startswith(f"{path}/{name}/log/") for each in disk.names):
            report = call_on(disk.disk, check.check, path, name)
            if not report.ok:
                raise ViolationError(f"check of {name}: {report.problems}")


def is_unexplained(disk: SimulatedDisk, error: Exception) -> bool:
    """Return whether only closes have failed in this life. That explains no error, except that a spare has no room."""
    return disk.failed == {"close"} and not disk.sync_failed and not isinstance(error, ResourceError)


def inject(disk: SimulatedDisk, chance: random.Random) -> None:
    """Let one kind of call fail, once or from then on. In some lives closes fail, too."""
    kind = chance.choice(["full", "full", "sync", "sync", "short write", "short read", "read"])
    code = errno.EIO if kind != "full" else chance.choice([errno.ENOSPC, errno.EDQUOT])
    code = errno.ETIMEDOUT if kind == "read" else code  # a read that fails for now: EIO is damage
    after, forever, taken = chance.randrange(60), chance.random() < 0.3, chance.randrange(1, 90)
    at = disk.ticks + after
    if kind == "full" and after % 4 in _RARER:  # without a draw of its own, so that the seeds keep their meaning
        kind, codes = _RARER[after % 4]
        code = codes[code == errno.EDQUOT]
    waiting = [True]
    closes = random.Random(f"closes {kind} {after} {taken}")  # of its own, so that the draws for others stay unchanged
    close_odds = closes.choice(_CLOSE_ODDS)

    def fault(call: str, path: str) -> OSError | int | None:
        if call == "close":
            fails = close_odds and closes.random() < close_odds
            return OSError(closes.choice(_CLOSE_ERRORS), "injected", path) if fails else None
        if disk.ticks < at or call not in _FAULTS[kind] or not (waiting[0] or forever):
            return None
        waiting[0] = False
        return taken if kind.startswith("short") else OSError(code, "injected", path)

    disk.fault = fault
