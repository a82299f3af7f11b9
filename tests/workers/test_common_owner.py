"""Several queues of a directory have one owner, so that a transaction over them works in any process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
    DeadLetter,
    NotServedError,
    PersistentQueue,
    SessionLostError,
    View,
    connect,
    transaction,
)
from persistentqueue.interprocess.questions import ask
from persistentqueue.serving.calls import CONNECTED_TEXT, LEAVING_TEXT, OWN_NEIGHBOUR, UNKNOWN_TEXT
from persistentqueue.serving.server import Server
from persistentqueue.system.disk import DISK
from persistentqueue.workers import SharedQueue, common_owner
from persistentqueue.workers.common_owner import PATIENCE_SECONDS
from persistentqueue.workers.worker_session import WorkerSession
from tests.support.disks import using_disk
from tests.support.queues import wait_for
from tests.support.worker_processes import CallError, Colleague

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and signals")
LONG_SECONDS = 20.0
"""Bound on each measured time: nothing waits as long as ``lock_timeout``, which is a minute."""

Start = Callable[..., Colleague]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a process, which connects to the queues of these names, in this order."""
    with ExitStack() as stack:

        def begin(*names: str, **settings: Any) -> Colleague:
            made = stack.enter_context(Colleague(tmp_path, names[0], **settings))
            made.result()
            for name in names[1:]:
                made.call("connect", name)
            return made

        yield begin


def test_the_first_that_connects_owns_all(start: Start) -> None:
    """A process that connects to the queues later moves items between them at once."""
    first, second = start("in", "out"), start("in", "out")
    assert (first.call("owned"), second.call("owned")) == (["in", "out"], [])
    second.call("enqueue", b"1")
    second.call("flush")
    assert second.call("move", "in", "out") == b"1"
    assert first.call("move", "out", "in") == b"1"


def test_a_process_gives_up_dead_letters_to_their_queue(tmp_path: Path) -> None:
    """A process may connect to the dead letters before it connects to their queue, unless it has sessions of them."""
    with connect(tmp_path, "dead") as dead:
        with dead.session(), pytest.raises(NotServedError, match='or connect to it there with serve="never"'):
            connect(tmp_path, "queue", dead_letter="dead", lock_timeout=0.1)
        with connect(tmp_path, "queue", dead_letter="dead") as queue:
            assert (queue.owns, dead.owns) == (True, False)
            with queue.transaction() as session:
                session.enqueue(b"item")
            with queue.transaction() as session:
                assert session.dequeue() == b"item"
                session.reject(b"item", retry=False)
            assert len(dead) == 1
        assert len(dead) == 1
        assert dead.owns


@pytest.mark.parametrize(("asked", "at_once"), [("in", ["in"]), ("out", ["in", "out"])])
def test_the_process_that_takes_over_one_queue_owns_all(start: Start, asked: str, at_once: list[str]) -> None:
    """After the death of the owner, the process that looks for one of its queues first is the owner of all.

    It owns the first queue by name before the others.
    """
    first, second, third = (start("in", "out") for _ in range(3))
    first.kill()
    second.call("reach", asked)
    assert second.call("owned") == at_once
    assert third.call("move", "in", "out") is None
    assert (second.call("owned"), third.call("owned")) == (["in", "out"], [])


def test_processes_that_take_over_at_once_have_one_owner(start: Start) -> None:
    """If two processes each look for another queue of a dead owner, one of them owns both."""
    for _ in range(5):
        first, second, third = (start("in", "out") for _ in range(3))
        first.kill()
        second.begin("reach", "out")
        third.begin("reach", "in")
        second.result()
        third.result()
        assert sorted([second.call("owned"), third.call("owned")]) == [[], ["in", "out"]]
        assert second.call("move", "in", "out") is None
        assert third.call("move", "in", "out") is None
        second.kill()
        third.kill()


def owner_of(path: Path) -> int | None:
    """Return the process that owns the queue ``in``, or owned it last."""
    owner = View(path, "in").look().owner
    return None if owner is None else owner[0]


