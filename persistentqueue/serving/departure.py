"""The end of servers that leave together: each stays until no worker has work at any of them.

A transaction of a worker over several queues has work at one server after the other: it holds an item of one queue, and
later puts its result into another one. A server that ended between these two steps would fail the whole transaction.

A member says that it is *idle* when no worker has work there. When all members are idle at the same time, the end is
*decided*, and stays so. A member that is about to take messages is not idle any more, unless the end is decided: then
it takes none. So no member takes work after the decision, and none decides while another one has work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..interrupts.locks import Lock


class Departure:
    """The members, and whether their end is decided. For any thread."""

    def __init__(self, members: Mapping[object, Callable[[], object]]) -> None:
        """Take the members, each with a call that wakes it when the end is decided, perhaps in another thread."""
        self._lock = Lock()
        self._members = dict(members)
        self._idle: set[object] = set()
        self._is_decided = False

    def may_end(self, member: object, is_idle: bool) -> bool:
        """Note whether the member is idle; return whether the end is decided."""
        with self._lock:
            if is_idle:
                self._idle.add(member)
            else:
                self._idle.discard(member)
            wakes = self._decide()
        for wake in wakes:
            wake()
        return self._is_decided

    def may_take(self, member: object) -> bool:
        """Note that the member is about to take messages; return False if it must not, since the end is decided."""
        with self._lock:
            if not self._is_decided:
                self._idle.discard(member)
            return not self._is_decided

    def drop(self, member: object) -> None:
        """Note that the member has ended, for whatever reason: the others do not wait for it."""
        with self._lock:
            self._members.pop(member, None)
            wakes = self._decide()
        for wake in wakes:
            wake()

    def _decide(self) -> list[Callable[[], object]]:
        """Decide the end if all members are idle; return the calls that wake them if that is new."""
        if self._is_decided or not self._idle.issuperset(self._members):
            return []
        self._is_decided = True
        return list(self._members.values())
