"""The facts that the command line shows about a queue, and the findings that it draws from them."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from persistentqueue import (
    Connection,
    Holder,
    PersistentQueue,
    Sample,
    SegmentUse,
    Snapshot,
    Stats,
    View,
    list_queues,
)
from persistentqueue.drawing.charts import SPARSE, is_sparse, positions, share_of
from persistentqueue.drawing.text import many, printable, share_text, size_text, span_text
from persistentqueue.storage.layout import holds_queue, queue_directory
from persistentqueue.system.disk import current_disk
from persistentqueue.system.path_errors import OUT_OF_REACH

from .app import ANSWER_SECONDS
from .output import note

if TYPE_CHECKING:
    from persistentqueue.workers import SharedQueue

AGES = 48
"""Number of positions among the items left at which the age is read."""
OLD_SECONDS = 60.0
"""Age in seconds beyond which a hold, or an overtaken item, is urgent."""
_LISTED = 5


@dataclass(frozen=True)
class Sight:
    """The facts about one queue: a snapshot from outside, and the owner's own knowledge, if this is its process."""

    name: str
    snapshot: Snapshot
    ages: tuple[float, ...]
    """Seconds since items that are left were written, at positions that are evenly spread over them."""
    stats: Stats | None = None
    uses: tuple[SegmentUse, ...] = ()
    history: tuple[Sample, ...] = ()
    connections: tuple[Connection, ...] | None = None
    """The sessions of other processes, the longest hold first; None if no owner serves the queue."""

    @property
    def is_inside(self) -> bool:
        """True if the facts come from the owner's process."""
        return self.stats is not None

    @property
    def oldest_seconds(self) -> float | None:
        """Seconds that the oldest item has waited; None if no item is left."""
        return age_of(self.snapshot)

    @property
    def keepers(self) -> dict[int, str]:
        """The sessions that keep data files, in words, by the numbers of the files."""
        return {use.number: ", ".join(repr(each.session) for each in use.holders) for use in self.uses if use.holders}

    def holders(self) -> list[tuple[Holder, list[int], int]]:
        """Return each session that keeps files, the longest hold first: its totals, its files, and their bytes."""
        found: dict[str, list[tuple[int, Holder, int]]] = {}
        for use in self.uses:
            for holder in use.holders:
                found.setdefault(holder.session, []).append((use.number, holder, use.size_bytes))
        summed = []
        for session, parts in found.items():
            items, written = (sum(getattr(each, what) for _, each, _ in parts) for what in ("items", "written"))
            whole = Holder(session, items, written, max(each.seconds for _, each, _ in parts))
            summed.append((whole, [number for number, _, _ in parts], sum(size for _, _, size in parts)))
        return sorted(summed, key=lambda each: -each[0].seconds)


def named(name: str | None) -> str | None:
    """Return the name as the library expects it: None for ``.``, the directory itself."""
    return None if name == "." else name


def beside(path: str, name: str) -> str:
    """Return the directory that holds the queue of this name and its neighbours."""
    return os.path.dirname(os.path.abspath(path)) if named(name) is None else path


def is_itself(path: str, name: str, other: str) -> bool:
    """Return whether the queue ``other`` beside the queue of this name is that queue itself."""
    return other == name or (named(name) is None and other == os.path.basename(os.path.abspath(path)))


def made_note(path: str, name: str | None, as_json: bool) -> Callable[[], None]:
    """Return the function that notes that the queue was made; it notes nothing if the queue exists now.

    A mistyped name makes a queue, and the note shows it. There is no note with ``as_json``.
    """
    directory = queue_directory(path, named(name))
    try:
        is_new = not holds_queue(current_disk(), os.path.abspath(directory))
    except OSError:  # the verb reports it
        is_new = False
    return partial(note, f"made the queue {directory}") if is_new and not as_json else lambda: None


def queues_in(path: str, names: Sequence[str] = ()) -> list[str]:
    """Return the given names; without any, all queues in the directory.

    The directory itself, ``.``, comes first if it is a queue, and alone if there is none.
    """
    found = list(names)
    if not found:
        # The verb tells that there is no queue, or what is wrong with it.
        with suppress(*OUT_OF_REACH):
            found = list_queues(path)
            if not found or holds_queue(current_disk(), os.path.abspath(path)):
                found.insert(0, ".")
    return found or ["."]


