"""Counts the costs of a flush that do not depend on the speed of the disk: syncs, bytes, processor time and memory.

Each contender runs in a process of its own, ``python -m perf.counts WORKLOAD CONTENDER DIRECTORY FLUSHES``. The servers
that this process starts count as well. It runs twice: once under ``strace``, if that is installed, to count the calls
that wait for the disk; once without it, to read the other costs from ``/proc``. Workloads that restart, or put flushes
ahead, are not counted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from .contenders.peers import is_there
from .harness import ROOT, Runner
from .workloads import SWEEPS, WORKLOADS, Workload

_MARK = "/perf-mark"
_CALLS = "access,faccessat,faccessat2,openat,fsync,fdatasync,msync,write,writev,pwrite64,pwritev,pwritev2"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_FLUSHES = 500
_FLUSHES_TRACED = 100


class Cost(NamedTuple):
    """The costs per flush, except ``memory_bytes``: the growth of the highest memory use of the processes.

    ``syncs`` is None if it could not be counted.
    """

    syncs: float | None
    written_bytes: float
    processor_seconds: float
    memory_bytes: int


def count(workload: Workload, directory: Path, scale: float = 1.0) -> dict[str, dict[str, Cost]]:
    """Return the costs of each installed contender, by direction."""
    if workload.restarts or workload.ahead:
        return {}
    found: dict[str, dict[str, Cost]] = {way: {} for way in ("in", "out")[: 1 + (not workload.in_turn)]}
    least = max(
        _known(workload.name).take_batch // workload.batch, 1
    )  # one flush may take several batches, which must have been put
    for name, entry in workload.entries.items():
        if is_there(entry.contender):
            flushes = max(round(min(_FLUSHES, workload.flushes) * scale), least)
            traced = max(round(min(_FLUSHES_TRACED, workload.flushes) * scale), least)
            costs = _run(workload, name, directory / "counted", flushes)
            syncs = _syncs(workload, name, directory / "traced", traced)
            for number, way in enumerate(found):
                found[way][name] = costs[number]._replace(syncs=syncs[number] if syncs else None)
    return found


def _known(name: str) -> Workload:
    """Return the workload of this name, at its real size."""
    return next(each for each in (*WORKLOADS, *chain.from_iterable(SWEEPS.values())) if each.name == name)


def _command(workload: Workload, name: str, directory: Path, flushes: int) -> list[str]:
    shutil.rmtree(directory, ignore_errors=True)
    return [sys.executable, "-m", "perf.counts", workload.name, name, str(directory.absolute()), str(flushes)]


def _run(workload: Workload, name: str, directory: Path, flushes: int) -> list[Cost]:
    command = _command(workload, name, directory, flushes)
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return [Cost(None, *cost) for cost in json.loads(output)]


def _syncs(workload: Workload, name: str, directory: Path, flushes: int) -> list[float]:
    """Return the syncs per flush for each direction, or an empty list if ``strace`` cannot count them."""
    strace = shutil.which("strace")
    if strace is None:
        return []
    trace = directory.with_name("trace")
    command = [strace, "-f", "-qq", "-e", "signal=none", "-e", f"trace={_CALLS}", "-o", str(trace.absolute())]
    command += _command(workload, name, directory, flushes)
    if subprocess.run(command, check=False, capture_output=True, cwd=ROOT).returncode != 0:
        return []
    done = _done(flushes, workload.entries[name].threads)
    return [syncs / done for syncs in syncs_of(trace.read_text(errors="replace").splitlines())]


def syncs_of(trace: list[str]) -> Iterator[int]:
    """Yield, for each pair of consecutive marks in the trace, the number of calls that wait for the disk."""
    syncing: set[str] = set()
    syncs, marks = 0, 0
    for line in trace:
        call = re.match(r"(?:\d+ +)?(\w+)\((\w+)?", line)
        if call is None:
            continue
        name, descriptor = call.groups()
        if _MARK in line:
            if marks:
                yield syncs
            syncs, marks = 0, marks + 1
        elif name == "openat":
            opened = re.search(r"= (\d+)", line)
            if opened is not None:
                (syncing.add if re.search(r"O_D?SYNC", line) else syncing.discard)(opened.group(1))
        elif name in {"fsync", "fdatasync"} or re.search(r"RWF_D?SYNC|MS_SYNC", line) or descriptor in syncing:
            syncs += 1


def _done(flushes: int, threads: int) -> int:
    """Return the number of flushes that are done: each lane does the same number of them."""
    return max(round(flushes / threads), 1) * threads


# --- in the process of its own ---------------------------------------------------------------------------------------


def _family() -> Iterator[Path]:
    """Yield the directories in ``/proc`` of this process and of its children."""
    own = os.getpid()
    yield Path("/proc/self")
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(_fields(status)[1]) == own:
                yield status.parent


def _fields(status: Path) -> list[str]:
    """Return the fields of a ``stat`` file after the program's name. The name may contain spaces."""
    return status.read_text().rpartition(")")[2].split()


def _now() -> tuple[int, float, int]:
    """Return the bytes written, the processor seconds, and the sum of the highest memory use of each process.

    Bytes and memory are those of this process and its children. The seconds are those of the children.
    """
    written_bytes, ticks, memory_bytes = 0, 0, 0
    for process in _family():
        written_bytes += int(re.findall(r"^write_bytes: (\d+)", (process / "io").read_text(), re.MULTILINE)[0])
        if process.name != "self":
            ticks += sum(map(int, _fields(process / "stat")[11:13]))
        memory_bytes += 1024 * int(re.findall(r"VmHWM:\s+(\d+)", (process / "status").read_text())[0])
    return written_bytes, ticks / _TICKS_PER_SECOND, memory_bytes


def _main() -> None:
    name, contender, directory, flushes = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    workload = _known(name)
    entry = workload.entries[contender]
    workload = workload._replace(flushes=flushes)
    result = []
    with ExitStack() as stack:
        runner = Runner(workload, entry._replace(part=1.0), directory)
        runner.begin(stack)
        ways: list[Callable[[], float]] = [runner.in_turn] if workload.in_turn else [runner.put, runner.take]
        before = _now()
        for way in ways:
            os.access(_MARK, os.F_OK)
            start = time.process_time()
            way()
            own_seconds = time.process_time() - start
            after = _now()
            done = _done(flushes, entry.threads)
            seconds = own_seconds + after[1] - before[1]
            result.append([(after[0] - before[0]) / done, seconds / done, after[2] - before[2]])
            before = after
        os.access(_MARK, os.F_OK)
        runner.end()
    print(json.dumps(result))


if __name__ == "__main__":
    _main()
