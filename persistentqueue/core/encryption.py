"""Compression and encryption of the bodies of blocks, and the reverse; ``block`` documents the format.

The writer compresses first, if that makes a block smaller, and then encrypts. Each library is optional. A writer
imports it at once when it is asked to use it. A reader imports it when it meets the first block that needs it.

A nonce is never used twice. Each ``Encode`` draws a salt of 128 random bits, and derives its own key from the queue's
key and the salt. It counts everything that it encrypts, also what is never written. It belongs to one writer, one
compaction, one producer or one codec, and a forked child draws another salt. (A virtual machine that is resumed twice
from one snapshot repeats random bits. Open queues with encryption after the resumption, not before.)

Threads: an ``Encode`` and an ``Enclose`` serve one thread at a time, ``Envelopes.open`` any number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Literal, Protocol

from ..errors import CorruptionError, MissingExtraError, WrongKeyError
from .block import (
    COMPRESSED,
    ENCRYPTED,
    ENVELOPE_BYTES_MAX,
    ENVELOPE_SALT_BYTES,
    ENVELOPED,
    KEY_ID_BYTES_MAX,
    MIXED,
    PIECE_BYTES,
    RAW_LENGTH_BYTES,
    TAG_BYTES,
    BlockHeader,
    Columns,
    Enclose,
    Encode,
    Encoded,
    Envelope,
    associated_data,
    decode_envelope,
    decode_items,
    encode_block,
    encode_envelope,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from zstandard import ZstdDecompressor

UNOPENED = (MissingExtraError, WrongKeyError)
"""Errors that say that a block cannot be opened for now. This is not damage."""
_LEVEL = 3
_WINDOW_BYTES_MAX = 8 * 1024 * 1024
_RATIO_MAX = 2**15
"""Upper bound on the ratio of compression: a zstd block has at least 4 bytes, and expands to at most 128 KiB."""
_KEY_BYTES = (16, 24, 32)
OF_BLOCKS, OF_ITEMS = b"persistentqueue block", b"persistentqueue item"
"""The uses for which keys are derived: the envelope of a block is never taken for that of an item."""
_CIPHERS_MAX = 64
"""Derived keys that are kept for reading: a derivation takes longer than the decryption of a small item."""


class RandomSource(Protocol):
    """The part of the operating system that the encoder needs: random salts, and the identity of this process.

    The disk implements it.
    """

    @property
    def getpid(self) -> Callable[[], int]:
        """The function that returns the id of this process."""

    @property
    def forks(self) -> Callable[[], int]:
        """The function that returns the number of forks from the first process to this one."""

    @property
    def urandom(self) -> Callable[[int], bytes]:
        """The function that returns a number of random bytes that are fit for cryptography."""


Compression = Literal["zstd"]
"""Method that compresses blocks."""


@dataclass(frozen=True)
class Encryption:
    """The encryption of a queue: AES-GCM, with the key that ``key`` returns for ``key_id``.

    New blocks are encrypted with the key of this id. Each block names the id of its key in the clear.

    ``key(key_id)`` returns 16, 24 or 32 random bytes. Never use the bytes of a password directly. The queue calls
    ``key`` once for each id in an opening: at once for this id, and for another id when it meets a block that names it.
    At opening, the queue also decrypts the first remaining block. So a wrong key for a known id is found before
    anything is written with it.

    To change keys, use a new id, and let ``key`` still return the keys of the old ids. One id never stands for two
    keys.

    Any thread may call ``key`` while the queue is read. ``key`` must not use the queue. An exception of ``key`` becomes
    a ``WrongKeyError``, and the next call of the queue calls ``key`` again.

    An encryption can be pickled if ``key`` is a function of a module, which pickle stores by its name. Any other
    callable may have keys in it, such as the method of a dictionary: then pickle raises ``TypeError``.

    Args:
        key_id: The id of the key to write with, 1 to 255 bytes of UTF-8.
        key: The function that returns the key for an id.

    Raises:
        TypeError: ``key_id`` is not text, or ``key`` is not callable.
        ValueError: ``key_id`` has a length outside of 1 to 255 bytes.

    Example::

        keys = {"2026": secrets.token_bytes(32)}
        queue = PersistentQueue("queues", "orders", encryption=Encryption("2026", keys.__getitem__))
    """

    key_id: str
    key: Callable[[str], bytes] = field(repr=False)
    """Not in the ``repr``, which ends in logs: it may be the key by mistake, or an object that shows its keys."""

    def __post_init__(self) -> None:
        key: object = self.key
        if not callable(key):
            kind = type(key).__name__
            raise TypeError(f"key must be a function that returns the key for an id, not an object of type {kind}")
        if type(self.key_id) is not str:
            raise TypeError(f"key_id must be text, not {self.key_id!r}")
        if not 0 < len(self.key_id.encode(errors="ignore")) <= KEY_ID_BYTES_MAX or _has_surrogates(self.key_id):
            raise ValueError(f"key_id must be 1 to {KEY_ID_BYTES_MAX} bytes of UTF-8, not {self.key_id!r}")

    def __reduce__(self) -> tuple[type[Encryption], tuple[str, Callable[[str], bytes]]]:
        """Return what makes the encryption again in another process. Raises ``TypeError`` if that could have keys."""
        if not isinstance(self.key, FunctionType):
            raise TypeError(
                f"the encryption with the key {self.key_id!r} cannot be pickled or copied: its key= is a "
                f"{type(self.key).__name__}, which may have keys in it: pass a function of a module, which finds the "
                "keys in each process"
            )
        return Encryption, (self.key_id, self.key)


def _has_surrogates(text: str) -> bool:
    """Return whether UTF-8 cannot encode the text."""
    return len(text.encode(errors="ignore").decode()) < len(text)


def check_kinds(compression: object, encryption: object) -> None:
    """Raise ``ValueError`` for an unknown compression, and ``TypeError`` for an encryption that is none."""
    if compression not in (None, "zstd"):
        raise ValueError(f'compression must be None or "zstd", got {compression!r}')
    if not isinstance(encryption, Encryption | None):
        raise TypeError(f"encryption must be None or an Encryption, not {encryption!r}")


class Envelopes:
    """The compression and encryption of one opened queue, or of one producer, and the opening of stored blocks.

    ``guard`` is held during each call of ``key``, so that it is called once for each id. Raises ``ValueError``,
    ``TypeError``, ``MissingExtraError`` and ``WrongKeyError``.
    """

    def __init__(
        self,
        compression: Compression | None = None,
        encryption: Encryption | None = None,
        guard: AbstractContextManager[object] | None = None,
        purpose: bytes = OF_BLOCKS,
    ) -> None:
        check_kinds(compression, encryption)
        self._purpose = purpose
        self._compresses = compression is not None
        self._encryption = encryption
        self._guard: AbstractContextManager[object] = guard if guard is not None else nullcontext()
        self._keys: dict[str, bytes] = {}
        self._ciphers: dict[tuple[str, bytes], AESGCM] = {}
        """Ciphers that no thread uses now, by the key and the salt that each was derived from."""
        self._idle: list[ZstdDecompressor] = []
        """Decompressors that no thread uses now; each serves one thread at a time."""
        self.most_bytes = 0
        """Upper bound on the bytes that a block has beyond a plain one, without the tags of further pieces."""
        if self._compresses:
            with _needing("compression", 'compression="zstd"'):
                import zstandard  # noqa: F401
        if encryption is not None:
            with _needing("encryption", "encryption"):
                import cryptography  # noqa: F401
            self._key(encryption.key_id)
            self.most_bytes = ENVELOPE_BYTES_MAX + len(encryption.key_id.encode())

    def encoder(self, source: RandomSource) -> Encode:
        """Return a function that encodes blocks for one writer, with its own nonces."""
        return encode_block if self._encryption is None and not self._compresses else self._encoder(source)

    def encloser(self, source: RandomSource) -> Enclose:
        """Return a function that puts bodies into envelopes for one writer, with its own nonces."""
        return self._encoder(source).enclose

    def _encoder(self, source: RandomSource) -> _Encoder:
        key_id = self._encryption.key_id if self._encryption is not None else ""
        return _Encoder(source, self._compresses, key_id, self._key(key_id) if key_id else b"", self._purpose)

    def open(self, body: bytes, header: BlockHeader, offset: int, file: str) -> list[bytes]:
        """Return the items of a block at ``offset`` of ``file``, whose body was checked.

        Raises ``MissingExtraError`` and ``WrongKeyError``. Raises ``CorruptionError`` if the content contradicts the
        envelope.
        """
        return decode_items(self.open_content(body, header, offset, file), header, offset, file)

    def open_content(self, body: bytes, header: BlockHeader, offset: int, file: str) -> bytes:
        """Return the lengths and payloads of such a block: of a plain one, the body itself. Raises like ``open``."""
        if not header.flags & ENVELOPED:
            return body
        envelope, at = decode_envelope(body, header, offset, file)
        content: bytes | memoryview = memoryview(body)[at:]
        if header.flags & ENCRYPTED:
            content = self._decrypt(content, body[:at], envelope, header, offset, file)
        if header.flags & COMPRESSED:
            content = self._decompress(content, envelope.raw_bytes, offset, file)
        if len(content) != envelope.raw_bytes:
            raise CorruptionError(file, offset, f"a content of {envelope.raw_bytes} bytes", f"{len(content)} bytes")
        return bytes(content)

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
        key, derived = self._key(envelope.key_id, file, offset), (envelope.key_id, envelope.salt)
        # Taken out while it is in use, so that one thread at a time has it.
        cipher = self._ciphers.pop(derived, None) or _derive(key, envelope.salt, self._purpose)
        data = associated_data(header.flags, header.count, content_bytes, front)
        try:
            opened = b"".join(
                cipher.decrypt(_nonce(envelope.counter + number), content[at : at + step], data)
                for number, at in enumerate(pieces)
            )
        except InvalidTag:
            problem = "its checksum is correct, so another key was given, or the block was changed on purpose"
            raise self._wrong_key(envelope.key_id, problem, file, offset) from None
        if len(self._ciphers) >= _CIPHERS_MAX:
            self._ciphers.clear()
        self._ciphers[derived] = cipher
        return opened

    def _decompress(self, content: bytes | memoryview, raw_bytes: int, offset: int, file: str) -> bytes:
        with _needing("compression", f"{file}: the block at offset {offset}, which is compressed,"):
            import zstandard

        try:
            decompressor = self._idle.pop()
        except IndexError:
            decompressor = zstandard.ZstdDecompressor()
        try:
            # The library allocates the size that the frame claims, whatever bound the caller gives.
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
        """Return the key of this id; ``file`` and ``offset`` name the block that needs it. Raises ``WrongKeyError``."""
        with self._guard:
            key = self._keys.get(key_id)
            if key is None:
                if self._encryption is None:
                    raise self._wrong_key(key_id, "no key was given", file, offset)
                try:
                    key = self._encryption.key(key_id)
                except Exception as error:
                    raise self._wrong_key(key_id, f"key() raised {error!r}", file, offset) from error
                size_bytes = len(key) if type(key) is bytes else None
                if size_bytes not in _KEY_BYTES:
                    given = type(key).__name__ if size_bytes is None else f"{size_bytes} bytes"
                    raise self._wrong_key(key_id, f"key() returned {given}, not 16, 24 or 32 bytes", file, offset)
                self._keys[key_id] = key
            return key

    def _wrong_key(self, key_id: str, problem: str, file: str | None, offset: int | None) -> WrongKeyError:
        if file is not None and self._purpose == OF_ITEMS:
            return WrongKeyError(key_id, f"an item needs it: {problem.replace('block', 'item')}")
        return WrongKeyError(key_id, problem, file, offset)


PLAIN = Envelopes()
"""Envelopes without compression and encryption. They open every block that needs no key."""


class _Encoder:
    """Encodes blocks in envelopes. It counts its nonces, so it serves one thread at a time."""

    def __init__(self, source: RandomSource, compresses: bool, key_id: str, key: bytes, purpose: bytes) -> None:
        self._source = source
        self._purpose = purpose
        self._compress = _compressor() if compresses else None
        self._key_id = key_id
        self._key = key
        self._process = -1, -1
        self._salt = b""
        self._counter = 0

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
        return encode_block(items, salt, offset, ordinal, time_ns, holes, each_bytes, self.enclose)

    def enclose(self, flags: int, count: int, lengths: bytes, bits: bytes, payload: bytes) -> tuple[int, bytes, bytes]:
        """Put a body into an envelope, as ``Enclose`` describes."""
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
        """Return the envelope, and the encrypted content."""
        process = self._source.getpid(), self._source.forks()  # an ancestor may have had the same id
        if self._process != process:  # at the first block, and in a forked child
            self._salt, self._counter = self._source.urandom(ENVELOPE_SALT_BYTES), 0
            self._cipher = _derive(self._key, self._salt, self._purpose)
            self._process = process  # last: after an interruption the next call draws another salt
        pieces = range(0, len(content), PIECE_BYTES)
        counter = self._counter
        self._counter += len(pieces)  # first, so that a failure below never uses these nonces again
        front = encode_envelope(Envelope(raw_bytes, bits, self._salt, counter, self._key_id))
        data = associated_data(flags, count, len(content), front)
        return front, b"".join(
            self._cipher.encrypt(_nonce(counter + number), content[at : at + PIECE_BYTES], data)
            for number, at in enumerate(pieces)
        )


def _compressor() -> Callable[[bytes], bytes]:
    """Return a function that compresses. It raises ``MemoryError`` for the error of zstd, whose memory is too short."""
    import zstandard

    compress = zstandard.ZstdCompressor(level=_LEVEL).compress

    def compressed(data: bytes) -> bytes:
        """Return the data, compressed."""
        try:
            return compress(data)
        except zstandard.ZstdError as error:
            raise MemoryError(f"zstd cannot compress {len(data)} bytes: {error}") from error

    return compressed


def _derive(key: bytes, salt: bytes, purpose: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return AESGCM(HKDF(SHA256(), len(key), salt, purpose).derive(key))


def _nonce(counter: int) -> bytes:
    return counter.to_bytes(12, "big")


@contextmanager
def _needing(extra: str, who: str) -> Iterator[None]:
    """Raise ``MissingExtraError`` if a library of this extra is not installed."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(who, extra) from error
