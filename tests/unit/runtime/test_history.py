"""Samples of a queue over time: the ring, the note in the lock file, ages, and the pictures of ``Stats``."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue import PersistentQueue, Sample, Stats, View, delete_queue
from persistentqueue.measuring.metrics import (
    History,
    decode_samples,
    encode_samples,
    seconds_since,
    up_to,
)
from persistentqueue.runtime.inspection import _GROUPS, _TIMES
from persistentqueue.storage.lock import NOTE_BYTES_MAX, Lock, read_note, read_owner
from persistentqueue.system.disk import DISK, Buffers, Disk
from tests.conftest import QueueFactory
from tests.support.queues import put, wait_for

S = 10**9
START = 1_000_000 * S


class Clock:
    """A wall clock that stands still until it is set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @property
    def disk(self) -> Disk:
        """The real disk with this clock."""
        return replace(DISK, time_ns=lambda: START + int(self.seconds * S))


def at(*points: tuple[float, int, int]) -> tuple[Sample, ...]:
    """Return samples at these seconds, with these items enqueued and dequeued."""
    return tuple(Sample(START + int(seconds * S), came, went, 0) for seconds, came, went in points)


def seconds_of(samples: Sequence[Sample]) -> list[float]:
    """Return the times of the samples."""
    return [(sample.time_ns - START) / S for sample in samples]


# --- the ring ------------------------------------------------------------------------------------------------------


@pytest.mark.unwatched
def test_the_ring_is_dense_for_a_minute_and_bounded() -> None:
    """Three days of one sample a second leave the last minute by seconds, an hour by minutes, and 47 hours by hours."""
    history = History()
    last = 3 * 86400
    for second in range(last + 1):
        history.add(Sample(START + second * S, second, 0, 0))
    found = seconds_of(history.samples())
    assert found[-60:] == list(range(last - 59, last + 1))
    assert last - 3700 < min(each for each in found if each > last - 3600) < last - 3400
    assert last - 48 * 3600 <= found[0] <= last - 46 * 3600
    gaps = [after - before for before, after in pairwise(found)]
    assert max(gaps) <= 3600 and max(gaps[-115:]) <= 60
    assert len(found) <= 168
    assert len(encode_samples(history.samples())) <= NOTE_BYTES_MAX


