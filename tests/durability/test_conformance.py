"""The simulated disk behaves like the real one: see ``crash.conformance``."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistentqueue import PersistentQueue, delete_queue
from persistentqueue.system.disk import CREATE, DISK, PORTABLE
from tests.crash.conformance import (
    Program,
    answers,
    files_of,
    real,
    real_calls,
    real_files_of,
    simulated,
    simulated_calls,
    writes_directly,
)
from tests.crash.kills import in_a_process_of_its_own
from tests.crash.syscalls import SyscallsUnavailable
from tests.support.disks import call_on

DOORS = {"direct": DISK, "through the cache": DISK, "portable": PORTABLE}
PROGRAMS = [("direct", seed) for seed in range(20)]
PROGRAMS += [(name, seed) for name in ("through the cache", "portable") for seed in range(20, 26)]


@pytest.mark.damages
@pytest.mark.parametrize(("name", "seed"), PROGRAMS)
def test_same_answers_and_same_files(name: str, seed: int, tmp_path: Path) -> None:
    """A program gets equal results from both disks, step by step, and leaves equal bytes on both."""
    direct = name == "direct"
    if direct and not writes_directly(str(tmp_path)):
        pytest.skip("this file system takes no direct writes")
    directory = str(tmp_path / "queue")
    other = simulated(directory, direct)
    expected, found = Program(seed, other.disk, directory), Program(seed, real(direct, DOORS[name]), directory)
    expected.run()
    found.run()
    assert found.results == expected.results
    assert real_files_of(directory) == files_of(other, directory)


@pytest.mark.damages
@pytest.mark.parametrize(("direct", "seed"), [(True, 0), (True, 1), (True, 2), (False, 3), (False, 4)])
def test_same_system_calls(direct: bool, seed: int, tmp_path: Path) -> None:
    """The system calls of the real disk, as strace sees them, are those that the simulated one notes, in order."""
    if direct and not writes_directly(str(tmp_path)):
        pytest.skip("this file system takes no direct writes")
    directory = str(tmp_path / "queue")
    expected = simulated_calls(seed, directory, direct)
    try:
        found = in_a_process_of_its_own(real_calls, seed, directory, direct, str(tmp_path / "strace"))
    except SyscallsUnavailable as reason:
        pytest.skip(str(reason))
    assert found == expected
    assert len(found) > 20


def test_same_answers_at_the_door(tmp_path: Path) -> None:
    """Both disks give equal answers to calls in a random order, errors included, and end with equal bytes."""
    for seed in range(50):
        directory = str(tmp_path / str(seed))
        other = simulated(directory, True)
        assert answers(seed, real(True), directory) == answers(seed, other.disk, directory), seed
        assert real_files_of(directory) == files_of(other, directory), seed


def test_lock_stays_with_its_owner(tmp_path: Path) -> None:
    """Closing a descriptor that was refused a lock does not free the lock, on both disks."""
    path = str(tmp_path / "lock")
    for disk in (real(True), simulated(path, True).disk):
        descriptors = [disk.open(path, CREATE, 0o600) for _ in range(3)]
        owner, refused, late = descriptors
        assert (disk.lock(owner), disk.lock(refused)) == (True, False)
        disk.close(refused)
        was_free = disk.lock(late)
        disk.close(owner)
        disk.close(late)
        assert not was_free


def test_deleted_queue_is_gone(tmp_path: Path) -> None:
    """Deleting a queue leaves nothing of it, on both disks."""
    directory = str(tmp_path / "queue")
    other = simulated(directory, True)
    for disk in (real(True), other.disk):
        call_on(disk, PersistentQueue, directory, network_disk=True).close()
        call_on(disk, delete_queue, directory)
    assert real_files_of(directory) == {} == files_of(other, directory)
