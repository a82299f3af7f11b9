"""The worker's account of its session at the owner: items there, holds, and a flush whose outcome is unknown.

``WorkerSession`` adds the calls of users. The methods here are for it: each of them is part of a call that has marked
the session as ``BUSY``, unless it says that it is for any thread. A call may be interrupted between any two
instructions. Then the next call settles it first: ``Link`` has its answer, and the answer is noted once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Generic

from ..codecs import Codec, T
from ..core.items import Batch, checked_marker
from ..drawing.text import many
from ..engine.transaction import SPILL_BYTES
from ..errors import (
    ClosedError,
    NotServedError,
    OutcomeUnknownError,
    PersistentQueueError,
    QueueFullError,
    SessionLostError,
    UnflushedWarning,
)
from ..interrupts.call_guard import BUSY, FREE, TORN, SessionCalls, exclusively
from ..runtime.multi_queue import require_neighbours
from ..runtime.session_state import check_joint
from ..serving.errors import decode_error
from ..serving.protocol import (
    FOR_EVER,
    ITEM_BYTES_MAX,
    Ahead,
    Call,
    Done,
    Failed,
    Flush,
    GiveBack,
    Mark,
    Message,
    Outcome,
    Put,
    Reject,
    Result,
    RollBack,
    Take,
    Taken,
)
from ..serving.protocol import encode as encode_message
from .common_owner import patiently
from .link import Attached, Link, LinkLostError, milliseconds, too_large
from .presence import Presence


class WorkerState(SessionCalls, Generic[T]):
    """A session's account of its items at the owner, its holds, and its flush whose outcome is unknown."""

    __slots__ = (
        "__weakref__",
        "_ahead",
        "_attach",
        "_batch",
        "_codec",
        "_counts",
        "_doubt",
        "_followed",
        "_given",
        "_has_dequeued",
        "_has_put",
        "_held",
        "_id",
        "_is_closed",
        "_link",
        "_mark",
        "_now",
        "_number",
        "_path",
        "_prefetches",
        "_presence",
        "_raw",
        "_together",
        "_untold",
        "_waits_no_more",
        "_why_closed",
        "name",
    )

    def __init__(
        self,
        path: str,
        name: str,
        codec: Codec[T],
        connection: bytes,
        attach: Callable[[bytes, Callable[[], bool]], Attached],
        presence: Presence,
        now: Callable[[], float],
        prefetches: bool,
    ) -> None:
        """``attach`` connects this session to the present owner, and gives up when its function returns True.
        ``presence`` tells owners that the session exists.

        ``connection`` is the id of the session for all owners. ``now`` is a clock, in seconds. ``prefetches`` says that
        a flush also brings the next items.
        """
        self._path = path
        self.name = name
        self._codec = codec
        self._id = connection
        self._attach, self._presence, self._now = attach, presence, now
        self._prefetches = prefetches
        self._link: Link | None = None
        self._waits_no_more = False
        """True if the look for an owner shall end."""
        super().__init__()
        self._why_closed = f"{path}: the session is closed: get another one from queue.session()"
        self._batch = Batch(SPILL_BYTES, ITEM_BYTES_MAX, too_large)
        self._held = 0
        """Items that the owner keeps on hold for this session."""
        self._given = 0
        """Items of these that the caller has got."""
        self._ahead: list[bytes] = []
        """Items that the last flush has brought and that the caller has not dequeued. The owner keeps them on hold,
        behind those of ``_held``. The next owner may not."""
        self._has_dequeued = True
        """True if the last flush had dequeues, and before the first one."""
        self._followed = [0, 0]
        """Items that the caller got behind the last flush without dequeues, and behind the last one with dequeues."""
        self._has_put = False
        """True if the session at the owner has items that are not flushed."""
        self._is_closed = False  # behind what ``__del__`` reads: an interruption here leaves a session without it
        self._raw: list[bytes | None] = []
        """The held items, if the queue counts attempts, for ``reject``; None in place of an item that is rejected."""
        self._counts = False
        self._number = 0
        """Number of the last flush."""
        self._doubt = False
        """True if it is unknown whether the last flush was committed: its answer has not come."""
        self._mark = b""
        """Message with the marker of the last flush; empty if it had none."""
        self._together: _JointFlush | None = None
        """Flushes this session with the sessions of other queues; None if it belongs to no such transaction."""
        self._untold: SessionLostError | None = None
        """A loss of which the caller was not told: the next call raises it."""

    def __del__(self) -> None:
        if (link := getattr(self, "_link", None)) is not None:
            link.close()
        if (presence := getattr(self, "_presence", None)) is not None:
            presence.close()
        if not getattr(self, "_is_closed", True) and self._has_enqueued:
            warnings.warn(self._lost("was dropped without a flush"), UnflushedWarning, stacklevel=2)

    def _lost(self, how: str) -> str:
        """Return the text of an ``UnflushedWarning``: the session has ended in this way, and its work is lost."""
        text = "its enqueued items are dropped, its dequeued ones given back: call flush(), or rollback() if intended"
        return f"{self._path}: the session {self.name!r} {how}: {text}"

    @property
    def directory(self) -> str:
        """Directory of the queue. For any thread."""
        return self._path

    @property
    def closed(self) -> bool:
        """True if the session was closed. For any thread."""
        return self._is_closed

    @property
    def has_work(self) -> bool:
        """True if the next flush would commit anything. For any thread."""
        return bool(self._held) or self._has_enqueued

    @property
    def _has_enqueued(self) -> bool:
        return bool(self._batch.items or self._has_put)

    # --- items -------------------------------------------------------------------------------------------------------

    def _put(self) -> None:
        """Move the buffered items to the session at the owner."""
        answer = self._ask(Put(self._batch.measured))
        self._note_put(answer)
        self._end(answer)

    def _note_put(self, answer: Message) -> None:
        """Note which of the buffered items the owner has taken, and end the call: it is not settled again."""
        batch, link = self._batch, self._link
        taken = int(answer.fields.get("taken", 0)) if isinstance(answer, Failed) else len(batch.items)
        left = batch.items[taken:]
        left_bytes = sum(map(len, left))
        assert link is not None
        # No call in these steps, so no interruption in between: the same items would be dropped again.
        self._has_put |= taken > 0
        batch.items, batch.payload_bytes = left, left_bytes
        link.going = None

    def _take(self, max_items: int, timeout: float | None) -> list[bytes]:
        """Hold items and return them. They go back unless the caller notes them in ``_given``, without a call in
        between."""
        deadline = None if timeout is None else self._now() + timeout
        self._resume()
        items: list[bytes] = []
        more = 1
        if self._ahead and self._link is not None:
            items, rest = self._ahead[:max_items], self._ahead[max_items:]
            deadline, count = 0.0, len(items)
            # No call in these two steps, so no interruption in between.
            self._ahead = rest
            self._held += count
        while more and len(items) < max_items:
            answer = self._ask_to_take(max_items - len(items), deadline)
            if not isinstance(answer, Taken):
                self._end(answer)
                break
            taken, more = list(answer.items), answer.more
            deadline, count, link = 0.0, len(taken), self._link
            if self._counts:
                self._raw += taken
            items += taken
            # No call from here on, so no interruption: the items are counted, and the answer is forgotten.
            self._held += count
            if link is not None:
                link.going = None
        return items

    def _ask_to_take(self, most: int, deadline: float | None) -> Message:
        """Ask for items until the deadline, also if the owner ends meanwhile."""
        while True:
            seconds = None if deadline is None else max(deadline - self._now(), 0.0)
            try:
                link = self._reached()
                self._presence.hold()
                return link.call(Take(min(most, FOR_EVER), milliseconds(seconds)))
            except LinkLostError:
                self._lose()

    def _give_back(self, count: int, ask: Callable[[Message], Message]) -> None:
        """Release the last ``count`` held items, and before them those that no caller has dequeued."""
        if count:
            answer = ask(GiveBack(count + len(self._ahead)))
            if isinstance(answer, Failed):
                self._end(answer)
            self._note_back(count)

    def _note_back(self, count: int) -> None:
        """Note that the owner has released the last ``count`` held items, and those ahead."""
        kept, given, link = len(self._raw) - count, min(self._given, self._held - count), self._link
        assert link is not None
        # No call from here on, so no interruption: the items are released once, and the answer is forgotten.
        del self._raw[kept:]
        self._held -= count
        self._given, self._ahead = given, []
        link.going = None

    def _note_rejected(self, message: Reject, answer: Message) -> None:
        """Note that the owner has rejected the item, so that the next rejection means another one."""
        if not isinstance(answer, Failed):
            at, link = self._raw.index(message.items[0]), self._link
            assert link is not None
            # No call from here on, so no interruption: the item is noted once, and the answer is forgotten.
            self._raw[at] = None
            link.going = None

    # --- the end of a transaction ------------------------------------------------------------------------------------

    def _flush(self, marker: tuple[str, int] | None, timeout: float | None) -> bool:
        """Flush this session alone. A flush that has begun ends, also if the queue is closed meanwhile."""
        try:
            return self._flush_begun(marker, timeout)
        except QueueFullError:
            if self._is_closed:  # which has ended the wait for room
                raise ClosedError(self._why_closed) from None
            raise
        finally:
            self._leave()

    def _flush_begun(self, marker: tuple[str, int] | None, timeout: float | None) -> bool:
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            has_learned = self._resume()
            mark = b""
            if marker is not None:
                name, version = checked_marker(marker)
                mark = encode_message(Mark(version, name), 0)
            if not self.has_work and (not mark or (has_learned and mark == self._mark)):
                self._roll_back()  # the items ahead
                self._busy = FREE
                return True
            expected = self._expected()
            while True:
                link = self._reached()
                before = mark + self._look_ahead(expected)
                number, wait, begun = self._number + 1, milliseconds(timeout), self._now()
                # No call in these steps, so no interruption in between.
                self._number = number
                self._mark = mark
                self._doubt = True
                self._need_open()
                try:
                    answer = link.call(Flush(number, wait, self._batch.measured), before)
                except LinkLostError:
                    timeout = None if timeout is None else max(timeout - (self._now() - begun), 0.0)
                    self._unlink()
                    if self._learn():
                        committed = True
                        break
                    continue
                committed = self._note_flush(answer)
                self._end(answer)
                break
            self._busy = FREE
        except BaseException:
            self._busy = TORN
            self._end_badly()
            raise
        else:
            return committed

    def _expected(self) -> int:
        """Return how many items a flush that begins now shall bring, and note the items that the caller has got."""
        if not self._prefetches:
            return 0
        self._followed[self._has_dequeued] = self._given
        self._has_dequeued = self._given > 0
        return self._followed[self._has_dequeued]

    def _look_ahead(self, expected: int) -> bytes:
        """Return the message before a flush that makes it bring these items, and first releases those ahead."""
        most, back = 0 if self._counts else expected, len(self._ahead)
        if most:
            self._presence.hold()
        return encode_message(Ahead(back, most), 0) if back or most else b""

    def _part(self) -> tuple[str, str, int]:
        """Move all items to the owner, and return what names this session in a flush of several."""
        if self._batch.items:
            self._put()
        self._number += 1
        return self._path, self._id.hex(), self._number

    def _note_flush(self, answer: Message) -> bool:
        """Note the outcome of a flush. It may be called again for the same answer."""
        if isinstance(answer, Failed):
            self._doubt = False
            self._ahead = []
            self._note_put(answer)
            return False
        self._clear()
        if isinstance(answer, Taken):
            self._ahead = list(answer.items)
            return True
        return isinstance(answer, Done) and bool(answer.value)

    def _learn(self, others: Sequence[WorkerState[Any]] = ()) -> bool:
        """Ask the next owner whether the last flush was committed; return True if it was, and begin anew.

        ``others`` were flushed together with this session, and begin anew as well. Otherwise the flush may be repeated
        if all of its items are still here. Raises ``SessionLostError`` if not, and ``OutcomeUnknownError``.

        If this is interrupted, there is still no connection, so that the next call asks again.
        """
        while self._doubt:
            try:
                attached = self._attached()
            except ClosedError:
                raise OutcomeUnknownError(self._path, "and this process has closed the queue") from None
            except LinkLostError:
                continue
            except NotServedError as error:
                raise NotServedError(
                    error.path, error.pid, in_doubt=True, is_here=error.is_here, taken=error.taken
                ) from None
            link = attached.link
            try:
                answer = link.call(Outcome(self._number))
                link.end()
                is_committed = isinstance(answer, Done) and bool(answer.value)
                if is_committed or isinstance(answer, Failed):
                    for each in (*others, self):
                        each._clear()
                self._doubt = False
                self._use(attached)
            except LinkLostError:
                continue
            except BaseException:
                link.close()
                raise
            if is_committed or isinstance(answer, Failed):
                self._end(answer)
                return True
        return False

    def _roll_back(self) -> None:
        link = self._link
        if link is not None and (self._held or self._has_put or self._doubt or self._ahead):
            try:
                answer = link.call(RollBack())
            except LinkLostError:  # the owner's end has rolled it back, or the next owner does
                self._link = None
            else:
                self._clear()
                self._end(answer)
        self._clear()
        if self._link is None:
            self._presence.release()

    def _clear(self) -> None:
        """Begin a new transaction."""
        self._batch.clear()
        self._raw, self._ahead, self._held, self._given = [], [], 0, 0
        self._has_put = self._doubt = False

    def refuse(self, why_closed: str | None) -> str | None:
        """Refuse later calls, which say ``why_closed``, if any; return the ``loss`` of the session. For any thread."""
        loss = self.loss()
        self._is_closed, self._why_closed = True, why_closed or self._why_closed
        return loss

    def end(self) -> None:
        """End the session, since the process was forked, or its queue was closed. For any thread."""
        self.refuse(None)
        link = self._link
        if link is not None:
            if self._busy == FREE:  # and no call begins that would use it
                link.close()
            elif self._doubt:  # a flush ends: its caller learns whether it was committed
                link.wait_no_more()
            else:
                link.cut()
        self._presence.close()

    def _leave(self) -> None:
        """End the connection if the session was ended during its flush, which ``end`` has left to it."""
        link = self._link
        if self._is_closed and self._busy == FREE and link is not None:
            link.part()

    def _need_open(self) -> None:
        """Raise ``ClosedError`` if the session was ended before its flush was in doubt: ``end`` did not cut it then."""
        if self._is_closed:
            self._doubt = False
            raise ClosedError(self._why_closed)

    def tell_again(self, lost: SessionLostError) -> None:
        """Raise this error at the next call, unless that is a rollback: the caller has got another error instead."""
        self._untold = copy(lost)  # without its traceback, which has this session

    def loss(self) -> str | None:
        """Return the text of a warning if the close of the queue loses something that no call tells; else None.

        A call that is under way tells it. For any thread.
        """
        if self._is_closed or self._busy != FREE or not self._has_enqueued:
            return None
        return self._lost("was not flushed before its queue was closed")

    # --- calls -------------------------------------------------------------------------------------------------------

    def _resume(self, is_last: bool = False) -> bool:
        """Learn the outcome of an earlier flush, before anything else in a call; return whether that is committed.

        Raises ``ClosedError``, and ``SessionLostError`` if the session has lost what it held. ``is_last`` says that the
        call ends the transaction anyway.
        """
        if self._is_closed and not is_last:
            raise ClosedError(self._why_closed)
        joint, has_learned = self._together, False
        untold, self._untold = self._untold, None
        if untold is not None and not is_last:
            if joint is not None:
                joint.is_lost = True  # the others have gone on with work of the same transaction
            raise untold
        if joint is not None:
            with suppress(*((PersistentQueueError,) if is_last else ())):
                has_learned = joint.resolve()
        if self._link is None and not is_last:
            if self._doubt:
                has_learned = self._learn()
            self._go_on()
        return has_learned

    def _clean_up(self) -> None:
        """Note the answer to a call that was interrupted, and release items that the caller did not get."""
        try:
            link = self._link
            if link is not None:
                settled = link.settle()
                if settled is not None:
                    self._settle(*settled)
                self._doubt = False  # the outcome of a flush was noted, or the flush was not sent
                if self._held > self._given and self._link is not None:
                    self._give_back(self._held - self._given, self._link.call)
        except LinkLostError:
            self._link = None
        except PersistentQueueError:  # of what is given back: the session is lost, or the hold is
            pass
        if self._link is None:
            given = self._given
            ahead = self._ahead if self._held == given else []
            # No call in these steps, so no interruption in between. At the next owner, the rest goes back.
            del self._raw[given:]
            self._held = given
            self._ahead = ahead
            self._unlink()

    def _settle(self, message: Message, answer: Message) -> None:
        """Note the answer to a call that was interrupted, and give back what its caller did not get."""
        if isinstance(message, Take) and isinstance(answer, Taken):
            count, link = len(answer.items), self._link
            if self._counts:
                self._raw += answer.items
            self._held += count
            assert link is not None
            link.going = None
            return
        if isinstance(message, Flush):
            self._note_flush(answer)
        elif isinstance(message, Put):
            self._note_put(answer)
        elif isinstance(message, GiveBack) and not isinstance(answer, Failed):
            self._note_back(message.items - len(self._ahead))
        elif isinstance(message, Reject):
            self._note_rejected(message, answer)
        elif isinstance(message, RollBack):
            self._clear()
        elif isinstance(message, Call) and self._together is not None and self._together.under_way[:1] == [self]:
            self._together.note(answer)
        if self._link is not None:
            self._link.end()

    def _ask(self, message: Message) -> Message:
        """Make a call, also if the owner ends meanwhile and nothing is lost. ``_end`` must follow."""
        while True:
            try:
                return self._reached().call(message)
            except LinkLostError:
                self._lose()

    def _end(self, answer: Message) -> None:
        """Forget the call, since its effect was noted. Raises the error of a call that has failed."""
        if self._link is not None:
            self._link.end()
        if isinstance(answer, Failed):
            raise decode_error(answer.fields)

    def _call(self, name: str, **arguments: Any) -> None:
        self._end(self._ask(Call({"call": name, "arguments": arguments})))

    def _make(self, call: Callable[[], object], is_last: bool = False) -> None:
        """Make a call of the session whose result nothing needs, behind what an earlier one has left: ``_resume``."""
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            self._resume(is_last)
            call()
            self._busy = FREE
        except BaseException:
            self._busy = TORN
            self._end_badly()
            raise

    def _reached(self) -> Link:
        return self._link or self._connect()

    def _connect(self) -> Link:
        while True:
            attached = self._attached()
            try:
                self._use(attached)
            except LinkLostError:
                continue
            except BaseException:
                if self._link is None:
                    attached.link.close()
                raise
            if self.closed:  # meanwhile, by a thread that has found no connection to end
                attached.link.close()
                raise ClosedError(self._why_closed)
            return attached.link

    def _attached(self) -> Attached:
        """Connect to the present owner. Raises ``ClosedError``."""
        if self._is_closed:
            raise ClosedError(self._why_closed)
        self._waits_no_more = False
        try:
            return self._attach(self._id, lambda: self._waits_no_more)
        except NotServedError:
            if self._is_closed:  # which has ended the look
                raise ClosedError(self._why_closed) from None
            raise

    def _use(self, attached: Attached) -> None:
        """Use this connection, if its owner holds what the session holds. It releases what it holds beyond that: the
        answer of the last owner was lost.

        Raises ``SessionLostError``, and ``LinkLostError``; then close the link.
        """
        link, counts, kept = attached
        if self._has_put or kept < self._held:
            self._need_whole()
        ahead = self._ahead if kept >= self._held + len(self._ahead) else []
        beyond = kept - self._held - len(ahead)
        if beyond:
            answer = link.call(GiveBack(beyond) if self._held or ahead else RollBack())
            link.end()
            if isinstance(answer, Failed):
                raise decode_error(answer.fields)
        # No call in these steps, so no interruption in between: it finds all or nothing noted.
        self._link, self._counts = link, counts
        self._ahead = ahead

    def _unlink(self) -> None:
        """Note that the connection has ended. A session that holds nothing wants nothing from the next owner."""
        self._link = None
        if not self._held:
            self._presence.release()

    def _lose(self) -> None:
        """Note that the owner has ended. Raises ``SessionLostError`` if anything of this session is lost with it."""
        self._unlink()
        self._go_on()

    def _go_on(self) -> None:
        """Go on at the next owner with what the session holds. Raises ``SessionLostError`` if that is lost."""
        if self._link is None and (self._held or self._has_put):
            if self._has_put or self._is_closed or not self._presence.is_held:  # which no owner hands over
                self._need_whole()
            self._connect()

    def _has_owner(self) -> bool:
        """Return False if the owner has ended, and the session goes on at the next one: that is why a flush of several
        sessions has failed. Raises ``SessionLostError``.

        An owner that ends closes its queues one after the other, so the first one may still be served.
        """
        if self._link is not None:
            try:
                self._link.call(Call({"call": "subscriptions", "arguments": {}}))  # any call: the answer does not count
                self._link.end()
            except LinkLostError:
                self._lose()
                return False
        return True

    def _need_whole(self) -> None:
        """Begin anew and raise ``SessionLostError`` if the owner that has ended had anything of this session.

        The sessions that are flushed together with this one begin anew at their next call.
        """
        if self._held or self._has_put:
            held = many(self._held, "item") if self._held else "the enqueued items"
            error = SessionLostError(self._path, f"which held {held} for this session")
            joint = self._together
            self._batch.clear()
            # No call from here on: an interruption finds the loss to be told, or its error on the way.
            if joint is not None:
                joint.is_lost = True
            self._raw, self._ahead, self._held, self._given = [], [], 0, 0
            self._has_put = self._doubt = False
            try:
                raise error
            finally:
                del error  # no cycle of the error, its traceback, and this frame, which would keep the connection


