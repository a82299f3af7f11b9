"""Pipelines on a stand-in for Spark: hand-offs at edges, lost payloads, alien items, wrong arguments."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
    DiskFullError,
    PersistentQueue,
    Producer,
    QueueLockedError,
    SubscriptionNotFoundError,
    list_queues,
)
from persistentqueue.spark import (
    NotAStageError,
    PayloadLostError,
    Pipeline,
    PipelineDefinitionError,
    Progress,
    StageFailedError,
    StageHandoff,
)
from persistentqueue.spark import progress as progress_room
from persistentqueue.spark.pipelines.store import Store
from persistentqueue.spark.stages import decode
from persistentqueue.storage import lock
from persistentqueue.system.disk import DISK
from tests.support.pipelines import Flow, StandIn, echo, interrupt_twice, take, waiting
from tests.support.queues import wait_for


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


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_pipeline_belongs_to_its_process(flow: Flow, make: Callable[[Any], object]) -> None:
    """A pipeline cannot be copied or pickled: the end of a copy would close the queues of the original."""
    pipeline = with_letters(flow)
    with pytest.raises(
        TypeError, match=r"Pipeline cannot be copied, pickled .*: use it in the process that has made it"
    ):
        make(pipeline)


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


def test_dead_letters_of_a_hand_off_are_no_letters_of_a_pipeline(flow: Flow) -> None:
    """A hand-off whose dead letters have a name as those of a pipeline deletes the payloads that it has taken."""
    for _ in range(2):
        with hand_off(flow, "h", fan_out=True, dead_letter="h.letters") as handoff:
            handoff.subscribe("reader")
            handoff.put(flow.rows(1))
            with handoff.take(subscription="reader") as stage:
                assert stage is not None
    assert flow.payloads() == {}


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


# --- texts


def test_a_locked_hand_off_gets_advice_that_it_can_follow(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a hand-off, and of a pipeline, that is open names no option that these do not have.

    It says whether that is in this process.
    """
    other = Pipeline(None, flow.root)
    other.stage(source="a", name="sink")(lambda _: None)
    owned = "another job owns the hand-off, or the pipeline: wait for its end, or close it there"
    here = "that is this process: use the hand-off or the pipeline that is open, in any thread, or close it"
    calls: list[tuple[str, str, Callable[[], object]]] = [
        ("a", "", lambda: hand_off(flow, "a")),
        ("a", "", other.stats),
        ("sink.letters", ". If it is another pipeline in this", other.stats),
    ]
    for (queue, more, call), (pid, advice) in product(calls, ((os.getpid(), here), (1, owned))):
        monkeypatch.setattr(lock, "read_owner", lambda *_, pid=pid: lock.Owner(pid, DISK.gethostname(), "now"))
        with PersistentQueue(flow.root, queue):
            with pytest.raises(QueueLockedError, match=advice + re.escape(more)) as found:
                call()
            assert "lock_timeout" not in str(found.value) and found.value.pid == pid


@pytest.mark.parametrize("name", [None, "", "train"])
def test_a_hand_off_without_a_consumer_names_its_own_call(flow: Flow, name: str | None) -> None:
    """A hand-off that only subscriptions read, or that lacks one, names ``handoff.subscribe`` at each call."""
    with hand_off(flow, "h", fan_out=True) as handoff:
        handoff.subscribe("report")
        handoff.put(flow.rows(1))
        (manifest,) = handoff.waiting("report")
        calls: list[Callable[[], object]] = [
            lambda: handoff.take(subscription=name).__enter__(),
            lambda: handoff.waiting(name),
            lambda: handoff.skip(manifest, subscription=name),
        ]
        for call in calls:
            with pytest.raises(SubscriptionNotFoundError, match=r"'report'.*handoff\.subscribe\(name\)") as found:
                call()
            assert found.value.subscription == (name or "")


