"""The rates of several processes that share one queue, beside those of other contenders with as many processes.

Each contender is started once, with all its processes. In each round, the contenders take turns: all processes of one
begin at one time and work for a fixed duration. Each process counts the items of its first flush, and of others that
returned in time. The rate of a round is the sum. A first flush that returns late makes the round longer. If the items
run out before the end, the rate is that of the time until the last take.

Items that are left stay queued. A process that finds no item has finished its round.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias

from ...contenders.shared import (
    BEANSTALKD,
    FLOOR,
    HUEY,
    LITEQUEUE,
    LOCAL,
    OURS,
    OURS_AHEAD,
    OURS_SERVED,
    REDIS,
    SQLITE,
    Hand,
    Shared,
)
from ...harness import Row, met, spread
from ...workloads import random_items
from .team import Team, team

PROCESSES = 8
SECONDS = 1.0
_WARM_FLUSHES = 5
_AHEAD_TEXT = ", the owner only serves, workers prefetch"
Forms: TypeAlias = tuple[Shared, Shared, Shared]
"""The forms of the queue: the owner works too, it only serves, and its workers prefetch."""


class Work(NamedTuple):
    """The work of the processes, and the bars: for each way the least ratio to the rate of each named contender.

    The ways are ``in`` and ``out``, one after the other, or ``in and out in turn``. ``processes`` is the number of
    processes of all contenders but ``LOCAL``, which has one.
    """

    what: str
    batch: int
    processes: int
    ours: Sequence[Shared]
    others: Sequence[Shared]
    bars: Mapping[str, Mapping[str, float]]


def works(forms: Forms = (OURS, OURS_SERVED, OURS_AHEAD)) -> list[Work]:
    """Return the works, with these forms of the queue: the owner works too, it only serves, and workers prefetch."""
    _, served, ahead = forms
    return [
        Work(
            f"{PROCESSES} processes, one item of 100 B per flush",
            1,
            PROCESSES,
            forms,
            (LOCAL, SQLITE, LITEQUEUE, HUEY, REDIS, BEANSTALKD, FLOOR),
            {way: {SQLITE.name: 4.0, LOCAL.name: 2.5} for way in ("in", "out")},
        ),
        Work(
            f"{PROCESSES} processes, 100 items of 100 B per flush",
            100,
            PROCESSES,
            forms,
            (SQLITE, REDIS, FLOOR),  # the others have no transaction over many items
            {"in and out in turn": {SQLITE.name: 5.0}},
        ),
        Work(
            "One process connected, 1,000 items of 100 B per flush",
            1_000,
            1,
            (served, ahead),
            (LOCAL, SQLITE, REDIS, FLOOR),
            {way: {LOCAL.name: 0.6} for way in ("in", "out")},
        ),
    ]


class Count(NamedTuple):
    """The items that one process has put or taken in a round, and when its last flush returned."""

    items: int
    last: float
    is_dry: bool = False


class Found(NamedTuple):
    """The rounds of one contender in one way: the items per second of all its processes, and of each of them."""

    rates: list[float]
    each: list[list[float]]

    def text(self) -> str:
        """Return the median rate, and the medians of the slowest and of the quickest process."""
        low, high = (median(pick(rates) for rates in self.each) for pick in (min, max))
        every = f" ({low:,.0f} to {high:,.0f} by each)" if len(self.each[0]) > 1 else ""
        return f"{median(self.rates):,.0f}/s{every}"


def put(items: Sequence[bytes], begin: float, end: float, hand: Hand) -> Count:
    """Put these items in each flush, until the time is over."""
    count, last = 0, begin
    while True:
        hand.put(items)
        now = time.monotonic()
        if count and now > end:
            return Count(count, last)
        count, last = count + len(items), now


def take(batch: int, begin: float, end: float, hand: Hand) -> Count:
    """Take so many items in each flush, until the time is over or there are no more."""
    count, last = 0, begin
    while True:
        taken = hand.take(batch)
        now = time.monotonic()
        if (count and now > end) or not taken:
            return Count(count, last, now <= end)
        count, last = count + len(taken), now


def put_and_take(items: Sequence[bytes], begin: float, end: float, hand: Hand) -> Count:
    """Put these items and take as many, until the time is over."""
    count, last = 0, begin
    while True:
        hand.put(items)
        taken = len(hand.take(len(items)))
        now = time.monotonic()
        if count and now > end:
            return Count(count, last)
        count, last = count + taken, now


def warm(items: Sequence[bytes], hand: Hand) -> None:
    """Put and take a few flushes."""
    for _ in range(_WARM_FLUSHES):
        hand.put(items)
        hand.take(len(items))


def measure(work: Work, directory: Path, rounds: int, seconds: float) -> dict[str, dict[str, Found]]:
    """Return what was found, by the contender and the way. Contenders that cannot be measured here are left out."""
    items = random_items(work.batch, 100)
    tasks = {
        "in": partial(put, items),
        "out": partial(take, work.batch),
        "in and out in turn": partial(put_and_take, items),
    }
    found: dict[str, dict[str, Found]] = {}
    with ExitStack() as stack:
        teams: dict[str, Team] = {}
        for each in [*work.ours, *work.others]:
            if not each.reason():
                processes = 1 if each is LOCAL else work.processes
                opened = team(each, directory / each.name.replace(" ", "-"), processes)
                teams[each.name] = stack.enter_context(opened)
                teams[each.name].all(partial(warm, items))
                found[each.name] = {way: Found([], []) for way in work.bars}
        for number in range(rounds):
            for name in list(teams)[:: 1 if number % 2 else -1]:
                for way, into in found[name].items():
                    _add(into, *teams[name].timed(tasks[way], seconds), seconds)
    return found


def _add(found: Found, begin: float, counts: Sequence[Count], seconds: float) -> None:
    """Add a round. It ends with the last flush that counts, if every process ran out of items, or one began late."""
    last_seconds = max(each.last for each in counts) - begin
    seconds = max(last_seconds, 1e-6 if all(each.is_dry for each in counts) else seconds)
    found.rates.append(sum(each.items for each in counts) / seconds)
    found.each.append([each.items / seconds for each in counts])


def rows(
    directory: Path, rounds: int, seconds: float = SECONDS, forms: Forms = (OURS, OURS_SERVED, OURS_AHEAD)
) -> Iterator[Row]:
    """Yield the lines of the table: one for each work, way and form of the queue."""
    for number, work in enumerate(works(forms)):
        found = measure(work, directory / str(number), rounds, seconds)
        for way in work.bars:
            for form in work.ours:
                yield _row(work, way, form, found)


def _row(work: Work, way: str, form: Shared, found: Mapping[str, Mapping[str, Found]]) -> Row:
    aside = _AHEAD_TEXT if form.name == OURS_AHEAD.name else ", the owner only serves" if form.is_apart else ""
    what = f"{work.what}, {way}{aside}"
    beside = [f"{each.name} {found[each.name][way].text()}" for each in work.others if each.name in found]
    beside += [f"{each.name}: {each.reason()}" for each in work.others if each.name not in found]
    bars = {name: bar for name, bar in work.bars[way].items() if name in found}
    bar_text = " · ".join(f"{bar:g} × {name}" for name, bar in bars.items())
    if form.name not in found:
        return Row(what, f"not measured: {form.reason()}", " · ".join(beside), "", bar_text, "")
    ours = found[form.name][way]
    ratios = {
        name: [one / other for one, other in zip(ours.rates, found[name][way].rates, strict=True)] for name in bars
    }
    return Row(
        what,
        ours.text(),
        " · ".join(beside),
        " · ".join(f"{spread(each)} × {name}" for name, each in ratios.items()),
        bar_text,
        met(all(median(ratios[name]) >= bar for name, bar in bars.items())),
    )
