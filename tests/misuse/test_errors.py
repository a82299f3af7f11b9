"""Errors that reach other processes, objects that refuse to, items that cannot be decoded, and work that is dropped,
row by row."""

from __future__ import annotations

import asyncio
import copy
import errno
import importlib
import json
import multiprocessing
import os
import pickle
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

import persistentqueue
from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CodecError,
    CopiedQueueError,
    CorruptionError,
    DataMissingError,
    DataPathError,
    DeadLetter,
    DeadLetterError,
    DiskFullError,
    Encryption,
    ForeignQueueError,
    HoldLostError,
    InboxAccessError,
    InDoubtError,
    InvalidTransactionError,
    MemoryBudget,
    MemoryShortageError,
    MissingExtraError,
    NetworkDiskError,
    NoThreadError,
    NotServedError,
    OutcomeUnknownError,
    OutOfMemoryError,
    PathDeniedError,
    PathIsADirectoryError,
    PathMissingError,
    PathNotADirectoryError,
    PersistentQueue,
    PersistentQueueError,
    PrecedingFlushError,
    Producer,
    QueueDeletedError,
    QueueFullError,
    QueueLockedError,
    RefusedError,
    ResourceError,
    Session,
    SessionLostError,
    SubscriptionNotFoundError,
    TooManyFilesError,
    UnflushedWarning,
    UnsupportedFormatError,
    UntrustedError,
    UnusablePathError,
    View,
    WrongKeyError,
    aio,
    check,
    codecs,
    compat,
    delete_queue,
    errors,
    list_queues,
    move_data,
    repair,
    transaction,
)
from persistentqueue.core.operations import FieldError
from persistentqueue.core.state import StateError
from persistentqueue.engine.reader import UnreadableError
from persistentqueue.importers import (
    ImportMismatchError,
    SourceChangedError,
    SourceDamagedError,
    SourceError,
    SourceInUseError,
)
from persistentqueue.interprocess.splits import GoneError
from persistentqueue.rows import SchemaMismatchError, SchemaNotFoundError
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import put


def _pickled(protocol: int, value: object) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


_PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
_WAYS: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, *(partial(_pickled, each) for each in _PROTOCOLS)]

# --- row 14: errors survive pickle, copy and ``raise … from`` ---------------------------------------------------------


def _every_module() -> None:
    """Import all modules. The provider for Airflow, which raises no error of its own, is tested where Airflow is."""
    for module in pkgutil.walk_packages(persistentqueue.__path__, "persistentqueue."):
        if module.name != "persistentqueue.__main__" and not module.name.startswith("persistentqueue.airflow."):
            importlib.import_module(module.name)


def _subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("persistentqueue"):
            yield each
        yield from _subclasses(each)


