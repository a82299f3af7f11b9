"""Reading: hands out the ready items of a subscription, from the page cache or from the segments.

Threads: everything here is for any thread. ``mutex`` guards the memory and is never held over a read of a file.
``reading`` is held over each read of a file, so that two consumers do not read the same blocks. Without threads, both
may be null contexts.

A consumer that finds no page in memory reads the block of its item. It also reads the blocks behind it, up to what the
page cache may keep. Browsing reads files in the same way, but with read positions of its own. It keeps its current
page itself. The pages that it reads do not displace others from the page cache, except for the page with the item that
is handed out next.

A queue that counts delivery attempts (see ``retries``) uses ``CountedReader`` and ``CountedAvailability``. They hand
out an item that was delivered before alone, so that a bad item does not fail a whole batch. An item whose delay is not
over is not handed out.

The log stores by the wall clock when an item is due, so that this outlives the process. Within a process the monotonic
clock decides, so that a wall clock that was set back delays no item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import heappop, heappush

from ..core.availability import Availability
from ..core.encryption import UNOPENED
from ..core.intervals import Intervals, Run, count_of
from ..core.operations import ExtentRow
from ..core.page_cache import NO_PAGE, Page, Pages
from ..core.state import StateError
from ..errors import ClosedError, CorruptionError, MemoryShortageError
from ..interrupts.signal_shield import Shielded, call_once
from ..storage.segment import NO_BOUND, Ahead, Loaded, Segment
from ..storage.segment_files import Segments
from .context import Context

Cursors = dict[int, tuple[int, int]]
"""Read positions: by segment, the offset and the ordinal of the block where the next read begins."""


class UnreadableError(Exception):
    """Internal error: ``damage`` costs the sequences ``first … end - 1``; none if the file can still be read."""

    def __init__(self, damage: CorruptionError | MemoryShortageError, first: int, end: int) -> None:
        self.damage, self.first, self.end = damage, first, end


class Reader:
    """Reads the ready items of one subscription from the segments, through the page cache."""

    def __init__(self, context: Context, ready: Availability, segments: Segments, pages: Pages) -> None:
        self._state = context.state
        self._mutex = context.guards.mutex
        self._reading = context.guards.reading
        self.ready = ready
        self._segments = segments
        self._pages = pages
        self._cursors: Cursors = {}
        self._hits = 0
        self.page_reads = 0
        """Number of pages that were read from files, for dequeues and for browsing."""

    @property
    def page_hits(self) -> int:
        """Number of lookups that found their page in memory; each item taken from the lane counts as one."""
        return self._hits + self.ready.passed

    def take(
        self, max_items: int, runs: list[Run] | None = None, shielded: Shielded = call_once
    ) -> tuple[list[Run], list[bytes]]:
        """Hold up to ``max_items`` ready items, lowest first; append their runs to ``runs``, return it and the items.

        Files are read in a shielded call. After an interruption, ``runs`` may contain sequences whose items were not
        returned: the caller gives them back with ``Availability.give_back``.

        Raises ``CorruptionError`` for a damaged block, and ``MemoryShortageError`` for a block that is larger than the
        memory: after the items before that block were returned, and once in each opening. Then the items of that block
        are set aside, and nothing more is held. Raises
        ``MissingExtraError`` or ``WrongKeyError`` for a block that cannot be decrypted or decompressed. Then nothing
        more is held, and the items stay ready.
        """
        runs = [] if runs is None else runs
        with self._mutex:
            if runs:
                before, last = len(runs), runs[-1]
                self.ready.hand_out(max_items, runs)
                taken = runs[before:]
                if runs[before - 1] != last:  # the first new run was joined to the last old one
                    end, joined = sum(last), runs[before - 1]
                    taken = [(end, sum(joined) - end), *taken]
            else:
                taken = self.ready.hand_out(max_items, runs).copy()
            items = self._find_all(taken)
        return runs, shielded(partial(self._read_runs, taken, runs)) if items is None else items

    def _find_all(self, taken: list[Run]) -> list[bytes] | None:
        """Return the items of these runs, or None if there are several runs, or if not all items are in memory. The
        caller holds the mutex, and many runs would take long."""
        if len(taken) != 1:
            return None if taken else []
        at, count = taken[0]
        latest, end = self._pages.latest, at + count
        page = latest if latest.first <= at < latest.end else self._pages.find(at)
        if page is not None and end <= page.end:  # the usual case: one run, of one page
            self._pages.latest = page
            self._hits += 1
            at -= page.first
            return page.items[at : at + count]
        items: list[bytes] = []
        hits = 0
        while at < end:
            page = self._pages.find(at)
            if page is None:
                return None
            self._pages.latest = page
            part = page.items[at - page.first : end - page.first]
            items += part
            at += len(part)
            hits += 1
        self._hits += hits
        return items

    def fill(self) -> None:
        """Put the first ready items into the lane (see ``availability``), if they are in memory and it is empty."""
        with self._mutex:
            if not self.ready.lane:
                page = self._first_page()
                if page is not None:
                    items = page.items
                    self.ready.lay(items, self.ready.position - page.first, page.cost_bytes // len(items))

    def take_cached(self, max_items: int, runs: list[Run]) -> list[bytes]:
        """Hold up to ``max_items`` ready items, lowest first, stopping at the first that is not in memory.

        Append their runs to ``runs``, and return the items.
        """
        items: list[bytes] = []
        with self._mutex:
            while len(items) < max_items and (page := self._first_page()) is not None:
                at = self.ready.position - page.first
                part = page.items[at : at + max_items - len(items)]
                self.ready.hold(len(part), runs)
                items += part
                self._hits += 1
        return items

    def _first_page(self) -> Page | None:
        """Return the page with the first ready item; None if it is not in memory. The caller holds the mutex.

        Also return None if any ready item was released before, or the subscription was removed.
        """
        self.ready.recall()
        if self.ready.returned.size or self.ready.is_closed:
            return None
        first, page = self.ready.position, self._pages.latest
        if not page.first <= first < page.end:
            found = self._pages.find(first)
            if found is None:
                return None
            self._pages.latest = page = found
        return page

    def browse(self, shielded: Shielded = call_once, sequence: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the ready items from ``sequence`` on, in order, as lists, each with the sequence of its first item.

        Raises the errors of ``take``.
        """
        page: Page | None = None
        cursors: Cursors = {}
        while True:
            with self._mutex:
                run = self.ready.next_run(sequence)
            if run is None:
                return
            first, count = run
            if page is None or not page.first <= first < page.end:
                page = None  # frees its memory before the next one is read
                try:
                    page = shielded(partial(self._page, first, cursors=cursors))
                except StateError:
                    continue  # the item was consumed meanwhile, so that it is not ready any more
                except UnreadableError as unreadable:
                    shielded(partial(self._set_aside, unreadable))
                    raise unreadable.damage from unreadable.damage.__cause__
            at = first - page.first
            items = page.items[at : at + count]
            sequence = first + len(items)
            yield first, items

    def until_due(self, timeout_seconds: float | None) -> float | None:
        """Return the seconds a consumer may wait, up to its timeout (None: for ever). The caller holds the mutex."""
        return timeout_seconds

    def in_memory(self) -> Callable[[], int]:
        """Return a function that counts the ready items that are in memory now. The caller holds the mutex; the
        function does not need it."""
        pages, ready = self._pages.runs(), self.ready.members()
        return lambda: sum(ready.overlap(first, end) for first, end in pages)

    def forget(self, number: int) -> None:
        """Drop the read position in a segment that is retired. The caller holds the mutex."""
        self._cursors.pop(number, None)

    def _read_runs(self, taken: list[Run], runs: list[Run]) -> list[bytes]:
        """Read and return the items of ``taken``, which are the last sequences of ``runs``.

        Sequences whose items are not returned are removed from ``runs`` and given back.
        """
        items: list[bytes] = []
        total, page = count_of(taken), NO_PAGE
        try:
            for first, count in taken:
                at, end = first, first + count
                while at < end:
                    if not page.first <= at < page.end:
                        page = self._page(at, end - at)
                    part = page.items[at - page.first : end - page.first]
                    items += part
                    at += len(part)
        except UnreadableError as unreadable:
            if items and unreadable.first < unreadable.end:
                # The items before the damage are returned first; the next call meets the damage again.
                self._give_back(runs, total - len(items))
                return items
            self._give_back(runs, total)
            self._set_aside(unreadable)
            raise unreadable.damage from unreadable.damage.__cause__
        except UNOPENED:
            if not items:
                self._give_back(runs, total)
                raise
            self._give_back(runs, total - len(items))  # the items that were read are returned first, as for damage
        except BaseException:
            self._give_back(runs, total)
            raise
        return items

    def _page(self, sequence: int, takes: int = 0, cursors: Cursors | None = None) -> Page:
        """Return the page with this unconsumed sequence, from memory or read from its segment.

        A consumer passes how many items it ``takes``, from ``sequence`` on: a page whose rest it takes whole is not
        kept in memory. Browsing passes ``cursors`` of its own. Raises ``UnreadableError``, ``ClosedError``, the errors
        of a block that cannot be opened, and ``StateError`` if the sequence was consumed.
        """
        with self._reading:
            if self._segments.is_closed:
                raise ClosedError(f"{self._segments.directory}: the queue was closed while it was read")
            with self._mutex:
                page = self._pages.find(sequence)
                if page is not None:
                    self._hits += cursors is None
                    return page
                row = self._state.find(sequence).row()
                try:
                    segment = self._segments.pin(self._state.segments[row.segment])
                except CorruptionError as damage:
                    # Without its file the whole extent is lost. A damaged header is reported, but costs no items.
                    end = row.first if self._segments.is_plain(row.segment) else row.first + row.count
                    raise UnreadableError(damage, row.first, end) from None
                known = self._cursors if cursors is None else cursors
                at = known.get(row.segment, (row.offset, row.ordinal))
                base = row.first - row.ordinal
                stop = self._pages.next_after(sequence)
                ahead = Ahead(
                    sequence + takes - base,
                    NO_BOUND.stop if stop is None else stop - base,
                    self._pages.read_ahead_bytes,
                )
            try:
                loaded = self._load(segment, row, at, sequence - base, ahead)
            finally:
                with self._mutex:
                    self._segments.unpin([row.segment])
            if loaded.damage is not None:
                lost_first = base + loaded.next_ordinal
                raise UnreadableError(loaded.damage, lost_first, lost_first + loaded.lost)
            page = Page(base + loaded.ordinal, loaded.items, loaded.cost_bytes)
            with self._mutex:
                self.page_reads += 1
                end = page.end
                if cursors is not None:
                    self._pages.insert(page, sequence, sequence, displaces=sequence == self.ready.front())
                elif end > sequence + takes:
                    end = self._pages.insert(page, sequence, sequence + takes)
                # If the last block was kept only in part, the next read begins with that block again.
                is_whole = end == page.end
                known[row.segment] = (
                    (loaded.next_offset, loaded.next_ordinal) if is_whole else (loaded.last_offset, loaded.last_ordinal)
                )
            return page

    def _load(self, segment: Segment, row: ExtentRow, at: tuple[int, int], wanted: int, ahead: Ahead) -> Loaded:
        """Read the ordinal ``wanted`` of an extent, and what follows it: from ``at`` if that is not behind it."""
        end, end_ordinal = row.offset + row.length_bytes, row.ordinal + row.count
        offset, ordinal = at
        if not (row.offset <= offset < end and row.ordinal <= ordinal <= wanted):
            offset, ordinal = row.offset, row.ordinal
        return segment.load(offset, ordinal, end, end_ordinal, wanted, ahead, self._segments.envelopes)

    def _give_back(self, runs: list[Run], count: int) -> None:
        with self._mutex:
            self.ready.give_back(runs, count)

    def _set_aside(self, unreadable: UnreadableError) -> None:
        with self._mutex:
            self.ready.set_aside(unreadable.first, unreadable.end)
        self._segments.damage.tell(unreadable.damage)


