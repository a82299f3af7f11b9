"""What is to be shown of a queue, gathered, and what it means, in plain words."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from persistentqueue import Holder, PersistentQueue, SegmentUse, Snapshot, Stats, View, list_queues

from .display.charts import SPARSE, is_sparse, positions, share_of
from .formatting import many, printable, share_text, size_text, span_text

AGES = 48
"""At how many places of what is left its age is asked for."""
OLD_SECONDS = 60.0
"""A hold that is older than that is worth a word."""
_LISTED = 5


@dataclass(frozen=True)
class Sight:
    """What was seen of a queue, from outside, and what its owner knows beside, if he was asked."""

    name: str
    snapshot: Snapshot
    ages: tuple[float, ...]
    """How many seconds ago what is left was written, at places that are evenly spread over it."""
    stats: Stats | None = None
    uses: tuple[SegmentUse, ...] = ()

    @property
    def is_inside(self) -> bool:
        """Whether the owner was asked."""
        return self.stats is not None

    @property
    def oldest_seconds(self) -> float | None:
        """How long the oldest item has waited."""
        return age_of(self.snapshot)

    @property
    def held(self) -> set[int]:
        """The data files that sessions keep, by their numbers."""
        return {use.number for use in self.uses if use.holders}

    def holders(self) -> list[tuple[Holder, list[int], int]]:
        """Each session that holds something, the longest first: its sum, which files it keeps, and their bytes."""
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
    """The name that the library takes, of one that was written: ``.`` is the directory itself."""
    return None if name == "." else name


def queues_in(path: str, names: Sequence[str] = ()) -> list[str]:
    """The names of the queues that are meant: those given, else all in the directory, else the directory itself."""
    return list(names) or list_queues(path) or ["."]


def see(view: View, name: str, ages: int = AGES) -> Sight:
    """The queue as it looks from outside."""
    snapshot = view.look()
    times = view.times_of(positions(snapshot.runs, ages)) if ages else {}
    return Sight(name, snapshot, tuple(max(snapshot.time_ns - times[at], 0) / 1e9 for at in sorted(times)))


def see_inside(queue: PersistentQueue) -> Sight:
    """The queue as it looks to the process that has it open."""
    seen = see(queue.view(), queue.name or ".")
    return Sight(seen.name, seen.snapshot, seen.ages, queue.stats(), tuple(queue.explain()))


def age_of(snapshot: Snapshot) -> float | None:
    """For how many seconds the oldest item has waited; None where there is none."""
    return None if snapshot.oldest_ns is None else max(snapshot.time_ns - snapshot.oldest_ns, 0) / 1e9


def document_of(snapshot: Snapshot, name: str) -> dict[str, Any]:
    """The snapshot as JSON has it."""
    fields = {field: value for field, value in vars(snapshot).items() if field != "runs"}
    segments = [segment._asdict() | {"left": dict(segment.left)} for segment in snapshot.segments]
    owner = snapshot.owner._asdict() if snapshot.owner is not None else None
    age = {"oldest_seconds": age_of(snapshot), "subscriptions": dict(snapshot.subscriptions)}
    return {"name": name} | fields | age | {"owner": owner, "segments": segments}


def document_of_error(error: BaseException) -> dict[str, str]:
    """What went wrong with a queue as JSON has it."""
    return {"type": type(error).__name__, "message": str(error)}


def owner_text(snapshot: Snapshot) -> str:
    """Who has the queue."""
    if snapshot.is_owned is False or snapshot.owner is None:
        left = "nobody, closed" if snapshot.is_sealed else "nobody, not closed"
        return left if snapshot.is_owned is not True else "somebody"
    who = f"{snapshot.owner.pid} on {printable(snapshot.owner.host)}"
    return who if snapshot.is_owned else f"perhaps {who}"


def resident_bytes(snapshot: Snapshot) -> int | None:
    """The memory that the owner's process takes, all of it; None where the system does not tell."""
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
    """What a part of the disk is taken by."""

    key: str
    glyph: str
    colour: str
    what: str
    size_bytes: int


def disk_parts(snapshot: Snapshot) -> list[Part]:
    """What the queue's files are, by kind: all of ``disk_bytes``."""
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
    """Something that is to be said of a queue, and what to do about it."""

    is_urgent: bool
    """Whether somebody should do it; else it is well, or comes by itself."""
    what: str
    advice: str


def findings(sight: Sight) -> list[Finding]:
    """What is to be said of the queue, what is to be done first."""
    found = [*_of_owner(sight), *_of_holds(sight), *_of_files(sight), *_of_memory(sight)]
    return sorted(found, key=lambda finding: not finding.is_urgent)