def test_no_item_is_lost_or_doubled_while_owners_are_killed(tmp_path: Path, start: Start) -> None:
    """Processes move items between two queues, and each owner is killed: each item is in one of them, without an error.

    The others go on. They only raise ``SessionLostError``, for the block under way.
    """
    items = [b"%d" % number for number in range(40)]
    with PersistentQueue(tmp_path, "in") as queue, queue.transaction() as session:
        session.enqueue_many(items)
    team = [start("in", "out") for _ in range(5)]
    for each in team:
        each.begin("move on", "in", "out")
    for _ in range(3):
        assert all(each.is_silent(0.1) for each in team)
        owner = next(each for each in team if each.pid == owner_of(tmp_path))
        team.remove(owner)
        owner.kill()
        wait_for(lambda: owner_of(tmp_path) in {each.pid for each in team})
    for each in team:
        each.begin("owned")
    assert sum(each.result() for each in team) > 0
    owned = [each.result() for each in team]
    assert sorted(owned) == [[], ["in", "out"]]
    found = team[0].call("peek", 99) + team[0].call("peek of", "out", 99)
    assert sorted(found) == sorted(items)


def test_the_owner_of_the_first_queue_is_asked_to_own_another_one(start: Start) -> None:
    """An owner that waits for nothing becomes the owner of a further queue, whose owner has ended."""
    owner = start("out")
    leading = start("in", "out")
    worker = start("in", "out")
    assert (owner.call("owned"), leading.call("owned"), worker.call("owned")) == (["out"], ["in"], [])
    leading.call("enqueue", b"1")
    leading.call("flush")
    with pytest.raises(CallError, match=r"ValueError.*one owner"):
        worker.call("move", "in", "out")
    owner.kill()
    assert worker.call("move", "in", "out") == b"1"
    assert (leading.call("owned"), worker.call("owned")) == (["in", "out"], [])


def test_an_owner_that_is_asked_has_its_time(tmp_path: Path, start: Start) -> None:
    """If the lock of the queue is not free yet, the owner that was asked owns the queue when it is free."""
    owner = start("out")
    leading, worker = start("in", "out"), start("in", "out")
    owner.kill()
    with PersistentQueue(tmp_path, "out", lock_timeout=LONG_SECONDS):
        worker.begin("reach", "out")
        assert worker.is_silent(3 * PATIENCE_SECONDS)
    worker.result()
    assert (leading.call("owned"), worker.call("owned")) == (["in", "out"], [])


def test_an_owner_that_does_not_know_the_queue_is_not_waited_for_long(start: Start) -> None:
    """A process owns a queue that the owner of the others has not connected to, after a short wait."""
    owner, worker = start("in"), start("in")
    began = time.monotonic()
    worker.call("connect", "out")
    assert PATIENCE_SECONDS <= time.monotonic() - began < LONG_SECONDS
    assert (owner.call("owned"), worker.call("owned")) == (["in"], ["out"])


def test_an_owner_that_hangs_does_not_keep_others_from_another_queue(start: Start) -> None:
    """If the owner of the first queue is stopped, a process owns another queue itself."""
    owner, worker = start("in"), start("in")
    owner.stop()
    began = time.monotonic()
    worker.call("connect", "out")
    assert time.monotonic() - began < LONG_SECONDS
    assert worker.call("owned") == ["out"]
    owner.go_on()


