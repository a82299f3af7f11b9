"""The parts that all verbs share: options, output, error messages and exit statuses."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from persistentqueue import (
    CorruptionError,
    Encryption,
    PersistentQueue,
    QueueLockedError,
    UntrustedError,
    WrongKeyError,
)

from .formatting import printable
from .streams import FAILED, INTERRUPTED, came_of_an_interrupt, drop, tell

WELL, PROBLEMS = 0, 1
"""Exit statuses: 0 for success, 1 for problems or no item. ``FAILED``, 2, and ``INTERRUPTED``, 130, are in ``streams``.
"""
STATUS = "Exit status: 0 success, 1 problems found or no item, 2 the command failed, 130 interrupted by Ctrl-C."
LOCK_SECONDS = 0.1
"""Seconds to wait for a lock, by default: ``put`` and ``load`` of other processes hold it only for a moment."""
_PIPED_WIDTH = 200

own = partial(PersistentQueue, wipe=True)
"""Opens a queue with its lock. It wipes each file that it frees: the queue's maker may rely on that, and no verb knows.
"""
Parameters = ParamSpec("Parameters")
PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="A queue's directory, or the parent directory of queues.")
]
NameArgument = Annotated[
    str | None, typer.Argument(metavar="NAME", help="The queue's name; omit it if PATH is the queue.")
]
NameNeeded = Annotated[str, typer.Argument(metavar="NAME", help="The queue's name, or . if PATH is the queue.")]
NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="The queues' names; default: all queues in PATH.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result, and errors, as JSON.")]
SubscriptionOption = Annotated[
    str, typer.Option("--subscription", metavar="NAME", help="The subscription to read; default: the plain queue.")
]
KeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="ID=FILE",
        help="A key of an encrypted queue; FILE holds its bytes, raw or in hex. Repeatable: the first key encrypts.",
    ),
]
LockOption = Annotated[float, typer.Option("--lock-timeout", min=0, help="Seconds to wait for the lock.")]

TrustOption = Annotated[
    bool, typer.Option("--trust", help="Accept a queue that another user has prepared, or may write to.")
]

app = typer.Typer(
    name="persistentqueue",
    help=f"Inspect, use and repair persistent queues. {STATUS} --version prints the version.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


class UsageError(Exception):
    """A command line that is malformed, or whose arguments contradict each other."""


def verb(group: str, name: str | None = None) -> Callable[[Callable[Parameters, int]], Callable[Parameters, None]]:
    """Return a decorator that makes a function a command of the application.

    The function returns its exit status. If it raises, the error is reported on stderr, and the status is 2.
    """

    def decorate(function: Callable[Parameters, int]) -> Callable[Parameters, None]:
        """Register the function with the application, and return the form that typer calls."""

        @wraps(function)
        def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
            """Run the function; raise ``typer.Exit`` unless its status is 0."""
            try:
                with _logging(bool(options.get("as_json"))):
                    status = function(*arguments, **options)
                sys.stdout.flush()
            except BrokenPipeError:
                drop(sys.stdout)
                status = FAILED
            except Exception as error:  # also unexpected ones: Python ends with 1, as PROBLEMS, after a traceback
                if came_of_an_interrupt(error):
                    status = INTERRUPTED
                else:
                    fail(error, bool(options.get("as_json")))
                    status = FAILED
            if status:
                raise typer.Exit(status)

        run.__annotations__ = {**function.__annotations__, "return": None}
        app.command(name, help=_flowing(function.__doc__ or ""), rich_help_panel=group)(run)
        return run

    return decorate


class _Lines(logging.Formatter):
    """Formats log records of the package for stderr, as text or as JSON."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record."""
        message = record.getMessage()
        if not self._as_json:
            return printable(message)
        return json.dumps({"log": {"level": record.levelname, "message": message}})


class _Telling(logging.Handler):
    """Writes log records to stderr, and ignores a stderr that cannot be written."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line for a record."""
        tell(self.format(record))


