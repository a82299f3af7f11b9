"""Why the data files of a queue are there: what lives in each of them, and which sessions keep it.

A segment goes when nothing in it lives any more, and nobody needs it. What lives waits to be dequeued, is on hold for a
session, or was set aside, since its block could not be read. Who needs a segment without anything in it: a session that
has written items there ahead of its flush, the compaction that copies from it or to it, and whoever enqueues next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ..core.intervals import Cursor, Run
from ..core.state import State
from ..storage.segment_files import Piece
from .subscriptions import Subscriptions


class Hold(NamedTuple):
    """What a session keeps."""

    session: str
    seconds: float
    runs: list[Run]
    pieces: list[Piece]


class Holder(NamedTuple):
    """A session that keeps a segment."""

    session: str
    """Its name: the one that it was given, or that of the thread which made it."""
    items: int
    """Items of the segment that it has dequeued and not flushed."""
    written: int
    """Items that it has written there ahead of its flush."""
    seconds: float
    """For how long its transaction has held anything, or written ahead."""


class SegmentUse(NamedTuple):
    """Why a segment is there; see ``PersistentQueue.explain``."""

    number: int
    """Its file is ``data/`` and this number, of twelve digits, and ``.seg``."""
    size_bytes: int
    """Bytes of its file; 0 if that is missing."""
    live_bytes: int
    """Bytes of it that live; of a block that is partly consumed, by average."""
    live: int
    """Items of it that live: anybody may still dequeue them, or has done so and not flushed."""
    ready: int
    """Items of it that may be dequeued."""
    held: int
    """Items of it that sessions have dequeued and not flushed."""
    damaged: int
    """Items of it that were set aside, since their block could not be read."""
    subscribed: tuple[tuple[str, int], ...]
    """The subscriptions that have not consumed all of it, and how many items of it they have not. What is ready, held
    and damaged is so for who has none."""
    is_current: bool
    """Whether it is the one that is written on."""
    is_pinned: bool
    """Whether it stays even if nothing in it lives: a session has written ahead, or a compaction is at work."""
    holders: tuple[Holder, ...]
    """The sessions that keep it, from the one that has done so for longest."""
    delayed: int = 0
    """Items of it that came back, and are not due yet."""

    def __str__(self) -> str:
        held_else = self.held - sum(holder.items for holder in self.holders)
        counts = {
            "ready": self.ready,
            "delayed": self.delayed,
            "damaged": self.damaged,
            "held by nobody that is known": held_else,
        }
        reasons = [f"{count:,} {what}" for what, count in counts.items() if count > 0]
        reasons += [
            f"{holder.session!r} {' and '.join(_deeds(holder))} for {holder.seconds:,.1f} s" for holder in self.holders
        ]
        reasons += [f"{count:,} for the subscription {name!r}" for name, count in self.subscribed]
        if self.is_current:
            reasons.append("it is written on")
        elif self.is_pinned and not self.holders:
            reasons.append("it is being compacted")
        elif not self.live and not self.is_pinned:
            reasons.append("it is drained, and goes with the next trim")
        return f"segment {self.number}, {self.live_bytes:,} of {self.size_bytes:,} bytes live: {'; '.join(reasons)}"


def _deeds(holder: Holder) -> list[str]:
    held = [f"holds {holder.items:,}"] if holder.items else []
    return held + ([f"has written {holder.written:,} ahead"] if holder.written else [])


def explain(
    state: State, subscriptions: Subscriptions, current: int | None, pinned: set[int], holds: Iterable[Hold]
) -> list[SegmentUse]:
    """Why each segment is there, the oldest first, but for the sizes of the files. With the mutex."""
    plain = subscriptions.plain
    is_ready = _per_segment(state, plain.ready.runs() if plain is not None else ())
    is_damaged = _per_segment(state, plain.ready.damaged.runs() if plain is not None else ())
    is_delayed = _per_segment(state, plain.ready.delayed.runs() if plain is not None else ())
    left = {number: left_in_segments(state, cursor) for number, cursor in sorted(state.subscriptions.items())}
    is_left = left.pop(0, Counter())
    holders: dict[int, list[Holder]] = {number: [] for number in state.segments}
    for hold in sorted(holds, key=lambda hold: -hold.seconds):
        items = _per_segment(state, hold.runs)
        written = Counter({piece.segment: 0 for piece in hold.pieces})
        for piece in hold.pieces:
            written[piece.segment] += piece.count
        for number in {**items, **written}:
            mine = Holder(hold.session, items[number], written[number], hold.seconds)
            holders.setdefault(number, []).append(mine)
    uses = []
    for number in sorted(holders):
        info = state.segments.get(number)  # None for one that no commit has told of yet
        live, live_bytes = (info.live, info.live_bytes) if info is not None else (0, 0)
        uses.append(
            SegmentUse(
                number,
                0,
                live_bytes,
                live,
                is_ready[number],
                is_left[number] - is_ready[number] - is_damaged[number] - is_delayed[number],
                is_damaged[number],
                tuple(
                    (state.subscriptions[other].name, counts[number])
                    for other, counts in left.items()
                    if counts[number]
                ),
                number == current,
                number in pinned,
                tuple(holders[number]),
                is_delayed[number],
            )
        )
    return uses


def left_in_segments(state: State, cursor: Cursor) -> Counter[int]:
    """How many items of each segment the cursor has not passed."""
    return _per_segment(state, cursor.unconsumed(state.gone.frontier, state.next_sequence))


def _per_segment(state: State, runs: Iterable[Run]) -> Counter[int]:
    """How many of these sequences, none of them gone, stand in which segment."""
    counts: Counter[int] = Counter()
    for first, count in runs:
        for extent in state.extents_from(first):
            part = min(first + count, extent.end) - max(first, extent.first)
            if part <= 0:
                break
            counts[extent.segment] += part
    return counts
