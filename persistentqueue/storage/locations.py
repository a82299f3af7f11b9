"""Where the parts of a queue are: its log in its own directory, its segments there or at a *place* on other media.

Two small files hold on to each other. Each is one line of JSON, and one with its CRC-32 in eight hexadecimal digits::

    <queue>/data.path    {"others": [["/old", "1f…"]], "place": ["/mnt/data/orders", "9c…"], "version": 1}
    <place>/queue.id     {"id": "9c…", "queue": "/var/queues/orders", "version": 1}

``place`` is the absolute path of where ``data/``, ``inbox/`` and ``pool/`` are, and a random id that the place bears in
its ``queue.id``: it was given when the place was taken, and to no other. ``"."`` with an empty id is the queue's own
directory, also what a queue without ``data.path`` has. ``others`` may hold files of this queue that do not count: what
a move has left, or was copying to. ``queue`` tells people whose a place is, and a queue what it took itself and never
recorded, since it was killed between the two.

A place is taken durably before ``data.path`` tells of it, and lets go of its id only when ``data.path`` does so durably
no more. Hence a place without the id that is recorded is not mounted, or somebody else's, and nothing is made of it.

Each file is replaced as a whole: written beside (``*.new``), synced, renamed, and the directory synced.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, NamedTuple

from ..core.checksum import crc32
from ..errors import CorruptionError, DataMissingError, UnsupportedFormatError
from ..system.disk import CREATE, READ, Disk, abspath, dirname, join, read_all, sync_directory, write_all
from ..system.trust import open_plain

PATH_NAME = "data.path"
ID_NAME = "queue.id"
LIMITS_NAME = "queue.limits"
"""See ``bounds``."""
NEW_SUFFIX = ".new"
LOG_DIRECTORY = "log"
DATA_DIRECTORY = "data"
INBOX_DIRECTORY = "inbox"
CLOSED_DIRECTORY = "inbox.closed"
POOL_DIRECTORY = "pool"
SHARED_POOL = ".pool"
VERSION = 1
_FILE_BYTES_MAX = 1024 * 1024
_ID_BYTES = 16


class Place(NamedTuple):
    """Where segments are, and the id that it bears."""

    path: str
    id: str


OWN = Place(".", "")
"""The queue's own directory, whichever that is."""


class Places(NamedTuple):
    """Where the parts of one queue are: everybody who looks at one of its files asks here."""

    directory: str
    """Of the queue: its lock, its log, and the spare log, which a rename must reach."""
    place: Place = OWN
    others: tuple[Place, ...] = ()

    def root_of(self, place: Place) -> str:
        """The directory that the place is."""
        return self.directory if place == OWN else place.path

    @property
    def data_root(self) -> str:
        """What ``data/`` and ``pool/`` are in."""
        return self.root_of(self.place)

    def path(self, name: str) -> str:
        """The path of a part, or of a file that is named with its part, such as ``data/000000000001.seg``."""
        is_data = name.partition("/")[0] in {DATA_DIRECTORY, INBOX_DIRECTORY, CLOSED_DIRECTORY}
        return join(self.data_root if is_data else self.directory, name)

    @property
    def spare_directory(self) -> str:
        """What the spare log is in: beside the log, since it gets there by a rename."""
        return join(self.directory, POOL_DIRECTORY)

    def pool_directory(self, shared: bool) -> str:
        """What the empty files for segments are in, beside these: the queue's own, or those of its neighbours, too."""
        root = self.data_root
        return join(dirname(root.rstrip("/")) or ".", SHARED_POOL) if shared else join(root, POOL_DIRECTORY)

    def parts(self) -> list[str]:
        """The directories of all files that are the queue's alone."""
        own = [join(self.directory, LOG_DIRECTORY), *map(self.path, (DATA_DIRECTORY, INBOX_DIRECTORY))]
        own.append(self.spare_directory)
        return own if self.place == OWN else [*own, self.pool_directory(False)]


