"""``top``: the rates between two looks, and the picture of a queue."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from persistentqueue import PersistentQueue, QueueNotFoundError, SegmentSnapshot, View, connect, delete_queue
from persistentqueue.cli.display.screen import _rows, draw
from persistentqueue.cli.display.top import _looks
from persistentqueue.cli.display.watch import Arrivals, Pace, Watched, document_of_look, pace_of
from persistentqueue.cli.summary import document_of, findings, owner_text, resident_bytes, see, state_text
from persistentqueue.drawing.charts import (
    FULL,
    HALF,
    LITTLE,
    MOST,
    NOTHING,
    YOUNGEST,
    Tile,
    is_sparse,
    level_of,
    portions,
    positions,
    sparkline,
)
from persistentqueue.storage.lock import Owner
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import crash, put

SECONDS = 120.0  # a limit for steps that should take less than one
SECOND_NS = 10**9
NOW_NS = 1_000 * SECOND_NS


def drawn(queues: list[Watched], width: int = 150, is_chosen: bool = False, height: int | None = None) -> str:
    """Return the picture without its colours."""
    console = Console(width=width, no_color=True, file=open(os.devnull, "w", encoding="utf-8"), record=True)  # noqa: SIM115
    with console.file:
        console.print(draw("queues", queues, is_chosen, 1.0, width, height))
    return console.export_text()


def with_backlog(queue: PersistentQueue) -> None:
    """Enqueue a thousand items by twenty flushes, each of which fills a data file of 60,000 bytes."""
    for start in range(0, 1000, 50):
        put(queue, *(b"%d" % n + bytes(1000) for n in range(start, start + 50)))


# --- between two looks ---------------------------------------------------------------------------------------------


def test_rates_and_waits_are_those_of_the_time_between(open_queue: QueueFactory, directory: Path) -> None:
    """Rates are those of the time between two looks. Waiting times of consumed items are counted from the times when
    they were written."""
    queue = open_queue()
    put(queue, *(b"%d" % n for n in range(100)))
    before = replace(View(directory).look(), time_ns=NOW_NS)
    arrivals = Arrivals()
    arrivals.add(0, NOW_NS - 100 * SECOND_NS)
    arrivals.add(99, NOW_NS - SECOND_NS)
    with queue.transaction() as session:
        session.dequeue_many(10)
        session.enqueue_many([b"x"] * 30)
    now = replace(View(directory).look(), time_ns=NOW_NS + 2 * SECOND_NS)
    pace = pace_of(before, now, arrivals)
    assert (pace.seconds, pace.in_per_second, pace.out_per_second, pace.consumed) == (2.0, 15.0, 5.0, 10)
    assert pace.waited_half_seconds == pytest.approx(102 - 4.5, abs=1)
    assert pace.waited_longest_seconds == pytest.approx(102)
    assert pace_of(now, now, arrivals).waited_half_seconds is None


def test_what_came_and_went_unseen_has_waited_less_than_the_time_between(
    open_queue: QueueFactory, directory: Path
) -> None:
    """Items that came and went between two looks count as if they had waited for that time: more is not known."""
    queue = open_queue()
    before = replace(View(directory).look(), time_ns=NOW_NS)
    put(queue, *(b"%d" % n for n in range(10)))
    with queue.transaction() as session:
        session.dequeue_many(10)
    now = replace(View(directory).look(), time_ns=NOW_NS + SECOND_NS)
    pace = pace_of(before, now, Arrivals())
    assert (pace.in_per_second, pace.out_per_second, pace.waited_half_seconds) == (10, 10, 1.0)


def test_what_is_on_hold_and_overtaken_counts_as_waiting(open_queue: QueueFactory, directory: Path) -> None:
    """A held item is not counted as consumed, and counts as overtaken and waiting."""
    queue = open_queue()
    put(queue, *(b"%d" % n for n in range(10)))
    watched = Watched("orders", View(directory))
    watched.look()
    assert watched.pace == Pace()
    with queue.session() as slow, queue.session() as quick:
        slow.dequeue()
        quick.dequeue_many(4)
        quick.flush()
        watched.look()
        assert watched.snapshot is not None
        assert (watched.pace.consumed, watched.snapshot.overtaken, watched.snapshot.depth) == (4, 1, 6)
        assert watched.pace.waited_longest_seconds is not None
        assert [each.depth for each in watched.samples] == [10, 6]
        slow.rollback()


def test_arrivals_between_what_was_seen_are_estimated() -> None:
    """Arrival times between two known ones are estimated in proportion, and never beyond them. At most some thousands
    are kept."""
    arrivals = Arrivals()
    arrivals.add(10, 1000)
    assert [arrivals.time_ns(each) for each in (0, 10, 99)] == [1000] * 3
    arrivals.add(20, 2000)
    arrivals.add(20, 9999)
    assert [arrivals.time_ns(each) for each in (10, 15, 20, 21)] == [1000, 1500, 2000, 2000]
    for sequence in range(21, 20_000):
        arrivals.add(sequence, sequence * 100)
    assert len(arrivals._points) <= 4096
    assert arrivals.time_ns(15_000) == pytest.approx(1_500_000, rel=0.01)


def test_what_goes_wrong_is_shown_until_it_is_over(tmp_path: Path) -> None:
    """A deleted queue has an error in its row until it is there again, and the other queues go on."""
    for name in "ab":
        with PersistentQueue(tmp_path, name) as queue:
            put(queue, b"1")
    queues = [Watched(name, View(tmp_path, name)) for name in "ab"]
    delete_queue(tmp_path, "a")
    for queue_ in queues:
        queue_.look()
    assert "QueueNotFoundError" in queues[0].error
    picture = drawn(queues)
    assert "QueueNotFoundError" in picture
    assert "queue b" in picture
    with PersistentQueue(tmp_path, "a") as queue:
        put(queue, b"1")
    queues[0].look()
    assert (queues[0].error, [each.depth for each in queues[0].samples]) == ("", [1])
    delete_queue(tmp_path, "a")
    delete_queue(tmp_path, "b")
    for queue_ in queues:
        queue_.look()
    assert "queue b" not in drawn(queues)


def test_the_past_of_the_owner_is_shown_at_the_first_look(open_queue: QueueFactory, directory: Path) -> None:
    """The first look shows the depth and the rates that the owner has published, and later looks continue them."""
    now = [10**18]
    queue = open_queue(disk=replace(DISK, time_ns=lambda: now[0]))
    for _ in range(20):
        put(queue, *[b"x"] * 10)
        now[0] += SECOND_NS
        queue.maintain()
    watched = Watched("orders", queue.view())
    watched.look()
    picture = drawn([watched])
    assert "200 at most in the last 20 s" in picture
    assert "in/s" in picture and "10 at most" in picture
    now[0] += SECOND_NS
    with queue.session() as session:
        session.dequeue_many(50)
        session.flush()
    watched.look()
    sight = watched.sight()
    assert [each.depth for each in sight.history[-2:]] == [200, 150]
    assert "50 at most" in drawn([watched])


def test_a_clock_that_is_set_back_begins_anew(open_queue: QueueFactory) -> None:
    """If the clock is set back between two looks, no rate is shown for the time between, and no later sample."""
    now = [10**18]
    queue = open_queue(disk=replace(DISK, time_ns=lambda: now[0]))
    put(queue, b"1")
    watched = Watched("orders", queue.view())
    watched.look()
    put(queue, b"2")
    now[0] -= 3600 * SECOND_NS
    watched.look()
    assert watched.pace == Pace()
    put(queue, b"3")
    now[0] += SECOND_NS
    watched.look()
    assert (watched.pace.in_per_second, [each.depth for each in watched.samples]) == (1.0, [2, 3])
    sight = watched.sight()
    assert [each.time_ns for each in sight.history] == sorted(each.time_ns for each in sight.history)


def test_many_near_equal_files_are_counted(open_queue: QueueFactory, directory: Path) -> None:
    """Many neighbours of one class are one character and their number, in rows that fit."""
    queue = open_queue(segment_bytes=4096)
    for _ in range(100):
        put(queue, b"x" * 3000)
    watched = Watched("orders", View(directory))
    watched.look()
    assert re.search(r"1 [█▓]\N{MULTIPLICATION SIGN}9\d ▸", drawn([watched], 60))
    few = [Tile(n, n, 1, 10, 10, 1, FULL, "") for n in range(1, 8)]
    assert [[tile.first for tile in row] for row in _rows(few, 3)] == [[1, 2, 3], [4, 5, 6], [7]]


# --- the picture ---------------------------------------------------------------------------------------------------


def test_the_picture_explains_itself_without_colours(open_queue: QueueFactory, directory: Path) -> None:
    """The picture of a queue with holds, holes and a backlog larger than memory has a legend and names the worst files,
    without colours."""
    queue = open_queue(segment_bytes=60_000, memory_bytes=10_000)
    with_backlog(queue)
    with queue.session("slow") as slow, queue.session("quick") as quick:
        slow.dequeue_many(3)
        quick.dequeue_many(120)
        quick.flush()
        watched = Watched("orders", View(directory))
        for _ in range(3):
            watched.look()
        watched.resident_bytes = 500_000
        picture = drawn([watched])
        slow.rollback()
    assert "880 items left" in picture
    assert "3 items were overtaken" in picture
    assert "more than the owner's whole memory" in picture
    assert "░" in picture
    for words in ("90 % or more lives", "less than 30 %: sparse", "being written", "transaction log", "data files"):
        assert words in picture
    assert "segment 1: 6 % of" in picture
    assert str(os.getpid()) in picture
    assert max(map(len, picture.splitlines())) <= 150


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_it_fits_into_any_terminal(open_queue: QueueFactory, directory: Path, width: int) -> None:
    """No line is cut at any width: narrow pictures have fewer columns."""
    queue = open_queue(segment_bytes=60_000)
    with_backlog(queue)
    watched = Watched("orders", View(directory))
    watched.look()
    picture = drawn([watched], width)
    assert max(map(len, picture.splitlines())) <= width
    assert "…" not in picture
    for words in ("orders", "1,000", "items that are left", "being written"):
        assert words in picture
    assert ("owner's memory" in picture) == (width > 136)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_curve_is_one_line(open_queue: QueueFactory, directory: Path, width: int) -> None:
    """A curve takes one line at any width. Its caption stands behind it, or below it on a narrow terminal."""
    watched = Watched("orders", View(directory))
    queue = open_queue()
    for _ in range(2):
        put(queue, b"x")
        watched.look()
    lines = drawn([watched], width).splitlines()
    for name in ("in/s ", "out/s "):
        (at,) = (at for at, line in enumerate(lines) if name in line and "│" in line)
        curve, below = (line.strip("│ ").removeprefix(name).strip() for line in lines[at : at + 2])
        assert "at most" in (curve if width == 120 else below)
        assert len(curve.split("  ")[0]) == min(60, width - 20)


def test_the_first_of_those_named_is_shown_at_large(tmp_path: Path) -> None:
    """The first named queue is shown in detail, or the longest queue if none was named."""
    for name, count in (("a", 1), ("b", 5)):
        with PersistentQueue(tmp_path, name) as queue:
            put(queue, *[b"x"] * count)
    queues = [Watched(name, View(tmp_path, name)) for name in "ab"]
    for watched in queues:
        watched.look()
    assert "─ queue b" in drawn(queues)
    assert "─ queue a" in drawn(queues, is_chosen=True)


def test_a_low_terminal_shows_the_deepest_queues(tmp_path: Path) -> None:
    """With more queues than lines, the table has those that fail, the chosen one and the deepest, and tells what it
    leaves out. The queue in detail has room."""
    for number in range(30):
        with PersistentQueue(tmp_path, f"q{number:02}", sync=False) as queue:
            put(queue, *[b"x"] * number)
    queues = [Watched(f"q{number:02}", View(tmp_path, f"q{number:02}")) for number in (*range(30), 99)]
    for watched in queues:
        watched.look()
    lines = drawn(queues, height=24).splitlines()
    names = [line.split()[0] for line in lines if line.startswith("q")]
    assert names == ["queue", *(f"q{number}" for number in range(23, 30)), "q99", "q99:"]
    assert "and 23 others, with 253 items left" in lines
    at = next(at for at, line in enumerate(lines) if "─ queue q29" in line)
    assert at < 24 - 8
    chosen = drawn(queues, is_chosen=True, height=24)
    assert "\nq00 " in chosen and "─ queue q00" in chosen
    assert "others" not in drawn(queues) and "others" not in drawn(queues[:8], height=24)


def test_many_that_fail_leave_room_for_the_chosen_queue(tmp_path: Path) -> None:
    """With more queues that fail than lines, the chosen one stays in the table, and has room in detail. The errors that
    have room are shown, and the number of the others."""
    with PersistentQueue(tmp_path, "z") as queue:
        put(queue, b"x")
    view = View(tmp_path, "z")
    queues = [Watched(f"q{number:02}", view, failure=QueueNotFoundError("gone: " * 20)) for number in range(30)]
    queues.append(Watched("z", view))
    queues[-1].look()
    picture = drawn(queues, 80, height=24)
    lines = picture.splitlines()
    assert any(line.startswith("z ") for line in lines)
    assert next(at for at, line in enumerate(lines) if "─ queue z" in line) < 24 - 4
    assert re.findall(r"^q\d\d: ", picture, re.MULTILINE) == ["q00: ", "q01: "]
    assert "and 28 other queues fail" in lines
    assert drawn(queues, 200).count(": QueueNotFoundError") == 30
    assert not drawn(queues, 0, height=24).strip()  # COLUMNS=0


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.usefixtures("patient")
def test_who_is_connected_is_shown(open_queue: QueueFactory, directory: Path, width: int) -> None:
    """If the owner serves, ``top`` shows the sessions of other processes: the longest hold first, and a bounded number
    of them. A long hold is urgent."""
    queue = open_queue(serve=True)
    put(queue, *[b"x"] * 20)
    watched = Watched("orders", View(directory))
    watched.look()
    assert document_of_look(watched)["connections"] == []
    assert "connections" not in drawn([watched], width)
    with ExitStack() as stack:
        shared = stack.enter_context(connect(directory.parent, directory.name, serve="never"))
        mailer: Any = stack.enter_context(shared.subscribe("audit").session("mailer\x1b[2J"))
        mailer.dequeue_many(3)
        others: list[Any] = [stack.enter_context(shared.session(f"session {number}")) for number in range(14)]
        for session in others:
            session.dequeue()
        watched.look()
        picture = drawn([watched], width)
        connections = watched.connections or ()
        assert document_of_look(watched)["connections"] == [each._asdict() for each in connections]
        for session in (mailer, *others):
            session.rollback()
    words = "".join(re.sub("[│╭╮╰╯]", "", picture).split())
    assert "15sessionsofotherprocesses,0waiting" in words
    assert "and3others" in words
    if width > 60:  # there, names go on in the next line
        assert "session10" in words and "session13" not in words
    assert ("processthread" in words, "nowflushes" in words) == (width > 80, width > 100)
    assert "\x1b" not in picture
    assert max(map(len, picture.splitlines())) <= width
    old = [each._replace(seconds=3700.0) for each in connections]
    sight = watched.sight()
    told = [each for each in findings(replace(sight, connections=tuple(old))) if each.what.startswith("Process")]
    assert (len(told), all(each.is_urgent for each in told)) == (5, True)
    assert "holds 3 items in its session 'mailer\\x1b[2J' for 1 h 1 min" in told[0].what
    lost = replace(sight, connections=(old[0]._replace(held=0, is_lost=True), old[1]._replace(held=0, waits=True)))
    (urgent,) = [each for each in findings(lost) if each.what.startswith("Process")]
    assert "held items for longer than hold_seconds" in urgent.what
    assert [state_text(each) for each in lost.connections or ()] == ["lost its items", "waits"]
    assert [state_text(each) for each in (old[0], old[1]._replace(held=0))] == ["holds", "idle"]
    queue.close()
    watched.look()
    assert watched.connections is None
    assert document_of_look(watched)["connections"] is None


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_long_name_takes_no_room_from_the_numbers(tmp_path: Path, width: int) -> None:
    """A long name takes no room from the numbers, and the error of another queue is shown in full."""
    with PersistentQueue(tmp_path, "a" * 64) as queue:
        put(queue, *[b"x"] * 1234)
    queues = [Watched(name, View(tmp_path, name)) for name in ("a" * 64, "missing")]
    for watched in queues:
        watched.look()
    picture = drawn(queues, width)
    assert " 1,234 " in next(line for line in picture.splitlines() if line.startswith("aaa"))
    assert "".join(queues[1].error.split()) in "".join(picture.split())


def test_what_is_to_be_known_of_a_queue(open_queue: QueueFactory, directory: Path) -> None:
    """Findings tell of an unclosed queue, a transaction in doubt, publications, overtaken items, and the consumer that
    is furthest behind. For a sound queue there are none."""
    queue = open_queue()
    put(queue, b"a")
    sight = see(View(directory), "orders")
    assert findings(sight) == []
    seen = sight.snapshot

    def told(**changes: object) -> str:
        changed = replace(sight, snapshot=replace(seen, **changes))  # type: ignore[arg-type]
        return " ".join(f"{each.is_urgent} {each.what} {each.advice}" for each in findings(changed))

    assert told(in_doubt="b").startswith("False The last transaction covers several queues, and is not shown: 'b' does")
    assert "True The last transaction covers several queues" in told(in_doubt="b", is_owned=False)
    assert "wait in the inbox for the owner" in told(published=2)
    assert "The next opening adopts them" in told(published=2, is_owned=False)
    assert "The next opening recovers" in told(is_owned=False)
    assert told(is_owned=False, is_sealed=True) == ""
    old_ns = seen.time_ns - 3600 * SECOND_NS
    assert told(overtaken=1, oldest_ns=old_ns).startswith("True 1 item was overtaken")
    assert told(overtaken=1).startswith("False")
    left = told(overtaken=1, oldest_ns=old_ns, is_owned=False, is_sealed=True)
    assert left.startswith("False 1 item was overtaken") and "explain()" not in left
    kept = SegmentSnapshot(1, 100, 50, 5, (("slow", 5),), False)
    slow = told(subscriptions=(("slow", 5),), segments=(kept,))
    assert "True Furthest behind is the subscription 'slow' with 5 items left; 1 data file is kept for it alone" in slow
    assert "queue.unsubscribe('slow')" in slow
    new = told(subscriptions=(("slow", 5),), segments=(kept._replace(is_youngest=True),))
    assert "False Furthest behind is the subscription 'slow' with 5 items left. " in new
    plain = told(subscriptions=(("slow", 1),), depth=9)
    assert "Furthest behind is the plain queue" in plain and "queue.clear()" in plain
    plain = told(subscriptions=(("quick", 0),), depth=5, segments=(kept._replace(left=(("", 5),)),))
    assert "True Furthest behind is the plain queue (no subscription) with 5 items left; 1 data file" in plain
    assert told(subscriptions=(("quick", 0),), depth=0) == ""
    crash(queue)
    assert "recovers" in " ".join(each.advice for each in findings(see(View(directory), "orders")))
    open_queue().close()


def test_who_has_it(open_queue: QueueFactory, directory: Path) -> None:
    """The owner is described in words, also if the system does not tell it. Its memory is known only for a live process
    of this host."""
    queue = open_queue()
    seen = View(directory).look()
    owner = seen.owner
    assert owner is not None
    assert owner_text(seen) == f"{owner.pid} on {owner.host}"
    assert owner_text(replace(seen, is_owned=None)) == f"perhaps {owner.pid} on {owner.host}"
    assert owner_text(replace(seen, owner=None)) == "unknown process"
    assert owner_text(replace(seen, is_owned=False)) == "none, not closed"
    assert owner_text(replace(seen, is_owned=None, owner=None, is_sealed=True)) == "none, closed"
    own = resident_bytes(seen)
    assert own is None or own > 2**20
    assert resident_bytes(replace(seen, owner=Owner(owner.pid, "elsewhere", ""))) is None
    assert resident_bytes(replace(seen, owner=Owner(2**22 + 1, owner.host, ""))) is None
    assert resident_bytes(replace(seen, is_owned=False)) is None
    assert json.dumps(document_of(replace(seen, owner=None), "orders"))
    queue.close()


def test_levels() -> None:
    """The level of a file follows its live share. The file that is being written and a file without items have their
    own levels."""
    shares = (1.0, 0.9, 0.89, 0.6, 0.59, 0.3, 0.29, 0.0)
    assert [level_of(each, 1, False) for each in shares] == [FULL, FULL, MOST, MOST, HALF, HALF, LITTLE, LITTLE]
    assert (level_of(0.0, 0, False), level_of(0.1, 1, True)) == (NOTHING, YOUNGEST)
    assert is_sparse(SegmentSnapshot(1, 100, 20, 1, (), False))
    assert not is_sparse(SegmentSnapshot(1, 100, 20, 1, (), True))
    assert not is_sparse(SegmentSnapshot(1, 0, 0, 0, (), False))


@given(st.lists(st.integers(0, 10**12), max_size=8), st.integers(8, 60))
def test_portions_fill_the_bar(amounts: list[int], width: int) -> None:
    """Portions fill the bar exactly, unless all amounts are 0, and each amount above 0 is visible."""
    places = portions(amounts, width)
    assert sum(places) == (width if sum(amounts) else 0)
    if sum(amounts):
        assert all((place > 0) == (amount > 0) for place, amount in zip(places, amounts, strict=True))


@given(st.lists(st.integers(1, 50), max_size=10), st.integers(1, 40))
def test_positions_are_of_what_is_left(counts: list[int], most: int) -> None:
    """Positions are sequences that are left, in order, spread from the first to the last."""
    runs, at = [], 3
    for count in counts:
        runs.append((at, count))
        at += count + 7
    found = positions(runs, most)
    assert found == sorted(set(found))
    assert len(found) <= most
    every = [sequence for first, count in runs for sequence in range(first, first + count)]
    assert set(found) <= set(every)
    if every:
        assert found[0] == every[0]
        assert most == 1 or found[-1] == every[-1]


def test_sparklines() -> None:
    """A sparkline goes from 0 to its highest value."""
    assert sparkline([0, 1, 2, 4]) == "▁▃▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def test_queues_that_come_and_go_are_watched(tmp_path: Path) -> None:
    """Queues of a directory are watched while they exist; queues that were named stay in the table."""
    for names, expected in (((), [["a"], ["a", "b"], ["b"]]), (("a", "b"), [["a", "b"]] * 3)):
        with PersistentQueue(tmp_path, "a"):
            looks = _looks(str(tmp_path), names, 0.0)
            found = [[queue.name for queue in next(looks)]]
        with PersistentQueue(tmp_path, "b"):
            found.append([queue.name for queue in next(looks)])
            delete_queue(tmp_path, "a")
            found.append([queue.name for queue in next(looks)])
        assert found == expected
        delete_queue(tmp_path, "b")


def test_a_queue_that_is_made_anew_is_another_one(tmp_path: Path) -> None:
    """A deleted queue is missed, and a queue that is made in its place is watched from its beginning."""
    with PersistentQueue(tmp_path, "a") as queue:
        put(queue, b"1", b"2")
    looks = _looks(str(tmp_path), ["a"], 0.0)
    assert [[each.depth for each in queue_.samples] for queue_ in next(looks)] == [[2]]
    delete_queue(tmp_path, "a")
    assert "QueueNotFoundError" in next(looks)[0].error
    with PersistentQueue(tmp_path, "a"):
        found = [(queue_.error, [each.depth for each in queue_.samples]) for queue_ in next(looks)]
        assert found == [("", [0])]


# --- the loop ------------------------------------------------------------------------------------------------------


@contextmanager
def start(path: Path, stdout: int, *arguments: str, term: str = "xterm") -> Iterator[subprocess.Popen[bytes]]:
    """Run ``top`` in a process of its own, and kill it when the block ends: leaving a failed block must not wait for
    ever."""
    line = [sys.executable, "-m", "persistentqueue", "top", str(path), "--interval", "0.05", *arguments]
    environment = os.environ | {"TERM": term}
    with subprocess.Popen(line, stdout=stdout, stderr=subprocess.PIPE, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(fd: int, word: bytes) -> bytes:
    """Return what is read from the descriptor until the word has come."""
    data = b""
    while word not in data:
        assert select.select([fd], [], [], SECONDS)[0], data
        more = os.read(fd, 65536)
        assert more, data  # an empty read means that the writer has ended
        data += more
    return data


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_it_goes_on_until_it_is_interrupted(
    open_queue: QueueFactory, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """``top`` prints pictures or lines until Ctrl-C, which ends it at once with status 0 and without a message."""
    queue = open_queue()
    put(queue, b"a")
    reader, writer = os.pipe()
    with start(tmp_path / "queues", writer, *arguments) as process:
        os.close(writer)
        read_until(reader, b'"depth": 1' if arguments else b"1 item left")
        put(queue, b"b")
        read_until(reader, b'"depth": 2' if arguments else b"2 items left")
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(reader)


def test_on_a_terminal_it_draws_in_place(open_queue: QueueFactory, tmp_path: Path) -> None:
    """On a terminal ``top`` draws on a separate screen, and leaves it at the end."""
    put(open_queue(), b"a")
    master, slave = os.openpty()
    with start(tmp_path / "queues", slave) as process:
        os.close(slave)
        seen = read_until(master, b"owner")
        seen += read_until(master, b"owner")
        process.send_signal(signal.SIGINT)
        seen += read_until(master, b"\x1b[?1049l")
        assert process.wait(SECONDS) == 0
    os.close(master)
    assert b"\x1b[?1049h" in seen


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_on_a_terminal_that_is_dumb_the_pictures_follow_each_other(
    open_queue: QueueFactory, tmp_path: Path, term: str
) -> None:
    """On a terminal that cannot be drawn in place ``top`` draws one picture below the other, without escape codes."""
    put(open_queue(), b"a")
    master, slave = os.openpty()
    with start(tmp_path / "queues", slave, term=term) as process:
        os.close(slave)
        seen = read_until(master, b"owner")
        seen += read_until(master, b"owner")
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    os.close(master)
    assert b"\x1b" not in seen
