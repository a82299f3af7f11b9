"""The locations of the parts of a queue: its log is in its own directory, its segments there or on other media.

A *location* is the directory of the segments, if it is on other media. Two small files refer to each other. Each is one
line of JSON, and a line with its CRC-32 in eight hexadecimal digits::

    <queue>/data.path       {"others": [["/old", "1f…"]], "place": ["/mnt/data/orders", "9c…"], "version": 1}
    <location>/queue.id     {"id": "9c…", "queue": "/var/queues/orders", "version": 1}

``place`` is the absolute path of the directory of ``data/``, ``inbox/`` and ``pool/``, and a random id. The location
bears this id in its ``queue.id``. The id was given when the location was taken, and to no other one. ``"."`` with an
empty id is the queue's own directory. A queue without ``data.path`` has that, too.

``others`` may hold files of this queue that do not count: a move has left them, or was copying them. ``queue`` tells
people which queue a location belongs to. By it, a queue also recognizes a location that it took and never recorded,
because its process was killed in between. An accepted opening in a directory of another name writes ``queue`` anew. So
a copy finds the original, wherever that was renamed to. ``lock`` beside it is the inode of that queue's lock, if the
directory was a copy when its opening was given this location. So only this copy uses it from then on.

A location is taken durably before ``data.path`` names it. It loses its id only when ``data.path`` durably names it no
more. So a location without the recorded id is not mounted, or belongs to another queue, and nothing is made there.

Each file is replaced as a whole: written beside the old one (``*.new``), synced and renamed; then its directory is
synced.
"""

from __future__ import annotations

import json
from stat import S_IRGRP
from typing import Any, NamedTuple

from ..core.checksum import crc32
from ..errors import CorruptionError, DataMissingError, UnsupportedFormatError
from ..system.disk import CREATE, Disk, abspath, dirname, join
from ..system.files import read_all, sync_directory, write_all
from ..system.path_errors import ABSENT, OUT_OF_REACH, faults, suppress
from ..system.trust import opened_plain

PATH_NAME = "data.path"
ID_NAME = "queue.id"
LIMITS_NAME = "queue.limits"
"""The file of the limits; see ``inbox_limits``."""
NEW_SUFFIX = ".new"
LOG_DIRECTORY = "log"
DATA_DIRECTORY = "data"
INBOX_DIRECTORY = "inbox"
CLOSED_DIRECTORY = "inbox.closed"
POOL_DIRECTORY = "pool"
SCHEMAS_DIRECTORY = "schemas"
"""The directory of the schemas; see ``schema_files``."""
SHARED_POOL = ".pool"
VERSION = 1
_FILE_BYTES_MAX = 1024 * 1024
_ID_BYTES = 16
NAME_DIRECTORY = (
    "name the directory that holds the segments, or its parent directory if the call has the queue's name: "
    "repair(…, data_path=DIR), or repair --data-path DIR"
)
"""Advice for a call that needs the location of the segments."""
LOST_FOR_GOOD = (
    f"if the segments are lost for good, remove {PATH_NAME}, make the directory {DATA_DIRECTORY} beside the log, then "
    "run repair without data_path="
)
"""Advice for a call that other advice cannot help: the report of that repair names the lost items."""


class Place(NamedTuple):
    """A location of segments, and the id that it bears."""

    path: str
    id: str


OWN = Place(".", "")
"""The queue's own directory, whichever that is."""


