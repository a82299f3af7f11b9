"""The registry of schemas: numbers, several processes at once, formats, and other programs with an earlier schema."""

from __future__ import annotations

import errno
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import (
    CorruptionError,
    DiskFullError,
    InvalidNameError,
    PersistentQueue,
    Producer,
    QueueNotFoundError,
    delete_queue,
)
from persistentqueue.interprocess import request_subscription
from persistentqueue.rows import SchemaMismatchError, SchemaNotFoundError
from persistentqueue.rows.registry import Registry
from persistentqueue.rows.schema import Schema, schema_from_types
from persistentqueue.storage.schema_files import SchemaFile, write_schema
from persistentqueue.system.disk import DISK
from tests.support.disks import call_on
from tests.support.queues import drain, put

ONE = schema_from_types({"id": "long", "name": "string"})
TWO = schema_from_types({"id": "long", "name": "string", "more": "long"})
OTHER = schema_from_types({"id": "string", "name": "string"})


def test_a_schema_keeps_its_number(tmp_path: Path) -> None:
    """Registration makes the queue. A schema is registered once, also in another order, and after later ones."""
    registry = Registry(tmp_path, "q")
    assert registry.register("json", ONE) == (1, "json", ONE)
    assert Registry(tmp_path / "q").register("json", Schema(ONE.columns[::-1])).number == 1
    assert registry.register("json", TWO).number == 2
    assert Registry(tmp_path, "q").register("json", ONE).number == 1
    assert [each.schema for each in registry.all()] == [ONE, TWO]
    assert pickle.loads(pickle.dumps(registry)).newest() == (2, "json", TWO)
    assert (registry.schema(1), Registry(tmp_path, "q").schema(2)) == (ONE, TWO)
    with PersistentQueue(tmp_path, "q") as queue:
        assert len(queue) == 0


def test_a_queue_has_one_format(tmp_path: Path) -> None:
    """Rows of another format are refused, and say which one the queue has."""
    registry = Registry(tmp_path, "q")
    registry.register("json", ONE)
    with pytest.raises(SchemaMismatchError, match="the queue has json, the rows have avro"):
        registry.register("avro", TWO)
    with pytest.raises(ValueError, match="arrow, avro, json, not 'xml'"):
        registry.register("xml", ONE)
    assert len(registry.all()) == 1


@pytest.mark.parametrize(("format_name", "schema"), [("avro", ONE), ("json", OTHER)], ids=["format", "column"])
def test_a_schema_without_rows_tells_its_way_out(tmp_path: Path, format_name: str, schema: Schema) -> None:
    """If the queue never had an item, the error for other rows advises to delete the queue, and that helps.

    A write that has failed may have registered the schema. Once there was an item, also a consumed one or one that
    waits in the inbox, the error advises another queue.
    """
    advice = r"the queue has had no item: .* delete the queue by persistentqueue\.delete_queue and write them again"
    registry = Registry(tmp_path, "q")
    registry.register("json", ONE)
    with pytest.raises(SchemaMismatchError, match=advice) as found:
        registry.register(format_name, schema)
    assert (found.value.path, found.value.column) == (registry.directory, None if format_name == "avro" else "id")
    delete_queue(tmp_path, "q")
    registry.register(format_name, schema)
    with Producer(tmp_path, "q") as producer:
        producer.enqueue(b"{}")
        producer.flush()
    for _ in range(2):
        with pytest.raises(SchemaMismatchError, match=r"or write these rows to another queue$"):
            registry.register("json", TWO if format_name == "avro" else ONE)
        with PersistentQueue(tmp_path, "q") as queue:
            drain(queue)


@pytest.mark.parametrize("is_adopted", [True, False], ids=["adopted", "published"])
def test_a_queue_of_other_items_gets_no_schema(tmp_path: Path, is_adopted: bool) -> None:
    """While items without a schema wait, also published ones, the first schema of arrow or avro is refused.

    No reader of rows could read them. JSON needs no schema, so that its first one is accepted.
    """
    if is_adopted:
        with PersistentQueue(tmp_path, "q") as queue:
            put(queue, b"{}", b"{}")
    else:
        with Producer(tmp_path, "q") as producer:
            producer.enqueue(b"{}")
            producer.enqueue(b"{}")
            producer.flush()
    registry = Registry(tmp_path, "q")
    for format_name in ("arrow", "avro"):
        words = f"the queue has 2 items without a schema, the rows have {format_name}: .* or consume the items"
        with pytest.raises(SchemaMismatchError, match=words):
            registry.register(format_name, ONE)
    assert registry.register("json", ONE).number == 1
    with PersistentQueue(tmp_path, "q") as queue:
        assert len(drain(queue)) == 2


