"""Real power cuts: ext4 on a loop device, shut down under the queue without a flush, and mounted again.

``FS_IOC_SHUTDOWN`` with the flag for "no flush" is the power cut: what the file system has not put on the device is
gone, and all that is asked of it later fails. A child works on the queue meanwhile (see ``kills``, whose ledger and
whose child these are). Promised: after mounting, which replays the journal of ext4, the queue holds what was last
acknowledged, or what was under way as a whole, and ``check`` has nothing to say once it was opened and closed. Every
fourth cut falls into the opening, and now and then a queue is cut again before it was closed, so that recovery is cut.

To show that the cuts are real the child also appends to a file that it never syncs: what is missing from it is counted.

Needs root, ``mkfs.ext4``, and loop devices; ``CutsUnavailable`` says what is not there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

from .kills import Ledger, close_and_check, fast_directory, fork, in_a_process_of_its_own, live

MODES = ("data=ordered", "data=journal", "data=writeback", "noauto_da_alloc")
"""Options of ``mount``; the last one takes a kindness of ext4 away that hides bugs."""
_IMAGE_BYTES = 32 << 20
_CUTS_PER_IMAGE = 25
_SHUTDOWN = 0x8004587D
_NO_FLUSH = struct.pack("I", 2)
_PATIENCE_SECONDS = 20.0
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
_LOOP_CONTROL = "/dev/loop-control"


class CutsUnavailable(Exception):  # noqa: N818 - a reason to skip, not an error
    """This machine cannot do it, and why."""


class Report(NamedTuple):
    """What a campaign did, without a violation."""

    cuts: int
    acknowledged: int
    """Flushes that returned."""
    per_mode: dict[str, int]
    """Cuts for each of the mount options."""
    under_way: int
    """Cuts in the middle of a flush."""
    kept: int
    """So many of the flushes that were under way were found, as a whole; the others not at all."""
    while_opening: int
    """Cuts before the queue was open."""
    forgotten: int
    """Cuts that took something that was not synced from a file beside the queue."""
    seconds: float


def run_cuts(count: int, modes: Sequence[str] = MODES, seed: int = 0) -> Report:
    """Cut the power so often, in each of the modes in turn. Nothing stays mounted, whatever happens.

    Raises ``AssertionError`` at the first violation, with the mode, the seed, what was expected and what was found;
    ``CutsUnavailable``; and ``OSError`` where mounting goes wrong later.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise CutsUnavailable("only root can mount a file system")
    for tool in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(tool, path=_PATH) is None:
            raise CutsUnavailable(f"there is no {tool}")
    if not os.path.exists(_LOOP_CONTROL):
        raise CutsUnavailable(f"there are no loop devices: {_LOOP_CONTROL} is missing")
    return in_a_process_of_its_own(_serve, count, tuple(modes), seed)


