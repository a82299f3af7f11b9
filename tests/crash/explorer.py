"""Random programs on the simulated disk, crashed at any call and during recovery, and a model of the allowed states.

A *schedule* is one crash of one program at one call of the disk, and a recovery whose outcome is compared. One run of a
program yields many schedules. At a tick the disk is copied, and the copy crashes and recovers, while the original runs
on. A crash kills the process, cuts the power, or does one after the other. The copy may crash again while it recovers,
or continue with a program of its own, up to three lives deep.

The model is a list of items and the versions of markers. After a crash it allows two states: the state after the last
acknowledged group, and that state with the whole group that was under way. A state that an opening has served must stay
after any later crash. With ``sync=False`` a killed process loses nothing, and a power cut leaves one of the states
since the last trim. A queue that is being deleted is found whole or not at all. Another process that comes meanwhile
waits, or finds it empty.

Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain, combinations, count

from persistentqueue.core.encryption import Encryption, Envelopes
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.engine.compaction import Copy
from persistentqueue.engine.context import Settings
from persistentqueue.engine.reader import Reader
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from persistentqueue.errors import (
    BrokenQueueError,
    CorruptionError,
    PersistentQueueError,
    QueueFullError,
    QueueLockedError,
    QueueNotFoundError,
    ResourceError,
)
from persistentqueue.recovery import check
from persistentqueue.recovery.catalog import delete_queue
from persistentqueue.storage.inbox_limits import LOGS_LEAST
from tests.support.disks import call_on

from .content import SUBSCRIBES, Content
from .disk import SimulatedDisk
from .exploring import LIVES, SCHEDULES_MAX, ViolationError, exploring, inject, is_unexplained, living, require_valid
from .places import MOVES, Places
from .published import PUBLISHES, Others, adopting
from .renames import RENAMES, STEP_ODDS, TICK_ODDS, Renames

DIRECTORY = "/queues/q"
_ACTIONS = (
    "enqueue",
    "take",
    "spill",
    "discard",
    "commit",
    "trim",
    "give back",
    "compact",
    "publish",
    "adopt",
    "subscribe",
)
PROGRAMS = ("mixed", "drains", "recycles", "compacts")
ENCLOSES = "encloses"
"""Style in which each opening compresses and encrypts differently, with one of two keys."""
STYLES = (*PROGRAMS, MOVES, PUBLISHES, SUBSCRIBES, ENCLOSES, RENAMES)
KEYS = {"old": bytes(16), "new": bytes(range(32))}
_ODDS = {
    "mixed": (40, 20, 5, 5, 25, 2, 3, 1, 0, 0),
    "drains": (40, 20, 5, 5, 25, 8, 5, 1, 0, 0),
    "recycles": (40, 25, 2, 1, 28, 6, 6, 0, 0, 0),
    "compacts": (12, 38, 4, 1, 35, 1, 2, 8, 0, 0),
}
_PUBLISHING_ODDS = {
    "mixed": (20, 20, 5, 5, 25, 4, 3, 2, 25, 12),
    "drains": (20, 20, 5, 5, 25, 8, 5, 1, 25, 12),
    "recycles": (20, 25, 2, 1, 28, 6, 6, 0, 25, 12),
    "compacts": (8, 38, 4, 1, 35, 1, 2, 8, 12, 6),
}
_SUBSCRIBING_ODDS = 8
"""Odds of the actions, by the style of the program.

