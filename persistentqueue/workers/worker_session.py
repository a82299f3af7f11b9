"""``WorkerSession``: a session of a queue that another process owns. It has the interface of ``Session``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any, Literal, overload

from ..codecs import BYTES, T, advice_on_hold, encode
from ..codecs.held_items import decode_held, first_meant, ranking
from ..core.items import (
    are_bytes,
    as_bytes,
    checked_count,
    checked_held,
    checked_timeout,
    checked_truth,
    chunks,
)
from ..errors import CodecError, ItemTooLargeError, NotHeldError, UnflushedWarning
from ..interrupts.call_guard import BUSY, FREE, TORN
from ..runtime.pipeline import Ticket, done
from ..runtime.retries import checked_delay, checked_reason
from ..serving.protocol import MESSAGE_BYTES_MAX, Call, Reject
from ..system.path_errors import suppress
from .link import LinkLostError
from .worker_state import WorkerState

_TEXT_CHARACTERS_MAX = 10_000
"""Most characters of an error's text that the owner gets: a dead letter has fewer."""
_REJECTION_BYTES_MAX = MESSAGE_BYTES_MAX - 100
"""Most bytes of an item and the reason of its rejection: the message also holds their lengths and a delay."""


class WorkerSession(WorkerState[T]):
    """A series of transactions on a queue that another process owns: ``connect`` describes such queues.

    It behaves as ``Session`` does, and all its promises hold, with these differences:

    - If this process ends, however it ends, the session is rolled back at once. A process that hangs keeps its items,
      unless ``connect`` got ``hold_seconds``. Then the items go back, and the late ``flush`` raises ``HoldLostError``.
    - If the owner ends, the session finds the next owner. A session that held nothing goes on without an error. So
      does one with held items alone, if the owner has closed the queue. Any other one that had dequeued or spilled
      raises ``SessionLostError`` at its next call, and begins anew. A ``flush`` that was under way returns True if it
      was committed; otherwise it is made again, or raises that error.
    - An item has at most 64 MiB - 1 KiB.
    - An item for which the codec has no key goes back at once, and the call raises ``WrongKeyError``.
    - ``flush(wait=False)`` waits, and returns a ticket that is done. If the flush fails, the call raises the error, and
      the session keeps its operations.

    Durability: nothing is durable before ``flush`` returns. Threads: for one thread at a time, except ``give_up``.
    """

    __slots__ = ()

    _elsewhere = "call connect() in the other process, and get a session there"

    def __repr__(self) -> str:
        if self._is_closed:
            return f"<closed worker session {self.name!r}>"
        more = ", others at the owner" if self._has_put else ""
        counts = f"{len(self._batch.items)} enqueued{more}, {self._held} dequeued"
        return f"<worker session {self.name!r} of {self._path!r}: {counts}, not flushed>"

    def __enter__(self) -> WorkerSession[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unflushed = False
        try:
            unflushed = kind is None and not self._is_closed and self.has_work
            if isinstance(error, Exception) and self._counts and self._held and self._link is not None:
                with suppress(Exception):  # the user must see the error of the block, not this one
                    text = str(error)[:_TEXT_CHARACTERS_MAX]
                    self._make(partial(self._call, "give_up", error=type(error).__name__, text=text))
        finally:
            self.close()
        if unflushed:
            warnings.warn(self._lost("ended without a flush"), UnflushedWarning, stacklevel=2)

    @property
    def held(self) -> int:
        """Number of items that the session has dequeued since its last flush. For any thread."""
        return self._held

    # --- enqueue -----------------------------------------------------------------------------------------------------

    def enqueue(self, item: Any) -> None:
        """Buffer an item until the next flush, as ``Session.enqueue`` does. Raises its errors.

        Args:
            item: Up to 64 MiB - 1 KiB, or an object that the codec of the queue can encode.
        """
        self._enqueue([item if type(item) is bytes and self._codec is BYTES else self._encoded(item)])

    def enqueue_many(self, items: Iterable[Any]) -> None:
        """Buffer several items, in order, until the next flush, as ``Session.enqueue_many`` does. Raises its errors.

        Args:
            items: Items, as for ``enqueue``; no mapping.
        """
        for chunk in chunks(items):
            plain = self._codec is BYTES and are_bytes(chunk)
            self._enqueue(chunk if plain else list(map(self._encoded, chunk)))

    def _encoded(self, item: Any) -> bytes:
        return as_bytes(item) if self._codec is BYTES else encode(self._codec, item, self._path)

    def _enqueue(self, items: list[bytes]) -> None:
        if self._busy:  # as ``_make``, which would take half as long again
            self._begin()
        self._busy = BUSY
        try:
            self._resume()
            self._batch.extend(items, self._put)
            self._busy = FREE
        except BaseException:
            self._busy = TORN
            self._end_badly()
            raise

    # --- dequeue -----------------------------------------------------------------------------------------------------

    def dequeue(self, timeout: float | None = 0.0) -> T | None:
        """Hold the first ready item and return it; None if there is none in time. As ``Session.dequeue``.

        Args:
            timeout: Seconds to wait for an item; at least 0. Default 0.0: no wait. None: no limit.
        """
        timeout = checked_timeout(timeout)
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:  # not by ``dequeue_many``: Python 3.10 may interrupt the return from a call
            items: list[Any] = self._take(1, timeout)
            if self._codec is not BYTES:
                items = self._decoded(items)
            count = len(items)
            # No call from here on, so no interruption: the item that was taken reaches the caller.
            self._given += count
            self._busy = FREE
        except CodecError:  # the caller gets it in place of the item, which stays on hold
            self._given += 1
            self._busy = FREE
            raise
        except BaseException:
            self._busy = TORN
            self._end_badly()
            raise
        return items[0] if items else None

    def dequeue_many(self, max_items: int, timeout: float | None = 0.0) -> list[T]:
        """Hold up to ``max_items`` ready items and return them, in order. As ``Session.dequeue_many``.

        Args:
            max_items: Upper bound for the number of items; at least 0.
            timeout: Seconds to wait for the first item; at least 0. Default 0.0: no wait. None: no limit.
        """
        max_items, timeout = checked_count("max_items", max_items), checked_timeout(timeout)
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            items: list[Any] = self._take(max_items, timeout)
            if self._codec is not BYTES:
                items = self._decoded(items)
            count = len(items)
            # No call from here on, so no interruption: the items that were taken reach the caller.
            self._given += count
            self._busy = FREE
        except CodecError:  # the caller gets it in place of the first item, which stays on hold
            self._given += 1
            self._busy = FREE
            raise
        except BaseException:
            self._busy = TORN
            self._end_badly()
            raise
        else:
            return items

    def dequeue_cached(self, max_items: int) -> list[T]:
        """Hold up to ``max_items`` ready items and return them, without a wait.

        Args:
            max_items: Upper bound for the number of items; at least 0.
        """
        return self.dequeue_many(max_items)

    def _decoded(self, data: list[bytes]) -> list[T]:
        """Return the items that were just put on hold, decoded, as ``decode_held`` describes."""
        return decode_held(self._codec, data, self._release, self._undecodable, self._uncount)

    def _release(self, count: int) -> None:
        self._give_back(count, self._ask)

    def _uncount(self, count: int) -> None:
        """Take back the last delivery of the last ``count`` items that the session holds."""
        if self._counts:
            try:
                answer = self._reached().call(Call({"call": "uncount", "arguments": {"count": count}}))
            except LinkLostError:  # perhaps behind its effect: it is not made again
                self._lose()
            else:
                self._end(answer)

    def _undecodable(self, codec: object, data: bytes, reason: Exception) -> CodecError:
        """Return the error for an item that the codec refuses, and count it at the owner."""
        self._call("count_undecodable")
        return CodecError("decode", codec, data, reason, self._path, advice=advice_on_hold(reason))

    def put_back(self, count: int = 1) -> None:
        """Release the items that were dequeued last, as ``Session.put_back`` does.

        Args:
            count: Number of items, from 0 to that of the held ones. Default 1.
        """
        self._make(lambda: self._release(checked_held(count, self._held)))

    def keep(self, count: int) -> None:
        """Release the held items behind the first ``count`` ones, which a cancelled dequeue has taken. For ``aio``.

        Args:
            count: Number of items that the caller has got.

        If no owner is found, the next call of the session releases them.
        """
        self._given = count  # first: from here on, the end of each call that fails releases the others
        self._make(lambda: self._release(max(self._held - count, 0)))

    # --- the end of a transaction ------------------------------------------------------------------------------------

    @overload
    def flush(
        self, marker: tuple[str, int] | None = None, timeout: float | None = None, *, wait: Literal[True] = True
    ) -> bool: ...

    @overload
    def flush(
        self, marker: tuple[str, int] | None = None, timeout: float | None = None, *, wait: Literal[False]
    ) -> Ticket: ...

    @overload
    def flush(
        self, marker: tuple[str, int] | None = None, timeout: float | None = None, *, wait: bool
    ) -> bool | Ticket: ...

    def flush(
        self, marker: tuple[str, int] | None = None, timeout: float | None = None, *, wait: bool = True
    ) -> bool | Ticket:
        """Commit everything since the last flush as one atomic transaction, as ``Session.flush`` does.

        Args:
            marker: Name and version to record with the transaction. Default: None.
            timeout: Seconds to wait for room; None (the default) waits for ever.
            wait: False to return a ticket. It is done: the call waits nevertheless, and raises the errors.

        Returns:
            True if the transaction was committed, or if there was nothing to commit. False if the marker had reached
            the version before.

        Raises:
            SessionLostError: If the owner ended before the flush was committed, and held items for this session.
            OutcomeUnknownError: If the owner ended, and no later one knows the outcome.
            HoldLostError: If the session held items for longer than ``hold_seconds``. Nothing was committed.
            NotServedError: If no owner serves the queue in time. If it is ``in_doubt``, the owner ended during the
                flush: call ``flush`` again, which learns the outcome.

        The errors of ``Session.flush`` can occur as well. On return the transaction is durable, also if the owner dies.
        For one thread at a time.
        """
        if self._together is not None:
            return self._together.flush(self, marker, timeout, wait)
        waits = checked_truth("wait", wait)
        committed = self._flush(marker, checked_timeout(timeout))
        return committed if waits else done(committed)

    def reject(self, item: Any, reason: str = "", *, retry: bool = True, delay_seconds: float | None = None) -> None:
        """Mark a held item as failed, as ``Session.reject`` does. Raises its errors.

        Args:
            item: The item as ``dequeue`` returned it. For an item that the codec could not decode, its ``CodecError``.
            reason: Why the item failed, for its dead letter. Default: empty, or the ``CodecError`` without its advice.
            retry: True (the default) to deliver the item again if it has attempts left. False to make it a dead letter.
            delay_seconds: Seconds until the item is ready again, from 0 to ten years. Default None:
                ``retry_delay_seconds`` of the queue.

        Raises ``ItemTooLargeError`` if the item and the reason together exceed 64 MiB - 100 bytes.
        """
        self._make(partial(self._reject, item, reason, retry, delay_seconds))

    def _reject(self, item: Any, reason: str, retry: bool, delay_seconds: float | None) -> None:
        if isinstance(item, CodecError):
            reason, item = reason or item.problem, item.item
        its_reason = checked_reason(reason).encode(errors="surrogatepass")  # from the name of a file
        delay = b"" if delay_seconds is None else repr(float(checked_delay(delay_seconds))).encode()
        numbered = ((at, raw) for at, raw in enumerate(self._raw) if raw is not None)
        rank = ranking(self._codec, item)
        at, raw = first_meant(numbered, lambda _, raw: rank(raw)) or (-1, b"")
        if at < 0 and self._counts:
            raise NotHeldError
        _need_sendable(raw, its_reason)
        message = Reject(int(bool(retry)), (raw, its_reason, delay))
        answer = self._ask(message)
        self._note_rejected(message, answer)
        self._end(answer)

    def extend(self) -> None:
        """Begin the time of ``hold_seconds`` anew for the items that the session holds.

        Raises:
            HoldLostError: If the time is over, and the items are back in the queue.

        Nothing becomes durable by this call. For one thread at a time.
        """
        self._make(partial(self._call, "extend"))

    def rollback(self) -> None:
        """Drop what was enqueued and release what was dequeued since the last flush, as ``Session.rollback`` does."""
        self._make(self._roll_back, is_last=True)

    def give_up(self) -> None:
        """End the wait of a call for an item or for room, in another thread, as ``Session.give_up`` does. For any
        thread."""
        if (link := self._link) is not None:
            link.give_up()

    def wait_no_more(self) -> None:
        """End the wait of a call for an item, for room or for an owner, in another thread. For ``aio``, and for any
        thread."""
        self._waits_no_more = True  # without a connection
        self.give_up()

    def close(self) -> None:
        """Roll back what was not flushed, and end the session. Closing again does nothing."""
        if self._is_closed:
            return
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            # It does not ask for the outcome of a flush of several sessions: none of them can be flushed any more.
            if self._together is not None:
                self._together.settle()
            self._roll_back()
        finally:
            self._is_closed, link, self._link, self._busy = True, self._link, None, FREE
            try:
                self._presence.close()
            finally:
                if link is not None:
                    link.part()


def _need_sendable(item: bytes, reason: bytes) -> None:
    """Raise ``ItemTooLargeError`` if a message has no room for the item and the reason of its rejection."""
    if len(item) + len(reason) > _REJECTION_BYTES_MAX:
        raise ItemTooLargeError(
            f"an item of {len(item)} bytes and a reason of {len(reason)} bytes exceed the maximum of a worker, "
            f"{_REJECTION_BYTES_MAX} bytes together: pass a shorter reason"
        )