def see(view: View, name: str, ages: int = AGES) -> Sight:
    """Return the facts about a queue, as seen from outside, and as its owner tells them if it serves."""
    return replace(_see(view, name, ages), connections=connections_to(view))


def _see(view: View, name: str, ages: int) -> Sight:
    snapshot = view.look()
    times = view.times_of(positions(snapshot.runs, ages)) if ages else {}
    seconds = tuple(max(snapshot.time_ns - times[at], 0) / 1e9 for at in sorted(times))
    return Sight(name, snapshot, seconds, history=view.history() if ages else ())


def see_inside(queue: PersistentQueue[Any] | SharedQueue[Any]) -> Sight:
    """Return the facts about a queue that this process has open."""
    seen = _see(queue.view(), queue.name or ".", AGES)
    stats, connections = queue.stats(), tuple(queue.connections()) or None
    return replace(seen, stats=stats, uses=tuple(queue.explain()), history=stats.history, connections=connections)


def connections_to(view: View) -> tuple[Connection, ...] | None:
    """Return the sessions of other processes; None if no owner serves the queue, or answers soon."""
    found = view.connections(ANSWER_SECONDS)
    return tuple(found) if found is not None else None


def age_of(snapshot: Snapshot) -> float | None:
    """Return the seconds that the oldest item has waited; None if there is none, or its time cannot be read."""
    return None if snapshot.oldest_ns is None else max(snapshot.time_ns - snapshot.oldest_ns, 0) / 1e9


def document_of(snapshot: Snapshot, name: str) -> dict[str, Any]:
    """Return the snapshot as a JSON object."""
    fields = {field: value for field, value in vars(snapshot).items() if field != "runs"}
    segments = [segment._asdict() | {"left": dict(segment.left)} for segment in snapshot.segments]
    owner = snapshot.owner._asdict() if snapshot.owner is not None else None
    age = {"oldest_seconds": age_of(snapshot), "subscriptions": dict(snapshot.subscriptions)}
    return {"name": name} | fields | age | {"owner": owner, "segments": segments}


def document_of_connections(connections: Sequence[Connection] | None) -> list[dict[str, Any]] | None:
    """Return the sessions of other processes as a JSON array; None if no owner serves the queue."""
    return None if connections is None else [each._asdict() for each in connections]


def process_text(connection: Connection) -> str:
    """Return the process of a connection in words."""
    return f"{connection.process} {printable(connection.process_name)}".strip()


def state_text(connection: Connection) -> str:
    """Return what a connection does at this moment, in a word."""
    if connection.is_lost:
        return "lost its items"
    return "holds" if connection.held else "waits" if connection.waits else "idle"


def document_of_error(error: BaseException) -> dict[str, str]:
    """Return an error as a JSON object."""
    return {"type": type(error).__name__, "message": str(error)}


def owner_text(snapshot: Snapshot) -> str:
    """Return the owner in words."""
    if snapshot.is_owned is False or snapshot.owner is None:
        left = "none, closed" if snapshot.is_sealed else "none, not closed"
        return left if snapshot.is_owned is not True else "unknown process"
    who = f"{snapshot.owner.pid} on {printable(snapshot.owner.host)}"
    return who if snapshot.is_owned else f"perhaps {who}"


