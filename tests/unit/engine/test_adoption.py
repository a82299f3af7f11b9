"""The inbox of a queue that is full, busy, or contains files that cannot be adopted: no call waits for ever."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import CorruptionError, DiskFullError, PersistentQueue, Producer, QueueFullError, check
from persistentqueue.engine.inbox import ADOPTED_MAX
from persistentqueue.engine.transaction import Transaction
from persistentqueue.interprocess.consumer_requests import acknowledge, request_subscription
from persistentqueue.interprocess.multi_writer import PartWriter, publish_parts
from persistentqueue.storage.publication import LATEST, Draft, Part, TooManyPartsError
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import crash, drain, flip, put, wait_for

PRODUCER = f"{7:016x}"


def inbox(directory: Path) -> list[str]:
    """Return the names in the inbox, in order."""
    return sorted(os.listdir(directory / "inbox"))


def publish(directory: Path, *items: bytes, disk: Disk = DISK) -> None:
    """Publish the items by one flush of a new producer, which knows no limits."""
    (directory / "queue.limits").unlink(missing_ok=True)
    with call_on(disk, Producer, directory) as producer:
        producer.enqueue_many(items)
        producer.flush()


def look(queue: PersistentQueue) -> None:
    """Make the owner look into its inbox at once."""
    queue._open()._look(insists=True)


# --- publications without room ---------------------------------------------------------------------------------------


def test_to_adopt_takes_nothing_of_the_file_system(open_queue: QueueFactory, directory: Path) -> None:
    """If only ``min_free_bytes`` are free, a publication is adopted, since its bytes are on the file system already.
    Requests are answered, though no session may enqueue."""
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


def test_a_request_takes_nothing_of_the_disk(open_queue: QueueFactory, directory: Path) -> None:
    """At ``max_disk_bytes`` a request is answered: it takes only its place in the log. A publication waits."""
    queue = open_queue(max_disk_bytes=8 * 1024 * 1024)
    put(queue, b"x")
    store = queue._open()._store
    store.quota._most_bytes = store.quota.used_bytes + store.quota.reserve_bytes
    request_subscription(directory, None, "spark", 0)
    look(queue)
    assert queue.subscriptions() == ["spark"]
    publish(directory, bytes(1000))
    look(queue)
    assert len(inbox(directory)) == 1


def full(open_queue: QueueFactory, directory: Path, **settings: Any) -> PersistentQueue:
    """Return a queue with ``max_items=10``, eight items kept for "spark", and a publication of five items in its
    inbox."""
    queue = open_queue(fan_out=True, max_items=10, **settings)
    queue.subscribe("spark")
    put(queue, *[b"%d" % n for n in range(8)])
    publish(directory, *[b"p"] * 5)
    return queue


@pytest.mark.parametrize("how", ["flush", "dequeue", "open"])
def test_an_acknowledgement_behind_what_has_no_room_makes_it(
    open_queue: QueueFactory, directory: Path, how: str
) -> None:
    """An acknowledgement behind a publication that waits for room is answered, which makes the room. A refused flush, a
    dequeue that finds nothing and an opening all answer it."""
    now = [10**18]
    queue = full(open_queue, directory, disk=replace(DISK, time_ns=lambda: now[0], monotonic=lambda: now[0] / 10**9))
    look(queue)
    assert len(inbox(directory)) == 1
    acknowledge(directory, None, "spark", 8)
    now[0] += 10**9
    if how == "flush":
        with pytest.raises(QueueFullError):
            put(queue, *[b"own"] * 3)
    elif how == "dequeue":
        look(queue)
    else:
        queue.close()
        queue = open_queue(max_items=10)
    assert inbox(directory) == []
    assert list(queue.subscribe("spark").browse()) == [b"p"] * 5


def test_who_waits_for_room_hears_of_what_makes_it(open_queue: QueueFactory, directory: Path) -> None:
    """A flush that waits for room sees acknowledgements of another process, even if its own process does nothing
    else."""
    queue = open_queue(fan_out=True, max_items=2, full="block")
    spark = queue.subscribe("spark")
    put(queue, b"0", b"1")
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(put, queue, item) for item in (b"2", b"3")]
        wait_for(lambda: queue.stats().waiting == 2)
        acknowledge(directory, None, "spark", 1)
        wait_for(lambda: any(each.done() for each in waiting))
        acknowledge(directory, None, "spark", 2)
        for each in waiting:
            each.result(60)
    assert sorted(spark.browse()) == [b"2", b"3"]


def test_what_keeps_its_place_behind_what_has_no_room(open_queue: QueueFactory, directory: Path) -> None:
    """Behind a publication that waits for room, these wait as well: a new subscription, an acknowledgement of items to
    come, and one of an unknown subscription. No file is read again for that, also if more files come."""
    reads: list[str] = []

    def opens(path: str, flags: int, mode: int) -> int:
        if path.endswith(".seg") and os.path.dirname(path).endswith("inbox"):
            reads.append(os.path.basename(path))
        return DISK.open(path, flags, mode)

    queue = full(open_queue, directory, disk=replace(DISK, open=opens))
    request_subscription(directory, None, "late", LATEST)
    acknowledge(directory, None, "late", 8)
    acknowledge(directory, None, "spark", 9)
    publish(directory, b"behind")
    look(queue)
    waiting = inbox(directory)
    assert len(waiting) == 5
    assert queue.subscriptions() == ["spark"]
    reads.clear()
    for _ in range(3):
        look(queue)
    assert set(reads) == {waiting[0]}  # a look that insists tries the first one again
    acknowledge(directory, None, "spark", 3)
    look(queue)
    assert inbox(directory) == []
    assert list(queue.subscribe("spark").browse()) == [b"p"] * 4 + [b"behind"]
    assert list(queue.subscribe("late").browse()) == [b"behind"]


@pytest.mark.unwatched
def test_many_files_that_wait_cost_a_full_queue_little(open_queue: QueueFactory, directory: Path) -> None:
    """Each item that a full queue gives out makes room for one of many published files. To adopt that file, no other
    file is read, but for the next one."""
    reads: list[str] = []

    def opens(path: str, flags: int, mode: int) -> int:
        if path.endswith(".seg") and os.path.dirname(path).endswith("inbox"):
            reads.append(os.path.basename(path))
        return DISK.open(path, flags, mode)

    many = 200
    queue = open_queue(max_items=many, disk=replace(DISK, open=opens))
    put(queue, *[b"own"] * many)
    for _ in range(many):
        publish(directory, b"published")
    waiting = inbox(directory)
    look(queue)
    reads.clear()
    with queue.session() as session:
        for _ in range(10):
            assert session.dequeue() == b"own"
            session.flush()
            look(queue)
    assert len(inbox(directory)) == many - 10
    assert set(reads) == set(waiting[:11])
    assert len(reads) <= 50


@pytest.mark.damages
def test_what_cannot_be_read_behind_what_has_no_room(open_queue: QueueFactory, directory: Path) -> None:
    """Behind a publication that waits for room, a damaged file or a copy of an acknowledgement is not applied, and
    blocks no acknowledgement. A file that cannot be read for now blocks all files behind it."""
    unreadable: list[str] = []

    def opens(path: str, flags: int, mode: int) -> int:
        if os.path.basename(path) in unreadable:
            raise OSError(errno.EIO, "Input/output error", path)
        return DISK.open(path, flags, mode)

    queue = full(open_queue, directory, disk=replace(DISK, open=opens))
    spark = queue.subscribe("spark")
    for end in (1, 2, 3):
        acknowledge(directory, None, "spark", end)
    _, _, damaged, other = inbox(directory)
    copy = f"{2**62:016x}-{PRODUCER}.seg"
    (directory / "inbox" / copy).write_bytes((directory / "inbox" / other).read_bytes())
    flip(directory / "inbox" / damaged, 20)
    unreadable.append(other)
    look(queue)
    assert len(list(spark.browse())) == 7
    unreadable.clear()
    acknowledge(directory, None, "spark", 2)
    look(queue)
    assert inbox(directory) == [f"{damaged}.damaged", f"{copy}.damaged"]
    assert list(spark.browse())[5:] == [b"p"] * 5


def test_what_never_fits_is_told(open_queue: QueueFactory, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A publication that is larger than a limit stays in the inbox, with all files behind it. A dequeue that finds
    nothing raises ``QueueFullError`` once, the log gets one warning, and a higher limit lets it in."""
    queue = open_queue(max_items=10)
    publish(directory, *[b"x"] * 11)
    publish(directory, b"behind")
    name = inbox(directory)[0]
    with queue.session() as session:
        with pytest.raises(QueueFullError, match=rf"{name}: max_items=10 leaves no room for 11 more.* never") as caught:
            session.dequeue()
        assert caught.value.lasting
        assert session.dequeue() is None
        assert len(inbox(directory)) == 2
    assert [record.levelname for record in caplog.records if name in record.message] == ["WARNING"]
    queue.close()
    assert len(drain(open_queue(max_items=12))) == 12


