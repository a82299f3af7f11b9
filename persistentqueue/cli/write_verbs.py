"""The verbs that put items in and take them out: ``put``, ``load``, ``import``, ``get``, ``move`` and ``requeue``.

``put`` and ``load`` work while another process owns the queue; the others need the lock.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from persistentqueue import (
    PersistentQueue,
    PersistentQueueError,
    Producer,
    QueueFullError,
    QueueLockedError,
    Session,
    SubscriptionNotFoundError,
    move_data,
    transaction,
)
from persistentqueue.drawing.text import many
from persistentqueue.interprocess import list_published, reached_version
from persistentqueue.options import Unnamed
from persistentqueue.storage.layout import queue_directory
from persistentqueue.storage.locations import LOG_DIRECTORY
from persistentqueue.system.disk import abspath, current_disk, join

from .app import (
    ACCESS,
    ADOPTION_SECONDS,
    CREATE,
    NAME,
    NAME_NEEDED,
    OWNING,
    PATH,
    SUBSCRIPTION,
    Access,
    Owning,
    own,
    settings_of,
)
from .files import lines_of, read_from
from .formatting import item_json, item_of
from .output import answer, note, progress, say, tell_done, write
from .parser import USE, Number, UsageError, parameter, verb
from .streams import PROBLEMS, WELL, await_reader, is_live, is_piped, read, stdin, sync_stdout
from .summary import beside, is_itself, made_note, named

if TYPE_CHECKING:
    from typing_extensions import Unpack

BATCH_BYTES = 4 * 1024 * 1024
"""Least size of a transaction of a load, in bytes: of the items, and ``ITEM_BYTES`` for each. The last one may be less.