@contextmanager
def _logging(as_json: bool) -> Iterator[None]:
    """Copy to stderr the warnings and errors that the package logs inside the block."""
    handler = _Telling()
    handler.setFormatter(_Lines(as_json))
    logger = logging.getLogger("persistentqueue")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _flowing(text: str) -> str:
    """Return a docstring with each paragraph on one line, so that a terminal of any width can wrap it."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def fail(error: BaseException, as_json: bool) -> None:
    """Report an error on stderr."""
    kind, message = type(error).__name__, explanation(error)
    if as_json:
        tell(json.dumps({"error": {"type": kind, "message": message}}))  # ASCII: stderr may encode nothing else
    else:
        note(f"{kind}: {message}")


def explanation(error: BaseException) -> str:
    """Return the error's message, with the option or the command that helps."""
    if isinstance(error, WrongKeyError):
        return f"{error} (on the command line: --key {error.key_id}=FILE)"
    if isinstance(error, CorruptionError):
        return f"{error} (persistentqueue repair keeps what is intact; persistentqueue dump writes it to a file)"
    if isinstance(error, UntrustedError):
        return f"{error} (on the command line: --trust)"
    if not isinstance(error, QueueLockedError):
        return str(error)
    who = f"process {error.pid} on {error.host} opened it at {error.since}" if error.pid else "a process has it open"
    return (
        f"{error.path}: {who}; this command needs the queue's lock: end that process, or wait for it with "
        "--lock-timeout, which repair does not have (put, load and the commands that only read need no lock)"
    )


def encryption_of(keys: Sequence[str] | None) -> Encryption | None:
    """Return the encryption for the ``--key`` options; None if there are none. Raises ``UsageError``.

    A key file is read when its key is needed.
    """
    files: dict[str, Path] = {}
    for each in keys or ():
        key_id, _, file = each.partition("=")
        if not key_id or not file:
            raise UsageError(f"--key {each}: expected ID=FILE")
        files[key_id] = Path(file)

    def key(key_id: str) -> bytes:
        """Return the key from the file with this id. Raises ``UsageError``, which never shows the bytes."""
        try:
            data = files[key_id].read_bytes()
            return data if len(data) in {16, 24, 32} else bytes.fromhex(data.decode())
        except OSError as error:
            raise UsageError(f"{files[key_id]}: {error.strerror}") from None
        except ValueError:  # its message would show the bytes
            raise UsageError(f"{files[key_id]}: expected a key of 16, 24 or 32 bytes, raw or in hex") from None

    return Encryption(next(iter(files)), key) if files else None


def answer(document: Any) -> None:
    """Write a JSON document to stdout, on one line."""
    write((json.dumps(document, ensure_ascii=False, default=str) + "\n").encode(errors="backslashreplace"))


def say(text: str) -> None:
    """Write a line to stdout."""
    write(f"{printable(text)}\n".encode(sys.stdout.encoding or "utf-8", errors="backslashreplace"))


def write(data: bytes) -> None:
    """Write bytes to stdout, unchanged, and flush. Raises ``BrokenPipeError`` if the pipe has no reader."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def note(text: str) -> None:
    """Write a line to stderr that is not part of the result."""
    tell(printable(text))


def is_live(stream: Any) -> bool:
    """Return whether the stream is a terminal."""
    return bool(stream.isatty())


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error again, so that ``verb`` handles it."""
        raise  # noqa: PLE0704 - rich calls this inside its except block


def console(stderr: bool = False) -> Console:
    """Return the console that draws tables: as wide as its terminal, or 200 columns without one."""
    stream = sys.stderr if stderr else sys.stdout
    return _Console(
        stderr=stderr, highlight=False, markup=False, emoji=False, width=None if is_live(stream) else _PIPED_WIDTH
    )


def show(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """Draw a table. The first ``left`` columns and the last one hold text; the others hold numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False, show_header=any(headings))
    for at, heading in enumerate(headings):
        is_text = at < left or at == len(headings) - 1
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    console().print(table)


@contextmanager
def progress(what: str, total: float | None, quiet: bool = False) -> Iterator[Callable[[float], None]]:
    """Draw a progress bar on stderr, if that is a terminal; yield the function that takes the amount done so far."""
    if quiet or not is_live(sys.stderr):
        yield lambda _completed: None
        return
    bar = Progress(
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda completed: bar.update(task, completed=completed)
