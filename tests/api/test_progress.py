"""The parameter ``progress`` of each call: the reports, the queue after the callable raised, and refused calls."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    MissingExtraError,
    PersistentQueue,
    Producer,
    Progress,
    QueueLockedError,
    ReentrantUseError,
    View,
    aio,
    check,
    move_data,
    repair,
)
from persistentqueue.compat import FifoQueue, Queue
from tests.support.queues import crash, flip, log_file, put, put_each

ITEMS = [bytes([n]) * 300_000 for n in range(20)]
NAMES = ["check", "repair", "move_data", "open", "browse", "browse_all", "subscription", "view", "compact"]
Call = Callable[[Progress], object]


class StopError(Exception):
    """The error of a callable in a test."""


class Recorder:
    """A callable that records its calls, and raises at the call of a given number."""

    def __init__(self, raises_at: int = 0, error: BaseException | None = None) -> None:
        self.told: list[tuple[int, int | None]] = []
        self.raises_at, self.error = raises_at, error or StopError()

    def __call__(self, done: int, total: int | None) -> None:
        self.told.append((done, total))
        if len(self.told) == self.raises_at:
            raise self.error


class Prepared:
    """Queues in a directory, one for each call with ``progress=``, made when the call is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queue: PersistentQueue | None = None

    def crashed(self) -> None:
        """Make a queue with 10 large items in its segments, and 4,000 small ones that only its log holds."""
        queue = PersistentQueue(self.path, "orders", memory_bytes=0, log_bytes=16 << 20)
        put_each(queue, ITEMS[:10])
        for _ in range(40):
            put(queue, *[bytes(1000)] * 100)
        crash(queue)

    def opened(self, **options: Any) -> PersistentQueue:
        """Make a queue of large items, and leave it open."""
        self.queue = PersistentQueue(self.path, "orders", memory_bytes=0, compact_below=0, **options)
        put_each(self.queue, ITEMS)
        return self.queue

    def sparse(self) -> PersistentQueue:
        """Make a queue in which every other item is consumed, and leave it open."""
        queue = self.opened(segment_bytes=4 << 20)
        put(queue, b"the segment that is written to" + bytes(4 << 20))
        with queue.session() as keeper, queue.session() as taker:
            for _ in range(len(ITEMS) // 2):
                keeper.dequeue()
                taker.dequeue()
            taker.flush()
            keeper.rollback()
        return queue

    def call(self, name: str) -> Call:
        """Return the call of this name."""
        if name in {"check", "repair", "move_data", "open"}:
            self.crashed()
        path = self.path
        if name == "check":
            return lambda progress: check(path, "orders", progress=progress)
        if name == "repair":
            return lambda progress: repair(path, "orders", progress=progress)
        if name == "move_data":
            return lambda progress: move_data(path, "orders", data_path=path / "moved", progress=progress)
        if name == "open":
            return lambda progress: PersistentQueue(path, "orders", progress=progress).close()
        if name == "view":
            self.opened()
            return lambda progress: list(View(path, "orders").browse(progress=progress))
        if name == "compact":
            sparse = self.sparse()
            return lambda progress: sparse.compact(below=0.9, progress=progress)
        queue = self.opened()
        browse = {"browse": queue.browse, "browse_all": queue.browse_all}.get(name)
        browse = browse or queue.subscribe("billing").browse
        return lambda progress: list(browse(progress=progress))

    def close(self) -> None:
        """Close the queue that was left open."""
        if self.queue is not None:
            self.queue.close()


@pytest.fixture
def prepare(path: Path) -> Iterator[Callable[[str], Prepared]]:
    """Yield a function that prepares queues in a directory of this name; close them at the end."""
    made: list[Prepared] = []

    def make(name: str) -> Prepared:
        made.append(Prepared(path / name))
        return made[-1]

    yield make
    for each in made:
        each.close()


Prepare = Callable[[str], Prepared]


@pytest.mark.parametrize("name", NAMES)
def test_reports(prepare: Prepare, name: str) -> None:
    """A call reports rising numbers up to its total, about once for each MiB; the last report says that all is done."""
    recorder = Recorder()
    prepare("one").call(name)(recorder)
    told = recorder.told
    assert 3 <= len(told) <= 40
    assert all(before[0] <= after[0] for before, after in pairwise(told))
    assert all(total is not None and done <= total for done, total in told)
    assert told[-1][0] == told[-1][1]
    assert told[-1][0] == (len(ITEMS) if "browse" in name or name in {"subscription", "view"} else told[-1][0])


@pytest.mark.parametrize("error", [StopError(), KeyboardInterrupt(), PermissionError(13, "no")], ids=repr)
@pytest.mark.parametrize("name", NAMES)
def test_a_callable_that_raises(prepare: Prepare, name: str, error: BaseException) -> None:
    """A callable that raises ends the call with its own error. The queue then opens with all items, and is consistent;
    the call can be made again."""
    for at in (1, 3):
        prepared = prepare(f"at-{at}")
        call = prepared.call(name)
        with pytest.raises(type(error)) as raised:
            call(Recorder(at, error))
        assert raised.value is error
        prepared.close()
        if name == "move_data":
            assert not list((prepared.path / "moved").rglob("*.seg"))
        with PersistentQueue(prepared.path, "orders") as queue:
            assert len(queue) == {"compact": 11}.get(name, 20 if prepared.queue is not None else 4010)
        report = check(prepared.path, "orders")
        assert (report.ok, report.leftovers) == (True, ())


def publish_each(path: Path) -> None:
    """Publish the items for a closed queue, each in a file of its own."""
    PersistentQueue(path, "orders").close()
    with Producer(path, "orders") as producer:
        for item in ITEMS:
            producer.enqueue(item)
            producer.flush()


def test_opening_counts_published_files(path: Path) -> None:
    """An opening counts the bytes of the files that other processes have published."""
    publish_each(path)
    recorder = Recorder()
    with PersistentQueue(path, "orders", progress=recorder) as queue:
        assert len(queue) == len(ITEMS)
    assert recorder.told[-1][0] > sum(map(len, ITEMS))
    assert recorder.told[0][1] is not None


def test_an_unsynced_queue_counts_what_it_writes_again(path: Path) -> None:
    """The opening of a crashed queue with ``sync=False`` counts the blocks that it writes again."""
    queue = PersistentQueue(path, "orders", sync=False, inline_bytes=0)
    put_each(queue, ITEMS)
    crash(queue)
    recorder = Recorder()
    with PersistentQueue(path, "orders", progress=recorder) as queue:
        assert len(queue) == len(ITEMS)
    assert len(recorder.told) > 3
    assert recorder.told[-1][0] > sum(map(len, ITEMS))


@pytest.mark.damages
def test_repair_counts_a_damaged_log(prepare: Prepare) -> None:
    """A repair of a damaged log, which it reads frame by frame, reports to the end."""
    prepared = prepare("one")
    prepared.crashed()
    log = log_file(prepared.path / "orders")
    flip(log, 2 << 20)
    recorder = Recorder()
    report = repair(prepared.path, "orders", progress=recorder)
    assert report.problems
    assert recorder.told[-1][0] == recorder.told[-1][1]


def test_published_files_are_counted_by_check(path: Path) -> None:
    """``check`` counts the bytes of published files."""
    publish_each(path)
    recorder = Recorder()
    assert check(path, "orders", progress=recorder).published == len(ITEMS)
    assert recorder.told[-1][0] > sum(map(len, ITEMS))


def test_an_opening_holds_the_lock(prepare: Prepare) -> None:
    """The callable of an opening cannot open the queue: ``QueueLockedError`` at once, and the opening goes on."""
    prepared = prepare("one")
    call = prepared.call("open")
    refused: list[bool] = []

    def reopen(*_: object) -> None:
        if not refused:
            with pytest.raises(QueueLockedError):
                PersistentQueue(prepared.path, "orders")
            refused.append(True)

    call(reopen)
    assert refused


@pytest.mark.parametrize("name", ["compact", "maintain", "close"])
def test_a_compaction_refuses_what_would_wait_for_it(prepare: Prepare, name: str) -> None:
    """The callable of a compaction that compacts, maintains or closes the queue gets ``ReentrantUseError``; other calls
    are made, and the compaction goes on."""
    queue = prepare("one").sparse()
    refused: list[bool] = []

    def call_back(*_: object) -> None:
        if not refused:
            assert len(queue) == 11
            with pytest.raises(ReentrantUseError, match="by the progress= of a compaction"):
                getattr(queue, name)()
            refused.append(True)

    assert queue.compact(below=0.9, progress=call_back).segments
    assert refused
    queue.compact()


def test_browsing_may_use_the_queue(prepare: Prepare) -> None:
    """The callable of a browse may dequeue from the queue: it is called while no lock is held."""
    queue = prepare("one").opened()

    def take(*_: object) -> None:
        with queue.transaction() as session:
            session.dequeue()

    assert 10 < len(list(queue.browse(progress=take))) <= len(ITEMS)


@pytest.mark.parametrize("name", NAMES)
def test_without_tqdm_nothing_happens(prepare: Prepare, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """``progress=True`` without tqdm raises an ``ImportError`` that says what to do, before the call does anything."""
    prepared = prepare("one")
    call = prepared.call(name)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(MissingExtraError, match=r"persistentqueue\[progress\].*or pass a callable"):
        call(True)
    if name == "move_data":
        assert not (prepared.path / "moved").exists()
    with pytest.raises(TypeError, match="progress must be"):
        call(1)  # type: ignore[arg-type]


def test_a_bar_of_a_call(prepare: Prepare, capsys: pytest.CaptureFixture[str]) -> None:
    """``progress=True`` draws a bar on stderr that names the call and the queue."""
    prepare("one").call("check")(True)
    assert "check orders: 100%" in capsys.readouterr().err


def test_compat(path: Path) -> None:
    """The queues of ``compat`` report their opening."""
    for kind in (Queue, FifoQueue):
        recorder = Recorder()
        kind(path / kind.__name__, progress=recorder).close()
        assert recorder.told == [(0, 0)]


def test_aio(path: Path) -> None:
    """The queues of ``aio`` report their opening, browsing and compaction from a thread; its error reaches the task."""
    seen: list[threading.Thread] = []

    def note(*_: object) -> None:
        seen.append(threading.current_thread())

    async def main() -> None:
        async with aio.PersistentQueue(path, "orders", progress=note) as queue:
            async with queue.transaction() as session:
                await session.enqueue(b"one")
            billing = await queue.subscribe("billing")
            for browse in (queue.browse, queue.browse_all, billing.browse):
                assert [item async for item in browse(progress=note)] == [b"one"]
            await queue.compact(progress=note)
            with pytest.raises(StopError):
                await queue.compact(progress=Recorder(1))
        async with aio.Queue[str](path / "standard", progress=note):
            pass

    asyncio.run(main())
    assert len(seen) == 6
    assert threading.main_thread() not in seen


def test_an_interrupt_in_a_thread_of_aio(path: Path) -> None:
    """A ``KeyboardInterrupt`` that the callable raises in a thread ends the event loop, as one of the loop's own."""

    async def main() -> None:
        async with aio.PersistentQueue(path, "orders") as queue:
            await queue.compact(progress=Recorder(1, KeyboardInterrupt()))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
