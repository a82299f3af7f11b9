"""The first moments of the command ``persistentqueue``: Ctrl-C ends it while the package is still being imported."""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from types import FrameType

_INTERRUPTED = 130
_SCRIPTS = {"persistentqueue", "persistentqueue-script.py"}
"""Names of the script that an installation makes of the command."""


def leave_on_interrupt() -> None:
    """Let SIGINT end the process with status 130 and no traceback, if the command line is being started.

    A process that only imports the package is left as it is, and so is one that ignores SIGINT. ``cli.main`` later
    installs the handler of the verb.
    """
    is_module = sys.argv[:1] == ["-m"] and _names_us(sys.orig_argv)
    is_command = is_module or os.path.basename(sys.argv[0] if sys.argv else "") in _SCRIPTS
    if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def _names_us(arguments: list[str]) -> bool:
    """Return whether the interpreter was started to run this package as a module."""
    package = __name__.partition(".")[0]
    return f"-m{package}" in arguments or ("-m", package) in pairwise(arguments)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)
