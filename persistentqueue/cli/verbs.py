"""The command ``persistentqueue`` with all its verbs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from . import maintenance_verbs, read_verbs, write_verbs
from .app import WELL, UsageError, app, fail
from .streams import FAILED, INTERRUPTED, came_of_an_interrupt

VERBS = (read_verbs, write_verbs, maintenance_verbs)
"""The modules whose import registers their verbs with the application."""


def run(arguments: Sequence[str]) -> int:
    """Run the verb that these arguments name, and return the exit status."""
    try:
        result: Any = app(list(arguments), prog_name="persistentqueue", standalone_mode=False)
    except SystemExit as ended:  # typer ends with 1, our status for problems, if the pipe on stdout has no reader
        return FAILED if ended.code else WELL
    except Exception as error:
        if isinstance(error, typer.Abort) or came_of_an_interrupt(error):
            return INTERRUPTED
        _tell(error, "--json" in arguments)
        return FAILED
    return result if isinstance(result, int) else WELL


def _tell(error: Exception, as_json: bool) -> None:
    """Report an error of the command line, or of printing a help text."""
    if not hasattr(error, "format_message"):  # only typer's errors of the command line have this method
        fail(error, as_json)
    elif told := error.format_message():  # empty if no verb was given: the help was printed instead
        fail(UsageError(told), as_json)
