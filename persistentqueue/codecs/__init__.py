"""Codecs: the conversion between the objects of a typed queue and the bytes that the queue stores.

A codec is any object with ``encode(item) -> bytes`` and ``decode(data) -> item``. Any number of threads may call both
at once. A queue does not store its codec: pass the codec at every opening. A later opening may use another codec, and
``BYTES`` fits every queue.

``Enclosed`` compresses and encrypts the items of another codec. The keys stay in the process that has the codec.

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
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, cast, overload

from ..core.encryption import OF_ITEMS, UNOPENED, Compression, Encryption, Envelopes
from ..errors import CodecError, ItemTooLargeError, MissingExtraError
from ..system.disk import current_disk
from ..system.path_errors import faults
from .enclosed_item import decode_item, encode_item

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ..core.block import Enclose

    T = TypeVar("T", default=bytes)
    """Type of the items of a queue: bytes, unless its codec says otherwise."""
else:
    from typing import TypeVar

    T = TypeVar("T")

__all__ = [
    "Codec",
    "BYTES",
    "TEXT",
    "JSON",
    "UNSAFE_PICKLE",
    "MessagePack",
    "Enclosed",
    "checked_codec",
    "encode",
    "decode",
    "decode_each",
]
C = TypeVar("C")
ENCLOSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Default of ``max_item_bytes`` of ``Enclosed``: the longest item in bytes."""
OTHER_CODEC: Final = "read it with the codec that encoded it, or with codecs.BYTES"
"""Advice about an item that cannot be decoded and that no session holds."""
ON_HOLD: Final = (
    "open the queue with the codec that encoded it, such as codecs.UNSAFE_PICKLE for pickled items; or consume it by "
    "flush(), or by task_done() of a queue.Queue; with dead letters, reject(error, retry=False) moves it there"
)
"""Advice about an item that cannot be decoded and that a session holds."""
_OTHERS: Final = (
    "to store other items, open the queue with codec=codecs.MessagePack(), codecs.UNSAFE_PICKLE, or one of your own"
)
"""Advice about an item that JSON or text cannot hold."""
_NO_MEMORY: Final = "this process lacked memory, and the item may be intact: free some"


class Codec(Protocol[C]):
    """The interface of a codec. Any object with these two methods is a codec.

    A queue calls both methods in the thread of its caller, and a queue of ``aio`` may use threads of its own. Several
    threads may call them at once.

    If ``decode`` returns None for some items, as ``JSON`` does for ``null``, take them by ``dequeue_many``. For
    ``dequeue``, None is an empty queue, too.
    """

    def encode(self, item: C, /) -> bytes:
        """Return the item as bytes.

        Args:
            item: An item of the type that this codec accepts.

        Returns:
            The bytes to store. An object of another type than ``bytes`` is an error.

        Raises:
            Exception: The item cannot be encoded. The caller of the queue gets a ``CodecError`` with this cause.
            WrongKeyError, MissingExtraError: A key or a package is missing. The caller gets this error.
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
            WrongKeyError, MissingExtraError: A key or a package is missing. The item goes back, since another process
                can decode it. No delivery attempt is counted, and the caller gets this error.
        """
        ...


class BoundCodec(ABC):
    """The base of a codec that depends on files, which may have changed since it was made."""

    @abstractmethod
    def need_current(self, directory: str | None = None) -> None:
        """Raise an error if the codec cannot be used any more, or not for the queue in this directory.

        Each opening with it calls this.
        """


class _Named:
    """A codec that is shown by its public name, as in the signature of a constructor.

    A copy of it, also by a pickle, is the codec itself: sessions recognise ``BYTES``.
    """

    name = ""

    def __repr__(self) -> str:
        return f"codecs.{self.name}"

    def __reduce__(self) -> str:
        return self.name


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
        if not isinstance(item, str):
            raise TypeError(f"expected text, not {type(item).__name__}: {_OTHERS}")
        return item.encode()

    def decode(self, data: bytes, /) -> str:
        return data.decode()


