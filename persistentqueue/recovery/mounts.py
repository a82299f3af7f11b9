"""Mounted file systems: the type of the one that a directory is on, and the types on which a queue is not safe.

An owner needs a lock that lasts as long as its process. A file system over a network cannot promise that: its server
ends a lock when the client does not answer for some time, and the client may still write afterwards. So two owners can
write one queue. ``tests/durability/test_network_disks.py`` shows this where a type can be tried, and the documentation
has the table of the results.

Linux shows the mounts with their types in ``/proc/self/mountinfo``. The type decides, and not the magic number of
``statfs``: that of FUSE does not tell a folder behind SSH from a local disk. A file system on a block device is local,
so the mounts are read only for the others. If a mount is not found, its type is unknown, and the directory is accepted.
Other systems do not have this file.
"""

from __future__ import annotations

from contextlib import suppress

from ..errors import NetworkDiskError
from ..system.disk import Disk, device_numbers, dirname, join
from ..system.files import read_all
from ..system.path_errors import OUT_OF_REACH

_MOUNTS = "/proc/self/mountinfo"
_MOUNTS_BYTES_MAX = 16 * 1024 * 1024
_KERNEL = ("afs", "beegfs", "ceph", "cifs", "coda", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "panfs", "smb3")
_FUSE = (
    *("blobfuse", "blobfuse2", "ceph", "ceph-fuse", "curlftpfs", "gcsfuse", "glusterfs", "goofys", "juicefs"),
    *("mfs", "mount-s3", "mountpoint-s3", "rclone", "s3fs", "s3ql", "seaweedfs", "sshfs"),
)
NETWORK_TYPES = frozenset(_KERNEL) | {f"fuse.{program}" for program in _FUSE}
"""Types of file systems whose files are on other machines, as ``mountinfo`` names them.

Other programs of FUSE are accepted, since most of them are local. So are the folders that a virtual machine shares with
its host (``9p``, ``virtiofs``). Cluster file systems on a shared block device are accepted, too: they cut off a machine
that is lost.
"""


_ACCEPTED: set[int] = set()
"""Devices that this process has accepted: to read the mounts takes a tenth of the time of an opening.

A device whose number an unmounted one has had is accepted as well, if this process has used both.
"""


def type_of(disk: Disk, device: int) -> str | None:
    """Return the type of the file system with this device number; None if it is on a block device, or unknown."""
    major, minor = device_numbers(device)
    if major:
        return None
    number = f"{major}:{minor}"
    with suppress(*OUT_OF_REACH):  # not Linux, or no /proc is mounted
        for line in _mounts(disk):
            mount, _, source = line.partition(" - ")
            if mount.split(" ", 3)[2] == number:
                return source.partition(" ")[0]
    return None


def _mounts(disk: Disk) -> list[str]:
    """Return the lines of the mounts, such as ``36 35 0:52 / /mnt rw - fuse.sshfs host:/ rw``. Raises ``OSError``."""
    with disk.opened(_MOUNTS) as fd:
        return read_all(disk, fd, _MOUNTS_BYTES_MAX, 0).decode(errors="replace").splitlines()


def need_local(disk: Disk, path: str) -> None:
    """Raise ``NetworkDiskError`` if the directory is on a file system of ``NETWORK_TYPES``.

    If the directory is missing, the first of its parents that exists decides. A path that cannot be looked at is
    accepted: the call that needs it raises the error.
    """
    while True:
        try:
            device = disk.lstat(join(path, ".")).st_dev
        except FileNotFoundError:
            above = dirname(path.rstrip("/")) or "."
            if above in {path, "."}:
                return
            path = above
            continue
        except (NotADirectoryError, PermissionError):
            return
        if device not in _ACCEPTED:
            found = type_of(disk, device)
            if found in NETWORK_TYPES:
                raise NetworkDiskError(path, str(found))
            _ACCEPTED.add(device)
        return
