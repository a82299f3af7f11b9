"""The settlement of a transaction in doubt: ask its coordinator whether it is committed, and forget settled decisions.

A queue is *in doubt* if its log ends in a prepare without a resolution (``two_phase`` describes how this arises). The
log of the coordinator, a queue in the same parent directory, records the outcome. The decision stands in the frame
whose number the prepare names. After a trim of that log, the decision stands behind the checkpoint, until the log of
each participant has settled it. If nothing was decided, no log records an outcome. The transaction is then not
committed (*presumed abort*).

The steps of asking (failpoints ``doubt.1`` …). The lock of the queue in doubt is held, so no process can be deciding
this transaction at that moment.

1. If the coordinator's log is sealed and reaches the frame that the prepare names, go on with 2. Such a log says
   everything durably, whether the queue is owned or not. Otherwise, if the coordinator's lock is free, open the
   coordinator and close it. Opening makes durable what its log says, since the decision may have survived in the
   operating system's page cache only. If the coordinator is owned, its owner has done this, or is doing it, or has
   made the decision itself. *A process that opens the coordinator just then, without waiting for its lock, gets*
   ``QueueLockedError``.
2. If an older generation of the coordinator's log is still there, make the name of the newest one durable. Then read
   the newest one, whether the coordinator is owned or not. A checkpoint is durable before it has its name, and a frame
   is durable before another frame follows it. Whether the last frame is durable, only its owner knows. If the answer
   is not certain, ask again, for about one second. *A crash leaves the queue in doubt. The next opening asks again,
   and the coordinator still remembers.*

A coordinator forgets decisions by the same rules. A participant's log needs a decision no longer in two cases: it
holds the resolution and a frame behind it, or it holds no prepare, since it was trimmed. Participants are recognized
by their identities, too: the log of another queue with a participant's name says nothing about that participant.

The coordinator also forgets decisions for a participant whose directory is gone. It then records up to which frame it
may have forgotten decisions. If such a participant comes back, the answer is "unknown", and not that nothing is
committed. The coordinator waits with this until no present neighbour may have to ask it: that neighbour would get the
answer "unknown", too.

The coordinator is recognized by its identity, and not by its name: the log of another queue with its name is not
believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from stat import S_ISDIR

from ..core.operations import Decision, Identity, Operation, Prepare
from ..core.state import State
from ..errors import CorruptionError, InDoubtError, MemoryShortageError, PersistentQueueError, QueueNotFoundError
from ..storage.layout import has_name, is_name, names_in
from ..storage.log_reader import HEAD, NEIGHBOUR, SNAPSHOT, Replay, read_newest
from ..system.disk import Disk, StatResult, abspath, basename, dirname, join
from ..system.path_errors import faults, may_pass, suppress

Decide = Callable[[Prepare], bool]
"""Returns whether a prepared transaction is committed. Raises ``InDoubtError``."""
MayDecide = Callable[[Prepare], "bool | None"]
"""Does as ``Decide``, or returns None, which leaves the transaction in doubt."""

_NOBODY = Identity(b"", 0)
_TRIES = 100
_POLL_SECONDS = 0.01
_REPAIR = "or run repair on this queue, which drops the transaction and keeps the log of it as *.damaged"


def ask(
    disk: Disk, directory: str, prepare: Prepare, recover: Callable[[str], bool], is_sound: Callable[[str], bool]
) -> bool:
    """Return whether a transaction that the queue in this directory has prepared is committed.

    The caller holds the lock of this queue. ``recover`` opens and closes the coordinator, and returns False if the
    coordinator is owned. ``is_sound`` returns whether this process owns a coordinator and knows that its whole log is
    durable.

    Raises ``InDoubtError`` if the answer is not known. Raises ``OSError``, or the errors that ``recover`` makes of it:
    then ask again later.
    """
    directory = abspath(directory)
    coordinator = join(dirname(directory), prepare.coordinator)
    doubt = partial(InDoubtError, directory, prepare.transaction, coordinator)
    reason = ""
    if coordinator == directory:
        raise doubt(f"that is this queue itself, under another name: give it its old name back, {_REPAIR}", True)
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
            raise doubt(f"that queue is damaged ({error}): repair it first") from error
        except InDoubtError as error:
            raise doubt(f"that queue is itself in doubt ({error}): open that one first") from error
        disk.failpoint("doubt.2 read coordinator")
        try:
            newest = read_newest(disk, coordinator, NEIGHBOUR)
        except (CorruptionError, FileNotFoundError) as error:  # a log that is just being written may look like this
            newest, reason = None, f"that log cannot be read ({error}): close that queue, or repair it, then try again"
        if newest is not None:
            verdict = judge(newest, is_owned and is_sound(coordinator))
            if verdict is not None:
                return verdict
            if newest.last_number < prepare.number - 1:
                raise doubt(f"that log ends too early, so it is not the original: bring that back, {_REPAIR}", True)
            reason = "its owner has not settled it yet: flush something in that queue, or close it, then try again"
        disk.sleep(_POLL_SECONDS)
    raise doubt(reason)


def is_decided(disk: Disk, directory: str, prepare: Prepare) -> bool | None:
    """Return True if the coordinator's log says that this transaction is committed, and None if it does not say so.

    For a look from outside at the queue in this directory. It needs no lock, and syncs nothing: the decision may be in
    the operating system's page cache only. A coordinator that cannot be read says nothing.
    """
    try:
        newest = read_newest(disk, join(dirname(abspath(directory)), prepare.coordinator), SNAPSHOT)
    except faults(OSError, PersistentQueueError):
        return None
    # Without a decision, one may follow. A decision about this transaction can only be in the log of its coordinator.
    return True if newest is not None and _verdict(newest, prepare, True) else None


def _read_sealed(disk: Disk, coordinator: str, prepare: Prepare) -> Replay | None:
    """Return the coordinator's log if it was closed cleanly after the decision; else None. Its answer is durable."""
    try:
        newest = read_newest(disk, coordinator, NEIGHBOUR)
    except faults(OSError, PersistentQueueError):  # the opening of that queue, which follows, raises the error
        return None
    return newest if newest is not None and newest.sealed and newest.last_number >= prepare.number else None


