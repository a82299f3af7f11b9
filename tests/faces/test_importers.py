"""Imports from persist-queue, queuelib and SQLite: each item once, in order, verified, and the source unchanged."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import cbor2
import litequeue
import pytest
import queuelib
from persistqueue import PDict, PriorityQueue, Queue, SQLiteAckQueue, SQLiteQueue
from persistqueue.serializers import cbor2 as cbor2_serializer
from persistqueue.serializers import json as json_serializer
from persistqueue.serializers import pickle as pickle_serializer

from persistentqueue import (
    CorruptionError,
    ForeignQueueError,
    PersistentQueue,
    Producer,
    QueueFullError,
    Session,
    codecs,
    compat,
)
from persistentqueue.cli import verbs
from persistentqueue.importers import (
    ImportMismatchError,
    SourceChangedError,
    SourceDamagedError,
    SourceError,
    SourceInUseError,
    import_queue,
    recognition,
    tables,
)
from tests.conftest import QueueFactory
from tests.support.foreign import KINDS, Kind, close_chunks, make_chunks, make_queuelib, traits_of
from tests.support.queues import drain as drain_bytes
from tests.support.queues import flip, put, segment_files

COUNT = 25_000
"""Items of a source: more than two chunks of persist-queue and three batches."""


def items_of(kind: Kind, count: int = COUNT) -> list[Any]:
    """Return items that the kind accepts; some are small, and some have a frame, a line feed or a dot at the end."""
    if kind.origin == "queuelib":
        return [b"item %d\n." % number * (number % 3) + b"%d" % number for number in range(count)]
    return [{"number": number, "text": f"line {number}\n." * (number % 3)} for number in range(count)]


def drain(queue: PersistentQueue[Any]) -> list[Any]:
    """Dequeue everything, as the codec of the queue reads it."""
    return drain_bytes(queue)


class Cbor2:
    """The codec that the page shows for items of CBOR."""

    def encode(self, item: Any, /) -> bytes:
        return cbor2.dumps(item)

    def decode(self, data: bytes, /) -> Any:
        return cbor2.loads(data)


CODECS: dict[str, Callable[[], Any]] = {
    "UNSAFE_PICKLE": lambda: codecs.UNSAFE_PICKLE,
    "JSON": lambda: codecs.JSON,
    "MessagePack": codecs.MessagePack,
    "cbor2": Cbor2,
    "BYTES": lambda: codecs.BYTES,
}


@pytest.mark.filterwarnings("ignore:.*iscoroutinefunction:DeprecationWarning")  # of persist-queue, on Python 3.14
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind(kind: Kind, tmp_path: Path, path: Path) -> None:
    """The items of every kind come in the order of its owner, as the named codec reads them. The source stays the same,
    and a second import adds nothing."""
    if kind.is_missing:
        pytest.skip(f"{kind.needs} is not installed")
    source, items = tmp_path / "source", items_of(kind, 300 if kind.needs.startswith("aio") else COUNT)
    kind.make(source, items)
    before, seen = traits_of(source), list[tuple[int, int | None]]()
    done = import_queue(
        source, path, "orders", origin=kind.origin, progress=lambda *of: seen.append(of), **kind.options
    )
    assert (done.count, done.added, done.codec, done.damaged) == (len(items), len(items), kind.codec, ())
    assert kind.name.partition("-")[0].removeprefix("Async") in done.kind
    assert seen[-1] == (len(items), len(items))
    assert seen == sorted(seen)
    with PersistentQueue(path, "orders", codec=CODECS[done.codec]()) as queue:
        found = list(queue.browse())
    assert found == (items[::-1] if kind.newest_first else items)
    again = import_queue(source, path, "orders", origin=kind.origin, **kind.options)
    assert (again.count, again.added, again.checksum) == (done.count, 0, done.checksum)
    assert traits_of(source) == before


def test_the_order_of_priorities(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """Items of persist-queue's PriorityQueue come in the order in which it would return them."""
    theirs = PriorityQueue(str(tmp_path / "source"))
    for number in range(50):
        theirs.put(number, priority=number * 7 % 5)
    theirs.close()
    import_queue(tmp_path / "source", path, "orders", origin="persist-queue")
    theirs = PriorityQueue(str(tmp_path / "source"))
    assert drain(open_queue(codec=codecs.UNSAFE_PICKLE)) == [theirs.get(block=False) for _ in range(50)]
    theirs.close()


