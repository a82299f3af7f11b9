"""The verbs for maintenance: ``repair``, ``compact``, ``clear``, ``delete``, ``pool``, ``bench``."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from persistentqueue import PersistentQueueError, QueueNotFoundError, View, delete_queue, repair
from persistentqueue.drawing.charts import SPARSE
from persistentqueue.drawing.text import many, rate_text, size_text
from persistentqueue.storage.layout import open_pool, queue_directory
from persistentqueue.storage.pool import SIZE_BYTES_MAX

from .app import LOCK_TIMEOUT, NAME, NAME_NEEDED, NETWORK_DISK, OWNING, PATH, TRUST, Owning, own, settings_of
from .bench import SECONDS, measure
from .formatting import lost_text
from .output import answer, progress, say, show, tell_done
from .parser import KEEP, Number, UsageError, parameter, verb
from .streams import PROBLEMS, WELL
from .summary import named

if TYPE_CHECKING:
    from typing_extensions import Unpack

MIB = 1024 * 1024
FILL, SHOW, CLEAR = "fill", "show", "clear"
"""The actions of the verb ``pool``."""


@verb(
    KEEP,
    "repair",
    PATH,
    NAME,
    parameter(
        "--data-path",
        default="",
        metavar="DIR",
        completes="directory",
        help="The segments' location, if the queue lost it.",
    ),
    parameter("--renew", action="store_true", help="Give a copied queue an identity of its own."),
    parameter("--fan-out", action="store_true", help="Remove the only consumer if it has no name; keep its items."),
    TRUST,
)
def repair_(path: str, name: str | None, data_path: str, renew: bool, fan_out: bool, trust: bool, as_json: bool) -> int:
    """Make a damaged queue open again: keep intact data, set the rest aside (*.damaged), report what is lost.

    It may be cut short at any moment, and run again. Status 1: there were problems.

    Disk: the queue; nothing is deleted, and each file is copied before it is cut. Lock: needed.
    """
    with progress("repair") as at:
        try:
            options = {"renew": renew, "fan_out": fan_out, "trust": trust}
            report = repair(path, named(name), data_path=data_path or None, progress=at, **options)
        except PersistentQueueError:  # some are a ValueError, too
            raise
        except ValueError as refused:
            raise UsageError(str(refused)) from None
    if as_json:
        answer(asdict(report))
        return PROBLEMS if report.problems else WELL
    for problem in report.problems:
        say(problem)
    for first, count in report.lost:
        say(lost_text(first, count))
    if report.without_log:
        say("the log could not be used: some of the items in the queue may have been consumed before")
    for kept in report.kept:
        say(f"kept: {kept}")
    say(f"{many(report.items, 'item')} in the queue; {many(len(report.problems), 'problem')} found")
    return PROBLEMS if report.problems else WELL


@verb(
    KEEP,
    "compact",
    PATH,
    NAME,
    parameter(
        "--below",
        type=Number(float, 0, 1),
        default=SPARSE,
        metavar="SHARE",
        help="Compact files whose live share is below this.",
    ),
    *OWNING,
)
def compact(
    path: str,
    name: str | None,
    below: float,
    as_json: bool,
    **access: Unpack[Owning],
) -> int:
    """Copy the live items of sparse data files to new ones, and free the sparse files.

    An owner does this on its own, about a second after a commit. It may be cut short at any moment. A file stays if it
    is damaged, or encrypted with a key that was not given: name the new key first, then each old one.

    Disk: the queue's data files; it needs free space for one more. Lock: needed.
    """
    with own(path, named(name), create=False, **settings_of(access)) as queue:
        before = View(path, named(name)).look()
        with progress("compact") as at:
            done = queue.compact(below=below, progress=at)
        after = View(path, named(name)).look()
    freed_bytes = before.data_bytes - after.data_bytes
    if as_json:
        answer({**done._asdict(), "freed_bytes": freed_bytes})
    else:
        say(
            f"{many(done.segments, 'data file')} emptied, {size_text(done.copied_bytes)} copied; all data files: "
            f"{size_text(before.data_bytes)} before, {size_text(after.data_bytes)} now"
        )
    return WELL


@verb(KEEP, "clear", PATH, NAME_NEEDED, LOCK_TIMEOUT, TRUST, NETWORK_DISK)
def clear(path: str, name: str, lock_timeout: float, trust: bool, network_disk: bool, as_json: bool) -> int:
    """Consume all items of the plain queue, in one transaction, and print none of them. Subscriptions keep theirs.

    No key is needed. Items that cannot be read stay: see `repair`.

    Disk: the items are durably consumed. Lock: needed.
    """
    opened = own(path, named(name), create=False, lock_timeout=lock_timeout, trust=trust, network_disk=network_disk)
    with opened as queue:
        count = queue.clear()
    tell_done("consumed", many(count, "item"), {"items": count}, as_json)
    return WELL


@verb(
    KEEP,
    "delete",
    PATH,
    NAME_NEEDED,
    parameter(
        "--yes",
        action="store_true",
        help="Delete the queue also if it has items or is damaged, but not without a log: see `repair`.",
    ),
    LOCK_TIMEOUT,
    TRUST,
)
def delete(path: str, name: str, yes: bool, lock_timeout: float, trust: bool, as_json: bool) -> int:
    """Delete a queue with all its files, permanently. If any item is left, this needs --yes.

    Items that other processes publish during the call are deleted, too. A directory that holds files of others stays,
    with these files. The deletion may be cut short at any moment, and run again.

    Disk: the queue, and its segments in another location. Lock: needed.
    """
    if not yes:
        _need_empty(path, name)
    delete_queue(path, named(name), lock_timeout=lock_timeout, trust=trust)
    directory = queue_directory(path, named(name))
    tell_done("deleted", directory, {"deleted": directory}, as_json)
    return WELL


def _need_empty(path: str, name: str) -> None:
    """Raise ``UsageError`` if a consumer of the queue has items left, or if items are published."""
    try:
        seen = View(path, named(name)).look()
    except QueueNotFoundError:  # perhaps a deletion was cut short, which is then finished
        return
    plain = [] if seen.fan_out else [("", seen.depth)]
    left = [(f" for {who!r}" if who else "", count) for who, count in (*plain, *seen.subscriptions)]
    what = [f"{many(count, 'item')} left{whom}" for whom, count in left if count]
    what += [f"{many(seen.published, 'transaction')} in its inbox"] if seen.published else []
    if what:
        raise UsageError(f"{seen.directory}: the queue has {', '.join(what)}: to delete them, too, give --yes")


@verb(
    KEEP,
    "pool",
    parameter("action", choices=(FILL, SHOW, CLEAR), help="Make files, count them, or delete them."),
    PATH,
    NAME,
    parameter("--shared", action="store_true", help="Use the pool that all queues of PATH share."),
    parameter(
        "--bytes",
        dest="size_bytes",
        type=Number(int, 1, SIZE_BYTES_MAX),
        default=256 * MIB,
        metavar="BYTES",
        help="fill: bytes of the whole pool.",
    ),
    parameter(
        "--file-bytes",
        type=Number(int, 1, SIZE_BYTES_MAX),
        default=64 * MIB,
        metavar="BYTES",
        help="fill: bytes of each file.",
    ),
)
def pool(
    action: str, path: str, name: str | None, shared: bool, size_bytes: int, file_bytes: int, as_json: bool
) -> int:
    """Fill, show or clear the pool of empty files, which become data files later.

    It works while the queue is in use.

    Disk: `show` changes nothing; `fill` makes files, and removes what a killed `fill` left; `clear` deletes the pool's
    files. Lock: not needed.
    """
    if size_bytes < file_bytes:
        raise UsageError(f"--bytes is {size_bytes}, less than one file with --file-bytes {file_bytes}: raise --bytes")
    found = open_pool(path, named(name), shared=shared, max_bytes=size_bytes, create=action == FILL)
    removed, made, deleted_bytes = [], [], 0
    if action == FILL:
        removed = found.clean()
        made = list(found.fill(size_bytes, file_bytes))
    elif action == CLEAR:
        deleted_bytes = found.shrink(0)
    files = found.files()
    total_bytes = sum(each.size_bytes for each in files)
    if as_json:
        listed = {"files": len(files), "bytes": total_bytes}
        answer({"removed": removed, "made": made, "deleted_bytes": deleted_bytes, **listed})
        return WELL
    for each in removed:
        say(f"removed: {each}")
    for length_bytes in made:
        say(f"made: {size_text(length_bytes)}")
    if action == CLEAR:
        say(f"deleted: {size_text(deleted_bytes)}")
    say(f"{many(len(files), 'file')}, {size_text(total_bytes)}")
    return WELL


@verb(
    KEEP,
    "bench",
    parameter("path", completes="directory", help="A directory on the disk to measure."),
    parameter("--seconds", type=Number(float, 0.1), default=SECONDS, help="Approximate duration in seconds."),
)
def bench(path: str, seconds: float, as_json: bool) -> int:
    """Compare a queue with its disk: durable flushes of 100-byte items, and bare durable writes, in turn.

    The result holds for this disk at this moment: other work on the disk slows both down.

    Disk: a directory in PATH is made, and deleted again. Lock: only of the queue in that directory.
    """
    if not os.path.isdir(path):
        raise UsageError(f"{path}: there is no such directory: name one on the disk to measure")
    with progress("bench") as at:
        rows = measure(path, seconds, lambda done: at(done, seconds))
    if as_json:
        answer({"item_bytes": 100, "rows": [row._asdict() | {"ratio": row.ratio} for row in rows]})
        return WELL
    show(
        ["", "the bare disk, items/s", "the queue, items/s", "ratio", "syncs per flush"],
        [
            (
                row.what,
                rate_text(row.bare_per_second),
                rate_text(row.queue_per_second),
                f"{row.ratio:.2f}",
                f"{row.syncs_per_flush:.2f}",
            )
            for row in rows
        ],
    )
    say("The bare disk: one durable write for each flush, to a file that was written before.")
    return WELL