@pytest.mark.parametrize("limit", ["max_bytes", "max_disk_bytes"])
def test_what_never_fits_by_its_bytes(open_queue: QueueFactory, directory: Path, limit: str) -> None:
    """A publication that can never fit ``max_bytes`` or ``max_disk_bytes`` makes ``dequeue`` raise
    ``QueueFullError``."""
    queue = open_queue(**{limit: 8 * 1024 * 1024})
    publish(directory, bytes(9 * 1024 * 1024))
    with queue.session() as session, pytest.raises(QueueFullError, match=limit):
        session.dequeue()


FULL_DISKS = [(131072, 1, False), (131072, 1, True), (81920, 1000, False), (81920, 1000, True)]


def publish_until_full(directory: Path, size_bytes: int) -> list[bytes]:
    """Publish one item at a time until ``max_disk_bytes`` refuses one; return the items."""
    items: list[bytes] = []
    with suppress(QueueFullError), Producer(directory) as producer:
        while True:
            item = b"%d" % len(items) + bytes(size_bytes)
            producer.enqueue(item)
            producer.flush()
            items.append(item)
    return items


@pytest.mark.parametrize(("most_bytes", "size_bytes", "is_open"), FULL_DISKS)
def test_what_fills_the_disk_is_adopted_in_parts(
    open_queue: QueueFactory, directory: Path, most_bytes: int, size_bytes: int, is_open: bool
) -> None:
    """Publications up to ``max_disk_bytes`` are all consumed, in order. The log has no room for all at once, or drained
    segments take the room of the last ones."""
    queue = open_queue(max_disk_bytes=most_bytes, log_bytes=16384)
    if not is_open:
        queue.close()
    items = publish_until_full(directory, size_bytes)
    assert len(items) > 20
    if not is_open:
        queue = open_queue(max_disk_bytes=most_bytes, log_bytes=16384)
    found: list[bytes] = []
    with queue.session() as session:
        while (item := session.dequeue()) is not None:
            found.append(item)
            session.flush()
    assert found == items
    assert inbox(directory) == []


