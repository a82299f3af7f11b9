"""The command line: ``persistentqueue``, or ``python -m persistentqueue``, with the extra ``persistentqueue[cli]``.

The rooms: ``words`` (sizes, times, items), ``streams`` (the standard streams, and Ctrl-C), ``files`` (what the user
names), ``style`` · ``pictures`` (what is drawn, as numbers), ``bench`` · ``svg``, ``look`` (what there is to see of a
queue, what it means) · ``watch`` (what happens between two looks), ``report`` · ``app`` (what all verbs share),
``screen`` · ``top`` (a live view) · ``reading``, ``writing``, ``upkeep`` (the verbs) · ``verbs`` (all of them). From
``app`` on they need typer and rich, but not before: ``report_html`` needs neither.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from .display.report import report_html
from .streams import FAILED, INTERRUPTED, Interrupts, finish, ready, tell

__all__ = ["main", "report_html"]

HINT = "persistentqueue: the command line needs typer and rich: pip install 'persistentqueue[cli]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says. The exit status: 0 all is well, 1 there are or were problems, or there was nothing
    to get, 2 it did not go, 130 it was interrupted."""
    if arguments is not None:
        return _run(list(arguments))
    interrupts = Interrupts()
    ready()
    _import()  # the slow part: an interrupt ends it at once
    status = INTERRUPTED
    try:
        with interrupts.raised():
            status = _run(sys.argv[1:])
    except KeyboardInterrupt:
        interrupts.end()
        status = INTERRUPTED
    return finish(interrupts.status(status))


def _import() -> None:
    """Import the verbs, if typer and rich are there."""
    with suppress(ModuleNotFoundError):
        from . import verbs  # noqa: F401, PLC0415 - the optional dependency


def _run(arguments: list[str]) -> int:
    try:
        from .verbs import run  # noqa: PLC0415 - the optional dependency

        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in {"typer", "rich"}:
            raise
        tell(HINT)
        return FAILED
