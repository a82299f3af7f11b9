"""The class ``RowCodec``: rows of a queue for Python, and the conversion of Arrow's batches for other interfaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ..codecs import BoundCodec, decode
from ..drawing.text import many
from ..errors import CorruptionError, UnsupportedFormatError
from ..system.disk import StrPath, realpath
from ..system.path_errors import faults
from .arrow_rows import ArrowRows, batch_of_rows, pyarrow, python_values, schema_from_arrow
from .avro_rows import AvroRows, fastavro
from .errors import SchemaMismatchError
from .json_rows import JsonRows
from .registry import FORMATS, Registered, Registry
from .schema import Column, Schema, schema_from_json, schema_from_types
from .values import check_value_in_utc, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

_STALE = "the queue was made anew since this RowCodec was made: make another one"


class RowCodec(BoundCodec):
    """A codec for typed rows, with the schemas that the queue keeps.

    Pass it to ``PersistentQueue``, ``Producer`` or ``connect``. Spark sees the same rows with
    ``option("format", …)``.

    - ``json`` and ``avro``: an item is a row, a dictionary with a value for each column.
    - ``arrow``: an item is a batch of rows, a ``pyarrow.RecordBatch``. ``encode`` also takes a list of dictionaries.
      Sequences and limits of the queue count batches.

    A value that does not fit its column raises ``CodecError``, which names the column. A column that a row does not
    have is null. Rows of all schemas of the queue are read with the columns of one schema: with those of ``schema``, or
    else with those of the newest one.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None, the default, means the queue that lies in ``path`` itself.
        format: ``"arrow"``, ``"avro"`` or ``"json"``. None, the default, means the format that the queue has.
        schema: The columns of the rows. It is registered if the queue does not have it, and the queue is made if it
            does not exist. A dictionary from names to types (such as ``"long"``, or ``"long not null"``), a schema as
            Spark's ``jsonValue()`` returns it, or a ``pyarrow.Schema``. None, the default, means the newest schema of
            the queue.
        network_disk: Whether a queue that is made may be on a network file system, as for ``PersistentQueue``. Default:
            False.

    Raises:
        SchemaMismatchError: The queue has another schema, which may not change in this way. Or it has no schema, but
            items, which ``arrow`` and ``avro`` could not read.
        SchemaNotFoundError: The queue has no schema, and ``schema`` is None.
        QueueNotFoundError: There is no queue, and ``schema`` is None.
        MissingExtraError: ``avro`` needs the extra ``avro``, and ``arrow`` the extra ``arrow``.
        CorruptionError: A schema of the queue is damaged.
        ResourceError: The operating system lacks disk space, descriptors or memory.
        TypeError, ValueError: An argument has the wrong type or value. The message names the column.

    It also raises what ``Producer`` raises when it makes a queue. A schema that was registered is durable. Any thread
    may use the codec, and it can be pickled.

    The queue may be deleted and made anew while a codec is in use. An opening with the codec compares its schema with
    the one that the queue has under this number, and raises ``SchemaMismatchError`` if they differ. If the queue has
    none, the first row that is written registers the schema again. The codec of another queue is refused if this queue
    has other schemas or none, or if that queue was moved or deleted. Example::

        codec = RowCodec("queues", "orders", format="json", schema={"id": "long", "name": "string"})
        with PersistentQueue("queues", "orders", codec=codec) as queue, queue.session() as session:
            session.enqueue({"id": 7, "name": "seven"})
            session.flush()
    """

    def __init__(
        self,
        path: StrPath,
        name: str | None = None,
        *,
        format: str | None = None,  # noqa: A002 - the name of the option
        schema: Any = None,
        network_disk: bool = False,
    ) -> None:
        if format is not None and format not in FORMATS:
            raise ValueError(f"the format of rows is {', '.join(FORMATS)}, not {format!r}")
        registry = Registry(path, name, network_disk)
        if schema is None:
            registered = registry.newest()
            if format not in {None, registered.format}:
                raise ValueError(
                    f"{registry.directory}: the rows have the format {registered.format}, not {format}: leave it out"
                )
        else:
            if format is None:
                known = registry.all()
                if not known:
                    raise ValueError(f"{registry.directory}: the queue has no rows yet: pass format= with the schema")
                format = known[-1].format  # noqa: A001
            registered = register_rows(registry, format, as_schema(schema))
        self._begin(registry, registered)

    def _begin(self, registry: Registry, registered: Registered, *, is_missing: bool = False) -> None:
        """Take this schema. If the queue lacks it, rows are only read: another schema may get its number."""
        self._registry, self._registered, self._is_missing = registry, registered, is_missing
        number = None if is_missing else registered.number
        self._rows = rows_of_format(registry, registered.format, number, registered.schema)

    def need_current(self, directory: str | None = None) -> None:
        """Raise ``SchemaMismatchError`` if the queue has another schema with the number of this one, since it was made
        anew. Each opening calls this.

        ``directory`` is that of the opened queue. If it is another one, its schemas must be those of the codec: an
        item names its schema only by a number. The queue of the codec must still have the schema: registered anew, it
        could get another number.
        """
        registry, number = self._registry, self._registered.number
        known = _all_of(registry)
        other = None if directory is None or realpath(directory) == realpath(registry.directory) else directory
        if known is not None and number > len(known):
            if other is not None:
                advice = f"the queue was moved or made anew: make a RowCodec for {other}"
                has = many(len(known), "schema")
                raise SchemaMismatchError(registry.directory, None, has, f"schema {number}", advice)
            self._begin(registry, self._registered, is_missing=True)
        elif known is not None:
            _need_equal(registry.directory, known[number - 1], self._registered, _STALE)
            self._begin(registry, self._registered)  # of other schemas, it may have what the queue had before
        if other is not None:
            others = _all_of(Registry(other))
            advice = f"it is the RowCodec of {registry.directory}: make one for this queue"
            if others is not None and number > len(others):
                if not others:  # earlier versions wrote rows there, which no codec of this queue can read
                    advice += ". Rows that wait there: open it without a codec, and call decode of this one for each"
                raise SchemaMismatchError(other, None, many(len(others), "schema"), f"schema {number}", advice)
            own = {each.number: each for each in (*(known or ()), self._registered)}  # a file may be unreadable
            for found in others or ():
                _need_equal(other, found, own.get(found.number, found), advice)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes the codec again in another process."""
        return _unpickled, (self._registry, self._registered)

    def __repr__(self) -> str:
        """Return a text with the queue, and the number and format of the schema."""
        number, name, _ = self._registered
        return f"<RowCodec of {self._registry.directory}, {name}, schema {number}>"

    @property
    def format(self) -> str:
        """The format of the rows."""
        return self._registered.format

    @property
    def number(self) -> int:
        """The number of the schema that new rows get."""
        return self._registered.number

    @property
    def columns(self) -> dict[str, str]:
        """The names of the columns, and their types as text."""
        return {column.name: column.text() for column in self._registered.schema.columns}

    def encode(self, item: Any, /) -> bytes:
        """Return a row, or a batch of rows, as an item.

        Args:
            item: A dictionary; for ``arrow`` a ``pyarrow.RecordBatch`` or a list of dictionaries.

        Returns:
            The bytes to store.

        Raises:
            TypeError, ValueError: A value does not fit its column.
            SchemaMismatchError: The queue has lost the schema, and does not take it again.
            QueueNotFoundError: The queue that had the schema is gone. ``encode`` makes no queue.

        The caller of the queue gets a ``CodecError``.
        """
        if self._is_missing:
            registered = register_rows(self._registry, self.format, self._registered.schema, create=False)
            self._begin(self._registry, registered)
        data: bytes = self._rows.encode(item)
        return data

    def decode(self, data: bytes, /) -> Any:
        """Return the row, or the batch of rows, in an item.

        Args:
            data: The bytes that ``encode`` has returned, possibly with another schema of the queue.

        Returns:
            A dictionary; for ``arrow`` a ``pyarrow.RecordBatch``.

        Raises:
            SchemaNotFoundError: The item has a schema that the queue does not have.
            Exception: The bytes are no row. The caller of the queue gets a ``CodecError`` for each of these errors.
        """
        return self._rows.decode(data)


