"""A view of a queue from outside: without its lock, whether it is owned or not, and without a trace.

The log and the segments hold the content of a queue. A log only grows until a new generation replaces it, and blocks
are never edited. So a reader of both sees what was committed, if it looks again when a file was retired meanwhile.
Only the owner's memory knows which of the remaining items a session holds: a view cannot show this. If the owner
serves, the view can ask it what the sessions of other processes hold.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..core.encryption import Encryption, Envelopes
from ..core.intervals import Cursor, Intervals, Run, count_of, within
from ..core.items import checked_count, checked_text, checked_timeout
from ..engine.segment_use import left_in_segments
from ..errors import CorruptionError, QueueNotFoundError, SubscriptionNotFoundError
from ..measuring.metrics import Sample, decode_samples, up_to
from ..pickling import Uncopyable
from ..recovery.replay import Recovered
from ..storage.layout import queue_directory, sizes_in
from ..storage.locations import CLOSED_DIRECTORY, DATA_DIRECTORY, INBOX_DIRECTORY, LOG_DIRECTORY, Places
from ..storage.lock import LOCK_NAME, Owner, is_held, read_note, read_owner
from ..storage.log import log_name
from ..storage.pool import SPARE_NAME, Pool
from ..storage.publication import is_published
from ..storage.segment import FoundBlock, segment_name
from ..system.disk import Disk, StrPath, abspath, basename, current_disk, join
from ..system.path_errors import faults, naming_paths, suppress
from ..system.progress import Progress, watched
from .splits import Found, Onlooker, Split, find_behind, is_same, items_of, plan, read_here, rest_of

if TYPE_CHECKING:
    from ..serving.connections import Connection

Damaged: TypeAlias = Callable[[CorruptionError, Sequence[Run]], object]
"""A callable that receives the error of a damaged block, and the sequences that are lost with it."""


class ViewedItem(NamedTuple):
    """An item that is not consumed, as ``View`` saw it."""

    sequence: int
    """Sequence of the item. The first item that was ever enqueued has 0."""
    time_ns: int
    """Time at which its block was written, in nanoseconds since the epoch. This is the time of the flush, of an earlier
    spill of a session or producer, or of a compaction."""
    data: bytes
    """Bytes of the item, decrypted and decompressed."""


class SegmentSnapshot(NamedTuple):
    """A segment, as the log and the directory of its queue describe it."""

    number: int
    """Number of the segment. The file is ``data/<number>.seg``, with the number in twelve digits."""
    size_bytes: int
    """Bytes of the file; 0 if the file is missing."""
    live_bytes: int
    """Bytes that its live items take. For a block that is partly consumed, this is computed from the average item."""
    live: int
    """Number of its live items: at least one subscription has not consumed them."""
    left: tuple[tuple[str, int], ...]
    """Subscriptions that have items of this segment left, with the number of these items. The plain queue has the name
    ``""``."""
    is_youngest: bool
    """Whether it is the youngest segment. Most likely the queue still writes to this one."""


@dataclass(frozen=True)
class Snapshot:
    """A queue as ``View.look`` saw it from outside, at one moment."""

    directory: str
    """Directory of the queue."""
    data_path: str
    """Directory that contains the ``data`` directory of the segments."""
    identity: str
    """Identity of the queue; see ``PersistentQueue.identity``."""
    time_ns: int
    """Time of the look, in nanoseconds since the epoch."""
    owner: Owner | None
    """Process that has the queue open, or had it open last, as it described itself. None if the lock file does not
    tell."""
    is_owned: bool | None
    """Whether a process has the queue open. None if that is not known: only Linux shows locks, and hides those of other
    containers. If it shows none, and ``owner`` has another host name than this process, the owner may be alive there.
    An owner in another container with the same host name is taken for none."""
    is_sealed: bool
    """Whether the queue was closed cleanly, and nothing was committed since. A queue that is neither sealed nor owned
    was left by a crash: the next opening recovers it."""
    is_synced: bool
    """Whether a flush survives a power cut."""
    fan_out: bool
    """Whether only named subscriptions consume the queue."""
    depth: int
    """Number of items that are left: the ready ones, and the ones that are on hold or set aside. Only the owner can
    tell these apart. With ``fan_out``, the items that any subscription has left."""
    overtaken: int
    """Number of items among them behind which an item was already consumed. They are on hold, or were on hold at that
    time."""
    gaps: int
    """Number of consumed runs behind the first item that is left."""
    enqueued: int
    """Number of items enqueued since the queue was made."""
    dequeued: int
    """Number of items that every subscription has consumed, since the queue was made."""
    runs: tuple[Run, ...]
    """Sequences that are left, in their order, as ``(first, count)``."""
    oldest_ns: int | None
    """Time at which the block of the first item that is left was written, in nanoseconds since the epoch. None if no
    item is left, or if the header of the block cannot be read."""
    subscriptions: tuple[tuple[str, int], ...]
    """Named subscriptions, the oldest first, each with the number of items that it has left."""
    markers: Mapping[str, int]
    """Version that each marker has reached."""
    in_doubt: str
    """Name of the coordinator if the last transaction covers several queues, and the coordinator does not tell that it
    is committed. Else empty.

    The snapshot is without that transaction: it is being committed, was cut short before it was committed, or its
    coordinator is missing or cannot be read."""
    segments: tuple[SegmentSnapshot, ...]
    """Segments, the oldest first."""
    live_bytes: int
    """Bytes that the live items take in their blocks."""
    data_bytes: int
    """Bytes of the segment files."""
    log_bytes: int
    """Bytes of the log that are used."""
    log_capacity_bytes: int
    """Bytes of the file of the log."""
    spare_bytes: int
    """Bytes of the spare, to which the next generation of the log is written."""
    generation: int
    """Generation of the log: the first one is 1, and each trim adds one."""
    transactions: int
    """Number of transactions in the log behind its checkpoint."""
    torn_bytes: int
    """Bytes of an unfinished group at the end of the log. The owner is writing this group, or was writing it when it
    ended."""
    published: int
    """Number of transactions that other processes have published and that wait in the inbox. ``depth`` does not include
    their items."""
    inbox_bytes: int
    """Bytes of the files in the inbox."""
    pool_files: int
    """Number of empty files in the queue's own pool."""
    pool_bytes: int
    """Bytes of the empty files in the queue's own pool."""
    disk_bytes: int
    """Bytes of all files of the queue, without its lock and a shared pool."""

    def consumed_since(self, before: Snapshot) -> list[Run]:
        """Return the sequences that were left in an earlier snapshot and are not left in this one.

        Args:
            before: An earlier snapshot of this queue.

        Returns:
            The sequences, in their order, as ``(first, count)``.

        A snapshot never changes. Any number of threads may use it.
        """
        left = Intervals(self.runs)
        return [run for first, count in before.runs for run in left.missing(first, first + count)]


