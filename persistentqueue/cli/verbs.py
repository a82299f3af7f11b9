"""The command ``persistentqueue`` with all its verbs, and its completion by shells."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from persistentqueue import MissingExtraError, __version__

from . import maintenance_verbs, read_verbs, write_verbs  # noqa: F401 - their import declares the verbs
from .app import STATUS, explanation, reported
from .output import answer, logged, note, write_text
from .parser import (
    COMMON,
    HELP,
    JSON,
    PROGRAM,
    SET_UP,
    VERBS,
    VERSION,
    UsageError,
    command_help,
    parameter,
    split,
    verb,
    verb_named,
)
from .streams import FAILED, INTERRUPTED, WELL, came_of_an_interrupt, drop, flush_whole, tell, written
from .workers import verbs as worker_verbs  # noqa: F401 - its import declares the verbs

ABOUT = f"Inspect, use and repair persistent queues. {STATUS}"
QUEUE_NAMES = {
    "bash": r"""
_persistentqueue_names() {
  local word log name
  for word in "${COMP_WORDS[@]:2}"; do
    word=${word/#\~/$HOME}
    [[ -d $word ]] || continue
    for log in "$word"/*/log; do
      name=${log%/log}
      name=${name##*/}
      [[ -d $log && $name =~ ^[A-Za-z0-9_.-]+$ && $name == "$1"* ]] && printf '%s\n' "$name"
    done
    return
  done
}
""",
    "zsh": r"""
_persistentqueue_names() {
  local word
  local -a names
  for word in "${words[@]:1}"; do
    word=${~${(Q)word}}
    [[ -d $word ]] || continue
    names=("$word"/*/log(N/:h:t))
    compadd -a names
    return
  done
}
""",
    "fish": r"""
function _persistentqueue_names
  for word in (commandline -opc)[3..-1]
    set -l parent (string replace -r '^~' $HOME -- $word)
    test -d "$parent"; or continue
    for log in $parent/*/log
      string replace -r '.*/([^/]+)/log$' '$1' -- $log
    end
    return
  end
end
""",
}
"""For each shell, a function that names the queues in the first directory of the command line."""


def run(arguments: Sequence[str]) -> int:
    """Run the verb that these arguments name, and return the exit status."""
    before, behind, as_json = split(arguments)
    values: Mapping[str, Any] = {}
    try:
        call = _call(before, behind, as_json)
        values = call.keywords
        with logged(as_json):
            status = call()
        with written("stdout"):
            flush_whole(sys.stdout)
    except BrokenPipeError:
        drop(sys.stdout)
        return FAILED
    except Exception as error:  # also unexpected ones: Python ends with 1, as PROBLEMS, after a traceback
        if came_of_an_interrupt(error):
            return INTERRUPTED
        _report(reported(error), values, as_json)
        return FAILED
    return status


def _call(before: Sequence[str], behind: Sequence[str], as_json: bool) -> partial[int]:
    """Return the call that the words before and behind ``--`` ask for. Raises ``UsageError``."""
    if as_json and not before:
        raise UsageError(f"a command is missing. {PROGRAM} --help lists all.")
    first, *words = before or ["--help"]
    if first in HELP.names:
        return partial(_tell, command_help(ABOUT), WELL if before else FAILED)
    if first in VERSION.names:
        return partial(_tell, f"{PROGRAM} {__version__}\n")
    found = verb_named(first)
    if any(name in words for name in HELP.names):
        return partial(_tell, found.help_text())
    return partial(found.function, **found.values(words, behind) | {JSON.key: as_json})


def _tell(text: str, status: int = WELL) -> int:
    write_text(text)
    return status


def _report(error: Exception, values: Mapping[str, Any], as_json: bool) -> None:
    """Report an error of a verb that got these values on stderr."""
    kind, message = type(error).__name__, explanation(error, values)
    if as_json:
        tell(json.dumps({"error": {"type": kind, "message": message}}))  # ASCII: stderr may encode nothing else
    else:
        note(f"{kind}: {message}")


@verb(SET_UP, "completion", parameter("shell", choices=tuple(QUEUE_NAMES), help="The shell that is to complete words."))
def completion(shell: str, as_json: bool) -> int:
    """Print a script by which a shell completes commands, options, paths and the names of queues.

    It needs the extra cli; the script itself runs no Python. For bash, add this line to ~/.bashrc, and for zsh, with
    zsh in place of bash, to ~/.zshrc behind compinit: eval "$(persistentqueue completion bash)"

    For fish, run once: persistentqueue completion fish > ~/.config/fish/completions/persistentqueue.fish

    Disk: nothing is changed. Lock: not needed.
    """
    try:
        import shtab  # noqa: PLC0415 - the optional dependency
    except ModuleNotFoundError:
        raise MissingExtraError("completion", "cli") from None
    function = {"bash": "_persistentqueue_names", "zsh": "_persistentqueue_names", "fish": "(_persistentqueue_names)"}
    complete = {"file": shtab.FILE, "directory": shtab.DIRECTORY, "queue": {**function, "preamble": QUEUE_NAMES}}
    parser = argparse.ArgumentParser(PROGRAM, add_help=False)
    commands = parser.add_subparsers()
    for each in COMMON:
        each.add_to(parser)
    for found in VERBS.values():
        verb_parser = commands.add_parser(found.name, help=found.summary)
        for each in found.parameters:
            action = each.add_to(verb_parser)
            if each.completes:
                action.complete = complete[each.completes]  # type: ignore[attr-defined] # shtab reads it
    script = shtab.complete(parser, shell)
    if as_json:
        answer({"shell": shell, "script": script})
    else:
        write_text(f"{script}\n")
    return WELL
