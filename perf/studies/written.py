"""Bytes that reach the device for each byte that is enqueued, and what it costs to write fewer.

A group of up to ``inline_bytes`` goes into the log, with one sync, and then into its segment. A larger one goes into
its segment alone, with one sync more. Two queues flush 1,000 items of 100 B, a hundred flushes at a time, in turn:
one with the default, and one that commits such a group with two syncs. First they only put items in, then each flush
in is followed by one out. The bytes are those that the system counts for this process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from persistentqueue import PersistentQueue, Session

from ..harness import Row, met, spread

INLINE_BYTES = 64 * 1024
"""Below the length of a flush of this study."""
BAR = 1.3
_ITEMS = [b"x" * 100] * 1_000
_FLUSH_BYTES = sum(map(len, _ITEMS))
_FLUSHES = 100
_COUNTERS = Path("/proc/self/io")


def written_bytes() -> int:
    """Return the bytes that this process has sent, or is to send, to a device."""
    return int(re.findall(r"^write_bytes: (\d+)", _COUNTERS.read_text(), re.MULTILINE)[0])


class Side:
    """A queue, and what its flushes have cost so far."""

    def __init__(self, queue: PersistentQueue) -> None:
        self._session: Session = queue.session()
        self._rounds = 0
        self._written_bytes = 0
        self.seconds: list[float] = []
        """The time of each round."""

    def run(self, *, in_turn: bool) -> None:
        """Make the flushes of one round."""
        before_bytes, start = written_bytes(), time.perf_counter()
        for _ in range(_FLUSHES):
            self._session.enqueue_many(_ITEMS)
            self._session.flush()
            if in_turn:
                self._session.dequeue_many(len(_ITEMS))
                self._session.flush()
        self.seconds.append(time.perf_counter() - start)
        self._written_bytes += written_bytes() - before_bytes
        self._rounds += 1

    def per_byte(self) -> float:
        """Return the bytes written for each byte that was enqueued."""
        return self._written_bytes / (self._rounds * _FLUSHES * _FLUSH_BYTES)

    def end(self) -> None:
        """Close the session."""
        self._session.close()


def measure(directory: Path, rounds: int, *, in_turn: bool) -> tuple[Side, Side]:
    """Return the sides with the default and with ``INLINE_BYTES``, after this number of rounds for each."""
    with (
        PersistentQueue(directory / "default") as default,
        PersistentQueue(directory / "two-syncs", inline_bytes=INLINE_BYTES) as other,
    ):
        sides = Side(default), Side(other)
        for number in range(rounds):
            for side in sides[:: 1 if number % 2 else -1]:
                side.run(in_turn=in_turn)
        for side in sides:
            side.end()
    return sides


def rows(directory: Path, rounds: int) -> Iterator[Row]:
    """Yield the lines of the table. The column "ratio" has the rate with ``INLINE_BYTES``, beside that by default."""
    for in_turn in (False, True):
        way = "in and out in turn" if in_turn else "in"
        sides = measure(directory / way.replace(" ", "-"), rounds, in_turn=in_turn)
        rates = [one / other for one, other in zip(sides[0].seconds, sides[1].seconds, strict=True)]
        ratios = "", f"{spread(rates)} × the rate of the default"
        for name, side, ratio in zip(("by default", "inline_bytes of 64 KiB"), sides, ratios, strict=True):
            yield Row(
                f"Bytes written for each byte enqueued: 1,000 items of 100 B per flush, {way}, {name}",
                f"{side.per_byte():.2f}",
                "",
                ratio,
                f"at most {BAR:g}",
                met(side.per_byte() <= BAR),
            )
