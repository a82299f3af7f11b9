"""Sets of sequences, stored as runs, against Python's own sets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import SupportsIndex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from persistentqueue.core.intervals import Bounds, Cursor, Intervals, Run, joined, united

MEMBERS = st.sets(st.integers(0, 40))


def make(members: set[int]) -> Intervals:
    """Return the set, built one member at a time."""
    intervals = Intervals()
    for member in members:
        intervals.add(member, 1)
    return intervals


def members_of(intervals: Intervals) -> list[int]:
    """Return the members, in the order of the runs."""
    return [member for first, count in intervals for member in range(first, first + count)]


def check(intervals: Intervals, members: set[int]) -> None:
    """Check that the set has exactly these members, in runs that do not touch, none of them empty."""
    assert (members_of(intervals), len(intervals)) == (sorted(members), len(members))
    assert all(sum(run) < behind for run, (behind, _) in pairwise(intervals.runs()))
    assert all(count > 0 for _, count in intervals.runs())


@given(MEMBERS)
def test_runs_are_sorted_disjoint_and_merged(members: set[int]) -> None:
    """Runs come in order, with a gap between any two, and hold exactly the members."""
    intervals = make(members)
    check(intervals, members)
    runs = list(intervals)
    assert list(Intervals(runs)) == runs


@given(MEMBERS, st.integers(0, 41), st.integers(0, 41))
def test_overlap_and_missing(members: set[int], first: int, end: int) -> None:
    """``overlap`` counts the members in a range, and ``missing`` returns the runs between them."""
    intervals, numbers = make(members), set(range(first, end))
    assert intervals.overlap(first, max(first, end)) == len(members & numbers)
    runs = intervals.missing(first, end)
    assert members_of(Intervals(runs)) == sorted(numbers - members)
    assert all(low + count < behind for (low, count), (behind, _) in pairwise(runs))


@given(MEMBERS.filter(bool), st.data())
def test_remove_any_part_of_a_run(members: set[int], data: st.DataObject) -> None:
    """Any part of any run can be removed, and no other member is."""
    intervals = make(members)
    first, count = data.draw(st.sampled_from(list(intervals)))
    start = data.draw(st.integers(first, first + count - 1))
    length = data.draw(st.integers(1, first + count - start))
    intervals.remove(start, length)
    check(intervals, members - set(range(start, start + length)))


@given(MEMBERS.filter(bool))
def test_pop_lowest(members: set[int]) -> None:
    """``pop_lowest`` removes the lowest run, and no other member."""
    intervals = make(members)
    first, count = next(iter(intervals))
    assert intervals.pop_lowest() == first + count
    check(intervals, set(sorted(members)[count:]))


@pytest.mark.parametrize(("first", "count"), [(4, 2), (5, 1), (7, 1), (0, 6), (6, 9), (0, 20)])
def test_adding_what_is_there_is_a_mistake(first: int, count: int) -> None:
    """A run that overlaps the set is refused."""
    with pytest.raises(AssertionError, match="overlaps"):
        Intervals([(5, 3)]).add(first, count)


@pytest.mark.parametrize(("first", "count"), [(4, 2), (8, 1), (7, 2), (0, 1)])
def test_removing_what_is_not_there_is_a_mistake(first: int, count: int) -> None:
    """A run that is not whole in the set is refused."""
    with pytest.raises(AssertionError, match="not in the set"):
        Intervals([(5, 3)]).remove(first, count)


def test_a_long_run_costs_no_more_than_a_short_one() -> None:
    """``runs()`` reserves no memory for each member, which ``list(…)`` would do."""
    assert Intervals([(1, 2**62)]).runs() == [(1, 2**62)]


@given(MEMBERS, st.integers(0, 41))
def test_run_from_a_sequence(members: set[int], sequence: int) -> None:
    """The run from a sequence on begins with the lowest member that is not below it, and ends before the next gap."""
    run = make(members).run_from(sequence)
    above = sorted(member for member in members if member >= sequence)
    assert (run is None) == (not above)
    if run is not None:
        first, count = run
        assert above[:count] == list(range(first, first + count))
        assert first + count not in members


@given(MEMBERS, MEMBERS)
def test_a_copy_is_another_set(members: set[int], removed: set[int]) -> None:
    """A copy has the members of the original, and a change of one of the two leaves the other one as it is."""
    intervals = make(members)
    for member in sorted(members & removed):  # also from the lower end, where places become free
        intervals.remove(member, 1)
    other = intervals.copy()
    other.add(50, 1)
    check(intervals, members - removed)
    check(other, members - removed | {50})


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6), st.booleans()), max_size=30), st.integers(1, 6))
def test_many_runs_at_once(changes: list[tuple[int, int, bool]], count: int) -> None:
    """``add_all`` and ``remove_all`` take runs in any order, and ``move_lowest`` moves whole runs as long as they
    fit."""
    intervals, members = Intervals(), set[int]()
    for adds in (True, False, True):
        runs, seen = list[Run](), set[int]()
        for first, length, is_meant in changes:
            run = set(range(first, first + length))
            if is_meant is adds and not run & seen and (not run & members if adds else run <= members):
                runs.append((first, length))
                seen |= run
        if adds:
            intervals.add_all(runs)
            members |= seen
        else:
            intervals.remove_all(runs)
            members -= seen
        check(intervals, members)
    moved: list[Run] = []
    while members and (left := count - len(members_of(Intervals(moved)))):
        intervals.move_lowest(left, moved)
        members -= set(members_of(Intervals(moved)))
    assert sum(length for _, length in moved) <= count
    check(intervals, members)
    assert all(sum(run) < behind for run, (behind, _) in pairwise(moved))


@given(MEMBERS, MEMBERS, st.integers(0, 41), st.integers(0, 41))
@example({1}, set(), 0, 2)
def test_sets_of_sets(members: set[int], others: set[int], first: int, end: int) -> None:
    """``common``, ``below``, ``rest``, ``within``, ``unite`` and ``subtract`` are those of sets, and join runs that
    touch."""
    intervals, other, numbers = make(members), make(others), set(range(first, end))
    check(intervals.common(other), members & others)
    check(intervals.below(end), {member for member in members if member < end})
    check(intervals.rest(first, end), numbers - members)
    check(Intervals(intervals.within(first, end)), members & numbers)
    union = intervals.copy()
    union.unite(make(others - members))
    check(union, members | others)
    union.subtract(other)
    check(union, members - others)
    check(intervals, members)


@pytest.mark.parametrize("change", [Intervals.unite, Intervals.subtract])
def test_a_change_that_does_not_fit_is_refused(change: Callable[[Intervals, Intervals], None]) -> None:
    """A set that has a part of another one can neither take it nor give it up."""
    intervals = Intervals([(0, 2), (5, 2)])
    with pytest.raises(AssertionError):
        change(intervals, Intervals([(6, 2), (9, 1)]))
    check(intervals, {0, 1, 5, 6})
    with pytest.raises(AssertionError):
        Intervals([(0, 2), (1, 2)])


def test_few_runs_far_apart_do_not_pass_all_gaps_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs at both ends of many gaps are looked for, and consumed, without a merge with these gaps."""
    gaps = 1000
    cursor = Cursor("", 0, ((2 * number + 1, 1) for number in range(gaps)))
    runs, merges = [(0, 1), (2 * gaps, 1)], [0]

    def merged(one: Bounds, other: Bounds) -> Bounds:
        """Note the number of runs that are merged."""
        merges.append(len(one[0]) + len(other[0]))
        return sorted(one[0] + other[0]), sorted(one[1] + other[1])

    monkeypatch.setattr("persistentqueue.core.intervals._merged", merged)
    assert cursor.lacks(runs, 2 * gaps + 1)
    assert not cursor.lacks([(0, 1), (2 * gaps - 1, 2)], 2 * gaps + 1)
    assert not cursor.done_of(Intervals(runs))
    passed = Intervals([(0, 1), (3, 2)])
    assert Cursor("", 5).done_of(passed) is passed
    assert cursor.done_of(Intervals([(0, 2), (2 * gaps - 2, 2)])).runs() == [(1, 1), (2 * gaps - 1, 1)]
    cursor.consume_all(Intervals(runs))
    assert (cursor.frontier, cursor.count) == (2, gaps + 2)
    assert max(merges) < gaps


