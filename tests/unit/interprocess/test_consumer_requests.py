"""Requests of a process that consumes a subscription without owning the queue."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    CorruptionError,
    DataPathError,
    DiskFullError,
    PersistentQueue,
    QueueNotFoundError,
    check,
)
from persistentqueue.interprocess.consumer_requests import acknowledge, request_subscription
from persistentqueue.interprocess.splits import look
from persistentqueue.storage.log_reader import SNAPSHOT
from persistentqueue.storage.publication import LATEST, Draft, Request, read_publication
from persistentqueue.subscription import Subscription
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import crash, drain, put, put_each, segment_files, wait_for


def left(subscription: Subscription) -> list[bytes]:
    """Return the items that the subscription may dequeue."""
    return list(subscription.browse())


def ask(queue: PersistentQueue) -> None:
    """Make the owner look into the inbox at once."""
    queue._open()._look(insists=True)


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("sync", [True, False])
def test_a_subscription_that_is_asked_for(open_queue: QueueFactory, directory: Path, owned: bool, sync: bool) -> None:
    """A requested subscription exists when the owner has looked, begins where requested, and lacks the acknowledged
    items.

    Repeated requests change nothing, whether a process owns the queue at the time or not.
    """
    queue = open_queue(sync=sync)
    put(queue, b"0", b"1", b"2", b"3")
    if not owned:
        queue.close()
    for _ in range(2):
        request_subscription(directory, None, "spark", 0)
        request_subscription(directory, None, "late", LATEST)
        request_subscription(directory, None, "third", 3)
        acknowledge(directory, None, "spark", 2)
        if owned:
            ask(queue)
        else:
            queue = open_queue(sync=sync)
        assert queue.subscriptions() == ["spark", "late", "third"]
        assert left(queue.subscribe("spark")) == [b"2", b"3"]
        assert left(queue.subscribe("late")) == []
        assert left(queue.subscribe("third")) == [b"3"]
        assert os.listdir(directory / "inbox") == []
        if not owned:
            queue.close()
    if not owned:
        queue = open_queue(sync=sync)
    acknowledge(directory, None, "spark", 1)
    acknowledge(directory, None, "spark", 0)
    acknowledge(directory, None, "third", 10**9)
    crash(queue)
    queue = open_queue(sync=sync)
    assert left(queue.subscribe("spark")) == [b"2", b"3"]
    assert left(queue.subscribe("third")) == []
    assert drain(queue) == [b"0", b"1", b"2", b"3"]


def test_requests_keep_their_place(open_queue: QueueFactory, directory: Path) -> None:
    """A request applies to the files that were published before it, and to none that came later."""
    from .test_producer import publish

    queue = open_queue()
    queue.subscribe("a")
    publish(directory, b"0", b"1")
    acknowledge(directory, None, "a", 10**6)
    publish(directory, b"2")
    request_subscription(directory, None, "b", LATEST)
    publish(directory, b"3")
    ask(queue)
    assert left(queue.subscribe("a")) == [b"2", b"3"]
    assert left(queue.subscribe("b")) == [b"3"]


def test_what_is_acknowledged_for_nobody(open_queue: QueueFactory, directory: Path) -> None:
    """An acknowledgement for an unknown subscription makes none, and the plain queue cannot be acknowledged."""
    queue = open_queue()
    put(queue, b"0")
    acknowledge(directory, None, "gone", 5)
    with pytest.raises(ValueError, match="1 to 65,535 bytes"):
        acknowledge(directory, None, "", 5)
    Draft(DISK, str(directory / "inbox"), f"{7:016x}", 5).ask(Request("", 0, 5), 5)  # unchecked name
    ask(queue)
    assert queue.subscriptions() == []
    assert len(queue) == 1
    assert os.listdir(directory / "inbox") == []


def test_what_a_session_holds_is_its_own(open_queue: QueueFactory, directory: Path) -> None:
    """An acknowledgement does not consume the items that a session of the owner holds."""
    queue = open_queue()
    a = queue.subscribe("a")
    put(queue, *[b"%d" % n for n in range(6)])
    with a.session() as session, a.session() as other:
        assert session.dequeue() == b"0"
        assert other.dequeue_many(2) == [b"1", b"2"]
        other.rollback()
        assert session.dequeue() == b"1"
        acknowledge(directory, None, "a", 4)
        ask(queue)
        assert left(a) == [b"4", b"5"]
        session.rollback()
        assert left(a) == [b"0", b"1", b"4", b"5"]
        acknowledge(directory, None, "a", 4)
        ask(queue)
        assert left(a) == [b"4", b"5"]


def test_acknowledging_makes_room(open_queue: QueueFactory, directory: Path) -> None:
    """Acknowledged items that no other consumer needs free their segments and wake a thread that waits for room."""
    from concurrent.futures import ThreadPoolExecutor

    queue = open_queue(fan_out=True, segment_bytes=500, max_items=40, full="block")
    a = queue.subscribe("a")
    put_each(queue, [bytes(100)] * 40)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(put, queue, b"more")
        wait_for(lambda: queue.stats().waiting == 1)
        acknowledge(directory, None, "a", 38)
        ask(queue)
        waiting.result(60)
    assert len(segment_files(directory)) < 5
    assert left(a) == [bytes(100)] * 2 + [b"more"]


def test_a_full_disk_answers_later(open_queue: QueueFactory, directory: Path) -> None:
    """A request that the log has no room for waits, holds no items meanwhile, and is answered when there is room."""
    queue = open_queue()
    a = queue.subscribe("a")
    put(queue, b"0", b"1")
    store = queue._open()._store
    acknowledge(directory, None, "a", 1)
    with pytest.MonkeyPatch.context() as patch:

        def trim(**_: object) -> None:
            from persistentqueue import DiskFullError

            raise DiskFullError(str(directory), errno.ENOSPC, "no room")

        patch.setattr(store, "trim", trim)
        patch.setattr(store.generations.log, "has_room", lambda *_: False)
        ask(queue)
    assert left(a) == [b"0", b"1"]
    assert queue.stats().published == 1
    ask(queue)
    assert left(a) == [b"1"]


def test_looking_without_the_lock(open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``look`` sees what is committed, beside the owner, even if the log is trimmed meanwhile."""
    queue = open_queue()
    queue.subscribe("a")
    put(queue, b"0", b"1")
    places, recovered = look(DISK, str(directory))
    assert places.directory == str(directory)
    assert (recovered.state.next_sequence, recovered.state.number_of("a")) == (2, 1)
    synced: list[int] = []
    disk = replace(DISK, fdatasync=synced.append)
    assert look(disk, str(directory), durably=True)[1].state.next_sequence == 2
    assert len(synced) == 1
    open_queue("unsynced", sync=False).close()
    with pytest.raises(ValueError, match="sync=True"):
        look(DISK, str(directory.parent / "unsynced"), durably=True)
    failing = [CorruptionError("log", 0, "it", "another"), FileNotFoundError()]
    from persistentqueue.interprocess import splits

    real: Any = vars(splits)["recover"]

    def recover(*arguments: Any) -> Any:
        if failing:
            raise failing.pop()
        return real(*arguments)

    monkeypatch.setattr(splits, "recover", recover)
    assert look(DISK, str(directory))[1].state.next_sequence == 2
    failing += [CorruptionError("log", 0, "it", "another")] * SNAPSHOT.looks
    with pytest.raises(CorruptionError):
        look(DISK, str(directory))
    with pytest.raises(QueueNotFoundError):
        look(DISK, str(directory / "nowhere"))


