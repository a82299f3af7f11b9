"""``kill -9`` of worker processes: any of the processes that share a queue is killed at any moment, also its owner.

A round has a queue of its own, and eight processes that ``connect`` (see ``worker_lives``). The campaign kills them,
the owner as often as all others together. It also stops processes for a while by ``SIGSTOP``, and tells some to close.
Each process that ended gets a successor. Before each of these steps the campaign waits until the processes have made a
random number of calls. So a slow machine has the same coverage as a fast one.

Each process records its calls in a file. At the end of a round all processes are killed, and one more process opens the
queue. The records must then add up, and must show no fault of order (see ``worker_records``). ``check`` must find no
problem. Every fourth round is calm: it has few kills and short waits. Then a search must find an order of all calls
that a queue allows.

No call may raise an error, with two exceptions. A session that held items when an owner ended raises
``SessionLostError``. A session that held them for too long raises ``HoldLostError``. While the owner is stopped, no
other process may take the lock.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from persistentqueue import check
from persistentqueue.storage.layout import SOCKET_NAME
from persistentqueue.storage.lock import read_owner
from persistentqueue.system.disk import DISK
from tests.support.linearizability import SearchLimitError
from tests.support.queue_histories import violations
from tests.support.queue_specification import check as check_history

from .kills import fast_directory, in_a_process_of_its_own
from .worker_lives import Post, drain, live
from .worker_records import Call, End, Histories, account, read_calls, times_to_return, times_to_serve

WORKERS, _WORKERS_CALM = 8, 4
_KILLS_PER_ROUND, _KILLS_PER_CALM_ROUND = 40, 3
_ROUNDS_PER_CALM_ROUND = 4
_RECORDS_MAX = 40
"""Records between two steps, at most."""
_PATIENCE_SECONDS = 60.0
"""Time without a record after which the processes are considered to hang."""
_QUIET_SECONDS = 0.05
"""Longest time for which a process is stopped."""
_CONFIGURATIONS_MAX = 30_000


class Report(NamedTuple):
    """Result of a campaign without a violation."""

    kills: int
    of_owners: int
    stops: int
    closes: int
    """Number of processes that ended in order."""
    calls: int
    flushes: int
    """Number of flushes that returned True."""
    under_way: int
    """Number of flushes that a kill has cut."""
    lost_sessions: int
    """Number of calls that raised ``SessionLostError``."""
    lost_holds: int
    """Number of calls that raised ``HoldLostError``."""
    searched: int
    """Number of calm rounds for which a search has found an order of all calls."""
    undecided: int
    """Number of calm rounds for which the search gave up."""
    owner_to_service: str
    """Milliseconds from a kill of the owner to the next answer: median and highest."""
    worker_to_items: str
    """Milliseconds from a kill of a worker until another process had one of its items: median and highest."""
    seconds: float


class _Process(NamedTuple):
    pid: int
    name: str
    slot: int


class Round:
    """One queue, its processes, and the violence against them. ``run`` once, then ``judge``."""

    def __init__(self, directory: str, seed: int, kills: int, is_calm: bool) -> None:
        self.is_calm = is_calm
        self._directory, self._kills = os.path.join(directory, "queue"), kills
        self._records = os.path.join(directory, "records")
        os.mkdir(self._records)
        self._chance = random.Random(seed)
        choose = self._chance.choice
        self._settings = {
            "log_bytes": choose([8192, 65536]),
            "segment_bytes": choose([4096, 65536]),
            "inline_bytes": choose([0, 1000, 65536]),
            "memory_bytes": choose([0, 10_000, 1 << 20]),
        }
        self._lives = [0] * WORKERS
        self._processes: dict[int, _Process] = {}
        self._names: list[str] = []
        self._progress, self._telling = os.pipe()
        os.set_blocking(self._telling, False)
        self.ends: list[End] = []
        self.calls: list[Call] = []
        self.of_owners = self.stops = self.closes = 0
        self.is_decided = True

    def run(self) -> None:
        """Run the processes and kill them. Raises ``AssertionError``."""
        try:
            while sum(end.is_kill for end in self.ends) < self._kills:
                self._fill()
                self._await_records(self._chance.randrange(_RECORDS_MAX))
                self._act()
            self._end_all()
            name = "drain"
            self._start(name, partial(drain, self._directory, self._path(name), self._telling))
            self._reap_quits(block=True)
        finally:
            for process in list(self._processes.values()):
                os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, 0)
            os.close(self._progress)
            os.close(self._telling)

    def judge(self) -> None:
        """Check the records of all processes, and the directory. Raises ``AssertionError``."""
        for name in self._names:
            with open(self._path(name), "rb") as file:
                self.calls += read_calls(name, file.read())
        (drained,) = [call for call in self.calls if call.session == "drain"]
        account(self.calls, drained.items)
        report = check(self._directory)
        assert report.ok, report.problems
        history = list(Histories(self.calls, self.ends).operations())
        faults = violations(history)
        assert not faults, "\n".join(faults)
        if self.is_calm:
            try:
                check_history(history, _CONFIGURATIONS_MAX)
            except SearchLimitError:
                self.is_decided = False

    # --- processes ---------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Reap the processes that ended, and start others in their places."""
        self._reap_quits()
        for slot in set(range(_WORKERS_CALM if self.is_calm else WORKERS)) - {
            process.slot for process in self._processes.values()
        }:
            name = f"{slot}.{self._lives[slot]}"
            life, seed = self._lives[slot], self._chance.getrandbits(32)
            post = Post(self._directory, slot, life, seed, self.is_calm, self._settings, self._telling)
            self._lives[slot] += 1
            self._start(name, partial(live, post, self._path(name)), slot)

    def _start(self, name: str, body: Callable[[], int], slot: int = -1) -> None:
        assert threading.active_count() == 1, "a process with threads must not fork"
        self._names.append(name)
        open(self._path(name), "wb").close()
        pid = os.fork()
        if not pid:
            code = 2
            try:
                code = body()
            finally:
                os._exit(code)
        self._processes[pid] = _Process(pid, name, slot)

    def _path(self, name: str) -> str:
        return os.path.join(self._records, name)

    def _reap_quits(self, block: bool = False) -> None:
        """Note the processes that ended by themselves. They must not have failed."""
        for process in list(self._processes.values()):
            pid, status = os.waitpid(process.pid, 0 if block else os.WNOHANG)
            if pid:
                self._note_quit(process, status)

    def _note_quit(self, process: _Process, status: int) -> None:
        del self._processes[process.pid]
        with open(self._path(process.name), "rb") as file:
            calls = read_calls(process.name, file.read())
        assert status == 0, f"{process.name} has ended with {status}; its last call was {calls[-1:]}"
        last = calls[-1]
        if process.slot >= 0:
            self.closes += 1
            self.ends.append(End(process.name, last.invoked, time.monotonic_ns(), bool(last.fields["owns"]), False))

    def _end_all(self) -> None:
        """Kill all processes, in any order; the owner of a calm round last."""
        processes = list(self._processes.values())
        self._chance.shuffle(processes)
        if self.is_calm:
            owner = self._owner()
            processes.sort(key=lambda process: process == owner)
        for process in processes:
            self._kill(process)

    # --- steps -------------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        owner = self._owner()
        process = self._chance.choice(list(self._processes.values()))
        if owner is not None and self._chance.random() < 0.5:
            process = owner
        draw = self._chance.random()
        if draw < 0.70:
            self._kill(process)
        elif draw < 0.85:
            self._stop(process)
        else:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGUSR1)

    def _kill(self, process: _Process) -> None:
        may_own = self._may_own(process)
        began = time.monotonic_ns()
        os.kill(process.pid, signal.SIGKILL)
        _, status = os.waitpid(process.pid, 0)
        if os.WIFEXITED(status):  # it has ended by itself just before
            self._note_quit(process, status)
            return
        del self._processes[process.pid]
        self.of_owners += may_own
        self.ends.append(End(process.name, began, time.monotonic_ns(), may_own, True))

    def _stop(self, process: _Process) -> None:
        """Stop a process for a while. If it is the owner, it stays the owner."""
        os.kill(process.pid, signal.SIGSTOP)
        try:
            _await_stop(process.pid)  # until then it may give up the lock
            before = self._owner()
            self._await_records(self._chance.randrange(_RECORDS_MAX), self._chance.uniform(0, _QUIET_SECONDS))
            after = self._owner()
        finally:
            os.kill(process.pid, signal.SIGCONT)
        self.stops += 1
        if before == process:
            assert after == before or after is None, f"{before} was stopped, and {after} has taken its lock"

    def _owner(self) -> _Process | None:
        """Return the owner, if it is alive and not about to end."""
        owner = read_owner(DISK, os.path.join(self._directory, "lock"))
        process = None if owner is None else self._processes.get(owner.pid)
        if process is None:
            return None
        with open(self._path(process.name), "rb") as file:
            return None if b'"op": "quit"' in file.read() else process

    def _may_own(self, process: _Process) -> bool:
        owner = self._owner()
        return owner is None or owner == process

    def _await_records(self, count: int, seconds: float = _PATIENCE_SECONDS) -> None:
        """Wait for so many records. Without any for a minute, raise ``AssertionError``."""
        deadline = time.monotonic() + seconds
        while count > 0:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._progress], [], [], left)[0]:
                assert seconds < _PATIENCE_SECONDS, f"no process has made a call for {seconds} s"
                return
            count -= len(os.read(self._progress, count))


