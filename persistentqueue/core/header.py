"""The first 64 bytes of every log and every segment: the kind of the file, and the salt of all its checksums.

::

    offset  bytes  field
         0      8  magic        the kind of the file
         8      4  version      of the format; older files of a queue keep theirs
        12      4  flags        their meaning depends on the kind
        16      8  number       the log's generation or the segment's number; equals the one in the file's name
        24      8  salt         random; seeds every checksum in the file, so that bytes of another file, or of an
                                earlier use of this file, never look valid
        32      8  time         nanoseconds since the epoch when the file was begun; for people only
        40      8  size         bytes that the file was made for, including this header
        48     12  zeros
        60      4  checksum     CRC-32 of the 60 bytes before it

All integers of both formats are little-endian. The checksum keeps its place and its meaning in every version, and it is
checked first. So a damaged header is told from a newer one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ..errors import CorruptionError, UnsupportedFormatError
from .checksum import crc32

VERSION = 2
"""Version that is written. Version 1, which is read as well, had no *flushed* (see ``operations``)."""
HEADER_BYTES = 64

_HEADER = struct.Struct("<8sIIQQQQ12x")
_CHECKSUM = struct.Struct("<I")
_SEED = struct.Struct("<QQ")

assert _HEADER.size + _CHECKSUM.size == HEADER_BYTES


class Header(NamedTuple):
    """A decoded header."""

    flags: int
    number: int
    salt: int
    time_ns: int
    size_bytes: int


def encode_header(magic: bytes, header: Header, version: int = VERSION) -> bytes:
    """Return the 64 bytes that begin a file of the kind that ``magic`` names."""
    data = _HEADER.pack(magic, version, *header)
    return data + _CHECKSUM.pack(crc32(data))


def decode_header(data: bytes, magic: bytes, file: str) -> Header:
    """Check and decode the header in the first 64 bytes of ``data``, which were read from ``file``.

    Raises ``CorruptionError`` if they are not a header of this kind. Raises ``UnsupportedFormatError`` if the header
    has a newer version.
    """
    if len(data) < HEADER_BYTES:
        raise CorruptionError(file, 0, f"a header of {HEADER_BYTES} bytes", f"{len(data)} bytes")
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    found = crc32(data[: _HEADER.size])
    if found != checksum:
        raise CorruptionError(file, 0, f"a header with checksum {checksum:#010x}", f"{found:#010x}")
    found_magic, version, *rest = _HEADER.unpack_from(data)
    if found_magic != magic:
        raise CorruptionError(file, 0, f"a file that begins with {magic!r}", repr(found_magic))
    if version > VERSION:
        raise UnsupportedFormatError(file, version, VERSION)
    return Header(*rest)


def seed(salt: int, offset: int) -> int:
    """Return the start value of the checksums at ``offset``, so that the same bytes fail the check anywhere else."""
    return crc32(_SEED.pack(salt, offset))