@pytest.mark.parametrize("left", ["letter", "input", "input given back"])
def test_another_pipeline_in_the_directory_is_named(flow: Flow, left: str) -> None:
    """If another pipeline in the directory refuses the opening, the error says so, and that pipeline goes on."""
    is_broken = True

    def work(frame: Any) -> Any:
        if is_broken:
            raise ValueError
        return frame

    other, mine = Pipeline(flow.spark, flow.root), flow.make()  # type: ignore[arg-type]
    other.stage(source="a", target="b", name="other", max_attempts=1)(work)
    mine.stage(source="c", name="mine")(lambda _: None)
    with other:
        other.put("a", flow.rows(1))
        if left != "input":
            other.run(until="drained")
            assert left == "letter" or other.requeue("other")
        if left == "letter":
            with pytest.raises(QueueLockedError, match=r"If it is another pipeline in this directory, .* its own$"):
                mine.stats()
            assert other.requeue("other")
    if left != "letter":
        with pytest.raises(PipelineDefinitionError, match=r"stage of another pipeline, .* a directory of its own$"):
            mine.stats()
    is_broken = False
    with other:
        other.run(until="drained")
        assert take(other, "b") == [[1]]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[CODE] it failed\n\nJVM stacktrace:\norg.E\n\tat x.Y", "[CODE] it failed"),
        (
            "calling o1.parquet.\n: java.E: no disk\n\tat x.Y.<init>(Y.scala:1)\nCaused by: z",
            "calling o1.parquet. : java.E: no disk",
        ),
        (
            "in a worker:\nTraceback\n  File x\n    f()\n  File y\n    g()\nKeyError: 'k'",
            "in a worker: … File y g() KeyError: 'k'",
        ),
    ],
    ids=["code", "java", "python"],
)
def test_messages_have_the_text_of_an_error_in_a_line(
    flow: Flow, caplog: pytest.LogCaptureFixture, text: str, line: str
) -> None:
    """The log of a pipeline and ``StageFailedError`` leave out the stack traces behind an error.

    The cause of the error and the letter have the whole text.
    """

    def fail(_: Any) -> None:
        raise ValueError(text)

    def make(most: int | None) -> Pipeline:
        pipeline = flow.make()
        pipeline.stage(source="a", name="sink", max_attempts=most)(fail)
        return pipeline

    pipeline = make(None)
    pipeline.put("a", flow.rows(1))
    with pytest.raises(StageFailedError) as failed:
        pipeline.run(until="drained")
    assert str(failed.value).startswith(f"stage 'sink' failed, ValueError: {line}: nothing was consumed")
    assert str(failed.value.__cause__) == text
    pipeline = make(2)
    pipeline.run(until="drained")
    assert [record.getMessage() for record in caplog.records] == [
        f"stage 'sink' failed at attempt 1 of 2, and runs again in 0.0 s: ValueError: {line}",
        f"stage 'sink' gave up its inputs after 2 attempts: ValueError {line}",
    ]
    assert pipeline.dead_letters("sink")[0].message == text


# --- letters


@pytest.mark.parametrize("call", [Pipeline.requeue, Pipeline.discard])
@pytest.mark.parametrize(("most", "error"), [(-1, ValueError), (1.5, TypeError), ("2", TypeError), (True, TypeError)])
def test_a_wrong_number_of_letters_is_refused(
    flow: Flow, call: Callable[..., int], most: Any, error: type[Exception]
) -> None:
    """``requeue`` and ``discard`` name ``max_letters`` if it is no number from 0, and leave all letters."""
    pipeline = with_letters(flow)
    for number in range(2):
        pipeline.put("raw", flow.rows(number))
    pipeline.run(until="drained")
    with pytest.raises(error, match="max_letters must be"):
        call(pipeline, "check", most)
    assert (call(pipeline, "check", 0), len(pipeline.dead_letters("check"))) == (0, 2)


def test_a_stage_without_letters_gets_no_queue_of_inputs(flow: Flow) -> None:
    """``requeue`` makes no queue for a stage that has no letters, or none any more."""
    pipeline = with_letters(flow)
    assert pipeline.requeue("check") == 0
    pipeline.put("raw", flow.rows(1))
    pipeline.run(until="drained")
    assert (pipeline.discard("check"), pipeline.requeue("check")) == (1, 0)
    assert list(flow.root.glob("*.again")) == []


