"""Misuse as a fault: wrong types, shared objects, calls after close, calls in callbacks, hostile files.

The campaigns in full are commands: ``python -m tests.crash misuse`` and ``python -m tests.crash fuzz --kind files``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import PersistentQueue, PersistentQueueError, Session
from persistentqueue.compat import Queue
from tests.crash import hostile
from tests.crash.exploring import ViolationError
from tests.crash.fuzz import fuzz_files
from tests.crash.misuse import directed, generate, run_misuse, run_program, run_programs
from tests.crash.wrong import Ledger, Note, Program, Step, World, is_named, run_step

QueueFactory = Callable[..., PersistentQueue[Any]]


def program(*steps: Step, style: str = "core") -> Program:
    """Return a program of one thread."""
    settings = {"sync": False, "log_bytes": 1 << 14}
    return Program(-1, style, settings, False, 5e-3, 0, (steps,))


def step(call: str, how: str = "", target: int = 0, hook: Step | None = None) -> Step:
    """Return a step that makes one call, by default of the first session."""
    return Step(call, target, how, hook)


# --- the campaigns ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 100_000])
def test_item_4_misuse_ends_in_a_named_error_or_a_right_result(first: int) -> None:
    """Programs of wrong calls lose no item, double none, and raise only errors that the documentation names."""
    assert "60 programs" in run_misuse(first, 60)


def test_item_4_the_directed_programs_find_nothing() -> None:
    """The programs that find the planted bugs pass on the package as it is."""
    assert "0 unsound directories" in run_programs(directed())


def test_item_5_hostile_files_are_refused_or_served() -> None:
    """Planted files change nothing outside the directory, and lead to a result or to a named error."""
    assert "0 violations" in fuzz_files(12)


def test_item_4_a_seed_decides_its_program() -> None:
    """A seed always gives the same program, so that a violation can be run again."""
    assert [generate(seed) for seed in range(50)] == [generate(seed) for seed in range(50)]


# --- the harness can fail --------------------------------------------------------------------------------------------


def test_item_4_the_ledger_notices_a_lost_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directed program finds a session that consumes items which its caller never got."""
    monkeypatch.setattr(Session, "_give_back", lambda self, count: None)
    directed = program(
        step("enqueue_many", "list"),
        step("flush", "None/"),
        step("dequeue_many", "many", hook=step("raise")),
        step("flush", "None/"),
        style="typed",
    )
    with pytest.raises(ViolationError, match="lost"):
        run_program(directed)
    monkeypatch.undo()
    run_program(directed)


