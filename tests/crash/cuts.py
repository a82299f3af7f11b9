"""Real power cuts: a file system on a loop device loses its power under the queue, and is mounted again.

Ext4 and XFS have a call for it, ``FS_IOC_SHUTDOWN`` with the flag for "no flush". Data that the file system has not put
on the device is lost, and every later call of it fails. Btrfs has no such call. There, the device is cut: the loop
device is told to end after its first sector. It then refuses every later access of any file system, and nothing is
flushed.

A child works on the queue meanwhile (see ``kills``, whose ledger and child are used). After the cut the file system is
mounted, which replays the journal. The queue must then hold the last acknowledged state, or that state with the whole
flush that was under way. ``check`` must find no problem after an opening and a close. About every fourth cut falls into
the opening. In some cases a queue is cut again before it was closed, so that recovery is cut.

To show that the cuts are real, the child also appends to a file that it never syncs. The campaign counts the cuts that
took something from it.

A file system whose device was cut may never end its unmounting: ext4 of Linux 6.18 has waited for ever for its own
journal. The campaign goes on with a new file system then, and counts it; the state after that cut is not compared.

It needs root, loop devices, and the ``mkfs`` of at least one of the file systems. ``CutsUnavailable`` and the report
name what is missing.
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
from pathlib import Path
from typing import NamedTuple

from .kills import Ledger, close_and_check, fast_directory, fork, in_a_process_of_its_own, live

_CUTS_PER_IMAGE = 25
_SHUTDOWN = 0x8004587D
_NO_FLUSH = struct.pack("I", 2)
_PATIENCE_SECONDS = 20.0
_STUCK_SECONDS = 60.0
"""Time after which a tool that has not ended is considered to wait in the kernel for ever."""
_STUCK: list[subprocess.Popen[str]] = []
"""Processes that wait in the kernel."""
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
_LOOP_CONTROL = "/dev/loop-control"
_LOOP_SET_STATUS, _LOOP_GET_STATUS = 0x4C04, 0x4C05
_LOOP_INFO_BYTES, _LOOP_SIZE_LIMIT_AT = 232, 32
_SECTOR_BYTES = 512


class Mode(NamedTuple):
    """A file system, and how its power is cut."""

    name: str
    kind: str
    options: str
    """Options of ``mount``."""
    image_bytes: int
    shutdown: bool = True
    """True if the file system's own call cuts the power; false if its device is cut."""
    leaves_junk: bool = False
    """True if files may show the data of deleted ones, unless they were synced."""


MODES = (
    Mode("ext4 data=ordered", "ext4", "data=ordered", 32 << 20),
    Mode("ext4 data=journal", "ext4", "data=journal", 32 << 20),
    Mode("ext4 data=writeback", "ext4", "data=writeback", 32 << 20, leaves_junk=True),
    Mode("ext4 noauto_da_alloc", "ext4", "noauto_da_alloc", 32 << 20),  # takes away a heuristic that hides bugs
    Mode("xfs", "xfs", "rw", 300 << 20),
    Mode("btrfs, its device", "btrfs", "rw", 300 << 20, shutdown=False),
    Mode("ext4, its device", "ext4", "data=ordered", 32 << 20, shutdown=False),
    Mode("xfs, its device", "xfs", "rw", 300 << 20, shutdown=False),
)


class CutsUnavailable(Exception):  # noqa: N818 - a reason to skip, not an error
    """This machine cannot cut the power; the message says why."""


class StuckError(OSError):
    """The kernel does not end an unmounting."""


class Report(NamedTuple):
    """Result of a campaign without a violation."""

    cuts: int
    acknowledged: int
    """Number of flushes that returned."""
    per_mode: dict[str, int]
    """Number of cuts of each file system."""
    unavailable: dict[str, str]
    """Reason why this machine cannot cut the file system, by its name."""
    under_way: int
    """Number of cuts in the middle of a flush."""
    kept: int
    """Number of flushes under way that were found as a whole; the others were not found at all."""
    while_opening: int
    """Number of cuts before the queue was open."""
    forgotten: int
    """Number of cuts that took unsynced data from a file beside the queue."""
    stuck: int
    """Number of file systems that the kernel did not unmount after a cut; a second one ends the campaign."""
    seconds: float


def run_cuts(count: int, seed: int = 0, only: str = "") -> Report:
    """Cut the power ``count`` times in total, in the modes with ``only`` in their names. Nothing stays mounted.

    Raises ``AssertionError`` at the first violation, with the mode, the seed, the expected and the found state. Raises
    ``CutsUnavailable``, and ``OSError`` if a later mount fails.
    """
    return in_a_process_of_its_own(_serve, count, chosen_modes(only), seed)


