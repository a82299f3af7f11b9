"""The owner's side of all connections: the calls of workers, and their answers. No sockets, threads or clock.

Each connection has a session of the queue. ``receive`` takes what a worker has sent. Calls that take no time are made
at once. Flushes and waits are kept until ``turn``, which takes two steps:

1. Commit all flushes that came since the last turn as one group: they share one sync.
2. Hand ready items to the sessions that wait, in the order in which they came.

So one turn answers all workers that called meanwhile, as group commit does for threads. While flushes are received,
others come: the server looks for them once more before the turn, so that they share the same sync.

The truth about a flush: its transaction records the connection's id and the number of the flush. So the next owner can
tell a worker whether the flush was committed before its owner died. The record of a connection is forgotten when the
worker says that it ends the connection. Without that word, the worker was killed, or has lost only its connection and
asks soon: its record is forgotten after ``FORGET_SECONDS``. If an owner died, its connections stay in the records, up
to ``INHERITED_MAX`` of them. A record of ``SOME_LOST`` says that there were more.

When the owner closes the queue, sessions that hold or have put items may go on until they flush or roll back. The
others get no more items: a *take* of theirs has no answer, and the worker makes it again at the next owner. Held items
then go to the next owner, if their session has no other work: see ``handover``. There the connection is *away* until
its worker connects again. If the worker ends before that, the items go back.

The connections that wait for an item are in ``waits``. A flush that waits for room is tried again in each turn that may
have made room, and at least every ``ROOM_SECONDS``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, NamedTuple

from ..engine.reader import Reader
from ..errors import (
    HoldLostError,
    ItemTooLargeError,
    OutcomeUnknownError,
    PersistentQueueError,
    QueueFullError,
    RefusedError,
    SessionInUseError,
)
from ..runtime.open_queue import OpenQueue
from ..runtime.session_state import (
    buffered,
    buries,
    counts_attempts,
    dequeue_by,
    fail_held,
    flush_all,
    flush_at_once,
    holds,
    put_at_once,
    reader_of,
    takes_no_more,
    uncount,
)
from ..session import Session
from ..system.event_log import LOGGER
from .away import Away, hand_over
from .client import HOLD_SECONDS_MAX, Client, text
from .errors import encode_error
from .handover import Handover
from .portion import Portion
from .protocol import (
    CALLS_ONLY,
    CONNECTION_BYTES,
    FOR_EVER,
    ITEM_BYTES_MAX,
    TAKEN_BYTES,
    VERSION,
    Ahead,
    Browse,
    Call,
    Cancel,
    Done,
    End,
    Failed,
    Flush,
    GiveBack,
    Hello,
    Mark,
    Message,
    Outcome,
    ProtocolError,
    Put,
    Reject,
    Result,
    RollBack,
    Take,
    Taken,
    Welcome,
)
from .waits import Waits

INHERITED_MAX = 4096
"""Connections of dead owners whose flushes are remembered."""
SOME_LOST = bytes(CONNECTION_BYTES)
"""Id under which a record says that connections of dead owners were forgotten."""
FORGET_SECONDS = 60.0
"""Time in seconds for which the record of a connection is kept that has ended without a word."""
ROOM_SECONDS = 0.05
"""Longest time between two attempts of a flush that waits for room, in seconds."""
_MILLISECONDS = 1000.0
_SOON_SECONDS = 0.001
"""Time until the next look at a hold that is over and whose session is in use, in seconds."""
_REJECTION_FIELDS = 3
_LENGTH_BYTES = 4
"""Bytes that an item takes in a message beside its payload."""
_FLUSH_MAX = 2**64 - 1
"""Highest number of a flush: the log has room for no other."""


class OwnerFailedError(Exception):
    """Internal error: a sync or a write of the log has failed, so only recovery knows what is committed.

    The workers get no answers. They lose their connections instead, and the next owner tells them the outcome.
    """


class Served(NamedTuple):
    """The parts of a queue that a service needs."""

    open_queue: OpenQueue
    session: Callable[[str, str], Session[bytes]]
    """Makes a session without a codec. Takes its name, and the name of a subscription or an empty text."""
    call: Callable[[str, dict[str, Any]], Any]
    """Makes any other call of the queue, by its name and arguments. Returns what a json can hold."""
    facts: dict[str, Any]
    """Facts about the queue for ``welcome``."""
    now: Callable[[], float]
    """The clock of the service, in seconds."""
    handover: Handover
    """The way of held items from the last owner, and to the next one."""


class Service:
    """The calls of all workers of one queue. For one thread at a time; only ``note_flush`` is for any thread."""

    def __init__(self, served: Served, ring: Callable[[], object], apart: Callable[[Callable[[], None]], None]) -> None:
        """``ring`` makes the owner's thread call ``turn`` soon. ``apart`` makes a slow call, in another thread."""
        self._served = served
        self._queue = served.open_queue
        self._now = served.now
        self._ring = ring
        self._apart = apart
        self.clients: set[Client] = set()
        """Connections that have said hello. Read-only outside this class."""
        self._flushing: list[Client] = []
        self._blocked: list[Client] = []
        """Connections whose flush waits for room, in the order in which they came."""
        self._room_at = inf
        """Time of the next attempt of the first of them."""
        self._refusal: QueueFullError | None = None
        """Last refusal of the first of them."""
        self._waits = Waits(self._queue, ring, self._hand_out)
        self._ended: deque[Callable[[], None]] = deque()
        """Answers of calls that were made apart."""
        self._leased: set[Client] = set()
        """Connections that hold items and have ``hold_seconds``."""
        self._leaving: dict[bytes, float] = {}
        """Connections whose flushes are to be forgotten, each with the time for that, in the order of these times."""
        self._closing: list[Session[bytes]] = []
        """Sessions of connections that have ended, to close when another thread is done with them."""
        self._answered: list[Client] = []
        """Connections that have messages to send."""
        self._is_leaving = False
        """True from the beginning of the close on."""
        self._away = Away(served.handover, served.session, served.now)

    def inherit(self) -> None:
        """Hold what the last owner has left. This is the first call."""
        self._queue.inherit_flushes(INHERITED_MAX, SOME_LOST)
        for client in self._away.inherit(self._answered):
            client.number = self._queue.flush_of(client.id) or 0
            self.clients.add(client)
            self._lease(client)

    def connect(self) -> Client:
        """Return a new connection, which has to say hello."""
        return Client(self._answered)

    def leave(self) -> None:
        """Leave the line of those that wait for an item, and end the sessions that are away: no turn follows."""
        self._waits.leave()
        for client in self._away.clients.copy():
            self.disconnect(client, may_return=False)

    def hand_over(self) -> None:
        """Leave what sessions hold to the next owner. No message is taken any more, and ``disconnect`` follows for each
        connection."""
        hand_over(self._served.handover, self.clients)

    def take_answered(self) -> list[Client]:
        """Return the connections that have messages to send since the last call."""
        answered = self._answered.copy()
        self._answered.clear()
        return answered

    @property
    def may_gather(self) -> bool:
        """Whether flushes of other connections may have come meanwhile, to share the sync of those that are here."""
        return 0 < len(self._flushing) < len(self.clients)

    def may_leave(self) -> bool:
        """Begin to leave; return whether no worker has work that it can still finish."""
        if not self._is_leaving:
            self._is_leaving = True
            self._waits.let_go(lambda client: not _has_work(client))
        return not any(map(_has_work, self.clients))

    @property
    def blocked(self) -> Sequence[Client]:
        """Connections whose flush waits for room."""
        return self._blocked

    @property
    def waits(self) -> bool:
        """Whether a connection waits for an item."""
        return bool(self._waits)

    # --- what workers send -------------------------------------------------------------------------------------------

    def receive(self, client: Client, data: bytes) -> None:
        """Take bytes that the worker has sent. Raises ``ProtocolError``: then call ``disconnect``."""
        self._note_ended()  # first: the worker may know of a flush of several queues by the owner of another one
        for call, message in client.incoming.feed(data):
            kind = type(message)
            if kind is Cancel:
                self._cancel(client, call)
                continue
            # An answer that was not sent bounds the memory of a peer that sends calls and reads nothing.
            if client.waits is not None or client.flush is not None or client.is_busy or client.out:
                raise ProtocolError(f"a {kind.__name__} during another call")
            if client.session is None and kind is not Hello:
                raise ProtocolError(f"a {kind.__name__} before the hello")
            try:
                client.taken = 0
                _HANDLERS[kind](self, client, call, message)
            except ProtocolError:
                raise
            except (PersistentQueueError, TypeError, ValueError, OSError, MemoryError) as error:
                self._fail(client, call, error)
            except Exception as error:
                if kind not in _CALLS_BACK:  # a bug
                    raise
                self._fail(client, call, error)

    def disconnect(self, client: Client, *, may_return: bool) -> None:
        """End the session of a connection that has ended.

        ``may_return`` says that the worker may ask this owner for the outcome of its last flush.
        """
        self.clients.discard(client)
        self._away.clients.discard(client)
        self._leased.discard(client)
        if client in self._flushing:
            self._flushing.remove(client)
        if client in self._blocked:
            self._blocked.remove(client)
        client.waits = client.flush = None
        if client.session is not None:
            if client.has_ended:
                self._queue.forget_flushes(client.id)
            elif may_return and client.number:
                self._forget_later(client)
            self._close(client.session)

    def _forget_later(self, client: Client) -> None:
        self._leaving.pop(client.id, None)  # behind all others: the order is that of the times
        self._leaving[client.id] = self._now() + FORGET_SECONDS

    def _forget(self, now: float) -> float:
        """Forget the flushes of connections that have ended, once their time is over. Return the next such time."""
        for connection, forget_at in list(self._leaving.items()):
            if forget_at > now:
                return forget_at
            del self._leaving[connection]
            self._queue.forget_flushes(connection)
        return inf

    def _end(self, client: Client, _call: int, _message: End) -> None:
        client.has_ended = True

    def _close(self, session: Session[bytes]) -> None:
        try:
            session.close()
        except SessionInUseError:  # another thread flushes it, together with sessions of other queues
            self._closing.append(session)
        except Exception as error:  # also one of ``retry_delay_seconds``; the items are released all the same
            LOGGER.warning("%s: the session of a worker could not be closed: %r", self._queue.directory, error)

    def _hello(self, client: Client, call: int, message: Hello) -> None:
        if client.session is not None:
            raise ProtocolError("a second hello")
        fields = message.fields
        lowest, highest = _pair(fields.get("versions"))
        if not lowest <= VERSION <= highest:
            why = f"it speaks version {VERSION} of the protocol, and this process {lowest} to {highest}"
            raise RefusedError(self._queue.directory, why)
        client.id = _hexadecimal(fields.get("connection"))
        subscription = str(fields.get("subscription", ""))
        away = self._away.of(client.id, subscription)
        for former in [each for each in self.clients if each.id == client.id and each is not away]:
            # The worker has given that connection up. Nothing that it sent there may be committed after this one asks.
            self.disconnect(former, may_return=False)
            former.number = 0  # so that its end forgets nothing
        self._leaving.pop(client.id, None)  # it is back
        client.process, client.number = _whole(fields.get("process")), self._queue.flush_of(client.id) or 0
        client.name, client.thread = text(fields.get("name")), text(fields.get("thread"))
        client.process_name, client.only_calls = text(fields.get("process_name")), fields.get("role") == CALLS_ONLY
        hold_seconds = fields.get("hold_seconds")
        if hold_seconds is not None:
            if not isinstance(hold_seconds, int | float) or not hold_seconds > 0:
                raise ProtocolError(f"hold_seconds of {hold_seconds!r}")
            client.hold_seconds = float(min(hold_seconds, HOLD_SECONDS_MAX))
        session = self._served.session(client.session_name, subscription) if away is None else _session(away)
        client.session, client.reader, client.subscription = session, reader_of(session), text(subscription)
        self.clients.add(client)
        if away is not None:
            self._come_back(client, away)
        facts = self._served.facts
        client.answer(call, Welcome({**facts, "kept": client.kept} if client.kept else facts))

    def _come_back(self, client: Client, away: Client) -> None:
        """Give the connection the session that was away."""
        client.kept, client.is_lost, away.session = away.kept, away.is_lost, None
        if away in self._leased and client.hold_seconds is not None:
            client.expires = away.expires
            self._leased.add(client)
        self.disconnect(away, may_return=False)

    def _take(self, client: Client, call: int, message: Take) -> None:
        self._need_hold(client)
        if self._is_leaving and not _has_work(client):
            client.waits = call, message  # in no line: the end of the connection is the answer
            return
        reader = _reader(self._queue, client)
        if self._waits.has(reader):  # those that came before take first, and perhaps leave something
            self._waits.serve_one(reader, self._now())
        if not self._waits.has(reader) and self._take_now(client, call, message.most):
            return
        if not message.wait_milliseconds or takes_no_more(_session(client)):
            client.answer(call, Taken(0, ()))
            return
        client.waits = call, message
        self._waits.add(client, call, reader, self._deadline(message.wait_milliseconds), len(self.clients))

    def _deadline(self, wait_milliseconds: int) -> float:
        """Return the time at which a wait is over that begins now."""
        return inf if wait_milliseconds == FOR_EVER else self._now() + wait_milliseconds / _MILLISECONDS

    def _take_now(self, client: Client, call: int, most: int) -> bool:
        """Hold items and answer; return False if there are none. With ``most`` of 0, hold none."""
        session = _session(client)
        if not most:
            if not self._queue.has_item(_reader(self._queue, client)):
                return False
            client.answer(call, Taken(1, ()))
            return True
        following: bytes | None = None
        if most == 1:
            item = session.dequeue()
            items = [] if item is None else [item]
        else:
            portion = Portion(self._queue, counts_attempts(session), TAKEN_BYTES, _LENGTH_BYTES)
            items, following = dequeue_by(session, most, portion.take), portion.following
        if not items:
            return False
        if len(items[0]) > ITEM_BYTES_MAX:
            uncount(session, len(items))
            session.put_back(len(items))
            raise self._too_large(items[0], "dequeue")
        # If the next take can only raise, the worker returns these items first, as a dequeue of the owner does.
        more = following is not None and len(following) <= ITEM_BYTES_MAX
        if client.expires == inf:
            self._lease(client)
        client.answer(call, Taken(int(more), items))
        return True

    def _lease(self, client: Client) -> None:
        """Begin the time of ``hold_seconds``, if the connection has it."""
        if client.hold_seconds is not None:
            client.expires = self._now() + client.hold_seconds
            self._leased.add(client)

    def _put(self, client: Client, call: int, message: Put) -> None:
        self._need_hold(client)
        self._buffer(client, message.items)
        client.answer(call, Done(1))

    def _buffer(self, client: Client, items: Sequence[bytes]) -> None:
        """Buffer the items. If this raises, ``taken`` of the connection is the number of those that are buffered."""
        session = _session(client)
        if put_at_once(session, items):
            client.taken = len(items)
            return
        before = buffered(session)
        try:
            session.enqueue_many(items)
        finally:
            client.taken = buffered(session) - before

    def _flush(self, client: Client, call: int, message: Flush) -> None:
        self._need_hold(client)
        if message.number <= client.number:
            raise ProtocolError(f"a flush with number {message.number} behind number {client.number}")
        # Before anything can refuse the flush: the worker believes that a failed flush has released these items, too.
        back, client.back = client.back, 0
        if back:
            _session(client).put_back(back)
        if message.wait_milliseconds not in {0, FOR_EVER} and not self._queue.blocks:
            raise ValueError('a timeout above 0 seconds needs a queue with full="block"')
        self._buffer(client, message.items)
        client.flush = call, message
        client.deadline = self._deadline(message.wait_milliseconds)
        if self._blocked and not holds(_session(client)):
            self._blocked.append(client)  # behind those that wait for room
        else:
            self._flushing.append(client)

    def _mark(self, client: Client, _call: int, message: Mark) -> None:
        client.marker = message.name, message.version

    def _look_ahead(self, client: Client, _call: int, message: Ahead) -> None:
        client.back, client.ahead = message.back, message.most

    def _give_back(self, client: Client, call: int, message: GiveBack) -> None:
        self._need_hold(client)
        _session(client).put_back(message.items)
        if not holds(_session(client)):
            self._keep_no_hold(client)
        client.answer(call, Done(1))

    def _roll_back(self, client: Client, call: int, _message: RollBack) -> None:
        self._keep_no_hold(client)
        client.is_lost, client.marker = False, None
        _session(client).rollback()
        client.answer(call, Done(1))

    def _outcome(self, client: Client, call: int, message: Outcome) -> None:
        known = self._queue.flush_of(client.id)
        if known is None and self._queue.flush_of(SOME_LOST) is not None:
            raise OutcomeUnknownError(self._queue.directory, "and too many sessions were lost since")
        client.answer(call, Done(int((known or 0) >= message.number)))

    def _cancel(self, client: Client, call: int) -> None:
        if client.waits is not None and client.waits[0] == call:
            client.waits = None
            client.answer(call, Taken(0, ()))
        elif client.flush is not None and client.flush[0] == call:
            client.deadline = self._room_at = -inf  # if it does not wait yet, it is refused when it would
            self._ring()

    def _browse(self, client: Client, call: int, message: Browse) -> None:
        if client.browsing is None:
            reader = self._queue.of_all() if message.which else _reader(self._queue, client)
            client.browsing = self._queue.browse(reader)
        _, items = next(client.browsing, (0, []))
        if items and len(largest := max(items, key=len)) > ITEM_BYTES_MAX:
            raise self._too_large(largest, "browse")
        client.answer(call, Taken(0, items))

    def _too_large(self, item: bytes, verb: str) -> ItemTooLargeError:
        return ItemTooLargeError(
            f"{self._queue.directory}: the next item has {len(item)} bytes, and a worker gets at most "
            f"{ITEM_BYTES_MAX}: {verb} it in the process that owns the queue"
        )

    def _call(self, client: Client, call: int, message: Call) -> None:
        name, arguments = str(message.fields.get("call")), message.fields.get("arguments")
        if not isinstance(arguments, dict):
            raise ProtocolError("a call without arguments")
        own = _OF_SESSION.get(name)
        if own is not None:
            client.answer(call, Result({"result": own(self, client, **arguments)}))
            return
        self._apart(partial(self._make_apart, client, call, name, arguments))
        client.is_busy = True  # before the answer, which comes in a later turn

    def _make_apart(self, client: Client, call: int, name: str, arguments: dict[str, Any]) -> None:
        """Make a call of the queue, in another thread, and leave its answer to the next turn."""
        try:
            answer: Message = Result({"result": self._served.call(name, arguments)})
        except Exception as error:
            answer = Failed(encode_error(error))
        self._ended.append(partial(self._end_apart, client, call, answer))
        self._ring()

    def _end_apart(self, client: Client, call: int, answer: Message) -> None:
        client.is_busy = False
        try:
            client.answer(call, answer)
        except ValueError as error:
            problem = f"{self._queue.directory}: the result of the call is too long for a worker: {error}"
            self._fail(client, call, PersistentQueueError(f"{problem}: make it in the process that owns the queue"))

    def _reject(self, client: Client, call: int, message: Reject) -> None:
        self._need_hold(client)
        if not counts_attempts(_session(client)):
            raise ValueError(
                "this queue does not count attempts: its owner needs max_attempts=, dead_letter= or "
                "retry_delay_seconds= to reject items, or the options of its command serve"
            )
        if len(message.items) != _REJECTION_FIELDS:
            raise ProtocolError(f"a rejection with {len(message.items)} fields")
        item, reason, delay = message.items
        delay_seconds = float(delay) if delay else None
        _session(client).reject(
            item, reason.decode(errors="surrogatepass"), retry=bool(message.retry), delay_seconds=delay_seconds
        )
        client.answer(call, Done(1))

    def _give_up(self, client: Client, error: str, text: str) -> None:
        """Move held items without attempts left to the dead letters: an exception has left the block of the session."""
        kind = type(error, (Exception,), {})
        fail_held(_session(client), kind(text))

    def _extend(self, client: Client) -> None:
        self._need_hold(client)
        if client in self._leased:
            self._lease(client)

    def _uncount(self, client: Client, count: int) -> None:
        """Take back the last delivery of the last items: the worker cannot open them."""
        self._need_hold(client)
        if type(count) is not int:
            raise ProtocolError(f"a count of {count!r}")
        uncount(_session(client), count)

    def _count_undecodable(self, _client: Client) -> None:
        """Count an item that the codec of the worker refuses."""
        self._queue.count_undecodable()

    def note_flush(self, client: Client, number: int) -> None:
        """Note that a flush of the connection was committed together with those of others. For any thread."""

        def note() -> None:
            """Change the connection, in the thread of the service."""
            client.number = max(client.number, number)
            if client not in self.clients and all(each.id != client.id for each in self.clients):  # it has ended
                self._forget_later(client)
            client.is_lost = False  # a hold that ends behind the commit has nothing to give back
            self._keep_no_hold(client)

        self._ended.append(note)
        self._ring()

    def _note_ended(self) -> None:
        while self._ended:
            self._ended.popleft()()

    # --- turns -------------------------------------------------------------------------------------------------------

    def turn(self) -> float:
        """Commit, hand out items, and end what is over. Return the time of the next turn without a message; ``inf`` if
        there is none.

        Raises ``OwnerFailedError``: then end all connections without their answers.
        """
        self._note_ended()
        self._check()
        now = self._now()
        if self._closing:
            closing, self._closing = self._closing, []
            for session in closing:
                self._close(session)
        if self._flushing or (self._blocked and now >= self._room_at):
            self._commit(now)
        if self._leased:
            self._expire(now)
        for client in self._away.gone(now):
            self.disconnect(client, may_return=True)
        next_due = self._waits.serve(now)
        if self._blocked:
            next_due = min(next_due, self._room_at)
        if self._closing:
            next_due = min(next_due, now + ROOM_SECONDS)
        if self._leaving:
            next_due = min(next_due, self._forget(now))
        next_due = min(next_due, self._away.looks_at)
        # A flush that has come is not too late, so its hold is not due.
        due = min((each.expires for each in self._leased if each.flush is None), default=inf)
        return min(next_due, max(due, now + _SOON_SECONDS))

    def _commit(self, now: float) -> None:
        """Commit the flushes that came as one group, then those that wait for room, one by one and in their order.

        The first that finds no room ends the attempts: none behind it may overtake it.
        """
        group, self._flushing = self._flushing, []
        has_room = bool(group) and self._commit_group(group, now)
        while self._blocked and (has_room or now >= self._room_at):
            first = self._blocked.pop(0)
            if not self._commit_group([first], now) and first.flush is not None:
                self._blocked.insert(0, self._blocked.pop())
                break
        for client in [each for each in self._blocked[1:] if each.deadline <= now]:
            assert self._refusal is not None
            self._blocked.remove(client)
            self._end_flush(client, self._refusal)
        if self._blocked:
            self._room_at = min(now + ROOM_SECONDS, *(client.deadline for client in self._blocked))

    def _commit_group(self, group: Sequence[Client], now: float) -> bool:
        """Commit flushes as one group; return whether any was committed. One that may wait for room joins those that
        do."""
        sessions, origins, is_plain = [], [], True
        for client in group:
            assert client.flush is not None
            sessions.append(_session(client))
            origins.append((client.id, client.flush[1].number))
            is_plain = is_plain and client.marker is None
        results: Sequence[bool | Exception] | None
        try:
            results = flush_at_once(self._queue, sessions, origins) if is_plain else None
            if results is None:
                results = flush_all(self._queue, sessions, [client.marker for client in group], origins)
        except SessionInUseError as error:  # another thread flushes one of them, with sessions of other queues
            if len(group) > 1:  # the others must not fail with it
                return sum(self._commit_group([client], now) for client in group) > 0
            results = [error]
        except PersistentQueueError as error:
            results = [error] * len(group)
        self._check()
        has_committed = False
        for client, result in zip(group, results, strict=True):
            if isinstance(result, QueueFullError) and self._may_wait(client, result, now):
                self._blocked.append(client)
                self._refusal = result
                continue
            self._end_flush(client, result)
            has_committed = has_committed or isinstance(result, bool)
        return has_committed

    def _end_flush(self, client: Client, result: bool | Exception) -> None:
        assert client.flush is not None
        (call, flush), client.flush = client.flush, None
        client.deadline = inf
        if isinstance(result, Exception):
            if isinstance(result, QueueFullError) and not buries(_session(client)):  # that is counted when it is tried
                self._queue.count_refused(1)
            self._fail(client, call, result)
            return
        client.number, client.marker = flush.number, None
        self._keep_no_hold(client)
        most, client.ahead = client.ahead, 0
        if most and result:
            self._take_ahead(client, call, most)
        else:
            client.answer(call, Done(int(result)))

    def _take_ahead(self, client: Client, call: int, most: int) -> None:
        """Answer a flush with the next items, unless others wait for them. Their errors are left to the next take."""
        with suppress(PersistentQueueError, OSError, MemoryError):
            is_first = not self._is_leaving and not self._waits.has(_reader(self._queue, client))
            if is_first and self._take_now(client, call, most):
                return
        client.answer(call, Taken(0, ()))

    def _check(self) -> None:
        if not self._queue.is_usable:
            raise OwnerFailedError

    def _may_wait(self, client: Client, refusal: QueueFullError, now: float) -> bool:
        may_wait = self._queue.blocks and not refusal.lasting and client.deadline > now
        return may_wait and not buries(_session(client))

    def _hand_out(self, client: Client, call: int) -> bool:
        """Hand items to a connection that waits; return False if it must wait on."""
        waits, client.waits = client.waits, None
        assert waits is not None
        try:
            if self._take_now(client, call, waits[1].most):
                return True
        except (PersistentQueueError, OSError, MemoryError) as error:
            self._fail(client, call, error)
            return True
        if holds(_session(client)) and self._queue.has_item(_reader(self._queue, client)):
            # Not for this session: it holds an item, and the next one has its last attempt.
            client.answer(call, Taken(0, ()))
            return True
        client.waits = waits
        return False

    def _expire(self, now: float) -> None:
        """Give back what connections have held for too long. A flush that has come is not too late."""
        for client in [
            each for each in self._leased if each.expires <= now and each.flush is None and not each.is_busy
        ]:
            client.is_lost = True  # first: a flush in another thread looks at it when no rollback can come between
            try:
                _session(client).rollback()
            except SessionInUseError:  # another thread flushes it: the flush is not too late
                client.is_lost = False
                continue
            except Exception as error:  # also one of ``retry_delay_seconds``; the items are released all the same
                LOGGER.warning("%s: a hold of a worker could not be ended: %r", self._queue.directory, error)
            self._keep_no_hold(client)
            waits, client.waits = client.waits, None
            if waits is not None:
                self._fail(client, waits[0], _hold_lost(self._queue.directory, client))

    def _keep_no_hold(self, client: Client) -> None:
        client.expires = inf
        self._leased.discard(client)

    def _need_hold(self, client: Client) -> None:
        """Raise ``HoldLostError`` if what the session held went back. Its late flush must commit nothing."""
        if client.is_lost:
            raise _hold_lost(self._queue.directory, client)

    def _fail(self, client: Client, call: int, error: BaseException) -> None:
        client.answer(call, Failed({**encode_error(error), "taken": client.taken}))
        # They belong to the flush behind them, also if that fails.
        client.taken, client.marker, client.back, client.ahead = 0, None, 0, 0


