"""The run of a pipeline: which stage runs next, on which thread, and when the run ends.

One thread decides: that of ``run``. It looks at all stages, starts those that may run on threads of the run, and sleeps
until an event or the next due time. A stage runs once at a time. Of the stages that may run, those nearest to the end
of the graph come first, so that little waits in between.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Literal, NamedTuple

from persistentqueue import PersistentQueueError
from persistentqueue.interrupts.locks import RLock

from ..progress import Progress
from ..sessions import SparkStoppedError
from .letters import brief
from .stage import OpenStage
from .store import AbandonedError, Permit, Store

Until = Literal["drained"] | float | Callable[[], bool] | None
"""The end of a run: nothing is left to do, seconds, a function that returns true, or never."""
Report = Callable[[str, Progress], None]
_LOGGER = logging.getLogger("persistentqueue.spark")
_LOOK_SECONDS = 0.5
"""Longest time between two looks at the stages: a signal or ``until`` may have ended the run."""


class StageFailedError(PersistentQueueError, RuntimeError):
    """A stage failed, and no other attempt follows. Its inputs still wait.

    ``__cause__`` is the error of the stage, with its whole text. The message has the text without the stack traces of
    Java.

    With ``max_attempts``, the stage could not begin an attempt, or could not write the letter after the last one. Or
    Spark has stopped: then ``__cause__`` is a ``SparkStoppedError``, and an attempt that was under way counts.
    """

    def __init__(self, stage: str, error: Exception) -> None:
        self.stage = stage
        """Name of the stage."""
        advice = "correct it and run the pipeline again; max_attempts= sets inputs aside that always fail"
        if isinstance(error, SparkStoppedError):
            advice = "make a new session, and run the pipeline again with it"
        super().__init__(
            f"stage {stage!r} failed, {type(error).__name__}: {brief(error)}: nothing was consumed: {advice}"
        )


class _Task(NamedTuple):
    """An attempt that a thread of the run shall make."""

    stage: OpenStage
    period: int | None
    """The period of its schedule that is the reason; None if an input is."""


class Scheduler:
    """The stages of an open pipeline, and their runs. ``run`` is for one thread at a time, the others are for any.

    Args:
        store: The queues.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.stages = [OpenStage(each, store) for each in store.graph.downstream_first()]
        """The stages, downstream first."""
        self._mutex = RLock()
        """A signal handler may stop a run, so it is also for code that interrupts its owner."""
        self._changed = threading.Condition(self._mutex)
        self._running: set[str] = set()
        self._retry_at: dict[str, float] = {}
        """Monotonic times before which a stage that has failed may not run."""
        self._periods: dict[str, int] = {}
        """The periods in which stages without a source began their last looks at the marker."""
        self._drains = False
        """Whether the run ends when it is drained."""
        self._is_alone = False
        """Whether a stage is running that must be alone."""
        self._failure: BaseException | None = None
        self._is_active = self._is_stopped = False

    def wake(self) -> None:
        """Let the run look at the stages now, since something has changed."""
        with self._mutex:
            self._changed.notify_all()

    def stop(self) -> None:
        """End the run after the stages that are running."""
        self._is_stopped = True
        self.wake()

    def state(self, stage: OpenStage) -> str:
        """Return the state of a stage, in one word."""
        if stage.name in self._running:
            return "running"
        if stage.has_failed:
            return "failed"
        if stage.has_input() or stage.is_blocked():
            return "blocked" if stage.has_full_target() else "ready"
        return "idle" if stage.definition.sources else "scheduled"

    def run(self, until: Until, parallel: int, progress: Report | None) -> bool:
        """Run the stages until the end that ``Pipeline.run`` describes; return whether that end was reached."""
        with self._mutex:
            if self._is_active:
                raise PersistentQueueError("the pipeline runs in another thread: call stop(), and wait for its end")
            self._is_active, self._is_stopped, self._failure = True, False, None
            self._drains = until == "drained"
            for stage in self.stages:
                stage.blocked = None
            self._retry_at.clear()
            self._periods.clear()
        permit = Permit()
        report = None if progress is None else self._ending_the_run(progress, permit)
        tasks: SimpleQueue[_Task | None] = SimpleQueue()
        threads = [
            threading.Thread(target=self._work, args=(tasks, permit, report), name=f"pipeline {number}", daemon=True)
            for number in range(parallel)
        ]
        started: list[threading.Thread] = []
        try:
            for thread in threads:
                thread.start()
                started.append(thread)
            with _interruptible(self.stop, permit):
                reached = self._loop(until, tasks, parallel)
        except KeyboardInterrupt:
            self.store.withdraw(permit)  # the threads end when their jobs do, and commit nothing
            for stage in self.stages:
                if stage.name in self._running:  # now, since the process may end before the thread does
                    stage.excuse()
            raise
        finally:
            for _ in started:
                tasks.put(None)
            if not permit.is_withdrawn:
                for thread in started:
                    thread.join()
            self._is_active = False
        self._raise_failure()
        return reached

    def _raise_failure(self) -> None:
        """Raise the error that has ended the run, if there is one, and keep it no more: it has the frames of the
        function."""
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # no cycle of the error, its traceback, and this frame

    def _ending_the_run(self, progress: Report, permit: Permit) -> Report:
        """Return ``progress``, with errors that end the run and not the attempt. It is not called behind an error.

        The stage whose progress it is has no fault, so its inputs may not become a letter.
        """
        has_failed = False

        def report(stage: str, found: Progress) -> None:
            """Call ``progress``."""
            nonlocal has_failed
            if has_failed:
                return
            try:
                progress(stage, found)
            except BaseException as error:
                has_failed = True
                with self._mutex:
                    self._fail(error, permit)
                    self._changed.notify_all()

        return report

    def _fail(self, error: BaseException | None, permit: Permit) -> None:
        """Let the first error of a run end it. An abandoned run concerns no later one."""
        if not permit.is_withdrawn:
            self._failure = self._failure or error

    def _loop(self, until: Until, tasks: SimpleQueue[_Task | None], parallel: int) -> bool:
        begun, reached, was_told = time.monotonic(), False, False
        while True:
            reached = reached or _is_over(until, time.monotonic() - begun)
            if self._is_stopped and not was_told:
                was_told = True
                _LOGGER.warning("the pipeline ends after the running stages")
            with self._mutex:
                ends = reached or self._is_stopped or self._failure is not None
                is_drained = None if ends else self._start(tasks, parallel)
                if not self._running:
                    if ends:
                        return reached
                    if until == "drained" and is_drained is not None:
                        return is_drained
                self._changed.wait(self._sleep_seconds(until, begun))

    def _start(self, tasks: SimpleQueue[_Task | None], parallel: int) -> bool | None:
        """Start the stages that may run.

        Returns None if a stage is running, or waits for its next attempt. Otherwise nothing will happen without a
        change from outside: True if all inputs are taken, False if a full target holds a stage back.
        """
        if self._is_alone:
            return None
        now, is_drained, is_delayed = time.monotonic(), True, False
        ready: list[_Task] = []
        for stage in self.stages:
            has_input = stage.has_input()
            period = None if has_input else self._due(stage)
            if stage.name in self._running or not (has_input or period is not None):
                continue
            if now < self._retry_at.get(stage.name, 0.0):
                is_delayed = True
            elif (has_input or stage.is_blocked()) and stage.has_full_target():
                is_drained = False  # a schedule alone says nothing: an attempt looks whether its marker is recorded
            else:
                ready.append(_Task(stage, period))
        alone = next((task for task in ready if parallel > 1 and task.stage.must_be_alone()), None)
        if alone is not None:  # nothing else begins, so that its turn comes
            ready = [] if self._running else [alone]
            self._is_alone = not self._running
        for task in ready[: max(parallel - len(self._running), 0)]:
            self._running.add(task.stage.name)
            tasks.put(task)
        return None if self._running or is_delayed else is_drained

    def _due(self, stage: OpenStage) -> int | None:
        """Return the period of now for a stage without a source that has not begun in it; None for others.

        It is a period of the clock of the system, which goes on while the machine sleeps. Without a period, the stage
        runs once in a run.
        """
        if stage.definition.sources:
            return None
        period = _period_of_now(stage)
        return None if self._periods.get(stage.name) == period else period

    def _sleep_seconds(self, until: Until, begun: float) -> float:
        times = [*self._retry_at.values()]
        if isinstance(until, int | float):
            times.append(begun + until)
        now, now_ns = time.monotonic(), time.time_ns()
        periods = (stage.definition.period_ns for stage in self.stages)
        schedules = ((each - now_ns % each) / 1e9 for each in periods if each is not None)
        return min([_LOOK_SECONDS, *schedules, *(at - now for at in times if at > now)])

    def _work(self, tasks: SimpleQueue[_Task | None], permit: Permit, progress: Report | None) -> None:
        """Make attempts, on a thread of the run, until the run ends.

        The last attempt may outlive an abandoned run. Until it ends, its stage counts as running in the next run, which
        its outcome does not concern.
        """
        while (task := tasks.get()) is not None:
            name = task.stage.name
            failure, retry_at = _outcome(task.stage, permit, progress)
            with self._mutex:
                self._running.discard(name)
                self._is_alone = False
                if not permit.is_withdrawn:
                    self._retry_at[name] = retry_at
                    if task.period is not None and not retry_at and task.stage.blocked is None:
                        # A run until it is drained has an end, also if the next period has begun meanwhile.
                        self._periods[name] = _period_of_now(task.stage) if self._drains else task.period
                self._fail(failure, permit)
                del failure  # no cycle of the error, its traceback, and this frame
                self._changed.notify_all()


