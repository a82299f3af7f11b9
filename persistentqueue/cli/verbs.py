"""The command ``persistentqueue``, with all its verbs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from . import maintenance_verbs, read_verbs, write_verbs
from .app import WELL, UsageError, app, fail
from .streams import FAILED, INTERRUPTED, came_of_an_interrupt

VERBS = (read_verbs, write_verbs, maintenance_verbs)
"""The rooms whose import brings their verbs into the application."""


def run(arguments: Sequence[str]) -> int:
    """Do what these arguments say; the exit status."""
    try:
        result: Any = app(list(arguments), prog_name="persistentqueue", standalone_mode=False)
    except SystemExit as ended:  # typer's status for a pipe without a reader is 1
        return FAILED if ended.code else WELL
    except Exception as error:
        if isinstance(error, typer.Abort) or came_of_an_interrupt(error):
            return INTERRUPTED
        _tell(error, "--json" in arguments)
        return FAILED
    return result if isinstance(result, int) else WELL


def _tell(error: Exception, as_json: bool) -> None:
    """Say what is wrong with the command line, or with writing a help text."""
    if not hasattr(error, "format_message"):  # an error of the command line has that
        fail(error, as_json)
    elif told := error.format_message():  # else it was the help that somebody asked for, without a verb
        fail(UsageError(told), as_json)
