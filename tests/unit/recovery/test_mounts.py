"""Types of mounted file systems, by made-up lists of mounts: the types that are refused, and the calls that refuse."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from persistentqueue import (
    NetworkDiskError,
    Options,
    PersistentQueue,
    Producer,
    View,
    check,
    connect,
    delete_queue,
    list_queues,
    move_data,
    repair,
)
from persistentqueue.recovery.mounts import NETWORK_TYPES, need_local, type_of
from persistentqueue.rows import RowCodec
from persistentqueue.rows.registry import Registry
from persistentqueue.rows.schema import schema_from_types
from persistentqueue.system.disk import DISK, Disk, device_numbers
from tests.support.disks import call_on, disk_with, using_disk
from tests.support.queues import drain, put


@pytest.mark.parametrize(
    "device", [os.makedev(0, 52), os.makedev(8, 1), os.makedev(0, 70_000), os.makedev(4095, 1 << 19)]
)
def test_numbers_of_a_device(device: int) -> None:
    """The numbers of a device are those that the C library computes."""
    assert device_numbers(device) == (os.major(device), os.minor(device))


def test_type_of_a_real_mount() -> None:
    """The type of a directory is the one in the system's own list of mounts; a directory on a block device has none."""
    with open("/proc/self/mountinfo") as file:
        lines = file.read().splitlines()
    real = {line.split()[4]: (line.split()[2], line.partition(" - ")[2].split()[0]) for line in lines}
    assert type_of(DISK, os.stat("/proc").st_dev) == real["/proc"][1] == "proc"
    local = [path for path, (number, _) in real.items() if not number.startswith("0:") and os.path.isdir(path)]
    assert [type_of(DISK, os.stat(path).st_dev) for path in local] == [None] * len(local)


@pytest.mark.parametrize("kind", sorted(NETWORK_TYPES))
def test_network_types_are_refused(tmp_path: Path, kind: str) -> None:
    """A queue on a network file system is refused with the type, the path and the advice, before anything is made."""
    there = tmp_path / "there"
    with pytest.raises(NetworkDiskError) as caught:
        call_on(disk_with(tmp_path, kind, tmp_path), PersistentQueue, there / "queues", "orders")
    assert (caught.value.path, caught.value.found) == (str(tmp_path), kind)
    for text in (f"{tmp_path}: expected a local file system, found {kind}", "network_disk=True", "on a local disk"):
        assert text in str(caught.value)
    assert not there.exists()


@pytest.mark.parametrize(
    "kind", ["ext4", "tmpfs", "overlay", "btrfs", "fuse.bindfs", "fuse", "9p", "virtiofs", "ocfs2"]
)
def test_other_types_are_accepted(tmp_path: Path, kind: str) -> None:
    """A queue on a local file system, or on one of an unknown type, opens."""
    with call_on(disk_with(tmp_path, kind, tmp_path), PersistentQueue, tmp_path / "queue") as queue:
        put(queue, b"item")
        assert drain(queue) == [b"item"]


def test_mounts_are_read_once_for_each_device(tmp_path: Path) -> None:
    """A second queue on an accepted file system opens without another look at the mounts."""
    disk = disk_with(tmp_path, "btrfs", tmp_path)
    call_on(disk, PersistentQueue, tmp_path / "one").close()
    (tmp_path / "mounts").write_text((tmp_path / "mounts").read_text().replace("btrfs", "nfs4"))
    call_on(disk, PersistentQueue, tmp_path / "two").close()


