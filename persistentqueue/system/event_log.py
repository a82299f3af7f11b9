"""The logger of the package, ``persistentqueue``, and the events that it reports at each level.

- ``INFO``: the report of an opening that had something to recover.
- ``WARNING``: effects of a crash that may interest the user: a transaction that was in doubt, a torn tail, the loss of
  a ``sync=False`` queue. Also maintenance that fails, once for each cause, and a publication that can never fit.
  Also a session that was dropped after some of its flushes had failed.
- ``ERROR``: damage, each once, with file and offset: a block, a header or a log that cannot be read, or a log that was
  cut. Also a file that is set aside, a publication that does not check out, and a queue that is broken since a sync
  failed. Also a callback of a ticket that would have ended the thread that commits.

Nothing else is logged, so a healthy queue is silent. An error is raised whether it is logged or not. The package adds
no handler. If a program configures no logging, Python prints warnings and errors to ``stderr``, and only these, so that
damage is not overlooked.
"""

from __future__ import annotations

import logging

from ..errors import CorruptionError, MemoryShortageError

LOGGER = logging.getLogger("persistentqueue")


class Damage:
    """The damage that was found since a queue was opened.

    For any thread, without the mutex, since logging may take long.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], object] = {}

    def __len__(self) -> int:
        return len(self._found)

    def tell(self, error: CorruptionError | MemoryShortageError) -> None:
        """Log the damage, unless it was logged already.

        Several readers may meet the same damage: each subscription, and a compaction.
        """
        first = object()
        if self._found.setdefault((error.file, error.offset), first) is first:
            LOGGER.error("%s", error)
