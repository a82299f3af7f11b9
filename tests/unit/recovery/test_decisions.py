"""Decisions of a coordinator: how long they are remembered, and which operations of a log count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import (
    CorruptionError,
    InDoubtError,
    PersistentQueue,
    check,
    delete_queue,
    repair,
    transaction,
)
from persistentqueue.core.frame import Frame, decode_frame
from persistentqueue.core.operations import (
    Checkpoint,
    Decision,
    Dequeue,
    Enqueue,
    Identity,
    Operation,
    Participant,
    Prepare,
    Resolution,
    encode_operation,
    encode_transaction,
)
from persistentqueue.core.state import Prepared, State, StateError, Unfolding
from persistentqueue.recovery.in_doubt import forget_settled
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import crash, flip, log_file, put, put_each, segment_files
from tests.unit.core.test_formats import SALT, forge_frame
from tests.unit.engine.test_two_phase import contents, decisions, failing, move

from .test_in_doubt import ENQUEUE, NAME, OTHER, in_doubt, named

# --- remembering -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_may_come_back(open_queue: QueueFactory, path: Path) -> None:
    """A coordinator keeps its decision for a participant whose log is missing or cannot be read."""
    a, b, c = (open_queue(name) for name in "abc")
    put(a, b"1")
    move(a, b, c)
    for queue in (c, b, a):
        queue.close()
    (path / "b" / "log").rename(path / "away")
    (path / "x" / "log").mkdir(parents=True)
    state = State()
    state.decide(NAME, [named("b"), named("c")])
    state.decide(OTHER, [named("x")])
    forget_settled(DISK, str(path / "a"), state, 7)
    assert state.decisions == {NAME: {named("b")}, OTHER: {named("x")}}
    (path / "away").rename(path / "b" / "log")
    forget_settled(DISK, str(path / "a"), state, 7)
    assert state.decisions == {OTHER: {named("x")}}
    assert state.forgotten == 0


def test_participants_that_were_deleted(open_queue: QueueFactory, path: Path) -> None:
    """A coordinator forgets a decision that only deleted queues could have asked for."""
    for number in range(3):
        b = open_queue(name := f"b{number}")
        with PersistentQueue(path, "a") as a, transaction(a, b) as (one, other):
            one.enqueue(b"1")
            other.enqueue(b"2")
        b.close()
        delete_queue(path, name)
    assert decisions(open_queue("a")) == []


@pytest.mark.damages
@pytest.mark.parametrize("trims", [False, True])
def test_participant_that_comes_back(open_queue: QueueFactory, path: Path, trims: bool) -> None:
    """A participant that was away when its decision was forgotten is told so by an ``InDoubtError``, and does not take
    the transaction for uncommitted. If the coordinator's log still contains the decision, it is committed."""
    a, _ = in_doubt(open_queue, True)
    a.close()
    (path / "b").rename(path.parent / "away")
    a = open_queue("a")
    assert decisions(a) == []
    if trims:
        for number in range(3):
            put(a, b"%d" % number)
            a.trim()
        a.close()
        assert decisions(open_queue("a")) == []
    (path.parent / "away").rename(path / "b")
    if trims:
        with pytest.raises(InDoubtError, match="has forgotten it: run repair on this queue") as caught:
            open_queue("b")
        assert caught.value.lost
        assert repair(path, "b").items == 0
    else:
        assert contents(open_queue("b")) == [[b"1"]]


def test_participant_of_another_name(open_queue: QueueFactory, path: Path) -> None:
    """A participant that was renamed is not forgotten as long as it is in doubt."""
    a, _ = in_doubt(open_queue, True)
    a.close()
    (path / "b").rename(path / "z")
    a = open_queue("a")
    put(a, b"2")
    a.trim()
    assert (contents(a, open_queue("z")), decisions(a)) == ([[b"2"], [b"1"]], [{"b"}])
    a.close()
    assert decisions(open_queue("a")) == []


