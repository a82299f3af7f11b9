"""How the bodies of blocks are compressed and encrypted, and what it takes to open them; ``block`` has the format.

Who writes compresses first, where that makes a block smaller, then encrypts. Each library is optional: it is imported
by who is asked to use it, at once, and by who meets the first block that needs it.

What keeps a nonce from being used twice: each ``Encode`` draws a salt of 128 random bits, from which and the key it
derives a key of its own, and counts what it encrypts, also where that is never written. It belongs to one writer, one
compaction or one producer, and a forked child draws another. (A virtual machine that is resumed twice from one snapshot
repeats what was drawn: open queues with encryption after that, not before.)

Threads: an ``Encode`` is for one at a time, ``open`` for any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..errors import CorruptionError, MissingExtraError, WrongKeyError
from .block import (
    COMPRESSED,
    ENCRYPTED,
    ENVELOPE_BYTES_MAX,
    ENVELOPE_SALT_BYTES,
    KEY_ID_BYTES_MAX,
    PIECE_BYTES,
    RAW_LENGTH_BYTES,
    TAG_BYTES,
    BlockHeader,
    Encode,
    Encoded,
    Envelope,
    associated_data,
    decode_envelope,
    decode_raw,
    encode_block,
    encode_envelope,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from zstandard import ZstdDecompressor

UNOPENED = (MissingExtraError, WrongKeyError)
"""What says that a block cannot be opened for now. That is no damage."""
_LEVEL = 3
_WINDOW_BYTES_MAX = 8 * 1024 * 1024
_RATIO_MAX = 2**15
"""A zstd block has at least 4 bytes, and makes at most 128 KiB of them."""
_KEY_BYTES = (16, 24, 32)
_PURPOSE = b"persistentqueue block"


class RandomSource(Protocol):
    """What the encoder needs of the operating system: salts of its own in each process. The disk has it."""

    @property
    def getpid(self) -> Callable[[], int]:
        """Return the number of this process."""

    @property
    def urandom(self) -> Callable[[int], bytes]:
        """Return so many random bytes, fit for cryptography."""


@dataclass(frozen=True)
class Encryption:
    """What a queue is encrypted with: AES-GCM, with the key that ``key`` gives for ``key_id``.

    New blocks are written with the key of this id, of 1 to 255 bytes of UTF-8, which each of them names in the clear.
    ``key(key_id)`` returns the 16, 24 or 32 bytes of a key, random ones, never of a password as it is. It is asked once
    for each id in an opening: at once for this one, and for another id when a block is met that names it; the first
    that is left is looked at once, so that another key of the same id is told before anything is written with it. So
    keys are changed by a new id, as long as ``key`` still knows the old ones; one id never stands for two keys. It is
    called while the queue is read, by any thread, and must not use the queue. What it raises becomes a
    ``WrongKeyError``, and it is asked again by the next call.

    Raises ``TypeError`` and ``ValueError`` for what cannot be an id.
    """

    key_id: str
    key: Callable[[str], bytes]

    def __post_init__(self) -> None:
        if type(self.key_id) is not str:
            raise TypeError(f"key_id must be text, not {self.key_id!r}")
        if not 0 < len(self.key_id.encode()) <= KEY_ID_BYTES_MAX:
            raise ValueError(f"key_id must be 1 to {KEY_ID_BYTES_MAX} bytes of UTF-8, not {self.key_id!r}")


class Envelopes:
    """How one opened queue, or one producer, compresses and encrypts its blocks; and how it opens those it meets.

    ``guard`` is held while ``key`` is called, so that it is called once. Raises ``ValueError``, ``TypeError``,
    ``MissingExtraError`` and ``WrongKeyError``.
    """

    def __init__(
        self,
        compression: str | None = None,
        encryption: Encryption | None = None,
        guard: AbstractContextManager[object] | None = None,
    ) -> None:
        if compression not in (None, "zstd"):
            raise ValueError(f'compression must be None or "zstd", got {compression!r}')
        if not isinstance(encryption, Encryption | None):
            raise TypeError(f"encryption must be None or an Encryption, not {encryption!r}")
        self._compresses = compression is not None
        self._encryption = encryption
        self._guard: AbstractContextManager[object] = guard if guard is not None else nullcontext()
        self._keys: dict[str, bytes] = {}
        self._idle: list[ZstdDecompressor] = []
        """Each is for one thread at a time."""
        self.most_bytes = 0
        """What a block has more than a plain one, at most, but for the tags of further pieces."""
        if self._compresses:
            with _needing("compression", 'compression="zstd"'):
                import zstandard  # noqa: F401
        if encryption is not None:
            with _needing("encryption", "encryption"):
                import cryptography  # noqa: F401
            self._key(encryption.key_id)
            self.most_bytes = ENVELOPE_BYTES_MAX + len(encryption.key_id.encode())

    def encoder(self, source: RandomSource) -> Encode:
        """What encodes blocks for one who writes, with nonces of its own."""
        if self._encryption is not None:
            key_id = self._encryption.key_id
            return _Encoder(source, self._compresses, key_id, self._key(key_id))
        return _Encoder(source, True) if self._compresses else encode_block

    def open(self, body: bytes, header: BlockHeader, offset: int, file: str) -> list[bytes]:
        """The items of a compressed or encrypted block, whose body was checked; ``offset`` is the block's in ``file``.

        Raises ``MissingExtraError``, ``WrongKeyError``, and ``CorruptionError`` for what was not written like this.
        """
        envelope, at = decode_envelope(body, header, offset, file)
        content: bytes | memoryview = memoryview(body)[at:]
        if header.flags & ENCRYPTED:
            content = self._decrypt(content, body[:at], envelope, header, offset, file)
        if header.flags & COMPRESSED:
            content = self._decompress(content, envelope.raw_bytes, offset, file)
        if len(content) != envelope.raw_bytes:
            raise CorruptionError(file, offset, f"a content of {envelope.raw_bytes} bytes", f"{len(content)} bytes")
        return decode_raw(bytes(content), header, offset, file)

    def _decrypt(
        self, content: bytes | memoryview, front: bytes, envelope: Envelope, header: BlockHeader, offset: int, file: str
    ) -> bytes:
        with _needing("encryption", f"{file}: the block at offset {offset}, which is encrypted,"):
            from cryptography.exceptions import InvalidTag

        step = PIECE_BYTES + TAG_BYTES
        pieces = range(0, len(content), step)
        content_bytes = len(content) - TAG_BYTES * len(pieces)
        if len(content) - pieces[-1] <= TAG_BYTES:
            raise CorruptionError(file, offset, "pieces with tags", f"{len(content)} bytes")
        cipher = _derive(self._key(envelope.key_id, file, offset), envelope.salt)
        data = associated_data(header.flags, header.count, content_bytes, front)
        try:
            return b"".join(
                cipher.decrypt(_nonce(envelope.counter + number), content[at : at + step], data)
                for number, at in enumerate(pieces)
            )
        except InvalidTag:
            problem = "its checksum is right: another key was given, or somebody has changed the block"
            raise WrongKeyError(envelope.key_id, problem, file, offset) from None

    def _decompress(self, content: bytes | memoryview, raw_bytes: int, offset: int, file: str) -> bytes:
        with _needing("compression", f"{file}: the block at offset {offset}, which is compressed,"):
            import zstandard

        try:
            decompressor = self._idle.pop()
        except IndexError:
            decompressor = zstandard.ZstdDecompressor()
        try:
            # The frame says for itself how much is made room for, whatever bound is given.
            frame = zstandard.get_frame_parameters(content)
            is_possible = raw_bytes <= _RATIO_MAX * len(content) and frame.window_size <= _WINDOW_BYTES_MAX
            if frame.content_size != raw_bytes or not is_possible:
                found = f"one of {frame.content_size} in {len(content)}, with a window of {frame.window_size}"
                raise CorruptionError(file, offset, f"a zstd frame of {raw_bytes} bytes", found)
            return decompressor.decompress(content, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CorruptionError(file, offset, f"a zstd frame of {raw_bytes} bytes", str(error)) from error
        finally:
            self._idle.append(decompressor)

    def _key(self, key_id: str, file: str | None = None, offset: int | None = None) -> bytes:
        """The key of this id, which a block there names. Raises ``WrongKeyError``."""
        with self._guard:
            key = self._keys.get(key_id)
            if key is None:
                if self._encryption is None:
                    raise WrongKeyError(key_id, "no key was given", file, offset)
                try:
                    key = self._encryption.key(key_id)
                except Exception as error:
                    raise WrongKeyError(key_id, f"key() raised {error!r}", file, offset) from error
                size_bytes = len(key) if type(key) is bytes else None
                if size_bytes not in _KEY_BYTES:
                    given = type(key).__name__ if size_bytes is None else f"{size_bytes} bytes"
                    raise WrongKeyError(key_id, f"key() gave {given}, not 16, 24 or 32 bytes", file, offset)
                self._keys[key_id] = key
            return key


PLAIN = Envelopes()
"""Compresses and encrypts nothing, and opens what needs no key."""


class _Encoder:
    """Encodes blocks in envelopes. For one thread at a time, since it counts its nonces."""

    def __init__(self, source: RandomSource, compresses: bool, key_id: str = "", key: bytes = b"") -> None:
        self._source = source
        self._compress: Callable[[bytes], bytes] | None = None
        if compresses:
            import zstandard

            self._compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self._key_id = key_id
        self._key = key
        self._pid = -1
        self._salt = b""
        self._counter = 0

    def __call__(
        self, items: Sequence[bytes], salt: int, offset: int, ordinal: int, time_ns: int, holes: Sequence[int] = ()
    ) -> Encoded:
        return encode_block(items, salt, offset, ordinal, time_ns, holes, self._enclose)

    def _enclose(self, flags: int, count: int, lengths: bytes, bits: bytes, payload: bytes) -> tuple[int, bytes, bytes]:
        raw = content = lengths + payload
        if self._compress is not None:
            compressed = self._compress(raw)
            if len(compressed) + RAW_LENGTH_BYTES < len(raw):
                flags, content = flags | COMPRESSED, compressed
        if self._key_id:
            flags |= ENCRYPTED
            return (flags, *self._encrypt(content, flags, count, len(raw), bits))
        if flags & COMPRESSED:
            return flags, encode_envelope(Envelope(len(raw), bits)), content
        return flags, lengths + bits, payload

    def _encrypt(self, content: bytes, flags: int, count: int, raw_bytes: int, bits: bytes) -> tuple[bytes, bytes]:
        """The envelope, and the content encrypted."""
        if self._pid != self._source.getpid():  # at the beginning, and in a forked child
            self._pid = self._source.getpid()
            self._salt, self._counter = self._source.urandom(ENVELOPE_SALT_BYTES), 0
            self._cipher = _derive(self._key, self._salt)
        pieces = range(0, len(content), PIECE_BYTES)
        counter = self._counter
        self._counter += len(pieces)  # first: whatever becomes of it, they are not used again
        front = encode_envelope(Envelope(raw_bytes, bits, self._salt, counter, self._key_id))
        data = associated_data(flags, count, len(content), front)
        return front, b"".join(
            self._cipher.encrypt(_nonce(counter + number), content[at : at + PIECE_BYTES], data)
            for number, at in enumerate(pieces)
        )


def _derive(key: bytes, salt: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return AESGCM(HKDF(SHA256(), len(key), salt, _PURPOSE).derive(key))


def _nonce(counter: int) -> bytes:
    return counter.to_bytes(12, "big")


@contextmanager
def _needing(extra: str, who: str) -> Iterator[None]:
    """Raise ``MissingExtraError`` where a library of this extra is not there."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(who, extra) from error
