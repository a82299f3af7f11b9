"""Several queues on one simulated disk, and transactions over them: all or nothing, with a crash at any moment.

There are three queues side by side. A *deal* is a set of changes that is committed together, in one queue or in two or
three: items are enqueued, taken, or moved from one queue to another. Between deals, queues are trimmed and opened
again, in any order. Before that, they are closed, or dropped without a close. The other queues may be open or not. An
opening may know the queues that this owner has open, or not. Queues are deleted if that is allowed. A crash may fall on
any call. The next life opens all queues or some of them, in any order. Meanwhile another process may open or delete a
queue that is not open, also in the middle of a listing.

The model is the content of each queue. Allowed after a crash is the state after the last acknowledged deal, or that
state with the whole deal that was under way. Content that one queue has served rules out all states with other content.
So no deal is there in part, and each item is in one queue. No decision is kept without need: once all queues are open
and trimmed, none has a decision left. A data file that must be wiped is overwritten before it is deleted, in each way
of deleting it. Everything follows from the seed.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.engine.context import Settings
from persistentqueue.engine.reader import Reader
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from persistentqueue.engine.two_phase import Part, commit_several
from persistentqueue.errors import (
    BrokenQueueError,
    CorruptionError,
    InDoubtError,
    PersistentQueueError,
    QueueFullError,
    QueueLockedError,
    QueueNotFoundError,
    ResourceError,
)
from persistentqueue.recovery.catalog import delete_queue
from persistentqueue.recovery.opening import open_store
from persistentqueue.storage.layout import DELETED_DIRECTORY
from persistentqueue.system.disk import basename
from tests.support.disks import call_on

from .content import Content
from .disk import SimulatedDisk
from .explorer import content_of
from .exploring import (
    LIVES,
    SCHEDULES_MAX,
    ViolationError,
    crash,
    exploring,
    inject,
    is_unexplained,
    living,
    require_sound,
    require_valid,
)

SEVERAL = "several"
"""Style of programs over several queues."""
NAMES = ("a", "b", "c")
PATH = "/queues"
_ACTIONS = ("put", "take", "move", "spill", "discard", "commit", "trim", "reopen", "leave", "delete", "compact")
_ODDS = (12, 8, 26, 2, 2, 34, 4, 4, 3, 0.5, 2)
_DEAL_ODDS = 0.3
"""Odds of a crash at a call of a commit or of a trim; at other calls they are lower."""
_SUBSCRIPTION = "s"
_INTRUSION_ODDS = 0.002
_LISTING_ODDS = (0.0, 0.1)
"""Odds that another process opens or deletes a queue in the middle of a listing, for a seed to choose from."""
_GROWTH_ODDS = 0.1

World = tuple[Content, ...]
"""Contents of the queues, in the order of their names."""


class Deal:
    """Changes to be committed together: for each queue a transaction, the items it enqueues, and the items it takes."""

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.put: dict[str, list[bytes]] = {}
        self.taken: dict[str, list[bytes]] = {}

    def part(self, name: str) -> Transaction:
        """Return the transaction of this queue; add it if there is none."""
        self.put.setdefault(name, [])
        self.taken.setdefault(name, [])
        return self.transactions.setdefault(name, Transaction())

    @property
    def busy(self) -> list[str]:
        """Queues with anything to commit, in order."""
        return [name for name in NAMES if self.put.get(name) or self.taken.get(name)]

    def is_reached(self, world: World) -> bool:
        """Return if one of its markers has been reached, so that it was committed before."""
        markers = [(name, self.transactions[name].marker) for name in self.busy]
        return any(
            marker is not None and marker[1] <= dict(world[NAMES.index(name)].markers).get(marker[0], -1)
            for name, marker in markers
        )

    def after(self, world: World) -> World:
        """Return the contents of the queues after the deal is committed."""
        if self.is_reached(world):
            return world
        changed = list(world)
        for name in self.busy:
            at, marker = NAMES.index(name), self.transactions[name].marker
            items = [item for item in world[at].items if item not in self.taken[name]] + self.put[name]
            markers = dict(world[at].markers) | (dict([marker]) if marker is not None else {})
            changed[at] = Content(tuple(items), tuple(sorted(markers.items())))
        return tuple(changed)


@dataclass
class Life:
    """One owner of the queues, until a crash."""

    disk: SimulatedDisk
    worlds: list[World]
    """Possible contents of the queues; they differ only in queues that are not open."""
    under_way: list[World]
    """Possible contents if the deal under way is committed."""
    stores: dict[str, Store] = field(default_factory=dict)
    deals: list[Deal] = field(default_factory=list)
    is_settling: bool = False
    """True while a queue is trimmed or closed, which resolves the decisions of other queues."""
    deleting: str = ""
    """Name of the queue that is being deleted; empty if none is."""

    def held(self, name: str) -> set[bytes]:
        """Return the items that the open deals have taken."""
        return {item for deal in self.deals for item in deal.taken.get(name, ())}

    def content(self, name: str) -> Content:
        """Return the content of an open queue."""
        return self.worlds[0][NAMES.index(name)]

    def become(self, worlds: list[World]) -> None:
        """Set the possible contents."""
        self.worlds, self.under_way = list(dict.fromkeys(worlds)), []


class SeveralExplorer:
    """All schedules of one seed. ``schedules`` counts them."""

    def __init__(self, seed: int, faults: bool = False, trace: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(f"several queues of {seed}")
        self.schedules = self.lives = self.deepest = 0
        self._faults, self._trace = faults, trace
        self._item_number = 0
        choose = self.random.choice
        self._settings = {
            name: Settings(
                segment_bytes=choose((80, 300, 1000, 4096)) + HEADER_BYTES,
                memory_bytes=choose((0, 200, 1 << 20)),
                inline_bytes=choose((0, 100, 65536)),
                log_bytes=choose((300, 700, 2000, 4096)),
                pool_max_bytes=choose((0, 0, 5000)),
                max_items=choose((None, None, None, 4)),
            )
            for name in NAMES
        }
        kinds = self._random_of("kinds")
        for name, settings in self._settings.items():
            self._settings[name] = replace(settings, wipe=kinds.random() < 0.3, fan_out=kinds.random() < 0.3)
        self._intrusions, self._growths = self._random_of("intrusions"), self._random_of("growths")
        self._listings = self._random_of("listing hooks")
        self._listing_odds = self._listings.choice(_LISTING_ODDS)
        self._crash_odds = choose((0.01, 0.03, 0.1))

    def _random_of(self, what: str) -> random.Random:
        """Return a generator for one purpose, so that the draws for all others stay unchanged."""
        return random.Random(f"{what} of {self.seed}")

    def run(self) -> None:
        """Explore all schedules of the seed. Raises ``ViolationError`` like ``exploring``."""
        with exploring(self.random, self.seed, self._faults, self._trace, SEVERAL) as disk:
            self._live(disk, [(Content(),) * len(NAMES)], depth=0)

    # --- one life ----------------------------------------------------------------------------------------------------

    def _live(self, disk: SimulatedDisk, worlds: list[World], depth: int) -> None:
        """Open some queues, compare, run a program, close or crash; then, in some cases, live once more."""
        self.lives += 1
        self.deepest = max(self.deepest, depth)
        life = Life(disk, list(worlds), [])
        disk.on_tick = partial(self._at_tick, life, depth)
        disk.on_listing = partial(self._at_listing, life)
        if self._faults and self.random.random() < 0.5:
            inject(disk, self.random)
        order = self.random.sample(NAMES, self.random.choice((1, 1, 2, 3)) if depth else len(NAMES))
        try:
            if depth and self.random.random() < 0.05:
                self._delete(life, self.random.choice(NAMES))
            for name in order:
                self._open(life, name)
            for name in order:  # a queue that stayed in doubt above can ask its coordinator now
                self._open(life, name, must=not self._faults)
            few = (0, 0, 3, 6) if depth else (15, 30, 50)
            for _ in range(self.random.choice(few)):
                try:
                    self._step(life)
                except BrokenQueueError:
                    if not self._faults:
                        raise
                    self._go_on_broken(life)
            if disk.fault is None and self._growths.random() < _GROWTH_ODDS:
                self._need_forgotten(life)
            self._end(life)
        except (PersistentQueueError, OSError) as error:
            if not self._faults or isinstance(error, CorruptionError) or is_unexplained(disk, error):
                raise
        for store in life.stores.values():
            store.abandon()
        disk.on_tick = disk.on_listing = disk.fault = None
        if depth < LIVES:
            self._crash(life, depth)

    def _open(self, life: Life, name: str, must: bool = False) -> None:
        """Open the queue, if it is not open, and compare the items that it serves.

        It may stay in doubt and closed if its coordinator is open, but was not asked or is broken.
        """
        if name in life.stores:
            return
        knows = must or self.random.random() < 0.7
        try:
            store = self._opened(life, name, lambda directory: knows and self._is_sound(life, basename(directory)))
        except InDoubtError as error:
            while isinstance(error.__cause__, InDoubtError):
                error = error.__cause__
            coordinator = life.stores.get(basename(error.coordinator))
            if coordinator is None or (knows and coordinator.broken is None):
                if life.disk.fault is None or isinstance(error.__cause__, CorruptionError):
                    raise ViolationError(f"in doubt, and nothing keeps who knows from telling: {error}") from error
                raise
            return
        life.stores[name] = store
        self._subscribe(store)
        self._look(life, name)

    def _opened(self, life: Life, name: str, is_sound: Callable[[str], bool]) -> Store:
        """Return the queue, opened with a disk that checks that a deleted data file was wiped, if it must be."""
        disk = life.disk

        def unlink(path: str) -> None:
            owner, part, _ = path.removeprefix(f"{PATH}/").split("/", 2) if path.count("/") > 3 else ("", "", "")
            is_deleted = f"{PATH}/{owner}/{DELETED_DIRECTORY}" in disk.names
            if part == "data" and self._settings[owner].wipe and not is_deleted:
                file = disk.inodes[disk.names[path]]
                if file.links == 1 and any(file.cache):
                    raise ViolationError(f"{path} goes, and was not wiped")
            disk.unlink(path)

        door = replace(disk.disk, unlink=unlink)
        return open_store(door, f"{PATH}/{name}", self._settings[name], create=True, is_sound=is_sound)

    def _subscribe(self, store: Store) -> None:
        """Add a subscription to a queue with ``fan_out``. It replaces the plain queue that the other queues have."""
        if store.settings.fan_out and not store.subscriptions.names():
            store.subscribe(_SUBSCRIPTION, 0)

    def _is_sound(self, life: Life, name: str) -> bool:
        return name in life.stores and life.stores[name].broken is None

    def _look(self, life: Life, name: str) -> None:
        """Compare the items that the queue serves with the possible contents, and keep only the matching ones."""
        found, at = _content_of(life.stores[name]), NAMES.index(name)
        worlds = [world for world in [*life.worlds, *life.under_way] if world[at] == found]
        if not worlds or len(_reader(life.stores[name]).ready) != len(found.items):
            raise ViolationError(self._describe(life, name, found))
        life.become(worlds)

    def _need_forgotten(self, life: Life) -> None:
        """Raise ``ViolationError`` if a queue keeps a decision that no participant can ask for any more."""
        for deal in life.deals:
            self._discard(life, deal)
        life.deals.clear()
        for name in NAMES:
            self._open(life, name, must=True)
        for name in NAMES:  # trim the coordinators of each queue before it
            life.stores[name].trim()
        for name in NAMES:
            life.stores.pop(name).close()
        for name in NAMES:
            self._open(life, name, must=True)
        for name, store in life.stores.items():
            if store.state.decisions:
                raise ViolationError(f"{name} remembers {store.state.decisions}, and nobody has to ask")

    def _end(self, life: Life) -> None:
        """Close some queues, in any order; the others end with the process."""
        for name in self.random.sample(list(life.stores), len(life.stores)):
            if self.random.random() < 0.6:
                life.stores.pop(name).close()

    def _go_on_broken(self, life: Life) -> None:
        """Continue after one of the queues broke: the outcome of the last deal may be unknown.

        The other queues continue, and each broken queue is opened again, at once or later.
        """
        life.disk.fault = None
        life.is_settling = True
        for deal in life.deals:
            self._discard(life, deal)
        life.deals.clear()
        life.become([*life.worlds, *life.under_way])
        names = self.random.sample(list(life.stores), len(life.stores))
        for name in names:
            if life.stores[name].broken is None:
                self._look(life, name)
        for name in names:
            if self.random.random() < 0.5:
                with suppress(BrokenQueueError):
                    life.stores.pop(name).close()
                with suppress(BrokenQueueError):  # a failed sync may be reported only by the next one
                    self._open(life, name)
        for name in [each for each, store in life.stores.items() if store.broken is not None]:
            life.stores.pop(name).release()
        for name in names:
            with suppress(BrokenQueueError):
                self._open(life, name, must=True)
        life.is_settling = False

    # --- others ------------------------------------------------------------------------------------------------------

    def _intrude(self, life: Life, chance: random.Random) -> None:
        """Let another process open or delete a queue, if no process owns it and it is not being deleted."""
        name = chance.choice(NAMES)
        at, disk = NAMES.index(name), life.disk
        if name == life.deleting:  # the worlds cannot tell whether its content is gone already
            return
        try:
            with disk.undisturbed():
                if chance.random() < 0.3:
                    call_on(disk.disk, delete_queue, PATH, name)
                    found = None
                else:
                    store = self._opened(life, name, lambda _directory: False)
                    self._subscribe(store)
                    found = _content_of(store)
                    (store.close if chance.random() < 0.5 else store.release)()
        except (QueueLockedError, QueueNotFoundError, InDoubtError):
            return
        for worlds in (life.worlds, life.under_way):
            if found is None:
                worlds[:] = [(*world[:at], Content(), *world[at + 1 :]) for world in worlds]
            else:
                worlds[:] = [world for world in worlds if world[at] == found]
        if not life.worlds:
            raise ViolationError(f"another process found {found} in {name}\n{self._tail(life)}")

    def _at_listing(self, life: Life) -> None:
        if not self._faults and self._listings.random() < self._listing_odds:
            self._intrude(life, self._listings)

    # --- crashing ----------------------------------------------------------------------------------------------------

    def _at_tick(self, life: Life, depth: int) -> None:
        if not self._faults and self._intrusions.random() < _INTRUSION_ODDS:
            self._intrude(life, self._intrusions)
        odds = _DEAL_ODDS if life.under_way or life.is_settling else self._crash_odds
        if depth < LIVES and self.schedules < SCHEDULES_MAX and self.random.random() < odds / (1 + depth):
            self._crash(life, depth)

    def _crash(self, life: Life, depth: int) -> None:
        """Crash a copy of the disk, and continue from there."""
        self.schedules += 1
        crashed = crash(life.disk, self.random)
        if self.random.random() < 0.02:
            require_sound(crashed, PATH, NAMES)
        with living():
            self._live(crashed, [*life.worlds, *life.under_way], depth + 1)

    # --- the program -------------------------------------------------------------------------------------------------

    def _step(self, life: Life) -> None:
        (action,) = self.random.choices(_ACTIONS, _ODDS)
        if not life.stores or (len(life.stores) < len(NAMES) and self.random.random() < 0.5):
            self._open(life, self.random.choice([name for name in NAMES if name not in life.stores]))
            return
        while len(life.deals) < 2:
            life.deals.append(Deal())
        name, deal = self.random.choice(list(life.stores)), self.random.choice(life.deals)
        if action == "put":
            self._put(deal, name, self._items())
        elif action == "take":
            self._take(life, deal, name)
        elif action == "move":
            others = [each for each in life.stores if each != name]
            items = self._take(life, deal, name) if others else []
            for at, other in enumerate(others):
                self._put(deal, other, items[at :: len(others)])
        elif action == "spill" and deal.part(name).items:
            self._try(partial(life.stores[name].spill, deal.part(name)))
        elif action == "discard":
            self._discard(life, deal)
            life.deals.remove(deal)
        elif action == "commit":
            self._commit(life, max(life.deals, key=lambda each: len(each.busy)))
        elif action == "trim":
            store = life.stores[name]
            life.is_settling = True
            self._try(self.random.choice((store.trim, store.trim, store.tidy, store.give_back)))
            life.is_settling = False
        elif action in {"reopen", "leave"}:
            self._leave(life, name)
            if action == "reopen":
                self._open(life, name)
        elif action == "delete":
            self._delete(life, name)
        elif action == "compact":
            self._compact(life.stores[name])

    def _put(self, deal: Deal, name: str, items: list[bytes]) -> None:
        transaction = deal.part(name)
        transaction.add(items)
        deal.put[name] += items

    def _take(self, life: Life, deal: Deal, name: str) -> list[bytes]:
        held, content = life.held(name), life.content(name)
        reader = _reader(life.stores[name])
        runs, items = reader.take(self.random.choice((1, 1, 2, 5)))
        expected = [item for item in content.items if item not in held][: len(items)]
        if items != expected:
            raise ViolationError(f"took {items} from {name}, expected {expected}")
        deal.part(name).ready = reader.ready
        deal.part(name).runs += runs
        deal.taken[name] += items
        return items

    def _discard(self, life: Life, deal: Deal) -> None:
        for name, transaction in deal.transactions.items():
            if name in life.stores:
                life.stores[name].discard(transaction)

    def _commit(self, life: Life, deal: Deal) -> None:
        busy = deal.busy
        if not busy:
            return
        if self.random.random() < 0.15:
            marker = (self.random.choice("mn"), self.random.randrange(6))
            deal.transactions[self.random.choice(busy)].marker = marker
        life.under_way = [deal.after(world) for world in life.worlds]
        parts = [Part(life.stores[name], deal.transactions[name]) for name in busy]
        if self._faults and self.random.random() < 0.15:
            self._fail_frame(life.disk)
        if len(parts) > 1:
            commit_several(parts)
        else:
            parts[0].store.commit([parts[0].transaction])
        settled = {part.transaction.settled for part in parts}
        if len(settled) != 1:
            raise ViolationError(f"settled in part: {parts}")
        if settled == {True}:
            life.become(list(life.under_way))
            if parts[0].transaction.skipped:
                self._discard(life, deal)
            life.deals.remove(deal)
            return
        life.under_way.clear()
        errors = [part.transaction.error for part in parts if part.transaction.error is not None]
        limited = any(self._settings[name].max_items is not None and deal.put[name] for name in busy)
        if not errors or not (self._faults or (limited and isinstance(errors[0], QueueFullError))):
            raise ViolationError(f"refused for no reason: {errors}")
        for part in parts:
            part.transaction.error = part.transaction.marker = None
        if self.random.random() < 0.5:
            self._discard(life, deal)
            life.deals.remove(deal)

    def _fail_frame(self, disk: SimulatedDisk) -> None:
        """Let the write of one of the next frames fail."""
        left = [self.random.randrange(3)]

        def fault(call: str, path: str) -> OSError | None:
            left[0] -= call == "pwritev dsync"
            return OSError(errno.EIO, "injected", path) if call == "pwritev dsync" and left[0] == -1 else None

        disk.fault = fault

    def _leave(self, life: Life, name: str) -> None:
        """Let the owner of one queue end, by closing or not, while the others continue."""
        for deal in [each for each in life.deals if name in each.transactions]:
            self._discard(life, deal)
            life.deals.remove(deal)
        store = life.stores.pop(name)
        if self.random.random() < 0.5:
            life.is_settling = True
            store.close()
            life.is_settling = False
        else:
            store.release()

    def _delete(self, life: Life, name: str) -> None:
        """Delete a queue, unless another may have to ask it."""
        if name in life.stores:
            self._leave(life, name)
        at = NAMES.index(name)
        life.under_way = [(*world[:at], Content(), *world[at + 1 :]) for world in life.worlds]
        life.deleting = name
        try:
            call_on(life.disk.disk, delete_queue, PATH, name)
        except (InDoubtError, QueueNotFoundError):
            life.under_way.clear()
            return
        finally:
            life.deleting = ""
        life.become(list(life.under_way))

    def _compact(self, store: Store) -> None:
        copy = store.begin_compaction(1.1, False)
        if copy is None:
            return
        try:
            while copy.step():
                pass
            transaction = Transaction()
            transaction.operations = copy.finish()
            if transaction.operations:
                store.commit([transaction])
                require_valid(transaction)
        finally:
            store.end_compaction(copy)

    def _items(self) -> list[bytes]:
        """Return items that never come twice."""
        result = []
        for _ in range(self.random.choice((1, 1, 2, 3, 8))):
            self._item_number += 1
            result.append((b"%d " % self._item_number).ljust(self.random.choice((0, 0, 10, 100, 600)), b"."))
        return result

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (ResourceError, OSError):
            if not self._faults:
                raise

    def _describe(self, life: Life, name: str, found: Content) -> str:
        def short(content: Content) -> str:
            return f"{[item.split()[0].decode() for item in content.items]} {dict(content.markers)}"

        lines = [f"found in {name}   {short(found)}"]
        lines += [f"allowed      {' | '.join(map(short, world))}" for world in [*life.worlds, *life.under_way]]
        return "\n".join([*lines, self._tail(life)])

    def _tail(self, life: Life) -> str:
        return "\n".join((life.disk.trace or [])[-160:])


def _reader(store: Store) -> Reader:
    """Return the reader of the plain queue, or of the subscription that replaces it."""
    return store.subscriptions.find(_SUBSCRIPTION) if store.settings.fan_out else store.reader


def _content_of(store: Store) -> Content:
    """Return the content of an open queue, consumed as a plain queue or by its subscription."""
    found = content_of(store)
    return found if not store.settings.fan_out else Content(found.of(_SUBSCRIPTION), found.markers)
