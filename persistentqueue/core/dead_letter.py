"""``DeadLetter``: an item that was given up, in its envelope. Pure bytes.

An envelope is one line of JSON in ASCII, then the item's bytes as they were::

    {"queue": "orders", "subscription": "", "sequence": 7, "attempts": 5, "reason": "ValueError: bad row", "time": "…"}

Exactly these keys; the time is ISO 8601 with an offset, and the line has no more than ``LINE_BYTES_MAX`` bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..errors import DeadLetterError

LINE_BYTES_MAX = 16 * 1024
_REASON_CHARACTERS_MAX = 1000
_SUBSCRIPTION_CHARACTERS_MAX = 100
_CUT = "…"


@dataclass(frozen=True)
class DeadLetter:
    """An item that was given up, and why::

    letters = [DeadLetter.decode(each) for each in queue.dead_letters.browse()]
    """

    item: bytes
    """As it was enqueued."""
    queue: str
    """The name of the queue's directory that it was in."""
    subscription: str
    """The name of the subscription that gave it up; empty of the plain queue. A long one is cut."""
    sequence: int
    """Its place in the queue: how many items were enqueued there before it, since the queue was made."""
    attempts: int
    """How often it was delivered."""
    reason: str
    """What ``reject`` was given, or the exception, or that nobody said why; a long one is cut."""
    time: datetime
    """When it was given up, in UTC."""

    def encode(self) -> bytes:
        """The envelope."""
        fields = {
            "queue": self.queue,
            "subscription": _cut(self.subscription, _SUBSCRIPTION_CHARACTERS_MAX),
            "sequence": self.sequence,
            "attempts": self.attempts,
            "reason": _cut(self.reason, _REASON_CHARACTERS_MAX),
            "time": self.time.isoformat(),
        }
        return json.dumps(fields).encode("ascii") + b"\n" + self.item

    @classmethod
    def decode(cls, envelope: bytes) -> DeadLetter:
        """What is in the envelope. Raises ``DeadLetterError`` for bytes that are none."""
        end = envelope.find(b"\n", 0, LINE_BYTES_MAX)
        if end < 0:
            raise DeadLetterError(f"a line of up to {LINE_BYTES_MAX} bytes", f"{envelope[:40]!r}")
        line = envelope[:end]
        try:
            fields = json.loads(line)
            return cls(envelope[end + 1 :], *_values(fields))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DeadLetterError(
                "a line of JSON with what is known of the item", f"{line[:100]!r} ({error})"
            ) from None


class _DeadLetters:
    """The codec of a queue of dead letters."""

    def encode(self, item: DeadLetter) -> bytes:
        """The envelope."""
        return item.encode()

    def decode(self, data: bytes) -> DeadLetter:
        """What is in it."""
        return DeadLetter.decode(data)


DEAD_LETTERS = _DeadLetters()
"""The codec of a queue of dead letters, for who opens it alone: ``codec=DEAD_LETTERS``."""


def _values(fields: dict[str, Any]) -> tuple[str, str, int, int, str, datetime]:
    """The fields, if they are what they must be. Raises ``ValueError``, ``TypeError``, ``KeyError``."""
    queue, subscription, reason = (_need(fields[key], str) for key in ("queue", "subscription", "reason"))
    sequence, attempts = (_need(fields[key], int) for key in ("sequence", "attempts"))
    time = datetime.fromisoformat(_need(fields["time"], str))
    if len(fields) != 6 or sequence < 0 or attempts < 0 or time.tzinfo is None:
        raise ValueError("a field more, a number below 0, or a time of no place")
    return queue, subscription, sequence, attempts, reason, time


def _need(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + _CUT
