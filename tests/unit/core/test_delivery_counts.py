"""Counts of deliveries: their runs against a dictionary, their format in the log, and their place in the state."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue.core.delivery_counts import Attempts, Runs
from persistentqueue.core.frame import decode_frame, encode_frame
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.core.operations import (
    TIMES_MAX,
    Delayed,
    Delivered,
    Dequeue,
    Enqueue,
    Operation,
    SegmentCreated,
    SubscriptionClosed,
    SubscriptionOpened,
    encode_transaction,
)
from persistentqueue.core.state import State, StateError
from persistentqueue.errors import CorruptionError
from persistentqueue.recovery.check import _check_state

STEPS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), st.none() | st.integers(1, 3)), max_size=20)
DELIVERED = Delivered(0, 2, 3, 2)
DELAYED = Delayed(0, 4, 2, 10**18, 10**9)


def made(steps: list[tuple[int, int, int | None]]) -> tuple[Runs[int], dict[int, int]]:
    """Return the runs after these steps, and a dictionary with equal values.

    Each step sets the value of a run, or removes it (None).
    """
    runs: Runs[int] = Runs()
    model: dict[int, int] = {}
    for first, count, value in steps:
        for sequence in range(first, first + count):
            model.pop(sequence, None)
            if value is not None:
                model[sequence] = value
        if value is None:
            runs.drop(first, count)
        else:
            runs.put(first, count, value)
    return runs, model


def ten_items(*more: Operation) -> State:
    """Return a state with ten items, after these further operations."""
    state = State()
    for operation in (SegmentCreated(1, 5, 1000), Enqueue(0, 10, 1, HEADER_BYTES, 100, 0, 0), *more):
        state.apply(operation)
    return state


def deliveries(state: State) -> list[Operation]:
    """Return the operations about deliveries that follow a checkpoint of the state."""
    return [each for each in state.supplement() if isinstance(each, Delivered | Delayed)]


@given(STEPS)
def test_runs_are_sorted_disjoint_and_joined(steps: list[tuple[int, int, int | None]]) -> None:
    """Runs are in order, hold exactly the values that they were given, and adjacent runs differ."""
    runs, model = made(steps)
    found = list(runs)
    assert {at: value for first, count, value in found for at in range(first, first + count)} == model
    assert all(a[0] + a[1] < b[0] or (a[0] + a[1] == b[0] and a[2] != b[2]) for a, b in pairwise(found))
    assert len(runs) == len(found)


@given(STEPS, st.integers(0, 30), st.integers(1, 10))
def test_runs_are_asked(steps: list[tuple[int, int, int | None]], first: int, count: int) -> None:
    """The value of a sequence, the next sequence with a value, and the pieces of a run match the dictionary."""
    runs, model = made(steps)
    assert runs.get(first) == model.get(first)
    assert runs.next_from(first) == min((at for at in model if at >= first), default=None)
    pieces = runs.pieces(first, count)
    flat = [(at, value) for start, length, value in pieces for at in range(start, start + length)]
    assert flat == [(at, model.get(at)) for at in range(first, first + count)]


def test_a_run_that_begins_before_a_value() -> None:
    """The parts of a run that have no value stand before, between and behind the values."""
    runs: Runs[int] = Runs()
    runs.put(5, 2, 1)
    assert runs.pieces(3, 6) == [(3, 2, None), (5, 2, 1), (7, 2, None)]


def test_memory_follows_the_runs() -> None:
    """A million items that were delivered equally often are one run."""
    attempts = Attempts()
    for _ in range(3):
        attempts.deliver(0, 1_000_000)
    attempts.deliver(1000, 1)
    assert list(attempts.times) == [(0, 1000, 3), (1000, 1, 4), (1001, 998_999, 3)]


def test_a_count_stops_at_its_most() -> None:
    """A count stops at its maximum: further deliveries do not change it."""
    attempts = Attempts()
    attempts.deliver(0, 1, TIMES_MAX)
    attempts.deliver(0, 1)
    assert attempts.times.get(0) == TIMES_MAX


def test_a_delivery_that_did_not_take_place() -> None:
    """With 0 times the last delivery of each sequence is taken back, and nothing is remembered at 0."""
    state = ten_items(DELIVERED, Delivered(0, 2, 3, 0), Delivered(0, 3, 4, 0))
    assert deliveries(state) == [Delivered(0, 2, 1, 1)]
    assert not ten_items(Delivered(0, 0, 3, 1), Delivered(0, 0, 3, 0), Delivered(0, 5, 1, 0)).attempts


def test_a_delivery_ends_a_delay() -> None:
    """A delivery of an item ends its delay."""
    state = ten_items(DELIVERED, DELAYED, Delivered(0, 5, 1, 1))
    assert deliveries(state) == [Delivered(0, 2, 3, 2), Delivered(0, 5, 1, 1), Delayed(0, 4, 1, 10**18, 10**9)]


def test_format() -> None:
    """The bytes of the operations are as documented and are decoded again; an operation that is cut short is damage."""
    body = encode_transaction([DELIVERED, DELAYED])
    assert body[4:29] == bytes([16, 0, 0, 0, 0, 2, *bytes(7), 3, *bytes(7), 2, 0, 0, 0])
    assert len(body) == 4 + 25 + 37
    header, _ = encode_frame(body, 7, 0, 1, 0, 1, 2)
    assert decode_frame(header + body, 0, 7, "log").transactions == [[DELIVERED, DELAYED]]
    for cut in (encode_transaction([DELIVERED])[:-1], encode_transaction([DELAYED])[:-1]):
        header, _ = encode_frame(cut, 7, 0, 1, 0, 1, 1)
        with pytest.raises(CorruptionError, match="bytes of an operation"):
            decode_frame(header + cut, 0, 7, "log")


def test_what_is_consumed_is_forgotten() -> None:
    """An item's count and delay are dropped when its subscription consumes it, in or out of order."""
    state = ten_items(DELIVERED, DELAYED, Dequeue(0, 3, 2))
    assert deliveries(state) == [Delivered(0, 2, 1, 2), Delayed(0, 5, 1, 10**18, 10**9)]
    assert (state.times(0, 2), state.times(0, 3), state.times(9, 2)) == (2, 0, 0)
    state.apply(Dequeue(0, 0, 3))
    assert list(_check_state(state)) == []
    state.apply(Dequeue(0, 5, 5))
    assert state.attempts == {}