_NS = 10**9


class CountedAvailability(Availability):
    """The items that a subscription may hand out now, in a queue that counts delivery attempts."""

    def __init__(self, context: Context, number: int) -> None:
        disk, state = context.disk, context.state
        super().__init__(state, number)
        self._disk = disk
        self._shielded = context.guards.shielded
        self._due: list[tuple[float, int, list[Run]]] = []
        """Heap of the delayed runs: when some are due, by the monotonic clock, the first sequence of the first one, and
        the runs."""
        attempts, now_ns = state.attempts.get(number), disk.time_ns()
        for first, count, (due_ns, delay_ns) in attempts.delays if attempts is not None else ():
            left_ns = min(due_ns - now_ns, delay_ns)
            if left_ns > 0:
                self._take_out(first, first + count, self.delayed)
                heappush(self._due, (disk.monotonic() + left_ns / _NS, first, [(first, count)]))

    def __len__(self) -> int:
        self._see_what_is_due()
        return super().__len__()

    def members(self) -> Intervals:
        """Return a copy of the set of all sequences that may be handed out."""
        self._see_what_is_due()
        return super().members()

    def next_run(self, sequence: int) -> Run | None:
        """Return the first ready run from ``sequence`` on; None if there is none."""
        self._see_what_is_due()
        return super().next_run(sequence)

    def hand_out(self, count: int, runs: list[Run] | None = None) -> list[Run]:
        """Hand out up to ``count`` items that were never delivered, or one item that was delivered before.

        The items are the lowest ready ones. They end before the next item that was delivered before.
        """
        if not len(self):
            return [] if runs is None else runs
        attempts, front = self._state.attempts.get(self.number), self.front()
        suspect = attempts.times.next_from(front) if attempts is not None else None
        if suspect is not None:
            ahead = max(min(suspect, self._state.next_sequence) - self.position, 0)
            count = min(count, max(self.returned.overlap(0, suspect) + ahead, 1))
        return self.hold(count, runs)

    def postpone(self, runs: list[Run], seconds: float) -> None:
        """Take back runs that were handed out; they are ready again after ``seconds``."""
        due_seconds = self._disk.monotonic() + seconds  # first: an error of the sum finds nothing done
        self.delayed.add_all(runs)
        heappush(self._due, (due_seconds, runs[0][0], runs))

    def seconds_until_due(self) -> float | None:
        """Return the seconds until the next delayed run is due, 0.0 if one is due; None if nothing is delayed."""
        return max(self._due[0][0] - self._disk.monotonic(), 0.0) if self._due else None

    def _see_what_is_due(self) -> None:
        if self._due and self._due[0][0] <= self._disk.monotonic():
            self._shielded(self._return_due)

    def _return_due(self) -> None:
        """Make the delayed runs ready that are due. An interruption would lose a run that is out of the heap."""
        while self._due and self._due[0][0] <= self._disk.monotonic():
            _, _, runs = heappop(self._due)
            self.delayed.remove_all(runs)
            self.returned.add_all(runs)


