"""A checker of linearizability: do the concurrent operations of a history have an order that a specification allows?

The search is that of J. M. Wing and C. Gong, "Testing and verifying concurrent objects", Journal of Parallel and
Distributed Computing 17 (1993). It keeps the events in a linked list, and places one operation after the other.
G. Lowe, "Testing for linearizability", Concurrency and Computation: Practice and Experience 29 (2017), added the memory
of configurations: the operations that are placed, and the state. The search never visits a configuration twice.

``queue_specification`` has the specification of a queue.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)
MAX_CONFIGURATIONS = 100_000
"""Default bound on a search. Each configuration stays in memory, with its state."""
_SHOWN = 8


class Operation(NamedTuple):
    """An operation of a history, from its invocation to its response."""

    process: str
    kind: str
    arguments: tuple[Any, ...]
    result: Any
    invoked: float
    responded: float | None
    """Time of the response. None if the operation is pending: it took effect any time after ``invoked``, or never."""

    @property
    def end(self) -> float:
        """Time of the response, infinite for a pending operation."""
        return math.inf if self.responded is None else self.responded

    def __str__(self) -> str:
        call = f"{self.process}: {self.kind}({', '.join(map(repr, self.arguments))})"
        if self.responded is None:
            return f"{call} from {self.invoked:g}, without a response"
        return f"{call} = {self.result!r} from {self.invoked:g} to {self.responded:g}"


History = Sequence[Operation]


class Specification(ABC, Generic[S]):
    """A specification: an initial state, and the states that each operation leads to."""

    initial: S

    @abstractmethod
    def outcomes(self, state: S, operation: Operation) -> Iterable[S]:
        """Return the states after the operation; none if the operation has another result in this state."""

    def predecessors(self, history: History) -> list[int]:
        """Return for each operation a bit mask of operations that precede it in every order that is allowed.

        Bit ``i`` stands for ``history[i]``. It may be set only if that operation took effect for certain. The search
        knows the order of operations that do not overlap, so these need no bits.
        """
        return [0] * len(history)

    def deadlines(self, history: History) -> list[float]:
        """Return for each operation a time until which it took effect; infinite if it may never have."""
        return [operation.end for operation in history]

    def priorities(self, history: History) -> Sequence[float]:
        """Return for each operation a number. The search tries operations with low ones first."""
        return self.deadlines(history)


class SequentialSpecification(Specification[S]):
    """A specification in which an operation leads to one state at most."""

    @abstractmethod
    def apply(self, state: S, operation: Operation) -> S | None:
        """Return the state after the operation; None if the operation has another result in this state."""

    def outcomes(self, state: S, operation: Operation) -> Iterable[S]:
        """Return the state after the operation, as the only one; none if the operation has another result."""
        following = self.apply(state, operation)
        return () if following is None else (following,)


class SearchLimitError(Exception):
    """The search reached its bound on configurations without a result."""


class Verdict(NamedTuple):
    """The result of a search. It is true if the history is linearizable."""

    is_linearizable: bool
    order: tuple[Operation, ...]
    """An allowed order of all operations that took effect, or the longest beginning of one that was found."""
    refused: tuple[Operation, ...]
    """Operations of which one had to come next in ``order``, and none could; empty if the history is linearizable."""
    states: tuple[Hashable, ...]
    """The states before each operation of ``order``, and the last state; empty if the history is not linearizable."""
    configurations: int
    """Number of configurations that the search visited."""
    explanation: str

    def __bool__(self) -> bool:
        return self.is_linearizable


class _Events:
    """The invocations and responses of the operations that are not placed, in order of time, as a linked list.

    Entry ``i`` is the invocation of ``history[i]``, and entry ``count + i`` its end, unless that is infinite. The last
    entry is both ends of the list.
    """

    def __init__(self, history: History, ends: list[float]) -> None:
        count = self._count = len(history)
        self._ends = ends
        timed = [(operation.invoked, number) for number, operation in enumerate(history)]
        timed += [(end, count + number) for number, end in enumerate(self._ends) if end < math.inf]
        entries = [2 * count, *(entry for _, entry in sorted(timed))]  # at one time, invocations come first
        self._after, self._before = [0] * (2 * count + 1), [0] * (2 * count + 1)
        for before, after in zip(entries, [*entries[1:], entries[0]], strict=True):
            self._after[before], self._before[after] = after, before

    def minimal(self) -> list[int]:
        """Return the operations that may come next: those that were invoked before the first end."""
        found = []
        entry = self._after[-1]
        while entry < self._count:
            found.append(entry)
            entry = self._after[entry]
        return found

    def lift(self, number: int) -> None:
        """Remove the events of an operation."""
        for entry in self._entries(number):
            before, after = self._before[entry], self._after[entry]
            self._after[before], self._before[after] = after, before

    def put_back(self, number: int) -> None:
        """Undo the last ``lift`` that was not undone."""
        for entry in reversed(self._entries(number)):
            self._after[self._before[entry]] = self._before[self._after[entry]] = entry

    def _entries(self, number: int) -> list[int]:
        return [number] if self._ends[number] == math.inf else [number, self._count + number]


def search(
    history: History, specification: Specification[Any], max_configurations: int = MAX_CONFIGURATIONS
) -> Verdict:
    """Search for an order of the operations that the specification and real time allow.

    Args:
        history: The operations, in any order. Operations overlap unless one ended before the other was invoked.
        specification: The specification.
        max_configurations: Number of configurations after which the search gives up at the next dead end, at least 1.

    Returns:
        The verdict, with such an order, or with an explanation why there is none.

    Raises:
        SearchLimitError: If the search has visited ``max_configurations`` and found no order. The history may have one.
        ValueError: If an operation ends before it begins, or if the specification does not know one.
    """
    for operation in history:
        if operation.end < operation.invoked:
            raise ValueError(f"The response is before the invocation: {operation}.")
    needed = specification.predecessors(history)
    ends, priorities = specification.deadlines(history), specification.priorities(history)
    events = _Events(history, ends)

    def moves(state: Any, placed: int) -> Iterator[tuple[int, Any]]:
        """Yield the operations that may come next, each with a state that it leads to."""
        for number in sorted(events.minimal(), key=priorities.__getitem__):
            if not needed[number] & ~placed:
                for following in specification.outcomes(state, history[number]):
                    # A pending operation that changes nothing is left out, as if it never took effect.
                    if following != state or ends[number] < math.inf:
                        yield number, following

    state, placed, left = specification.initial, 0, sum(end < math.inf for end in ends)
    seen = {(placed, state)}
    path: list[tuple[int, Any, Iterator[tuple[int, Any]]]] = []
    longest: tuple[list[int], list[int], Any] = ([], [], state)
    candidates = moves(state, placed)
    while left:
        for number, following in candidates:
            if (placed | 1 << number, following) in seen:
                continue
            path.append((number, state, candidates))
            events.lift(number)
            left -= ends[number] < math.inf
            state, placed = following, placed | 1 << number
            candidates = moves(state, placed)
            seen.add((placed, state))
            break
        else:
            if len(path) > len(longest[0]) or not longest[1]:
                longest = [each[0] for each in path], events.minimal(), state
            if not path:
                break
            if len(seen) >= max_configurations:
                raise SearchLimitError(
                    f"The search visited {len(seen)} configurations without a result. Check a shorter history, or pass "
                    f"a higher max_configurations. {_explanation(history, needed, *longest)}"
                )
            number, state, candidates = path.pop()
            events.put_back(number)
            left += ends[number] < math.inf
            placed ^= 1 << number
    if not left:
        states = (*(each[1] for each in path), state)
        order = tuple(history[each[0]] for each in path)
        return Verdict(True, order, (), states, len(seen), "The history is linearizable.")
    explanation = f"The history is not linearizable. {_explanation(history, needed, *longest)}"
    order, refused = (tuple(history[number] for number in numbers) for numbers in longest[:2])
    return Verdict(False, order, refused, (), len(seen), explanation)


def _explanation(history: History, needed: list[int], order: list[int], refused: list[int], state: object) -> str:
    """Return the end of the longest beginning of an order, and for each operation why it could not come next."""
    lines = [f"The longest allowed beginning has {len(order)} of {len(history)} operations, and ends with:"]
    lines += [f"  {history[number]}" for number in order[-_SHOWN:]] or ["  nothing"]
    lines += [f"Then the state is: {state}", "One of these operations must come next, and none can:"]
    for number in refused:
        missing = needed[number] & ~sum(1 << each for each in order)
        first = (missing & -missing).bit_length() - 1
        reason = f"it must come after {history[first]}" if missing else "the specification refuses it in this state"
        lines.append(f"  {history[number]}: {reason}")
    return "\n".join(lines)
