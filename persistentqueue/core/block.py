"""The block format: how a segment stores items. Pure bytes, no files.

A segment (``data/<number>.seg``) is a header (see ``header``; magic ``PQ-SEG\\r\\n``, no flags), then blocks back to
back, then unused space. It is written from front to back and never edited. A block is the unit of writing, checking and
reading: a 44-byte header and a columnar body.

::

    offset  bytes  field
         0      4  magic             ``PQBk``
         4      4  flags             1 = uniform, 2 = with holes; beside them 4 = compressed, 8 = encrypted; no other is
                                     defined
         8      4  count             items in the block, 1 to 65,536
        12      4  body checksum     CRC-32 of the body
        16      8  ordinal           how many items precede this block in its segment
        24      8  body length       bytes of the body, as it is stored
        32      8  time              nanoseconds since the epoch when the block was written; for people only
        40      4  header checksum   CRC-32 of the 40 bytes before it
        44         body              lengths, then payloads
                     uniform:        one u32, the length of every item
                     otherwise:      ``count`` u32, the length of each item
                     with holes:     and a bit for each of them, in ``(count + 7) // 8`` bytes, the lowest bit of the
                                     first byte for the first item: 1 for a hole, whose length is 0
                     then            all payloads back to back, in order

The body of a compressed or encrypted block is an *envelope*, in the clear, and then the *content*: the lengths and
payloads, compressed if that makes them smaller, then encrypted::

         0      8  raw length        bytes of lengths and payloads before compression and encryption; an upper bound
                                     for decompression
         8         holes             with holes: their bits, which are then not in the content
                encrypted:
               16  salt              random; the writer draws it at each opening and for each compaction
                8  counter           how many pieces were encrypted before under this salt
                1  key id length     1 to 255
                   key id            UTF-8

Compression: the content is one zstd frame (RFC 8878). It states the size of its content, which is the raw length. Its
window is at most 8 MiB, and it has no dictionary. The raw length is that of the lengths and at most ``BLOCK_BYTES`` of
payloads. Only a block of a single item may exceed this: its item has up to 4 GiB - 1 bytes. All of this is checked
before memory is allocated.

Encryption: the content is encrypted with AES-GCM (NIST SP 800-38D), in pieces of one gibibyte, the last one shorter. A
tag of 16 bytes follows each piece.

- The key is derived with HKDF-SHA256 (RFC 5869) from the queue's key, with the salt, for the use ``persistentqueue
  block``. It is as long as the queue's key.
- The nonce is four zeros and the counter, its highest byte first. The counter grows by one for each piece.
- A salt is drawn once, and its counter only grows. So no nonce is used twice under one key, even if a write fails or is
  tried again. A block that is copied to another place is encrypted anew.
- The associated data is flags and count (two u32), the length of the content (u64), and the envelope.

So the items of a block, their order and the holes are authenticated. The place of a block is not, and neither is the
log. A person with write access to the files can neither read an encrypted block nor make one. But that person can leave
out a block, repeat it, move it, or replace it by a plain one. Lengths, counts, times, key ids, names and markers are in
the clear.

Both checksums cover the stored bytes. So neither the key nor the library is needed to detect damage, to copy or to
repair.

A hole is an item that was consumed before the block was written by a compaction. The compaction left out its payload
and kept its place.

Both checksums begin with the CRC-32 of the segment's salt and the block's offset (two u64). So a block fails the check
if it is stale, recycled or misplaced. The header's checksum covers the body's.

Why columnar: lengths and payloads are each one join, one write and one run of the checksum at C speed. A frame around
each item costs 5 to 10 times as much.

Why the ordinal: behind a damaged header, the next valid one says exactly how many items were lost. So a damaged block
costs only its own items.

Worked examples:

- The items ``a`` and ``bc`` give the body ``01000000 02000000 61 6263``, 11 bytes; the block has 55 bytes.
- The items ``ab`` and ``cd`` are uniform: ``02000000 6162 6364``, 8 bytes; the block has 52 bytes.
- The items ``a`` and ``b`` with a hole between them: ``01000000 00000000 01000000 02 61 62``, 15 bytes; the block has
  59 bytes.
- The last example, encrypted with a key called ``k``: the envelope is ``0e00000000000000 02``, which includes the hole,
  then salt and counter, 24 bytes, then ``01 6b``. AES-GCM makes 30 bytes of the other 14 bytes and the tag. The block
  has 109 bytes.

A block does not say which sequences its items have, because a large session writes blocks before it knows them. The log
says it (see ``frame``). Until then, a block is dead bytes. A crash here leaves the same.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from ..errors import CorruptionError
from .checksum import crc32
from .header import seed

SEGMENT_MAGIC = b"PQ-SEG\r\n"
BLOCK_MAGIC = b"PQBk"
BLOCK_HEADER_BYTES = 44
BLOCK_BYTES = 256 * 1024
"""Target size of the payloads of a block; a larger item gets a block of its own."""
BLOCK_ITEMS = 65_536
"""Upper bound on the items of a block, so that the count is bounded even if all items are empty."""
ITEM_BYTES_MAX = 2**32 - 1

MIXED = -1
"""In place of the length that all items have: it is not known, or there is none."""

UNIFORM = 1
HOLES = 2
COMPRESSED = 4
ENCRYPTED = 8
ENVELOPED = COMPRESSED | ENCRYPTED
"""Mask of both flags: the body of such a block is an envelope and a content."""
ENVELOPE_SALT_BYTES = 16
TAG_BYTES = 16
PIECE_BYTES = 2**30
"""Bytes that are encrypted at once. The libraries accept less than 2 GiB."""
KEY_ID_BYTES_MAX = 255

Stored = bytes | memoryview
"""Bytes as they are read or written."""

_FIELDS = struct.Struct("<4sIIIQQQ")
_CHECKSUM = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_RAW_LENGTH = struct.Struct("<Q")
_ENCRYPTED_BY = struct.Struct(f"<{ENVELOPE_SALT_BYTES}sQB")
_AUTHENTICATED = struct.Struct("<IIQ")
_MANY, _TOGETHER = 512, 64

assert _FIELDS.size + _CHECKSUM.size == BLOCK_HEADER_BYTES
LENGTH_BYTES = _LENGTH.size
RAW_LENGTH_BYTES = _RAW_LENGTH.size
ENVELOPE_BYTES_MAX = RAW_LENGTH_BYTES + _ENCRYPTED_BY.size + TAG_BYTES
"""Bytes of an encrypted block beyond a plain one, without its key id. Each further piece adds one tag."""

assert array("I").itemsize == LENGTH_BYTES


class BlockHeader(NamedTuple):
    """A decoded block header. ``checksum`` is the header's own checksum, which identifies the whole block."""

    flags: int
    count: int  # type: ignore[assignment]
    body_checksum: int
    ordinal: int
    body_bytes: int
    time_ns: int
    checksum: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of the items, without their lengths, of a block that is neither compressed nor encrypted."""
        return self.body_bytes - _lengths_bytes(self.flags, self.count)


class Envelope(NamedTuple):
    """The statements of a compressed or encrypted block about its content. Without a key id, it is not encrypted."""

    raw_bytes: int
    holes: bytes = b""
    salt: bytes = b""
    counter: int = 0
    key_id: str = ""


class Columns:
    """Items as a block stores them, without an object for each item: their lengths, and their payloads back to back.

    Args:
        lengths: The length of each item, as u32, back to back.
        payload: All items, back to back.
    """

    __slots__ = ("lengths", "payload")

    def __init__(self, lengths: Stored, payload: Stored) -> None:
        self.lengths = lengths
        self.payload = payload

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.lengths) // LENGTH_BYTES

    def sizes(self) -> Sequence[int]:
        """Return the lengths as numbers."""
        if sys.byteorder == "little":
            return memoryview(self.lengths).cast("I")
        return _little_endian(array("I", bytes(self.lengths)))  # pragma: no cover - the tests run on little-endian ones

    def payload_bytes(self) -> int:
        """Return the sum of the lengths."""
        first = bytes(self.lengths[:LENGTH_BYTES])
        if self.lengths == first * len(self):
            return len(self) * int.from_bytes(first, "little")
        return sum(self.sizes())


class Encoded(NamedTuple):
    """A block that is ready to be written: ``buffers`` back to back are its ``length_bytes`` bytes."""

    buffers: list[bytes]
    length_bytes: int
    checksum: int


Sizes = Callable[[int, int], Iterable[int]]
"""Callable that returns the lengths of the items from an index to another one."""


def uniform_bytes(sizes: list[int]) -> int:
    """Return the length that all items have, by their lengths; ``MIXED`` if there is no such length, or no item."""
    return sizes[0] if sizes and sizes.count(sizes[0]) == len(sizes) else MIXED


def split_items(
    items: Sequence[bytes], payload_bytes: int, each_bytes: int = MIXED
) -> list[tuple[Sequence[bytes], int]]:
    """Cut the items, which have ``payload_bytes`` in all, into the parts for one block each, in order.

    ``each_bytes`` is the length of every item, or ``MIXED``; it changes no part. Returns each part with the bytes of
    its payloads.
    """
    if payload_bytes <= BLOCK_BYTES and len(items) <= BLOCK_ITEMS:
        return [(items, payload_bytes)]
    if each_bytes != MIXED:
        most = min(BLOCK_ITEMS, BLOCK_BYTES // max(1, each_bytes)) or 1
        alike = [items[start : start + most] for start in range(0, len(items), most)]
        return [(part, each_bytes * len(part)) for part in alike]
    parts = _split(len(items), payload_bytes, lambda start, stop: map(len, items[start:stop]))
    return [(items[start:stop], part_bytes) for start, stop, part_bytes in parts]


def split_columns(columns: Columns) -> list[Columns]:
    """Cut the items into the parts for one block each, in order, exactly as ``split_items`` cuts the same items."""
    payload, lengths, sizes = memoryview(columns.payload), memoryview(columns.lengths), columns.sizes()
    if len(payload) <= BLOCK_BYTES and len(columns) <= BLOCK_ITEMS:
        return [columns]
    parts: list[Columns] = []
    begin = 0
    for start, stop, part_bytes in _split(len(columns), len(payload), lambda start, stop: sizes[start:stop]):
        part = lengths[LENGTH_BYTES * start : LENGTH_BYTES * stop]
        parts.append(Columns(part, payload[begin : begin + part_bytes]))
        begin += part_bytes
    return parts


def _split(count: int, payload_bytes: int, sizes: Sizes) -> list[tuple[int, int, int]]:
    """Return where each part of ``count`` items begins and ends, and the bytes of its payloads."""
    parts: list[tuple[int, int, int]] = []
    most = min(BLOCK_ITEMS, count * BLOCK_BYTES // max(1, payload_bytes)) or 1
    start = 0
    while start < count:  # if the items are about equally long, no sum for each item is needed
        stop = min(start + most, count)
        part_bytes = sum(sizes(start, stop))
        fits = part_bytes <= BLOCK_BYTES or most == 1
        fills = 2 * part_bytes >= BLOCK_BYTES or most == BLOCK_ITEMS or stop == count
        if not (fits and fills):
            return parts + _split_exactly(start, list(accumulate(sizes(start, count))))
        parts.append((start, stop, part_bytes))
        start = stop
    return parts


def _split_exactly(first: int, ends: Sequence[int]) -> list[tuple[int, int, int]]:
    """Do as ``_split`` does, for items of any lengths: those from ``first`` on, of which ``ends`` are the cumulated
    lengths."""
    parts: list[tuple[int, int, int]] = []
    start = base = 0
    while start < len(ends):
        stop = bisect_right(ends, base + BLOCK_BYTES, start, min(len(ends), start + BLOCK_ITEMS))
        stop = max(stop, start + 1)
        parts.append((first + start, first + stop, ends[stop - 1] - base))
        base = ends[stop - 1]
        start = stop
    return parts


def most_block_bytes(count: int, payload_bytes: int, envelope_bytes: int) -> int:
    """Return an upper bound of the bytes of the blocks of ``count`` items, each block with an envelope of that size."""
    # Two adjacent blocks: either one of them has BLOCK_ITEMS items, or both together exceed BLOCK_BYTES.
    blocks = min(count, 1 + 2 * (count // BLOCK_ITEMS + payload_bytes // BLOCK_BYTES))
    body_bytes = LENGTH_BYTES * count + payload_bytes
    if envelope_bytes:
        body_bytes += envelope_bytes * blocks + TAG_BYTES * (body_bytes // PIECE_BYTES)
    return BLOCK_HEADER_BYTES * blocks + body_bytes


class Encode(Protocol):
    """A callable that encodes blocks, as ``encode_block`` does."""

    def __call__(
        self,
        items: Sequence[bytes] | Columns,
        salt: int,
        offset: int,
        ordinal: int,
        time_ns: int,
        holes: Sequence[int] = (),
        each_bytes: int = MIXED,
    ) -> Encoded:
        """Encode one block."""


Enclose = Callable[[int, int, bytes, bytes, bytes], tuple[int, bytes, bytes]]
"""Callable that puts a body into an envelope.

