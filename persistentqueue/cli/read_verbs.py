"""The verbs that only read: ``list``, ``stat``, ``peek``, ``dump``, ``check``, ``explain``, ``top``, ``report``.

They need no lock, work while another process owns the queue, and change no file of it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from persistentqueue import (
    Connection,
    CorruptionError,
    PersistentQueueError,
    QueueNotFoundError,
    View,
    ViewedItem,
    check,
)
from persistentqueue.drawing.charts import share_of
from persistentqueue.drawing.text import many, printable, share_text, size_text, span_text

from .app import KEYS, NAME, NAMES, PATH, SUBSCRIPTION, encryption_of
from .display.report import page
from .display.top import watch
from .files import STDOUT, written_to
from .formatting import item_json, item_text, lost_text, time_text
from .output import answer, note, progress, say, show
from .parser import LOOK, Number, parameter, verb
from .streams import PROBLEMS, WELL, is_live, tell
from .summary import (
    age_of,
    connections_to,
    disk_parts,
    document_of,
    document_of_connections,
    document_of_error,
    findings,
    named,
    owner_text,
    queues_in,
    resident_bytes,
    see,
)

_ITEM_WIDTH = 100
_CONNECTED = 12
"""Most connections that ``stat`` lists."""


@verb(LOOK, "list", PATH)
def list_(path: str, as_json: bool) -> int:
    """List the queues of a directory: depth, disk space, age of the oldest item, owner.

    Status 1: a queue cannot be read.

    Disk: nothing is changed. Lock: not needed.
    """
    rows, documents, problems = [], [], []
    found = queues_in(path)
    for name in found:
        try:
            seen = View(path, named(name)).look()
        except (PersistentQueueError, OSError) as error:
            if found == ["."]:
                raise
            if isinstance(error, QueueNotFoundError):  # deleted since it was found
                continue
            problems.append(str(error))
            rows.append((name, "?", "", "", "", f"{type(error).__name__}: see persistentqueue check"))
            documents.append({"name": name, "error": document_of_error(error)})
            continue
        published = f"+ {many(seen.published, 'publication')}" if seen.published else ""
        age = span_text(age_of(seen))
        rows.append((name, f"{seen.depth:,}", published, size_text(seen.disk_bytes), age, owner_text(seen)))
        documents.append(document_of(seen, name))
    if as_json:
        answer({"path": path, "queues": documents})
    else:
        show(["queue", "depth", "", "disk", "oldest", "owner"], rows)
    return PROBLEMS if problems else WELL


@verb(LOOK, "stat", PATH, NAME)
def stat(path: str, name: str | None, as_json: bool) -> int:
    """Show one queue: depth, consumers, data files, disk space by kind, markers, owner.

    Items that sessions hold are counted as left: only the owner can tell them apart. If the owner serves, it is asked
    for the sessions of other processes.

    Disk: nothing is changed. Lock: not needed.
    """
    view = View(path, named(name))
    seen, connections = view.look(), connections_to(view)
    memory_bytes = resident_bytes(seen)
    if as_json:
        more = {"owner_resident_bytes": memory_bytes, "connections": document_of_connections(connections)}
        answer(document_of(seen, name or ".") | more)
        return WELL
    age_seconds = age_of(seen) if seen.depth else None
    ages = f", the oldest for {span_text(age_seconds)}" if age_seconds is not None else ""
    owner = owner_text(seen) + (f", which uses {size_text(memory_bytes)} of memory" if memory_bytes else "")
    if seen.owner is not None and seen.is_owned is not False:
        owner += f", since {seen.owner.since}"
    rows = [
        ("queue", seen.directory),
        ("identity", seen.identity),
        ("owner", owner),
        ("left", f"{many(seen.depth, 'item')}, {size_text(seen.live_bytes)}{ages}"),
        *(_connection_rows(connections) if connections is not None else ()),
        ("overtaken", f"{many(seen.overtaken, 'item')}, in {many(seen.gaps, 'gap')}"),
        ("in total", f"{seen.enqueued:,} enqueued, {seen.dequeued:,} consumed by all"),
        ("published", f"{many(seen.published, 'transaction')} for the owner to adopt"),
        *([("in doubt", _doubt_text(seen.in_doubt))] if seen.in_doubt else []),
        *((f"subscription {who}", f"{many(left, 'item')} left") for who, left in seen.subscriptions),
        *((f"marker {marker}", str(version)) for marker, version in sorted(seen.markers.items())),
        ("log", f"generation {seen.generation}, {many(seen.transactions, 'transaction')} behind its checkpoint"),
        ("flushes", "durable against a power cut" if seen.is_synced else "sync=False: a power cut may lose the latest"),
        ("data files", f"{len(seen.segments):,} in {os.path.join(seen.data_path, 'data')}"),
        ("disk", size_text(seen.disk_bytes)),
        *((f"  {part.what}", size_text(part.size_bytes)) for part in disk_parts(seen) if part.size_bytes),
    ]
    show(["", ""], rows, 2)
    return WELL


def _doubt_text(coordinator: str) -> str:
    return f"the last transaction, which is not shown: the queue {coordinator} does not say that it is committed"


def _connection_rows(connections: Sequence[Connection]) -> list[tuple[str, str]]:
    """Return a row about all sessions of other processes, and one for each of the first of them."""
    waiting = sum(each.waits for each in connections)
    rows = [("connected", f"{many(len(connections), 'session')} of other processes, {waiting:,} waiting")]
    return rows + [("", printable(str(each))) for each in connections[:_CONNECTED]]


@verb(
    LOOK,
    "peek",
    PATH,
    NAME,
    parameter("-n", "--count", type=Number(int, 0), default=10, help="Number of items."),
    SUBSCRIPTION,
    KEYS,
)
def peek(path: str, name: str | None, count: int, subscription: str, keys: Sequence[str] | None, as_json: bool) -> int:
    """Show the first items without consuming them; --json: one line for each item.

    Items that a session holds are shown, too.

    Disk: nothing is changed. Lock: not needed.
    """
    items = View(path, named(name), encryption=encryption_of(keys)).peek(count, subscription)
    if as_json:
        for item in items:
            answer(_line(item))
        return WELL
    width = _ITEM_WIDTH
    rows = [
        (f"{item.sequence:,}", time_text(item.time_ns)[:19], size_text(len(item.data)), item_text(item.data, width))
        for item in items
    ]
    show(["sequence", "written (UTC)", "size", "item"], rows, 0)
    return WELL


@verb(
    LOOK,
    "dump",
    PATH,
    NAME,
    parameter(
        *("-o", "--output"), default="-", metavar="FILE", completes="file", help="The file to write; - is stdout."
    ),
    SUBSCRIPTION,
    KEYS,
)
def dump(path: str, name: str | None, output: str, subscription: str, keys: Sequence[str] | None, as_json: bool) -> int:
    """Write all items that are left as JSON lines, which `load` reads; no item is consumed.

    A line: {"sequence": 0, "time": "2026-01-31T12:00:00.000000+00:00", "text": "…"}; an item that is not UTF-8 has
    "base64" instead of "text". Items that a session holds are written, too. Every block is checked. If a block is
    damaged, its lost sequences are reported on stderr, and the dump goes on behind it. --json: the summary, on stderr,
    is JSON. Status 1: items are lost.

    Disk: only FILE is written; it appears when it is complete. Lock: not needed.
    """
    view = View(path, named(name), encryption=encryption_of(keys))
    seen = view.look()
    written = 0
    lost: list[tuple[int, int]] = []

    def damaged(error: CorruptionError, runs: Sequence[tuple[int, int]]) -> None:
        """Note the lost runs and report the damaged block, so that the dump goes on behind it."""
        lost.extend(runs)
        if not as_json:
            note(str(error))

    quiet = output in STDOUT and is_live(sys.stdout)
    with written_to(output) as file, progress("dump", quiet) as at:
        for item in view.browse(subscription, damaged, progress=at):
            file.write(json.dumps(_line(item), ensure_ascii=False).encode() + b"\n")
            written += 1
        file.flush()
    if as_json:
        note(json.dumps({"items": written, "published": seen.published, "lost": lost}))
        return PROBLEMS if lost else WELL
    for first, length in lost:
        note(lost_text(first, length))
    if output not in STDOUT:
        note(f"{many(written, 'item')} written to {output}")
    if seen.published:
        note(f"not included: {many(seen.published, 'transaction')} in the inbox, which the owner has not adopted yet")
    return PROBLEMS if lost else WELL


def _line(item: ViewedItem) -> dict[str, object]:
    return {"sequence": item.sequence, "time": time_text(item.time_ns), **item_json(item.data)}


@verb(LOOK, "check", PATH, NAME)
def check_(path: str, name: str | None, as_json: bool) -> int:
    """Read and check the whole queue, and report the problems.

    If the queue is in use, changes of its owner can look like problems: then it is checked up to three times. Status 1:
    there are problems.

    Disk: nothing is changed. Lock: not needed.
    """
    with progress("check") as at:
        report = check(path, named(name), progress=at)
    if as_json:
        answer(asdict(report) | {"ok": report.ok})
        return WELL if report.ok else PROBLEMS
    for problem in report.problems:
        say(problem)
    ending = (
        "closed cleanly"
        if report.sealed and not _is_open(path, name)
        else f"in use or not closed, {many(report.transactions, 'transaction')} to replay"
    )
    say(f"{many(report.items, 'item')} read and checked; {ending}; {many(len(report.problems), 'problem')}")
    if report.torn_bytes:
        say(f"{report.torn_bytes} bytes of an unfinished group at the end of the log, which the next opening drops")
    if report.in_doubt:
        say(
            f"in doubt: the last transaction, over several queues: the next opening asks {report.in_doubt}; its items "
            "were checked, and are not counted"
        )
    if report.published:
        published = many(report.published, "item was", "items were")
        say(f"{published} published by others, and not adopted by the owner yet")
    for each in report.untrusted:
        say(f"not trusted: {each}")
    for leftover in report.leftovers:
        say(f"leftover: {leftover}")
    return WELL if report.ok else PROBLEMS


def _is_open(path: str, name: str | None) -> bool:
    """Return whether the system shows that a process has the queue open."""
    with suppress(PersistentQueueError, OSError):  # the report has it as a problem
        return View(path, named(name)).look().is_owned is True
    return False


@verb(LOOK, "explain", PATH, NAME)
def explain(path: str, name: str | None, as_json: bool) -> int:
    """Explain why each data file exists, and what to do about it.

    Only the owner's process knows which sessions keep which file: call queue.explain() there. If the owner serves, it
    is asked for the sessions of other processes that hold items.

    Disk: nothing is changed. Lock: not needed.
    """
    sight = see(View(path, named(name)), name or ".", 0)
    snapshot, found = sight.snapshot, findings(sight)
    if as_json:
        segments = document_of(snapshot, sight.name)["segments"]
        answer({"name": sight.name, "segments": segments, "findings": [finding._asdict() for finding in found]})
        return WELL
    for segment in snapshot.segments:
        reasons = [f"{many(left, 'item')} left" + (f" for {who!r}" if who else "") for who, left in segment.left]
        reasons += ["the youngest, most likely being written"] if segment.is_youngest else []
        reasons += [] if segment.live or segment.is_youngest else ["drained: the next trim frees it"]
        size = (
            f"{size_text(segment.live_bytes)} of {size_text(segment.size_bytes)} live ({share_text(share_of(segment))})"
        )
        say(f"segment {segment.number}: {size}: {'; '.join(reasons)}")
    if not snapshot.segments:
        say("no segment holds items: none is left")
    for finding in found:
        say(f"{'!' if finding.is_urgent else '-'} {finding.what} {finding.advice}")
    return WELL


@verb(
    LOOK,
    "top",
    PATH,
    NAMES,
    parameter(
        "--interval",
        type=Number(float, 0.05, 86400),
        default=1.0,
        metavar="SECONDS",
        help="Seconds between two looks.",
    ),
    parameter("--once", action="store_true", help="Look twice, show the result, and end."),
)
def top(path: str, names: Sequence[str], interval: float, once: bool, as_json: bool) -> int:
    """Watch queues live: depth, rates, waiting times, disk space, the owner's memory, and a map of the data files.

    Ctrl-C ends it, with status 0. The first NAME, or else the deepest queue, is shown in detail. A terminal shows the
    queues that fail and the deepest ones, if there are more than its lines allow. If its owner serves, the sessions of
    other processes are shown, with what each one holds, and for how long. If stdout is no terminal, the pictures follow
    each other; --json: one line for each look. The pictures need the extra cli. Status 1, with --once: a queue cannot
    be read.

    Disk: nothing is changed. Lock: not needed.
    """
    return watch(path, names, interval, once, as_json)


@verb(
    LOOK,
    "report",
    PATH,
    NAMES,
    parameter(
        *("-o", "--output"), default="report.html", metavar="FILE", completes="file", help="The page; - is stdout."
    ),
)
def report(path: str, names: Sequence[str], output: str, as_json: bool) -> int:
    """Write an HTML page with charts of the queues, and with what to do.

    The page needs no other file and no network. Only the owner's process knows which items sessions hold; there,
    persistentqueue.cli.report_html(queue) shows them, too. If the owner serves, the page shows what the sessions of
    other processes hold. Status 1: a queue cannot be read.

    With -o - all other lines are written to stderr.

    Disk: only FILE is written. Lock: not needed.
    """
    sights, unread = [], {}
    for name in queues_in(path, names):
        try:
            sights.append(see(View(path, named(name)), name))
        except (PersistentQueueError, OSError) as error:
            unread[name] = error
    if not sights:
        raise next(iter(unread.values()))
    if not names:  # a queue that was deleted since it was found is no problem
        unread = {name: error for name, error in unread.items() if not isinstance(error, QueueNotFoundError)}
    with written_to(output) as file:
        file.write(page(sights, {name: str(error) for name, error in unread.items()}).encode(errors="replace"))
    if as_json:
        found = {sight.name: [finding._asdict() for finding in findings(sight)] for sight in sights}
        failed = {name: document_of_error(error) for name, error in unread.items()}
        document = {"output": output, "findings": found, "errors": failed}
        if output in STDOUT:
            tell(json.dumps(document, default=str))  # ASCII: stderr may encode nothing else
        else:
            answer(document)
    else:
        write_line = note if output in STDOUT else say
        write_line(f"{output}: {many(len(sights), 'queue')}")
        for problem in unread.values():
            write_line(f"left out: {problem}")
    return PROBLEMS if unread else WELL
