"""One segment: blocks that do not fit where they stand, and items behind damage."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from persistentqueue import (
    CorruptionError,
)
from persistentqueue.core.block import encode_block
from persistentqueue.core.header import HEADER_BYTES, seed
from persistentqueue.storage.log import parse_log_name
from persistentqueue.storage.segment import Segment, parse_segment_name
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import put_each, segment_files
from tests.support.threads import at_once


@pytest.mark.damages
def test_segments_that_were_swapped(open_queue: QueueFactory, directory: Path) -> None:
    """A segment with another one's name is reported, and none of its items is served for the other's."""
    queue = open_queue(segment_bytes=10)
    put_each(queue, [b"a", b"b"])
    queue.close()
    one, two = segment_files(directory)
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    queue = open_queue(memory_bytes=0)
    errors = []
    with queue.session() as session:
        for _ in range(5):
            try:
                assert session.dequeue() is None
            except CorruptionError as error:
                errors.append(str(error))
    assert any("segment 1 with salt" in error for error in errors)
    assert queue.stats().damaged == 2


def forge_header(salt: int, offset: int, count: int, ordinal: int, body_bytes: int) -> bytes:
    """Return a block header with a correct checksum."""
    fields = struct.pack("<4sIIIQQQ", b"PQBk", 1, count, 0, ordinal, body_bytes, 0)
    return fields + struct.pack("<I", crc32(fields, seed(salt, offset)))


@pytest.mark.parametrize(
    ("count", "ordinal", "body_bytes"), [(1, 9, 5), (1, 0, 10_000), (7, 0, 5)], ids=["ordinal", "length", "count"]
)
def test_block_header_outside_its_extent(tmp_path: Path, count: int, ordinal: int, body_bytes: int) -> None:
    """A valid header that does not fit where it stands is damage, and the block behind it is found."""
    segment = Segment.create(DISK, str(tmp_path / "s"), 1, 4096)
    bad = forge_header(segment.salt, HEADER_BYTES, count, ordinal, body_bytes) + bytes(5)
    behind = HEADER_BYTES + len(bad)
    good = encode_block([b"c", b"d"], segment.salt, behind, 1, 0)
    far = encode_block([b"x"], segment.salt, behind + good.length_bytes, 9, 0)
    segment.write([bad, *good.buffers, *far.buffers], len(bad) + good.length_bytes + far.length_bytes, 3)
    end = behind + good.length_bytes
    loaded = segment.load(HEADER_BYTES, 0, end, 3, 0)
    assert (loaded.damage is not None, loaded.next_ordinal, loaded.lost) == (True, 0, 1)
    loaded = segment.load(HEADER_BYTES, 0, end, 3, 1)
    assert (loaded.ordinal, loaded.items, loaded.damage) == (1, [b"c", b"d"], None)
    segment.close()


def test_a_block_is_found_by_few_bytes(tmp_path: Path) -> None:
    """A reading that begins in the middle of a segment reads about one block to find its place."""
    read_bytes = 0

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        nonlocal read_bytes
        data = DISK.pread(fd, length_bytes, offset)
        read_bytes += len(data)
        return data

    segment = Segment.create(replace(DISK, pread=pread), str(tmp_path / "s"), 1, 40 * 1024 * 1024)
    items, blocks = [bytes(1000)] * 250, 150
    for _ in range(blocks):
        block = encode_block(items, segment.salt, segment.end, segment.ordinal, 0)
        segment.write(block.buffers, block.length_bytes, len(items))
    for wanted in range(0, blocks * len(items), 3001):
        read_bytes = 0
        found = next(segment.blocks(HEADER_BYTES, 0, segment.end, segment.ordinal, wanted))
        assert wanted in range(found.header.ordinal, found.header.ordinal + found.header.count)
        assert read_bytes <= 1.25 * block.length_bytes
    segment.close()


def test_a_number_fits_into_a_header() -> None:
    """A file whose number no header could have is none of the queue."""
    for parse, suffix in ((parse_segment_name, "seg"), (parse_log_name, "log")):
        assert parse(f"{9 * 10**18}.{suffix}") == 9 * 10**18
        assert parse(f"{2**64}.{suffix}") is None


def test_damage_that_hides_everything_behind_it(tmp_path: Path) -> None:
    """Without a valid header behind the damage, all items behind it in the extent are lost."""
    segment = Segment.create(DISK, str(tmp_path / "s"), 1, 4096)
    outside = encode_block([b"x"], segment.salt, 200, 9, 0)
    segment.write([bytes(136), *outside.buffers], 136 + outside.length_bytes, 3)
    loaded = segment.load(HEADER_BYTES, 0, 1000, 3, 0)
    assert loaded.lost == 3
    assert segment.load(HEADER_BYTES, 0, 2**60, 3, 0).lost == 3  # without reading beyond the end of the file
    segment.close()


@pytest.mark.damages
def test_a_look_while_blocks_come(tmp_path: Path) -> None:
    """A thread looks at the blocks in memory while another one adds some: it finds a whole number of them, in order."""
    segment = Segment.create(DISK, str(tmp_path / "1.seg"), 1, 1 << 20)

    def add() -> int:
        for number in range(20_000):
            segment.defer([struct.pack(">I", number)], 4, 1)
        return 20_000

    def look() -> int:
        found, most = b"", 0
        while most < 20_000:
            found = segment._window(segment.end)._deferred
            most = len(found) // 4
            assert found[-4:] == (struct.pack(">I", most - 1) if most else b"")
        assert found == b"".join(struct.pack(">I", number) for number in range(20_000))
        return most

    try:
        assert at_once(add, look, look) == [20_000] * 3
    finally:
        segment.close()
