"""The codec of a ``Queue`` by default: JSON, with errors that name the other codecs."""

from __future__ import annotations

from typing import Any, Final

from persistentqueue import codecs


class _Json:
    """The JSON codec, with error messages that name the other codecs."""

    def __repr__(self) -> str:
        return repr(codecs.JSON)

    def decode(self, data: bytes) -> Any:
        """Return the item that these bytes are in JSON. Raises ``ValueError``, which names the other codecs."""
        try:
            return codecs.JSON.decode(data)
        except ValueError as error:
            raise ValueError(
                f"{error}: open the queue with the codec of the program that wrote the item, such as "
                "codec=codecs.UNSAFE_PICKLE for items that persist-queue pickled"
            ) from error

    def encode(self, item: Any) -> bytes:
        """Return the item in JSON. Raises ``TypeError``, which names the other codecs."""
        try:
            return codecs.JSON.encode(item)
        except (TypeError, ValueError) as error:
            others = "codecs.MessagePack(), codecs.UNSAFE_PICKLE, or one of your own"
            raise TypeError(f"{error}: to store other items, open the queue with codec={others}") from error


JSON: Final = _Json()
