"""The simulated disk beside the real one: equal programs, answers, files and system calls.

Tests on the simulated disk are only valid if it behaves like a real one. So a random program runs on both, with the
same clock and the same salts, in a directory of the same path. Three things must be equal. The first is the result or
error of each step, with statistics and recovery reports. The second is every file at the end, byte by byte. The third
is the list of calls, with path, offset and length, in order: system calls that strace saw of the real disk, and calls
that the simulated disk has noted.

The calls of strace are translated as follows:

- A descriptor counts as the path by which it was opened, even if that was renamed. The simulated disk does the same.
- ``openat`` counts if it makes a file: with ``O_CREAT``, and no file of that name after the calls so far.
- ``pwritev`` counts with the bytes that went to the file, which the call returned, and with ``RWF_DSYNC``.
- ``fallocate`` counts as the size that it leads to.
- Calls that change nothing do not count (reading, looking, locking, hints), and neither do failed calls.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import portalocker  # noqa: F401  here, so that its calls are not among those that are compared

from persistentqueue import check, repair
from persistentqueue.engine.context import Settings
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from persistentqueue.errors import PersistentQueueError
from persistentqueue.recovery.opening import open_store
from persistentqueue.storage.layout import names_in
from persistentqueue.storage.locations import DATA_DIRECTORY, LOG_DIRECTORY
from persistentqueue.system.disk import CREATE, CREATE_NEW, DISK, DSYNC, WRITE, Disk, join
from persistentqueue.system.files import write_all
from tests.support.disks import call_on

from .disk import SimulatedDisk
from .explorer import content_of
from .kills import Ledger
from .syscalls import calls_of, need_strace, traced

STEPS = 40
CALLS = "openat,close,pwritev,pwritev2,fdatasync,fsync,ftruncate,fallocate,/^(rename|unlink|mkdir|rmdir)"
"""Calls that strace traces."""
_PATIENCE_SECONDS = 60.0
_PATH = re.compile(r'((?P<fd>\d+|AT_FDCWD), )?"(?P<path>[^"]*)"')
"""A path, and the descriptor of the directory from which it is resolved."""
_OFFSET = re.compile(r"\], \d+, (\d+)(, [\w|]+)?$")


def simulated(directory: str, direct: bool) -> SimulatedDisk:
    """Return a simulated disk with the directories above this one."""
    disk = SimulatedDisk([os.path.dirname(directory)])
    disk.trace = []
    if not direct:
        disk.open_direct = lambda path: None  # type: ignore[method-assign]
    return disk


def real(direct: bool, disk: Disk = DISK) -> Disk:
    """Return a real disk that has the clock and the salts of a simulated one."""
    other = SimulatedDisk().disk
    return replace(
        disk,
        urandom=other.urandom,
        time_ns=other.time_ns,
        monotonic=other.monotonic,
        sleep=other.sleep,
        getpid=other.getpid,
        gethostname=other.gethostname,
        open_direct=disk.open_direct if direct else lambda _path: None,
    )


def writes_directly(directory: str) -> bool:
    """Return if the file system of this directory accepts direct writes."""
    path = os.path.join(directory, "direct")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    fd = DISK.open_direct(path)
    os.unlink(path)
    if fd is not None:
        os.close(fd)
    return fd is not None


# --- the program -----------------------------------------------------------------------------------------------------


class Program:
    """A random program on a queue: the same one for each disk. ``results`` has the outcome of its steps."""

    def __init__(self, seed: int, disk: Disk, directory: str) -> None:
        self.results: list[object] = []
        self._random = random.Random(seed)
        self._disk, self._directory = disk, directory
        choose = self._random.choice
        self._settings = Settings(
            sync=self._random.random() < 0.8,
            segment_bytes=choose([10, 300, 1000, 4096]),
            memory_bytes=choose([0, 200, 1 << 20]),
            inline_bytes=choose([0, 400, 65536]),
            log_bytes=choose([300, 2000, 4096, 12288]),
            network_disk=True,  # the disk is what is tried here
        )
        self._store: Store | None = None
        self._works = [Transaction(), Transaction()]
        self._next = 0

    def run(self) -> None:
        """Run all steps, and close."""
        steps: list[tuple[int, Callable[[Store], object]]] = [
            (30, self._enqueue),
            (15, self._dequeue),
            (20, self._flush),
            (5, self._flush_both),
            (5, self._mark),
            (4, self._spill),
            (4, self._roll_back),
            (3, lambda store: store.trim()),
            (2, lambda store: store.give_back()),
            (4, self._reopen),
            (2, lambda store: call_on(self._disk, check, self._directory)),
            (1, self._damage),
        ]
        weights, actions = zip(*steps, strict=True)
        for action in self._random.choices(actions, weights, k=STEPS):
            self._step(action)
        self._step(self._browse)
        self._step(lambda store: store.close())
        self.results.append(call_on(self._disk, check, self._directory))

    def _step(self, action: Callable[[Store], object]) -> None:
        store = self._store or self._open()
        try:
            result = action(store)
        except (PersistentQueueError, OSError) as error:
            result = repr(error)
        self.results.append(result)
        self.results.append(
            (
                len(store.reader.ready),
                store.reader.ready.held,
                store.generations.number,
                store.syncs,
                store.generations.log_bytes,
                store.pages.cost_bytes,
            )
        )

    def _open(self) -> Store:
        self._store = store = open_store(self._disk, self._directory, self._settings, create=True)
        self._works = [Transaction(), Transaction()]
        self.results.append(store.recovery)
        return store

    def _work(self) -> Transaction:
        return self._random.choice(self._works)

    def _enqueue(self, _store: Store) -> object:
        work = self._work()
        for _ in range(self._random.choice([1, 1, 2, 20])):
            self._next += 1
            item = (b"%d " % self._next).ljust(self._random.choice([0, 0, 10, 100, 1500, 6000]), b".")
            work.add([item])
        return len(work.items)

    def _dequeue(self, store: Store) -> object:
        runs, items = store.reader.take(self._random.choice([1, 2, 5, 1000]))
        work = self._work()
        work.runs += runs
        work.ready = store.reader.ready
        return items

    def _flush(self, store: Store) -> object:
        return self._commit(store, [self._work()])

    def _flush_both(self, store: Store) -> object:
        return self._commit(store, list(self._works))

    def _mark(self, store: Store) -> object:
        work = self._work()
        work.marker = (self._random.choice("mn"), self._random.randrange(6))
        return self._commit(store, [work])

    def _commit(self, store: Store, group: list[Transaction]) -> object:
        group = [work for work in group if work.items or work.runs or work.pieces or work.marker]
        if group:
            store.commit(group)
        outcome = [(work.settled, work.skipped, repr(work.error)) for work in group]
        for work in group:
            if work.skipped:
                store.discard(work)
            if work.settled:
                self._works[self._works.index(work)] = Transaction()
        return outcome, sorted(store.state.markers.items())

    def _spill(self, store: Store) -> object:
        work = self._work()
        if work.items:
            store.spill(work)
        return work.pieces

    def _roll_back(self, store: Store) -> None:
        work = self._work()
        store.discard(work)
        self._works[self._works.index(work)] = Transaction()

    def _browse(self, store: Store) -> object:
        return content_of(store)

    def _reopen(self, store: Store) -> object:
        """Close the store, or release it like a killed process, and open again."""
        found = content_of(store)
        if self._random.random() < 0.5:
            store.close()
        else:
            store.release()
        return found, content_of(self._open())

    def _damage(self, store: Store) -> object:
        """Change a byte of a file while the queue is closed, check the queue, and repair it."""
        self._store = None
        store.close()
        part = self._random.choice([LOG_DIRECTORY, DATA_DIRECTORY])
        directory = join(self._directory, part)
        paths = [join(directory, name) for name in names_in(self._disk, directory)]
        if paths:
            fd = self._disk.open(self._random.choice(paths), WRITE, 0)
            at = self._random.randrange(self._disk.fstat(fd).st_size)
            spoilt = self._disk.pread(fd, 1, at)[0] ^ 1 << self._random.randrange(8)
            write_all(self._disk, fd, [bytes([spoilt])], 1, at)
            self._disk.close(fd)
        found = call_on(self._disk, check, self._directory)
        repaired = call_on(self._disk, repair, self._directory)
        return found, repaired, self._open().recovery


def answers(seed: int, disk: Disk, directory: str) -> list[object]:
    """Return the answers of a disk to random calls on three files, such as a queue makes; errors count by their
    number."""
    chance, result = random.Random(seed), list[object]()
    descriptors: list[int] = []
    disk.mkdir(directory, 0o700)
    disk.mkdir(join(directory, "sub"), 0o700)
    paths = [join(directory, name) for name in ("a", "b", "sub/c")]

    def begin(path: str, flags: int) -> None:
        descriptors.append(disk.open(path, flags, 0o600))

    def end(fd: int) -> None:
        descriptors.remove(fd)
        disk.close(fd)

    for _ in range(STEPS):
        path, other, offset, length_bytes = (
            *chance.choices(paths, k=2),
            chance.randrange(9000),
            chance.randrange(1, 5000),
        )
        calls: list[Callable[[], object]] = [
            partial(begin, path, chance.choice([WRITE, CREATE, CREATE_NEW])),
            partial(disk.rename, path, other),
            partial(disk.link, path, other),
            partial(disk.unlink, path),
            partial(disk.lstat, path),
            partial(disk.listdir, directory),
            partial(disk.rmdir, join(directory, "sub")),
        ]
        if descriptors:
            fd = chance.choice(descriptors)
            calls += [
                partial(end, fd),
                partial(disk.fstat, fd),
                partial(disk.pread, fd, length_bytes, offset),
                partial(disk.pwritev, fd, [bytes([chance.randrange(256)]) * length_bytes, b"."], offset, 0),
                partial(disk.pwritev, fd, [b"durable"], offset, DSYNC),
                partial(disk.ftruncate, fd, offset),
                partial(disk.fallocate, fd, offset, length_bytes),
                partial(disk.fdatasync, fd),
            ]
        try:
            answer = chance.choice(calls)()
        except OSError as error:
            answer = error.errno
        result.append(_comparable(answer))
    for fd in descriptors:
        disk.close(fd)
    return result


def _comparable(answer: object) -> object:
    """Return the answer without values that disks may choose: number and times of an inode, order of names."""
    if isinstance(answer, os.stat_result):
        return answer.st_mode, answer.st_size, answer.st_nlink
    return sorted(answer) if isinstance(answer, list) else answer


# --- files that remain -----------------------------------------------------------------------------------------------


def files_of(disk: SimulatedDisk, directory: str) -> dict[str, bytes | None]:
    """Return every file of a simulated directory and its content; None for a directory."""
    inside = directory + "/"
    return {
        path[len(inside) :]: _without_inode(bytes(disk.inodes[number].cache)) if number in disk.inodes else None
        for path, number in disk.names.items()
        if path.startswith(inside)
    }


def real_files_of(directory: str) -> dict[str, bytes | None]:
    """Return every file of a real directory and its content; None for a directory."""
    found: dict[str, bytes | None] = {}
    for root, directories, files in os.walk(directory):
        for name in directories:
            found[os.path.relpath(os.path.join(root, name), directory)] = None
        for name in files:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, directory)] = _without_inode(file.read())
    return found


def _without_inode(data: bytes) -> bytes:
    """Return the content of a lock file without the number of its inode; any other content unchanged."""
    return re.sub(rb'"inode": "\w{16}"}$', b'"inode": ""}', data)


# --- the calls -------------------------------------------------------------------------------------------------------


def simulated_calls(seed: int, directory: str, direct: bool) -> list[str]:
    """Return the calls that a simulated disk notes while the program runs."""
    disk = simulated(directory, direct)
    Program(seed, disk.disk, directory).run()
    assert disk.trace is not None
    return [line.split(maxsplit=1)[1].rstrip() for line in disk.trace if not line.lstrip().startswith("--")]


def real_calls(seed: int, directory: str, direct: bool, log: str) -> list[str]:
    """Return the system calls of a process that runs the program, in the notation of the simulated disk.

    Raises ``SyscallsUnavailable``.
    """
    need_strace()

    ledger = Ledger()
    with traced(lambda _ledger: Program(seed, real(direct), directory).run(), log, CALLS) as child:
        status = ledger.end(child.pid, child.pipe, _PATIENCE_SECONDS)
    assert status == 0, ledger.error
    return list(_in_its_words(calls_of(log)))


def _joined(paths: Mapping[str, str], directory: str | None, path: str) -> str:
    return path if path.startswith("/") else os.path.normpath(os.path.join(paths[directory or ""], path))


def _in_its_words(calls: Iterator[re.Match[str]]) -> Iterator[str]:
    """Yield one line for each call that changes something."""
    names: set[str] = set()
    paths: dict[str, str] = {}
    for match in calls:
        call, arguments, result = match["call"], match["arguments"], match["result"]
        first, _, rest = arguments.partition(", ")
        # Written data is quoted as well, but does not follow a descriptor.
        given = [each for each in _PATH.finditer(arguments) if each["fd"] is not None or each["path"].startswith("/")]
        named = [_joined(paths, each["fd"], each["path"]) for each in given]
        if result == "-1":
            continue
        if call == "close":
            paths.pop(arguments, None)  # a listing closes a duplicate descriptor, which is not in ``paths``
        elif call == "openat":
            paths[result] = named[0]
            if "O_CREAT" in arguments and named[0] not in names:
                names.add(named[0])
                yield f"create {named[0]}"
        elif call.startswith("pwritev"):
            place = _OFFSET.search(arguments)
            assert place is not None, arguments
            synced = " dsync" if "RWF_DSYNC" in arguments else ""
            yield f"pwritev{synced} {paths[first]} {place[1]} {result}"
        elif call in {"fdatasync", "fsync"}:
            yield f"{call} {paths[first]}"
        elif call == "ftruncate":
            yield f"ftruncate {paths[first]} {rest}"
        elif call == "fallocate":
            _mode, offset, length_bytes = rest.split(", ")
            yield f"fallocate {paths[first]} {int(offset) + int(length_bytes)}"
        else:
            names.difference_update(named[:1])
            names.update(named[1:])
            yield f"{call.removesuffix('at').removesuffix('at2')} {' '.join(named)}"
