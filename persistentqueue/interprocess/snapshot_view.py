"""Looking at a queue from outside: without its lock, whoever owns it, and without a trace.

What a queue holds stands in its log, which only grows until a new one takes its name, and in blocks that are never
edited. So whoever reads both, and looks again where a file was retired meanwhile, sees what was committed. What only
the owner's memory knows is not to be seen: which of the items that are left a session has on hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeAlias

from ..core.block import BlockHeader
from ..core.encryption import Encryption, Envelopes
from ..core.intervals import Intervals, Run, within
from ..engine.segment_use import left_in_segments
from ..errors import CorruptionError, QueueNotFoundError, SubscriptionNotFoundError, naming_paths
from ..recovery.replay import Recovered
from ..storage.layout import queue_directory, sizes_in
from ..storage.locations import CLOSED_DIRECTORY, DATA_DIRECTORY, INBOX_DIRECTORY, LOG_DIRECTORY, Places
from ..storage.lock import LOCK_NAME, Owner, is_held, read_owner
from ..storage.log import log_name
from ..storage.pool import SPARE_NAME, Pool
from ..storage.publication import is_published
from ..storage.segment import segment_name
from ..system.disk import DISK, Disk, StrPath, abspath, join
from ..system.uncopyable import Uncopyable
from .splits import Found, Onlooker, Split, find_behind, plan, read

Damaged: TypeAlias = Callable[[CorruptionError, Sequence[Run]], object]
"""Is told of a block that is damaged, and which sequences that costs."""


class ViewedItem(NamedTuple):
    """An item that nobody has consumed, as ``View`` saw it."""

    sequence: int
    """Its number: the first that was ever enqueued has 0."""
    time_ns: int
    """When its block was written, in nanoseconds since the epoch: at its flush, or when a session, or a producer, wrote
    ahead of that, or when a compaction wrote it anew."""
    data: bytes


class SegmentSnapshot(NamedTuple):
    """A data file, as its queue's log and the directory tell."""

    number: int
    """Its file is ``data/`` and this number, of twelve digits, and ``.seg``."""
    size_bytes: int
    """Bytes of its file; 0 if that is missing."""
    live_bytes: int
    """Bytes of it that live; of a block that is partly consumed, by average."""
    live: int
    """Items of it that live: somebody has still to consume them."""
    left: tuple[tuple[str, int], ...]
    """Who has not consumed all of it, and how many items of it he has left: subscriptions, by their names, and the
    plain queue as ``""``."""
    is_youngest: bool
    """Whether it is the youngest: most likely the one that is written on."""