def test_a_letter_without_an_error_names_a_full_disk(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is too full to record the error of the last attempt, the letter of the next run says so."""
    pipeline = with_letters(flow)
    pipeline.put("raw", flow.rows(1))
    with monkeypatch.context() as patch:
        patch.setattr(Store, "record", lambda *_: (_ for _ in ()).throw(DiskFullError("here", 28, "injected")))
        with pytest.raises(StageFailedError, match="injected"):
            pipeline.run(until="drained")
    assert pipeline.run(until="drained")
    (letter,) = pipeline.dead_letters("check")
    assert (letter.error, "the disk was too full for the record" in letter.message) == ("", True)


@pytest.mark.parametrize("name", ["check.letters", "check.again"])
def test_a_hand_off_has_no_name_of_letters(flow: Flow, name: str) -> None:
    """A hand-off whose name is that of the letters of a stage is refused: the pipeline would take it for letters, and
    other hand-offs there would keep all payloads. Under another name it has its stages."""
    with hand_off(flow, "kept") as handoff:
        handoff.put(flow.rows(1))
    for suffix in ("", "+payload"):
        (flow.root / f"kept{suffix}").rename(flow.root / f"{name}{suffix}")
    with pytest.raises(ValueError, match=rf"cannot have the name '{name}': .* of pipelines: choose another name"):
        hand_off(flow, name)
    for suffix in ("", "+payload"):
        (flow.root / f"{name}{suffix}").rename(flow.root / f"renamed{suffix}")
    with hand_off(flow, "renamed") as handoff, handoff.take() as taken:
        assert taken is not None
        assert taken.manifest.rows == 1


# --- addresses


@pytest.mark.parametrize("scheme", ["", "file:", "file://", "FILE://localhost"])
def test_a_payload_root_may_be_a_local_address(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """Each form of a local address stands for its path, and needs no session; nothing is made elsewhere."""
    monkeypatch.chdir(tmp_path)
    with hand_off(flow, "h", payload_root=f"{scheme}{tmp_path}/root") as handoff:
        handoff.put(flow.rows(1))
    pipeline = Pipeline(lambda: pytest.fail("a session"), flow.root, payload_root=f"{scheme}{tmp_path}/root")
    pipeline.stage(source="a", name="sink")(lambda _: None)
    with pipeline:
        pipeline.stats()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flow", "root"]
    assert len(list((tmp_path / "root").iterdir())) == 1


@pytest.mark.parametrize("root", ["hdfs:/x", "s3a:/b/x", "hdfs://h/x", "file://elsewhere/x"])
def test_a_payload_root_elsewhere_is_no_directory_here(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    """Each other address is reached by Spark, and makes no directory of that name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttributeError, match="sparkContext"):  # which the stand-in lacks
        hand_off(flow, "h", payload_root=root)
    assert list(tmp_path.iterdir()) == []


# --- alien items


def alien(name: str, sequence: int) -> Any:
    """Expect the error that names an item without a manifest in a queue of ``flow``."""
    words = (
        rf"flow/{name}: item {sequence} is no manifest \(.*\), .*: consume it by PersistentQueue, .*queue of its own"
    )
    return pytest.raises((NotAStageError, StageFailedError), match=words)


def enqueue(flow: Flow, name: str) -> None:
    """Enqueue an item that is no manifest, as another program."""
    with Producer(flow.root, name) as producer:
        producer.enqueue(b"alien")
        producer.flush()


def test_an_alien_item_in_a_hand_off_is_named(flow: Flow) -> None:
    """The error of a hand-off names the queue and the sequence of an item that no hand-off has put there.

    As it advises, two sessions take that item out, and the stages before it stay.
    """
    with hand_off(flow, "h") as handoff:
        handoff.put(flow.rows(1))
    enqueue(flow, "h")
    with alien("h", 1):
        hand_off(flow, "h")
    with PersistentQueue(flow.root, "h") as queue, queue.session() as before, queue.session() as session:
        before.dequeue()
        assert session.dequeue() == b"alien"
        session.flush()
        before.rollback()
    with hand_off(flow, "h") as handoff:
        enqueue(flow, "h")
        with handoff.take() as stage:
            assert stage is not None and stage.manifest.rows == 1
        with alien("h", 2):
            handoff.take().__enter__()


def test_an_alien_item_at_an_edge_is_named(flow: Flow) -> None:
    """The error of a pipeline names the queue and the sequence of an item that no pipeline has put there.

    It is raised by the run during which the item comes, and by the next opening.
    """
    for is_open in (True, False):
        pipeline = flow.make()
        pipeline.stage(source="a", target="b", name="echo")(echo)
        if is_open:
            pipeline.put("a", flow.rows(1))
            enqueue(flow, "a")
        with alien("a", 1):
            pipeline.run(until="drained")


# --- lost payloads


def lose(flow: Flow, edge: str) -> None:
    """Delete the payload of the oldest DataFrame of an edge."""
    with PersistentQueue(flow.root, edge) as queue:
        shutil.rmtree(flow.root / f"{edge}+payload" / decode(next(queue.browse_all())).directory)