def _judge(prepare: Prepare, doubt: Callable[[str, bool], InDoubtError], newest: Replay, is_sound: bool) -> bool | None:
    """Return what this log, found under the coordinator's name, says of the transaction; None if that is not certain.

    Raises ``InDoubtError`` if it is the log of another queue, or if the coordinator has forgotten the transaction.
    """
    identity = _identity(newest)
    if not _is_meant(prepare, identity):
        raise doubt(f"another queue has that name now: bring the original queue back, {_REPAIR}", True)
    verdict = _verdict(newest, prepare, is_sound)
    if verdict is False and prepare.number <= identity.forgotten:
        raise doubt(f"that queue was open while this one was absent, and has forgotten it: {_REPAIR[3:]}", True)
    return verdict


def _identity(newest: Replay) -> Identity:
    return next((each for each in newest.supplement if isinstance(each, Identity)), _NOBODY)


def _is_meant(prepare: Prepare, identity: Identity) -> bool:
    """Return whether a queue with this identity is the coordinator that the prepare means.

    A prepare in an older log names no identity: then the name decides.
    """
    return prepare.queue in {b"", identity.queue}


def _verdict(newest: Replay, prepare: Prepare, is_sound: bool) -> bool | None:
    """Return what a coordinator's log says of the transaction; None if that is not certain."""
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
    """Forget the decisions of the queue in this directory that no participant has to ask for any more.

    ``last_number`` is the number of the last frame of its log. A participant whose log cannot be read may come back
    soon, so its decisions are kept. A participant whose directory is gone counts as deleted.
    """
    directory = abspath(directory)
    neighbours, gone = dirname(directory), []
    for name, transaction in list(state.asked_for.items()):
        try:
            newest = read_newest(disk, join(neighbours, name.name), NEIGHBOUR)
        except faults(OSError, PersistentQueueError):
            if not has_name(disk, join(neighbours, name.name)):
                gone.append((transaction, name))
            continue
        if newest is not None and name.queue not in {b"", _identity(newest).queue}:
            gone.append((transaction, name))  # another queue has the participant's name now
            continue
        if newest is not None and not any(each.transaction == transaction for each in _unsettled(newest)):
            state.forget(transaction, name)
    if not gone:
        return
    with suppress(OSError, MemoryShortageError):  # the parent or a neighbour cannot be read: the decisions stay
        if find_unsettled(disk, directory, disk.listdir(neighbours)) is None:
            for transaction, name in gone:
                state.forget(transaction, name)
            state.forgotten = last_number


