"""Objects that belong to one process, or to one place in it: a copy would close the files of the original."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import _GeneratorContextManager
from functools import wraps
from typing import Any, ClassVar, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Uncopyable:
    """Refuse ``copy.copy``, ``copy.deepcopy`` and ``pickle`` with a ``TypeError`` that says what to do instead."""

    __slots__ = ()
    _elsewhere: ClassVar[str]
    """What to do instead of taking a copy."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise ``TypeError``: ``copy`` and ``pickle`` ask this method."""
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        raise TypeError(f"a {kind} cannot be copied, pickled or sent to another process: {self._elsewhere}")


class UncopyableBlock(Uncopyable, _GeneratorContextManager[R]):
    """A ``with`` block that a generator makes, and that refuses to be copied."""

    _elsewhere = "begin another transaction() in each thread, and in the process that has opened the queue"


def uncopyable_block(make: Callable[P, Iterator[R]]) -> Callable[P, UncopyableBlock[R]]:
    """Do what ``contextlib.contextmanager`` does, for a block that refuses to be copied."""

    @wraps(make)
    def block(*arguments: P.args, **named: P.kwargs) -> UncopyableBlock[R]:
        return UncopyableBlock(make, arguments, named)  # type: ignore[arg-type]  # as contextmanager itself does

    return block
