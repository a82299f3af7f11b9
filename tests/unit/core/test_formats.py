"""Headers, blocks and frames, encoded and decoded: whole, cut at each byte, and with each bit flipped."""

from __future__ import annotations

import importlib
import struct
import sys
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue import CorruptionError, UnsupportedFormatError
from persistentqueue.core import block, checksum, frame, header, operations
from persistentqueue.core.block import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    BLOCK_ITEMS,
    HOLES,
    LENGTH_BYTES,
    UNIFORM,
    Columns,
    check_body,
    claimed_time_ns,
    decode_block_header,
    decode_columns,
    decode_holes,
    decode_items,
    encode_block,
    find_equal_salt,
    split_columns,
    split_items,
    uniform_bytes,
)
from persistentqueue.core.frame import decode_frame, encode_frame, find_frame
from persistentqueue.core.header import HEADER_BYTES, Header, decode_header, encode_header
from persistentqueue.core.operations import (
    Adoption,
    Checkpoint,
    Delivered,
    Dequeue,
    Enqueue,
    ExtentRow,
    MarkerSet,
    Operation,
    SegmentCreated,
    SegmentRow,
    decode_transactions,
    dequeues,
    encode_transaction,
)

SALT = 0x1122334455667788
MAGIC = b"PQ-TEST\n"

# --- headers ---------------------------------------------------------------------------------------------------------

HEADER = Header(flags=3, number=2**40, salt=SALT, time_ns=1_700_000_000_000_000_000, size_bytes=4096)


def test_header_round_trip() -> None:
    """A header comes back as it was, and is 64 bytes long."""
    data = encode_header(MAGIC, HEADER)
    assert len(data) == HEADER_BYTES
    assert decode_header(data + b"rest", MAGIC, "file") == HEADER


def test_header_cut() -> None:
    """A header that is cut anywhere is refused, with file and offset."""
    for length in range(HEADER_BYTES):
        with pytest.raises(CorruptionError) as caught:
            decode_header(encode_header(MAGIC, HEADER)[:length], MAGIC, "some/file")
        assert (caught.value.file, caught.value.offset) == ("some/file", 0)
        assert f"{length} bytes" in str(caught.value)


def test_header_bit_flip() -> None:
    """Any bit of a header that flips is damage, never another version."""
    for bit in range(HEADER_BYTES * 8):
        data = bytearray(encode_header(MAGIC, HEADER))
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_header(bytes(data), MAGIC, "file")


def test_header_of_another_kind() -> None:
    """A file of another kind is refused."""
    with pytest.raises(CorruptionError, match="begins with"):
        decode_header(encode_header(b"PQ-OTHER", HEADER), MAGIC, "file")


def test_header_of_a_newer_version() -> None:
    """A newer version is refused by an error that names both versions."""
    data = encode_header(MAGIC, HEADER, version=header.VERSION + 6)
    with pytest.raises(UnsupportedFormatError) as caught:
        decode_header(data, MAGIC, "file")
    assert (caught.value.found, caught.value.supported) == (header.VERSION + 6, header.VERSION)
    assert f"version {header.VERSION + 6}" in str(caught.value)
    assert f"version {header.VERSION}:" in str(caught.value)


# --- blocks ----------------------------------------------------------------------------------------------------------

BLOCKS = [
    [b""],
    [b"a"],
    [b"", b""],
    [b"", b"a", b"", b"bcd"],
    [b"ab", b"cd"],
    [b"a", b"bc"],
    [b"PQBk" * 20, b"PQFr" * 20],
    [bytes([n % 256]) * (n % 7) for n in range(300)],
    [b"x" * 100] * 1000,
    *([b"%04d" % n for n in range(count)] for count in (511, 512, 513, 576, 639)),
    [b""] * BLOCK_ITEMS,
    [b"y" * BLOCK_BYTES],
]


def decode(data: bytes, offset: int = 640, salt: int = SALT) -> list[bytes]:
    """Decode the block that begins ``data``: as items, and as columns if the items can be had."""
    found = decode_block_header(data, 0, salt, offset, "file")
    body = data[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + found.body_bytes]
    check_body((body,), found, salt, offset, "file")
    items = decode_items(body, found, offset, "file")
    assert items_of(decode_columns(body, found, offset, "file")) == items
    return items