_STEP_RUNS, _STEP_GROWTH = 64, 8
"""Runs that are planned at once in the first step of a browse, and how many times as many in each next one."""
_LOOKS = 3
"""Most looks of which a consumer takes the first item, and the owner then deletes its file, before its age is known."""


class View(Uncopyable):
    """A view of a queue that may be owned by another process, by this one, or by none.

    A view takes no lock, waits for no process, and is noticed by none; only ``connections`` asks the owner. It changes
    nothing on the disk: it makes no lock file, and recovers, adopts, sweeps and syncs nothing. It needs no ``close``,
    and keeps no file open between two calls.

    The view shows what the owner has committed, in the order of the queue. A power cut may still take the latest of
    it, if the owner has ``sync=False``, or if it is about to sync.

    If the last transaction covers several queues, its outcome may stand only in the log of its coordinator, the queue
    whose name sorts first. The view then reads that log. If it cannot be read, the view is without the transaction,
    and ``Snapshot.in_doubt`` names the coordinator.

    Each byte of an item is checked in the way that the owner does it. An item has the right sequence, or it is not
    returned. An item that is consumed while it is being read is left out. An item that is compacted or moved is read
    in its new place.

    If nothing has changed, a look costs a few system calls, and one for each file. Otherwise it also reads what was
    appended to the log since the last look. The first look, and one behind a trim, read the log, a few MiB at most.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None, the default, means the queue that lies in ``path`` itself.
        encryption: The key of the queue. It is needed only for the items of an encrypted queue. Default: None.

    Raises:
        InvalidNameError: The name cannot be a queue's.
        TypeError: ``path``, ``name`` or ``encryption`` has the wrong type.
        MissingExtraError: A package that the encryption needs is not installed.
        WrongKeyError: The encryption has no key.

    Each method that looks at the queue may raise:

    - ``QueueNotFoundError``: there is no queue at the path, or it was deleted since the first look, even if it was
      made again;
    - ``DataMissingError``: the location of the segments is not there;
    - ``DataPathError``: the directory is the location of another queue's segments;
    - ``UnsupportedFormatError``: a newer version has written the queue;
    - ``CorruptionError``: the log, or a file that names the locations, is damaged;
    - ``MemoryShortageError``: the log, or a block, takes more memory than this process may have;
    - ``UnusablePathError``: the operating system refuses the path;
    - ``OSError``: a file cannot be read for another reason.

    A view is for one thread at a time. It cannot be copied or pickled. Example::

        view = View("queues", "orders")
        print(view.look().depth, [item.data for item in view.peek(3)])
    """

    _elsewhere = "pass its path, and make another View there"

    def __init__(self, path: StrPath, name: str | None = None, *, encryption: Encryption | None = None) -> None:
        self._begin(current_disk(), abspath(queue_directory(path, name)), Envelopes(None, encryption))

    def _begin(self, disk: Disk, directory: str, envelopes: Envelopes) -> None:
        self._disk = disk
        self._directory = directory
        self._onlooker = Onlooker(disk, directory, asks=True)
        self._envelopes = envelopes
        """Opens the blocks that are compressed or encrypted."""
        self._identity: str | None = None
        self._oldest: tuple[tuple[int, int], int | None] = (0, 0), None
        """Sequence and time of the oldest item, which is read once while a look continues the one before it."""

    def __repr__(self) -> str:
        return f"View({self._directory!r})"

    @naming_paths()
    def look(self) -> Snapshot:
        """Return what the queue holds at this moment.

        Returns:
            The snapshot.

        Raises:
            PersistentQueueError: One of the errors that the class lists.
            OSError: A file cannot be read.

        A power cut may still take the latest of what it shows. A view is for one thread at a time.
        """
        for _ in range(_LOOKS):
            snapshot = self._snapshot()
            if snapshot.oldest_ns is not None or not snapshot.depth:
                break
        return snapshot

    def _snapshot(self) -> Snapshot:
        """Return what ``look`` returns, maybe without the time of an item that was consumed meanwhile."""
        places, recovered = self._look()
        disk, state, replay = self._disk, recovered.state, recovered.replay
        plain = state.subscriptions.get(0)
        cursor = plain if plain is not None else state.gone
        runs = tuple(cursor.unconsumed(0, state.next_sequence))
        depth = count_of(runs)
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
            oldest_ns=self._find_oldest(places, recovered, runs),
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

    def browse(
        self, subscription: str = "", damaged: Damaged | None = None, *, first: int = 0, progress: Progress = None
    ) -> Iterator[ViewedItem]:
        """Iterate over the items that a subscription, or the plain queue, has left, on hold or not, in order.

        The iterator reads one block at a time, so a queue that is larger than memory can be browsed. Items that are
        enqueued after the call are not seen. Items that are consumed meanwhile may be seen or not. Items that are left
        throughout are seen once.

        Args:
            subscription: The name of the subscription. The default ``""`` means the plain queue; with ``fan_out``, the
                items that any subscription has left.
            damaged: Receives the error of each damaged block, and the sequences that it costs, as ``(first, count)``.
                The iteration then goes on behind the block. With None, the default, the error is raised.
            first: The sequence to begin with, at least 0. Items before it are not read. Default: 0.
            progress: How to report the number of items that were returned (see ``Progress``). Default None: not at all.
                If the callable raises, the iteration ends.

        Yields:
            The items, as ``ViewedItem``.

        Raises:
            SubscriptionNotFoundError: The queue has no subscription of this name. Raised by the call itself.
            TypeError: ``subscription`` is no text, ``first`` is no whole number, or ``progress`` has another type than
                ``Progress``. Raised by the call itself.
            ValueError: ``first`` is negative. Raised by the call itself.
            CorruptionError: A block is damaged, and ``damaged`` is None. Also raised for a damaged log.
            WrongKeyError: A block is encrypted, and its key was not given or is another one.
            MissingExtraError: A package that a block, or ``progress=True``, needs is not installed.
            PersistentQueueError: One of the other errors that the class lists.
            OSError: A file cannot be read.

        A view is for one thread at a time.
        """
        begin = checked_count("first", first)
        state = self._look()[1].state
        number = state.number_of(checked_text("a subscription's name", subscription)) if subscription else 0
        if number is None:
            names = [each.name for other, each in state.subscriptions.items() if other]
            raise SubscriptionNotFoundError(self._directory, subscription, names)
        cursor = state.subscriptions.get(number, state.gone)
        at, end = max(begin, state.gone.frontier), state.next_sequence
        blocks = _named(self._in_steps(cursor, at, end, damaged), self._directory)
        title = f"browse {basename(self._directory)}"
        return _items(watched(blocks, progress, title, lambda: cursor.live_between(at, end), attrgetter("items")))

    def peek(self, n: int = 1, subscription: str = "") -> list[ViewedItem]:
        """Return the first ``n`` items that ``browse`` iterates over, or fewer if there are fewer.

        Args:
            n: The maximum number of items, at least 0. Default: 1.
            subscription: The name of the subscription. The default ``""`` means the plain queue.

        Returns:
            The items, in their order.

        Raises:
            TypeError, ValueError: ``n`` is no whole number, or negative.
            SubscriptionNotFoundError: The queue has no subscription of this name.
            CorruptionError: A block is damaged. Also raised for a damaged log.
            WrongKeyError: A block is encrypted, and its key was not given or is another one.
            MissingExtraError: A package that a block needs is not installed.
            PersistentQueueError: One of the other errors that the class lists.
            OSError: A file cannot be read.

        A view is for one thread at a time.
        """
        return list(islice(self.browse(subscription), checked_count("n", n)))

    def history(self) -> tuple[Sample, ...]:
        """Return samples of the queue's past, and of this moment.

        The owner takes the samples while it commits: by seconds for the last minute, by minutes for the last hour, and
        by hours for two days. It publishes them in the lock file, without a sync. A later owner continues them.

        Returns:
            The samples, the oldest first. The last one is of this moment.

        Raises:
            PersistentQueueError: One of the errors that the class lists.
            OSError: A file cannot be read.

        A power cut may take the samples. A view is for one thread at a time.
        """
        state = self._look()[1].state
        present = Sample(self._disk.time_ns(), state.next_sequence, state.gone_count, state.live_bytes)
        return up_to(present, decode_samples(read_note(self._disk, join(self._directory, LOCK_NAME))))

    def connections(self, timeout: float = 1.0) -> list[Connection] | None:
        """Ask the owner which other processes are connected, and what they hold.

        Only the owner knows it. So this is the only method that another process notices, and that waits for one.

        Args:
            timeout: The longest wait for an answer, in seconds, more than 0. Default: 1.0.

        Returns:
            The connections, as ``PersistentQueue.connections`` returns them in the owner. None if no owner serves the
            queue to this process, or if it does not answer in time.

        Raises:
            TypeError: ``timeout`` is no number.
            ValueError: ``timeout`` is not more than 0.

        Nothing becomes durable by this call. A view is for one thread at a time.
        """
        from .questions import ask  # noqa: PLC0415  late: other views need no sockets

        seconds = checked_timeout(timeout)
        if not seconds:
            raise ValueError(f"timeout must be more than 0, got {timeout}")
        found: list[Connection] | None = ask(self._disk, self._directory, "connections", seconds)
        return found

    def times_of(self, sequences: Iterable[int]) -> dict[int, int]:
        """Return the times at which the blocks of these items were written.

        Args:
            sequences: The sequences of the items, at least 0, in any order.

        Returns:
            The time of each item by its sequence, in nanoseconds since the epoch. Items that are consumed, or the
            headers of whose blocks cannot be read, are left out.

        Raises:
            TypeError, ValueError: A sequence is no whole number, or negative.
            PersistentQueueError: One of the errors that the class lists, unless it is a ``CorruptionError`` or an
                ``OSError``.

        The call reads the header of one block for each item, and needs no key. A view is for one thread at a time.
        """
        times: dict[int, int] = {}
        left = sorted({checked_count("a sequence", each) for each in sequences})
        while left:
            try:
                for found in self._read([(sequence, 1) for sequence in left], only_times=True):
                    times[found.first] = found.time_ns
                break
            except faults(CorruptionError, OSError):  # concerns the first item that was not read, or a later one
                left = [sequence for sequence in left if sequence > max(times, default=-1)][1:]
        return times

    def _look(self) -> tuple[Places, Recovered]:
        with naming_paths(self._directory):
            places, recovered = self._onlooker.look()
        if self._identity is None:
            self._identity = recovered.identity
        elif self._identity not in {recovered.identity, ""}:
            raise QueueNotFoundError(
                f"{self._directory}: the queue that this View looked at is gone, and another one is here: make a new "
                "View"
            )
        return places, recovered

    def _in_steps(self, cursor: Cursor, at: int, end: int, damaged: Damaged | None) -> Iterator[Found]:
        """Yield what the cursor has not consumed of the sequences ``at … end - 1``.

        Each step plans more runs than the one before it. So the first items come at once, however many gaps there are,
        and the blocks before a step are skipped only a few times.
        """

        def tell(tells: Damaged, error: CorruptionError, runs: Sequence[Run], behind: int) -> None:
            """Tell of a damaged block with all that it costs, also in the next step, which begins behind it."""
            nonlocal at
            lost = [*runs, *cursor.unconsumed(at, min(behind, end))]
            at = max(at, behind)
            tells(error, lost)

        step, tells = _STEP_RUNS, partial(tell, damaged) if damaged is not None else None
        while runs := list(islice(cursor.unconsumed_from(at, end), step)):
            at, step = sum(runs[-1]), step * _STEP_GROWTH
            yield from self._read(runs, tells)

    def _read(
        self,
        runs: list[Run],
        damaged: Callable[[CorruptionError, Sequence[Run], int], object] | None = None,
        only_times: bool = False,
        seen: tuple[Places, Recovered] | None = None,
    ) -> Generator[Found, None, None]:
        """Yield what is not consumed of these runs.

        With ``only_times``, no items are yielded: only the headers of their blocks are read, and nothing between the
        runs. With the result of a look that has ``seen`` them, items that were consumed since are yielded, too, unless
        their file is gone.
        """
        take: Callable[[FoundBlock], list[bytes]] = (lambda _: []) if only_times else items_of
        failed: Split | None = None
        while runs:
            splits, seen = plan(self._disk, *(seen or self._look()), runs), None
            if only_times:
                splits = [split._replace(runs=(run,)) for split in splits for run in split.runs]
            runs = []
            for at, split in enumerate(splits):
                end = split.runs[0][0]
                try:
                    for first, count, time_ns, start, items in read_here(self._disk, split, self._envelopes, take):
                        yield Found(first, time_ns, items[start : start + count])
                        end = first + count
                except CorruptionError as error:
                    # The first error may mean that the items were moved or consumed: plan again. If the new plan has
                    # the old split, the block is damaged.
                    rest = rest_of(split, end)
                    if failed is not None and is_same(rest, failed):
                        if damaged is None:
                            raise
                        behind = find_behind(self._disk, rest, self._envelopes)
                        damaged(error, within(rest.runs, 0, behind), behind)
                        failed, rest = None, rest_of(rest, behind)
                    else:
                        failed = rest
                    runs = [run for each in (rest, *splits[at + 1 :]) for run in each.runs]
                    break

    def _find_oldest(self, places: Places, recovered: Recovered, runs: tuple[Run, ...]) -> int | None:
        if not runs:
            return None
        which = runs[0][0], self._onlooker.beginnings
        if self._oldest[0] != which or self._oldest[1] is None:
            self._oldest = which, None
            with suppress(CorruptionError, OSError):
                # A busy consumer takes the first item during almost each look: a new plan would not have it.
                for found in self._read([(which[0], 1)], only_times=True, seen=(places, recovered)):
                    self._oldest = which, found.time_ns
        return self._oldest[1]


