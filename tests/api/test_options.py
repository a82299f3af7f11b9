"""The options of an opening as a value: their checks, their precedence, and their use by all interfaces."""

from __future__ import annotations

import asyncio
import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    DeadLetter,
    MemoryBudget,
    Options,
    PersistentQueue,
    Producer,
    QueueFullError,
    View,
    aio,
    compat,
    connect,
)
from persistentqueue.codecs import JSON
from tests.support.queues import put


def test_queues_share_options(tmp_path: Path) -> None:
    """Two openings with one value have its options, and a keyword argument has precedence over its field."""
    options = Options(max_items=2, memory_bytes=1000)
    with PersistentQueue(tmp_path, "a", options=options) as queue:
        put(queue, b"1", b"2")
        with pytest.raises(QueueFullError):
            put(queue, b"3")
        assert queue.stats().memory_bytes == 1000
    with PersistentQueue(tmp_path, "b", options=options, max_items=3) as queue:
        put(queue, b"1", b"2", b"3")
        assert queue.stats().memory_bytes == 1000
    assert options == Options(max_items=2, memory_bytes=1000)


def test_options_never_change() -> None:
    """A field cannot be set; ``replace`` makes other options and checks them."""
    options = Options(log_bytes=8192)
    with pytest.raises(FrozenInstanceError):
        options.log_bytes = 4096  # type: ignore[misc]
    assert replace(options, full="block") == Options(log_bytes=8192, full="block")
    with pytest.raises(ValueError, match="log_bytes must be at least 4096, got 1"):
        replace(options, log_bytes=1)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"max_item": 3}, TypeError, "a queue has no option 'max_item': did you mean 'max_items'?"),
        ({"codecs": 3}, TypeError, "a queue has no option 'codecs': did you mean 'codec'?"),
        ({"serv": 3}, TypeError, "a queue has no option 'serv': did you mean 'serve'?"),
        ({"segment_bytes": True}, TypeError, "segment_bytes must be a whole number, not True"),
        ({"max_items": True}, TypeError, "max_items must be a whole number, not True"),
        ({"lock_timeout": True}, TypeError, "lock_timeout must be a number, not True"),
        ({"zzzz": 3}, TypeError, "a queue has no option 'zzzz': the options are data_path, sync"),
        ({"options": {"sync": False}}, TypeError, "options must be Options, not {'sync': False}"),
        ({"sync": 1}, TypeError, "sync must be True or False, not 1"),
        ({"create": "no"}, TypeError, "create must be True or False, not 'no'"),
        ({"full": "wait"}, ValueError, 'full must be "raise" or "block", got \'wait\''),
        ({"compression": "gzip"}, ValueError, "compression must be None or \"zstd\", got 'gzip'"),
        ({"encryption": "key"}, TypeError, "encryption must be None or an Encryption, not 'key'"),
        ({"compact_below": 1.5}, ValueError, "compact_below must be a share from 0 to 1, got 1.5"),
        ({"pool_min_bytes": 2, "pool_max_bytes": 1}, ValueError, "pool_max_bytes must be at least pool_min_bytes, 2"),
        ({"max_disk_bytes": 4096}, ValueError, "max_disk_bytes must be at least 5242880, got 4096"),
        ({"segment_bytes": 2**63}, ValueError, "a number of 64 bits"),
        ({"max_items": 10**400}, ValueError, "a number of 1329 bits"),
    ],
)
def test_wrong_options(tmp_path: Path, arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    """A wrong option is refused by each interface before anything is made, with its name, its value and the reason."""
    kinds: list[Any] = [PersistentQueue, compat.Queue, compat.FifoQueue, aio.PersistentQueue, aio.Queue]
    if "options" not in arguments and error is ValueError:
        kinds.append(lambda _path, **options: Options(**options))
    for kind in kinds:
        with pytest.raises(error) as caught:
            kind(tmp_path / "queue", **arguments)
        assert text in str(caught.value)
    assert not (tmp_path / "queue").exists()


def test_a_wrong_serve_makes_no_queue(tmp_path: Path) -> None:
    """``serve`` is checked before anything is made."""
    serve: Any = 1
    with pytest.raises(TypeError, match=r"^serve must be True or False, not 1$"):
        PersistentQueue(tmp_path / "queue", serve=serve)
    assert not (tmp_path / "queue").exists()


def test_an_argument_of_another_call_is_named(tmp_path: Path) -> None:
    """An argument that only other calls have is refused with the names of these calls, and not with its own name."""
    calls: list[tuple[Any, str, str]] = [
        (PersistentQueue, "hold_seconds", "connect()"),
        (PersistentQueue, "prefetch", "connect()"),
        (aio.PersistentQueue, "serve", "PersistentQueue() and connect()"),
        (compat.FifoQueue, "codec", "PersistentQueue() and connect()"),
        (connect, "progress", "PersistentQueue()"),
    ]
    for call, name, others in calls:
        with pytest.raises(TypeError) as caught:
            call(tmp_path / "queue", **{name: None})
        assert str(caught.value) == f"this call has no argument {name!r}, which is one of {others}: omit it"
    assert not (tmp_path / "queue").exists()


def test_other_interfaces_take_options(tmp_path: Path) -> None:
    """``compat`` and ``aio`` take options as a value, and let a keyword argument override a field."""
    options = Options(max_items=1, memory_bytes=MemoryBudget(4096))
    with compat.Queue[int](tmp_path / "a", options=options) as standard:
        assert standard.persistent.stats().memory_bytes == 4096
        standard.put(1)
        with pytest.raises(compat.Full):
            standard.put_nowait(2)
    with compat.FifoQueue(tmp_path / "b", options=options, max_items=2) as fifo:
        fifo.push(b"1")
        fifo.push(b"2")

    async def main() -> None:
        async with aio.PersistentQueue(tmp_path / "c", options=options) as queue, queue.transaction() as session:
            await session.enqueue(b"1")
        async with aio.Queue[int](tmp_path / "d", options=options, max_items=2) as items:
            await items.put(1)
            await items.put(2)

    asyncio.run(main())


@pytest.mark.parametrize("options", [Options(retry_delay_seconds=1), Options(max_attempts=2, dead_letter="dead")])
def test_options_that_count_deliveries(tmp_path: Path, options: Options) -> None:
    """Interfaces take options that count deliveries; the one whose items are consumed at once names the first one."""
    with pytest.raises(ValueError, match=r"(max_attempts|retry_delay_seconds) cannot be used with"):
        compat.FifoQueue(tmp_path / "queue", options=options)
    assert list(tmp_path.iterdir()) == []
    with compat.Queue[int](tmp_path / "a", options=options) as standard:
        standard.put(1)
        assert standard.get() == 1
        standard.reject(1)
        assert standard.qsize() == 1

    async def main() -> None:
        async with aio.PersistentQueue(tmp_path / "c", options=options) as queue, queue.session() as session:
            with pytest.raises(ValueError, match="no such item"):
                await session.reject(b"1")
        async with aio.Queue[int](tmp_path / "d", options=options) as items:
            await items.put(1)
            assert await items.get() == 1
            await items.reject(1)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [compat.Queue, aio.Queue])
