"""Compressed and encrypted blocks: round trips, damage, forged blocks, and contents that would inflate beyond
bounds."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue import (
    CorruptionError,
    Encryption,
    WrongKeyError,
)
from persistentqueue.core import block, header
from persistentqueue.core import encryption as core_encryption
from persistentqueue.core.block import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    BLOCK_ITEMS,
    COMPRESSED,
    ENCRYPTED,
    ENVELOPED,
    HOLES,
    UNIFORM,
    Columns,
    Envelope,
    check_body,
    decode_block_header,
    decode_columns,
    decode_envelope,
    decode_holes,
    encode_block,
    encode_envelope,
)
from persistentqueue.core.encryption import PLAIN, Envelopes
from persistentqueue.system.disk import DISK

SALT = 0x1122334455667788
KEYS = {name: (name * 32).encode()[:32] for name in ("k", "one", "two", "three")}
ONE = Encryption("one", KEYS.__getitem__)
TWO = Encryption("two", KEYS.__getitem__)
THREE = Encryption("three", KEYS.__getitem__)
LOST = Encryption("new", {"new": bytes(16)}.__getitem__)
OTHER = Encryption("one", lambda key_id: bytes(32))
WAYS = {
    "compressed": Envelopes("zstd"),
    "encrypted": Envelopes(None, ONE),
    "both": Envelopes("zstd", ONE),
}
ways = pytest.mark.parametrize("way", WAYS)
SECRET = b"the recognisable secret, which is nobody's business"
TEXT = b"an item of text, as there are many; "


def encoded(way: str, items: Sequence[bytes], holes: Sequence[int] = (), offset: int = 640) -> bytes:
    """Return a block of these items."""
    found = WAYS[way].encoder(DISK)(items, SALT, offset, 17, 99, holes)
    data = b"".join(found.buffers)
    assert len(data) == found.length_bytes
    return data


def decode(data: bytes, envelopes: Envelopes, offset: int = 640) -> list[bytes]:
    """Return the items of the block at the beginning of the data, decoded as a segment decodes them."""
    found = decode_block_header(data, 0, SALT, offset, "file")
    body = data[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + found.body_bytes]
    check_body((body,), found, SALT, offset, "file")
    return envelopes.open(body, found, offset, "file")


def forge(flags: int, count: int, body: bytes) -> bytes:
    """Return a block with correct checksums and any content."""
    start = header.seed(SALT, 640)
    fields = struct.pack("<4sIIIQQQ", b"PQBk", flags, count, crc32(body, start), 17, len(body), 99)
    return fields + struct.pack("<I", crc32(fields, start)) + body


# --- the format ------------------------------------------------------------------------------------------------------

BLOCKS = [
    [TEXT],
    [TEXT] * 100,
    [TEXT * n for n in range(50)],
    [b""] * BLOCK_ITEMS,
    [b"y" * BLOCK_BYTES],
    [b"z" * (3 * BLOCK_BYTES)],
    [b"", TEXT * 9, b""],
]


@ways
@pytest.mark.parametrize("items", BLOCKS, ids=lambda items: f"{len(items)}x{len(items[0])}")
def test_block_round_trip(way: str, items: list[bytes]) -> None:
    """A block gives its items back; its header and checksum are those of any block."""
    data = encoded(way, items)
    found = decode_block_header(data, 0, SALT, 640, "file")
    assert (found.count, found.ordinal, found.time_ns) == (len(items), 17, 99)
    assert bool(found.flags & ENCRYPTED) == (way != "compressed")
    plain_bytes = encode_block(items, SALT, 640, 17, 99).length_bytes
    assert len(data) <= plain_bytes + WAYS[way].most_bytes
    if found.flags & COMPRESSED:
        assert len(data) < plain_bytes + WAYS[way].most_bytes
    if found.flags & ENVELOPED:
        assert decode(data, WAYS[way]) == items
        peeked = block.peek_payload_bytes(data[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + 8], found)
        assert peeked == sum(map(len, items))


PLACES = st.lists(st.one_of(st.none(), st.binary(max_size=9), st.just(TEXT)), min_size=1, max_size=70)


@ways
@given(PLACES, st.integers(0, 2**63))
def test_block_round_trip_of_anything(way: str, places: list[bytes | None], offset: int) -> None:
    """Any items come back, and the places without an item can be read without a key."""
    items, holes = [item or b"" for item in places], [n for n, item in enumerate(places) if item is None]
    data = encoded(way, items, holes, offset)
    found = decode_block_header(data, 0, SALT, offset, "file")
    assert not holes or decode_holes(data[BLOCK_HEADER_BYTES:], found) == holes
    assert bool(found.flags & HOLES) == bool(holes)
    if found.flags & ENVELOPED:
        assert decode(data, WAYS[way], offset) == items
        content = WAYS[way].open_content(data[BLOCK_HEADER_BYTES:], found, offset, "file")
        columns = decode_columns(content, found, offset, "file")
        assert (list(columns.sizes()), bytes(columns.payload)) == (list(map(len, items)), b"".join(items))
    else:
        assert data == b"".join(encode_block(items, SALT, offset, 17, 99, holes).buffers)


@ways
def test_columns_are_enclosed_like_items(way: str) -> None:
    """A block of columns opens to the same items as one of items, and a compressed one has the same bytes."""
    items = [TEXT * n for n in range(50)]
    columns = Columns(struct.pack("<50I", *map(len, items)), b"".join(items))
    data = b"".join(WAYS[way].encoder(DISK)(columns, SALT, 640, 17, 99).buffers)
    assert decode(data, WAYS[way]) == items
    assert (data == encoded(way, items)) == (way == "compressed")  # an encrypted one has a salt of its own


@given(st.binary(min_size=1, max_size=300))
def test_compression_never_makes_a_block_longer(item: bytes) -> None:
    """A block that compression does not make smaller is stored as it is."""
    plain = b"".join(encode_block([item], SALT, 640, 17, 99).buffers)
    data = encoded("compressed", [item])
    assert len(data) < len(plain) or data == plain


def test_what_cannot_be_compressed_is_encrypted_as_it_is() -> None:
    """Each block records whether it is compressed; a block that cannot be compressed is encrypted as it is."""
    data = encoded("both", [os.urandom(1000)])
    assert decode_block_header(data, 0, SALT, 640, "file").flags == UNIFORM | ENCRYPTED
    data = encoded("both", [bytes(1000)])
    assert decode_block_header(data, 0, SALT, 640, "file").flags == UNIFORM | ENCRYPTED | COMPRESSED


def test_example_of_the_document() -> None:
    """The worked example in the format document is true."""
    data = b"".join(
        Envelopes(None, Encryption("k", KEYS.__getitem__)).encoder(DISK)([b"a", b"", b"b"], 0, 0, 0, 0, [1]).buffers
    )
    assert (data[44:53].hex(), data[77:79].hex(), len(data)) == ("0e0000000000000002", "016b", 109)


@pytest.mark.parametrize(("size_bytes", "pieces"), [(100, 2), (92, 1), (93, 2), (1000, 11)])
def test_pieces(size_bytes: int, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content longer than the libraries take at once is encrypted in pieces, each with a nonce and a tag of its own."""
    monkeypatch.setattr(core_encryption, "PIECE_BYTES", 96)
    item, encode = os.urandom(size_bytes), WAYS["encrypted"].encoder(DISK)
    data = b"".join(encode([item], SALT, 640, 17, 99).buffers)
    assert len(data) == BLOCK_HEADER_BYTES + 4 + size_bytes + WAYS["encrypted"].most_bytes + 16 * (pieces - 1)
    assert decode(data, WAYS["encrypted"]) == [item]
    behind = b"".join(encode([item], SALT, 640, 17, 99).buffers)
    assert envelope_of(behind).counter == envelope_of(data).counter + pieces


