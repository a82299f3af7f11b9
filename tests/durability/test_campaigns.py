"""Bugs that the simulated disk found, with one test each, and a few seeds of every campaign of ``tests.crash``.

The full campaigns take long, so they are commands: ``python -m tests.crash --help``.
"""

from __future__ import annotations

import ast
import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from persistentqueue.core.frame import SEALED
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.engine.context import Settings
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from persistentqueue.errors import BrokenQueueError, QueueNotFoundError
from persistentqueue.recovery.catalog import delete_queue
from persistentqueue.recovery.opening import open_store
from persistentqueue.storage.publication import Draft, Request
from persistentqueue.system.disk import CREATE_NEW
from persistentqueue.system.files import sync_directory
from tests.crash.content import SUBSCRIBES, Content
from tests.crash.cuts import CutsUnavailable, run_cuts
from tests.crash.disk import Crash, SimulatedDisk
from tests.crash.exhaustive import SETTINGS, Exhaustive, every_cut, every_kill
from tests.crash.explorer import DIRECTORY, ENCLOSES, Explorer, content_of
from tests.crash.exploring import ViolationError
from tests.crash.kills import run_kills
from tests.crash.mutants import MUTANTS, PACKAGE, Mutant
from tests.crash.renames import RENAMES
from tests.crash.several import SeveralExplorer
from tests.support.disks import call_on

SYNCED, UNSYNCED = Settings(log_bytes=700), Settings(sync=False, log_bytes=700)


def opened(disk: SimulatedDisk, settings: Settings = SYNCED, failpoint: Callable[[str], None] | None = None) -> Store:
    """Open the queue on the disk."""
    door = disk.disk if failpoint is None else replace(disk.disk, failpoint=failpoint)
    return open_store(door, DIRECTORY, settings, create=True)


def enqueuing(*items: bytes) -> Transaction:
    """Return a transaction that enqueues the items."""
    transaction = Transaction()
    transaction.add(items)
    return transaction


def items_of(disk: SimulatedDisk, settings: Settings = SYNCED) -> list[bytes]:
    """Return the items that the next life finds."""
    return list(content_of(opened(disk, settings)).items)


def crash_at(step: str) -> Callable[[str], None]:
    """Return a failpoint function that ends the process at this step."""

    def failpoint(name: str) -> None:
        if name == step:
            raise Crash

    return failpoint


def crash_after(disk: SimulatedDisk, last_tick: int) -> None:
    """End the process after this tick of the disk."""
    if disk.ticks == last_tick:
        raise Crash


def crash_anywhere(disk: SimulatedDisk, chance: Random) -> SimulatedDisk:
    """Return the disk after a life of opening and closing that a kill or a power cut ended at any call."""
    disk.on_tick = partial(crash_after, disk, chance.randrange(1, 40))
    with suppress(Crash):
        opened(disk).close()
    disk.on_tick = None
    killed = disk.kill(chance.randrange)
    return killed if chance.random() < 0.5 else killed.cut_power(chance.randrange)


def test_transaction_that_was_spilled_whole() -> None:
    """A transaction whose blocks were all written ahead is not logged as one that the log carries."""
    disk = SimulatedDisk()
    store = opened(disk)
    transaction = enqueuing(b"x" * 100)
    store.spill(transaction)
    store.commit([transaction])
    assert {tuple(items_of(crashed)) for crashed in every_cut(disk)} == {(b"x" * 100,)}


def test_name_that_went_and_came_again_stays() -> None:
    """After a sync of a directory with a name in it, an earlier pending removal of that name cannot take it away.

    A later removal can.
    """
    disk = SimulatedDisk(("/a", "/b"))
    os = disk.disk
    os.close(os.open("/a/x", CREATE_NEW, 0o600))
    for source, target in (("/a/x", "/b/y"), ("/b/y", "/a/x")):
        os.rename(source, target)
    sync_directory(os, "/a")
    assert all("/a/x" in crashed.names for crashed in every_cut(disk))
    os.rename("/a/x", "/b/y")
    assert {"/a/x" in crashed.names for crashed in every_cut(disk)} == {True, False}


