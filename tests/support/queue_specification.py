"""The specification of a queue with holds, and the check of a history against it.

A test of a queue records its calls, and checks them::

    history = [
        flush("a", 0, 2, enqueued=["x", "y"]),
        dequeue("b", 1, 4, "x"),
        flush("b", 5, None, consumed=["x"]),  # "b" is killed, so its flush took effect or not
        death("b", 6, 8),
        dequeue("c", 9, 10, "y"),
    ]
    check(history)

A search that gives concurrent flushes an order too early finds out much later that it is wrong. Two facts prevent that.

1. Values are dequeued for the first time in the order of their commits. ``Queue.predecessors`` says which flushes are
   therefore certainly before others.
2. No result depends on the order of flushes before a dequeue reaches them. ``OpenQueue`` leaves it open until then.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import or_
from typing import NamedTuple

from .linearizability import (
    MAX_CONFIGURATIONS,
    History,
    Operation,
    SequentialSpecification,
    Specification,
    Verdict,
    search,
)
from .queue_histories import Value, Values, violations

_SHOWN = 8


class QueueState(NamedTuple):
    """The items of a queue that are not consumed, in the order of their commits, with their holders."""

    items: tuple[Value, ...] = ()
    holders: frozenset[tuple[Value, str]] = frozenset()
    dead: frozenset[str] = frozenset()

    @property
    def first(self) -> Value | None:
        """The first value that no process holds; None if there is none."""
        held = {value for value, _ in self.holders}
        return next((value for value in self.items if value not in held), None)

    def __str__(self) -> str:
        held = dict(self.holders)
        ready = [value for value in self.items if value not in held]
        holds = ", ".join(f"{value!r} by {held[value]}" for value in self.items if value in held)
        more = f" and {len(ready) - _SHOWN} more" if len(ready) > _SHOWN else ""
        return f"ready: {', '.join(map(repr, ready[:_SHOWN])) or 'nothing'}{more}; held: {holds or 'nothing'}"


class Queue(SequentialSpecification[QueueState]):
    """The specification of a queue with holds, in which flushes are atomic.

    A pending flush that consumes nothing may take effect after the death of its process: an owner may adopt its file.
    """

    initial = QueueState()

    def apply(self, state: QueueState, operation: Operation) -> QueueState | None:
        """Return the state after the operation; None if the operation has another result in this state."""
        items, holders, dead = state
        process = operation.process
        if operation.kind == "flush":
            enqueued, consumed = operation.arguments
            holds = {(value, process) for value in consumed}
            if not holds <= holders or len(holds) < len(consumed):
                return None
            if consumed:
                gone = set(consumed)
                items = tuple(value for value in items if value not in gone)
            return QueueState(items + enqueued, holders - holds, dead)
        if operation.kind == "dequeue":
            first = state.first
            if process in dead or (operation.responded is not None and first != operation.result):
                return None
            return state if first is None else QueueState(items, holders | {(first, process)}, dead)
        if operation.kind not in {"rollback", "death"}:
            raise ValueError(f"The specification of a queue has no operation {operation.kind!r}: {operation}.")
        if operation.kind == "death":
            dead |= {process}
        return QueueState(items, frozenset(hold for hold in holders if hold[1] != process), dead)

    def predecessors(self, history: History) -> list[int]:
        """Return for each flush the flushes whose values were certainly dequeued before one of its own."""
        values = Values(history)
        before = list(accumulate((1 << number for number in values.flushes), or_, initial=0))
        return [
            before[values.count_before(operation)] & ~(1 << number) if operation.kind == "flush" else 0
            for number, operation in enumerate(history)
        ]

    def deadlines(self, history: History) -> list[float]:
        """Return for each operation its end; for a flush also the end of the first dequeue of a value of it."""
        values = Values(history)
        return [
            max(operation.invoked, min([operation.end, *(values.latest[value] for value in operation.arguments[0])]))
            if operation.kind == "flush"
            else operation.end
            for operation in history
        ]


class OpenState(NamedTuple):
    """A queue, and the flushes behind it as a bit mask: their values were not dequeued, and their order is open."""

    queue: QueueState = QueueState()
    behind: int = 0

    def __str__(self) -> str:
        return f"{self.queue}; behind that: {self.behind.bit_count()} flushes whose order is open"


class OpenQueue(Specification[OpenState]):
    """A queue in which concurrent flushes have no order until a dequeue of a value shows it.

    It allows each history that ``Queue`` allows, and has far fewer states: those of ``Queue`` differ by the order of
    all flushes that wait. It may allow more, so ``linearize`` checks by ``Queue`` an order that it allows.
    """

    initial = OpenState()

    def __init__(self, history: History) -> None:
        """Read the order of flushes from the history, as far as it is certain."""
        self._history = history
        self._queue = Queue()
        self._number = {operation: number for number, operation in enumerate(history)}
        self._flush_of = Values(history).flush_of
        self._needed = self._queue.predecessors(history)
        deaths = {operation.process: operation.end for operation in history if operation.kind == "death"}
        ends = self._queue.deadlines(history)
        for number, operation in enumerate(history):
            if operation.kind == "flush" and operation.arguments[1]:  # it consumes before its process dies, or never
                ends[number] = min(ends[number], deaths.get(operation.process, math.inf))
        ended = sorted((ends[number], number) for number in set(self._flush_of.values()))
        before = list(accumulate((1 << number for _, number in ended), or_, initial=0))
        self._before = [
            before[bisect_left(ended, (operation.invoked, -1))] | needed
            for operation, needed in zip(history, self._needed, strict=True)
        ]

    def outcomes(self, state: OpenState, operation: Operation) -> Iterator[OpenState]:
        """Yield the states after the operation, one for each flush that may come next if a dequeue needs one."""
        queue, behind = state
        if operation.kind == "flush":
            enqueued, consumed = operation.arguments
            following = self._queue.apply(queue, operation._replace(arguments=((), consumed)))
            if following is not None:
                yield OpenState(following, behind | 1 << self._number[operation] if enqueued else behind)
        elif operation.kind != "dequeue" or not behind or queue.first is not None:
            yield from (OpenState(following, behind) for following in self._queue.outcomes(queue, operation))
        else:
            for number in self._next(behind, operation):
                longer = queue._replace(items=queue.items + self._history[number].arguments[0])
                for following in self._queue.outcomes(longer, operation):
                    yield OpenState(following, behind & ~(1 << number))

    def predecessors(self, history: History) -> list[int]:
        """Return for each flush the flushes whose values were certainly dequeued before one of its own."""
        return self._needed

    def deadlines(self, history: History) -> list[float]:
        """Return for each operation its end; for a flush also the end of the first dequeue of a value of it."""
        return self._queue.deadlines(history)

    def _next(self, behind: int, operation: Operation) -> Iterator[int]:
        """Yield the flushes behind the queue that may be the first of them, for this dequeue."""
        if operation.responded is None:
            numbers = [number for number in range(behind.bit_length()) if behind >> number & 1]
        else:
            numbers = [self._flush_of[operation.result]] if operation.result in self._flush_of else []
        yield from (number for number in numbers if behind >> number & 1 and not self._before[number] & behind)


class _Ordered(Queue):
    """A queue whose flushes have a given order. The search tries operations in the order of the history."""

    def __init__(self, flushes: Sequence[Operation]) -> None:
        """Begin with the flushes whose values are dequeued, in this order. They take effect."""
        self._flushes = flushes

    def predecessors(self, history: History) -> list[int]:
        """Return for each flush the flushes before it."""
        numbers = {operation: number for number, operation in enumerate(history)}
        before = [0, *accumulate((1 << numbers[flushed] for flushed in self._flushes), or_)]
        masks = dict(zip(self._flushes, before, strict=False))
        return [
            masks.get(operation, before[-1]) if operation.kind == "flush" and operation.arguments[0] else 0
            for operation in history
        ]

    def priorities(self, history: History) -> Sequence[float]:
        """Return the places of the operations in the history."""
        return range(len(history))


def linearize(history: History, max_configurations: int = MAX_CONFIGURATIONS) -> Verdict:
    """Search for an order of the operations that ``Queue`` allows, by way of ``OpenQueue``.

    Args:
        history: Operations of a queue, in any order. Their values are distinct.
        max_configurations: Bound on each search, as that of ``search``.

    Returns:
        The verdict, as that of ``search``.

    Raises:
        SearchLimitError: If a search visited ``max_configurations`` without a result.
        ValueError: If a value is enqueued twice, or an operation is not one of a queue or ends before it begins.
    """
    verdict = search(history, OpenQueue(history), max_configurations)
    if not verdict:
        return verdict
    behind = [state.behind for state in verdict.states if isinstance(state, OpenState)]
    flushes = [history[(before & ~after).bit_length() - 1] for before, after in pairwise(behind) if before & ~after]
    ordered = search(verdict.order, _Ordered(flushes), max_configurations)
    return ordered or search(history, Queue(), max_configurations)


def check(history: History, max_configurations: int = MAX_CONFIGURATIONS) -> Verdict:
    """Return the verdict on a history of a queue that is linearizable; raise an error otherwise.

    Raises:
        AssertionError: If the history is not linearizable. The message has the faults, or explains the dead end.
        SearchLimitError: If a search visited ``max_configurations`` without a result.
        ValueError: If a value is enqueued twice, or an operation is not one of a queue or ends before it begins.
    """
    faults = violations(history)
    if faults:
        raise AssertionError("\n".join(["The history is not linearizable:", *faults]))
    verdict = linearize(history, max_configurations)
    if not verdict:
        raise AssertionError(verdict.explanation)
    return verdict