def envelope_of(data: bytes) -> Envelope:
    """Return the envelope of the block at the beginning of the data."""
    return decode_envelope(data[BLOCK_HEADER_BYTES:], decode_block_header(data, 0, SALT, 640, "file"), 640, "file")[0]


@ways
def test_block_cut_or_flipped(way: str) -> None:
    """A block that is cut at any byte, or has any bit flipped, is reported as damage without any key."""
    data = encoded(way, [TEXT, TEXT * 2, b""], [2])
    for length in range(len(data)):
        with pytest.raises(CorruptionError) as caught:
            decode(data[:length], PLAIN)
        assert caught.value.offset == 640
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode(bytes(damaged), PLAIN)


@ways
def test_whatever_is_changed_with_right_checksums_never_comes_out_wrong(way: str) -> None:
    """A changed body with correct checksums is refused by its tag if it is encrypted.

    If it is only compressed, it is refused, or it decodes to the number of items that its header states.
    """
    items = [TEXT, TEXT * 2, b""]
    data = encoded(way, items)
    flags, body = decode_block_header(data, 0, SALT, 640, "file").flags, data[BLOCK_HEADER_BYTES:]
    kinds = set()
    for bit in range(len(body) * 8):
        changed = bytearray(body)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = decode(forge(flags, 3, bytes(changed)), WAYS[way])
        except (CorruptionError, WrongKeyError) as error:
            kinds.add(type(error))
        else:
            assert way == "compressed" and len(found) == 3
    assert kinds == ({CorruptionError} if way == "compressed" else {CorruptionError, WrongKeyError})