@given(MEMBERS, MEMBERS)
def test_runs_that_a_cursor_lacks(members: set[int], others: set[int]) -> None:
    """``lacks`` tells whether none of the sequences is consumed, or in two runs; ``consume_all`` consumes them."""
    cursor = Cursor("", 3, Intervals((member + 4, 1) for member in sorted(members)))
    consumed = {0, 1, 2} | {member + 4 for member in members}
    runs = [(number, 1) for number in others]
    is_lacking = bool(others) and not others & consumed
    assert not runs or cursor.lacks(runs, 41) is is_lacking
    assert not runs or not cursor.lacks(runs, max(others))
    assert not runs or not cursor.lacks([*runs, runs[0]], 41)
    assert not runs or not cursor.lacks([*runs, (50, 0)], 60)
    if is_lacking:
        cursor.consume_all(Intervals(runs))
        assert cursor.count == len(consumed | others)
        assert members_of(Intervals(cursor.unconsumed(0, 60))) == sorted(set(range(60)) - consumed - others)
        assert not cursor.consumed or cursor.consumed.lowest > cursor.frontier


@given(st.lists(st.integers(0, 40), unique=True), st.lists(st.integers(0, 40), unique=True))
def test_runs_united_with_members(noted: list[int], members: list[int]) -> None:
    """The union has the runs in their order, whatever that is, then the members that are in none of them, once."""
    runs = [(3 * first, 3) for first in noted]
    result = united(runs, members)
    assert result[: len(runs)] == runs
    inside = {member for first, count in runs for member in range(first, first + count)}
    assert members_of(Intervals(result[len(runs) :])) == sorted(set(members) - inside)


