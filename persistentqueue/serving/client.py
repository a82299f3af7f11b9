"""One connection of a worker, as the owner sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

from ..engine.reader import Reader
from ..session import Session
from .protocol import FROM_WORKER, Flush, Incoming, Message, Take, encode

HOLD_SECONDS_MAX: Final = 10**9
"""Highest ``hold_seconds``; higher ones mean this one. A whole number of any size can come, and not all are floats."""
_TEXT_CHARACTERS_MAX = 64
"""Most characters of a name that a worker gives itself."""


@dataclass(slots=True, eq=False, repr=False)
class Client:
    """One connection, as the owner sees it."""

    answered: list[Client]
    """Connections that have messages to send: those of the service."""
    peer: object = None
    """The other end, for the code that moves the bytes."""
    incoming: Incoming = field(default_factory=partial(Incoming, FROM_WORKER))
    out: list[bytes] = field(default_factory=list)
    """Messages to send."""
    session: Session[bytes] | None = None
    reader: Reader | None = None
    id: bytes = b""
    name: str = ""
    thread: str = ""
    process: int = 0
    process_name: str = ""
    subscription: str = ""
    only_calls: bool = False
    """True if the connection only makes calls of the queue, for no session."""
    number: int = 0
    """Number of the last flush."""
    taken: int = 0
    """Items of the message under way that the session has buffered."""
    marker: tuple[str, int] | None = None
    back: int = 0
    """Items that the next flush releases first."""
    ahead: int = 0
    """Most items that the next flush takes behind its commit."""
    waits: tuple[int, Take] | None = None
    """Call and message of a ``take`` that waits."""
    flush: tuple[int, Flush] | None = None
    """Call and message of a flush that is not committed yet."""
    deadline: float = inf
    """Time at which the wait of ``flush`` for room is over."""
    has_ended: bool = False
    """True if the worker will not ask for the outcome of its flushes any more."""
    is_busy: bool = False
    """True while a call is made apart."""
    hold_seconds: float | None = None
    expires: float = inf
    """Time at which held items go back."""
    is_lost: bool = False
    """True if held items went back, until the session is rolled back."""
    is_away: bool = False
    """True for a session of an earlier owner that holds items and has not connected to this one."""
    kept: int = 0
    """Number of items that the session held when this owner took over."""
    browsing: Iterator[tuple[int, list[bytes]]] | None = None

    @property
    def session_name(self) -> str:
        """Name of the session in ``explain``, which tells whose session keeps a segment."""
        thread = f", thread {self.thread}" if self.thread not in {"", self.name} else ""
        return f"{self.name} (process {self.process}{thread})"

    def answer(self, call: int, message: Message) -> None:
        """Send a message as the answer to this call."""
        if not self.out:
            self.answered.append(self)
        self.out.append(encode(message, call))


def text(value: object) -> str:
    """Return the beginning of a text that a worker has sent."""
    return value[:_TEXT_CHARACTERS_MAX] if isinstance(value, str) else ""
