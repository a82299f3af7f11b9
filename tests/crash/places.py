"""Segments on other media, for the explorer: queues with segments elsewhere, moves between lives, unmounted disks.

Only some seeds have them, with draws of their own, so that all other seeds keep their meaning. A move happens before a
life begins, on the files that a crash or a clean end has left. The move itself may be cut short at any call, like
everything after it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from persistentqueue.engine.context import Settings
from persistentqueue.engine.store import Store
from persistentqueue.errors import DataMissingError, DataPathError, QueueNotFoundError, ResourceError
from persistentqueue.recovery import check
from persistentqueue.recovery.catalog import delete_queue
from persistentqueue.recovery.opening import open_store
from persistentqueue.storage.locations import OWN, read_record
from persistentqueue.storage.relocation import move_data
from tests.support.disks import call_on

from .disk import SimulatedDisk

MEDIA = ("/other", "/third/media")
MOVES = "moves"
"""Style of programs of all kinds whose segments are moved."""
_ODDS = 0.2
_MOVE_ODDS, _MOVE_ODDS_ASKED = 0.4, 0.8
_UNMOUNT_ODDS = 0.2


class Places:
    """Where the queue of one seed has its segments, and when they are moved. Its directory is ``<path>/<name>``."""

    def __init__(self, seed: int, directory: str, always: bool) -> None:
        self.lead(directory)
        self.has_strangers = False
        """True if other queues may have their segments at the place that this queue wants."""
        self._random = random.Random(f"places of {seed}")
        self._odds = _MOVE_ODDS_ASKED if always else _MOVE_ODDS
        self.used = self._random.random() < _ODDS or always
        roots = (directory, *(f"{path}/{self._name}" for path in MEDIA if self.used))
        self._parts = tuple(f"{root}/{part}" for root in roots for part in ("log", "data", "pool"))
        chosen = self._random.choice([None, *MEDIA])
        self._data_path = f"{chosen}/{self._name}" if self.used and chosen is not None else None

    def lead(self, directory: str) -> None:
        """Note that the queue is in this directory now."""
        self._directory = directory
        self._path, _, self._name = directory.rpartition("/")

    def open(self, disk: SimulatedDisk, settings: Settings, renamed: str | None = None) -> Store:
        """Open the queue.

        A new queue gets its segments at the place that this seed has chosen; an existing one has them at its recorded
        place. If the place was ``renamed``, open the queue with its new path.
        """
        if renamed is not None:
            return self._open(disk, settings, renamed)
        try:
            return self._open(disk, settings, self._data_path)
        except DataPathError as error:
            if (
                read_record(disk.disk, self._directory).place.path == self._data_path
                or "its segments" not in error.expected
            ) and not self._is_taken(error):
                raise
            return self._open(disk, settings, None)

    def files_bytes(self, disk: SimulatedDisk) -> int:
        """Return the bytes of the queue's files, without the lock and the files that record where the others are."""
        return sum(map(disk.bytes_in, self._parts))

    def come(self, disk: SimulatedDisk, settings: Settings) -> None:
        """Do what happens before a life, by chance: an opening while the place is not mounted, and a move.

        If calls fail, it raises the error of the move, except for errors that leave the queue unchanged.
        """
        if not self.used:
            return
        if self._random.random() < _UNMOUNT_ODDS:
            self._unmount(disk, settings)
        if self._random.random() < self._odds:
            try:
                call_on(disk.disk, move_data, self._path, self._name, data_path=self._random.choice([None, *MEDIA]))
            except (QueueNotFoundError, ResourceError):
                return
            except DataPathError as error:
                if not self._is_taken(error):
                    raise

    def _is_taken(self, error: DataPathError) -> bool:
        return self.has_strangers and error.expected.startswith("nothing of another queue")

    def _open(self, disk: SimulatedDisk, settings: Settings, data_path: str | None) -> Store:
        return open_store(disk.disk, self._directory, settings, create=True, data_path=data_path)

    def _unmount(self, disk: SimulatedDisk, settings: Settings) -> None:
        """Try one call while the place is not mounted: it must raise an error and change nothing."""
        place = read_record(disk.disk, self._directory).place
        if place == OWN:
            return
        watch, fault = disk.on_tick, disk.fault
        disk.on_tick = disk.fault = None
        # The mountpoint remains as an empty directory, or is gone.
        mount = disk.unmount(place.path.rpartition("/")[0], leave=self._random.random() < 0.5)
        before = set(disk.names) | {f"{self._directory}/lock"}
        calls: list[Callable[[], object]] = [
            lambda: self._open(disk, settings, self._data_path if self._data_path == place.path else None),
            lambda: call_on(disk.disk, delete_queue, self._path, self._name),
            lambda: call_on(disk.disk, check.repair, self._path, self._name),
            lambda: call_on(disk.disk, move_data, self._path, self._name, data_path=None),
        ]
        try:
            self._random.choice(calls)()
        except (DataMissingError, QueueNotFoundError):
            if set(disk.names) | {f"{self._directory}/lock"} != before:
                raise AssertionError(f"changed while unmounted: {set(disk.names) ^ before}") from None
        else:
            raise AssertionError(f"{place.path} is not mounted, and nobody noticed")
        finally:
            mount()
            disk.on_tick, disk.fault = watch, fault