def _samples() -> dict[str, BaseException]:
    """Return an error of each kind whose constructor wants more than a message."""
    damage = CorruptionError("data/1.seg", 64, "a block", "zeros", "its items are set aside")
    samples: list[BaseException] = [
        QueueLockedError("q", 7, "here", "2026-01-01T00:00:00Z"),
        UntrustedError("q/lock", "a file", "a pipe", "remove it"),
        CopiedQueueError("q", "r"),
        ForeignQueueError("q", "queuelib", "'info.json' and 'q00000'"),
        InvalidTransactionError("q", "this", "that"),
        ResourceError("q", 24, "no descriptors"),
        TooManyFilesError("q", 24, "no descriptors"),
        OutOfMemoryError("q", 12, "no memory"),
        NoThreadError("q", 11, "no further thread"),
        QueueDeletedError("q"),
        InboxAccessError("q/inbox", "it is another user's"),
        MemoryShortageError("data/1.seg", 64, 10**9),
        SessionLostError("q", "which held 2 items"),
        OutcomeUnknownError("q", "and no later owner knows"),
        HoldLostError("q", 1.5),
        NotServedError("q", 7),
        RefusedError("q", "it belongs to another user"),
        SubscriptionNotFoundError("/q", "a", ["b", "c"]),
        DeadLetterError("an envelope", "b'x'"),
        CodecError("decode", codecs.JSON, b"{", ValueError("no")),
        MissingExtraError("MessagePack", "msgpack"),
        DiskFullError("q", 28, "no room"),
        QueueFullError("q", "max_items", 2, 2, 1, False),
        PrecedingFlushError("q", ValueError("no")),
        DataPathError("q", "a", "b", "name it"),
        NetworkDiskError("q", "nfs4"),
        DataMissingError("q", "place", "id", "other", "why", "advice"),
        InDoubtError("q", b"\x01" * 16, "a", "it is not there", True),
        WrongKeyError("key", "not given", "data/1.seg", 64),
        damage,
        UnsupportedFormatError("log", 9, 1),
        GoneError("q", "data/1.seg", 3),
        SchemaMismatchError("q", "id", "long", "string", "cast it"),
        SchemaNotFoundError("q", 3, 2),
        SourceError("s", "a queue", "nothing", "name another"),
        SourceDamagedError("s/q00000", 7, "an item", "zeros"),
        SourceInUseError("s", "no owner", "process 7", "stop it"),
        SourceChangedError("s", "these items", "others", "pass again=True"),
        ImportMismatchError("q", 5, 3),
        UnreadableError(damage, 1, 5),
        StateError("this", "that"),
        FieldError("this", "that"),
    ]
    try:
        from persistentqueue.spark import Manifest, PayloadLostError, StageFailedError
        from persistentqueue.spark.options import stream_read_options
        from persistentqueue.spark.stream import DataLossError

        options = stream_read_options({"path": "q", "subscription": "s"})
        samples.append(DataLossError(options, 3, "it was removed"))
        manifest = Manifest("stage", {}, ("a",), (5,), 5, 1, None)
        samples.append(PayloadLostError(manifest, "stage/a", "5 bytes", "no file"))
        samples.append(StageFailedError("delays", KeyError("carrier")))
    except ImportError:
        pass
    return {type(each).__qualname__: each for each in samples}


def _attributes(error: object) -> dict[str, Any]:
    names = ("args", "errno", "strerror", "filename", "msg", "name")
    found = {name: getattr(error, name) for name in names if hasattr(error, name)}
    return found | {name: repr(value) for name, value in vars(error).items()}


def test_row_14_every_error_survives_pickle_and_copy() -> None:
    """Each error of the package keeps its kind, message and attributes over pickle, ``copy``, ``deepcopy`` and
    ``raise … from``."""
    _every_module()
    samples = _samples()
    kinds = {*_subclasses(PersistentQueueError), StateError, FieldError, UnreadableError}
    assert len(kinds) > 20
    for kind in sorted(kinds, key=str):
        error: Any = samples.get(kind.__qualname__) or kind(f"{kind.__qualname__}: a message")
        vars(error)["note"] = "a note"
        for way in _WAYS:
            survivor: Any = way(error)
            assert isinstance(survivor, BaseException)
            assert type(survivor) is kind
            assert survivor is not error
            assert str(survivor) == str(error)
            if kind is not UnreadableError:  # it holds another error, which is equal by its text only
                assert _attributes(survivor) == _attributes(error)
        with pytest.raises(kind) as caught:
            raise error from KeyError("why")
        assert isinstance(caught.value.__cause__, KeyError)


def test_row_14_errors_have_their_names_of_0_1_0() -> None:
    """All errors name one module, as those of 0.1.0 do: any version finds the class of a pickled error."""
    assert {getattr(errors, name).__module__ for name in errors.__all__} == {"persistentqueue.errors"}
    assert pickle.loads(b"cpersistentqueue.errors\nQueueFullError\n.") is QueueFullError


def test_row_14_an_item_that_cannot_be_pickled_does_not_keep_its_error() -> None:
    """An error whose item cannot be pickled arrives with the item's ``repr``; a copy has the item itself."""

    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    lock = Lock()
    error = CodecError("encode", codecs.JSON, lock, TypeError("no"))
    assert copy.copy(error).item is lock
    survivor = pickle.loads(pickle.dumps(error))
    assert (survivor.item, str(survivor)) == (repr(lock), str(error))
    assert pickle.loads(pickle.dumps(CodecError("encode", codecs.JSON, Odd(), TypeError("no")))).item == "a Odd"


