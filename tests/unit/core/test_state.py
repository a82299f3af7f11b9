"""The state: the effect of operations, the refusal of contradictions, checkpoints, and the items that may be
dequeued."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue.core.availability import Availability
from persistentqueue.core.intervals import Cursor, Run
from persistentqueue.core.operations import (
    Checkpoint,
    Dequeue,
    Enqueue,
    ExtentRow,
    MarkerSet,
    Operation,
    SegmentCreated,
    SegmentRow,
    SubscriptionOpened,
    dequeues,
)
from persistentqueue.core.state import State, StateError
from persistentqueue.recovery.check import _check_state


def segment(number: int) -> SegmentCreated:
    """Return a segment with a salt of its own."""
    return SegmentCreated(number, 1000 + number, 4096)


def enqueue(first: int, count: int, number: int, offset: int, ordinal: int, length_bytes: int = 100) -> Enqueue:
    """Return an enqueue of blocks of ``length_bytes`` bytes."""
    return Enqueue(first, count, number, offset, length_bytes, ordinal, 0)


def state_of(*operations: Operation) -> State:
    """Return the state after the operations."""
    state = State()
    for operation in operations:
        state.apply(operation)
    assert list(_check_state(state)) == []
    return state


def rows(state: State) -> list[tuple[int, int, int]]:
    """Return the first sequence, the count and the live count of each extent."""
    return [(extent.first, extent.count, extent.live) for extent in state.extents]


def test_neighbours_merge() -> None:
    """Blocks that touch in sequence, segment, offset and ordinal become one extent; all others do not."""
    base: list[Operation] = [segment(1), segment(2), enqueue(0, 5, 1, 64, 0)]
    assert rows(state_of(*base, enqueue(5, 3, 1, 164, 5))) == [(0, 8, 8)]
    assert len(rows(state_of(*base, enqueue(5, 3, 2, 164, 5)))) == 2
    assert len(rows(state_of(*base, enqueue(5, 3, 1, 165, 5)))) == 2
    assert len(rows(state_of(*base, enqueue(5, 3, 1, 164, 6)))) == 2


def test_spilled_blocks_may_be_committed_late() -> None:
    """Spilled blocks may be committed after blocks that stand behind them in the segment."""
    state = state_of(segment(1), enqueue(0, 1, 1, 200, 7), enqueue(1, 4, 1, 64, 0))
    assert rows(state) == [(0, 1, 1), (1, 4, 4)]
    assert (state.segments[1].end, state.segments[1].ordinal) == (300, 8)


@pytest.mark.parametrize(
    "operation",
    [
        enqueue(6, 1, 1, 164, 5),  # not the next sequence
        enqueue(4, 1, 1, 164, 5),
        enqueue(5, 0, 1, 164, 5),  # no items
        enqueue(5, 1, 9, 164, 5),  # an unknown segment
        enqueue(5, 1, 1, 10, 5),  # an offset in the header
        Dequeue(0, 5, 1),  # not enqueued yet
        Dequeue(0, 4, 2),
        Dequeue(0, 0, 0),
        Dequeue(1, 0, 1),  # an unknown subscription
        Dequeue(0, 2, 1),  # consumed already
        Dequeue(0, 1, 2),
        segment(1),  # a number that is taken
        Checkpoint(0, 0, 1, 0, 0, [], [], [], []),  # allowed only at the beginning of a log
    ],
)
def test_contradiction_is_refused(operation: Operation) -> None:
    """An operation that contradicts the state is refused."""
    state = state_of(segment(1), enqueue(0, 5, 1, 64, 0), Dequeue(0, 2, 1))
    with pytest.raises(StateError):
        state.apply(operation)


def test_many_operations_at_once_are_refused_at_the_first_contradiction() -> None:
    """Of many runs that one transaction consumes, the first one that contradicts the state is told, with those before
    it applied, as one by one."""
    runs = [(first, 1) for first in range(0, 20, 2)]
    many = [Dequeue(0, first, count) for first, count in runs]
    state, wrong = (state_of(segment(1), enqueue(0, 20, 1, 64, 0)) for _ in range(2))
    state.apply_all([*many[:9], enqueue(20, 1, 1, 164, 1), many[9]])  # one of them stands alone
    assert not any(state.are_unconsumed(0, [run]) for run in runs)
    with pytest.raises(StateError):
        wrong.apply_all([*many[:8], Dequeue(0, 4, 1), *many[8:]])
    assert [wrong.are_unconsumed(0, [run]) for run in runs] == [False] * 8 + [True] * 2


def test_consumed_twice_is_refused_at_the_frontier() -> None:
    """A run below the frontier cannot be consumed again."""
    state = state_of(segment(1), enqueue(0, 5, 1, 64, 0), Dequeue(0, 0, 3))
    with pytest.raises(StateError):
        state.apply(Dequeue(0, 2, 1))


def test_frontier_moves_over_what_was_consumed_out_of_order() -> None:
    """Consumed runs above the frontier are remembered until it reaches them."""
    state = state_of(segment(1), enqueue(0, 10, 1, 64, 0), Dequeue(0, 4, 2), Dequeue(0, 8, 1), Dequeue(0, 1, 2))
    assert (state.gone.frontier, list(state.gone.consumed), state.gone_count) == (0, [(1, 2), (4, 2), (8, 1)], 5)
    state.apply(Dequeue(0, 0, 1))
    assert (state.gone.frontier, list(state.gone.consumed)) == (3, [(4, 2), (8, 1)])
    state.apply(Dequeue(0, 3, 1))
    assert (state.gone.frontier, list(state.gone.consumed)) == (6, [(8, 1)])


def test_consumption_of_what_others_need_in_part() -> None:
    """Of a run, the items are gone that all other subscriptions have consumed."""
    state = state_of(segment(1), enqueue(0, 10, 1, 64, 0), SubscriptionOpened(1, 0, "a"), SubscriptionOpened(2, 0, "b"))
    for operation in (Dequeue(0, 2, 3), Dequeue(0, 6, 2), Dequeue(1, 3, 5)):
        state.apply(operation)
        assert state.gone_count == 0
    state.apply(Dequeue(2, 0, 10))
    assert (state.gone.frontier, state.gone.consumed.runs()) == (0, [(3, 2), (6, 2)])
    assert [extent.live for extent in state.extents] == [6]


def test_consumption_looks_at_few_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription that consumes an item looks at the others only up to the first that still needs the item."""
    state = state_of(segment(1), enqueue(0, 4, 1, 64, 0))
    for number in range(1, 101):
        state.apply(SubscriptionOpened(number, 0, f"s{number}"))
    looked: list[Cursor] = []
    overlaps = Cursor.overlaps

    def counted(cursor: Cursor, first: int, end: int) -> bool:
        """Note which cursor is asked."""
        looked.append(cursor)
        return overlaps(cursor, first, end)

    monkeypatch.setattr(Cursor, "overlaps", counted)
    monkeypatch.setattr(Cursor, "done_of", None)
    state.apply(Dequeue(50, 0, 4))
    assert looked == [state.subscriptions[50], state.subscriptions[0]]
    monkeypatch.undo()
    for number in set(state.subscriptions) - {50}:
        assert state.gone_count == 0
        state.apply(Dequeue(number, 0, 4))
    assert state.gone_count == 4