def _named(blocks: Iterator[Found], directory: str) -> Generator[Found, None, None]:
    """Yield the blocks, with ``UnusablePathError`` for a path of the queue that the operating system refuses."""
    with naming_paths(directory):
        yield from blocks


def _items(blocks: Iterator[Found]) -> Iterator[ViewedItem]:
    for found in blocks:
        for sequence, data in enumerate(found.items, found.first):
            yield ViewedItem(sequence, found.time_ns, data)


def view_of(disk: Disk, directory: str, envelopes: Envelopes) -> View:
    """Return a view for the owner of the queue in this directory, with the disk and the keys of the owner."""
    view = View.__new__(View)
    view._begin(disk, directory, envelopes)
    return view


def _segments(disk: Disk, places: Places, recovered: Recovered) -> Iterator[SegmentSnapshot]:
    state = recovered.state
    left = {cursor.name: left_in_segments(state, cursor) for _, cursor in sorted(state.subscriptions.items())}
    youngest = max(state.segments, default=0)
    for number, info in sorted(state.segments.items()):
        # An adopted file may still have its name in the inbox, and gets its usual name meanwhile.
        paths = (recovered.path(places, number), places.path(join(DATA_DIRECTORY, segment_name(number))))
        who = tuple((name, counts[number]) for name, counts in left.items() if counts[number])
        yield SegmentSnapshot(number, _size_bytes(disk, paths), info.live_bytes, info.live, who, number == youngest)


def _size_bytes(disk: Disk, paths: Iterable[str]) -> int:
    """Return the size of the first of these files that exists; 0 if none does."""
    for path in paths:
        with suppress(FileNotFoundError):
            return disk.lstat(path).st_size
    return 0
