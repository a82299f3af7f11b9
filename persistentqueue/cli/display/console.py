"""The terminal of the command line, as rich draws on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..streams import is_live

__all__ = ["Live", "bar", "console"]

_PIPED_WIDTH = 200


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error again, so that ``verbs.run`` handles it."""
        raise  # noqa: PLE0704 - rich calls this inside its except block


def console(stderr: bool = False) -> Console:
    """Return the console for pictures: as wide as its terminal, or 200 columns without one."""
    stream = sys.stderr if stderr else sys.stdout
    return _Console(
        stderr=stderr, highlight=False, markup=False, emoji=False, width=None if is_live(stream) else _PIPED_WIDTH
    )


@contextmanager
def bar(what: str) -> Iterator[Callable[[float, float | None], None]]:
    """Draw a progress bar on stderr; yield the function that takes the amount done so far, and the expected total."""
    progress = Progress(
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    )
    with progress:
        task = progress.add_task(what, total=None)
        yield lambda completed, total: progress.update(task, completed=completed, total=total)