def _of_owner(sight: Sight) -> Iterator[Finding]:
    snapshot = sight.snapshot
    if snapshot.in_doubt:
        yield Finding(
            True,
            f"The last transaction goes over several queues, and {snapshot.in_doubt!r} knows what became of it.",
            "Opening this queue asks that one: keep both beside each other.",
        )
    if snapshot.is_owned is False and not snapshot.is_sealed:
        yield Finding(
            False,
            f"Nobody has it open, and it was not closed: {many(snapshot.transactions, 'transaction')} to replay.",
            "The next opening recovers; nothing that was acknowledged is lost.",
        )
    if snapshot.published:
        waits = f"{many(snapshot.published, 'transaction')} of other processes, {size_text(snapshot.inbox_bytes)}, "
        if snapshot.is_owned is False:
            yield Finding(False, f"{waits}wait in the inbox.", "The next opening takes them in.")
        else:
            yield Finding(
                False,
                f"{waits}wait in the inbox for the owner.",
                "He takes them in when he flushes, or finds nothing to dequeue; a limit may keep them out.",
            )


def _of_holds(sight: Sight) -> Iterator[Finding]:
    snapshot = sight.snapshot
    if not sight.is_inside:
        if snapshot.overtaken:
            yield Finding(
                snapshot.depth > 0 and (sight.oldest_seconds or 0) > OLD_SECONDS,
                f"{many(snapshot.overtaken, 'item was', 'items were')} overtaken: what came behind is consumed "
                "already. Sessions have them on hold, or gave them back; from outside nobody can see which.",
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
            "It lets go by flush, rollback or close. Look whether it still works.",
        )
    stats = sight.stats
    if stats is not None and stats.damaged:
        yield Finding(
            True,
            f"{many(stats.damaged, 'item was', 'items were')} set aside: their blocks cannot be read.",
            "persistentqueue check says where; repair, when the queue is closed, keeps what is intact.",
        )


def _of_files(sight: Sight) -> Iterator[Finding]:
    snapshot = sight.snapshot
    sparse = [segment for segment in snapshot.segments if is_sparse(segment)]
    if sparse:
        size_bytes, live_bytes = (sum(getattr(each, what) for each in sparse) for what in ("size_bytes", "live_bytes"))
        worst = min(sparse, key=share_of)
        yield Finding(
            False,
            f"{many(len(sparse), 'data file is', 'data files are')} sparse: of {size_text(size_bytes)} only "
            f"{size_text(live_bytes)} lives. Segment {worst.number}, of {size_text(worst.size_bytes)}, is there for "
            f"{many(worst.live, 'item')}{_for_whom(worst.left)}.",
            f"The owner gathers what lives, about a second after a commit (below {SPARSE:.0%}; compact_below), or "
            "persistentqueue compact when the queue is free.",
        )
    waiting = [(name, left) for name, left in snapshot.subscriptions if left]
    if len(snapshot.subscriptions) + (not snapshot.fan_out) > 1 and waiting:
        everybody = [*waiting, *([("", snapshot.depth)] if not snapshot.fan_out else [])]
        name, left = max(everybody, key=lambda each: each[1])
        alone = sum(len(segment.left) == 1 and segment.left[0][0] == name for segment in snapshot.segments)
        who = f"the subscription {name!r}" if name else "the plain queue, who needs no subscription,"
        yield Finding(
            alone > 0 and left > 0,
            f"Furthest behind is {who} with {many(left, 'item')} left"
            + (f"; {many(alone, 'data file is', 'data files are')} there for it alone." if alone else "."),
            "One that nobody consumes any more keeps everything: queue.unsubscribe(name), or fan_out=True without a "
            "plain consumer.",
        )


def _for_whom(left: Sequence[tuple[str, int]]) -> str:
    names = [name for name, _ in left if name]
    return f", for {', '.join(map(repr, names[:_LISTED]))}" if names else ""


def _of_memory(sight: Sight) -> Iterator[Finding]:
    stats = sight.stats
    if stats is not None and stats.flowed:
        yield Finding(
            False,
            f"The queue has flowed to disk: {stats.cached:,} of {many(stats.ready, 'ready item')} are in memory, "
            f"{size_text(stats.cached_bytes)} of {size_text(stats.memory_bytes)} that it may take "
            f"({share_text(stats.cached / stats.ready if stats.ready else 0)} of the backlog).",
            "That is well: the rest is read, in order, when its turn comes. A larger memory_bytes keeps more.",
        )
    if stats is not None and stats.fill >= 0.9:
        yield Finding(
            True,
            f"It is {share_text(stats.fill)} full by its nearest limit; "
            f"{many(stats.waiting, 'flush waits', 'flushes wait')}.",
            "Dequeue, or raise the limit: enqueues are refused, or wait, at 100 %.",
        )