def find_copy(disk: Disk, directory: str, identity: bytes, is_own: Callable[[StatResult], bool]) -> str | None:
    """Return the path of a neighbour that has the same identity as the queue in this directory; None if there is none.

    One of the two is then a copy of the other. ``is_own`` returns whether a directory is that of the queue itself,
    which may be renamed meanwhile.
    """
    neighbours = dirname(abspath(directory))
    for name in sorted(disk.listdir(neighbours)):
        path = join(neighbours, name)
        try:
            newest = read_newest(disk, path, HEAD)
            if newest is not None and _identity(newest).queue == identity:
                found = disk.lstat(path)
                if S_ISDIR(found.st_mode) and not is_own(found):  # a link may point to the queue itself
                    return path
        except faults(OSError, PersistentQueueError) as error:  # not a queue, or one that cannot be opened
            if may_pass(error):
                raise
    return None


def refuse_unsettled(disk: Disk, directory: str, what: str, again: str) -> None:
    """Raise ``InDoubtError`` if a neighbour may have to ask this queue for the outcome of a transaction over both.

    ``what`` and ``again`` are words of the error: for the end of that queue, and for the call to repeat.
    """
    directory = abspath(directory)
    with suppress(PermissionError):  # without the right to list the parent directory, no neighbour can be found
        unsettled = find_unsettled(disk, directory, filter(is_name, names_in(disk, dirname(directory))))
        if unsettled is not None:
            neighbour, prepare = unsettled
            reason = (
                f"that queue {what} while this one may ask it: open this one, or trim it if it is open, close it, then "
                f"{again} again"
            )
            raise InDoubtError(neighbour, prepare.transaction, directory, reason)


def find_unsettled(disk: Disk, directory: str, names: Iterable[str]) -> tuple[str, Prepare] | None:
    """Return one of the named neighbours that may have to ask the queue in this directory, and its prepare.

    Return None if there is no such neighbour. A foreign or damaged directory is none: it must not block the caller for
    ever.

    Raises ``MemoryShortageError`` or ``OSError`` if a neighbour cannot be read for now: it may have to ask.
    """
    directory = abspath(directory)
    neighbours, own = dirname(directory), basename(directory)
    log = None
    with suppress(OSError, PersistentQueueError):  # a damaged queue can be asked once it is repaired
        log = read_newest(disk, directory, HEAD)
    for name in names:
        try:
            newest = read_newest(disk, join(neighbours, name), HEAD) if name != own else None
        except faults(OSError, PersistentQueueError) as error:
            if may_pass(error):
                raise
            continue
        for prepare in _unsettled(newest) if newest is not None else ():
            if prepare.coordinator == own and (log is None or _is_meant(prepare, _identity(log))):
                return join(neighbours, name), prepare
    return None


def _unsettled(newest: Replay) -> Iterator[Prepare]:
    """Yield the prepares in the last two frames: after a power cut, the log may lack their resolutions."""
    for frame in newest.frames[-2:]:
        for transaction in frame.transactions:
            yield from (each for each in transaction if isinstance(each, Prepare))
