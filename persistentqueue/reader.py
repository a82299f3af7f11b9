"""The reading side: hands out what is ready, from memory or from the segments.

Everything here is for any thread. The mutex guards the memory and is never held over a read; ``reading`` is held by
whoever reads a file, so that two consumers do not read the same. Without threads both may be null contexts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

from .errors import ClosedError, CorruptionError
from .intervals import Run, join_runs
from .pages import Page, Pages, cost
from .segments import Segments
from .state import Ready, State, StateError

Guard = AbstractContextManager[object]


class _UnreadableError(Exception):
    """Internal: the sequences ``first … end - 1`` are lost to this damage (none, if the file can still be read)."""

    def __init__(self, damage: CorruptionError, first: int, end: int) -> None:
        self.damage, self.first, self.end = damage, first, end


class Reader:
    """Reads the items of a state from its segments, through the page cache."""

    def __init__(
        self, state: State, ready: Ready, segments: Segments, pages: Pages, mutex: Guard, reading: Guard
    ) -> None:
        self._state = state
        self._ready = ready
        self._segments = segments
        self._pages = pages
        self._mutex = mutex
        self._reading = reading
        self.closed = False
        """Set by whoever closes the files, under ``reading``."""
        self._cursors: dict[int, tuple[int, int]] = {}
        """Per segment the offset and the ordinal of the block behind the last one read."""

    def take(self, max_items: int) -> tuple[list[Run], list[bytes]]:
        """Hold up to ``max_items`` ready items, lowest first: their runs and themselves. Nothing ready: both empty.

        Raises ``CorruptionError`` once for each damaged block: its items are set aside, nothing is held.
        """
        with self._mutex:
            runs = self._ready.hold(max_items)
            if len(runs) == 1:
                first, count = runs[0]
                page = self._pages.find(first)
                if page is not None and first + count <= page.end:
                    at = first - page.first
                    return runs, page.items[at : at + count]
        return self._read_runs(runs) if runs else ([], [])

    def browse(self) -> Iterator[list[bytes]]:
        """The ready items, in order, in lists, each read when it is asked for. Raises like ``take``."""
        sequence = 0
        while True:
            with self._mutex:
                run = self._ready.next_run(sequence)
            if run is None:
                return
            first, count = run
            try:
                page = self._page(first)
            except StateError:
                continue  # it was consumed meanwhile, and is not ready any more
            except _UnreadableError as unreadable:
                self._set_aside(unreadable)
                raise unreadable.damage from None
            at = first - page.first
            yield page.items[at : at + count]
            sequence = min(first + count, page.end)

    def forget(self, number: int) -> None:
        """Forget where reading of a segment stopped, since it is retired; the mutex is held."""
        self._cursors.pop(number, None)

    def _read_runs(self, runs: list[Run]) -> tuple[list[Run], list[bytes]]:
        items: list[bytes] = []
        done: list[Run] = []
        left = list(runs)
        try:
            while left:
                first, count = left[0]
                page = self._page(first, count)
                at = first - page.first
                part = page.items[at : at + count]
                items += part
                join_runs(done, [(first, len(part))])
                left[:1] = [(first + len(part), count - len(part))] if len(part) < count else []
        except _UnreadableError as unreadable:
            if items and unreadable.first < unreadable.end:
                self._release(left)  # what was read comes out first, and the damage is met again
                return done, items
            self._release(runs)
            self._set_aside(unreadable)
            raise unreadable.damage from None
        except BaseException:
            self._release(runs)
            raise
        return done, items

    def _page(self, sequence: int, takes: int = 0) -> Page:
        """The page with this unconsumed sequence, from memory or read from its segment.

        A page whose rest the caller takes whole, since it ``takes`` so many items, is not kept in memory.
        Raises ``_UnreadableError``, and ``StateError`` where the sequence was consumed.
        """
        with self._reading:
            if self.closed:
                raise ClosedError("the queue was closed while it was read")
            with self._mutex:
                page = self._pages.find(sequence)
                if page is not None:
                    return page
                extent = self._state.find(sequence)
                first, count, number, offset, length_bytes, ordinal, _, _ = extent.row()
                try:
                    segment = self._segments.pin(self._state.segments[number])
                except CorruptionError as damage:
                    # Without its file the whole extent is lost; a damaged header is reported, and costs nothing.
                    end = first if self._segments.exists(number) else first + count
                    raise _UnreadableError(damage, first, end) from None
                at, at_ordinal = self._cursors.get(number, (offset, ordinal))
            end, end_ordinal = offset + length_bytes, ordinal + count
            wanted = ordinal + sequence - first
            if not (offset <= at < end and ordinal <= at_ordinal <= wanted):
                at, at_ordinal = offset, ordinal
            try:
                loaded = segment.load(at, at_ordinal, end, end_ordinal, wanted)
            finally:
                with self._mutex:
                    self._segments.unpin([number])
            base = first - ordinal
            if loaded.damage is not None:
                lost_first = base + loaded.next_ordinal
                raise _UnreadableError(loaded.damage, lost_first, lost_first + loaded.lost)
            page = Page(base + loaded.ordinal, loaded.items, cost(loaded.items))
            with self._mutex:
                self._cursors[number] = (loaded.next_offset, loaded.next_ordinal)
                if page.end > sequence + takes:
                    self._pages.insert(page, sequence, self._ready.position)
            return page

    def _release(self, runs: Iterable[Run]) -> None:
        with self._mutex:
            self._ready.release(runs)

    def _set_aside(self, unreadable: _UnreadableError) -> None:
        with self._mutex:
            self._ready.set_aside(unreadable.first, unreadable.end)
