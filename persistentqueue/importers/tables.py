"""Tables of SQLite: the kinds of persist-queue and queuelib, litequeue, and any table with an order.

A database without a journal beside it is read where it is, as an immutable file: SQLite then makes no file, and takes
no lock. A database with a journal (``-wal`` or ``-journal``) is copied to a temporary directory with it, and SQLite
recovers the copy. So the source stays as it is, also after its owner was killed. When SQLite has opened the copy, its
files lose their names, so that an import which is killed later leaves an empty directory. The directory itself stays
until the end: SQLite looks for journals by name, and no other user may make one there.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import quote

from persistentqueue.system.disk import range_lock_holder

from .errors import SourceDamagedError, SourceError, SourceInUseError
from .source import Choice, Damaged, Source

ACK_STATES = {"inited": 0, "ready": 1, "unack": 2, "acked": 5, "ack_failed": 9}
"""States of an item in an ack queue of persist-queue, and their numbers."""
_JOURNALS = ("-wal", "-journal")
_LOCK_START, _LOCK_BYTES = 0x40000000, 512
"""Bytes of a database on which SQLite has its locks."""


class Shape(NamedTuple):
    """A kind of table: its columns, and the order in which its owner would take the items."""

    kind: str
    key: str
    data: str = "data"
    newest_first: bool = False
    before: str = ""
    """Terms of the order that come before the key."""
    where: str = ""
    others: tuple[str, ...] = ()
    """Further columns that the table must have."""


_PERSIST_QUEUE = {
    "queue": Shape("SQLiteQueue", "_id"),
    "filo_queue": Shape("FILOSQLiteQueue", "_id", newest_first=True),
    "unique_queue": Shape("UniqueQ", "_id"),
    "priority_queue": Shape(
        "PriorityQueue", "_id", before="priority ASC, timestamp ASC, ", others=("priority", "timestamp")
    ),
    "ack_queue": Shape("SQLiteAckQueue", "_id", where="status", others=("status",)),
    "ack_filo_queue": Shape("FILOSQLiteAckQueue", "_id", newest_first=True, where="status", others=("status",)),
    "ack_unique_queue": Shape("UniqueAckQ", "_id", where="status", others=("status",)),
}
"""Tables of persist-queue, by the beginning of their names. The name of the queue follows, except in async queues."""
_QUEUELIB = Shape("FifoSQLiteQueue", "id", "item")
_LITEQUEUE = Shape("litequeue", "message_id", where="status IN (0, 1)", others=("status", "in_time", "lock_time"))


class Table(Source):
    """The items of one table, in the order in which its owner would take them."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, package: str, name: str, shape: Shape, newest_first: bool
    ) -> None:
        self.path, self.kind, self.part = str(path), f"{package} {shape.kind}".strip(), name
        self.serializer = "" if package == "persist-queue" else None
        self._connection = connection
        way = "DESC" if newest_first else "ASC"
        where = f"WHERE {shape.where}" if shape.where else ""
        # SQLite takes a quoted name that is no column for a text, unless the table stands before it.
        table = _quoted(name)
        order = f"{shape.before}{table}.{_quoted(shape.key)} {way}"
        self._query = f"SELECT {table}.{_quoted(shape.data)} FROM {table} {where} ORDER BY {order}"

    def files(self) -> list[Path]:
        """Return the database and its journals, whether they exist or not."""
        return [Path(self.path), *(Path(self.path + suffix) for suffix in _JOURNALS)]

    def items(self, damaged: Damaged) -> Iterator[bytes]:
        """Yield the items of the rows, in the order of the query."""
        count = 0
        try:
            for (item,) in self._connection.execute(self._query):
                count += 1
                if type(item) is bytes:
                    yield item
                elif count == 1 and isinstance(item, int | float):  # no damage, but another column
                    advice = "name the column of the items"
                    raise SourceError(self._where, "bytes or text", f"the number {item}", advice)
                else:
                    what = f"a {type(item).__name__}" if item is not None else "NULL"
                    damaged(SourceDamagedError(self._where, count - 1, "bytes or text", what, "the row behind row"))
        except sqlite3.DatabaseError as error:
            if str(error) in _PASSING:
                advice = "free what SQLite lacks, then import again, which goes on here"
                raise SourceError(self._where, "a row that SQLite can read now", str(error), advice) from error
            expected = "this row and all behind it"
            damaged(SourceDamagedError(self._where, count, expected, str(error), "the row behind row"))

    @property
    def _where(self) -> str:
        return f"{self.path}, table {self.part!r}"


