"""Group commit, and waiting: the thin layer of threads around the store.

Whoever flushes while nobody writes becomes the leader and commits for all who came meanwhile; the others wait (leader
and followers). When the leader is done, the first of those who came in the meantime leads the next group. One thread
alone pays for no thread but itself; many share a sync. No thread is started here, but for ``maintenance``.

Locks, in the order in which they may be taken: ``_compacting`` (held over a compaction), ``_writing`` (held over the
writes of a commit), the store's ``reading`` (held over a read), ``_giving_back`` (held while retired segments are
deleted), ``mutex`` (guards all memory, held briefly, never over a write or a sync).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .errors import ClosedError, PersistentQueueError
from .intervals import Run
from .maintenance import MAINTENANCE
from .store import Store
from .transaction import Transaction

_AT_ONCE_BYTES = 1024 * 1024
"""Retired segments up to this size in all are deleted before a flush returns; it takes less than a sync. More of them
are left to maintenance."""


class Compacted(NamedTuple):
    """What a compaction did."""

    segments: int
    """How many segments were emptied."""
    copied_bytes: int
    """Bytes of blocks that were written for that."""


class _Member:
    """A transaction in line. ``turn`` is released when it is done, or when it is to lead."""

    __slots__ = ("done", "transaction", "turn")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.turn = threading.Lock()
        self.turn.acquire()
        self.done = False


class Group:
    """What all sessions of a queue share: the store, and who may use it when. For any number of threads."""

    def __init__(self, open_store: Callable[[threading.Lock, threading.Lock], Store]) -> None:
        self.mutex = threading.Lock()
        self._writing = threading.Lock()
        self._has_ready = threading.Condition(self.mutex)
        self._waiting = 0
        """How many wait for ``_has_ready``."""
        self._line: list[_Member] = []
        self._is_led = False
        self._abandoned: list[Transaction] = []
        self.closed: str | None = None
        """Why nothing goes any more; None while the queue is open."""
        self.groups = 0
        self.transactions = 0
        self._reading = threading.Lock()
        self._giving_back = threading.Lock()
        self._compacting = threading.Lock()
        self.store = open_store(self.mutex, self._reading)
        self._give_back_soon()

    def commit(self, transaction: Transaction) -> None:
        """Commit it, together with others that wait; durable on return.

        Raises ``DiskFullError`` (nothing of it was committed) and ``BrokenQueueError`` (nobody knows).
        """
        while not transaction.settled:
            member: _Member | None = None
            with self.mutex:
                self.check()
                if self._is_led:
                    member = _Member(transaction)
                    self._line.append(member)
                else:
                    self._is_led = True
            if member is None:
                self._lead(transaction)
            else:
                self._follow(member)
            if transaction.error is not None:
                error, transaction.error = transaction.error, None
                raise error
            # Neither settled nor failed: the leader was interrupted before it wrote anything. Line up again.

    def spill(self, transaction: Transaction) -> None:
        """Write its items to the segments ahead of its commit. Raises ``DiskFullError``."""
        with self._writing:
            self.check()
            self.store.spill(transaction)

    def trim(self) -> None:
        """Begin a new generation of the log and delete drained segments."""
        with self._writing:
            self.check()
            self.store.trim()
        self.give_back()

    def compact(self, below: float, settled_only: bool, progress: Callable[[int], None] | None = None) -> Compacted:
        """Copy what lives in sparse segments together, commit that, delete them, and go on until there are none left
        of those that were there at the beginning.

        Raises ``DiskFullError``, ``BrokenQueueError``, ``ClosedError``, ``OSError``.
        """
        segments = copied_bytes = 0
        before = None
        with self._compacting:
            while True:
                with self._writing:
                    self.check()
                    before = before or self.store.state.next_segment
                    copy = self.store.begin_compaction(below, settled_only, before=before)
                if copy is None:
                    return Compacted(segments, copied_bytes)
                try:
                    began, groups = time.monotonic(), self.groups
                    while copy.step():
                        self.check()
                        if progress is not None:
                            progress(copied_bytes + copy.copied_bytes)
                        if groups != self.groups:
                            # Others are at work, and wait for the interpreter meanwhile: they get it for longer.
                            time.sleep(2 * (time.monotonic() - began))
                        began, groups = time.monotonic(), self.groups
                    transaction = Transaction()
                    transaction.compaction = copy.finish()
                    if transaction.compaction:
                        self.commit(transaction)
                        segments += len(copy.done)
                        copied_bytes += copy.copied_bytes
                finally:
                    with self._writing:
                        self.store.end_compaction(copy)
                self.trim()

    def give_back(self) -> None:
        """Delete retired segments."""
        with self._giving_back:
            self.store.give_back()

    def _give_back_soon(self) -> None:
        if self.store.retired:
            if sum(size_bytes for _, size_bytes in tuple(self.store.retired)) <= _AT_ONCE_BYTES:
                self.give_back()
            else:
                MAINTENANCE.submit(self.give_back)

    def take(self, max_items: int, timeout_seconds: float | None) -> tuple[list[Run], list[bytes]]:
        """Hold up to ``max_items`` items, waiting for the first one up to the timeout (None: for ever).

        The caller has seen that the queue is open and not broken.
        """
        taken = self.store.reader.take(max_items)
        if taken[1] or timeout_seconds == 0:
            return taken
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not taken[1]:
            with self.mutex:
                while not len(self.store.ready):
                    self.check()
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return [], []
                    self._waiting += 1
                    try:
                        self._has_ready.wait(left)
                    finally:
                        self._waiting -= 1
            self.check()
            self.store.check()
            taken = self.store.reader.take(max_items)
        return taken

    def browse(self) -> Iterator[list[bytes]]:
        """The ready items in lists, in order, without holding them."""
        batches = self.store.reader.browse()
        while True:
            self.check()
            self.store.check()
            batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def discard(self, transaction: Transaction) -> None:
        """Give back what it holds and forget the rest; wakes whoever waits for an item."""
        if self.closed is not None:
            return
        count = sum(run[1] for run in transaction.runs)
        self.store.discard(transaction)
        if count:
            with self.mutex:
                self._has_ready.notify(count)

    def abandon(self, transaction: Transaction) -> None:
        """Like ``discard``, from a finalizer, which may run while this very thread holds the mutex."""
        self._abandoned.append(transaction)
        if self.closed is None and self.mutex.acquire(blocking=False):
            self.mutex.release()
            self._adopt()

    def close(self, reason: str) -> None:
        """Let nobody in any more, wake those who wait, then close the store; closing again does nothing."""
        with self.mutex:
            if self.closed is not None:
                return
            self.closed = reason
            self._has_ready.notify_all()
        with self._compacting, self._writing, self._reading, self._giving_back:
            self.store.close()

    def disown(self, reason: str) -> None:
        """Close the files without a lock or a write: in a forked child, or when nobody is left who could close."""
        if self.closed is None:
            self.closed = reason
            self.store.release()

    def check(self) -> None:
        """Raise ``ClosedError`` if the queue is closed."""
        if self.closed is not None:
            raise ClosedError(self.closed)
        if self._abandoned and not self.mutex.locked():
            self._adopt()

    def _adopt(self) -> None:
        """Discard what dropped sessions left behind."""
        while self._abandoned:
            transaction = self._abandoned.pop()
            self.store.discard(transaction)
            with self.mutex:
                self._has_ready.notify(sum(run[1] for run in transaction.runs))

    def _lead(self, transaction: Transaction) -> None:
        """Commit the transaction and all that are in line, then hand the lead on."""
        followers: list[_Member] = []
        group = [transaction]
        enqueued = 0
        try:
            with self._writing:
                if self._line:
                    with self.mutex:
                        followers, self._line = self._line, []
                    group += [member.transaction for member in followers]
                if self.closed is not None:
                    raise ClosedError(self.closed)
                before = self.store.state.next_sequence
                self.store.commit(group)
                enqueued = self.store.state.next_sequence - before
                self.groups += 1
                self.transactions += len(group)
        except PersistentQueueError as error:
            for failed in group:
                failed.error = error
        finally:
            with self.mutex:
                if self._waiting and enqueued:
                    self._has_ready.notify(enqueued)
                heir = self._line.pop(0) if self._line else None
                self._is_led = heir is not None
            for member in followers:
                member.done = True
                member.turn.release()
            if heir is not None:
                heir.turn.release()
        if self.store.retired:
            self._give_back_soon()

    def _follow(self, member: _Member) -> None:
        try:
            member.turn.acquire()
        except BaseException:
            # Interrupted: leave the line if nobody took us along yet, else what becomes of us must be awaited.
            with self.mutex:
                waits = member in self._line
                if waits:
                    self._line.remove(member)
            if not waits:
                member.turn.acquire()
                if not member.done:
                    self._lead(member.transaction)
            raise
        if not member.done:
            self._lead(member.transaction)
