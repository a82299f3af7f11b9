"""``progress``: when a meter reports, what a bar shows, and how an error of the callable travels."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable

import pytest

from persistentqueue import MissingExtraError
from persistentqueue.system.path_errors import naming_paths
from persistentqueue.system.progress import SILENT, STEP_BYTES, StoppedError, metering, watched

Told = list[tuple[int, int | None]]


def recorder(told: Told) -> Callable[[int, int | None], object]:
    """Return a callable that records what it is told."""
    return lambda done, total: told.append((done, total))


def test_a_meter_reports_by_work() -> None:
    """A meter reports once for each step of work, with a total once it is known, and once at the end."""
    told: Told = []
    with metering(recorder(told), "test") as meter:
        for _ in range(10):
            meter.advance(STEP_BYTES // 4)
        meter.expect(4 * STEP_BYTES)
        meter.advance(STEP_BYTES)
    quarter = STEP_BYTES // 4
    assert told == [
        (4 * quarter, None),
        (8 * quarter, None),
        (14 * quarter, 16 * quarter),
        (14 * quarter, 14 * quarter),
    ]


def test_done_never_exceeds_the_total() -> None:
    """A total that was too small rises with what is done, and the last report is not made twice."""
    told: Told = []
    with metering(recorder(told), "test") as meter:
        meter.expect(1)
        meter.advance(2 * STEP_BYTES)
    assert told == [(2 * STEP_BYTES, 2 * STEP_BYTES)]


def test_a_call_without_work_reports_once() -> None:
    """A call with nothing to do reports 0 of 0."""
    told: Told = []
    with metering(recorder(told), "test"):
        pass
    assert told == [(0, 0)]


@pytest.mark.parametrize("progress", [None, False])
def test_silence(progress: bool | None) -> None:
    """None and False give the meter without reports."""
    with metering(progress, "test") as meter:
        meter.expect(1)
        meter.advance(1)
        assert meter is SILENT


def test_another_type_is_refused() -> None:
    """A value that is neither a truth value nor a callable raises ``TypeError`` before the block."""
    with pytest.raises(TypeError, match=r"progress must be True, None or a callable .*, not 'bar'"):
        metering("bar", "test")  # type: ignore[arg-type]


def test_without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tqdm, True is refused with both ways out, before the block."""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(MissingExtraError) as refused:
        metering(True, "test")
    assert str(refused.value) == (
        "a bar (progress=True) needs a package that is not installed: pip install 'persistentqueue[progress]', or pass "
        "a callable that takes (done, total)"
    )


def test_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """True draws a bar on stderr, with its description, the unit and the end."""
    with metering(True, "check orders") as meter:
        meter.expect(2 * STEP_BYTES)
        meter.advance(STEP_BYTES)
        meter.advance(STEP_BYTES)
    out, err = capsys.readouterr()
    assert out == ""
    assert "check orders: 100%" in err
    assert "2.10M/2.10M" in err
    assert "B/s]" in err


def test_a_bar_of_a_call_that_raises_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """A bar ends its line where it was when the call raises."""
    with pytest.raises(ZeroDivisionError), metering(True, "browse", " items") as meter:
        meter.expect(4)
        meter.advance(2, STEP_BYTES)
        raise ZeroDivisionError
    err = capsys.readouterr().err
    assert "browse:  50%" in err
    assert err.endswith("\n")


@pytest.mark.parametrize(
    "error", [BrokenPipeError(errno.EPIPE, "gone"), PermissionError(errno.EACCES, "no"), KeyboardInterrupt()]
)
def test_an_error_of_the_callable_passes_all_handlers(error: BaseException) -> None:
    """The error of a callable is raised as it is: no handler of errors of the disk between catches or renames it."""

    def fail(*_: object) -> None:
        raise error

    with pytest.raises(type(error)) as raised, metering(fail, "test") as meter, naming_paths("here"):
        try:
            meter.advance(STEP_BYTES)
        except Exception:
            pytest.fail("an error of the callable was taken for another one")
    assert raised.value is error


def test_an_error_of_the_last_report() -> None:
    """The error of the last report is raised at the end of the block."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    reached = False
    with pytest.raises(ZeroDivisionError), metering(fail, "test"):
        reached = True
    assert reached


def test_a_stopped_error_is_no_exception() -> None:
    """The carrier of the error is no ``Exception``, which a handler could catch."""
    assert not issubclass(StoppedError, Exception)


def test_watched_batches_count_items() -> None:
    """Batches report how many of their items were taken, and work for each item and each byte."""
    told: Told = []
    batches = [[b"x" * 100] * 600, [b"y"] * 600, [b"z" * STEP_BYTES]]
    left = watched((each for each in batches), recorder(told), "test", lambda: 1000, lambda batch: batch)
    assert told == []
    assert list(left) == batches
    assert told == [(1200, 1200), (1201, 1201)]
    assert list(watched((each for each in batches), None, "test", lambda: 0, lambda batch: batch)) == batches