_HANDLERS: dict[type, Callable[[Service, Client, int, Any], None]] = {
    Hello: Service._hello,
    Take: Service._take,
    Put: Service._put,
    Flush: Service._flush,
    Mark: Service._mark,
    Ahead: Service._look_ahead,
    GiveBack: Service._give_back,
    RollBack: Service._roll_back,
    Outcome: Service._outcome,
    Call: Service._call,
    Browse: Service._browse,
    Reject: Service._reject,
    End: Service._end,
}
_CALLS_BACK = (Reject, RollBack)
"""Messages whose handlers call ``retry_delay_seconds``, which may raise any error."""
_OF_SESSION: dict[str, Callable[..., object]] = {
    "count_undecodable": Service._count_undecodable,
    "uncount": Service._uncount,
    "give_up": Service._give_up,
    "extend": Service._extend,
}
"""Calls that concern the session of the connection."""


def session_for(directory: str, client: Client, number: int) -> Session[bytes]:
    """Return the session of the connection, for a flush with this number. Raises ``PersistentQueueError`` if there must
    be none: the hold was lost, or the flush is an old one."""
    if client.is_lost:
        raise _hold_lost(directory, client)
    if client.session is None or not client.number < number <= _FLUSH_MAX:
        raise PersistentQueueError(
            f"{directory}: expected a flush with a number above {client.number}, found {number}: use one version of "
            "the package"
        )
    return client.session


