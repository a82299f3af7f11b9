"""The time from a commit in one process to the wake-up of a consumer that waits in another process.

Three processes share the queue: the first one owns it. Any two of them put and consume. The producer writes the time
into the item, puts it, and pauses until the consumer waits again. The consumer notes the time at which it has the item.

The commit is the fourth step of the owner's flush (its failpoint): the item is durable and about to become visible. Of
other contenders only the beginning of the flush is known, so the time from there is given for all. It includes the
durable write. SQLite has no wake-up: its consumer looks each millisecond. huey and litequeue are alike and left out.
"""

from __future__ import annotations

import struct
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from persistentqueue.system.disk import DISK

from ...contenders.shared import BEANSTALKD, OURS, REDIS, SQLITE, Hand, Shared, connected
from ...disks import using_disk
from ...harness import Row, met, percentile
from .team import team

HALF_MS_BAR = 0.15
MOST_MS_BAR = 1.0
ITEM_BYTES = 100
PEERS = (SQLITE, REDIS, BEANSTALKD)
PAIRS = {
    "from a worker to another one": (1, 2),
    "from the owner to a worker": (0, 1),
    "from a worker to the owner": (1, 0),
}
"""The producer and the consumer, by their place in the team. The owner has place 0."""
_PAUSE_SECONDS = 0.002
_TIME = struct.Struct("<d")
_commits: list[float] = []
"""Times of the commits in this process, if it owns the queue."""


@contextmanager
def _noting_commits(address: str) -> Iterator[Hand]:
    """Connect, and note the times of the commits that this process makes as the owner."""

    def failpoint(at: str) -> None:
        if at == "commit.4 apply":
            _commits.append(time.monotonic())

    opened: AbstractContextManager[Hand] = connected(address)
    with using_disk(replace(DISK, failpoint=failpoint)), opened as hand:
        yield hand


def put(count: int, hand: Hand) -> None:
    """Put this number of items, each with the time at which its flush began."""
    for _ in range(count):
        time.sleep(_PAUSE_SECONDS)  # until the consumer waits again
        hand.put([_TIME.pack(time.monotonic()).ljust(ITEM_BYTES, b".")])


def consume(count: int, hand: Hand) -> list[tuple[float, float]]:
    """Consume this number of items. Return for each one the time it carries, and the time of the wake-up."""
    found = []
    for _ in range(count):
        item = hand.hold()
        woken = time.monotonic()
        hand.consume()
        found.append((_TIME.unpack_from(item)[0], woken))
    return found


def commits(_hand: Hand) -> list[float]:
    """Return the times of the commits that this process has noted."""
    return list(_commits)


class WakeUps(NamedTuple):
    """Sorted times of all wake-ups, in seconds: from the beginning of the flush, and from the commit.

    The second list is empty if no process noted the commits.
    """

    from_flush: list[float]
    from_commit: list[float]


def measure(contender: Shared, directory: Path, pair: tuple[int, int], count: int) -> WakeUps:
    """Put and consume this number of items in two processes, while a consumer waits for each."""
    if contender is OURS:
        contender = contender._replace(join=_noting_commits)
    with team(contender, directory, 3) as workers:
        producer, consumer = (workers.members[at] for at in pair)
        consumer.ask(partial(consume, count))
        producer.call(partial(put, count))
        found: Sequence[tuple[float, float]] = consumer.answer()
        noted = workers.members[0].call(commits)
    from_commit = []
    for begun, woken in found:
        at = bisect_left(noted, begun)  # the first commit after the beginning of the flush
        if at < len(noted):
            from_commit.append(woken - noted[at])
    return WakeUps(sorted(woken - begun for begun, woken in found), sorted(from_commit))


def rows(directory: Path, count: int, ours: Shared = OURS) -> Iterator[Row]:
    """Yield the lines of the table: one for each pair of processes. The first one has the other contenders beside."""
    beside = []
    for peer in PEERS:
        if peer.reason():
            beside.append(f"{peer.name}: {peer.reason()}")
            continue
        found = measure(peer, directory / peer.name.replace(" ", "-"), (1, 2), count)
        beside.append(f"{peer.name} {_text(found.from_flush)} from the beginning of the flush")
    for what, pair in PAIRS.items():
        row = Row(
            f"From commit to wake-up {what}, {count:,} times",
            f"not measured: {ours.reason()}",
            " · ".join(beside),
            "",
            f"half {HALF_MS_BAR:g} ms, 99 % {MOST_MS_BAR:g} ms",
            "",
        )
        if not ours.reason():
            found = measure(ours, directory / what.replace(" ", "-"), pair, count)
            text = f"{_text(found.from_flush)} from the beginning of the flush"
            if found.from_commit:
                half, most = (1e3 * percentile(found.from_commit, part) for part in (0.5, 0.99))
                row = row._replace(met=met(half <= HALF_MS_BAR and most <= MOST_MS_BAR))
                text = f"{_text(found.from_commit)}; {text}"
            row = row._replace(ours=text)
        beside = []
        yield row


def _text(seconds: Sequence[float]) -> str:
    half, most = (1e3 * percentile(seconds, part) for part in (0.5, 0.99))
    return f"half {half:.3f} ms, 99 % {most:.3f} ms"