@dataclass(frozen=True)
class Snapshot:
    """A queue as ``View.look`` saw it from outside, at one moment."""

    directory: str
    """Of the queue."""
    data_path: str
    """What its segments are in ``data`` of."""
    identity: str
    """Which queue this is; see ``PersistentQueue.identity``."""
    time_ns: int
    """When it was looked at, in nanoseconds since the epoch."""
    owner: Owner | None
    """Who has it open, or had it last, as it described itself; None where the lock file does not tell."""
    is_owned: bool | None
    """Whether somebody has it open; None where the system does not tell, as only Linux does. Who is in another
    container may be hidden."""
    is_sealed: bool
    """Whether it was closed cleanly, and nothing was committed since. One that is neither sealed nor owned was left by
    a crash: the next opening recovers."""
    is_synced: bool
    """Whether a flush is durable against a power cut."""
    fan_out: bool
    """Whether it has no consumer but its subscriptions."""
    depth: int
    """Items that are left: those that may be dequeued, and those that a session has on hold, or that were set aside,
    which only the owner can tell apart. With ``fan_out`` those that any subscription has left."""
    overtaken: int
    """Of these the ones behind which something was consumed already. They are on hold, or were when that was."""
    gaps: int
    """In how many places what is left is torn by what was consumed."""
    enqueued: int
    """Items enqueued since the queue was made."""
    dequeued: int
    """Items that nobody needs any more, since the queue was made."""
    runs: tuple[Run, ...]
    """``(first, count)``: the sequences that are left, in their order."""
    oldest_ns: int | None
    """When the block of the first of them was written; None where nothing is left, or it cannot be read."""
    subscriptions: tuple[tuple[str, int], ...]
    """The subscriptions, the oldest first, and how many items each has left."""
    markers: Mapping[str, int]
    """What each marker has reached."""
    in_doubt: str
    """The name of the queue that knows whether the last transaction, over both, is committed; "" if nothing is."""
    segments: tuple[SegmentSnapshot, ...]
    """The data files, the oldest first."""
    live_bytes: int
    """Bytes of the blocks that hold what is left."""
    data_bytes: int
    """Bytes of the data files."""
    log_bytes: int
    """Bytes of the transaction log that are used."""
    log_capacity_bytes: int
    """Bytes of the transaction log's file."""
    spare_bytes: int
    """Bytes of the spare file that the next generation of the log will be written to."""
    generation: int
    """Of the log: how often it was trimmed."""
    transactions: int
    """Transactions in the log behind its checkpoint."""
    torn_bytes: int
    """Bytes of an unfinished group at its end: it is being written just now, or was when the owner ended."""
    published: int
    """Transactions of other processes that wait in the inbox for the owner; ``depth`` has not counted their items."""
    inbox_bytes: int
    """Bytes of the files in the inbox."""
    pool_files: int
    """Empty files in the queue's own pool."""
    pool_bytes: int
    """Bytes of these."""
    disk_bytes: int
    """Bytes of all files of the queue but its lock, and a shared pool."""

    def consumed_since(self, before: Snapshot) -> list[Run]:
        """The sequences that were left ``before``, and are no more."""
        left = Intervals(self.runs)
        gone = []
        for first, count in before.runs:
            at, end = first, first + count
            for start, length in left.between(first, end):
                if at < start:
                    gone.append((at, start - at))
                at = start + length
            if at < end:
                gone.append((at, end - at))
        return gone


class _Closed(Envelopes):
    """Leaves what is compressed or encrypted as it is: for who wants to know when it was written."""

    def open(self, body: bytes, header: BlockHeader, offset: int, file: str) -> list[bytes]:  # noqa: ARG002
        """As many items as there are, all of them empty."""
        return [b""] * header.count


_CLOSED = _Closed()