def test_spare_that_is_a_log_under_another_name() -> None:
    """A power cut may bring back the name that a log had as the spare: the spare is not written if it is that log."""
    disk = SimulatedDisk()
    store = opened(disk)
    store.commit([enqueuing(b"x")])
    store.close()
    log = next(name for name in disk.names if name.endswith(".log"))
    disk.add_link("/queues/q/pool/log.free", log)
    store = opened(disk)
    store.commit([enqueuing(b"y")])
    assert {tuple(items_of(crashed)) for crashed in every_cut(disk)} == {(b"x", b"y")}


def test_published_file_that_was_consumed_never_waits_again() -> None:
    """No power cut brings back a published item after a trim has made its consumption durable."""
    disk = SimulatedDisk()
    settings = replace(UNSYNCED, segment_bytes=HEADER_BYTES + 420, inline_bytes=0, pool_max_bytes=5000)
    store = opened(disk, settings)
    draft = Draft(disk.disk, store.inbox.directory, "0" * 16, 1)
    draft.write([b"%200d" % 1], 200, 0)
    draft.publish(None, 2, [])
    assert store.adopter.adopt(insists=True) == 1
    consuming, plain = Transaction(), store.subscriptions.plain
    assert plain is not None
    consuming.ready, consuming.runs = plain.ready, plain.ready.hold_below(1)
    store.commit([enqueuing(b"%200d" % 2), consuming])
    store.trim()
    store.give_back()
    store.commit([enqueuing(b"%200d" % 3)])
    found = {item for crashed in every_cut(disk) for item in items_of(crashed, settings)}
    assert found == {b"%200d" % number for number in (2, 3)}


def test_request_that_was_answered_never_comes_again() -> None:
    """A power cut brings back no request that its owner, or a killed one before it, has answered.

    So a subscription that was requested and then removed stays removed.
    """
    is_over, steps = False, 0
    while not is_over:
        disk = SimulatedDisk()
        store, steps = opened(disk), steps + 1
        Draft(disk.disk, store.inbox.directory, "0" * 16, 1).ask(Request("a", 0), 2)
        disk.on_tick = partial(crash_after, disk, disk.ticks + steps)
        with suppress(Crash):
            store.adopter.adopt(insists=True)
            is_over = True
        disk.on_tick = None
        lives = [(killed, opened(killed)) for killed in every_kill(disk)]
        for life, owner in [*lives, (disk, store)] if is_over else lives:
            owner.adopter.adopt(insists=True)
            number = owner.state.number_of("a")
            assert number is not None
            owner.unsubscribe(number)
            for crashed in every_cut(life):
                later = opened(crashed)
                later.adopter.adopt(insists=True)
                assert later.subscriptions.names() == []
    assert steps > 3


def test_group_of_two_subscriptions() -> None:
    """Items that two subscriptions dequeue in one group are consumed for each, even if their sequences form one run."""
    disk = SimulatedDisk()
    store = opened(disk)
    store.commit([enqueuing(b"x", b"y")])
    store.subscribe("a", 0)
    plain, other = store.reader.ready, store.subscriptions.find("a").ready
    passed = other.hold(1)
    group = [Transaction(), Transaction()]
    for transaction, ready in zip(group, (plain, other), strict=True):
        transaction.ready, transaction.runs = ready, ready.hold(1)
    assert [transaction.runs for transaction in group] == [[(0, 1)], [(1, 1)]]
    store.commit(group)
    other.release(passed)
    found = content_of(store)
    assert (found.items, found.others) == ((b"y",), (("a", (b"x",)),))
    assert {content_of(opened(crashed)) for crashed in every_cut(disk)} == {found}


@pytest.mark.parametrize("closing", [True, False], ids=["sealed", "unsealed"])
def test_older_generation_outlives_a_name_that_is_not_durable(closing: bool) -> None:
    """The older generation stays until a power cut can no longer take the name of the newer one.

    The newer one was renamed by an owner that was killed.
    """
    disk = SimulatedDisk()
    armed: list[str] = []
    store = opened(disk, failpoint=lambda name: crash_at(*armed)(name) if armed else None)
    store.commit([enqueuing(b"x")])
    armed.append("trim.5 sync names")
    with pytest.raises(Crash):
        store.trim(SEALED if closing else 0)
    disk = every_kill(disk)[0]
    assert opened(disk).recovery.clean == closing
    assert {tuple(items_of(crashed)) for crashed in every_cut(disk)} == {(b"x",)}


