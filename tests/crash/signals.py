"""Interruptions at random moments: real signals, sent to a process that works on real queues.

Every other process gets Ctrl-C from another process, and has the handler of Python. The others get the signal of a
timer, and have a handler that raises: then a helper thread makes the shielded calls. The main thread makes one call
after the other, and records the acknowledged ones. Other threads work on the same queues. An interrupted call is made
again, as its docstring allows. At the end no lock is taken, no item is held, and no queue is broken. After a reopening,
each acknowledged item is there once, unless it was consumed.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from persistentqueue import PersistentQueue, Session, check, transaction
from tests.support.queues import receive_signals

from .interrupts import AlarmError, Interruption, ViolationError, await_idle

_DELAY_SECONDS = (0.00001, 0.0006)
"""Shortest and longest delay of a signal after the start of its call."""
_HANG_SECONDS = 120.0
_PAUSE_SECONDS = 0.001
_SETTINGS: dict[str, Any] = {"segment_bytes": 256 * 1024, "log_bytes": 64 * 1024}
_ITEMS_MOST = 3000


_SENDER = """
import os, signal, struct, sys, time
while delay := sys.stdin.buffer.read(8):
    time.sleep(*struct.unpack("d", delay))
    os.kill(os.getppid(), signal.SIGINT)
"""


class Timer:
    """Interrupts calls by the signal of a timer, whose handler raises while it is armed: the two errors in turn."""

    def __init__(self) -> None:
        self._armed = False
        self._errors = cycle((Interruption, AlarmError))
        signal.signal(signal.SIGALRM, self._raise)

    def _raise(self, *_: object) -> None:
        if self._armed:
            self._armed = False
            raise next(self._errors)

    def attempt(self, call: Callable[[], Any], delay_seconds: float) -> tuple[bool, Any]:
        """Make the call while a signal is on its way; return if it ended well, and its result."""
        signal.setitimer(signal.ITIMER_REAL, delay_seconds)
        try:
            self._armed = True
            result = call()
            self._armed = False
        except (Interruption, AlarmError):
            return False, None
        return True, result

    def end(self) -> None:
        """Send no more signals."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)


class Terminal:
    """Interrupts calls by Ctrl-C, which another process sends. Its handler is that of Python."""

    def __init__(self) -> None:
        self._is_ignored = False
        sys.unraisablehook = self._hear
        self._noted, noting = os.pipe()  # a byte for each signal that has come to the process
        os.set_blocking(self._noted, False)
        os.set_blocking(noting, False)
        signal.set_wakeup_fd(noting)
        # The sender gets no Ctrl-C of a real terminal: it ends with its input.
        self._sender = subprocess.Popen(
            [sys.executable, "-c", _SENDER], stdin=subprocess.PIPE, bufsize=0, start_new_session=True
        )

    def _hear(self, ignored: sys.UnraisableHookArgs) -> None:
        """Note that Python ignores a Ctrl-C, since it came in the middle of a finalizer."""
        if ignored.exc_type is KeyboardInterrupt:
            self._is_ignored = True
        else:
            sys.__unraisablehook__(ignored)

    def attempt(self, call: Callable[[], Any], delay_seconds: float) -> tuple[bool, Any]:
        """Make the call while a signal is on its way; return if it ended well, and its result. The signal has come."""
        is_done, result, self._is_ignored = False, None, False
        assert self._sender.stdin is not None
        try:
            self._sender.stdin.write(struct.pack("d", delay_seconds))
            result = call()
            is_done = True
            deadline = time.monotonic() + _HANG_SECONDS / 2
            while not self._is_ignored:
                if time.monotonic() > deadline:
                    raise self._missing()
                time.sleep(_PAUSE_SECONDS)
        except KeyboardInterrupt:
            pass
        with suppress(BlockingIOError):
            os.read(self._noted, 8)
        return is_done, result

    def _missing(self) -> Exception:
        """Return the error for a Ctrl-C that does not come out: a violation, if it has come to the process."""
        with suppress(BlockingIOError):
            os.read(self._noted, 8)
            return ViolationError(f"a Ctrl-C did not come out, its handler is {signal.getsignal(signal.SIGINT)}")
        return RuntimeError(f"no Ctrl-C came, the status of its sender is {self._sender.poll()}")

    def end(self) -> None:
        """End the sender."""
        assert self._sender.stdin is not None
        self._sender.stdin.close()
        self._sender.wait(_HANG_SECONDS)


