"""Charts as numbers: the tiles of the map of segments, and the curves over time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue import Sample, SegmentShare
from persistentqueue.drawing.charts import (
    FULL,
    HALF,
    LITTLE,
    MOST,
    NOTHING,
    STEPS,
    WINDOWS,
    YOUNGEST,
    curves,
    tiles,
    windows,
)
from persistentqueue.drawing.svg import depth_chart, rate_chart, segment_map
from persistentqueue.drawing.text import aligned, rate_text

S = 10**9


def shares(*live_bytes: int) -> list[SegmentShare]:
    """Return segments of 100 bytes with these live bytes; the last one is the youngest."""
    last = len(live_bytes)
    return [SegmentShare(n, 100, live, live, n == last) for n, live in enumerate(live_bytes, 1)]


def test_neighbours_of_one_class_share_a_tile() -> None:
    """Neighbours of one class are one tile with their number, and the youngest segment has a tile of its own."""
    found = tiles(shares(95, 100, 91, 70, 65, 10, 0, 100, 100), 100)
    assert [(tile.first, tile.last, tile.files, tile.level) for tile in found] == [
        (1, 3, 3, FULL),
        (4, 5, 2, MOST),
        (6, 6, 1, LITTLE),
        (7, 7, 1, NOTHING),
        (8, 8, 1, FULL),
        (9, 9, 1, YOUNGEST),
    ]
    assert found[0].share == pytest.approx(286 / 300)
    assert tiles(shares(*[50] * 5000, 1), 10)[0][:4] == (1, 5000, 5000, 500_000)
    assert tiles([], 10) == []


def test_segments_that_a_session_keeps_have_tiles_of_their_own() -> None:
    """A tile names the sessions that keep its files, and holds no file that other sessions keep."""
    found = tiles(shares(100, 100, 100, 100), 100, {2: "'a'", 3: "'b'"})
    assert [(tile.first, tile.keeper) for tile in found] == [(1, ""), (2, "'a'"), (3, "'b'"), (4, "")]
    joined = tiles(shares(*[100, 10] * 50, 1), 3, {1: "'a'", 2: "'a'", 7: "'b'"})
    assert [(tile.files, tile.keeper) for tile in joined] == [(50, "'a'; 'b'"), (50, ""), (1, "")]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=300), st.integers(2, 40))
def test_tiles_have_each_segment_once(live: list[int], most: int) -> None:
    """Each segment is in one tile, in order, and there are no more tiles than asked for."""
    found = tiles(shares(*live), most)
    assert len(found) <= most
    assert sum(tile.files for tile in found) == len(live)
    assert sum(tile.live_bytes for tile in found) == sum(live)
    assert all(before.last + 1 == after.first for before, after in pairwise(found))


def test_the_map_has_a_text_for_each_picture() -> None:
    """The map tells its content to screen readers, and each tile tells its share and the sessions that keep it."""
    html = segment_map(tiles(shares(*[50] * 40, 10, 100), 100, {41: "<b>"}))
    assert 'aria-label="Data files by live share: 40 30 to 60 %, 1 less than 30 %: sparse, 1 being written"' in html
    assert "40 segments, 1 to 40: 50 % of 3.9 KiB lives, 2,000 items" in html
    assert "kept by &lt;b&gt;" in html
    assert HALF.key in html and "\N{MULTIPLICATION SIGN}40" in html


def samples(*points: tuple[float, int, int]) -> list[Sample]:
    """Return samples at these seconds, with these items enqueued and dequeued."""
    return [Sample(int(seconds * S), enqueued, dequeued, 0) for seconds, enqueued, dequeued in points]


def test_curves_are_those_of_the_samples() -> None:
    """Rates and depths are interpolated between samples, in equal steps up to the last sample."""
    found = curves(samples((0, 0, 0), (50, 0, 0), (60, 100, 20), (110, 100, 70)), 100.0, 10)
    assert found is not None
    assert (found.seconds, found.step_seconds) == (100, 10)
    assert found.depths == (0, 0, 0, 0, 80, 70, 60, 50, 40, 30)
    assert list(found.in_per_second) == [0, 0, 0, 0, 10, 0, 0, 0, 0, 0]
    assert list(found.out_per_second) == [0, 0, 0, 0, 2, 1, 1, 1, 1, 1]


def test_curves_begin_with_the_samples() -> None:
    """Samples that do not reach back give shorter curves, and one sample gives none."""
    found = curves(samples((7, 5, 5), (9, 9, 5)), 60.0, 4)
    assert found is not None
    assert (found.seconds, found.depths) == (2, (1, 2, 3, 4))
    assert curves(samples((7, 5, 5)), 60.0, 4) is None


def test_windows_are_those_that_say_more() -> None:
    """A window is left out if the samples say no more in it than in the shorter one."""
    assert windows(samples((0, 0, 0))) == []
    assert [each.seconds for each in windows(samples((0, 0, 0), (30, 1, 0)))] == [30]
    assert [each.seconds for each in windows(samples((0, 0, 0), (4000, 1, 0)))] == [60, 3600]
    assert [each.seconds for each in windows(samples((0, 0, 0), (10**6, 1, 0)))] == list(WINDOWS)


def test_charts_of_curves_have_words() -> None:
    """The charts say the values of now and the highest ones, also for an empty and idle queue."""
    (found,) = windows(samples((0, 0, 0), (10, 1000, 400), (20, 1000, 1000)))
    assert "Items left: 0 now, 600 at most" in depth_chart(found)
    assert "enqueued 0/s now, 100/s at most; consumed 60/s now, 60/s at most" in rate_chart(found)
    assert depth_chart(found).count("<rect") == STEPS - 1
    assert "20 s ago" in rate_chart(found)
    (idle,) = windows(samples((0, 7, 7), (10, 7, 7)))
    assert "Items left: 0 now, 0 at most" in depth_chart(idle)
    assert "enqueued 0/s now, 0/s at most" in rate_chart(idle)


def test_small_rates_are_not_nothing() -> None:
    """A rate that rounds to 0 is shown as a bound."""
    assert [rate_text(rate) for rate in (None, 0, 0.01, 0.3, 2, 1234.5)] == ["-", "0", "< 0.1", "0.3", "2", "1,234"]


def test_aligned_rows_are_read_down() -> None:
    """Rows stand in two columns, each read from the top to the bottom."""
    lines = aligned([("a", "1"), ("b", "2"), ("c", "3")])
    assert [line.split() for line in lines] == [["a", "1", "c", "3"], ["b", "2"]]
