"""Pipelines of stages, on a stand-in for Spark: failures, letters, full targets, interruptions and changed graphs."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    DiskFullError,
    Encryption,
    PersistentQueue,
    ResourceError,
    TooManyFilesError,
)
from persistentqueue.spark import (
    NotAStageError,
    PayloadLostError,
    Pipeline,
    PipelineDefinitionError,
    StageFailedError,
    StageLetter,
    StageResultError,
)
from persistentqueue.spark.pipelines.letters import decode_failure, decode_inputs
from persistentqueue.spark.pipelines.stage import OpenStage
from persistentqueue.spark.pipelines.store import Store
from persistentqueue.system.disk import DISK
from tests.support.disks import using_disk
from tests.support.pipelines import Flow, echo, interrupt_twice, noted, take, waiting
from tests.support.queues import put


class FlawError(Exception):
    """Error that the stages of these tests raise."""


def flawed(flow: Flow, **options: Any) -> tuple[Pipeline, list[int]]:
    """Return a pipeline from "a" to "b" with one DataFrame, whose stage fails while the list has a number.

    Each failure takes one number from it.
    """
    flaws: list[int] = []
    pipeline = flow.make()

    @pipeline.stage(source="a", target="b", **options)
    def work(frame: Any) -> Any:
        if flaws:
            raise FlawError(f"flaw {flaws.pop()}")
        return frame

    pipeline.put("a", flow.rows(1), marker=("first", 1))
    return pipeline, flaws


# --- failures


@pytest.mark.parametrize(
    ("targets", "result", "words"),
    [
        ("b", None, "'work' must return a DataFrame for edge 'b', not None"),
        ("b", [1], "'work' must return a DataFrame for edge 'b', not an object of type list"),
        (("b", "c"), None, "a tuple of 2 DataFrames, or a dict of them by the names b, c, not None"),
        (("b", "c"), (1, 2), "a DataFrame for edge 'b', not an object of type int"),
        (("b", "c"), {"b": 1}, "by the names b, c, not an object of type dict"),
        ((), 1, "has no target, but returned an object of type int"),
    ],
)
def test_a_wrong_result_ends_the_run(flow: Flow, targets: Any, result: Any, words: str) -> None:
    """A function that returns no DataFrame for each target ends the run with a ``TypeError`` that names the stage.

    Nothing was consumed and nothing was put, and no letter was written, whatever ``max_attempts`` is.
    """
    pipeline = flow.make()
    pipeline.stage(source="a", target=targets, name="work", max_attempts=1)(lambda _: result)
    pipeline.put("a", flow.rows(1))
    with pytest.raises(StageResultError, match=words) as caught:
        pipeline.run(until="drained")
    assert isinstance(caught.value, TypeError)
    assert (waiting(pipeline), flow.payloads(), pipeline.dead_letters("work")) == ({"a": 1}, {"a": 1}, [])


def test_a_failure_ends_the_run(flow: Flow) -> None:
    """Without ``max_attempts`` the first failure ends the run and names the stage; the next run takes the input."""
    pipeline, flaws = flawed(flow)
    flaws.append(1)
    with pytest.raises(
        StageFailedError, match="stage 'work' failed, FlawError: flaw 1: nothing was consumed"
    ) as caught:
        pipeline.run()
    assert (caught.value.stage, type(caught.value.__cause__)) == ("work", FlawError)
    assert [each.state for each in pipeline.stats().stages] == ["failed"]
    assert pipeline.run(until="drained")
    assert take(pipeline, "b") == [[1]]
    assert [each.state for each in pipeline.stats().stages] == ["idle"]


def test_a_failed_write_leaves_nothing(flow: Flow) -> None:
    """If the write of the second target fails, the payload of the first one is removed, and the input waits."""
    pipeline = flow.make()

    @pipeline.stage(source="a", target=["b", "c"])
    def work(frame: Any) -> Any:
        flow.spark.fail_at = flow.spark.writes + 2
        return frame, frame

    pipeline.put("a", flow.rows(1))
    with pytest.raises(StageFailedError, match="OSError: no write"):
        pipeline.run(until="drained")
    assert flow.payloads() == {"a": 1}
    assert waiting(pipeline) == {"a": 1}


def test_a_failure_behind_the_commit(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the payloads of the inputs cannot be looked for, the run fails. The result is committed, and its payload
    stays."""
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="one")(echo)
    pipeline.put("a", flow.rows(1))
    lack = TooManyFilesError("here", 24, "injected")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "remove_unneeded", lambda *_: (_ for _ in ()).throw(lack))
        with pytest.raises(StageFailedError, match="injected"):
            pipeline.run(until="drained")
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="one")(echo)
    assert waiting(pipeline) == {"b": 1}
    assert take(pipeline, "b") == [[1]]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ETIMEDOUT])