class CountedReader(Reader):
    """Reads the ready items of one subscription, in a queue that counts delivery attempts."""

    def __init__(self, context: Context, ready: CountedAvailability, segments: Segments, pages: Pages) -> None:
        super().__init__(context, ready, segments, pages)
        self.counted = ready

    def _first_page(self) -> Page | None:
        """Return None: no item may be taken from memory directly, since each delivery must be logged first."""
        return None

    def until_due(self, timeout_seconds: float | None) -> float | None:
        """Return the timeout, or the seconds until the next delayed item is due, if that is less."""
        due_seconds = self.counted.seconds_until_due()
        if due_seconds is None or timeout_seconds is None:
            return timeout_seconds if due_seconds is None else due_seconds
        return min(timeout_seconds, due_seconds)

    def read(self, runs: Iterable[Run]) -> Iterator[tuple[int, bytes]]:
        """Yield each item of these held runs, with its sequence.

        The pages that this reads do not displace others from the page cache.
        Raises ``CorruptionError`` and ``MemoryShortageError``, and ``StateError`` for an item that was consumed.
        """
        for first, count in runs:
            at, end = first, first + count
            while at < end:
                try:
                    page = self._page(at, cursors={})
                except UnreadableError as unreadable:
                    raise unreadable.damage from unreadable.damage.__cause__
                items = page.items[at - page.first : end - page.first]
                yield from enumerate(items, at)
                at += len(items)
