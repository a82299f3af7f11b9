"""Workers on a simulated network and disk: small scripts that end at every byte and step, and a few random programs.

The campaign with many programs is a command: ``python -m tests.crash random --style workers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest

from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.engine.context import Settings
from tests.crash.disk import Pick, SimulatedDisk
from tests.crash.exploring import ViolationError
from tests.crash.network import Owner
from tests.crash.workers import WorkersExplorer, WorkersWorld, small_messages

pytestmark = pytest.mark.filterwarnings("ignore::persistentqueue.UnflushedWarning")  # programs drop work on purpose
SETTINGS = Settings(segment_bytes=80 + HEADER_BYTES, log_bytes=4096, inline_bytes=0)
SCRIPTS = {
    "one session": ("1 enqueue", "1 enqueue", "1 flush", "1 take", "1 enqueue", "1 flush", "1 take", "1 close"),
    "two sessions": (
        *("1 enqueue", "2 enqueue", "1 flush", "2 take", "2 flush", "1 take", "1 give back", "2 take"),
        *("1 enqueue", "1 mark", "2 rollback", "1 take", "1 flush"),
    ),
}
HELLO_BYTES = 150
"""A script without an end moves more bytes than this."""


class _First:
    """Choices without chance: the first of several, and the most of a number."""

    def choice(self, several: Sequence[Any]) -> Any:
        """Return the first."""
        return several[0]

    def randint(self, _least: int, most: int) -> int:
        """Return the most."""
        return most

    def randrange(self, *_ends: int) -> int:
        """Return 0."""
        return 0

    def random(self) -> float:
        """Return a number above all odds."""
        return 0.99


class Scripted(WorkersWorld):
    """A world in which everything goes at once, and one thing ends when so many bytes have gone."""

    def __init__(self, end: str, end_at: int) -> None:
        super().__init__(SimulatedDisk(), SETTINGS, cast(Any, _First()))
        self.moved = 0
        self._end, self._end_at = end, end_at
        self.is_done = False
        if end.startswith("disk"):
            self.crash_at, self.power_goes = end_at, end == "disk and power"

    def part_of(self, count: int) -> int:
        """Return how many bytes go: up to the one at which something ends."""
        return count

    def pick(self) -> Pick:
        """Return the choice of what a kill or a power cut leaves: nothing of what is pending."""
        return lambda _count: 0

    def step(self) -> None:
        """Take the first possible step, or end something."""
        owner = self.owner
        if owner is None:
            return
        if self.moved >= self._end_at and not self.is_done and not self._end.startswith("disk"):
            self.is_done = True
            self._end_it(owner)
            return
        for wire in owner.wires:
            buffer = wire.left or wire.to_owner
            if buffer:
                left = self._end_at - self.moved
                count = min(len(buffer), left) if left > 0 else len(buffer)
                self.moved += count
                if wire.left:
                    wire.to_worker += wire.left[:count]
                    del wire.left[:count]
                else:
                    self.act(partial(Owner.receive, wire=wire, count=count))
                return
        self.possible(owner)[0]()

    def _end_it(self, owner: Owner) -> None:
        if self._end == "kill":
            self.kill_owner()
        elif self._end == "leave":
            self.leave()
        elif self._end == "leave with grace":
            self.begin_to_leave(10_000.0)
        elif self._end == "worker":
            self.workers[0].kill()
        else:
            for wire in list(owner.wires)[:1]:
                for worker in self.workers:
                    worker.cuts += worker.wire is wire
                self.act(partial(Owner.drop, wire=wire, by_worker=False))

    def play(self, script: Sequence[str]) -> None:
        """Let the workers act, and look at what is left."""
        for line in script:
            number, _, action = line.partition(" ")
            self.idle()
            self.workers[int(number) - 1].act(action)
        self.finish()


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("end", ["kill", "leave", "leave with grace", "worker", "cut"])
def test_an_end_at_every_byte(end: str, script: Sequence[str]) -> None:
    """Whenever an owner, a worker or a connection ends, the promises of all sessions hold: at each byte of a script."""
    with small_messages():
        at = 0
        while True:
            world = Scripted(end, at)
            world.play(script)
            if not world.is_done:
                break
            at += 1
    assert at > HELLO_BYTES


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("end", ["disk", "disk and power"])
def test_a_kill_at_every_call_of_the_disk(end: str, script: Sequence[str]) -> None:
    """Whenever the owner is killed, or the power goes, in a call of the disk, the promises of all sessions hold."""
    with small_messages():
        ticks = 0
        for at in range(1, 1000):
            world = Scripted(end, at)
            world.play(script)
            if world.crash_at is not None:
                break
            ticks += 1
    assert 20 < ticks < 1000


def test_random_programs() -> None:
    """Random programs of workers whose owners, connections and processes end anywhere keep the promises."""
    explorers = [WorkersExplorer(seed) for seed in range(40)]
    for explorer in explorers:
        explorer.run()
    assert sum(explorer.schedules for explorer in explorers) > 60
    assert sum(explorer.lives for explorer in explorers) > 60
    assert sum(explorer.takes for explorer in explorers) > 300


def test_a_seed_says_the_same_twice() -> None:
    """A seed gives the same events each time, so that a failure can be replayed."""
    found = []
    for trace in (False, True):
        explorer = WorkersExplorer(5, trace)
        explorer.run()
        found.append((explorer.schedules, explorer.lives, explorer.flushes, explorer.takes))
    assert found[0] == found[1]


def test_two_owners_are_noticed() -> None:
    """While an owner lives, no other process gets the lock. A disk without locks is reported."""
    with small_messages():
        world = Scripted("kill", 10**9)
        world.play(SCRIPTS["one session"][:3])
        owner = world.found()
        assert owner is not None
        world.intrude()
        number = world.disk.names["/queues/q/lock"]
        world.disk.inodes[number].locked_by = 0
        with pytest.raises(ViolationError, match="two processes"):
            world.intrude()
        world.leave()
