"""CPython's own tests of ``asyncio.Queue``, run against the queue that keeps its items on disk.

They are taken from the interpreter that runs; none of their code is here. A Python that was installed without its tests
has none to run. Each excluded test is named, with the reason.
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

from persistentqueue import PersistentQueue, aio, check, codecs
from persistentqueue.aio import standard_queue_worker
from tests.support.disks import call_on
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
"""Tests that durable calls cannot pass; they run with calls that do not wait until they are durable."""

standard = pytest.importorskip("test.test_asyncio.test_queues", reason="this Python was installed without its tests")
opened: list[Queue] = []


class Queue(aio.Queue[Any]):
    """A queue in a directory of its own, opened at once, even without an event loop, as those tests need it."""

    def __init__(self, maxsize: Any = 0) -> None:
        self._directory = tempfile.mkdtemp()
        super().__init__(self._directory, maxsize, codec=codecs.JSON)
        core: PersistentQueue[bytes] = call_on(IN_CACHE, PersistentQueue, self._directory)
        self._begin(standard_queue_worker.opened(lambda: core, None))
        opened.append(self)

    def end(self) -> None:
        """Close the queue, check its directory, and delete it."""
        self._warns = False
        asyncio.run(self._worker.ended())
        if self._core is not None:
            self._core.close()
        asyncio.run(self._watcher.ended())
        report = check(self._directory)
        assert report.ok, report.problems
        shutil.rmtree(self._directory)


class SoonDurable(Queue):
    """A queue whose calls do not wait until they are durable."""

    async def put(self, item: Any) -> None:
        await asyncio.Queue.put(self, item)

    async def join(self) -> None:
        await asyncio.Queue.join(self)


SoonDurable.__name__ = "Queue"  # the name that the tests of repr expect


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Close the queues of a test after it."""
    yield
    while opened:
        opened.pop().end()


def cases() -> Iterator[tuple[str, str, type[Queue]]]:
    """Yield the tests that apply, each with the durable queue and with the other one; tests that count steps only with
    that."""
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
    """The promise of the standard library holds; some of its event loops end before they get what a thread has
    taken."""
    names = vars(asyncio) | {"Queue": queue, "QueueShutDown": aio.QueueShutDown}
    monkeypatch.setattr(standard, "asyncio", SimpleNamespace(**names))
    # The check of Python 3.10 waits a second for each thread, and the threads end only after the test.
    monkeypatch.setattr("test.support.threading_helper.threading_cleanup", lambda *_: None)
    case = getattr(standard, kind)(test)
    if hasattr(case, "q_class"):
        monkeypatch.setattr(type(case), "q_class", queue)
    result = unittest.TestResult()
    case.run(result)
    for _, trace in [*result.errors, *result.failures]:
        pytest.fail(trace)


def test_all_classes_are_known() -> None:
    """Each excluded class exists, except for those that came with Python 3.13, and most tests are not excluded."""
    new = set() if sys.version_info >= (3, 13) else {name for name in LEFT_OUT if "Shutdown" in name}
    assert {name for name in LEFT_OUT if not hasattr(standard, name)} == new
    assert len(list(cases())) > 60
