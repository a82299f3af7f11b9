"""Codecs: the conversion between the objects of a typed queue and the bytes that the queue stores.

A codec is any object with ``encode(item) -> bytes`` and ``decode(data) -> item``. Any number of threads may call both
at once. A queue does not store its codec: pass the codec at every opening. A later opening may use another codec, and
``BYTES`` fits every queue.

``TEXT`` and ``JSON`` decode untrusted data safely. So does ``MessagePack``, which also checks types. ``UNSAFE_PICKLE``
does not: unpickling runs any code that the data contains. A queue unpickles only if it is opened with
``UNSAFE_PICKLE``.

Example::

    from persistentqueue import PersistentQueue, codecs

    with PersistentQueue("queues", "orders", codec=codecs.JSON) as queue, queue.session() as session:
        session.enqueue({"id": 7})
        session.flush()
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
    """Type of the items of a queue: bytes, unless its codec says otherwise."""
else:
    from typing import TypeVar

    T = TypeVar("T")

C = TypeVar("C")


class Codec(Protocol[C]):
    """The interface of a codec. Any object with these two methods is a codec.

    A queue calls both methods in the thread of its caller. Several threads may call them at once.
    """

    def encode(self, item: C, /) -> bytes:
        """Return the item as bytes.

        Args:
            item: An item of the type that this codec accepts.

        Returns:
            The bytes to store. An object of another type than ``bytes`` is an error.

        Raises:
            Exception: The item cannot be encoded. The caller of the queue gets a ``CodecError`` with this cause.
        """
        ...

    def decode(self, data: bytes, /) -> C:
        """Return the item that these bytes encode.

        Args:
            data: The bytes that ``encode`` has returned, possibly in another process or version.

        Returns:
            The item.

        Raises:
            Exception: The bytes cannot be decoded. The caller of the queue gets a ``CodecError`` with this cause.
        """
        ...


class _Named:
    """A codec that is shown by its public name, as in the signature of a constructor."""

    name = ""

    def __repr__(self) -> str:
        return f"codecs.{self.name}"


class _Bytes(_Named):
    """Codec that leaves bytes unchanged."""

    name = "BYTES"

    def encode(self, item: bytes, /) -> bytes:
        return item

    def decode(self, data: bytes, /) -> bytes:
        return data


class _Text(_Named):
    """Codec for text, as UTF-8."""

    name = "TEXT"

    def encode(self, item: str, /) -> bytes:
        return item.encode()

    def decode(self, data: bytes, /) -> str:
        return data.decode()


class _Json(_Named):
    """Codec for JSON values, as UTF-8. A tuple comes back as a list, and the keys of a dictionary as text."""

    name = "JSON"

    def encode(self, item: Any, /) -> bytes:
        return json.dumps(item, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def decode(self, data: bytes, /) -> Any:
        return json.loads(data)


class _UnsafePickle(_Named):
    """Codec for every object that can be pickled."""

    name = "UNSAFE_PICKLE"

    def encode(self, item: Any, /) -> bytes:
        return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)

    def decode(self, data: bytes, /) -> Any:
        return pickle.loads(data)


class MessagePack(Generic[C]):
    """Codec for MessagePack, by msgspec: any value that MessagePack can hold, or items of one type.

    Items of one type are checked when they are decoded. Any thread may use the codec.

    Args:
        type: The type of the items: a ``msgspec.Struct``, a dataclass, a ``TypedDict``, ``list[int]``, and so on.
            Default: any value.

    Raises:
        MissingExtraError: msgspec is not installed (the extra ``persistentqueue[msgpack]``).

    Example::

        queue = PersistentQueue("queues", "orders", codec=MessagePack(Order))
    """

    @overload
    def __init__(self: MessagePack[Any]) -> None: ...

    @overload
    def __init__(self, type: type[C]) -> None: ...

    def __init__(self, type: Any = Any) -> None:  # noqa: A002 - the name that msgspec uses
        try:
            import msgspec  # noqa: PLC0415 - an optional package
        except ImportError as missing:
            raise MissingExtraError("MessagePack", "msgpack") from missing
        self._encode = msgspec.msgpack.encode
        self._decoder = msgspec.msgpack.Decoder(type)

    def encode(self, item: C, /) -> bytes:
        """Return the item in MessagePack.

        Args:
            item: An item of the type of this codec.

        Returns:
            The bytes to store.

        Raises:
            Exception: msgspec cannot encode the item. The caller of the queue gets a ``CodecError``.
        """
        return self._encode(item)

    def decode(self, data: bytes, /) -> C:
        """Return the item that these bytes encode, after a check of its type.

        Args:
            data: Bytes in MessagePack.

        Returns:
            The item, of the type of this codec.

        Raises:
            Exception: The bytes are not MessagePack, or the item has another type. The caller of the queue gets a
                ``CodecError``.
        """
        item: C = self._decoder.decode(data)
        return item


BYTES: Final[Codec[bytes]] = _Bytes()
"""Codec that leaves bytes unchanged; the default of every queue."""
TEXT: Final = _Text()
"""Codec for text, as UTF-8."""
JSON: Final = _Json()
"""Codec for JSON values, as UTF-8. A tuple comes back as a list, the keys of a dictionary as text; NaN is refused."""
UNSAFE_PICKLE: Final = _UnsafePickle()
"""Codec for every object that can be pickled. UNSAFE for data of others: unpickling runs any code in the data."""


def checked_codec(codec: Codec[C]) -> Codec[C]:
    """Return the codec if it is valid.

    Args:
        codec: An object with ``encode`` and ``decode``, not a class.

    Returns:
        The same object.

    Raises:
        TypeError: The object lacks one of the methods, or is a class.
    """
    is_codec = callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))
    if not is_codec or isinstance(codec, type):
        raise TypeError(
            f"codec must be an object with encode and decode, such as persistentqueue.codecs.JSON, not {codec!r}"
        )
    return codec


def encode(codec: Codec[C], item: C, path: str | None = None) -> bytes:
    """Return the item as bytes, for the queue at ``path``.

    Args:
        codec: The codec of the queue.
        item: The item to encode.
        path: The directory of the queue, for the error only. Default: unknown.

    Returns:
        The bytes to store.

    Raises:
        CodecError: The codec raised an exception, or returned an object of another type than ``bytes``.
    """
    try:
        data = codec.encode(item)
    except Exception as error:
        raise CodecError("encode", codec, item, error, path) from error
    if type(data) is not bytes:
        problem = TypeError(f"encode must return bytes, not {type(data).__name__}")
        raise CodecError("encode", codec, item, problem, path)
    return data


def decode(codec: Codec[C], data: bytes, path: str | None = None, sequence: int | None = None) -> C:
    """Return the item that these bytes of the queue at ``path`` encode.

    Args:
        codec: The codec of the queue.
        data: The bytes of the item.
        path: The directory of the queue, for the error only. Default: unknown.
        sequence: The sequence of the item, for the error only. Default: unknown.

    Returns:
        The item.

    Raises:
        CodecError: The codec raised an exception.
    """
    try:
        return codec.decode(data)
    except Exception as error:
        raise CodecError("decode", codec, data, error, path, sequence) from error


def decode_each(codec: Codec[C], batches: Iterator[tuple[int, list[bytes]]], path: str) -> Iterator[C]:
    """Return an iterator over the decoded items of all batches, in order.

    Args:
        codec: The codec of the queue.
        batches: Pairs of the sequence of a first item and the bytes of consecutive items from there on.
        path: The directory of the queue, for the error only.

    Returns:
        An iterator over the items. Its ``next`` raises ``CodecError`` for an item that cannot be decoded. The iteration
        may continue after that item.
    """
    if codec is BYTES:
        plain: Any = chain.from_iterable(batch for _, batch in batches)
        return cast(Iterator[C], plain)
    numbered = chain.from_iterable(enumerate(batch, first) for first, batch in batches)
    return starmap(lambda sequence, data: decode(codec, data, path, sequence), numbered)
