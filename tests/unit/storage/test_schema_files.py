"""Files of schemas: crashes at each step of a registration, two processes at once, damage, and deletion."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from stat import S_ISDIR

import pytest

from persistentqueue import (
    CorruptionError,
    InvalidNameError,
    PersistentQueue,
    UnsupportedFormatError,
    check,
    delete_queue,
    repair,
)
from persistentqueue.core.checksum import crc32
from persistentqueue.storage.locations import encode_fields
from persistentqueue.storage.schema_files import (
    SCHEMA_BYTES_MAX,
    SchemaFile,
    check_schemas,
    parse_schema_file,
    parse_schema_name,
    read_schemas,
    sync_schemas,
    write_schema,
)
from persistentqueue.system.disk import DISK
from tests.crash.disk import Crash, SimulatedDisk
from tests.support.disks import call_on

ROOT = "/queues"
FIRST = SchemaFile(1, "json", {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True}]})
SECOND = SchemaFile(2, "json", {"type": "struct", "fields": []})
OTHER = SchemaFile(2, "json", {"type": "struct", "fields": [1]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a queue without a name with two schemas, and return their folder."""
    PersistentQueue(tmp_path).close()
    assert write_schema(DISK, str(tmp_path), FIRST)
    assert write_schema(DISK, str(tmp_path), SECOND)
    return tmp_path / "schemas"


@pytest.mark.parametrize("user", [0, 1000])
def test_a_schema_belongs_to_the_user_of_its_queue(tmp_path: Path, user: int) -> None:
    """The superuser gives the folder and the file to the user of the queue; any other user makes its own. A container
    may not allow it: then the schema is registered all the same."""
    given: list[tuple[bool, int, int]] = []

    def fchown(fd: int, uid: int, gid: int) -> None:
        given.append((S_ISDIR(os.fstat(fd).st_mode), uid, gid))
        raise PermissionError(errno.EPERM, "Operation not permitted")

    PersistentQueue(tmp_path).close()
    assert write_schema(replace(DISK, geteuid=lambda: user, fchown=fchown), str(tmp_path), FIRST)
    owner = os.lstat(tmp_path).st_uid
    assert given == ([] if user else [(True, owner, -1), (False, owner, -1)])
    assert read_schemas(DISK, str(tmp_path)) == [FIRST]


def test_a_queue_that_is_gone_gets_no_schema(folder: Path) -> None:
    """A schema that is registered while its queue is deleted makes no directory, where a later queue would find it."""
    delete_queue(folder.parent)
    folder.parent.rmdir()
    with pytest.raises(FileNotFoundError):
        write_schema(DISK, str(folder.parent), FIRST)
    assert not folder.parent.exists()


def crashed(before: SimulatedDisk, file: SchemaFile, at: int, seed: int, is_cut: bool) -> tuple[SimulatedDisk, bool]:
    """Register a schema, stop it at its n-th change, and return the disk after that, and whether it returned."""
    disk, ticks, pick = before.kill(lambda _: 0), 0, Random(seed).randrange

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == at:
            raise Crash

    disk.on_tick = tick
    has_returned = False
    with suppress(Crash):
        has_returned = write_schema(disk.disk, ROOT, file)
    return disk.cut_power(pick) if is_cut else disk.kill(pick), has_returned


@pytest.mark.parametrize("known", [[], [FIRST]], ids=["the first", "the second"])
@pytest.mark.parametrize("is_cut", [False, True], ids=["killed", "power cut"])
def test_a_crash_at_each_step(known: list[SchemaFile], is_cut: bool) -> None:
    """A registration that is cut short anywhere leaves the schema or none; when it is repeated, it is durable."""
    before = SimulatedDisk()
    for each in known:
        assert write_schema(before.disk, ROOT, each)
    file = SchemaFile(len(known) + 1, "json", {"type": "struct", "fields": []})
    seen, has_returned = set(), False
    for at in count(1):
        for seed in range(20 if is_cut else 3):
            after, has_returned = crashed(before, file, at, seed, is_cut)
            found = read_schemas(after.disk, ROOT)
            seen.add(len(found))
            assert found in ([*known], [*known, file])
            if has_returned:
                assert found == [*known, file]
            elif len(found) == len(known):
                assert write_schema(after.disk, ROOT, file)
            else:
                sync_schemas(after.disk, ROOT)
            ended = after.cut_power(lambda _: 0)
            assert read_schemas(ended.disk, ROOT) == [*known, file]
            # Attempts that a crash has left go with the next registration.
            assert write_schema(ended.disk, ROOT, SchemaFile(file.number + 1, "json", 1))
            names = ended.disk.listdir(f"{ROOT}/schemas")
            assert {parse_schema_name(name) for name in names} == set(range(1, file.number + 2))
        if has_returned:
            break
    assert seen == {len(known), len(known) + 1}


def test_a_number_that_is_taken(folder: Path) -> None:
    """A number is given once: the second process gets False, and its schema and attempt are nowhere."""
    assert not write_schema(DISK, str(folder.parent), OTHER)
    assert read_schemas(DISK, str(folder.parent)) == [FIRST, SECOND]
    assert sorted(os.listdir(folder)) == ["000001.schema", "000002.schema"]


