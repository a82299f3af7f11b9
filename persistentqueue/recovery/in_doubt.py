"""What a log says of transactions over several queues, and what the logs of its neighbours say of the same.

A queue is *in doubt* whose log ends in a prepare without a resolution (see ``several`` for how it came to that). What
became of it stands in the log of the coordinator, a neighbour: in the frame with the number that the prepare names, or,
once that log was trimmed, behind its checkpoint, where a decision stays until each participant's log has settled it. It
stands nowhere if nothing was decided, and then nothing is committed (*presumed abort*).

To ask (``doubt.1`` …), under the lock of the queue that is in doubt, so that nobody is deciding just now:

1. If the coordinator's log is sealed, and comes as far, go on with 2: it says all there is, durably, whoever owns it.
   Else, if its lock is free, open it, which makes durable what its log says: the decision may have survived in the page
   cache only. Close it. If it is owned, its owner has done so, or is at it, or is the one who decided. *Who opens it
   just then, and does not wait for its lock, hears that it is owned.*
2. Make the name of the log's newest generation durable, if an older one is still there, and read it, whether it is
   owned or not. A checkpoint is durable before it has its name, and a frame before another one follows it; of the last
   frame its owner alone knows that. What is not certain is asked for again, for a second. *A crash leaves the queue in
   doubt, and the next opening asks again: the coordinator remembers.*

A coordinator forgets by the same rules: a log needs no decision any more that has the resolution, with a frame behind
it, or no prepare at all, since it was trimmed. Participants are known by their identities, too: a log of another queue
that has the name of one says nothing of it. It forgets, too, what a participant would ask whose directory is gone,
and remembers up to which frame it may have done so: should that one come back, it hears that nobody knows, not that
nothing is committed. It waits for that until none that is there is in doubt, of whom it would have to say the same.

The coordinator is known by its identity, not by its name: another one that has its name is not believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from stat import S_ISDIR

from ..core.frame import END
from ..core.operations import Decision, Identity, Operation, Prepare
from ..core.state import State
from ..errors import CorruptionError, InDoubtError, PersistentQueueError, QueueNotFoundError
from ..storage.locations import LOG_DIRECTORY
from ..storage.log import Replay, log_name, parse_log_name, read_steadily, read_whole, replay
from ..system.disk import READ, Disk, StatResult, abspath, basename, dirname, join, read_all, sync_directory
from ..system.trust import open_plain

Decide = Callable[[Prepare], bool]
"""Says whether a transaction is committed that was prepared. Raises ``InDoubtError``."""

_NOBODY = Identity(b"", 0)
_TRIES = 100
_POLL_SECONDS = 0.01
_LITTLE_BYTES = 64 * 1024
"""What is read of a log at first: of most queues there is no more in it."""
_REPAIR = "or run repair on this queue, which drops what is in doubt, and keeps the log that says what it was"


def ask(
    disk: Disk, directory: str, prepare: Prepare, recover: Callable[[str], bool], is_sound: Callable[[str], bool]
) -> bool:
    """Whether the transaction is committed that the queue in this directory has prepared, whose lock is held.

    ``recover`` opens and closes the coordinator; False where it is owned. ``is_sound`` says of a coordinator that this
    process owns it and knows all of its log to be durable. Raises ``InDoubtError``, and ``OSError`` and what comes of
    it: ask again then.
    """
    directory = abspath(directory)
    coordinator = join(dirname(directory), prepare.coordinator)
    doubt = partial(InDoubtError, directory, prepare.transaction, coordinator)
    reason = ""
    if coordinator == directory:
        raise doubt(f"that is this queue itself, which had another name: give it back, {_REPAIR}", True)
    judge = partial(_judge, prepare, doubt)
    disk.failpoint("doubt.2 read coordinator")
    sealed = _read_sealed(disk, coordinator, prepare)
    if sealed is not None:
        return bool(judge(sealed, True))
    for _ in range(_TRIES):
        disk.failpoint("doubt.1 recover coordinator")
        try:
            is_owned = not recover(coordinator)
        except QueueNotFoundError as error:
            raise doubt(f"there is no queue: bring it back, {_REPAIR}", True) from error
        except CorruptionError as error:
            raise doubt(f"repair that one first ({error})") from error
        except InDoubtError as error:
            raise doubt(f"that one is in doubt itself ({error})") from error
        disk.failpoint("doubt.2 read coordinator")
        try:
            newest = read_newest(disk, coordinator)
        except (CorruptionError, FileNotFoundError) as error:  # what is written meanwhile may look like that
            newest, reason = None, f"it cannot be read ({error})"
        if newest is not None:
            verdict = judge(newest, is_owned and is_sound(coordinator))
            if verdict is not None:
                return verdict
            if newest.last_number < prepare.number - 1:
                raise doubt(f"it ends before, so it is not what was written then: bring that back, {_REPAIR}", True)
            reason = "its owner is about to end, or broken, or idle: flush something there, or close it, then try again"
        disk.sleep(_POLL_SECONDS)
    raise doubt(reason)


def _read_sealed(disk: Disk, coordinator: str, prepare: Prepare) -> Replay | None:
    """The log of a coordinator that was closed cleanly since, so that it says durably what there is to say."""
    try:
        newest = read_newest(disk, coordinator)
    except (OSError, PersistentQueueError):  # whoever opens it will hear of it
        return None
    return newest if newest is not None and newest.sealed and newest.last_number >= prepare.number else None


def _judge(prepare: Prepare, doubt: Callable[[str, bool], InDoubtError], newest: Replay, is_sound: bool) -> bool | None:
    """What the log of whoever has the coordinator's name says; None where that is not certain. Raises ``InDoubtError``
    where it is another queue, or has forgotten it."""
    identity = _identity(newest)
    if not _is_meant(prepare, identity):
        raise doubt(f"another queue has that name, which knows nothing of it: bring that back, {_REPAIR}", True)
    verdict = _verdict(newest, prepare, is_sound)
    if verdict is False and prepare.number <= identity.forgotten:
        raise doubt(f"that one was opened when this queue was not there, and has forgotten it: {_REPAIR[3:]}", True)
    return verdict


def _identity(newest: Replay) -> Identity:
    return next((each for each in newest.supplement if isinstance(each, Identity)), _NOBODY)


def _is_meant(prepare: Prepare, identity: Identity) -> bool:
    """Whether this is the coordinator, not only by its name; of older logs nobody can tell."""
    return prepare.queue in {b"", identity.queue}


def _verdict(newest: Replay, prepare: Prepare, is_sound: bool) -> bool | None:
    """What a coordinator's log says; None where that is not certain."""
    if newest.frames[0].number >= prepare.number:
        return _decides(newest.supplement, prepare)
    for at, frame in enumerate(newest.frames):
        if frame.number == prepare.number:
            decided = any(_decides(transaction, prepare) for transaction in frame.transactions)
            is_durable = is_sound or at + 1 < len(newest.frames)
            return decided if is_durable or not decided else None
    return False if is_sound and newest.last_number == prepare.number - 1 else None