def test_a_name_is_no_maxsize(tmp_path: Path, kind: Any) -> None:
    """A queue of the standard library's kind has one path. A name behind it is refused before anything is made."""
    with pytest.raises(TypeError, match=r"maxsize must be a whole number, not 'orders': the path of this queue is one"):
        kind(tmp_path / "queues", "orders")
    assert not (tmp_path / "queues").exists()


def test_serve_is_no_word(tmp_path: Path) -> None:
    """``serve`` of a queue is True or False. The words of ``connect`` are refused, and the queue is closed again."""
    with pytest.raises(TypeError, match="serve must be True or False, not 'never'"):
        PersistentQueue(tmp_path / "queue", serve="never")  # type: ignore[arg-type]
    PersistentQueue(tmp_path / "queue").close()


@pytest.mark.parametrize("text", ["abc", b"abc", bytearray(b"abc")])
def test_one_item_is_not_several_for_any_codec(tmp_path: Path, text: Any) -> None:
    """``enqueue_many`` takes no text apart, in no kind of session: its characters would become items."""
    with PersistentQueue(tmp_path / "queue", codec=JSON, serve=True) as queue, queue.session() as typed:
        with connect(tmp_path / "queue", codec=JSON, serve="never") as shared, shared.session() as other:
            for call in (typed.enqueue_many, other.enqueue_many, Producer(tmp_path / "queue", codec=JSON).enqueue_many):
                with pytest.raises(TypeError, match=r"takes several items, not .*: use enqueue for one item"):
                    call(text)
        assert len(queue) == 0


def test_arguments_of_calls_are_named(tmp_path: Path) -> None:
    """A wrong argument is refused with what it must be, and with the call that was meant."""
    letter: Any = DeadLetter
    view: Any = View(tmp_path / "queue")
    with PersistentQueue(tmp_path / "queue") as queue, queue.session() as opened:
        wanted: Any = queue
        session: Any = opened
        wrong: list[tuple[Any, type[Exception], str]] = [
            (lambda: wanted.peek("3"), TypeError, "n must be a whole number, not '3'"),
            (lambda: view.peek(1.5), TypeError, "n must be a whole number, not 1.5"),
            (lambda: queue.peek(-1), ValueError, "n must be at least 0, got -1"),
            (lambda: session.enqueue_many(b"abc"), TypeError, "takes several items, not bytes: use enqueue for one"),
            (
                lambda: session.enqueue("text"),
                TypeError,
                "not str: encode it, or open the queue with codec=codecs.TEXT",
            ),
            (lambda: letter.decode("text"), TypeError, "a dead letter must be decoded from bytes, not str"),
        ]
        for call, error, text in wrong:
            with pytest.raises(error, match=re.escape(text)):
                call()
        assert queue.peek(2**70) == []