def test_segments_drain_wherever_they_stand() -> None:
    """A segment without live items is drained, even in the middle of the queue, until it gets new items."""
    state = state_of(segment(1), segment(2), segment(3), enqueue(0, 2, 1, 64, 0), enqueue(2, 2, 2, 64, 0))
    assert state.drained == {3}
    state.apply(Dequeue(0, 2, 2))
    assert state.drained == {2, 3}
    state.apply(enqueue(4, 1, 3, 64, 0))
    assert state.drained == {2}
    state.retire(2)
    assert sorted(state.segments) == [1, 3]
    assert state.live_bytes == 200


def test_run_over_several_extents() -> None:
    """One dequeue may consume parts of many extents, and empty some of them."""
    operations: list[Operation] = [segment(1), *(enqueue(2 * n, 2, 1, 64 + 200 * n, 2 * n) for n in range(5))]
    state = state_of(*operations, Dequeue(0, 1, 6))
    assert rows(state) == [(0, 2, 1), (6, 2, 1), (8, 2, 2)]
    state = state_of(*operations, Dequeue(0, 2, 1), Dequeue(0, 1, 1), Dequeue(0, 3, 4))
    assert rows(state) == [(0, 2, 1), (6, 2, 1), (8, 2, 2)]
    state = state_of(*operations, Dequeue(0, 2, 6))
    assert rows(state) == [(0, 2, 2), (8, 2, 2)]
    assert state.live_bytes == 200