class Places(NamedTuple):
    """The locations of the parts of one queue: all code asks this object for the path of a file."""

    directory: str
    """The directory of the queue: with its lock, its log, and the spare log, which is reached by a rename."""
    place: Place = OWN
    others: tuple[Place, ...] = ()

    def root_of(self, place: Place) -> str:
        """Return the directory of this location."""
        return self.directory if place == OWN else place.path

    @property
    def data_root(self) -> str:
        """The directory of ``data/`` and ``pool/``."""
        return self.root_of(self.place)

    def path(self, name: str) -> str:
        """Return the path of a part, or of a file named with its part, such as ``data/000000000001.seg``."""
        is_data = name.partition("/")[0] in {DATA_DIRECTORY, INBOX_DIRECTORY, CLOSED_DIRECTORY}
        return join(self.data_root if is_data else self.directory, name)

    @property
    def spare_directory(self) -> str:
        """The directory of the spare log. It is beside the log, since the spare gets there by a rename."""
        return join(self.directory, POOL_DIRECTORY)

    def pool_directory(self, shared: bool) -> str:
        """Return the directory of the empty files for segments: the queue's own, or the one that it shares with its
        neighbours.

        It is on the same media as the segments.
        """
        root = self.data_root
        return join(dirname(root.rstrip("/")) or ".", SHARED_POOL) if shared else join(root, POOL_DIRECTORY)

    def parts(self) -> list[str]:
        """Return the directories of all files that are the queue's alone."""
        own = [join(self.directory, LOG_DIRECTORY), *map(self.path, (DATA_DIRECTORY, INBOX_DIRECTORY))]
        own.append(self.spare_directory)
        return own if self.place == OWN else [*own, self.pool_directory(False)]


def read_places(disk: Disk, directory: str) -> Places:
    """Return the recorded locations of the parts of the queue in this directory; its own directory if nothing is
    recorded.

    Raises ``DataMissingError`` if a location does not bear the recorded id, and ``CorruptionError``.
    """
    places = read_record(disk, directory)
    if places.place != OWN:
        found = read_id(disk, places.place.path)
        if found is None or found[0] != places.place.id:
            path, expected = places.place
            what = f"the id of {found[1]}, {found[0]}" if found is not None else "none"
            raise DataMissingError(
                directory,
                path,
                expected,
                found[0] if found is not None else None,
                f"its segments are at {path}: expected a {ID_NAME} there with {expected}, found {what}",
                "mount the disk that belongs there, or open the queue with data_path= set to where that disk is "
                f"mounted now (persistentqueue repair --data-path DIR); {LOST_FOR_GOOD}",
            )
    return places


def read_record(disk: Disk, directory: str) -> Places:
    """Return what ``read_places`` does, without a check of the location."""
    fields = read_fields(disk, join(directory, PATH_NAME))
    if fields is None:
        return Places(directory)
    place, *others = (Place(*each) for each in [fields["place"], *fields["others"]])
    return Places(directory, place, tuple(others))


def write_places(disk: Disk, places: Places) -> None:
    """Record the locations of the parts, durably. If all parts are in the queue's own directory, remove the record."""
    path = join(places.directory, PATH_NAME)
    if (places.place, places.others) == (OWN, ()):
        with suppress(FileNotFoundError):
            disk.unlink(path)
        sync_directory(disk, places.directory)
    else:
        write_fields(disk, path, {"place": list(places.place), "others": [list(other) for other in places.others]})


def read_id(disk: Disk, root: str) -> tuple[str, str] | None:
    """Return the id that a location bears, and the directory of its queue; None if it bears none.

    Raises ``CorruptionError``.
    """
    with suppress(*ABSENT):
        disk.hold(root)  # the directory that bears the id is the one that an owner writes to, and sweeps
    fields = read_fields(disk, join(root, ID_NAME))
    return (fields["id"], fields["queue"]) if fields is not None else None


def write_id(disk: Disk, directory: str, root: str, lock: str = "") -> Place:
    """Give the location a new id of the queue in this directory, durably except for the names above it.

    ``lock`` is what ``renew_id`` takes.
    """
    disk.hold(root)
    place = Place(root, disk.urandom(_ID_BYTES).hex())
    renew_id(disk, directory, place, lock)
    return place


