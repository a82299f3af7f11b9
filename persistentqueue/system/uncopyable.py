"""Objects that cannot be copied: they belong to one process, and a copy would close the files of the original."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import _GeneratorContextManager
from functools import wraps
from typing import Any, ClassVar, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Uncopyable:
    """A base class that refuses ``copy.copy``, ``copy.deepcopy`` and ``pickle`` with a ``TypeError`` and advice."""

    __slots__ = ()
    _elsewhere: ClassVar[str]
    """Advice for the error message: the action to take instead of a copy."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise ``TypeError``: ``copy`` and ``pickle`` call this method."""
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        raise TypeError(f"a {kind} cannot be copied, pickled or sent to another process: {self._elsewhere}")


class UncopyableBlock(Uncopyable, _GeneratorContextManager[R]):
    """A ``with`` block that a generator makes, and that refuses to be copied."""

    _elsewhere = "begin another transaction() in each thread, and in the process that has opened the queue"


def uncopyable_block(make: Callable[P, Iterator[R]]) -> Callable[P, UncopyableBlock[R]]:
    """Decorate a generator like ``contextlib.contextmanager``; the block that it makes refuses to be copied."""

    @wraps(make)
    def block(*arguments: P.args, **named: P.kwargs) -> UncopyableBlock[R]:
        return UncopyableBlock(make, arguments, named)  # type: ignore[arg-type]  # as contextmanager itself does

    return block