def test_a_group_that_the_log_has_no_room_for_is_tried_in_halves(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a group that is refused by the log, half as many are tried, down to one, and more again once there is room.
    A refused group leaves nothing in the quota, and the next opening has all in order."""
    queue = open_queue(max_disk_bytes=8 * 1024 * 1024)
    with Producer(directory) as producer:
        for number in range(10):
            producer.enqueue(b"%d" % number)
            producer.flush()
    store = queue._open()._store
    log_group, sizes, most = store.log_group, list[int](), 0

    def log_some(group: Sequence[Transaction], inline: bool) -> None:
        sizes.append(len(group))
        if len(group) <= most:
            log_group(group, inline)
        else:
            for transaction in group:
                transaction.error = store.limits.refuse(transaction, "max_disk_bytes")

    monkeypatch.setattr(store, "log_group", log_some)
    used_bytes = store.quota.used_bytes
    look(queue)
    assert sizes[:4] == [10, 5, 2, 1]
    assert (len(inbox(directory)), store.quota.used_bytes) == (10, used_bytes)
    sizes.clear()
    most = 2
    look(queue)
    assert sizes == [1, 2, 4, 2, 4, 2, 3, 1, 2]
    assert inbox(directory) == []
    crash(queue)
    assert drain(open_queue()) == [b"%d" % number for number in range(10)]


def test_a_frame_that_never_fits_is_told(open_queue: QueueFactory, directory: Path) -> None:
    """A manifest whose frame would make the log longer than ``max_disk_bytes`` allows stays, and ``dequeue`` of the
    empty queue raises ``QueueFullError`` once."""
    queue = open_queue(max_disk_bytes=81920, log_bytes=16384)
    (directory / "queue.limits").unlink()
    parts: list[Part] = []
    for number in range(200):
        writer = PartWriter(directory)
        writer.write([b"%d" % number])
        part = writer.end()
        assert part is not None
        parts.append(part)
    publish_parts(directory, None, parts)
    with queue.session() as session:
        with pytest.raises(QueueFullError, match=r"max_disk_bytes=81920 .* never fits"):
            session.dequeue()
        assert session.dequeue() is None
    queue.close()
    assert len(drain(open_queue())) == 200


def test_a_limit_that_is_lowered_below_a_published_file(open_queue: QueueFactory, directory: Path) -> None:
    """The error about a published file over a lowered limit names what helps: neither a flush nor a dequeue does. With
    a higher limit, the file is adopted, and so are those behind it."""
    open_queue(max_items=9).close()
    with Producer(directory) as producer:
        producer.enqueue_many([b"a"] * 5)
        producer.flush()
        producer.enqueue(b"b")
        producer.flush()
    queue = open_queue(max_items=3)
    with queue.session() as session:
        with pytest.raises(QueueFullError) as caught:
            session.dequeue()
        assert str(caught.value).endswith("those behind it wait: open the queue with a higher max_items")
        assert caught.value.lasting and "flush again" not in str(caught.value)
        assert session.dequeue() is None
    queue.close()
    assert drain(open_queue(max_items=6)) == [b"a"] * 5 + [b"b"]


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [True, False])
def test_acknowledgements_that_piled_up(open_queue: QueueFactory, directory: Path, sync: bool) -> None:
    """Many acknowledgements in a row, of several subscriptions and in any order, take one frame, and one sync deletes
    them. Held items stay with their session, and a publication behind them is adopted behind them."""
    syncs: list[int] = []

    def fsync(fd: int) -> None:
        syncs.append(fd)
        DISK.fsync(fd)

    queue = open_queue(sync=sync, disk=replace(DISK, fsync=fsync))
    one, other = queue.subscribe("one"), queue.subscribe("other")
    put(queue, *[b"%d" % n for n in range(100)])
    with one.session() as session:
        assert session.dequeue() == b"0"
        for end in [*range(1, 90), 5]:
            acknowledge(directory, None, "one", end)
            acknowledge(directory, None, "nobody", end)
            acknowledge(directory, None, "other", 95 - end)
        publish(directory, b"behind")
        before, groups = len(syncs), queue._open()._store.committer.syncs
        look(queue)
        # Syncs of the inbox: before and after the requests, and before the publication. Without ``sync``, also those of
        # a trim.
        assert len(syncs) - before <= (3 if sync else 8)
        assert queue._open()._store.committer.syncs - groups == (2 if sync else 0)
        assert inbox(directory) == []
        assert list(one.browse()) == [*(b"%d" % n for n in range(89, 100)), b"behind"]
        assert list(other.browse()) == [*(b"%d" % n for n in range(94, 100)), b"behind"]
        session.rollback()
    assert next(one.browse()) == b"0"


def test_acknowledgements_that_the_log_has_no_room_for(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledgements that find no room in the log all wait, hold no item meanwhile, and are answered once there is
    room."""
    queue = open_queue()
    subscription = queue.subscribe("a")
    put(queue, b"0", b"1", b"2")
    for end in (1, 2):
        acknowledge(directory, None, "a", end)
    store = queue._open()._store

    def trim(**_: object) -> None:
        raise DiskFullError(str(directory), errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(store, "trim", trim)
        patch.setattr(store.generations.log, "has_room", lambda *_: False)
        look(queue)
    assert list(subscription.browse()) == [b"0", b"1", b"2"]
    assert len(inbox(directory)) == 2
    look(queue)
    assert list(subscription.browse()) == [b"2"]
    assert inbox(directory) == []


def test_an_owner_who_is_never_idle_sweeps(open_queue: QueueFactory, directory: Path) -> None:
    """An owner that commits all the time also deletes the drafts that producers have left behind, within hours."""
    now = [time.time_ns()]
    queue = open_queue(disk=replace(DISK, time_ns=lambda: now[0]))
    draft = directory / "inbox" / f"{5:016x}-{PRODUCER}.tmp"
    draft.write_bytes(b"half")
    groups, maintenance = queue._open().groups, queue._maintenance
    for hours, is_there in ((0.5, True), (1.5, False)):
        now[0] = time.time_ns() + int(hours * 3600e9)
        put(queue, b"x")
        maintenance._is_tidy_due = True
        maintenance._tidy_by_itself(groups)
        assert draft.exists() is is_there
    draft.write_bytes(b"half")
    maintenance._tidy_by_itself(groups)
    assert draft.exists()
    draft.unlink()


# --- listings --------------------------------------------------------------------------------------------------------


def test_a_name_in_the_future_ends_no_look_later(open_queue: QueueFactory, directory: Path) -> None:
    """A look into the inbox ends although a name lies in the future and producers publish during each listing. It
    adopts that file, and leaves no gap in the items of the producers."""
    busy: list[Producer] = []
    count = [0]

    def listdir(path: str) -> list[str]:
        if busy and path.endswith("inbox"):
            for producer in busy:
                count[0] += 1
                producer.enqueue(b"%d" % count[0])
                producer.flush()
            assert count[0] < 100, "it does not end"
        return os.listdir(path)

    queue = open_queue(disk=replace(DISK, listdir=listdir))
    ahead = replace(DISK, time_ns=lambda: time.time_ns() + 10**12)
    publish(directory, b"future", disk=ahead)
    with Producer(directory) as one, Producer(directory) as other:
        busy += [one, other]
        look(queue)
        busy.clear()
        found = drain(queue)
        assert b"future" in found
        found.remove(b"future")
        assert found + drain(queue) == [b"%d" % (n + 1) for n in range(count[0])]


def test_who_publishes_all_the_time_keeps_nobody(open_queue: QueueFactory, directory: Path) -> None:
    """One look adopts the files that were there when it began, however many are published meanwhile. An opening adopts
    all of them."""
    busy: list[Producer] = []

    def failpoint(name: str) -> None:
        if busy and name == "adopt.3 rename":
            busy[0].enqueue(b"more")
            busy[0].flush()

    with Producer(directory) as producer:
        for n in range(2 * ADOPTED_MAX):
            producer.enqueue(b"%d" % n)
            producer.flush()
        busy.append(producer)
        queue = open_queue(disk=replace(DISK, failpoint=failpoint))
        busy.clear()
        assert drain(queue) == [b"%d" % n for n in range(2 * ADOPTED_MAX)]
        assert drain(queue) == [b"more"] * 2 * ADOPTED_MAX


def test_what_a_listing_missed(open_queue: QueueFactory, directory: Path) -> None:
    """A file that is listed is adopted behind all files published before it, even if two listings in a row missed some
    of those."""
    shown: list[list[str]] = []

    def listdir(path: str) -> list[str]:
        return shown.pop(0) if shown else os.listdir(path)

    queue = open_queue(disk=replace(DISK, listdir=listdir))
    with Producer(directory) as one, Producer(directory) as other:
        for producer, item in ((other, b"0"), (one, b"1"), (other, b"2"), (one, b"3")):
            producer.enqueue(item)
            producer.flush()
    names = inbox(directory)
    shown += [names[3:], names[1:], names]
    assert drain(queue) == [b"0", b"1", b"2", b"3"]
    assert shown == []


def test_parts_that_lie_there_cost_nothing(open_queue: QueueFactory, directory: Path) -> None:
    """Only names that may be adopted are looked at. The longer a listing takes, the longer flushes wait before the next
    one; a dequeue that finds nothing does not wait."""
    now = [10**18]
    listings: list[int] = []

    def listdir(path: str) -> list[str]:
        if path.endswith("inbox"):
            listings.append(now[0])
            now[0] += 3_000_000
        return os.listdir(path)

    queue = open_queue(disk=replace(DISK, listdir=listdir, time_ns=lambda: now[0]))
    put(queue, b"x")
    listings.clear()
    for n in range(100):
        (directory / "inbox" / f"{n:016x}-{n:016x}.part").touch()
        now[0] += 1_000_000
        put(queue, b"x")
    assert 2 <= len(listings) <= 5
    publish(directory, b"y")
    assert drain(queue) == [b"x"] * 101
    assert drain(queue) == [b"y"]


# --- invalid files ---------------------------------------------------------------------------------------------------


@pytest.mark.damages
def test_parts_that_are_published_twice(open_queue: QueueFactory, directory: Path) -> None:
    """Of two manifests that name one part, the first is adopted. The second is set aside, a dequeue raises its error,
    and files behind it are adopted."""
    queue = open_queue()
    writer = PartWriter(directory)
    writer.write([b"1", b"2"])
    part = writer.end()
    assert part is not None
    for _ in range(2):
        assert publish_parts(directory, None, [part])
    publish(directory, b"next")
    assert drain(queue) == [b"1", b"2", b"next"]
    with queue.session() as session, pytest.raises(CorruptionError, match="it is gone, or was published before"):
        session.dequeue()
    queue.close()
    assert len(open_queue()) == 0
    assert check(directory).ok


@pytest.mark.damages
def test_what_cannot_be_set_aside(open_queue: QueueFactory, directory: Path) -> None:
    """While a damaged file cannot be set aside, files before it are adopted and counted once. Files behind it wait in
    order, and dequeues raise the reason."""
    fails = [True]

    def rename(source: str, target: str) -> None:
        if fails[0] and target.endswith(".damaged"):
            raise OSError(errno.ENOSPC, "No space left on device", target)
        DISK.rename(source, target)

    queue = open_queue(disk=replace(DISK, rename=rename), max_disk_bytes=1 << 30)
    with Producer(directory) as producer:
        for item in (b"first", b"damaged", b"second"):
            producer.enqueue(item)
            producer.flush()
    flip(directory / "inbox" / inbox(directory)[1], 20)
    with queue.session() as session:
        assert session.dequeue() == b"first"
        quota = queue._open()._store.quota
        assert quota.used_bytes == sum(os.path.getsize(path) for path in quota._files)
        for _ in range(2):
            with pytest.raises(DiskFullError, match="then dequeue again"):
                session.dequeue()
        fails[0] = False
        assert session.dequeue() == b"second"
        with pytest.raises(CorruptionError):
            session.dequeue()
        assert session.dequeue() is None
        session.rollback()


def test_what_was_taken_away(open_queue: QueueFactory, directory: Path) -> None:
    """A file that was deleted after it was listed is ignored, and the files behind it are adopted."""
    gone: list[str] = []

    def lstat(path: str) -> Any:
        if path.endswith(".seg") and not gone:
            gone.append(path)
            os.unlink(path)
        return DISK.lstat(path)

    queue = open_queue()
    publish(directory, b"gone")
    publish(directory, b"behind")
    queue.close()
    queue = open_queue(disk=replace(DISK, lstat=lstat))
    assert drain(queue) == [b"behind"]
    assert len(gone) == 1


@pytest.mark.damages
def test_more_sequences_than_there_are(open_queue: QueueFactory, directory: Path) -> None:
    """A file that would number its items beyond 2^63 is set aside, since no item could be enqueued behind it."""
    queue = open_queue()
    publish(directory, b"a")
    publish(directory, b"b")
    its_inbox = queue._open()._store.inbox
    its_inbox.look(insists=True)
    (transaction,) = its_inbox.begin(2**63 - 1, 2, lambda *_: True)
    assert transaction.published == inbox(directory)[0]
    assert inbox(directory)[1].endswith(".damaged")
    its_inbox.end([transaction])
    assert drain(queue) == [b"a"]


# --- files that do not fit a frame -----------------------------------------------------------------------------------


def test_a_manifest_that_nobody_would_read(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest with more parts than an owner reads raises ``TooManyPartsError``, and nothing is published. The draft
    can then be published with fewer parts."""
    monkeypatch.setattr("persistentqueue.storage.publication._FRAME_BYTES_MAX", 2000)
    queue = open_queue()
    draft = Draft(DISK, str(directory / "inbox"), PRODUCER, 5)
    parts = [Part(f"{n:016x}-{n:016x}.part", n, 100, 1, 50, 7) for n in range(40)]
    with pytest.raises(TooManyPartsError, match=r"40 parts .* at most 2000 are allowed: publish fewer, larger parts"):
        draft.publish(None, 5, parts)
    assert drain(queue) == []
    assert draft.is_intact
    draft.publish(("app", 1), 6)
    assert drain(queue) == []
    assert queue.marker("app") == 1


@pytest.mark.damages
def test_more_items_than_the_bytes_have(open_queue: QueueFactory, directory: Path) -> None:
    """A file that counts more items than blocks of its length can have is damaged, and so is a manifest with such a
    part. A file with the greatest possible number of empty items is valid."""
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


def test_what_is_listed_is_not_listed_again(open_queue: QueueFactory, directory: Path) -> None:
    """While listed files wait and the directory is unchanged, another look lists nothing."""
    now = [time.time_ns()]
    queue = open_queue(disk=replace(DISK, time_ns=lambda: now[0]))
    with Producer(directory) as producer:
        for item in (b"a", b"b"):
            producer.enqueue(item)
            producer.flush()
    its_inbox = queue._open()._store.inbox
    its_inbox.look(insists=True)
    listed = list(its_inbox._listed)
    assert len(listed) == 2
    its_inbox.look()
    assert list(its_inbox._listed) == listed
    assert drain(queue) == [b"a", b"b"]
