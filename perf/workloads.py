"""The workloads: the operations of each contender, their number, and the bars that the queue must reach.

All sizes are those of one round. The items are random bytes, identical in each run.

Three workloads are persist-queue's own loops: ``single`` in (its "write"), ``single`` in and then out (its "many
task_done"), and ``loop-one`` (its "1 task_done").
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from .contenders import (
    BARE,
    OURS,
    OURS_APART,
    OURS_COMPAT,
    OURS_COMPAT_UNSYNCED,
    OURS_MANY,
    OURS_UNSYNCED,
    SQLITE,
    SQLITE_APART,
    SQLITE_NORMAL,
    Contender,
)
from .contenders.peers import (
    LITEQUEUE,
    LMDB,
    PERSIST_QUEUE,
    PERSIST_QUEUE_ACK,
    PERSIST_QUEUE_AUTOSAVE,
    PYTHON_PEERS,
    QUEUELIB,
    SERVERS,
    UNSYNCED_PEERS,
)

_SEED = 20081114
ITEM_BYTES = 100
BATCH = 1_000
_ONE_THREAD = "ours, one thread"


class Entry(NamedTuple):
    """A contender in a workload: its number of threads, and the part of the flushes that it does if it is too slow."""

    contender: Contender
    threads: int = 1
    part: float = 1.0


class Workload(NamedTuple):
    """``flushes`` of ``batch`` items of ``item_bytes`` each, put and then taken.

    With ``take_batch``, each flush takes that number of items instead of ``batch``. With ``in_turn``, each flush is
    taken right after it was put. ``ahead`` flushes are put before the timing begins, so that a take reads items that
    were put long ago. With ``restarts``, the contender is opened for the puts and again for the takes, and the opening
    is timed as well.

    The queue is the first of ``entries``. ``bars`` maps ``in``, ``out`` and ``in and out`` to the least ratio of the
    queue's rate to the rate of each named entry.
    """

    name: str
    what: str
    flushes: int
    entries: Mapping[str, Entry]
    bars: Mapping[str, Mapping[str, float]]
    batch: int = 1
    item_bytes: int = 100
    take_batch: int = 0
    in_turn: bool = False
    ahead: int = 0
    restarts: bool = False

    @property
    def ways(self) -> tuple[str, ...]:
        """The directions that are reported separately."""
        if self.in_turn:
            return ("in and out",)
        return ("in", "out", "in and out") if "in and out" in self.bars else ("in", "out")

    def items(self) -> list[bytes]:
        """Return the items of one flush."""
        some = random_items(min(self.batch, BATCH), self.item_bytes)
        return (some * (self.batch // len(some) + 1))[: self.batch]

    def scaled(self, scale: float) -> Workload:
        """Return this workload with fewer flushes, but at least one for each thread.

        A batch shrinks as well if ``scale`` leaves less than one flush.
        """
        most_threads = max(entry.threads for entry in self.entries.values())
        batch = max(min(self.batch, round(self.batch * scale * self.flushes)), 1)
        return self._replace(
            batch=batch,
            take_batch=self.take_batch and max(round(self.take_batch * scale), 1),
            flushes=max(round(self.flushes * scale), most_threads, 2 if self.flushes > 1 else 1),
            ahead=round(self.ahead * scale),
        )


def random_items(count: int, item_bytes: int) -> list[bytes]:
    """Return random items, identical at each call with these arguments."""
    source = random.Random(_SEED)
    return [source.randbytes(item_bytes) for _ in range(count)]


ITEMS = random_items(BATCH, ITEM_BYTES)


def _named(*contenders: Contender, part: float = 1.0) -> dict[str, Entry]:
    return {contender.name: Entry(contender, part=part) for contender in contenders}


_EACH = {
    **_named(OURS, BARE, SQLITE, LMDB),
    **_named(*PYTHON_PEERS, part=0.25),
    **_named(*SERVERS),
}
_BATCHES = {**_named(OURS_MANY, BARE, SQLITE, LMDB), **_named(SERVERS[0])}
_SOME = {**_named(OURS_UNSYNCED, SQLITE_NORMAL), **_named(*UNSYNCED_PEERS, part=0.25)}
_AHEAD = {peer.name: 1.0 for peer in (*PYTHON_PEERS, *SERVERS)}


def _threads(count: int) -> dict[str, Entry]:
    """Return entries with ``count`` threads each, and the queue with one thread."""
    return {**_several(count), _ONE_THREAD: Entry(OURS)}


def _several(count: int) -> dict[str, Entry]:
    entries = {each.name: Entry(each, count) for each in (OURS, BARE)}
    # A thread that waits for SQLite's lock sleeps and asks again: with more threads it waits longer.
    return {**entries, SQLITE.name: Entry(SQLITE, count, part=min(2 / count, 1.0))}


WORKLOADS = (
    Workload(
        "single",
        "One item of 100 B per flush",
        1_000,
        _EACH,
        {
            "in": {BARE.name: 0.85, SQLITE.name: 1.1, LMDB.name: 1.5, **_AHEAD},
            "out": {BARE.name: 0.85, SQLITE.name: 1.0, LMDB.name: 1.5, **_AHEAD},
        },
    ),
    Workload(
        "threads-8",
        "One item of 100 B per flush, 8 threads",
        2_000,
        _threads(8),
        {way: {_ONE_THREAD: 3.0, SQLITE.name: 4.0} for way in ("in", "out")},
    ),
    Workload(
        "threads-32",
        "One item of 100 B per flush, 32 threads",
        4_000,
        _threads(32),
        {way: {_ONE_THREAD: 5.0} for way in ("in", "out")},
    ),
    Workload(
        "batch",
        "1,000 items of 100 B per flush",
        200,
        _BATCHES,
        {"in": {BARE.name: 0.55, SQLITE.name: 3.0, LMDB.name: 2.0}, "out": {SQLITE.name: 3.0, LMDB.name: 1.5}},
        batch=1_000,
    ),
    Workload(
        "large-batch",
        "10,000 items of 100 B per flush",
        100,
        _BATCHES,
        {"in": {BARE.name: 0.6, SQLITE.name: 3.0}, "out": {SQLITE.name: 3.0}},
        batch=10_000,
    ),
    Workload(
        "plain",
        "1,000 items of 100 B per flush, a call for each item",
        100,
        {**_named(OURS, SQLITE), **_named(QUEUELIB)},
        {way: {SQLITE.name: 1.3, QUEUELIB.name: 2.0} for way in ("in", "out")},
        batch=1_000,
    ),
    Workload(
        "unsynced",
        "One item of 100 B per flush, sync=False",
        2_000,
        _SOME,
        {way: {SQLITE_NORMAL.name: 1.0} for way in ("in", "out")},
    ),
    Workload(
        "seed",
        "1,000,000 items of 16 B, 1,000 per flush, restarted between in and out",
        1_000,
        {**_named(OURS_MANY, SQLITE), **_named(PERSIST_QUEUE, LITEQUEUE, part=0.002)},
        {"in and out": {SQLITE.name: 2.5, PERSIST_QUEUE.name: 5.0, LITEQUEUE.name: 5.0}},
        batch=1_000,
        item_bytes=16,
        restarts=True,
    ),
    Workload(
        "seed-once",
        "1,000,000 items of 16 B in one flush",
        1,
        _named(OURS_MANY, BARE, SQLITE),
        {"in": {}, "out": {}},
        batch=1_000_000,
        item_bytes=16,
    ),
    Workload(
        "behind",
        "One item of 100 B per flush, taken right after it was put",
        1_000,
        _named(OURS, BARE, SQLITE, LMDB, *SERVERS),
        {"in and out": {SQLITE.name: 1.0}},
        in_turn=True,
    ),
    Workload(
        "far",
        "100 items of 1,000 B per flush, taken 200 MB later",
        200,
        _named(OURS_MANY, SQLITE, LMDB),
        {way: {SQLITE.name: 1.0} for way in ("in", "out")},
        batch=100,
        item_bytes=1_000,
        ahead=2_000,
    ),
    Workload(
        "several",
        "One item of 100 B per flush, 8 threads with a named queue each",
        2_000,
        {each.name: Entry(each, 8) for each in (OURS_APART, BARE, SQLITE_APART)},
        {way: {SQLITE.name: 1.0} for way in ("in", "out")},
    ),
    Workload(
        "compat",
        "queue.Queue's calls: one item of 100 B put, got, done",
        1_000,
        _named(OURS_COMPAT, OURS_COMPAT_UNSYNCED, PERSIST_QUEUE_ACK, PERSIST_QUEUE_AUTOSAVE),
        {"in and out": {PERSIST_QUEUE_ACK.name: 1.0, PERSIST_QUEUE_AUTOSAVE.name: 1.0}},
        in_turn=True,
    ),
    Workload(
        "loop-one",
        "persist-queue's loop: 1,000 put, 1,000 got, one acknowledgement",
        1_000,
        {**_named(OURS, SQLITE), **_named(*PYTHON_PEERS), **_named(*UNSYNCED_PEERS, QUEUELIB)},
        {"in and out": {}},
        item_bytes=8,
        take_batch=1_000,
    ),
)
"""The workloads in the tables of README.md. The measurements that are not flushes are modules of ``studies``."""


def _by_batch(batch: int) -> Workload:
    what = f"{batch:,} items of 100 B per flush" if batch > 1 else "One item of 100 B per flush"
    flushes = max(300 // max(batch // 1_000, 1), 20)
    return Workload(f"by-batch-{batch}", what, flushes, _named(OURS_MANY, BARE, SQLITE, LMDB), _NO_BARS, batch=batch)


def _by_size(size: int) -> Workload:
    what, entries = f"One item of {size:,} B per flush", _named(OURS, BARE, SQLITE, LMDB)
    return Workload(f"by-size-{size}", what, max(300_000 // max(size, 1_000), 50), entries, _NO_BARS, item_bytes=size)


def _by_threads(count: int) -> Workload:
    what = f"One item of 100 B per flush, {count} thread{'s' * (count > 1)}"
    return Workload(f"by-threads-{count}", what, 960, _several(count), _NO_BARS)


_NO_BARS: Mapping[str, Mapping[str, float]] = {"in": {}, "out": {}}

SWEEPS = {
    "by-batch": [_by_batch(batch) for batch in (1, 10, 100, 1_000, 10_000)],
    "by-size": [_by_size(size) for size in (16, 256, 4_096, 65_536, 1_048_576)],
    "by-threads": [_by_threads(count) for count in (1, 2, 4, 8, 16, 32)],
}
"""The workloads of the charts of README.md: one workload for each value of a parameter."""