def test_rows_of_another_first_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a process that has registered the first schema at the same time refuse no schema."""
    registry = Registry(tmp_path, "q")
    count = registry._count_items

    def later() -> int:
        Registry(tmp_path, "q").register("avro", ONE)
        with Producer(tmp_path, "q") as producer:
            producer.enqueue(b"a row")
            producer.flush()
        return count()

    monkeypatch.setattr(registry, "_count_items", later)
    assert registry.register("avro", ONE).number == 1


@pytest.mark.damages
def test_a_queue_without_items_gets_a_schema(tmp_path: Path) -> None:
    """Neither consumed items, nor a waiting request, nor a file that is no publication refuses the first schema."""
    with PersistentQueue(tmp_path, "q") as queue:
        put(queue, b"gone")
        drain(queue)
    request_subscription(tmp_path, "q", "reader", 0)
    (tmp_path / "q" / "inbox" / f"{1:016x}-{2:016x}.seg").write_bytes(b"no publication")
    assert Registry(tmp_path, "q").register("avro", ONE).number == 1


def test_many_at_once(tmp_path: Path) -> None:
    """Threads that register at once get one number for equal schemas, and each change builds on the one before."""
    registry = Registry(tmp_path, "q")
    registry.register("json", ONE)
    columns = [schema_from_types({f"c{n}": "long"}).columns[0] for n in range(8)]

    def add(n: int) -> int:
        own = Registry(tmp_path, "q")
        while True:
            newest = own.newest().schema
            try:
                return own.register("json", Schema((*newest.columns, columns[n]))).number
            except SchemaMismatchError:  # another thread has added a column meanwhile
                continue

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(add, range(8))) == list(range(2, 10))
        equal = list(pool.map(lambda _: Registry(tmp_path, "p").register("json", ONE).number, range(8)))
    assert equal == [1] * 8
    assert registry.newest().schema.by_name().keys() == {"id", "name", *(f"c{n}" for n in range(8))}


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    """There may be no queue, no schema, or no schema of this number."""
    with pytest.raises(QueueNotFoundError, match="with a schema of rows"):
        Registry(tmp_path, "q").newest()
    PersistentQueue(tmp_path, "q").close()
    registry = Registry(tmp_path, "q")
    with pytest.raises(SchemaNotFoundError, match="no schema of rows"):
        registry.newest()
    registry.register("json", ONE)
    for number in (0, 2):
        with pytest.raises(SchemaNotFoundError, match=f"has the schema {number}, and the queue has the schemas 1 to 1"):
            registry.schema(number)


def test_types_that_a_format_cannot_have(tmp_path: Path) -> None:
    """Avro has names of letters, and avro and json have maps with text as keys; nothing is registered otherwise."""
    registry = Registry(tmp_path, "q")
    key = {"type": "map", "keyType": "long", "valueType": "long"}
    nested = schema_from_types({"a": {"type": "array", "elementType": key}})
    for format_name, schema, match in (
        ("avro", schema_from_types({"a-b": "long"}), "'a-b' cannot have this name"),
        ("avro", nested, "'a.element' is a map"),
        ("json", nested, "'a.element' is a map"),
    ):
        with pytest.raises(ValueError, match=match):
            registry.register(format_name, schema)
    assert registry.all() == ()
    assert registry.register("arrow", nested).number == 1


@pytest.mark.damages
def test_a_schema_of_types_that_are_not_known(tmp_path: Path) -> None:
    """A file of another program whose checksum is right is named, too."""
    PersistentQueue(tmp_path, "q").close()
    write_schema(
        DISK, str(tmp_path / "q"), SchemaFile(1, "json", {"type": "struct", "fields": [{"name": "a", "type": "x"}]})
    )
    with pytest.raises(CorruptionError, match="'a' has the type 'x'"):
        Registry(tmp_path, "q").all()


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """A schema that cannot be written for lack of space says so, and can be registered later."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    PersistentQueue(tmp_path, "q").close()
    registry = call_on(replace(DISK, link=full), Registry, tmp_path, "q")
    with pytest.raises(DiskFullError, match="register it again"):
        registry.register("json", ONE)
    assert Registry(tmp_path, "q").register("json", ONE).number == 1


def test_a_queue_in_the_place_of_the_folder(tmp_path: Path) -> None:
    """If an older program has made a queue where the schemas would be, nothing is written into it."""
    PersistentQueue(tmp_path / "other", "schemas").close()
    PersistentQueue(tmp_path, None).close()
    shutil.copytree(tmp_path / "other" / "schemas", tmp_path / "schemas")
    with pytest.raises(InvalidNameError, match="a queue named 'schemas'"):
        Registry(tmp_path).register("json", ONE)
    shutil.rmtree(tmp_path / "schemas")