The batches depend on the lines alone, so that a repeated load with a marker meets the same ones.
"""
ITEM_BYTES = 100
"""Bytes that each item of a load counts beside its payload: also empty ones take memory."""
BATCH_ITEMS = 1000
"""Most items in one transaction of a get or of a move."""
Batch = list[tuple[int, bytes]]
"""Items of a load, each with the number of its line."""
Open = Callable[[], PersistentQueue[bytes]]
"""Opens a queue."""


@verb(
    USE,
    "put",
    PATH,
    NAME_NEEDED,
    parameter("items", nargs="*", metavar="ITEM", help="The items; default: the lines of stdin."),
    parameter("--whole", action="store_true", help="Read all of stdin as one item."),
    *CREATE,
    *ACCESS,
)
def put(
    path: str,
    name: str,
    items: Sequence[str],
    whole: bool,
    create: bool,
    as_json: bool,
    **access: Unpack[Access],
) -> int:
    """Enqueue the ITEMs, or each line of stdin, as one transaction; it is durable when the command ends.

    The owner of the queue adopts the items. If the queue has no owner, the command opens it for a moment.

    Disk: the items are published in the queue's inbox; a queue that does not exist is made. Lock: not needed.
    """
    if items and whole:
        raise UsageError("--whole reads the item from stdin: give no ITEM")
    tell_if_made = made_note(path, name, as_json)
    with Producer(path, named(name), create=create, **settings_of(access)) as producer:
        tell_if_made()
        if not items:
            _tell_of_terminal("one item" if whole else "items, one a line,", as_json)
        producer.enqueue_many(_given(items, whole))
        count = producer.pending
        producer.flush()
    return _taken_in(path, name, count, access, as_json)


def _tell_of_terminal(what: str, as_json: bool) -> None:
    """Note that stdin is read if it is a terminal: its user may take the command for one that hangs."""
    if is_live(sys.stdin) and not as_json:
        note(f"reading {what} from the terminal; end with Ctrl-D")


def _given(items: Sequence[str], whole: bool) -> Iterable[bytes]:
    if items:
        return [item.encode(errors="surrogateescape") for item in items]
    if whole:
        with read("stdin"):
            return [stdin().read()]
    return (line.removesuffix(b"\n") for line in lines_of(stdin(), "stdin"))


@verb(
    USE,
    "load",
    PATH,
    NAME,
    parameter(
        *("-i", "--input"),
        dest="source",
        default="-",
        metavar="FILE",
        completes="file",
        help="The JSON lines; - is stdin.",
    ),
    parameter("--marker", default="", metavar="NAME", help="Record in the queue how far it is."),
    *CREATE,
    *ACCESS,
)
def load(
    path: str,
    name: str | None,
    source: str,
    marker: str,
    create: bool,
    as_json: bool,
    **access: Unpack[Access],
) -> int:
    """Enqueue items from JSON lines, as `dump` writes them, in durable transactions of about 4 MiB.

    A line is {"text": "…"} or {"base64": "…"}; other fields are ignored. --marker: each transaction records the number
    of its last line. If the load is cut short, and repeated with the same lines and marker, nothing is enqueued twice.
    A line that is no item, or a full queue, ends the load; the transactions before it stay. The number of their items,
    and of the first line that is not loaded, is then in the output.

    Disk: the items are published in the queue's inbox; a queue that does not exist is made. Lock: not needed.
    """
    loaded = skipped = done = reached = 0
    its_name, tell_if_made = Unnamed.NO_NAME if name is None else named(name), made_note(path, name, as_json)
    try:
        with (
            read_from(source) as (file, total),
            Producer(path, its_name, create=create, **settings_of(access)) as producer,
        ):
            tell_if_made()
            if source == "-":
                _tell_of_terminal("JSON lines", as_json)
            done = reached = (reached_version(path, named(name), marker) or 0) if marker else 0
            with progress("load") as at:
                for batch, read_bytes in _batches(file, "stdin" if source == "-" else source, done, marker):
                    for part, is_new in _published(producer, batch, marker):
                        count, reached = len(part), part[-1][0]
                        loaded, skipped = (loaded + count, skipped) if is_new else (loaded, skipped + count)
                    at(read_bytes, total)
    except Exception:
        if loaded:
            with suppress(OSError):  # of stdout: the error of the load is raised
                more = {"skipped": done + skipped} if marker else {}
                _taken_in(path, name or ".", loaded, access, as_json, more | {"next_line": reached + 1})
            if not as_json:
                note(f"line {reached + 1:,} and all lines behind it were not loaded")
        raise
    finally:
        if not as_json and (done or skipped):
            note(f"{many(done + skipped, 'line')} skipped: by the marker {marker!r}, they were loaded before")
    return _taken_in(path, name or ".", loaded, access, as_json, {"skipped": done + skipped} if marker else {})


def _published(producer: Producer, batch: Batch, marker: str) -> Iterator[tuple[Batch, bool]]:
    """Publish the batch, in parts if it never fits the limits of the queue as a whole.

    Yield the items of each transaction, and whether its marker was not reached before.
    """
    most = len(batch)
    while batch:
        part = batch[:most]
        try:
            producer.enqueue_many([item for _, item in part])
            is_new = producer.flush((marker, part[-1][0]) if marker else None)
        except QueueFullError as full:
            if not full.lasting or len(part) == 1:
                raise
            producer.rollback()
            most = len(part) // 2
            continue
        yield part, is_new
        batch = batch[most:]


def _batches(lines: Iterable[bytes], source: str, done: int, marker: str) -> Iterator[tuple[Batch, int]]:
    """Yield the items behind the first ``done`` lines in batches, each with the bytes that were read until then.

    After the batches before it, a line that is no item raises ``ValueError``, with the name of the source, and the
    lines to load again.
    """
    batch: Batch = []
    size_bytes = read_bytes = 0
    for number, line in enumerate(lines, 1):
        read_bytes += len(line)
        if number <= done or not line.strip():
            continue
        try:
            batch.append((number, item_of(json.loads(line))))
        except (ValueError, RecursionError) as error:
            what = (
                f"expected JSON, as dump writes it: {error}" if isinstance(error, json.JSONDecodeError) else f"{error}"
            )
            first = batch[0][0] if batch else number
            left = f"lines {first} to {number} were" if first < number else f"line {number} was"
            again = "repeat the command with the same marker" if marker else f"load from line {first} on"
            raise ValueError(
                f"{source}: line {number}: {what}; {left} not loaded: correct line {number}, and {again}"
            ) from None
        size_bytes += len(batch[-1][1]) + ITEM_BYTES
        if size_bytes >= BATCH_BYTES:
            yield batch, read_bytes
            batch, size_bytes = [], 0
    if batch:
        yield batch, read_bytes


def _taken_in(
    path: str, name: str, count: int, access: Access, as_json: bool, more: dict[str, Any] | None = None
) -> int:
    """Report the published items; if the queue has no owner, open it for a moment, so that it adopts them."""
    try:
        waits = _adopt(path, named(name), access)
    except QueueLockedError as locked:
        who = f"process {locked.pid} on {locked.host}" if locked.pid is not None else "another process"
        waits = f"published: {who} owns the queue, and adopts them"
    except (PersistentQueueError, OSError) as error:  # no failure of the verb: the items are durable
        waits = f"published: the next opening of the queue adopts them; it could not be opened now: {error}"
    if as_json:
        answer({"items": count, "published": bool(waits), **(more or {})}, f"enqueued {many(count, 'item')}")
    else:
        note(f"{many(count, 'item')} {waits or 'enqueued'}")
    return WELL


def _adopt(path: str, name: str | None, access: Access) -> str:
    """Open the queue for a moment, so that it adopts what is published; return why the items wait, or an empty text.

    The queue of another user is not opened, also not by root: files that an opening makes would belong to root alone.
    """
    disk = current_disk()
    user = disk.lstat(join(queue_directory(path, name), LOG_DIRECTORY)).st_uid
    if disk.geteuid() not in {None, user}:
        return f"published: the queue belongs to user {user}, whose processes adopt them"
    keyless = settings_of({**access, "keys": None})  # the producer has used the keys; to adopt, none is needed
    before = list_published(path, name)
    with own(path, name, create=False, lock_timeout=ADOPTION_SECONDS, **keyless):
        if set(list_published(path, name)).isdisjoint(before):  # later ones are of other producers
            return ""
    return (
        "published, and not adopted yet: the queue is at a limit, or the file of an earlier producer cannot be read: "
        "see the commands stat and check"
    )


@verb(
    USE,
    "import",
    parameter("source", completes="file", help="The directory or the file of the other queue."),
    PATH,
    NAME,
    parameter(
        "--from",
        dest="origin",
        required=True,
        choices=("persist-queue", "queuelib", "sqlite"),
        help="The package of the source; sqlite: any table.",
    ),
    parameter("--table", help="The table, if a database has several."),
    parameter("--column", help="With sqlite: the column of the items."),
    parameter("--order", metavar="COLUMN", help="With sqlite: the column that orders the items."),
    parameter(
        "--state",
        action="append",
        dest="states",
        metavar="STATE",
        choices=("inited", "ready", "unack", "acked", "ack_failed"),
        help="Of an ack queue: a state to import. Repeatable; default: inited, ready and unack.",
    ),
    parameter(
        "--newest-first", action="store_true", default=None, help="Begin with the newest item; default: as the kind."
    ),
    parameter("--skip-damaged", action="store_true", help="Import all other items if a part cannot be read."),
    parameter("--again", action="store_true", help="Import the source also if the queue has had its items."),
    *OWNING,
)
def import_(
    source: str,
    path: str,
    name: str | None,
    origin: Any,
    table: str | None,
    column: str | None,
    order: str | None,
    states: Sequence[str] | None,
    newest_first: bool | None,
    skip_damaged: bool,
    again: bool,
    as_json: bool,
    **access: Unpack[Owning],
) -> int:
    """Copy the items of a queue of persist-queue or queuelib, or of a SQLite table, once each. Stop its owner first.

    The source is only read, and its items are copied as it stored them. After a kill, the same command goes on where it
    stopped; a finished import adds nothing. The stored items are compared with the source. Status 1: damaged parts of
    the source were skipped.

    Disk: the items are durably enqueued; a queue that does not exist is made. Lock: needed.
    """
    from ..importers import import_queue  # noqa: PLC0415 - sqlite3 takes its time, and no other verb needs it

    target: Any = {} if name is None else {"name": named(name)}
    if states:
        target["states"] = states
    tell_if_made = made_note(path, name, as_json)
    with progress("import") as at:
        done = import_queue(
            source,
            path,
            **target,
            origin=origin,
            table=table,
            column=column,
            order=order,
            newest_first=newest_first,
            skip_damaged=skip_damaged,
            again=again,
            progress=at,
            wipe=True,
            keep_limits=True,
            **settings_of(access),
        )
    tell_if_made()
    damaged = [each.problem for each in done.damaged]
    if as_json:
        answer({**asdict(done), "damaged": damaged})
    else:
        before = f"; {done.count - done.added:,} were imported before" if done.added < done.count else ""
        say(f"imported: {many(done.added, 'item')} of {done.count:,} of {done.kind}, read by {done.codec}{before}")
        say(f"checksum: {done.checksum}")
        for each in damaged:
            say(f"skipped: {each}")
    return PROBLEMS if damaged else WELL


@verb(
    USE,
    "get",
    PATH,
    NAME,
    parameter("-n", "--count", type=Number(int, 0), default=1, help="Most items to take."),
    parameter("--all", dest="every", action="store_true", help="Take all items that are ready."),
    parameter(
        "--timeout", type=Number(float, 0), default=0.0, metavar="SECONDS", help="Seconds to wait for the first item."
    ),
    SUBSCRIPTION,
    *OWNING,
)
def get(
    path: str,
    name: str | None,
    count: int,
    every: bool,
    timeout: float,
    subscription: str,
    as_json: bool,
    **access: Unpack[Owning],
) -> int:
    """Print items, one line each, and then consume them; --json: one JSON line each.

    A transaction has up to 1,000 items, and is committed after stdout has taken all of them. After a crash between the
    two, the items are printed again; none is lost. If stdout is a pipe, the first transaction has one item, and each
    further one up to twice as many as the one before. It begins when the pipe's reader has taken the one before. If
    stdout is a file, each transaction waits until its items are durable in the file. Status 1: there was no item.

    Disk: the items are durably consumed. Lock: needed.
    """
    left, taken = 2**62 if every else count, 0
    piped = is_piped(sys.stdout)
    batch = 1 if piped else BATCH_ITEMS
    with (
        own(path, named(name), create=False, **settings_of(access)) as queue,
        _session(queue, subscription) as session,
    ):
        while left and (items := session.dequeue_many(min(left, batch), timeout)):
            if as_json:
                write(b"".join(json.dumps(item_json(item), ensure_ascii=False).encode() + b"\n" for item in items))
            else:
                write(b"".join(item + b"\n" for item in items))
            sync_stdout()
            session.flush()
            left, taken, timeout = left - len(items), taken + len(items), 0.0
            batch = min(2 * batch, BATCH_ITEMS)
            if piped and left:
                await_reader(sys.stdout)
    return WELL if taken or not count else PROBLEMS


def _session(queue: PersistentQueue, subscription: str) -> Session:
    """Return a session of the subscription, which must exist: a mistyped name makes no new one."""
    if not subscription:
        return queue.session("get")
    if subscription not in queue.subscriptions():
        directory = abspath(queue_directory(queue.path, queue.name))
        raise SubscriptionNotFoundError(directory, subscription, queue.subscriptions())
    return queue.subscribe(subscription).session("get")


@verb(
    USE,
    "move",
    PATH,
    parameter("names", nargs="*", metavar="NAME", completes="queue", help="The queues' names."),
    parameter("--to", default="", metavar="TARGET", completes="queue", help="Move items to this queue beside NAME."),
    parameter("-n", "--count", type=Number(int, 0), help="With --to: most items to move; default: all."),
    parameter("--data-path", default="", metavar="NEW", completes="directory", help="Move segments to NEW/NAME."),
    parameter("--back", action="store_true", help="Move segments back into the queues' directories."),
    *OWNING,
)
def move(
    path: str,
    names: Sequence[str],
    to: str,
    count: int | None,
    data_path: str,
    back: bool,
    as_json: bool,
    **access: Unpack[Owning],
) -> int:
    """Move items to another queue (--to), or the segments of closed queues to other media (--data-path, --back).

    Items move in transactions of up to 1,000 over both queues: after a kill at any moment, each item is in exactly one
    of them. Segments are copied, synced, and then deleted in their old location; that may be cut short at any moment,
    too. Status 1: the old location could not be swept.

    Disk: both queues, and TARGET is made if it does not exist; or the location of the segments. Lock: needed, for each.
    """
    if sum((bool(to), bool(data_path), back)) != 1:
        raise UsageError("expected exactly one of --to TARGET, --data-path NEW, --back")
    if not to:
        return _move_segments(path, names or ["."], data_path or None, access, as_json)
    if len(names) != 1:
        raise UsageError("--to moves the items of one queue: expected exactly one NAME")
    if is_itself(path, names[0], to):
        raise UsageError(f"--to {to}: this is the queue itself: name another one")
    settings = settings_of(access)
    source = partial(own, path, named(names[0]), create=False, **settings)
    target = partial(own, beside(path, names[0]), to, **settings)
    tell_if_made = made_note(beside(path, names[0]), to, as_json)
    return _move_items(source, target, (names[0], to), 2**62 if count is None else count, as_json, tell_if_made)


def _move_items(
    opened: Open,
    opened_target: Open,
    names: tuple[str, str],
    count: int,
    as_json: bool,
    tell_if_made: Callable[[], None],
) -> int:
    moved, most, (name, target) = 0, BATCH_ITEMS, names
    with ExitStack() as stack:
        source = stack.enter_context(opened())
        total = min(count, len(source))  # raised before the target is made: the source has only subscriptions
        other, at = stack.enter_context(opened_target()), stack.enter_context(progress("move"))
        tell_if_made()
        while moved < count:
            items: list[bytes] = []
            try:
                with transaction(source, other) as (taker, giver):
                    items = taker.dequeue_many(min(count - moved, most))
                    giver.enqueue_many(items)
            except QueueFullError as full:
                if not full.lasting or len(items) < 2:
                    raise
                most = len(items) // 2  # so many never fit; fewer may
                continue
            if not items:
                break
            moved += len(items)
            at(moved, total)
    what = f"{many(moved, 'item')} from {name} to {target}"
    tell_done("moved", what, {"items": moved, "source": name, "target": target}, as_json)
    return WELL


def _move_segments(path: str, names: Sequence[str], data_path: str | None, access: Owning, as_json: bool) -> int:
    timeout, trust = access["lock_timeout"], access["trust"]
    left: list[str] = []
    documents = []
    for name in names:
        with progress("move") as at:
            moved = move_data(path, named(name), data_path=data_path, lock_timeout=timeout, trust=trust, progress=at)
        left += moved.left
        documents.append({"name": name, **asdict(moved)})
        if not as_json:
            how_much = f"{many(moved.files, 'file')}, {many(moved.copied_bytes, 'byte')}"
            say(f"moved: {how_much}, from {moved.source} to {moved.target}")
            for place in moved.left:
                say(f"left: {place} is missing, or could not be swept; it may hold files that the queue does not need")
    if as_json:
        answer({"moved": documents})
    return PROBLEMS if left else WELL


@verb(
    USE,
    "requeue",
    PATH,
    NAME_NEEDED,
    parameter(
        "--from",
        dest="dead_letter",
        required=True,
        metavar="DEAD",
        completes="queue",
        help="The queue of the dead letters, beside NAME.",
    ),
    parameter("-n", "--count", type=Number(int, 0), help="Most items to move; default: all."),
    *OWNING,
)
def requeue(
    path: str,
    name: str,
    dead_letter: str,
    count: int | None,
    as_json: bool,
    **access: Unpack[Owning],
) -> int:
    """Move dead letters back to the end of the queue that they came from, with new delivery attempts.

    It is one transaction over both queues. Dead letters of other queues, and other items, stay. Status 1: no item was
    moved.

    Disk: both queues. Lock: needed, for both.
    """
    if is_itself(path, name, dead_letter):
        raise UsageError(f"--from {dead_letter}: this is the queue itself: name the queue of its dead letters")
    opened = partial(own, create=False, **settings_of(access))
    with (
        opened(beside(path, name), dead_letter) as dead,
        opened(path, named(name), dead_letter=dead) as queue,
    ):
        moved = queue.requeue(count)
    what = f"{many(moved, 'item')} from {dead_letter} to {name}"
    tell_done("requeued", what, {"items": moved, "source": dead_letter, "target": name}, as_json)
    return WELL if moved or count == 0 else PROBLEMS