_PASSING = frozenset(
    {
        "database is locked",
        "database table is locked",
        "database or disk is full",
        "disk I/O error",
        "out of memory",
        "unable to open database file",
    }
)
"""Messages of SQLite that say nothing of the rows. Python 3.10 does not tell the code of the error."""


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that changes nothing of the database at ``path``, and returns text as bytes.

    Raises ``SourceInUseError`` if another process has the database open, and ``SourceError`` if it is no database.
    """
    holder = range_lock_holder(str(path), _LOCK_START, _LOCK_BYTES)
    if holder is not None:
        found = f"process {holder}, which has it open"
        raise SourceInUseError(str(path), "a database that no process has open", found, "stop that process")
    journals = [each for suffix in _JOURNALS if (each := Path(f"{path}{suffix}")).exists() and each.stat().st_size]
    with TemporaryDirectory(prefix="persistentqueue-") as scratch:
        where, mode = path, "mode=ro&immutable=1"
        if journals:
            for each in (path, *journals):
                shutil.copyfile(each, Path(scratch, each.name))
            where, mode = Path(scratch, path.name), "mode=rw"
        with closing(sqlite3.connect(f"file:{quote(bytes(where))}?{mode}", uri=True)) as connection:
            if journals:
                with suppress(sqlite3.DatabaseError):  # then the names stay, and the caller's first query raises it
                    connection.execute("SELECT 1 FROM sqlite_master").fetchall()  # opens or rolls back the journal
                    for each in Path(scratch).iterdir():
                        each.unlink()
            connection.text_factory = bytes
            yield connection


def tables_of(path: Path, connection: sqlite3.Connection) -> list[str]:
    """Return the names of the tables, without those of SQLite. Raises ``SourceError`` for a file of another kind."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY 1"
    try:
        return [name.decode() for (name,) in connection.execute(query)]
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise SourceError(str(path), "a SQLite database", str(error), "name another file") from None


def persist_queue_table(path: Path, connection: sqlite3.Connection, choice: Choice) -> Table:
    """Return the source of a queue of persist-queue in a database. Raises ``SourceError``."""
    names = tables_of(path, connection)
    shapes = {name: shape for name in names if (shape := _shape_of(name)) is not None}
    name = _chosen(path, "a table of a queue of persist-queue", choice.table, shapes, names)
    shape = shapes[name]
    if shape.where:
        numbers = ", ".join(str(ACK_STATES[state]) for state in sorted(set(choice.states)))
        shape = shape._replace(where=f"status IN ({numbers})")
    return _checked(path, connection, "persist-queue", name, shape, choice)


def queuelib_table(path: Path, connection: sqlite3.Connection, choice: Choice) -> Table:
    """Return the source of a ``FifoSQLiteQueue`` or a ``LifoSQLiteQueue`` of queuelib. Raises ``SourceError``."""
    names = tables_of(path, connection)
    name = _chosen(path, "the table 'queue' of queuelib", None, {"queue"}.intersection(names), names)
    shape = _QUEUELIB._replace(kind="LifoSQLiteQueue") if choice.newest_first else _QUEUELIB
    return _checked(path, connection, "queuelib", name, shape, choice)


def any_table(path: Path, connection: sqlite3.Connection, choice: Choice) -> Table:
    """Return the source of any table with these columns, or of one of litequeue. Raises ``SourceError``."""
    names, (table, column, order, _, _) = tables_of(path, connection), choice
    if column is None and order is None:
        known = {each for each in names if set(_columns(connection, each)) >= {_LITEQUEUE.key, *_LITEQUEUE.others}}
        name = _chosen(path, "a table of litequeue, or table=, column= and order=", table, known, names)
        return _checked(path, connection, "", name, _LITEQUEUE, choice)
    if table is None or column is None or order is None:
        raise SourceError(str(path), "table=, column= and order= together", "only some of them", "pass all three")
    name = _chosen(path, f"the table {table!r}", table, names, names)
    return _checked(path, connection, "", name, Shape("SQLite table", order, column), choice)


def _shape_of(name: str) -> Shape | None:
    """Return the kind of queue of persist-queue that has a table of this name; None if it is none."""
    for prefix in sorted(_PERSIST_QUEUE, key=len, reverse=True):
        if name == prefix or name.startswith(f"{prefix}_"):
            return _PERSIST_QUEUE[prefix]
    return None


def _chosen(path: Path, expected: str, table: str | None, known: Collection[str], names: list[str]) -> str:
    """Return the name of the table to import: ``table``, or the only known one. Raises ``SourceError``."""
    if table is not None and table in known:
        return table
    if table is None and len(known) == 1:
        return next(iter(known))
    if table is None and len(known) > 1:
        several = ", ".join(map(repr, sorted(known)))
        raise SourceError(str(path), "one queue", f"the tables {several}", "pass table= with one of them")
    dicts = [name for name in names if name.startswith("dict_")]
    advice = f"{dicts[0]!r} is of PDict, which is no queue" if dicts else "name another file or table"
    raise SourceError(str(path), expected, f"the tables {names}", advice)


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[0].decode() for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _checked(
    path: Path, connection: sqlite3.Connection, package: str, name: str, shape: Shape, choice: Choice
) -> Table:
    """Return the table, which has all the columns that its kind needs. Raises ``SourceError``."""
    columns = _columns(connection, name)
    missing = {shape.key, shape.data, *shape.others}.difference(columns, {"rowid"})
    if missing:
        what = f"the columns {', '.join(sorted(missing))} in the table {name!r}"
        raise SourceError(str(path), what, f"the columns {', '.join(columns)}", "name another table or column")
    newest_first = shape.newest_first if choice.newest_first is None else choice.newest_first
    return Table(path, connection, package, name, shape, newest_first)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
