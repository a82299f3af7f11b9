"""The schemas of typed rows: numbered files in the directory of a queue, which are never changed.

::

    schemas/000001.schema            {"format": "avro", "number": 1, "schema": {"fields": [...], "type": "struct"},
                                     "version": 1}
    schemas/000002-<random>.new      an attempt to take the number 2

A file is one line of JSON, and a line with its CRC-32 in eight hexadecimal digits, like the files in ``locations``.
``format`` is the format of the rows: ``arrow``, ``avro`` or ``json``. All schemas of a queue have one format.
``schema`` is a type ``struct`` in the serialization of Delta Lake, which is that of Spark. ``rows.schema`` lists the
types. The numbers count up from 1 without a gap. A later schema has all columns of an earlier one, and more.

The schemas are not a part of the log: a process registers a schema while another one, or none, owns the queue. Any
number of processes may do so at once. The write order of a registration (``schema.1`` …):

1. Make the directory ``schemas``, and sync its name. Write the attempt, with the next free number, and sync it. *A
   crash leaves the attempt.*
2. Link the attempt to its name. The link fails if another process has the number: then begin again, with the
   schemas that are there now. *A crash leaves a schema that no item uses, or none.*
3. Sync the directory: **the commit point of a registration**. A process that finds its schema there syncs it, too,
   before it writes items of that schema.
4. Delete all attempts to take this number or an earlier one. *A crash leaves attempts, which the next registration
   deletes.*

A schema that cannot be read keeps its number, also in a repair. Otherwise another schema could take the number, and
rows would be read with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import CorruptionError, PersistentQueueError, UnsupportedFormatError
from ..system.disk import CREATE_NEW, DIRECTORY, NO_LINK, READ, Disk, join
from ..system.files import make_parts, read_all, sync_directory, write_all
from ..system.path_errors import ABSENT, faults, suppress
from ..system.trust import opened_plain
from .inbox_access import give_to_user
from .locations import NEW_SUFFIX, SCHEMAS_DIRECTORY, decode_fields, encode_fields

SCHEMA_BYTES_MAX = 1024 * 1024
"""Most bytes of a file with a schema."""
_NAME = re.compile(r"([0-9]{6,10})\.schema", re.ASCII)
_ATTEMPT = re.compile(r"([0-9]{6,10})-[0-9a-f]{16}\.new", re.ASCII)
_ADVICE = "restore the file from a copy of the queue: rows with this schema cannot be read without it"


class SchemaFile(NamedTuple):
    """The content of one file: a schema, and the format of the rows."""

    number: int
    format: str
    schema: Any
    """The schema in the serialization that the file has, as the values of JSON."""


def schema_name(number: int) -> str:
    """Return the name of the file with this schema."""
    return f"{number:06d}.schema"


def parse_schema_name(name: str) -> int | None:
    """Return the number of the schema in a file of this name; None for any other file."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found is not None else None


def parse_schema_file(name: str) -> int | None:
    """Return the number in the name of a schema or of an attempt; None for any other file."""
    found = _ATTEMPT.fullmatch(name)
    return int(found[1]) if found is not None else parse_schema_name(name)


def read_schemas(disk: Disk, directory: str) -> list[SchemaFile]:
    """Return all schemas of the queue in this directory, lowest number first; none if it has none.

    Raises ``CorruptionError`` for damage, and for a number that is missing. Raises ``UnsupportedFormatError``.
    """
    last = max(_numbers(disk, directory), default=0)
    return [_read(disk, _path(directory, number), number) for number in range(1, last + 1)]


def check_schemas(disk: Disk, directory: str) -> Iterator[PersistentQueueError]:
    """Yield an error for each schema of the queue that cannot be read, and one for each gap between their numbers."""
    behind = 0
    for found in _numbers(disk, directory):
        for number in sorted({min(behind + 1, found), found}):
            try:
                _read(disk, _path(directory, number), number)
            except (CorruptionError, UnsupportedFormatError) as problem:
                yield problem
        behind = found


def write_schema(disk: Disk, directory: str, file: SchemaFile) -> bool:
    """Register a schema under its number, durably; return False if the number is taken.

    Raises ``OSError``, and ``FileNotFoundError`` if the queue is gone. If the failure was not that of the last sync,
    the schema is not registered.
    """
    folder = join(directory, SCHEMAS_DIRECTORY)
    make_parts(disk, [folder])  # and no directory above it: the queue may have been deleted meanwhile
    _give(disk, folder, directory)
    sync_directory(disk, directory)  # a process that made the folder may have been killed before its name was durable
    data = encode_fields(file._asdict())
    if len(data) > SCHEMA_BYTES_MAX:
        raise ValueError(f"{folder}: a schema of {len(data)} bytes exceeds {SCHEMA_BYTES_MAX}: use fewer columns")
    attempt = join(folder, f"{file.number:06d}-{disk.urandom(8).hex()}{NEW_SUFFIX}")
    try:
        disk.failpoint("schema.1 write")
        _write(disk, attempt, data, directory)
        disk.failpoint("schema.2 link")
        disk.link(attempt, _path(directory, file.number))
    except (FileExistsError, FileNotFoundError):  # another process has the number, and may have deleted the attempt
        _remove(disk, attempt)
        return False
    except faults(OSError):
        _remove(disk, attempt)
        raise
    disk.failpoint("schema.3 sync")
    sync_directory(disk, folder)
    disk.failpoint("schema.4 delete attempts")
    for name in disk.listdir(folder):
        found = _ATTEMPT.fullmatch(name)
        if found is not None and int(found[1]) <= file.number:
            _remove(disk, join(folder, name))
    return True


def sync_schemas(disk: Disk, directory: str) -> None:
    """Make the schemas of the queue durable: the process that registered them may not have done so yet."""
    sync_directory(disk, join(directory, SCHEMAS_DIRECTORY))
    sync_directory(disk, directory)


def _path(directory: str, number: int) -> str:
    return join(join(directory, SCHEMAS_DIRECTORY), schema_name(number))


def _numbers(disk: Disk, directory: str) -> list[int]:
    """Return the numbers of the schemas of this queue, lowest first."""
    try:
        names = disk.listdir(join(directory, SCHEMAS_DIRECTORY))
    except ABSENT:
        return []
    return sorted(filter(None, map(parse_schema_name, names)))


def _read(disk: Disk, path: str, number: int) -> SchemaFile:
    try:
        with opened_plain(disk, path) as fd:
            data = read_all(disk, fd, SCHEMA_BYTES_MAX, 0)
    except FileNotFoundError:
        raise CorruptionError(path, 0, "a schema, since there is a later one", "no file", _ADVICE) from None
    fields = decode_fields(data, path, _ADVICE)
    if fields["number"] != number:
        raise CorruptionError(path, 0, f"schema {number}", f"schema {fields['number']}", _ADVICE)
    return SchemaFile(number, fields["format"], fields["schema"])


def _give(disk: Disk, folder: str, directory: str) -> None:
    """Give the folder to the user of the queue, which registers later schemas, and deletes all of them."""
    with disk.opened(folder, READ | DIRECTORY | NO_LINK) as fd:
        give_to_user(disk, fd, directory)


def _write(disk: Disk, path: str, data: bytes, directory: str) -> None:
    with disk.opened(path, CREATE_NEW, 0o600) as fd:
        give_to_user(disk, fd, directory)
        write_all(disk, fd, [data], len(data), 0)
        disk.fdatasync(fd)


def _remove(disk: Disk, path: str) -> None:
    with suppress(OSError):  # another process has deleted it, or the next registration does
        disk.unlink(path)
