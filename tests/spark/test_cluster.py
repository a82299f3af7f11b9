"""Spark on machines that share a file system and nothing else: hand-offs keep their promises, whatever is lost.

The payloads are on the shared file system, and the queue on the driver's own disk. ``make cluster`` runs this.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from persistentqueue.spark import StageHandoff
from persistentqueue.system.disk import DISK
from tests.support import machines, queues
from tests.support.cluster import Cluster, Driver, cluster
from tests.support.machines import Machine
from tests.support.network_disks import SHARED, Gluster, Sshfs

ROWS = 1000
JOB_SECONDS = 400
GRACE_SECONDS = 120
KINDS = [kind for kind in (Gluster, Sshfs) if not kind.missing()]
REASON = machines.missing() or ("" if KINDS else "a cluster needs glusterfs-server or sshfs")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(bool(REASON), reason=REASON or "all is there"),
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.kind)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster of two workers."""
    with cluster(tmp_path_factory.mktemp("cluster"), request.param) as made:
        yield made


@pytest.fixture(scope="module")
def driver(running: Cluster) -> Iterator[Driver]:
    """Yield a program on the driver's machine, with a session."""
    program = Driver(running)
    try:
        yield program
    finally:
        program.kill()


def job(driver: Driver, name: str, *arguments: Any) -> Any:
    """Return what a function of the program returns."""
    return driver(name, *arguments, timeout=JOB_SECONDS)


def check_empty(running: Cluster, name: str) -> None:
    """Check that no stage waits, and that no payload is left on the shared file system when the queue opens again."""
    brick = running.mounted.brick / name
    with StageHandoff(None, running.driver.directory / "queues", name, brick) as handoff:
        assert list(handoff.waiting()) == []
    assert list(brick.iterdir()) == []


def test_workers_see_what_is_shared_and_no_more(running: Cluster, driver: Driver) -> None:
    """Each executor is on a machine of its own, and sees no directory of the driver."""
    (running.driver.directory / "queues").mkdir(exist_ok=True)
    found = job(driver, "places", ["/tmp/queues", SHARED, str(running.driver.directory)])
    assert found == {worker.address: [False, True, False] for worker in running.workers}


def test_put_and_take(running: Cluster, driver: Driver) -> None:
    """A frame that tasks on all machines write is taken once, whole, and its payload is removed; a marker holds."""
    check_frames(running, driver)


def check_frames(running: Cluster, driver: Driver) -> None:
    """Put two frames, one of them twice with its marker, and take both."""
    root = f"{SHARED}/basic"
    assert job(driver, "put", "basic", root, ROWS, 4, 0, ("numbers", 1)) is True
    assert job(driver, "put", "basic", root, ROWS, 4, 0, ("numbers", 1)) is False
    assert job(driver, "put", "basic", root, 10) is True
    assert job(driver, "take_all", "basic", root) == [list(range(ROWS)), list(range(10))]
    check_empty(running, "basic")


@pytest.mark.parametrize("seconds", [-3600, 3600], ids=["late", "early"])
def test_files_whose_times_are_an_hour_off(running: Cluster, driver: Driver, seconds: int) -> None:
    """Files with times that are an hour off, as a machine with a wrong clock makes them, stay until they are taken."""
    name = f"clock{seconds}"
    assert job(driver, "put", name, f"{SHARED}/{name}", ROWS) is True
    when = time.time() + seconds
    for path in (running.mounted.brick / name).rglob("*"):
        os.utime(path, (when, when))
    StageHandoff(None, running.driver.directory / "queues", name, running.mounted.brick / name).close()  # it sweeps
    assert job(driver, "take_all", name, f"{SHARED}/{name}") == [list(range(ROWS))]
    check_empty(running, name)


@pytest.mark.skipif(shutil.which("cc") is None, reason="a compiler makes the wrong clock")
@pytest.mark.parametrize("seconds", [-3600, 3600], ids=["late", "early"])
def test_worker_whose_clock_is_an_hour_off(tmp_path: Path, seconds: int) -> None:
    """A worker whose programs see another time of day changes nothing: frames and micro-batches arrive once."""
    with cluster(tmp_path, KINDS[0], clock_seconds=seconds) as made:
        driver = Driver(made)
        try:
            now, hour = time.time(), abs(seconds)
            found = job(driver, "clocks")
            off = {address: [round((each - now) / hour) * hour for each in times] for address, times in found.items()}
            right, wrong = (worker.address for worker in made.workers)
            assert off == {right: [0, 0], wrong: [seconds, seconds]}
            check_frames(made, driver)
            check_micro_batches(made, driver)
        finally:
            driver.kill()


def test_micro_batches(running: Cluster, driver: Driver) -> None:
    """Each micro-batch of a query is one stage, and a query that goes on adds only what is new."""
    check_micro_batches(running, driver)


def check_micro_batches(running: Cluster, driver: Driver) -> None:
    """Put the files of a stream as micro-batches, in three queries with one checkpoint, and take all of them."""
    stream, root = running.mounted.brick / "stream", f"{SHARED}/batches"
    stream.mkdir()
    for number in range(3):
        (stream / f"{number}").write_text("\n".join(map(str, range(number * 10, number * 10 + 10))))
        # Within a second, a mount of SSHFS may show the names of the last query.
        queues.wait_for(lambda: len(running.driver.run("ls", f"{SHARED}/stream").split()) > number)  # noqa: B023
        assert job(driver, "put_batches", "batches", root, "/tmp/checkpoint") >= 1
    taken = job(driver, "take_all", "batches", root)
    assert sorted(number for stage in taken for number in stage) == list(range(30))
    check_empty(running, "batches")