def test_evidence_outlives_any_crash() -> None:
    """The evidence that a torn log leaves is kept through any number of crashes in later openings and closings."""
    disk = SimulatedDisk()
    store = opened(disk, replace(SYNCED, segment_bytes=10, inline_bytes=0))
    store.commit([enqueuing(b"x")])
    store.commit([enqueuing(b"the evidence")])
    frame, log = store.generations.log_bytes[0] - 1, max(name for name in disk.names if name.endswith(".log"))
    store.release()
    for inode in disk.inodes.values():
        inode.durable, inode.pending = bytearray(inode.cache), []
    inode = disk.inodes[disk.names[log]]
    inode.durable[frame] ^= 1
    inode.cache[frame] ^= 1
    evidence = {bytes(inode.cache)} | {bytes(each.cache) for each in disk.inodes.values() if b"the ev" in each.cache}
    chance = Random(1)
    for _ in range(3000):
        crashed = disk.kill(chance.randrange)
        for _ in range(chance.randrange(5)):
            crashed = crash_anywhere(crashed, chance)
        assert items_of(crashed) == [b"x"]
        left = crashed.cut_power(chance.randrange)
        assert {bytes(left.inodes[number].cache) for number in left.names.values() if number > 0} >= evidence


def test_directory_whose_maker_was_killed() -> None:
    """The directory of a queue is durable before it is used, even if its maker was killed before the sync."""
    disk = SimulatedDisk()

    def at_second_tick() -> None:
        if disk.ticks == 2:
            raise Crash

    disk.on_tick = at_second_tick
    with pytest.raises(Crash):
        opened(disk)
    disk.on_tick = None
    assert (disk.trace, "/queues/q" in disk.names, "/queues/q" in disk.durable_names()) == (None, True, False)
    disk = every_kill(disk)[0]
    opened(disk).commit([enqueuing(b"x")])
    assert {tuple(items_of(crashed)) for crashed in every_cut(disk)} == {(b"x",)}


@pytest.mark.parametrize("foreign", [False, True], ids=["alone", "beside other files"])
def test_deletion_at_any_call(foreign: bool) -> None:
    """After a crash at any call of a deletion, the queue is found whole or not at all.

    In a former bug, its log was gone before its segments.
    """
    disk, found = SimulatedDisk(), set[tuple[bytes, ...]]()
    store = opened(disk, replace(SYNCED, segment_bytes=10))
    for number in range(3):
        store.commit([enqueuing(b"%d" % number)])
    store.close()
    if foreign:
        for part in ("data", "log", "pool"):
            disk.add_file(f"{DIRECTORY}/{part}/notes", b"")

    def look() -> None:
        found.update(tuple(items_of(crashed)) for crashed in [*every_kill(disk), *every_cut(disk)])

    disk.on_tick = look
    call_on(disk.disk, delete_queue, DIRECTORY)
    disk.on_tick = None
    assert found == {(b"0", b"1", b"2"), ()}
    assert {tuple(items_of(crashed)) for crashed in every_cut(disk)} == {()}


def test_deletion_that_another_finishes() -> None:
    """A rename by a killed owner is durable before the next owner deletes segments.

    In a former bug, a log came back without them.
    """
    disk, found = SimulatedDisk(), set[tuple[bytes, ...]]()
    store = opened(disk)
    store.commit([enqueuing(b"x")])
    store.close()
    with pytest.raises(Crash):
        call_on(replace(disk.disk, failpoint=crash_at("delete.2 sync name")), delete_queue, DIRECTORY)
    disk = every_kill(disk)[0]
    disk.on_tick = lambda: found.update(tuple(items_of(crashed)) for crashed in every_cut(disk))
    assert items_of(disk) == []
    disk.on_tick = None
    assert found == {(b"x",), ()}


