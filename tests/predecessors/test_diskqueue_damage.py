"""Scenarios A and I of DiskQueue: a file that is cut at every byte, and one of which every byte is flipped.

Each opening must find an exact prefix of the commits and report the damage, or raise an error with the file and the
offset. If the bytes were not in use, it must find everything. It must never deliver a duplicate or a wrong byte, or
change a file that it could not read. Each case works on a fresh copy of one prepared queue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

from persistentqueue import CorruptionError, PersistentQueue, check
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.storage.log_reader import read_log
from persistentqueue.system.disk import DISK
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, crash, drain, flip, log_file, put, segment_files, survivors

pytestmark = pytest.mark.damages

BITS = tuple(1 << bit for bit in range(8))


def open_small(directory: Path, inline_bytes: int) -> PersistentQueue:
    """Open a queue whose files are small, so that many copies of them take little time."""
    return call_on(IN_CACHE, PersistentQueue, directory, log_bytes=6144, segment_bytes=4096, inline_bytes=inline_bytes)


@dataclass(frozen=True)
class Prepared:
    """A queue that was closed or crashed after some commits, as the bytes of its files."""

    files: dict[str, bytes]
    log: str
    segment: str
    ends: list[int]
    """End of the log after each number of commits."""
    states: list[list[bytes]]
    """Ready items after each number of commits."""
    inline_bytes: int

    def copy_to(self, directory: Path) -> None:
        """Make the directory hold exactly these files. Existing files are overwritten in place, to save time."""
        for part in ("log", "data", "pool"):
            (directory / part).mkdir(parents=True, exist_ok=True)
            for name in os.listdir(directory / part):
                if f"{part}/{name}" not in self.files:
                    os.unlink(directory / part / name)
        for name, content in self.files.items():
            fd = os.open(directory / name, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(fd, content, 0)
                os.ftruncate(fd, len(content))
            finally:
                os.close(fd)

    def open(self, directory: Path) -> PersistentQueue:
        """Open a copy."""
        return open_small(directory, self.inline_bytes)


def read_files(directory: Path) -> dict[str, bytes]:
    """Return the names and the bytes of the queue's files, except the lock."""
    found = {}
    for part in ("log", "data", "pool"):
        for entry in os.scandir(directory / part):
            with open(entry.path, "rb", buffering=0) as file:
                found[f"{part}/{entry.name}"] = file.read()
    return found


def prepare(root: Path, commits: int, end: Callable[[PersistentQueue], None], inline_bytes: int = 65536) -> Prepared:
    """Make a queue of so many commits. Each enqueues up to three items of various lengths, and every fourth also
    dequeues."""
    queue = open_small(root, inline_bytes)
    ready: list[bytes] = []
    ends, states = [queue.stats().log_bytes], [list(ready)]
    with queue.session() as session:
        for number in range(commits):
            items = [b"%d" % number * (place * number % 4) for place in range(1 + number % 3)]
            session.enqueue_many(items)
            if number % 4 == 3:
                assert session.dequeue() == ready.pop(0)
            session.flush()
            ready += items
            ends.append(queue.stats().log_bytes)
            states.append(list(ready))
    assert queue.stats().generation == 1
    end(queue)
    log, segment = (str(path.relative_to(root)) for path in (log_file(root), *segment_files(root)))
    return Prepared(read_files(root), log, segment, ends, states, inline_bytes)


