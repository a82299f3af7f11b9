"""The public calls: sessions, transactions, browsing, clearing and statistics, and the reaction to wrong input."""

from __future__ import annotations

import array
import asyncio
import gc
import mmap
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    InvalidNameError,
    ItemTooLargeError,
    PathMissingError,
    PersistentQueue,
    PersistentQueueError,
    Producer,
    QueueFullError,
    QueueLockedError,
    QueueNotFoundError,
    UnflushedWarning,
    View,
    aio,
    check,
    compat,
    connect,
    list_queues,
)
from persistentqueue.core.page_cache import TAIL_PAGE_BYTES
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, log_file, put, put_each, segment_files, wait_for


def test_the_ten_lines(tmp_path: Path) -> None:
    """The short example of the documentation does what its comments say."""
    with PersistentQueue(tmp_path / "queues", "orders") as queue:
        with queue.session() as session:
            session.enqueue(b"one")
            session.enqueue_many([b"two", b"three"])
            session.flush()
        with queue.session() as session:
            assert session.dequeue() == b"one"
            assert session.dequeue_many(100) == [b"two", b"three"]
            session.rollback()
        with queue.session() as session:
            assert session.dequeue_many(2) == [b"one", b"two"]
            session.flush()
    with PersistentQueue(tmp_path / "queues", "orders") as queue:
        assert drain(queue) == [b"three"]


@pytest.mark.parametrize(
    "item",
    [
        b"",
        b"x",
        bytearray(b"abc"),
        memoryview(b"abcdef")[::2],
        array.array("i", [1, 2, 3]),
        type("B", (bytes,), {})(b"b"),
    ],
    ids=lambda item: type(item).__name__,
)
def test_any_bytes_like_object_is_an_item(item: Any, open_queue: QueueFactory) -> None:
    """An object with the buffer protocol can be enqueued, alone or with others, and comes out as bytes."""
    queue = open_queue()
    with queue.transaction() as session:
        session.enqueue(item)
        session.enqueue_many([item, b"between", item])
        session.enqueue_many(iter([item]))
    expected = memoryview(item).tobytes()
    found = drain(queue)
    assert found == [expected, expected, b"between", expected, expected]
    assert {type(each) for each in found} == {bytes}


def test_items_are_taken_when_enqueued(open_queue: QueueFactory) -> None:
    """A change of a buffer or a list after it was enqueued does not change the items."""
    queue = open_queue()
    buffer, items = bytearray(b"before"), [b"a"]
    with queue.transaction() as session:
        session.enqueue(buffer)
        session.enqueue_many(items)
        buffer[:] = b"after!"
        items.append(b"b")
    assert drain(queue) == [b"before", b"a"]


@pytest.mark.parametrize("item", ["text", None, 5, 1.5, [b"x"], object()], ids=lambda item: type(item).__name__)
def test_what_is_no_item(item: Any, open_queue: QueueFactory) -> None:
    """An object without bytes is refused, and the session goes on unchanged."""
    queue = open_queue()
    with queue.session() as session:
        session.enqueue(b"good")
        with pytest.raises(TypeError, match="bytes-like object, not"):
            session.enqueue(item)
        for items in ([b"x", item], [item]):
            with pytest.raises(TypeError, match="bytes-like object, not"):
                session.enqueue_many(items)
        session.flush()
    assert drain(queue) == [b"good"]


@pytest.mark.parametrize(
    ("item", "advice"),
    [
        ("text", "str: encode it, or open the queue with codec=codecs.TEXT"),
        ({"order": 42}, "dict: open the queue with codec=codecs.JSON"),
        ([1], "list: use enqueue_many for several items, or open the queue with codec=codecs.JSON"),
        ((b"a", b"b"), "tuple: use enqueue_many for several items, or open the queue with codec=codecs.JSON"),
        (5, "int: open the queue with codec=codecs.JSON"),
        (1.5, "float: open the queue with codec=codecs.JSON"),
        (True, "bool: open the queue with codec=codecs.JSON"),
        (None, "NoneType: open the queue with codec=codecs.JSON"),
        (object(), "object: encode it, or open the queue with a codec for such items"),
    ],
)
def test_the_error_for_what_is_no_item_names_the_codec(item: Any, advice: str, open_queue: QueueFactory) -> None:
    """The error for an item without bytes names the codec that takes it, and for several items the call."""
    with open_queue().session() as session, pytest.raises(TypeError) as caught:
        session.enqueue(item)
    assert str(caught.value) == f"an item must be a bytes-like object, not {advice}"