def test_inputs_that_cannot_be_seen_now(flow: Flow, code: int) -> None:
    """A pipeline without an edge where inputs wait is refused. If that queue cannot be read now, the run raises."""
    pipeline = flow.make()
    pipeline.stage(source="old", target="b", name="one")(echo)
    pipeline.put("old", flow.rows(1))
    pipeline = flow.make()
    pipeline.stage(source="new", target="b", name="one")(echo)

    def opened(path: str, flags: int, mode: int) -> int:
        if "/old/log/" in str(path):
            raise OSError(code, os.strerror(code), path)
        return DISK.open(path, flags, mode)

    with using_disk(replace(DISK, open=opened)), pytest.raises((OSError, ResourceError)):
        pipeline.run(until="drained")
    with pytest.raises(PipelineDefinitionError):
        pipeline.run(until="drained")


@pytest.mark.parametrize(
    ("error", "kept"), [(DiskFullError("here", 28, "injected"), 0), (BrokenQueueError("injected"), 1)]
)
def test_a_failed_commit(flow: Flow, monkeypatch: pytest.MonkeyPatch, error: Exception, kept: int) -> None:
    """If nothing was committed, the payload is removed; if that is unknown, it stays until the next opening."""
    pipeline, _ = flawed(flow)
    with monkeypatch.context() as patch:
        patch.setattr(OpenStage, "_commit", lambda *_: (_ for _ in ()).throw(error))
        with pytest.raises((StageFailedError, BrokenQueueError), match="injected"):
            pipeline.run(until="drained")
    assert flow.payloads().get("b", 0) == kept
    pipeline, _ = flawed(flow)
    assert flow.payloads() == {"a": 1}
    assert pipeline.run(until="drained")
    assert take(pipeline, "b") == [[1]]