def resident_bytes(snapshot: Snapshot) -> int | None:
    """Return the memory of the owner's whole process, in bytes; None if the system does not report it."""
    owner = snapshot.owner
    if owner is None or snapshot.is_owned is False or owner.host != socket.gethostname():
        return None
    try:
        return int(Path(f"/proc/{owner.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # not Linux, or ended just now
        pass
    command = ["ps", "-o", "rss=", "-p", str(owner.pid)]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return None
    return int(found) * 1024 if found.isdecimal() else None


class Part(NamedTuple):
    """A kind of files, and the disk space that they take."""

    key: str
    glyph: str
    colour: str
    what: str
    size_bytes: int


def disk_parts(snapshot: Snapshot) -> list[Part]:
    """Return the disk space of the queue's files by kind; the sum is ``disk_bytes``."""
    dead_bytes = max(snapshot.data_bytes - snapshot.live_bytes, 0)
    parts = [
        Part("live", "█", "green", "items that are left", snapshot.live_bytes),
        Part("dead", "░", "red", "consumed, or not written yet", dead_bytes),
        Part("log", "▓", "cyan", "transaction log", snapshot.log_capacity_bytes),
        Part("spare", "▒", "bright_blue", "spare log", snapshot.spare_bytes),
        Part("inbox", "≡", "magenta", "published by others", snapshot.inbox_bytes),
        Part("pool", "·", "bright_black", "pool of empty files", snapshot.pool_bytes),
    ]
    rest_bytes = snapshot.disk_bytes - sum(part.size_bytes for part in parts)
    return [*parts, Part("other", "?", "yellow", "written ahead, or set aside", max(rest_bytes, 0))]


class Finding(NamedTuple):
    """A statement about a queue, and advice."""

    is_urgent: bool
    """True if the user should act; otherwise the state is normal, or ends without help."""
    what: str
    advice: str


def findings(sight: Sight) -> list[Finding]:
    """Return the findings about a queue, the urgent ones first."""
    found = [*_of_owner(sight), *_of_holds(sight), *_of_connections(sight), *_of_files(sight), *_of_memory(sight)]
    return sorted(found, key=lambda finding: not finding.is_urgent)


def _of_owner(sight: Sight) -> Iterator[Finding]:
    snapshot = sight.snapshot
    if snapshot.in_doubt:
        is_left = snapshot.is_owned is False
        yield Finding(
            is_left,
            f"The last transaction covers several queues, and is not shown: {snapshot.in_doubt!r} does not say that it "
            "is committed.",
            "The next opening of this queue asks that one: keep both in one directory."
            if is_left
            else "The owner knows its outcome, and records it here with the next flush.",
        )
    if snapshot.is_owned is False and not snapshot.is_sealed:
        yield Finding(
            False,
            f"The queue was not closed, and has no owner now: {many(snapshot.transactions, 'transaction')} to replay.",
            "The next opening recovers; no acknowledged transaction is lost.",
        )
    if snapshot.published:
        waits = f"{many(snapshot.published, 'transaction')} of other processes, {size_text(snapshot.inbox_bytes)}, "
        wait = "waits" if snapshot.published == 1 else "wait"
        if snapshot.is_owned is False:
            yield Finding(
                False, f"{waits}{wait} in the inbox.", "The next opening adopts them; a limit may keep them out."
            )
        else:
            yield Finding(
                False,
                f"{waits}{wait} in the inbox for the owner.",
                "The owner adopts them when it flushes, or finds no item to dequeue; a limit may keep them out.",
            )


def _of_holds(sight: Sight) -> Iterator[Finding]:
    snapshot = sight.snapshot
    if not sight.is_inside:
        what = f"{many(snapshot.overtaken, 'item was', 'items were')} overtaken: later items are already consumed."
        if snapshot.overtaken and snapshot.is_owned is False:
            yield Finding(False, what, "No session holds them now: the next consumer gets them first.")
        elif snapshot.overtaken:
            yield Finding(
                snapshot.depth > 0 and (sight.oldest_seconds or 0) > OLD_SECONDS,
                f"{what} Sessions hold the overtaken items, or have released them; only the owner's process can tell.",
                "Ask the owner's process: print(*queue.explain(), sep='\\n'), or report_html(queue).",
            )
        return
    for holder, numbers, size_bytes in sight.holders()[:_LISTED]:
        deeds = [f"holds {many(holder.items, 'item')}"] if holder.items else []
        deeds += [f"has written {many(holder.written, 'item')} ahead"] if holder.written else []
        files = f"segment {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} segments"
        yield Finding(
            holder.seconds > OLD_SECONDS,
            f"{files.capitalize()}, {size_text(size_bytes)}, {'is' if len(numbers) == 1 else 'are'} kept by session "
            f"{holder.session!r}: it {' and '.join(deeds)} for {span_text(holder.seconds)}.",
            "A flush, a rollback or a close of that session ends this. Check whether the session still works.",
        )
    stats = sight.stats
    if stats is not None and stats.damaged:
        yield Finding(
            True,
            f"{many(stats.damaged, 'item was', 'items were')} set aside: their blocks cannot be read.",
            "persistentqueue check says where. Close the queue and run persistentqueue repair: it keeps intact data.",
        )


def _of_connections(sight: Sight) -> Iterator[Finding]:
    connections = sight.connections or ()
    # Inside, the findings about holds name these sessions already.
    holding = [] if sight.is_inside else [each for each in connections if each.held]
    for each in holding[:_LISTED]:
        yield Finding(
            each.seconds > OLD_SECONDS,
            f"Process {process_text(each)}, thread {printable(each.thread)}, holds {many(each.held, 'item')} in its "
            f"session {each.session!r} for {span_text(each.seconds)}.",
            "A flush, a rollback or the end of that process ends this. connect(hold_seconds=) bounds the time.",
        )
    for each in [each for each in connections if each.is_lost][:_LISTED]:
        yield Finding(
            True,
            f"Process {process_text(each)}, thread {printable(each.thread)}, held items for longer than hold_seconds: "
            "they went back to the queue.",
            "Check whether that process hangs. Its next flush raises HoldLostError, and commits nothing.",
        )


def _of_files(sight: Sight) -> Iterator[Finding]:
    snapshot = sight.snapshot
    if snapshot.depth and snapshot.oldest_ns is None:
        yield Finding(
            True,
            "The first item that is left could not be read.",
            "persistentqueue check says why. If bytes are damaged, close the queue and run persistentqueue repair: it "
            "keeps intact data.",
        )
    sparse = [segment for segment in snapshot.segments if is_sparse(segment)]
    if sparse:
        size_bytes, live_bytes = (sum(getattr(each, what) for each in sparse) for what in ("size_bytes", "live_bytes"))
        worst = min(sparse, key=share_of)
        yield Finding(
            False,
            f"{many(len(sparse), 'data file is', 'data files are')} sparse: of {size_text(size_bytes)} only "
            f"{size_text(live_bytes)} are live. Segment {worst.number}, of {size_text(worst.size_bytes)}, is kept for "
            f"{many(worst.live, 'item')}{_for_whom(worst.left)}.",
            f"The owner compacts files that are less than {SPARSE:.0%} live (compact_below), about a second after a "
            "commit. If the queue has no owner: persistentqueue compact.",
        )
    everybody = [*snapshot.subscriptions, *([("", snapshot.depth)] if not snapshot.fan_out else [])]
    name, left = max(everybody, key=lambda each: each[1], default=("", 0))
    if len(everybody) > 1 and left:
        alone = sum(  # the youngest file would be there without these items, too
            len(segment.left) == 1 and segment.left[0][0] == name and not segment.is_youngest
            for segment in snapshot.segments
        )
        who = f"the subscription {name!r}" if name else "the plain queue (no subscription)"
        end = (
            f"remove it by queue.unsubscribe({name!r})"
            if name
            else "queue.clear() consumes the items of the plain queue"
        )
        yield Finding(
            alone > 0,
            f"Furthest behind is {who} with {many(left, 'item')} left"
            + (f"; {many(alone, 'data file is', 'data files are')} kept for it alone." if alone else "."),
            f"A consumer that is not used any more keeps every item: {end}; a queue made with fan_out=True has only "
            "subscriptions.",
        )


def _for_whom(left: Sequence[tuple[str, int]]) -> str:
    names = [name for name, _ in left if name]
    return f", for {', '.join(map(repr, names[:_LISTED]))}" if names else ""


def _of_memory(sight: Sight) -> Iterator[Finding]:
    stats = sight.stats
    if stats is not None and stats.flowed:
        yield Finding(
            False,
            f"The queue has flowed to disk: {stats.cached:,} of {many(stats.ready, 'ready item')} are in memory. They "
            f"take {size_text(stats.cached_bytes)} of the {size_text(stats.memory_bytes)} allowed "
            f"({share_text(stats.cached / stats.ready if stats.ready else 0)} of the backlog).",
            "This is normal: the other items are read, in order, when they are due."
            + (" A larger memory_bytes keeps more in memory." if 4 * stats.cached_bytes > stats.memory_bytes else ""),
        )
    if stats is not None and stats.fill >= 0.9:
        yield Finding(
            True,
            f"The queue is {share_text(stats.fill)} full by its nearest limit; "
            f"{many(stats.waiting, 'flush waits', 'flushes wait')}.",
            "Consume items, or raise the limit: at 100 %, flushes with enqueues are refused, or wait.",
        )