@pytest.mark.parametrize("way", ["encrypted", "both"])
def test_what_stands_beside_the_content_is_authenticated(way: str) -> None:
    """Flags, count, raw length and holes are authenticated: changing one of them is found, even with correct
    checksums."""
    items = [TEXT, b"", TEXT * 2, b""]
    data = encoded(way, items, [1])
    flags, body = decode_block_header(data, 0, SALT, 640, "file").flags, data[BLOCK_HEADER_BYTES:]
    assert decode(forge(flags, 4, body), WAYS[way]) == items
    longer, other = bytes([body[0] + 1]) + body[1:], body[:8] + b"\x08" + body[9:]
    for forged in (
        forge(flags ^ COMPRESSED, 4, body),
        forge(flags, 3, body),
        forge(flags, 5, body),
        forge(flags, 4, longer),
        forge(flags, 4, other),
    ):
        with pytest.raises(WrongKeyError, match="or the block was changed on purpose"):
            decode(forged, WAYS[way])
    data = encoded(way, [TEXT, TEXT + b"x"])
    flags, body = decode_block_header(data, 0, SALT, 640, "file").flags, data[BLOCK_HEADER_BYTES:]
    with pytest.raises(WrongKeyError):
        decode(forge(flags ^ UNIFORM, 2, body), WAYS[way])


# --- bombs -----------------------------------------------------------------------------------------------------------


def sealed(raw_bytes: int, content: bytes) -> bytes:
    """Return a compressed body: an envelope and this content."""
    return encode_envelope(Envelope(raw_bytes)) + content


def squeeze(raw: bytes, write_content_size: bool = True) -> bytes:
    """Return the bytes, compressed as a zstd frame."""
    return zstandard.ZstdCompressor(level=3, write_content_size=write_content_size).compress(raw)


def frame(says_bytes: int, blocks: int, window: int | None = None) -> bytes:
    """Return a zstd frame that states this size and has ``blocks`` blocks of 128 KiB of zeros, each in four bytes.

    The frame is a single segment, or has a window of 2 to the power of ``10 + window`` bytes.
    """
    head = b"\xe0" if window is None else bytes([0xC0, window << 3])
    each = (2**17 << 3 | 2).to_bytes(3, "little") + b"\0"
    last = b"\1\0\0"
    return b"\x28\xb5\x2f\xfd" + head + struct.pack("<Q", says_bytes) + each * blocks + last


RAW = b"\0\1\0\0" + bytes(256)
"""The raw content of one item of 256 zeros: its length, then the zeros."""


def test_frames_of_zeros_are_frames() -> None:
    """The frames below are valid for zstd if they state their true size."""
    assert zstandard.ZstdDecompressor().decompress(frame(2**18, 2, 10)) == bytes(2**18)
    assert zstandard.ZstdDecompressor().decompress(frame(2**18, 2)) == bytes(2**18)


