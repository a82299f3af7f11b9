"""What ``PersistentQueue.stats`` tells of a queue at one moment."""

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
    """A queue at one moment; see ``PersistentQueue.stats``."""

    ready: int
    """Items that may be dequeued now, without a subscription; in a queue with ``fan_out`` those that any may need."""
    held: int
    """Items that sessions have dequeued and not flushed."""
    damaged: int
    """Items that were set aside since the queue was opened, because their block could not be read."""
    enqueued: int
    """Items enqueued since the queue was made."""
    dequeued: int
    """Items dequeued, and flushed, since the queue was made: by all subscriptions, where there are any."""
    live_bytes: int
    """Bytes of the blocks that hold ready, held and damaged items; of a block that is partly consumed, by average."""
    disk_bytes: int
    """Bytes of all files of the queue but its lock: ``data_bytes``, ``log_capacity_bytes``, ``spare_bytes`` and, unless
    the pool is shared, ``pool_bytes``; beside these only what was moved aside, and what is about to be deleted."""
    segments: int
    """Data files that are in use."""
    data_bytes: int
    """Bytes of the data files that are in use, also of those that no transaction has told of yet."""
    pool_files: int
    """Empty files in the pool."""
    pool_bytes: int
    """Bytes of the files in the pool."""
    pool_taken: int
    """Segments that were made of files of the pool since the queue was opened."""
    log_bytes: int
    """Bytes of the transaction log that are used."""
    log_capacity_bytes: int
    """Bytes of the transaction log's file."""
    spare_bytes: int
    """Bytes of the spare file that the next generation of the log will be written to."""
    generation: int
    """Of the log: how often it was trimmed since the queue was made."""
    memory_bytes: int
    """What the items in memory may take: the queue's own bound, or its share of a budget at this moment."""
    cached_bytes: int
    """What the items in memory take; at most ``memory_bytes``."""
    cached: int
    """Ready items that are in memory."""
    flowed: bool
    """Whether the queue has flowed to disk: part of what is ready is not in memory. It comes back by itself."""
    pages: int
    """Runs of items that are in memory."""
    page_hits: int
    """How often, since the queue was opened, what was dequeued was found in memory, page by page."""
    page_reads: int
    """How often, since the queue was opened, a page was read from a file, to dequeue or to browse."""
    groups: int
    """Groups of transactions committed since the queue was opened, each with one write of the log."""
    transactions: int
    """Transactions committed, or skipped for their marker, since the queue was opened."""
    syncs: int
    """Syncs of files and directories since the queue was opened, a durable write counting as one."""
    fill: float
    """How full the queue is by the nearest of ``max_items``, ``max_bytes`` and ``max_disk_bytes`` (what is kept for the
    log to grow included): 1.0 at the limit, 0.0 where none is set."""
    published: int
    """Transactions that other processes have published, and that wait to be adopted."""
    waiting: int
    """Flushes that wait for room."""
    refused: int
    """Flushes that were refused for a limit since the queue was opened."""
    broken: bool
    """Whether a sync or a write of the log has failed, so that nothing goes until the queue is opened again."""
    damage_found: int
    """Places where damage was found since the queue was opened: blocks and headers that could not be read, and
    publications that were moved aside."""
    given_back: int
    """Items that came back since the queue was opened: sessions that had dequeued them were rolled back, or ended."""
    sessions: int
    """Sessions that are open."""
    held_seconds: float
    """For how long a session has held items, or kept what it wrote ahead of its flush: the longest of them."""
    adopted: int
    """Transactions of other processes that were adopted since the queue was opened."""
    compacted_segments: int
    """Segments that were emptied by compactions since the queue was opened."""
    copied_bytes: int
    """Bytes of blocks that compactions have written since the queue was opened."""
    enqueued_bytes: int
    """Bytes of the blocks that were enqueued since the queue was opened."""
    flush_seconds: Histogram
    """What flushes took since the queue was opened, as their callers saw it: waiting for room, for others and for the
    disk included. Only those that were committed; where deliveries are counted these are flushes as well."""
    commit_seconds: Histogram
    """What writing each group took since the queue was opened, syncs included, with the lock of those who write."""
    read_seconds: Histogram
    """What dequeues took since the queue was opened that had to read from a file, one page or more."""
    group_size: Histogram
    """Transactions in each group, since the queue was opened: how many shared a sync."""
    delayed: int
    """Items that came back and are not due yet; without a subscription."""
    rejected: int
    """Items that sessions have rejected, and flushed, since the queue was opened."""
    dead: int
    """Items that were moved to the dead letters since the queue was opened."""
    undecodable: int
    """How often, since the queue was opened, the codec refused an item that was dequeued (see ``CodecError``)."""


class Holding(Protocol):
    """What is to be known of a session."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    @property
    def keeps_since(self) -> float | None:
        """Since when, by the group's clock, it keeps something; None if it does not."""


def look(group: OpenQueue, sessions: Iterable[Holding]) -> Stats:
    """The queue at this moment. Costs a look into its directories."""
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