def _serve(count: int, modes: Sequence[str], seed: int) -> Report:
    began, chance, machines = time.monotonic(), random.Random(seed), []
    per_mode = {mode: count // len(modes) + (number < count % len(modes)) for number, mode in enumerate(modes)}
    for mode, cuts in per_mode.items():
        for done in range(0, cuts, _CUTS_PER_IMAGE):
            with _machine(mode, chance) as machine:
                machines.append(machine)
                try:
                    machine.run(min(_CUTS_PER_IMAGE, cuts - done))
                except AssertionError as error:
                    where = f"mode {mode}, seed {seed}, cut {done + machine.cuts} of this mode"
                    raise AssertionError(f"{where}: {error}") from error
    ledgers = [machine.ledger for machine in machines]
    return Report(
        cuts=sum(machine.cuts for machine in machines),
        acknowledged=sum(ledger.acknowledged for ledger in ledgers),
        per_mode=per_mode,
        under_way=sum(ledger.under_way for ledger in ledgers),
        kept=sum(ledger.kept for ledger in ledgers),
        while_opening=sum(machine.while_opening for machine in machines),
        forgotten=sum(machine.forgotten for machine in machines),
        seconds=time.monotonic() - began,
    )


@contextmanager
def _machine(mode: str, chance: random.Random) -> Iterator[_Machine]:
    """A machine with an empty disk. Whatever happens, nothing stays mounted."""
    directory = tempfile.mkdtemp(prefix="cuts-", dir=fast_directory())
    machine = _Machine(directory, mode, chance)
    try:
        with open(machine.image, "wb") as image:
            image.truncate(_IMAGE_BYTES)
        os.mkdir(machine.mountpoint)
        _run("mkfs.ext4", "-q", machine.image)
        try:
            machine.mount()
        except OSError as error:
            raise CutsUnavailable(f"a loop device cannot be mounted: {error}") from error
        yield machine
    finally:
        for options in ((), ("-l",)):  # one that is not mounted refuses both
            with suppress(OSError):
                _run("umount", *options, machine.mountpoint)
                break
        shutil.rmtree(directory)


class _Machine:
    """A disk whose power can be cut, and the queue on it."""

    def __init__(self, directory: str, mode: str, chance: random.Random) -> None:
        self.image, self.mountpoint = os.path.join(directory, "image"), os.path.join(directory, "mounted")
        self.ledger = Ledger()
        self.cuts = self.while_opening = self.forgotten = 0
        self._mode, self._chance = mode, chance
        self._queue = os.path.join(self.mountpoint, "queue")
        self._unsynced = os.path.join(self.mountpoint, "unsynced")

    def mount(self) -> None:
        """Mount it. After a cut this replays the journal of ext4."""
        _run("mount", "-o", f"loop,{self._mode}", self.image, self.mountpoint)

    def unmount(self) -> None:
        """Unmount it; the loop device goes by itself."""
        _run("umount", self.mountpoint)

    def run(self, cuts: int) -> None:
        """Live and cut so often; after most cuts, and after the last, open the queue, compare, close and ``check``."""
        for left in reversed(range(cuts)):
            self._cut()
            self.unmount()
            self.mount()
            self._count_what_is_forgotten()
            if left == 0 or self._chance.random() < 0.8:
                close_and_check(self._queue, self.ledger, flushes=self._chance.choice([0, 5]))

    def _cut(self) -> None:
        """One life, cut."""
        self._flushes_before = self.ledger.flushes
        openings = self.ledger.openings
        soon = self._chance.random() < 0.25
        seconds = self._chance.uniform(0.0, 0.015) if soon else self._chance.uniform(0.03, 0.15)
        door = os.open(self.mountpoint, os.O_RDONLY | os.O_DIRECTORY)
        patience_seconds = 0.0
        pid, pipe = fork(partial(self._live, self._chance.getrandbits(32)))
        try:
            ended = self.ledger.follow(pipe, seconds)
            assert not ended, f"before the cut: expected one of {self.ledger.allowed}, found {self.ledger.error}"
            self._shut_down(door)
            patience_seconds = _PATIENCE_SECONDS
        finally:
            os.close(door)
            self.ledger.end(pid, pipe, patience_seconds)
        self.cuts += 1
        self.while_opening += self.ledger.openings == openings

    def _shut_down(self, door: int) -> None:
        try:
            fcntl.ioctl(door, _SHUTDOWN, _NO_FLUSH)
        except OSError as error:
            if error.errno in {errno.ENOTTY, errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL}:
                raise CutsUnavailable(f"FS_IOC_SHUTDOWN does not go here: {error}") from error
            raise

    def _live(self, seed: int, ledger: int) -> None:
        """The child: it also appends a byte to a file before each flush, and never syncs that."""
        unsynced = os.open(self._unsynced, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        live(self._queue, seed, None, ledger, on_flush=lambda: _append(unsynced))

    def _count_what_is_forgotten(self) -> None:
        appended_bytes, found_bytes = self.ledger.flushes - self._flushes_before, 0
        with suppress(FileNotFoundError):
            found_bytes = os.stat(self._unsynced).st_size
            os.unlink(self._unsynced)
        self.forgotten += found_bytes < appended_bytes


def _append(fd: int) -> None:
    os.write(fd, b".")


def _run(tool: str, *arguments: str) -> None:
    command = [shutil.which(tool, path=_PATH) or tool, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise OSError(f"{' '.join(command)}: {result.stderr.strip() or result.returncode}")
