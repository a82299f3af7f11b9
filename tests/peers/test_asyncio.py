"""CPython's own tests of ``asyncio.Queue``, run against the one that keeps its items on disk.

They are taken from the interpreter that runs; none of their code is here. Where that was installed without its tests
there is nothing to run. What is left out is named, with the reason.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import unittest
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import persistentqueue
from persistentqueue import aio, check, codecs
from tests.support.queues import IN_CACHE

STEPS = "counts the steps of the event loop, of which a put, or a join, that is durable takes more than one"
NOT_OFFERED = "there is no such order of items on disk"
LEFT_OUT = {
    "LifoQueueTests": NOT_OFFERED,
    "PriorityQueueTests": NOT_OFFERED,
    "LifoQueueJoinTests": NOT_OFFERED,
    "PriorityQueueJoinTests": NOT_OFFERED,
    "LifoQueueShutdownTests": NOT_OFFERED,
    "PriorityQueueShutdownTests": NOT_OFFERED,
}
"""Classes of tests that do not apply."""
STEP_COUNTING = {
    "test_maxsize": STEPS,
    "test_put_cancelled": STEPS,
    "test_put_cancelled_race": STEPS,
    "test_shutdown_nonempty": STEPS,
    "test_shutdown_immediate": STEPS,
    "test_shutdown_immediate_with_unfinished": STEPS,
}
"""Tests that durable calls cannot pass; they are passed by calls that do not wait until they are durable."""

standard = pytest.importorskip("test.test_asyncio.test_queues", reason="this Python was installed without its tests")
opened: list[Queue] = []


class Queue(aio.Queue[Any]):
    """One in a directory of its own, opened at once, as those tests do it: also where no loop runs."""

    def __init__(self, maxsize: Any = 0) -> None:
        self._directory = tempfile.mkdtemp()
        super().__init__(self._directory, maxsize, codec=codecs.JSON)
        self._begin(persistentqueue.PersistentQueue(self._directory, disk=IN_CACHE))
        opened.append(self)

    def end(self) -> None:
        """Close it, and look whether its directory is consistent."""
        self._worker.end()
        if self._core is not None:
            self._core.close()
        self._watcher.end()
        report = check(self._directory)
        assert report.ok, report.problems
        shutil.rmtree(self._directory)


class SoonDurable(Queue):
    """Whose calls do not wait until they are durable."""

    async def put(self, item: Any) -> None:
        await asyncio.Queue.put(self, item)

    async def join(self) -> None:
        await asyncio.Queue.join(self)


SoonDurable.__name__ = "Queue"  # what the tests of repr want


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """The queues that a test opens are closed behind it."""
    yield
    while opened:
        opened.pop().end()


def cases() -> Iterator[tuple[str, str, type[Queue]]]:
    """The tests that apply, each with the durable queue, and those that count steps with the other one."""
    for name in sorted(vars(standard)):
        kind = getattr(standard, name)
        if not (isinstance(kind, type) and issubclass(kind, unittest.TestCase)) or name in LEFT_OUT:
            continue
        for test in unittest.TestLoader().getTestCaseNames(kind):
            yield name, test, SoonDurable
            if test not in STEP_COUNTING:
                yield name, test, Queue


@pytest.mark.filterwarnings("ignore:a session was dropped:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("kind", "test", "queue"), list(cases()), ids=str)
def test_standard(kind: str, test: str, queue: type[Queue], monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard library's promise holds. Some of its loops end before they hear what a thread has taken."""
    names = vars(asyncio) | {"Queue": queue, "QueueShutDown": aio.QueueShutDown}
    monkeypatch.setattr(standard, "asyncio", SimpleNamespace(**names))
    # Python 3.10's waits a second for each thread, which are ended behind the test.
    monkeypatch.setattr("test.support.threading_helper.threading_cleanup", lambda *_: None)
    case = getattr(standard, kind)(test)
    if hasattr(case, "q_class"):
        monkeypatch.setattr(type(case), "q_class", queue)
    result = unittest.TestResult()
    case.run(result)
    for _, trace in [*result.errors, *result.failures]:
        pytest.fail(trace)


def test_all_classes_are_known() -> None:
    """What is left out is there, but for what came with 3.13, and much is left."""
    new = set() if sys.version_info >= (3, 13) else {name for name in LEFT_OUT if "Shutdown" in name}
    assert {name for name in LEFT_OUT if not hasattr(standard, name)} == new
    assert len(list(cases())) > 60