def test_many_owners_that_hang_are_not_all_asked(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process asks no more owners when the time of the first answer is over."""
    names = [f"in{number}" for number in range(9)]
    start(*names)
    asked, now = [], [0.0]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(connect(tmp_path, name))

        def hang(*_: object, **arguments: object) -> None:
            """Answer as a process that is stopped."""
            asked.append(arguments)
            now[0] += PATIENCE_SECONDS

        monkeypatch.setattr(common_owner, "ask", hang)
        disk = replace(DISK, monotonic=lambda: now[0])
        assert not common_owner.Candidacy(disk, str(tmp_path / "out"), "").may_own()
    assert len(asked) == 1


def test_a_short_lock_timeout_is_enough_beside_an_owner_that_hangs(start: Start) -> None:
    """If the questions take as long as ``lock_timeout``, the process owns the queue at its end."""
    owner, worker = start("in"), start("in", lock_timeout=PATIENCE_SECONDS / 2)
    owner.stop()
    worker.call("connect", "out")
    assert worker.call("owned") == ["out"]
    owner.go_on()


def test_an_owner_of_an_older_version_knows_no_such_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error is an answer: the process waits no longer than beside an owner that does not know the queue."""
    with PersistentQueue(tmp_path, "a", serve=True):
        directory, name = str(tmp_path / "a"), "a call of a later version"
        assert ask(DISK, directory, name, LONG_SECONDS, UNKNOWN_TEXT, directory="b") == UNKNOWN_TEXT
        assert ask(DISK, directory, name, LONG_SECONDS, directory="b") is None
        monkeypatch.setattr(common_owner, "OWN_NEIGHBOUR", name)
        assert common_owner._ask_to_own(DISK, directory, str(tmp_path / "b")) == UNKNOWN_TEXT


def test_a_queue_comes_before_its_dead_letters(tmp_path: Path) -> None:
    """A process owns a queue with its dead letters, although their name is the first, and they are connected, too."""
    settings: dict[str, Any] = {"max_attempts": 2, "dead_letter": "dead", "lock_timeout": LONG_SECONDS}
    with PersistentQueue(tmp_path, "dead", serve=True) as owner, connect(tmp_path, "dead") as dead:
        owner.close()
        with connect(tmp_path, "jobs", **settings) as jobs:
            assert (jobs.owns, dead.owns, len(dead)) == (True, False, 0)
            with connect(tmp_path, "zones") as other:
                assert other.owns
    with (
        PersistentQueue(tmp_path, "jobs", serve=True, max_attempts=2, dead_letter="dead") as owner,
        connect(tmp_path, "jobs", **settings) as jobs,
        connect(tmp_path, "dead") as dead,
    ):
        owner.close()
        assert (len(jobs), jobs.owns, len(dead), dead.owns) == (0, True, 0, False)
        jobs.close()
        assert (len(dead), dead.owns) == (0, True)


def test_an_owner_without_a_connection_is_asked_for_nothing(tmp_path: Path) -> None:
    """A process that owns a queue by ``PersistentQueue`` owns the others at once, too."""
    with PersistentQueue(tmp_path, "a", serve=True), connect(tmp_path, "a") as first:
        candidacy = common_owner.Candidacy(DISK, str(tmp_path / "b"), "")
        assert (first.owns, candidacy.may_own()) == (False, True)


def test_without_a_wait_a_process_owns_the_queue_at_once(tmp_path: Path, start: Start) -> None:
    """With ``lock_timeout=0.0`` no other process is asked."""
    start("in", "out")
    worker = start("in", lock_timeout=0.0)
    worker.call("connect", "other")
    assert worker.call("owned") == ["other"]
    with PersistentQueue(tmp_path, "last", serve=True) as queue, connect(tmp_path, "last", lock_timeout=0.0) as shared:
        assert (len(queue), shared.owns) == (0, False)


def test_the_first_queue_may_be_gone_or_closed(tmp_path: Path, start: Start) -> None:
    """A process owns a queue although the first one by name was moved away, or is closed."""
    owner, worker = start("b", "c"), start("b", "c")
    owner.kill()
    (tmp_path / "b").rename(tmp_path / "away")
    worker.call("reach", "c")
    assert worker.call("owned") == ["c"]
    (tmp_path / "away").rename(tmp_path / "b")
    with connect(tmp_path, "a") as first:
        candidacy = partial(common_owner.Candidacy, DISK, str(tmp_path / "d"), "")
        assert candidacy().may_own()  # this process owns the first one
        first._owner.give_up()
        first.close()
        assert candidacy().may_own()


@pytest.mark.parametrize("fan_out", [False, True])
def test_a_transaction_of_a_process_that_owns_one_queue_owns_the_others(tmp_path: Path, fan_out: bool) -> None:
    """If the process has taken over one queue by a call, a transaction takes over the others, without an error.

    So it does with a queue that only subscriptions read, which has no length.
    """
    with ExitStack() as stack:
        owners = [
            PersistentQueue(tmp_path, "in", serve=True),
            PersistentQueue(tmp_path, "out", serve=True, fan_out=fan_out),
        ]
        source = stack.enter_context(connect(tmp_path, "in"))
        target = stack.enter_context(connect(tmp_path, "out", fan_out=fan_out))
        everyone = target.subscribe("all")
        for owner in owners:
            owner.close()
        assert (len(source), source.owns, target.owns) == (0, True, False)
        with transaction(source, target if fan_out else everyone) as (taking, putting):
            taking.enqueue(b"1")
            putting.enqueue(b"2")
        assert (source.peek(2), list(everyone.browse()), target.owns) == ([b"1"], [b"2"], True)


def part(start: Start) -> tuple[Colleague, Colleague]:
    """Return the owners of the queues ``in`` and ``out``: the first is connected to both, the other one to ``out``."""
    before = start("out")
    first = start("in", "out")
    before.kill()
    other = start("out")
    assert (first.call("owned"), other.call("owned")) == (["in"], ["out"])
    return first, other


def test_a_queue_goes_to_the_owner_of_the_others(start: Start) -> None:
    """A process that owns a queue gives it to the owner of another one, as soon as it connects to that one."""
    first, other = part(start)
    other.call("close")  # its session
    other.call("connect", "in")
    assert other.call("owned") == []
    assert other.call("move", "in", "out") is None
    assert (first.call("owned"), other.call("owned")) == (["in", "out"], [])


def test_a_refused_transaction_gives_no_queue_away(tmp_path: Path, start: Start) -> None:
    """A transaction of a queue that was not connected has no common owner: no queue of the directory goes to another
    process for it."""
    with connect(tmp_path, "near") as near, near.session() as session:
        start("far", "near")
        with connect(tmp_path, "far") as far, PersistentQueue(tmp_path, "own") as own:
            session.close()
            with pytest.raises(ValueError, match="opened alike"), transaction(own, far):
                pass
            assert (near.owns, far.owns) == (True, False)
            with transaction(near, far) as (_, putting):
                putting.enqueue(b"1")
            assert (near.owns, far.owns) == (False, False)


def test_a_transaction_over_a_queue_and_its_dead_letters(tmp_path: Path, start: Start) -> None:
    """The owner of a queue moves its dead letters back in one transaction, as each other process does."""
    with connect(tmp_path, "queue", dead_letter="dead") as queue, connect(tmp_path, "dead") as dead:
        assert (queue.owns, dead.owns) == (True, False)
        everyone = queue.subscribe("all")
        for letters in (dead, queue.dead_letters):
            with queue.transaction() as session:
                session.enqueue(b"item")
                session.flush()
                assert session.dequeue() == b"item"
                session.reject(b"item", retry=False)
            with transaction(letters, queue) as (taking, putting):
                letter = taking.dequeue()
                assert letter is not None
                putting.enqueue(DeadLetter.decode(letter).item + b" again")
            assert (len(dead), queue.clear()) == (0, 1)
            with transaction(everyone, letters) as (taking, putting):
                assert taking.dequeue_many(9) == [b"item", b"item again"]
                putting.enqueue(b"seen")
            assert (len(everyone), letters.clear()) == (0, 1)


def test_a_queue_with_sessions_of_its_owner_stays(start: Start) -> None:
    """A process gives no queue to another one as long as it has sessions of it. A transaction tries it again."""
    first, other = part(start)
    other.call("enqueue", b"1")
    other.call("connect", "in")
    assert other.call("owned") == ["out"]
    with pytest.raises(CallError, match=r"ValueError.*opened alike"):
        other.call("move", "in", "out")
    assert other.call("flush") is True
    other.call("close")
    assert other.call("move", "out", "in") == b"1"
    assert (first.call("owned"), other.call("owned")) == (["in", "out"], [])


def test_a_transaction_waits_until_its_queues_have_one_owner(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside two owners, a transaction of a third process is tried again. A transaction of one owner gives up its
    queue, and with it the items that the third process has enqueued there."""
    monkeypatch.setattr(common_owner, "CHANGE_SECONDS", LONG_SECONDS)
    first, other = part(start)
    other.call("enqueue", b"1")
    other.call("connect", "in")  # with its session, it keeps the queue ``out``
    other.call("flush")
    refusals: list[float] = []

    def wait(seconds: float) -> None:
        """After the first refusal, let an owner begin a transaction of its own."""
        refusals.append(seconds)
        if len(refusals) == 1:
            other.call("close")
            other.begin("move", "out", "in")
        DISK.sleep(seconds)

    with connect(tmp_path, "in", serve="never") as source, connect(tmp_path, "out", serve="never") as target:
        with source.transaction() as session:
            session.enqueue(b"2")
        with (
            using_disk(replace(DISK, sleep=wait)),
            pytest.raises(SessionLostError, match="which held the enqueued items"),
            transaction(source, target) as (taking, putting),
        ):
            putting.enqueue_many(taking.dequeue_many(1))
        assert refusals
        assert other.result() == b"1"
        with transaction(source, target) as (taking, putting):
            putting.enqueue_many(taking.dequeue_many(9))
        assert (len(source), sorted(target.peek(9))) == (0, [b"1", b"2"])
    assert (first.call("owned"), other.call("owned")) == (["in", "out"], [])


def test_a_session_of_the_owner_is_waited_for(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that owns one of the queues, and has a session of it, tries for a time to give it up. It refuses the
    transaction only then."""
    with connect(tmp_path, "near") as near, near.session() as session:
        start("far", "near")
        with connect(tmp_path, "far") as far:
            monkeypatch.setattr(common_owner, "CHANGE_SECONDS", 0.2)
            began = time.monotonic()
            with pytest.raises(ValueError, match="opened alike"), transaction(near, far):
                pass
            assert time.monotonic() - began >= 0.2
            assert (near.owns, far.owns) == (True, False)
            monkeypatch.setattr(common_owner, "CHANGE_SECONDS", LONG_SECONDS)
            with (
                using_disk(replace(DISK, sleep=lambda _seconds: session.close())),
                transaction(near, far) as (_, putting),
            ):
                putting.enqueue(b"1")
            assert (near.owns, far.owns) == (False, False)


def test_an_owner_gives_its_queue_up_for_a_transaction_that_began_before(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may come to own one of the queues in the middle of a transaction, since their owner was stopped. The
    flush gives the queue up, and with it what the transaction has enqueued there. The next one has one owner."""
    monkeypatch.setattr(common_owner, "CHANGE_SECONDS", LONG_SECONDS)
    first, other = part(start)
    with connect(tmp_path, "in") as source, connect(tmp_path, "out") as target:
        with source.transaction() as session:
            session.enqueue(b"1")
        with pytest.raises(SessionLostError), transaction(source, target) as (taking, putting):
            assert taking.dequeue() == b"1"
            first.stop()
            other.kill()
            assert (len(target), target.owns) == (0, True)
            first.go_on()
            putting.enqueue(b"2")
        assert not target.owns
        with transaction(source, target) as (taking, putting):
            putting.enqueue_many(taking.dequeue_many(9))
        assert (len(source), target.peek(2)) == (0, [b"1"])
        assert first.call("owned") == ["in", "out"]


def test_a_transaction_whose_queues_keep_several_owners_is_refused(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal comes when the time of a change of owners is over, and has committed nothing."""
    monkeypatch.setattr(common_owner, "CHANGE_SECONDS", 0.2)
    first, other = part(start)
    with connect(tmp_path, "in", serve="never") as source, connect(tmp_path, "out", serve="never") as target:
        with source.transaction() as session:
            session.enqueue(b"1")
        began = time.monotonic()
        with (
            pytest.raises(ValueError, match="a transaction needs one owner: connect to both"),
            transaction(source, target) as (taking, putting),
        ):
            assert taking.dequeue() == b"1"
            putting.enqueue(b"2")
        assert time.monotonic() - began >= 0.2
        assert (source.peek(), len(target)) == ([b"1"], 0)
        other.kill()
        assert first.call("move", "in", "out") == b"1"
        assert (len(source), target.peek()) == (0, [b"1"])


def test_a_close_waits_for_a_thread_that_gives_the_queue_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads use the queue through its owner until it has gone, and a close waits for that."""
    queue: SharedQueue[bytes] = connect(tmp_path, "a")
    begins, may_end, stop = threading.Event(), threading.Event(), Server.stop

    def stop_late(server: Server) -> None:
        """Stop the server when the test says so."""
        begins.set()
        assert may_end.wait(LONG_SECONDS)
        stop(server)

    monkeypatch.setattr(Server, "stop", stop_late)
    giving, closing = threading.Thread(target=queue._owner.give_up), threading.Thread(target=queue.close)
    giving.start()
    assert begins.wait(LONG_SECONDS)
    assert (queue.owns, len(queue)) == (False, 0)
    with queue.transaction() as session:
        session.enqueue(b"1")
    queue._owner.give_up()  # it has nothing to give up
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    may_end.set()
    giving.join()
    closing.join()
    with PersistentQueue(tmp_path, "a", lock_timeout=0.0) as owner:
        assert owner.peek(2) == [b"1"]


def test_a_call_that_meets_the_end_of_the_owner_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another thread gives the queue up between the look for the owner and the call, the next owner makes it."""
    with connect(tmp_path, "a") as queue, ExitStack() as stack:
        owner: Any = queue._owner.here()
        found: list[Any] = []
        here = queue._owner.here
        monkeypatch.setattr(queue._owner, "here", lambda: found.pop() if found else here())
        owner.is_given_up = True
        found.append(owner)
        session = stack.enter_context(queue.session())
        assert isinstance(session, WorkerSession)
        assert not owner.has_sessions
        owner.is_given_up = False
        with queue.session():
            assert owner.has_sessions
        session.enqueue(b"1")
        session.flush()
        owner.end()
        found.append(owner)
        assert len(queue) == 1
        found.append(owner)
        with pytest.raises(ClosedError):
            queue.clear()
        found.append(owner)
        assert isinstance(stack.enter_context(queue.session()), WorkerSession)
        queue.close()
        found.append(owner)
        with pytest.raises(ClosedError, match="connect again"):
            len(queue)


def test_an_owner_that_leaves_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction waits until the owner of one of its queues has left, but not for ever, and gives it no queue."""
    asked = []

    def leave(*_: object, **arguments: object) -> str:
        """Answer as an owner that has a while to go."""
        asked.append(arguments)
        return LEAVING_TEXT

    with connect(tmp_path, "a") as queue:
        monkeypatch.setattr(common_owner, "ask", leave)
        common_owner.gather(DISK, str(tmp_path / "b"))
        assert len(asked) == 1
        began = time.monotonic()
        common_owner.gather(DISK, str(tmp_path / "b"), 0.2)
        assert 0.2 <= time.monotonic() - began < LONG_SECONDS
        assert len(asked) > 2
        assert queue.owns


def test_only_connected_queues_can_be_asked_for(tmp_path: Path) -> None:
    """An owner that is asked to own another queue does so if it is connected to it, and no other process owns it."""
    directory = partial(os.path.join, tmp_path)

    def own(name: str) -> Any:
        """Ask the owner of the first queue to own the queue of this name."""
        return ask(DISK, directory("a"), OWN_NEIGHBOUR, LONG_SECONDS, directory=directory(name))

    with connect(tmp_path, "a") as first, PersistentQueue(tmp_path, "b", serve=True) as owner:
        with connect(tmp_path, "b") as second:
            assert (own("a"), own("b"), own("c")) == (CONNECTED_TEXT, CONNECTED_TEXT, UNKNOWN_TEXT)
            assert (first.owns, second.owns) == (True, False)
            owner.close()
            assert own("b") == CONNECTED_TEXT
            assert second.owns
        assert own("b") == LEAVING_TEXT