def test_find() -> None:
    """``find`` returns the extent of each live sequence, and refuses every other sequence."""
    state = state_of(segment(1), enqueue(0, 2, 1, 64, 0), enqueue(2, 2, 1, 264, 2), Dequeue(0, 0, 2))
    assert state.find(3).first == 2
    for sequence in (0, 1, 4):
        with pytest.raises(StateError):
            state.find(sequence)


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=12), st.data())
def test_checkpoint_holds_everything(blocks: list[tuple[int, bool]], data: st.DataObject) -> None:
    """A state that is restored from its checkpoint has an equal checkpoint, and equal segments, markers and ready
    items."""
    operations: list[Operation] = [segment(1), MarkerSet("a", 3)]
    number, sequence, offset = 1, 0, 64
    for count, rolls in blocks:
        if rolls:
            number, offset = number + 1, 64
            operations.append(segment(number))
        operations.append(enqueue(sequence, count, number, offset, offset))
        sequence, offset = sequence + count, offset + 100
    consumed = data.draw(st.sets(st.integers(0, sequence - 1)))
    operations += [Dequeue(0, each, 1) for each in data.draw(st.permutations(sorted(consumed)))]
    state = state_of(*operations)
    current = SegmentRow(number, 1000 + number, 4096, offset, offset)
    checkpoint = state.checkpoint(7, current, ())
    restored = State.restore(checkpoint)
    assert list(_check_state(restored)) == []
    assert restored.checkpoint(7, current, ()) == checkpoint
    for drained in state.drained - {number}:
        state.retire(drained)
    assert sorted(restored.segments) == sorted(state.segments)
    assert restored.markers == {"a": 3}
    rest = [n for n in range(sequence) if n not in consumed]
    ready = Availability(restored)
    assert len(ready) == len(rest)
    assert [n for first, count in ready.hold(10**9) for n in range(first, first + count)] == rest


GOOD = Checkpoint(
    0, 10, 3, 2, 2, [(4, 1)], [SegmentRow(1, 5, 99, 164, 10)], [ExtentRow(0, 10, 1, 64, 100, 0, 7, 70)], []
)


