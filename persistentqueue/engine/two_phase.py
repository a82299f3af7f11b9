"""Two-phase commit: one transaction over several queues of this process, committed in all of them or in none.

The directories of the queues are in the same directory. The queues are sorted by the names of their directories. The
first queue is the *coordinator*, and the others are *participants*. So coordinators never wait for each other in a
circle. The write order (``several.1`` …):

1. In each queue, write the blocks as any commit does, and make room in the log for the frame. *A crash leaves dead
   bytes that no frame names.* If one queue lacks room, or a marker or a limit refuses its part, the transaction ends
   here: nothing was prepared.
2. In each participant, write its frame with one durable call: a *prepare*, then its operations. *A crash leaves queues
   in doubt. The coordinator's log has no decision, so that the next opening of each participant drops the transaction.*
3. In the coordinator, write its frame with one durable call: its operations, then a *decision*. **This is the commit
   point.** *A crash before the end of this write leaves queues in doubt and no decision, as in step 2. A crash after it
   leaves the whole transaction committed: a participant asks the coordinator when it is opened (see ``in_doubt``).*
4. Apply the operations to the state in memory, of the coordinator first. From here on waiters may see the items.
5. Later, the next frame of each participant begins with the *resolution*. A trim of its log settles the transaction as
   well. Then the coordinator forgets the decision: its next checkpoint does not contain it. If nothing was committed,
   the segments that only the *prepare* names are deleted behind the resolution.

From step 1 to step 4, no other transaction commits in any of the queues. If step 2 fails in a participant, that queue
is broken and nothing is committed: the queues that are already prepared get a resolution that says so. If step 3 fails,
it is unknown what is on disk. Then all the queues are broken until they are opened again, and recovery decides. No
queue may have ``sync=False``, since a power cut could take half of the transaction.

For one thread at a time in each of the queues. This module uses no threads and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from ..core.operations import Decision, Operation, Prepare
from ..errors import QueueNotFoundError
from ..interrupts.signal_shield import is_interruption
from ..system.disk import Disk, join
from ..system.path_errors import ABSENT
from .commit import Written
from .store import Store
from .transaction import Transaction
from .trim import Settling

_NAME_BYTES = 16
"""Number of random bytes in the name of a transaction."""


class Part(NamedTuple):
    """One queue's part of the transaction."""

    store: Store
    transaction: Transaction


class _Half(NamedTuple):
    """A part whose blocks are written, and for whose frame the log has room."""

    part: Part
    written: Written
    settling: Settling | None = None
    """Prepared transaction that the participant must settle; None in the coordinator."""


def commit_several(parts: Sequence[Part]) -> None:
    """Commit the parts in all queues or in none; durable on return. There are two or more, in the order of their names.

    If one transaction is ``skipped`` because of its marker, all of them are. If one has its ``error`` set, nothing was
    committed. Raises ``BrokenQueueError`` if a queue fails: then that queue is broken, or all of them if the outcome is
    unknown. Raises ``QueueNotFoundError`` if the directories are not beside each other any more: then nothing was
    committed.
    """
    disk = parts[0].store.disk
    _need_neighbours(parts)
    disk.failpoint("several.1 write ahead")
    admitted = [_admits(part) for part in parts]
    if any(part.transaction.skipped for part in parts):
        for part in parts:
            part.transaction.skipped = part.transaction.settled = True
            part.transaction.error = None
        return
    halves = _write_ahead(disk, parts) if all(admitted) else []
    if not halves:
        return
    coordinator, *participants = halves
    settlings = [half.settling for half in participants if half.settling is not None]
    try:
        for half in participants:
            disk.failpoint("several.2 prepare")
            _write_frame(half)
    except BaseException:
        for settling in settlings:
            settling.committed = False
        raise
    _decide(disk, coordinator, participants)
    for half in halves:
        _end(half.part.store)


