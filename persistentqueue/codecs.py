"""Codecs: what stands between the objects of a typed queue and its bytes.

A codec is any object with ``encode(item) -> bytes`` and ``decode(data) -> item``, for any number of threads at once. A
queue does not remember which it was opened with: a later opening may have another one, and ``BYTES`` fits all.

``TEXT`` and ``JSON`` are safe to decode whoever wrote the data; so is ``MessagePack``, which also checks types.
``UNSAFE_PICKLE`` is not: unpickling runs whatever code the data says. Nothing is unpickled unless a queue is opened so.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, cast, overload

from .errors import CodecError, MissingExtraError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=bytes)
    """What the items of a queue are: bytes, unless its codec says otherwise."""
else:
    from typing import TypeVar

    T = TypeVar("T")

C = TypeVar("C")


class Codec(Protocol[C]):
    """What a typed queue needs to know of its items."""

    def encode(self, item: C, /) -> bytes:
        """The bytes of the item. May raise anything: the caller hears a ``CodecError`` from it."""
        ...

    def decode(self, data: bytes, /) -> C:
        """The item of the bytes. May raise anything: the caller hears a ``CodecError`` from it."""
        ...


class _Bytes:
    """Bytes as they are."""

    def encode(self, item: bytes, /) -> bytes:
        return item

    def decode(self, data: bytes, /) -> bytes:
        return data


class _Text:
    """Text, as UTF-8."""

    def encode(self, item: str, /) -> bytes:
        return item.encode()

    def decode(self, data: bytes, /) -> str:
        return data.decode()


class _Json:
    """What JSON can say, as UTF-8. A tuple comes back as a list, and the keys of a dictionary as text."""

    def encode(self, item: Any, /) -> bytes:
        return json.dumps(item, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def decode(self, data: bytes, /) -> Any:
        return json.loads(data)


class _UnsafePickle:
    """Any object of Python's."""

    def encode(self, item: Any, /) -> bytes:
        return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)

    def decode(self, data: bytes, /) -> Any:
        return pickle.loads(data)


class MessagePack(Generic[C]):
    """MessagePack, by msgspec: what it can say, or items of one ``type``, which are checked when they are decoded.

    ``MessagePack(Order)`` takes a ``msgspec.Struct``, a dataclass, a ``TypedDict``, ``list[int]``, …. Raises
    ``MissingExtraError`` where msgspec is not installed.
    """

    @overload
    def __init__(self: MessagePack[Any]) -> None: ...

    @overload
    def __init__(self, type: type[C]) -> None: ...

    def __init__(self, type: Any = Any) -> None:  # noqa: A002 - what msgspec calls it
        try:
            import msgspec  # noqa: PLC0415 - an optional package
        except ImportError as missing:
            raise MissingExtraError("MessagePack", "msgpack") from missing
        self._encode = msgspec.msgpack.encode
        self._decoder = msgspec.msgpack.Decoder(type)

    def encode(self, item: C, /) -> bytes:
        """The item in MessagePack."""
        return self._encode(item)

    def decode(self, data: bytes, /) -> C:
        """The item, if it is of the type."""
        item: C = self._decoder.decode(data)
        return item


BYTES: Final[Codec[bytes]] = _Bytes()
"""Bytes as they are: what a queue has where nothing else is said."""
TEXT: Final = _Text()
"""Text, as UTF-8."""
JSON: Final = _Json()
"""What JSON can say. A tuple comes back as a list, the keys of a dictionary as text; NaN is refused."""
UNSAFE_PICKLE: Final = _UnsafePickle()
"""Any object that can be pickled. UNSAFE for data that you did not write yourself: it runs what the data says."""


def checked_codec(codec: Codec[C]) -> Codec[C]:
    """The codec, if it is one. Raises ``TypeError``."""
    is_codec = callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))
    if not is_codec or isinstance(codec, type):
        raise TypeError(
            f"codec must be an object with encode and decode, persistentqueue.codecs.JSON for instance, not {codec!r}"
        )
    return codec


def encode(codec: Codec[C], item: C, path: str | None = None) -> bytes:
    """Return the item as bytes, for the queue at ``path``. Raises ``CodecError``."""
    try:
        data = codec.encode(item)
    except Exception as error:
        raise CodecError("encode", codec, item, error, path) from error
    if type(data) is not bytes:
        problem = TypeError(f"encode must give bytes, not {type(data).__name__}")
        raise CodecError("encode", codec, item, problem, path)
    return data


def decode(codec: Codec[C], data: bytes, path: str | None = None, sequence: int | None = None) -> C:
    """Return the item of the bytes, which have this number in the queue at ``path``. Raises ``CodecError``."""
    try:
        return codec.decode(data)
    except Exception as error:
        raise CodecError("decode", codec, data, error, path, sequence) from error


def decode_each(codec: Codec[C], batches: Iterator[tuple[int, list[bytes]]], path: str) -> Iterator[C]:
    """Return the items of the bytes, in turn; each batch has the number of its first one.

    Raises ``CodecError`` in its turn, and goes on behind it.
    """
    if codec is BYTES:
        plain: Any = chain.from_iterable(batch for _, batch in batches)
        return cast(Iterator[C], plain)
    numbered = chain.from_iterable(enumerate(batch, first) for first, batch in batches)
    return starmap(lambda sequence, data: decode(codec, data, path, sequence), numbered)
