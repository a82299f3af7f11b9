"""The class ``TypedSession``: a session of a queue with a codec. It encodes what goes in and decodes what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .codecs import Codec, T, encode
from .core.items import need_several
from .runtime.session_state import SessionParts, decode_held, rank_of
from .session import Session


class TypedSession(Session[T]):
    """A session that takes and returns the objects of the queue's codec, instead of bytes.

    An item that the codec cannot encode raises ``CodecError`` and is not in the session.

    An item that the codec cannot decode raises ``CodecError`` each time that it is dequeued. It is on hold like any
    other item: ``flush`` consumes it, and ``rollback`` releases it. The error names the bytes, the queue and the
    sequence, and ``reject`` takes the error in place of the item.

    An item for which the codec has no key, or no package, is released at once: another process may have it. The call
    raises ``WrongKeyError`` or ``MissingExtraError``. No delivery attempt is counted.

    Durability and threads: as ``Session`` describes.
    """

    __slots__ = ("_codec",)

    def __init__(self, _codec: Codec[T], _parts: SessionParts) -> None:
        self._codec = _codec
        super().__init__(_parts)

    def enqueue(self, item: Any) -> None:
        """Encode an item and buffer it until the next flush.

        Args:
            item: An object that the codec can encode. It is encoded at once.

        Raises:
            CodecError: If the codec cannot encode the item. The item is then not in the session.

        The errors of ``Session.enqueue`` can occur as well. Nothing is durable before ``flush`` returns. For one thread
        at a time.
        """
        data: Any = encode(self._codec, item, self._open_queue.directory)
        super().enqueue(data)

    def _enqueue_cached(self, item: Any) -> bool:
        """Encode an item and buffer it, as ``Session._enqueue_cached`` does. Raises its errors, and ``CodecError``."""
        return super()._enqueue_cached(encode(self._codec, item, self._open_queue.directory))

    def enqueue_many(self, items: Iterable[Any]) -> None:
        """Encode several items and buffer them, in order, until the next flush.

        Items of a list or a tuple are all encoded before any of them is buffered. Other iterables are read, encoded and
        buffered in chunks of 8,192 items.

        Args:
            items: An iterable of objects that the codec can encode. A set has no order of its own, as in
                ``Session.enqueue_many``. A mapping is refused: use ``enqueue`` if it is one item.

        Raises:
            CodecError: If the codec cannot encode an item. The chunk with that item is not buffered. Chunks before it
                stay in the session.

        The errors of ``Session.enqueue_many`` can occur as well. Nothing is durable before ``flush`` returns. For one
        thread at a time.
        """
        need_several(items)
        path = self._open_queue.directory
        encoded: Iterator[Any] = (encode(self._codec, item, path) for item in items)
        super().enqueue_many(list(encoded) if isinstance(items, list | tuple) else encoded)

    def _matches(self, raw: bytes, item: object) -> int:
        """Return how well ``item`` matches the stored bytes, or the item that the codec makes of them."""
        return rank_of(self._codec, raw, item)

    def dequeue(self, timeout: float | None = 0.0) -> T | None:
        """Hold the first ready item and return it decoded.

        If items may be None, call ``dequeue_many(1)``: its result tells such an item from no item.

        Args:
            timeout: Seconds to wait for an item, at least 0. The default 0 does not wait; None waits for ever.

        Returns:
            The decoded item; None if no item became ready within the timeout.

        Raises:
            CodecError: If the codec cannot decode the item. The item is on hold all the same.

        The errors of ``Session.dequeue`` can occur as well. The item stays on hold until ``flush`` consumes it durably,
        or ``rollback`` releases it. For one thread at a time.
        """
        data: Any = super().dequeue(timeout)
        return None if data is None else self._decoded([data])[0]

    def dequeue_many(self, max_items: int, timeout: float | None = 0.0) -> list[T]:
        """Hold up to ``max_items`` ready items and return them decoded, in order.

        If the codec cannot decode an item, the call returns the items before it. The next call then holds that item
        alone and raises its error.

        Args:
            max_items: Highest number of items to return, at least 0. With 0 the list is empty.
            timeout: Seconds to wait for the first item, at least 0. The default 0 does not wait; None waits for ever.

        Returns:
            The decoded items; an empty list if no item became ready within the timeout.

        Raises:
            CodecError: If the codec cannot decode the first item. That item is on hold all the same, and no other one.

        The errors of ``Session.dequeue_many`` can occur as well. The items stay on hold until ``flush`` consumes them
        durably, or ``rollback`` releases them. For one thread at a time.
        """
        return self._decoded(super().dequeue_many(max_items, timeout))

    def dequeue_cached(self, max_items: int) -> list[T]:
        """Hold up to ``max_items`` ready items that are in memory and return them decoded, in order.

        If the codec cannot decode an item, the call returns the items before it. The next call then holds that item
        alone and raises its error.

        Args:
            max_items: Highest number of items to return, at least 0.

        Returns:
            The decoded items. The list is empty if there is no ready item, or if the first ready item is not in memory.

        Raises:
            CodecError: If the codec cannot decode the first item. That item is on hold all the same, and no other one.

        The errors of ``Session.dequeue_cached`` can occur as well. The items stay on hold until ``flush`` consumes them
        durably, or ``rollback`` releases them. For one thread at a time.
        """
        return self._decoded(super().dequeue_cached(max_items))

    def _decoded(self, data: list[Any]) -> list[T]:
        return decode_held(self._codec, data, self._give_back, self._undecodable, self._return_unopened)
