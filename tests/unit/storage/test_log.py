"""The transaction log: frames with correct checksums and impossible content."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from persistentqueue import (
    CorruptionError,
    PersistentQueue,
    repair,
)
from persistentqueue.core.block import encode_block
from persistentqueue.core.frame import LOG_MAGIC, SYNCED, encode_frame
from persistentqueue.core.header import HEADER_BYTES, Header, encode_header
from persistentqueue.core.operations import (
    Checkpoint,
    Dequeue,
    Enqueue,
    SegmentCreated,
    encode_transaction,
)
from persistentqueue.storage.segment import Segment
from persistentqueue.system.disk import DISK
from tests.support.queues import drain

SALT = 77
EMPTY = Checkpoint(0, 0, 1, 0, 0, [], [], [], [])


def forge_log(path: Path, *bodies: bytes, numbers: list[int] | None = None, flags: int = SYNCED) -> None:
    """Write a queue whose log has these frames, each with a correct checksum."""
    (path / "log").mkdir(parents=True)
    data = encode_header(LOG_MAGIC, Header(flags, 1, SALT, 0, 0))
    previous = 0
    for n, body in enumerate(bodies):
        count = struct.unpack_from("<I", body)[0] if body else 0
        number = numbers[n] if numbers else n + 1
        start, checksum = encode_frame(body, SALT, len(data), number, previous, 1 if body else 0, count)
        data += start + body
        previous = checksum
    (path / "log" / "000000000001.log").write_bytes(data + bytes(100))


@pytest.mark.damages
@pytest.mark.parametrize(
    ("bodies", "numbers", "expected"),
    [
        ([b""], None, "a checkpoint"),
        ([encode_transaction([])], None, "a checkpoint"),
        ([encode_transaction([Dequeue(0, 0, 1)])], None, "a checkpoint"),
        ([encode_transaction([EMPTY._replace(frontier=5)])], None, "extents with -5 live items"),
        ([encode_transaction([EMPTY]), encode_transaction([Dequeue(0, 0, 1)])], None, "not consumed"),
        ([encode_transaction([EMPTY]), encode_transaction([EMPTY])], None, "operation of a transaction"),
        ([encode_transaction([EMPTY]), encode_transaction([])], [1, 3], "frame 2"),
    ],
)
def test_forged_logs(tmp_path: Path, bodies: list[bytes], numbers: list[int] | None, expected: str) -> None:
    """A log with correct checksums and impossible content is refused, with file and offset."""
    forge_log(tmp_path / "q", *bodies, numbers=numbers)
    with pytest.raises(CorruptionError, match=expected) as caught:
        PersistentQueue(tmp_path / "q")
    assert caught.value.file.endswith("000000000001.log")
    assert caught.value.offset >= HEADER_BYTES


def test_block_of_an_older_attempt_cannot_stand_in(tmp_path: Path) -> None:
    """With ``sync=False``, the log ends before a frame that names another block than the valid one at its place.

    A repair does not take that block either.
    """
    path = tmp_path / "q"
    blocks = encode_block([b"old"], SALT, HEADER_BYTES, 0, 0)
    enqueue = Enqueue(0, 1, 1, HEADER_BYTES, blocks.length_bytes, 0, 12345)
    created = SegmentCreated(1, SALT, 1000)
    forge_log(path, encode_transaction([EMPTY]), encode_transaction([created, enqueue]), flags=0)
    (path / "data").mkdir()
    segment = Segment.create(DISK, str(path / "data" / "000000000001.seg"), 1, 1000, salt=SALT)
    segment.write(blocks.buffers, blocks.length_bytes, 1)
    segment.close()
    (path / "pool").mkdir()
    shutil.copytree(path, repaired := tmp_path / "another" / "q")
    with PersistentQueue(path) as queue:
        assert queue.recovery.lost_transactions == 1
        assert drain(queue) == []
    report = repair(repaired)
    assert (report.items, report.lost) == (0, ((0, 1),))