def _all_of(registry: Registry) -> tuple[Registered, ...] | None:
    """Return all schemas of the queue; None if a file cannot be read, which says nothing."""
    try:
        return registry.all()
    except faults(CorruptionError, UnsupportedFormatError, OSError):
        return None


def _need_equal(directory: str, found: Registered, own: Registered, advice: str) -> None:
    """Raise ``SchemaMismatchError`` with the advice unless the queue has the format and the schema of the codec."""
    if found.format != own.format:
        raise SchemaMismatchError(directory, None, found.format, own.format, advice)
    for old, new in zip_longest(found.schema.columns, own.schema.columns):
        if old != new:
            raise SchemaMismatchError(directory, (new or old).name, _text(old), _text(new), advice)


def _text(column: Column | None) -> str:
    """Return the column as text, for an error."""
    return "no such column" if column is None else f"{column.name} {column.text()}"


def _unpickled(registry: Registry, registered: Registered) -> RowCodec:
    codec = RowCodec.__new__(RowCodec)
    codec._begin(registry, registered, is_missing=True)
    codec.need_current()
    return codec


def as_schema(schema: Any) -> Schema:
    """Return the schema that a caller has given in one of its forms. Raises ``TypeError`` and ``ValueError``."""
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, Mapping):
        return schema_from_json(schema) if schema.get("type") == "struct" else schema_from_types(schema)
    if hasattr(schema, "field") and hasattr(schema, "names"):
        return schema_from_arrow(schema)
    raise TypeError(f"schema is a dictionary of names and types, or a pyarrow.Schema, not {schema!r}")


