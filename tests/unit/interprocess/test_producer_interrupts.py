"""Producers whose calls are interrupted wherever CPython looks for signals."""

from __future__ import annotations

import sys
from collections.abc import Callable
from unittest.mock import patch

import pytest

from persistentqueue import Producer
from persistentqueue.core.items import Batch
from persistentqueue.interrupts.call_guard import FREE_THREADED
from tests.crash.interrupts import AlarmError, Interruption, Place, Tracer, drained, traced
from tests.crash.scenarios import PATH, A, B, C, World
from tests.support.disks import call_on
from tests.support.queues import receive_signals

pytestmark = pytest.mark.unwatched  # the tracer takes the place of that of coverage
ITEMS = [A, B, C]


def _interrupted_everywhere(
    prepare: Callable[[Producer[bytes]], Callable[[], object]], check: Callable[[World, Producer[bytes]], None]
) -> None:
    """Make the call that ``prepare`` returns once for each place in it, interrupted there, and ``check`` the rest.

    The interruption is each of two errors in turn, and must come out.
    """
    receive_signals()

    def run(target: tuple[Place, int] | None) -> dict[Place, int]:
        world = World()
        world.open("q").close()
        with call_on(world.disk, Producer, PATH, "q") as producer:
            call = prepare(producer)
            tracer = traced(call, target)
            if tracer.has_raised:
                try:
                    check(world, producer)
                except AssertionError as error:
                    raise AssertionError(f"interrupted at {target}") from error
            producer.rollback()
        return tracer.seen

    run(None)  # imports of the first run do not count
    seen = run(None)
    calls_less = FREE_THREADED or sys.version_info >= (3, 14)  # fewer functions of Python
    assert len(seen) > (19 if calls_less else 20)
    for place, count in seen.items():
        for nth in {1, count}:
            for raises in (Interruption, AlarmError):
                with patch.object(Tracer, "raises", raises):
                    run((place, nth))


def _spilling(producer: Producer[bytes]) -> None:
    producer._batch = Batch(len(A))  # each further item spills those before it


@pytest.mark.parametrize("spills", [False, True])
def test_an_interrupted_flush_leaves_no_items_that_are_published(spills: bool) -> None:
    """After an interrupted flush, the producer has all of its items, and none is published, or it has none of them. In
    the second case all of them may be published."""

    def prepare(producer: Producer[bytes]) -> Callable[[], object]:
        if spills:
            _spilling(producer)
        producer.enqueue_many(ITEMS)
        return producer.flush

    def check(world: World, producer: Producer[bytes]) -> None:
        pending = producer.pending
        assert pending in {0, len(ITEMS)}
        producer.flush()
        found = drained(world.disk, "q")
        assert found == ITEMS or (not pending and not found)

    _interrupted_everywhere(prepare, check)


def test_an_interrupted_spill_doubles_nothing() -> None:
    """After an interrupted ``enqueue`` that spills, the producer has each item once, and those before it in any
    case."""

    def prepare(producer: Producer[bytes]) -> Callable[[], object]:
        _spilling(producer)
        producer.enqueue_many([A, B])
        return lambda: producer.enqueue(C)

    def check(world: World, producer: Producer[bytes]) -> None:
        pending = producer.pending
        assert pending >= len(ITEMS) - 1
        producer.flush()
        assert drained(world.disk, "q") == ITEMS[:pending]

    _interrupted_everywhere(prepare, check)


def test_an_interrupted_rollback_leaves_no_part() -> None:
    """After an interrupted rollback, the producer has all of its items, or none of them and no file."""

    def prepare(producer: Producer[bytes]) -> Callable[[], object]:
        _spilling(producer)
        producer.enqueue_many(ITEMS)
        return producer.rollback

    def check(world: World, producer: Producer[bytes]) -> None:
        if producer.pending:
            assert producer.pending == len(ITEMS)
        else:
            assert world.disk.listdir(f"{PATH}/q/inbox") == []

    _interrupted_everywhere(prepare, check)
