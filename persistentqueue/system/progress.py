"""The progress of a long call: a callable of the caller, or a bar on stderr, learns how far the call is.

A call that may take more than a second has a parameter ``progress``, of the type ``Progress``. The work of the call
counts on a ``Meter``, which is passed down to it. The meter counts work, and no time, so a call reports in the same way
each time. It reports after each ``STEP_BYTES`` of work, and once at the end.

An error of the callable ends the call. On its way up it is a ``StoppedError``, which no handler between takes for an
error of the queue. ``metering``, the outermost layer of the call, raises the original error again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any, TypeAlias, TypeVar

from ..errors import MissingExtraError

B = TypeVar("B")
Tell: TypeAlias = Callable[[int, int | None], object]
Progress: TypeAlias = bool | Tell | None
"""Type of the parameter ``progress``: how a call reports how far it is.

- None, or False: not at all.
- True: by a bar of tqdm on stderr. Without the extra ``progress``, the call raises ``MissingExtraError`` before it does
  anything else.
- A callable: it gets two whole numbers, ``(done, total)``, in the unit that the call names. ``done`` never falls.
  ``total`` is the expected end, or None if it is unknown; it changes when the call finds more or less to do.

The call reports about once for each MiB of work. Its last report, before it returns, has ``done`` equal to ``total``.
A call that raises makes no last report.

If the callable raises, the call ends and raises that error, also a ``KeyboardInterrupt``. Each call says what then
holds. An error in the last report is raised when the work is done.

The reports come from the thread of the call, or from a helper thread that works for it.
"""

STEP_BYTES = 1024 * 1024
"""Work between two reports, in bytes."""
ITEM_BYTES = 1024
"""Work that an item counts for, in bytes, beside its own length."""


class StoppedError(BaseException):
    """An error of the callable, on its way from the meter to ``metering``. It never reaches a user.

    It is no ``Exception``, so that no handler of errors of the queue or of the disk catches it.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(error)


class Meter:
    """The progress of one call, for the code that does its work. This base class makes no reports."""

    __slots__ = ()

    def expect(self, amount: int) -> None:
        """Add to the expected total."""

    def advance(self, amount: int, work_bytes: int | None = None) -> None:
        """Add to what is done. ``work_bytes`` is the work that this took; the default None means the amount."""


SILENT = Meter()
"""Meter of a call without ``progress``."""


class _Reporting(Meter):
    """A meter that reports to a callable."""

    __slots__ = ("_done", "_reported", "_step_bytes", "_tell", "_total", "_unreported_bytes")

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._step_bytes = STEP_BYTES
        self._done = self._unreported_bytes = 0
        self._total: int | None = None
        self._reported: tuple[int, int | None] | None = None

    def expect(self, amount: int) -> None:
        """Add to the expected total."""
        self._total = (self._total or 0) + amount

    def advance(self, amount: int, work_bytes: int | None = None) -> None:
        """Add to what is done, and report if this makes a step. Raises ``StoppedError``."""
        self._done += amount
        self._unreported_bytes += amount if work_bytes is None else work_bytes
        if self._unreported_bytes >= self._step_bytes:
            self._unreported_bytes = 0
            self._report(None if self._total is None else max(self._done, self._total))

    def finish(self) -> None:
        """Report that all is done. Raises ``StoppedError``."""
        if self._reported != (self._done, self._done):
            self._report(self._done)

    def _report(self, total: int | None) -> None:
        self._reported = self._done, total
        try:
            self._tell(self._done, total)
        except BaseException as error:
            raise StoppedError(error) from None


def metering(progress: Progress, what: str, unit: str = "B") -> AbstractContextManager[Meter]:
    """Return a ``with`` block around the work of a call, which yields the meter of the call.

    ``what`` describes the call on a bar, and ``unit`` is ``B`` for bytes or a word. Raises ``TypeError`` and
    ``MissingExtraError`` before the block is entered. The end of the block makes the last report.
    """
    if progress is None or progress is False:
        return nullcontext(SILENT)
    if progress is True:
        return _drawing(_bar(), what, unit)
    if not callable(progress):
        raise TypeError(f"progress must be True, None or a callable that takes (done, total), not {progress!r}")
    return _reporting(progress)


def watched(
    batches: Generator[B, None, None],
    progress: Progress,
    what: str,
    count: Callable[[], int],
    items_of: Callable[[B], Sequence[bytes]],
) -> Iterator[B]:
    """Return an iterator over the batches that reports how many items were taken from it.

    ``count`` returns the number of items to expect, when the iteration begins. Raises what ``metering`` raises.
    """
    metered = metering(progress, what, " items")
    return _watched(batches, metered, count, items_of) if progress else batches


def _watched(
    batches: Generator[B, None, None],
    metered: AbstractContextManager[Meter],
    count: Callable[[], int],
    items_of: Callable[[B], Sequence[bytes]],
) -> Iterator[B]:
    with metered as meter, closing(batches):  # an error leaves no file open
        meter.expect(count())
        for batch in batches:
            yield batch
            items = items_of(batch)
            meter.advance(len(items), sum(map(len, items)) + ITEM_BYTES * len(items))


@contextmanager
def _reporting(tell: Tell) -> Iterator[Meter]:
    meter = _Reporting(tell)
    try:
        yield meter
        meter.finish()
    except StoppedError as stopped:
        raise stopped.error from stopped.error.__cause__


@contextmanager
def _drawing(bar_class: Any, what: str, unit: str) -> Iterator[Meter]:
    with closing(bar_class(desc=what, unit=unit, unit_scale=unit == "B")) as bar:

        def draw(done: int, total: int | None) -> None:
            """Move the bar. It draws itself some times per second at most, and at its end."""
            bar.total = total
            bar.update(done - bar.n)

        with _reporting(draw) as meter:
            yield meter


def _bar() -> Any:
    """Return the class of the bars. Raises ``MissingExtraError``."""
    try:
        from tqdm import tqdm  # noqa: PLC0415 - an optional package
    except ImportError as missing:
        instead = "pass a callable that takes (done, total)"
        raise MissingExtraError("a bar (progress=True)", "progress", instead) from missing

    class Bar(tqdm):  # type: ignore[misc]
        """A bar without the thread that tqdm starts to redraw bars that stand still."""

        monitor_interval = 0

    return Bar
