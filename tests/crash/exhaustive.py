"""All programs of a few operations, crashed at every call of the disk, with every state of the pending writes.

The explorer relies on chance; this campaign does not. One study of crash bugs in file systems found that 24 of its 26
bugs need three operations or fewer (B3, "bounded black-box crash testing"). A state that was opened before, with equal
allowed outcomes, is not opened again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, product
from operator import itemgetter
from typing import TypeVar

from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.engine.context import Settings
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from persistentqueue.recovery.opening import open_store

from .content import Content
from .disk import Inode, Names, Pending, Pick, SimulatedDisk, after_cut, paths_of
from .explorer import DIRECTORY, content_of
from .exploring import ViolationError

SETTINGS = (
    Settings(segment_bytes=150 + HEADER_BYTES, log_bytes=300, memory_bytes=0),
    Settings(segment_bytes=10, log_bytes=8192, memory_bytes=1000, inline_bytes=0, pool_max_bytes=600),
)
OUTCOMES_MAX = 12
"""Number of outcomes of one file's pending writes that are tried; more than three sectors have more."""
_UNBELIEVED = {f"{DIRECTORY}/lock", f"{DIRECTORY}/pool/log.free"}
_Outcome = TypeVar("_Outcome")
_State = tuple[int, Callable[[], SimulatedDisk]]


class Odometer:
    """A ``pick`` that goes through all of its choices: each ``turn`` makes the next ones."""

    def __init__(self) -> None:
        self._digits: list[int] = []
        self._bases: list[int] = []
        self._at = 0

    def pick(self, n: int) -> int:
        """Return the choice of this turn."""
        if self._at == len(self._digits):
            self._digits.append(0)
            self._bases.append(n)
        self._at += 1
        return self._digits[self._at - 1]

    def turn(self) -> bool:
        """Go to the next choices; return False when there are none left."""
        while self._digits and self._digits[-1] == self._bases[-1] - 1:
            self._digits.pop()
            self._bases.pop()
        if not self._digits:
            return False
        self._digits[-1] += 1
        self._at = 0
        return True


def outcomes(crash: Callable[[Pick], _Outcome], key: Callable[[_Outcome], Hashable]) -> list[_Outcome]:
    """Return the different results of ``crash``, for all possible picks."""
    odometer = Odometer()
    found: dict[Hashable, _Outcome] = {}
    for _ in range(20 * OUTCOMES_MAX):
        outcome = crash(odometer.pick)
        found.setdefault(key(outcome), outcome)
        if len(found) >= OUTCOMES_MAX or not odometer.turn():
            break
    return list(found.values())


def every_kill(disk: SimulatedDisk) -> list[SimulatedDisk]:
    """Return the disks that a kill can leave."""
    return outcomes(disk.kill, _fingerprint)


def every_cut(disk: SimulatedDisk) -> Iterator[SimulatedDisk]:
    """Return the disks that a power cut can leave."""
    return (make() for _, make in _cuts(disk))


@lru_cache(1000)  # the last tick has changed at most one file
def _contents(durable: bytes, pending: tuple[Pending, ...]) -> list[bytes]:
    """Return the contents of a file that a power cut can leave."""
    inode = Inode(bytearray(durable), bytearray(), list(pending), 1)
    return [bytes(content) for content in outcomes(partial(after_cut, inode), bytes)]


def _kills(disk: SimulatedDisk) -> Iterator[_State]:
    for killed in every_kill(disk):
        yield _fingerprint(killed), partial(_as_it_is, killed)


def _cuts(disk: SimulatedDisk) -> Iterator[_State]:
    """Yield a fingerprint of each disk that a power cut can leave, and a call that makes the disk, which takes longer.

    For files whose content must not matter, every outcome occurs, but not in each combination with the others.
    """
    unsure = {
        number: _contents(bytes(inode.durable), tuple(inode.pending))
        for number, inode in disk.inodes.items()
        if inode.pending
    }
    sure = {number: bytes(inode.durable) for number, inode in disk.inodes.items() if not inode.pending}

    def names_after_cut(pick: Pick) -> tuple[Names, tuple[tuple[str, int], ...]]:
        names = disk.names_after_cut(pick)
        return names, tuple(sorted(paths_of(names).items()))

    for names, paths in outcomes(names_after_cut, itemgetter(1)):
        contents = {number: unsure[number] for number in disk.unsure(names)}
        believed = {number for path, number in paths if path not in _UNBELIEVED}
        turning = {number: contents.pop(number) for number in list(contents) if number not in believed}
        chosen = list(product(*contents.values()))
        for turn in range(max(len(chosen), *map(len, turning.values()), 0)):
            after = dict(zip(contents, chosen[turn % len(chosen)], strict=True))
            after |= {number: each[turn % len(each)] for number, each in turning.items()}
            of = sure | after
            files = [(path, of[number] if number > 0 else None, None) for path, number in paths]
            yield _hash(files), partial(disk.cut_to, names, after)


