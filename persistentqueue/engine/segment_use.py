"""Why each data file of a queue is there: its live items, and the sessions that keep it.

A trim retires a segment when it has no live items and nothing else needs it. A live item is ready, held by a session,
delayed, or set aside because its block could not be read. A segment without live items is needed in three cases:

- A session has spilled items to it.
- A compaction copies from it or to it.
- It is the current segment, to which the next enqueue is written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from ..core.intervals import Cursor, Intervals, Run, united
from ..core.state import Extent, State
from ..storage.segment_files import Piece
from .subscriptions import Subscriptions


class Hold(NamedTuple):
    """The items that a session holds, and the pieces that it has spilled, for ``seconds``."""

    session: str
    seconds: float
    noted: list[Run]
    """Runs of its transactions."""
    taken: list[int]
    """Sequences that it has taken one by one. Some may be in ``noted``, too."""
    pieces: list[Piece]

    @property
    def runs(self) -> list[Run]:
        """Runs that the session holds, each item once."""
        return united(self.noted, self.taken)


class Holder(NamedTuple):
    """A session that keeps a segment, and why it does."""

    session: str
    """Name that the session was given; without one, the name of the thread that made the session."""
    items: int
    """Number of items of the segment that the session has dequeued and not flushed."""
    written: int
    """Number of items that the session has spilled to the segment, that is, written there before its flush."""
    seconds: float
    """Seconds since the session's transaction began to hold items or to spill."""


class SegmentUse(NamedTuple):
    """Why a segment is there: an entry of the list that ``PersistentQueue.explain`` returns.

    The values describe the moment of that call; later changes of the queue do not show. ``ready``, ``held``,
    ``damaged`` and ``delayed`` are those of the plain queue. ``subscribed`` is about the named subscriptions.
    ``str()`` gives one line with the file, its live bytes and the reasons.
    """

    number: int
    """Number of the segment. Its file is ``data/<number>.seg``, with at least twelve digits."""
    size_bytes: int
    """Size of its file in bytes; 0 if the file is missing."""
    live_bytes: int
    """Bytes of its blocks that hold live items; an average for a block that is partly consumed."""
    live: int
    """Number of its live items: at least one subscription has not durably consumed them."""
    ready: int
    """Number of its items that a consumer of the plain queue can dequeue now."""
    held: int
    """Number of its items that sessions of the plain queue have dequeued and not flushed."""
    damaged: int
    """Number of its items that were set aside because their block could not be read."""
    subscribed: tuple[tuple[str, int], ...]
    """Named subscriptions that have not consumed all of its items, each with the number of items that are left."""
    is_current: bool
    """Whether it is the current segment, to which the next enqueue is written."""
    is_pinned: bool
    """Whether it stays even without live items: a session has spilled to it, or it is being read, written or
    compacted."""
    holders: tuple[Holder, ...]
    """Sessions that keep it, the one that has kept it longest first."""
    delayed: int = 0
    """Number of its items that were released with a delay that is not over."""

    def __str__(self) -> str:
        held_else = self.held - sum(holder.items for holder in self.holders)
        counts = {
            "ready": self.ready,
            "delayed": self.delayed,
            "damaged": self.damaged,
            "held by no known session": held_else,
        }
        reasons = [f"{count:,} {what}" for what, count in counts.items() if count > 0]
        reasons += [
            f"{holder.session!r} {' and '.join(_deeds(holder))} for {holder.seconds:,.1f} s" for holder in self.holders
        ]
        reasons += [f"{count:,} for the subscription {name!r}" for name, count in self.subscribed]
        if self.is_current:
            reasons.append("new items are written to it")
        elif self.is_pinned and not self.holders:
            reasons.append("it is being compacted")
        elif not self.live and not self.is_pinned:
            reasons.append("it is drained, and the next trim retires it")
        return f"segment {self.number}, {self.live_bytes:,} of {self.size_bytes:,} bytes live: {'; '.join(reasons)}"


def _deeds(holder: Holder) -> list[str]:
    held = [f"holds {holder.items:,}"] if holder.items else []
    return held + ([f"has spilled {holder.written:,}"] if holder.written else [])


def explain(
    state: State,
    subscriptions: Subscriptions,
    current: int | None,
    pinned: set[int],
    holds: Iterable[Hold],
    unlogged: Iterable[int] = (),
) -> Callable[[], list[SegmentUse]]:
    """Return a function that tells why each segment is there now, the oldest first, with 0 for the file sizes.

    The caller holds the mutex, and this only copies arrays. The function does not need the mutex, and takes the time
    that many gaps need. ``unlogged`` has the numbers of the segments that no frame names.
    """
    plain, nothing = subscriptions.plain, Intervals()
    ready = plain.ready.members() if plain is not None else nothing
    damaged, delayed = (
        (plain.ready.damaged.copy(), plain.ready.delayed.copy()) if plain is not None else (nothing, nothing)
    )
    cursors = {number: cursor.copy(cursor.name) for number, cursor in sorted(state.subscriptions.items())}
    extents, span = state.extents.copy(), (state.gone.frontier, state.next_sequence)
    live = {number: (info.live, info.live_bytes) for number, info in state.segments.items()}
    live = {**dict.fromkeys(unlogged, (0, 0)), **live}
    held = sorted(holds, key=lambda hold: -hold.seconds)

    def uses() -> list[SegmentUse]:
        """Count the items of each segment."""
        is_ready, is_damaged, is_delayed = (_per_segment(extents, each) for each in (ready, damaged, delayed))
        left = {number: _per_segment(extents, cursor.rest(*span)) for number, cursor in cursors.items()}
        is_left = left.pop(0, Counter())
        holders: dict[int, list[Holder]] = {number: [] for number in live}
        for hold in held:
            items = _per_segment(extents, Intervals(hold.runs))
            written = Counter({piece.segment: 0 for piece in hold.pieces})
            for piece in hold.pieces:
                written[piece.segment] += piece.count
            for number in {**items, **written}:
                mine = Holder(hold.session, items[number], written[number], hold.seconds)
                holders.setdefault(number, []).append(mine)
        return [
            SegmentUse(
                number,
                0,
                live.get(number, (0, 0))[1],
                live.get(number, (0, 0))[0],
                is_ready[number],
                is_left[number] - is_ready[number] - is_damaged[number] - is_delayed[number],
                is_damaged[number],
                tuple((cursors[other].name, counts[number]) for other, counts in left.items() if counts[number]),
                number == current,
                number in pinned,
                tuple(holders[number]),
                is_delayed[number],
            )
            for number in sorted(holders)
        ]

    return uses


def left_in_segments(state: State, cursor: Cursor) -> Counter[int]:
    """Return for each segment the number of its items that the cursor has not consumed."""
    return _per_segment(state.extents, cursor.rest(state.gone.frontier, state.next_sequence))


def _per_segment(extents: Sequence[Extent], members: Intervals) -> Counter[int]:
    """Return for each segment how many of these sequences it holds.

    A step is for an extent, and not for a run: the items of one extent may be in very many runs.
    """
    counts: Counter[int] = Counter()
    at = 0
    while at < len(extents) and (run := members.run_from(extents[at].first)) is not None:
        at = bisect_right(extents, run[0], at, key=attrgetter("first"))
        extent = extents[at - 1]
        if count := members.overlap(extent.first, extent.end):
            counts[extent.segment] += count
    return counts