def read_places(disk: Disk, directory: str) -> Places:
    """Where the parts of the queue in this directory are, as it is recorded; all in it where nothing is.

    Raises ``DataMissingError`` for a place that does not bear the recorded id, and ``CorruptionError``.
    """
    places = read_record(disk, directory)
    if places.place != OWN:
        found = read_id(disk, places.place.path)
        if found is None or found[0] != places.place.id:
            raise DataMissingError(directory, places.place.path, places.place.id, found)
    return places


def read_record(disk: Disk, directory: str) -> Places:
    """The same, without a look at the place."""
    fields = read_fields(disk, join(directory, PATH_NAME))
    if fields is None:
        return Places(directory)
    place, *others = (Place(*each) for each in [fields["place"], *fields["others"]])
    return Places(directory, place, tuple(others))


def write_places(disk: Disk, places: Places) -> None:
    """Record where the parts are, durably; a queue that is all in its own directory has no such file."""
    path = join(places.directory, PATH_NAME)
    if (places.place, places.others) == (OWN, ()):
        with suppress(FileNotFoundError):
            disk.unlink(path)
        sync_directory(disk, places.directory)
    else:
        write_fields(disk, path, {"place": list(places.place), "others": [list(other) for other in places.others]})


def read_id(disk: Disk, root: str) -> tuple[str, str] | None:
    """The id that a place bears, and the directory of its queue; None if it bears none. Raises ``CorruptionError``."""
    with suppress(FileNotFoundError, NotADirectoryError):
        disk.hold(root)  # what bears the id is what an owner writes to, and sweeps
    fields = read_fields(disk, join(root, ID_NAME))
    return (fields["id"], fields["queue"]) if fields is not None else None


def write_id(disk: Disk, directory: str, root: str) -> Place:
    """Let the place bear a new id of the queue in this directory, durably but for the names above it."""
    disk.hold(root)
    place = Place(root, disk.urandom(_ID_BYTES).hex())
    renew_id(disk, directory, place)
    return place


def renew_id(disk: Disk, directory: str, place: Place) -> None:
    """Let the place bear its id as one of the queue in this directory, durably but for the names above it."""
    write_fields(disk, join(place.path, ID_NAME), {"id": place.id, "queue": abspath(directory)})


def remove_file(disk: Disk, path: str) -> None:
    """Remove one of the two files, and what may be left of its writing; not durably."""
    for name in (path, path + NEW_SUFFIX):
        with suppress(FileNotFoundError):
            disk.unlink(name)


def read_fields(disk: Disk, path: str) -> dict[str, Any] | None:
    """What one of the small files says; None where there is none. Raises ``CorruptionError``."""
    try:
        fd = open_plain(disk, path, READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except CorruptionError:
        if LOG_DIRECTORY in _names(disk, path):  # the directory of a queue that has this name
            return None
        raise
    try:
        data = read_all(disk, fd, _FILE_BYTES_MAX, 0)
    finally:
        disk.close(fd)
    line, _, rest = data.partition(b"\n")
    expected = b"%08x\n" % crc32(line)
    if rest != expected:
        advice = "the queue opens without this file once the segments' data directory is put into its own directory"
        raise CorruptionError(path, len(line) + 1, repr(expected), repr(rest[:20]), advice)
    fields: dict[str, Any] = json.loads(line.decode())  # as it was written: the checksum says so
    if fields["version"] > VERSION:
        raise UnsupportedFormatError(path, fields["version"], VERSION)
    return fields


def _names(disk: Disk, path: str) -> list[str]:
    try:
        return disk.listdir(path)
    except OSError:
        return []


def write_fields(disk: Disk, path: str, fields: dict[str, Any], mode: int = 0o600) -> None:
    """Replace one of the small files as a whole, durably. Raises ``OSError``: it is as it was."""
    line = json.dumps({**fields, "version": VERSION}, sort_keys=True).encode()
    data = b"%s\n%08x\n" % (line, crc32(line))
    new = path + NEW_SUFFIX
    try:
        fd = disk.open(new, CREATE, mode)
        try:
            disk.ftruncate(fd, 0)
            write_all(disk, fd, [data], len(data), 0)
            disk.fdatasync(fd)
        finally:
            disk.close(fd)
        disk.rename(new, path)
    except OSError:
        with suppress(OSError):
            disk.unlink(new)
        raise
    sync_directory(disk, dirname(path))