def test_nothing_is_forgotten_while_somebody_is_in_doubt(open_queue: QueueFactory, path: Path) -> None:
    """Decisions for deleted queues are remembered while a present queue is in doubt. Otherwise the coordinator could
    not tell that queue that its transaction was not committed."""
    a, b, c = open_queue("a"), open_queue("b"), open_queue("c", disk=failing("commit.3 write frame", RuntimeError(), 2))
    put(a, b"1", b"2")
    move(a, b)
    put(b, b"settled")
    put(b, b"durably")
    d = open_queue("d")
    move(a, d)
    with pytest.raises(RuntimeError):
        with transaction(a, b, c) as (one, other, last):
            one.enqueue(b"3")
            other.enqueue(b"3")
            last.enqueue(b"3")
            last.flush()
        put(c, b"4")
    for queue in (a, b, c):
        crash(queue)
    d.close()
    a.close()
    delete_queue(path, "d")
    state = open_queue("a")._open()._store.state
    names = {each.name for asking in state.decisions.values() for each in asking}
    assert "d" in names
    assert state.forgotten == 0


def test_resolution_that_may_be_lost(open_queue: QueueFactory, path: Path) -> None:
    """A resolution that is last in its log may be only in the operating system's page cache. The decision is kept until
    another frame follows."""
    a, b = open_queue("a"), open_queue("b")
    put(a, b"1")
    move(a, b)
    name = next(iter(a._open()._store.state.decisions))
    put(b, b"2")
    state = State()
    state.decide(name, [named("b")])
    forget_settled(DISK, str(path / "a"), state, 7)
    assert state.decisions == {name: {named("b")}}
    put(b, b"3")
    forget_settled(DISK, str(path / "a"), state, 7)
    assert state.decisions == {}