@pytest.mark.parametrize("step", ["_begin", "_give_up"])
def test_an_attempt_that_cannot_be_counted_or_given_up_ends_the_run(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """If the disk is full when an attempt begins, or when a letter is written, the run ends, and the inputs wait."""
    pipeline, flaws = flawed(flow, max_attempts=1)
    flaws.append(1)
    with monkeypatch.context() as patch:
        patch.setattr(OpenStage, step, lambda *_: (_ for _ in ()).throw(DiskFullError("here", 28, "injected")))
        with pytest.raises(StageFailedError, match="injected") as found:
            pipeline.run(until="drained")
    assert isinstance(found.value.__cause__, DiskFullError)
    assert (waiting(pipeline), pipeline.dead_letters("work")) == ({"a": 1}, [])
    assert pipeline.run(until="drained")
    assert [each.message for each in pipeline.dead_letters("work")] == ["flaw 1"]
    assert (flaws, waiting(pipeline)) == ([], {})


def test_attempts_have_delays_and_keep_the_order(flow: Flow, caplog: pytest.LogCaptureFixture) -> None:
    """A stage with ``max_attempts`` tries again after its delay, which may depend on the number of failures.

    A drained run waits for it, and the stage takes nothing else meanwhile.
    """
    delays: list[int] = []
    pipeline, flaws = flawed(flow, max_attempts=3, retry_delay_seconds=lambda count: noted(delays, count, 0.02))
    pipeline.put("a", flow.rows(2))
    flaws += [2, 1]
    assert pipeline.run(until="drained")
    assert delays == [1, 2]
    assert take(pipeline, "b") == [[1], [2]]
    assert pipeline.dead_letters("work") == []
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "stage 'work' failed at attempt 1 of 3, and runs again in 0.0 s: FlawError: flaw 1" in warnings


@pytest.mark.parametrize("delay", [-1.0, "soon", None])
def test_a_wrong_delay_ends_the_run(flow: Flow, delay: Any) -> None:
    """A function of delays that returns no number of seconds ends the run with an error that names the stage."""
    pipeline, flaws = flawed(flow, max_attempts=3, retry_delay_seconds=lambda _: delay)
    flaws.append(1)
    with pytest.raises(PipelineDefinitionError, match="stage 'work': retry_delay_seconds must be"):
        pipeline.run(until="drained")


# --- letters


def test_an_input_that_always_fails_becomes_a_letter(flow: Flow) -> None:
    """After ``max_attempts`` the inputs are kept in a letter, with the last error. The next ones go on.

    ``requeue`` gives them to this stage alone, before all others. ``discard`` deletes them.
    """
    pipeline, others = flow.make(), []
    flaws = {1, 3}

    @pipeline.stage(source=["a", "b"], target="c", max_attempts=2)
    def work(a: Any, b: Any) -> Any:
        if a.values[0] in flaws:
            raise FlawError(f"flaw {a.values}")
        return flow.rows(*a.values, *b.values)

    @pipeline.stage(source="a", name="other")
    def other(frame: Any) -> None:
        others.append(frame.values)

    for number in (1, 2, 3):
        pipeline.put("a", flow.rows(number))
        pipeline.put("b", flow.rows(10 * number))
    assert pipeline.run(until="drained")
    assert flow.payloads() == {"a": 2, "b": 2, "c": 1}
    letters = pipeline.dead_letters("work")
    assert [(each.stage, each.error, each.message, each.attempts) for each in letters] == [
        ("work", "FlawError", f"flaw [{number}]", 2) for number in (1, 3)
    ]
    assert "in work\n" in letters[0].traceback and letters[0].traceback.endswith("FlawError: flaw [1]\n")
    assert [[(edge, manifest.rows) for edge, manifest in each.inputs] for each in letters] == [[("a", 1), ("b", 1)]] * 2
    pipeline.close()
    assert flow.payloads() == {"a": 2, "b": 2, "c": 1}  # the opening sweeps what no letter names
    flaws.clear()
    pipeline.put("a", flow.rows(4))
    pipeline.put("b", flow.rows(40))
    assert pipeline.requeue("work", 1) == 1
    assert pipeline.run(until="drained")
    assert take(pipeline, "c") == [[2, 20], [1, 10], [4, 40]]
    assert others == [[1], [2], [3], [4]]
    assert (pipeline.discard("work"), pipeline.discard("work"), pipeline.requeue("work")) == (1, 0, 0)
    assert pipeline.dead_letters("work") == []
    assert flow.payloads() == {}


def test_inputs_that_were_given_back_fail_again(flow: Flow) -> None:
    """Inputs that ``requeue`` gave back have all attempts again, and become a letter again."""
    pipeline, flaws = flawed(flow, max_attempts=2)
    flaws += [4, 3, 2, 1]
    pipeline.run(until="drained")
    assert (pipeline.requeue("work"), flaws) == (1, [4, 3])
    pipeline.run(until="drained")
    assert ([each.message for each in pipeline.dead_letters("work")], flaws) == (["flaw 4"], [])
    assert (flow.payloads(), waiting(pipeline)) == ({"a": 1}, {})


def test_inputs_that_were_given_back_need_the_sources_of_their_stage(flow: Flow) -> None:
    """If the sources change after ``requeue``, no function gets the inputs, and they can be discarded as a letter."""
    pipeline, flaws = flawed(flow, max_attempts=1)
    flaws.append(1)
    pipeline.run(until="drained")
    assert pipeline.requeue("work") == 1
    pipeline.close()
    pipeline = flow.make()
    pipeline.stage(source=["a", "c"], target="b", name="work", max_attempts=1)(lambda *_: pytest.fail("it ran"))
    assert pipeline.run(until="drained")
    (letter,) = pipeline.dead_letters("work")
    assert letter.error == "PipelineDefinitionError"
    assert "gave up inputs of a, but now it takes from a, c: restore its sources, or" in letter.message
    with pytest.raises(PipelineDefinitionError, match="or discard the letters"):
        pipeline.requeue("work")
    assert (flow.payloads(), pipeline.discard("work"), flow.payloads()) == ({"a": 1}, 1, {})


def test_a_letter_keeps_the_payload_that_another_stage_takes(flow: Flow) -> None:
    """A payload stays while a letter names it, also after all other stages have taken it."""
    pipeline, flaws = flawed(flow, max_attempts=1)
    pipeline.close()
    pipeline.stage(source="a", name="other")(lambda _: None)
    flaws.append(1)
    assert pipeline.run(until="drained")
    assert flow.payloads() == {"a": 1}
    assert pipeline.requeue("work") == 1
    assert pipeline.run(until="drained")
    assert (take(pipeline, "b"), flow.payloads()) == ([[1]], {})


def test_a_source_that_always_fails_is_given_up(flow: Flow) -> None:
    """A stage without a source leaves a letter without inputs and records its marker; ``requeue`` runs it again."""
    flaws = [2, 1]
    for run, expected in enumerate(([], [], [[7]])):
        pipeline = flow.make()

        @pipeline.stage(target="a", marker=("once", 1), max_attempts=2)
        def work() -> Any:
            if flaws:
                raise FlawError(f"flaw {flaws.pop()}")
            return flow.rows(7)

        if run == 2:
            assert pipeline.requeue("work") == 1
        assert pipeline.run(until="drained")
        assert take(pipeline, "a") == expected
        if run < 2:
            assert [(each.message, each.inputs) for each in pipeline.dead_letters("work")] == [("flaw 2", ())]


def test_an_input_that_ends_the_process_becomes_a_letter(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that end the process are counted, and then the inputs become a letter without an error."""
    run = OpenStage._run
    for _ in range(2):
        pipeline, _ = flawed(flow, max_attempts=2)
        monkeypatch.setattr(OpenStage, "_run", lambda *_: (_ for _ in ()).throw(SystemExit(9)))
        with pytest.raises(SystemExit):
            pipeline.run(until="drained")
    monkeypatch.setattr(OpenStage, "_run", run)
    pipeline, _ = flawed(flow, max_attempts=2)
    assert pipeline.run(until="drained")
    (letter,) = pipeline.dead_letters("work")
    assert (letter.error, letter.attempts, letter.traceback) == ("", 2, "")
    assert "each attempt ended the process, or" in letter.message
    assert pipeline.requeue("work") == 1
    assert pipeline.run(until="drained")
    assert take(pipeline, "b") == [[1]]


def test_the_last_attempt_is_made_alone(flow: Flow) -> None:
    """The last one of several attempts is made while no other stage runs, so that none can end its process.

    The others go on behind it.
    """
    pipeline, looked = flow.make(), threading.Event()
    seen: list[dict[str, str]] = []

    @pipeline.stage(source="b")
    def other(_: Any) -> None:
        assert looked.wait(60)

    @pipeline.stage(source="a", max_attempts=2)
    def work(_: Any) -> None:
        seen.append({each.name: each.state for each in pipeline.stats().stages})
        if len(seen) == 1:
            raise SystemExit(9)
        looked.set()

    pipeline.put("a", flow.rows(1))
    with pytest.raises(SystemExit):
        pipeline.run(until="drained", parallel=2)
    for number in range(2):
        pipeline.put("b", flow.rows(number))
    assert pipeline.run(until="drained", parallel=2)
    assert seen[1] == {"other": "ready", "work": "running"}
    assert (pipeline.dead_letters("work"), waiting(pipeline)) == ([], {})


def test_a_letter_has_the_last_error_of_its_own_inputs(flow: Flow) -> None:
    """If the process ended at the last attempt, the letter has the error of the attempt before.

    The error of other inputs is never in it.
    """
    pipeline, attempts = flow.make(), []

    @pipeline.stage(source="a", target="b", max_attempts=2)
    def work(frame: Any) -> Any:
        attempts.append(frame.values[0])
        if attempts == [1]:
            raise FlawError("flaw 1")
        raise SystemExit(9)

    for number in (1, 2):
        pipeline.put("a", flow.rows(number))
    for expected in ([1, 1], [1, 1, 2], [1, 1, 2, 2]):
        with pytest.raises(SystemExit):
            pipeline.run(until="drained")
        assert attempts == expected
    assert pipeline.run(until="drained")
    assert [(each.error, each.attempts) for each in pipeline.dead_letters("work")] == [("FlawError", 2), ("", 2)]


@pytest.mark.parametrize("item", [b"{", b"[1]", b"null"])
def test_an_item_that_is_no_failure_is_refused(item: bytes) -> None:
    """An item that no pipeline has put among its failures is refused by name."""
    with pytest.raises(NotAStageError, match="is no failure"):
        decode_failure(item)


def test_a_lost_payload_becomes_a_letter(flow: Flow) -> None:
    """A file that is missing fails the stage, and the letter names the file."""
    pipeline, _ = flawed(flow, max_attempts=1)
    (file,) = flow.root.glob("a+payload/*/part-0.parquet")
    file.unlink()
    assert pipeline.run(until="drained")
    (letter,) = pipeline.dead_letters("work")
    assert (letter.error, file.name in letter.message) == (PayloadLostError.__name__, True)


def test_letters_of_other_sources_are_not_given_back(flow: Flow) -> None:
    """``requeue`` refuses letters whose inputs are not those of the stage; they stay."""
    pipeline, flaws = flawed(flow, max_attempts=1)
    flaws.append(1)
    pipeline.run(until="drained")
    pipeline = flow.make()
    pipeline.stage(source="c", target="b", name="work")(echo)
    with pytest.raises(PipelineDefinitionError, match="stage 'work' gave up inputs of a, but now it takes from c"):
        pipeline.requeue("work")
    assert len(pipeline.dead_letters("work")) == 1
    assert pipeline.discard("work") == 1
    assert flow.payloads() == {}  # that edge was open for a moment
    flawed(flow)[0].stats()
    assert flow.payloads() == {}


@pytest.mark.parametrize(
    "item", [b"", b"[]", b'{"format": "another"}', b'{"format": "persistentqueue stage letter 1"}']
)
def test_an_item_that_is_no_letter_is_refused(item: bytes) -> None:
    """An item that no pipeline has put among its letters is refused by name."""
    with pytest.raises(NotAStageError, match="is no letter"):
        StageLetter.decode(item)


@pytest.mark.parametrize(
    ("call", "queue", "problem"),
    [
        (lambda pipeline: pipeline.dead_letters("work"), "work.letters", "letter"),
        (lambda pipeline: pipeline.requeue("work"), "work.letters", "letter"),
        (lambda pipeline: pipeline.discard("work"), "work.letters", "letter"),
        (lambda pipeline: pipeline.run(until="drained"), "work.again", "inputs"),
    ],
)
def test_the_queue_of_an_alien_item_is_named(
    flow: Flow, call: Callable[[Pipeline], object], queue: str, problem: str
) -> None:
    """The error of an item that no pipeline has put into a queue of a stage names the directory of this queue."""
    pipeline, _ = flawed(flow)
    put(pipeline._opened().store._queue(queue), b"alien")
    told = f"{flow.root / queue}: an item .* {problem} of a stage"
    with pytest.raises((NotAStageError, StageFailedError), match=told):
        call(pipeline)


@pytest.mark.parametrize("item", [b"{", b"[1]", b"null", b'[["a", {}]]'])
def test_an_item_without_inputs_is_refused(item: bytes) -> None:
    """An item that no pipeline has put among the inputs to take again is refused by name."""
    with pytest.raises(NotAStageError):
        decode_inputs(item)


# --- full targets


def test_a_full_target_holds_its_stage_back(flow: Flow) -> None:
    """With ``max_waiting``, a stage runs only while fewer DataFrames wait at each target.

    A drained run then ends with False, and the next one goes on where there is room.
    """
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="work", max_waiting=2)(echo)
    for number in range(5):
        pipeline.put("a", flow.rows(number))
    assert pipeline.run(until="drained") is False
    assert waiting(pipeline) == {"a": 3, "b": 2}
    assert [each.state for each in pipeline.stats().stages] == ["blocked"]
    assert take(pipeline, "b") == [[0], [1]]
    assert pipeline.run(until="drained") is False
    assert take(pipeline, "b") == [[2], [3]]
    assert pipeline.run(until="drained") is True


def test_bytes_hold_a_stage_back(flow: Flow) -> None:
    """With ``max_waiting_bytes``, a stage runs only while fewer bytes of payloads wait at each target."""
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="work", max_waiting_bytes=1)(echo)
    for number in range(2):
        pipeline.put("a", flow.rows(number))
    assert pipeline.run(until="drained") is False
    assert waiting(pipeline) == {"a": 1, "b": 1}


def test_a_take_lets_a_running_pipeline_go_on(flow: Flow) -> None:
    """A run that a full target holds back goes on when another thread takes from the target."""
    taken: list[int] = []
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="work", max_waiting=1)(echo)
    for number in range(4):
        pipeline.put("a", flow.rows(number))

    def consume() -> None:
        while len(taken) < 4:
            with pipeline.take("b", timeout=60) as found:
                assert found is not None
                taken.append(found.df.collect()[0][0])
        pipeline.stop()

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert pipeline.run() is False
    consumer.join()
    assert taken == [0, 1, 2, 3]


# --- the end of a run


def test_seconds_and_functions_end_a_run(flow: Flow) -> None:
    """A run ends after a number of seconds, or when a function returns true, with True."""
    pipeline, _ = flawed(flow)
    assert pipeline.run(until=0)
    assert waiting(pipeline) == {"a": 1}
    assert pipeline.run(until=lambda: waiting(pipeline) == {"b": 1})
    assert pipeline.run(until=0.01)


def test_two_runs_at_the_same_time_are_refused(flow: Flow) -> None:
    """A pipeline has one run at a time."""
    pipeline = flow.make()

    @pipeline.stage(source="a")
    def work(_: Any) -> None:
        pipeline.run(until="drained")

    pipeline.put("a", flow.rows(1))
    with pytest.raises(StageFailedError, match="the pipeline runs in another thread"):
        pipeline.run(until="drained")


def test_stop_without_a_run_does_nothing(flow: Flow) -> None:
    """``stop`` before the first use opens nothing, and the next run begins as usual."""
    pipeline = flow.make()
    pipeline.stop()
    assert not flow.root.exists()
    pipeline, _ = flawed(flow)
    pipeline.stop()
    assert pipeline.run(until="drained")


def test_ctrl_c_ends_after_the_running_stage(flow: Flow, caplog: pytest.LogCaptureFixture) -> None:
    """After the first Ctrl-C the running stage commits, and no other one begins. The handler is restored."""
    pipeline, before = flow.make(), signal.getsignal(signal.SIGINT)

    @pipeline.stage(source="a", target="b")
    def work(frame: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return frame

    for number in range(2):
        pipeline.put("a", flow.rows(number))
    assert pipeline.run(until="drained") is False
    assert waiting(pipeline) == {"a": 1, "b": 1}
    assert "the pipeline ends after the running stages" in caplog.text
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_ends_at_once(flow: Flow, caplog: pytest.LogCaptureFixture) -> None:
    """After the second Ctrl-C ``run`` raises ``KeyboardInterrupt``, and the running stage commits nothing.

    The next run takes its input.
    """
    pipeline, ended = flow.make(), threading.Event()

    @pipeline.stage(source="a", target="b")
    def work(frame: Any) -> Any:
        if not ended.is_set():
            interrupt_twice(caplog, ended)
        return frame

    pipeline.put("a", flow.rows(1))
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(until="drained")
    ended.set()
    for thread in threading.enumerate():
        if thread.name.startswith("pipeline "):
            thread.join(60)
    assert waiting(pipeline) == {"a": 1}
    assert flow.payloads() == {"a": 1}
    assert pipeline.run(until="drained")
    assert take(pipeline, "b") == [[1]]


@pytest.mark.parametrize("cancels", [False, True], ids=["a wait", "a cancelled job"])
def test_a_second_ctrl_c_is_no_attempt(
    flow: Flow, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, cancels: bool
) -> None:
    """A second Ctrl-C counts as no attempt of the running stage, however often, also if Spark cancels its job. Errors
    of the stage count as before."""
    pipeline, calls, events = flow.make(), [], [threading.Event(), threading.Event()]
    attempt, ended = OpenStage.attempt, threading.Event()

    def attempt_and_tell(stage: OpenStage, *arguments: Any) -> None:
        try:
            attempt(stage, *arguments)
        finally:
            ended.set()

    monkeypatch.setattr(OpenStage, "attempt", attempt_and_tell)

    @pipeline.stage(source="a", target="b", max_attempts=2)
    def work(frame: Any) -> Any:
        may_end = events[0] if events else None
        calls.append(frame.values)
        if may_end is None:
            raise FlawError("a fault of the stage")
        interrupt_twice(caplog, may_end)
        raise FlawError("cancelled")

    def cancel(*_: object) -> None:
        """Cancel the job as Spark does, and wait for the end of the attempt."""
        events[0].set()
        assert ended.wait(60)

    pipeline.put("a", flow.rows(1))
    before = signal.signal(signal.SIGINT, cancel if cancels else signal.default_int_handler)
    try:
        while events:
            caplog.clear()
            with pytest.raises(KeyboardInterrupt):
                pipeline.run(until="drained")
            events.pop(0).set()
            assert ended.wait(60)
            ended.clear()
    finally:
        signal.signal(signal.SIGINT, before)
    assert waiting(pipeline) == {"a": 1}
    assert pipeline.run(until="drained")
    (letter,) = pipeline.dead_letters("work")
    assert (letter.message, letter.attempts, calls) == ("a fault of the stage", 2, [[1]] * 4)


def test_a_second_ctrl_c_excuses_no_earlier_attempt(
    flow: Flow, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that ended its run counts, also if the next run is interrupted before the stage begins."""
    pipeline, calls, may_end, look = flow.make(), [], threading.Event(), OpenStage._next

    @pipeline.stage(source="a", target="b", max_attempts=2)
    def work(frame: Any) -> Any:
        calls.append(frame.values)
        if len(calls) == 1:
            raise asyncio.CancelledError("a fault of the stage")
        raise FlawError("a fault of the stage")

    def interrupt_and_look(stage: OpenStage) -> Any:
        interrupt_twice(caplog, may_end)
        return look(stage)

    pipeline.put("a", flow.rows(1))
    with pytest.raises(asyncio.CancelledError):
        pipeline.run(until="drained")
    with monkeypatch.context() as changed, pytest.raises(KeyboardInterrupt):
        changed.setattr(OpenStage, "_next", interrupt_and_look)
        pipeline.run(until="drained")
    may_end.set()
    assert pipeline.run(until="drained")
    (letter,) = pipeline.dead_letters("work")
    assert (letter.attempts, calls) == (2, [[1]] * 3)  # the one of the interrupted run does not count


@pytest.mark.parametrize("fails", [False, True], ids=["a result", "an error"])
def test_a_run_behind_an_interrupted_one(flow: Flow, caplog: pytest.LogCaptureFixture, fails: bool) -> None:
    """A run that begins while a stage of an interrupted run is busy waits for its end, and then takes its input.

    Neither the result nor the error of the interrupted stage counts.
    """
    pipeline, calls, may_end = flow.make(), [], threading.Event()

    @pipeline.stage(source="a", target="b")
    def work(frame: Any) -> Any:
        calls.append(frame.values)
        if len(calls) == 1:
            interrupt_twice(caplog, may_end)
            if fails:
                raise FlawError("too late")
        return frame

    def until() -> bool:
        may_end.set()  # the second run has begun
        return waiting(pipeline) == {"b": 1}

    pipeline.put("a", flow.rows(1))
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(until="drained")
    assert pipeline.run(until=until)
    for thread in threading.enumerate():
        if thread.name.startswith("pipeline "):  # of the first run
            thread.join(60)
    assert (calls, take(pipeline, "b"), flow.payloads()) == ([[1], [1]], [[1]], {})


def test_a_run_of_another_thread_leaves_signals_alone(flow: Flow) -> None:
    """A run outside the main thread sets no handler."""
    pipeline, before, seen = flow.make(), signal.getsignal(signal.SIGINT), []

    @pipeline.stage(source="a")
    def work(_: Any) -> None:
        seen.append(signal.getsignal(signal.SIGINT))

    pipeline.put("a", flow.rows(1))
    thread = threading.Thread(target=pipeline.run, args=("drained",))
    thread.start()
    thread.join()
    assert seen == [before]


# --- changed graphs


def test_a_stage_that_is_gone_is_not_forgotten_silently(flow: Flow) -> None:
    """If inputs wait for a stage that the pipeline lacks, the opening says so, and changes nothing.

    After ``forget``, a new stage begins where the old one was.
    """
    pipeline, _ = flawed(flow)
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="renamed")(echo)
    with pytest.raises(PipelineDefinitionError, match="edge 'a' keeps 1 DataFrames for stage 'work'"):
        pipeline.stats()
    pipeline, _ = flawed(flow)
    assert waiting(pipeline) == {"a": 1}
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="renamed")(echo)
    pipeline.forget("work")
    assert pipeline.run(until="drained")
    assert take(pipeline, "b") == [[1]]
    pipeline, _ = flawed(flow)  # the new name has nothing waiting, and goes silently
    assert pipeline.run(until="drained")