@pytest.mark.parametrize("where", [("/queues", "q"), (DIRECTORY, None)], ids=["by name", "by path"])
def test_deleted_by_two(where: tuple[str, str | None]) -> None:
    """A deletion that waits for the lock of a queue raises ``QueueNotFoundError`` if another one deletes it meanwhile.

    It leaves at most the queue's empty directory.
    """
    disk = SimulatedDisk()
    opened(disk).close()
    others = [partial(call_on, disk.disk, delete_queue, *where)]

    def lock(fd: int) -> bool:
        while others:
            others.pop()()
        return disk.lock(fd)

    with pytest.raises(QueueNotFoundError):
        call_on(replace(disk.disk, lock=lock), delete_queue, *where, lock_timeout=1.0)
    assert {"/", "/queues"} <= disk.names.keys() <= {"/", "/queues", DIRECTORY}


@pytest.mark.parametrize("inline_bytes", [0, 1000])
def test_unsynced_queue_that_was_served_is_durable(inline_bytes: int) -> None:
    """Data that ``sync=False`` left in the cache is made durable by the opening that serves it, names included."""
    settings = replace(UNSYNCED, log_bytes=4096, inline_bytes=inline_bytes)
    disk = SimulatedDisk()
    opened(disk, settings).commit([enqueuing(b"x" * 300)])
    disk = every_kill(disk)[0]
    assert items_of(disk, settings) == [b"x" * 300]
    assert {tuple(items_of(crashed, settings)) for crashed in every_cut(disk)} == {(b"x" * 300,)}


def test_unsynced_group_that_the_log_carries_stays() -> None:
    """A group that the log carries stays, even if a power cut took the header of its segment.

    In a former bug, recovery wrote its blocks again, but not the header.
    """
    settings = replace(UNSYNCED, log_bytes=4096)
    disk = SimulatedDisk()
    opened(disk, settings).commit([enqueuing(b"x" * 30)])
    found = set()
    for crashed in every_cut(disk):
        items = tuple(items_of(crashed, settings))
        assert {tuple(items_of(again, settings)) for again in every_cut(crashed)} == {items}
        found.add(items)
    assert found == {(), (b"x" * 30,)}


def test_unsynced_queue_is_durable_after_a_sync_failed() -> None:
    """After a failed sync, the next opening makes the data of an unsynced queue durable.

    The failed sync had marked the pages clean, so that a second sync alone would not write them.
    """
    disk = SimulatedDisk()
    store = opened(disk, UNSYNCED)
    store.commit([enqueuing(b"x" * 300)])
    disk.fault = lambda call, path: OSError(errno.EIO, "injected", path) if call == "fdatasync" else None
    with pytest.raises(BrokenQueueError):
        store.trim()
    disk.fault = None
    disk = every_kill(disk)[0]
    assert items_of(disk, UNSYNCED) == [b"x" * 300]
    assert {tuple(items_of(crashed, UNSYNCED)) for crashed in every_cut(disk)} == {(b"x" * 300,)}


def test_unsynced_group_is_whole_or_gone() -> None:
    """With ``sync=False`` a power cut drops a group as a whole, since its transactions share blocks."""
    settings = replace(UNSYNCED, segment_bytes=100)
    disk = SimulatedDisk()
    store = opened(disk, settings)
    store.commit([enqueuing(b"old")])
    store.trim()
    consuming = enqueuing(b"new 2" * 30)
    consuming.ready, consuming.runs = store.reader.ready, store.reader.take(1)[0]
    store.commit([enqueuing(b"new 1" * 30), consuming])
    found = {tuple(items_of(crashed, settings)) for crashed in every_cut(disk)}
    assert found == {(b"old",), (b"new 1" * 30, b"new 2" * 30)}


def take(store: Store) -> Transaction:
    """Return a transaction that dequeues one item, if there is one."""
    transaction = Transaction(store.reader.ready)
    transaction.runs = store.reader.take(1)[0]
    return transaction


# --- the campaigns, with a few seeds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [False, True], ids=["crashes", "crashes and failing calls"])
def test_random_programs(faults: bool) -> None:
    """Random programs that crash anywhere end in a state that the model allows."""
    explorers = [Explorer(seed, faults) for seed in range(7)]
    for explorer in explorers:
        explorer.run()
    assert sum(explorer.schedules for explorer in explorers) > 200
    assert max(explorer.deepest for explorer in explorers) == 3