def test_paths_that_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path below a file, and a relative one whose directory is gone, are left to the calls that need them."""
    (tmp_path / "file").touch()
    need_local(DISK, str(tmp_path / "file" / "queue"))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    need_local(DISK, "queue")


def test_a_system_without_a_list_of_mounts(tmp_path: Path) -> None:
    """If the system shows no mounts, a queue opens wherever it is."""
    disk = disk_with(tmp_path, "nfs4", tmp_path)
    (tmp_path / "mounts").unlink()
    with call_on(disk, PersistentQueue, tmp_path / "queue") as queue:
        put(queue, b"item")
        assert drain(queue) == [b"item"]


@pytest.fixture
def mounted(tmp_path: Path) -> Disk:
    """Return a disk on which ``far`` is on a network file system; ``far/queues/orders`` is a queue."""
    with PersistentQueue(tmp_path / "far" / "queues", "orders") as queue:
        put(queue, b"item")
    return disk_with(tmp_path, "nfs4", tmp_path / "far")


@pytest.mark.parametrize(
    "call",
    [
        lambda path, **options: PersistentQueue(path, "orders", **options),
        lambda path, **options: PersistentQueue(path, "orders", options=Options(**options)),
        lambda path, **options: PersistentQueue(path, "new", **options),
        lambda path, **options: Producer(path, "orders", **options),
        lambda path, **options: Producer(path, "new", **options),
        lambda path, **options: connect(path, "orders", **options),
        lambda path, **options: PersistentQueue(
            path.parent.parent / "near", "q", dead_letter="dead", data_path=path / "data", **options
        ),
    ],
    ids=["owner", "owner by options", "new queue", "producer", "producer of a new queue", "connect", "segments"],
)
def test_setting_to_insist(tmp_path: Path, mounted: Disk, call: Callable[..., PersistentQueue]) -> None:
    """Each call that owns, or publishes, is refused; with ``network_disk=True`` it works."""
    path = tmp_path / "far" / "queues"
    before = sorted(path.rglob("*"))
    with using_disk(mounted):
        with pytest.raises(NetworkDiskError, match="nfs4"):
            call(path)
        assert sorted(path.rglob("*")) == before
        with call(path, network_disk=True):
            pass


def test_a_codec_that_makes_the_queue_of_its_rows(tmp_path: Path, mounted: Disk) -> None:
    """The schema of a new queue is refused, unless the setting insists; a pickled registry insists as well."""
    path = tmp_path / "far" / "queues"
    with using_disk(mounted):
        with pytest.raises(NetworkDiskError, match="nfs4"):
            RowCodec(path, "rows", format="json", schema={"id": "long"})
        assert list_queues(path) == ["orders"]
        RowCodec(path, "rows", format="json", schema={"id": "long"}, network_disk=True)
        assert list_queues(path) == ["orders", "rows"]
        delete_queue(path, "rows")
        registry = pickle.loads(pickle.dumps(Registry(path, "rows", network_disk=True)))
        assert registry.register("json", schema_from_types({"id": "long"})).number == 1
        assert list_queues(path) == ["orders", "rows"]


def test_recorded_location_is_looked_at(tmp_path: Path, mounted: Disk) -> None:
    """A queue whose recorded segments are on a network file system is refused, for producers as well."""
    near, far = tmp_path / "near", tmp_path / "far" / "data"
    with PersistentQueue(near, "q", data_path=far) as queue:
        put(queue, b"item")
    with using_disk(mounted):
        for call in (PersistentQueue, Producer):
            with pytest.raises(NetworkDiskError, match=f"{far}/q"):
                call(near, "q")
        with PersistentQueue(near, "q", network_disk=True) as queue:
            assert queue.peek() == [b"item"]


def test_calls_that_save_data_are_not_refused(tmp_path: Path, mounted: Disk) -> None:
    """Calls that look, repair, move away or delete work on a network file system: they bring data back to a disk."""
    path = tmp_path / "far" / "queues"
    with using_disk(mounted):
        assert list_queues(path) == ["orders"]
        assert check(path, "orders").ok
        assert [each.data for each in View(path, "orders").peek()] == [b"item"]
        assert repair(path, "orders").items == 1
        move_data(path, "orders", data_path=tmp_path / "near")
        delete_queue(path, "orders")
    assert list(path.iterdir()) == []
