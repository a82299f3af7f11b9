"""persist-queue's own tests of its file ``Queue``, taken from its installation, on ``compat.Queue``."""

from __future__ import annotations

import importlib.util
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from persistentqueue import codecs, compat

# Those tests drop their queues without closing them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LEFT_OUT = {
    "test_partial_write": "appends to q00000, a file that we do not have; test_recovery tears our log",
    "test_garbage_on_head": "likewise",
    "test_clear_tail_file": "opens the directory a second time, which persist-queue allows and loses items by (its "
    "one task_done is for all that was got, too); we raise QueueLockedError",
    "test_protocol": "serialises to a stream, by dump and load; a codec has encode and decode",
    "test_del": "looks at headf and tailf, files that we do not have",
    "test_autosave_get": "autosave: what was got is gone without task_done; ours comes back, as it promises otherwise",
    "test_put_block_and_wait": "its get_nowait() needs a sixth item where the producer need not have put it yet; "
    "the same with get() is below",
}


class Cbor:
    """A codec that a user wrote."""

    def __init__(self) -> None:
        self.encode: Any = pytest.importorskip("cbor2").dumps
        self.decode: Any = pytest.importorskip("cbor2").loads


CODECS: dict[str, Callable[[], Any]] = {
    "pickle": lambda: codecs.UNSAFE_PICKLE,
    "json": lambda: codecs.JSON,
    "msgpack": codecs.MessagePack,
    "cbor2": Cbor,
}


class Queue(compat.Queue[Any]):
    """A queue with persist-queue's arguments: its serializers become codecs."""

    def __init__(self, path: str, maxsize: int = 0, *, serializer: Any = None, autosave: bool = False) -> None:
        super().__init__(path, maxsize, codec=CODECS[serializer.name if serializer else "pickle"](), sync=False)


def _load() -> ModuleType | None:
    """Load their test module with this queue in place of persist-queue's; return None if that is not installed."""
    installed = importlib.util.find_spec("persistqueue")
    if installed is None or installed.origin is None:
        return None
    shims: dict[str, Any] = {name: ModuleType(name) for name in ("persistqueue", "persistqueue.serializers")}
    shims["persistqueue"].__dict__.update(Queue=Queue, Empty=compat.Empty, Full=compat.Full)
    shims["persistqueue.serializers"].__dict__.update({name: SimpleNamespace(name=name) for name in CODECS})
    path = Path(installed.origin).parent / "tests" / "test_queue.py"
    spec = importlib.util.spec_from_file_location("tests_of_persistqueue", path)
    if not path.exists() or spec is None or spec.loader is None:
        return None
    before = {name: sys.modules.get(name) for name in shims}
    sys.modules.update(shims)
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        for name, former in before.items():
            sys.modules.pop(name)
            if former is not None:
                sys.modules[name] = former
    return module


theirs = _load()
if theirs is None:
    pytest.skip("persist-queue is not installed, or without its tests", allow_module_level=True)

queue_path = theirs.queue_path
THEIRS = {name: test for name, test in vars(theirs.TestPersist).items() if name.startswith("test_")}
TestPersist = type("TestPersist", (), {name: test for name, test in THEIRS.items() if name not in LEFT_OUT})


def test_what_is_left_out_is_there() -> None:
    """Each exclusion names a test that the suite has, and most of the suite runs."""
    assert set(LEFT_OUT) < set(THEIRS)
    assert len(THEIRS) - len(LEFT_OUT) >= 15


def test_put_blocks_and_goes_on(queue_path: str) -> None:
    """A producer of more than ``maxsize`` items waits for room, and all items come in order."""
    queue = Queue(queue_path, maxsize=10)
    producer = Thread(target=lambda: deque(map(queue.put, range(16)), 0))
    producer.start()
    got = [queue.get() for _ in range(6)]
    producer.join()
    assert got == list(range(6))
    assert queue.qsize() == 10
    queue.close()