def test_payload_root_that_workers_do_not_see(running: Cluster, driver: Driver) -> None:
    """If the payload root is the driver's own, a put fails with the advice, and hands nothing over."""
    with pytest.raises(FileNotFoundError, match=r"needs a file system that it shares with the executors.*payload_root"):
        job(driver, "put", "own", "/tmp/own", ROWS)
    assert job(driver, "take_all", "own", "/tmp/own") == []
    assert list((running.driver.directory / "own").iterdir()) == []


def test_payload_root_that_some_workers_do_not_see(tmp_path: Path) -> None:
    """If only some tasks write where the driver reads, the put fails: no row is lost without an error."""
    with cluster(tmp_path, KINDS[0], workers=1) as made:
        made.add_worker(made.driver)
        made.workers.append(made.driver)
        driver = Driver(made)
        try:
            with pytest.raises(FileNotFoundError, match=r"rows that Spark has written.*payload_root"):
                job(driver, "put", "own", "/tmp/own", ROWS, 4, 0.5)
            assert job(driver, "take_all", "own", "/tmp/own") == []
            assert job(driver, "put", "own", f"{SHARED}/own", ROWS, 4, 0.5) is True
            assert job(driver, "take_all", "own", f"{SHARED}/own") == [list(range(ROWS))]
        finally:
            driver.kill()


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[tuple[Cluster, Driver]]:
    """Yield a cluster that the test breaks, with a program on it."""
    with cluster(tmp_path, KINDS[0]) as made:
        program = Driver(made)
        try:
            yield made, program
        finally:
            program.kill()


def while_putting(running: Cluster, driver: Driver, name: str, rows: int, act: Callable[[], None]) -> Any:
    """Put a frame of slow tasks, and act when the first of them is done; return what the put returns."""
    root = running.mounted.brick / name
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(job, driver, "put", name, f"{SHARED}/{name}", rows, 6, 1.0)
        wait_for(lambda: any(root.rglob("task_*")), putting)
        act()
        return putting.result()


def wait_for(condition: Callable[[], bool], job: Future[Any]) -> None:
    """Wait until the condition holds, while a job runs."""
    end = time.monotonic() + GRACE_SECONDS
    while not condition():
        assert not job.done(), f"the job has ended before: {job.exception() or job.result()}"
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def kill_executor(machine: Machine) -> None:
    """Kill the Java of the executor on a machine."""
    machine.run("pkill", "-9", "-f", f"CoarseGrainedExecutorBackend.*{machine.address}")


def test_lost_executor(running: Cluster, driver: Driver) -> None:
    """An executor is killed in the middle of a put: another one does its tasks, and the stage is whole, once."""
    assert while_putting(running, driver, "executor", ROWS, lambda: kill_executor(running.workers[1])) is True
    assert job(driver, "take_all", "executor", f"{SHARED}/executor") == [list(range(ROWS))]
    check_empty(running, "executor")


def test_lost_worker_machine(broken: tuple[Cluster, Driver]) -> None:
    """A machine is lost in the middle of a put: the other one does its tasks, and the stage is whole, once."""
    running, driver = broken
    assert while_putting(running, driver, "machine", ROWS, running.workers[1].crash) is True
    assert job(driver, "take_all", "machine", f"{SHARED}/machine") == [list(range(ROWS))]
    check_empty(running, "machine")


def test_cut_network_in_the_middle_of_a_commit(broken: tuple[Cluster, Driver]) -> None:
    """A worker is cut off in the middle of a put, and comes back afterwards: its late tasks add nothing."""
    running, driver = broken
    worker = running.workers[1]
    assert while_putting(running, driver, "cut", ROWS, worker.cut) is True
    worker.mend()
    end = time.monotonic() + GRACE_SECONDS
    while job(driver, "count_executors") < 2:  # the worker finds out that it was given up, and starts another one
        assert time.monotonic() < end
        time.sleep(0.5)
    assert job(driver, "take_all", "cut", f"{SHARED}/cut") == [list(range(ROWS))]
    check_empty(running, "cut")


def test_driver_that_is_cut_off_behind_its_payload(broken: tuple[Cluster, Driver]) -> None:
    """The driver loses its network when its payload is durable: the put succeeds, and the stage can be taken later."""
    running, driver = broken
    directory = running.driver.directory
    (directory / "gate").write_text("payload")
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(job, driver, "put", "late", f"{SHARED}/late", ROWS)
        wait_for((directory / "gate.reached").exists, putting)
        running.driver.cut()
        (directory / "gate.open").touch()
        try:
            assert putting.result() is True
        finally:
            running.driver.mend()
    assert job(driver, "take_all", "late", f"{SHARED}/late") == [list(range(ROWS))]
    check_empty(running, "late")


def test_full_payload_root(tmp_path: Path) -> None:
    """A payload that does not fit fails its put, and is removed; the stages before and after it are whole.

    Tasks of Spark that failed keep their deleted files open as long as their executors live, so these end meanwhile.
    """
    with cluster(tmp_path, KINDS[0], size_mib=48) as running:
        driver = Driver(running)
        try:
            root = f"{SHARED}/full"
            assert job(driver, "put", "full", root, ROWS) is True
            with pytest.raises(Exception, match=r"(?i)no space left|ENOSPC|failure"):
                job(driver, "put", "full", root, 20_000_000, 4)
            assert len(list((running.mounted.brick / "full").iterdir())) == 1
            driver.kill()
            end = time.monotonic() + GRACE_SECONDS
            while DISK.free_bytes(str(running.mounted.brick)) < 40 << 20:
                assert time.monotonic() < end
                time.sleep(0.1)
            driver = Driver(running)
            assert job(driver, "put", "full", root, 2 * ROWS) is True
            assert job(driver, "take_all", "full", root) == [list(range(ROWS)), list(range(2 * ROWS))]
            check_empty(running, "full")
        finally:
            driver.kill()
