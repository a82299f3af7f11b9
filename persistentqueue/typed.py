"""The class ``TypedSession``: a session of a queue with a codec. It encodes items that its caller enqueues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .codecs import Codec, T, encode
from .codecs.held_items import ranking
from .core.items import need_several
from .runtime.session_state import SessionParts
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

    __slots__ = ()

    _codec: Codec[T]

    def __init__(self, _codec: Codec[T], _parts: SessionParts) -> None:
        super().__init__(_parts)
        self._codec = _codec

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

    def _ranking(self, item: object) -> Callable[[bytes], int]:
        """Return a function that ranks stored bytes, and what the codec makes of them, as ``item``."""
        return ranking(self._codec, item)
