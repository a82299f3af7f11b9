"""Errors in pickles: they keep what a pickle can hold, and are made without their constructors. Pure functions."""

from __future__ import annotations

import pickle
from typing import Any, Final, TypeVar

E = TypeVar("E", bound=Exception)

_PLAIN: Final = frozenset({str, bytes, int, float, bool, type(None)})
"""Types of attributes that ``pickle`` always accepts; they are not tested."""


def rebuilt(kind: type[E], *arguments: Any) -> E:
    """Return an error of this kind with these ``args``, made by the built-in class that it descends from."""
    # An error of two built-in kinds has the memory layout of its first base. Python refuses ``__new__`` of the other.
    error: Any = (kind.__base__ or kind).__new__(kind, *arguments)
    built_in: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    built_in.__init__(error, *arguments)  # an ``OSError`` or ``ImportError`` keeps more than ``args``
    return error  # type: ignore[no-any-return]


def portable(value: object) -> object:
    """Return the value if it can be pickled, else its ``repr``."""
    if type(value) in _PLAIN:
        return value
    # Both calls run code of the caller. An error of that code must not hide the one that is reported.
    try:
        pickle.dumps(value)
    except Exception:
        try:
            return repr(value)
        except Exception:
            return f"a {type(value).__name__}"
    return value
