"""Power cuts under a shared queue: the file system of ``cuts`` loses its power while worker processes flush.

The records of the workers lie beside the file system, and survive (see ``worker_lives``). After the cut all processes
are killed, and the file system is mounted again. One more process opens the queue. Every flush that returned True must
be there. The account of ``worker_records`` must add up over all cuts of the file system. A call that raised an error
after the cut counts as one without a result: it was committed as a whole, or not at all.
"""

from __future__ import annotations

import logging
import os
import random
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from persistentqueue import check

from .cuts import CutsUnavailable, Machine, Mode, StuckError, chosen_modes, machine_with, what_is_missing
from .kills import in_a_process_of_its_own
from .worker_lives import Post, drain, live
from .worker_records import Call, account, read_calls

_WORKERS = 4
_CUTS_PER_IMAGE = 10
_SECONDS_MAX = 0.25
"""Longest time from the start of the processes to the cut, beyond that of the opening."""


class Report(NamedTuple):
    """Result of a campaign without a violation."""

    cuts: int
    flushes: int
    """Number of flushes of all processes that returned True."""
    under_way: int
    """Number of flushes that a cut has interrupted."""
    per_mode: dict[str, int]
    """Number of cuts of each file system."""
    stuck: int
    """Number of file systems that the kernel did not unmount after a cut; a second one ends the campaign."""
    seconds: float


def run_worker_cuts(count: int, seed: int = 0, only: str = "") -> Report:
    """Cut the power ``count`` times in total, in the modes with ``only`` in their names.

    Raises ``AssertionError`` at the first violation, and ``CutsUnavailable``.
    """
    return in_a_process_of_its_own(_serve, count, chosen_modes(only), seed)


def _serve(count: int, wanted: Sequence[Mode], seed: int) -> Report:
    logging.getLogger("persistentqueue").setLevel(logging.CRITICAL)  # cuts cause warnings
    began, chance, stuck = time.monotonic(), random.Random(seed), 0
    calls: list[Call] = []
    unavailable = {mode.name: reason for mode in wanted if (reason := what_is_missing(mode))}
    modes = [mode for mode in wanted if mode.name not in unavailable]
    if not modes:
        raise CutsUnavailable("; ".join(f"{name}: {reason}" for name, reason in unavailable.items()))
    per_mode = {mode: count // len(modes) + (number < count % len(modes)) for number, mode in enumerate(modes)}
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    for mode, cuts in per_mode.items():
        done = 0
        while done < cuts:
            with machine_with(mode, chance) as machine:
                site = _Site(machine, chance)
                try:
                    calls += site.run(min(_CUTS_PER_IMAGE, cuts - done))
                except AssertionError as error:
                    raise AssertionError(f"mode {mode.name}, seed {seed}: {error}") from error
                except StuckError:
                    stuck += 1
                    if stuck > 1:
                        raise
                done += site.cuts
    flushes = [call for call in calls if call.kind == "flush"]
    return Report(
        cuts=count,
        flushes=sum(call.done is True for call in flushes),
        under_way=sum(call.responded is None for call in flushes),
        per_mode={mode.name: cuts for mode, cuts in per_mode.items()},
        stuck=stuck,
        seconds=round(time.monotonic() - began, 1),
    )


class _Site:
    """One file system, its queue, and the processes that use it until the next cut."""

    def __init__(self, machine: Machine, chance: random.Random) -> None:
        self._machine, self._chance = machine, chance
        self._queue = os.path.join(machine.mountpoint, "queue")
        self._progress, self._telling = os.pipe()
        for end in (self._progress, self._telling):
            os.set_blocking(end, False)
        self.cuts = 0

    def run(self, cuts: int) -> list[Call]:
        """Cut so often. After each cut the account of all calls up to now must add up; return them."""
        calls: list[Call] = []
        try:
            for _ in range(cuts):
                calls += self._cut()
                left = self._drained()
                account(calls, left)
                report = check(self._queue)
                assert report.ok, report.problems
        finally:
            os.close(self._progress)
            os.close(self._telling)
        return calls

    def _path(self, name: str) -> str:
        return os.path.join(os.path.dirname(self._machine.image), f"records {name}")

    def _cut(self) -> list[Call]:
        """Let processes work, cut the power, kill them, and mount again. Return their calls."""
        settings = {"log_bytes": self._chance.choice([8192, 65536]), "inline_bytes": self._chance.choice([0, 65536])}
        names = []
        pids = []
        with suppress(BlockingIOError):
            while os.read(self._progress, 65536):  # of the cut before
                pass
        with self._machine.door() as door:
            try:
                for slot in range(_WORKERS):
                    names.append(f"{slot}.{self.cuts}")
                    post = Post(
                        self._queue, slot, self.cuts, self._chance.getrandbits(32), False, settings, self._telling
                    )
                    open(self._path(names[-1]), "wb").close()  # the child may be killed before it has made the file
                    pids.append(_fork(partial(live, post, self._path(names[-1]))))
                select.select([self._progress], [], [])
                time.sleep(self._chance.uniform(0.0, _SECONDS_MAX))
                cut_at = time.monotonic_ns()
                self._machine.cut_power(door)
                time.sleep(self._chance.uniform(0.0, 0.02))  # some calls meet the dead file system
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        self.cuts += 1
        self._machine.unmount()
        self._machine.mount()
        calls: list[Call] = []
        for name in names:
            with open(self._path(name), "rb") as file:
                calls += read_calls(name, file.read(), cut_at)
        return calls

    def _drained(self) -> list[str]:
        """Return the items that the next process finds."""
        path = self._path(f"drain {self.cuts}")
        pid = _fork(partial(drain, self._queue, path, self._telling))
        assert os.waitpid(pid, 0)[1] == 0, f"the queue could not be opened after a cut: {_text(path)}"
        with open(path, "rb") as file:
            (call,) = [call for call in read_calls("drain", file.read()) if call.session]
        return call.items


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _fork(body: Callable[[], int]) -> int:
    pid = os.fork()
    if not pid:
        code = 2
        try:
            code = body()
        finally:
            os._exit(code)
    return pid
