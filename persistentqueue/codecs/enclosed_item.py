"""The format of an item that ``codecs.Enclosed`` has compressed or encrypted. Pure bytes, no files.

The queue stores such an item as it stores any other one. A process that owns the queue needs neither the key nor a
library for that. The format has nothing to do with the blocks that contain the item::

    offset  bytes  field
         0      1  version           1
         1      1  flags             1; beside it 4 = compressed, 8 = encrypted; no other is defined
         2      4  checksum          CRC-32 of version, flags and body
         6         body              that of a block with this one item and these flags (see ``block``)

So a plain body is the length of the item (u32), and the item. Any other one is an envelope and a content. Compression,
pieces, tags, nonces and associated data are those of blocks. The use for which the key is derived is ``persistentqueue
item``. So no item can be made of an encrypted block, and no block of an item.

A salt is drawn by each thread that encrypts, and again in a forked child. Its counter only grows, whether or not the
item is ever enqueued.

The bytes of the item, its length, and whether it was compressed are authenticated. Its queue, its place there, and the
time are not. A program that can enqueue can neither read an encrypted item nor make one. But that program can repeat an
item, leave it out, move it, or bring it from another queue with the same key. Its length and the key id are in the
clear.

The raw length is checked against the bound of the reader before memory is allocated.

Worked example: the item ``a``, encrypted with a key called ``k`` of 32 letters ``k``, under a salt of 16 zeros and the
counter 0::

    01 09 28a438b0  0500000000000000  00000000000000000000000000000000 0000000000000000 01 6b
    695f81de86  d7f980ad7a812908386f446c4aacbafa
"""

from __future__ import annotations

import struct

from ..core.block import ENCRYPTED, ENVELOPED, LENGTH_BYTES, RAW_LENGTH_BYTES, UNIFORM, BlockHeader, Enclose
from ..core.checksum import crc32
from ..core.encryption import Envelopes
from ..errors import CorruptionError, ItemTooLargeError

VERSION = 1
_FRONT = struct.Struct("<BB")
_CHECKSUM = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
FRONT_BYTES = _FRONT.size + _CHECKSUM.size
_WHERE = "the item"
"""Stands for the file in errors about an item."""


def encode_item(item: bytes, enclose: Enclose) -> bytes:
    """Return the item in its envelope. ``enclose`` is of ``Envelopes.encloser``."""
    flags, lengths, payload = enclose(UNIFORM, 1, _LENGTH.pack(len(item)), b"", item)
    front = _FRONT.pack(VERSION, flags)
    return b"".join((front, _CHECKSUM.pack(crc32(payload, crc32(lengths, crc32(front)))), lengths, payload))


def decode_item(data: bytes, envelopes: Envelopes, most_bytes: int, *, must_be_encrypted: bool) -> bytes:
    """Return the item in this envelope, if it has at most ``most_bytes``.

    Raises ``CorruptionError`` for bytes that no writer has made, and for a plain item that must be encrypted. Raises
    ``ItemTooLargeError``, ``MissingExtraError`` and ``WrongKeyError``.
    """
    if len(data) < FRONT_BYTES:
        raise CorruptionError(_WHERE, 0, f"an envelope of at least {FRONT_BYTES} bytes", f"{len(data)} bytes")
    version, flags = _FRONT.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _FRONT.size)
    body = data[FRONT_BYTES:]
    found = crc32(body, crc32(data[: _FRONT.size]))
    if found != checksum:
        found_text = f"{found:#010x}: it is damaged, or was put without this codec"
        raise CorruptionError(_WHERE, 0, f"an envelope with checksum {checksum:#010x}", found_text)
    least_bytes = RAW_LENGTH_BYTES if flags & ENVELOPED else LENGTH_BYTES
    if version != VERSION or flags & ~ENVELOPED != UNIFORM or len(body) < least_bytes:
        found_text = f"version {version}, flags {flags} and a body of {len(body)} bytes"
        raise CorruptionError(_WHERE, 0, f"an envelope of version {VERSION}", found_text)
    if must_be_encrypted and not flags & ENCRYPTED:
        raise CorruptionError(_WHERE, 0, "an encrypted item", "one that any program can have made")
    header = BlockHeader(flags, 1, 0, 0, len(body), 0, 0)
    _check_length(int.from_bytes(body[:RAW_LENGTH_BYTES], "little") if flags & ENVELOPED else len(body), most_bytes)
    return envelopes.open(body, header, FRONT_BYTES, _WHERE)[0]


def _check_length(raw_bytes: int, most_bytes: int) -> None:
    if raw_bytes - LENGTH_BYTES > most_bytes:
        raise ItemTooLargeError(
            f"an item of {raw_bytes - LENGTH_BYTES} bytes in an envelope exceeds the maximum of {most_bytes}: raise "
            "max_item_bytes of codecs.Enclosed if its writer is trusted"
        )
