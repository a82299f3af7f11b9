"""The common part of the queues of ``aio`` until they are open: their constructors open nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from persistentqueue import ClosedError
from persistentqueue.options import Options
from persistentqueue.system.disk import StrPath, abspath

Q = TypeVar("Q")


def prepare(make: Callable[..., Q], options: Options, path: StrPath, *arguments: Any, **named: Any) -> Callable[[], Q]:
    """Return the call that opens a queue later, in a thread, in the context of this caller.

    The working directory may change before.
    """
    if options.data_path is not None:
        options = replace(options, data_path=abspath(options.data_path))
    opening = partial(make, abspath(path), *arguments, options=options, **named)
    return partial(copy_context().run, opening)


def not_open(path: str) -> ClosedError:
    """Return the error of a call that needs an open queue."""
    return ClosedError(f"{path}: the queue is not open: open it by async with or await queue.open()")