@pytest.mark.parametrize("seed", [7000000, 7000055])
def test_random_programs_with_subscriptions(seed: int) -> None:
    """Random programs with subscriptions that are added and removed end in an allowed state.

    One of the seeds once tried forever to make room for space that it had freed itself.
    """
    explorer = Explorer(seed, style=SUBSCRIBES)
    explorer.run()
    assert explorer.schedules > 5


@pytest.mark.parametrize("faults", [False, True], ids=["crashes", "crashes and failing calls"])
def test_random_programs_that_compress_and_encrypt(faults: bool) -> None:
    """Random programs whose openings differ in compression and key end in an allowed state."""
    explorers = [Explorer(seed, faults, style=ENCLOSES) for seed in range(8)]
    for explorer in explorers:
        explorer.run()
    assert sum(explorer.schedules for explorer in explorers) > 100


@pytest.mark.parametrize("faults", [False, True], ids=["crashes", "crashes and failing calls"])
def test_random_programs_whose_directories_are_renamed(faults: bool) -> None:
    """Random programs whose directories are renamed or deleted under their owner end in an allowed state.

    Queues that get the old names keep their items, and none of their files is touched.
    """
    explorers = [Explorer(seed, faults, style=RENAMES) for seed in range(6)]
    for explorer in explorers:
        explorer.run()
    assert sum(explorer.schedules for explorer in explorers) > 100
    assert sum(explorer.renames for explorer in explorers) > 10


@pytest.mark.parametrize("faults", [False, True], ids=["crashes", "crashes and failing calls"])
def test_random_programs_over_several_queues(faults: bool) -> None:
    """Transactions over several queues are there as a whole or not at all, in any order of opening the queues."""
    explorers = [SeveralExplorer(seed, faults) for seed in range(5)]
    for explorer in explorers:
        explorer.run()
    assert sum(explorer.schedules for explorer in explorers) > 200
    assert max(explorer.deepest for explorer in explorers) == 3


def test_small_programs_exhaustively() -> None:
    """Each program of one operation, crashed everywhere and in every way, ends in an allowed state."""
    exhaustive = Exhaustive(SETTINGS[0])
    exhaustive.run(1)
    assert exhaustive.states > 1000


def test_a_seed_says_the_same_twice() -> None:
    """A seed gives the same schedules each time, so that a failure can be replayed."""
    first, second = Explorer(3, trace=True), Explorer(3)
    first.run()
    second.run()
    assert (first.schedules, first.lives) == (second.schedules, second.lives)


def test_harness_notices() -> None:
    """A content that is not allowed is reported, with the command that replays it."""
    explorer = Explorer(0)
    explorer.random.seed(1)

    def lie(*_: object) -> tuple[list[Content], list[Content]]:
        return [Content((b"something else",))], [Content()]

    explorer._allowed = lie  # type: ignore[assignment]
    with pytest.raises(ViolationError, match=r"allowed .*something") as caught:
        explorer.run()
    assert "replay with: python -m tests.crash random --first 0 --count 1 --trace" in str(caught.value)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bugs_have_a_place(mutant: Mutant) -> None:
    """The text that each planted bug replaces occurs exactly once in its module, which parses with the bug, too."""
    text = (PACKAGE / f"{mutant.room}.py").read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1
    assert mutant.old != mutant.new
    ast.parse(text.replace(mutant.old, mutant.new))


def test_enough_bugs_are_planted() -> None:
    """At least forty bugs are planted, each with a name of its own."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40


def test_killed_processes() -> None:
    """Processes killed at any moment leave the last acknowledged state, or that state with the whole flush under
    way."""
    report = run_kills(60)
    assert report.kills == 60
    assert report.acknowledged > 20


def test_power_cuts() -> None:
    """Power cuts of a real file system leave the last acknowledged state, or that state with the whole flush under way.

    The test needs a machine that can cut the power of a file system.
    """
    try:
        report = run_cuts(8)
    except CutsUnavailable as reason:
        pytest.skip(str(reason))
    assert report.cuts == 8
    assert report.acknowledged > 4