def test_a_lost_payload_at_a_last_edge_can_be_skipped(flow: Flow) -> None:
    """``take`` names ``skip``, which gives up a lost DataFrame once, so that ``take`` gets the next one."""
    for is_lost in (True, False):
        pipeline = flow.make()
        pipeline.stage(source="a", target="b", name="echo")(echo)
        if is_lost:
            pipeline.put("a", flow.rows(1))
            pipeline.put("a", flow.rows(2))
            pipeline.run(until="drained")
            pipeline.close()
            lose(flow, "b")
    with pytest.raises(
        PayloadLostError, match=r"restore the file, or call pipeline.skip\('b', error.manifest\)"
    ) as lost:
        take(pipeline, "b")
    with pytest.raises(PipelineDefinitionError, match="edge 'a': stage 'echo' takes its DataFrames: skip at an edge"):
        pipeline.skip("a", lost.value.manifest)
    assert [pipeline.skip("b", lost.value.manifest) for _ in range(2)] == [True, False]
    assert (take(pipeline, "b"), flow.payloads()) == ([[2]], {})


def test_a_skipped_payload_is_not_deleted(flow: Flow) -> None:
    """``skip`` adds ``.lost`` to the name of what is left of a payload, and no opening removes it."""
    for _ in range(2):
        pipeline = flow.make()
        pipeline.stage(source="a", target="b", name="echo")(echo)
        if not flow.root.exists():
            pipeline.put("b", flow.rows(1))
            next(flow.root.glob("b+payload/*/part-0.parquet")).unlink()
            with pytest.raises(PayloadLostError) as lost:
                take(pipeline, "b")
            assert pipeline.skip("b", lost.value.manifest)
        assert [path.suffix for path in flow.root.glob("b+payload/*")] == [".lost"]
        assert take(pipeline, "b") == []


def test_a_stage_with_a_lost_input_is_told_how_to_set_it_aside(flow: Flow) -> None:
    """The error of a stage with a lost input names ``max_attempts`` and ``discard``, which then let the stage go on."""
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="echo")(echo)
    pipeline.put("a", flow.rows(1))
    pipeline.put("a", flow.rows(2))
    pipeline.close()
    lose(flow, "a")
    with pytest.raises(StageFailedError, match=r"set it aside: with max_attempts=1, .* which pipeline.discard deletes"):
        pipeline.run(until="drained")
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="echo", max_attempts=1)(echo)
    assert pipeline.run(until="drained")
    assert (pipeline.discard("echo"), take(pipeline, "b"), flow.payloads()) == (1, [[2]], {})


# --- runs


@pytest.mark.parametrize("progress", [True, "text", 1])
def test_a_progress_that_is_no_function_is_refused(flow: Flow, progress: Any) -> None:
    """``run`` refuses a ``progress`` that it cannot call before it opens a queue; ``put`` and ``take`` before a wait
    and before Spark."""
    with pytest.raises(TypeError, match="progress must be a function of a stage's name and a Progress, or None, not"):
        flow.make().run(until="drained", progress=progress)
    words = "progress must be a function of a Progress, or None, not"
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="echo")(echo)
    with hand_off(flow, "h") as handoff:
        for call in (partial(handoff.put, flow.rows(1)), partial(pipeline.put, "b", flow.rows(1))):
            with pytest.raises(TypeError, match=words):
                call(progress=progress)
        for take_one in (partial(handoff.take, None), partial(pipeline.take, "b", None)):
            with pytest.raises(TypeError, match=words):
                take_one(progress=progress).__enter__()
    assert (flow.spark.writes, flow.payloads()) == (0, {})


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


def test_a_stage_of_an_interrupted_run_outlives_its_pipeline(flow: Flow, caplog: pytest.LogCaptureFixture) -> None:
    """A stage that fails behind the interrupted run, and the end of its pipeline, opens and records nothing.

    So the pipeline can be opened again, and takes the input.
    """
    pipeline, calls, may_end = flow.make(), [], threading.Event()

    @pipeline.stage(source="a", target="b", max_attempts=2)
    def work(frame: Any) -> Any:
        calls.append(frame.values)
        if len(calls) == 1:
            interrupt_twice(caplog, may_end)
            raise KeyError("too late")
        return frame

    with pytest.raises(KeyboardInterrupt), pipeline:
        pipeline.put("a", flow.rows(1))
        pipeline.run(until="drained")
    caplog.clear()
    may_end.set()
    for thread in threading.enumerate():
        if thread.name.startswith("pipeline "):
            thread.join(60)
    assert pipeline.run(until="drained")
    assert (calls, take(pipeline, "b"), caplog.messages) == ([[1], [1]], [[1]], [])