def _need_neighbours(parts: Sequence[Part]) -> None:
    """Raise ``QueueNotFoundError`` unless the directories are beside each other, under these names.

    A queue in doubt finds the coordinator by its name, and the coordinator finds its participants by theirs. So a queue
    whose directory was moved away cannot take part. If all directories were moved together, they can.
    """
    coordinator = parts[0].store
    for part in parts[1:]:
        _need_neighbour(coordinator, part.store)
        _need_neighbour(part.store, coordinator)


def _need_neighbour(store: Store, other: Store) -> None:
    path = join(store.directory, f"../{other.name}")
    try:
        if other.is_in(store.disk.lstat(path)):
            return
    except ABSENT:
        pass
    raise QueueNotFoundError(
        f"{path}: expected the directory of the open queue {other.name}, found another one or none, since one of the "
        "two queues was moved or deleted: move their directories beside each other again, or commit in each queue "
        "separately"
    )


def _admits(part: Part) -> bool:
    """Return whether the part fits into the limits and its marker is new. Raises ``BrokenQueueError``."""
    part.store.check()
    return bool(part.store.committer.admit([part.transaction]))


def _write_ahead(disk: Disk, parts: Sequence[Part]) -> list[_Half]:
    """Do step 1. If there is no room, return an empty list, and one of the transactions has its ``error`` set."""
    halves: list[_Half] = []
    try:
        halves = _write_parts(disk, parts)
    finally:
        if not halves:  # also in the queues that had room: a later commit of the same session must find no blocks
            for part in parts:
                part.store.committer.take_back([part.transaction])
    return halves


def _write_parts(disk: Disk, parts: Sequence[Part]) -> list[_Half]:
    name, (coordinator, *participants) = disk.urandom(_NAME_BYTES), parts
    queues = tuple(part.store.state.identity for part in participants)
    decision = Decision(name, tuple(part.store.name for part in participants), queues if all(queues) else ())
    written = _write_part(coordinator, behind=[decision])
    if written is None:
        return []
    log = coordinator.store.generations.log
    assert log is not None
    halves = [_Half(coordinator, written)]
    prepare = Prepare(name, log.number + 1, coordinator.store.name, coordinator.store.state.identity)
    for part, asking in zip(participants, decision.asking(), strict=True):
        written = _write_part(part, before=[prepare])
        if written is None:
            return []
        halves.append(_Half(part, written, Settling(name, partial(coordinator.store.forget, name, asking))))
    return halves


def _write_part(part: Part, before: Sequence[Operation] = (), behind: Sequence[Operation] = ()) -> Written | None:
    store = part.store
    try:
        group, inline = store.committer.write_blocks([part.transaction])
        if not group or not store.committer.sync_blocks(group, inline):
            return None
        return store.make_frame(group, inline, before, behind)
    except BaseException as error:
        if not is_interruption(error):  # a lack of memory says nothing of the disk, and nothing was prepared
            store.doubt(error)
        raise


def _write_frame(half: _Half) -> None:
    """Write the frame. From then on, a participant must settle the prepared transaction."""
    store = half.part.store
    try:
        store.write_frame(half.written)
        if half.settling is not None:
            store.generations.settling = half.settling
    except BaseException as error:
        store.doubt(error)
        raise


def _decide(disk: Disk, coordinator: _Half, participants: Sequence[_Half]) -> None:
    """Do steps 3 and 4. Any error breaks all queues, since only recovery can find the outcome."""
    try:
        disk.failpoint("several.3 decide")
        _write_frame(coordinator)
        for half in (coordinator, *participants):
            disk.failpoint("several.4 apply")
            half.part.store.committer.apply(half.written.group, half.written.operations)
            if half.settling is not None:
                half.settling.committed = True
    except BaseException as error:
        for half in (coordinator, *participants):
            half.part.store.fail(half.part.store.broken or error)
        raise


def _end(store: Store) -> None:
    """Trim a queue after the commit if that is worth it. A trim without room fails nothing: the commit is durable."""
    try:
        store.trim_if_worth()
    except BaseException as error:
        store.doubt(error)
        raise
