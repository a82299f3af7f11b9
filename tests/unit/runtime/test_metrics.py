"""Histograms: what they say of values, of the time between two looks, and how they are made beside those who note."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue import Histogram
from persistentqueue.runtime.metrics import SECONDS, TRANSACTIONS, Meter, Meters

BOUNDS = (1, 2, 5)


def of(*values: float) -> Histogram:
    """The histogram of these values."""
    meter = Meter(BOUNDS)
    for value in values:
        meter.note(value)
    return meter.histogram()


def test_value_on_a_bound_is_below_it() -> None:
    """A bucket holds what is at most its bound, and more than the one before; the last holds what is above all."""
    histogram = of(0, 1, 1.5, 2, 5, 5.5, 100)
    assert histogram == Histogram(BOUNDS, (2, 2, 1, 2), 115)
    assert (histogram.count, histogram.mean) == (7, 115 / 7)


def test_quantiles() -> None:
    """A quantile is the bound that so many values do not exceed; above the last bound it is infinite."""
    histogram = of(0.5, 1, 1.5, 4, 4, 4, 4, 4, 4, 9)
    assert [histogram.quantile(part) for part in (0, 0.2, 0.21, 0.3, 0.5, 0.9, 0.91, 1)] == [1, 1, 2, 2, 5, 5, inf, inf]


@pytest.mark.parametrize("part", [-0.1, 1.1, float("nan")])
def test_quantile_of_no_part(part: float) -> None:
    """A part that is none is refused."""
    with pytest.raises(ValueError, match="from 0 to 1"):
        of(1).quantile(part)


def test_no_values() -> None:
    """Without values there is no mean and no quantile; nothing is divided by."""
    nothing = of()
    assert isnan(nothing.mean) and isnan(nothing.quantile(0.5))
    assert repr(nothing) == "Histogram(no values)"


def test_it_can_be_read() -> None:
    """Printed, it says how many values, their mean, and what half, 99 of 100 and all of them do not exceed."""
    assert repr(of(*[1] * 1000, 5)) == "Histogram(1,001 values, mean 1, half <= 1, 99% <= 1, all <= 5)"


def test_later_minus_earlier() -> None:
    """The difference of two looks is the histogram of what came between them."""
    meter = Meter(BOUNDS)
    meter.note(1)
    earlier = meter.histogram()
    meter.note(2)
    meter.note(7)
    assert meter.histogram() - earlier == of(2, 7)
    assert earlier == of(1)
    with pytest.raises(ValueError, match="different bounds"):
        _ = earlier - Meter(SECONDS).histogram()


@given(st.lists(st.one_of(st.sampled_from(TRANSACTIONS), st.floats(0, 1e5))), st.integers(0, 50))
def test_each_value_is_in_its_bucket(values: list[float], at: int) -> None:
    """Counted at once or bit by bit, each value is in the one bucket that it belongs to."""
    meter = Meter(TRANSACTIONS)
    for number, value in enumerate(values):
        meter.note(value)
        if number == at:
            meter.count()
    edges = [-inf, *TRANSACTIONS, inf]
    expected = [sum(low < value <= high for value in values) for low, high in pairwise(edges)]
    histogram = meter.histogram()
    assert list(histogram.counts) == expected
    assert histogram.sum == pytest.approx(sum(values))


def test_threads_note_while_one_counts() -> None:
    """Any number of threads note values while somebody counts: none is lost, none counted twice."""
    meters = Meters()
    meter = meters.group_size

    def note(value: int) -> None:
        for _ in range(10_000):
            meter.note(value)

    with ThreadPoolExecutor(4) as pool:
        noting = [pool.submit(note, value) for value in (1, 2, 5, 10)]
        while not all(each.done() for each in noting):
            meters.count()
    assert meter.histogram().counts[:5] == (10_000, 10_000, 10_000, 10_000, 0)
    assert meter.histogram().count == 40_000