def _open_and_close(path: str) -> None:
    PersistentQueue(path).close()


def test_row_14_a_process_pool_hears_that_a_queue_is_locked(tmp_path: Path) -> None:
    """The error of a child process reaches its parent, which can go on using the pool."""
    context = multiprocessing.get_context("spawn")
    with PersistentQueue(tmp_path), ProcessPoolExecutor(1, mp_context=context) as pool:
        with pytest.raises(QueueLockedError, match="the queue is open in process") as caught:
            pool.submit(_open_and_close, str(tmp_path)).result(timeout=60)
        assert caught.value.path == str(tmp_path / "lock")
        assert pool.submit(abs, -1).result(timeout=60) == 1


# --- row 15: what belongs to one process refuses to be copied ---------------------------------------------------------


def _refuses(value: object, advice: str) -> None:
    for way in _WAYS:
        with pytest.raises(TypeError, match=f"cannot be copied, pickled or sent to another process: .*{advice}"):
            way(value)


@pytest.mark.parametrize("codec", [codecs.BYTES, codecs.JSON])
def test_row_15_a_queue_and_its_objects_refuse_to_be_copied(tmp_path: Path, codec: Any) -> None:
    """Copies and pickles raise a ``TypeError`` that says what to do instead, and the original goes on."""
    with PersistentQueue(tmp_path, "a", codec=codec) as queue, PersistentQueue(tmp_path, "b", codec=codec) as other:
        _refuses(queue, "open a Producer there")
        _refuses(queue.view(), "make another View there")
        _refuses(queue.subscribe("s"), r"queue\.subscribe")
        for block in (queue.transaction(), queue.subscribe("s").transaction(), transaction(queue, other)):
            _refuses(block, r"begin another transaction\(\)")
        with queue.session() as session:
            _refuses(session, r"queue\.session\(\)")
        with Producer(tmp_path, "a", codec=codec) as producer:
            _refuses(producer, "make another Producer there")
        with queue.transaction() as session:
            session.enqueue(b"one" if codec is codecs.BYTES else [1])
        assert len(queue) == 1
    _refuses(View(tmp_path, "a"), "make another View there")
    _refuses(MemoryBudget(1024), "make another MemoryBudget there")


async def _aio_objects(path: Path) -> None:
    async with aio.PersistentQueue(path / "a") as queue:
        _refuses(queue, "open a Producer there")
        _refuses(await queue.subscribe("s"), r"queue\.subscribe")
        async with queue.session() as session:
            _refuses(session, r"queue\.session\(\)")
    async with aio.Queue(path / "b") as standard:
        _refuses(standard, "open a Producer there")


def test_row_15_the_faces_refuse_to_be_copied(tmp_path: Path) -> None:
    """The queues of ``compat`` and ``aio``, and the sessions of ``aio``, refuse to be copied, too."""
    with compat.Queue[Any](tmp_path / "c") as queue:
        _refuses(queue, "open a Producer there")
    fifo = compat.FifoQueue(tmp_path / "d")
    _refuses(fifo, "open a Producer there")
    fifo.close()
    asyncio.run(_aio_objects(tmp_path))


def test_row_15_a_pool_says_what_to_do_with_a_queue(tmp_path: Path) -> None:
    """A queue as an argument of ``Pool.map`` raises a ``TypeError`` with advice in the parent, and the pool goes on."""
    context = multiprocessing.get_context("spawn")
    with PersistentQueue(tmp_path) as queue, context.Pool(1) as pool:
        with pytest.raises(TypeError, match="pass its path, and open a Producer there"):
            pool.map(len, [queue])
        assert pool.map(abs, [-1]) == [1]
        pool.close()
        pool.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_row_15_a_forked_process_says_what_to_do_with_a_queue(tmp_path: Path) -> None:
    """A queue that a forked process has inherited raises an error with the two ways to use it there."""
    with PersistentQueue(tmp_path) as queue:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                queue.session()
            except ClosedError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read().endswith(b": open it in the child after the parent closed it, or use connect() in both")


def _key(key_id: str) -> bytes:
    return key_id.encode().ljust(16)