def test_the_last_sample_is_the_latest() -> None:
    """Samples that come close together replace one another, so that the last one is always that of the last call."""
    history = History()
    for tenth in range(100):
        assert history.add(Sample(START + tenth * S // 10, tenth, 0, 0))
    found = history.samples()
    assert found[-1].enqueued == 99
    assert len(found) <= 30
    assert not history.add(Sample(START + 99 * S, 99, 0, 0))
    assert history.samples() == found


def test_an_idle_time_is_flat() -> None:
    """After an idle time, a sample of its end shows that nothing has changed until then."""
    history = History(at((0, 5, 0)))
    history.add(*at((100, 9, 0)))
    assert history.samples() == at((0, 5, 0), (99, 5, 0), (100, 9, 0))


def test_a_clock_that_is_set_back() -> None:
    """If the clock is set back, the samples of later times are dropped."""
    history = History(at((0, 1, 0), (1, 2, 0), (50, 3, 0)))
    history.add(*at((2, 4, 0)))
    assert history.samples() == at((0, 1, 0), (1, 2, 0), (2, 4, 0))


def test_samples_of_another_past_are_left_out() -> None:
    """Samples that are later than the present one, or count more, are not of its past."""
    (present,) = at((10, 5, 3))
    assert up_to(present, at((8, 4, 1), (9, 6, 1), (9.5, 5, 4), (11, 5, 3))) == at((8, 4, 1), (10, 5, 3))
    assert up_to(present, ()) == (present,)


@given(st.lists(st.tuples(*[st.integers(1, 2**40)] * 3), max_size=30))
def test_samples_survive_as_bytes(steps: list[tuple[int, int, int]]) -> None:
    """Samples are read back as they were written."""
    time_ns = came = went = 0
    samples = []
    for step_ns, items, some in steps:
        time_ns, came = time_ns + step_ns, came + items
        went = min(went + some, came)
        samples.append(Sample(time_ns, came, went, some))
    assert decode_samples(encode_samples(samples)) == tuple(samples)


@pytest.mark.parametrize(
    "samples",
    [
        at((0, 1, 2)),
        at((1, 0, 0), (1, 0, 0)),
        at((1, 5, 0), (2, 4, 0)),
        at((1, 5, 3), (2, 5, 2)),
    ],
)
def test_bytes_of_no_queue(samples: tuple[Sample, ...]) -> None:
    """Bytes that no queue can have published are no samples: counts that fall, times that stand, too many dequeues."""
    assert decode_samples(encode_samples(samples)) == ()


def test_bytes_of_any_length() -> None:
    """Bytes that are no whole number of samples are none."""
    assert decode_samples(encode_samples(at((0, 1, 0), (1, 1, 0)))[:-1]) == ()
    assert decode_samples(b"") == ()


def test_ages_are_read_from_the_samples() -> None:
    """The age of an item is interpolated between two samples, and counts from the first sample for an older item."""
    samples = at((0, 10, 0), (10, 20, 0), (20, 20, 0), (30, 21, 0))
    found = [seconds_since(samples, sequence) for sequence in (3, 9, 10, 19, 20, 21)]
    assert found == [30, 30, 29, 20, 0, 0]


# --- the note ------------------------------------------------------------------------------------------------------


def test_a_note_is_read_and_kept_by_the_next_owner(tmp_path: Path) -> None:
    """A published note is read from outside, and survives the next owner, whose description is in front of it."""
    path = str(tmp_path / "lock")
    lock = Lock(DISK, path)
    lock.publish(b"without the lock")
    lock.acquire(0)
    assert (lock.note, read_note(DISK, path)) == (b"", b"")
    lock.settle()
    short = (tmp_path / "lock").stat().st_size
    assert short < 200
    for note in (b"one", b"three" * 1000, b"two"):
        lock.publish(note)
        assert (read_note(DISK, path), lock.note) == (note, note)
    owner = read_owner(DISK, path)
    assert owner is not None and owner.pid == DISK.getpid()
    lock.release()
    lock.publish(b"released")
    after = Lock(DISK, path)
    after.acquire(0)
    assert (after.note, after.is_moved, read_note(DISK, path)) == (b"two", False, b"two")
    assert read_owner(DISK, path) is not None
    after.release()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:4000],
        lambda data: data[:4100],
        lambda data: data[:-1],
        lambda data: data[:-1] + b"?",
        lambda data: data[:4096] + b"X" + data[4097:],
        lambda data: data[:4104] + b"\xff" * 8 + data[4112:],
    ],
    ids=["no note", "half a header", "cut", "flipped", "magic", "lengths"],
)
def test_a_spoiled_note_is_none(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    """A note that is cut or changed is none, for readers and for the next owner."""
    path = tmp_path / "lock"
    lock = Lock(DISK, str(path))
    lock.acquire(0)
    lock.publish(b"a note")
    lock.release()
    path.write_bytes(spoil(path.read_bytes()))
    assert read_note(DISK, str(path)) == b""
    lock = Lock(DISK, str(path))
    lock.acquire(0)
    assert lock.note == b""
    lock.release()
    assert read_note(DISK, str(tmp_path)) == read_note(DISK, str(tmp_path / "missing")) == b""


def test_a_full_disk_costs_only_the_note(tmp_path: Path) -> None:
    """A disk that is full when a note is published has no effect on the owner."""
    full = False

    def pwritev(fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        if full:
            raise OSError(errno.ENOSPC, "full")
        return DISK.pwritev(fd, buffers, offset, flags)

    lock = Lock(replace(DISK, pwritev=pwritev), str(tmp_path / "lock"))
    lock.acquire(0)
    full = True
    lock.publish(b"a note")
    lock.publish(b"a note")
    assert read_owner(DISK, str(tmp_path / "lock")) is not None
    lock.release()


# --- the queue -----------------------------------------------------------------------------------------------------


def test_maintenance_takes_the_samples(open_queue: QueueFactory, directory: Path) -> None:
    """Each maintenance takes a sample, which other processes see, and takes none while nothing changes."""
    clock = Clock()
    queue = open_queue(disk=clock.disk)
    for second in range(1, 5):
        clock.seconds = second
        put(queue, b"a", b"b")
        queue.maintain()
    for second in range(5, 60):
        clock.seconds = second
        queue.maintain()
    history = queue.stats().history
    assert [(each.enqueued, each.depth) for each in history] == [(0, 0), (2, 2), (4, 4), (6, 6), (8, 8), (8, 8), (8, 8)]
    assert seconds_of(history) == [0, 1, 2, 3, 4, 58, 59]
    assert history[:5] == View(directory).history()[:5]


@pytest.mark.maintained
def test_a_busy_queue_has_samples_by_itself(directory: Path, path: Path) -> None:
    """A commit is followed by a sample, without any call, and the close of the queue takes the last one."""
    with PersistentQueue(path, "orders") as queue:
        put(queue, b"a")
        wait_for(lambda: decode_samples(read_note(DISK, str(directory / "lock"))) != ())
        put(queue, b"b")
    last = decode_samples(read_note(DISK, str(directory / "lock")))[-1]
    assert (last.enqueued, last.depth) == (2, 2)


def test_an_idle_queue_writes_no_note(open_queue: QueueFactory, directory: Path) -> None:
    """A queue that is opened and closed without a commit publishes nothing."""
    for _ in range(2):
        open_queue().close()
    assert (directory / "lock").stat().st_size < 200


def test_the_next_owner_continues_the_samples(open_queue: QueueFactory, directory: Path) -> None:
    """The samples of an owner are those of the next one, too, unless the queue is another one by then."""
    clock = Clock()
    with open_queue(disk=clock.disk) as queue:
        clock.seconds = 10
        put(queue, b"a")
    clock.seconds = 100
    queue = open_queue(disk=clock.disk)
    stats = queue.stats()
    assert (seconds_of(stats.history), stats.oldest_seconds) == ([0, 9, 10, 99, 100], 90)
    assert seconds_of(View(directory).history()[:3]) == [0, 9, 10]
    queue.close()
    delete_queue(directory.parent, directory.name)
    clock.seconds = 200
    assert seconds_of(open_queue(disk=clock.disk).stats().history) == [200]


def test_the_age_is_that_of_the_oldest_ready_item(open_queue: QueueFactory) -> None:
    """``oldest_seconds`` is the age of the first item that can be dequeued, and 0 if there is none."""
    clock = Clock()
    queue = open_queue(disk=clock.disk)
    assert queue.stats().oldest_seconds == 0
    for second in (10, 20):
        clock.seconds = second
        put(queue, b"x")
        queue.maintain()
    clock.seconds = 50
    assert queue.stats().oldest_seconds == 40
    with queue.session() as session:
        session.dequeue()
        assert queue.stats().oldest_seconds == 30
        session.dequeue()
        assert queue.stats().oldest_seconds == 0
        session.rollback()
    assert queue.stats().oldest_seconds == 40


def test_a_long_compaction_takes_samples(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction that takes longer than a second takes samples meanwhile."""
    queue = open_queue(segment_bytes=4096)
    for number in range(40):
        put(queue, *(b"%d" % number + bytes(300) for _ in range(10)))
    with queue.session() as session, queue.session() as slow:
        for _ in range(40):
            slow.dequeue()
            session.dequeue_many(9)
        session.flush()
        slow.rollback()
    open_queue_ = queue._open_queue
    assert open_queue_ is not None
    taken: list[int] = []
    monkeypatch.setattr(open_queue_, "sample", lambda: taken.append(1))
    monkeypatch.setattr("persistentqueue.runtime.maintenance.MAINTENANCE_SECONDS", 0.0)
    put(queue, b"x")
    queue.compact(below=1.0)
    assert len(taken) > 1


# --- the pictures of Stats -----------------------------------------------------------------------------------------


def test_each_field_is_in_the_table_once(open_queue: QueueFactory) -> None:
    """The text of ``Stats`` has each number once, by the name of its field."""
    names = [name for group in _GROUPS.values() for name in group.split()] + list(_TIMES)
    assert sorted(names) == sorted({field.name for field in fields(Stats)} - {"history", "shares", "stall_seconds"})
    queue = open_queue(max_items=4)
    text = str(queue.stats())
    assert all(text.split().count(name) == 1 for name in names)
    assert "group_size" in text and "flush_seconds                 0  half within -" in text
    put(queue, *[b"x" * 5000] * 3)
    text = str(queue.stats())
    for words in ("fill", "75 %", "broken                       no", "live_bytes             14.7 KiB", "1 on average"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_notebook_shows_pictures(open_queue: QueueFactory) -> None:
    """A notebook gets the map of segments, the items left over time, the times of flushes, and all values."""
    clock = Clock()
    queue = open_queue(disk=clock.disk, segment_bytes=60_000)
    html = queue.stats()._repr_html_()
    assert "<figure>" not in html and "0 ready items, 0 on hold" in html
    for second in range(1, 20):
        clock.seconds = second
        put(queue, *[b"x" * 1000] * 50)
        queue.maintain()
    with queue.session() as session:
        session.dequeue_many(200)
        session.flush()
    clock.seconds = 20
    stats = queue.stats()
    html = stats._repr_html_()
    for words in (
        "750 ready items",
        'aria-label="Data files by live share',
        "Items left: 750 now, 950 at most",
        "Times of 20 flushes",
        "<code>enqueued_bytes</code>",
    ):
        assert words in html, words
    assert "<script" not in html and "http" not in html
    assert [share.is_youngest for share in stats.shares] == [False] * (len(stats.shares) - 1) + [True]
    assert sum(share.live for share in stats.shares) == 750
