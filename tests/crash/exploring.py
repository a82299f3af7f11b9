"""What explorers have in common: how one is run, how deep, and how calls of the disk are made to fail."""

from __future__ import annotations

import errno
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from persistentqueue.engine.transaction import Transaction
from persistentqueue.errors import InvalidTransactionError
from persistentqueue.recovery import check

from .disk import SimulatedDisk

LIVES = 3
SCHEDULES_MAX = 2000
"""Where a seed crashes no more in the middle: one whose writes are all short has ten thousands of calls, all alike."""
PATIENCE_SECONDS = 30.0
"""Of computing, whatever else the machine does; a seed takes a few at most."""
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
"""Which calls a fault is for."""
_RARER = {2: ("files", (errno.EMFILE, errno.ENFILE)), 3: ("memory", (errno.ENOMEM, errno.ENOMEM))}
"""What else the system may lack where a disk would be full: descriptors, memory."""


class ViolationError(AssertionError):
    """A state that the model does not allow."""


def require_valid(transaction: Transaction) -> None:
    """Raise ``ViolationError`` if the state has refused what the queue itself makes, such as a compaction."""
    if isinstance(transaction.error, InvalidTransactionError):
        raise ViolationError(f"{transaction.error!r}")


@contextmanager
def exploring(
    chance: random.Random, seed: int, faults: bool, trace: bool, style: str | None
) -> Iterator[SimulatedDisk]:
    """A new disk to explore. Raises ``ViolationError``, with the command that shows it again, for whatever the block
    raises, also if it hangs.

    For the main thread only, because of the latter: it takes the signal of a timer.
    """
    handler = signal.signal(signal.SIGVTALRM, _raise_hanging)
    signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE_SECONDS)
    disk = SimulatedDisk()
    disk.trace = [] if trace else None
    disk.sync_failure = chance.choice(["ext4", "ext4 data=journal", "btrfs"])
    try:
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
    """What is left of it when the process is killed, when the power is cut, or when both happen."""
    how = chance.randrange(5)
    if how in {0, 1}:
        disk = disk.kill(chance.randrange)
    if how >= 1:
        disk = disk.cut_power(chance.randrange)
    return disk


@contextmanager
def living() -> Iterator[None]:
    """A life behind a crash: what it raises is a violation. In the life that goes on, in the middle of a call, it would
    be taken for an error of the disk's."""
    try:
        yield
    except ViolationError:
        raise
    except Exception as error:
        raise ViolationError(repr(error)) from error


def require_sound(disk: SimulatedDisk, path: str, names: Sequence[str]) -> None:
    """Raise ``ViolationError`` where ``check`` finds something wrong with one of these queues, if it is there."""
    for name in names:
        if any(each.startswith(f"{path}/{name}/log/") for each in disk.names):
            report = check.check(path, name, disk=disk.disk)
            if not report.ok:
                raise ViolationError(f"check of {name}: {report.problems}")


def inject(disk: SimulatedDisk, chance: random.Random) -> None:
    """Let some call fail, once or from then on."""
    kind = chance.choice(["full", "full", "sync", "sync", "short write", "short read", "read"])
    code = errno.EIO if kind != "full" else chance.choice([errno.ENOSPC, errno.EDQUOT])
    after, forever, taken = chance.randrange(60), chance.random() < 0.3, chance.randrange(1, 90)
    at = disk.ticks + after
    if kind == "full" and after % 4 in _RARER:  # by no draw of its own, so that seeds stay what they were
        kind, codes = _RARER[after % 4]
        code = codes[code == errno.EDQUOT]
    waiting = [True]

    def fault(call: str, path: str) -> OSError | int | None:
        if disk.ticks < at or call not in _FAULTS[kind] or not (waiting[0] or forever):
            return None
        waiting[0] = False
        return taken if kind.startswith("short") else OSError(code, "injected", path)

    disk.fault = fault