def test_row_15_values_can_be_pickled(tmp_path: Path) -> None:
    """Values can be pickled and copied: statistics, snapshots, codecs, and the description of an encryption."""
    with PersistentQueue(tmp_path) as queue:
        for value in (queue.stats(), queue.view().look(), queue.recovery, Encryption("a", _key)):
            assert pickle.loads(pickle.dumps(value)) == value
            assert copy.deepcopy(value) == value
    for codec in (codecs.BYTES, codecs.TEXT, codecs.JSON, codecs.UNSAFE_PICKLE):
        assert type(pickle.loads(pickle.dumps(codec))) is type(codec)


# --- row 16: an item that its codec cannot decode ---------------------------------------------------------------------


def _put_raw(path: Path, *items: bytes) -> None:
    with PersistentQueue(path) as queue, queue.transaction() as session:
        session.enqueue_many(items)


def test_row_16_the_error_names_the_queue_and_the_item(tmp_path: Path) -> None:
    """The error has the queue's directory, and the sequence and the bytes of the item. Each refused delivery is
    counted."""
    _put_raw(tmp_path, b"1", b"{", b"3", b"]", b"5")
    with PersistentQueue(tmp_path, codec=codecs.JSON) as queue:
        with queue.session() as session:
            assert session.dequeue_many(10) == [1]
            with pytest.raises(CodecError) as many:
                session.dequeue_many(10)
            assert session.dequeue() == 3
            with pytest.raises(CodecError, match=rf"^{tmp_path}: item 3: Json cannot decode 1 byte: ") as one:
                session.dequeue()
            told = (
                "open the queue with the codec that encoded it, such as codecs.UNSAFE_PICKLE for pickled items; or "
                "consume it by flush(), or by task_done() of a queue.Queue; with dead letters, "
            )
            assert f": {told}reject(error, retry=False) moves it there" in str(one.value)
            session.rollback()
        found = [(each.value.path, each.value.sequence, each.value.item) for each in (many, one)]
        assert found == [(str(tmp_path), 1, b"{"), (str(tmp_path), 3, b"]")]
        assert isinstance(one.value.__cause__, ValueError)
        assert queue.stats().undecodable == 2
        looked = queue.browse()
        assert next(looked) == 1
        with pytest.raises(CodecError, match=f"^{tmp_path}: item 1: .*: read it with the codec that encoded it"):
            next(looked)
        assert next(looked) == 3
        assert queue.stats().undecodable == 2
        with queue.session() as session, pytest.raises(CodecError, match=f"^{tmp_path}: Json cannot encode a set: "):
            session.enqueue({1})
        with Producer(tmp_path, codec=codecs.JSON) as producer, pytest.raises(CodecError, match=f"^{tmp_path}: Json"):
            producer.enqueue_many([{1}])


def test_row_16_a_flush_skips_it(tmp_path: Path) -> None:
    """A consumer that flushes after each ``CodecError`` goes through the whole queue. Each sound item comes once, and
    the others are consumed."""
    _put_raw(tmp_path, b"1", b"{", b"2", b"]", b"}", b"3")
    with PersistentQueue(tmp_path, codec=codecs.JSON) as queue:
        found = []
        with queue.session() as session:
            while len(queue):
                try:
                    found += session.dequeue_many(2)
                except CodecError:
                    session.flush()
            session.flush()
        assert found == [1, 2, 3]
        assert (len(queue), queue.stats().held, queue.stats().undecodable) == (0, 0, 3)


