"""The page of ``report``: HTML that shows the state of queues, without scripts, other files or a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from persistentqueue import PersistentQueue, SegmentSnapshot
from persistentqueue.drawing.charts import MANY_DEAD, share_of, tiles, windows
from persistentqueue.drawing.style import STYLE
from persistentqueue.drawing.svg import (
    age_chart,
    bar,
    columns,
    depth_chart,
    rate_chart,
    segment_map,
    share_bar,
    table,
)
from persistentqueue.drawing.text import bound_text, many, printable, share_text, size_text, span_text

from ..formatting import time_text
from ..summary import (
    Sight,
    disk_parts,
    findings,
    owner_text,
    process_text,
    resident_bytes,
    see_inside,
    state_text,
)

if TYPE_CHECKING:
    from persistentqueue.workers import SharedQueue

TILES = 240
"""Most tiles in the map."""
_WINDOWS = {60.0: "minute", 3600.0: "hour", 48 * 3600.0: "two days"}
_WORST = 12
_OUTSIDE = """<p class="dim small">Looked at from outside: only the owner's process knows which items sessions hold, and
which are in memory. There, <code>persistentqueue.cli.report_html(queue)</code> makes this page with both.</p>"""
_AGES = """<p class="below">The time that the items have waited, from the first in the queue to the last. High bars at
the left, with low ones behind them, are old items that others have overtaken.</p>"""
_TILED = """Its filled part is the live share: a nearly empty tile is a file that takes much space for few items."""
_WHOLE = """A data file is freed as a whole, when no item in it is live; compaction copies the live items of sparse
files together. The logs grow with the rate of commits, and shrink when the queue rests."""
_CONNECTED = 50
"""Most connections in the table of a queue."""
_HELD = """No other session can dequeue an item on hold, and its file stays, until the session flushes, rolls back or
ends."""


def report_html(*queues: PersistentQueue[Any] | SharedQueue[Any]) -> str:
    """Return the page that ``persistentqueue report`` writes, for queues that this process has open.

    Unlike that command, it also shows which items sessions hold, and which are in memory. It changes nothing on disk,
    and needs no other package. It may be called from any thread, and while other threads use the queues.

    Args:
        *queues: The open queues, in the order of the page. Queues that ``connect`` has opened can be among them.

    Returns:
        An HTML document.

    Raises:
        TypeError: An argument is no open queue.
        PersistentQueueError: A queue cannot be read; see ``View``, ``PersistentQueue.stats`` and
            ``PersistentQueue.explain``.
        OSError: A file cannot be read.

    Example:
        ``Path("report.html").write_text(report_html(queue), encoding="utf-8")``
    """
    from persistentqueue.workers import SharedQueue  # noqa: PLC0415  late: it needs sockets

    given: Sequence[object] = queues
    for queue in given:
        if not isinstance(queue, PersistentQueue | SharedQueue):
            raise TypeError(
                f"report_html takes queues that this process has open, not {queue!r}: for a queue that another process "
                "has open, use the command persistentqueue report with its path"
            )
    return page(list(map(see_inside, queues)))


def page(sights: Sequence[Sight], unread: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the page of these queues, and of the errors of those that cannot be read."""
    made = time_text(max((sight.snapshot.time_ns for sight in sights), default=0))[:19].replace("T", " ")
    title = escape(sights[0].snapshot.directory if len(sights) == 1 else many(len(sights), "queue"))
    lines = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">',
        f"<title>persistentqueue: {title}</title><style>{STYLE}</style></head><body><main><h1>{title}</h1>",
        f'<p class="dim">persistentqueue report of {made} UTC. It shows one moment: make it again to see another.</p>',
    ]
    if len(sights) > 1:
        lines.append(_card("All queues", _overview(sights)))
    if unread:
        lines.append(
            _card("Queues that cannot be read", "".join(f"<p>{escape(problem)}</p>" for problem in unread.values()))
        )
    for sight in sights:
        if len(sights) > 1:
            lines.append(f'<h2 id="{escape(sight.name)}">{escape(sight.name)}</h2>')
        lines += [_card(heading, content) for heading, content in _cards(sight)]
    return "\n".join([*lines, "</main></body></html>", ""])


def _cards(sight: Sight) -> Iterator[tuple[str, str]]:
    yield "", _facts(sight)
    yield "Depth and rates", _past(sight)
    yield "Findings, and what to do", _advice(sight)
    yield "The backlog", _backlog(sight)
    yield "The data files", _files(sight)
    if sight.is_inside:
        yield "Items on hold", _holders(sight)
        yield "Latencies", _latencies(sight)
    if sight.connections is not None:
        yield "Connected processes", _connections(sight)
    yield "The disk", _disk(sight)
    if sight.snapshot.subscriptions:
        yield "Consumers", _consumers(sight)


