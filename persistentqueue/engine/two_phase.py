"""One transaction over several queues of this process, in neighbouring directories: committed in all of them, or none.

The queues stand in the order of their directories' names. The first is the *coordinator*, the others *participants*; so
coordinators never wait for each other in a circle. The write order (``several.1`` …):

1. In each queue write the blocks as any commit does, and make room in the log for the frame. *A crash leaves dead bytes
   that no frame names.* What lacks room, or meets a marker or a limit, ends here: nothing was prepared.
2. In each participant write its frame with one durable call: a *prepare*, then its operations. *A crash leaves queues
   in doubt; the coordinator's log says nothing of it, and so their next opening drops it.*
3. In the coordinator write its frame with one durable call: its operations, then a *decision*. **This is the commit
   point.** *A crash before its end leaves the same as after 2; after it, all is committed: participants ask the
   coordinator when they are opened (see ``doubt``).*
4. Apply the operations to the state in memory, of the coordinator first; those who wait may see them.
5. Later: the next frame of each participant begins with the *resolution*, or its log is trimmed, which settles it as
   well. Then the coordinator forgets; its next checkpoint lacks the decision.

Nobody else commits in any of the queues from 1 to 4. A participant whose 2 has failed is broken, and nothing is
committed: those that are prepared get a resolution that says so. If 3 fails, all are broken until they are opened
again, and recovery decides: nobody knows what is on disk. No queue may be one with ``sync=False``: a power cut could
take half.

For one thread at a time in each of the queues. No threads here, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from ..core.operations import Decision, Operation, Prepare
from ..errors import QueueNotFoundError
from ..system.disk import Disk, basename, join
from .commit import Written
from .store import Store
from .transaction import Transaction
from .trim import Settling

_NAME_BYTES = 16
"""So many random ones name a transaction."""


class Part(NamedTuple):
    """What one queue has of the transaction."""

    store: Store
    transaction: Transaction

    @property
    def name(self) -> str:
        """That of the queue's directory."""
        return basename(self.store.directory)


class _Half(NamedTuple):
    """A part whose blocks are written."""

    part: Part
    written: Written
    settling: Settling | None = None
    """What is to be settled; None in the coordinator."""


def commit_several(parts: Sequence[Part]) -> None:
    """Commit the parts, two or more in the order of their names, in all queues or none; durable on return.

    If one is ``skipped`` for its marker, all are. Where one has its ``error`` set, nothing was committed. Raises
    ``BrokenQueueError``: of the queue that has failed, or, if nobody knows what became of it, of all of them. Raises
    ``QueueNotFoundError``, and has committed nothing, where their directories are not beside each other any more.
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
    """Raise ``QueueNotFoundError`` unless the directories stand beside each other, under these names.

    By its name a queue that is in doubt finds the coordinator, and the coordinator finds its participants. So a queue
    whose directory was moved away takes part in nothing; where all of them were moved together nothing has changed.
    """
    coordinator = parts[0]
    for part in parts[1:]:
        for one, other in ((coordinator, part), (part, coordinator)):
            path = join(one.store.directory, f"../{other.name}")
            with suppress(FileNotFoundError, NotADirectoryError):
                if other.store.is_in(one.store.disk.lstat(path)):
                    continue
            raise QueueNotFoundError(
                f"{path}: not the directory of the open queue {other.name}, since one of both was moved or deleted: "
                "put them beside each other again, or commit in each queue by itself"
            )


def _admits(part: Part) -> bool:
    """Whether there is room for it, and its marker was not reached. Raises ``BrokenQueueError``."""
    part.store.check()
    return bool(part.store.committer.admit([part.transaction]))


def _write_ahead(disk: Disk, parts: Sequence[Part]) -> list[_Half]:
    """Step 1; an empty list, and the ``error`` of one of them, where there is no room."""
    name, (coordinator, *participants) = disk.urandom(_NAME_BYTES), parts
    queues = tuple(part.store.state.identity for part in participants)
    decision = Decision(name, tuple(part.name for part in participants), queues if all(queues) else ())
    written = _write_part(coordinator, behind=[decision])
    if written is None:
        return []
    log = coordinator.store.generations.log
    assert log is not None
    halves = [_Half(coordinator, written)]
    prepare = Prepare(name, log.number + 1, coordinator.name, coordinator.store.state.identity)
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
        if not group:
            return None
        if not store.committer.sync_blocks(group, inline):
            return None
        return store.make_frame(group, inline, before, behind)
    except BaseException as error:
        store.doubt(error)
        raise


def _write_frame(half: _Half) -> None:
    """Write the frame. A participant knows from then on that there is something to be settled."""
    store = half.part.store
    try:
        store.write_frame(half.written)
        if half.settling is not None:
            store.generations.settling = half.settling
    except BaseException as error:
        store.doubt(error)
        raise


def _decide(disk: Disk, coordinator: _Half, participants: Sequence[_Half]) -> None:
    """Steps 3 and 4. Whatever comes in between, all queues are broken then: recovery knows what to do."""
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
            half.part.store.broken = half.part.store.broken or error
        raise


def _end(store: Store) -> None:
    """What comes behind a commit; it is durable, so that nothing here makes it look failed."""
    try:
        store.trim_if_worth()
    except BaseException as error:
        store.doubt(error)
        raise