class Exhaustive:
    """Runs programs; ``states`` counts the crash states that were opened and compared, ``programs`` the programs."""

    def __init__(self, settings: Settings, nested: bool = False) -> None:
        self.settings = settings
        self.programs = 0
        self.crashes = 0
        self.states = 0
        self._nested = nested
        self._met: set[int] = set()
        self._ticks: dict[tuple[str, ...], int] = {}

    def run(self, operations_max: int) -> None:
        """Run all programs of up to this number of operations."""
        for length in range(1, operations_max + 1):
            for program in product(OPERATIONS, repeat=length):
                self.programs += 1
                try:
                    self._ticks[program] = self._run(program, self._ticks.get(program[:-1], 0))
                except Exception as error:
                    raise ViolationError(f"{error}\nprogram {' '.join(program)}, {self.settings}") from error

    def _run(self, program: tuple[str, ...], crashed_ticks: int) -> int:
        """Run a program, and return its number of ticks.

        It crashes only after ``crashed_ticks`` ticks: a shorter program with an equal beginning has crashed before
        that.
        """
        disk = SimulatedDisk()
        run = _Run(self.settings)

        def on_tick() -> None:
            if disk.ticks > crashed_ticks:
                self._crash(disk, run.allowed(), 0)

        disk.on_tick = on_tick
        run.open(disk)
        for operation in program:
            OPERATIONS[operation](run, disk)
        disk.on_tick = None
        self._crash(disk, run.allowed(), 0)
        run.store.abandon()
        return disk.ticks

    def _crash(self, disk: SimulatedDisk, allowed: list[Content], depth: int) -> None:
        for fingerprint, make in chain(_kills(disk), _cuts(disk)):
            self.crashes += 1
            state = hash((fingerprint, tuple(allowed)))
            if state in self._met:
                continue
            self._met.add(state)
            self.states += 1
            crashed = make()
            if self._nested and depth == 0:
                crashed.on_tick = lambda crashed=crashed: self._crash(crashed, allowed, 1)
            store = open_store(crashed.disk, DIRECTORY, self.settings, create=True)
            crashed.on_tick = None
            found = content_of(store)
            store.abandon()
            if found not in allowed:
                raise ViolationError(f"found {found}, allowed {allowed}")


class _Run:
    """Queue of one program, and its expected content."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.content = Content()
        self.under_way: list[Content] = []
        self.number = 0
        self.store: Store

    def allowed(self) -> list[Content]:
        return [self.content, *self.under_way]

    def open(self, disk: SimulatedDisk) -> None:
        self.store = open_store(disk.disk, DIRECTORY, self.settings, create=True)

    def commit(self, transactions: list[Transaction], items: tuple[bytes, ...]) -> None:
        self.under_way = [Content(items)]
        self.store.commit(transactions)
        self.content, self.under_way = Content(items), []

    def enqueuing(self, sizes: list[int]) -> Transaction:
        transaction = Transaction()
        for size in sizes:
            self.number += 1
            transaction.add([(b"%d" % self.number).ljust(size, b".")])
        return transaction

    def dequeuing(self, count: int) -> tuple[Transaction, tuple[bytes, ...]]:
        transaction = Transaction(self.store.reader.ready)
        transaction.runs, items = self.store.reader.take(count)
        return transaction, tuple(items)


def _enqueue(run: _Run, disk: SimulatedDisk) -> None:
    transaction = run.enqueuing([4, 9])
    run.commit([transaction], (*run.content.items, *transaction.items))


def _spill(run: _Run, disk: SimulatedDisk) -> None:
    transaction = run.enqueuing([120])
    items = list(transaction.items)
    run.store.spill(transaction)
    more = run.enqueuing([30])
    transaction.add(more.items)
    run.commit([transaction], (*run.content.items, *items, *more.items))


def _dequeue(run: _Run, disk: SimulatedDisk) -> None:
    transaction, taken = run.dequeuing(1)
    if taken:
        run.commit([transaction], run.content.items[1:])


def _open_queue(run: _Run, disk: SimulatedDisk) -> None:
    first, (second, taken), third = run.enqueuing([600]), run.dequeuing(1), run.enqueuing([1])
    run.commit([first, second, third], (*run.content.items[len(taken) :], *first.items, *third.items))


def _discard(run: _Run, disk: SimulatedDisk) -> None:
    transaction = run.enqueuing([200])
    run.store.spill(transaction)
    run.store.discard(transaction)


def _trim(run: _Run, disk: SimulatedDisk) -> None:
    run.store.trim()
    run.store.give_back()


def _compact(run: _Run, disk: SimulatedDisk) -> None:
    copy = run.store.begin_compaction(1.1, False)
    if copy is not None:
        while copy.step():
            pass
        transaction = Transaction()
        transaction.operations = copy.finish()
        if transaction.operations:
            run.commit([transaction], run.content.items)
        run.store.end_compaction(copy)


def _reopen(run: _Run, disk: SimulatedDisk) -> None:
    run.store.close()
    run.open(disk)


OPERATIONS: dict[str, Callable[[_Run, SimulatedDisk], None]] = {
    "enqueue": _enqueue,
    "spill": _spill,
    "dequeue": _dequeue,
    "group": _open_queue,
    "discard": _discard,
    "trim": _trim,
    "compact": _compact,
    "reopen": _reopen,
}


def _fingerprint(disk: SimulatedDisk) -> int:
    """Return a value that is equal for disks without an observable difference."""
    files = [
        (path, bytes(disk.inodes[number].cache) if number > 0 else None, _durable(disk, number))
        for path, number in sorted(disk.names.items())
    ]
    durable = sorted((path, number) for path, number in disk.durable_names().items() if path not in disk.names)
    return _hash(files, durable, len(disk.pending_names))


def _hash(
    files: Sequence[tuple[str, bytes | None, object]], durable: Sequence[object] = (), pending_names: int = 0
) -> int:
    return hash((tuple(files), tuple(durable), pending_names))


def _as_it_is(disk: SimulatedDisk) -> SimulatedDisk:
    return disk


def _durable(disk: SimulatedDisk, number: int) -> object:
    inode = disk.inodes.get(number)
    return None if inode is None or not inode.pending else (bytes(inode.durable), tuple(inode.pending))