def test_many_decisions_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction looks only at the decisions for its own participants, however many others are remembered."""
    state = State()
    for number in range(100):
        state.decide(b"%016d" % number, [Participant(f"b{number}", OTHER)])
    forgotten: list[Participant] = []
    monkeypatch.setattr(State, "forget", lambda self, transaction, name: forgotten.append(name))
    state.decide(NAME, [Participant("b7", OTHER), Participant("c", OTHER), Participant("b8", NAME)])
    assert forgotten == [Participant("b7", OTHER)]


def test_decisions_that_contradict_each_other() -> None:
    """Decisions without participants, repeated decisions, and operations in the wrong place are refused."""
    state = State()
    state.apply(Decision(NAME, ("b",)))
    for wrong in (Decision(NAME, ("c",)), Decision(OTHER, ()), Prepare(NAME, 1, "a"), Resolution(NAME, True)):
        with pytest.raises(StateError):
            state.apply(wrong)
    empty = Checkpoint(0, 0, 1, 0, 0, [], [], [], [])
    assert State.restore(empty, state.supplement()).decisions == {NAME: {Participant("b", b"")}}
    for supplement in (
        [Decision(NAME, ("b",))] * 2,
        [Decision(NAME, ("b",)), Decision(OTHER, ("b", "c"))],
        [Dequeue(0, 0, 1)],
    ):
        with pytest.raises(StateError):
            State.restore(empty, supplement)
    state.forget(OTHER, Participant("b", b""))
    assert state.decisions == {NAME: {Participant("b", b"")}}


# --- operations that count -------------------------------------------------------------------------------------------


def frame(*transactions: list[Operation]) -> Frame:
    """Return a frame with these transactions."""
    return Frame(64, 100, 2, 0, 0, list(transactions))


def test_what_counts() -> None:
    """A prepared transaction counts from the frame with its resolution on, before the other operations of that frame.
    An aborted one never counts."""
    unfolding = Unfolding()
    assert unfolding.counting(frame([Dequeue(0, 0, 1)], [])) == [Dequeue(0, 0, 1)]
    assert unfolding.counting(frame([Prepare(NAME, 1, "a"), ENQUEUE])) == []
    assert [unfolding.prepared] == [Prepared(Prepare(NAME, 1, "a"), [ENQUEUE])]
    again: list[Operation] = [Resolution(NAME, True), Prepare(OTHER, 2, "a"), Dequeue(0, 1, 1)]
    assert unfolding.counting(frame(again)) == [ENQUEUE]
    assert unfolding.counting(frame([Resolution(OTHER, False)], [Dequeue(0, 2, 1)])) == [Dequeue(0, 2, 1)]
    assert [unfolding.prepared, unfolding.aborted] == [None, 1]


@pytest.mark.parametrize(
    "transactions",
    [[[]], [[Dequeue(0, 0, 1)]], [[Resolution(OTHER, True)]], [[Resolution(NAME, True), Prepare(OTHER, 2, "a")], []]],
    ids=["nothing", "no resolution", "another's", "not alone"],
)
def test_log_that_goes_on_without_saying(transactions: list[list[Operation]]) -> None:
    """A log contradicts itself if it continues behind a prepare without a resolution of its transaction."""
    unfolding = Unfolding()
    unfolding.counting(frame([Prepare(NAME, 1, "a"), ENQUEUE]))
    with pytest.raises(StateError, match="the outcome of the transaction"):
        unfolding.counting(frame(*transactions))


@pytest.mark.parametrize(("held", "first", "counts"), [(0, 0, False), (0, 1, True), (3, 3, False), (3, 4, True)])
def test_what_counts_where_frames_are_lost(held: int, first: int, counts: bool) -> None:
    """If the resolution of a transaction is lost, the sequence of the next item tells whether the transaction
    counts. Frames before it may be lost, too."""
    unfolding, prepared, following = Unfolding(), ENQUEUE._replace(first=held), ENQUEUE._replace(first=first)
    unfolding.counting_anyway(frame([Prepare(NAME, 1, "a"), prepared]))
    assert unfolding.counting_anyway(frame([following])) == ([prepared, following] if counts else [following])
    unfolding.counting_anyway(frame([Prepare(NAME, 1, "a"), Dequeue(0, 0, 1)]))
    assert unfolding.counting_anyway(frame([following])) == [following]  # without items, nothing tells it
    stray: list[Operation] = [Resolution(NAME, True), Dequeue(0, 0, 1)]
    assert Unfolding().counting_anyway(frame(stray)) == stray
    unfolding.counting_anyway(frame([Prepare(NAME, 1, "a"), ENQUEUE]))
    assert unfolding.counting_anyway(frame([Resolution(OTHER, True), Dequeue(0, 0, 1)])) == [Dequeue(0, 0, 1)]


def append(path: Path, *operations: Operation, sync: bool = True) -> int:
    """Append a frame that no owner would write, and kill the owner. Return the number of the frame."""
    queue = PersistentQueue(path, sync=sync)
    queue.trim()
    log = queue._open()._store.generations.log
    assert log is not None
    log.append(encode_transaction(operations), 1, len(operations))
    crash(queue)
    return log.number


def test_queues_that_ask_each_other(open_queue: QueueFactory, path: Path) -> None:
    """A circle of queues in doubt, which only renames can make, ends in an error and not in endless asking."""
    for name, other in ("ab", "ba"):
        open_queue(name).close()
        append(path / name, Prepare(NAME, 9, other))
    with pytest.raises(InDoubtError, match="that queue is itself in doubt"):
        open_queue("a", disk=replace(DISK, sleep=lambda _: None))


@pytest.mark.damages
def test_prepare_that_contradicts_the_queue(open_queue: QueueFactory, path: Path) -> None:
    """A prepared transaction that contradicts its queue is damage once it is committed, and ``check`` reports it
    before."""
    a, b = open_queue("a"), open_queue("b")
    put(a, b"1")
    for queue in (a, b):
        queue.close()
    number = append(path / "a", Decision(NAME, ("b",)))
    append(path / "b", Prepare(NAME, number, "a"), Dequeue(0, 7, 1))
    report = check(path, "b")
    assert (report.in_doubt, report.ok) == ("a", False)
    with pytest.raises(CorruptionError, match="sequences of 0 to 0"):
        open_queue("b")
    assert any("sequences of 0 to 0" in problem for problem in repair(path, "b").problems)
    put(open_queue("b"), b"2")


@pytest.mark.damages
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("first", [2**63 - 3, 2**63, 2**64 - 4])
def test_sequences_that_no_queue_can_have(open_queue: QueueFactory, path: Path, sync: bool, first: int) -> None:
    """A repair refuses a forged frame with sequences of 2**63 or more. It raised an internal error."""
    queue = open_queue("q")
    put(queue, b"1")
    queue.close()
    append(path / "q", Enqueue(first, 3, 1, 64, 49, 0, 0), sync=sync)
    assert any("was dropped" in problem or "fewer than" in problem for problem in repair(path, "q").problems)
    assert contents(open_queue("q")) == [[b"1"]]


@pytest.mark.damages
@pytest.mark.parametrize("kind", ["prepare", "resolution", "both"])
def test_repair_of_a_log_with_prepares(open_queue: QueueFactory, path: Path, kind: str) -> None:
    """If frames of a transaction over several queues are lost, a repair loses only their items, and none comes
    twice."""
    a, b = open_queue("a", inline_bytes=0), open_queue("b", inline_bytes=0)
    put_each(a, [b"1", b"2", b"3"])
    put(b, b"first")
    move(a, b)
    put(b, b"second")
    put(b, b"third")
    crash(b)
    a.close()
    log = log_file(path / "b")
    data = log.read_bytes()
    starts = [at for at in range(len(data)) if data.startswith(b"PQFr", at)]
    for number in {"prepare": [2], "resolution": [3], "both": [2, 3]}[kind]:
        flip(log, starts[number] + 50)
    with pytest.raises(CorruptionError):
        open_queue("b")
    report = repair(path, "b")
    found = contents(open_queue("b"))[0]
    expected = {
        "prepare": ([b"first", b"second", b"third"], ((1, 1),)),
        "resolution": ([b"first", b"1", b"third"], ((2, 1),)),
        "both": ([b"first", b"third"], ((1, 2),)),
    }
    assert (found, report.lost) == expected[kind]


@pytest.mark.damages
def test_repair_of_a_log_that_ends_in_doubt(open_queue: QueueFactory, path: Path) -> None:
    """A repair of a damaged log that ends in doubt applies the coordinator's answer."""
    a, b = open_queue("a"), open_queue("b", inline_bytes=0)
    put(a, b"1")
    put_each(b, [b"x", b"y"])
    move(a, b)
    crash(b)
    a.close()
    log = log_file(path / "b")
    data = log.read_bytes()
    flip(log, [at for at in range(len(data)) if data.startswith(b"PQFr", at)][1] + 50)
    repair(path, "b")
    assert contents(open_queue("b"))[0][-1:] == [b"1"]


