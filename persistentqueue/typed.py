"""A session of a queue with a codec: what goes in is encoded, what comes out is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from .codecs import Codec, T, encode
from .session import Session


class TypedSession(Session[T]):
    """A session whose items are what the queue's codec makes of bytes; otherwise like any other.

    What cannot be encoded raises ``CodecError``, and is not in the session. What cannot be decoded raises it, once each
    time that it is dequeued, and is on hold like any other item: ``flush`` consumes it, ``rollback`` gives it back. The
    error has its bytes, the queue and the sequence; ``reject`` takes it for the item.
    """

    __slots__ = ("_codec",)

    def __init__(self, codec: Codec[T], *arguments: Any, **named: Any) -> None:
        self._codec = codec
        super().__init__(*arguments, **named)

    def enqueue(self, item: Any) -> None:
        """Buffer an item, encoded now; otherwise like a session of bytes. Raises ``CodecError`` as well."""
        data: Any = encode(self._codec, item, self._open_queue.store.directory)
        super().enqueue(data)

    def enqueue_cached(self, item: Any) -> bool:
        """Like ``enqueue``, unless it would write; otherwise like a session of bytes. Raises ``CodecError`` as well."""
        return super().enqueue_cached(encode(self._codec, item, self._open_queue.store.directory))

    def enqueue_many(self, items: Iterable[Any]) -> None:
        """Buffer items, in order; otherwise like a session of bytes. Raises ``CodecError`` as well: of a list or
        a tuple all are encoded before any is buffered."""
        path = self._open_queue.store.directory
        encoded: Iterator[Any] = (encode(self._codec, item, path) for item in items)
        super().enqueue_many(list(encoded) if isinstance(items, list | tuple) else encoded)

    def _matches(self, raw: bytes, item: object) -> bool:
        """Whether this is the item that its user means: what ``dequeue`` gave him, or the bytes that it could not."""
        if raw == item:
            return True
        with suppress(Exception):  # what cannot be decoded, or compared, is another one
            return bool(self._codec.decode(raw) == item)
        return False

    def dequeue(self, timeout: float | None = 0.0) -> T | None:
        """The first ready item, decoded; otherwise like a session of bytes. Raises ``CodecError`` as well.

        Where items may be None, ``dequeue_many(1)`` tells them from nothing.
        """
        data: Any = super().dequeue(timeout)
        if data is None:
            return None
        try:
            return self._codec.decode(data)
        except Exception as error:
            raise self.undecodable(self._codec, data, error) from error
        except BaseException:  # interrupted: the caller has not seen it
            self._give_back(1)
            raise

    def dequeue_many(self, max_items: int, timeout: float | None = 0.0) -> list[T]:
        """Up to ``max_items`` ready items, decoded, in order; otherwise like a session of bytes.

        Raises ``CodecError`` as well: what came before the item that cannot be decoded is returned first, so that it is
        raised by the next call, which holds that item alone.
        """
        return self._decoded(super().dequeue_many(max_items, timeout))

    def dequeue_cached(self, max_items: int) -> list[T]:
        """Like ``dequeue_many``, as far as nothing is read; otherwise like a session of bytes. Raises alike."""
        return self._decoded(super().dequeue_cached(max_items))

    def _decoded(self, data: list[Any]) -> list[T]:
        items: list[T] = []
        for each in data:
            try:
                items.append(self._codec.decode(each))
            except Exception as error:
                self._give_back(len(data) - max(len(items), 1))
                if items:
                    return items
                raise self.undecodable(self._codec, each, error) from error
            except BaseException:  # interrupted: the caller has seen none of them
                self._give_back(len(data))
                raise
        return items