Its arguments are the flags, the count, the lengths, the bits of the holes, and all payloads. It returns the flags, and
the body in two parts.
"""


def encode_block(
    items: Sequence[bytes] | Columns,
    salt: int,
    offset: int,
    ordinal: int,
    time_ns: int,
    holes: Sequence[int] = (),
    each_bytes: int = MIXED,
    enclose: Enclose | None = None,
) -> Encoded:
    """Encode one block for ``offset`` of the segment with this salt, behind ``ordinal`` items.

    The items at the indexes ``holes`` are holes; they must be empty. Columns have no holes. ``each_bytes`` is the
    length of every item, or ``MIXED``: then items are measured. The block is the same for items and for their columns,
    and with either ``each_bytes``.
    """
    start = seed(salt, offset)
    count, bits = len(items), b""
    if isinstance(items, Columns):
        flags, lengths, payload = 0, bytes(items.lengths), bytes(items.payload)
        if lengths == lengths[:LENGTH_BYTES] * count:
            flags, lengths = UNIFORM, lengths[:LENGTH_BYTES]
    elif holes:
        bits = sum(1 << hole for hole in holes).to_bytes(_bits_bytes(count), "little")
        flags, payload = HOLES, b"".join(items)
        lengths = _little_endian(array("I", map(len, items))).tobytes()
    elif count == 1:
        flags, payload = UNIFORM, items[0]
        lengths = _LENGTH.pack(len(payload))
    else:
        payload = b"".join(items)
        if each_bytes * count != len(payload):
            sizes = list(map(len, items))
            each_bytes = uniform_bytes(sizes)
        if each_bytes != MIXED:
            flags, lengths = UNIFORM, _LENGTH.pack(each_bytes)
        else:
            flags, lengths = 0, _little_endian(array("I", sizes)).tobytes()
    if enclose is None:
        lengths += bits
    else:
        flags, lengths, payload = enclose(flags, count, lengths, bits, payload)
    body_bytes = len(lengths) + len(payload)
    body_checksum = crc32(payload, crc32(lengths, start))
    fields = _FIELDS.pack(BLOCK_MAGIC, flags, count, body_checksum, ordinal, body_bytes, time_ns)
    checksum = crc32(fields, start)
    header = fields + _CHECKSUM.pack(checksum) + lengths
    return Encoded([header, payload], BLOCK_HEADER_BYTES + body_bytes, checksum)


def encode_envelope(envelope: Envelope) -> bytes:
    """Return the envelope that precedes the content of a compressed or encrypted block."""
    raw_bytes, holes, salt, counter, key_id = envelope
    data = _RAW_LENGTH.pack(raw_bytes) + holes
    if key_id:
        name = key_id.encode()
        data += _ENCRYPTED_BY.pack(salt, counter, len(name)) + name
    return data


def decode_envelope(body: bytes, header: BlockHeader, offset: int, file: str) -> tuple[Envelope, int]:
    """Decode the envelope that begins this checked body of the block at ``offset``; return it and where the content
    begins.

    Raises ``CorruptionError`` if the envelope contradicts itself, or claims more than such a block may hold.
    """
    (raw_bytes,) = _RAW_LENGTH.unpack_from(body)
    at = RAW_LENGTH_BYTES
    holes = b""
    if header.flags & HOLES:
        holes = body[at : at + _bits_bytes(header.count)]
        at += _bits_bytes(header.count)
    salt, counter, key_id, is_text = b"", 0, "", True
    if header.flags & ENCRYPTED and at + _ENCRYPTED_BY.size <= len(body):
        salt, counter, length_bytes = _ENCRYPTED_BY.unpack_from(body, at)
        at += _ENCRYPTED_BY.size
        key_id = body[at : at + length_bytes].decode(errors="ignore")
        at += len(key_id.encode())
        is_text = len(key_id.encode()) == length_bytes
    least_bytes = _lengths_bytes(header.flags & UNIFORM, header.count)
    most_bytes = least_bytes + (ITEM_BYTES_MAX if header.count == 1 else BLOCK_BYTES)
    makes_sense = at < len(body) and is_text and bool(key_id) == bool(header.flags & ENCRYPTED)
    if not makes_sense or not least_bytes <= raw_bytes <= most_bytes:
        raise CorruptionError(
            file,
            offset,
            f"a valid envelope with a raw length of {least_bytes} to {most_bytes} bytes",
            f"a raw length of {raw_bytes} for {header.count} items in a body of {len(body)} bytes, key {key_id!r}",
        )
    return Envelope(raw_bytes, holes, salt, counter, key_id), at


def peek_payload_bytes(data: bytes, header: BlockHeader) -> int:
    """Return the bytes of the items, by the raw length that begins this envelope. Nothing of it is checked yet."""
    return max(int.from_bytes(data, "little") - _lengths_bytes(header.flags & UNIFORM, header.count), 0)


def associated_data(flags: int, count: int, content_bytes: int, envelope: bytes) -> bytes:
    """Return the data that is authenticated together with an encrypted content of this length."""
    return _AUTHENTICATED.pack(flags, count, content_bytes) + envelope


def decode_block_header(data: bytes, position: int, salt: int, offset: int, file: str) -> BlockHeader:
    """Check and decode the header at ``position`` of ``data``, which is at ``offset`` of ``file``.

    Raises ``CorruptionError``. Then no field of the header can be trusted.
    """
    end = position + BLOCK_HEADER_BYTES
    if len(data) < end:
        raise CorruptionError(file, offset, "a block header", f"the end of the file, {len(data) - position} bytes on")
    (checksum,) = _CHECKSUM.unpack_from(data, end - _CHECKSUM.size)
    found = crc32(data[position : end - _CHECKSUM.size], seed(salt, offset))
    if found != checksum:
        raise CorruptionError(file, offset, f"a block header with checksum {checksum:#010x}", f"{found:#010x}")
    magic, flags, count, body_checksum, ordinal, body_bytes, time_ns = _FIELDS.unpack_from(data, position)
    makes_sense = magic == BLOCK_MAGIC and flags & ~ENVELOPED in {0, UNIFORM, HOLES} and 0 < count <= BLOCK_ITEMS
    if not makes_sense or body_bytes < (_lengths_bytes(flags, count) if flags < COMPRESSED else RAW_LENGTH_BYTES):
        raise CorruptionError(
            file, offset, "a valid block header", f"flags {flags}, {count} items in {body_bytes} bytes"
        )
    return BlockHeader(flags, count, body_checksum, ordinal, body_bytes, time_ns, checksum)


def check_item(length: bytes, item: bytes, header: BlockHeader, salt: int, offset: int, file: str) -> bytes:
    """Check and return the item of a block with a single item, read in two parts: its length, and the item itself.

    Raises ``CorruptionError``.
    """
    check_body((length, item), header, salt, offset, file)
    if int.from_bytes(length, "little") != len(item):
        raise CorruptionError(
            file, offset, f"an item of {header.body_bytes - LENGTH_BYTES} bytes", "a different length"
        )
    return item


def decode_items(content: bytes, header: BlockHeader, offset: int, file: str) -> list[bytes]:
    """Return the items, from a checked body, or from the decoded content of a compressed or encrypted block.

    Raises ``CorruptionError``. Allocates no more than the size of the content.
    """
    flags, count, end = _content_flags(header), header.count, len(content)
    if flags == UNIFORM:
        (size,) = _LENGTH.unpack_from(content)
        if LENGTH_BYTES + size * count == end:
            return _cut(content, LENGTH_BYTES, end, size) if size else [b""] * count
    else:
        sizes = array("I")
        sizes.frombytes(content[: LENGTH_BYTES * count])
        ends = list(accumulate(_little_endian(sizes), initial=_lengths_bytes(flags, count)))
        if ends[-1] == end:
            return list(map(content.__getitem__, map(slice, ends, ends[1:])))
    raise _another_sum(end, offset, file)


def decode_columns(content: bytes, header: BlockHeader, offset: int, file: str) -> Columns:
    """Return the items as columns, from a content as ``decode_items`` takes it.

    A hole has the length 0. The payload is not copied. Raises ``CorruptionError`` unless the lengths add up to it.
    """
    flags, count = _content_flags(header), header.count
    lengths = content[:LENGTH_BYTES] * count if flags == UNIFORM else content[: LENGTH_BYTES * count]
    columns = Columns(lengths, memoryview(content)[_lengths_bytes(flags, count) :])
    if columns.payload_bytes() != len(columns.payload):
        raise _another_sum(len(content), offset, file)
    return columns


def _content_flags(header: BlockHeader) -> int:
    """Return the flags that say how the content is laid out: an envelope has the bits of the holes."""
    return header.flags & UNIFORM if header.flags & ENVELOPED else header.flags


def _another_sum(size_bytes: int, offset: int, file: str) -> CorruptionError:
    return CorruptionError(file, offset, f"lengths that add up to {size_bytes} bytes", "a different sum")


def decode_holes(body: bytes, header: BlockHeader) -> list[int]:
    """Return the indexes of the holes in a checked body that has some."""
    start = RAW_LENGTH_BYTES if header.flags & ENVELOPED else LENGTH_BYTES * header.count
    bits = int.from_bytes(body[start : start + _bits_bytes(header.count)], "little")
    return [item for item in range(header.count) if bits >> item & 1]


def _lengths_bytes(flags: int, count: int) -> int:
    """Return the number of bytes before the payloads."""
    if flags == UNIFORM:
        return LENGTH_BYTES
    return LENGTH_BYTES * count + (_bits_bytes(count) if flags == HOLES else 0)


def _bits_bytes(count: int) -> int:
    return (count + 7) // 8


def _cut(data: bytes, start: int, end: int, size: int) -> list[bytes]:
    """Return the items of ``size`` bytes each from ``start`` to ``end``."""
    items: list[bytes] = []
    if end - start >= _MANY * size:  # cutting many at once takes a third of the time
        together = struct.Struct(f"{size}s" * _TOGETHER)
        behind = end - (end - start) % together.size
        for some in together.iter_unpack(memoryview(data)[start:behind]):
            items += some
        start = behind
    items += [data[at : at + size] for at in range(start, end, size)]
    return items


def check_body(parts: Sequence[bytes], header: BlockHeader, salt: int, offset: int, file: str) -> None:
    """Raise ``CorruptionError`` unless the parts are the body that was written behind this header."""
    found = seed(salt, offset)
    for part in parts:
        found = crc32(part, found)
    size_bytes = sum(map(len, parts))
    if size_bytes < header.body_bytes:
        raise CorruptionError(file, offset, f"a body of {header.body_bytes} bytes", f"{size_bytes} bytes")
    if found != header.body_checksum:
        raise CorruptionError(file, offset, f"a body with checksum {header.body_checksum:#010x}", f"{found:#010x}")


def find_equal_salt(header: bytes, offset: int) -> int:
    """Return a salt under which this header of a block at ``offset`` checks out. All blocks of its segment then do.

    A checksum depends on no more of a salt than on 32 bits, its CRC-32. Each bit of a salt below 2**32 changes certain
    bits of the checksum, whatever the other bits are. So this solves 32 linear equations. There is one
    solution, also for bytes that are no header.
    """
    header = header[:BLOCK_HEADER_BYTES].ljust(BLOCK_HEADER_BYTES, b"\0")
    fields, (checksum,) = header[: _FIELDS.size], _CHECKSUM.unpack_from(header, _FIELDS.size)
    under_zero = crc32(fields, seed(0, offset))
    solved: dict[int, tuple[int, int]] = {}  # by the highest bit of the change: the change, and the salt that makes it
    for bit in range(32):
        salt = 1 << bit
        change = crc32(fields, seed(salt, offset)) ^ under_zero
        while change.bit_length() in solved:
            other_change, other_salt = solved[change.bit_length()]
            change, salt = change ^ other_change, salt ^ other_salt
        solved[change.bit_length()] = change, salt
    change, salt = checksum ^ under_zero, 0
    while change:
        other_change, other_salt = solved[change.bit_length()]
        change, salt = change ^ other_change, salt ^ other_salt
    return salt


def claimed_time_ns(data: bytes, position: int) -> int:
    """Return the time in the header at ``position``, unchecked; 0 if the header is cut."""
    return int(_FIELDS.unpack_from(data, position)[-1]) if len(data) - position >= _FIELDS.size else 0


def combine_checksums(combined: int, checksum: int) -> int:
    """Return one checksum for several blocks: the CRC-32 of their header checksums, each as a u32.

    Call it once for each block, with the result of the call before.
    """
    return crc32(_CHECKSUM.pack(checksum), combined)


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":  # pragma: no cover - the tests run on little-endian machines
        numbers.byteswap()
    return numbers