@pytest.mark.parametrize("is_named", [True, False], ids=["an edge", "no edge"])
def test_a_stage_that_takes_from_another_edge(flow: Flow, is_named: bool) -> None:
    """If inputs wait for a stage where it does not take from now, the opening says so, until ``forget``.

    The inputs then stay for ``take``, also if the edge is gone and comes back later.
    """
    flawed(flow)
    pipeline = flow.make()
    pipeline.stage(source="c", target=["a", "d"] if is_named else "d", name="work")(echo)
    with pytest.raises(PipelineDefinitionError, match="edge 'a' keeps 1 DataFrames for stage 'work', which does not"):
        pipeline.stats()
    pipeline.forget("work")
    assert waiting(pipeline) == ({"a": 1} if is_named else {})
    pipeline = flow.make()
    pipeline.stage(source="c", target="a", name="work")(echo)
    assert take(pipeline, "a") == [[1]]


def test_an_edge_that_is_gone_is_not_forgotten_silently(flow: Flow) -> None:
    """If inputs wait for a stage at an edge that the pipeline lacks, the opening says so, and changes nothing.

    DataFrames that wait there for ``take`` are no inputs. Queues of other programs do not count.
    """
    pipeline, _ = flawed(flow)
    pipeline.run(until="drained")
    pipeline.put("a", flow.rows(2))
    pipeline.close()
    for name, encryption in (("plain", None), ("secret", Encryption("k", lambda _: bytes(16)))):
        with PersistentQueue(flow.root, name, fan_out=True, encryption=encryption) as queue:
            queue.subscribe("reader")
            put(queue, b"an item")

    def other() -> Pipeline:
        pipeline = flow.make()
        pipeline.stage(source="c", name="other")(lambda _: None)
        return pipeline

    with pytest.raises(PipelineDefinitionError, match="edge 'a' keeps 1 DataFrames for stage 'work'"):
        other().stats()
    with PersistentQueue(flow.root, "a"):  # of a pipeline in the same directory that runs now
        assert other().run(until="drained")
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="work")(echo)
    assert waiting(pipeline) == {"a": 1, "b": 1}
    pipeline.run(until="drained")
    assert other().run(until="drained")