@pytest.mark.parametrize(
    ("count", "body"),
    [
        (2, sealed(2**40, squeeze(RAW))),  # more bytes than two items may have
        (2, sealed(4 + BLOCK_BYTES + 1, squeeze(bytes(4 + BLOCK_BYTES + 1)))),
        (1, sealed(4 + 2**32, squeeze(RAW))),  # more bytes than one item may have
        (1, sealed(3, squeeze(bytes(3)))),  # no room for the length
        (1, sealed(len(RAW), squeeze(bytes(100_000_000)))),  # the frame holds more than the raw length
        (1, sealed(len(RAW) + 1, squeeze(RAW))),
        (1, sealed(len(RAW), squeeze(RAW) + b"x")),
        (1, sealed(len(RAW), squeeze(RAW) * 2)),
        (1, sealed(len(RAW), squeeze(RAW)[:-1])),
        (1, sealed(len(RAW), squeeze(RAW, write_content_size=False))),
        (1, sealed(2**32, frame(2**32, 2**15))),  # a window of 4 GiB
        (1, sealed(2**24, frame(2**24, 2**7, 14))),  # a window of 16 MiB
        (1, sealed(2**18, frame(2**18, 3, 10))),  # the frame holds more than it states
        (1, sealed(2**18, frame(2**18, 1, 10))),
        (1, sealed(len(RAW), b"no frame at all")),
        (1, sealed(len(RAW), b"\x50\x2a\x4d\x18\4\0\0\0skip")),
        (1, struct.pack("<Q", len(RAW))),  # nothing behind the envelope
        (2, sealed(len(RAW), squeeze(RAW))),  # the count contradicts the lengths
    ],
)
def test_bombs(count: int, body: bytes) -> None:
    """A block that would inflate to another size than stated, or beyond its bound, is damage, despite its correct
    checksum."""
    with pytest.raises(CorruptionError):
        decode(forge(UNIFORM | COMPRESSED, count, body), PLAIN)


def test_a_bomb_takes_no_memory() -> None:
    """Frames that claim or contain gigabytes are refused by a process with only 128 MiB of memory to spare."""
    code = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from tests.unit.core.test_encryption import COMPRESSED, PLAIN, RAW, UNIFORM, CorruptionError
from tests.unit.core.test_encryption import decode, forge, frame, sealed
bombs = (
    (1, sealed(len(RAW), frame(2**31, 2**14, 10))),
    (2, sealed(2**31, frame(2**31, 2**14, 10))),
    (1, sealed(2**31, frame(2**31, 2**14))),
    (1, sealed(2**31, frame(2**31, 0, 10))),
    (1, sealed(len(RAW), frame(len(RAW), 2**14, 10))),
)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, -1))
for count, body in bombs:
    try:
        decode(forge(UNIFORM | COMPRESSED, count, body), PLAIN)
    except CorruptionError:
        print("refused")
"""
    command = [sys.executable, "-c", code, str(Path(__file__).parents[3])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["refused"] * 5, "")


@pytest.mark.parametrize(
    "body",
    [
        encode_envelope(Envelope(260)) + bytes(100),  # no salt, no key
        encode_envelope(Envelope(260, b"", bytes(16), 0, "one"))[:-1],
        encode_envelope(Envelope(260, b"", bytes(16), 0, "one")),  # no content
        encode_envelope(Envelope(260, b"", bytes(16), 0, "one")) + bytes(16),  # no more than a tag
        encode_envelope(Envelope(260, b"", bytes(16), 0, "one")).replace(b"one", b"o\xffe") + bytes(300),
        encode_envelope(Envelope(2**40, b"", bytes(16), 0, "one")) + bytes(300),
    ],
)
def test_envelopes_that_make_no_sense(body: bytes) -> None:
    """An envelope that contradicts itself is damage, and not an error of the key."""
    with pytest.raises(CorruptionError):
        decode(forge(UNIFORM | ENCRYPTED, 1, body), WAYS["encrypted"])


def test_a_content_of_another_length_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A raw length that differs from the content is refused, even if the block was written with the right key."""
    encode = Envelopes(None, ONE).encoder(DISK)
    longer = lambda each: encode_envelope(each._replace(raw_bytes=each.raw_bytes + 1))  # noqa: E731
    monkeypatch.setattr(core_encryption, "encode_envelope", longer)
    data = b"".join(encode([TEXT], SALT, 640, 17, 99).buffers)
    with pytest.raises(CorruptionError, match="a content of"):
        decode(data, WAYS["encrypted"])