class View(Uncopyable):
    """A look at a queue that anybody may own: another process, this one, or nobody.

    It takes no lock, waits for nobody, and is noticed by nobody. Nothing on the disk is changed: no lock file is made,
    nothing recovered, adopted, swept or synced. Whatever is seen was committed by its owner, in the order of the queue;
    of an owner with ``sync=False``, or one who is about to sync, a power cut may still take the latest of it. Each
    byte of an item was checked like the owner does, and it is the item with that sequence or none: what is consumed
    while it is being read is left out, what is compacted, or moved, is read where it is then.

    Items of an encrypted queue are seen with its ``encryption`` only, everything else without. It needs no ``close``,
    and keeps nothing open between two calls. For one thread at a time. Where nothing has changed a look costs a few
    calls of the system, and one for each file; else the log is read, of a few MiB at most.

    All methods raise ``QueueNotFoundError`` (also where it was deleted, and perhaps made anew, since the first look),
    ``InvalidNameError``, ``DataMissingError``, ``UnsupportedFormatError``, ``CorruptionError``,
    ``UnusablePathError``, and ``OSError``.
    """

    _elsewhere = "pass its path, and make another View there"

    def __init__(
        self, path: StrPath, name: str | None = None, *, encryption: Encryption | None = None, disk: Disk = DISK
    ) -> None:
        self._disk = disk
        self._directory = abspath(queue_directory(path, name))
        self._onlooker = Onlooker(disk, self._directory)
        self.envelopes = Envelopes(None, encryption)
        """How it opens what is compressed or encrypted."""
        self._identity: str | None = None
        self._oldest: tuple[int, int] | None = None
        """The sequence of the oldest item, and its time: it is read once."""

    def __repr__(self) -> str:
        return f"View({self._directory!r})"

    def look(self) -> Snapshot:
        """What there is to see of the queue at this moment."""
        places, recovered = self._look()
        disk, state, replay = self._disk, recovered.state, recovered.replay
        plain = state.subscriptions.get(0)
        cursor = plain if plain is not None else state.gone
        runs = tuple(cursor.unconsumed(0, state.next_sequence))
        depth = sum(count for _, count in runs)
        tail = runs[-1][1] if runs and sum(runs[-1]) == state.next_sequence else 0
        segments = tuple(_segments(disk, places, recovered))
        lock, sizes = join(self._directory, LOCK_NAME), {part: sizes_in(disk, part) for part in places.parts()}
        inbox = sizes[places.path(INBOX_DIRECTORY)] | sizes_in(disk, places.path(CLOSED_DIRECTORY))
        pooled = Pool(disk, places.pool_directory(False), 0).files()
        return Snapshot(
            directory=self._directory,
            data_path=places.data_root,
            identity=recovered.identity,
            time_ns=disk.time_ns(),
            owner=read_owner(disk, lock),
            is_owned=is_held(disk, lock),
            is_sealed=replay.sealed,
            is_synced=replay.synced,
            fan_out=plain is None,
            depth=depth,
            overtaken=depth - tail,
            gaps=len(runs) if runs and not tail else max(len(runs) - 1, 0),
            enqueued=state.next_sequence,
            dequeued=state.gone_count,
            runs=runs,
            oldest_ns=self._find_oldest(runs),
            subscriptions=tuple(
                (each.name, state.next_sequence - each.count)
                for number, each in sorted(state.subscriptions.items())
                if number
            ),
            markers=dict(state.markers),
            in_doubt=recovered.prepared.prepare.coordinator if recovered.prepared is not None else "",
            segments=segments,
            live_bytes=state.live_bytes,
            data_bytes=sum(segment.size_bytes for segment in segments),
            log_bytes=replay.end,
            log_capacity_bytes=sizes[join(self._directory, LOG_DIRECTORY)].get(log_name(replay.header.number), 0),
            spare_bytes=sizes[places.spare_directory].get(SPARE_NAME, 0),
            generation=replay.header.number,
            transactions=recovered.transactions,
            torn_bytes=replay.torn_bytes,
            published=sum(map(is_published, inbox)),
            inbox_bytes=sum(inbox.values()),
            pool_files=len(pooled),
            pool_bytes=sum(each.size_bytes for each in pooled),
            disk_bytes=sum(sum(part.values()) for part in sizes.values()),
        )

    def browse(self, subscription: str = "", damaged: Damaged | None = None) -> Iterator[ViewedItem]:
        """Iterate over what is left to the subscription, or to the plain queue, on hold or not, in order; with
        ``fan_out`` and no subscription over what any has left.

        Reads as it goes, one block at a time, so that a queue larger than memory can be browsed. What is enqueued
        behind the call is not seen; what is consumed meanwhile may be or not; what is left throughout is seen once.
        Raises ``SubscriptionNotFoundError``, and what ends it: ``CorruptionError`` for a block that is damaged,
        ``WrongKeyError`` and ``MissingExtraError`` for one that cannot be opened. With ``damaged`` that is told of
        each damaged block instead, and of the items that it costs, ``(first, count)``; what lies behind comes out.
        """
        state = self._look()[1].state
        number = state.number_of(subscription) if subscription else 0
        if number is None:
            names = [each.name for other, each in state.subscriptions.items() if other]
            raise SubscriptionNotFoundError(subscription, names)
        cursor = state.subscriptions.get(number, state.gone)
        return self._browse(cursor.unconsumed(state.gone.frontier, state.next_sequence), damaged)

    def peek(self, n: int = 1, subscription: str = "") -> list[ViewedItem]:
        """The first ``n`` items that ``browse`` iterates over, or as many as there are."""
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}")
        return list(islice(self.browse(subscription), n))

    def times_of(self, sequences: Iterable[int]) -> dict[int, int]:
        """When the blocks of these items were written, in nanoseconds since the epoch; without those that are consumed,
        or cannot be read. Reads a block for each of them.
        """
        times: dict[int, int] = {}
        left = sorted(set(sequences))
        while left:
            try:
                for found in self._read([(sequence, 1) for sequence in left], True, _CLOSED):
                    times[found.first] = found.time_ns
                break
            except (CorruptionError, OSError):  # of the first that was not read, or one behind it
                left = [sequence for sequence in left if sequence > max(times, default=-1)][1:]
        return times

    def _look(self) -> tuple[Places, Recovered]:
        with naming_paths(self._directory):
            places, recovered = self._onlooker.look()
        if self._identity is None:
            self._identity = recovered.identity
        elif self._identity not in {recovered.identity, ""}:
            raise QueueNotFoundError(f"{self._directory}: the queue that was here is gone, this is another: look anew")
        return places, recovered

    def _browse(self, runs: list[Run], damaged: Damaged | None) -> Iterator[ViewedItem]:
        """The items of these runs that are not consumed."""
        for found in self._read(runs, False, self.envelopes, damaged):
            for sequence, data in enumerate(found.items, found.first):
                yield ViewedItem(sequence, found.time_ns, data)

    def _read(
        self, runs: list[Run], apart: bool, envelopes: Envelopes, damaged: Damaged | None = None
    ) -> Iterator[Found]:
        """What is not consumed of these runs; where they stand ``apart``, what is between is not read."""
        failed: Split | None = None
        while runs:
            splits = plan(self._disk, *self._look(), runs)
            if apart:
                splits = [split._replace(runs=(run,)) for split in splits for run in split.runs]
            runs = []
            for at, split in enumerate(splits):
                end = split.runs[0][0]
                try:
                    for found in read(self._disk, self._directory, split, relocations=0, envelopes=envelopes):
                        yield found
                        end = found.first + len(found.items)
                except CorruptionError as error:
                    # Unless its items are somewhere else by now, or nowhere, it is damage.
                    rest = _rest(split, end)
                    if failed is not None and rest[:3] == failed[:3] and rest.runs == failed.runs:
                        if damaged is None:
                            raise
                        behind = find_behind(self._disk, rest, envelopes)
                        damaged(error, within(rest.runs, 0, behind))
                        failed, rest = None, _rest(rest, behind)
                    else:
                        failed = rest
                    runs = [run for each in (rest, *splits[at + 1 :]) for run in each.runs]
                    break

    def _find_oldest(self, runs: tuple[Run, ...]) -> int | None:
        if not runs:
            return None
        first = runs[0][0]
        if self._oldest is None or self._oldest[0] != first:
            self._oldest = None
            with suppress(CorruptionError, OSError):
                for found in self._read([(first, 1)], True, _CLOSED):
                    self._oldest = first, found.time_ns
        return self._oldest[1] if self._oldest is not None else None


def _rest(split: Split, end: int) -> Split:
    """What of it comes from this sequence on."""
    return split._replace(runs=within(split.runs, end, sum(split.runs[-1])))


def _segments(disk: Disk, places: Places, recovered: Recovered) -> Iterator[SegmentSnapshot]:
    state = recovered.state
    left = {cursor.name: left_in_segments(state, cursor) for _, cursor in sorted(state.subscriptions.items())}
    youngest = max(state.segments, default=0)
    for number, info in sorted(state.segments.items()):
        # One that was published, and adopted, gets its usual name in the end.
        paths = (recovered.path(places, number), places.path(join(DATA_DIRECTORY, segment_name(number))))
        who = tuple((name, counts[number]) for name, counts in left.items() if counts[number])
        yield SegmentSnapshot(number, _size_bytes(disk, paths), info.live_bytes, info.live, who, number == youngest)


def _size_bytes(disk: Disk, paths: Iterable[str]) -> int:
    """Of the file at the first of these paths where there is one; 0 where there is none."""
    for path in paths:
        with suppress(FileNotFoundError):
            return disk.lstat(path).st_size
    return 0
