"""Pipelines on a stand-in for Spark: hand-offs at edges, lost payloads, alien items, wrong arguments."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from persistentqueue.spark import Pipeline, Progress, StageHandoff
from persistentqueue.spark import progress as progress_room
from tests.support.pipelines import Flow, take, waiting


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    """Yield the maker of pipelines in ``tmp_path/flow``."""
    flow = Flow(tmp_path)
    yield flow
    flow.close()


def hand_off(flow: Flow, name: str, **options: Any) -> StageHandoff:
    """Open a hand-off in the directory of the pipelines."""
    return StageHandoff(flow.spark, flow.root, name, **options)  # type: ignore[arg-type]


# --- hand-offs at the edges of a pipeline


def with_letters(flow: Flow, *, fails: bool = True) -> Pipeline:
    """Return a pipeline whose stage "check" gives up what "raw" has, or echoes it; "look" takes from "raw", too."""

    def check(frame: Any) -> Any:
        return frame.no_such_column if fails else frame

    pipeline = flow.make()
    pipeline.stage(source="raw", target="out", name="check", max_attempts=1)(check)
    pipeline.stage(source="raw", name="look")(lambda _: None)
    return pipeline


@pytest.mark.parametrize("is_again", [False, True], ids=["letters", "inputs given back"])
@pytest.mark.parametrize("use", ["open", "take", "unsubscribe"])
def test_a_hand_off_at_an_edge_keeps_the_payloads_of_letters(flow: Flow, use: str, is_again: bool) -> None:
    """Opening a hand-off at an edge, and each of its calls, leaves the payloads of letters and of inputs given back."""
    pipeline = with_letters(flow)
    pipeline.put("raw", flow.rows(1))
    pipeline.run(until="drained")
    if is_again:
        assert pipeline.requeue("check") == 1
    pipeline.close()
    with hand_off(flow, "raw") as handoff:
        if use == "take":
            handoff.put(flow.rows(2))
            for name in ("check", "look"):
                with handoff.take(subscription=name) as stage:
                    assert stage is not None
        elif use == "unsubscribe":
            handoff.unsubscribe("look")
    pipeline = with_letters(flow, fails=False)
    assert is_again or pipeline.requeue("check") == 1
    assert pipeline.run(until="drained")
    assert (take(pipeline, "out"), pipeline.dead_letters("check"), flow.payloads()) == ([[1]], [], {})


def test_a_letter_keeps_the_payload_that_a_hand_off_takes_for_another_stage(flow: Flow) -> None:
    """If a stage has given an input up, a hand-off that takes it for another stage does not delete its payload."""
    pipeline = with_letters(flow)
    pipeline.put("raw", flow.rows(1))
    pipeline.run(until=lambda: len(pipeline.dead_letters("check")) == 1)
    pipeline.close()
    with hand_off(flow, "raw") as handoff, handoff.take(subscription="look") as stage:
        assert stage is not None
    assert flow.payloads() == {"raw": 1}


def test_a_hand_off_that_cannot_look_for_letters_deletes_nothing(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the directory cannot be listed for now, the opening of a hand-off raises, and leaves the queue closed."""
    pipeline = with_letters(flow)
    pipeline.put("raw", flow.rows(1))
    pipeline.run(until="drained")
    pipeline.close()
    list_directory = os.listdir

    def refuse(path: Any = ".") -> list[str]:
        if path == str(flow.root):
            raise OSError(errno.EMFILE, "too many open files", str(path))
        return list_directory(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", refuse)
        with pytest.raises(OSError, match="too many open files"):
            hand_off(flow, "raw")
    assert flow.payloads() == {"raw": 1}
    hand_off(flow, "raw").close()


def test_a_hand_off_beside_a_pipeline_deletes_what_it_has_taken(flow: Flow) -> None:
    """Letters in the directory do not let a hand-off without subscriptions keep the payloads that it takes."""
    pipeline = with_letters(flow)
    pipeline.put("raw", flow.rows(1))
    pipeline.run(until="drained")
    with hand_off(flow, "own") as handoff:
        handoff.put(flow.rows(2))
        with handoff.take() as stage:
            assert stage is not None
    assert flow.payloads() == {"raw": 1}


# --- runs


@pytest.mark.parametrize("progress", [True, "text", 1])
def test_a_progress_that_is_no_function_is_refused(flow: Flow, progress: Any) -> None:
    """``run`` refuses a ``progress`` that it cannot call before it opens a queue."""
    with pytest.raises(TypeError, match="progress must be a function of a stage's name and a Progress, or None, not"):
        flow.make().run(until="drained", progress=progress)


def test_an_error_without_a_text_ends_the_run(flow: Flow) -> None:
    """If the text of an error of a stage cannot be made, the run raises, and the next run takes the input."""
    errors: list[Exception] = []

    class TextlessError(Exception):
        def __str__(self) -> str:
            raise LookupError("no text")

    def work(frame: Any) -> Any:
        if errors:
            raise errors.pop()
        return frame

    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="work")(work)
    pipeline.put("a", flow.rows(1))
    errors.append(TextlessError())
    with pytest.raises(LookupError, match="no text"):
        pipeline.run(until="drained")
    assert [each.state for each in pipeline.stats().stages] == ["failed"]
    assert pipeline.run(until="drained")
    assert take(pipeline, "b") == [[1]]


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Progress:
    """Let the stand-in tell of these tasks."""
    found = Progress(1, 2)

    @contextmanager
    def jobs(_: Any) -> Iterator[Callable[[bool], Progress]]:
        yield lambda _: found

    monkeypatch.setattr(progress_room, "_jobs", jobs)
    monkeypatch.setattr(progress_room, "SECONDS", 0.001)
    return found


def test_an_error_of_progress_ends_the_run(flow: Flow, tasks: Progress) -> None:
    """If ``progress`` raises, the run raises that error behind the running stage, which has put its results.

    It is not called again. The other inputs wait, no letter is written, and no attempt is lost.
    """
    pipeline, seen, may_end = flow.make(), [], threading.Event()

    def fail(stage: str, found: Progress) -> None:
        seen.append((stage, found))
        may_end.set()
        raise KeyError("typo")

    def work(frame: Any) -> Any:
        assert may_end.wait(60)
        return frame

    pipeline.stage(source="a", target="b", name="work", max_attempts=1)(work)
    for number in range(3):
        pipeline.put("a", flow.rows(number))
    with pytest.raises(KeyError, match="typo"):
        pipeline.run(until="drained", progress=fail)
    assert seen == [("work", tasks)]
    assert (waiting(pipeline), pipeline.dead_letters("work")) == ({"a": 2, "b": 1}, [])
    assert pipeline.run(until="drained")
    assert (take(pipeline, "b"), pipeline.dead_letters("work")) == ([[0], [1], [2]], [])