@pytest.mark.parametrize(
    "changes",
    [
        {"frontier": 3},
        {"next_sequence": 11},
        {"consumed": [(2, 1)]},
        {"consumed": [(4, 0)]},
        {"consumed": [(4, 1), (5, 1)]},
        {"consumed": [(9, 2)]},
        {"consumed": []},
        {"segments": []},
        {"segments": [SegmentRow(1, 5, 99, 163, 10)]},
        {"extents": []},
        {"extents": [ExtentRow(0, 10, 1, 64, 100, 0, 6, 70)]},
        {"extents": [ExtentRow(0, 11, 1, 64, 100, 0, 8, 70)]},
        {"extents": [ExtentRow(0, 2, 1, 64, 100, 0, 0, 70), *GOOD.extents]},
        {"extents": [*GOOD.extents, *GOOD.extents]},
    ],
    ids=str,
)
def test_checkpoint_that_contradicts_itself(changes: dict[str, object]) -> None:
    """A checkpoint whose parts do not add up is refused."""
    State.restore(GOOD)
    with pytest.raises(StateError):
        State.restore(GOOD._replace(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("runs", [[(3, 1), (5, 1), (7, 1)], [(1, 4), (5, 1), (7, 1)], [(5, 1), (7, 1), (4, 2)]])
def test_subscriptions_of_a_checkpoint(runs: list[Run]) -> None:
    """A subscription gets back what it has consumed, also if a part is gone already, as after a repair. Consumed runs
    need their subscription before them."""
    opened = [SubscriptionOpened(number, 2, f"{number}") for number in (1, 2)]
    restored = State.restore(GOOD, [*opened, *dequeues(1, runs)])
    cursor, consumed = restored.subscriptions[1], {0, 1, 4}.union(*(range(first, first + n) for first, n in runs))
    assert {each for each in range(10) if cursor.overlaps(each, each + 1)} == consumed
    assert list(_check_state(restored)) == []
    with pytest.raises(StateError, match="consumed runs of the subscriptions"):
        State.restore(GOOD, [*dequeues(1, runs), *opened])


# --- what may be dequeued --------------------------------------------------------------------------------------------


def ready_of(count: int) -> Availability:
    """Return this many items, all ready."""
    return Availability(state_of(segment(1), enqueue(0, count, 1, 64, 0)))


def test_returned_items_come_out_first_and_in_order() -> None:
    """Released items are handed out first, in their old order."""
    ready = ready_of(10)
    one, two, three = ready.hold(2), ready.hold(2), ready.hold(2)
    assert (ready.held, len(ready)) == (6, 4)
    ready.release(two)
    ready.release(one)
    assert ready.hold(3) == [(0, 3)]
    ready.release(three)
    assert ready.hold(9) == [(3, 7)]
    assert (ready.held, len(ready)) == (10, 0)
    assert ready.hold(1) == []


def test_front_is_what_comes_out_next() -> None:
    """``front`` is the lowest ready sequence, or the next one if none is ready; ``members`` has all ready ones."""
    ready = ready_of(10)
    assert (ready.front(), ready.members().runs()) == (0, [(0, 10)])
    one, _ = ready.hold(2), ready.hold(2)
    assert (ready.front(), ready.members().runs()) == (4, [(4, 6)])
    ready.release(one)
    assert (ready.front(), ready.members().runs()) == (0, [(0, 2), (4, 6)])
    ready.hold(9)
    assert (ready.front(), ready.members().runs()) == (10, [])


def test_consumed_is_not_held_any_more() -> None:
    """Consuming an item ends its hold."""
    ready = ready_of(5)
    for first, count in ready.hold(3):
        ready._state.dequeue(0, first, count)
    assert (ready.held, len(ready)) == (0, 2)


def test_set_aside_takes_only_what_is_ready() -> None:
    """Damage sets aside only ready items; items on hold stay with their session."""
    ready = ready_of(10)
    one, two = ready.hold(2), ready.hold(2)
    ready.release(one)
    ready.set_aside(1, 6)
    assert list(ready.damaged) == [(1, 1), (4, 2)]
    assert ready.hold(9) == [(0, 1), (6, 4)]
    ready.release(two)
    assert ready.hold(9) == [(2, 2)]


def test_set_aside_ahead_of_the_consumer() -> None:
    """Damage that browsing has met ahead of the consumer leaves the items before it ready."""
    ready = ready_of(10)
    ready.set_aside(3, 5)
    assert list(ready.damaged) == [(3, 2)]
    assert [ready.next_run(n) for n in (0, 2, 3, 7, 10)] == [(0, 3), (2, 1), (5, 5), (7, 3), None]
    assert ready.hold(9) == [(0, 3), (5, 5)]