def test_a_closed_store_opens_no_queue(flow: Flow) -> None:
    """A thread that gives inputs up behind the end of the pipeline gets ``ClosedError``, and leaves no queue open."""
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="work", max_attempts=1)(echo)
    store = pipeline._opened().store
    pipeline.close()
    with pytest.raises(ClosedError, match="flow: the pipeline was closed"):
        store.letters("work")
    assert list_queues(flow.root) == ["a", "b"]


def test_several_threads_wait_for_a_last_edge(flow: Flow) -> None:
    """Each thread that waits in ``take`` gets a DataFrame within its timeout, however many others wait."""
    pipeline, threads = flow.make(), 8
    pipeline.stage(source="a", target="b", name="echo")(echo)
    pipeline.stats()
    taken: SimpleQueue[Any] = SimpleQueue()
    waiters = pipeline._opened().store.edges["b"].queue._open()._waiters

    def wait() -> None:
        with pipeline.take("b", 60) as stage:
            taken.put(stage and stage.df.collect())

    with ThreadPoolExecutor(threads) as pool:
        calls = [pool.submit(wait) for _ in range(threads)]
        found = []
        for number in range(threads):
            wait_for(lambda left=threads - number: waiters.count == left)  # type: ignore[misc]
            pipeline.put("b", flow.rows(number))
            found.append(taken.get(timeout=60))
        for call in calls:
            call.result(60)
    assert found == [[(number,)] for number in range(threads)]


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


class ConnectSession:
    """A session of Spark Connect that has settings, and tells nothing of its jobs."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self, interval: str | None) -> None:
        self.settings = {} if interval is None else {"spark.connect.progress.reportInterval": interval}
        self.handlers: list[object] = []
        self.registerProgressHandler, self.removeProgressHandler = self.handlers.append, self.handlers.remove

    @property
    def conf(self) -> ConnectSession:
        return self

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def unset(self, name: str) -> None:
        del self.settings[name]


@pytest.mark.parametrize("interval", [None, "70ms"])
def test_stages_at_the_same_time_leave_the_settings_as_they_are(interval: str | None) -> None:
    """Of several blocks that report in one session of Spark Connect, the last one restores its setting."""
    spark: Any = ConnectSession(interval)
    settings = dict(spark.settings)
    blocks = [ExitStack(), ExitStack()]
    for block in blocks:
        block.enter_context(progress_room.reporting(spark, lambda _: None))
    blocks[0].close()
    assert list(spark.settings.values()) == ["50ms"]
    blocks[1].close()
    assert (spark.settings, spark.handlers) == (settings, [])


class Stoppable(StandIn):
    """A stand-in with one running job; once it is stopped, all that it is asked fails, as for Spark."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopped = False

    @property
    def sparkContext(self) -> Stoppable:  # noqa: N802 - Spark's name
        return self

    def statusTracker(self) -> Stoppable:  # noqa: N802 - Spark's name
        return self

    def getLocalProperty(self, _: str) -> Any:  # noqa: N802 - Spark's name
        return self._answer(None)

    def setLocalProperty(self, *_: object) -> None:  # noqa: N802 - Spark's name
        self._answer(None)

    def getJobIdsForGroup(self, _: object) -> Any:  # noqa: N802 - Spark's name
        return self._answer([])

    def _answer(self, found: Any) -> Any:
        if self.is_stopped:
            raise AttributeError("'NoneType' object has no attribute 'sc'")
        return found


def test_a_block_of_take_may_stop_spark(flow: Flow) -> None:
    """If the block of ``take`` with a ``progress`` stops Spark at its end, the take is committed."""
    flow.spark = spark = Stoppable()
    seen: list[Progress] = []
    with hand_off(flow, "h") as handoff:
        handoff.put(flow.rows(1))
        with handoff.take(progress=seen.append):
            spark.is_stopped = True
        assert (list(handoff.waiting()), flow.payloads()) == ([], {})
    assert set(seen) <= {Progress(0, 0)}


def test_an_error_of_the_progress_of_take_releases(flow: Flow, tasks: Progress) -> None:
    """If the ``progress`` of ``take`` raises, also at the end of the block, the take is not committed."""
    seen: list[Progress] = []

    def fail(found: Progress) -> None:
        seen.append(found)
        raise KeyError("typo")

    with hand_off(flow, "h") as handoff:
        handoff.put(flow.rows(1))
        with pytest.raises(KeyError, match="typo"), handoff.take(progress=fail):
            pass
        assert (seen, len(list(handoff.waiting()))) == ([tasks], 1)
