"""Errors on the wire between an owner and its workers: a name, a text and plain attributes."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .. import errors
from ..errors import PersistentQueueError
from ..pickling import rebuilt

_PLAIN = (str, int, float, bool, type(None))
_BUILTIN = frozenset({"TypeError", "ValueError", "OSError", "MemoryError", "OverflowError"})
"""Errors of Python itself that a call of a queue may raise."""
_OF_OSERROR = ("errno", "strerror", "filename")
_TEXT_CHARACTERS_MAX = 16 * 1024
"""Most characters of a text that is sent: a list of names in it may be longer than a message."""


def encode_error(error: BaseException) -> dict[str, Any]:
    """Return the error as a json: the name of its class, its text, and those attributes that are plain.

    A long text is cut in its middle. The text of an unknown class begins with its name.
    """
    found = dict(vars(error))
    if isinstance(error, OSError):  # its text is made of these, and Python keeps them apart
        found |= {name: value for name in _OF_OSERROR if (value := getattr(error, name)) is not None}
    attributes = {
        name: _shortened(value) if isinstance(value, str) else value
        for name, value in found.items()
        if isinstance(value, _PLAIN)
    }
    kind = _known_name(type(error))
    text = str(error) if kind is not None else f"{type(error).__name__}: {error}"
    return {"error": kind or "PersistentQueueError", "text": _shortened(text), "attributes": attributes}


def _shortened(text: str) -> str:
    """Return the text without its middle if it is too long: its end says what to do."""
    half = _TEXT_CHARACTERS_MAX // 2
    return text if len(text) <= _TEXT_CHARACTERS_MAX else f"{text[:half]} ... {text[-half:]}"


def _known_name(kind: type[BaseException]) -> str | None:
    """Return the name of the nearest class above that the other side knows; None if there is none."""
    return next((each.__name__ for each in kind.__mro__ if _class_of(each.__name__) is each), None)


def _class_of(name: str) -> type[Exception] | None:
    found = getattr(errors, name, None) or (name in _BUILTIN and getattr(builtins, name))
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def decode_error(fields: Mapping[str, Any]) -> Exception:
    """Return the error that ``encode_error`` has described. An unknown class becomes a ``PersistentQueueError``."""
    text, attributes = str(fields.get("text", "")), fields.get("attributes")
    kind = _class_of(str(fields.get("error", ""))) or PersistentQueueError
    error = rebuilt(kind, text)
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if not name.startswith("__"):
            with suppress(AttributeError, TypeError):
                setattr(error, name, value)
    return error