def columns_of(items: list[bytes]) -> Columns:
    """Return the items as columns."""
    return Columns(struct.pack(f"<{len(items)}I", *map(len, items)), memoryview(b"".join(items)))


def items_of(columns: Columns) -> list[bytes]:
    """Return the items that the columns stand for."""
    payload = bytes(columns.payload)
    sizes = struct.unpack(f"<{len(columns)}I", columns.lengths)
    ends = [*accumulate(sizes, initial=0)]
    assert ends[-1] == len(payload)
    return [payload[start:end] for start, end in pairwise(ends)]


@pytest.mark.parametrize("items", BLOCKS, ids=lambda items: f"{len(items)}x{len(items[0])}")
def test_block_round_trip(items: list[bytes]) -> None:
    """A block gives back its items, its ordinal and its time, and has the length that was announced."""
    encoded = encode_block(items, SALT, 640, 17, 99)
    data = b"".join(encoded.buffers)
    assert len(data) == encoded.length_bytes
    found = decode_block_header(data, 0, SALT, 640, "file")
    assert (found.count, found.ordinal, found.time_ns, found.checksum) == (len(items), 17, 99, encoded.checksum)
    assert (found.flags == UNIFORM) == (len({*map(len, items)}) == 1)
    assert decode(data + b"behind") == items
    assert encode_block(columns_of(items), SALT, 640, 17, 99) == encoded
    assert encode_block(items, SALT, 640, 17, 99, (), uniform_bytes(list(map(len, items)))) == encoded


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=40), st.integers(0, 2**64 - 1), st.integers(0, 2**63))
def test_block_round_trip_of_anything(items: list[bytes], salt: int, offset: int) -> None:
    """Any items come back at their own offset and under their own salt; with any other, the block is refused."""
    data = b"".join(encode_block(items, salt, offset, 0, 0).buffers)
    assert decode(data, offset, salt) == items
    with pytest.raises(CorruptionError):
        decode(data, offset + 1, salt)
    with pytest.raises(CorruptionError):
        decode(data, offset, salt ^ 1)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**63), st.integers(0, 2**63))
def test_a_block_tells_a_salt_as_good_as_its_own(salt: int, offset: int, other_offset: int) -> None:
    """The salt that is found in the header of one block opens every block that was written under the unknown salt."""
    header = b"".join(encode_block([b"known"], salt, offset, 0, 0).buffers)[:BLOCK_HEADER_BYTES]
    found = find_equal_salt(header, offset)
    assert decode(b"".join(encode_block([b"other"], salt, other_offset, 7, 8).buffers), other_offset, found) == [
        b"other"
    ]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=9)), min_size=1, max_size=70), st.integers(0, 2**63))
def test_block_with_holes(places: list[bytes | None], offset: int) -> None:
    """A block gives back its items and the places that have none; an empty item is an item."""
    items, holes = [item or b"" for item in places], [n for n, item in enumerate(places) if item is None]
    encoded = encode_block(items, SALT, offset, 0, 0, holes)
    data = b"".join(encoded.buffers)
    assert len(data) == encoded.length_bytes
    assert decode(data, offset) == items
    found = decode_block_header(data, 0, SALT, offset, "file")
    assert not holes or decode_holes(data[BLOCK_HEADER_BYTES:], found) == holes
    assert (found.flags == HOLES) == bool(holes)
    assert found.payload_bytes == sum(map(len, items))


@pytest.mark.parametrize(
    ("items", "holes"),
    [([b"", b"a", b"bcd"], []), ([b"ab", b"cd"], []), ([b""], []), ([b"a", b"", b"", b"b"], [1])],
    ids=str,
)
def test_block_cut_or_flipped(items: list[bytes], holes: list[int]) -> None:
    """A block that is cut at any byte, or has any bit flipped, is refused."""
    data = b"".join(encode_block(items, SALT, 640, 0, 0, holes).buffers)
    for length in range(len(data)):
        with pytest.raises(CorruptionError) as caught:
            decode(data[:length])
        assert caught.value.offset == 640
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode(bytes(damaged))


def forge_block(flags: int, count: int, body: bytes) -> bytes:
    """Return a block of these fields, with correct checksums."""
    start = header.seed(SALT, 640)
    fields = struct.pack("<4sIIIQQQ", b"PQBk", flags, count, crc32(body, start), 0, len(body), 0)
    return fields + struct.pack("<I", crc32(fields, start)) + body


