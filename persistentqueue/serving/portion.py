"""The ready items that have room in one message: the first ones, and at least one."""

from __future__ import annotations

from functools import partial
from typing import Final

from ..core.block import MIXED, uniform_bytes
from ..core.encryption import UNOPENED
from ..core.intervals import Run
from ..core.items import Alike
from ..engine.reader import Reader
from ..engine.transaction import Transaction
from ..errors import ResourceError
from ..runtime.open_queue import OpenQueue

_GROWTH: Final = 8
"""Upper bound for the items that a step of ``take`` reads, for each item of the steps before it."""
_ITEM_BYTES: Final = 16 * 1024
"""Length of an item in the first step, which knows of none: 256 items for an answer of 4 MiB."""


class Portion:
    """The part of the ready items that together have room in so many bytes: the first ones, and at least one.

    How long the items are is known only when they are read. So ``take`` holds them in steps that grow, and releases
    those of the last step that find no room.
    """

    def __init__(self, open_queue: OpenQueue, counts: bool, max_bytes: int, overhead_bytes: int) -> None:
        """``counts`` says whether the queue counts attempts. Each item has ``overhead_bytes`` beside its payload."""
        self._open_queue = open_queue
        self._counts = counts
        self._max_bytes = max_bytes
        self._overhead_bytes = overhead_bytes
        self.following: bytes | None = None
        """First item that has found no room; None if there was none."""

    def take(self, reader: Reader, max_items: int, _timeout: float | None, runs: list[Run]) -> list[bytes]:
        """Hold up to ``max_items`` items without a wait, append their runs to ``runs``, and return the items.

        They are ``Alike`` if they have one length: then they are measured once, and not again for their message.
        """
        self.following = None
        items: list[bytes] = []
        taken_bytes, each_bytes = 0, MIXED
        while len(items) < max_items and (part := self._step(reader, items, taken_bytes, max_items, runs)):
            if self._comes_alone(reader, runs):
                if not items:
                    return part
                self._put_back(reader, runs, len(part))
                break
            sizes = list(map(len, part))
            part_each_bytes = uniform_bytes(sizes)
            each_bytes = part_each_bytes if not items or each_bytes == part_each_bytes else MIXED
            taken_bytes += sum(sizes) + self._overhead_bytes * len(part)
            items += part
            if taken_bytes > self._max_bytes and len(items) > 1:
                self._leave_out(reader, runs, items, len(part), taken_bytes)
                break
        return items if each_bytes == MIXED else Alike(items, each_bytes)

    def _leave_out(self, reader: Reader, runs: list[Run], items: list[bytes], most: int, taken_bytes: int) -> None:
        """Release the last items, of the ``most`` of the last step, that make all of them too long. One may stay."""
        kept = len(items)
        while taken_bytes > self._max_bytes and kept > max(len(items) - most, 1):
            kept -= 1
            taken_bytes -= len(items[kept]) + self._overhead_bytes
        self.following = items[kept]
        self._put_back(reader, runs, len(items) - kept)
        del items[kept:]

    def _step(
        self, reader: Reader, items: list[bytes], taken_bytes: int, max_items: int, runs: list[Run]
    ) -> list[bytes]:
        """Hold the next items; return none if none is ready, or if an item behind the first cannot be opened."""
        count = len(items)
        item_bytes = taken_bytes / count if count else _ITEM_BYTES
        most = min(max(int((self._max_bytes - taken_bytes) / item_bytes), 1), max_items - count)
        # Items in memory take no more of it. The others are read in small steps, since they may be of any length.
        part = self._open_queue.around(partial(reader.take_cached, most, runs))
        if part:
            return part
        if not count:
            return self._open_queue.take(reader, 1, 0.0, runs)
        # A take of nothing would look for published files, and raise what is wrong with them.
        ready = self._open_queue.look(partial(len, reader.ready))
        try:
            return self._open_queue.take(reader, min(most, _GROWTH * count, ready), 0.0, runs) if ready else []
        except (*UNOPENED, OSError, ResourceError):  # the items stay ready: the next dequeue raises it
            return []

    def _put_back(self, reader: Reader, runs: list[Run], count: int) -> None:
        """Release the last ``count`` items of the runs."""
        held = Transaction(reader.ready)
        held.runs = runs
        self._open_queue.put_back(held, count)

    def _comes_alone(self, reader: Reader, runs: list[Run]) -> bool:
        """Return whether the last item of the runs was delivered before: a batch ends before such an item."""
        return self._counts and self._open_queue.attempts(reader.ready.number, sum(runs[-1]) - 1) > 0
