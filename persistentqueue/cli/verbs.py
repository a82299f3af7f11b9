"""The command ``persistentqueue``, with all its verbs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from . import reading, upkeep, writing
from .app import FAILED, INTERRUPTED, WELL, UsageError, app, fail

VERBS = (reading, writing, upkeep)
"""The rooms whose import brings their verbs into the application."""


def run(arguments: Sequence[str]) -> int:
    """Do what these arguments say; the exit status."""
    try:
        result: Any = app(list(arguments), prog_name="persistentqueue", standalone_mode=False)
    except typer.Abort:  # Ctrl-C
        return INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # what is wrong with the command line has that
            raise
        told = error.format_message()
        if told:  # else it was the help that somebody asked for, without a verb
            fail(UsageError(told), "--json" in arguments)
        return FAILED
    return result if isinstance(result, int) else WELL
