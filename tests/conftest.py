"""Hooks and fixtures for all tests. Every test ends with its queues closed, its directories consistent, and no
descriptor or thread left over."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import settings

from persistentqueue import PersistentQueue, check
from persistentqueue.errors import CorruptionError
from persistentqueue.interrupts.signal_shield import THREAD_NAME as HELPER_NAME
from persistentqueue.runtime.background import THREAD_NAME
from persistentqueue.runtime.maintenance import Maintenance
from persistentqueue.serving import server
from persistentqueue.storage.layout import find_generations
from persistentqueue.storage.locations import ID_NAME
from persistentqueue.system import progress
from persistentqueue.system.disk import DISK
from tests import suites
from tests.support import quick_spark
from tests.support.disks import call_on
from tests.support.queues import receive_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QueueFactory = Callable[..., PersistentQueue]
_ENDING = {THREAD_NAME, HELPER_NAME, server.THREAD_NAME, server.CALL_THREAD_NAME}
"""Names of threads that end by themselves, a moment after what a test waits for."""
_BEFORE_TEARDOWN: tuple[Literal["setup"], Literal["call"]] = ("setup", "call")
"""Phases of a test whose log records pytest keeps until the next test."""


def _descriptors() -> dict[int, str]:
    """Return the open descriptors of this process with their targets; return none if the system does not list them."""
    found = {}
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


def pytest_configure() -> None:
    """Make this process and its children receive signals as a process of a terminal does, however it was started."""
    if threading.current_thread() is threading.main_thread():
        receive_signals()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests marked ``spark`` first: they take longest, and no process should be left with one at the end.

    If ``SHUFFLE=<seed>`` is in the environment, shuffle the tests of each file: no test may depend on an earlier one.
    """
    if seed := os.environ.get("SHUFFLE"):
        files = list(dict.fromkeys(item.path for item in items))
        Random(seed).shuffle(items)
        items.sort(key=lambda item: files.index(item.path))
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Let coverage watch the imports of its modules, but not those of the tests, if ``WATCHED`` has paths."""
    if not os.environ.get("WATCHED"):
        return (yield)
    for module in session.config.getoption("cov_source", None) or []:  # a hunt for a planted bug has none
        importlib.import_module(module)
    with _unwatched():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let coverage watch only the tests of ``WATCHED`` that are not marked ``unwatched``, if ``WATCHED`` has paths.

    Coverage doubles the time of a test. The marker ``no_cover`` of pytest-cov has no effect in a process of xdist:
    there are two watchers, and if one stops, the other goes on.
    """
    watched = tuple(os.environ.get("WATCHED", "").split())
    if not watched or (item.nodeid.startswith(watched) and item.get_closest_marker("unwatched") is None):
        return (yield)
    with _unwatched():
        return (yield)


@contextmanager
def _unwatched() -> Iterator[None]:
    """Let coverage see nothing of the context, nor of the threads that start in it."""
    own, that_of_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
        sys.settrace(own)
        threading.settrace(that_of_threads)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Send the files of ``ONE_JAVA`` to one process with ``--dist loadfile``, so that their tests share one Spark. Send
    each test of ``DIVIDED``, and of the suite ``long``, to the process that is free."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    one_java = frozenset(suites.paths(suites.ONE_JAVA))
    divided = frozenset(suites.paths(f"{suites.DIVIDED} {suites.APART['long'].tests}")) - one_java

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            if file in divided:
                return nodeid
            return "one Java" if file in one_java else file

    return Scheduling(config, log)


def pytest_collection_finish() -> None:
    """Exempt all objects made so far from garbage collection: each test ends with a collection, which they would slow
    down."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def nothing_old_is_collected() -> None:
    """Exempt what the tests of other files have left from garbage collection, as ``pytest_collection_finish`` does."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def reports_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``progress`` be told of each step of the work, however small it is."""
    monkeypatch.setattr(progress, "STEP_BYTES", 0)


def _is_of_java(thread: threading.Thread) -> bool:
    """Return whether Java has started the thread, to release an object: it may do so long after a test of Spark."""
    return str(getattr(getattr(thread, "_target", None), "__module__", "")).startswith("py4j.")