def test_an_attempt_that_another_process_deletes(folder: Path) -> None:
    """A process whose attempt was deleted by the winner gets False."""

    def link(source: str, target: str) -> None:
        assert write_schema(DISK, str(folder.parent), SchemaFile(3, "json", 3))
        DISK.link(source, target)

    third = SchemaFile(3, "json", 4)
    assert not write_schema(replace(DISK, link=link), str(folder.parent), third)
    assert read_schemas(DISK, str(folder.parent))[2:] == [SchemaFile(3, "json", 3)]


def test_a_failure_leaves_no_schema(folder: Path) -> None:
    """If the link fails, there is no schema, and no attempt is left."""

    def link(source: str, target: str) -> None:
        raise OSError(errno.EIO, "Input/output error", target)

    with pytest.raises(OSError, match="Input/output"):
        write_schema(replace(DISK, link=link), str(folder.parent), SchemaFile(3, "json", 3))
    assert len(os.listdir(folder)) == 2
    with pytest.raises(ValueError, match=f"exceeds {SCHEMA_BYTES_MAX}"):
        write_schema(DISK, str(folder.parent), SchemaFile(3, "json", "x" * SCHEMA_BYTES_MAX))


@pytest.mark.damages
def test_each_flipped_byte_is_named(folder: Path) -> None:
    """Damage at any byte of a schema raises an error with path, expected and found; check and repair name it."""
    path = folder / "000002.schema"
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(CorruptionError) as caught:
            read_schemas(DISK, str(folder.parent))
        assert caught.value.file == str(path) and caught.value.expected != caught.value.found
    path.write_bytes(content[: len(content) // 2])
    assert [str(path) in problem for problem in check(folder.parent).problems] == [True]
    report = repair(folder.parent)
    assert len(report.problems) == 1 and "restore the file" in report.problems[0]
    assert path.read_bytes() == content[: len(content) // 2], "the number stays taken"
    path.write_bytes(content)
    assert check(folder.parent).ok


@pytest.mark.damages
def test_files_that_do_not_belong_there(folder: Path) -> None:
    """A missing number, a file under another number, a directory and a newer version are named."""
    directory = str(folder.parent)
    first, second = folder / "000001.schema", folder / "000002.schema"
    first.unlink()
    with pytest.raises(CorruptionError, match=r"000001.schema: .*since there is a later one, found no file"):
        read_schemas(DISK, directory)
    first.write_bytes(second.read_bytes())
    with pytest.raises(CorruptionError, match="expected schema 1, found schema 2"):
        read_schemas(DISK, directory)
    first.unlink()
    first.mkdir()
    with pytest.raises(CorruptionError, match="a regular file"):
        read_schemas(DISK, directory)
    first.rmdir()
    newer = encode_fields(FIRST._asdict()).replace(b'"version": 1', b'"version": 9').partition(b"\n")[0]
    first.write_bytes(b"%s\n%08x\n" % (newer, crc32(newer)))
    assert [type(each) for each in check_schemas(DISK, directory)] == [UnsupportedFormatError]
    (folder / "note").write_text("not ours")
    assert "schemas/note" in check(directory).leftovers


def test_a_stray_number_is_one_problem(folder: Path) -> None:
    """A file with a number far behind the last schema is one missing schema, and one that cannot be read."""
    stray = folder / "9999999999.schema"
    stray.write_bytes(b"")
    problems = [str(each) for each in check_schemas(DISK, str(folder.parent))]
    assert len(problems) == 2 and "000003.schema" in problems[0] and stray.name in problems[1]
    stray.unlink()


def test_names_of_files() -> None:
    """Only names of schemas and of attempts are those of the registry's files."""
    assert parse_schema_name("000012.schema") == parse_schema_file("000012.schema") == 12
    assert parse_schema_file("000012-0123456789abcdef.new") == 12
    assert parse_schema_name("000012-0123456789abcdef.new") is None
    assert parse_schema_file("000012.schema.damaged") is None


def test_a_queue_goes_with_its_schemas(tmp_path: Path) -> None:
    """A deleted queue leaves no schema, also if the deletion is cut short and a new queue is made."""
    PersistentQueue(tmp_path, "q").close()
    assert write_schema(DISK, str(tmp_path / "q"), FIRST)

    def failpoint(name: str) -> None:
        if name == "delete.3 sweep":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_on(replace(DISK, failpoint=failpoint), delete_queue, tmp_path, "q")
    assert (tmp_path / "q" / "schemas").exists()
    PersistentQueue(tmp_path, "q").close()
    assert read_schemas(DISK, str(tmp_path / "q")) == []
    assert write_schema(DISK, str(tmp_path / "q"), FIRST)
    delete_queue(tmp_path, "q")
    assert not (tmp_path / "q").exists()


def test_a_queue_cannot_have_the_name_of_the_folder(folder: Path) -> None:
    """Beside the schemas of a queue without a name, no queue can be named like their folder."""
    with pytest.raises(InvalidNameError, match="'schemas' is a part of it"):
        PersistentQueue(folder.parent, "schemas")
