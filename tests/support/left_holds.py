"""The way of held items from one owner to the next, in memory: a stand-in for the file ``.holds`` and its locks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from persistentqueue.serving.handover import KeptHold, decode_holds, encode_holds


class LeftHolds:
    """The file ``.holds`` and its locks, as ``FileHandover`` and ``ByteLock`` have them."""

    def __init__(self) -> None:
        self.data = b""
        self.locked: set[bytes] = set()
        """Connections of the sessions that have a lock."""

    def present(self, connections: Iterable[bytes]) -> set[bytes]:
        """Return those of these connections whose sessions have a lock."""
        return self.locked.intersection(connections)

    def leave(self, holds: Sequence[KeptHold]) -> bool:
        """Keep the holds for the next owner."""
        self.data = encode_holds(holds)
        return True

    def take(self) -> list[KeptHold]:
        """Return what the last owner has left, once."""
        data, self.data = self.data, b""
        return decode_holds(data)


class Presence:
    """The lock of one session."""

    def __init__(self, left: LeftHolds, connection: bytes) -> None:
        self._left, self._connection = left, connection
        self._is_closed = False

    @property
    def is_held(self) -> bool:
        """Whether the session has the lock."""
        return self._connection in self._left.locked

    def hold(self) -> None:
        """Take the lock."""
        if not self._is_closed:
            self._left.locked.add(self._connection)

    def release(self) -> None:
        """Free the lock."""
        self._left.locked.discard(self._connection)

    def close(self) -> None:
        """Free the lock for good, as the kernel does behind the process."""
        self._is_closed = True
        self.release()
