"""The verbs for worker processes: ``serve`` and ``worker``."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from persistentqueue import (
    Options,
    OtherOptionsWarning,
    OutcomeUnknownError,
    PersistentQueue,
    PersistentQueueError,
    ResourceError,
    connect,
)
from persistentqueue.drawing.text import many
from persistentqueue.options import for_dead_letters
from persistentqueue.storage.layout import queue_directory
from persistentqueue.system.disk import abspath
from persistentqueue.workers import SharedQueue, leave_together

from ..app import ACCESS, CREATE, NAME_NEEDED, NAMES, OWNING, PATH, SUBSCRIPTION, Owning, settings_of
from ..output import answer, log_at_once, note, say
from ..parser import USE, Number, UsageError, parameter, verb
from ..streams import FAILED, INTERRUPTED, PROBLEMS, WELL
from ..summary import made_note, named, owner_text, queues_in
from .crew import LOOK_SECONDS, Crew, need_python
from .function import function_at
from .loop import CODECS, Job, consumer_of
from .signals import Signals

if TYPE_CHECKING:
    from typing_extensions import Unpack

OWNER_SECONDS = 10.0
"""Seconds that ``worker`` waits for an owner that serves, by default: as ``connect`` does."""
ATTEMPTS = (
    parameter(
        "--max-attempts",
        type=Number(int, 1),
        metavar="COUNT",
        help="Delivery attempts of an item before it becomes a dead letter. Needs --dead-letter.",
    ),
    parameter(
        "--dead-letter",
        metavar="NAME",
        completes="queue",
        help="The queue for dead letters, beside the others; it is served, too.",
    ),
    parameter(
        "--retry-delay",
        type=Number(float, 0),
        default=0.0,
        metavar="SECONDS",
        help="Seconds until an item that failed is ready again.",
    ),
)
"""Options of both verbs, about items that fail."""
_LOG = logging.getLogger("persistentqueue")


class Serving(Owning):
    """The values of the options that ``serve`` has beside ``ATTEMPTS`` and ``CREATE``."""

    max_items: int | None
    max_bytes: int | None
    max_disk_bytes: int | None
    min_free_bytes: int
    full: Literal["raise", "block"]
    sync: bool
    wipe: bool
    fan_out: bool
    data_path: str | None
    compression: Literal["zstd"] | None
    grace_seconds: float


def _options(
    access: Owning, *, max_attempts: int | None, dead_letter: str | None, retry_delay: float, create: bool
) -> Options:
    if max_attempts is not None and dead_letter is None:
        raise UsageError("--max-attempts needs --dead-letter NAME, the queue for items that have no attempts left")
    return Options(
        create=create,
        max_attempts=max_attempts,
        dead_letter=dead_letter,
        retry_delay_seconds=retry_delay,
        **settings_of(access),
    )


@verb(
    USE,
    "serve",
    PATH,
    NAMES,
    *ATTEMPTS,
    parameter("--max-items", type=Number(int, 1), metavar="COUNT", help="Most items of a queue."),
    parameter("--max-bytes", type=Number(int, 1), metavar="BYTES", help="Most bytes of a queue's items."),
    parameter("--max-disk-bytes", type=Number(int, 1), metavar="BYTES", help="Most bytes of a queue's files."),
    parameter(
        "--min-free-bytes",
        type=Number(int, 0),
        default=Options.min_free_bytes,
        metavar="BYTES",
        help="Bytes of the file system that enqueues leave free.",
    ),
    parameter(
        "--full",
        choices=("raise", "block"),
        default="raise",
        help="At a limit: refuse what has no room, or let it wait.",
    ),
    parameter(
        "--no-sync", action="store_false", dest="sync", help="Do not wait for the disk: a power cut may lose flushes."
    ),
    parameter("--wipe", action="store_true", help="Overwrite each file that the owner frees."),
    parameter("--fan-out", action="store_true", help="Let only subscriptions read a new queue."),
    parameter(
        "--data-path",
        metavar="DIR",
        completes="directory",
        help="Keep the segments of a new queue in DIR/NAME, on other media.",
    ),
    parameter("--compression", choices=("zstd",), help="Compress each block that becomes smaller."),
    parameter(
        "--grace-seconds",
        type=Number(float, 0),
        default=Options.grace_seconds,
        metavar="SECONDS",
        help="At the end, time for workers to flush what they hold.",
    ),
    *CREATE,
    *OWNING,
)
def serve(
    path: str,
    names: Sequence[str],
    max_attempts: int | None,
    dead_letter: str | None,
    retry_delay: float,
    create: bool,
    as_json: bool,
    **settings: Unpack[Serving],
) -> int:
    """Own queues, and serve them to the processes that connect to them, until SIGTERM, SIGHUP or Ctrl-C.

    Without a NAME it serves the queues that exist in PATH. A queue that is named, and does not exist, is made. A line
    on stdout says that the queues are served. Without an option of a limit, each queue keeps its recorded limits. A
    signal closes the queues and seals their logs: status 0. Until then, workers that hold items have --grace-seconds
    to flush them, also in transactions over several of the queues; a second signal ends that time. Status 130: the
    signal came before that line. Status 2: a queue could not be opened, or it broke.

    Disk: the queues, as its clients ask for. Lock: needed, until the end.
    """
    options = _options(
        settings,
        max_attempts=max_attempts,
        dead_letter=dead_letter,
        retry_delay=retry_delay,
        create=create and bool(names),
    )
    limits = (options.max_items, options.max_bytes, options.max_disk_bytes)
    options = replace(options, keep_limits=limits == (None, None, None))
    found = [each for each in dict.fromkeys(queues_in(path, names)) if each != dead_letter]
    if not found:
        raise UsageError(f"--dead-letter {dead_letter}: no queue is left to serve: name another queue for dead letters")
    with Signals() as signals, ExitStack() as opened:
        queues = list(_opened(opened, path, found, options, as_json))
        log_at_once()
        signals.ready()  # before the line: a reader of it may send a signal at once
        if as_json:
            answer({"serving": found, "path": path, "process": os.getpid()})
        else:
            say(f"serving {', '.join(found)} in {path}, process {os.getpid()}")
        while not signals.wait(LOOK_SECONDS):
            for queue in queues:
                _need_usable(queue)
                queue.view()  # raises an error if the directory was renamed or deleted
        signals.interruptible(partial(_close_together, queues, opened), 1)
    return WELL


def _close_together(queues: Sequence[PersistentQueue], opened: ExitStack) -> None:
    """Close the queues. None of them ends while a worker has work at another one, unless its time is over."""
    leave_together(abspath(queue_directory(queue.path, queue.name)) for queue in queues)
    opened.close()


def _need_usable(queue: PersistentQueue | SharedQueue[bytes]) -> None:
    """Make a call of the queue. Raises its error if it is broken here, so that a supervisor starts another owner."""
    with suppress(ResourceError):  # such as a lack of file descriptors: it may pass
        is_broken = queue.stats().broken
        if is_broken and (isinstance(queue, PersistentQueue) or queue.owns):
            queue.trim()


def _opened(
    opened: ExitStack, path: str, names: Sequence[str], options: Options, as_json: bool
) -> Iterator[PersistentQueue]:
    """Yield the queues, open and served. Those with a name share the dead-letter queue, which is opened first; that of
    the queue ``.`` lies beside ``path``."""
    served, shared = partial(PersistentQueue, path, serve=True), options
    if isinstance(options.dead_letter, str) and set(names) != {"."}:
        tell_if_made = made_note(path, options.dead_letter, as_json)
        dead = opened.enter_context(served(options.dead_letter, options=for_dead_letters(options)))
        tell_if_made()
        shared = replace(options, dead_letter=dead)
        yield dead
    for name in names:
        tell_if_made = made_note(path, name, as_json)
        queue = opened.enter_context(served(named(name), options=options if name == "." else shared))
        tell_if_made()
        yield queue


@verb(
    USE,
    "worker",
    PATH,
    NAME_NEEDED,
    parameter("function", metavar="MODULE:FUNCTION", help="The function, which takes one item."),
    parameter("--processes", type=Number(int, 1), default=1, metavar="COUNT", help="Number of processes."),
    parameter("--batch", type=Number(int, 1), default=1, metavar="COUNT", help="Most items for each flush."),
    parameter("--codec", choices=tuple(CODECS), default="bytes", help="What the function gets of an item."),
    *ATTEMPTS,
    SUBSCRIPTION,
    parameter("--until-empty", action="store_true", help="End when no item is left, held ones included."),
    *CREATE,
    parameter(
        "--lock-timeout",
        type=Number(float, 0),
        default=OWNER_SECONDS,
        metavar="SECONDS",
        help="Seconds to wait for an owner that serves, or for the lock.",
    ),
    *ACCESS,
)
def worker(
    path: str,
    name: str,
    function: str,
    processes: int,
    batch: int,
    codec: str,
    max_attempts: int | None,
    dead_letter: str | None,
    retry_delay: float,
    subscription: str,
    until_empty: bool,
    create: bool,
    as_json: bool,
    **access: Unpack[Owning],
) -> int:
    """Call a function for each item, in several processes. An item is consumed when its call has returned.

    Without --subscription, the items are those of the plain queue. With it, they are those of that subscription, which
    must exist: a program makes it.

    If the call raises, the item goes back to its place, and its process pauses, up to 5 seconds. Every process then
    takes this item first: nothing behind it is done until its call returns. So one item that always fails stops the
    queue, with any number of processes. With --retry-delay, others overtake the item until it is ready again. With
    --max-attempts and --dead-letter it is given up: after so many attempts it becomes a dead letter, with the error as
    its reason.

    The result of the call is ignored, but a call that has only begun its work, as one of a coroutine, has failed. A
    process that dies is started again, and its item is done by another one.

    SIGTERM, SIGHUP or Ctrl-C ends the processes when each has finished its item; a second signal kills them. The last
    line has the number of items done, of calls that failed, and of processes that were started again. Status 130: they
    were killed. Status 1: items cannot be read, and are left. Status 2: the owner of the queue has no key for the next
    item, for example.

    Disk: items are durably consumed; a queue that does not exist is made. Lock: needed, unless another process serves
    the queue. The options about attempts are then those of that owner: give them to its command serve. The command is
    refused if it has --dead-letter, and that owner has no dead letters.
    """
    options = _options(
        access, max_attempts=max_attempts, dead_letter=dead_letter, retry_delay=retry_delay, create=create
    )
    options = replace(options, keep_limits=True)
    need_python()
    function_at(function)
    counts = dead_letter is not None or retry_delay > 0
    job = Job(
        path=path,
        name=named(name),
        subscription=subscription,
        function=function,
        codec=codec,
        batch=batch,
        until_empty=until_empty,
        counts=counts,
        lock_timeout=access["lock_timeout"],
        trust=access["trust"],
        network_disk=access["network_disk"],
        as_json=as_json,
    )
    tell_if_made = made_note(path, name, as_json)
    with Signals(signal.SIGCHLD) as signals, _connected(path, name, options) as queue:
        log_at_once()
        tell_if_made()
        look = partial(_need_consumer, queue, subscription)
        look()
        if not as_json:
            running = f"running {function} for the items of {os.path.normpath(os.path.join(path, name))}"
            note(f"{running} in {many(processes, 'process', 'processes')}, started by process {os.getpid()}")
        result = Crew(job, processes, signals.ready(), look).run()
        damaged = 0
        if not result.killed:  # else the owner may be one that answers no call
            with suppress(PersistentQueueError, OSError):  # another process owned it, and has ended
                damaged = queue.stats().damaged
    if as_json:
        answer({"done": result.done, "failed": result.failed, "restarted": result.restarted, "damaged": damaged})
    else:
        failed, restarted = many(result.failed, "call"), many(result.restarted, "restart")
        say(f"{many(result.done, 'item')} done, {failed} failed, {restarted}")
    if damaged:
        left = many(damaged, "item cannot", "items cannot")
        _LOG.warning("%s be read and stay in the queue: see the command repair", left)
    if result.killed:
        return INTERRUPTED
    return FAILED if result.hopeless else PROBLEMS if damaged else WELL


@contextmanager
def _connected(path: str, name: str, options: Options) -> Iterator[SharedQueue[bytes]]:
    """Connect to the queue inside the block, and note which options have no effect, since another process owns it.

    Raises ``UsageError`` if one of them is the queue for dead letters.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OtherOptionsWarning)
        queue: SharedQueue[bytes] = connect(path, named(name), options=options)
    with queue:
        if options.dead_letter is not None:
            _need_dead_letters(queue, options.dead_letter)
        for each in caught:
            _LOG.warning("%s", each.message)
        yield queue


def _need_consumer(queue: SharedQueue[bytes], subscription: str) -> None:
    """Raise the error of a queue that is broken here, or of a consumer that does not exist."""
    _need_usable(queue)
    consumer_of(queue, subscription).sizes()


def _need_dead_letters(queue: SharedQueue[bytes], dead_letter: object) -> None:
    """Raise ``UsageError`` if another process owns the queue without dead letters: its options count, not ours."""
    try:
        with suppress(OutcomeUnknownError):  # that owner has just ended
            queue.requeue(0)  # it moves nothing, and only an owner with dead letters allows it
    except ValueError:
        owner = owner_text(queue.view().look())
        raise UsageError(
            f"--dead-letter {dead_letter}: the owner of the queue, process {owner}, has no dead letters: give the "
            "options about attempts to the command of that process, such as persistentqueue serve"
        ) from None
