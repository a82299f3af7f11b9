"""Fixtures that all tests have."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator

import pytest


class _Circle:
    """An object that only a garbage collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(scope="module")
def freed() -> Iterator[list[weakref.ref[_Circle]]]:
    """Fail if one of these objects outlives the fixtures of its test."""
    objects: list[weakref.ref[_Circle]] = []
    yield objects
    assert [each() for each in objects] == [None]


def test_what_a_log_record_refers_to_ends_with_its_test(freed: list[weakref.ref[_Circle]]) -> None:
    """No object outlives its test in a log record: warnings of its finalizer would belong to the next test."""
    circle = _Circle()
    freed.append(weakref.ref(circle))
    logging.getLogger(__name__).error("%r", circle)
