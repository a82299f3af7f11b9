"""``python -m tests.peers.cpython``: the ``test.test_queue`` of the Python that runs it, against ``compat.Queue``.

Each test runs twice: with a queue of this process, and with a shared one, whose calls go through a socket.

It uses only ``unittest``, so that any Python with ``portalocker`` can run it. It prints the number of tests that ran,
and each exclusion with its reason.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
import unittest
from types import SimpleNamespace
from typing import Any

from persistentqueue import compat

OF_SHARED = {
    f"BaseSimpleQueueTest.test_many_threads{way}": "a shared queue holds at most 200 items that were got one by one"
    for way in ("", "_nonblock", "_timeout")
}
"""Tests that do not apply to a shared queue: they get thousands of items without ``task_done``."""
LEFT_OUT = {
    "LifoQueueTest": "a LifoQueue is no FIFO",
    "PriorityQueueTest": "a PriorityQueue is no FIFO",
    "BaseSimpleQueueTest.test_references": "what comes out of a disk is another object than what was put in",
    "CSimpleQueueTest.test_reentrancy": "a SimpleQueue may be put into from a finalizer that interrupts a put",
    "CSimpleQueueTest.test_is_default": "is about the module queue itself",
}
"""Tests that do not apply to a FIFO on a disk."""


class Directories:
    """A mixin that closes the queues of a test and deletes their directories, and is the module ``queue`` for it."""

    shared = False

    def setUp(self) -> None:
        self.opened: list[compat.Queue[Any]] = []
        outer = self

        class Queue(compat.Queue[Any]):
            """A queue in a directory of its own, under the name that the tests use."""

            def __init__(self, maxsize: int = 0) -> None:
                # Up to 64 Ki items are put one by one; no power is cut here, so no sync is needed.
                super().__init__(tempfile.mkdtemp(), maxsize, sync=False, shared=outer.shared)
                outer.opened.append(self)

        errors = {"Empty": compat.Empty, "Full": compat.Full, "ShutDown": compat.ShutDown}
        self.queue = SimpleNamespace(Queue=Queue, **errors)
        self.type2test = Queue
        super().setUp()  # type: ignore[misc]

    def tearDown(self) -> None:
        for queue in self.opened:
            queue.close()
            shutil.rmtree(queue.persistent.path)
        super().tearDown()  # type: ignore[misc]


def suite() -> unittest.TestSuite:
    """Return every test that applies."""
    theirs: Any = importlib.import_module("test.test_queue")  # not needed by an import of this module

    found = unittest.TestSuite()
    for name in ("QueueTest", "FailingQueueTest", "BaseSimpleQueueTest"):
        for kind, shared in (("Owned", False), ("Shared", True)):
            bases = (Directories, getattr(theirs, name), unittest.TestCase)
            ours: Any = type(f"{kind}{name}", bases, {"shared": shared})
            for test in unittest.defaultTestLoader.getTestCaseNames(ours):
                if f"{name}.{test}" not in (LEFT_OUT | OF_SHARED if shared else LEFT_OUT):
                    found.addTest(ours(test))
    return found


def main() -> None:
    """Run the tests, and print the result."""
    for name, reason in (LEFT_OUT | OF_SHARED).items():
        print(f"left out: {name}: {reason}")
    result = unittest.TextTestRunner(sys.stdout, verbosity=2).run(suite())
    skipped = [reason for _, reason in result.skipped if not reason.startswith("not enough memory")]
    print(f"ran {result.testsRun - len(result.skipped)}, skipped {len(skipped)}")
    raise SystemExit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