def test_item_4_the_campaign_notices_a_bare_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that the documentation does not name is a violation."""
    monkeypatch.setattr(Session, "rollback", lambda self: self.bare)
    with pytest.raises(ViolationError, match="no documentation names"):
        run_program(program(step("rollback")))


@pytest.mark.parametrize(
    ("kinds", "found", "complaint"),
    [
        (("enqueue", "flush"), [b"1.1"], None),
        (("enqueue", "flush"), [], "lost"),
        (("enqueue", "flush"), [b"1.1", b"1.1"], "there twice"),
        (("enqueue", "rollback"), [b"1.1"], "there without a flush"),
        (("enqueue", "rollback"), [], None),
        (("enqueue", "maybe"), [], None),
        (("enqueue", "flush", "dequeue", "flush"), [b"1.1"], "consumed and there"),
        (("enqueue", "flush", "dequeue", "flush"), [], None),
        (("enqueue", "flush", "dequeue", "rollback"), [], "lost"),
        (("enqueue", "flush", "dequeue", "flush", "dequeue", "flush"), [], "consumed twice"),
    ],
)
def test_item_4_the_ledger_tells_what_must_be_there(
    kinds: tuple[str, ...], found: list[bytes], complaint: str | None
) -> None:
    """The ledger knows from acknowledged calls which items must be in the queue, and which must not."""
    world: Any = None
    notes = [
        Note(
            world, kind, ("a", "", 0), [b"1.1;"] if kind in {"enqueue", "dequeue"} else [], 2 * at, 2 * at + 1, ok=True
        )
        for at, kind in enumerate(kinds, 1)
    ]
    if complaint is None:
        Ledger(notes).require("a", "", found)
    else:
        with pytest.raises(ViolationError, match=complaint):
            Ledger(notes).require("a", "", found)


def test_item_4_a_call_that_overlaps_a_flush_is_uncertain() -> None:
    """An item that another thread enqueued during a flush may be in the queue or not."""
    world: Any = None
    key = ("a", "", 0)
    notes = [Note(world, "enqueue", key, [b"1.1;"], 1, 4, ok=True), Note(world, "flush", key, [], 2, 3, ok=True)]
    for found in ([], [b"1.1"]):
        Ledger(notes).require("a", "", found)


# --- what the campaign found -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sessions", [[3], [None], ["session"]])
def test_item_4_flush_all_of_no_session(open_queue: QueueFactory, sessions: Any) -> None:
    """``flush_all`` refuses an object that is not a session with a ``TypeError``."""
    with pytest.raises(TypeError, match="takes sessions of this queue"):
        open_queue().flush_all(sessions)


@pytest.mark.parametrize("timeout", [inf, 1e300, 10**400])
def test_item_4_a_timeout_beyond_all_clocks(tmp_path: Path, threads: ThreadPoolExecutor, timeout: float) -> None:
    """``put`` and ``get`` of ``compat.Queue`` take a timeout beyond all clocks, and end when there is room or an
    item."""
    with Queue[Any](tmp_path / "queue", 1) as queue:
        queue.put(1, timeout=timeout)
        putting = threads.submit(queue.put, 2, True, timeout)
        assert queue.get(timeout=1e9) == 1
        putting.result(60)
        assert queue.get(timeout=1e9) == 2


@pytest.mark.parametrize("how", ["one", "three", "number", "version text", "bytes", "far", "object", "empty", "long"])
def test_item_4_a_marker_of_another_type(tmp_path: Path, how: str) -> None:
    """A marker that is not a name and a version is refused, and the session keeps its items for the next flush."""
    world = World(program(), str(tmp_path))
    try:
        for each in (step("enqueue", "bytes"), step("flush", f"{how}/"), step("flush", "None/")):
            run_step(world, each)
        assert not world.bare
        assert len(world.a) == 1
        assert [note.ok for note in world.notes] == [True, False, True]
    finally:
        world.sessions.clear()
        world.close()
        world.end()


def test_item_4_an_item_of_more_than_4_gib() -> None:
    """An item that is too large raises ``ItemTooLargeError`` before anything of it is copied."""
    run_program(program(step("enqueue", "huge"), step("produce", "huge"), step("flush", "None/")))


def test_item_4_a_codec_that_closes_its_session(tmp_path: Path) -> None:
    """A codec that closes or flushes its session in the middle of a call costs no item of another call."""
    directed = program(
        step("enqueue_many", "list"),
        step("flush", "None/"),
        step("dequeue", "0.0", hook=step("close session")),
        step("enqueue", "bytes", hook=step("flush", "None/0")),
        style="typed",
    )
    run_program(directed)


def test_item_4_named_errors() -> None:
    """Documented errors count as named, and bare errors do not."""
    assert is_named(ValueError("documented"))
    assert is_named(PersistentQueueError("documented"))
    assert not any(map(is_named, (KeyError(), AttributeError(), OverflowError(), AssertionError(), MemoryError())))


# --- hostile files ---------------------------------------------------------------------------------------------------


@pytest.mark.damages
@pytest.mark.parametrize("place", ["lock", "log/000000000001.log", "log/log.free", "data.path", "inbox/junk", "data"])
@pytest.mark.parametrize("thing", ["link", "dangling link"])
def test_item_5_no_link_is_written_through(tmp_path: Path, place: str, thing: str) -> None:
    """A link in any place of the directory leads no call out of it: the files behind the link stay as they were."""
    root, outside = tmp_path / "root", tmp_path / "secret"
    (outside / "directory").mkdir(parents=True)
    (outside / "file").write_bytes(b"mine")
    with PersistentQueue(root, "q") as queue, queue.session() as session:
        session.enqueue(b"item")
        session.flush()
    assert hostile.plant(root / "q" / place, thing, outside)
    for entry in ("owner", "producer", "view", "check", "repair"):
        with suppress(PersistentQueueError, OSError):
            hostile.ENTRIES[entry](str(root))
        assert (outside / "file").read_bytes() == b"mine"
        assert sorted(each.name for each in outside.iterdir()) == ["directory", "file"]
