"""One connection of a worker, as the owner sees it."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final

from ..engine.reader import Reader
from ..session import Session
from .protocol import FROM_WORKER, Flush, Incoming, Message, Take, encode

HOLD_SECONDS_MAX: Final = 10**9
"""Highest ``hold_seconds``; higher ones mean this one. A whole number of any size can come, and not all are floats."""
_TEXT_CHARACTERS_MAX = 64
"""Most characters of a name that a worker gives itself."""


class Client:
    """One connection, as the owner sees it."""

    __slots__ = (
        "ahead",
        "answered",
        "back",
        "browsing",
        "deadline",
        "expires",
        "flush",
        "has_ended",
        "hold_seconds",
        "id",
        "incoming",
        "is_away",
        "is_busy",
        "is_lost",
        "kept",
        "marker",
        "name",
        "number",
        "only_calls",
        "out",
        "peer",
        "process",
        "process_name",
        "reader",
        "session",
        "subscription",
        "taken",
        "thread",
        "waits",
    )

    def __init__(self, answered: list[Client]) -> None:
        self.answered = answered
        self.peer: object = None
        """The other end, for the code that moves the bytes."""
        self.incoming = Incoming(FROM_WORKER)
        self.out: list[bytes] = []
        """Messages to send."""
        self.session: Session[bytes] | None = None
        self.reader: Reader | None = None
        self.id = b""
        self.name = self.thread = self.process_name = self.subscription = ""
        self.process = 0
        self.only_calls = False
        """True if the connection only makes calls of the queue, for no session."""
        self.number = 0
        """Number of the last flush."""
        self.taken = 0
        """Items of the message under way that the session has buffered."""
        self.marker: tuple[str, int] | None = None
        self.back = self.ahead = 0
        """Items that the next flush releases first, and most items that it takes behind its commit."""
        self.waits: tuple[int, Take] | None = None
        """Call and message of a ``take`` that waits."""
        self.flush: tuple[int, Flush] | None = None
        """Call and message of a flush that is not committed yet."""
        self.deadline = inf
        """Time at which the wait of ``flush`` for room is over."""
        self.has_ended = False
        """True if the worker will not ask for the outcome of its flushes any more."""
        self.is_busy = False
        """True while a call is made apart."""
        self.hold_seconds: float | None = None
        self.expires = inf
        """Time at which held items go back."""
        self.is_lost = False
        """True if held items went back, until the session is rolled back."""
        self.is_away = False
        """True for a session of an earlier owner that holds items and has not connected to this one."""
        self.kept = 0
        """Number of items that the session held when this owner took over."""
        self.browsing: Iterator[tuple[int, list[bytes]]] | None = None

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