- ``mixed`` has actions of all kinds.
- ``drains`` takes all items and commits that at once, so that the segment to write on often holds no live item.
- ``recycles`` has small segments, which come from the pool and go to it.
- ``compacts`` has consumers that leave gaps, which are compacted.
"""
_TAKES = {"mixed": (1, 1, 2, 5, 100), "drains": (100,), "recycles": (2, 5), "compacts": (1, 1, 2, 5)}
_COUNTS = {"mixed": (1, 1, 1, 2, 3, 20), "drains": (1, 1, 1, 2, 3, 20), "recycles": (1, 2), "compacts": (7, 20)}
_LENGTHS = {
    "mixed": (0, 0, 0, 10, 100, 600, 1500),
    "drains": (0, 0, 0, 10, 100, 600, 1500),
    "recycles": (10, 40),
    "compacts": (0, 0, 10),
}
_SEGMENT_BYTES = {
    "mixed": (10, 80, 300, 1000, 4096),
    "drains": (10, 80, 300, 1000, 4096),
    "recycles": (100,),
    "compacts": (80, 200, 400),
}
_STEPS = {"mixed": (10, 20, 40), "drains": (10, 20, 40), "recycles": (20, 40), "compacts": (60, 120)}
_INTRUSION_ODDS = 0.01
_LIMITED_ODDS = 0.3


@cache
def ways() -> list[Envelopes]:
    """Return the ways of the style ``ENCLOSES``. Only it needs the packages for encryption and compression."""
    return [Envelopes(how, Encryption(key_id, KEYS.__getitem__)) for how in (None, "zstd") for key_id in KEYS]


class Work:
    """An open transaction, and its effect on the content."""

    def __init__(self) -> None:
        self.transaction = Transaction()
        self.enqueued: list[bytes] = []
        self.taken: list[bytes] = []
        self.name = ""
        """Name of the subscription that it has taken from."""


class Model:
    """The acknowledged content, and the other contents that may be found instead."""

    def __init__(self, content: Content, others: Others) -> None:
        self.content = content
        self.others = others
        self.since_sync = [content]
        """Contents that a power cut may leave of a queue that does not sync, oldest first; ends with ``content``."""
        self.under_way: list[Content] = []
        self.most_bytes = 0
        """Upper bound of the bytes in files, once the queue is open: the limit, or their size before; 0 without a
        limit."""

    def allowed(self, synced: bool, power: bool) -> list[Content]:
        """Return the contents that may be found after a crash now."""
        return self.others.found([*([self.content] if synced or not power else self.since_sync), *self.under_way])

    def settle(self, content: Content, durable: bool) -> None:
        """Make ``content`` the acknowledged content."""
        self.since_sync = [content] if durable else [*self.since_sync, content]
        self.content = content
        self.under_way = []


def content_of(store: Store) -> Content:
    """Return the content of an open queue."""
    subscriptions = store.subscriptions
    plain = subscriptions.plain
    others = [(name, _items_of(subscriptions.find(name))) for name in sorted(subscriptions.names())]
    return Content(
        _items_of(plain) if plain is not None else (),
        tuple(sorted(store.state.markers.items())),
        others=tuple(others),
        nobody=None if plain is not None else () if others else _items_of(subscriptions.of_all()),
    )


def _items_of(reader: Reader) -> tuple[bytes, ...]:
    items = tuple(chain.from_iterable(items for _, items in reader.browse()))
    if len(items) != len(reader.ready):
        raise ViolationError(f"{len(reader.ready)} items are ready, found {len(items)}")
    return items


def after(content: Content, works: list[Work]) -> Content:
    """Return the content after these works are committed as a group."""
    markers = dict(content.markers)
    for work in works:
        marker = work.transaction.marker
        if marker is not None:
            if marker[1] <= markers.get(marker[0], -1):
                continue
            markers[marker[0]] = marker[1]
        if work.taken:
            content = content.take(work.name, work.taken)
        content = content.put(work.enqueued)
    return content._replace(markers=tuple(sorted(markers.items())))


class Explorer:
    """All schedules of one seed. ``schedules`` counts them."""

    def __init__(self, seed: int, faults: bool = False, trace: bool = False, style: str | None = None) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.schedules = 0
        self.lives = 0
        self.deepest = 0
        self._trace = trace
        self._faults = faults
        choose = self.random.choice
        self._asked_style = style
        self._style = style if style in PROGRAMS else choose(["mixed", "mixed", "mixed", *PROGRAMS])
        odds = {None: 0.2, PUBLISHES: 1.0, SUBSCRIBES: 0.4, ENCLOSES: 0.3, RENAMES: 0.3}.get(style, 0.0)
        self._publishes = self.random_of("publishing").random() < odds
        self._subscribes = style == SUBSCRIBES or (style is None and self.random_of("subscribing").random() < 0.15)
        self._places = Places(seed, DIRECTORY, style == MOVES)
        self._places.has_strangers = style == RENAMES
        self._renames = Renames(seed, DIRECTORY, style == RENAMES, content_of)
        self.settings = Settings(
            sync=self.random.random() < 0.85,
            segment_bytes=choose(_SEGMENT_BYTES[self._style]) + HEADER_BYTES,
            memory_bytes=choose([0, 200, 1 << 20]),
            inline_bytes=choose([0, 100, 400, 65536]),
            log_bytes=choose([300, 700, 2000, 4096, 12288]),
            pool_min_bytes=choose([0, 500, 2000]),
            pool_max_bytes=5000 if self._style == "recycles" else choose([0, 5000]),
            wipe=self.random.random() < 0.2,
        )
        if self._subscribes and self.random_of("fan-out").random() < 0.3:
            self.settings = replace(self.settings, fan_out=True)
        if style == RENAMES and self.random_of("pools").random() < 0.4:
            self.settings = replace(self.settings, shared_pool=True)
        self._nothing = Content(nobody=() if self.settings.fan_out else None)
        self._limited = self._limit()
        self._crash_odds = choose([0.03, 0.1, 0.3])
        self._item_number = 0
        self._others = self.random_of("others"), count(1)

    def random_of(self, what: str) -> random.Random:
        """Return a generator for one purpose, so that the draws for all others stay unchanged."""
        return random.Random(f"{what} of {self.seed}")

    def _limit(self) -> bool:
        """Give the queue limits in some seeds; return if it has any."""
        draw = self.random_of("limits")
        if draw.random() >= _LIMITED_ODDS or self._publishes or self._asked_style == RENAMES:
            return False
        more_bytes = draw.choice([None, 500, 3000, 20_000])
        self.settings = replace(
            self.settings,
            max_items=draw.choice([None, 3, 10, 40]),
            max_bytes=draw.choice([None, 300, 2000, 10_000]),
            max_disk_bytes=None if more_bytes is None else LOGS_LEAST * self.settings.log_bytes + more_bytes,
        )
        return True

    def run(self) -> None:
        """Explore all schedules of the seed. Raises ``ViolationError`` like ``exploring``."""
        nothing = self._nothing
        with exploring(self.random, self.seed, self._faults, self._trace, self._asked_style) as disk:
            self._live(disk, Model(nothing, Others(*self._others)), [nothing], [nothing], depth=0)

    # --- one life ----------------------------------------------------------------------------------------------------

    def _live(
        self,
        disk: SimulatedDisk,
        model: Model,
        allowed: list[Content],
        after_cut: list[Content],
        depth: int,
        quiet: bool = False,
    ) -> None:
        """Open, compare, run a program, and end by closing or by crashing; then, in some cases, live once more.

        ``after_cut`` is allowed instead if the power goes before the found content has been served. With ``quiet``, the
        process was killed while nothing was under way: recovery must then report nothing torn or set aside.
        """
        self.lives += 1
        self.deepest = max(self.deepest, depth)
        heir = self._renames.begin(disk, self.settings)
        if heir is not None:
            allowed, after_cut, quiet = [heir], [heir], False
        # Until the content has been served, it is undecided which of the allowed contents it is.
        undecided: list[list[Content]] = [allowed, after_cut]
        disk.on_tick = partial(self._at_tick, disk, model, undecided, depth)
        if self._faults and self.random.random() < 0.5:
            inject(disk, self.random)
        store = None
        try:
            self._come(disk)
            store = self._open(disk)
            self._renames.opened(disk, store)
            if self._faults and self._waiting(disk, store):
                disk.fault = None  # the published files found no room; now there is room
                store.adopter.adopt(insists=True)
            found = self._find(disk, store, allowed)
        except (PersistentQueueError, OSError) as error:
            is_wrong = not self._faults or isinstance(error, CorruptionError) or is_unexplained(disk, error)
            if is_wrong and not self._renames.is_gone(disk):
                raise
            if store is not None:
                store.release()
            self._next_life(disk, model, undecided, depth)
            return
        if quiet and (store.recovery.torn_bytes or store.recovery.set_aside):
            raise ViolationError(f"nothing was under way, but {store.recovery}\n{_tail(disk)}")
        model.settle(found, durable=True)
        model.others.inbox = self._inbox(disk, store) if self._publishes else ""
        undecided.clear()
        # With the gaps of "compacts", or with several consumers, the log may need more: dequeueing must go on.
        if self.settings.max_disk_bytes is not None and self._style != "compacts" and not self._subscribes:
            model.most_bytes = max(self.settings.max_disk_bytes, self._places.files_bytes(disk))
        if depth < LIVES and self.random.random() < 0.3:
            self._crash(disk, [found], [found], depth)
        # In the last life no crash follows: it is enough to check now and then that the queue works.
        few = [0, 0, 0, 3] if depth == LIVES else [0, 2, 5, 10]
        steps = self.random.choice(few if depth else _STEPS[self._style])
        if not steps and depth == LIVES:
            store.abandon()
            return
        try:
            for _ in self._program(disk, store, model, steps):
                pass
            if self.random.random() < 0.7:
                store.close()
                model.settle(model.content, durable=True)
                if self.random.random() < 0.15 and self._renames.is_there(disk):
                    self._delete(disk, model)
            else:
                store.abandon()
        except (PersistentQueueError, OSError) as error:
            if self._renames.is_gone(disk):
                with suppress(PersistentQueueError, OSError):
                    store.close()
                self._next_life(disk, model, undecided, depth)
                return
            if not self._faults or not isinstance(error, BrokenQueueError | ResourceError | OSError):
                raise
            if is_unexplained(disk, error):
                raise
            if disk.refused and not disk.sync_failed and not isinstance(error, ResourceError):
                raise  # a full disk breaks no queue, and neither does another resource that the system lacks
            if isinstance(error, BrokenQueueError):
                self._need_broken(store)
            store.abandon()
        self._next_life(disk, model, undecided, depth)

    def _need_broken(self, store: Store) -> None:
        for call in (store.trim, partial(store.commit, [])):
            try:
                call()
            except BrokenQueueError:
                continue
            raise ViolationError("a queue went on after a sync or a write of the log had failed")

    def _next_life(self, disk: SimulatedDisk, model: Model, undecided: list[list[Content]], depth: int) -> None:
        self._renames.check(disk)
        disk.on_tick = None
        disk.fault = None
        if depth < LIVES:
            kill, power = self._allowed(disk, model, undecided)
            self._crash(disk, kill, power, depth, idle=not undecided and not model.under_way)

    def _come(self, disk: SimulatedDisk) -> None:
        now = self._renames.at(disk)
        self._places.lead(now.path)
        if not now.is_elsewhere:
            with self._renames.busy(True):
                self._places.come(disk, self.settings)

    def _open(self, disk: SimulatedDisk) -> Store:
        if self._asked_style == ENCLOSES:
            self.settings = replace(self.settings, envelopes=self.random.choice(ways()))
        now = self._renames.at(disk)
        self._places.lead(now.path)
        return self._places.open(disk, self.settings, now.place if now.is_elsewhere else None)

    def _inbox(self, disk: SimulatedDisk, store: Store) -> str:
        return self._renames.inbox(disk) if self._asked_style == RENAMES else store.inbox.directory

    def _rename(self, disk: SimulatedDisk, model: Model, odds: float) -> None:
        """Let another process rename or delete a directory of the queue, by chance."""
        if self._renames.perhaps(disk, self.settings, odds, self._places.used) and model.others.inbox:
            model.others.inbox = self._renames.inbox(disk)

    @property
    def renames(self) -> int:
        """Number of times that another process renamed or deleted a directory, or used a queue beside this one."""
        return self._renames.count

    def _find(self, disk: SimulatedDisk, store: Store, allowed: list[Content]) -> Content:
        if self._renames.is_gone(disk):
            return allowed[0]  # the content of a deleted queue does not matter
        found = content_of(store)
        if found not in allowed:
            raise ViolationError(_describe(found, allowed, disk))
        self._need_whole(store)
        return found

    def _need_whole(self, store: Store) -> None:
        """Raise ``ViolationError`` if a published file looks damaged, since only crashes happened to it."""
        if store.inbox.damage and store.broken is None:
            raise ViolationError(f"published, and {store.inbox.damage[0]}")

    # --- crashing ----------------------------------------------------------------------------------------------------

    def _at_tick(self, disk: SimulatedDisk, model: Model, undecided: list[list[Content]], depth: int) -> None:
        self._rename(disk, model, TICK_ODDS)
        if self.random.random() < _INTRUSION_ODDS:
            self._intrude(disk)
        if model.others.is_next():
            self._publish(disk, model)
        if model.most_bytes and self._places.files_bytes(disk) > model.most_bytes:
            raise ViolationError(
                f"files of {self._places.files_bytes(disk)} bytes, allowed {model.most_bytes}\n{_tail(disk)}"
            )
        if depth < LIVES and self.schedules < SCHEDULES_MAX and self.random.random() < self._crash_odds / (1 + depth):
            kill, power = self._allowed(disk, model, undecided)
            self._crash(disk, kill, power, depth)

    def _allowed(
        self, disk: SimulatedDisk, model: Model, undecided: list[list[Content]]
    ) -> tuple[list[Content], list[Content]]:
        """Return the contents that may be found after a kill, and those after a power cut."""
        kill, power = undecided or [model.allowed(self.settings.sync, power) for power in (False, True)]
        # A failed sync has lost the data that a queue without syncs had only in the cache of the operating system.
        return (power if disk.sync_failed and not self.settings.sync else kill), power

    def _crash(
        self,
        disk: SimulatedDisk,
        after_kill: list[Content],
        after_cut: list[Content],
        depth: int,
        idle: bool = False,
    ) -> None:
        """Crash a copy of the disk, recover, compare, and continue with that copy."""
        self.schedules += 1
        crashed, allowed = disk, after_kill
        how = self.random.randrange(5)
        if how in {0, 1}:
            crashed = crashed.kill(self.random.randrange)
        if how >= 1:
            crashed, allowed = crashed.cut_power(self.random.randrange), after_cut
        if self.settings.sync and self.random.random() < 0.02:
            now = self._renames.at(crashed)
            can = _has_log(crashed, now.path) and not now.is_elsewhere
            report = call_on(crashed.disk, check.check, now.path) if can else None
            if report is not None and not report.ok:
                raise ViolationError(f"check: {report.problems}")
        # Without syncs, an earlier power cut may have taken a header, and its file is read only now.
        quiet = idle and how == 0 and not self._faults and self.settings.sync
        with living(), self._renames.busy(False):
            model = Model(allowed[0], Others(*self._others))
            self._live(crashed, model, list(allowed), list(after_cut), depth + 1, quiet)
        self._places.lead(self._renames.at(disk).path)

    # --- others ------------------------------------------------------------------------------------------------------

    def _publish(self, disk: SimulatedDisk, model: Model, publish: Callable[[], None] | None = None) -> None:
        fault, disk.fault = disk.fault, None  # other processes open files of their own, which must not fail
        try:
            with self._renames.busy(True):
                (publish or partial(model.others.publish, disk))()
        finally:
            disk.fault = fault

    def _adopt(self, disk: SimulatedDisk, store: Store, model: Model, held: list[tuple[str, bytes]]) -> None:
        """Let the owner adopt the files that were published when it looked."""
        model.others.held = held
        self._try(partial(store.adopter.adopt, insists=True))
        model.others.held = []
        self._need_whole(store)
        done = len(model.others.published) - self._waiting(disk, store)
        if done > model.content.adopted:
            model.settle(adopting(model.content, model.others.published[:done], held), durable=self.settings.sync)

    def _waiting(self, disk: SimulatedDisk, store: Store) -> int:
        """Return how many publications are still in the inbox, and not adopted under the names that they have there."""
        adopted = {path.rpartition("/")[2] for path in store.segments.in_inbox.values()}
        inbox = self._inbox(disk, store)
        found = [name for name in disk.names if name.startswith(f"{inbox}/") and name.endswith(".seg")]
        return sum(name.rpartition("/")[2] not in adopted for name in found)

    def _intrude(self, disk: SimulatedDisk) -> None:
        """Let another process try to open or delete the owned queue: it must be refused."""
        now = self._renames.at(disk)
        if now.is_gone or not disk.is_locked(f"{now.path}/lock"):
            return
        watch, fault = disk.on_tick, disk.fault
        disk.on_tick = disk.fault = None
        try:
            if self.random.random() < 0.5:
                self._open(disk)
            else:
                call_on(disk.disk, delete_queue, now.path)
        except (QueueLockedError, QueueNotFoundError):
            pass
        else:
            raise ViolationError("a queue had two owners")
        finally:
            disk.on_tick, disk.fault = watch, fault

    def _delete(self, disk: SimulatedDisk, model: Model) -> None:
        """Delete the queue. Meanwhile another process tries to open it; once that succeeds, it enqueues one item."""
        patience, watch = disk.ticks + self.random.randrange(40), disk.on_tick
        assert watch is not None

        def come() -> None:
            watch()
            if disk.ticks < patience or self._faults:
                return
            disk.on_tick = watch
            try:
                store = self._open(disk)
            except QueueLockedError:
                disk.on_tick = come
                return
            model.settle(self._find(disk, store, [self._nothing]), durable=True)
            model.others.published.clear()
            transaction = Transaction()
            transaction.add([b"another's"])
            model.under_way = [self._nothing.put([b"another's"])]
            store.commit([transaction])
            store.close()
            refused = isinstance(transaction.error, QueueFullError)
            model.settle(self._nothing if refused else model.under_way[0], True)

        disk.on_tick = come
        model.others.inbox = ""
        model.under_way = [self._nothing._replace(adopted=len(model.others.published))]
        self._renames.closed(disk)
        directory = self._renames.at(disk).path
        above, _, name = directory.rpartition("/")
        with self._renames.busy(True):
            call_on(disk.disk, delete_queue, *self.random.choice([(above, name), (directory, None)]))
        if disk.on_tick is come:
            model.others.published.clear()
            model.settle(self._nothing, durable=True)

    # --- the program -------------------------------------------------------------------------------------------------

    def _program(self, disk: SimulatedDisk, store: Store, model: Model, steps: int) -> Iterator[None]:
        choose, style = self.random.random, self._style
        works = [Work() for _ in range(4 if style == "compacts" else self.random.choice([1, 1, 2, 3]))]
        held: list[tuple[str, bytes]] = []
        copies: list[Copy] = []
        odds = (*(_PUBLISHING_ODDS if self._publishes else _ODDS)[style], _SUBSCRIBING_ODDS * self._subscribes)
        for action in self.random.choices(_ACTIONS, odds, k=steps):
            yield
            self._rename(disk, model, STEP_ODDS)
            if self._renames.is_gone(disk):
                break
            work = self.random.choice(works)
            transaction = work.transaction
            if action == "enqueue":
                for item in self._items():
                    transaction.add([item])
                    work.enqueued.append(item)
            elif action == "take":
                held += self._take(store, model, work, held)
            elif action == "spill":
                if transaction.items:
                    self._try(partial(store.spill, transaction))
            elif action == "discard":
                store.discard(transaction)
                held = without(held, work)
                works[works.index(work)] = Work()
            elif action == "subscribe":
                held = self._subscribe(store, model, works, held)
            elif action == "trim" and self._item_number % 3 == 0:
                self._try(store.tidy)
            elif action == "trim":
                self._try(store.trim)
                if not store.broken:
                    model.settle(model.content, durable=not self._faults)
            elif action == "give back":
                store.give_back()
                self._try(partial(sum, store.fill_pool()))
            elif action == "compact":
                self._compact(store, model, copies)
            elif action == "publish" and self._subscribes and choose() < 0.4:
                # A queue that does not sync may use a sequence twice: then no request may acknowledge it.
                end = store.state.next_sequence if self.settings.sync else 0
                self._publish(disk, model, partial(model.others.ask, disk, model.content, end))
            elif action == "publish":
                self._publish(disk, model)
            elif action == "adopt":
                self._adopt(disk, store, model, held)
            if action == "commit" or (style == "drains" and work.taken):
                if style == "compacts":  # the first session sleeps most of the time, and keeps an item here and there
                    group = [work] if work is not works[0] or choose() < 0.05 else []
                else:
                    group = [each for each in works if each is work or choose() < 0.3]
                group = [each for each in group if each.enqueued or each.taken]
                if group:
                    held = self._commit(disk, store, model, group, works, held)
            store.check()
        for copy in copies:
            store.end_compaction(copy)

    def _take(self, store: Store, model: Model, work: Work, held: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        names = model.content.names
        if not names:
            return []
        if self._subscribes and not work.taken:
            work.name = self.random.choice(names)
        reader = store.subscriptions.find(work.name) if work.name else store.reader
        runs, items = reader.take(self.random.choice(_TAKES[self._style]))
        expected = [item for item in model.content.of(work.name) if (work.name, item) not in held][: len(items)]
        if items != expected:
            raise ViolationError(f"took {items}, expected {expected}")
        work.transaction.ready = reader.ready
        work.transaction.runs += runs
        work.taken += items
        return [(work.name, item) for item in items]

    def _subscribe(
        self, store: Store, model: Model, works: list[Work], held: list[tuple[str, bytes]]
    ) -> list[tuple[str, bytes]]:
        """Add or remove a subscription, with the items that it holds; return the items that are held afterwards."""
        name, start = self.random.choice("abc"), self.random.choice(["earliest", "latest"])
        before = model.content
        if name in before.names:
            for work in [work for work in works if work.taken and work.name == name]:
                store.discard(work.transaction)
                held = without(held, work)
                works[works.index(work)] = Work()
            model.under_way = [before.unsubscribe(name)]
            self._try(partial(store.unsubscribe, store.subscriptions.find(name).ready.number))
        else:
            # Items of the owner and of other processes are numbered, but not in one order; the readers know the order.
            order = tuple(chain.from_iterable(items for _, items in store.subscriptions.of_all().browse()))
            model.under_way = [before.subscribe(name, order, start)]
            first = store.state.next_sequence if start == "latest" else 0
            self._try(partial(store.subscribe, name, first))
        done = (name in store.subscriptions.names()) != (name in before.names)
        model.settle(model.under_way[0] if done else before, durable=self.settings.sync)
        return held

    def _commit(
        self,
        disk: SimulatedDisk,
        store: Store,
        model: Model,
        group: list[Work],
        works: list[Work],
        held: list[tuple[str, bytes]],
    ) -> list[tuple[str, bytes]]:
        """Commit the works of the group; return the items that are held afterwards."""
        if self.random.random() < 0.2:
            group[0].transaction.marker = (self.random.choice("mn"), self.random.randrange(6))
        fitting = _subsets(group) if self._faults or self._limited else [group]
        held_before = len(model.content.kept)
        model.under_way = [after(model.content, works) for works in fitting]
        store.commit([work.transaction for work in group])
        done = [work for work in group if work.transaction.settled]
        model.settle(after(model.content, done), durable=self.settings.sync)
        if len(model.content.kept) > max(self.settings.max_items or 2**63, held_before):
            raise ViolationError(f"{len(model.content.kept)} items, allowed {self.settings.max_items}")
        for work in group:
            if work.transaction.skipped:
                store.discard(work.transaction)
            if work.transaction.settled:
                held = without(held, work)
                works[works.index(work)] = Work()
            elif not self._renames.is_gone(disk):
                self._need_reason(work, held_before)
            work.transaction.error = None
            work.transaction.marker = None
        return held

    def _compact(self, store: Store, model: Model, copies: list[Copy]) -> None:
        """Begin a compaction, or continue one; commit it at its end or earlier, or give it up."""
        choice, chance = self.random.choice, self.random.random
        try:
            if not copies:
                copy = store.begin_compaction(choice([0.5, 0.7, 1.1]), chance() < 0.1, choice([0, 1, 64]))
                copies += [copy] if copy is not None else []
                if copy is None or chance() < 0.5:
                    return
            steps = choice([1, 3, 100])
            while steps and copies[0].step():
                steps -= 1
            if steps or chance() < 0.2:
                transaction = Transaction()
                transaction.operations = copies[0].finish()
                if transaction.operations and chance() < 0.9:
                    model.under_way = [model.content]
                    store.commit([transaction])
                    require_valid(transaction)
                    model.settle(model.content, durable=False)
            elif chance() < 0.9:
                return
        except (ResourceError, OSError) as error:
            at_limit = isinstance(error, ResourceError) and self.settings.max_disk_bytes is not None
            if isinstance(error, BrokenQueueError) or not (self._faults or at_limit):
                raise
        if copies:
            store.end_compaction(copies.pop())

    def _need_reason(self, work: Work, held: int) -> None:
        """Raise ``ViolationError`` if there is no reason why the queue did not commit the work.

        ``held`` is the number of items in the queue before the commit.
        """
        error = work.transaction.error
        if error is None:
            raise ViolationError("a transaction that was neither committed nor refused")
        if self._faults:
            return
        if not work.enqueued or not isinstance(error, QueueFullError):
            raise ViolationError(f"{len(work.enqueued)} enqueued, {len(work.taken)} taken, and refused: {error!r}")
        if error.limit == "max_items" and (error.holds, error.asked) != (held, len(work.enqueued)):
            raise ViolationError(f"{held} items, {len(work.enqueued)} asked, but {error!r}")

    def _items(self) -> list[bytes]:
        """Return items that never come twice."""
        result = []
        for _ in range(self.random.choice(_COUNTS[self._style])):
            self._item_number += 1
            item = b"%d " % self._item_number
            result.append(item.ljust(self.random.choice(_LENGTHS[self._style]), b"."))
        return result

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (ResourceError, QueueFullError, OSError) as error:
            if isinstance(error, BrokenQueueError) or not (self._faults or isinstance(error, QueueFullError)):
                raise


def _subsets(group: list[Work]) -> list[list[Work]]:
    return [list(some) for size in range(len(group), 0, -1) for some in combinations(group, size)]


def without(held: list[tuple[str, bytes]], work: Work) -> list[tuple[str, bytes]]:
    """Return the held items without those of this work."""
    return [(name, item) for name, item in held if name != work.name or item not in work.taken]


def _has_log(disk: SimulatedDisk, directory: str) -> bool:
    return any(name.startswith(f"{directory}/log/") for name in disk.names)


def _describe(found: Content, allowed: list[Content], disk: SimulatedDisk) -> str:
    def short(content: Content) -> str:
        left = {name: [item.split()[0].decode() for item in content.of(name)] for name in content.names}
        return f"{left} {dict(content.markers)}{'' if content.nobody is None else f' and {content.nobody!r}'}"

    lines = [f"found    {short(found)}", *(f"allowed  {short(each)}" for each in allowed)]
    return "\n".join([*lines, _tail(disk)])


def _tail(disk: SimulatedDisk) -> str:
    return "\n".join((disk.trace or [])[-120:])
