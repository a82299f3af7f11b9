"""Pages of a file that the device cannot read: they cost the items of their blocks, and the queue goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from persistentqueue import CorruptionError, PersistentQueue, Producer, View, check, repair
from persistentqueue.system.bad_pages import is_copy, read_around, read_needed
from persistentqueue.system.disk import DISK, PAGE_BYTES, Disk
from tests.support.disks import call_on, using_disk
from tests.support.queues import crash, drain, log_file, put_each, segment_files, survivors

ITEMS = [b"%02d" % number * 3000 for number in range(20)]

pytestmark = pytest.mark.damages


class BadDisk:
    """A disk that cannot read some pages of files, by inode; a sync or a write of these pages is not refused."""

    def __init__(self) -> None:
        self.bad: set[tuple[int, int]] = set()
        self.error = errno.EIO
        self.disk = replace(DISK, pread=self._pread)

    def spoil(self, path: Path, *offsets: int) -> None:
        """Let the pages at these offsets be unreadable from now on."""
        self.bad.update((path.stat().st_ino, offset // PAGE_BYTES) for offset in offsets)

    def _pread(self, fd: int, length_bytes: int, offset: int) -> bytes:
        """Return the bytes before the first bad page, as Linux does; raise if there are none."""
        number = os.fstat(fd).st_ino
        pages = [page for inode, page in self.bad if inode == number and (page + 1) * PAGE_BYTES > offset]
        room_bytes = min(pages, default=2**40) * PAGE_BYTES - offset
        if length_bytes and room_bytes <= 0:
            raise OSError(self.error, os.strerror(self.error))
        return DISK.pread(fd, min(length_bytes, room_bytes), offset)


def place_of(path: Path, item: bytes) -> int:
    """Return an offset in the middle of the item."""
    return path.read_bytes().index(item) + len(item) // 2


@pytest.fixture
def bad() -> BadDisk:
    """Make a disk without bad pages yet."""
    return BadDisk()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a queue of 20 items of 6,000 bytes in one segment, closed cleanly, and return its path."""
    with PersistentQueue(tmp_path / "queue", inline_bytes=0) as queue:
        put_each(queue, ITEMS)
    return tmp_path / "queue"


def taken(disk: Disk, path: Path, memory_bytes: int) -> tuple[list[bytes], list[CorruptionError]]:
    """Dequeue and flush each item; return the items, and the errors between them."""
    with call_on(disk, PersistentQueue, path, memory_bytes=memory_bytes) as queue:
        return survivors(queue)


def lost_by(path: Path, offset: int) -> list[bytes]:
    """Return the items of which this page holds a part, or a part of their headers."""
    content = path.read_bytes()
    start, end = offset - offset % PAGE_BYTES, offset - offset % PAGE_BYTES + PAGE_BYTES
    places = [(item, content.index(item)) for item in ITEMS]
    return [item for item, at in places if at - 48 < end and start < at + len(item)]