def _card(heading: str, content: str) -> str:
    head = f"<h3>{escape(heading)}</h3>" if heading else ""
    return f'<section class="card">{head}{content}</section>'


def _overview(sights: Sequence[Sight]) -> str:
    rows = (
        [
            f'<a href="#{escape(sight.name)}">{escape(sight.name)}</a>',
            f"{sight.snapshot.depth:,}",
            span_text(sight.oldest_seconds),
            size_text(sight.snapshot.disk_bytes),
        ]
        for sight in sights
    )
    return table(["queue", "left", "oldest waits", "disk"], rows)


def _facts(sight: Sight) -> str:
    seen, stats, memory_bytes = sight.snapshot, sight.stats, resident_bytes(sight.snapshot)
    facts = [("items left", f"{seen.depth:,}")]
    if stats is not None:
        facts += [("of them ready", f"{stats.ready:,}"), ("of them on hold", f"{stats.held:,}")]
    else:
        facts += [("of them overtaken", f"{seen.overtaken:,}")]
    facts += [
        ("the oldest item waits for", span_text(sight.oldest_seconds)),
        ("disk space of the items left", size_text(seen.live_bytes)),
        ("disk space of all files", size_text(seen.disk_bytes)),
        ("owner", owner_text(seen)),
    ]
    if memory_bytes is not None:
        facts.append(("memory of the owner's whole process", size_text(memory_bytes)))
    cells = (f'<div><b>{escape(value)}</b><span class="dim small">{what}</span></div>' for what, value in facts)
    return f'<div class="facts">{"".join(cells)}</div>'


def _advice(sight: Sight) -> str:
    items = "".join(
        f'<li class="{"urgent" if each.is_urgent else "well"}"><b>{escape(each.what)}</b>'
        f'<span class="dim">{escape(each.advice)}</span></li>'
        for each in findings(sight)
    )
    found = f'<ul class="todo">{items}</ul>' if items else "<p>No problems: there is nothing to do.</p>"
    return found if sight.is_inside else found + _OUTSIDE


def _past(sight: Sight) -> str:
    found = windows(sight.history)
    if not found:
        return "<p>The owner has taken no samples yet: it takes one about a second after a commit.</p>"
    parts = []
    for curve in found:
        parts.append(f"<h4>The last {_WINDOWS.get(curve.seconds) or span_text(curve.seconds)}</h4>")
        parts.append(f'<div class="pair">{depth_chart(curve)}{rate_chart(curve)}</div>')
    return "".join(parts)


def _backlog(sight: Sight) -> str:
    stats, parts = sight.stats, []
    if not sight.snapshot.depth:
        return "<p>No item waits.</p>"
    if stats is not None and stats.ready:
        share = share_text(stats.cached / stats.ready)
        parts += [
            f"<p>Of {many(stats.ready, 'ready item')}, {stats.cached:,} ({share}) are in memory, where they take "
            f"{size_text(stats.cached_bytes)} of the {size_text(stats.memory_bytes)} allowed. The others are on disk "
            "only, and are read when they are due.</p>",
            bar([("cached", "in memory", stats.cached), ("live", "on disk only", stats.ready - stats.cached)], "items"),
        ]
    memory_bytes = resident_bytes(sight.snapshot)
    if stats is None and memory_bytes is not None and sight.snapshot.live_bytes > memory_bytes:
        parts.append(
            f"<p>The items that are left take {size_text(sight.snapshot.live_bytes)}, more than the memory of the "
            f"owner's whole process, {size_text(memory_bytes)}: most of them are on disk only, and are read when they "
            "are due.</p>"
        )
    if sight.ages:
        parts += [_AGES, age_chart(sight.ages)]
    return "".join(parts)


def _files(sight: Sight) -> str:
    seen = sight.snapshot
    if not seen.segments:
        return "<p>There are none.</p>"
    found = tiles(seen.segments, TILES, sight.keepers)
    each = "is one file" if len(found) == len(seen.segments) else "with a number in it is that many neighbouring files"
    parts = [
        f"<p>{many(len(seen.segments), 'file')}, the oldest first; a tile {each}. {_TILED}</p>",
        segment_map(found),
    ]
    worst = sorted((each for each in seen.segments if each.live and not each.is_youngest), key=share_of)
    worst = [each for each in worst if each.number in sight.keepers or share_of(each) < MANY_DEAD][:_WORST]
    if worst:
        rows = (
            [
                f'<b>segment {segment.number}</b><br><span class="dim">{escape(_why(segment, sight))}</span>',
                share_text(share_of(segment)),
                size_text(segment.size_bytes),
                f"{segment.live:,}",
            ]
            for segment in worst
        )
        parts.append('<p class="below">The files with the smallest live share:</p>')
        parts.append(table(["why the file is kept", "live share", "file size", "live items"], rows))
    return "".join(parts)


