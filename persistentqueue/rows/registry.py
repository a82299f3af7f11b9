"""The registry of a queue: its schemas, which any process reads, and to which any process adds.

``storage.schema_files`` describes the files, and ``schema`` the changes that are allowed. A schema that is registered
already keeps its number. So a program with an earlier schema works on beside one with a later schema.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

from ..drawing.text import many
from ..errors import CorruptionError, InvalidNameError, UnsupportedFormatError
from ..interprocess.producer import Producer
from ..interprocess.splits import look
from ..storage.layout import find_generations, is_queue, names_in, no_queue, queue_directory
from ..storage.locations import INBOX_DIRECTORY, SCHEMAS_DIRECTORY, read_places
from ..storage.publication import is_published, read_publication
from ..storage.schema_files import SchemaFile, read_schemas, schema_name, sync_schemas, write_schema
from ..system.disk import StrPath, abspath, current_disk, join
from ..system.path_errors import naming_paths, unless_lacking
from .errors import SchemaMismatchError, SchemaNotFoundError
from .schema import Schema, evolved, parts_of, schema_from_json

FORMATS: Final = ("arrow", "avro", "json")
"""The formats of rows."""
_AVRO_NAME_ADVICE = "rename it: a letter or _, then letters, digits and _"


class Registered(NamedTuple):
    """A schema of a queue, with its number and the format of the rows."""

    number: int
    format: str
    schema: Schema


class Registry:
    """The schemas of the queue at ``path/name``. Any thread may use it, and it can be pickled.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None, the default, means the queue that lies in ``path`` itself.
        network_disk: Whether a queue that ``register`` makes may be on a network file system. Default: False.

    Raises:
        InvalidNameError: The name cannot be a queue's.
        TypeError: ``path`` or ``name`` is not text.
    """

    def __init__(self, path: StrPath, name: str | None = None, network_disk: bool = False) -> None:
        self._path, self._name, self._network_disk = abspath(queue_directory(path, None)), name, network_disk
        self.directory = abspath(queue_directory(path, name))
        self._disk = current_disk()
        self._known: tuple[Registered, ...] = ()

    def __reduce__(self) -> tuple[type[Registry], tuple[str, str | None, bool]]:
        """Return what makes the registry again in another process."""
        return Registry, (self._path, self._name, self._network_disk)

    def all(self) -> tuple[Registered, ...]:
        """Return all schemas that the queue has now, lowest number first; none if it has none.

        Raises ``CorruptionError``, ``UnsupportedFormatError`` and ``OSError``.
        """
        self._known = tuple(map(_decoded, read_schemas(self._disk, self.directory)))
        return self._known

    def newest(self) -> Registered:
        """Return the last schema.

        Raises ``SchemaNotFoundError`` if the queue has none, ``QueueNotFoundError``, and like ``all``.
        """
        known = self.all()
        if not known:
            if not find_generations(self._disk, self.directory):
                raise no_queue(self._disk, self.directory, "with a schema of rows")
            raise SchemaNotFoundError(self.directory)
        return known[-1]

    def schema(self, number: int) -> Schema:
        """Return the schema with this number. Raises ``SchemaNotFoundError``, and like ``all``."""
        known = self._known if number <= len(self._known) else self.all()
        if not 0 < number <= len(known):
            raise SchemaNotFoundError(self.directory, number, len(known))
        return known[number - 1].schema

    def register(
        self,
        format: str,  # noqa: A002 - the name of the option
        schema: Schema,
        *,
        create: bool = True,
    ) -> Registered:
        """Add a schema, and return it as it is registered; make the queue if it does not exist and ``create`` is True.

        Columns of the newest schema come first. A schema that the queue has already, in any order of its columns, is
        returned with its number. On return, the schema is durable.

        Raises ``SchemaMismatchError`` if the change is not allowed. Also if the schema is the first one, and items wait
        that the format cannot read. Raises ``QueueNotFoundError``, ``ValueError`` for types that the format cannot
        have, ``ResourceError``, and like ``Producer``, ``look`` and ``all``.
        """
        if format not in FORMATS:
            raise ValueError(f"the format of rows is {', '.join(FORMATS)}, not {format!r}")
        need_format(schema, format)
        lacks = unless_lacking(self.directory, "to register a schema", "then register it again")
        with naming_paths(self.directory), lacks:
            if not find_generations(self._disk, self.directory):
                if not create:
                    advice = "if it was moved, make a RowCodec at its new path"
                    raise no_queue(self._disk, self.directory, "for these rows", advice)
                Producer(self._path, self._name, network_disk=self._network_disk).close()
            if is_queue(self._disk, join(self.directory, SCHEMAS_DIRECTORY)):
                raise InvalidNameError(
                    f"{self.directory}: there is a queue named {SCHEMAS_DIRECTORY!r} in the directory of this queue, "
                    "where its schemas would be: give the queue of the rows a name, or another path"
                )
            while True:
                known = self.all()
                found = self._match(known, format, schema)
                if found.number <= len(known):
                    sync_schemas(self._disk, self.directory)
                    return found
                # Any object of JSON is a row. In another format, a mistaken schema would refuse all further items.
                waiting = 0 if known or format == "json" else self._count_items()
                if waiting and not self.all():  # otherwise another process has just registered a schema for them
                    found_items = many(waiting, "item") + " without a schema"
                    advice = "write these rows to another queue, or consume the items first"
                    raise SchemaMismatchError(self.directory, None, found_items, format, advice)
                file = SchemaFile(found.number, format, found.schema.to_json())
                if write_schema(self._disk, self.directory, file):
                    self._known = (*known, found)
                    return found

    def _match(self, known: tuple[Registered, ...], format_name: str, schema: Schema) -> Registered:
        """Return what ``_fitting`` returns. For a queue that has had no item, its error tells another way out.

        The schema may be that of a first write that has failed. It is kept: a process that has registered it, or found
        it, may still publish rows of it.
        """
        try:
            return _fitting(self.directory, known, format_name, schema)
        except SchemaMismatchError as error:
            if self._count_items(with_consumed=True):
                raise
            advice = (
                "the queue has had no item: change the rows, or delete the queue by persistentqueue.delete_queue and "
                "write them again"
            )
            raise SchemaMismatchError(self.directory, error.column, error.old, error.new, advice) from None

    def _count_items(self, *, with_consumed: bool = False) -> int:
        """Return the number of items that are not consumed, or of all, with those that wait in the inbox."""
        # The inbox first: files that the owner adopts meanwhile are then in the state.
        inbox = read_places(self._disk, self.directory).path(INBOX_DIRECTORY)
        published = [join(inbox, name) for name in names_in(self._disk, inbox) if is_published(name)]
        state = look(self._disk, self.directory)[1].state
        gone = 0 if with_consumed else state.gone_count
        return sum(map(self._count_published, published)) + state.next_sequence - gone

    def _count_published(self, path: str) -> int:
        """Return the number of items in a published file; 0 if the owner has adopted it, or will set it aside."""
        with suppress(CorruptionError, UnsupportedFormatError, FileNotFoundError):
            return read_publication(self._disk, path).items
        return 0


def _fitting(path: str, known: tuple[Registered, ...], format_name: str, schema: Schema) -> Registered:
    """Return the schema as one of those that are known, or as the one behind the last of them."""
    if not known:
        return Registered(1, format_name, schema)
    if known[-1].format != format_name:
        advice = f"write them with the format {known[-1].format}, or write these rows to another queue"
        raise SchemaMismatchError(path, None, known[-1].format, format_name, advice)
    for each in reversed(known):
        if each.schema.by_name() == schema.by_name():
            return each
    return Registered(len(known) + 1, format_name, evolved(path, known[-1].schema, schema))


def _decoded(file: SchemaFile) -> Registered:
    try:
        return Registered(file.number, file.format, schema_from_json(file.schema))
    except (TypeError, ValueError) as problem:
        # The checksum is right: a program wrote what this version does not know.
        raise CorruptionError(schema_name(file.number), 0, "a schema of rows", str(problem)) from problem


def need_format(schema: Schema, format_name: str) -> None:
    """Raise ``ValueError``, which names the column, unless rows of the format can have these columns."""
    if format_name == "arrow":
        return
    pending = [(column.name, column.name, column.kind) for column in schema.columns]
    while pending:
        where, name, kind = pending.pop()
        if format_name == "avro" and not (name.isascii() and name.isidentifier()):
            raise ValueError(f"the column {where!r} cannot have this name in avro: {_AVRO_NAME_ADVICE}")
        if isinstance(kind, dict) and kind["type"] == "map" and kind["keyType"] != "string":
            raise ValueError(
                f"the column {where!r} is a map whose keys are not text, which {format_name} cannot have: "
                "use the format arrow, or cast the keys to string"
            )
        pending += [(f"{where}.{part.name}", part.name, part.kind) for part in parts_of(kind)]
