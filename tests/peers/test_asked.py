"""Requests from the issue trackers of other queues: sixteen themes, each with a test named after it."""

from __future__ import annotations

import errno
import inspect
import itertools
import os
import queue as standard
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import persistentqueue
from persistentqueue import (
    CorruptionError,
    DiskFullError,
    PersistentQueue,
    Producer,
    QueueLockedError,
    check,
    codecs,
    delete_queue,
    repair,
)
from persistentqueue.compat import FifoQueue, Full, Queue
from persistentqueue.system.disk import DISK
from tests.crash.disk import Crash, SimulatedDisk
from tests.support.disks import call_on
from tests.support.queues import crash, flip, log_file, put_each, segment_files, wait_for

SOURCES = Path(persistentqueue.__file__).parents[1]
PATH = "/queues/orders"


def in_process(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start another Python that runs this code."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def threads(*works: Callable[[], None]) -> None:
    """Run all works at once, each in a thread; raise an error that one of them raised."""
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if errors:
        raise errors[0]


def test_01_power_cut_leaves_a_queue_that_opens() -> None:
    """After a power cut at any moment, with unsynced bytes in any combination, the queue opens without help.

    It has all items that were put and not done, in order; a call under way is there as a whole or not at all.
    """
    chance, numbers = Random(1), itertools.count()
    disk = SimulatedDisk()
    with call_on(disk.disk, Queue[int], PATH):
        pass
    allowed: list[list[int]] = [[]]
    for _ in range(50):
        disk = disk.cut_power(chance.randrange)
        queue = call_on(disk.disk, Queue[int], PATH)
        found = queue.persistent.peek(1_000)
        assert found in allowed
        allowed = [found]
        disk.on_tick = tick_until(disk, disk.ticks + chance.randrange(1, 20))
        with suppress(Crash):
            while True:
                expected = allowed[-1]
                if expected and chance.random() < 0.4:
                    allowed = [expected, expected[1:]]
                    assert queue.get() == expected[0]
                    queue.task_done()
                else:
                    allowed = [expected, [*expected, next(numbers)]]
                    queue.put(allowed[-1][-1])
                allowed = allowed[-1:]
        disk.on_tick = None
        crash(queue.persistent)
    assert next(numbers) > 50


def tick_until(disk: SimulatedDisk, last: int) -> Callable[[], None]:
    """Return a function that ends the process at a tick of its disk."""

    def on_tick() -> None:
        if disk.ticks >= last:
            raise Crash

    return on_tick


@pytest.mark.damages
def test_02_one_bad_record_blocks_nothing(tmp_path: Path) -> None:
    """A damaged item raises once, with its file and offset, and all other items come out unchanged.

    ``repair`` sets the damage aside and leaves a queue in which ``check`` finds no problem.
    """
    with PersistentQueue(tmp_path / "queue", inline_bytes=0, memory_bytes=0) as queue:
        put_each(queue, [b"first", b"second", b"third"])
        (segment,) = segment_files(tmp_path / "queue")
        offset = segment.read_bytes().index(b"second")
        flip(segment, offset)
        with queue.session() as session:
            assert session.dequeue() == b"first"
            with pytest.raises(CorruptionError) as caught:
                session.dequeue()
            assert caught.value.file == str(segment)
            assert caught.value.offset <= offset
            assert session.dequeue() == b"third"
            session.rollback()
    repair(tmp_path / "queue")
    assert check(tmp_path / "queue").ok
    with PersistentQueue(tmp_path / "queue") as queue:
        assert queue.peek(10) == [b"first", b"third"]


def test_03_disk_shrinks(tmp_path: Path) -> None:
    """Done items give their space back, even if one item stays that no consumer takes."""
    with Queue[bytes](tmp_path / "queue", codec=codecs.BYTES, segment_bytes=1024 * 1024) as queue:
        before = queue.persistent.stats().disk_bytes
        queue.put_many(bytes(1000) for _ in range(10_000))
        assert queue.persistent.stats().disk_bytes > before + 9_000_000
        queue.get_many(9_999)
        for _ in range(9_999):
            queue.task_done()
        queue.persistent.maintain()
        assert queue.qsize() == 1
        assert queue.persistent.stats().disk_bytes <= before + 1024 * 1024


def test_04_task_done_is_for_ones_own_items(tmp_path: Path) -> None:
    """The ``task_done`` of one worker commits its own item, and not the item on which another one works."""
    with Queue[str](tmp_path / "queue") as queue:
        queue.put_many(["slow", "quick"])
        assert queue.get() == "slow"

        def work() -> None:
            assert queue.get() == "quick"
            queue.task_done()

        threads(work)
        crash(queue.persistent)
    with Queue[str](tmp_path / "queue") as queue:
        assert queue.get_many(10) == ["slow"]


def test_05_many_processes(tmp_path: Path) -> None:
    """One process owns the queue, which the error of a second owner says, while other processes enqueue.

    A killed owner leaves no lock, and its put item is kept.
    """
    path = tmp_path / "queue"
    code = "import sys\nfrom persistentqueue import Producer\nwith Producer(sys.argv[1]) as producer:\n"
    code += "    for n in range(100):\n        producer.enqueue(b'%d' % n)\n        producer.flush()\n"
    owner = "import sys\nfrom persistentqueue.compat import Queue\nqueue = Queue(sys.argv[1])\nqueue.put('kept')\n"
    owner += "queue.get()\nprint('ready', flush=True)\nsys.stdin.read()"
    with in_process(owner, path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(QueueLockedError, match=str(process.pid)):
            Queue[str](path)
        process.send_signal(signal.SIGKILL)
    with Queue[Any](path) as queue:
        assert queue.get() == "kept"
        queue.task_done()
        producers = [in_process(code, path) for _ in range(3)]
        assert Counter(queue.get(timeout=60) for _ in range(300)) == Counter(dict.fromkeys(range(100), 3))
        for producer in producers:
            producer.communicate()
        while queue.unfinished_tasks:
            queue.task_done()


def test_06_never_locked_nor_busy(tmp_path: Path) -> None:
    """Eight threads that put, get and finish items at once meet no lock error, and none polls for a lock."""

    def refuse(_: float) -> None:
        raise AssertionError("somebody slept to try again")

    with call_on(replace(DISK, sleep=refuse), Queue[int], tmp_path / "queue") as queue:

        def work() -> None:
            for number in range(50):
                queue.put(number)
                queue.get()
                queue.task_done()

        threads(*[work] * 8)
        assert queue.unfinished_tasks == 0


def test_07_nothing_is_renamed_while_it_is_open(tmp_path: Path) -> None:
    """A put, a get and a ``task_done`` rename and delete no file, which some systems refuse for an open file."""

    def refuse(*names: str) -> None:
        raise AssertionError(f"{names} was touched")

    calls: dict[str, Callable[..., None]] = {"rename": DISK.rename, "unlink": DISK.unlink}
    doors: dict[str, Any] = {name: lambda *names, name=name: calls[name](*names) for name in calls}
    with call_on(replace(DISK, **doors), Queue[int], tmp_path / "queue") as queue:
        calls.update(rename=refuse, unlink=refuse)
        for number in range(300):
            queue.put(number)
            assert queue.get() == number
            queue.task_done()
        calls.update(rename=DISK.rename, unlink=DISK.unlink)


def test_08_temporary_files_are_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is made and renamed in the queue's own directory.

    A directory for temporary files, which may be on another device in a container, is not needed.
    """
    monkeypatch.setenv("TMPDIR", "/dev/null/nowhere")
    touched: list[str] = []

    def rename(source: str, target: str) -> None:
        touched.extend((source, target))
        DISK.rename(source, target)

    def opened(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            touched.append(path)
        return DISK.open(path, flags, mode)

    path = tmp_path / "queue"
    for _ in range(2):
        with call_on(replace(DISK, rename=rename, open=opened), Queue[int], path, segment_bytes=4096) as queue:
            queue.put_many(range(5_000))
            queue.get_many(5_000)
            for _ in range(5_000):
                queue.task_done()
            queue.persistent.maintain()
    assert touched
    assert all(Path(each).is_relative_to(path) for each in touched)


def test_09_content_is_seen_without_taking_it(tmp_path: Path) -> None:
    """``peek`` and ``browse`` show items unchanged and in order, and take none."""
    with Queue[dict[str, int]](tmp_path / "queue") as queue:
        queue.put_many({"id": number} for number in range(3))
        assert queue.persistent.peek() == [{"id": 0}]
        assert [item["id"] for item in queue.persistent.browse()] == [0, 1, 2]
        assert (queue.qsize(), queue.get()) == (3, {"id": 0})


def test_10_standard_library_parity(tmp_path: Path) -> None:
    """Every public method of ``queue.Queue`` is there, with equal parameters and defaults, and the queue can be
    cleared."""
    for name, method in vars(standard.Queue).items():
        if callable(method) and not name.startswith("__"):
            theirs, ours = (inspect.signature(each).parameters for each in (method, getattr(Queue, name)))
            assert [(each.name, each.default) for each in theirs.values()] == [
                (each.name, each.default) for each in ours.values()
            ], name
    with Queue[int](tmp_path / "queue", 2) as queue:
        queue.put_nowait(1)
        queue.put(2, block=False)
        assert (queue.full(), queue.empty(), queue.qsize(), queue.unfinished_tasks) == (True, False, 2, 2)
        with pytest.raises(standard.Full):
            queue.put_nowait(3)
        assert queue.persistent.clear() == 2
        with pytest.raises(standard.Empty):
            queue.get_nowait()
        queue.join()


def test_11_limits_and_a_full_disk(tmp_path: Path) -> None:
    """At a limit and on a full disk only a put is refused, by a named error; items can be taken and finished.

    With room, a put works again.
    """
    full = threading.Event()

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if full.is_set() and os.readlink(f"/proc/self/fd/{fd}").endswith(".seg"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return DISK.pwritev(fd, buffers, offset, flags)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("finds the files of descriptors in /proc")
    disk = replace(DISK, pwritev=pwritev, open_direct=lambda _: None)
    with call_on(disk, Queue[str], tmp_path / "queue", max_bytes=1000, inline_bytes=0) as queue:
        queue.put("x" * 800)
        with pytest.raises(Full, match="max_bytes=1000"):
            queue.put("y" * 800)
        full.set()
        with pytest.raises(DiskFullError):
            queue.put("z")
        assert queue.get() == "x" * 800
        queue.task_done()
        full.clear()
        queue.put("z")
        assert queue.get() == "z"
        queue.task_done()


def test_12_close_and_remove_leak_nothing(tmp_path: Path) -> None:
    """A queue that was opened, waited in and closed leaves no descriptor and no thread; deleted, it leaves no file."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("counts descriptors in /proc")
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(20):
        with Queue[int](tmp_path / "queue") as queue:
            queue.put(1)
            queue.get()
            queue.task_done()
            with pytest.raises(standard.Empty):
                queue.get(timeout=0.001)
        queue.close()
    wait_for(lambda: threading.active_count() <= before[1])
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    delete_queue(tmp_path, "queue")
    assert list(tmp_path.iterdir()) == []


def test_13_no_item_comes_twice(tmp_path: Path) -> None:
    """If many threads get at once, each item comes to one thread, once, and does not come again after a crash."""
    got: list[list[int]] = [[] for _ in range(4)]
    with Queue[int](tmp_path / "queue", 10, sync=False) as queue:

        def put(first: int) -> None:
            for number in range(first, first + 500):
                queue.put(number)

        def get(mine: list[int]) -> None:
            for _ in range(500):
                mine.append(queue.get())
                queue.task_done()

        works = [lambda first=first: put(first) for first in range(0, 2_000, 500)]
        threads(*works, *(lambda mine=mine: get(mine) for mine in got))
        crash(queue.persistent)
    assert sorted(itertools.chain.from_iterable(got)) == list(range(2_000))
    with Queue[int](tmp_path / "queue") as queue:
        assert queue.qsize() == 0


def test_14_many_at_once_and_idle_for_nothing(tmp_path: Path) -> None:
    """A thousand items are put with one sync, and got and done with one sync; waiting takes no processor time."""
    with Queue[int](tmp_path / "queue") as queue:
        groups = queue.persistent.stats().groups
        queue.put_many(range(1_000))
        assert queue.get_many(1_000) == list(range(1_000))
        for _ in range(1_000):
            queue.task_done()
        assert queue.persistent.stats().groups - groups == 2
        began = time.process_time()
        with pytest.raises(standard.Empty):
            queue.get(timeout=0.5)
        assert time.process_time() - began < 0.05


class Upper:
    """A codec that a user wrote."""

    def encode(self, item: str, /) -> bytes:
        return item.upper().encode()

    def decode(self, data: bytes, /) -> str:
        return data.decode()


@pytest.mark.parametrize(
    ("codec", "item", "comes"),
    [
        (None, {"a": [1, None, "é"]}, {"a": [1, None, "é"]}),
        (codecs.TEXT, "é", "é"),
        (codecs.BYTES, b"\0", b"\0"),
        (codecs.UNSAFE_PICKLE, {1, (2, 3)}, {1, (2, 3)}),
        ("MessagePack", [b"bytes", 1], [b"bytes", 1]),
        (Upper(), "text", "TEXT"),
    ],
    ids=["JSON", "TEXT", "BYTES", "UNSAFE_PICKLE", "MessagePack", "own"],
)
def test_15_serializers(codec: Any, item: Any, comes: Any, tmp_path: Path) -> None:
    """JSON is the default codec, and with each other codec an item comes out as it went in, even after a crash."""
    if codec == "MessagePack":
        pytest.importorskip("msgspec")
        codec = codecs.MessagePack()
    settings = {} if codec is None else {"codec": codec}
    for _ in range(2):
        with Queue[Any](tmp_path / "queue", **settings) as queue:
            if not queue.qsize():
                queue.put(item)
            assert queue.get() == comes
            crash(queue.persistent)


def test_16_crawl_queue_survives_a_kill(tmp_path: Path) -> None:
    """Pages that a crawl has pushed are there after ``kill -9``, in order, without a ``close``.

    A whole crawl of Scrapy that is killed is in ``test_scrapy``.
    """
    code = "import os, sys\nfrom persistentqueue.compat import FifoQueue\nfifo = FifoQueue(sys.argv[1])\n"
    code += "for n in range(5):\n    fifo.push(b'page %d' % n)\nfifo.pop()\nos.kill(os.getpid(), 9)\n"
    with in_process(code, tmp_path / "fifo") as process:
        assert process.wait() == -signal.SIGKILL
    with FifoQueue(tmp_path / "fifo") as fifo:
        assert len(fifo) == 4
        assert [fifo.pop() for _ in range(5)] == [b"page 1", b"page 2", b"page 3", b"page 4", None]


# --- five probes of other queues after a kill or damage ---------------------------------------------------------------


@contextmanager
def five_items(path: Path) -> Iterator[Queue[int]]:
    """Yield a queue with five items, two of them taken, and crash it."""
    queue = Queue[int](path)
    queue.put_many(range(5))
    queue.get_many(2)
    yield queue
    crash(queue.persistent)


@pytest.mark.damages
def test_probe_empty_log(tmp_path: Path) -> None:
    """A log that a power cut has emptied is an error with its name, and ``repair`` makes a queue of it that opens."""
    with five_items(tmp_path / "queue"):
        pass
    log = log_file(tmp_path / "queue")
    log.write_bytes(b"")
    with pytest.raises(CorruptionError, match=log.name):
        Queue[int](tmp_path / "queue")
    repair(tmp_path / "queue")
    with Queue[int](tmp_path / "queue") as queue:
        assert queue.qsize() <= 5


def test_probe_two_objects_on_one_path(tmp_path: Path) -> None:
    """A second object on one path is refused; a ``Producer`` can enqueue beside the owner, and loses nothing."""
    with five_items(tmp_path / "queue") as queue, Producer(tmp_path / "queue", codec=codecs.JSON) as producer:
        with pytest.raises(QueueLockedError):
            Queue[int](tmp_path / "queue")
        producer.enqueue(5)
        producer.flush()
        queue.put(6)
    with Queue[int](tmp_path / "queue") as queue:
        assert sorted(queue.get_many(10)) == list(range(7))