def _await_stop(pid: int) -> None:
    """Wait until a process is stopped, or has ended."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        with open(f"/proc/{pid}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[0] in {b"T", b"Z"}:
                return
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.001)


def run_workers(kills: int, seed: int = 0) -> Report:
    """Kill ``kills`` processes in total. Raises ``AssertionError`` at the first violation, with seed and round."""
    return in_a_process_of_its_own(_serve, kills, seed)


def _serve(kills: int, seed: int) -> Report:
    logging.getLogger("persistentqueue").setLevel(logging.CRITICAL)  # kills cause warnings
    began, done = time.monotonic(), 0
    rounds: list[Round] = []
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until a worker has its handler
    gc.freeze()  # a garbage collection would write to pages that the children share
    while done < kills:
        is_calm = len(rounds) % _ROUNDS_PER_CALM_ROUND == 0
        most = _KILLS_PER_CALM_ROUND if is_calm else _KILLS_PER_ROUND
        with tempfile.TemporaryDirectory(prefix="workers-", dir=fast_directory()) as directory:
            each = Round(directory, seed * 1_000_003 + len(rounds), min(most, kills - done), is_calm)
            try:
                each.run()
                each.judge()
            except AssertionError as error:
                sockets = shutil.ignore_patterns(f"{SOCKET_NAME}*")
                kept = shutil.copytree(
                    directory, tempfile.mkdtemp(prefix="violation-"), ignore=sockets, dirs_exist_ok=True
                )
                raise AssertionError(f"seed {seed}, round {len(rounds)}, files in {kept}: {error}") from error
        rounds.append(each)
        done += sum(end.is_kill for end in each.ends)
    return _report(rounds, time.monotonic() - began)


def _report(rounds: Sequence[Round], seconds: float) -> Report:
    flushes = [call for each in rounds for call in each.calls if call.kind == "flush"]
    lost = [call.result["lost"] for each in rounds for call in each.calls if "lost" in call.result]
    return Report(
        kills=sum(end.is_kill for each in rounds for end in each.ends),
        of_owners=sum(each.of_owners for each in rounds),
        stops=sum(each.stops for each in rounds),
        closes=sum(each.closes for each in rounds),
        calls=sum(len(each.calls) for each in rounds),
        flushes=sum(call.done is True for call in flushes),
        under_way=sum(call.responded is None for call in flushes),
        lost_sessions=lost.count("session"),
        lost_holds=lost.count("hold"),
        searched=sum(each.is_calm and each.is_decided for each in rounds),
        undecided=sum(not each.is_decided for each in rounds),
        owner_to_service=_spread([seconds for each in rounds for seconds in times_to_serve(each.calls, each.ends)]),
        worker_to_items=_spread([seconds for each in rounds for seconds in times_to_return(each.calls, each.ends)]),
        seconds=round(seconds, 1),
    )


def _spread(seconds: list[float]) -> str:
    """Return the median and the highest of the times, as text."""
    ordered = sorted(seconds)
    return f"{1000 * ordered[len(ordered) // 2]:.1f}, {1000 * ordered[-1]:.1f}" if ordered else "none"
