"""The command line: ``persistentqueue``, or ``python -m persistentqueue``, with the extra ``persistentqueue[cli]``.

The rooms: ``words`` (sizes, times, items), ``style`` · ``pictures`` (what is drawn, as numbers), ``bench`` · ``svg``,
``look`` (what there is to see of a queue, what it means) · ``watch`` (what happens between two looks), ``report`` ·
``app`` (what all verbs share), ``screen`` · ``top`` (a live view) · ``reading``, ``writing``, ``upkeep`` (the verbs) ·
``verbs`` (all of them). From ``app`` on they need typer and rich, but not before: ``report_html`` needs neither.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .report import report_html

__all__ = ["main", "report_html"]

HINT = "persistentqueue: the command line needs typer and rich: pip install 'persistentqueue[cli]'"
FAILED, INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says. The exit status: 0 all is well, 1 there are or were problems, or there was nothing
    to get, 2 it did not go, 130 it was interrupted."""
    try:
        from .verbs import run  # noqa: PLC0415 - the optional dependency

        return run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in {"typer", "rich"}:
            raise
        print(HINT, file=sys.stderr)
        return FAILED
