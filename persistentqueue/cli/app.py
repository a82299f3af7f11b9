"""What all verbs share: their arguments, how they answer and fail, and the exit status."""

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
"""The exit status: all is well; there are or were problems, or nothing to get; it did not go; Ctrl-C."""
STATUS = "Exit status: 0 all is well, 1 there are (or were) problems, or nothing to get, 2 it did not go, 130 Ctrl-C."
LOCK_SECONDS = 0.1
"""For how long who needs a lock waits for it: ``put`` and ``load`` of others have it for a moment."""
_PIPED_WIDTH = 200

own = partial(PersistentQueue, wipe=True)
"""Opens a queue with its lock. Whoever made it may want wiped what is given back."""
Parameters = ParamSpec("Parameters")
PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="The queue's directory, or the one it is named in.")]
NameArgument = Annotated[str | None, typer.Argument(metavar="NAME", help="The queue's name.")]
NameNeeded = Annotated[str, typer.Argument(metavar="NAME", help="The queue's name; . for PATH itself.")]
NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="The queues' names.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer, and fail, in JSON.")]
SubscriptionOption = Annotated[str, typer.Option("--subscription", metavar="NAME", help="As this consumer sees it.")]
KeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key", metavar="ID=FILE", help="A key of an encrypted queue, its bytes or these in hex; the first encrypts."
    ),
]
LockOption = Annotated[float, typer.Option("--lock-timeout", min=0, help="Seconds to wait for the lock.")]

TrustOption = Annotated[bool, typer.Option("--trust", help="Also if another user has prepared it, or may write to it.")]

app = typer.Typer(
    name="persistentqueue",
    help=f"Queues in directories: look at them, use them, mend them. {STATUS}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


class UsageError(Exception):
    """The command line asks for what does not go together."""


def verb(group: str, name: str | None = None) -> Callable[[Callable[Parameters, int]], Callable[Parameters, None]]:
    """A command of the application, which returns its exit status; what the library raises is told, and is status 2."""

    def decorate(function: Callable[Parameters, int]) -> Callable[Parameters, None]:
        """The function, as typer calls it; the application knows it."""

        @wraps(function)
        def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
            """Do it, and end with its exit status."""
            try:
                with _logging(bool(options.get("as_json"))):
                    status = function(*arguments, **options)
                sys.stdout.flush()
            except BrokenPipeError:
                drop(sys.stdout)
                status = FAILED
            except Exception as error:  # also what no verb expects: a traceback would have the status of PROBLEMS
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
    """What the library logs, as stderr has it."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        message = record.getMessage()
        if not self._as_json:
            return printable(message)
        return json.dumps({"log": {"level": record.levelname, "message": message}})


class _Telling(logging.Handler):
    """Writes to stderr, if stderr takes it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record."""
        tell(self.format(record))


@contextmanager
def _logging(as_json: bool) -> Iterator[None]:
    """Say on stderr what the library logs meanwhile: warnings and errors."""
    handler = _Telling()
    handler.setFormatter(_Lines(as_json))
    logger = logging.getLogger("persistentqueue")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _flowing(text: str) -> str:
    """A docstring with its paragraphs as one line each, for terminals of any width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def fail(error: BaseException, as_json: bool) -> None:
    """Say on stderr what went wrong."""
    kind, message = type(error).__name__, explanation(error)
    if as_json:
        tell(json.dumps({"error": {"type": kind, "message": message}}))  # in ASCII: stderr may know no more
    else:
        note(f"{kind}: {message}")


def explanation(error: BaseException) -> str:
    """What an error says to who sits at a command line."""
    if isinstance(error, WrongKeyError):
        return f"{error} (here: --key {error.key_id}=FILE)"
    if isinstance(error, CorruptionError):
        return f"{error} (persistentqueue repair keeps all that is intact, and dump writes it elsewhere)"
    if isinstance(error, UntrustedError):
        return f"{error} (here: --trust)"
    if not isinstance(error, QueueLockedError):
        return str(error)
    who = f"process {error.pid} on {error.host} has had it open since {error.since}" if error.pid else "somebody has it"
    return (
        f"{error.path}: {who}; this needs the queue's lock: end that, or, but for repair, wait with --lock-timeout "
        "(put, load and whatever only looks need no lock)"
    )


def encryption_of(keys: Sequence[str] | None) -> Encryption | None:
    """What these options say of keys; each file is read when its key is needed. Raises ``UsageError``."""
    files: dict[str, Path] = {}
    for each in keys or ():
        key_id, _, file = each.partition("=")
        if not key_id or not file:
            raise UsageError(f"--key {each}: expected ID=FILE")
        files[key_id] = Path(file)

    def key(key_id: str) -> bytes:
        """The key in the file that was given for this id. Raises ``UsageError``, which says nothing of the bytes."""
        try:
            data = files[key_id].read_bytes()
            return data if len(data) in {16, 24, 32} else bytes.fromhex(data.decode())
        except OSError as error:
            raise UsageError(f"{files[key_id]}: {error.strerror}") from None
        except ValueError:  # which would tell of them
            raise UsageError(f"{files[key_id]}: neither 16, 24 or 32 bytes, nor these in hex") from None

    return Encryption(next(iter(files)), key) if files else None


def answer(document: Any) -> None:
    """Write a JSON document to stdout, on a line of its own."""
    write((json.dumps(document, ensure_ascii=False, default=str) + "\n").encode(errors="backslashreplace"))


def say(text: str) -> None:
    """Write a line to stdout."""
    write(f"{printable(text)}\n".encode(sys.stdout.encoding or "utf-8", errors="backslashreplace"))


def write(data: bytes) -> None:
    """Write to stdout, as it is. Raises ``BrokenPipeError`` where nobody reads it."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def note(text: str) -> None:
    """Write a line to stderr: what is no answer."""
    tell(printable(text))


def is_live(stream: Any) -> bool:
    """Whether somebody looks at it who sees it change."""
    return bool(stream.isatty())


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let ``verb`` know of it, like of any other."""
        raise  # noqa: PLE0704 - it is called where the error is handled


def console(stderr: bool = False) -> Console:
    """Where tables are drawn: as wide as they are where no terminal is."""
    stream = sys.stderr if stderr else sys.stdout
    return _Console(
        stderr=stderr, highlight=False, markup=False, emoji=False, width=None if is_live(stream) else _PIPED_WIDTH
    )


def show(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """Draw a table of which the first ``left`` columns, and the last, are text, and the others numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False, show_header=any(headings))
    for at, heading in enumerate(headings):
        is_text = at < left or at == len(headings) - 1
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    console().print(table)


@contextmanager
def progress(what: str, total: float | None, quiet: bool = False) -> Iterator[Callable[[float], None]]:
    """A bar on stderr, if that is a terminal; yields what is called with how far it is."""
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