@pytest.mark.parametrize(
    ("flags", "count", "body"),
    [
        (4, 1, b"\1\0\0\0a"),  # compressed, and no room for the raw length
        (UNIFORM | HOLES, 1, b"\1\0\0\0\0a"),  # two flags that exclude each other
        (HOLES, 1, b"\0\0\0\0"),  # no room for the bits of the holes
        (HOLES, 9, bytes(4 * 9 + 1)),
        (HOLES, 2, b"\1\0\0\0\1\0\0\0\1a"),
        (UNIFORM, 0, b"\1\0\0\0a"),  # no items
        (UNIFORM, BLOCK_ITEMS + 1, b"\0\0\0\0"),  # more items than a block may have
        (UNIFORM, 2, b"\1\0\0\0a"),  # less payload than the lengths say
        (UNIFORM, 1, b"\1\0\0\0ab"),  # more payload than the length says
        (UNIFORM, 1, b"\1\0"),  # no room for the length
        (0, 2, b"\1\0\0\0\1\0\0\0a"),
        (0, 2, b"\1\0\0\0\xff\xff\xff\xffa"),
        (0, 4, b"\1\0\0\0"),
    ],
)
def test_block_that_contradicts_itself(flags: int, count: int, body: bytes) -> None:
    """Lengths and counts are checked against the data, even if the checksums are correct: for items and for columns."""
    data = forge_block(flags, count, body)
    with pytest.raises(CorruptionError):
        decode(data)
    with pytest.raises(CorruptionError):
        decode_columns(body, decode_block_header(data, 0, SALT, 640, "file"), 640, "file")


def test_the_time_that_a_header_claims() -> None:
    """The time is that of the header, also if its checksum is wrong; a header that is cut has none."""
    data = bytearray(b"..." + b"".join(encode_block([b"a"], SALT, 640, 7, 1234, []).buffers))
    data[3 + 5] ^= 1
    assert claimed_time_ns(bytes(data), 3) == 1234
    assert claimed_time_ns(bytes(data[:20]), 3) == 0


def test_block_examples_of_the_document() -> None:
    """The worked examples in the format document are true."""
    data = b"".join(encode_block([b"a", b"bc"], SALT, 0, 0, 0).buffers)
    assert (data[BLOCK_HEADER_BYTES:].hex(), len(data)) == ("0100000002000000616263", 55)
    data = b"".join(encode_block([b"ab", b"cd"], SALT, 0, 0, 0).buffers)
    assert (data[BLOCK_HEADER_BYTES:].hex(), len(data)) == ("0200000061626364", 52)
    data = b"".join(encode_block([b"a", b"", b"b"], SALT, 0, 0, 0, [1]).buffers)
    assert (data[BLOCK_HEADER_BYTES:].hex(), len(data)) == ("010000000000000001000000026162", 59)


