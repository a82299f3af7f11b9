"""Servers that leave together, without servers: each member tells whether it is idle, and asks whether it may go on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from persistentqueue.serving.departure import Departure

STEPS = st.lists(st.tuples(st.sampled_from(["idle", "at work", "take", "ended"]), st.sampled_from("abc")), max_size=30)


@given(STEPS)
def test_the_end_is_decided_when_all_are_idle_at_once(steps: list[tuple[str, str]]) -> None:
    """The end is decided at the first moment at which each member that has not ended is idle. All of these are woken
    then, once. A member takes messages before the decision only, and is not idle from then on."""
    woken: list[str] = []
    departure = Departure({name: lambda name=name: woken.append(name) for name in "abc"})  # type: ignore[misc]
    left, idle, decided_for = set("abc"), set[str](), None
    for step, name in steps:
        if name not in left:
            continue
        is_decided = decided_for is not None
        if step == "ended":
            left.discard(name)
        elif step == "take":
            assert departure.may_take(name) is not is_decided
            idle.discard(name)
        if step in {"idle", "at work"}:
            idle = idle | {name} if step == "idle" else idle - {name}
        if decided_for is None and left <= idle:
            decided_for = sorted(left)
        if step == "ended":
            departure.drop(name)
        elif step != "take":
            assert departure.may_end(name, step == "idle") is (decided_for is not None)
        assert sorted(woken) == (decided_for or [])


def test_a_member_alone_ends_when_it_is_idle() -> None:
    """A server that leaves alone waits for no other one."""
    departure = Departure({1: lambda: None})
    assert not departure.may_end(1, False)
    assert departure.may_take(1)
    assert departure.may_end(1, True)
    assert not departure.may_take(1)


def test_a_member_that_takes_messages_is_not_idle() -> None:
    """The others stay while a server, which was idle, takes messages: they may bring it work."""
    departure = Departure({1: lambda: None, 2: lambda: None})
    assert not departure.may_end(1, True)
    assert departure.may_take(1)
    assert not departure.may_end(2, True)
    assert departure.may_end(1, True)
    assert departure.may_end(2, False)
    assert not departure.may_take(2)