def test_states_of_an_ack_queue(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """Items that are new, ready again or not acknowledged are imported; other states are imported if they are asked
    for."""
    theirs = SQLiteAckQueue(str(tmp_path / "source"))
    for number in range(6):
        theirs.put(number)
    got = [theirs.get() for _ in range(4)]
    theirs.ack(got[0])
    theirs.ack_failed(got[1])
    theirs.nack(got[2])
    theirs.close()
    done = import_queue(tmp_path / "source", path, "orders", origin="persist-queue")
    assert done.kind == "persist-queue SQLiteAckQueue"
    queue = open_queue(codec=codecs.UNSAFE_PICKLE)
    assert drain(queue) == [2, 3, 4, 5]
    queue.close()
    failed = import_queue(tmp_path / "source", path, "failed", origin="persist-queue", states=["ack_failed", "acked"])
    assert failed.count == 2
    assert drain(open_queue("failed", codec=codecs.UNSAFE_PICKLE)) == [0, 1]


def test_items_that_were_taken_are_not_imported(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """A file queue is imported from where its owner has saved its position, within a chunk or not."""
    for name, taken in (("within", 7), ("behind", 20)):
        theirs = Queue(str(tmp_path / name), chunksize=10, serializer=json_serializer)
        for number in range(25):
            theirs.put(number)
        for _ in range(taken):
            theirs.get()
        theirs.task_done()
        theirs.get()  # without task_done: its next owner gets it again
        close_chunks(theirs)
        import_queue(tmp_path / name, path, name, origin="persist-queue")
        assert drain(open_queue(name, codec=codecs.JSON)) == list(range(taken, 25))
    lib = queuelib.FifoDiskQueue(str(tmp_path / "lib"), chunksize=10)
    for number in range(25):
        lib.push(b"%d" % number)
    for _ in range(13):
        lib.pop()
    lib.close()
    import_queue(tmp_path / "lib", path, "lib", origin="queuelib")
    assert drain(open_queue("lib")) == [b"%d" % number for number in range(13, 25)]


PICKLES = [
    *(None, 0, 46, 128, "", ".", b".", b"\x80", b"\x80\x04.", "ü" * 70_000, b"x" * 70_000, b"." * 70_000),
    *([b"a" * 70_000, b"\x80." * 40_000, 46], list(range(30_000)), {"a": (1, 2.5, {3})}, bytearray(b"z" * 70_000)),
]


def test_pickles_of_all_forms(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """Pickles without a frame, with one, with several and with bytes between frames are told apart, in several
    orders."""
    items = [
        *PICKLES,
        *PICKLES[::-1],
        *PICKLES[::3],
        *PICKLES[::-5],
        *(each for item in PICKLES for each in (item, ".")),
    ]
    theirs = Queue(str(tmp_path / "source"), chunksize=100)
    for item in items:
        theirs.put(item)
    close_chunks(theirs)
    import_queue(tmp_path / "source", path, "orders", origin="persist-queue")
    assert [pickle.loads(each) for each in open_queue().browse()] == items


def test_bytes_behind_the_head_are_ignored(tmp_path: Path, path: Path) -> None:
    """A put that persist-queue has not finished is not imported, as its next owner would drop it."""
    make_chunks(json_serializer, tmp_path / "source", [1, 2])
    with (tmp_path / "source" / "q00000").open("ab") as file:
        file.write(b'{"unfin')
    assert import_queue(tmp_path / "source", path, origin="persist-queue").count == 2


def test_nothing_is_unpickled(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """An import runs no code of the source: neither of its items nor of its positions."""
    flag = tmp_path / "flag"
    harmful = f"c__builtin__\nopen\n(V{flag}\nVw\ntR."
    theirs = SQLiteQueue(str(tmp_path / "source"))
    theirs._insert_into(harmful.encode(), 1.0)
    theirs.close()
    import_queue(tmp_path / "source", path, "orders", origin="persist-queue")
    assert drain(open_queue()) == [harmful.encode()]
    (tmp_path / "chunks").mkdir()
    (tmp_path / "chunks" / "q00000").touch()
    (tmp_path / "chunks" / "info").write_bytes(harmful.encode())
    with pytest.raises(SourceError, match=r"info: expected the positions of a queue, found .*a pickle of"):
        import_queue(tmp_path / "chunks", path, "other", origin="persist-queue")
    assert not flag.exists()


# --- sources in SQLite ------------------------------------------------------------------------------------------------

OWNER = """
import sys
from persistqueue import SQLiteQueue
queue = SQLiteQueue(sys.argv[1])
for number in range(100):
    queue.put(number)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that has made ``tmp_path/source`` with persist-queue, and has it open."""
    command = [sys.executable, "-c", OWNER, str(tmp_path / "source")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def test_a_database_that_is_open(tmp_path: Path, path: Path, owner: subprocess.Popen[bytes]) -> None:
    """A database that another process has open is refused, with that process; nothing is written."""
    with pytest.raises(SourceInUseError, match=f"process {owner.pid}, which has it open: stop that process"):
        import_queue(tmp_path / "source", path, origin="persist-queue")
    assert not path.exists()


def test_a_database_of_a_killed_owner(tmp_path: Path, path: Path, owner: subprocess.Popen[bytes]) -> None:
    """The items that a killed owner has left in its journal are imported, and the journal stays as it is."""
    owner.kill()
    owner.wait()
    assert (tmp_path / "source" / "data.db-wal").stat().st_size
    before = traits_of(tmp_path / "source")
    done = import_queue(tmp_path / "source", path, "orders", origin="persist-queue")
    assert (done.added, traits_of(tmp_path / "source")) == (100, before)
    with PersistentQueue(path, "orders", codec=codecs.UNSAFE_PICKLE) as queue:
        assert drain(queue) == list(range(100))


def test_a_copy_of_a_database_has_no_name(
    tmp_path: Path, path: Path, owner: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While items are imported from a copy of a database with a journal, no file has its name: a kill leaves none."""
    owner.kill()
    owner.wait()
    scratch, seen = tmp_path / "scratch", list[list[str]]()
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    def look(done: int, total: int | None) -> None:
        seen.append([each.name.partition("-")[0] for each in scratch.rglob("*")])

    assert import_queue(tmp_path / "source", path, "orders", origin="persist-queue", progress=look).added == 100
    assert seen == [["persistentqueue"]] * len(seen) != []
    assert list(scratch.iterdir()) == []


def test_a_link_to_a_database(tmp_path: Path, path: Path, owner: subprocess.Popen[bytes]) -> None:
    """If the database in the directory is a link, the items in the journal beside its target are imported, too."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "data.db").symlink_to(tmp_path / "source" / "data.db")
    with pytest.raises(SourceInUseError):
        import_queue(tmp_path / "jobs", path, "orders", origin="persist-queue")
    owner.kill()
    owner.wait()
    assert import_queue(tmp_path / "jobs", path, "orders", origin="persist-queue").added == 100


def test_several_queues_in_one_database(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """With several queues in a database, the import asks which one, and takes the one that is named."""
    for name in ("a", "b"):
        theirs = SQLiteQueue(str(tmp_path / "source"), name=name, db_file_name="mine.db")
        theirs.put(name)
        theirs.close()
    database = tmp_path / "source" / "mine.db"
    with pytest.raises(SourceError, match=r"the tables 'queue_a', 'queue_b': pass table= with one of them"):
        import_queue(database, path, origin="persist-queue")
    import_queue(database, path, "orders", origin="persist-queue", table="queue_b")
    import_queue(database, path, "orders", origin="persist-queue", table="queue_a")
    assert drain(open_queue(codec=codecs.UNSAFE_PICKLE)) == ["b", "a"]


def make_jobs(path: Path) -> None:
    """Make a database with a table of jobs, whose items are text, bytes and a number."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute('CREATE TABLE "my jobs" ("the body", at INTEGER, bad)')
        db.executemany('INSERT INTO "my jobs" VALUES (?, ?, ?)', [("é", 3, 1), (b"b", 1, None), ("c", 2, 2.5)])


def test_any_table(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """A column of any table is imported in the order of another one: bytes as they are, text as UTF-8."""
    make_jobs(tmp_path / "jobs.db")
    named: Any = {"table": "my jobs", "column": "the body", "order": "at"}
    done = import_queue(tmp_path / "jobs.db", path, "orders", origin="sqlite", **named)
    assert done.kind == "SQLite table"
    assert drain(open_queue()) == [b"b", b"c", "é".encode()]


def test_a_table_without_row_numbers(tmp_path: Path, path: Path) -> None:
    """A column that a table does not have is never taken for a text: neither in the order nor as the items."""
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db, db:
        db.execute("CREATE TABLE jobs (name TEXT PRIMARY KEY, body) WITHOUT ROWID")
        db.execute("INSERT INTO jobs VALUES ('a', 'b')")
    for column, order in (("rowid", "name"), ("body", "rowid")):
        with pytest.raises(SourceError, match="no such column"):
            import_queue(tmp_path / "jobs.db", path, origin="sqlite", table="jobs", column=column, order=order)


def test_litequeue(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """A table of litequeue is recognized; messages that are done or have failed are not imported."""
    theirs = litequeue.LiteQueue(str(tmp_path / "lite.db"))
    for number in range(5):
        theirs.put(str(number))
    for end in (theirs.done, theirs.mark_failed):
        message = theirs.pop()
        claim = getattr(message, "claim_id", None)
        end(message.message_id, **({} if claim is None else {"claim_id": claim}))
    theirs.pop()
    theirs.close()
    done = import_queue(tmp_path / "lite.db", path, "orders", origin="sqlite")
    assert (done.kind, done.count) == ("litequeue", 3)
    assert drain(open_queue()) == [b"2", b"3", b"4"]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lambda source: None, {"origin": "persist-queue"}, "expected a queue of persist-queue, found nothing"),
        (lambda source: source.mkdir(), {"origin": "persist-queue"}, "found neither .*info nor .*data.db"),
        (lambda source: source.mkdir(), {"origin": "queuelib"}, "expected a queue of queuelib, found nothing"),
        (lambda source: source.write_text("x"), {"origin": "sqlite"}, "expected a queue of sqlite, found no database"),
        (os.mkfifo, {"origin": "queuelib"}, "expected a queue of queuelib, found neither a file nor a directory"),
        (
            lambda source: PDict(str(source), "mine").close(),
            {"origin": "persist-queue"},
            r"found the tables \['dict_mine'\]: 'dict_mine' is of PDict, which is no queue",
        ),
        (make_jobs, {"origin": "persist-queue"}, r"found the tables \['my jobs'\]: name another file or table"),
        (make_jobs, {"origin": "sqlite"}, "expected a table of litequeue, or table=, column= and order="),
        (make_jobs, {"origin": "sqlite", "table": "my jobs"}, "expected a table of litequeue"),
        (make_jobs, {"origin": "sqlite", "column": "at"}, "found only some of them: pass all three"),
        (
            make_jobs,
            {"origin": "sqlite", "table": "my jobs", "column": "none", "order": "at"},
            "expected the columns none in the table 'my jobs', found the columns the body, at, bad",
        ),
        (
            lambda source: make_chunks(json_serializer, source, [1]),
            {"origin": "persist-queue", "newest_first": True},
            "expected a stack or a database, found a FIFO of chunks",
        ),
        (
            lambda source: make_queuelib(queuelib.FifoDiskQueue, source / "slot", [b"1"]),
            {"origin": "queuelib"},
            "or one for each priority, found 'slot': import each queue by its own path",
        ),
        (
            lambda source: make_queuelib(queuelib.FifoDiskQueue, source / "0" / "slot", [b"1"]),
            {"origin": "queuelib"},
            "source/0: expected a FifoDiskQueue or a LifoDiskQueue of queuelib, found another kind",
        ),
    ],
)
def test_what_is_no_source(
    tmp_path: Path, path: Path, make: Callable[[Path], object], arguments: dict[str, Any], message: str
) -> None:
    """A path that is no source of its origin is refused with what is there; no queue is made."""
    make(tmp_path / "source")
    with pytest.raises(SourceError, match=message):
        import_queue(tmp_path / "source", path, **arguments)
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"origin": "redis"}, "origin must be one of 'persist-queue', 'queuelib', 'sqlite', not 'redis'"),
        ({"origin": "persist-queue", "states": ["done"]}, "states must be some of 'inited', 'ready', 'unack'"),
        ({"origin": "persist-queue", "states": "ready"}, "states must be some of"),
        ({"origin": "queuelib", "column": "data"}, "column= and order= are for tables of sqlite, not for"),
    ],
)
def test_wrong_arguments(tmp_path: Path, path: Path, arguments: dict[str, Any], message: str) -> None:
    """A wrong argument is refused before anything is read."""
    with pytest.raises(ValueError, match=message):
        import_queue(tmp_path / "source", path, **arguments)
    assert not path.exists()


def test_positions_that_ask_for_memory(tmp_path: Path, path: Path) -> None:
    """Positions of a few bytes that ask for a large memo are refused without the memory for it."""
    source = tmp_path / "source"
    make_chunks(pickle_serializer, source, [1])
    (source / "info").write_bytes(b"\x80\x04Nr\xff\xff\xff\x00.")
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="info: expected the positions of a queue"):
            import_queue(source, path, origin="persist-queue")
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()


# --- damage -----------------------------------------------------------------------------------------------------------


def cut(path: Path, size_bytes: int) -> None:
    """Cut a file to this size."""
    with path.open("rb+") as file:
        file.truncate(size_bytes)


def test_damaged_chunks(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """A chunk that is cut, or missing, is an error with its place, before anything is imported. Without it, all other
    items are imported, and the damage is reported."""
    source = tmp_path / "source"
    make_chunks(json_serializer, source, range(30_000))
    cut(source / "q00000", 102)
    (source / "q00001").unlink()
    with pytest.raises(SourceDamagedError, match=r"q00000: damaged at offset 101: expected 9,963 more items") as caught:
        import_queue(source, path, "orders", origin="persist-queue")
    assert (caught.value.path, caught.value.offset) == (str(source / "q00000"), 101)
    assert not path.exists()
    done = import_queue(source, path, "orders", origin="persist-queue", skip_damaged=True)
    assert [(Path(each.path).name, each.offset) for each in done.damaged] == [("q00000", 101), ("q00001", 0)]
    assert drain(open_queue(codec=codecs.JSON)) == [*range(37), *range(20_000, 30_000)]


def test_positions_far_behind_the_chunks(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """Damaged positions that name very many chunks cost the time of the chunks that exist. Chunks that are missing one
    behind the other are one damage."""
    source = tmp_path / "source"
    make_queuelib(queuelib.FifoDiskQueue, source, [b"1", b"2"])
    far = 10**15
    info = {"chunksize": 2, "size": 2 * far, "tail": [0, 1, 5], "head": [far, 1]}
    (source / "info.json").write_text(json.dumps(info))
    found = rf"q00001: damaged at offset 0: expected {2 * far - 1:,} items from this chunk on, found no file"
    with pytest.raises(SourceDamagedError, match=found):
        import_queue(source, path, "orders", origin="queuelib")
    done = import_queue(source, path, "orders", origin="queuelib", skip_damaged=True)
    assert [Path(each.path).name for each in done.damaged] == ["q00001"]
    assert drain(open_queue()) == [b"2"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("Queue-pickle", change) for change in (1, 10**6)),  # the last opcodes may stand behind a frame
        *((name, change) for name in ("Queue-cbor2", "FifoDiskQueue", "LifoDiskQueue") for change in (-1, 1, 10**6)),
    ],
)
def test_a_wrong_length(tmp_path: Path, path: Path, name: str, change: int) -> None:
    """A length that leads behind the end of the file, or between two items, is never followed silently."""
    kind = next(each for each in KINDS if each.name == name)
    kind.make(tmp_path / "source", items_of(kind, 10))
    file = tmp_path / "source" if name == "LifoDiskQueue" else tmp_path / "source" / "q00000"
    data = bytearray(file.read_bytes())
    at = {"Queue-pickle": 3, "LifoDiskQueue": len(data) - 4}.get(name, 0)
    order: Any = "big" if kind.origin == "queuelib" else "little"
    data[at : at + 4] = (int.from_bytes(data[at : at + 4], order) + change).to_bytes(4, order)
    file.write_bytes(data)
    with pytest.raises(SourceDamagedError):
        import_queue(tmp_path / "source", path, origin=kind.origin)


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_stack_of_large_items(tmp_path: Path, path: Path, open_queue: QueueFactory, newest_first: bool) -> None:
    """Items of a stack that do not fit into what is read at once, or that lie across its border, come out whole."""
    items = [bytes([number]) * size for number, size in enumerate([5, 2**20 - 4, 0, 2**21, 700_000, 700_000, 2**20, 1])]
    make_queuelib(queuelib.LifoDiskQueue, tmp_path / "source", items)
    import_queue(tmp_path / "source", path, "orders", origin="queuelib", newest_first=newest_first)
    assert drain(open_queue()) == (items[::-1] if newest_first else items)


def test_a_pickle_behind_the_head(tmp_path: Path, path: Path) -> None:
    """A pickle that goes on behind the saved end of the queue is damaged."""
    make_chunks(pickle_serializer, tmp_path / "source", ["x" * 200])
    info = pickle.loads((tmp_path / "source" / "info").read_bytes())
    info["head"][2] -= 10
    (tmp_path / "source" / "info").write_bytes(pickle.dumps(info, 4))
    with pytest.raises(SourceDamagedError, match=r"a pickle of \d+ bytes with \d+ bytes left"):
        import_queue(tmp_path / "source", path, origin="persist-queue")


def test_the_package_for_cbor_is_missing(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file queue with CBOR names the package that its positions need."""
    make_chunks(cbor2_serializer, tmp_path / "source", [1])
    monkeypatch.setitem(sys.modules, "cbor2", None)
    with pytest.raises(SourceError, match="expected the package cbor2, found that it is not installed: pip install"):
        import_queue(tmp_path / "source", path, origin="persist-queue")


def test_a_stack_that_was_not_closed(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """A LifoDiskQueue whose count is not that of its items is reported; all of its items can be imported."""
    make_queuelib(queuelib.LifoDiskQueue, tmp_path / "source", [b"1", b"2", b"3"])
    with (tmp_path / "source").open("rb+") as file:
        file.write(b"\0\0\0\1")
    with pytest.raises(SourceDamagedError, match="expected a count of 3, as there are items, found 1"):
        import_queue(tmp_path / "source", path, "orders", origin="queuelib")
    import_queue(tmp_path / "source", path, "orders", origin="queuelib", skip_damaged=True, newest_first=False)
    assert drain(open_queue()) == [b"1", b"2", b"3"]


def test_a_stack_without_a_count(tmp_path: Path, path: Path) -> None:
    """A file that is shorter than the count of a LifoDiskQueue is damaged."""
    (tmp_path / "source").write_bytes(b"\0\0")
    with pytest.raises(SourceDamagedError, match="expected a count of 4 bytes, found 2 bytes"):
        import_queue(tmp_path / "source", path, origin="queuelib")


def test_a_queue_of_queuelib_that_was_not_closed(tmp_path: Path, path: Path) -> None:
    """A directory without the positions that queuelib writes at its end is refused; chunks with more items are
    damaged."""
    make_queuelib(queuelib.FifoDiskQueue, tmp_path / "source", [b"1", b"2"])
    with (tmp_path / "source" / "q00000").open("ab") as file:
        file.write(b"\0\0\0\0013")
    with pytest.raises(SourceDamagedError, match="expected the end of the chunk, found 5 more bytes"):
        import_queue(tmp_path / "source", path, origin="queuelib")
    (tmp_path / "source" / "info.json").unlink()
    with pytest.raises(SourceError, match=r"'q00000' without info.json, which queuelib writes when it is closed"):
        import_queue(tmp_path / "source", path, origin="queuelib")


@pytest.mark.parametrize(
    "info",
    [
        {},
        [],
        {"chunksize": 0, "size": 0, "tail": [0, 0, 0], "head": [0, 0]},
        {"chunksize": 10, "size": -1, "tail": [0, 0, 0], "head": [-1, 0]},
        {"chunksize": 10, "size": 1, "tail": [0], "head": [0, 1]},
        {"chunksize": 10, "size": 1, "tail": [0, 10, 0], "head": [0, 1]},
        {"chunksize": 10, "size": 7, "tail": [0, 0, 0], "head": [0, 1]},
        {"chunksize": float("inf"), "size": 1, "tail": [0, 0, 0], "head": [0, 1]},
    ],
)
def test_wrong_positions(tmp_path: Path, path: Path, info: Any) -> None:
    """Positions that no queue can have are refused, and name their file."""
    make_queuelib(queuelib.FifoDiskQueue, tmp_path / "source", [b"1"])
    (tmp_path / "source" / "info.json").write_text(json.dumps(info))
    with pytest.raises(SourceError, match=r"info\.json"):
        import_queue(tmp_path / "source", path, origin="queuelib")


@pytest.mark.parametrize("info", ["{", "[" * 60_000], ids=["cut", "deep"])
def test_positions_of_queuelib_that_cannot_be_read(tmp_path: Path, path: Path, info: str) -> None:
    """Positions of queuelib that are no JSON, or too deep, are refused, and name their file."""
    make_queuelib(queuelib.FifoDiskQueue, tmp_path / "source", [b"1"])
    (tmp_path / "source" / "info.json").write_text(info)
    with pytest.raises(SourceError, match=r"info\.json: expected the positions of a queue"):
        import_queue(tmp_path / "source", path, origin="queuelib")


@pytest.mark.parametrize("info", [b"", b"\0", b"{", b"\x04\0\0\0\x84abc", b"\x04\0\0\0\xa4abc", b"x" * 70_000])
def test_positions_that_cannot_be_read(tmp_path: Path, path: Path, info: bytes) -> None:
    """Positions that no serializer of persist-queue has written are refused, and name their file."""
    make_chunks(json_serializer, tmp_path / "source", [1])
    (tmp_path / "source" / "info").write_bytes(info)
    with pytest.raises(SourceError, match="info: expected the positions of a queue, found"):
        import_queue(tmp_path / "source", path, origin="persist-queue")


def test_a_damaged_database(tmp_path: Path, path: Path) -> None:
    """A database whose pages are damaged is an error that says how many rows can be read before, and that none behind
    them can."""
    theirs: Any = SQLiteQueue(str(tmp_path / "source"))
    with theirs._putter as connection:
        connection.executemany(theirs._sql_insert, [(b"%d" % number * 100, 1.0) for number in range(5000)])
    theirs.close()
    database = tmp_path / "source" / "data.db"
    data = bytearray(database.read_bytes())
    data[len(data) // 2 :] = b"\xff" * (len(data) - len(data) // 2)
    database.write_bytes(data)
    where = r"data.db, table 'queue_default': damaged at the row behind row \d+: expected this row and all behind it"
    with pytest.raises(SourceDamagedError, match=where):
        import_queue(tmp_path / "source", path, origin="persist-queue")


def test_a_file_that_only_begins_like_a_database(tmp_path: Path, path: Path) -> None:
    """A file with only the first bytes of a database is refused."""
    (tmp_path / "source").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with pytest.raises(SourceError, match="expected a SQLite database"):
        import_queue(tmp_path / "source", path, origin="sqlite")


def test_rows_that_are_no_bytes(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """A row with a number or NULL is an error with its place; without such rows, the others are imported."""
    make_jobs(tmp_path / "jobs.db")
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db, db:
        db.execute('INSERT INTO "my jobs" VALUES (?, ?, ?)', (b"x", 9, b"good"))
    named: Any = {"origin": "sqlite", "table": "my jobs", "column": "bad", "order": "at"}
    with pytest.raises(SourceDamagedError, match="the row behind row 0: expected bytes or text, found NULL"):
        import_queue(tmp_path / "jobs.db", path, "orders", **named)
    for skips in (False, True):
        with pytest.raises(SourceError, match="found the number 1: name the column of the items"):
            import_queue(tmp_path / "jobs.db", path, "orders", skip_damaged=skips, **named | {"column": "at"})
    done = import_queue(tmp_path / "jobs.db", path, "orders", skip_damaged=True, **named)
    assert [each.found for each in done.damaged] == ["NULL", "a float", "a int"]
    assert drain(open_queue()) == [b"good"]


@pytest.mark.parametrize("message", ["database or disk is full", "disk I/O error", "database is locked"])
def test_a_row_that_sqlite_cannot_read_now(
    tmp_path: Path, path: Path, open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    """A lack of SQLite is no damage of the source: no row is left out for it, and the next import goes on."""
    make_jobs(tmp_path / "jobs.db")
    named: Any = {"origin": "sqlite", "table": "my jobs", "column": "the body", "order": "at"}

    class Failing:
        """A connection that fails behind the first row."""

        def __init__(self, connection: sqlite3.Connection) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        def execute(self, query: str, *more: Any) -> Iterator[Any]:
            rows = self._connection.execute(query, *more)
            if "the body" not in query or "ORDER BY" not in query:
                return rows
            return self._some(rows)

        def _some(self, rows: Iterator[Any]) -> Iterator[Any]:
            yield next(rows)
            raise sqlite3.OperationalError(message)

    @contextmanager
    def opened(path: Path) -> Iterator[Any]:
        with tables.opened(path) as connection:
            yield Failing(connection)

    with monkeypatch.context() as patched:
        patched.setattr(recognition, "opened", opened)
        with pytest.raises(SourceError, match=f"found {message}: free what SQLite lacks"):
            import_queue(tmp_path / "jobs.db", path, "orders", skip_damaged=True, **named)
    done = import_queue(tmp_path / "jobs.db", path, "orders", skip_damaged=True, **named)
    assert (done.count, len(done.damaged)) == (3, 0)
    assert drain(open_queue()) == [b"b", b"c", "é".encode()]


# --- once only --------------------------------------------------------------------------------------------------------


class StopError(Exception):
    """Raised by a progress of a test."""


def stop_at(least: int) -> Callable[[int, int | None], None]:
    """Return a progress that ends the import when the queue has this many items."""

    def progress(done: int, total: int | None) -> None:
        if done >= least:
            raise StopError

    return progress


def test_an_import_goes_on_where_it_ended(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """An import that was ended goes on with the next item, also after consumers have taken some."""
    source, taken = tmp_path / "source", []
    make_chunks(json_serializer, source, range(COUNT))
    with pytest.raises(StopError):
        import_queue(source, path, "orders", origin="persist-queue", progress=stop_at(10_000))
    with PersistentQueue(path, "orders", codec=codecs.JSON) as queue, queue.transaction() as session:
        taken = session.dequeue_many(5000)
        session.enqueue("mine")
    done = import_queue(source, path, "orders", origin="persist-queue")
    assert 0 < done.added < COUNT == done.count
    left = drain(open_queue(codec=codecs.JSON))
    left.remove("mine")
    assert taken + left == list(range(COUNT))


def test_an_import_goes_on_with_a_moved_source(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """An import that was ended goes on with the next item, also if its source was renamed since."""
    make_chunks(json_serializer, tmp_path / "source", range(COUNT))
    with pytest.raises(StopError):
        import_queue(tmp_path / "source", path, "orders", origin="persist-queue", progress=stop_at(10_000))
    (tmp_path / "source").rename(tmp_path / "moved")
    done = import_queue(tmp_path / "moved", path, "orders", origin="persist-queue")
    assert 0 < done.added < COUNT
    with pytest.raises(SourceChangedError, match=r"found the 25,000 items that it has had from '.*source'"):
        import_queue(tmp_path / "moved", path, "orders", origin="persist-queue")
    assert drain(open_queue(codec=codecs.JSON)) == list(range(COUNT))


def test_a_source_that_has_changed(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """A source with other items than before is refused, since some may be in the queue; ``again`` imports it all."""
    make_queuelib(queuelib.FifoDiskQueue, tmp_path / "source", [b"1"])
    import_queue(tmp_path / "source", path, "orders", origin="queuelib")
    make_queuelib(queuelib.FifoDiskQueue, tmp_path / "source", [b"2"])
    with pytest.raises(SourceChangedError, match="expected the items that were imported from there before"):
        import_queue(tmp_path / "source", path, "orders", origin="queuelib")
    assert import_queue(tmp_path / "source", path, "orders", origin="queuelib", again=True).added == 2
    assert drain(open_queue()) == [b"1", b"1", b"2"]


def test_the_same_items_at_another_path(tmp_path: Path, path: Path, open_queue: QueueFactory) -> None:
    """The same items at another path are refused: a moved source and another one with equal items look alike."""
    make_queuelib(queuelib.FifoDiskQueue, tmp_path / "source", [b"tick"])
    import_queue(tmp_path / "source", path, "orders", origin="queuelib")
    shutil.copytree(tmp_path / "source", tmp_path / "other")
    with pytest.raises(SourceChangedError, match=r"found the 1 item that it has had from '.*source'"):
        import_queue(tmp_path / "other", path, "orders", origin="queuelib")
    for _ in range(2):
        assert import_queue(tmp_path / "other", path, "orders", origin="queuelib", again=True).added == 1
    assert import_queue(tmp_path / "other", path, "orders", origin="queuelib").added == 0
    assert drain(open_queue()) == [b"tick"] * 3


def test_a_repeated_import_goes_on(tmp_path: Path, path: Path) -> None:
    """An import with ``again`` that was ended goes on where it ended, too."""
    source = tmp_path / "source"
    make_chunks(json_serializer, source, range(COUNT))
    import_queue(source, path, "orders", origin="persist-queue")
    with pytest.raises(StopError):
        import_queue(source, path, "orders", origin="persist-queue", again=True, progress=stop_at(10_000))
    done = import_queue(source, path, "orders", origin="persist-queue", again=True)
    assert 0 < done.added < COUNT
    with PersistentQueue(path, "orders") as queue:
        assert len(queue) == 2 * COUNT


def test_an_empty_source(tmp_path: Path, path: Path) -> None:
    """A source without items adds nothing, however often, with or without its empty chunk."""
    make_chunks(json_serializer, tmp_path / "source", [])
    seen = list[tuple[int, int | None]]()
    for _ in range(2):
        done = import_queue(tmp_path / "source", path, origin="persist-queue", progress=lambda *of: seen.append(of))
        assert (done.count, done.added, done.damaged) == (0, 0, ())
        (tmp_path / "source" / "q00000").unlink(missing_ok=True)
    assert seen == [(0, 0), (0, 0)]


def test_a_full_queue(tmp_path: Path, path: Path) -> None:
    """An import into a queue with a limit ends when the limit is reached, and goes on when there is room."""
    source = tmp_path / "source"
    make_chunks(json_serializer, source, range(COUNT))
    with pytest.raises(QueueFullError):
        import_queue(source, path, "orders", origin="persist-queue", max_items=20_000, full="block")
    with PersistentQueue(path, "orders") as queue:
        drain(queue)
    assert import_queue(source, path, "orders", origin="persist-queue", max_items=20_000).count == COUNT


def test_a_queue_that_is_smaller_than_a_batch(tmp_path: Path, path: Path) -> None:
    """An import fills a queue whose limit is below a batch, and goes on when there is room."""
    make_queuelib(queuelib.FifoDiskQueue, tmp_path / "source", [b"%d" % number for number in range(20)])
    found: list[bytes] = []
    for count in (5, 7, 4, 4):
        with suppress(QueueFullError):
            import_queue(tmp_path / "source", path, "orders", origin="queuelib", max_items=7)
        with PersistentQueue(path, "orders") as queue:
            items = drain(queue)
        assert len(items) == count
        found += items
    assert found == [b"%d" % number for number in range(20)]
    assert import_queue(tmp_path / "source", path, "orders", origin="queuelib").added == 0


# --- verified ---------------------------------------------------------------------------------------------------------


def test_items_of_producers_in_between(tmp_path: Path, path: Path) -> None:
    """Items that a producer publishes meanwhile do not disturb the verification."""
    source = tmp_path / "source"
    make_chunks(json_serializer, source, range(COUNT))
    with PersistentQueue(path, "orders") as queue:
        put(queue, b"before")

    def publish(done: int, total: int | None) -> None:
        with Producer(path, "orders") as producer:
            producer.enqueue(b"published")
            producer.flush()

    import_queue(source, path, "orders", origin="persist-queue", progress=publish)
    with PersistentQueue(path, "orders") as queue:
        found = drain(queue)
    assert found[:1] == [b"before"]
    assert b"published" in found[1:-1]
    assert [item for item in found[1:] if item != b"published"] == [b"%d" % number for number in range(COUNT)]


@pytest.mark.damages
def test_damage_among_older_items(tmp_path: Path, path: Path) -> None:
    """An import into a queue whose older items are damaged succeeds, and is verified. It does not read these items."""
    source = tmp_path / "source"
    make_chunks(json_serializer, source, range(COUNT))
    with PersistentQueue(path, "orders", inline_bytes=0) as queue:
        put(queue, b"before" * 100)
    (file,) = segment_files(path / "orders")
    flip(file, file.read_bytes().index(b"before"))
    done = import_queue(source, path, "orders", origin="persist-queue")
    assert done.added == COUNT
    with PersistentQueue(path, "orders") as queue:
        assert [item.data for item in queue.view().browse(first=1)] == [b"%d" % number for number in range(COUNT)]
        with pytest.raises(CorruptionError):
            next(queue.view().browse())


def test_wrong_items_in_the_queue(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference between the stored items and the source is an error with the place of the first one."""
    source = tmp_path / "source"
    make_chunks(json_serializer, source, range(20_000))
    real = Session.enqueue_many

    def wrong(session: Session[bytes], items: list[bytes]) -> None:
        real(session, [b"wrong" if item == b"100" else item for item in items])

    monkeypatch.setattr(Session, "enqueue_many", wrong)
    with pytest.raises(ImportMismatchError, match="expected the imported 20,000 items, found the first 100") as caught:
        import_queue(source, path, "orders", origin="persist-queue")
    assert caught.value.path == str(path / "orders")


@pytest.mark.parametrize("argument", [{"codec": codecs.UNSAFE_PICKLE}, {"serve": True}, {"segment_byte": 1}])
def test_arguments_that_an_import_has_not(tmp_path: Path, path: Path, argument: dict[str, Any]) -> None:
    """An import takes the options of a queue, and no codec: that would encode the items of the source once more."""
    source = tmp_path / "source"
    make_chunks(pickle_serializer, source, range(3))
    (name,) = argument
    with pytest.raises(TypeError, match=f"has no (argument|option) '{name}'"):
        import_queue(source, path, "orders", origin="persist-queue", **argument)
    assert not path.exists()
    assert import_queue(source, path, "orders", origin="persist-queue", max_items=3).added == 3
    with PersistentQueue(path, "orders", codec=codecs.UNSAFE_PICKLE, max_items=3) as queue:
        assert drain(queue) == [0, 1, 2]


def test_a_source_that_changes_meanwhile(tmp_path: Path, path: Path) -> None:
    """A source whose files change during the import is an error."""
    source = tmp_path / "source"
    make_chunks(json_serializer, source, range(20_000))

    def change(done: int, total: int | None) -> None:
        with (source / "q00001").open("ab") as file:
            file.write(b"x")

    with pytest.raises(SourceInUseError, match="20,000 items are imported: stop the owner of the source"):
        import_queue(source, path, "orders", origin="persist-queue", progress=change)


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_verb(tmp_path: Path, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """``persistentqueue import`` does what the function does, and reports damaged parts with status 1."""
    make_chunks(json_serializer, tmp_path / "source", range(30_000))
    words = ["import", str(tmp_path / "source"), str(path), "orders", "--from", "persist-queue"]
    assert verbs.run(words) == 0
    assert "imported: 30,000 items of 30,000 of persist-queue Queue, read by JSON" in capfd.readouterr().out
    assert verbs.run(words) == 0
    assert (
        "imported: 0 items of 30,000 of persist-queue Queue, read by JSON; 30,000 were imported before"
        in capfd.readouterr().out
    )
    cut(tmp_path / "source" / "q00001", 102)
    assert verbs.run([*words, "--json"]) == 2
    assert json.loads(capfd.readouterr().err)["error"]["type"] == "SourceDamagedError"
    assert verbs.run([*words[:3], "rest", *words[4:], "--skip-damaged", "--json"]) == 1
    answer = json.loads(capfd.readouterr().out)
    assert (answer["count"], answer["added"], len(answer["damaged"])) == (20_017, 20_017, 1)
    assert answer["damaged"][0].endswith("found 0 bytes without a line feed")  # no advice


def make_two(source: Path) -> None:
    """Make a database with two queues of persist-queue."""
    with closing(sqlite3.connect(source)) as db:
        db.execute("CREATE TABLE queue_a (_id, data, timestamp)")
        db.execute("CREATE TABLE queue_b (_id, data, timestamp)")


@pytest.mark.parametrize(
    ("make", "words", "message"),
    [
        (make_two, "--from persist-queue", "the tables 'queue_a', 'queue_b': pass --table with one of them"),
        (make_jobs, "--from sqlite", "expected a table of litequeue, or --table, --column and --order, found"),
        (make_jobs, "--from sqlite --column at", "expected --table, --column and --order together, found only some"),
        (make_jobs, "--from queuelib --order at", "--column and --order are for tables of sqlite, not for 'queuelib'"),
        (
            lambda source: make_chunks(json_serializer, source, [1]),
            "--from persist-queue --newest-first",
            "import it without --newest-first",
        ),
        (
            lambda source: source.write_bytes(b"\0\0\0\1\0"),
            "--from queuelib",
            "mend the source, or pass --skip-damaged to import all other items",
        ),
    ],
)
def test_the_verb_names_its_options(
    tmp_path: Path,
    path: Path,
    capfd: pytest.CaptureFixture[str],
    make: Callable[[Path], object],
    words: str,
    message: str,
) -> None:
    """The errors of ``persistentqueue import`` name options where those of the function name arguments. A path is
    never changed."""
    source = tmp_path / "table=" / "again=True"
    source.parent.mkdir()
    make(source)
    assert verbs.run(["import", str(source), str(path), *words.split()]) == 2
    error = capfd.readouterr().err
    assert message in error
    assert str(source) in error or "queuelib --order" in words


def test_the_verb_names_its_option_to_import_again(
    tmp_path: Path, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """If the queue has had other items from the path, ``persistentqueue import`` advises ``--again``."""
    words = ["import", str(tmp_path / "source"), str(path), "--from", "persist-queue"]
    for items in ([1], [2]):
        make_chunks(json_serializer, tmp_path / "source", items)
        status = verbs.run(words)
        shutil.rmtree(tmp_path / "source")
    assert status == 2
    assert "pass --again to import all items that it has now" in capfd.readouterr().err


def test_the_verb_keeps_the_limits_of_the_queue(tmp_path: Path, path: Path) -> None:
    """``persistentqueue import`` leaves the limits that the owner of the queue has set: producers still have them."""
    make_queuelib(queuelib.FifoDiskQueue, tmp_path / "source", [b"1"])
    PersistentQueue(path, "orders", max_items=2).close()
    assert verbs.run(["import", str(tmp_path / "source"), str(path), "orders", "--from", "queuelib"]) == 0
    with Producer(path, "orders") as producer:
        producer.enqueue_many([b"2", b"3", b"4"])
        with pytest.raises(QueueFullError):
            producer.flush()
        producer.rollback()


def test_the_verb_chooses_states(tmp_path: Path, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The options of the verb reach the function."""
    theirs = SQLiteAckQueue(str(tmp_path / "source"))
    theirs.put(1)
    theirs.put(2)
    theirs.ack(theirs.get())
    theirs.close()
    assert (
        verbs.run(["import", str(tmp_path / "source"), str(path), "--from", "persist-queue", "--state", "acked"]) == 0
    )
    with PersistentQueue(path, codec=codecs.UNSAFE_PICKLE) as queue:
        assert drain(queue) == [1]
    assert verbs.run(["import", str(tmp_path / "source"), str(path)]) == 2
    assert "--from" in capfd.readouterr().err


# --- the refusal of foreign directories -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Queue-json", "SQLiteQueue", "FILOSQLiteAckQueue", "FifoDiskQueue"])
def test_foreign_directories_are_refused(tmp_path: Path, name: str) -> None:
    """A queue is not opened over the files of persist-queue or queuelib: the error names the importer, and nothing is
    written."""
    kind = next(each for each in KINDS if each.name == name)
    kind.make(tmp_path / "source", items_of(kind, 10))
    before = traits_of(tmp_path / "source")
    openings: list[Callable[[Path], Any]] = [PersistentQueue, compat.Queue, compat.FifoQueue, Producer]
    for opening in openings:
        with pytest.raises(ForeignQueueError, match=r"importers\.import_queue\(.*coming_from\.md") as caught:
            opening(tmp_path / "source")
        assert caught.value.origin == kind.origin
    assert traits_of(tmp_path / "source") == before
    assert sorted(each.name for each in (tmp_path / "source").iterdir()) == sorted(Path(each).name for each in before)


def test_the_directory_of_a_killed_owner_is_refused(tmp_path: Path, owner: subprocess.Popen[bytes]) -> None:
    """A database of persist-queue is recognized while its tables are in the journal only."""
    with pytest.raises(ForeignQueueError, match=r"'data\.db' with the table 'queue_default' of persist-queue"):
        compat.Queue(tmp_path / "source")


def test_other_databases_are_no_obstacle(tmp_path: Path) -> None:
    """A queue is made beside a database of the program itself."""
    make_jobs(tmp_path / "data.db")
    PersistentQueue(tmp_path).close()
