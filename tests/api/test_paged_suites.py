"""The suites of ``OpenQueue``, of the public calls and of diskqueue's scenarios once more, with a memory limit below
their load. Their results do not depend on the limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from persistentqueue import PersistentQueue
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.predecessors import test_diskqueue_scenarios as scenarios
from tests.support.disks import call_on
from tests.unit.runtime import test_open_queue as group

from . import test_queue as queue

MEMORY_BYTES = 150
SUITES = (group, queue, scenarios)
OTHERS = {"test_performance_many_small_items", "test_stats_add_up", "test_a_list_has_items_of_several_pages"}
"""Tests that need a certain amount in memory, or measure time."""


@pytest.fixture
def open_queue(tmp_path: Path) -> Iterator[QueueFactory]:
    """Yield a function that opens queues with memory for two or three small items."""
    opened: list[PersistentQueue] = []

    def factory(name: str | None = "orders", **settings: Any) -> PersistentQueue:
        path, disk = settings.pop("path", tmp_path / "queues"), settings.pop("disk", DISK)
        options = {"memory_bytes": MEMORY_BYTES, **settings}
        opened.append(call_on(disk, PersistentQueue, path, name, **options))
        return opened[-1]

    yield factory
    for each in opened:
        each.close()


def tests_of(suite: Any) -> dict[str, Callable[..., None]]:
    """Return the tests of a suite that open queues by the fixture."""
    return {
        name: test
        for name, test in vars(suite).items()
        if name.startswith("test_") and isinstance(test, FunctionType) and "open_queue" in test.__annotations__
    }


globals().update({name: test for suite in SUITES for name, test in tests_of(suite).items() if name not in OTHERS})


def test_suites_are_collected(open_queue: QueueFactory) -> None:
    """Each suite has tests here, and the queues of these tests have little memory."""
    assert all(len(tests_of(suite)) > 10 for suite in SUITES)
    assert set(tests_of(queue)) - OTHERS <= set(globals())
    assert open_queue().stats().memory_bytes == MEMORY_BYTES