def register_rows(registry: Registry, format_name: str, schema: Schema, *, create: bool = True) -> Registered:
    """Register a schema, if this process can write such rows. Raises ``MissingExtraError``, and like ``register``."""
    need = {"avro": fastavro, "arrow": pyarrow}.get(format_name)
    if need is not None:
        need()
    return registry.register(format_name, schema, create=create)


def rows_of_format(registry: Registry, format_name: str, number: int | None, wanted: Schema) -> Any:
    """Return what converts items of this format. Without a number, it only reads. Raises ``MissingExtraError``."""
    if format_name == "json":
        return JsonRows(None if number is None else registry.schema(number), wanted)
    return (AvroRows if format_name == "avro" else ArrowRows)(registry, number, wanted)


class RowBatches:
    """Converts items of typed rows to Arrow's batches and back, for interfaces that have rows in Arrow.

    ``number`` is that of the schema of the rows that are written; None if it only reads.
    """

    def __init__(self, registry: Registry, format_name: str, number: int | None, wanted: Schema) -> None:
        self.registry, self._format, self._number, self._wanted = registry, format_name, number, wanted
        self._rows = rows_of_format(registry, format_name, number, wanted)

    def items_of(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the rows of a batch as items. Raises ``ValueError``, which names the column."""
        if not batch.num_rows:
            return []
        if self._format == "arrow":
            return [self._rows.encode(batch)]
        return list(map(self._rows.encode, _python_rows(batch)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes the object again in another process."""
        return RowBatches, (self.registry, self._format, self._number, self._wanted)

    def batch_from(self, rows: Iterable[Any]) -> pa.RecordBatch:
        """Return rows of Python as a batch to be written. A moment without a zone has that of this process.

        Raises ``ValueError``, which names the column.
        """
        return batch_of_rows(map(rows_of(self._wanted, _local), rows), self._wanted)

    def batch_of(self, items: Sequence[Any], sequences: Iterable[int]) -> list[pa.RecordBatch]:
        """Return the rows of these items, which are bytes or views and have these sequences, as batches.

        Raises ``CodecError``, with the sequence, for an item that is no row.
        """
        path = self.registry.directory
        if self._format == "arrow":
            return [decode(self._rows, data, path, at) for data, at in zip(items, sequences, strict=True)]
        rows = (decode(self._rows, bytes(data), path, at) for data, at in zip(items, sequences, strict=True))
        return [batch_of_rows(rows, self._wanted)]


def _python_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Return the rows of a batch. Raises ``ValueError``, with the column, for a value that Python cannot have."""
    names, columns = batch.schema.names, []
    for name, column in zip(names, batch.columns, strict=True):
        try:
            columns.append(python_values(column, name))
        except OverflowError as error:
            raise ValueError(
                f"the column {name!r}: {error}: Python has the years 1 to 9999: write these rows to another "
                "queue, with the format arrow"
            ) from error
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _local(value: Any, kind: str) -> Any:
    """Return a checked value; a moment without a zone gets the zone of this process."""
    if kind == "timestamp" and isinstance(value, datetime):
        value = value.astimezone()
    return check_value_in_utc(value, kind)