def _decides(operations: Iterable[Operation], prepare: Prepare) -> bool:
    return any(isinstance(each, Decision) and each.transaction == prepare.transaction for each in operations)


def forget_settled(disk: Disk, directory: str, state: State, last_number: int) -> None:
    """Forget the decisions of the queue in this directory that no participant has to ask for any more. ``last_number``
    is that of the last frame of its log.

    Whose log cannot be read may be about to come back; whose directory is gone was deleted, as far as anybody knows.
    """
    directory = abspath(directory)
    neighbours, gone = dirname(directory), []
    for name, transaction in list(state.asked_for.items()):
        try:
            newest = read_newest(disk, join(neighbours, name.name))
        except (OSError, PersistentQueueError):
            if _is_gone(disk, join(neighbours, name.name)):
                gone.append((transaction, name))
            continue
        if newest is not None and name.queue not in {b"", _identity(newest).queue}:
            gone.append((transaction, name))  # another queue has its name by now
            continue
        if newest is not None and not any(each.transaction == transaction for each in _unsettled(newest)):
            state.forget(transaction, name)
    if gone and find_unsettled(disk, directory, disk.listdir(neighbours)) is None:
        for transaction, name in gone:
            state.forget(transaction, name)
        state.forgotten = last_number


def _is_gone(disk: Disk, directory: str) -> bool:
    try:
        disk.lstat(directory)
    except FileNotFoundError:
        return True
    return False


