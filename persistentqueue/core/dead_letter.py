"""``DeadLetter``: an item that was given up, in its envelope. Pure bytes.

An envelope is one line of JSON in ASCII, then the unchanged bytes of the item::

    {"queue": "orders", "subscription": "", "sequence": 7, "attempts": 5, "reason": "ValueError: bad row", "time": "…"}

The line has exactly these keys, and at most ``LINE_BYTES_MAX`` bytes. The time is ISO 8601 with a UTC offset.
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
    """An item that was given up, and the reason.

    A queue with ``dead_letter=`` makes these envelopes; a user only decodes them. Objects are immutable, and any thread
    may use them.

    Example::

        letters = [DeadLetter.decode(each) for each in queue.dead_letters.browse()]
    """

    item: bytes
    """The bytes of the item, as it was enqueued."""
    queue: str
    """The name of the directory of the queue that the item was in."""
    subscription: str
    """The name of the subscription that gave the item up; empty for the plain queue. A name of more than 100 characters
    is cut.
    """
    sequence: int
    """The sequence of the item in its queue: how many items were committed there before it."""
    attempts: int
    """The number of delivery attempts."""
    reason: str
    """The reason given to ``reject``, or the exception, or a note that no session has flushed the item.

    A text of more than 1,000 characters is cut.
    """
    time: datetime
    """The time when the item was given up, in UTC."""

    def encode(self) -> bytes:
        """Return the envelope.

        Returns:
            One line of JSON in ASCII, then the bytes of the item.
        """
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
        """Return the dead letter that this envelope holds.

        Args:
            envelope: The bytes of an item of a dead-letter queue.

        Returns:
            The dead letter.

        Raises:
            TypeError: ``envelope`` is not of the type ``bytes``.
            DeadLetterError: The bytes are not an envelope.
        """
        if not isinstance(envelope, bytes):
            raise TypeError(f"a dead letter must be decoded from bytes, not {type(envelope).__name__}")
        end = envelope.find(b"\n", 0, LINE_BYTES_MAX)
        if end < 0:
            raise DeadLetterError(f"a line of up to {LINE_BYTES_MAX} bytes", f"{envelope[:40]!r}")
        line = envelope[:end]
        try:
            fields = json.loads(line)
            return cls(envelope[end + 1 :], *_values(fields))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DeadLetterError(
                "a line of JSON with the six fields of a dead letter", f"{line[:100]!r} ({error})"
            ) from None


def _values(fields: dict[str, Any]) -> tuple[str, str, int, int, str, datetime]:
    """Return the checked values of the fields, in order. Raises ``ValueError``, ``TypeError``, ``KeyError``."""
    queue, subscription, reason = (_need(fields[key], str) for key in ("queue", "subscription", "reason"))
    sequence, attempts = (_need(fields[key], int) for key in ("sequence", "attempts"))
    time = datetime.fromisoformat(_need(fields["time"], str))
    if len(fields) != 6 or sequence < 0 or attempts < 0 or time.tzinfo is None:
        raise ValueError("unexpected field, negative number, or time without a UTC offset")
    return queue, subscription, sequence, attempts, reason, time


def _need(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + _CUT
