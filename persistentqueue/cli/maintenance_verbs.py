"""The verbs that keep queues well: ``repair``, ``compact``, ``pool``, ``bench``."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from functools import partial
from typing import Annotated

import typer

from persistentqueue import View, repair
from persistentqueue.storage.layout import open_pool
from persistentqueue.storage.pool import SIZE_BYTES_MAX

from .app import (
    LOCK_SECONDS,
    PROBLEMS,
    WELL,
    JsonOption,
    KeyOption,
    LockOption,
    NameArgument,
    PathArgument,
    TrustOption,
    UsageError,
    answer,
    encryption_of,
    own,
    progress,
    say,
    show,
    verb,
)
from .bench import SECONDS, measure
from .display.charts import SPARSE, share_of
from .formatting import lost_text, many, rate_text, size_text
from .summary import named

KEEP = "Keep well"
MIB = 1024 * 1024


class Action(str, Enum):
    """What is done with a pool."""

    FILL = "fill"
    SHOW = "show"
    CLEAR = "clear"


@verb(KEEP, "repair")
def repair_(
    path: PathArgument,
    name: NameArgument = None,
    data_path: Annotated[str, typer.Option(metavar="DIR", help="Where the segments are, if that is lost.")] = "",
    renew: Annotated[bool, typer.Option("--renew", help="Give the queue a new identity: it is a copy.")] = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> int:
    """Keep what is intact, set aside what is not (*.damaged), and report what is lost.

    May be cut short, and run again. Status 1: there were problems.

    Disk: the queue; nothing is deleted, each file that is cut is copied before. Lock: needed.
    """
    report = repair(path, named(name), data_path=data_path or None, renew=renew, trust=trust)
    if as_json:
        answer(asdict(report))
        return PROBLEMS if report.problems else WELL
    for problem in report.problems:
        say(problem)
    for first, count in report.lost:
        say(lost_text(first, count))
    if report.without_log:
        say("the log was of no use: some of these items may have been consumed before")
    for kept in report.kept:
        say(f"kept: {kept}")
    say(f"{report.items} items are in the queue; {len(report.problems)} problems were found")
    return PROBLEMS if report.problems else WELL


@verb(KEEP)
def compact(
    path: PathArgument,
    name: NameArgument = None,
    below: Annotated[float, typer.Option(min=0, max=1, help="Files of which less than this share lives.")] = SPARSE,
    lock_timeout: LockOption = LOCK_SECONDS,
    trust: TrustOption = False,
    keys: KeyOption = None,
    as_json: JsonOption = False,
) -> int:
    """Copy what lives in sparse data files together, and give the files back.

    An owner does the same by himself, about a second after a commit. May be cut short at any moment.

    Disk: the queue's data files; room for one more is needed meanwhile. Lock: needed.
    """
    encryption = encryption_of(keys)
    opened = partial(own, create=False, lock_timeout=lock_timeout, encryption=encryption, trust=trust)
    with opened(path, named(name)) as queue:
        before = View(path, named(name)).look()
        sparse_bytes = sum(each.live_bytes for each in before.segments if share_of(each) < below)
        with progress("compact", sparse_bytes) as at:
            done = queue.compact(below=below, progress=at)
        after = View(path, named(name)).look()
    freed_bytes = before.data_bytes - after.data_bytes
    if as_json:
        answer({**done._asdict(), "freed_bytes": freed_bytes})
    else:
        say(
            f"{many(done.segments, 'data file')} emptied, {size_text(done.copied_bytes)} copied; the data files took "
            f"{size_text(before.data_bytes)}, and take {size_text(after.data_bytes)}"
        )
    return WELL


@verb(KEEP)
def pool(
    action: Annotated[Action, typer.Argument(help="Make files, list them, or delete them.")],
    path: PathArgument,
    name: NameArgument = None,
    shared: Annotated[bool, typer.Option("--shared", help="The pool that all queues of PATH share.")] = False,
    size_bytes: Annotated[
        int, typer.Option("--bytes", min=1, max=SIZE_BYTES_MAX, help="fill: until it has so many.")
    ] = 256 * MIB,
    file_bytes: Annotated[int, typer.Option(min=1, max=SIZE_BYTES_MAX, help="fill: of each file.")] = 64 * MIB,
    as_json: JsonOption = False,
) -> int:
    """Make empty files for data files to come, or say what the pool has.

    Works while the queue is in use.

    Disk: `show` changes nothing; `fill` makes files, and removes what one left that was killed; `clear` deletes the
    pool's files. Lock: not needed.
    """
    if size_bytes < file_bytes:
        raise UsageError(f"--bytes, {size_bytes}, is less than a file has, --file-bytes, {file_bytes}")
    found = open_pool(path, named(name), shared=shared, max_bytes=size_bytes, create=action is not Action.SHOW)
    removed, made, deleted_bytes = [], [], 0
    if action is Action.FILL:
        removed = found.clean()
        made = list(found.fill(size_bytes, file_bytes))
    elif action is Action.CLEAR:
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
        say(f"made: {length_bytes} bytes")
    if action is Action.CLEAR:
        say(f"deleted: {deleted_bytes} bytes")
    say(f"{len(files)} files, {total_bytes} bytes")
    return WELL


@verb(KEEP)
def bench(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A directory on the disk that is meant.")],
    seconds: Annotated[float, typer.Option(min=0.1, help="How long it takes, about.")] = SECONDS,
    as_json: JsonOption = False,
) -> int:
    """Measure this disk against this queue: durable writes of the same bytes, in turn, with items of 100 bytes.

    What it says is about this disk at this moment: other work on it makes both slower.

    Disk: a directory in PATH is made, and deleted again. Lock: of no other queue.
    """
    with progress("bench", seconds) as at:
        rows = measure(path, seconds, at)
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
    say("The bare disk: one durable write of the same bytes for each flush, to a file that was written before.")
    return WELL
