"""Tests of the measurements of several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..contenders import shared
from ..contenders.shared import (
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
    Shared,
)
from ..studies.processes import connections, kills, rates, wake_ups
from ..studies.processes.team import team

ABSENT = OURS._replace(needs=("absent",))
ALL = (OURS, OURS_SERVED, SQLITE, LITEQUEUE, HUEY, REDIS, BEANSTALKD, FLOOR)
ITEMS = [b"a", b"b", b"c"]


@pytest.mark.parametrize("contender", [*ALL, LOCAL], ids=lambda each: each.name)
def test_processes_share_a_queue(tmp_path: Path, contender: Shared) -> None:
    """One process takes what another one has put, in order, and an empty queue gives nothing."""
    if contender.reason():
        pytest.skip(contender.reason())
    with team(contender, tmp_path / "queue", 1 if contender is LOCAL else 2) as workers:
        one, other = workers.members[0], workers.members[-1]
        one.call(put)
        assert other.call(take_two) == [b"a", b"b"]
        assert one.call(take_two) == [b"c"]
        assert other.call(take_two) == []


def put(hand: shared.Hand) -> None:
    """Put the items."""
    hand.put(ITEMS)


def take_two(hand: shared.Hand) -> list[bytes]:
    """Take up to two items."""
    return list(hand.take(2))


def test_rates_of_processes(tmp_path: Path) -> None:
    """Each way has a rate for each round and process, and a line has the ratios to the bars."""
    work = rates.works((OURS, OURS_SERVED, OURS_AHEAD))[0]._replace(processes=2, others=(LOCAL, SQLITE))
    found = rates.measure(work, tmp_path, 2, 0.3)
    assert set(found) == {"ours", "ours, serve", "ours, prefetch", LOCAL.name, SQLITE.name}
    for name, ways in found.items():
        for way in ("in", "out"):
            assert len(ways[way].rates) == 2 and min(ways[way].rates) > 0
            assert [len(each) for each in ways[way].each] == [1 if name == LOCAL.name else 2] * 2
    row = rates._row(work, "in", OURS, found)
    assert row.met in ("yes", "**no**") and row.bar == "4 × SQLite FULL · 2.5 × one local session"
    assert "by each" in row.ours and "one local session" in row.beside


def test_items_that_run_out_end_a_round() -> None:
    """If every process runs out of items, the rate is that of the time until the last take."""
    found = rates.Found([], [])
    rates._add(found, 10.0, [rates.Count(30, 10.5, True), rates.Count(20, 10.2, True)], 2.0)
    rates._add(found, 10.0, [rates.Count(30, 10.5, True), rates.Count(20, 11.9, False)], 2.0)
    assert found.rates == [100.0, 25.0]


def test_rates_without_a_contender(tmp_path: Path) -> None:
    """The line of a contender that is not there names the reason, and has the figures of the others."""
    others = (SQLITE, REDIS._replace(needs=("absent",)))
    work = rates.works((ABSENT, ABSENT, ABSENT))[1]._replace(processes=2, others=others)
    row = rates._row(work, "in and out in turn", ABSENT, rates.measure(work, tmp_path, 1, 0.05))
    assert row.ours == "not measured: absent is not installed"
    assert row.beside.startswith("SQLite FULL ") and row.beside.endswith("Redis: absent is not installed")
    assert row.met == ""


def test_bars_are_of_those_who_contend() -> None:
    """Every bar names a contender of its work, and no two contenders have one name."""
    for work in rates.works():
        names = [each.name for each in (*work.ours, *work.others)]
        assert len(set(names)) == len(names)
        assert {name for bars in work.bars.values() for name in bars} <= set(names)


def test_lines_of_all_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a line for each work, way and form of the queue."""
    monkeypatch.setattr(rates, "measure", lambda *_: {})
    forms = (ABSENT, ABSENT._replace(is_apart=True), ABSENT._replace(name="ours, prefetch", is_apart=True))
    lines = list(rates.rows(tmp_path, 1, 0.02, forms))
    assert len(lines) == len({line.what for line in lines}) == 6 + 3 + 4


def test_wake_ups_of_processes(tmp_path: Path) -> None:
    """Each pair of processes has a wake-up for each item, and those of the queue begin at the commit."""
    for number, pair in enumerate(wake_ups.PAIRS.values()):
        found = wake_ups.measure(OURS, tmp_path / str(number), pair, 5)
        assert len(found.from_flush) == len(found.from_commit) == 5
        assert 0 < found.from_commit[0] < found.from_flush[0]
    assert wake_ups.measure(SQLITE, tmp_path / "sqlite", (1, 2), 3).from_commit == []
    assert [row.met for row in wake_ups.rows(tmp_path / "rows", 2, ABSENT)] == ["", "", ""]


def test_killed_workers(tmp_path: Path) -> None:
    """Another worker gets the item of each killed one."""
    assert len(kills.workers_killed(OURS, tmp_path / "ours", 2)) == 2
    assert len(kills.workers_killed(SQLITE, tmp_path / "sqlite", 2)) == 2


@pytest.mark.parametrize("contender", [OURS, OURS_SERVED], ids=lambda each: each.name)
def test_killed_owners(tmp_path: Path, contender: Shared) -> None:
    """The next owner serves all workers, and the queue keeps its items."""
    found = kills.owners_killed(contender, tmp_path / "queue", 1_000, 2)
    assert all(0 < first <= every for first, every in found)


def test_kills_without_a_contender(tmp_path: Path) -> None:
    """If the queue is not there, four lines name the reason."""
    lines = list(kills.rows(tmp_path, 1, 100, 1, ABSENT, ABSENT))
    assert [line.met for line in lines] == [""] * 4 and "not measured" in lines[0].ours


def test_idle_connections(tmp_path: Path) -> None:
    """Memory is measured for each connection, and an owner that nothing asks takes no processor time."""
    idle = connections.measure(OURS, tmp_path / "queue", 40, seconds=0.2)
    assert idle.connections == 40 and idle.processor_seconds < 0.05
    assert len(list(connections.rows(tmp_path / "rows", 100, ABSENT))) == 1