def test_item_of_four_gibibytes_is_refused(open_queue: QueueFactory) -> None:
    """An item beyond 4 GiB - 1 is refused before it is copied."""
    queue = open_queue()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # only for reading, so that the system reserves no memory
    with mmap.mmap(-1, 2**32, flags=flags, prot=mmap.PROT_READ) as huge, queue.session() as session:
        with pytest.raises(ItemTooLargeError):
            session.enqueue(huge)
        series: list[list[Any]] = [[b"x", huge], [huge]]
        for items in series:
            with pytest.raises(ItemTooLargeError):
                session.enqueue_many(items)
        assert session.flush()
    assert len(queue) == 0


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan")])
def test_negative_timeouts(timeout: float, open_queue: QueueFactory) -> None:
    """A timeout that is negative or not a number is refused, and so is a negative count."""
    queue = open_queue()
    put(queue, b"x")
    with queue.session() as session:
        with pytest.raises(ValueError, match="timeout"):
            session.dequeue(timeout)
        with pytest.raises(ValueError, match="timeout"):
            session.dequeue_many(1, timeout=timeout)
        with pytest.raises(ValueError, match="timeout"):
            session.dequeue(Decimal(timeout))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="max_items"):
            session.dequeue_many(-1)
        with pytest.raises(TypeError, match="timeout must be None or a number of seconds, not '1'"):
            session.dequeue(timeout="1")  # type: ignore[arg-type]
        for call in (session.dequeue, lambda timeout: session.dequeue_many(1, timeout), queue.wait):
            with pytest.raises(TypeError, match="timeout must be None or a number of seconds, not True"):
                call(True)  # as block=True of queue.Queue
    with pytest.raises(ValueError, match="lock_timeout"):
        open_queue("other", lock_timeout=timeout)
    assert len(queue) == 1


@pytest.mark.parametrize("kind", [Decimal, Fraction])
def test_a_timeout_may_be_any_number(kind: Any, open_queue: QueueFactory) -> None:
    """A timeout may be a number of any type that compares with floats, and the call waits that long."""
    queue = open_queue(max_items=1, full="block")
    with queue.session() as session:
        assert session.dequeue(timeout=kind("0.01")) is None
        assert session.dequeue_many(1, timeout=kind("0.01")) == []
        assert not queue.wait(timeout=kind("0.01"))
        put(queue, b"a")
        session.enqueue(b"b")
        with pytest.raises(QueueFullError):
            session.flush(timeout=kind("0.01"))
        session.rollback()


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "/absolute", "a/b", "x" * 65, "späße", "a b", "a\0", "a\n", "..\\x"], ids=repr
)
def test_names_that_cannot_be(name: str, open_queue: QueueFactory, tmp_path: Path) -> None:
    """A queue name that could leave the directory or hide in it is refused before anything is made."""
    with pytest.raises(InvalidNameError, match="64"):
        open_queue(name)
    assert not (tmp_path / "queues").exists()