@pytest.mark.parametrize(
    ("items", "counts"),
    [
        ([b"x"], [1]),
        ([b""] * (2 * BLOCK_ITEMS + 1), [BLOCK_ITEMS, BLOCK_ITEMS, 1]),
        ([b"x" * (BLOCK_BYTES + 1)] * 2, [1, 1]),
        ([b"x" * BLOCK_BYTES, b"", b"y"], [2, 1]),
        ([b"x", b"y" * (BLOCK_BYTES + 1), b"z"], [1, 1, 1]),
        ([b"x" * (BLOCK_BYTES // 4)] * 9, [4, 4, 1]),
        ([b"x" * 100] * 6000, [2621, 2621, 758]),
        ([b""] * BLOCK_ITEMS + [b"x" * BLOCK_BYTES, b"y"], [BLOCK_ITEMS, 1, 1]),
        ([b"x"] * 1000 + [b"y" * (8 * BLOCK_BYTES)] + [b"x"] * 1000, [1000, 1, 1000]),
        ([b"y" * (BLOCK_BYTES // 2)] * 4 + [b"x"] * 4000, [2, 2, 4000]),
    ],
    ids=lambda value: str(len(value)),
)
def test_split_items(items: list[bytes], counts: list[int]) -> None:
    """Items are split into blocks of bounded bytes and counts; an item above the bound gets a block of its own."""
    parts = list(split_items(items, sum(map(len, items))))
    assert [len(part) for part, _ in parts] == counts
    assert [sum(map(len, part)) for part, _ in parts] == [size_bytes for _, size_bytes in parts]
    assert [item for part, _ in parts for item in part] == items
    assert [items_of(part) for part in split_columns(columns_of(items))] == [part for part, _ in parts]
    assert split_items(items, sum(map(len, items)), uniform_bytes(list(map(len, items)))) == parts


@given(
    st.sampled_from(
        [0, 1, 3, 100, BLOCK_BYTES // 3, BLOCK_BYTES // 2, BLOCK_BYTES // 2 + 1, BLOCK_BYTES, BLOCK_BYTES + 1]
    ),
    st.integers(1, 9),
    st.sampled_from([1, 1000, BLOCK_ITEMS]),
)
def test_uniform_items_are_split_like_measured_ones(each_bytes: int, count: int, times: int) -> None:
    """Items of one known length are cut where the same items are cut when they are measured."""
    items = [bytes(each_bytes)] * (count * (times if each_bytes <= 100 else 1))
    assert split_items(items, len(items) * each_bytes, each_bytes) == split_items(items, len(items) * each_bytes)


@given(st.lists(st.sampled_from([0, 1, 100, BLOCK_BYTES // 3, BLOCK_BYTES]), min_size=1, max_size=40))
def test_columns_are_split_like_items(sizes: list[int]) -> None:
    """Columns are cut into blocks exactly where the same items are cut."""
    items = [bytes([n % 256]) * size_bytes for n, size_bytes in enumerate(sizes)]
    parts = [part for part, _ in split_items(items, sum(sizes))]
    assert [items_of(part) for part in split_columns(columns_of(items))] == parts
    assert sum(len(part.lengths) for part in split_columns(columns_of(items))) == LENGTH_BYTES * len(items)


# --- frames ----------------------------------------------------------------------------------------------------------

CHECKPOINT = Checkpoint(
    time_ns=5,
    next_sequence=30,
    next_segment=4,
    current_segment=3,
    frontier=10,
    consumed=[(12, 3), (20, 1)],
    segments=[SegmentRow(2, SALT, 1000, 500, 8), SegmentRow(3, 1, 2000, 900, 30)],
    extents=[ExtentRow(8, 7, 2, 64, 436, 1, 2, 100), ExtentRow(15, 15, 3, 64, 836, 15, 14, 800)],
    markers=[MarkerSet("app", 42), MarkerSet("größe", 2**64 - 1)],
)
EMPTY = Checkpoint(0, 0, 1, 0, 0, [], [], [], [])
TRANSACTIONS: list[list[list[Operation]]] = [
    [],
    [[]],
    [[Enqueue(7, 3, 1, 64, 55, 0, 0xDEADBEEF)]],
    [[Enqueue(7, 3, 1, 64, 5, 0, 0xDEADBEEF, b"block")], [Dequeue(0, 2**63, 1), Dequeue(9, 1, 2)]],
    [[Adoption(7, SALT, 2**20, "a.seg"), Adoption(0, 0, 0, "")]],
    [[SegmentCreated(1, SALT, 2**20), MarkerSet("", 0), MarkerSet("n" * 65535, 1)], [], [Dequeue(0, 0, 1)]],
    [
        [*dequeues(0, [(2 * n, 1) for n in range(12)]), MarkerSet("m", 1), *dequeues(9, [(7, 5)] * 10)],
        [Dequeue(0, 1, 1)],
    ],
    [[CHECKPOINT]],
    [[EMPTY]],
]


def encode(transactions: list[list[Operation]], offset: int = 64) -> bytes:
    """Return a whole frame of these transactions."""
    body = b"".join(map(encode_transaction, transactions))
    counts = (len(transactions), sum(map(len, transactions)))
    start, _ = encode_frame(body, SALT, offset, 11, 0xCAFE, *counts)
    return start + body


@pytest.mark.parametrize("transactions", TRANSACTIONS, ids=range(len(TRANSACTIONS)))
def test_frame_round_trip(transactions: list[list[Operation]]) -> None:
    """A frame gives back its transactions, its number and the link to the frame before it."""
    data = b"\0" * 64 + encode(transactions) + b"behind"
    found = decode_frame(data, 64, SALT, "file")
    assert found.transactions == transactions
    assert (found.offset, found.end, found.number, found.previous) == (64, len(data) - 6, 11, 0xCAFE)


@pytest.mark.parametrize("kinds", ["delivered", "both"])
def test_each_operation_is_looked_at_a_few_times(kinds: str) -> None:
    """The bytes that a decoding takes follow the number of operations, and not its square, in any order of kinds."""
    count, taken_bytes = 20_000, 0

    class Counted(bytes):
        def __getitem__(self, at: Any) -> Any:
            nonlocal taken_bytes
            found = super().__getitem__(at)
            taken_bytes += len(found) if isinstance(at, slice) else 1
            return found

    other = Delivered(0, 2**40, 1, 3)
    made: list[Operation] = [Dequeue(0, n, 1) if kinds == "both" and n % 2 else other for n in range(count)]
    data = encode_transaction(made)
    assert list(decode_transactions(Counted(data), 0, len(data))) == [made]
    assert taken_bytes < 10 * len(data)


@pytest.mark.parametrize("transactions", TRANSACTIONS[:4], ids=range(4))
def test_frame_cut_or_flipped(transactions: list[list[Operation]]) -> None:
    """A frame that is cut at any byte, or has any bit flipped, is refused."""
    data = b"\0" * 64 + encode(transactions)
    for length in range(64, len(data)):
        with pytest.raises(CorruptionError) as caught:
            decode_frame(data[:length], 64, SALT, "file")
        assert caught.value.offset == 64
    for bit in range(64 * 8, len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_frame(bytes(damaged), 64, SALT, "file")


def test_frame_elsewhere_is_refused() -> None:
    """A frame is valid only at its own offset and under its own salt."""
    data = encode(TRANSACTIONS[3], offset=64)
    with pytest.raises(CorruptionError):
        decode_frame(b"\0" * 65 + data, 65, SALT, "file")
    with pytest.raises(CorruptionError, match="a frame of this log"):
        decode_frame(b"\0" * 64 + data, 64, SALT ^ 1, "file")
    with pytest.raises(CorruptionError):
        decode_frame(b"\0" * 64 + data, 64, SALT ^ 2**63, "file")


def forge_frame(body: bytes, transactions: int, operations: int) -> bytes:
    """Return 64 zero bytes and a frame of this body, with a correct checksum."""
    return b"\0" * 64 + encode_frame(body, SALT, 64, 1, 0, transactions, operations)[0] + body


ONE = encode_transaction([Dequeue(0, 0, 1)])


@pytest.mark.parametrize(
    ("body", "transactions", "operations"),
    [
        (ONE, 2, 1),  # fewer transactions than the frame states
        (ONE, 1, 2),
        (ONE + b"\0", 1, 1),  # a count of operations that is cut
        (b"\2\0\0\0" + ONE[4:], 1, 2),  # fewer operations than the count of the transaction
        (b"\1\0\0\0\xff", 1, 1),  # a kind that is not defined
        (b"\1\0\0\0\3\0\0", 1, 1),  # an operation that is cut
        (b"\1\0\0\0" + struct.pack("<BQQQQQQI", 2, 0, 1, 1, 0, 2**63, 0, 0), 1, 1),  # blocks that are not there
        (b"\1\0\0\0" + struct.pack("<BQH", 5, 1, 1) + b"\xff", 1, 1),  # a name that is not UTF-8
        (b"\1\0\0\0" + struct.pack("<BQQQH", 8, 1, 1, 1, 1) + b"\xff", 1, 1),  # a file name that is not ASCII
        (b"\1\0\0\0" + struct.pack("<BQQQQQIIII", 6, 0, 0, 0, 0, 0, 2**32 - 1, 0, 0, 0), 1, 1),  # rows not there
        (b"\1\0\0\0" + struct.pack("<BQQQQQIIII", 6, 0, 0, 0, 0, 0, 0, 0, 0, 1) + ONE[4:], 1, 1),  # no marker
    ],
)
def test_frame_that_contradicts_itself(body: bytes, transactions: int, operations: int) -> None:
    """Lengths and counts are checked against the data, even if the checksum is correct."""
    with pytest.raises(CorruptionError):
        decode_frame(forge_frame(body, transactions, operations), 64, SALT, "file")


def test_find_frame() -> None:
    """``find_frame`` finds the next valid frame at any offset, and skips copies of frames that stand elsewhere."""
    own = encode(TRANSACTIONS[2], offset=64)
    data = b"\0" * 64 + own + b"PQFr" + own + b"junk"
    at = len(data)
    data += encode(TRANSACTIONS[3], offset=at)
    assert find_frame(data, 64, SALT, "file") == decode_frame(data, 64, SALT, "file")
    found = find_frame(data, 65, SALT, "file")
    assert found is not None
    assert found.offset == at
    assert find_frame(data, at + 1, SALT, "file") is None


def test_frame_example_of_the_document() -> None:
    """The worked example in the format document is true."""
    blocks = b"".join(encode_block([b"x"], SALT, 64, 0, 0).buffers)
    body = encode_transaction([Enqueue(0, 1, 1, 64, len(blocks), 0, 0, blocks)])
    assert (len(blocks), len(body), len(encode_frame(body, SALT, 64, 1, 0, 1, 1)[0] + body)) == (49, 106, 142)


@pytest.mark.parametrize(
    ("data", "at", "decoded"),
    [
        (encode_header(MAGIC, HEADER), HEADER_BYTES - 4, lambda data: decode_header(data, MAGIC, "file")),
        (
            b"".join(encode_block([b"a"], SALT, 640, 0, 0, []).buffers),
            BLOCK_HEADER_BYTES - 4,
            lambda data: decode_block_header(data, 0, SALT, 640, "file"),
        ),
        (
            encode(TRANSACTIONS[3], offset=0),
            frame.FRAME_HEADER_BYTES - 4,
            lambda data: decode_frame(data, 0, SALT, "file"),
        ),
    ],
    ids=["header", "block", "frame"],
)
def test_the_checksum_that_is_expected(data: bytes, at: int, decoded: Callable[[bytes], object]) -> None:
    """An error expects the checksum that is stored, and has found that of the bytes."""
    damaged = bytearray(data)
    damaged[at] ^= 1
    (stored,), (computed,) = struct.unpack_from("<I", damaged, at), struct.unpack_from("<I", data, at)
    with pytest.raises(CorruptionError) as caught:
        decoded(bytes(damaged))
    assert caught.value.expected.endswith(f"with checksum {stored:#010x}")
    assert caught.value.found == f"{computed:#010x}"


def test_documents_name_every_kind_and_flag() -> None:
    """The docstrings of the format modules name the kinds of operations and the flags."""
    for word in ("enqueue inline", "dequeue", "segment", "marker", "checkpoint"):
        assert word in (operations.__doc__ or "")
    for word in ("synced", "sealed", "doubted"):
        assert word in (frame.__doc__ or "")
    assert "uniform" in (block.__doc__ or "")


def test_item_that_is_not_as_long_as_it_says() -> None:
    """A block of one item whose length field contradicts the item is refused, even if its checksum is correct."""
    length, item = (9).to_bytes(4, "little"), b"x" * 5
    found = block.BlockHeader(UNIFORM, 1, crc32(length + item, header.seed(SALT, 640)), 0, 9, 0, 0)
    with pytest.raises(CorruptionError, match="an item of 5 bytes"):
        block.check_item(length, item, found, SALT, 640, "file")
    right = (5).to_bytes(4, "little")
    found = found._replace(body_checksum=crc32(right + item, header.seed(SALT, 640)))
    assert block.check_item(right, item, found, SALT, 640, "file") == item


def test_the_checksum_is_that_of_zlib() -> None:
    """The checksum is that of ``zlib``, in one piece or in parts, for any kind of buffer."""
    data = bytes(range(256)) * 300
    for part in (b"", data[:1], data[:100], data[:-7], data):
        assert checksum.crc32(part) == crc32(part)
        assert checksum.crc32(part, 12345) == crc32(part, 12345)
        assert checksum.crc32(memoryview(part), checksum.crc32(data)) == crc32(part, crc32(data))


def test_without_zlib_ng_zlib_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``zlib_ng``, which is optional, ``zlib`` computes the checksum."""
    monkeypatch.setitem(sys.modules, "zlib_ng", None)
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    try:
        assert importlib.reload(checksum).crc32 is crc32
    finally:
        monkeypatch.undo()
        importlib.reload(checksum)
