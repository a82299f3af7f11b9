"""The records of the campaign ``workers``: from the files of all processes to the promises of a shared queue.

``account`` checks what each item became, without regard to time:

- An item of a flush that returned True is in exactly one place. It is left, or one flush that returned True has
  consumed it, or one flush that was killed.
- An item of a flush that raised ``SessionLostError`` or ``HoldLostError``, or that returned False, appears nowhere.
- A flush that was killed is whole: it enqueued and consumed everything, or nothing.
- A version of a marker is committed once, whichever of the processes of a slot flushed it.
- Items of one session come out in order within each call, and are left in order.

``history_of`` makes a history of the records, for the check of linearizability. That check has the order between calls.
An item that is given back goes to its old place. So a later item of a session can be consumed before an earlier one.
But it is *dequeued* only while the earlier one is held or consumed.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tests.support.linearizability import Operation
from tests.support.queue_histories import death, dequeue, flush, rollback

from .worker_lives import HOLD_SECONDS, Item

NANOSECONDS = 10**9


class Call(NamedTuple):
    """A call of a worker: its request and its result."""

    process: str
    fields: dict[str, Any]
    """Fields of the request, with the kind of the call as ``op``."""
    invoked: int
    """Time in nanoseconds."""
    responded: int | None
    """Time in nanoseconds. None if the process was killed before."""
    result: dict[str, Any]
    """The result: ``done`` with its value, or ``lost``; empty if the process was killed before."""

    @property
    def kind(self) -> str:
        """Kind of the call."""
        return str(self.fields["op"])

    @property
    def session(self) -> str:
        """Name of the session; empty for a call of the queue."""
        return str(self.fields.get("session", ""))

    @property
    def done(self) -> Any:
        """Result of the call; None if it raised, or has none."""
        return self.result.get("done")

    @property
    def items(self) -> list[Item]:
        """Items that the call has dequeued."""
        return list(self.done or ()) if self.kind == "dequeue" else []

    @property
    def new(self) -> list[Item]:
        """Items that the flush enqueues."""
        return list(self.fields.get("new", ()))

    @property
    def held(self) -> list[Item]:
        """Items that the flush consumes."""
        return list(self.fields.get("held", ()))

    def spans(self, begin: int, end: int) -> bool:
        """Return True if the call was under way at some time of the interval."""
        return self.invoked <= end and (self.responded is None or begin <= self.responded)


class End(NamedTuple):
    """The end of a process: the time before its kill or its close, and the time after it, in nanoseconds."""

    process: str
    began: int
    ended: int
    may_own: bool
    """True if the process was the owner of the queue, or may have been."""
    is_kill: bool


def read_calls(process: str, data: bytes, cut_at: int | None = None) -> list[Call]:
    """Return the calls of a process. Raises ``AssertionError`` if it has recorded an error.

    With ``cut_at`` an error is allowed from this time on: its call is one without a result.
    """
    calls: list[Call] = []
    asked: dict[str, Any] | None = None
    for line in data.split(b"\n")[:-1]:  # the last part is empty, or a line that was cut by the kill
        fields = json.loads(line)
        if "error" in fields and cut_at is not None and fields["t"] >= cut_at:
            break
        assert "error" not in fields, f"{process}, {asked}: {fields['error']}"
        if "op" in fields:
            asked = fields
            continue
        assert asked is not None, f"{process}: a result without a call: {fields}"
        calls.append(Call(process, asked, asked["t"], fields["t"], fields))
        asked = None
    if asked is not None:
        calls.append(Call(process, asked, asked["t"], None, {}))
    return calls


# --- accounts --------------------------------------------------------------------------------------------------------


def account(calls: Sequence[Call], left: Sequence[Item]) -> None:
    """Check what each item became. Raises ``AssertionError``."""
    flushes = [call for call in calls if call.kind == "flush"]
    committed = [call for call in flushes if call.done is True]
    killed = [call for call in flushes if call.responded is None]
    put = Counter(item for call in committed for item in call.new)
    used = Counter(item for call in committed for item in call.held)
    may_put = {item for call in killed for item in call.new}
    may_use = Counter(item for call in killed for item in call.held)
    found = used + Counter(left)
    doubled = [item for item, count in found.items() if count > 1]
    assert not doubled, f"doubled items: {doubled}"
    strange = set(found) - set(put) - may_put
    assert not strange, f"items of flushes that were not committed: {sorted(strange)}"
    lost = set(put) - set(found) - set(may_use)
    assert not lost, f"lost items: {sorted(lost)}"
    for call in killed:
        _need_whole(call, found, may_use)
    _need_one_of_each_version(flushes, set(found) | set(may_use), set(found))
    for items in (left, *(call.items for call in calls)):
        for first, second in pairwise(sorted(map(_place, items), key=lambda place: place[0])):
            assert first[0] != second[0] or first[1] < second[1], f"out of order: {items}"


def _place(item: Item) -> tuple[str, int]:
    session, _, number = item.rpartition(".")
    return session, int(number)


def _need_whole(call: Call, found: Counter[Item], may_use: Counter[Item]) -> None:
    """Raise ``AssertionError`` if a killed flush was committed in part. Items that another killed flush may have
    consumed say nothing."""
    put = {item in found for item in call.new if not may_use[item]}
    kept = {item in found for item in call.held if may_use[item] == 1}
    assert len(put) < 2 and len(kept) < 2, f"a torn flush: {call}"
    assert not put or not kept or put != kept, f"a torn flush: {call}"


def _need_one_of_each_version(flushes: Iterable[Call], may_be: set[Item], found: set[Item]) -> None:
    versions = defaultdict(list)
    for call in flushes:
        if "marker" in call.fields:
            versions[call.fields["marker"], call.fields["version"]].append(call)
    for version, attempts in versions.items():
        done = [call for call in attempts if call.done is True]
        unknown = [call for call in attempts if call.responded is None]
        came = [call for call in unknown if found & set(call.new)]
        assert len(done) + len(came) <= 1, f"{version} was committed {len(done) + len(came)} times: {attempts}"
        if any(call.done is False for call in attempts):
            assert done or any(may_be & set(call.new) for call in unknown), f"{version} was never committed: {attempts}"


# --- histories -------------------------------------------------------------------------------------------------------


class Histories:
    """Makes the history of one queue: of the calls of all processes, and of their ends."""

    def __init__(self, calls: Sequence[Call], ends: Sequence[End]) -> None:
        self._quits = {call.process: call for call in calls if call.kind == "quit"}
        self._ends = {end.process: self._since_quit(end) for end in ends}
        self._owners = sorted((end for end in self._ends.values() if end.may_own), key=lambda end: end.ended)
        self._served = sorted(_served(calls))
        self._sent = sorted(_served(call for call in calls if not call.result.get("owns", True)))
        self._sessions: defaultdict[str, list[Call]] = defaultdict(list)
        for call in calls:
            if call.session:
                self._sessions[call.session].append(call)
        self._phantoms = 0

    def _since_quit(self, end: End) -> End:
        """Return the end of the process. It began with its close, also if the process was killed in that."""
        quit_at = self._quits[end.process].invoked if end.process in self._quits else end.began
        return end._replace(began=min(end.began, quit_at))

    def operations(self) -> Iterator[Operation]:
        """Yield the operations of the history."""
        for name, calls in self._sessions.items():
            if name == "drain":
                yield from _drained(calls[0])
            else:
                yield from self._of_session(name, calls)

    def _of_session(self, name: str, calls: Sequence[Call]) -> Iterator[Operation]:
        held, since, ending = False, calls[0].invoked, {"flush", "rollback", "close"}
        for call in calls:
            if call.kind == "dequeue":
                yield from self._of_dequeue(name, call)
                held = held or bool(call.items) or call.responded is None
            elif call.kind == "flush" and (call.done is True or call.responded is None):
                if call.new or call.held:
                    yield flush(name, call.invoked, call.responded, call.new, call.held)
            elif held and call.kind in ending and "done" in call.result:
                # An owner's end, or the end of the time to hold them, may have freed the items before.
                yield rollback(name, self._first_loss(name, since, call.invoked), call.responded)
            if call.result.get("lost"):
                assert held, f"{call.result['lost']} was lost, but the session held nothing: {call}"
                assert call.responded is not None
                # A hold may have run out before an owner ended.
                begin = since if _slot(name) in HOLD_SECONDS else self._loss(since, call)
                if "marker" in call.fields:  # a flush that its marker skips frees the items; no answer may follow
                    begin = min(begin, call.invoked)
                yield rollback(name, begin, call.responded)
            if call.responded is not None:
                since = call.invoked  # an owner may have ended before this process noted its answer
                held = held and call.kind not in ending and "lost" not in call.result
        if held:
            yield self._end_of(name, calls[-1], since)

    def _of_dequeue(self, name: str, call: Call) -> Iterator[Operation]:
        lost = call.result.get("lost")
        if call.responded is None:
            for _ in range(call.fields["most"]):
                yield dequeue(name, call.invoked, None)
        elif not lost:
            found: list[Item | None] = [*call.items]
            for item in found or [None]:
                yield dequeue(name, call.invoked, call.responded, item)
        else:
            yield from self._phantom(name, call, call.invoked, call.responded)
        for end in self._owners:  # an earlier owner may have taken items for this call: they are free when it ended
            if call.spans(end.began, end.ended):
                yield from self._phantom(name, call, max(end.began, call.invoked), self._served_after(end))

    def _phantom(self, name: str, call: Call, begin: int, end: int | None) -> Iterator[Operation]:
        self._phantoms += 1
        phantom = f"{name}~{self._phantoms}"
        for _ in range(call.fields["most"]):
            yield dequeue(phantom, call.invoked, None)
        yield death(phantom, begin, end)

    def _end_of(self, name: str, last: Call, since: int) -> Operation:
        """Return the end of a session that may hold items: with its process, or with an owner before that."""
        end = self._ends[last.process]
        until = end.began
        if last.responded is None and last.kind != "dequeue":  # the call itself may have freed the items
            until = min(until, last.invoked)
        return death(name, self._first_loss(name, since, until), self._freed(end))

    def _first_loss(self, name: str, since: int, until: int) -> int:
        """Return the first time at which the session may have lost its items without a call."""
        if _slot(name) in HOLD_SECONDS:
            return since
        return max(min([until, *(end.began for end in self._owners if end.ended >= since)]), since)

    def _loss(self, since: int, call: Call) -> int:
        assert call.responded is not None
        found = [end for end in self._owners if end.ended >= since and end.began <= call.responded]
        assert found, f"a session was lost, but no owner ended: {call}"
        return max(min(end.began for end in found), since)

    def _served_after(self, end: End) -> int | None:
        """Return a time at which another owner has certainly served."""
        return min((responded for invoked, responded in self._served if invoked > end.ended), default=None)

    def _freed(self, end: End) -> int | None:
        """Return a time at which the items of a process that ended are certainly free.

        An owner reads what its workers send in the order in which it came. The end of a process may come behind its
        last call. So two calls of another worker, one after the other, find the items free.
        """
        time: int | None = end.ended
        for _ in range(2):
            time = min((responded for invoked, responded in self._sent if time and invoked > time), default=None)
        return time


def _slot(session: str) -> int:
    return int(session.partition(".")[0])


def _served(calls: Iterable[Call]) -> Iterator[tuple[int, int]]:
    """Yield the interval of each call that an owner has certainly served."""
    for call in calls:
        reaches = call.kind in {"connect", "marker", "dequeue"} or call.new or call.held
        if reaches and call.responded is not None and "done" in call.result and call.kind != "rollback":
            yield call.invoked, call.responded


def _drained(call: Call) -> Iterator[Operation]:
    """Yield a dequeue of each item that is left, one after the other: no other process is there."""
    assert call.responded is not None
    step = (call.responded - call.invoked) / (len(call.items) + 1)
    for number, item in enumerate([*call.items, None]):
        yield dequeue("drain", call.invoked + step * number, call.invoked + step * (number + 0.5), item)


# --- times -----------------------------------------------------------------------------------------------------------


def times_to_serve(calls: Sequence[Call], ends: Sequence[End]) -> list[float]:
    """Return for each kill of an owner the seconds until a call that began after it had its answer."""
    served = list(_served(calls))
    found = []
    for end in ends:
        if end.may_own and end.is_kill:
            times = [responded for invoked, responded in served if invoked > end.ended]
            found += [(min(times) - end.began) / NANOSECONDS] if times else []
    return found


def times_to_return(calls: Sequence[Call], ends: Sequence[End]) -> list[float]:
    """Return for each kill of a worker with items the seconds until another process had one of them."""
    found = []
    for end in ends:
        if end.may_own or not end.is_kill:
            continue
        by_session: defaultdict[str, set[Item]] = defaultdict(set)
        for call in calls:
            if call.process == end.process:
                by_session[call.session] |= set(call.items)
                if call.kind in {"flush", "rollback", "close"} or "lost" in call.result:
                    by_session[call.session] = set()
        held = set().union(*by_session.values())
        times = [
            call.responded for call in calls if call.responded and call.responded > end.ended and held & set(call.items)
        ]
        if times:
            found.append((min(times) - end.began) / NANOSECONDS)
    return found