class _Json(_Named):
    """Codec for JSON values, as UTF-8. A tuple comes back as a list, and the keys of a dictionary as text."""

    name = "JSON"

    def encode(self, item: Any, /) -> bytes:
        try:
            return json.dumps(item, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{error}: {_OTHERS}") from error

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

    Items of one type are checked when they are decoded. Any thread may use the codec. It can be pickled if its type can
    be: if that is the type of a module.

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
        self._type = type
        self._encode = msgspec.msgpack.encode
        self._decoder = msgspec.msgpack.Decoder(type)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes the codec again in another process."""
        return MessagePack, (self._type,)

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


class Enclosed(BoundCodec, Generic[C]):
    """Codec that compresses and encrypts the items of another codec, in the process that uses it.

    The queue stores the envelope of each item, and its owner needs neither the keys nor a library. So the keys can stay
    in the processes that enqueue and dequeue. The ``compression`` and ``encryption`` of the queue itself are for the
    blocks in the files of its owner. Small items compress less well one by one than in a block.

    With ``encryption``, only encrypted items are decoded, so each item that comes out was made by a process with the
    key. Its place is not protected: see "Enclosed items" in the file format. To change keys, see ``Encryption``: new
    items get the key of ``key_id``, and each item names its own.

    A missing key is not a bad item. ``dequeue`` then raises ``WrongKeyError``, and the item goes back to its place. The
    queue counts no delivery attempt for it. ``MissingExtraError`` has the same effect. Bytes that are no envelope, or a
    damaged one, raise ``CodecError``.

    The codec can be pickled if its ``Encryption`` can be: if ``key`` is a function of a module. The pickle has no keys.

    Any thread may use the codec. No nonce is used twice, also after a fork.

    Args:
        codec: Converts items to bytes and back. Default ``BYTES``.
        compression: ``"zstd"`` compresses each item that becomes smaller. Default None. Needs the extra
            ``compression``.
        encryption: The ``Encryption`` of all items. Default None. Needs the extra ``encryption``. Its key for new items
            is asked for at once.
        max_item_bytes: Length in bytes of the longest item, without its envelope, at least 0. Default 64 MiB. A longer
            one raises ``CodecError``, before memory is allocated for it.

    Raises:
        TypeError, ValueError: An argument has the wrong type or range.
        MissingExtraError, WrongKeyError: A package is not installed, or ``key`` does not return the key of ``key_id``.

    Example::

        queue = connect("queues", "letters", codec=Enclosed(JSON, encryption=Encryption("2026", find_key)))
    """

    @overload
    def __init__(
        self: Enclosed[bytes],
        *,
        compression: Compression | None = None,
        encryption: Encryption | None = None,
        max_item_bytes: int = ENCLOSED_BYTES_MAX,
    ) -> None: ...

    @overload
    def __init__(
        self,
        codec: Codec[C],
        *,
        compression: Compression | None = None,
        encryption: Encryption | None = None,
        max_item_bytes: int = ENCLOSED_BYTES_MAX,
    ) -> None: ...

    def __init__(
        self,
        codec: Any = None,
        *,
        compression: Compression | None = None,
        encryption: Encryption | None = None,
        max_item_bytes: int = ENCLOSED_BYTES_MAX,
    ) -> None:
        self._codec: Codec[C] = cast(Any, BYTES) if codec is None else checked_codec(codec)
        if type(max_item_bytes) is not int:
            raise TypeError(f"max_item_bytes must be a whole number, not {max_item_bytes!r}")
        if max_item_bytes < 0:
            raise ValueError(f"max_item_bytes must be at least 0, got {max_item_bytes}")
        self._compression, self._encryption, self._most_bytes = compression, encryption, max_item_bytes
        self._envelopes = Envelopes(compression, encryption, purpose=OF_ITEMS)
        self._source = current_disk()
        self._idle: list[Enclose] = []
        """Writers of envelopes that no thread uses now. Each has its own nonces, and serves one thread at a time."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes the codec again in another process. Keys and nonces stay in this one."""
        return _enclosed, (self._codec, self._compression, self._encryption, self._most_bytes)

    def need_current(self, directory: str | None = None) -> None:
        """Raise the error of an inner codec that cannot be used, or not for this queue. Each opening calls this."""
        checked_codec(self._codec, directory)

    def __repr__(self) -> str:
        key = "" if self._encryption is None else f", encryption with key {self._encryption.key_id!r}"
        return f"<codecs.Enclosed({self._codec!r}), compression {self._compression!r}{key}>"

    def encode(self, item: C, /) -> bytes:
        """Return the item in its envelope.

        Args:
            item: An item that the inner codec accepts.

        Returns:
            The bytes to store. They differ each time that an item is encrypted.

        Raises:
            Exception: The inner codec cannot encode the item.
            ItemTooLargeError: The item exceeds ``max_item_bytes``.

        The caller of the queue gets a ``CodecError``.
        """
        data = self._codec.encode(item)
        if type(data) is not bytes:
            raise TypeError(f"encode must return bytes, not {type(data).__name__}")
        if len(data) > self._most_bytes:
            raise ItemTooLargeError(f"an item of {len(data)} bytes exceeds max_item_bytes={self._most_bytes}: split it")
        try:
            enclose = self._idle.pop()
        except IndexError:
            enclose = self._envelopes.encloser(self._source)
        envelope = encode_item(data, enclose)
        self._idle.append(enclose)
        return envelope

    def decode(self, data: bytes, /) -> C:
        """Return the item in this envelope.

        Args:
            data: The bytes that ``encode`` has returned, possibly in another process.

        Returns:
            The item.

        Raises:
            CorruptionError: The bytes are no envelope, or a damaged one. Or the item is not encrypted, and this codec
                has an ``encryption``.
            ItemTooLargeError: The item exceeds ``max_item_bytes``.
            Exception: The inner codec cannot decode the item.
            WrongKeyError: The key of the item is missing, or another one. Or the item was changed on purpose.
            MissingExtraError: A package is not installed.

        The caller of the queue gets a ``CodecError``, except for the last two.
        """
        must_be_encrypted = self._encryption is not None
        raw = decode_item(data, self._envelopes, self._most_bytes, must_be_encrypted=must_be_encrypted)
        return self._codec.decode(raw)


def _enclosed(
    codec: Codec[C], compression: Compression | None, encryption: Encryption | None, max_item_bytes: int
) -> Enclosed[C]:
    """Return the codec that was pickled with these arguments."""
    return Enclosed(codec, compression=compression, encryption=encryption, max_item_bytes=max_item_bytes)


BYTES: Final[Codec[bytes]] = _Bytes()
"""Codec that leaves bytes unchanged; the default of every queue."""
TEXT: Final = _Text()
"""Codec for text, as UTF-8."""
JSON: Final = _Json()
"""Codec for JSON values, as UTF-8. A tuple comes back as a list, the keys of a dictionary as text; NaN is refused."""
UNSAFE_PICKLE: Final = _UnsafePickle()
"""Codec for every object that can be pickled. UNSAFE for data of others: unpickling runs any code in the data."""


def checked_codec(codec: Codec[C], directory: str | None = None) -> Codec[C]:
    """Return the codec of an opening if it is valid.

    Args:
        codec: An object with ``encode`` and ``decode``, not a class.
        directory: The directory of the queue. Default: unknown.

    Returns:
        The same object.

    Raises:
        TypeError: The object lacks one of the methods, or is a class.
        SchemaMismatchError: A ``RowCodec`` has a schema that its queue does not have any more, or is that of another
            queue with other schemas.
    """
    is_codec = callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))
    if not is_codec or isinstance(codec, type):
        raise TypeError(
            f"codec must be an object with encode and decode, such as persistentqueue.codecs.JSON, not {codec!r}"
        )
    if isinstance(codec, BoundCodec):
        codec.need_current(directory)
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
        WrongKeyError, MissingExtraError: The codec raised this error.
        TimeoutError: It comes from the codec, or from a signal handler: it has no number, and says nothing of the item.
    """
    try:
        data = codec.encode(item)
    except UNOPENED:
        raise
    except faults(Exception) as error:
        raise CodecError("encode", codec, item, error, path) from error
    if type(data) is not bytes:
        problem = TypeError(f"encode must return bytes, not {type(data).__name__}")
        raise CodecError("encode", codec, item, problem, path)
    return data


def encode_plain(codec: Codec[Any], item: object) -> bytes:
    """Return the item as bytes without an envelope, which differs each time that it is encrypted.

    Raises what the codec raises.
    """
    while isinstance(codec, Enclosed):
        codec = codec._codec
    return codec.encode(item)


def advice_on_hold(error: Exception) -> str:
    """Return the advice about an item that a session holds, and that the codec could not decode because of ``error``.

    Args:
        error: The error of the codec.

    Returns:
        The advice. After a lack of memory, it does not lead to a dead letter of an intact item.
    """
    if isinstance(error, MemoryError):
        return (
            f"{_NO_MEMORY}, and give it back for a later try by rollback(), or where attempts are counted by "
            "reject(error, retry=True)"
        )
    return ON_HOLD


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
        WrongKeyError, MissingExtraError: The codec raised this error.
        TimeoutError: It comes from the codec, or from a signal handler: it has no number, and says nothing of the item.
    """
    try:
        return codec.decode(data)
    except UNOPENED:
        raise
    except faults(Exception) as error:
        advice = f"{_NO_MEMORY}, then read it again" if isinstance(error, MemoryError) else OTHER_CODEC
        raise CodecError("decode", codec, data, error, path, sequence, advice) from error


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
