"""Transactions that are larger than a segment, or than what a session keeps in memory."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest

from persistentqueue import BrokenQueueError, PersistentQueue, QueueFullError, Session
from persistentqueue import session as session_module
from persistentqueue.core.block import MIXED
from persistentqueue.core.items import Alike
from persistentqueue.core.page_cache import ITEM_OVERHEAD_BYTES
from persistentqueue.engine.transaction import SPILL_BYTES
from persistentqueue.runtime.session_state import put_at_once
from persistentqueue.storage.segment_files import Segments
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, put, segment_files, spilling_session


def test_transaction_over_several_segments(open_queue: QueueFactory, directory: Path) -> None:
    """A transaction whose blocks do not fit one segment goes on in the next ones."""
    queue = open_queue(segment_bytes=600_000)
    items = [bytes([n]) * 150_000 for n in range(20)]
    put(queue, *items)
    assert len(segment_files(directory)) > 4
    assert list(queue.browse()) == items
    crash(queue)
    assert drain(open_queue()) == items


def test_items_that_are_too_large(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """``enqueue`` and ``enqueue_many`` refuse an item above the maximum, and nothing of the refused call is
    buffered."""
    monkeypatch.setattr(session_module, "ITEM_BYTES_MAX", 10)
    monkeypatch.setattr("persistentqueue.core.items.ITEM_BYTES_MAX", 10)
    queue = open_queue()
    with queue.session() as session:
        with pytest.raises(ValueError, match="exceeds the maximum of 10 bytes"):
            session.enqueue(b"x" * 11)
        with pytest.raises(ValueError, match="of 12 bytes exceeds"):
            session.enqueue_many([b"y", b"x" * 12])
        session.enqueue_many([b"x" * 10] * 2)
        session.flush()
    assert drain(queue) == [b"x" * 10] * 2


def test_lengths_that_a_session_has_measured(open_queue: QueueFactory) -> None:
    """A session says that its items have one length only if they have it. They come one by one, in series, or from
    messages, also behind spills and rollbacks. Each item is written as it is."""
    queue, chance = open_queue(), Random(5)
    expected: list[bytes] = []
    said = 0
    with queue.session() as session:
        session._spill_bytes = 400  # of three items or so: behind a spill there are soon as many as before
        for _ in range(400):
            buffered: list[bytes] = []
            for _ in range(chance.randrange(5)):
                length_bytes = chance.randrange(3)
                items = [chance.randbytes(length_bytes) for _ in range(chance.randrange(4))]
                if chance.random() < 0.2:
                    items.append(b"one more")
                many, lengths = chance.random() < 0.8, {len(item) for item in items}
                message = Alike(items, *lengths) if len(lengths) == 1 else items
                from_message = many and chance.random() < 0.5 and put_at_once(session, message)
                for part in [] if from_message else [items] if many else [[item] for item in items]:
                    session.enqueue_many(part) if many else session.enqueue(*part)
                if items:
                    transaction = session._open()
                    lengths = {len(item) for item in transaction.items}
                    assert transaction.each_bytes == MIXED or lengths == {transaction.each_bytes}
                    said += len(transaction.items) > 1 and transaction.each_bytes != MIXED
                buffered += items
            if chance.random() < 0.2:
                session.rollback()
            else:
                session.flush()
                expected += buffered
    assert said > 100
    crash(queue)  # so that the items come from the file
    assert drain(open_queue()) == expected


def test_items_behind_a_spill_are_measured_anew(open_queue: QueueFactory) -> None:
    """As many items as were spilled, with as many bytes in all but other lengths, are written as they are."""
    queue = open_queue()
    with queue.session() as session:
        session._spill_bytes = 2 * ITEM_OVERHEAD_BYTES + 4
        session.enqueue_many([b"aa", b"bb"])
        session.enqueue(b"c")  # spills
        session.enqueue(b"ddd")
        assert session._open().pieces
        session.flush()
    crash(queue)  # so that the items come from the file
    assert drain(open_queue()) == [b"aa", b"bb", b"c", b"ddd"]


def test_several_items_spill_where_each_of_them_would(open_queue: QueueFactory) -> None:
    """``enqueue_many`` spills before an item that does not fit, as ``enqueue`` does: only a single item may be larger
    than what a session keeps."""
    queue, chance = open_queue(), Random(7)
    for _ in range(50):
        items = [bytes(chance.choice([0, 10, 100, 1000])) for _ in range(chance.randrange(2, 12))]
        with spilling_session(queue, 400) as one, spilling_session(queue, 400) as many:
            for item in items:
                one.enqueue(item)
            many.enqueue_many(items[:1])
            many.enqueue_many(items[1:])
            parts = [
                ([piece.count for piece in each.pieces], each.items, each.cost_bytes)
                for each in (one._open(), many._open())
            ]
            assert parts[0] == parts[1]
            one.rollback()
            many.rollback()


def test_spill_that_breaks(open_queue: QueueFactory) -> None:
    """A device error while a session spills breaks the queue."""
    failing = [False]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if failing[0]:
            raise OSError(5, "Input/output error")
        return DISK.pwritev(fd, buffers, offset, flags)

    queue = open_queue(disk=replace(DISK, pwritev=pwritev))
    with queue.session() as session:
        session._spill_bytes = 1
        session.enqueue(b"x")
        failing[0] = True
        with pytest.raises(BrokenQueueError):
            session.enqueue(b"y")


def test_a_spill_without_memory_breaks_nothing(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory is too short to spill, ``enqueue_many`` raises ``MemoryError``. The items before it can be flushed."""
    queue = open_queue()
    stage = Segments.stage
    with queue.session() as session:
        session.enqueue(b"first")

        def fail(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr(Segments, "stage", fail)
        with pytest.raises(MemoryError):
            session.enqueue_many([bytes(SPILL_BYTES)] * 2)
        monkeypatch.setattr(Segments, "stage", stage)
        session.flush()
    assert drain(queue)[0] == b"first"


# --- rollbacks --------------------------------------------------------------------------------------------------------


def rolled_back(session: Session) -> None:
    """Spill items to several segments in a queue with segments of 1,000 bytes, and roll back."""
    session._spill_bytes = 10
    session.enqueue_many([b"secret" * 100] * 10)
    session.rollback()


def test_a_rollback_gives_back_what_it_spilled(open_queue: QueueFactory, directory: Path) -> None:
    """The segments that only a rolled-back session has written to are deleted with its rollback."""
    queue = open_queue(segment_bytes=1000)
    with queue.session() as session, queue.session() as other:
        other._spill_bytes = 10
        other.enqueue_many([b"kept" * 150] * 2)
        kept = segment_files(directory)
        for _ in range(3):
            rolled_back(session)
            assert segment_files(directory) == kept
        other.flush()
    put(queue, b"y")
    assert drain(queue) == [b"kept" * 150] * 2 + [b"y"]


def test_an_error_of_the_disk_does_not_keep_a_rollback(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the files cannot be looked at or deleted, the rollback succeeds. The next opening deletes them."""

    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EACCES, "denied")

    queue = open_queue(segment_bytes=1000)
    with queue.session() as session:
        session._spill_bytes = 10
        session.enqueue_many([b"x" * 600] * 10)
        with monkeypatch.context() as patched:
            for name in ("delete", "file_bytes"):
                patched.setattr(Segments, name, fail)
            session.rollback()
        put(queue, b"y")
    queue.close()
    queue = open_queue()
    assert len(segment_files(directory)) == 1
    assert drain(queue) == [b"y"]


def test_a_refused_flush_leaves_no_segment_behind_its_rollback(open_queue: QueueFactory, directory: Path) -> None:
    """A transaction that is too large for the disk leaves no segment when it is rolled back, spilled or not."""
    queue = open_queue(segment_bytes=1000, log_bytes=4096, max_disk_bytes=20_480)
    for spill_bytes in (10, 10**6):
        with queue.session() as session:
            session._spill_bytes = spill_bytes
            with pytest.raises(QueueFullError):
                for _ in range(30):
                    session.enqueue(b"x" * 600)
                session.flush()
            session.rollback()
        assert segment_files(directory) == []


@pytest.mark.parametrize("call", [PersistentQueue.trim, PersistentQueue.maintain, PersistentQueue.compact])
def test_what_a_rollback_could_not_give_back(
    open_queue: QueueFactory, directory: Path, call: Callable[[PersistentQueue], object]
) -> None:
    """If another thread writes during a rollback, the segments stay: ``explain`` shows them, and a trim, maintenance or
    compaction deletes them."""
    queue = open_queue(segment_bytes=1000)
    with queue.session() as session:
        session._spill_bytes = 10
        session.enqueue_many([b"x" * 600] * 10)
        with queue._open().writing:
            session.rollback()
    left = segment_files(directory)
    assert len(left) == 9
    *drained, current = map(str, queue.explain())
    assert len(drained) == 8
    assert all(each.endswith(": it is drained, and the next trim retires it") for each in drained)
    assert current.endswith("new items are written to it")
    call(queue)
    assert segment_files(directory) == []
    assert queue.explain() == []


@pytest.mark.parametrize("wipe", [False, True])
def test_what_was_rolled_back_is_wiped(open_queue: QueueFactory, wipe: bool) -> None:
    """With ``wipe``, the segments of a rolled-back session are overwritten before they are deleted."""
    deleted: list[bytes] = []

    def unlink(path: str) -> None:
        deleted.append(Path(path).read_bytes())
        DISK.unlink(path)

    queue = open_queue(segment_bytes=1000, wipe=wipe, disk=replace(DISK, unlink=unlink))
    with queue.session() as session:
        rolled_back(session)
    assert len(deleted) == 9
    assert any(b"secret" in content for content in deleted) is not wipe


def test_a_broken_queue_deletes_nothing(open_queue: QueueFactory, directory: Path) -> None:
    """A rollback in a queue that is broken leaves the segments to the next opening: they may be committed."""
    queue = open_queue(segment_bytes=1000)
    with queue.session() as session:
        session._spill_bytes = 10
        session.enqueue_many([b"x" * 600] * 10)
        queue._open()._store.fail(OSError(5, "injected"))
        session.rollback()
    assert len(segment_files(directory)) == 9
    crash(queue)
