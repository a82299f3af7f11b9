"""Histograms: their buckets, quantiles and differences, and counting beside threads that note values."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue import Histogram
from persistentqueue.measuring.metrics import SECONDS, TRANSACTIONS, Meter, Meters

BOUNDS = (1, 2, 5)


def of(*values: float) -> Histogram:
    """Return the histogram of these values."""
    meter = Meter(BOUNDS)
    for value in values:
        meter.note(value)
    return meter.histogram()


def test_value_on_a_bound_is_below_it() -> None:
    """A bucket counts the values up to its bound and above the bound before; the last one counts those above all
    bounds."""
    histogram = of(0, 1, 1.5, 2, 5, 5.5, 100)
    assert histogram == Histogram(BOUNDS, (2, 2, 1, 2), 115)
    assert (histogram.count, histogram.mean) == (7, 115 / 7)


def test_quantiles() -> None:
    """A quantile is the first bound that this part of the values does not exceed; above the last bound it is
    infinite."""
    histogram = of(0.5, 1, 1.5, 4, 4, 4, 4, 4, 4, 9)
    assert [histogram.quantile(part) for part in (0, 0.2, 0.21, 0.3, 0.5, 0.9, 0.91, 1)] == [1, 1, 2, 2, 5, 5, inf, inf]


@pytest.mark.parametrize("part", [-0.1, 1.1, float("nan")])
def test_quantile_of_no_part(part: float) -> None:
    """A part that is not from 0 to 1 is refused."""
    with pytest.raises(ValueError, match="from 0 to 1"):
        of(1).quantile(part)


def test_no_values() -> None:
    """Without values the mean and the quantiles are NaN."""
    nothing = of()
    assert isnan(nothing.mean) and isnan(nothing.quantile(0.5))
    assert repr(nothing) == "Histogram(no values)"


def test_it_can_be_read() -> None:
    """The text has the number of values, their mean, and the bounds that half, 99% and all of them do not exceed."""
    assert repr(of(*[1] * 1000, 5)) == "Histogram(1,001 values, mean 1, half <= 1, 99% <= 1, all <= 5)"


def test_later_minus_earlier() -> None:
    """The difference of two histograms of a meter is the histogram of the values in between."""
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
    """Each value is in the one bucket that it belongs to, whether values are counted at once or in parts."""
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
    """No value is lost or counted twice if some threads note values while another thread counts."""
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
