"""Objects in pickles and copies. An error keeps what a pickle can hold. An object that belongs to one process refuses:
a copy would close the files of the original."""

from __future__ import annotations

import pickle
from contextlib import _AsyncGeneratorContextManager, _GeneratorContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar

E = TypeVar("E", bound=Exception)
R = TypeVar("R")

IN_CHILD: Final = (
    "the queue belongs to the parent process: open it in the child after the parent closed it, or use connect() in both"
)
"""Why a queue is closed in a forked child, and what to do there."""
_PLAIN: Final = frozenset({str, bytes, int, float, bool, type(None)})
"""Types of attributes that ``pickle`` always accepts; they are not tested."""


def rebuilt(kind: type[E], *arguments: Any) -> E:
    """Return an error of this kind with these ``args``, made by the built-in class that it descends from."""
    # An error of two built-in kinds has the memory layout of one of them. Python refuses ``__new__`` of the other.
    built_in: Any = kind
    while built_in.__module__ != "builtins":
        built_in = built_in.__base__
    error: Any = built_in.__new__(kind, *arguments)
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


class Uncopyable:
    """A base class that refuses ``copy.copy``, ``copy.deepcopy`` and ``pickle`` with a ``TypeError`` and advice."""

    __slots__ = ()
    _elsewhere: ClassVar[str]
    """Advice for the error message: the action to take instead of a copy."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise ``TypeError``: ``copy`` and ``pickle`` call this method."""
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        raise TypeError(f"a {kind} cannot be copied, pickled or sent to another process: {self._elsewhere}")


class _Block(Uncopyable):
    """A block that is a transaction, and refuses to be copied."""

    _elsewhere = "begin another transaction() in each thread, and in the process that has opened the queue"
    _with: ClassVar[str] = "with"
    """Words that begin the block."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Raise ``AttributeError`` with the block to write, which is most likely missing around this call."""
            raise AttributeError(
                f"a transaction has no {name}: its block yields a session that has the calls: write '{self._with} … "
                f"as session:' around session.{name}",
                name=name,
                obj=None,
            )


class UncopyableBlock(_Block, _GeneratorContextManager[R]):
    """A ``with`` block that a generator makes, and that refuses to be copied."""


class UncopyableAsyncBlock(_Block, _AsyncGeneratorContextManager[R]):
    """An ``async with`` block that an asynchronous generator makes, and that refuses to be copied."""

    _with = "async with"