def _ends_by_itself(thread: threading.Thread) -> bool:
    """Return whether the thread ends a moment after what a test waits for: rich joins no thread of a bar that ends."""
    return thread.name in _ENDING or type(thread).__module__ == "rich.live"


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if a test leaves a thread or a descriptor of a queue's file behind.

    Objects that only a log record keeps are freed here, too: the record of an error has the frames that the error went
    through. Else the next test would free them, and have their warnings.
    """
    if request.node.get_closest_marker("spark") or request.node.get_closest_marker("airflow"):
        yield  # the JVM's sockets and py4j's threads outlive a test, by design; so do Airflow's connections
        return
    threads = set(threading.enumerate())
    before = _descriptors()
    yield
    for phase in _BEFORE_TEARDOWN:
        caplog.get_records(phase).clear()
    gc.collect()
    for thread in threading.enumerate():
        if thread not in threads and _ends_by_itself(thread):
            thread.join(60)
    left = {fd: target for fd, target in _descriptors().items() if before.get(fd) != target}
    foreign = ("/dev/", "/usr/lib/")  # libffi, which ctypes uses, keeps its own file open
    own = {
        fd: target
        for fd, target in left.items()
        if target.startswith((tempfile.gettempdir(), "anon_inode"))
        or (target.startswith("/") and not target.startswith(foreign))
    }
    assert not own, f"descriptors left open: {own}"
    running = {thread for thread in threading.enumerate() if not _is_of_java(thread)}
    assert running <= threads, "threads left running"


@pytest.fixture(autouse=True)
def consistent_directories(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check each queue under ``tmp_path`` after the test, unless the test is marked ``damages``."""
    root: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if root is None or request.node.get_closest_marker("damages"):
        return
    for directory, _, files in os.walk(root):
        if ID_NAME in files:  # the location of a queue's segments, which are checked with the queue
            continue
        try:
            is_queue = bool(find_generations(DISK, directory))
        except CorruptionError as damage:
            pytest.fail(f"{directory}: {damage}")
        if is_queue:
            report = check(directory)
            assert report.ok, f"{directory}: {report.problems}"


@pytest.fixture(autouse=True)
def nothing_by_itself(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent maintenance during a test, however slow the machine is, unless the test is marked ``maintained``."""
    if not request.node.get_closest_marker("maintained"):
        monkeypatch.setattr(Maintenance, "maintain_soon", lambda self: None)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Yield an executor whose threads have ended when the test ends.

    ``open_queue`` depends on it and so ends first. Its end wakes the threads that still wait in a queue, so that a test
    that fails reports its failure.
    """
    with ThreadPoolExecutor(16) as executor:
        yield executor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the directory in which ``open_queue`` makes its queues."""
    return tmp_path / "queues"


@pytest.fixture
def open_queue(tmp_path: Path, threads: ThreadPoolExecutor) -> Iterator[QueueFactory]:
    """Yield a function that opens ``tmp_path/queues/orders`` or another ``name=``; close its queues at the end."""
    opened: list[PersistentQueue] = []

    def factory(name: str | None = "orders", **settings: Any) -> PersistentQueue:
        path, disk = settings.pop("path", tmp_path / "queues"), settings.pop("disk", DISK)
        queue = call_on(disk, PersistentQueue, path, name, **settings)
        opened.append(queue)
        return queue

    yield factory
    for queue in opened:
        queue.close()


@pytest.fixture
def attacked(open_queue: QueueFactory, directory: Path) -> Path:
    """Return the inbox of a queue that no process owns."""
    open_queue().close()
    return directory / "inbox"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of the queue that ``open_queue`` opens."""
    return tmp_path / "queues" / "orders"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield one local Spark session for all tests of a process, of Spark Connect if ``SPARK_MODE=connect`` is set."""
    from persistentqueue.spark import JavaNotFoundError, register
    from tests.support.spark_modes import session

    with ExitStack() as stack:
        try:
            opened = stack.enter_context(session(tmp_path_factory.mktemp("spark")))
        except JavaNotFoundError as reason:
            pytest.skip(str(reason))
        register(opened)
        if threading.current_thread() is threading.main_thread():  # PySpark's handler would change what later tests see
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield opened


quick_spark.prepare(os.environ)

settings.register_profile("default", deadline=None)
settings.register_profile("long", deadline=None, max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