def chosen_modes(only: str) -> tuple[Mode, ...]:
    """Return the modes with this in their names. Raises ``CutsUnavailable`` if this process can cut no power."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise CutsUnavailable("only root can mount a file system")
    if not os.path.exists(_LOOP_CONTROL):
        raise CutsUnavailable(f"there are no loop devices: {_LOOP_CONTROL} is missing")
    return tuple(mode for mode in MODES if only in mode.name)


def _serve(count: int, wanted: Sequence[Mode], seed: int) -> Report:
    began, chance, stuck = time.monotonic(), random.Random(seed), 0
    machines: list[Machine] = []
    unavailable = {mode.name: reason for mode in wanted if (reason := what_is_missing(mode))}
    modes = [mode for mode in wanted if mode.name not in unavailable]
    if not modes:
        raise CutsUnavailable("; ".join(f"{name}: {reason}" for name, reason in unavailable.items()))
    per_mode = {mode: count // len(modes) + (number < count % len(modes)) for number, mode in enumerate(modes)}
    for mode, cuts in per_mode.items():
        done = 0
        while done < cuts:
            with machine_with(mode, chance) as machine:
                machines.append(machine)
                try:
                    machine.run(min(_CUTS_PER_IMAGE, cuts - done))
                except AssertionError as error:
                    where = f"mode {mode.name}, seed {seed}, cut {done + machine.cuts} of this mode"
                    raise AssertionError(f"{where}: {error}") from error
                except StuckError:
                    stuck += 1
                    if stuck > 1:
                        raise
                done += machine.cuts
    ledgers = [machine.ledger for machine in machines]
    return Report(
        cuts=sum(machine.cuts for machine in machines),
        acknowledged=sum(ledger.acknowledged for ledger in ledgers),
        per_mode={mode.name: cuts for mode, cuts in per_mode.items()},
        unavailable=unavailable,
        under_way=sum(ledger.under_way for ledger in ledgers),
        kept=sum(ledger.kept for ledger in ledgers),
        while_opening=sum(machine.while_opening for machine in machines),
        forgotten=sum(machine.forgotten for machine in machines),
        stuck=stuck,
        seconds=time.monotonic() - began,
    )


def what_is_missing(mode: Mode) -> str:
    """Return why this machine cannot cut the power of this file system; empty if it can."""
    for tool in (f"mkfs.{mode.kind}", "mount", "umount"):
        if shutil.which(tool, path=_PATH) is None:
            return f"there is no {tool}"
    try:
        with machine_with(mode, random.Random(0)) as machine:
            machine.try_to_cut()
    except CutsUnavailable as reason:
        return str(reason)
    return ""


@contextmanager
def machine_with(mode: Mode, chance: random.Random) -> Iterator[Machine]:
    """Yield a machine with an empty disk. Nothing stays mounted, even after an error, unless the kernel is stuck."""
    directory = tempfile.mkdtemp(prefix="cuts-", dir=fast_directory())
    machine = Machine(directory, mode, chance)
    try:
        with open(machine.image, "wb") as image:
            image.truncate(mode.image_bytes)
        os.mkdir(machine.mountpoint)
        _run(f"mkfs.{mode.kind}", "-q", machine.image)
        try:
            machine.mount()
        except OSError as error:
            raise CutsUnavailable(f"a loop device cannot be mounted: {error}") from error
        yield machine
    finally:
        if not machine.is_stuck:
            for options in ((), ("-l",)):  # an unmounted file system refuses both
                with suppress(OSError):
                    _run("umount", *options, machine.mountpoint)
                    break
            shutil.rmtree(directory)


class Machine:
    """A disk whose power can be cut, and the queue on it."""

    def __init__(self, directory: str, mode: Mode, chance: random.Random) -> None:
        self.image, self.mountpoint = os.path.join(directory, "image"), os.path.join(directory, "mounted")
        self.ledger = Ledger()
        self.cuts = self.while_opening = self.forgotten = 0
        self.is_stuck = False
        """Whether the kernel has not ended an unmounting: then no further call may touch the file system."""
        self._mode, self._chance = mode, chance
        self._queue = os.path.join(self.mountpoint, "queue")
        self._unsynced = os.path.join(self.mountpoint, "unsynced")

    def mount(self) -> None:
        """Mount the file system. After a cut this replays the journal."""
        _run("mount", "-o", f"loop,{self._mode.options}", self.image, self.mountpoint)

    def unmount(self) -> None:
        """Unmount the file system; the loop device then disappears. Raises ``StuckError``."""
        try:
            _run("umount", self.mountpoint)
        except StuckError:
            self.is_stuck = True
            raise

    def try_to_cut(self) -> None:
        """Cut the power without a child. Raises ``CutsUnavailable``."""
        with self.door() as door:
            self.cut_power(door)

    def run(self, cuts: int) -> None:
        """Live and cut ``cuts`` times; after most cuts, and after the last, open the queue, compare, close and
        ``check``."""
        for left in reversed(range(cuts)):
            self._cut()
            self.unmount()
            self.mount()
            self._count_what_is_forgotten()
            if left == 0 or self._chance.random() < 0.8:
                flushes = self._chance.choice([0, 5])
                close_and_check(self._queue, self.ledger, flushes, self._mode.leaves_junk)

    def _cut(self) -> None:
        """Let a child live, and cut the power under it."""
        self._flushes_before = self.ledger.flushes
        openings = self.ledger.openings
        soon = self._chance.random() < 0.25
        seconds = self._chance.uniform(0.0, 0.015) if soon else self._chance.uniform(0.03, 0.15)
        patience_seconds = 0.0
        with self.door() as door:
            pid, pipe = fork(partial(self._live, self._chance.getrandbits(32)))
            try:
                ended = self.ledger.follow(pipe, seconds)
                assert not ended, f"before the cut: expected one of {self.ledger.allowed}, found {self.ledger.error}"
                self.cut_power(door)
                patience_seconds = _PATIENCE_SECONDS
            finally:
                self.ledger.end(pid, pipe, patience_seconds)
        self.cuts += 1
        self.while_opening += self.ledger.openings == openings

    @contextmanager
    def door(self) -> Iterator[int]:
        """Yield a descriptor for cutting the power: of the file system, or of its device."""
        path, flags = self.mountpoint, os.O_RDONLY | os.O_DIRECTORY
        if not self._mode.shutdown:
            mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
            path, flags = next(device for device, mountpoint, *_ in mounts if mountpoint == self.mountpoint), os.O_RDWR
        door = os.open(path, flags)
        try:
            yield door
        finally:
            os.close(door)

    def cut_power(self, door: int) -> None:
        """Cut the power, through a descriptor that ``door`` has yielded. Raises ``CutsUnavailable``."""
        try:
            if self._mode.shutdown:
                fcntl.ioctl(door, _SHUTDOWN, _NO_FLUSH)
                return
            info = bytearray(_LOOP_INFO_BYTES)
            fcntl.ioctl(door, _LOOP_GET_STATUS, info)
            struct.pack_into("=Q", info, _LOOP_SIZE_LIMIT_AT, _SECTOR_BYTES)
            fcntl.ioctl(door, _LOOP_SET_STATUS, bytes(info))
        except OSError as error:
            if error.errno in {errno.ENOTTY, errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL}:
                raise CutsUnavailable(f"the power cannot be cut here: {error}") from error
            raise

    def _live(self, seed: int, ledger: int) -> None:
        """Live as the child. It also appends a byte to a file before each flush, and never syncs that file."""
        unsynced = os.open(self._unsynced, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        junk = self._mode.leaves_junk
        live(self._queue, seed, None, ledger, on_flush=lambda: _append(unsynced), may_find_junk=junk)

    def _count_what_is_forgotten(self) -> None:
        appended_bytes, found_bytes = self.ledger.flushes - self._flushes_before, 0
        with suppress(FileNotFoundError):
            found_bytes = os.stat(self._unsynced).st_size
            os.unlink(self._unsynced)
        self.forgotten += found_bytes < appended_bytes


def _append(fd: int) -> None:
    os.write(fd, b".")


def _run(tool: str, *arguments: str, limit_seconds: float = _STUCK_SECONDS) -> None:
    """Run a tool. Raises ``OSError`` if it fails, and ``StuckError`` if it does not end within the time.

    A process that waits in the kernel cannot be killed. So no call here waits for its end without a limit.
    """
    command = [shutil.which(tool, path=_PATH) or tool, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        printed = process.communicate(timeout=limit_seconds)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        assert process.stderr is not None
        process.stderr.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
        if process.returncode is None:
            _STUCK.append(process)
        raise StuckError(f"{' '.join(command)}: has not ended after {limit_seconds:g} s") from None
    if process.returncode:
        raise OSError(f"{' '.join(command)}: {printed.strip() or process.returncode}")
