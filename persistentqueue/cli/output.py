"""The output of the verbs: text, tables and JSON on stdout; notes, log messages and progress bars on stderr."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import get_ident
from typing import Any
from unicodedata import combining, east_asian_width

from persistentqueue.drawing.text import printable

from .streams import flush_whole, is_live, stdout, takes_bytes, tell, write_whole, written

_GAP = "  "
_LEAST_WIDTH = 20


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
    """Writes log records to stderr, and ignores a stderr that cannot be written.

    The package most likely raises an exception that it logs in the thread of the verb, and the verb then reports it.
    So the line of this exception waits for the next record, or for the end of the verb.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread: int | None = get_ident()
        self._waiting: logging.LogRecord | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line for a record, or let it wait."""
        self.end()
        is_error = isinstance(record.args, tuple) and isinstance(next(iter(record.args), None), Exception)
        if is_error and record.thread == self._thread:
            self._waiting = record
        else:
            tell(self.format(record))

    def wait_no_more(self) -> None:
        """Write each line at once from now on."""
        self._thread = None
        self.end()

    def end(self, error: BaseException | None = None) -> None:
        """Write the line that waits, unless it is that of the error, which the command reports itself."""
        record, self._waiting = self._waiting, None
        if record is not None and (error is None or record.getMessage() != str(error)):
            tell(self.format(record))


@contextmanager
def logged(as_json: bool) -> Iterator[None]:
    """Copy to stderr the warnings and errors that the package logs inside the block, but for the one that it raises."""
    handler = _Telling()
    handler.setFormatter(_Lines(as_json))
    logger = logging.getLogger("persistentqueue")
    logger.addHandler(handler)
    try:
        yield
    except Exception as error:
        handler.end(error)
        raise
    finally:
        handler.end()
        logger.removeHandler(handler)


def log_at_once() -> None:
    """Let no line of the log wait from now on: this verb runs for long."""
    for handler in logging.getLogger("persistentqueue").handlers:
        if isinstance(handler, _Telling):
            handler.wait_no_more()


def answer(document: Any, done: str = "") -> None:
    """Write a JSON document to stdout, on one line; ``done`` is that of ``write``."""
    write((json.dumps(document, ensure_ascii=False, default=str) + "\n").encode(errors="backslashreplace"), done)


def say(text: str, done: str = "") -> None:
    """Write a line to stdout; ``done`` is that of ``write``."""
    write(_encoded(f"{printable(text)}\n"), done)


def tell_done(deed: str, what: str, document: dict[str, Any], as_json: bool) -> None:
    """Write what the command has done, as a line or as a JSON document. An error of stdout tells it, too."""
    done = f"{deed} {what}"
    if as_json:
        answer(document, done)
    else:
        say(f"{deed}: {what}", done)


def write(data: bytes, done: str = "") -> None:
    """Write bytes to stdout, unchanged, and flush. Raises ``OSError``, as ``written`` does.

    ``done`` says what the command has done before, and would do once more if it was repeated: an error tells it.
    """
    with written("stdout", done):
        file = stdout()
        write_whole(file, data)
        flush_whole(file)


def write_text(text: str) -> None:
    """Write text of the program's own to stdout, with its line ends."""
    write(_encoded(text))


def note(text: str) -> None:
    """Write a line to stderr that is not part of the result."""
    tell(printable(text))


def show(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """Write a table. The first ``left`` columns and the last one hold text; the others hold numbers.

    On a terminal, the last column is folded to the width that is left for it, and the headings are bold.
    """
    body = [list(map(printable, row)) for row in rows]
    widths = [max(map(_width, column)) for column in zip(headings, *body, strict=True)][:-1]
    margin = sum(widths) + len(_GAP) * len(widths)
    room = max(shutil.get_terminal_size().columns - margin, _LEAST_WIDTH) if is_live(sys.stdout) else sys.maxsize
    lines = []
    for row in body:
        pieces = _folded(row[-1], room)
        lines += [_line(row[:-1], widths, left, pieces[0]), *(" " * margin + piece for piece in pieces[1:])]
    if any(headings):
        lines.insert(0, _bold(_line(headings[:-1], widths, left, headings[-1])))
    write_text("".join(f"{line}\n" for line in lines))


def _line(cells: Sequence[str], widths: Sequence[int], left: int, last: str) -> str:
    """Return a line of a table: texts begin at the left of their column, and numbers end at its right."""
    padded = []
    for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        space = " " * (width - _width(cell))
        padded.append(cell + space if at < left else space + cell)
    return _GAP.join([*padded, last]).rstrip()


def _width(text: str) -> int:
    """Return how many columns of a terminal the text takes."""
    return sum(0 if combining(each) else 2 if east_asian_width(each) in {"W", "F"} else 1 for each in text)


def _folded(text: str, room: int) -> list[str]:
    """Return the text in pieces, each of at most ``room`` columns of a terminal."""
    pieces, width = [""], 0
    for each in text:
        if width + _width(each) > room:
            pieces.append("")
            width = 0
        pieces[-1] += each
        width += _width(each)
    return pieces


def _bold(line: str) -> str:
    """Return the line in bold type for a terminal that wants it."""
    is_plain = not is_live(sys.stdout) or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return line if is_plain else f"\x1b[1m{line}\x1b[0m"


def _encoded(text: str) -> bytes:
    encoding = sys.stdout.encoding if takes_bytes(sys.stdout) else None
    return text.encode(encoding or "utf-8", errors="backslashreplace")


@contextmanager
def progress(what: str, quiet: bool = False) -> Iterator[Callable[[float, float | None], None]]:
    """Draw a progress bar on stderr, if that is a terminal. Without rich there is no bar.

    Yields the function that takes the amount done so far and the expected total: a ``progress`` of the package.
    """
    bar = _rich_bar() if not quiet and is_live(sys.stderr) else None
    if bar is None:
        yield lambda _completed, _total: None
        return
    with bar(what) as at:
        yield at


def _rich_bar() -> Callable[[str], AbstractContextManager[Callable[[float, float | None], None]]] | None:
    """Return the bar that rich draws; None if rich is not installed."""
    try:
        from .display.console import bar  # noqa: PLC0415 - the optional dependency
    except ModuleNotFoundError:
        return None
    return bar
