"""Histories of a queue with holds: their operations, and faults that can be found without a search.

The faults are like those of T. A. Henzinger, A. Sezgin and V. Vafeiadis, "Aspect-oriented linearizability proofs",
CONCUR 2013. ``queue_specification`` checks a history completely.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations, pairwise

from .linearizability import History, Operation

Value = Hashable
"""A value of a queue. The values of a history are distinct, and none of them is None."""


def flush(
    process: str,
    invoked: float,
    responded: float | None,
    enqueued: Sequence[Value] = (),
    consumed: Sequence[Value] = (),
) -> Operation:
    """Return a flush: it enqueues values in this order, and consumes values that its process holds, as one step."""
    return Operation(process, "flush", (tuple(enqueued), tuple(consumed)), None, invoked, responded)


def dequeue(process: str, invoked: float, responded: float | None, result: Value | None = None) -> Operation:
    """Return a dequeue of the first ready item, on hold from then on. The result None says that no item was ready."""
    return Operation(process, "dequeue", (), result, invoked, responded)


def rollback(process: str, invoked: float, responded: float | None) -> Operation:
    """Return a rollback: the values that the process holds are ready again, in their old places."""
    return Operation(process, "rollback", (), None, invoked, responded)


def death(process: str, killed: float, released: float | None) -> Operation:
    """Return the death of a process: a rollback without a caller, after which the process dequeues nothing.

    Args:
        process: Name of the process. No other process of the history has it, not even a successor.
        killed: A time before the kill.
        released: A time at which the holds were certainly free, such as the end of the next opening. None if no such
            time is known.
    """
    return Operation(process, "death", (), None, killed, released)


class Values:
    """The values of a history: their flushes, their dequeues, and when they were dequeued for the first time.

    If the first dequeue of ``a`` is before that of ``b``, ``a`` was committed before ``b``. Otherwise ``b`` would have
    been ready, and in front. A value that is never dequeued was committed after all those that are.
    """

    def __init__(self, history: History) -> None:
        self.flush_of: dict[Value, int] = {}
        self.dequeues: defaultdict[Value, list[Operation]] = defaultdict(list)
        self.earliest: dict[Value, float] = {}
        """For each value a time before which it was not dequeued, infinite if it never was."""
        self.latest: dict[Value, float] = {}
        """For each value a time at which it had been dequeued, infinite if there is none."""
        unknown = []
        deaths = {operation.process: operation.end for operation in history if operation.kind == "death"}
        for number, operation in enumerate(history):
            if operation.kind == "flush":
                for value in operation.arguments[0]:
                    if value in self.flush_of:
                        raise ValueError(f"{value!r} is enqueued twice, but values must be distinct: {operation}.")
                    self.flush_of[value] = number
            elif operation.kind == "dequeue" and operation.responded is None:
                unknown.append((operation.invoked, deaths.get(operation.process, math.inf)))
            elif operation.kind == "dequeue" and operation.result is not None:
                self.dequeues[operation.result].append(operation)
        for value, number in self.flush_of.items():
            known = self.dequeues.get(value, [])
            flushed = history[number].invoked
            times = [operation.invoked for operation in known]
            times += [since for since, until in unknown if flushed <= until]  # a pending dequeue may have taken it
            self.earliest[value] = max(flushed, min(times, default=math.inf))
            self.latest[value] = min((operation.end for operation in known), default=math.inf)
        self._ends = sorted((self.latest[value], number) for value, number in self.flush_of.items())
        del self._ends[bisect_left(self._ends, (math.inf, -1)) :]
        self.flushes = [number for _, number in self._ends]
        """Flush of each value that was dequeued, ordered by ``latest``."""

    def count_before(self, operation: Operation) -> int:
        """Return the number of ``flushes``, from the first one on, that certainly precede this flush, or are it."""
        earliest = max((self.earliest[value] for value in operation.arguments[0]), default=-math.inf)
        return bisect_left(self._ends, (earliest, -1))


def violations(history: History) -> list[str]:
    """Return faults that no order of the operations explains, found without a search.

    Each of them proves that the history is not linearizable. That there are none proves nothing.

    Raises:
        ValueError: If a value is enqueued twice.
    """
    values = Values(history)
    return [
        *_fresh(history, values),
        *_doubled(history, values),
        *_reordered(history, values),
        *_stale(history, values),
    ]


def _fresh(history: History, values: Values) -> Iterator[str]:
    """Yield the dequeues of values that were not enqueued, or not yet."""
    for value, dequeues in values.dequeues.items():
        number = values.flush_of.get(value)
        for operation in dequeues:
            if number is None:
                yield f"fresh value: no flush enqueued the result of {operation}"
            elif operation.end < history[number].invoked:
                yield f"fresh value: {operation} ended before {history[number]} began"


def _doubled(history: History, values: Values) -> Iterator[str]:
    """Yield the pairs of operations that took one value, though the first of them did not let go of it."""
    consumptions = defaultdict(list)
    releases = defaultdict(list)
    for operation in history:
        if operation.kind == "flush" and operation.responded is not None:
            for value in operation.arguments[1]:
                consumptions[value].append(operation)
        elif operation.kind in {"rollback", "death"}:
            releases[operation.process].append(operation)

    def may_precede(first: Operation, second: Operation) -> bool:
        """Return True if the process of ``first`` may have released the value before ``second``."""
        return any(first.invoked <= each.end and each.invoked <= second.end for each in releases[first.process])

    for value, dequeues in values.dequeues.items():
        for first, second in combinations(dequeues, 2):
            if not any(
                one.invoked <= other.end and may_precede(one, other)
                for one, other in ((first, second), (second, first))
            ):
                yield f"doubled value: {second} without a rollback after {first}, or the reverse"
        for consumption in consumptions.get(value, ()):
            yield from (
                f"doubled value: {operation} began after {consumption} had consumed it"
                for operation in dequeues
                if consumption.end < operation.invoked
            )
    for first, *others in consumptions.values():
        yield from (f"doubled value: consumed by {first} and by {other}" for other in others)


def _reordered(history: History, values: Values) -> Iterator[str]:
    """Yield the values that were dequeued, or lost, in another order than that of their flushes."""
    latest: list[Operation] = []
    for number in values.flushes:
        latest.append(max([*latest[-1:], history[number]], key=lambda flushed: flushed.invoked))
    for operation in history:
        if operation.kind != "flush":
            continue
        count = values.count_before(operation)
        if count and latest[count - 1].invoked > operation.end:
            yield (
                f"order: {operation} ended before {latest[count - 1]} began, but a value of the later flush was "
                f"dequeued first, or a value of the earlier one never"
            )
        for first, second in pairwise(operation.arguments[0]):
            if values.latest[second] < values.earliest[first]:
                yield f"order: {second!r} was dequeued before {first!r}, against the order of {operation}"


def _stale(history: History, values: Values) -> Iterator[str]:
    """Yield the dequeues that found nothing, though a value was ready all the time."""
    spans = [(history[number].end, values.earliest[value], value) for value, number in values.flush_of.items()]
    for operation in history:
        if operation.kind == "dequeue" and operation.result is None and operation.responded is not None:
            for flushed, taken, value in spans:
                if flushed < operation.invoked and operation.responded < taken:
                    yield f"stale emptiness: {value!r} was ready all the time of {operation}"
                    break
