"""The way of held items from one owner to the next, in memory: a stand-in for the file ``.holds`` and its locks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from persistentqueue.serving.handover import Handover, KeptHold, decode_holds, encode_holds, place_of
from persistentqueue.system.byte_locks import LockFile
from persistentqueue.system.disk import DISK


class Locks(LockFile):
    """The locks of all sessions. They end when a test says so."""

    def __init__(self) -> None:
        super().__init__("", "")
        self.locked: set[int] = set()

    def lock(self, offset: int) -> bool:
        """Lock the byte."""
        self.locked.add(offset)
        return True

    def unlock(self, offset: int) -> None:
        """Free the byte."""
        self.locked.discard(offset)


class NoLocks(LockFile):
    """A system without such locks: no session is ever seen."""

    def __init__(self) -> None:
        super().__init__("", "")

    def lock(self, _offset: int) -> bool:
        """Lock nothing."""
        return False


class LeftHolds(Handover):
    """The holds that one owner leaves to the next."""

    def __init__(self) -> None:
        super().__init__(DISK, "")
        self.data = b""
        self.locks = Locks()

    def present(self, connections: Iterable[bytes]) -> set[bytes]:
        """Return those of these connections whose sessions have a lock."""
        return {each for each in connections if place_of(each) in self.locks.locked}

    def leave(self, holds: Sequence[KeptHold]) -> set[bytes]:
        """Keep the holds for the next owner."""
        self.data = encode_holds(holds)
        return {hold.connection for hold in holds}

    def take(self) -> list[KeptHold]:
        """Return what the last owner has left, once."""
        data, self.data = self.data, b""
        return decode_holds(data)