@pytest.fixture(scope="module")
def unsealed(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Return a queue with twenty commits, then a crash."""
    return prepare(tmp_path_factory.mktemp("unsealed"), 20, crash)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Return a queue with twenty commits, then a clean close."""
    return prepare(tmp_path_factory.mktemp("sealed"), 20, PersistentQueue.close)


def assert_refused(prepared: Prepared, directory: Path, name: str, offset: int) -> None:
    """Assert that an opening raises an error with the file and the offset, and changes nothing."""
    before = read_files(directory)
    with pytest.raises(CorruptionError) as caught:
        prepared.open(directory)
    assert (caught.value.file, caught.value.offset) == (str(directory / name), offset)
    assert read_files(directory) == before


def assert_opens(prepared: Prepared, directory: Path, commits: int, torn: bool, missing_bytes: int) -> None:
    """Assert that an opening finds an exact prefix of the commits and reports the loss, and that the queue is
    consistent."""
    with prepared.open(directory) as queue:
        report = queue.recovery
        assert (report.transactions, report.missing_bytes, report.torn_bytes > 0) == (commits, missing_bytes, torn)
        assert bool(report.set_aside) == bool(torn or missing_bytes)
        assert list(queue.browse()) == prepared.states[commits]
    after = check(directory)
    assert (after.problems, after.sealed, after.items) == ((), True, len(prepared.states[commits]))


def flat(contents: Iterable[list[bytes]]) -> list[bytes]:
    """Return the items of several blocks."""
    return list(chain.from_iterable(contents))


# --- The log ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(2))
def test_a_unsealed_log_cut_at_every_byte(unsealed: Prepared, tmp_path: Path, part: int) -> None:
    """An unsealed log is refused if it is cut in its header or checkpoint. Cut behind them, it opens with an exact
    prefix of the commits."""
    directory = tmp_path / "queue"
    log = unsealed.files[unsealed.log]
    ends = unsealed.ends
    for length_bytes in [*range(part, ends[-1] + 16, 2), *range(ends[-1] + 16 + part, len(log), 97)]:
        unsealed.copy_to(directory)
        os.truncate(directory / unsealed.log, length_bytes)
        if length_bytes < ends[0]:
            assert_refused(unsealed, directory, unsealed.log, 0 if length_bytes < HEADER_BYTES else HEADER_BYTES)
            continue
        commits = sum(end <= length_bytes for end in ends) - 1
        torn = commits < len(ends) - 1 and length_bytes > ends[commits]
        assert_opens(unsealed, directory, commits, torn, len(log) - length_bytes)


def test_a_sealed_log_cut_at_every_byte(sealed: Prepared, tmp_path: Path) -> None:
    """A sealed log is refused if it is cut in its used part, and is complete if it is cut behind that."""
    directory = tmp_path / "queue"
    log = sealed.files[sealed.log]
    sealed.copy_to(directory)
    end = read_log(DISK, str(directory / sealed.log)).end
    for length_bytes in [*range(end + 16), *range(end + 16, len(log), 97)]:
        sealed.copy_to(directory)
        os.truncate(directory / sealed.log, length_bytes)
        if length_bytes < end:
            assert_refused(sealed, directory, sealed.log, 0 if length_bytes < HEADER_BYTES else HEADER_BYTES)
            continue
        with sealed.open(directory) as queue:
            assert drain(queue) == sealed.states[-1]


def flip_unsealed(prepared: Prepared, directory: Path, offset: int, mask: int) -> None:
    """Flip bits of a byte of an unsealed log, assert the outcome of an opening, and restore the log."""
    ends = prepared.ends
    flip(directory / prepared.log, offset, mask)
    if offset < HEADER_BYTES:
        assert_refused(prepared, directory, prepared.log, 0)
    elif offset < ends[-2]:
        assert_refused(prepared, directory, prepared.log, max(end for end in [HEADER_BYTES, *ends] if end <= offset))
    else:
        torn = offset < ends[-1] + 8
        assert_opens(prepared, directory, len(ends) - 1 - (offset < ends[-1]), torn, 0)
        prepared.copy_to(directory)
        return
    flip(directory / prepared.log, offset, mask)


def test_a_unsealed_log_flipped_at_every_byte(unsealed: Prepared, tmp_path: Path) -> None:
    """A flipped byte in an unsealed log is refused with its frame; in the last frame it is reported as torn. In unused
    space it changes nothing."""
    directory = tmp_path / "queue"
    unsealed.copy_to(directory)
    used = unsealed.ends[-1] + 16
    for offset in [*range(used), *range(used, len(unsealed.files[unsealed.log]), 97)]:
        flip_unsealed(unsealed, directory, offset, BITS[offset % 8])


def test_a_sealed_log_flipped_at_every_bit(sealed: Prepared, tmp_path: Path) -> None:
    """A flipped bit in the used part of a sealed log is refused, and one behind that changes nothing."""
    directory = tmp_path / "queue"
    sealed.copy_to(directory)
    end = read_log(DISK, str(directory / sealed.log)).end
    for offset in range(end):
        for mask in BITS:
            flip(directory / sealed.log, offset, mask)
            assert_refused(sealed, directory, sealed.log, 0 if offset < HEADER_BYTES else HEADER_BYTES)
            flip(directory / sealed.log, offset, mask)
    for offset in range(end, len(sealed.files[sealed.log]), 29):
        sealed.copy_to(directory)
        flip(directory / sealed.log, offset)
        with sealed.open(directory) as queue:
            assert drain(queue) == sealed.states[-1]


def test_a_small_unsealed_log_flipped_at_every_bit(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With any bit of a small unsealed log flipped, the log is refused, or opens with an exact prefix of the
    commits."""
    prepared = prepare(tmp_path_factory.mktemp("small"), 2, crash, inline_bytes=0)
    directory = tmp_path / "queue"
    prepared.copy_to(directory)
    for offset in range(prepared.ends[-1] + 8):
        for mask in BITS:
            flip_unsealed(prepared, directory, offset, mask)


# --- The segments -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blocks:
    """A queue whose items all are in segments, with the content and the place of each block."""

    prepared: Prepared
    starts: list[int]
    contents: list[list[bytes]]

    def at(self, offset: int) -> int | None:
        """Return the number of the block that holds the byte; None for the header and for unused space."""
        found = sum(start <= offset for start in self.starts) - 1
        return found if 0 <= found < len(self.contents) else None


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Blocks:
    """Return ten blocks of up to three items in one segment, closed cleanly. The last start is that of the next
    block."""
    root = tmp_path_factory.mktemp("blocks")
    contents = [
        [b"%d-%d" % (block, place) * (place + block % 2) for place in range(1 + block % 3)] for block in range(10)
    ]
    starts = [HEADER_BYTES]
    with open_small(root, 65536) as queue:
        for items in contents:
            put(queue, *items)
            starts.append(HEADER_BYTES + queue.stats().live_bytes)
    log, segment = (str(path.relative_to(root)) for path in (log_file(root), *segment_files(root)))
    return Blocks(Prepared(read_files(root), log, segment, [], [], 65536), starts, contents)


def assert_costs_a_block(blocks: Blocks, directory: Path, offset: int) -> None:
    """Assert that the block at ``offset`` raises once, with file and offset, and that all other items come out in
    order."""
    segment = str(directory / blocks.prepared.segment)
    lost = blocks.at(offset)
    with blocks.prepared.open(directory) as queue:
        items, damages = survivors(queue, consume=False)
        damaged = queue.stats().damaged
    assert items == flat(content for block, content in enumerate(blocks.contents) if block != lost)
    places = [(damage.file, damage.offset) for damage in damages]
    if lost is not None:
        assert (places, damaged) == ([(segment, blocks.starts[lost])], len(blocks.contents[lost]))
    else:  # damage to the header is reported, and costs nothing
        assert (places, damaged) == ([(segment, 0)] if offset < HEADER_BYTES else [], 0)


def test_a_segment_flipped_at_every_byte(blocks: Blocks, tmp_path: Path) -> None:
    """A flipped byte of a segment costs only the items of its block and is raised once. The items behind it come
    out."""
    directory = tmp_path / "queue"
    blocks.prepared.copy_to(directory)
    segment = directory / blocks.prepared.segment
    logs = read_files(directory)
    used = blocks.starts[-1]
    for offset in [*range(used), *range(used, len(blocks.prepared.files[blocks.prepared.segment]), 97)]:
        flip(segment, offset, BITS[offset % 8])
        assert_costs_a_block(blocks, directory, offset)
        flip(segment, offset, BITS[offset % 8])
    assert read_files(directory)[blocks.prepared.segment] == logs[blocks.prepared.segment]


def test_a_segment_flipped_at_every_bit_of_one_block(blocks: Blocks, tmp_path: Path) -> None:
    """Whichever bit of a block in the middle is flipped, only its items are lost."""
    directory = tmp_path / "queue"
    blocks.prepared.copy_to(directory)
    segment = directory / blocks.prepared.segment
    for offset in range(blocks.starts[5], blocks.starts[6]):
        for mask in BITS:
            flip(segment, offset, mask)
            assert_costs_a_block(blocks, directory, offset)
            flip(segment, offset, mask)


def test_a_segment_cut_at_every_byte(blocks: Blocks, tmp_path: Path) -> None:
    """A segment that was cut loses only the blocks behind the cut."""
    directory = tmp_path / "queue"
    segment = directory / blocks.prepared.segment
    for length_bytes in range(blocks.starts[-1]):
        blocks.prepared.copy_to(directory)
        os.truncate(segment, length_bytes)
        whole = max(sum(start <= length_bytes for start in blocks.starts) - 1, 0)
        with blocks.prepared.open(directory) as queue:
            items, damages = survivors(queue, consume=False)
            lost = queue.stats().damaged
        assert items == flat(blocks.contents[:whole])
        assert lost == sum(map(len, blocks.contents[whole:]))
        assert {damage.file for damage in damages} == {str(segment)}


def test_a_redo_log_repairs_its_segment(unsealed: Prepared, tmp_path: Path) -> None:
    """After a crash, the blocks that the log contains are written again, whatever happened to them in the segment."""
    directory = tmp_path / "queue"
    for offset in range(HEADER_BYTES, len(unsealed.files[unsealed.segment]), 11):
        unsealed.copy_to(directory)
        flip(directory / unsealed.segment, offset)
        assert_opens(unsealed, directory, 20, torn=False, missing_bytes=0)
    unsealed.copy_to(directory)
    (directory / unsealed.segment).unlink()
    assert_opens(unsealed, directory, 20, torn=False, missing_bytes=0)


@pytest.mark.parametrize("offset", range(0, HEADER_BYTES, 7))
def test_a_redo_log_and_a_damaged_segment_header(unsealed: Prepared, tmp_path: Path, offset: int) -> None:
    """After a crash, a damaged segment header costs no item, and readers get its error at most once."""
    directory = tmp_path / "queue"
    unsealed.copy_to(directory)
    flip(directory / unsealed.segment, offset)
    with unsealed.open(directory) as queue:
        assert queue.recovery.torn_bytes == 0
    with unsealed.open(directory) as queue:
        items, damages = survivors(queue, consume=False)
    assert items == unsealed.states[-1]
    assert [(damage.file, damage.offset) for damage in damages] in ([], [(str(directory / unsealed.segment), 0)])


@pytest.mark.parametrize("offset_in_block", [0, 5, 20, 43, 46])
def test_a_large_commit_is_checked_after_a_crash(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, offset_in_block: int
) -> None:
    """A block that the log does not contain is checked after a crash, too. If it is damaged, it costs only its own
    items."""
    prepared = prepare(tmp_path_factory.mktemp("large"), 6, crash, inline_bytes=0)
    directory = tmp_path / "queue"
    prepared.copy_to(directory)
    flip(directory / prepared.segment, HEADER_BYTES + offset_in_block)
    with prepared.open(directory) as queue:
        # The first block held one empty item, which the fourth commit consumed, so no item is missing.
        assert survivors(queue, consume=False) == (prepared.states[-1], [])
    prepared.copy_to(directory)
    segment = directory / prepared.segment
    second = HEADER_BYTES + 44 + 4
    flip(segment, second + offset_in_block)
    with prepared.open(directory) as queue:
        items, damages = survivors(queue, consume=False)
    assert items == prepared.states[-1][2:]
    assert [(damage.file, damage.offset) for damage in damages] == [(str(segment), second)]


# --- I: damage in the middle ------------------------------------------------------------------------------------------


def one_by_one(queue: PersistentQueue) -> tuple[list[bytes], int]:
    """Dequeue item by item. Return the items, and the number of errors."""
    items, damages = survivors(queue, consume=False)
    return items, len(damages)


def in_batches(queue: PersistentQueue) -> tuple[list[bytes], int]:
    """Dequeue in batches. Return the items, and the number of errors."""
    items: list[bytes] = []
    raised = 0
    with queue.session() as session:
        while True:
            try:
                batch = session.dequeue_many(4)
            except CorruptionError:
                raised += 1
                continue
            if not batch:
                session.rollback()
                return items, raised
            items += batch


def browsing(queue: PersistentQueue) -> tuple[list[bytes], int]:
    """Browse again and again until no error is raised. Return the items of the last browse, and the number of errors
    before."""

    def attempts() -> Iterator[list[bytes] | None]:
        while True:
            try:
                yield list(queue.browse())
            except CorruptionError:
                yield None

    for raised, items in enumerate(attempts()):
        if items is not None:
            return items, raised
    raise AssertionError


@pytest.mark.parametrize("consume", [one_by_one, in_batches, browsing])
@pytest.mark.parametrize("damaged", [[0], [4], [9], [2, 3], [1, 5, 8], list(range(10))])
def test_i_damaged_blocks_are_set_aside(
    blocks: Blocks, tmp_path: Path, consume: Callable[[PersistentQueue], tuple[list[bytes], int]], damaged: list[int]
) -> None:
    """Damaged blocks anywhere are counted and raise once each. The other items come out, however they are consumed."""
    directory = tmp_path / "queue"
    blocks.prepared.copy_to(directory)
    for block in damaged:
        flip(directory / blocks.prepared.segment, blocks.starts[block] + 46)
    expected = flat(content for block, content in enumerate(blocks.contents) if block not in damaged)
    with blocks.prepared.open(directory) as queue:
        assert consume(queue) == (expected, len(damaged))
        assert queue.stats().damaged == sum(len(blocks.contents[block]) for block in damaged)


def test_i_damage_outlives_its_discovery(blocks: Blocks, tmp_path: Path) -> None:
    """Damaged items are neither consumed nor deleted: ``check`` names the block, and the next opening meets it
    again."""
    directory = tmp_path / "queue"
    blocks.prepared.copy_to(directory)
    segment = directory / blocks.prepared.segment
    flip(segment, blocks.starts[4] + 46)
    for expected in (flat([*blocks.contents[:4], *blocks.contents[5:]]), []):
        with blocks.prepared.open(directory) as queue:
            with pytest.raises(CorruptionError) as caught, queue.session() as session:
                while session.dequeue_many(100):
                    session.flush()
            assert (caught.value.file, caught.value.offset) == (str(segment), blocks.starts[4])
            assert drain(queue) == expected[len(flat(blocks.contents[:4])) :]
        (problem,) = check(directory).problems
        assert f"{segment}: damaged at offset {blocks.starts[4]}" in problem
        assert segment.exists()
