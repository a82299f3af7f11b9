"""The common part of the queues of ``aio`` until they are open, since their constructors open nothing; and their
errors when they are not, or in another event loop."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from persistentqueue import ClosedError
from persistentqueue.options import Options
from persistentqueue.pickling import IN_CHILD
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


def other_loop(what: str) -> RuntimeError:
    """Return the error of a call in another event loop than that of an object; ``what`` says to which one it is
    bound."""
    advice = "open, use and close it in one asyncio.run()"
    return RuntimeError(f"{what}: {advice}; if its loop has ended, drop the object, which frees the lock of the queue")


def closed(path: str) -> ClosedError:
    """Return the error of a call of a queue that is closed, or that a task is closing."""
    return ClosedError(f"{path}: the queue is closed: open it again")


def in_child(path: str) -> ClosedError:
    """Return the error of a call in a forked child."""
    return ClosedError(f"{path}: {IN_CHILD}")


def not_open(path: str) -> ClosedError:
    """Return the error of a call that needs an open queue."""
    return ClosedError(f"{path}: the queue is not open: open it by async with or await queue.open()")