def find_copy(disk: Disk, directory: str, identity: bytes, is_own: Callable[[StatResult], bool]) -> str | None:
    """One of the neighbours of the queue in this directory that has the same identity: one is a copy of the other.

    ``is_own`` says of a directory whether it is that of the queue itself, which may be renamed meanwhile.
    """
    neighbours = dirname(abspath(directory))
    for name in sorted(disk.listdir(neighbours)):
        path = join(neighbours, name)
        with suppress(OSError, PersistentQueueError):  # no queue, or none that anybody opens
            newest = read_newest(disk, path, hurried=True)
            if newest is not None and _identity(newest).queue == identity:
                found = disk.lstat(path)
                if S_ISDIR(found.st_mode) and not is_own(found):  # a link may lead to the queue itself
                    return path
    return None


def find_unsettled(disk: Disk, directory: str, names: Iterable[str]) -> tuple[str, Prepare] | None:
    """One of the neighbours with these names that may have to ask the queue in this directory, and what for."""
    directory = abspath(directory)
    neighbours, own = dirname(directory), basename(directory)
    log = None
    with suppress(OSError, PersistentQueueError):  # whoever has to ask it may do so when it is repaired
        log = read_newest(disk, directory, hurried=True)
    for name in names:
        try:
            newest = read_newest(disk, join(neighbours, name), hurried=True) if name != own else None
        except (OSError, PersistentQueueError):
            continue  # what is not ours, or damaged, must not keep it for ever
        for prepare in _unsettled(newest) if newest is not None else ():
            if prepare.coordinator == own and (log is None or _is_meant(prepare, _identity(log))):
                return join(neighbours, name), prepare
    return None


def _unsettled(newest: Replay) -> Iterator[Prepare]:
    """The prepares of which it is not certain, whatever a power cut takes, that the log says what became of them."""
    for frame in newest.frames[-2:]:
        for transaction in frame.transactions:
            yield from (each for each in transaction if isinstance(each, Prepare))


def read_newest(disk: Disk, directory: str, hurried: bool = False) -> Replay | None:
    """The newest generation of a neighbour's log, whose name is durable then, also while it is owned; None where there
    is none, or a new one comes again and again. ``hurried``: of a log that ends soon no more is read than that.

    Raises ``CorruptionError``, also for what is being written; ``FileNotFoundError``, ``UnsupportedFormatError``.
    """
    path = join(directory, LOG_DIRECTORY)
    generations: list[int] = []

    def newest() -> int:
        """The one to read, 0 if there is none."""
        generations[:] = _generations(disk, path)
        return generations[-1] if generations else 0

    def read(generation: int) -> Replay | None:
        """What this one says; None where there is none."""
        if len(generations) > 1:  # the older one goes when the name of the newer one is durable, and not before
            sync_directory(disk, path)
        return _read(disk, join(path, log_name(generation)), hurried) if generation else None

    return read_steadily(newest, read)


def _generations(disk: Disk, path: str) -> list[int]:
    return sorted(number for name in disk.listdir(path) if (number := parse_log_name(name)) is not None)


def _read(disk: Disk, path: str, hurried: bool) -> Replay:
    fd = open_plain(disk, path, READ)
    try:
        if hurried:
            data = read_all(disk, fd, _LITTLE_BYTES, 0)
            with suppress(CorruptionError):  # it may be cut where we stopped
                little = replay(data, path)
                if not little.torn_bytes and little.end + len(END) <= len(data):
                    return little
        return replay(read_whole(disk, fd, path), path)
    finally:
        disk.close(fd)