@pytest.mark.parametrize("many", [True, False])
def test_row_16_reject_moves_it_to_the_dead_letters(tmp_path: Path, many: bool) -> None:
    """``reject(error)`` finds the item by its sequence, and does not take an equal item that was held before."""
    settings: dict[str, Any] = {"max_attempts": 3, "dead_letter": "dead"}
    with PersistentQueue(tmp_path, "raw") as queue, queue.transaction() as session:
        session.enqueue_many([b"{", b"1", b"{", b"2"])
    with PersistentQueue(tmp_path, "raw", codec=codecs.JSON, **settings) as queue:
        found: list[Any] = []
        errors: list[CodecError] = []
        with queue.session() as session:
            while len(queue):
                try:
                    found += session.dequeue_many(4) if many else [session.dequeue()]
                except CodecError as error:
                    errors.append(error)
            with pytest.raises(ValueError, match="holds no such item"):
                session.reject(CodecError("decode", codecs.JSON, b"{", ValueError(), "elsewhere", 2))
            session.reject(errors[1], retry=False)
            session.reject(errors[0], "no JSON", retry=False)
            with pytest.raises(ValueError, match="holds no such item"):
                session.reject(errors[1], retry=False)
            session.flush()
        assert found == [1, 2]
        letters = [DeadLetter.decode(each) for each in queue.dead_letters.browse()]
        assert [(each.sequence, each.item) for each in letters] == [(0, b"{"), (2, b"{")]
        assert [each.reason for each in letters] == ["no JSON", errors[1].problem]
        assert str(errors[1]).endswith("; with dead letters, reject(error, retry=False) moves it there")
        assert len(queue) == 0


def test_row_16_its_attempts_end(tmp_path: Path) -> None:
    """If a consumer fails at an undecodable item each time, the item becomes a dead letter when its attempts are used
    up."""
    _put_raw(tmp_path / "raw", b"{", b"1")
    with PersistentQueue(tmp_path, "raw", codec=codecs.JSON, max_attempts=2, dead_letter="dead") as queue:
        for _ in range(2):
            with pytest.raises(CodecError), queue.transaction() as session:
                session.dequeue()
        with queue.transaction() as session:
            assert session.dequeue() == 1
        assert [DeadLetter.decode(each).item for each in queue.dead_letters.browse()] == [b"{"]


def test_row_16_a_codec_that_recurses_without_end_is_a_codec_error(tmp_path: Path) -> None:
    """``RecursionError`` of a codec is raised as a ``CodecError``, and the next item comes."""
    _put_raw(tmp_path, b"[" * 100_000, b"1")
    with PersistentQueue(tmp_path, codec=codecs.JSON) as queue, queue.transaction() as session:
        with pytest.raises(CodecError, match="RecursionError"):
            session.dequeue()
        assert session.dequeue() == 1


def test_row_16_compat_names_it_and_goes_on(tmp_path: Path) -> None:
    """``compat.Queue`` raises the error once, with the place of the item, and ``task_done`` drops the item."""
    _put_raw(tmp_path, b"{", b"1")
    with compat.Queue[Any](tmp_path) as queue:
        with pytest.raises(CodecError, match=f"^{tmp_path}: item 0: "):
            queue.get_nowait()
        queue.task_done()
        assert queue.get_nowait() == 1
        queue.task_done()
        assert queue.persistent.stats().undecodable == 1


async def _aio_goes_on(path: Path) -> None:
    async with aio.Queue[Any](path / "a") as queue:
        with pytest.raises(CodecError, match=f"^{path / 'a'}: item 0: ") as caught:
            await queue.get()
        assert (caught.value.sequence, caught.value.item) == (0, b"{")
        queue.task_done()
        assert await queue.get() == 1
        queue.task_done()
        await queue.join()
    async with aio.PersistentQueue(path / "b", codec=codecs.JSON) as other, other.session() as session:
        with pytest.raises(CodecError, match=f"^{path / 'b'}: item 0: "):
            await session.dequeue()
        assert await session.dequeue() == 1
        await session.flush()


def test_row_16_aio_names_it_and_goes_on(tmp_path: Path) -> None:
    """Both queues of ``aio`` name the item in the error. It is gone when it is done, or flushed."""
    for name in ("a", "b"):
        _put_raw(tmp_path / name, b"{", b"1")
    asyncio.run(_aio_goes_on(tmp_path))


# --- row 19: work that a block drops ----------------------------------------------------------------------------------