@pytest.mark.parametrize("memory_bytes", [0, 2**20])
@pytest.mark.parametrize("number", [1, 7, 19])
def test_dequeues_around_a_bad_page(path: Path, bad: BadDisk, memory_bytes: int, number: int) -> None:
    """The items of the page are set aside with one error for each block; those before and behind it come out."""
    (segment,) = segment_files(path)
    offset = place_of(segment, ITEMS[number])
    bad.spoil(segment, offset)
    lost = lost_by(segment, offset)
    items, errors = taken(bad.disk, path, memory_bytes)
    assert ITEMS[number] in lost
    assert items == [item for item in ITEMS if item not in lost]
    assert 1 <= len(errors) <= 2
    first = errors[0]
    assert (first.file, first.offset // PAGE_BYTES) == (str(segment), offset // PAGE_BYTES)
    assert (first.expected, first.found) == ("bytes that can be read", "Input/output error")
    assert isinstance(first.__cause__, OSError)
    bad.bad.clear()
    with PersistentQueue(path) as queue:  # the next opening tries again
        assert drain(queue) == lost


def test_a_bad_header_of_a_segment(path: Path, bad: BadDisk) -> None:
    """The page with the header of a segment costs the items in that page only."""
    (segment,) = segment_files(path)
    bad.spoil(segment, 0)
    items, errors = taken(bad.disk, path, 0)
    assert items == ITEMS[1:]
    assert len(errors) == 2  # of the header, and of the first block


def test_browsing_compacting_and_views(path: Path, bad: BadDisk) -> None:
    """A browse meets each block once, a compaction leaves the segment as it is, and a view reports it as damage."""
    (segment,) = segment_files(path)
    offset = place_of(segment, ITEMS[9])
    bad.spoil(segment, offset)
    lost = lost_by(segment, offset)
    with using_disk(bad.disk), PersistentQueue(path) as queue:
        for _ in lost:
            with pytest.raises(CorruptionError, match="bytes that can be read"):
                list(queue.browse())
        assert list(queue.browse()) == [item for item in ITEMS if item not in lost]
        queue.compact()
        view = View(path)
        with pytest.raises(CorruptionError, match="bytes that can be read"):
            list(view.browse())


def test_check_and_repair(path: Path, bad: BadDisk) -> None:
    """``check`` reports each block of the page. ``repair`` keeps all other items, in files without a bad page."""
    (segment,) = segment_files(path)
    offset, content = place_of(segment, ITEMS[5]), segment.read_bytes()
    bad.spoil(segment, offset)
    lost = lost_by(segment, offset)
    found = call_on(bad.disk, check, path)
    assert (found.items, len(found.problems)) == (20 - len(lost), len(lost))
    page = f"{segment}: damaged at offset {offset - offset % PAGE_BYTES}: expected bytes that can be read"
    assert page in found.problems[0]
    report = call_on(bad.disk, repair, path)
    assert (report.items, sum(count for _, count in report.lost)) == (20 - len(lost), len(lost))
    assert report.problems
    assert call_on(bad.disk, check, path).ok
    assert call_on(bad.disk, repair, path).problems == ()
    with call_on(bad.disk, PersistentQueue, path) as queue:
        assert drain(queue) == [item for item in ITEMS if item not in lost]
    (kept,) = (path / name for name in report.kept if name.startswith("data/"))
    assert kept.read_bytes() == content  # the file itself: a later read may succeed


def test_repair_where_files_have_one_name(path: Path, bad: BadDisk) -> None:
    """On a file system without hard links the copy is kept, with zeros in place of the page."""

    def link(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", target)

    (segment,) = segment_files(path)
    offset, content = place_of(segment, ITEMS[5]), bytearray(segment.read_bytes())
    bad.spoil(segment, offset)
    disk = replace(bad.disk, link=link)
    report = call_on(disk, repair, path)
    assert report.items == 20 - len(lost_by(segment, offset))
    (kept,) = (path / name for name in report.kept if name.startswith("data/"))
    at = offset - offset % PAGE_BYTES
    content[at : at + PAGE_BYTES] = bytes(PAGE_BYTES)
    assert kept.read_bytes() == content
    assert call_on(disk, check, path).ok


def test_repair_of_a_bad_header(path: Path, bad: BadDisk) -> None:
    """``repair`` writes the header of a segment again if the device cannot read it."""
    (segment,) = segment_files(path)
    bad.spoil(segment, 0)
    report = call_on(bad.disk, repair, path)
    assert (report.items, report.lost) == (19, ((0, 1),))
    assert taken(bad.disk, path, 0) == (ITEMS[1:], [])


@pytest.mark.parametrize("step", ["copied", "linked", "exchanged"])
def test_repair_that_is_cut_short(path: Path, bad: BadDisk, step: str) -> None:
    """A repair that is killed while it exchanges a file with its copy loses nothing: the next one ends it."""

    class Killed(BaseException):
        pass

    def before(call: Callable[[str, str], None], dies: bool, after: bool) -> Callable[[str, str], None]:
        def made(source: str, target: str) -> None:
            if after or not dies:
                call(source, target)
            if dies and (".seg" in source):
                raise Killed

        return made

    (segment,) = segment_files(path)
    offset = place_of(segment, ITEMS[5])
    bad.spoil(segment, offset)
    lost = lost_by(segment, offset)
    link = before(bad.disk.link, step == "copied", False)
    rename = before(bad.disk.rename, step != "copied", step == "exchanged")
    with pytest.raises(Killed):
        call_on(replace(bad.disk, link=link, rename=rename), repair, path)
    assert call_on(bad.disk, repair, path).items == 20 - len(lost)
    with call_on(bad.disk, PersistentQueue, path) as queue:
        assert drain(queue) == [item for item in ITEMS if item not in lost]


@pytest.mark.parametrize("page", [0, 1, 3, 200])
def test_a_bad_page_of_the_log(tmp_path: Path, bad: BadDisk, page: int) -> None:
    """A log that cannot be read is a damaged log: the opening says so, and a repair keeps what the rest says."""
    path = tmp_path / "queue"
    queue = PersistentQueue(path, inline_bytes=0)
    put_each(queue, [b"%03d" % number for number in range(200)])
    crash(queue)
    bad.spoil(log_file(path), page * PAGE_BYTES)
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"bytes that can be read.*nothing was changed: run repair") as caught:
            call_on(bad.disk, PersistentQueue, path)
        assert caught.value.offset == page * PAGE_BYTES
    assert "bytes that can be read" in call_on(bad.disk, check, path).problems[0]
    report = call_on(bad.disk, repair, path)
    assert report.without_log == (page == 0)
    assert report.items + sum(count for _, count in report.lost) == 200
    assert report.items > 50
    assert page < 200 or report.items == 200
    with call_on(bad.disk, PersistentQueue, path) as queue:
        assert len(drain(queue)) == report.items


def test_a_bad_page_without_a_log(path: Path, bad: BadDisk) -> None:
    """A repair without a log reports the blocks that cannot be read, and keeps their segment."""
    (segment,) = segment_files(path)
    lost = lost_by(segment, place := place_of(segment, ITEMS[7]))
    bad.spoil(segment, place)
    log_file(path).unlink()
    report = call_on(bad.disk, repair, path)
    assert f"{segment}: no block between " in report.problems[0]
    (kept,) = report.kept
    assert kept.startswith(f"data/{segment.name}.")
    with call_on(bad.disk, PersistentQueue, path) as queue:
        assert drain(queue) == [item for item in ITEMS if item not in lost]


@pytest.mark.parametrize("at", [0, 500_000, -1], ids=["header", "item", "frame"])
def test_a_bad_page_of_a_published_file(tmp_path: Path, bad: BadDisk, at: int) -> None:
    """A published file that cannot be read does not keep those behind it from the queue."""
    path = tmp_path / "queue"
    PersistentQueue(path).close()
    with Producer(path) as producer:
        for item in (b"x" * 1_000_000, b"behind"):
            producer.enqueue(item)
            producer.flush()
    first = min((path / "inbox").iterdir())
    bad.spoil(first, at % first.stat().st_size)
    with call_on(bad.disk, PersistentQueue, path) as queue, queue.session() as session:
        found = []
        for _ in range(4):
            with suppress(CorruptionError):
                found.append(session.dequeue())
        session.flush()
        assert [item for item in found if item is not None] == [b"behind"]


@pytest.mark.parametrize("memory_bytes", [0, 2**20])
def test_a_read_that_fails_once_costs_nothing(path: Path, memory_bytes: int) -> None:
    """After ``EIO`` the bytes are read again, so an error that passes is not taken for damage."""
    at = count(1)

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        if next(at) % 3 == 0:
            raise OSError(errno.EIO, "Input/output error")
        return DISK.pread(fd, length_bytes, offset)

    assert taken(replace(DISK, pread=pread), path, memory_bytes) == (ITEMS, [])


def test_another_error_is_no_damage(path: Path, bad: BadDisk) -> None:
    """Any error but ``EIO`` is raised as it is, and costs nothing."""
    bad.error = errno.ETIMEDOUT
    (segment,) = segment_files(path)
    bad.spoil(segment, 0, place_of(segment, ITEMS[3]))
    for call in (check, repair):
        with pytest.raises(OSError, match="timed out"):
            call_on(bad.disk, call, path)
    bad.bad.clear()
    with PersistentQueue(path) as queue:
        assert drain(queue) == ITEMS


def test_reads_at_the_end_of_a_file(tmp_path: Path, bad: BadDisk) -> None:
    """A read around a bad page ends where the file ends, also if its last page is bad."""
    file = tmp_path / "file"
    content = bytes(range(256)) * 40
    file.write_bytes(content)
    bad.spoil(file, PAGE_BYTES)
    fd = os.open(file, os.O_RDONLY)
    try:
        expected = content[:PAGE_BYTES] + bytes(PAGE_BYTES) + content[2 * PAGE_BYTES :]
        assert read_around(bad.disk, fd, 50_000, 0) == expected
        assert read_around(bad.disk, fd, 1000, 4000) == expected[4000:5000]
        assert read_needed(bad.disk, fd, 4000, 96, "p") == content[96:4096]
        with pytest.raises(CorruptionError, match="p: damaged at offset 4096"):
            read_needed(bad.disk, fd, 4001, 96, "p")
        bad.error = errno.EACCES
        for read in (read_around, partial(read_needed, path="p")):
            with pytest.raises(PermissionError):
                read(bad.disk, fd, 4001, 96)
    finally:
        os.close(fd)


def test_a_copy_is_recognized(tmp_path: Path, bad: BadDisk) -> None:
    """A file of equal bytes is a copy, unless it cannot be read, or a page of it. Another name, a link and any other
    bytes are none. An error that is no damage is raised."""
    file, copy, other, name, link = (tmp_path / each for each in ("file", "copy", "other", "name", "link"))
    file.write_bytes(bytes(3 * 2**20))
    copy.write_bytes(bytes(3 * 2**20))
    other.write_bytes(bytes(3 * 2**20 - 1) + b"x")
    name.hardlink_to(file)
    link.symlink_to(copy)
    found = [is_copy(bad.disk, str(file), str(each)) for each in (copy, other, name, link)]
    assert found == [True, False, False, False]
    bad.spoil(copy, 2**20)
    assert not is_copy(bad.disk, str(file), str(copy))
    bad.error = errno.EACCES
    assert not is_copy(bad.disk, str(file), str(copy))
    bad.error = errno.ETIMEDOUT
    with pytest.raises(OSError, match="timed out"):
        is_copy(bad.disk, str(file), str(copy))