def _hold_lost(directory: str, client: Client) -> HoldLostError:
    return HoldLostError(directory, client.hold_seconds or 0.0)


def _session(client: Client) -> Session[bytes]:
    assert client.session is not None
    return client.session


def _has_work(client: Client) -> bool:
    """Return whether the worker can finish something before the end of the connection: work of its session, or a call
    that is made apart."""
    session = None if client.is_away else client.session
    has_items = session is not None and (holds(session) or buffered(session) > 0)
    return has_items or client.flush is not None or client.is_busy


def _reader(queue: OpenQueue, client: Client) -> Reader:
    """Return the reader of the connection. Raises ``SubscriptionNotFoundError`` if the queue has only named ones."""
    return client.reader or queue.need_plain()


def _pair(value: object) -> tuple[int, int]:
    if not (isinstance(value, list) and len(value) == 2 and all(type(each) is int for each in value)):
        raise ProtocolError(f"versions of {value!r}")
    return value[0], value[1]


def _hexadecimal(value: object) -> bytes:
    """Return the id of a connection. Raises ``ProtocolError`` if it is none."""
    with suppress(ValueError):
        found = bytes.fromhex(value) if isinstance(value, str) else b""
        if len(found) == CONNECTION_BYTES and found != SOME_LOST:
            return found
    raise ProtocolError(f"a connection of {value!r}")


def _whole(value: object) -> int:
    return value if type(value) is int else 0
