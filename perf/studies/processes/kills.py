"""The time from ``kill -9`` until another process has an item.

A worker: it puts an item, holds it and is killed, while another worker waits for an item. The time ends when the other
worker has the killed one's item. Beside it: beanstalkd gives the items of a closed connection back. In SQLite the
killed process has a transaction open, and the other process sleeps in the busy time-out. Redis and huey lose an item
that a killed worker held, and litequeue leaves it locked for ever.

The owner: many items are queued, and its log has many flushes of one item. It is killed, and all workers ask for an
item. The time ends when the first of them has one, which the next owner has served.

All times begin just before the signal is sent. Nothing sleeps: the other processes wait for the item itself.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from persistentqueue import View

from ...contenders.shared import BEANSTALKD, OURS, OURS_SERVED, SQLITE, Hand, Shared
from ...harness import Row, met
from ...workloads import ITEMS
from ..opening import fill
from .team import Team, team

WORKER_MS_BAR = 10.0
OWNER_MS_BAR = 1_000.0
OWNER_HALF_MS_BAR = 300.0
PEERS = (SQLITE, BEANSTALKD)
WORKERS = 3
_LOG_FLUSHES = 500


def hold(item: bytes, hand: Hand) -> None:
    """Put an item and hold it."""
    hand.put([item])
    assert hand.hold() == item


def wait(hand: Hand) -> tuple[bytes, float]:
    """Wait for an item and consume it. Return it, and the time at which the process had it."""
    item = hand.hold()
    woken = time.monotonic()
    hand.consume()
    return item, woken


def flush_often(flushes: int, hand: Hand) -> None:
    """Put and take one item this number of times. The number of items stays."""
    for _ in range(flushes):
        hand.put(ITEMS[:1])
        assert hand.take(1)


def workers_killed(contender: Shared, directory: Path, count: int) -> list[float]:
    """Kill this number of workers that hold an item. Return the seconds until another worker has it, sorted."""
    found = []
    with team(contender, directory, 2) as workers:  # the first one may be the owner, the second one waits
        waiting = workers.members[1]
        for number in range(count):
            (killed,) = workers.hire(1)
            item = b"%d" % number
            killed.call(partial(hold, item))
            waiting.ask(wait)
            begun = killed.kill()
            got, woken = waiting.answer()
            assert got == item, f"{contender.name} gave {got!r} instead of {item!r}"
            found.append(woken - begun)
            workers.members.remove(killed)
            killed.dismiss()
    return sorted(found)


def owner_killed(contender: Shared, directory: Path, workers: int = WORKERS) -> tuple[float, float]:
    """Kill the owner of the queue in this directory, which has items.

    Return the seconds until the first of the workers has an item, and until each has one.
    """
    with team(contender, directory, workers + (not contender.is_apart)) as crew:
        others = crew.members if contender.is_apart else crew.members[1:]
        others[-1].call(partial(flush_often, _LOG_FLUSHES))
        begun = _kill_owner(crew, directory)
        for each in others:
            each.ask(wait)
        woken = [at - begun for _, at in (each.answer() for each in others)]
    return min(woken), max(woken)


def _kill_owner(crew: Team, directory: Path) -> float:
    """Kill the owner, and return the time just before the signal."""
    server = crew.place.server
    owner = crew.members[0].process.pid if server is None else server
    told = View(directory).look().owner
    assert told is None or told.pid in (None, owner), f"{told} owns the queue instead of {owner}"
    if server is None:
        return crew.members[0].kill()
    begun = time.monotonic()
    os.kill(server, signal.SIGKILL)
    return begun


def owners_killed(contender: Shared, directory: Path, items: int, rounds: int) -> list[tuple[float, float]]:
    """Kill the owner of a queue of so many items in each round, and return the times of all rounds."""
    fill(directory, items)
    return [owner_killed(contender, directory) for _ in range(rounds)]


def rows(
    directory: Path, count: int, items: int, rounds: int, ours: Shared = OURS, served: Shared = OURS_SERVED
) -> Iterator[Row]:
    """Yield the lines of the table: a killed worker and a killed owner, for both forms of the queue."""
    beside = []
    for peer in PEERS:
        if peer.reason():
            beside.append(f"{peer.name}: {peer.reason()}")
        else:
            killed = workers_killed(peer, directory / peer.name.replace(" ", "-"), count)
            beside.append(f"{peer.name} {_text(killed)}")
    for form in (ours, served):
        what = "the owner only serves" if form.is_apart else "the owner works too"
        place = directory / form.name.replace(", ", "-")
        row = Row(
            f"From the death of a worker until another one has its item, {what}, {count:,} times",
            f"not measured: {form.reason()}",
            " · ".join(beside),
            "",
            f"at most {WORKER_MS_BAR:g} ms",
            "",
        )
        if not form.reason():
            killed = workers_killed(form, place / "worker", count)
            row = row._replace(ours=_text(killed), met=met(1e3 * killed[-1] <= WORKER_MS_BAR))
        yield row
        row = Row(
            f"From the death of the owner until the next one serves an item, {what}, {items:,} queued, {rounds} times",
            f"not measured: {form.reason()}",
            "",
            "",
            f"at most {OWNER_MS_BAR:g} ms, half {OWNER_HALF_MS_BAR:g} ms",
            "",
        )
        if not form.reason():
            found = owners_killed(form, place / "owner", items, rounds)
            first = sorted(one for one, _ in found)
            text = f"{_text(first)}; each worker has one after {1e3 * median(every for _, every in found):.1f} ms"
            is_met = 1e3 * first[-1] <= OWNER_MS_BAR and 1e3 * median(first) <= OWNER_HALF_MS_BAR
            row = row._replace(ours=text, met=met(is_met))
        yield row


def _text(seconds: Sequence[float]) -> str:
    return f"half {1e3 * median(seconds):.1f} ms, longest {1e3 * seconds[-1]:.1f} ms"
