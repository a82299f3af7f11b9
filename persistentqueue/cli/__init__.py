"""The command line: ``persistentqueue``, or ``python -m persistentqueue``.

No other package is needed. The extra ``persistentqueue[cli]`` adds rich, for ``top`` and for progress bars, and shtab,
which makes the completion for shells. Only ``display.console`` and ``display.screen`` import rich, and only when a
terminal or a picture needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .display.report import report_html
from .streams import INTERRUPTED, Interrupts, finish, ready

__all__ = ["main", "report_html"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        arguments: The words behind the command's name. With None, the default, they are those of ``sys.argv``; the
            standard streams and signals are then prepared as for a process of its own.

    Returns:
        0 if the verb succeeded; 1 if it found problems, or no item; 2 if it failed; 130 if it was interrupted. If
        SIGTERM or SIGHUP has interrupted it, the process ends by that signal.
    """
    if arguments is not None:
        return _run(list(arguments))
    interrupts = Interrupts()
    ready()
    from . import verbs  # noqa: F401, PLC0415 - slow, so it runs while an interrupt still ends the process at once

    status = INTERRUPTED
    try:
        with interrupts.raised():
            status = _run(sys.argv[1:])
    except KeyboardInterrupt:
        interrupts.end()
        status = INTERRUPTED
    status = finish(interrupts.status(status))
    interrupts.obey()
    return status


def _run(arguments: list[str]) -> int:
    from .verbs import run  # noqa: PLC0415 - only a process of the command line needs the verbs

    try:
        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