@given(st.sets(st.integers(0, 9)), st.integers(0, 10))
def test_drop_what_is_below(members: set[int], end: int) -> None:
    """``drop_below`` removes the members below a number, and the part of a run that is below it."""
    intervals = make(members)
    intervals.drop_below(end)
    check(intervals, {member for member in members if member >= end})


@given(MEMBERS, st.integers(0, 46), st.integers(0, 46))
def test_consume_the_rest(members: set[int], first: int, end: int) -> None:
    """``consume_rest`` consumes the sequences of a range that are not consumed, also from below the frontier on."""
    cursor, consumed = Cursor("", 3, Intervals((member + 4, 1) for member in sorted(members))), {0, 1, 2}
    consumed |= {member + 4 for member in members}
    expected = set(range(first, end)) - consumed
    assert members_of(Intervals(cursor.consume_rest(first, end))) == sorted(expected)
    assert cursor.count == len(consumed | expected)
    assert members_of(Intervals(cursor.unconsumed(0, 60))) == sorted(set(range(60)) - consumed - expected)
    assert not cursor.consumed or cursor.consumed.lowest > cursor.frontier


@given(MEMBERS, st.integers(0, 41), st.integers(0, 41))
def test_unconsumed_runs_one_by_one(members: set[int], first: int, end: int) -> None:
    """``unconsumed_from`` yields the runs that ``unconsumed`` returns."""
    cursor = Cursor("", 3, ((member + 4, 1) for member in sorted(members)))
    assert list(cursor.unconsumed_from(first, end)) == cursor.unconsumed(first, end)


@given(MEMBERS, st.integers(0, 41), st.integers(0, 41))
def test_runs_between(members: set[int], first: int, end: int) -> None:
    """``between`` returns exactly the runs that have a member in the range, whole and in order."""
    intervals = make(members)
    expected = [run for run in intervals if set(range(run[0], sum(run))) & set(range(first, end))]
    assert intervals.between(first, end) == expected


class Places(list[int]):
    """The ends of the runs of a set, with a count of those that change their place in memory."""

    moved = 0

    def insert(self, at: SupportsIndex, value: int) -> None:
        """Insert a value, and count those behind it."""
        self.moved += len(self) - at.__index__()
        super().insert(at, value)

    def __delitem__(self, at: SupportsIndex | slice) -> None:
        """Delete values, and count those behind them."""
        before = len(self)
        super().__delitem__(at)
        if len(self) < before:
            self.moved += len(self) - (at.indices(before)[0] if isinstance(at, slice) else at.__index__())

    def __imul__(self, times: SupportsIndex) -> Places:
        """Repeat all values, and count the copies."""
        self.moved += len(self)
        return super().__imul__(times)


def test_the_lowest_runs_come_and_go_without_moves_of_the_others() -> None:
    """Each run is moved in memory a constant number of times when all are taken, lowest first, and all come back."""
    gaps = 1000
    intervals = Intervals((2 * number, 1) for number in range(gaps))
    intervals._ends = places = Places(intervals._ends)
    for some in (gaps // 2, gaps):
        taken: list[tuple[int, int]] = []
        for _ in range(some):
            intervals.move_lowest(1, taken)
        for first, count in reversed(taken):
            intervals.add(first, count)
        assert intervals.runs() == [(2 * number, 1) for number in range(gaps)]
    for _ in range(gaps):
        intervals.pop_lowest()
    assert not places
    assert 0 < places.moved < 6 * gaps


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), max_size=60))
def test_any_order_of_changes(changes: list[tuple[int, int]]) -> None:
    """After each change, at either end or between, the set has exactly the members that it should have."""
    intervals, members = Intervals(), set[int]()
    for number, kind in changes:
        if kind == 0 and members:
            members -= set(range(intervals.lowest, intervals.pop_lowest()))
        elif kind == 1 and members:
            moved: list[tuple[int, int]] = []
            intervals.move_lowest(2, moved)
            members -= set(members_of(Intervals(moved)))
        elif kind == 2 and number in members:
            intervals.remove(number, 1)
            members.remove(number)
        elif kind > 2 and number not in members:
            intervals.add(number, 1)
            members.add(number)
        check(intervals, members)
        assert not members or intervals.lowest == min(members)
        assert intervals.overlap(number, 41) == len([member for member in members if member >= number])
        assert [run[0] for run in intervals.between(0, number)] == [low for low, _ in intervals if low < number]


@pytest.mark.parametrize(
    ("runs", "one"),
    [
        ([(4, 2)], (4, 2)),
        ([(6, 1), (4, 2), (7, 3)], (4, 6)),
        ([(4, 2), (7, 1)], None),
        ([(4, 2), (5, 1)], None),
        ([(4, 2), (5, 2), (8, 1)], None),  # an overlap and a gap
    ],
)
def test_runs_join_to_one(runs: list[Run], one: Run | None) -> None:
    """Runs in any order join to one if each begins where another one ends, and no two overlap."""
    assert joined(runs) == one
