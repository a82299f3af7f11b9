"""The inbox of a queue that is full, busy, or handed what it cannot take: nobody waits for ever, and who can helps."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import CorruptionError, PersistentQueue, Producer
from persistentqueue.disk import DISK
from persistentqueue.publication import Draft, Part, TooManyPartsError
from persistentqueue.remote import acknowledge, request_subscription

from .conftest import OpenQueue
from .support import drain, put

PRODUCER = f"{7:016x}"


def inbox(directory: Path) -> list[str]:
    """The names in the inbox, in order."""
    return sorted(os.listdir(directory / "inbox"))


def publish(directory: Path, *items: bytes) -> None:
    """One flush of a producer of its own."""
    with Producer(directory) as producer:
        producer.enqueue_many(items)
        producer.flush()


def look(queue: PersistentQueue) -> None:
    """Have the owner look into his inbox at once."""
    queue._open()._look(insists=True)


# --- what there is no room for ---------------------------------------------------------------------------------------


def test_to_adopt_takes_nothing_of_the_file_system(open_queue: OpenQueue, directory: Path) -> None:
    """With no more free than ``min_free_bytes`` what is published is adopted, since it is there already, and what is
    asked for is answered, though nobody may enqueue."""
    free = [10**12]
    queue = open_queue(fan_out=True, min_free_bytes=10**9, disk=replace(DISK, free_bytes=lambda path: free[0]))
    spark = queue.subscribe("spark")
    put(queue, b"a", b"b")
    free[0] = 10**9
    acknowledge(directory, None, "spark", 1)
    publish(directory, b"c")
    look(queue)
    assert inbox(directory) == []
    assert list(spark.browse()) == [b"b", b"c"]


def test_a_request_takes_nothing_of_the_disk(open_queue: OpenQueue, directory: Path) -> None:
    """At ``max_disk_bytes`` a request is answered: it takes no more than its place in the log."""
    queue = open_queue(max_disk_bytes=8 * 1024 * 1024)
    put(queue, b"x")
    store = queue._open().store
    store._quota._most_bytes = store._quota.used_bytes + store._quota.reserve_bytes
    request_subscription(directory, None, "spark", 0)
    look(queue)
    assert queue.subscriptions() == ["spark"]
    publish(directory, bytes(1000))
    look(queue)
    assert len(inbox(directory)) == 1


# --- what does not fit a frame ---------------------------------------------------------------------------------------


def test_a_manifest_that_nobody_would_read(
    open_queue: OpenQueue, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who names more parts than an owner reads hears so, nothing is published, and fewer of them can be."""
    monkeypatch.setattr("persistentqueue.publication._FRAME_BYTES_MAX", 2000)
    queue = open_queue()
    draft = Draft(DISK, str(directory / "inbox"), PRODUCER, 5)
    parts = [Part(f"{n:016x}-{n:016x}.part", n, 100, 1, 50, 7) for n in range(40)]
    with pytest.raises(TooManyPartsError, match=r"40 parts .* 2000: publish fewer, larger parts"):
        draft.publish(None, 5, parts)
    assert drain(queue) == []
    assert draft.is_intact
    draft.publish(("app", 1), 6)
    assert drain(queue) == []
    assert queue.marker("app") == 1


@pytest.mark.damages
def test_more_items_than_the_bytes_have(open_queue: OpenQueue, directory: Path) -> None:
    """A file that counts more items than blocks of its length can have is damaged, and so is a manifest of a part that
    does; one with as many empty items as there can be is not."""
    queue = open_queue()
    path = str(directory / "inbox")
    for count, in_part in ((2**63 + 5, False), (65_537, False), (65_537, True)):
        draft = Draft(DISK, path, PRODUCER, 5)
        if in_part:
            draft.publish(None, 5, [Part(f"{5:016x}-{5:016x}.part", 5, 95, count, 95, 7)])
        else:
            draft.write([b""], 0, 0)
            draft._segment.ordinal = count
            draft.publish(None, 5)
        with queue.session() as session, pytest.raises(CorruptionError, match="a frame that enqueues"):
            session.dequeue()
    draft = Draft(DISK, path, PRODUCER, 6)
    draft.write([b""] * 65_536, 0, 0)
    draft.publish(None, 6)
    assert len(drain(queue)) == 65_536
    put(queue, b"x")
    assert drain(queue) == [b"x"]
