"""The command line: ``persistentqueue``, or ``python -m persistentqueue``, with the extra ``persistentqueue[cli]``.

The modules:

- ``bench``: the measurement of the verb ``bench``.
- ``files``: output files that the user names.
- ``formatting``: sizes, times and items as text and as JSON.
- ``streams``: the standard streams, and Ctrl-C.
- ``style``: the style sheet of the page of ``report``.
- ``summary``: the facts about a queue, and the findings drawn from them.
- ``app``: options, output and error handling that all verbs share.
- ``display``: charts as numbers (``charts``), as SVG (``svg``) and as text (``screen``); the page of ``report``; the
  live view of ``top``, and the changes between two of its looks (``watch``).
- ``read_verbs``, ``write_verbs``, ``maintenance_verbs``: the verbs; ``verbs``: the command with all of them.

Only ``app``, ``display.screen``, ``display.top`` and the modules with verbs need typer and rich. ``report_html`` needs
neither.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from persistentqueue import __version__

from .display.report import report_html
from .streams import FAILED, INTERRUPTED, Interrupts, finish, ready, tell

__all__ = ["main", "report_html"]

HINT = "persistentqueue: the command line needs typer and rich: pip install 'persistentqueue[cli]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        arguments: The words behind the command's name. ``--version`` alone prints the version. With None, the default,
            they are those of ``sys.argv``; the standard streams and SIGINT are then prepared as for a process of its
            own.

    Returns:
        0 if the verb succeeded; 1 if it found problems, or no item; 2 if it failed; 130 if it was interrupted.
    """
    if arguments is not None:
        return _run(list(arguments))
    interrupts = Interrupts()
    ready()
    _import()  # slow, so it runs while an interrupt still ends the process at once
    status = INTERRUPTED
    try:
        with interrupts.raised():
            status = _run(sys.argv[1:])
    except KeyboardInterrupt:
        interrupts.end()
        status = INTERRUPTED
    return finish(interrupts.status(status))


def _import() -> None:
    """Import the verbs; do nothing if typer or rich is missing."""
    with suppress(ModuleNotFoundError):
        from . import verbs  # noqa: F401, PLC0415 - the optional dependency


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"persistentqueue {__version__}")
        return 0
    if arguments[:1] == ["--json"] and arguments[1:]:  # an option of the verb, which may also stand before it
        arguments = [arguments[1], "--json", *arguments[2:]]
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