def test_inputs_to_take_again_are_not_forgotten_silently(flow: Flow) -> None:
    """If a stage is gone before it has taken what ``requeue`` gave back, the opening says so, until ``forget``."""
    pipeline, flaws = flawed(flow, max_attempts=1)
    flaws.append(1)
    pipeline.run(until="drained")
    pipeline.requeue("work")
    for forgets in (False, True, False):
        pipeline = flow.make()
        pipeline.stage(source="a", name="renamed")(lambda _: pytest.fail("it ran"))
        if forgets:
            pipeline.forget("work")
        elif not flow.payloads():
            assert pipeline.run(until="drained")
        else:
            with pytest.raises(PipelineDefinitionError, match="1 inputs of requeue wait for stage 'work', which the"):
                pipeline.stats()
        if forgets:
            assert (pipeline.run(until="drained"), flow.payloads()) == (True, {})


def test_a_last_edge_gets_a_stage_and_loses_it(flow: Flow) -> None:
    """A stage that is added to a last edge takes what waits there, and so does ``take`` when the stage is gone."""
    pipeline, _ = flawed(flow)
    pipeline.run(until="drained")
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="work")(echo)
    pipeline.stage(source="b", target="c", name="more")(echo)
    assert waiting(pipeline) == {"b": 1}
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="work")(echo)
    pipeline.forget("more")
    assert take(pipeline, "b") == [[1]]
    assert flow.payloads() == {}