class Worker:
    """Process that is interrupted."""

    def __init__(self, directory: str, seed: int) -> None:
        self._directory = directory
        self._chance = random.Random(seed)
        self._source: Timer | Terminal = Timer() if seed % 2 else Terminal()
        self.signals = 0
        """Number of signals that have raised in a call."""
        self._names = 0
        self._a, self._b = self._open("a"), self._open("b")
        self._session: Session[bytes] = self._a.session("main")
        self._buffered: list[bytes] = []
        self._taken: list[bytes] = []
        self.enqueued: set[bytes] = set()
        self.maybe: set[bytes] = set()
        """Items of interrupted calls, which may be enqueued or not."""
        self.consumed: Counter[bytes] = Counter()
        self._stop = threading.Event()

    def _open(self, name: str) -> PersistentQueue[bytes]:
        return PersistentQueue(self._directory, name, **_SETTINGS)

    def _try(self, call: Callable[[], Any]) -> tuple[bool, Any]:
        """Make the call while a signal is on its way; return if it ended well, and its result."""
        is_done, result = self._source.attempt(call, self._chance.uniform(*_DELAY_SECONDS))
        self.signals += not is_done
        return is_done, result

    def _shielded(self, call: Callable[[], Any]) -> Any:
        """Repeat the call until it is not interrupted."""
        while True:
            is_done, result = self._try(call)
            if is_done:
                return result

    def run(self, signals: int) -> None:
        """Work until ``signals`` signals have come. Raises ``ViolationError``."""
        threads = [threading.Thread(target=work) for work in (self._produce, self._consume)]
        self._theirs: list[bytes] = []
        self._others: Counter[bytes] = Counter()
        for thread in threads:
            thread.start()
        actions = [self._enqueue, self._enqueue_many, self._dequeue, self._dequeue_many, self._flush, self._flush]
        actions += [self._roll_back, self._move, self._wait, self._look_at, self._keep_house, self._reopen]
        weights = [9, 4, 9, 4, 9, 9, 3, 4, 2, 3, 1, 1]
        try:
            while self.signals < signals:
                faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
                self._chance.choices(actions, weights)[0]()
        finally:
            self._source.end()
            self._stop.set()
            for thread in threads:
                thread.join(_HANG_SECONDS)
            faulthandler.cancel_dump_traceback_later()
        self._session.close()
        for queue in (self._a, self._b):
            await_idle(queue, [])
            queue.close()
        self._settle()

    def _settle(self) -> None:
        """Compare the remaining items with the record."""
        left: Counter[bytes] = Counter()
        for name in ("a", "b"):
            report = check(os.path.join(self._directory, name))
            if not report.ok:
                raise ViolationError(f"{name}: {report.problems}")
            with self._open(name) as queue, queue.transaction() as session:
                while some := session.dequeue_many(1000):
                    left.update(some)
        found = left + self.consumed + self._others
        acknowledged = self.enqueued | set(self._theirs)
        lost, doubled = acknowledged - set(found), [item for item, count in found.items() if count > 1]
        foreign = set(found) - acknowledged - self.maybe
        if lost or doubled or foreign:
            raise ViolationError(f"{len(lost)} lost, {len(doubled)} doubled, {len(foreign)} never acknowledged")

    def _new(self) -> bytes:
        self._names += 1
        return b"main %d " % self._names + b"x" * self._chance.choice([0, 10, 200])

    def _enqueue(self) -> None:
        item = self._new()
        if self._try(lambda: self._session.enqueue(item))[0]:
            self._buffered.append(item)
        else:
            self.maybe.add(item)

    def _enqueue_many(self) -> None:
        items = [self._new() for _ in range(self._chance.choice([2, 50, 2000]))]
        if self._try(lambda: self._session.enqueue_many(items))[0]:
            self._buffered += items
        else:
            self.maybe.update(items)

    def _dequeue(self) -> None:
        is_done, item = self._try(self._session.dequeue)
        if is_done and item is not None:
            self._taken.append(item)

    def _dequeue_many(self) -> None:
        count = self._chance.choice([2, 30, 3000])
        is_done, items = self._try(lambda: self._session.dequeue_many(count))
        if is_done:
            self._taken += items

    def _flush(self) -> None:
        self._shielded(self._session.flush)
        self.enqueued.update(self._buffered)
        self.consumed.update(self._taken)
        self._buffered, self._taken = [], []
        while len(self._a) > _ITEMS_MOST:
            self._taken += self._session.dequeue_many(1000)
            self._session.flush()
            self.consumed.update(self._taken)
            self._taken = []

    def _roll_back(self) -> None:
        self._shielded(self._session.rollback)
        self._buffered, self._taken = [], []

    def _move(self) -> None:
        """Move an item from one queue to the other; the final comparison covers the outcome."""

        def move() -> None:
            with transaction(self._a, self._b) as (source, target):
                item = source.dequeue()
                if item is not None:
                    target.enqueue(item)

        self._try(move)

    def _wait(self) -> None:
        def wait() -> None:
            with self._b.session("waiting") as session:
                session.dequeue_many(5000)
                session.dequeue(timeout=0.002)

        self._try(wait)

    def _look_at(self) -> None:
        looks: list[Callable[[], object]] = [self._a.stats, lambda: self._a.peek(20), lambda: len(self._b)]
        self._try(self._chance.choice(looks))

    def _keep_house(self) -> None:
        keeps: list[Callable[[], object]] = [self._a.trim, self._a.maintain, self._b.compact]
        self._try(self._chance.choice(keeps))

    def _reopen(self) -> None:
        self._shielded(self._b.close)
        self._b = self._shielded(lambda: self._keep(self._open("b")))

    def _keep(self, queue: PersistentQueue[bytes]) -> PersistentQueue[bytes]:
        return queue

    def _produce(self) -> None:
        chance, number = random.Random(1), 0
        while not self._stop.wait(0.001):
            if len(self._a) < _ITEMS_MOST:
                items = [b"theirs %d" % (number + at) for at in range(chance.choice([1, 1, 40]))]
                number += len(items)
                with self._a.transaction("producer") as session:
                    session.enqueue_many(items)
                self._theirs += items

    def _consume(self) -> None:
        while not self._stop.is_set():
            with self._a.session("consumer") as session:
                items = session.dequeue_many(7, timeout=0.01)
                session.flush()
            self._others.update(items)


class Report(NamedTuple):
    """Result of a campaign."""

    processes: int
    signals: int
    seconds: float


def run_signals(count: int, seed: int = 0, per_process: int = 5000) -> Report:
    """Run processes that are interrupted, until ``count`` signals have come. Raises ``ViolationError``."""
    began, processes, signals = time.monotonic(), 0, 0
    while signals < count or processes < 2:  # one process of each kind, at least
        most = max(min(per_process, count - signals, -(-count // 2)), 1)
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-m", "tests.crash.signals", directory, str(seed + processes), str(most)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
        if done.returncode != 0:
            raise ViolationError(f"{' '.join(command[1:])}: status {done.returncode}: {done.stderr[-3000:]}")
        signals += int(done.stdout.split()[-1])
        processes += 1
    return Report(processes, signals, time.monotonic() - began)


def main() -> None:
    """Run the process that is interrupted."""
    logging.getLogger("persistentqueue").setLevel(logging.CRITICAL)
    receive_signals()
    directory, seed, signals = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    worker = Worker(directory, seed)
    with suppress(KeyboardInterrupt):
        worker.run(signals)
        print(worker.signals)
        return
    sys.exit("an interruption came out that nobody had sent")


if __name__ == "__main__":
    main()