@pytest.mark.parametrize(("path", "text"), [("", "path is empty"), ("a\0b", r"NUL character, got 'a\\x00b'")])
def test_paths_that_cannot_be(path: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty path, as of a variable that is not set, is refused by each interface, and so is a NUL character."""
    monkeypatch.chdir(tmp_path)
    kinds: list[Callable[..., object]] = [PersistentQueue, Producer, View, connect, check, list_queues]
    for kind in kinds:
        for arguments in ((path,), (path, "name"))[: 1 if kind is list_queues else 2]:
            with pytest.raises(ValueError, match=text):
                kind(*arguments)
    with pytest.raises(ValueError, match=text):
        compat.Queue(path, shared=True)
    with pytest.raises(ValueError, match=text):
        compat.FifoQueue(path)
    for kind in (PersistentQueue, connect):
        with pytest.raises(ValueError, match=f"data_{text}" if not path else text):
            kind(tmp_path / "queue", data_path=path)
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_in_a_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is refused with its text if the working directory was deleted."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    kinds: list[Callable[..., object]] = [PersistentQueue, Producer, View, connect]
    for kind in kinds:
        with pytest.raises(PathMissingError, match="q/x: the working directory was deleted"):
            kind("q/x")


def test_arguments_of_a_wrong_type(open_queue: QueueFactory, tmp_path: Path) -> None:
    """A name or a path that is not text raises ``TypeError``, and a negative size raises ``ValueError``."""
    with pytest.raises(TypeError, match="name must be text"):
        open_queue(5)
    kinds: list[Callable[..., object]] = [PersistentQueue, Producer, View, connect]
    for kind, path in product(kinds, (b"bytes", 5, None)):
        with pytest.raises(TypeError, match=f"path must be text or a path object, .* not {path!r}"):
            kind(path)
    with pytest.raises(TypeError, match=r"data_path must be text or a path object, .* not 5"):
        open_queue(data_path=5)
    for setting in ("segment_bytes", "memory_bytes", "inline_bytes", "log_bytes"):
        with pytest.raises(ValueError, match=setting):
            open_queue(**{setting: -1})
    assert not (tmp_path / "queues").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"segment_bytes": "1000"}, "segment_bytes must be a whole number, not '1000'"),
        ({"segment_bytes": 1e6}, "segment_bytes must be a whole number, not 1000000.0"),
        ({"memory_bytes": None}, "memory_bytes must be a whole number, not None"),
        ({"log_bytes": None}, "log_bytes must be"),
        ({"inline_bytes": float("nan")}, "inline_bytes must be"),
        ({"max_items": 1.5}, "max_items must be"),
        ({"max_disk_bytes": b"x"}, "max_disk_bytes must be"),
        ({"pool_max_bytes": "1"}, "pool_max_bytes must be"),
        ({"compact_below": "0.3"}, "compact_below must be a number, not '0.3'"),
        ({"lock_timeout": None}, "lock_timeout must be a number, not None"),
        ({"sync": "no"}, "sync must be True or False, not 'no'"),
        ({"full": None}, "full must be text, not None"),
    ],
    ids=str,
)
def test_settings_of_a_wrong_type(
    open_queue: QueueFactory, tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    """A setting of a wrong type raises a ``TypeError`` that names it, before anything is made."""
    with pytest.raises(TypeError, match=said):
        open_queue(**settings)
    assert not (tmp_path / "queues").exists()


def test_dequeue_part_of_an_item(open_queue: QueueFactory) -> None:
    """A count that is not a whole number is refused, and nothing is dequeued."""
    queue = open_queue()
    put(queue, b"a", b"b")
    with queue.session() as session:
        for wrong in (1.5, "1", None):
            with pytest.raises(TypeError):
                session.dequeue_many(wrong)  # type: ignore[arg-type]
    assert drain(queue) == [b"a", b"b"]


@pytest.mark.parametrize("name", ["a", "x" * 64, "A-b_c.d", "-", "0", "a.lock"])
def test_names_that_can_be(name: str, open_queue: QueueFactory, tmp_path: Path) -> None:
    """A name of 1 to 64 ordinary characters is accepted and becomes a directory."""
    put(open_queue(name), b"x")
    assert (tmp_path / "queues" / name).is_dir()


def test_queue_without_a_name(tmp_path: Path, open_queue: QueueFactory) -> None:
    """Without a name, the path itself is the directory of the queue."""
    queue = open_queue(None, path=tmp_path / "plain")
    put(queue, b"x")
    assert (queue.path, queue.name, queue.closed) == (str(tmp_path / "plain"), None, False)
    assert (tmp_path / "plain" / "lock").is_file()
    assert repr(queue) == f"PersistentQueue({str(tmp_path / 'plain')!r}, None)"


def test_files_are_private(open_queue: QueueFactory, directory: Path) -> None:
    """Directories of a queue have the mode 0700, and its files have the mode 0600."""
    put(open_queue(), b"x")
    modes = {path.name: path.stat().st_mode & 0o777 for path in [directory, *directory.rglob("*")]}
    assert {modes.pop(name) for name in ("orders", "log", "data", "inbox", "pool")} == {0o700}
    assert set(modes.values()) == {0o600}


def test_create_false(open_queue: QueueFactory, tmp_path: Path) -> None:
    """``create=False`` opens an existing queue and makes nothing."""
    with pytest.raises(QueueNotFoundError, match="create=False"):
        open_queue(create=False)
    with pytest.raises(FileNotFoundError):
        open_queue(create=False)
    assert not (tmp_path / "queues").exists()
    open_queue().close()
    assert len(open_queue(create=False)) == 0


def test_closing_twice_and_using_after(open_queue: QueueFactory) -> None:
    """Closing a queue again does nothing, and later calls raise ``ClosedError``. Its sessions can still be rolled back
    and closed."""
    queue = open_queue()
    session = queue.session()
    session.enqueue(b"x")
    with pytest.warns(UnflushedWarning, match="was not flushed before its queue was closed: 1 enqueued") as caught:
        queue.close()
    assert caught[0].filename == __file__
    queue.close()
    assert queue.closed
    assert session.closed
    for call in (
        lambda: len(queue),
        queue.session,
        queue.stats,
        queue.clear,
        queue.trim,
        queue.peek,
        lambda: queue.marker("x"),
        lambda: session.enqueue(b"x"),
        lambda: session.enqueue_many([b"x"]),
        session.dequeue,
        lambda: session.dequeue_many(1),
        session.flush,
    ):
        with pytest.raises(ClosedError, match="closed"):
            call()
    session.rollback()
    session.close()
    assert bool(queue)


def test_closed_session(open_queue: QueueFactory) -> None:
    """A closed session refuses work; closing it or rolling it back again does nothing."""
    queue = open_queue()
    session = queue.session()
    before = session.closed
    session.close()
    session.close()
    session.rollback()
    assert (before, session.closed) == (False, True)
    with pytest.raises(ClosedError, match=r"queue\.session\(\)"):
        session.enqueue(b"x")


def test_close_rolls_open_sessions_back(open_queue: QueueFactory) -> None:
    """Closing the queue releases the items that sessions hold, and drops the items that they enqueued."""
    queue = open_queue(segment_bytes=100)
    put_each(queue, [b"a", b"b", b"c"])
    session = queue.session()
    session._spill_bytes = 1
    assert session.dequeue() == b"a"
    session.enqueue_many([b"never", b"seen"])
    with pytest.warns(UnflushedWarning, match="2 enqueued items are dropped, 1 dequeued item is given back"):
        queue.close()
    assert drain(open_queue()) == [b"a", b"b", b"c"]


def test_dropping_the_last_reference(tmp_path: Path) -> None:
    """A queue that is dropped without ``close`` frees its lock and warns. The next opening finds what was committed."""
    queue = PersistentQueue(tmp_path, "q")
    put(queue, b"x")
    with pytest.warns(ResourceWarning, match="without close"):
        del queue
        gc.collect()
    with PersistentQueue(tmp_path, "q") as queue:
        assert not queue.recovery.clean
        assert drain(queue) == [b"x"]


def test_dropping_a_queue_that_a_session_uses(tmp_path: Path) -> None:
    """A dropped queue closes no file until its last session is dropped, too. Otherwise the session could write to
    another file that has the same descriptor number by then."""
    queue = PersistentQueue(tmp_path, "q")
    session = queue.session()
    session.enqueue(b"x")
    del queue
    gc.collect()
    with pytest.raises(QueueLockedError):
        PersistentQueue(tmp_path, "q")
    session.flush()
    with pytest.warns(ResourceWarning, match="without close"):
        del session
        gc.collect()
    with PersistentQueue(tmp_path, "q") as queue:
        assert drain(queue) == [b"x"]


def test_a_second_opening_in_one_process_says_so(tmp_path: Path) -> None:
    """The error about a lock of this process advises to use the open queue. That of another process names it."""
    with PersistentQueue(tmp_path, "q"):
        with pytest.raises(QueueLockedError, match=f"open in process {os.getpid()} on .*: that is this process: use "):
            PersistentQueue(tmp_path, "q")
        code = f"import persistentqueue; persistentqueue.PersistentQueue({str(tmp_path)!r}, 'q')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"open in process {os.getpid()} on " in done.stderr and "close it there" in done.stderr


def test_dropping_a_session(open_queue: QueueFactory) -> None:
    """A session that is dropped with pending work warns and releases its items; without pending work it does not
    warn."""
    queue = open_queue()
    put(queue, b"a", b"b")
    queue.session()
    session = queue.session()
    assert session.dequeue() == b"a"
    with pytest.warns(ResourceWarning, match="not flushed"):
        del session
        gc.collect()
    assert drain(queue) == [b"a", b"b"]


def test_dropped_in_a_cycle(tmp_path: Path) -> None:
    """If a queue and a session of it are garbage together, the loss of enqueued items is told, whichever goes first."""
    found: list[object] = []
    queue = PersistentQueue(tmp_path, "q")
    session = queue.session()
    session.enqueue(b"x")
    found += (queue, session, found)
    with pytest.warns(ResourceWarning), pytest.warns(UnflushedWarning, match="1 enqueued item is dropped"):
        del queue, session, found
        gc.collect()


def test_dropped_with_enqueued_items(open_queue: QueueFactory) -> None:
    """If a session is dropped, or its queue is closed, and its enqueued items are lost, there is a warning that Python
    shows. There is none if they were rolled back, or an exception leaves the block."""
    queue = open_queue()
    with pytest.warns(UnflushedWarning, match="was dropped without a flush: 1 enqueued item is dropped: call flush"):
        queue.session().enqueue(b"x")
        gc.collect()
    rolled_back = queue.session()
    rolled_back.enqueue(b"x")
    rolled_back.rollback()
    queue.close()
    queue = open_queue()
    with pytest.raises(KeyError), queue:
        session = queue.session()
        session.enqueue(b"x")
        raise KeyError
    queue = open_queue()
    with pytest.warns(UnflushedWarning, match="before its queue was closed") as caught, queue:
        session = queue.session()
        session.enqueue(b"x")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del session
        gc.collect()


@pytest.mark.parametrize("opened", [connect, PersistentQueue])
def test_a_flush_that_a_close_ends_causes_no_warning(tmp_path: Path, opened: Callable[..., Any]) -> None:
    """If a close ends a flush that waits for room, that flush raises ``ClosedError``, and the close does not warn."""
    queue = opened(tmp_path, "q", max_items=1, full="block")
    with queue.transaction() as session:
        session.enqueue(b"x")
    session = queue.session()
    session.enqueue(b"y")
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(session.flush)
        wait_for(lambda: queue.stats().waiting == 1)
        queue.close()
        assert isinstance(flushing.exception(30.0), ClosedError)


def test_a_warning_of_a_dropped_session_that_is_an_error(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a filter turns the warning into an error, the session is rolled back, and its thread ends all the same."""
    queue, raised = open_queue(), list[Any]()
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: raised.append(unraisable.exc_type))
    session = queue.session()
    session.enqueue(b"x")
    assert session.flush(wait=False).result()
    assert session.dequeue() == b"x"
    session.enqueue(b"y")
    thread = session._pipeline._thread if session._pipeline is not None else None
    assert thread is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnflushedWarning)
        del session
        gc.collect()
    assert raised == [UnflushedWarning]
    thread.join(30.0)
    assert not thread.is_alive()
    assert drain(queue) == [b"x"]


