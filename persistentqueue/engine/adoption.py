"""Adoption: the files that other processes have published become segments of the queue, by a frame and a rename.

``Adopter`` commits the published files through the store. ``inbox`` lists and reads them before, and renames or deletes
them afterwards. Everything here is for the writer. The write order of an adoption (``adopt.1`` …):

1. Read the published files (see ``publication``) in the order of their names, and check that the parts of each manifest
   are there. Set aside each file that is not valid. Sync the inbox: a name that its producer has not synced yet could
   vanish after the frame that refers to it. *A crash leaves the published files, which the next owner finds again.*
2. Write the frame: an *adoption*, an *enqueue* and perhaps a *marker* for each. **This is the commit point.** A
   published transaction whose marker was recorded before is skipped.
3. Rename each file to its segment, and each manifest after its parts. A manifest becomes a segment without items, which
   the next trim retires. *A crash leaves files in the inbox that are segments in the log. The next opening renames
   them.* If there is no room for the new name, a file keeps the old one until a trim. The names are durable before a
   trim drops the frame.
4. Apply the operations to the state in memory, as any commit does. Then delete the skipped files; a file that stays is
   skipped again. Requests have no marker, so they are deleted durably before anything else is done. Parts are deleted
   when the deletion of their manifest is durable, since a manifest without its parts would count as damaged. *A crash
   leaves parts that no manifest names. They are swept when they are old. After a crash, the next opening syncs the
   inbox, so that deleted files do not come back.*

A power cut may drop the frame of step 2 but not the new names of step 3. This can happen to a frame that a killed owner
left in the cache of the operating system, or that was never synced. The segment is then an orphan: the log does not
know it, and has not retired it. Recovery moves orphans back to the inbox, parts durably before their manifest.

No byte of an item is copied, or read before the item is dequeued. If there is no room for a file, that file stays in
the inbox with all files behind it, since each producer's order is kept. Only a request that acknowledges items in the
queue is handled out of order. It needs no order, and may make room. If the log has no room for the frame of a group,
nothing of it is committed. Then half as many files are begun again, down to one. If a limit on the disk leaves no room
for one file, a consumer that waits for it gives back the space of drained segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from ..errors import QueueFullError
from ..storage.publication import Request
from ..system.path_errors import faults, unless_lacking
from ..system.quota import OverLimitError
from .admission import Limits
from .commit import Committer
from .context import Context
from .inbox import LOOK_NAMES, Inbox
from .subscriptions import Subscriptions
from .transaction import Transaction
from .trim import Generations

COMMIT_FILES = 16
"""Number of files that take about as long to look at as one commit."""


class Writing(Protocol):
    """The store, as adoption uses it."""

    inbox: Inbox
    committer: Committer
    generations: Generations
    limits: Limits
    subscriptions: Subscriptions

    def check(self) -> None:
        """Raise ``BrokenQueueError`` if the store is broken."""

    def log_group(self, group: Sequence[Transaction], inline: bool) -> None:
        """Do the steps of a commit from the frame on."""

    def make_room(self, refusal: OSError) -> bool:
        """Give back space on a full disk, and return whether there was any to give back."""

    def trim(self) -> None:
        """Begin a new generation of the log."""

    def trim_if_worth(self) -> None:
        """Trim if the drained segments are worth it."""

    def doubt(self, error: BaseException) -> None:
        """Break the store for an error whose outcome only recovery can find."""


class Adopter:
    """Commits the published files of a queue's inbox."""

    def __init__(self, context: Context, store: Writing) -> None:
        self._state = context.state
        self._mutex = context.guards.mutex
        self._sync = context.settings.sync
        self._store = store
        self._inbox, self._committer, self._generations = store.inbox, store.committer, store.generations
        self._subscriptions, self._limits = store.subscriptions, store.limits
        self.adopted = 0
        """Number of published transactions that were adopted."""
        self._told = ""
        """Name of the file that was last reported because it never fits."""
        self._full_at: tuple[int, int] | None = None
        """The value of ``_room_stamp`` when there was no room for the first published file; None if there was room."""
        self._room_made_at: tuple[int, int] | None = None
        """The value of ``_room_stamp`` when space was last given back for a published file."""
        self._most = LOOK_NAMES
        """Largest number of published files in the next group: fewer after the log had no room for a group."""
        self.monotonic = context.disk.monotonic
        self.passing_seconds = 0.0
        """Time, by ``monotonic``, from which on the next thread that passes by adopts.

        The open queue sets it, and has as few attributes of its own as it can."""

    def adopt(self, insists: bool = False, most: int | None = None) -> int:
        """Adopt the files that are published now, as far as there is room; return the number of transactions.

        Files that are published meanwhile are left to the next call, so that this call ends. It ends earlier after
        about ``most`` files (None: all), with a commit counted as ``COMMIT_FILES``. Then the inbox's ``is_cut`` tells
        whether files are left to the next call.

        If there was no room for a file, it is tried again after a trim, or when items are gone, or if the caller
        ``insists``. Acknowledgements behind it are answered all the same. The inbox's ``damage`` gets an error for
        each file that is set aside, is skipped, or never fits.

        Raises ``OSError`` for a file that cannot be read for now; the file stays. Raises ``ResourceError`` if the
        operating system lacks a resource, and ``BrokenQueueError``.
        """
        self._store.check()
        # After the frame of an adoption, no call may fail for lack of a descriptor. So the inbox is opened before it.
        with unless_lacking(self._inbox.directory, "to adopt published files", "then dequeue again"):
            self._inbox.look(insists)
            if not self._inbox.left:
                self._inbox.is_cut = False
                return 0
            with self._inbox.opened():
                return self._adopt_listed(insists, most)

    def _adopt_listed(self, insists: bool, most: int | None) -> int:
        self._inbox.is_cut = False
        adopted, is_its_turn = 0, insists or self._full_at != self._room_stamp
        left = self._inbox.left if most is not None else 0
        dealt, most, may_make_room = 0, most or 0, insists
        while True:
            before, most_before = self._inbox.left, self._most
            try:
                published = self._begin(is_its_turn)
            except faults(OSError):
                if adopted:
                    break  # report what was adopted; the next call raises the error
                raise
            refused = None
            if published:
                adopted += self._commit(published)
                self._store.check()
                refused = next((transaction for transaction in published if not transaction.settled), None)
                dealt += COMMIT_FILES
            elif not is_its_turn or self._inbox.left in {0, before}:
                break
            if refused is None:
                self._full_at, is_its_turn, may_make_room = None, True, insists
                if left and left - self._inbox.left + dealt >= most:
                    self._inbox.is_cut = self._inbox.left > 0
                    break
            elif not is_its_turn:
                break
            elif self._most >= most_before:  # otherwise fewer files may have room
                if may_make_room and self._makes_room(refused):
                    may_make_room = False
                    continue
                self._full_at, is_its_turn = self._room_stamp, False
                self._tell_if_lasting(refused, insists)
        return adopted

    def _begin(self, is_its_turn: bool) -> list[Transaction]:
        """Return the next transactions; if there is no room for them, the requests that need none."""
        if is_its_turn:
            return self._inbox.begin(self._state.next_sequence, self._most, self._limits.fits)
        return self._inbox.begin_behind(self._needs_no_order)

    def _needs_no_order(self, request: Request) -> bool:
        """Return whether the request only acknowledges items that are in the queue, so that it needs no order."""
        is_there = self._state.number_of(request.name) is not None
        return is_there and 0 < request.end <= self._state.next_sequence

    def _makes_room(self, transaction: Transaction) -> bool:
        """Give back space if a limit on the disk has refused the transaction; return whether there was any.

        Only the commits of sessions do it otherwise. If nothing has changed since the last time, this does nothing.
        """
        refused = self._refused_by_disk(transaction)
        if refused is None or self._room_made_at == self._room_stamp:
            return False
        has_made = self._store.make_room(OverLimitError(refused.limit, refused.path))
        self._room_made_at = self._room_stamp
        return has_made

    def _refused_by_disk(self, transaction: Transaction) -> QueueFullError | None:
        """Return the error of a transaction that a limit on the disk has refused; None if something else has."""
        error = transaction.error
        if isinstance(error, OverLimitError):
            return self._limits.refuse(transaction, error.limit, error.directory)
        if isinstance(error, QueueFullError) and error.limit in {"max_disk_bytes", "min_free_bytes"}:
            return error
        return None

    def _tell_if_lasting(self, transaction: Transaction, has_made_room: bool) -> None:
        """Report a transaction that does not even fit into an empty queue: no other error would say why it waits."""
        error = self._limits.refuse_for_ever(transaction)
        if error is None and has_made_room and self._is_empty:
            error = self._refused_by_disk(transaction)  # for example, its frame would make the log too long
        if error is not None and self._told != transaction.published:
            path = self._inbox.path(transaction.published)
            self._told = transaction.published
            advice = (
                f"this published file never fits, and those behind it wait: open the queue with a higher {error.limit}"
            )
            full = QueueFullError(path, error.limit, error.most, error.holds, error.asked, True, advice)
            self._inbox.tell(full)

    def _commit(self, published: list[Transaction]) -> int:
        """Commit the transactions that the inbox has begun, as far as there is room; return how many."""
        try:
            group = self._adopt(published)
            self._committer.come_again(published)
            dropped = [each for each in published if each.skipped or (each.settled and not each.adoptions)]
            if dropped and not self._sync:
                self._store.trim()  # makes the markers durable, before the files that they stand for are deleted
            self._inbox.end(published)
            if group and group[0].settled:
                self._most = min(2 * self._most, LOOK_NAMES)
            elif len(group) > 1:
                self._most = len(group) // 2
            self._store.trim_if_worth()
        except BaseException as error:
            self._store.doubt(error)
            raise
        adopted = sum(transaction.committed for transaction in published)
        self.adopted += adopted
        return adopted

    @property
    def _room_stamp(self) -> tuple[int, int]:
        """Number of gone items and of trims. It changes whenever there may be new room."""
        return self._state.gone_count, self._generations.trims

    @property
    def _is_empty(self) -> bool:
        """Whether the queue has no items, and no segments that will be deleted."""
        return not (self._state.segments or self._generations.retired)

    def _adopt(self, published: list[Transaction]) -> Sequence[Transaction]:
        """Do the steps of an adoption from the sync of step 1 on; return the group that the frame was for."""
        self._inbox.sync()
        if published[0].request is not None:
            self._answer(published)
            return []
        self._committer.admit(published)
        group = list(takewhile(lambda each: each.error is None, published))  # the others wait, and keep their order
        group = [each for each in group if not each.skipped]
        if group:
            self._store.log_group(group, inline=False)
        return group

    def _answer(self, published: list[Transaction]) -> None:
        """Answer requests: make a subscription, or acknowledge items, in one frame.

        Of all acknowledgements of a subscription only the furthest is committed, since it includes the others. A
        request that changes nothing is skipped.
        """
        furthest: dict[str, tuple[Transaction, Request]] = {}
        for transaction in published:
            request = transaction.request
            if request is not None and (request.name not in furthest or furthest[request.name][1].end < request.end):
                furthest[request.name] = transaction, request
        for transaction, request in furthest.values():
            number = self._state.number_of(request.name)
            if not request.end and number is None:
                transaction.operations = [self._state.next_subscription(request.name, request.first)]
            elif request.end and number:
                ready = self._subscriptions.find(request.name).ready
                with self._mutex:
                    transaction.ready, transaction.runs = ready, ready.hold_below(request.end)
        group = [transaction for transaction, _ in furthest.values() if transaction.operations or transaction.runs]
        if group:
            self._store.log_group(group, inline=False)
            with self._mutex:
                self._subscriptions.follow()
                for transaction in group:
                    if not transaction.settled and transaction.ready is not None:
                        transaction.ready.release(transaction.runs)
        if all(transaction.settled for transaction in group):
            for transaction in published:
                if not transaction.settled:
                    transaction.skipped = transaction.settled = True
