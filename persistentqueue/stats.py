"""The class ``Stats``, which ``PersistentQueue.stats`` returns: counts and measurements of a queue at one moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from .errors import unless_lacking
from .runtime.metrics import Histogram
from .runtime.open_queue import OpenQueue
from .storage.layout import sizes_in
from .storage.locations import DATA_DIRECTORY
from .storage.pool import SPARE_NAME
from .storage.publication import is_published
from .storage.segment import segment_name


@dataclass(frozen=True)
class Stats:
    """Counts and measurements of a queue at one moment; ``PersistentQueue.stats`` returns them.

    A number "since the queue was made" survives closing. A number "since the queue was opened" begins at 0 with each
    opening. Sizes are in bytes, and times are in seconds.

    The difference of two histograms describes the time between two moments::

        before = queue.stats()
        ...
        print((queue.stats().flush_seconds - before.flush_seconds).quantile(0.99))

    The object never changes, so any thread may use it. It is not durable.
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
    """Transactions committed, or skipped because of their marker, since the queue was opened."""
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
    flush."""
    commit_seconds: Histogram
    """Seconds that writing each group took since the queue was opened, syncs included. The writer holds the write lock
    meanwhile."""
    read_seconds: Histogram
    """Seconds that each dequeue took that had to read a file, one page or more, since the queue was opened."""
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


class Holding(Protocol):
    """The part of a session that statistics need."""

    @property
    def closed(self) -> bool:
        """True if the session is closed."""

    @property
    def keeps_since(self) -> float | None:
        """Time at which the session began to keep anything, by ``OpenQueue.now``; None if it keeps nothing."""


def look(group: OpenQueue, sessions: Iterable[Holding]) -> Stats:
    """Return the statistics of the queue at this moment. Reads its directories. Raises ``ResourceError`` if the system
    lacks something for that."""
    store = group.store
    disk = store.disk
    with unless_lacking(store.directory, "to look into its directories", "then ask again"):
        pooled = store.pool.files()
        sizes = {part: sizes_in(disk, part) for part in store.places.parts()}
    data = sizes[store.places.path(DATA_DIRECTORY)]

    def gather() -> Stats:
        unlogged = [created.number for created in store.segments.unlogged]
        numbers = {*store.state.segments, *unlogged}
        reader = store.subscriptions.plain or store.subscriptions.of_all()
        ready, cached = len(reader.ready), reader.in_memory()
        log_bytes, log_capacity_bytes = store.generations.log_bytes
        open_sessions = [session for session in sessions if not session.closed]
        now, meters = group.now(), group.meters
        since = min((each.keeps_since or now for each in open_sessions), default=now)
        return Stats(
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
            cached=cached,
            flowed=cached < ready,
            pages=len(store.pages),
            page_hits=store.subscriptions.page_hits,
            page_reads=store.subscriptions.page_reads,
            groups=group.groups,
            transactions=group.transactions,
            syncs=store.syncs,
            fill=store.limits.fill,
            published=sum(map(is_published, sizes[store.adopter.directory])),
            waiting=group.waiting_for_room,
            refused=group.refused,
            broken=store.broken is not None,
            damage_found=len(store.segments.damage) + store.adopter.set_aside,
            given_back=group.given_back,
            sessions=len(open_sessions),
            held_seconds=max(now - since, 0.0),
            adopted=store.inbox.adopted,
            compacted_segments=store.compactor.compacted,
            copied_bytes=store.compactor.copied_bytes,
            enqueued_bytes=store.committer.enqueued_bytes,
            flush_seconds=meters.flush_seconds.histogram(),
            commit_seconds=meters.commit_seconds.histogram(),
            read_seconds=meters.read_seconds.histogram(),
            group_size=meters.group_size.histogram(),
            delayed=len(reader.ready.delayed),
            rejected=group.rejected,
            dead=group.dead,
            undecodable=group.undecodable,
        )

    return group.look(gather)