def test_a_session_of_a_broken_queue_is_dropped_without_a_warning(open_queue: QueueFactory) -> None:
    """If the queue is broken, its calls have raised errors, and a session that is dropped with work does not warn."""
    queue = open_queue()
    session = queue.session()
    session.enqueue(b"x")
    queue._open()._store.fail(OSError("failed by a test"))
    with pytest.raises(BrokenQueueError):
        session.flush()
    del session
    gc.collect()
    queue.close()


def test_dropped_session_is_given_back_later(open_queue: QueueFactory) -> None:
    """If a finalizer runs while the mutex is held, another thread or the next call does its work."""
    queue = open_queue()
    put(queue, b"a")
    session = queue.session()
    assert session.dequeue() == b"a"
    group = queue._open_queue
    assert group is not None
    with pytest.warns(ResourceWarning, match="not flushed"), group.mutex:
        del session
        gc.collect()
    wait_for(lambda: queue.stats().held == 0)
    assert drain(queue) == [b"a"]


def test_failed_constructor_leaves_nothing(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A second opening that is refused changes nothing, and its object can be dropped without a warning."""
    put(open_queue(), b"x")
    with pytest.raises(QueueLockedError):
        PersistentQueue(tmp_path / "queues", "orders")
    gc.collect()


def test_transaction_flushes_or_rolls_back(open_queue: QueueFactory) -> None:
    """``transaction()`` commits a block that ends without an error, and rolls back a block that raises."""
    queue = open_queue()
    put(queue, b"a", b"b")
    with pytest.raises(KeyError), queue.transaction() as session:
        session.enqueue(b"never")
        assert session.dequeue() == b"a"
        raise KeyError
    with queue.transaction() as session:
        assert session.dequeue() == b"a"
        session.enqueue(b"c")
    assert drain(queue) == [b"b", b"c"]


def test_enqueued_is_invisible_until_flush(open_queue: QueueFactory) -> None:
    """An item is invisible before its flush, even to its own session."""
    queue = open_queue()
    with queue.session() as one, queue.session() as two:
        one.enqueue(b"x")
        assert (one.dequeue(), two.dequeue(), len(queue), queue.peek()) == (None, None, 0, [])
        one.flush()
        assert (len(queue), queue.peek()) == (1, [b"x"])
        assert two.dequeue() == b"x"
        assert one.dequeue() is None
        one.rollback()
        two.rollback()


def test_rollback_keeps_the_order(open_queue: QueueFactory) -> None:
    """Items that sessions release come out in their old order, in whatever order the sessions release them."""
    queue = open_queue()
    put(queue, *[b"%d" % n for n in range(9)])
    with queue.session() as one, queue.session() as two, queue.session() as three:
        assert one.dequeue_many(2) == [b"0", b"1"]
        assert two.dequeue_many(3) == [b"2", b"3", b"4"]
        assert one.dequeue() == b"5"
        one.rollback()
        assert three.dequeue_many(4) == [b"0", b"1", b"5", b"6"]
        two.rollback()
        assert two.dequeue_many(2) == [b"2", b"3"]
        three.flush()
        two.rollback()
    assert drain(queue) == [b"2", b"3", b"4", b"7", b"8"]


def test_a_list_has_items_of_several_pages(open_queue: QueueFactory) -> None:
    """Items of one ``dequeue_many`` come complete and in order, also if they are on several pages."""
    queue, items = open_queue(), [b"%d" % number + bytes(TAIL_PAGE_BYTES) for number in range(6)]
    for item in items:
        put(queue, item)
    assert len(queue._open()._store.pages) == len(items)
    with queue.session() as session:
        assert session.dequeue_many(4) == items[:4]
        assert session.dequeue_many(4) == items[4:]
        session.flush()
    assert len(queue) == 0


def test_session_is_flushed_many_times(open_queue: QueueFactory) -> None:
    """A session can be flushed many times, and a flush without work costs no sync."""
    queue = open_queue()
    with queue.session() as session:
        for n in range(5):
            session.enqueue(b"%d" % n)
            assert session.flush()
        syncs = queue.stats().syncs
        assert session.flush()
        assert queue.stats().syncs == syncs
        session.enqueue(b"never")
        session.rollback()
    assert drain(queue) == [b"0", b"1", b"2", b"3", b"4"]


def test_one_small_transaction_is_one_sync(open_queue: QueueFactory) -> None:
    """A small flush costs one sync, a large one costs two, and a flush of dequeues costs one."""
    queue = open_queue()
    put(queue, b"first")  # makes the segment
    for items, expected in (([b"x" * 100], 1), ([b"x" * 1000] * 10, 1), ([b"x" * 200_000], 2)):
        before = queue.stats().syncs
        put(queue, *items)
        assert queue.stats().syncs - before == expected
    before = queue.stats().syncs
    drain(queue)
    assert queue.stats().syncs - before == 1


def test_unsynced_queue_never_syncs_on_a_flush(open_queue: QueueFactory) -> None:
    """With ``sync=False`` a flush costs no sync, and survives the death of the process."""
    queue = open_queue(sync=False)
    before = queue.stats().syncs
    put_each(queue, [b"a", b"b" * 200_000])
    assert queue.stats().syncs == before
    crash(queue)
    queue = open_queue(sync=False)
    assert queue.recovery.lost_transactions == 0
    assert drain(queue) == [b"a", b"b" * 200_000]


def test_session_larger_than_memory_spills(open_queue: QueueFactory) -> None:
    """Items of a large session leave the memory before its flush, and are still committed as one transaction."""
    queue = open_queue(segment_bytes=50_000, memory_bytes=10_000)
    items = [bytes([n % 256]) * 1000 for n in range(200)]
    with queue.session() as session:
        session._spill_bytes = 5000
        for item in items[:100]:
            session.enqueue(item)
        session.enqueue_many(items[100:])
        assert session._transaction is not None
        assert session._transaction.cost_bytes <= 6100
        assert len(queue) == 0
        assert queue.stats().segments == 0
        session.flush()
    assert list(queue.browse()) == items
    queue.close()
    queue = open_queue(segment_bytes=50_000)
    assert drain(queue) == items


def test_spilled_session_is_rolled_back(open_queue: QueueFactory, directory: Path) -> None:
    """Spilled blocks of a rolled-back session are never visible, and their files are deleted."""
    queue = open_queue(segment_bytes=1000)
    with queue.session() as session:
        session._spill_bytes = 10
        session.enqueue_many([b"x" * 600] * 10)
        session.rollback()
    put(queue, b"y")
    assert drain(queue) == [b"y"]
    queue.close()
    assert segment_files(directory) == []


def test_browse_and_peek(open_queue: QueueFactory) -> None:
    """Browsing and peeking return the ready items in order, and dequeue nothing."""
    queue = open_queue(segment_bytes=1000, memory_bytes=0)
    items = [b"%d" % n for n in range(500)]
    put_each(queue, items)
    assert list(queue.browse()) == items
    assert queue.peek() == [b"0"]
    assert queue.peek(3) == [b"0", b"1", b"2"]
    assert queue.peek(0) == []
    assert len(queue.peek(1000)) == 500
    with queue.session() as session:
        assert session.dequeue_many(5) == items[:5]
        assert list(queue.browse()) == items[5:]
        session.rollback()
    assert len(queue) == 500


def test_wrong_counts(tmp_path: Path) -> None:
    """A wrong number of items is refused by its name; any whole number is taken, such as one of NumPy."""

    class Whole:
        """A whole number of another package."""

        def __index__(self) -> int:
            return 2

    for kind in (PersistentQueue, connect):
        with kind(tmp_path / kind.__name__) as queue:
            with queue.session() as session:
                session.enqueue_many([b"a", b"b", b"c"])
                session.flush()
            for peeker in (queue, View(tmp_path / kind.__name__)):
                with pytest.raises(ValueError, match="n must be at least 0, got -1"):
                    peeker.peek(-1)
                for wrong in (1.5, "2", None, True):
                    with pytest.raises(TypeError, match=f"n must be a whole number, not {wrong!r}"):
                        peeker.peek(wrong)  # type: ignore[arg-type]
                assert len(peeker.peek(Whole())) == 2  # type: ignore[arg-type]
            with queue.session() as session:
                with pytest.raises(ValueError, match="max_items must be at least 0, got -1"):
                    session.dequeue_many(-1)
                for call, name in ((session.dequeue_many, "max_items"), (session.put_back, "count")):
                    for wrong in (1.5, "2", True):
                        with pytest.raises(TypeError, match=f"{name} must be a whole number, not {wrong!r}"):
                            call(wrong)  # type: ignore[arg-type]
                assert session.dequeue_many(Whole()) == [b"a", b"b"]  # type: ignore[arg-type]
                session.rollback()


def test_browsing_while_items_go(open_queue: QueueFactory) -> None:
    """Browsing skips items that are consumed meanwhile, and returns each remaining item once."""
    queue = open_queue(segment_bytes=200, memory_bytes=0)
    items = [b"%03d" % n for n in range(100)]
    put_each(queue, items)
    seen = []
    for item in queue.browse():
        seen.append(item)
        if item == b"003":
            with queue.transaction() as session:
                session.dequeue_many(50)
            queue.trim()
            put(queue, b"100")
    assert seen == sorted(set(seen))
    assert seen[-51:] == [*items[50:], b"100"]
    assert len(seen) < 100
    for _ in queue.browse():
        queue.close()
        break


def test_browsing_a_closed_queue(open_queue: QueueFactory) -> None:
    """Browsing raises ``ClosedError`` if the queue is closed meanwhile."""
    queue = open_queue(memory_bytes=0, segment_bytes=100)
    put_each(queue, [b"x" * 100] * 5)
    browser = queue.browse()
    assert next(browser) == b"x" * 100
    queue.close()
    with pytest.raises(ClosedError):
        list(browser)


def test_clear(open_queue: QueueFactory) -> None:
    """``clear`` consumes the ready items durably, and leaves the items that sessions hold."""
    queue = open_queue()
    put(queue, *[b"%d" % n for n in range(10)])
    with queue.session() as session:
        assert session.dequeue_many(3) == [b"0", b"1", b"2"]
        assert queue.clear() == 7
        assert len(queue) == 0
        session.rollback()
    assert queue.clear() == 3
    assert queue.clear() == 0
    crash(queue)
    assert len(open_queue()) == 0


def test_markers(open_queue: QueueFactory) -> None:
    """A flush with a marker is committed once. A repetition commits nothing, releases what the session held, and
    returns False."""
    queue = open_queue()
    put(queue, b"a")
    assert queue.marker("app") is None
    with queue.session() as session:
        session.enqueue(b"b")
        assert session.flush(marker=("app", 5))
        session.enqueue(b"b")
        assert session.dequeue() == b"a"
        assert not session.flush(marker=("app", 5))
        assert not session.flush(marker=("app", 4))
        assert session.flush(marker=("other", 0))
        assert session.flush(marker=("app", 6))
    assert (queue.marker("app"), queue.marker("other")) == (6, 0)
    crash(queue)
    queue = open_queue()
    assert (queue.marker("app"), queue.marker("other")) == (6, 0)
    queue.close()
    queue = open_queue()
    assert (queue.marker("app"), queue.marker("other")) == (6, 0)
    assert drain(queue) == [b"a", b"b"]


@pytest.mark.parametrize("wait", [True, False])
def test_the_marker_of_a_refused_flush_is_not_that_of_the_next(open_queue: QueueFactory, wait: bool) -> None:
    """A flush without a marker records none, also if a flush with one was refused before."""
    queue = open_queue(max_items=1)
    put(queue, b"a")
    with queue.session() as session:
        session.enqueue(b"b")
        with pytest.raises(QueueFullError):
            session.flush(marker=("app", 5))
        assert queue.clear() == 1
        if wait:
            session.flush()
        else:
            session.flush(wait=False).result()
    assert (queue.marker("app"), drain(queue)) == (None, [b"b"])


@pytest.mark.parametrize(
    ("marker", "error"),
    [
        (("app", -1), ValueError),
        (("app", 2**64), ValueError),
        (("", 1), ValueError),
        (("n" * 65536, 1), ValueError),
        ((5, 1), TypeError),
        (("app", "1"), TypeError),
        (("app", 1.0), TypeError),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_markers_that_cannot_be(marker: Any, error: type[Exception], open_queue: QueueFactory) -> None:
    """A marker must be a name and a version; with any other value nothing is committed."""
    queue = open_queue()
    with queue.session() as session:
        session.enqueue(b"x")
        with pytest.raises(error, match="marker"):
            session.flush(marker=marker)
        assert len(queue) == 0
        session.flush()
    assert drain(queue) == [b"x"]


def test_stats_add_up(open_queue: QueueFactory, directory: Path) -> None:
    """Each value of ``stats()`` is what its docstring says."""
    queue = open_queue()
    put(queue, *[b"x" * 100] * 50)
    with queue.session() as session:
        session.dequeue_many(10)
        session.flush()
        session.dequeue_many(5)
        stats = queue.stats()
        session.rollback()
    assert (stats.ready, stats.held, stats.damaged, stats.enqueued, stats.dequeued) == (35, 5, 0, 50, 10)
    assert (stats.segments, stats.groups, stats.transactions) == (1, 2, 2)
    assert 40 * 100 <= stats.live_bytes <= 40 * 102
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "lock"]
    assert stats.disk_bytes == sum(path.stat().st_size for path in files)
    assert stats.log_capacity_bytes == log_file(directory).stat().st_size
    assert 0 < stats.log_bytes < stats.log_capacity_bytes
    assert stats.cached_bytes >= 40 * 100
    assert len(queue) == 40
    assert type(stats).__doc__ is not None


def test_generation_counts_trims(open_queue: QueueFactory) -> None:
    """A trim begins a new generation and keeps every item."""
    queue = open_queue()
    put(queue, b"a")
    before = queue.stats()
    queue.trim()
    after = queue.stats()
    assert after.generation == before.generation + 1
    assert after.log_bytes < before.log_bytes + 200
    assert drain(queue) == [b"a"]


def test_reopening_without_a_change_writes_nothing(open_queue: QueueFactory, directory: Path) -> None:
    """Opening a cleanly closed queue, reading it and closing it changes no file but the lock."""
    put(queue := open_queue(), b"a", b"b")
    queue.close()

    def content() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in directory.rglob("*") if p.is_file() and p.name != "lock"}

    before = content()
    with open_queue() as queue:
        assert queue.peek(5) == [b"a", b"b"]
        with queue.session() as session:
            assert session.dequeue() == b"a"
            session.rollback()
        assert queue.recovery.clean
    assert content() == before


def test_writing_on_after_a_clean_close(open_queue: QueueFactory, directory: Path) -> None:
    """After a clean close the queue continues the same segment; after a crash it begins a new one."""
    for n in range(5):
        put(queue := open_queue(), b"%d" % n)
        queue.close()
    assert len(segment_files(directory)) == 1
    put(queue := open_queue(), b"5")
    crash(queue)
    queue = open_queue()
    put(queue, b"6")
    assert len(segment_files(directory)) == 2
    assert drain(queue) == [b"%d" % n for n in range(7)]


def test_errors_are_one_tree() -> None:
    """Every error derives from ``PersistentQueueError``, and some derive from the matching built-in error as well."""
    import persistentqueue

    errors = [getattr(persistentqueue, name) for name in persistentqueue.__all__ if name.endswith("Error")]
    assert len(errors) == 45
    assert all(issubclass(error, PersistentQueueError) for error in errors)
    assert issubclass(InvalidNameError, ValueError)
    assert issubclass(ItemTooLargeError, ValueError)
    assert issubclass(QueueNotFoundError, FileNotFoundError)


def test_many_segments_in_one_flush(open_queue: QueueFactory, directory: Path) -> None:
    """With ``segment_bytes=10`` each one-byte item gets its own file, and all files are deleted after they are
    drained."""
    queue = open_queue(segment_bytes=10)
    put_each(queue, [bytes([n]) for n in range(100)])
    assert queue.stats().segments == 100
    assert len(segment_files(directory)) == 100
    assert drain(queue) == [bytes([n]) for n in range(100)]
    assert len(segment_files(directory)) <= 2
    queue.close()
    assert segment_files(directory) == []
    report = check(directory)
    assert report.ok
    assert report.leftovers == ()


def test_queues_and_sessions_show_their_state(tmp_path: Path) -> None:
    """The text of a queue or a session names it, and says if it is closed or broken, and what is not flushed."""
    queue = PersistentQueue(tmp_path, "orders")
    made = f"PersistentQueue({str(tmp_path)!r}, 'orders')"
    put(queue, b"1", b"2", b"3")
    session = queue.session("worker")
    session.enqueue_many([b"4", b"5"])
    assert session.dequeue() == b"1"
    where = str(tmp_path / "orders")
    assert repr(session) == f"<session 'worker' of {where!r}: 2 enqueued, 1 dequeued, not flushed>"
    session.close()
    assert repr(session) == "<closed session 'worker'>"
    assert repr(queue) == made
    queue.close()
    assert repr(queue) == f"<closed {made}>"


def test_other_objects_name_their_queue(tmp_path: Path) -> None:
    """The text of a producer, of a FIFO and of a session of asyncio has the path of the queue."""

    async def session_text() -> str:
        async with aio.PersistentQueue(tmp_path, "orders") as queue, queue.session("worker") as session:
            return repr(session)

    where = str(tmp_path / "orders")
    with Producer(tmp_path, "orders") as producer:
        assert repr(producer) == f"Producer({where!r})"
    assert asyncio.run(session_text()) == (
        f"<aio.Session of <session 'worker' of {where!r}: 0 enqueued, 0 dequeued, not flushed>>"
    )
    with compat.FifoQueue(tmp_path / "fifo") as fifo:
        assert repr(fifo) == f"FifoQueue({str(tmp_path / 'fifo')!r})"


def test_a_queue_is_not_iterable(tmp_path: Path) -> None:
    """A loop over a queue is refused, and the error names the two calls that it could mean."""
    with PersistentQueue(tmp_path) as queue, pytest.raises(TypeError, match=r"queue\.browse\(\).*session\.dequeue\(\)"):
        list(queue)  # type: ignore[call-overload]
