"""How deliveries are counted: runs with values against a dictionary, their format, and the state that has them."""

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
    """Runs after these steps, each of which gives a run a value or takes it, and the same as a dictionary."""
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
    """A state with ten items, and what these operations make of it."""
    state = State()
    for operation in (SegmentCreated(1, 5, 1000), Enqueue(0, 10, 1, HEADER_BYTES, 100, 0, 0), *more):
        state.apply(operation)
    return state


def deliveries(state: State) -> list[Operation]:
    """What a checkpoint says of deliveries."""
    return [each for each in state.supplement() if isinstance(each, Delivered | Delayed)]


@given(STEPS)
def test_runs_are_sorted_disjoint_and_joined(steps: list[tuple[int, int, int | None]]) -> None:
    """Runs are in order, hold exactly what they were given, and neighbours differ."""
    runs, model = made(steps)
    found = list(runs)
    assert {at: value for first, count, value in found for at in range(first, first + count)} == model
    assert all(a[0] + a[1] < b[0] or (a[0] + a[1] == b[0] and a[2] != b[2]) for a, b in pairwise(found))
    assert len(runs) == len(found)


@given(STEPS, st.integers(0, 30), st.integers(1, 10))
def test_runs_are_asked(steps: list[tuple[int, int, int | None]], first: int, count: int) -> None:
    """One value, the next one that there is, and the pieces of a run are those of the dictionary."""
    runs, model = made(steps)
    assert runs.get(first) == model.get(first)
    assert runs.next_from(first) == min((at for at in model if at >= first), default=None)
    pieces = runs.pieces(first, count)
    flat = [(at, value) for start, length, value in pieces for at in range(start, start + length)]
    assert flat == [(at, model.get(at)) for at in range(first, first + count)]


def test_memory_follows_the_runs() -> None:
    """A million items that were delivered equally often are one run."""
    attempts = Attempts()
    for _ in range(3):
        attempts.deliver(0, 1_000_000)
    attempts.deliver(1000, 1)
    assert list(attempts.times) == [(0, 1000, 3), (1000, 1, 4), (1001, 998_999, 3)]


def test_a_count_stops_at_its_most() -> None:
    """What is delivered for ever is never counted as less."""
    attempts = Attempts()
    attempts.deliver(0, 1, TIMES_MAX)
    attempts.deliver(0, 1)
    assert attempts.times.get(0) == TIMES_MAX


def test_a_delivery_ends_a_delay() -> None:
    """What is handed out was due."""
    state = ten_items(DELIVERED, DELAYED, Delivered(0, 5, 1, 1))
    assert deliveries(state) == [Delivered(0, 2, 3, 2), Delivered(0, 5, 1, 1), Delayed(0, 4, 1, 10**18, 10**9)]


def test_format() -> None:
    """The bytes of the operations are those of the document, and are read back; cut short they are damage."""
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
    """Nothing is remembered of an item that its subscription has consumed, in or out of order."""
    state = ten_items(DELIVERED, DELAYED, Dequeue(0, 3, 2))
    assert deliveries(state) == [Delivered(0, 2, 1, 2), Delayed(0, 5, 1, 10**18, 10**9)]
    assert (state.times(0, 2), state.times(0, 3), state.times(9, 2)) == (2, 0, 0)
    state.apply(Dequeue(0, 0, 3))
    assert list(_check_state(state)) == []
    state.apply(Dequeue(0, 5, 5))
    assert state.attempts == {}


def test_each_subscription_has_its_own() -> None:
    """What one consumes is counted on for another one; with a subscription goes what was counted for it."""
    state = ten_items(SubscriptionOpened(1, 0, "a"), DELIVERED, Delivered(1, 0, 10, 1), Dequeue(0, 0, 10))
    assert deliveries(state) == [Delivered(1, 0, 10, 1)]
    state.apply(Enqueue(10, 1, 1, HEADER_BYTES + 100, 10, 10, 0))
    state.apply(Dequeue(0, 10, 1))
    assert deliveries(state) == [Delivered(1, 0, 10, 1)]
    state.apply(SubscriptionClosed(0))
    state.apply(SubscriptionClosed(1))
    assert deliveries(state) == []


def test_a_checkpoint_has_them() -> None:
    """A state is the same after a checkpoint; what a repair has lost of it, and thereby consumed, is not counted."""
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
    """A delivery of what is not there, or consumed, or to nobody, contradicts the state, in a log and a checkpoint."""
    state = ten_items(Dequeue(0, 0, 1))
    with pytest.raises(StateError, match="deliver"):
        state.apply(wrong)
    if wrong.count and wrong.first:  # a repair may leave those in a checkpoint
        with pytest.raises(StateError, match="deliveries of sequences below 10"):
            State.restore(state.checkpoint(0, None, ()), [wrong])


def test_check_knows_the_invariant() -> None:
    """``check`` tells of deliveries that are counted for nothing."""
    state = ten_items(DELIVERED)
    state.attempts[0].deliver(9, 2)
    state.attempts[3] = state.attempts[0]
    assert len(list(_check_state(state))) == 3
