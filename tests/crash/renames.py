"""Directories that are renamed or deleted while a queue in them is open, and queues that get their names.

Another process does it, durably, between the calls of the owner and in the middle of them. It renames or deletes the
queue's directory, the directory above, the place of its segments, or the shared pool. Often it then makes another queue
under the old name, a *stranger*. The owner must touch no file of a stranger. After any crash, the stranger must hold
the items that its own owner has put into it. The renamed queue holds the items that its owner has committed, and the
next life finds it at its new path. If the queue was deleted, the next life finds the stranger that has its name, or
nothing.

The ``Situation`` of a disk records the renames. It stays with the disk over a crash.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from persistentqueue.engine.context import Settings
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from persistentqueue.recovery.opening import open_store

from .content import Content
from .disk import SimulatedDisk
from .exploring import ViolationError

RENAMES = "renames"
"""Style of programs of all kinds whose directories are renamed and deleted."""
STEP_ODDS, TICK_ODDS = 0.06, 0.01
_STRANGERS_MAX = 3
Files = dict[str, tuple[int, bytes]]


class Stranger(NamedTuple):
    """A queue under a name that the explored one had before, or beside it."""

    path: str
    content: Content
    place: str = ""
    """Place of its segments, if that is another directory."""


class Situation(NamedTuple):
    """Place of the explored queue, and the strangers beside it."""

    path: str
    """Path of its directory."""
    place: str = ""
    """Place of its segments, if that is another directory."""
    is_elsewhere: bool = False
    """True if the place was renamed, so that an opening has to name it: a power cut may still take its own record."""
    is_open: bool = False
    is_gone: bool = False
    """True if the directory was deleted."""
    pool: int = 0
    """Inode of the pool that its owner holds."""
    strangers: tuple[Stranger, ...] = ()
    guarded: tuple[tuple[str, Files], ...] = ()
    """Directories that the owner must not touch, and the files that were in them last."""


class Renames:
    """Renames and deletions of directories by other processes, in one seed."""

    def __init__(self, seed: int, directory: str, used: bool, content_of: Callable[[Store], Content]) -> None:
        self._random = random.Random(f"renames of {seed}")
        self._directory = directory
        self._used = used
        self._content_of = content_of
        self._numbers = count(1)
        self._is_busy = False
        self.count = 0
        """Number of times that another process came."""

    @contextmanager
    def busy(self, is_busy: bool) -> Iterator[None]:
        """Let nothing be renamed in the block if ``is_busy``; a crash in it begins another life."""
        before, self._is_busy = self._is_busy, is_busy
        try:
            yield
        finally:
            self._is_busy = before

    def at(self, disk: SimulatedDisk) -> Situation:
        """Return the situation of the queue on this disk."""
        return disk.situation or Situation(self._directory)

    def inbox(self, disk: SimulatedDisk) -> str:
        """Return the inbox in which other processes publish for the queue; "" if it was deleted."""
        now = self.at(disk)
        return "" if now.is_gone else f"{now.place or now.path}/inbox"

    def is_gone(self, disk: SimulatedDisk) -> bool:
        """Return if the directory of the queue was deleted in this life."""
        return self.at(disk).is_gone

    def is_there(self, disk: SimulatedDisk) -> bool:
        """Return if the directory and the place are at the paths that the next opening uses."""
        now = self.at(disk)
        return not now.is_gone and not now.is_elsewhere

    def begin(self, disk: SimulatedDisk, settings: Settings) -> Content | None:
        """Begin a life. Return the content of the queue that has the old name now, if that is another one; otherwise
        None."""
        now = self.at(disk)
        if not self._used or disk.situation is None:
            return None
        found = None
        if now.is_gone:
            heir = next((each for each in now.strangers if each.path == now.path), None)
            found = heir.content if heir is not None else Content(nobody=() if settings.fan_out else None)
            now = now._replace(
                place="", is_elsewhere=False, strangers=tuple(each for each in now.strangers if each is not heir)
            )
        disk.situation = now._replace(is_open=False, is_gone=False, pool=0, guarded=())
        for stranger in now.strangers:
            with disk.undisturbed():
                store = self._open(disk, settings, stranger.path)
                if (content := self._content_of(store)) != stranger.content:
                    raise ViolationError(f"{stranger.path}: found {content}, its owner left {stranger.content}")
                self._end(store)
        self._guard(disk)
        return found

    def opened(self, disk: SimulatedDisk, store: Store) -> None:
        """Note that the owner has opened the queue."""
        if self._used:
            place = "" if store.places.data_root == store.directory else store.places.data_root
            pool = disk.held(store.pool.directory)
            disk.situation = self.at(disk)._replace(place=place, is_open=True, pool=pool)

    def closed(self, disk: SimulatedDisk) -> None:
        """Note that the owner has closed the queue: the next one may hold another pool."""
        if disk.situation is not None:
            disk.situation = self.at(disk)._replace(is_open=False, pool=0)
            self._guard(disk)

    def perhaps(self, disk: SimulatedDisk, settings: Settings, odds: float, has_places: bool) -> bool:
        """Let another process come, by chance; return if one came.

        Raises ``ViolationError`` if the owner has touched files that are not its own.
        """
        if not self._used or self._is_busy:
            return False
        self.check(disk)
        now = self.at(disk)
        can = now.is_open or not has_places  # an opening recognizes its files at a place by the queue's path
        if now.is_gone or not can or not disk.is_locked(f"{now.path}/lock") or self._random.random() >= odds:
            return False
        self.count += 1
        with self.busy(True):
            self._come(disk, settings, now)
            self._guard(disk)
        return True

    def check(self, disk: SimulatedDisk) -> None:
        """Raise ``ViolationError`` if the owner has touched files that are not its own."""
        for path, before in self.at(disk).guarded:
            now = disk.files_below(path)
            if now != before:
                touched = sorted(each for each in {*before, *now} if before.get(each) != now.get(each))
                raise ViolationError(f"{path}: the owner of another directory has touched {touched}")

    # --- other processes ---------------------------------------------------------------------------------------------

    def _come(self, disk: SimulatedDisk, settings: Settings, now: Situation) -> None:
        kinds = ["queue", "queue", "queue", "parent", "delete"]
        kinds += ["place", "place"] * bool(now.place) + ["pool"] * settings.shared_pool + ["stranger"] * 2
        kind = self._random.choice(kinds)
        above, _, name = now.path.rpartition("/")
        if kind == "stranger":
            self._visit(disk, settings)
            return
        if kind == "queue":
            target = self._random.choice([f"{above}/q.{next(self._numbers)}", f"/queues.{next(self._numbers)}/{name}"])
            self._make_above(disk, target)
            disk.move_durably(now.path, target)
            disk.situation = now._replace(path=target)
        elif kind == "parent":
            target = f"/queues.{next(self._numbers)}"
            disk.move_durably(above, target)
            strangers = [each._replace(path=_moved(each.path, above, target)) for each in now.strangers]
            disk.situation = now._replace(path=_moved(now.path, above, target), strangers=tuple(strangers))
        elif kind == "place":
            target = f"{now.place}.{next(self._numbers)}"
            disk.move_durably(now.place, target)
            disk.situation = now._replace(place=target, is_elsewhere=True)
            # Another process then makes a queue that has its segments at the old place.
            self._add(disk, settings, f"{above}/s.{next(self._numbers)}", now.place)
            return
        elif kind == "pool":
            pool = f"{(now.place or now.path).rpartition('/')[0]}/.pool"
            if disk.names.get(pool) != now.pool:
                return
            disk.move_durably(pool, f"{pool}.{next(self._numbers)}")
            self._add(disk, settings, f"{above}/s.{next(self._numbers)}", None)
            return
        else:
            disk.remove_durably(now.path)
            if now.place:
                disk.remove_durably(now.place)
            disk.situation = now._replace(is_gone=True)
        if self._random.random() < 0.8:
            self._add(disk, settings, now.path, None)

    def _make_above(self, disk: SimulatedDisk, path: str) -> None:
        above = path.rpartition("/")[0]
        if above not in disk.names:
            with disk.undisturbed():
                disk.mkdir(above, 0o700)
                fd = disk.open("/", 0, 0)
                disk.fsync(fd)
                disk.close(fd)

    def _add(self, disk: SimulatedDisk, settings: Settings, path: str, data_path: str | None) -> None:
        """Make a stranger, unless there are enough."""
        now = self.at(disk)
        if len(now.strangers) < _STRANGERS_MAX:
            content = self._work(disk, settings, path, data_path)
            disk.situation = now._replace(strangers=(*now.strangers, Stranger(path, content, data_path or "")))

    def _visit(self, disk: SimulatedDisk, settings: Settings) -> None:
        """Let the owner of a stranger continue to work with it."""
        now = self.at(disk)
        if now.strangers:
            chosen = self._random.choice(now.strangers)
            after = chosen._replace(content=self._work(disk, settings, chosen.path, None))
            strangers = tuple(after if each is chosen else each for each in now.strangers)
            disk.situation = now._replace(strangers=strangers)

    def _work(self, disk: SimulatedDisk, settings: Settings, path: str, data_path: str | None) -> Content:
        with disk.undisturbed():
            store = self._open(disk, settings, path, data_path)
            for _ in range(self._random.choice([1, 2, 5])):
                transaction = Transaction()
                number = next(self._numbers)
                transaction.add([b"s%d.%d" % (number, n) + b"." * 60 for n in range(self._random.choice([1, 7]))])
                reader = store.subscriptions.plain
                if reader is not None:
                    transaction.ready = reader.ready
                    transaction.runs = reader.take(self._random.choice([0, 1, 5]))[0]
                store.commit([transaction])
                if transaction.error is not None:
                    raise ViolationError(f"{path}: refused {transaction.error}")
            sum(store.fill_pool())
            content = self._content_of(store)
            self._end(store)
            return content

    def _end(self, store: Store) -> None:
        """Close the store, or release it like a crash, with all files that recovery needs."""
        (store.close if self._random.random() < 0.4 else store.release)()

    def _open(self, disk: SimulatedDisk, settings: Settings, path: str, data_path: str | None = None) -> Store:
        settings = replace(settings, sync=True, max_items=None, max_bytes=None, max_disk_bytes=None)
        return open_store(disk.disk, path, settings, create=True, data_path=data_path)

    def _guard(self, disk: SimulatedDisk) -> None:
        """Note the files in the directories of the strangers, and in the pools that are not the owner's."""
        now = self.at(disk)
        paths = dict.fromkeys(path for each in now.strangers for path in (each.path, each.place) if path)
        if now.pool:
            pools = [f"{each.path.rpartition('/')[0]}/.pool" for each in now.strangers]
            paths |= dict.fromkeys(pool for pool in pools if disk.names.get(pool, now.pool) != now.pool)
        disk.situation = now._replace(guarded=tuple((path, disk.files_below(path)) for path in paths))


def _moved(path: str, source: str, target: str) -> str:
    return target + path[len(source) :] if path.startswith(source + "/") else path