@pytest.mark.damages
def test_check_reads_what_is_in_doubt(open_queue: QueueFactory, path: Path) -> None:
    """``check`` reads the blocks of a transaction in doubt, and does not take them for leftovers."""
    a, b = open_queue("a"), open_queue("b", inline_bytes=0)
    with transaction(a, b) as (source, target):
        source.enqueue(b"1")
        target.enqueue(b"in doubt" * 100)
    crash(b)
    report = check(path, "b")
    assert (report.ok, report.items, report.in_doubt, report.leftovers) == (True, 0, "a", ())
    flip(segment_files(path / "b")[0], 64 + 200)
    report = check(path, "b")
    assert (report.ok, len(report.problems)) == (False, 1)
    a.close()


def test_settled_by_whoever_opens(open_queue: QueueFactory, path: Path) -> None:
    """An opening that is cut short at any step leaves the queue in doubt or settled, and the next one finds the same
    outcome."""
    a, _ = in_doubt(open_queue, True)
    crash(a)

    class Killed(BaseException):
        pass

    steps: list[str] = []
    while True:
        left = [len(steps) + 1]

        def failpoint(name: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                steps.append(name)
                raise Killed

        try:
            b = call_on(replace(DISK, failpoint=failpoint), PersistentQueue, path, "b")
        except Killed:
            continue
        break
    assert {"doubt.1 recover coordinator", "doubt.2 read coordinator", "trim.4 rename generation"} <= set(steps)
    assert contents(b) == [[b"1"]]
    crash(b)


def test_names_lead_nowhere_else() -> None:
    """A name in a log that cannot be that of a neighbour is damage, so that no name leads out of the directory."""
    for operation in (
        Prepare(NAME, 7, "a"),
        Prepare(NAME, 7, "a", OTHER),
        Identity(NAME, 7),
        Decision(NAME, ("b", "c" * 64)),
        Decision(NAME, ("b", "c" * 64), (NAME, OTHER)),
        Resolution(NAME, False),
    ):
        body = encode_transaction([operation])
        assert decode_frame(forge_frame(body, 1, 1), 64, SALT, "file").transactions == [[operation]]
    for name in (b"", b".", b"..", b"a/b", b"\xff", b"a\0"):
        forged = b"\1\0\0\0" + encode_operation(Prepare(NAME, 7, ""))[:-1] + bytes([len(name)]) + name
        with pytest.raises(CorruptionError, match="the name of a queue beside this one"):
            decode_frame(forge_frame(forged, 1, 1), 64, SALT, "file")


def test_decisions_stay(open_queue: QueueFactory, path: Path) -> None:
    """A clean close keeps the decisions that a participant may have to ask for."""
    a, _ = in_doubt(open_queue, True)
    a.close()
    a = open_queue("a")
    assert (a.recovery.clean, decisions(a)) == (True, [{"b"}])