def _warned(block: Callable[[], int]) -> list[tuple[str, int]]:
    """Return the text and the line of each hint. Lines are counted from the line that ``block`` returns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = block()
    assert all(each.category is UnflushedWarning and each.filename == __file__ for each in caught)
    return [(str(each.message), each.lineno - line) for each in caught]


def _here() -> int:
    return sys._getframe(1).f_lineno


def test_row_19_a_block_that_drops_work_hints_at_it(open_queue: QueueFactory, directory: Path) -> None:
    """The hint names queue, session and counts, at the line of the ``with``. The work is dropped all the same."""
    queue = open_queue()
    put(queue, b"1", b"2")

    def block() -> int:
        with queue.session("mine") as session:
            session.enqueue(b"3")
            session.dequeue()
        return _here() - 3

    ((text, line),) = _warned(block)
    assert text.startswith(f"{directory}: the session 'mine' ended without a flush: 1 enqueued item is dropped, ")
    assert "1 dequeued item is given back" in text
    assert line == 0
    assert (queue.peek(9), queue.stats().held, queue.stats().sessions) == ([b"1", b"2"], 0, 0)


def test_row_19_silence_where_it_was_meant(open_queue: QueueFactory, tmp_path: Path) -> None:
    """There is no hint after a flush, a rollback, a close or an exception, and none for a transaction or a closed
    queue."""
    queue, other = open_queue(), open_queue("other")
    put(queue, *map(bytes, range(9)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for end in (Session.flush, Session.rollback, Session.close):
            with queue.session() as session:
                session.dequeue()
                session.enqueue(b"")
                end(session)
        with queue.session():
            pass
        with pytest.raises(KeyError), queue.session() as session:
            session.dequeue()
            raise KeyError
        with queue.transaction() as session:
            session.dequeue()
        with transaction(queue, other) as (a, b):
            b.enqueue(a.dequeue() or b"")
        with Producer(tmp_path / "p") as producer:
            producer.enqueue(b"1")
            producer.rollback()
        with pytest.raises(KeyError), Producer(tmp_path / "p") as producer:
            producer.enqueue(b"1")
            raise KeyError
        with queue.session() as session:
            session.dequeue()
            queue.close()


def test_row_19_as_an_error_it_leaves_nothing_open(open_queue: QueueFactory, tmp_path: Path) -> None:
    """If a filter makes the hint an error, session and producer are rolled back and closed all the same."""
    queue = open_queue()
    put(queue, b"1")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnflushedWarning)
        with pytest.raises(UnflushedWarning), queue.session() as session:
            session.dequeue()
        with pytest.raises(UnflushedWarning, match="1 item is dropped"), Producer(tmp_path / "p") as producer:
            producer.enqueue(b"1")
    assert session.closed
    assert producer.closed
    assert (len(queue), queue.stats().held) == (1, 0)


def test_row_19_a_producer_hints_at_it(tmp_path: Path) -> None:
    """The hint of a producer names the queue and the line of its ``with``."""

    def block() -> int:
        with Producer(tmp_path) as producer:
            producer.enqueue_many([b"1", b"2"])
        return _here() - 2

    ((text, line),) = _warned(block)
    assert (line, text.startswith(f"{tmp_path}: a producer ended")) == (0, True)


async def _aio_drops(path: Path) -> int:
    async with aio.PersistentQueue(path) as queue:
        async with queue.session() as session:
            await session.enqueue(b"1")
        line = _here() - 2
        async with queue.session() as session:
            await session.enqueue(b"2")
            await session.rollback()
        async with queue.transaction() as session:
            await session.enqueue(b"3")
        with pytest.raises(KeyError):
            async with queue.session() as session:
                await session.enqueue(b"4")
                raise KeyError
    return line


def test_row_19_aio_hints_at_it(tmp_path: Path) -> None:
    """A session of ``aio`` hints at the line of its ``async with``, and not if the work was dropped on purpose."""
    ((_, line),) = _warned(lambda: asyncio.run(_aio_drops(tmp_path)))
    assert line == 0


# --- row 22: a Spark payload that is gone -----------------------------------------------------------------------------


def _stages(path: Path, *, whole: int, lost: int) -> list[str]:
    """Put stages as a hand-off does, without Spark; delete a file of stage number ``lost``; return the directories."""
    names = []
    with PersistentQueue(path, "q") as queue, queue.transaction() as session:
        for number in range(whole):
            name = f"stage-{queue.identity[:16]}-{number:032x}"
            payload = path / "q+payload" / name
            payload.mkdir(parents=True)
            (payload / "a.parquet").write_bytes(b"12345")
            (payload / "b.parquet").write_bytes(b"123")
            if number == lost:
                (payload / "b.parquet").unlink()
            manifest = {"directory": name, "schema": {}, "files": ["a.parquet", "b.parquet"], "sizes": [5, 3]}
            rest = {"format": "persistentqueue stage 1", "bytes": 8, "rows": 1, "marker": None}
            session.enqueue(json.dumps(manifest | rest).encode())
            names.append(name)
    return names


def _left(path: Path) -> set[str]:
    return {each.name for each in (path / "q+payload").iterdir()}


def test_row_22_a_lost_payload_can_be_skipped(tmp_path: Path) -> None:
    """The error names the file and has the manifest. ``skip`` consumes the stage, and deletes nothing."""
    spark = pytest.importorskip("persistentqueue.spark")
    first, second = _stages(tmp_path, whole=2, lost=0)
    with spark.StageHandoff(None, tmp_path, "q") as handoff:
        lost = pytest.raises(spark.PayloadLostError, match=r"b\.parquet.*expected 3 bytes, found no file")
        with lost as caught, handoff.take():
            pass
        assert issubclass(spark.PayloadLostError, CorruptionError)
        assert pickle.loads(pickle.dumps(caught.value)).manifest == caught.value.manifest
        assert [each.directory for each in handoff.waiting()] == [first, second]
        assert handoff.skip(caught.value.manifest)
        assert not handoff.skip(caught.value.manifest)
        assert [each.directory for each in handoff.waiting()] == [second]
        assert _left(tmp_path) == {f"{first}.lost", second}
    with spark.StageHandoff(None, tmp_path, "q"):  # its opening sweeps
        assert _left(tmp_path) == {f"{first}.lost", second}


def test_row_22_a_lost_payload_can_be_buried(tmp_path: Path) -> None:
    """With ``dead_letter`` the manifest and the reason are kept. The other stages wait as before, in order."""
    spark = pytest.importorskip("persistentqueue.spark")
    names = _stages(tmp_path, whole=3, lost=1)
    with spark.StageHandoff(None, tmp_path, "q", dead_letter="dead") as handoff:
        assert handoff.skip(list(handoff.waiting())[1], "no file")
        assert [each.directory for each in handoff.waiting()] == [names[0], names[2]]
    with PersistentQueue(tmp_path, "dead") as dead:
        (letter,) = [DeadLetter.decode(each) for each in dead.browse()]
    assert (letter.queue, letter.sequence, letter.reason) == ("q", 1, "no file")
    assert json.loads(letter.item)["directory"] == names[1]


def test_row_22_other_consumers_keep_the_payload(tmp_path: Path) -> None:
    """A stage that one consumer skips stays for the others. When the last consumer skips it, its payload is set
    aside."""
    spark = pytest.importorskip("persistentqueue.spark")
    (name,) = _stages(tmp_path, whole=1, lost=0)
    with spark.StageHandoff(None, tmp_path, "q") as handoff:
        handoff.subscribe("audit")
        (manifest,) = handoff.waiting()
        assert handoff.skip(manifest)
        assert [each.directory for each in handoff.waiting("audit")] == [name]
        assert _left(tmp_path) == {name}
        assert handoff.skip(manifest, subscription="audit")
        assert _left(tmp_path) == {f"{name}.lost"}


# --- row 18: every error that the library can name --------------------------------------------------------------------


def _entries() -> list[Callable[[Any], Any]]:
    return [
        PersistentQueue,
        Producer,
        check,
        repair,
        list_queues,
        delete_queue,
        lambda path: View(path).look(),
        lambda path: move_data(path, data_path=None),
        lambda path: asyncio.run(aio.PersistentQueue(path).open()),
        compat.Queue,
        compat.FifoQueue,
    ]


def _obstacles(root: Path) -> list[Path]:
    """Return paths at which no queue can be, each for a different reason."""
    (root / "file").write_bytes(b"")
    (root / "loop").symlink_to(root / "loop")
    (root / "lock" / "lock").mkdir(parents=True)
    (root / "data").mkdir()
    (root / "data" / "data").write_bytes(b"")
    long = root / ("x" * 300)
    return [root / "file", root / "file" / "below", root / "loop", root / "lock", root / "data", long, Path("/proc/q")]


@pytest.mark.parametrize("entry", _entries(), ids=lambda each: getattr(each, "__name__", ""))
def test_row_18_a_path_that_cannot_be_is_a_named_error(tmp_path: Path, entry: Callable[[Any], Any]) -> None:
    """Each entry to a queue finds nothing there, or raises a ``PersistentQueueError`` that names the path."""
    if not Path("/proc/self").exists():
        pytest.skip("needs a directory that nobody can write to")
    for path in _obstacles(tmp_path):
        found: Any = []
        refusal: Any = FileNotFoundError(str(path))
        try:
            found = entry(path)
        except PersistentQueueError as error:
            refusal = error
        assert found == []
        assert str(path) in str(refusal)
        assert isinstance(refusal, OSError | UntrustedError)


@pytest.mark.parametrize("kind", [PathDeniedError, PathMissingError, PathNotADirectoryError, PathIsADirectoryError])
def test_row_18_it_is_of_the_kind_that_it_was(tmp_path: Path, kind: type[UnusablePathError]) -> None:
    """Each refusal has the built-in kind, ``errno``, the path and an advice, also after pickle and copy."""
    (built_in,) = set(kind.__bases__) - {UnusablePathError}
    numbers: dict[type, int] = {
        PermissionError: errno.EACCES,
        FileNotFoundError: errno.ENOENT,
        IsADirectoryError: errno.EISDIR,
    }
    number = numbers.get(built_in, errno.ENOTDIR)
    path = str(tmp_path / "q" / "lock")

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number), path)

    calls: dict[str, Any] = {"open": refuse} if built_in is not FileNotFoundError else {"mkdir": refuse}
    with pytest.raises(built_in, match=rf"^{path}: {os.strerror(number)}: \w+") as caught:
        call_on(replace(DISK, **calls), PersistentQueue, tmp_path, "q")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert type(error) is kind
        assert (error.errno, error.filename, error.path) == (number, path, path)
        assert "make the path usable" not in str(error)


def test_row_18_what_is_not_the_paths_fault_comes_as_it_is(tmp_path: Path) -> None:
    """An error that is not caused by the path is the system's own ``OSError``."""

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match="Input/output error") as caught:
        call_on(replace(DISK, open=fail), PersistentQueue, tmp_path, "q")
    assert type(caught.value) is OSError


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS], ids=errno.errorcode.get)
def test_row_18_a_log_directory_that_may_not_be_written_to(tmp_path: Path, number: int) -> None:
    """If the log may not be written, the error of the flush says so: only to open the queue again would not help.

    An opening that may not read the log names its file.
    """

    def refuse(call: Callable[..., Any], *arguments: Any) -> Any:
        if any(str(each).endswith(".log") for each in arguments):
            raise OSError(number, os.strerror(number), arguments[0])
        return call(*arguments)

    PersistentQueue(tmp_path).close()
    with pytest.raises(UnusablePathError, match=rf"\.log: {os.strerror(number)}: \w+ .*(directory|View)"):
        call_on(replace(DISK, open=partial(refuse, DISK.open)), PersistentQueue, tmp_path)
    queue = call_on(replace(DISK, rename=partial(refuse, DISK.rename)), PersistentQueue, tmp_path)
    advice = "let this process write to all directories of the queue, by their owner, mode or mount; then close the"
    with pytest.raises(BrokenQueueError, match=rf"{os.strerror(number)}.*: whether .* is unknown; {advice}"):
        put(queue, b"one")
        queue.trim()
    queue.close()


def test_row_18_the_tree_has_every_error() -> None:
    """The docstring of ``errors`` names each error class, and the package exports it."""
    tree = persistentqueue.errors.__doc__ or ""
    for name, kind in vars(persistentqueue.errors).items():
        if isinstance(kind, type) and issubclass(kind, PersistentQueueError | UnflushedWarning):
            assert name in tree
            assert name in persistentqueue.__all__
    _every_module()
    assert [kind for kind in _subclasses(PersistentQueueError) if kind.__name__ not in tree] == []
