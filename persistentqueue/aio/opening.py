"""The common part of the queues of ``aio`` until they are open: their constructors open nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from persistentqueue import ClosedError
from persistentqueue.system.disk import StrPath, abspath

from ..faces.refusals import refuse_retries

Q = TypeVar("Q")


def prepare(make: Callable[..., Q], path: StrPath, *arguments: Any, **settings: Any) -> Callable[[], Q]:
    """Return the call that opens a queue later, in a thread. The working directory may change before.

    Raises ``ValueError`` if the settings count deliveries.
    """
    refuse_retries(settings, "asyncio")
    if settings.get("data_path") is not None:
        settings["data_path"] = abspath(settings["data_path"])
    return partial(make, abspath(path), *arguments, **settings)


def not_open() -> ClosedError:
    """Return the error of a call that needs an open queue."""
    return ClosedError("the queue is not open: open it by async with or await queue.open()")