def _outcome(stage: OpenStage, permit: Permit, progress: Report | None) -> tuple[BaseException | None, float]:
    """Make an attempt; return the error that ends the run, or None, and the monotonic time of the next attempt.

    It returns each error, also one of the judgement: the run waits for the thread.
    """
    try:
        try:
            stage.attempt(permit, None if progress is None else partial(progress, stage.name))
        except AbandonedError:
            stage.excuse()
        except Exception as error:
            if isinstance(error, SparkStoppedError):
                stage.forget_session()
            return _judge(stage, error)
    except BaseException as failure:
        return failure, 0.0
    return None, 0.0


def _judge(stage: OpenStage, error: Exception) -> tuple[BaseException | None, float]:
    """Return the error that ends the run, or None and the monotonic time of the next attempt."""
    if stage.is_final(error):
        return error, 0.0
    if not stage.may_retry:
        failure = StageFailedError(stage.name, error)
        failure.__cause__ = error
        return failure, 0.0
    try:
        seconds = stage.definition.retry_seconds(stage.failures)
    except Exception as wrong:  # from a function of the user
        return wrong, 0.0
    _LOGGER.warning(
        "stage %r failed at attempt %d of %d, and runs again in %.1f s: %s: %s",
        stage.name,
        stage.failures,
        stage.definition.max_attempts,
        seconds,
        type(error).__name__,
        brief(error),
    )
    return None, time.monotonic() + seconds


def _period_of_now(stage: OpenStage) -> int:
    period_ns = stage.definition.period_ns
    return 0 if period_ns is None else time.time_ns() // period_ns


def _is_over(until: Until, seconds: float) -> bool:
    if callable(until):
        return bool(until())
    return isinstance(until, int | float) and seconds >= until


@contextmanager
def _interruptible(stop: Callable[[], None], permit: Permit) -> Iterator[None]:
    """Let the first Ctrl-C call ``stop``, and each further one do what it did before. In the main thread only.

    The second one abandons the run first: Spark's own handler cancels jobs, which is no fault of the stages.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in {None, signal.SIG_IGN}:
        yield
        return
    is_first = True

    def handle(number: int, frame: FrameType | None) -> None:
        """Call ``stop`` at the first signal, and interrupt at each further one."""
        nonlocal is_first
        if is_first:
            is_first = False
            stop()
            return
        permit.is_withdrawn = True
        if callable(before):
            before(number, frame)  # that of Spark cancels its jobs
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
