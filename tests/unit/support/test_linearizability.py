"""The checker of linearizability: the histories of a queue that it accepts and refuses, compared with all orders."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.crash.worker_records import Call, End, Histories
from tests.support.linearizability import History, Operation, SearchLimitError, SequentialSpecification, search
from tests.support.queue_histories import death, dequeue, flush, rollback, violations
from tests.support.queue_specification import OpenQueue, Queue, check, linearize


def accepts(*history: Operation) -> bool:
    """Return True if the search finds an order that all operations with a response are part of."""
    verdict = linearize(history)
    with_response = {operation for operation in history if operation.responded is not None}
    assert verdict.is_linearizable is search(history, Queue()).is_linearizable
    return verdict.is_linearizable and with_response <= set(verdict.order)


class TestAccepted:
    """Histories with an order that the specification allows."""

    def test_concurrent_flushes_have_either_order(self) -> None:
        """Two flushes that overlap may have taken effect in either order."""
        flushes = flush("a", 0, 3, ["x"]), flush("b", 1, 2, ["y"])
        assert accepts(*flushes, dequeue("c", 4, 5, "x"), dequeue("c", 6, 7, "y"))
        assert accepts(*flushes, dequeue("c", 4, 5, "y"), dequeue("c", 6, 7, "x"))

    def test_emptiness_during_a_flush(self) -> None:
        """A dequeue that overlaps with a flush may find nothing or the item."""
        assert accepts(flush("a", 0, 3, ["x"]), dequeue("b", 1, 2))
        assert accepts(flush("a", 0, 3, ["x"]), dequeue("b", 1, 2, "x"))

    def test_a_killed_flush_may_have_taken_effect(self) -> None:
        """A flush whose process was killed may be visible, or not."""
        killed = flush("a", 0, None, ["x"]), death("a", 1, 2)
        assert accepts(*killed, dequeue("b", 3, 4, "x"))
        assert accepts(*killed, dequeue("b", 3, 4))

    def test_a_killed_consumption_may_have_taken_effect(self) -> None:
        """An item that a killed flush consumes comes out again, or never."""
        killed = flush("a", 0, 1, ["x"]), dequeue("b", 2, 3, "x"), flush("b", 4, None, [], ["x"]), death("b", 5, 6)
        assert accepts(*killed, dequeue("c", 7, 8, "x"))
        assert accepts(*killed, dequeue("c", 7, 8))

    def test_a_killed_dequeue_may_have_held_an_item(self) -> None:
        """An item that a killed dequeue may hold is missing until the death of its process, and then comes first."""
        killed = flush("a", 0, 1, ["x", "y"]), dequeue("b", 2, None), dequeue("a", 3, 4, "y"), death("b", 5, 6)
        assert accepts(*killed, dequeue("a", 7, 8, "x"))

    def test_a_file_is_adopted_after_the_death_of_its_process(self) -> None:
        """The items of a killed flush may become visible after others had seen an empty queue."""
        assert accepts(flush("a", 0, None, ["x"]), death("a", 1, 2), dequeue("b", 3, 4), dequeue("b", 5, 6, "x"))

    def test_a_rollback_puts_items_back_in_front(self) -> None:
        """Items of a rollback come out before later ones, in their old order."""
        held = flush("a", 0, 1, ["x", "y", "z"]), dequeue("a", 2, 3, "x"), dequeue("b", 4, 5, "y")
        back = rollback("b", 6, 7), rollback("a", 8, 9)
        assert accepts(*held, *back, *(dequeue("c", 10 + 2 * n, 11 + 2 * n, value) for n, value in enumerate("xyz")))

    def test_a_death_without_a_known_time(self) -> None:
        """The holds of a killed process are released at any time after the kill, or never."""
        killed = flush("a", 0, 1, ["x"]), dequeue("b", 2, 3, "x"), death("b", 4, None)
        assert accepts(*killed, dequeue("c", 5, 6), dequeue("c", 7, 8, "x"))
        assert accepts(*killed, dequeue("c", 5, 6))

    def test_an_empty_history(self) -> None:
        """A history without operations is linearizable."""
        assert accepts()


REFUSED = {
    "an item that was flushed and never came out before a later one is lost": (
        [flush("a", 0, 1, ["x"]), flush("a", 2, 3, ["y"]), dequeue("b", 4, 5, "y")],
        "order",
    ),
    "an item that comes out twice is doubled": (
        [flush("a", 0, 1, ["x"]), dequeue("b", 2, 3, "x"), dequeue("c", 2, 4, "x")],
        "doubled",
    ),
    "an item that was consumed does not come back by a rollback": (
        [
            *(flush("a", 0, 1, ["x"]), dequeue("b", 2, 3, "x"), flush("b", 4, 5, [], ["x"])),
            *(rollback("b", 6, 7), dequeue("c", 8, 9, "x")),
        ],
        "doubled",
    ),
    "an item that was consumed by two flushes is doubled": (
        [
            *(flush("a", 0, 1, ["x"]), dequeue("b", 2, 3, "x"), flush("b", 4, 9, [], ["x"]), rollback("b", 4, 9)),
            *(dequeue("c", 4, 9, "x"), flush("c", 10, 11, [], ["x"])),
        ],
        "doubled",
    ),
    "items of successive flushes that come out in the reverse order are reordered": (
        [flush("a", 0, 1, ["x"]), flush("b", 2, 3, ["y"]), dequeue("c", 4, 5, "y"), dequeue("c", 6, 7, "x")],
        "order",
    ),
    "items of one flush that come out in the reverse order are reordered": (
        [flush("a", 0, 1, ["x", "y"]), dequeue("c", 4, 5, "y"), dequeue("c", 6, 7, "x")],
        "order",
    ),
    "a dequeue that finds nothing though an item is ready saw a stale state": (
        [flush("a", 0, 1, ["x"]), dequeue("b", 2, 3), dequeue("b", 4, 5, "x")],
        "stale",
    ),
    "a dequeue that returns an item before its flush began invented it": (
        [dequeue("b", 0, 1, "x"), flush("a", 2, 3, ["x"])],
        "fresh",
    ),
    "a dequeue that returns an item of no flush invented it": ([dequeue("b", 0, 1, "x")], "fresh"),
    "a flush of which one item is visible and the other one is not is torn": (
        [flush("a", 0, None, ["x", "y"]), dequeue("b", 1, 2, "x"), dequeue("b", 3, 4)],
        None,
    ),
    "a killed flush whose items are visible has consumed": (
        [
            *(flush("a", 0, 1, ["x"]), dequeue("b", 2, 3, "x"), flush("b", 4, None, ["y"], ["x"]), death("b", 5, 6)),
            *(dequeue("c", 7, 8, "x"), dequeue("c", 9, 10, "y")),
        ],
        None,
    ),
    "a rollback that puts an item behind a later one reorders": (
        [
            *(flush("a", 0, 1, ["x", "y", "z"]), dequeue("b", 2, 3, "x"), dequeue("c", 4, 5, "y"), rollback("b", 6, 7)),
            *(dequeue("c", 8, 9, "z"), dequeue("c", 10, 11, "x")),
        ],
        None,
    ),
    "an item is on hold until the rollback begins": (
        [flush("a", 0, 1, ["x"]), dequeue("b", 2, 3, "x"), dequeue("c", 4, 5, "x"), rollback("b", 6, 7)],
        "doubled",
    ),
    "an item of a killed process is ready when its death is over": (
        [flush("a", 0, 1, ["x"]), dequeue("b", 2, 3, "x"), death("b", 4, 5), dequeue("c", 6, 7)],
        None,
    ),
    "a process consumes no item that another one holds": (
        [flush("a", 0, 1, ["x"]), dequeue("b", 2, 3, "x"), flush("c", 4, 5, [], ["x"])],
        None,
    ),
    "a flush consumes an item once": (
        [flush("a", 0, 1, ["x"]), dequeue("b", 2, 3, "x"), flush("b", 4, 5, [], ["x", "x"])],
        "doubled",
    ),
    "a process dequeues nothing after its death": (
        [flush("a", 0, 1, ["x"]), death("b", 2, 3), dequeue("b", 4, 5, "x")],
        None,
    ),
    "a killed dequeue takes no item after the death of its process": (
        [dequeue("b", 0, None), death("b", 1, 2), flush("a", 3, 4, ["x"]), dequeue("c", 5, 6)],
        "stale",
    ),
}
"""Histories that are not linearizable, by the promise that each breaks, and the fault that ``violations`` names."""


@pytest.mark.parametrize("promise", REFUSED)
def test_history_that_breaks_a_promise_is_refused(promise: str) -> None:
    """The search refuses each history that breaks a promise of queues, and so does ``check``."""
    history, fault = REFUSED[promise]
    for verdict in (search(history, Queue()), linearize(history)):
        assert not verdict
        assert "not linearizable" in verdict.explanation
        assert verdict.refused
        assert set(verdict.refused) <= set(history) - set(verdict.order)
    assert [found.split()[0].rstrip(":") for found in violations(history)][:1] == ([] if fault is None else [fault])
    with pytest.raises(AssertionError, match="not linearizable"):
        check(history)


def test_explanation() -> None:
    """The explanation has the longest order, the state behind it, and the operations that cannot come next."""
    history = [
        *(flush("a", 0, 1, ["x", "y", "z"]), dequeue("b", 2, 3, "x"), dequeue("c", 4, 5, "y"), rollback("b", 6, 7)),
        dequeue("c", 8, 10, "z"),
    ]
    verdict = search(history, Queue())
    assert verdict.order == tuple(history[:4])
    assert verdict.refused == (history[4],)
    assert verdict.explanation == (
        "The history is not linearizable. The longest allowed beginning has 4 of 5 operations, and ends with:\n"
        "  a: flush(('x', 'y', 'z'), ()) = None from 0 to 1\n"
        "  b: dequeue() = 'x' from 2 to 3\n"
        "  c: dequeue() = 'y' from 4 to 5\n"
        "  b: rollback() = None from 6 to 7\n"
        "Then the state is: ready: 'x', 'z'; held: 'y' by c\n"
        "One of these operations must come next, and none can:\n"
        "  c: dequeue() = 'z' from 8 to 10: the specification refuses it in this state"
    )


def test_explanation_of_an_order_that_later_operations_reveal() -> None:
    """The explanation names the flush that the dequeues show to be earlier."""
    verdict = search([flush("a", 0, 1, ["x"]), flush("b", 2, 3, ["y"]), dequeue("c", 4, 5, "y")], Queue())
    assert verdict.order == ()
    assert verdict.explanation.endswith(
        "ends with:\n  nothing\nThen the state is: ready: nothing; held: nothing\n"
        "One of these operations must come next, and none can:\n"
        "  a: flush(('x',), ()) = None from 0 to 1: it must come after b: flush(('y',), ()) = None from 2 to 3"
    )


def test_search_gives_up_at_its_limit() -> None:
    """A search that reaches its limit raises an error, and guesses nothing."""
    flushes = [flush(f"p{number}", 0, 9, [number]) for number in range(6)]
    history = [*flushes, dequeue("a", 10, 11)]
    with pytest.raises(SearchLimitError, match="visited 51 configurations without a result"):
        search(history, Queue(), 50)
    assert not search(history, Queue())


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([flush("a", 0, 1, ["x"]), flush("b", 0, 1, ["x"])], "'x' is enqueued twice"),
        ([flush("a", 0, 1, ["x", "x"])], "'x' is enqueued twice"),
        ([dequeue("a", 2, 1)], "The response is before the invocation: a: dequeue"),
        ([Operation("a", "peek", (), None, 0, 1)], "no operation 'peek'"),
    ],
)
def test_malformed_history(history: History, reason: str) -> None:
    """A history that is not one of a queue raises an error with the operation."""
    with pytest.raises(ValueError, match=reason):
        search(history, Queue())


class Register(SequentialSpecification[int]):
    """A register that processes write and read, at first 0."""

    initial = 0

    def apply(self, state: int, operation: Operation) -> int | None:
        """Return the value of the register after the operation."""
        if operation.kind == "write":
            return int(operation.arguments[0])
        return state if operation.result == state else None


def test_another_specification() -> None:
    """The search checks histories of any specification: a read of a register that is stale is refused."""
    write = Operation("a", "write", (1,), None, 0, 3)
    new, old = Operation("b", "read", (), 1, 1, 4), Operation("c", "read", (), 0, 2, 5)
    assert search([write, new, old], Register()).order == (old, write, new)
    assert not search([write, new, old._replace(invoked=6, responded=7)], Register())


class PlainQueue:
    """A queue with holds, written as plainly as possible: a list of values, each with its holder."""

    def __init__(self, items: list[tuple[int, str]] | None = None, dead: set[str] | None = None) -> None:
        self.items = [] if items is None else items
        self.dead = set() if dead is None else dead

    def copy(self) -> PlainQueue:
        """Return a copy."""
        return PlainQueue(list(self.items), set(self.dead))

    def ready(self) -> list[int]:
        """Return the values that no process holds."""
        return [value for value, holder in self.items if holder == ""]

    def held(self, process: str) -> list[int]:
        """Return the values that the process holds."""
        return [value for value, holder in self.items if holder == process]

    def step(self, operation: Operation) -> bool:
        """Take a step; return False if the operation cannot take effect with its result."""
        process, ready = operation.process, self.ready()
        if operation.kind == "flush":
            enqueued, consumed = operation.arguments
            for value in consumed:
                if (value, process) not in self.items:
                    return False
                self.items.remove((value, process))
            self.items += [(value, "") for value in enqueued]
            return True
        if operation.kind == "dequeue":
            if process in self.dead:
                return False
            if operation.responded is not None and operation.result != (ready[0] if ready else None):
                return False
            if ready:
                self.items[self.items.index((ready[0], ""))] = ready[0], process
            return True
        self.items = [(value, "" if holder == process else holder) for value, holder in self.items]
        if operation.kind == "death":
            self.dead.add(process)
        return True


def has_an_order(left: list[Operation], queue: PlainQueue) -> bool:
    """Return True if some order of the operations is allowed. It tries all of them, without those that are pending."""
    if all(operation.responded is None for operation in left):
        return True
    for number, operation in enumerate(left):
        following = queue.copy()
        is_next = all(other.end >= operation.invoked for other in left) and following.step(operation)
        if is_next and has_an_order(left[:number] + left[number + 1 :], following):
            return True
    return False


def run(random: Random, count: int, processes: int, spread: int, kills: float = 0.05) -> list[Operation]:
    """Return a history that is linearizable: a run of a queue in sequence, with intervals around the steps.

    Args:
        random: Source of all decisions.
        count: Number of steps, and so of operations, at least 1. A kill takes two.
        processes: Number of processes at any time, at least 1. A process that was killed has a successor.
        spread: Highest time between a step and its invocation or response, at least 0. Steps are 10 apart.
        kills: Probability that a step is the kill of a process during a call.
    """
    queue = PlainQueue()
    names = [f"p{number}" for number in range(processes)]
    steps: list[Operation] = []
    for process, kind in _calls(random, names, count, kills):
        at = 10 * len(steps) + 10
        held, ready = queue.held(process), queue.ready()
        values = [100 * at + number for number in range(random.choice((0, 1, 1, 2, 3)))]
        consumed = held[: random.choice((len(held), len(held), 1))]
        operation = {
            "flush": flush(process, at, at, values, consumed),
            "dequeue": dequeue(process, at, at, ready[0] if ready else None),
            "rollback": rollback(process, at, at),
            "death": death(process, at, at),
            "killed flush": flush(process, at, None, values, consumed),
            "killed dequeue": dequeue(process, at, None),
        }[kind]
        if operation.responded is not None or random.random() < 0.5:
            assert queue.step(operation)
        steps.append(operation)
    return list(_spread(random, steps, spread))


def _calls(random: Random, names: list[str], count: int, kills: float) -> Iterator[tuple[str, str]]:
    """Yield ``count`` pairs of a process and the kind of its operation."""
    number = 0
    while number < count:
        number += 1
        which = random.randrange(len(names))
        process = names[which]
        if random.random() >= kills:
            yield process, random.choice(("flush", "flush", "dequeue", "dequeue", "dequeue", "dequeue", "rollback"))
            continue
        yield process, random.choice(("killed flush", "killed dequeue"))
        if number < count:
            number += 1
            names[which] = f"{process}'"
            yield process, "death"


def _spread(random: Random, steps: list[Operation], spread: int) -> Iterator[Operation]:
    """Yield the operations with intervals around the times of their steps. Those of a process do not overlap."""
    following: dict[str, float] = {}
    ends: list[float] = []
    for operation in reversed(steps):
        at = operation.invoked
        ends.append(min(at + random.randint(0, spread), following.get(operation.process, at + spread + 1) - 1))
        following[operation.process] = at
    ended: dict[str, float] = {}
    for operation, end in zip(steps, reversed(ends), strict=True):
        begin = max(operation.invoked - random.randint(0, spread), ended.get(operation.process, -spread) + 1)
        ended[operation.process] = end
        yield operation._replace(invoked=begin, responded=None if operation.responded is None else end)


def swapped(random: Random, history: list[Operation]) -> list[Operation]:
    """Return the history with the results of two dequeues exchanged."""
    numbers = [
        number for number, operation in enumerate(history) if operation.kind == "dequeue" and operation.responded
    ]
    if len(numbers) < 2:
        return history
    one, other = random.sample(numbers, 2)
    results = {one: history[other].result, other: history[one].result}
    return [each._replace(result=results.get(number, each.result)) for number, each in enumerate(history)]


def lost(random: Random, history: list[Operation]) -> list[Operation]:
    """Return the history without the dequeues and the consumption of one value."""
    values = [operation.result for operation in history if operation.result is not None]
    if not values:
        return history
    value = random.choice(values)
    return [
        each._replace(arguments=(each.arguments[0], tuple(found for found in each.arguments[1] if found != value)))
        if each.kind == "flush"
        else each
        for each in history
        if each.result != value
    ]


def doubled(random: Random, history: list[Operation]) -> list[Operation]:
    """Return the history with a second dequeue of one value, by another process."""
    dequeues = [operation for operation in history if operation.result is not None]
    if not dequeues:
        return history
    chosen = random.choice(dequeues)
    later = random.randint(0, 40)
    return [*history, dequeue("thief", chosen.invoked + later, chosen.end + later, chosen.result)]


MUTATIONS = {"none": lambda random, history: history, "swapped": swapped, "lost": lost, "doubled": doubled}


@given(st.randoms(use_true_random=False), st.integers(1, 40), st.integers(1, 5), st.sampled_from((0, 8, 30, 100)))
def test_each_run_of_a_queue_is_accepted(random: Random, count: int, processes: int, spread: int) -> None:
    """Each run in sequence is accepted when its operations are spread over intervals that overlap."""
    history = run(random, count, processes, spread)
    random.shuffle(history)
    verdict = check(history)
    queue = PlainQueue()
    for number, operation in enumerate(verdict.order):
        assert all(operation.end >= later.invoked or later.end >= operation.invoked for later in verdict.order[number:])
        assert queue.step(operation)


@settings(max_examples=500)
@given(
    st.randoms(use_true_random=False), st.integers(1, 7), st.sampled_from((5, 20, 60)), st.sampled_from(list(MUTATIONS))
)
def test_checker_agrees_with_all_orders(random: Random, count: int, spread: int, mutation: str) -> None:
    """The checker accepts a small history if and only if one of all orders of its operations is allowed."""
    history = MUTATIONS[mutation](random, run(random, count, 3, spread, kills=0.2))
    allowed = has_an_order(history, PlainQueue())
    assert search(history, Queue()).is_linearizable is allowed
    assert linearize(history).is_linearizable is allowed
    assert not (allowed and violations(history))


@pytest.mark.parametrize("mutation", ["swapped", "lost", "doubled"])
def test_mutations_are_refused(mutation: str) -> None:
    """Of many mutated histories, the checker refuses those of which no order is allowed; there are many of them."""
    refused = found = 0
    for seed in range(400):
        random = Random(seed)
        history = MUTATIONS[mutation](random, run(random, 7, 3, 8, kills=0.1))
        is_refused = not linearize(history)
        assert is_refused is not has_an_order(history, PlainQueue())
        refused += is_refused
        found += bool(violations(history))
    assert 50 <= found <= refused <= 350


@pytest.mark.parametrize("kills", [0, 0.02])
def test_two_thousand_operations(kills: float) -> None:
    """The search visits about as many configurations as a long history has operations."""
    history = run(Random(1), 2000, 8, 60, kills)
    assert search(history, OpenQueue(history)).configurations <= 2 * len(history)
    verdict = linearize(history)
    assert verdict
    assert verdict.configurations <= len(history) + 100


@pytest.mark.parametrize("mutation", ["swapped", "lost", "doubled"])
def test_faults_in_two_thousand_operations(mutation: str) -> None:
    """A fault in a long history is found without a search."""
    history = MUTATIONS[mutation](Random(1), run(Random(1), 2000, 8, 60, kills=0))
    assert violations(history)


@pytest.mark.parametrize("has_marker", [True, False])
def test_a_flush_that_its_marker_skips_frees_its_items(has_marker: bool) -> None:
    """In the records of workers, such a flush frees its items although its owner is killed before the answer. A flush
    without a marker does not."""
    marker = {"marker": "slot 1", "version": 1} if has_marker else {}
    flushed = {"session": "0.0.0", "op": "flush", "new": ["0.0.0.0"], "held": []}
    lost = {"session": "1.0.0", "op": "flush", "new": [], "held": ["0.0.0.0"], **marker}
    taken = {"done": ["0.0.0.0"]}
    calls = [
        Call("0.0", flushed, 10, 20, {"done": True}),
        Call("1.0", {"session": "1.0.0", "op": "dequeue", "most": 1}, 30, 40, taken),
        Call("1.0", lost, 50, 200, {"lost": "session"}),
        Call("2.0", {"session": "2.0.0", "op": "dequeue", "most": 1}, 60, 70, taken),
    ]
    ends = [End("2.0", 100, 110, may_own=True, is_kill=True)]
    assert bool(violations(list(Histories(calls, ends).operations()))) != has_marker
