"""Programs that use the library wrongly: wrong types, shared objects, calls after close, calls inside callbacks.

``python -m tests.crash misuse`` generates one program from each seed, and runs it in real threads on real files. Each
program has a ledger of the calls that were acknowledged. At its end the queues are closed, checked and opened again.

Promises for each program: a call returns, or raises an error that the documentation names. ``check`` finds no problem.
An acknowledged item is there exactly once, unless an acknowledged flush consumed it. No call hangs.

Threads make a run irreproducible, not its program: ``--repeat`` runs the program of a seed again and again.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from persistentqueue import DeadLetter, PersistentQueue, UnflushedWarning, View, check
from persistentqueue.interrupts.call_guard import FREE_THREADED

from .exploring import ViolationError
from .faces import FACES, run_face
from .wrong import (
    COUNTS,
    ITEMS,
    LISTS,
    MARKERS,
    NAMES,
    TIMEOUTS,
    WAITS,
    WRONG_ITEMS,
    Ledger,
    Program,
    Step,
    World,
    id_of,
    run_step,
)

MISUSE = "misuse"
"""Kind of planted bugs that directed programs find."""
HANG_SECONDS = 120.0
"""Time after which a program is considered to hang. Programs take milliseconds."""
_ADDRESS_SPACE_BYTES = 8 * 1024**3
"""Bytes of addresses that programs may take."""
_STYLES = {"core": 34, "typed": 20, "retries": 14, "together": 10, "compat": 14, "aio": 8}
_SESSIONS = {
    "enqueue": 20,
    "enqueue_many": 8,
    "dequeue": 18,
    "dequeue_many": 8,
    "flush": 22,
    "flush_all": 2,
    "rollback": 4,
    "close session": 1,
    "put_back": 3,
    "session": 2,
    "queue": 8,
    "subscribe": 1,
    "open": 1,
    "view": 2,
    "produce": 6,
}
_MORE = {"retries": {"reject": 8}, "together": {"together": 25}}
_HOWS: dict[str, tuple[str, ...]] = {
    "rollback": ("",),
    "close session": ("",),
    "flush_all": ("right", "twice", "number", "marker"),
    "session": ("keeps", "give up", "with", "closed"),
    "reject": ("retry", "last", "nan"),
    "subscribe": tuple(NAMES),
    "open": tuple(NAMES),
    "view": ("name", "peek", "times", "browse", "look"),
    "together": (
        *(["right"] * 6),
        *("twice", "subscription", "number", "none", "session", "closed inside", "marker", "raise", "nested"),
    ),
    "queue": (
        *("len", "stats", "explain", "trim", "compact", "maintain", "peek", "peek odd", "browse", "browse all"),
        *("resize", "resize odd", "marker", "marker odd", "wake", "view", "requeue odd", "dead letters", "wait odd"),
        *("subscriptions", "open again", "stop", "progress", "clear", "close"),
    ),
}


def generate(seed: int) -> Program:
    """Return the program of a seed."""
    random = Random(seed)
    style = random.choices(tuple(_STYLES), tuple(_STYLES.values()))[0]
    settings: dict[str, Any] = {
        "sync": style in {"retries", "together"} or random.random() < 0.3,
        "log_bytes": random.choice([1 << 14, 1 << 16]),
        "segment_bytes": random.choice([1 << 14, 1 << 18]),
        "memory_bytes": random.choice([0, 1 << 14, 1 << 22]),
    }
    if random.random() < 0.3:
        settings |= {"max_items": random.choice([3, 20]), "full": random.choice(["raise", "block"])}
    if style in FACES:
        steps = tuple(FACES[style](random) for _ in range(random.randint(1, 3)))
        return Program(seed, style, settings, True, random.choice([5e-3, 1e-5]), 0, steps)
    shares = random.random() < 0.5
    count = random.choice([1, 2, 2, 3])
    traced = 0
    if random.random() < 0.05:
        traced = random.randint(1, 800)
    threads = tuple(_steps(random, style, settings, thread, count, shares) for thread in range(count))
    return Program(seed, style, settings, shares, random.choice([5e-3, 1e-5]), traced, threads)


def _steps(
    random: Random, style: str, settings: dict[str, Any], thread: int, threads: int, shares: bool
) -> tuple[Step, ...]:
    weights = _SESSIONS | _MORE.get(style, {})
    steps = []
    for _ in range(random.randint(3, 10)):
        call = random.choices(tuple(weights), tuple(weights.values()))[0]
        target = random.randrange(2 * threads) if shares else 2 * thread + random.randrange(2)
        how = _how(random, call, may_wait=thread > 0, blocks=settings.get("full") == "block")
        hook = None
        if random.random() < (0.4 if style in {"typed", "retries"} else 0.15):
            hook = _hook(random, target, thread)
        steps.append(Step(call, target, how, hook))
    return tuple(steps)


def _how(random: Random, call: str, *, may_wait: bool, blocks: bool) -> str:
    """Return the arguments of a call. Most are right, since one wrong call among right ones finds most bugs."""
    is_right = random.random() < 0.65
    if call in {"enqueue", "produce"} and is_right:
        return random.choice(["bytes"] * 8 + list(ITEMS)) if call == "enqueue" or random.random() < 0.5 else "None"
    if call == "enqueue":
        return random.choice([*ITEMS, *WRONG_ITEMS])
    if call == "produce":
        return random.choice([*ITEMS, *WRONG_ITEMS, *MARKERS, "many", "close"])
    if call == "enqueue_many":
        return random.choice(LISTS)
    if call == "dequeue":
        return "0.0" if is_right else random.choice([*TIMEOUTS, *(WAITS if may_wait else ())])
    if call in {"dequeue_many", "put_back"}:
        return random.choice(["one", "many"]) if is_right else random.choice(tuple(COUNTS))
    if call == "flush":
        waits = "0" if blocks else ""
        marker = "None" if is_right else random.choice(tuple(MARKERS))
        later = "/later" if random.random() < 0.2 else ""
        return f"{marker}/{waits if random.random() < 0.9 else random.choice(tuple(TIMEOUTS))}{later}"
    return random.choice(_HOWS[call])


def _hook(random: Random, target: int, thread: int) -> Step:
    """Return the action of the first callback in a call."""
    kind = random.random()
    if kind < 0.3:
        return Step("raise", 0, "", None)
    if kind < 0.4:
        return Step("wrong", 0, random.choice(["text", "none", "bytearray", "float"]), None)
    inner = random.choice(["enqueue", "dequeue", "dequeue_many", "flush", "rollback", "close session", "queue"])
    how = _how(random, inner, may_wait=False, blocks=True)
    same = target if random.random() < 0.6 else 2 * thread + random.randrange(2)
    return Step(inner, same, how, None)


def _directed(style: str, *steps: tuple[str, str] | tuple[str, str, Step], threads: int = 1) -> Program:
    made = tuple(Step(call, 0, how, *(hook or (None,))) for call, how, *hook in steps)
    settings = {"sync": style in {"retries", "together"}, "log_bytes": 1 << 14}
    return Program(-1, style, settings, threads > 1, 1e-5, 0, (made,) * threads)


def directed() -> list[Program]:
    """Return programs of one misuse each, which find the planted bugs of this kind in any order of threads."""
    right = ("enqueue", "bytes"), ("flush", "None/")
    return [
        _directed("core", ("enqueue", "huge"), ("produce", "huge"), *right),
        *(_directed("core", *right, ("enqueue", "bytes"), ("flush", f"{marker}/"), *right) for marker in MARKERS),
        _directed(
            "typed",
            *(("enqueue_many", "list"), ("flush", "None/")),
            *(("dequeue_many", "many", Step("raise", 0, "", None)), ("flush", "None/")),
        ),
        # Threads share one session: without its guard, two of its commits contradict each other within a few rounds.
        _directed("core", *[*right, ("dequeue", "0.0"), ("flush", "None/")] * 60, threads=4),
        _directed("core", *right, ("session", "with"), *right),  # a block that ends without a flush is only warned of
        *(_directed("together", ("together", how), *right) for how in dict.fromkeys(_HOWS["together"])),
    ]


# --- running ---------------------------------------------------------------------------------------------------------


def run_program(program: Program) -> None:
    """Run a program, and check the queues after it. Raises ``ViolationError``."""
    shared = "/dev/shm"
    root = tempfile.mkdtemp(prefix="misuse-", dir=shared if os.access(shared, os.W_OK) else None)
    switches = sys.getswitchinterval()
    sys.setswitchinterval(program.switches)
    try:
        with _watched(program), warnings.catch_warnings():
            for kind in (ResourceWarning, UnflushedWarning):  # programs drop work on purpose
                warnings.simplefilter("ignore", kind)
            if program.style in FACES:
                run_face(program, root)
            else:
                _run_core(program, root)
    except ViolationError as error:
        raise ViolationError(
            f"{error}\n{program!r}\nreplay: misuse --first {program.seed} --count 1 --repeat 100"
        ) from error
    except Exception as error:
        found = "".join(traceback.format_exception(error))
        raise ViolationError(
            f"{found}{program!r}\nreplay: misuse --first {program.seed} --count 1 --repeat 100"
        ) from error
    finally:
        sys.setswitchinterval(switches)
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _watched(program: Program) -> Iterator[None]:
    """End the process, with the stacks of all threads, if the program hangs."""

    def hung() -> None:
        print(f"tests.crash.exploring.ViolationError: HANG of {HANG_SECONDS} s\n{program!r}", file=sys.stderr)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        sys.stderr.flush()
        os._exit(3)

    timer = threading.Timer(HANG_SECONDS, hung)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _run_core(program: Program, root: str) -> None:
    world = World(program, root)
    logger = logging.getLogger("persistentqueue")
    logger.addHandler(world.handler)
    threads = [
        threading.Thread(target=_run_thread, args=(world, steps, number == 0 and program.traced))
        for number, steps in enumerate(program.threads)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread, steps in zip(threads, program.threads, strict=True):
            if not any(step.how in WAITS for step in steps if step.call == "dequeue"):
                thread.join()
        world.close()  # ends the calls that wait without end
        for thread in threads:
            thread.join()
    finally:
        logger.removeHandler(world.handler)
    world.end()
    _require_named(world.bare)
    del world.sessions[:]
    _require_sound(world, root)


def _run_thread(world: World, steps: tuple[Step, ...], traced: int) -> None:
    before = sys.gettrace()  # a measurement of coverage may have set it
    if traced:
        sys.settrace(_tracer(world, traced))
    try:
        for step in steps:
            run_step(world, step)
    finally:
        if traced:
            sys.settrace(before)


def _tracer(world: World, at: int) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace function that makes calls before one line of the package, like a signal handler.

    In the short way of a dequeue that holds the mutex, the trace function runs, but a signal handler does not: that
    code makes no call. A test of the sessions checks its bytecode. At the places where a signal handler does run, the
    queue refuses the calls.
    """
    left = [at]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if "persistentqueue" not in frame.f_code.co_filename or left[0] <= 0:
            return None
        if event == "line":
            left[0] -= 1
            if not left[0]:
                sys.settrace(None)
                for call, how in (("queue", "len"), ("enqueue", "bytes"), ("flush", "None/0"), ("dequeue", "0.0")):
                    run_step(world, Step(call, 0, how, None))
        return trace

    return trace


