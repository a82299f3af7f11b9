"""The facts about an open queue: settings, items, subscriptions, the reason for each segment, statistics.

They are for reading only: ``open_queue`` and ``space`` change the queue.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import itemgetter

from ..core.delivery_counts import Attempts
from ..core.encryption import Encryption
from ..core.intervals import Run
from ..core.state import State
from ..drawing.charts import SegmentShare, tiles, windows
from ..drawing.text import aligned, bound_text, many, share_text, size_text, span_text
from ..engine.context import Settings
from ..engine.reader import Reader
from ..engine.segment_use import Hold, SegmentUse, explain
from ..engine.store import RecoveryReport
from ..errors import CorruptionError, MemoryShortageError, MissingExtraError, WrongKeyError
from ..interrupts.call_guard import outermost
from ..measuring.metrics import (
    Counts,
    Histogram,
    History,
    Meters,
    Sample,
    decode_samples,
    encode_samples,
    seconds_since,
    up_to,
)
from ..storage.layout import sizes_in
from ..storage.locations import DATA_DIRECTORY
from ..storage.pool import SPARE_NAME, Empty
from ..storage.publication import is_published
from ..storage.segment import segment_name
from ..system.disk import Disk, basename
from ..system.path_errors import unless_lacking
from ..system.progress import Progress, watched
from .space import SpaceKeeper

_TILES = 120
"""Most tiles of the map of segments in a notebook."""
_GROUPS = {
    "Items": "ready held delayed damaged oldest_seconds enqueued dequeued given_back rejected dead undecodable",
    "Waiting": "sessions connections connections_waiting held_seconds fill waiting refused published adopted broken "
    "damage_found",
    "Disk": "disk_bytes live_bytes data_bytes segments pool_bytes pool_files pool_taken log_bytes log_capacity_bytes "
    "spare_bytes generation compacted_segments copied_bytes",
    "Memory": "memory_bytes cached_bytes cached pages flowed page_hits page_reads",
    "Work": "groups group_size transactions syncs enqueued_bytes",
}
"""Fields of ``Stats`` in the groups of its table, without histograms and pictures."""
_TIMES = ("flush_seconds", "commit_seconds", "read_seconds")


def _value_text(name: str, value: float | Histogram) -> str:
    """Return the value of a field as people read it."""
    if isinstance(value, Histogram):
        return f"{value.mean:.3g} on average" if value.count else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes"):
        return size_text(int(value))
    if name.endswith("_seconds"):
        return span_text(value) if value else "0 s"
    return share_text(value) if name == "fill" else f"{value:,}"


@dataclass(frozen=True, repr=False)
class Stats:
    """Counts and measurements of a queue at one moment; ``PersistentQueue.stats`` returns them.

    A number "since the queue was made" survives closing. A number "since the queue was opened" begins at 0 with each
    opening. Sizes are in bytes, and times are in seconds.

    The difference of two histograms describes the time between two moments::

        before = queue.stats()
        ...
        print((queue.stats().flush_seconds - before.flush_seconds).quantile(0.99))

    ``print`` shows all values as a table. A notebook also shows the map of segments, the times of the flushes, and the
    items left over time. The object never changes, so any thread may use it. It is not durable.
    """

    ready: int
    """Items that can be dequeued now by sessions without a subscription. In a queue with ``fan_out``: items that any
    subscription has not consumed, held ones included."""
    held: int
    """Items that sessions without a subscription have dequeued and not flushed; 0 in a queue with ``fan_out``."""
    damaged: int
    """Items that were set aside since the queue was opened, because their block could not be read: for sessions without
    a subscription. 0 in a queue with ``fan_out``."""
    enqueued: int
    """Items enqueued since the queue was made."""
    dequeued: int
    """Items consumed since the queue was made. If there are subscriptions: items that all of them have consumed."""
    live_bytes: int
    """Bytes of the blocks that hold ready, held and damaged items. A partly consumed block counts in proportion, by the
    average size of its items."""
    disk_bytes: int
    """Bytes of all files of the queue but its lock. This is the sum of ``data_bytes``, ``log_capacity_bytes``,
    ``spare_bytes`` and, unless the pool is shared, ``pool_bytes``. It also includes files that were set aside and files
    that are about to be deleted."""
    segments: int
    """Segments that are in use."""
    data_bytes: int
    """Bytes of the segments that are in use, with those that the log does not mention yet."""
    pool_files: int
    """Empty files in the pool."""
    pool_bytes: int
    """Bytes of the files in the pool."""
    pool_taken: int
    """Segments that were made of files of the pool since the queue was opened."""
    log_bytes: int
    """Bytes of the log that are used."""
    log_capacity_bytes: int
    """Bytes of the file of the log."""
    spare_bytes: int
    """Bytes of the spare file, which becomes the next generation of the log."""
    generation: int
    """Number of times that the log was trimmed since the queue was made."""
    memory_bytes: int
    """Highest number of bytes that the items in memory may take: the setting of the queue, or its present share of a
    memory budget."""
    cached_bytes: int
    """Bytes that the items in memory take, at most ``memory_bytes``."""
    cached: int
    """Ready items that are in memory."""
    flowed: bool
    """True if part of the ready items is on disk only. Dequeueing reads them back without any action of the caller."""
    pages: int
    """Pages in memory."""
    page_hits: int
    """Pages that a dequeue found in memory, since the queue was opened. A page counts each time."""
    page_reads: int
    """Pages that were read from a file since the queue was opened, to dequeue or to browse."""
    groups: int
    """Groups of transactions committed since the queue was opened. Each group is one write of the log."""
    transactions: int
    """Transactions committed, or skipped because of their marker, since the queue was opened. Flushes with
    ``wait=False`` that were merged count as one."""
    syncs: int
    """Syncs of files and directories since the queue was opened. A durable write counts as one."""
    fill: float
    """How near the queue is to the nearest of ``max_items``, ``max_bytes`` and ``max_disk_bytes``: 1.0 at the limit,
    0.0 without any limit. For ``max_disk_bytes`` the space reserved for the growth of the log counts as used."""
    published: int
    """Transactions that other processes have published and that are not adopted yet."""
    waiting: int
    """Flushes that wait for room."""
    refused: int
    """Flushes that were refused because of a limit, since the queue was opened."""
    broken: bool
    """True if a sync or a write of the log has failed: no call succeeds until the queue is opened again."""
    damage_found: int
    """Number of damaged places found since the queue was opened: unreadable blocks and headers, and published files
    that were set aside."""
    given_back: int
    """Items that were released since the queue was opened, because their session was rolled back or ended."""
    sessions: int
    """Sessions that are open."""
    held_seconds: float
    """Seconds for which a session has held items, or kept spilled items; the longest such time of all sessions."""
    adopted: int
    """Transactions of other processes that were adopted since the queue was opened."""
    compacted_segments: int
    """Segments that were emptied by compactions since the queue was opened."""
    copied_bytes: int
    """Bytes of blocks that compactions have written since the queue was opened."""
    enqueued_bytes: int
    """Bytes of the blocks that were enqueued since the queue was opened."""
    flush_seconds: Histogram
    """Seconds that each committed flush took for its caller, since the queue was opened. Waiting for room, for other
    flushes and for the disk is included. In a queue that counts delivery attempts, each write of an attempt counts as a
    flush. Flushes with ``wait=False`` that were merged count as one, from the beginning of their commit."""
    commit_seconds: Histogram
    """Seconds that writing each group took since the queue was opened, syncs included. The writer holds the write lock
    meanwhile."""
    read_seconds: Histogram
    """Seconds that each dequeue took that had to read a file, one page or more, since the queue was opened."""
    stall_seconds: Mapping[str, Histogram]
    """Seconds that flushes spent with other things than the durable write of their own frame, by cause, since the queue
    was opened. ``trim``: the next generation of the log. ``spare``: a step that makes its spare longer. ``segment``: a
    new segment. ``sync``: syncs of segments. ``writer``: another writer, such as a compaction. ``room``: room below a
    limit, with ``full="block"``."""
    group_size: Histogram
    """Transactions in each group, since the queue was opened: how many transactions shared a sync."""
    delayed: int
    """Items that were released and are not due yet, without a subscription."""
    rejected: int
    """Items that sessions have rejected and flushed, since the queue was opened."""
    dead: int
    """Items that were moved to the dead letters since the queue was opened."""
    undecodable: int
    """Number of times that the codec refused a dequeued item, since the queue was opened (see ``CodecError``)."""
    oldest_seconds: float
    """Seconds since the oldest ready item was enqueued; 0.0 if none is ready. The value is read from ``history``: a
    value below a minute is exact to a second, one below an hour to a minute, and a higher one to an hour. An item from
    before the history counts from its first sample. ``View.look`` reads the time of its block instead."""
    history: tuple[Sample, ...]
    """Samples of the past, the oldest first, and of this moment. A busy queue has them by seconds for the last minute,
    by minutes for the last hour, and by hours for two days."""
    shares: tuple[SegmentShare, ...]
    """Sizes of the segments, the oldest first."""
    connections: int = 0
    """Sessions of other processes that are connected; 0 if the queue does not serve. ``sessions`` includes them."""
    connections_waiting: int = 0
    """Sessions of other processes that wait for an item."""

    def __repr__(self) -> str:
        lines = []
        for group, rows in self._groups():
            lines += [group, *aligned(rows)]
        lines.append("Times")
        for name, (count, *bounds) in self._times():
            lines.append(f"  {name:<18} {count:>12}  half within {bounds[0]}, 99 % {bounds[1]}, all {bounds[2]}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the table and the pictures for a notebook."""
        # Only a notebook needs these modules.
        from ..drawing.svg import columns, depth_chart, notebook, rate_chart, segment_map, table  # noqa: PLC0415

        flushes = self.flush_seconds
        bounds = [bound_text(bound, flushes.bounds[-1]) for bound in (*flushes.bounds, inf)]
        titles = [
            f"{many(count, 'flush', 'flushes')} up to {bound}"
            for count, bound in zip(flushes.counts, bounds, strict=True)
        ]
        times = ([f"<code>{name}</code>", *texts] for name, texts in self._times())
        parts = [
            f"<b>{many(self.ready, 'ready item')}, {self.held:,} on hold, {size_text(self.disk_bytes)} on disk</b>",
            segment_map(tiles(self.shares, _TILES)),
        ]
        for curve in windows(self.history)[-1:]:
            parts += [depth_chart(curve), rate_chart(curve)]
        if flushes.count:
            label = f"Times of {many(flushes.count, 'flush', 'flushes')}, {bounds[0]} to {bounds[-1]}"
            parts.append(f'<figure><figcaption class="small">{label}</figcaption>')
            parts.append(f"{columns(flushes.counts, titles, label)}</figure>")
        parts.append(table(["", "count", "half within", "99 % within", "all within"], times))
        parts.append('<div class="columns">')
        for group, rows in self._groups():
            parts.append(table([group, ""], [[f"<code>{name}</code>", text] for name, text in rows]))
        return notebook([*parts, "</div>"])

    def _groups(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Yield the groups of the table, with the names and values of their fields."""
        for group, names in _GROUPS.items():
            yield group, [(name, _value_text(name, getattr(self, name))) for name in names.split()]

    def _times(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the name of each histogram of times, the number of times, and the bounds of half, 99 % and all of them.

        Causes of stalls that have not occurred are left out.
        """
        for name in _TIMES:
            yield name, _times_of(getattr(self, name))
        for cause, histogram in self.stall_seconds.items():
            if histogram.count:
                yield f"stall: {cause}", _times_of(histogram)


def _times_of(histogram: Histogram) -> list[str]:
    if not histogram.count:
        return ["0", "-", "-", "-"]
    bounds = (bound_text(histogram.quantile(part), histogram.bounds[-1]) for part in (0.5, 0.99, 1))
    return [f"{histogram.count:,}", *bounds]


class InspectedQueue(SpaceKeeper):
    """The part of an open queue that tells about it, and counts what happens to it. For any number of threads."""

    is_usable: bool
    """True if the queue is open and not broken."""

    @abstractmethod
    def check_usable(self) -> None:
        """Raise ``ClosedError`` or ``BrokenQueueError`` if the queue cannot be used."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = self.transactions = 0
        """Numbers of groups, and of transactions that were committed or skipped."""
        self.counts = Counts()
        self.meters = Meters()
        self._history = History()

    @property
    def settings(self) -> Settings:
        """Settings that the queue was opened with."""
        return self._store.settings

    @property
    def blocks(self) -> bool:
        """True if a transaction that finds no room waits for it."""
        return self._store.settings.full == "block"

    @property
    def encrypts(self) -> bool:
        """True if new blocks are encrypted."""
        return self._store.segments.envelopes.most_bytes > 0

    @property
    def recovery(self) -> RecoveryReport:
        """Findings of the opening."""
        return self._store.recovery

    @property
    def data_root(self) -> str:
        """Directory that has the segments in its ``data``."""
        return self._store.places.data_root

    @property
    def identity(self) -> bytes:
        """Identity of the queue."""
        return self._store.state.identity

    @property
    def plain(self) -> Reader | None:
        """Reader of the plain queue; None if the queue has only named subscriptions."""
        return self._store.subscriptions.plain

    def need_plain(self) -> Reader:
        """Return the reader of the plain queue. Raises ``SubscriptionNotFoundError`` if the queue has only named
        subscriptions."""
        return self._store.reader

    def reader_named(self, name: str) -> Reader:
        """Return the reader of this subscription. Raises ``SubscriptionNotFoundError``."""
        return self.look(lambda: self._store.subscriptions.find(name))

    def sizes_of(self, reader: Reader) -> tuple[int, int]:
        """Return the number of items of this reader that no session holds, and of those that are not consumed.

        Delayed items are in both numbers, and items that were set aside in none.
        """
        ready = reader.ready

        def sizes() -> tuple[int, int]:
            """Count them."""
            if ready.is_closed:
                return 0, 0
            state = self._store.state
            unconsumed = state.next_sequence - state.subscriptions[ready.number].count - len(ready.damaged)
            return len(ready) + len(ready.delayed), unconsumed

        return self.look(sizes)

    def check_key(self, encryption: Encryption | None) -> None:
        """Raise ``WrongKeyError`` if the first or the last remaining block names this key id, but was encrypted with
        another key.

        Two keys under one id would make new items unreadable later. During a rotation only the last block has the new
        key.
        """
        if encryption is None:
            return
        for sequence in (0, self.look(self._store.state.last_remaining)):
            try:
                with suppress(CorruptionError, MissingExtraError):  # the dequeue of this block raises it
                    next(self.of_all().browse(sequence=sequence), None)
            except WrongKeyError as error:
                if error.key_id == encryption.key_id:
                    raise

    def has_item(self, reader: Reader) -> bool:
        """Return whether a dequeue of this reader would return an item, or raise an error."""
        with self.mutex:
            return bool(len(reader.ready)) or self.has_news(reader)

    def has_news(self, reader: Reader) -> bool:
        """Return whether a dequeue of this reader would raise an error. The mutex is held."""
        return reader.ready.is_closed or not self.is_usable or bool(self._store.inbox.damage)

    @property
    def disk(self) -> Disk:
        """The disk that reaches the files of the queue through the directories that are held. For any thread."""
        return self._store.disk

    def watched(self) -> AbstractContextManager[int]:
        """Open the directory into which other processes publish, and close it again. Raises ``OSError``."""
        return self._store.inbox.watched()

    def need_name(self) -> None:
        """Raise ``QueueNotFoundError`` if the directory has another name than it was opened by."""
        self._store.need_name()

    def of_all(self) -> Reader:
        """Return a reader of all items that at least one subscription has not consumed, only for browsing."""
        return self.look(self._store.subscriptions.of_all)

    def browse(self, reader: Reader, progress: Progress = None) -> Iterator[tuple[int, list[bytes]]]:
        """Iterate over the ready items of this reader, in order, without holding them. Each list comes with the
        sequence of its first item."""

        def count() -> int:
            """Return the number of items that are ready now."""
            return self.look(reader.ready.__len__)

        return watched(self._browse(reader), progress, f"browse {basename(self.directory)}", count, itemgetter(1))

    def _browse(self, reader: Reader) -> Generator[tuple[int, list[bytes]], None, None]:
        batches = reader.browse(self.shielded)
        while True:
            self.check_usable()
            batch = self._next(batches)
            if batch is None:
                return
            yield batch

    @outermost
    def _next(self, batches: Iterator[tuple[int, list[bytes]]]) -> tuple[int, list[bytes]] | None:
        try:
            return next(batches, None)
        except (CorruptionError, MemoryShortageError):
            self._room_waiters.tell()
            raise

    def has_only(self, reader: Reader) -> bool:
        """Return whether this is the reader of the only consumer. For any thread, without the mutex."""
        return self._store.subscriptions.has_only(reader)

    def subscription_names(self) -> list[str]:
        """Return the names of the subscriptions, the oldest first."""
        return self.look(self._store.subscriptions.names)

    def marker(self, name: str) -> int | None:
        """Return the version that the marker has reached; None if it was never set."""
        return self.look(lambda: self._store.state.markers.get(name))

    def attempts(self, subscription: int, sequence: int) -> int:
        """Return the number of delivery attempts of this sequence."""
        return self.look(lambda: self._store.state.times(subscription, sequence))

    def attempts_in(self, subscription: int, runs: Iterable[Run]) -> list[tuple[int, int, int]]:
        """Return the runs in parts with equal numbers of delivery attempts: the first sequence, the count, and that
        number."""

        def parts() -> list[tuple[int, int, int]]:
            """Look up the parts."""
            times = self._store.state.attempts.get(subscription, Attempts()).times
            return [(first, count, many or 0) for run in runs for first, count, many in times.pieces(*run)]

        return self.look(parts)

    @outermost
    def count_undecodable(self) -> None:
        """Count an item that its codec refuses."""
        with self.mutex:
            self.counts.undecodable += 1

    def count_refused(self, flushes: int) -> None:
        """Add to the number of flushes that were refused because of a limit."""
        with self.mutex:
            self.counts.refused += flushes

    @outermost
    def count_failed(self, rejected: int, dead: int) -> None:
        """Add to the numbers of rejected items, and of items that were moved to the dead letters."""
        with self.mutex:
            self.counts.rejected += rejected
            self.counts.dead += dead

    def recall(self) -> None:
        """Take over the samples that the last owner has published, and take one of this moment."""
        self._history = History(up_to(self._present(), decode_samples(self._store.lock.note)))

    def sample(self) -> None:
        """Take a sample, and publish all samples for readers outside of this process. Does nothing if the queue has not
        changed since the last sample, and if it is broken: then its state is unknown. The caller keeps the files open,
        and no other thread takes a sample meanwhile."""
        with self.mutex:
            is_new = self._store.broken is None and self._history.add(self._present())
            samples = self._history.samples() if is_new else ()
        if is_new:
            self._store.lock.publish(encode_samples(samples))

    def _present(self) -> Sample:
        """Return a sample of this moment. The mutex is held, or the queue is not open yet."""
        store, state = self._store, self._store.state
        return Sample(store.disk.time_ns(), state.next_sequence, state.gone_count, state.live_bytes)

    def explain(self, holds: Callable[[], Sequence[Hold]]) -> list[SegmentUse]:
        """Return why each segment is there. ``holds`` returns what the sessions keep, and is called with the mutex
        held."""
        store = self._store

        def uses() -> Callable[[], list[SegmentUse]]:
            """Look at the segments, and at what the sessions keep of them."""
            if store.subscriptions.plain is not None:
                store.subscriptions.plain.ready.recall()  # no thread takes an item between the two looks
            current, pinned = store.segments.current, store.segments.pinned
            number = current.number if current is not None else None
            unlogged = [created.number for created in store.segments.unlogged]
            return explain(store.state, store.subscriptions, number, pinned, holds(), unlogged)

        found = self.look(uses)()  # without the mutex: it takes a second if there are many gaps
        return [use._replace(size_bytes=max(store.segments.file_bytes(use.number), 0)) for use in found]

    def _sizes(self) -> tuple[list[Empty], dict[str, dict[str, int]]]:
        """Return the files of the pool, and the sizes of the files in each directory. Raises ``ResourceError``."""
        store = self._store
        with unless_lacking(store.directory, "to look into its directories", "then ask again"):
            return store.pool.files(), {part: sizes_in(store.disk, part) for part in store.places.parts()}

    def stats(self, held_seconds: Callable[[], Sequence[float]]) -> Stats:
        """Return the statistics of the queue at this moment. Reads its directories.

        ``held_seconds`` returns for each open session the seconds for which it has kept anything. It is called with the
        mutex held. Raises ``ResourceError`` if the system lacks something to read the directories.
        """
        store = self._store
        pooled, sizes = self._sizes()
        data = sizes[store.places.path(DATA_DIRECTORY)]

        def gather() -> Callable[[], Stats]:
            """Look at the counts, and at the sessions. Return what counts the items in memory, without the mutex."""
            numbers = {*store.state.segments, *(created.number for created in store.segments.unlogged)}
            reader = store.subscriptions.plain or store.subscriptions.of_all()
            log_bytes, log_capacity_bytes = store.generations.log_bytes
            counts, meters, seconds, connected = self.counts, self.meters, held_seconds(), self.counts.connected()
            history = up_to(self._present(), self._history.samples())
            ready, in_memory = len(reader.ready), reader.in_memory()
            stats = partial(
                Stats,
                ready=ready,
                held=reader.ready.held,
                damaged=len(reader.ready.damaged),
                enqueued=store.state.next_sequence,
                dequeued=store.state.gone_count,
                live_bytes=store.state.live_bytes,
                disk_bytes=sum(sum(part.values()) for part in sizes.values()),
                segments=len(store.state.segments),
                data_bytes=sum(data.get(segment_name(number), 0) for number in numbers),
                pool_files=len(pooled),
                pool_bytes=sum(each.size_bytes for each in pooled),
                pool_taken=store.pool.taken,
                log_bytes=log_bytes,
                log_capacity_bytes=log_capacity_bytes,
                spare_bytes=sizes[store.places.spare_directory].get(SPARE_NAME, 0),
                generation=store.generations.number,
                memory_bytes=store.pages.memory_bytes,
                cached_bytes=store.pages.cost_bytes,
                pages=len(store.pages),
                page_hits=store.subscriptions.page_hits,
                page_reads=store.subscriptions.page_reads,
                groups=self.groups,
                transactions=self.transactions,
                syncs=store.syncs,
                fill=store.limits.fill,
                published=sum(map(is_published, sizes[store.inbox.directory])),
                waiting=len(self._room_waiters.taken) + connected[2],
                refused=counts.refused,
                broken=store.broken is not None,
                damage_found=len(store.segments.damage) + store.inbox.set_aside,
                given_back=counts.given_back,
                sessions=len(seconds),
                held_seconds=max(seconds, default=0.0),
                adopted=store.adopter.adopted,
                compacted_segments=store.compactor.compacted,
                copied_bytes=store.compactor.copied_bytes,
                enqueued_bytes=store.committer.enqueued_bytes,
                flush_seconds=meters.flush_seconds.histogram(),
                commit_seconds=meters.commit_seconds.histogram(),
                read_seconds=meters.read_seconds.histogram(),
                stall_seconds={cause: meter.histogram() for cause, meter in meters.stall_seconds.items()},
                group_size=meters.group_size.histogram(),
                delayed=len(reader.ready.delayed),
                rejected=counts.rejected,
                dead=counts.dead,
                undecodable=counts.undecodable,
                oldest_seconds=seconds_since(history, reader.ready.front()) if reader.ready else 0.0,
                history=history,
                shares=tuple(_shares(store.state, data)),
                connections=connected[0],
                connections_waiting=connected[1],
            )
            return lambda: stats(cached=(cached := in_memory()), flowed=cached < ready)

        return self.look(gather)()


def _shares(state: State, sizes: Mapping[str, int]) -> Iterator[SegmentShare]:
    """Yield the sizes of the segments, the oldest first. The mutex is held."""
    youngest = max(state.segments, default=0)
    for number, info in sorted(state.segments.items()):
        yield SegmentShare(number, sizes.get(segment_name(number), 0), info.live_bytes, info.live, number == youngest)
