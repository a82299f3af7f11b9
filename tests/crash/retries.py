"""Items that fail, on the simulated disk: counted, delayed, given up, and requeued, with a crash at any moment.

A queue that counts attempts, and its dead-letter queue, are used in all ways. Sessions dequeue, reject, flush, roll
back, or are left by an exception. The clock advances, and dead letters are requeued. Both queues are trimmed, closed
and opened again. A crash may fall on any call, and the next life opens both.

The model has the items in order, with their numbers of attempts and due times, and the dead letters. Each call passes
through such states one after the other: an item is given up, then the next one, then a batch is delivered. A crash
leaves one of these states. So no item is lost, and none is in both queues. No item is handed out whose delivery would
be forgotten, and none more often than allowed: each call must hand out the items of the model. Everything follows from
the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple
from unittest.mock import patch

from persistentqueue import queue as queue_module
from persistentqueue.core.dead_letter import DeadLetter
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.interrupts.members import Members
from persistentqueue.queue import PersistentQueue
from persistentqueue.runtime.open_queue import OpenQueue
from persistentqueue.session import Session
from tests.support.disks import call_on

from .disk import SimulatedDisk
from .exploring import LIVES, SCHEDULES_MAX, ViolationError, crash, exploring, living, require_sound

RETRIES = "retries"
"""Style of programs whose items fail."""
PATH, NAME = "/queues", "q"
_NS = 10**9
_ACTIONS = ("put", "take", "reject", "flush", "rollback", "fail", "wait", "requeue", "trim", "reopen")
_ODDS = (14, 34, 12, 16, 8, 12, 8, 3, 4, 3)
_BUSY_ODDS = 0.3
"""Odds of a crash at a call that changes the state; at other calls they are lower."""


class Item(NamedTuple):
    """An item that is not consumed."""

    item: bytes
    times: int
    due_ns: int


class World(NamedTuple):
    """Content of both queues; a dead letter with its number of attempts."""

    items: tuple[Item, ...] = ()
    dead: tuple[tuple[bytes, int], ...] = ()

    def bury(self, names: Sequence[bytes]) -> World:
        """Return the content after these items were given up."""
        buried = tuple((each.item, each.times) for each in self.items if each.item in names)
        return World(tuple(each for each in self.items if each.item not in names), self.dead + buried)

    def change(self, names: Sequence[bytes], change: Callable[[Item], Item]) -> World:
        """Return the content with these items changed."""
        return self._replace(items=tuple(change(each) if each.item in names else each for each in self.items))

    def find(self, name: bytes) -> Item:
        """Return the state of this item."""
        return next(each for each in self.items if each.item == name)


class Work:
    """A session, and its actions since its last flush."""

    def __init__(self, session: Session[bytes]) -> None:
        self.session = session
        self.held: list[bytes] = []
        self.rejected: dict[bytes, tuple[bool, float]] = {}

    def clear(self) -> None:
        """Forget the held and rejected items."""
        self.held, self.rejected = [], {}


@dataclass
class Life:
    """One owner of both queues, until a crash."""

    disk: SimulatedDisk
    worlds: list[World]
    """Possible contents: one of these, until a look decides."""
    now_ns: int
    under_way: list[World] = field(default_factory=list)
    queues: list[PersistentQueue[bytes]] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)

    @property
    def world(self) -> World:
        """Content of both queues."""
        return self.worlds[0]

    @property
    def queue(self) -> PersistentQueue[bytes]:
        """Queue whose items fail."""
        return self.queues[1]

    def become(self, *worlds: World) -> None:
        """Pass through these contents; the last one is the content now."""
        self.worlds, self.under_way = [worlds[-1]], []


class RetriesExplorer:
    """All schedules of one seed. ``schedules`` counts them."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(f"retries of {seed}")
        self.schedules = self.lives = self.deepest = 0
        self._trace = trace
        self._item_number = 0
        choose = self.random.choice
        self._dead = choose(("a.dead", "q.dead"))
        """Name of the dead-letter queue. The queue whose name sorts first coordinates a transaction over both."""
        self._max_attempts: int | None = choose((1, 2, 2, 3, 4, None))
        self._delay = choose((0.0, 0.0, 5.0))
        self._settings: list[dict[str, Any]] = [
            {
                "segment_bytes": choose((80, 300, 1000, 4096)) + HEADER_BYTES,
                "memory_bytes": choose((0, 200, 1 << 20)),
                "inline_bytes": choose((0, 100, 65536)),
                "log_bytes": 4096,
            }
            for _ in range(2)
        ]
        self._crash_odds = choose((0.01, 0.03, 0.1))

    def run(self) -> None:
        """Explore all schedules of the seed. Raises ``ViolationError`` like ``exploring``."""
        with exploring(self.random, self.seed, False, self._trace, RETRIES) as disk:
            self._live(Life(disk, [World()], 10**18), depth=0)

    def _live(self, life: Life, depth: int) -> None:
        """Open both queues, compare, run a program, close or crash; then, in some cases, live once more."""
        self.lives += 1
        self.deepest = max(self.deepest, depth)
        life.disk.on_tick = partial(self._at_tick, life, depth)
        with patch.object(queue_module, "_OPEN", Members()):  # each life stands for a process of its own
            self._open(life)
            few = (0, 2, 5, 12) if depth else (20, 40, 60)
            for _ in range(self.random.choice(few)):
                self._step(life)
            self._end(life, self.random.random() < 0.4)
        life.disk.on_tick = None
        if depth < LIVES:
            self._crash(life, depth)

    def _open(self, life: Life) -> None:
        """Open both queues, and compare their content, which decides between the possible ones."""
        door = replace(life.disk.disk, time_ns=lambda: life.now_ns, monotonic=lambda: life.now_ns / _NS)
        dead: PersistentQueue[bytes] = call_on(door, PersistentQueue, PATH, self._dead, **self._settings[0])
        life.queues = [dead]
        queue: PersistentQueue[bytes] = call_on(
            door,
            PersistentQueue,
            PATH,
            NAME,
            max_attempts=self._max_attempts,
            dead_letter=dead,
            retry_delay_seconds=self._delay,
            **self._settings[1],
        )
        life.queues.append(queue)
        for each in life.queues:
            each._open().after_commit = lambda: None  # maintenance would run in a thread of its own
        life.works = [Work(queue.session()) for _ in range(2)]
        self._look(life)

    def _look(self, life: Life) -> None:
        found = self._found(life)
        allowed = [*life.worlds, *life.under_way]
        if found not in allowed:
            lines = [f"found   {found}", *(f"allowed {world}" for world in allowed)]
            raise ViolationError("\n".join([*lines, *(life.disk.trace or [])[-160:]]))
        life.become(found)

    def _found(self, life: Life) -> World:
        dead, group = life.queues[0], life.queue._open()
        state = group._store.state
        with group.mutex:
            reader = group._store.subscriptions.of_all()
        sequences = [
            sequence
            for first, count in state.gone.unconsumed(0, state.next_sequence)
            for sequence in range(first, first + count)
        ]
        delays = state.attempts[0].delays if 0 in state.attempts else None
        items = [
            Item(item, state.times(0, sequence), ((delays and delays.get(sequence)) or (0, 0))[0])
            for sequence, item in zip(
                sequences, chain.from_iterable(items for _, items in reader.browse()), strict=True
            )
        ]
        letters = [DeadLetter.decode(each) for each in dead.browse()]
        if any(letter.queue != NAME or not letter.reason for letter in letters):
            raise ViolationError(f"letters that say nothing: {letters}")
        return World(tuple(items), tuple((letter.item, letter.attempts) for letter in letters))

    def _end(self, life: Life, cleanly: bool) -> None:
        """Close both queues, or let the process end without closing."""
        for each in self.random.sample(life.queues, 2):
            if cleanly:
                each.close()
            else:
                group: OpenQueue = each._open()
                group.disown("the process is gone")

    # --- crashing ----------------------------------------------------------------------------------------------------

    def _at_tick(self, life: Life, depth: int) -> None:
        odds = _BUSY_ODDS if life.under_way else self._crash_odds
        if depth < LIVES and self.schedules < SCHEDULES_MAX and self.random.random() < odds / (1 + depth):
            self._crash(life, depth)

    def _crash(self, life: Life, depth: int) -> None:
        """Crash a copy of the disk, and continue there, at once or later."""
        self.schedules += 1
        crashed = crash(life.disk, self.random)
        if self.random.random() < 0.02:
            require_sound(crashed, PATH, (NAME, self._dead))
        later_ns = self.random.choice((0, 0, _NS, 10 * _NS))
        with living():
            self._live(Life(crashed, [*life.worlds, *life.under_way], life.now_ns + later_ns), depth + 1)

    # --- the program -------------------------------------------------------------------------------------------------

    def _step(self, life: Life) -> None:
        (action,) = self.random.choices(_ACTIONS, _ODDS)
        work = self.random.choice(life.works)
        if action == "put":
            self._put(life)
        elif action == "take":
            self._take(life, work)
        elif action == "reject" and set(work.held) - work.rejected.keys():
            self._reject(work)
        elif action == "flush":
            self._flush(life, work)
        elif action == "rollback":
            self._roll_back(life, work, life.world, work.session.rollback)
        elif action == "fail":
            self._fail(life, work)
        elif action == "wait":
            life.now_ns += self.random.choice((1, 4, 6)) * _NS
        elif action == "requeue":
            self._requeue(life)
        elif action == "trim":
            self.random.choice(life.queues).trim()
        elif action == "reopen":
            self._end(life, self.random.random() < 0.5)
            self._open(life)
        self._need_same(life)

    def _need_same(self, life: Life) -> None:
        """Compare the state in memory with the model."""
        if self.random.random() < 0.2:
            self._look(life)
        held = {name for work in life.works for name in work.held}
        ready = [each for each in life.world.items if each.item not in held and each.due_ns <= life.now_ns]
        if len(life.queue) != len(ready):
            raise ViolationError(f"{len(life.queue)} are ready, not {ready}")

    def _put(self, life: Life) -> None:
        names = []
        for _ in range(self.random.choice((1, 1, 2, 5))):
            self._item_number += 1
            names.append((b"%d " % self._item_number).ljust(self.random.choice((0, 10, 100, 600)), b"."))
        world = life.world
        life.under_way = [world._replace(items=world.items + tuple(Item(name, 0, 0) for name in names))]
        with life.queue.transaction() as session:
            session.enqueue_many(names)
        life.become(*life.under_way)

    def _take(self, life: Life, work: Work) -> None:
        """Dequeue items, and compare them with the model: first the items that are given up, then those handed out."""
        many, worlds, expected = self.random.choice((1, 1, 3, 10)), [life.world], list[bytes]()
        held = {name for each in life.works for name in each.held}
        most = self._max_attempts or 10**9
        alone = bool(work.held) and life.world.find(work.held[0]).times >= most
        while not alone:
            world = worlds[-1]
            ready = [each for each in world.items if each.item not in held and each.due_ns <= life.now_ns]
            if not ready:
                break
            front = ready[0]
            if front.times >= most:
                worlds.append(world.bury([front.item]))
                continue
            if front.times + 1 >= most and work.held:
                break
            expected = [front.item]
            if not front.times and most > 1:
                behind = world.items[world.items.index(front) :]
                stop = next((at for at, each in enumerate(behind) if each.times), len(behind))
                expected = [each.item for each in behind[:stop]][:many]
            delivered = world.change(expected, lambda each: Item(each.item, each.times + 1, 0))
            worlds.append(delivered)
            break
        life.under_way = worlds[1:]
        items = work.session.dequeue_many(many)
        if items != expected:
            raise ViolationError(f"took {items}, expected {expected} of {life.world}")
        work.held += items
        life.become(*worlds)

    def _reject(self, work: Work) -> None:
        name = self.random.choice([each for each in work.held if each not in work.rejected])
        retry, delay = self.random.random() < 0.6, self.random.choice((None, 0, 3))
        work.session.reject(name, "rejected", retry=retry, delay_seconds=delay)
        work.rejected[name] = retry, self._delay if delay is None else delay

    def _flush(self, life: Life, work: Work) -> None:
        dead, world = [], life.world
        for name in work.held:
            retry, delay = work.rejected.get(name, (False, 0.0))
            used_up = self._max_attempts is not None and world.find(name).times >= self._max_attempts
            if name not in work.rejected:
                world = world._replace(items=tuple(each for each in world.items if each.item != name))
            elif not retry or used_up:
                dead.append(name)
            elif delay:
                world = world.change([name], partial(self._due, life, delay))
        world = world.bury(dead)
        if self.random.random() < 0.3:
            self._item_number += 1
            name = b"%d" % self._item_number
            work.session.enqueue(name)
            world = world._replace(items=(*world.items, Item(name, 0, 0)))
        life.under_way = [world]
        work.session.flush()
        work.clear()
        life.become(world)

    def _due(self, life: Life, delay: float, each: Item) -> Item:
        return each._replace(due_ns=life.now_ns + int(delay * _NS))

    def _roll_back(self, life: Life, work: Work, world: World, roll_back: Callable[[], object]) -> None:
        """Let a session release its items, after the content became ``world``."""
        before, most = life.world, self._max_attempts or 10**9
        late = [each.item for each in world.items if each.item in work.held and each.times < most]
        after = world.change(late, partial(self._due, life, self._delay)) if self._delay else world
        life.under_way = [each for each in (world, after) if each != before]
        roll_back()
        work.clear()
        life.become(after)

    def _fail(self, life: Life, work: Work) -> None:
        """Let an exception leave the block of a session."""
        error = ValueError("failed")
        most = self._max_attempts or 10**9
        spent = [name for name in work.held if life.world.find(name).times >= most]
        self._roll_back(life, work, life.world.bury(spent), partial(work.session.__exit__, ValueError, error, None))
        work.session = life.queue.session()

    def _requeue(self, life: Life) -> None:
        many = self.random.choice((None, 1, 3))
        world = life.world
        count = len(world.dead) if many is None else min(many, len(world.dead))
        back = tuple(Item(name, 0, 0) for name, _ in world.dead[:count])
        after = World(world.items + back, world.dead[count:])
        life.under_way = [after]
        if life.queue.requeue(many) != count:
            raise ViolationError(f"not {count} were taken back")
        life.become(after)