def test_letters_of_a_stage_that_is_gone_keep_their_payloads(flow: Flow) -> None:
    """Letters of a stage that the pipeline lacks keep the payloads of their inputs, until the stage is back."""
    pipeline, flaws = flawed(flow, max_attempts=1)
    flaws.append(1)
    pipeline.run(until="drained")
    pipeline = flow.make()
    pipeline.stage(source="a", name="another")(lambda _: None)
    pipeline.put("a", flow.rows(2))
    assert pipeline.run(until="drained")
    assert flow.payloads() == {"a": 1}
    pipeline, _ = flawed(flow, max_attempts=1)
    assert (pipeline.requeue("work"), pipeline.run(until="drained"), take(pipeline, "b")) == (1, True, [[1]])


def test_letters_of_a_stage_that_is_gone_can_be_discarded(flow: Flow) -> None:
    """A pipeline without the stage lists its letters and deletes them with their payloads, but gives none back."""
    pipeline, flaws = flawed(flow, max_attempts=1)
    flaws.append(1)
    pipeline.run(until="drained")
    pipeline = flow.make()
    pipeline.stage(source="a", name="another")(lambda _: None)
    assert [letter.stage for letter in pipeline.dead_letters("work")] == ["work"]
    with pytest.raises(PipelineDefinitionError, match="no stage 'work'"):
        pipeline.requeue("work")
    assert pipeline.discard("work") == 1
    assert flow.payloads() == {}
    with pytest.raises(PipelineDefinitionError, match="no stage 'work'"):
        pipeline.dead_letters("work")


def test_a_run_without_threads_leaves_nothing_behind(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system refuses a thread, the run raises, its other threads end, and the next run goes on."""
    pipeline, _ = flawed(flow)
    start, started = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "pipeline 2":
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        pipeline.run(until="drained", parallel=4)
    assert [thread.is_alive() for thread in started if thread.name.startswith("pipeline ")] == [False, False]
    monkeypatch.undo()
    assert pipeline.run(until="drained")
    assert waiting(pipeline) == {"b": 1}