def _why(segment: SegmentSnapshot, sight: Sight) -> str:
    """Return the known reasons why a data file is kept."""
    use = next((use for use in sight.uses if use.number == segment.number), None)
    reasons = []
    if use is not None:
        reasons += [
            f"session {holder.session!r} holds {many(holder.items, 'item')} for {span_text(holder.seconds)}"
            for holder in use.holders
            if holder.items
        ]
        reasons += [f"{many(use.ready, 'item')} ready"] if use.ready else []
        reasons += [f"{many(use.damaged, 'item')} that cannot be read"] if use.damaged else []
    elif any(not name for name, _ in segment.left):
        reasons.append(f"{many(dict(segment.left)[''], 'item')} left, ready or on hold")
    reasons += [f"{many(left, 'item')} left for {name!r}" for name, left in segment.left if name]
    return "; ".join(reasons)


def _holders(sight: Sight) -> str:
    holders = sight.holders()
    if not holders:
        return "<p>None: every session has flushed, or rolled back, what it had dequeued.</p>"
    rows = (
        [
            f'<b>{escape(printable(holder.session))}</b><br><span class="dim">in segment '
            f"{', '.join(map(str, numbers[:_WORST]))}{' …' if len(numbers) > _WORST else ''}</span>",
            f"{holder.items:,}",
            f"{holder.written:,}",
            span_text(holder.seconds),
            size_text(size_bytes),
        ]
        for holder, numbers, size_bytes in holders
    )
    return f"<p>{_HELD}</p>" + table(["session", "on hold", "written ahead", "for", "file sizes"], rows)


def _connections(sight: Sight) -> str:
    connections = sight.connections or ()
    if not connections:
        return "<p>No other process has a session.</p>"
    rows = (
        [
            f'<b>{escape(process_text(each))}</b><br><span class="dim">thread {escape(printable(each.thread))}</span>',
            escape(printable(each.session)),
            escape(printable(each.subscription)) or "-",
            f"{each.held:,}",
            span_text(each.seconds) if each.seconds else "-",
            state_text(each),
            f"{each.flushes:,}",
        ]
        for each in connections[:_CONNECTED]
    )
    waiting, more = sum(each.waits for each in connections), len(connections) - _CONNECTED
    words = f"<p>{many(len(connections), 'session')} of other processes, {waiting:,} waiting for an item"
    words += f"; the first {_CONNECTED} are shown, the longest hold first.</p>" if more > 0 else ".</p>"
    return words + table(["process", "session", "subscription", "on hold", "for", "now", "flushes"], rows)


def _latencies(sight: Sight) -> str:
    stats, rows = sight.stats, []
    assert stats is not None
    for what, histogram in (
        ("a flush, as its caller sees it", stats.flush_seconds),
        ("the commit of a group of flushes, with its sync", stats.commit_seconds),
        ("a dequeue that reads from a file", stats.read_seconds),
    ):
        if histogram.count:
            bounds = [bound_text(bound, histogram.bounds[-1]) for bound in (*histogram.bounds, inf)]
            titles = [f"{count:,} up to {bound}" for count, bound in zip(histogram.counts, bounds, strict=True)]
            quantiles = (bound_text(histogram.quantile(part), histogram.bounds[-1]) for part in (0.5, 0.99, 1))
            rows.append([what + columns(histogram.counts, titles, what), f"{histogram.count:,}", *quantiles])
    if not rows:
        return "<p>No flush, and no read from a file, since the queue was opened.</p>"
    words = f"<p>Since the queue was opened. Columns: {bounds[0]} at the left to {bounds[-1]} at the right.</p>"
    return words + table(["", "count", "half within", "99 % within", "all within"], rows)


def _disk(sight: Sight) -> str:
    parts = [(part.key, part.what, part.size_bytes) for part in disk_parts(sight.snapshot)]
    return f"<p>{size_text(sight.snapshot.disk_bytes)} in all. {_WHOLE}</p>{bar(parts, 'bytes')}"


def _consumers(sight: Sight) -> str:
    seen = sight.snapshot
    everybody = [*seen.subscriptions, *([] if seen.fan_out else [("(no subscription)", seen.depth)])]
    most = max(left for _, left in everybody) or 1
    rows = ([f"{escape(printable(name))}{share_bar(left / most)}", f"{left:,}"] for name, left in everybody)
    words = "<p>Each consumer gets every item; an item is kept until the last consumer has consumed it.</p>"
    return words + table(["consumer", "items left"], rows)