def test_a_request_that_fails(open_queue: QueueFactory, directory: Path) -> None:
    """If the file cannot be made durable or renamed, nothing is requested.

    If the sync behind the rename fails, the outcome is unknown.
    """
    open_queue().close()
    for call, raised in (("fdatasync", OSError), ("rename", OSError), ("fsync", BrokenQueueError)):

        def fails(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        doors: dict[str, Any] = {call: fails}
        disk = replace(DISK, **doors)
        with pytest.raises(raised):
            call_on(disk, request_subscription, directory, None, call, 0)
    assert open_queue().subscriptions() == ["fsync"]
    with pytest.raises(QueueNotFoundError):
        acknowledge(directory / "nowhere", None, "a", 1)


@pytest.mark.parametrize("subscription", ["", "x" * 2**16, "\ud800", b"a", None])
def test_what_is_no_name(open_queue: QueueFactory, directory: Path, subscription: Any) -> None:
    """A value that cannot be the name of a subscription is refused, by the queue and by both requests."""
    queue = open_queue()
    for call in (
        lambda: queue.subscribe(subscription),
        lambda: request_subscription(directory, None, subscription, 0),
        lambda: acknowledge(directory, None, subscription, 1),
    ):
        with pytest.raises(ValueError if isinstance(subscription, str) else TypeError):
            call()
    assert os.listdir(directory / "inbox") == []


@pytest.mark.parametrize("sequence", [-1, 2**64, 1.5, "1"])
def test_what_is_no_sequence(open_queue: QueueFactory, directory: Path, sequence: Any) -> None:
    """A value that cannot be a sequence is refused before anything is written."""
    open_queue()
    for call in (request_subscription, acknowledge):
        with pytest.raises(ValueError if isinstance(sequence, int) else TypeError):
            call(directory, None, "a", sequence)
    assert os.listdir(directory / "inbox") == []


@pytest.mark.parametrize("call", ["open", "pwritev"])
@pytest.mark.parametrize(("error", "raised"), [(errno.ENOSPC, DiskFullError), (errno.ENOENT, DataPathError)])
def test_a_request_without_room(
    open_queue: QueueFactory, directory: Path, call: str, error: int, raised: type[Exception]
) -> None:
    """On a full disk, or while the queue is moved, a request fails with the advice to ask once more, and leaves no
    file."""
    open_queue()

    def fails(*arguments: Any) -> Any:
        if call == "pwritev" or "/inbox/" in arguments[0]:
            raise OSError(error, os.strerror(error))
        return getattr(DISK, call)(*arguments)

    doors: dict[str, Any] = {call: fails}
    with pytest.raises(raised, match="ask once more"):
        call_on(replace(DISK, **doors), acknowledge, directory, None, "a", 1)
    assert os.listdir(directory / "inbox") == []


@pytest.mark.damages
def test_a_request_says_one_thing(open_queue: QueueFactory, directory: Path) -> None:
    """A published file with a request is damaged unless its operations are exactly those of one request."""
    from persistentqueue.core.block import SEGMENT_MAGIC
    from persistentqueue.core.frame import encode_frame
    from persistentqueue.core.header import HEADER_BYTES, Header, encode_header
    from persistentqueue.core.operations import (
        Adoption,
        Dequeue,
        MarkerSet,
        Operation,
        SubscriptionOpened,
        encode_transaction,
    )

    queue = open_queue()
    name = f"{5:016x}-{7:016x}.seg"
    path = directory / "inbox" / name
    asks = SubscriptionOpened(0, 0, "a")
    wrongs: list[list[Operation]] = [
        [Adoption(0, 9, 0, name), asks, MarkerSet("m", 1)],
        [Adoption(0, 9, 0, name), MarkerSet("m", 1), asks],
        [Adoption(0, 9, 0, name), Dequeue(0, 0, 1)],
        [Adoption(0, 9, 0, name), asks, Dequeue(0, 1, 1)],
        [Adoption(0, 9, 0, name), asks, asks],
    ]
    for operations in wrongs:
        body = encode_transaction(operations)
        frame, _ = encode_frame(body, 9, 0, 5, 0, 1, len(operations))
        path.write_bytes(encode_header(SEGMENT_MAGIC, Header(0, 0, 9, 5, HEADER_BYTES)) + frame + body)
        with pytest.raises(CorruptionError):
            read_publication(DISK, str(path))
    path.unlink()
    draft = Draft(DISK, str(directory / "inbox"), f"{7:016x}", 5)
    draft.ask(Request("a", 1, 3), 5)
    assert read_publication(DISK, str(path)).request == Request("a", 1, 3)
    assert check(directory).published == 0
    ask(queue)
    assert queue.subscriptions() == []
