"""The one logger of the package, ``persistentqueue``, and what is said there at which level.

- ``INFO``: the report of an opening that had something to recover.
- ``WARNING``: what a crash has left that somebody may want to know: a transaction that was in doubt, a torn tail, what
  a ``sync=False`` queue lost; maintenance that fails, once for each cause; a publication that can never fit.
- ``ERROR``: damage, each once, with file and offset: a block or a header that cannot be read, a log that cannot, or
  that was cut, a file that is moved aside, a publication that does not check out; and a queue that is broken since a
  sync failed.

Nothing else is said, so that a queue that is well is silent. Whatever is raised as an error is raised all the same. No
handler is added: in a program that configures no logging, Python prints warnings and errors, and only these, to
``stderr``, and damage is not to be overlooked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import CorruptionError, MemoryShortageError

LOGGER = logging.getLogger("persistentqueue")


@contextmanager
def telling() -> Iterator[None]:
    """Log the damage that ends what is done here; whoever began it hears of it as well."""
    try:
        yield
    except CorruptionError as error:
        LOGGER.error("%s", error)  # noqa: TRY400 - the traceback is for whoever catches it
        raise


class Damage:
    """What was found damaged since a queue was opened. For any thread, without the mutex: to log may take its time."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], object] = {}

    def __len__(self) -> int:
        return len(self._found)

    def tell(self, error: CorruptionError | MemoryShortageError) -> None:
        """Log it, unless it was: others meet the same damage, one for each subscription, and a compaction."""
        first = object()
        if self._found.setdefault((error.file, error.offset), first) is first:
            LOGGER.error("%s", error)
