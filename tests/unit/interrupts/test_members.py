"""The weak sets of ``interrupts``: their members, and changes by one thread while another thread looks."""

from __future__ import annotations

from persistentqueue.interrupts.members import Members
from tests.support.threads import at_once


class Thing:
    """An object that can be dropped."""


def test_a_member_leaves_when_it_is_dropped() -> None:
    """The set has the objects that were added, until they are discarded or no other code keeps them."""
    members: Members[Thing] = Members()
    kept, dropped, discarded = Thing(), Thing(), Thing()
    for each in (kept, dropped, discarded, kept):
        members.add(each)
    assert len(members) == 3
    del dropped, each
    members.discard(discarded)
    members.discard(discarded)
    assert list(members) == [kept]
    members.clear()
    assert not members
    assert not list(members)


def test_a_member_that_goes_meanwhile_is_left_out() -> None:
    """A look at the set is one of its beginning: later members are not in it, and those that went are left out."""
    members: Members[Thing] = Members()
    kept, others = Thing(), [Thing(), Thing()]
    for each in (kept, *others):
        members.add(each)
    del each
    look = iter(members)
    first = next(look)
    others.clear()
    late = Thing()
    members.add(late)
    assert {first, *look} <= {first, kept}
    assert late in members


def test_threads_add_and_drop_while_others_look() -> None:
    """No change of another thread ends a look at the set, and a member that is kept is in each look."""
    members: Members[Thing] = Members()
    kept = [Thing() for _ in range(50)]
    for each in kept:
        members.add(each)

    def change() -> int:
        for _ in range(3000):
            thing = Thing()
            members.add(thing)
            del thing
        return 0

    def look() -> int:
        return min(len({*members} & {*kept}) for _ in range(300))

    assert at_once(change, look, change, look) == [0, 50, 0, 50]
    assert set(members) == {*kept}