def test_each_subscription_has_its_own() -> None:
    """Each subscription has its own counts: a dequeue by another one leaves them, and closing the subscription drops
    them."""
    state = ten_items(SubscriptionOpened(1, 0, "a"), DELIVERED, Delivered(1, 0, 10, 1), Dequeue(0, 0, 10))
    assert deliveries(state) == [Delivered(1, 0, 10, 1)]
    state.apply(Enqueue(10, 1, 1, HEADER_BYTES + 100, 10, 10, 0))
    state.apply(Dequeue(0, 10, 1))
    assert deliveries(state) == [Delivered(1, 0, 10, 1)]
    state.apply(SubscriptionClosed(0))
    state.apply(SubscriptionClosed(1))
    assert deliveries(state) == []


def test_a_checkpoint_has_them() -> None:
    """Counts survive a checkpoint, except those of items that are consumed: a repair may have lost and thereby consumed
    them."""
    state = ten_items(SubscriptionOpened(1, 0, "a"), DELIVERED, DELAYED, Delivered(1, 0, 10, 1), Dequeue(1, 9, 1))
    checkpoint, supplement = state.checkpoint(0, None, ()), state.supplement()
    assert State.restore(checkpoint, supplement).supplement() == supplement
    alone = ten_items(Dequeue(0, 3, 2))
    restored = State.restore(alone.checkpoint(0, None, ()), [DELIVERED, DELAYED])
    assert deliveries(restored) == [Delivered(0, 2, 1, 2), Delayed(0, 5, 1, 10**18, 10**9)]


@pytest.mark.parametrize(
    "wrong",
    [
        Delivered(0, 8, 3, 1),
        Delivered(0, 0, 1, 1),
        Delivered(0, 2, 0, 1),
        Delivered(4, 2, 1, 1),
        Delayed(0, 9, 2, 1, 1),
    ],
    ids=["beyond", "consumed", "none", "nobody", "delayed beyond"],
)
def test_what_cannot_be_is_refused(wrong: Delivered | Delayed) -> None:
    """A delivery of missing or consumed items, or for an unknown subscription, is refused, in a log and in a
    checkpoint."""
    state = ten_items(Dequeue(0, 0, 1))
    with pytest.raises(StateError, match="that are not consumed"):
        state.apply(wrong)
    if wrong.count and wrong.first:  # after a repair a checkpoint may have the others
        with pytest.raises(StateError, match="deliveries of sequences below 10"):
            State.restore(state.checkpoint(0, None, ()), [wrong])


def test_check_knows_the_invariant() -> None:
    """``check`` reports counts that belong to no item or to no subscription."""
    state = ten_items(DELIVERED)
    state.attempts[0].deliver(9, 2)
    state.attempts[3] = state.attempts[0]
    assert len(list(_check_state(state))) == 3