def _require_named(bare: list[tuple[object, BaseException]]) -> None:
    if bare:
        step, error = bare[0]
        found = "".join(traceback.format_exception(error))
        raise ViolationError(f"an error that no documentation names, from {step!r}:\n{found}")


def _require_sound(world: World, root: str) -> None:
    """Check the directories, open the queues again, and compare their items with the ledger."""
    _require_check(f"{root}/a")
    _require_check(f"{root}/b")
    ledger = Ledger(world.notes)
    with PersistentQueue(root, "b", create=False) as queue:
        found = list(queue.browse())
    dead: dict[str, list[bytes]] = {}
    for item in found:
        if item.startswith(b"{"):
            letter = DeadLetter.decode(item)
            dead.setdefault(letter.subscription, []).append(id_of(letter.item))
    ledger.require("b", "", [id_of(item) for item in found if not item.startswith(b"{")])
    with PersistentQueue(root, "a", create=False) as queue:
        with queue.session() as session:
            session.dequeue()  # adopts publications of the producers
            session.rollback()
        for consumer in ("", "s"):
            left = [id_of(item.data) for item in View(root, "a").browse(consumer)]
            ledger.require("a", consumer, left + dead.get(consumer, []))
    _require_check(f"{root}/a")


def _require_check(directory: str) -> None:
    report = check(directory)
    if not report.ok:
        raise ViolationError(f"check of {directory}: {report.problems}")


# --- the campaign ----------------------------------------------------------------------------------------------------


def run_misuse(first: int, count: int, repeat: int = 1) -> str:
    """Run the programs of ``count`` seeds, each ``repeat`` times; return a summary. Raises ``ViolationError``."""
    return run_programs(map(generate, range(first, first + count)), repeat)


def _taken_bytes() -> int:
    """Return the bytes of addresses that a free-threaded Python has taken for its threads: gibibytes; else 0."""
    if not FREE_THREADED:
        return 0
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def run_programs(programs: Iterable[Program], repeat: int = 1) -> str:
    """Run these programs, each ``repeat`` times; return a summary. Raises ``ViolationError``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    # An item of 4 GiB must not be copied.
    resource.setrlimit(resource.RLIMIT_AS, (_taken_bytes() + _ADDRESS_SPACE_BYTES, hard))
    began, calls, count = time.monotonic(), 0, 0
    try:
        for program in programs:
            for _ in range(repeat):
                run_program(program)
                calls += sum(map(len, program.threads))
                count += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    seconds = time.monotonic() - began
    return (
        f"{count} programs, {calls} calls, 0 unsound directories, 0 bare errors, 0 hangs, 0 items lost or "
        f"doubled; {seconds:.1f} s"
    )