def renew_id(disk: Disk, directory: str, place: Place, lock: str = "") -> None:
    """Write the location's id again, for the queue in this directory, durably except for the names above it.

    With the inode of the queue's ``lock``, the location belongs to this directory, and to no copy of it.
    """
    fields = {"id": place.id, "queue": abspath(directory)}
    write_fields(disk, join(place.path, ID_NAME), {**fields, "lock": lock} if lock else fields)


def read_claim(disk: Disk, place: Place) -> tuple[str, str]:
    """Return the directory of the location's queue, and the inode of its lock if it was recorded; else empty texts.

    Raises ``CorruptionError``.
    """
    fields = read_fields(disk, join(place.path, ID_NAME)) or {}
    return str(fields.get("queue", "")), str(fields.get("lock", ""))


def remove_file(disk: Disk, path: str) -> None:
    """Remove one of the small files, and the remains of an unfinished write of it; not durably."""
    for name in (path, path + NEW_SUFFIX):
        with suppress(FileNotFoundError):
            disk.unlink(name)


def read_fields(disk: Disk, path: str, advice: str = NAME_DIRECTORY) -> dict[str, Any] | None:
    """Return the fields of one of the small files; None if it is missing. Raises ``CorruptionError``, with the
    advice."""
    try:
        with opened_plain(disk, path) as fd:
            data = read_all(disk, fd, _FILE_BYTES_MAX, 0)
    except ABSENT:
        return None
    except CorruptionError:
        if LOG_DIRECTORY in _names(disk, path):  # the directory of a queue that has this name
            return None
        raise
    return decode_fields(data, path, advice)


def encode_fields(fields: dict[str, Any]) -> bytes:
    """Return the content of one of the small files with these fields."""
    line = json.dumps({**fields, "version": VERSION}, sort_keys=True).encode()
    return b"%s\n%08x\n" % (line, crc32(line))


def decode_fields(data: bytes, path: str, advice: str) -> dict[str, Any]:
    """Return the fields that one of the small files has. Raises ``CorruptionError``, with this advice, and
    ``UnsupportedFormatError``.
    """
    line, _, rest = data.partition(b"\n")
    expected = b"%08x\n" % crc32(line)
    if rest != expected:
        raise CorruptionError(path, len(line) + 1, repr(expected), repr(rest[:20]), advice)
    fields: dict[str, Any] = json.loads(line.decode())  # the checksum says that this is what was written
    if fields["version"] > VERSION:
        raise UnsupportedFormatError(path, fields["version"], VERSION)
    return fields


def _names(disk: Disk, path: str) -> list[str]:
    try:
        return disk.listdir(path)
    except OUT_OF_REACH:
        return []


def write_fields(disk: Disk, path: str, fields: dict[str, Any], mode: int = 0o600) -> None:
    """Replace one of the small files as a whole, durably; the new one has this ``mode``, whatever the umask is.

    If a group may read the old file, for producers of other users, that group may read the new one.

    Raises ``OSError``. If the failure was not that of the last sync, the old file is unchanged.
    """
    data, new = encode_fields(fields), path + NEW_SUFFIX
    try:
        with disk.opened(new, CREATE, mode) as fd:
            disk.ftruncate(fd, 0)
            write_all(disk, fd, [data], len(data), 0)
            _grant(disk, fd, path, mode)
            disk.fdatasync(fd)
        disk.rename(new, path)
    except faults(OSError):
        with suppress(OSError):
            disk.unlink(new)
        raise
    sync_directory(disk, dirname(path))


def _grant(disk: Disk, fd: int, path: str, mode: int) -> None:
    """Give the open new file this mode, and its group the right to read that a group has to the file at ``path``.

    If this process may not give the file to that group, no other group gets the right.
    """
    made = disk.fstat(fd)
    with suppress(FileNotFoundError, PermissionError):
        old = disk.lstat(path)
        if old.st_mode & S_IRGRP:
            if old.st_gid != made.st_gid:
                disk.fchown(fd, -1, old.st_gid)
            mode |= S_IRGRP
    if made.st_mode & mode != mode:
        disk.fchmod(fd, mode)