class _JointFlush:
    """The flush of sessions of one worker as one transaction over their queues. For one thread at a time.

    The items go to the sessions at the owner first. The flush itself is one call, on the connection of the first
    session that has anything. It records the numbers of all sessions in the same transaction. So that session can ask
    the next owner for the outcome, which holds for all of them.
    """

    def __init__(self, sessions: Sequence[WorkerState[Any]]) -> None:
        self._sessions = sessions
        self.under_way: list[WorkerState[Any]] = []
        """Sessions of a flush whose outcome is not noted, that which made the call first; empty if there is none."""
        self.is_lost = False
        """True if a session has lost what it held, and the others have not begun anew."""
        self._marker: tuple[str, int] | None = None
        """Marker of the last flush, which was for the session that made the call."""

    def flush(self, asked: WorkerState[Any], marker: tuple[str, int] | None, timeout: float | None, wait: bool) -> bool:
        """Flush all sessions, as ``WorkerSession.flush`` does for one; ``asked`` is the session with the marker."""
        check_joint(timeout, wait)
        marker = None if marker is None else checked_marker(marker)
        try:
            flush = partial(self._flush_begun, asked, marker)
            return exclusively(self._sessions, partial(patiently, flush, [each._path for each in self._sessions]))
        finally:
            for session in self._sessions:
                session._leave()

    def _flush_begun(self, asked: WorkerState[Any], marker: tuple[str, int] | None) -> bool:
        under_way, has_learned = self.under_way[:1], False
        for session in self._sessions:
            has_learned |= session._resume()
        if has_learned and marker is not None and (under_way, self._marker) == ([asked], marker):
            return True  # the same flush again, and it is committed
        try:
            return self._flush(asked, marker)
        finally:
            if self.is_lost:
                self._drop()

    def _flush(self, asked: WorkerState[Any], marker: tuple[str, int] | None) -> bool:
        busy = [each for each in self._sessions if each.has_work or (each is asked and marker is not None)]
        if not busy:
            return True
        first = asked if marker is not None else busy[0]
        busy = [first, *(each for each in busy if each is not first)]
        parts = [each._part() for each in busy]
        link = first._reached()
        # No call in these steps, so no interruption in between.
        self.under_way = busy
        self._marker = marker
        first._doubt = True
        first._need_open()
        try:
            answer = link.call(Call({"call": "flush_jointly", "arguments": {"parts": parts, "marker": marker}}))
        except LinkLostError:
            first._unlink()
            # If it was not committed, ``first`` goes on with what it holds.
            return self.learn() or self._flush(asked, marker)
        committed = self.note(answer)
        if isinstance(answer, Failed):
            have_owners = [each._has_owner() for each in busy[1:]]  # all are asked
            if not all(have_owners):
                link.end()
                return self._flush(asked, marker)
        first._end(answer)
        return committed

    def note(self, answer: Message) -> bool:
        """Note the outcome of the flush under way, for all of its sessions. It may be called again for the same
        answer."""
        if isinstance(answer, Failed):
            self.under_way[0]._doubt = False
        else:
            for each in self.under_way:
                each._clear()
        self.under_way = []
        return isinstance(answer, Result) and bool(answer.fields.get("result"))

    def learn(self) -> bool:
        """Ask the next owner whether the flush under way was committed; return True if it was, for all sessions.

        Raises ``SessionLostError`` if not, and the session that made the call had anything at the owner that has ended.
        All sessions then begin anew.
        """
        first, *others = self.under_way
        committed = first._learn(others)
        self.under_way = []
        return committed

    def resolve(self) -> bool:
        """Note what an interrupted or failed call has left, before a further call of any of the sessions: the outcome
        of a flush, or a loss. Return whether that outcome was asked for, and is committed. Raises the errors of
        ``learn``."""
        self.settle()
        first, committed = (self.under_way[0] if self.under_way else None), False
        if first is not None:
            if first._link is None and first._doubt:
                committed = self.learn()
            self.under_way = []
        if self.is_lost:
            self._drop()
        return committed

    def settle(self) -> None:
        """Note the answer to a call of the flush under way that was interrupted."""
        if self.under_way:
            self.under_way[0]._end_badly()

    def _drop(self) -> None:
        """Let all sessions begin anew: one has lost what it held, so nothing of the others may be committed."""
        self.under_way = []
        for session in self._sessions:
            session._end_badly()
            session._roll_back()
        self.is_lost = False


def flush_together(sessions: Sequence[WorkerState[Any]]) -> None:
    """Make ``flush`` of each of these sessions flush all of them, as one transaction over their queues.

    Raises ``ValueError`` if their queues do not go together.
    """
    require_neighbours(*(session._path for session in sessions))
    joint = _JointFlush(sessions)
    for session in sessions:
        session._together = joint
