"""A queue and the files of other users: shared with a group, or refused, and never blocked. Tests with real users need
root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import persistentqueue

OWNER, OTHER, GROUP = 54_321, 54_322, 54_400

pytestmark = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can be several users")

PROGRAM = """
import json, os, sys
uid, group, root, umask, code = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
sys.path.insert(0, root)
import logging
logging.disable(logging.CRITICAL)
import portalocker  # which another user may not be able to read
from persistentqueue import *
from persistentqueue.interprocess.multi_writer import *
import persistentqueue.rows.schema
os.setgroups([group] if group else [])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
os.umask(umask)
directory, answer = sys.argv[6], None
exec(code)
print(json.dumps(answer))
"""

PUBLISH = """
with Producer(directory) as producer:
    producer.enqueue_many([b"from %d" % os.getuid()] * 3)
    answer = producer.flush(marker=("m%d" % os.getuid(), 1))
"""

CONSUME = """
answer = {"items": [], "errors": []}
with PersistentQueue(directory, **settings) as queue, queue.session() as session:
    for _ in range(20):
        try:
            answer["items"] += [item.decode() for item in session.dequeue_many(100)]
        except PersistentQueueError as error:
            answer["errors"].append(str(error))
    session.flush()
    queue.maintain()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield the path of a queue below a directory that every user may enter, with a copy of the package."""
    root = Path(tempfile.mkdtemp(prefix="users-", dir="/tmp"))
    root.chmod(0o755)
    shutil.copytree(Path(persistentqueue.__file__).parent, root / "package" / "persistentqueue")
    home = root / "home"
    home.mkdir()
    os.chown(home, OWNER, OWNER)
    home.chmod(0o755)
    yield home / "q"
    shutil.rmtree(root)


def run_as(user: int, place: Path, code: str, group: int = GROUP, umask: int = 0o077) -> Any:
    """Run the code as this user, and return its answer."""
    command = [sys.executable, "-c", PROGRAM, *map(str, (user, group, place.parent.parent / "package", umask))]
    done = subprocess.run(
        [*command, code, str(place)], capture_output=True, text=True, timeout=120, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def share(place: Path, settings: str = "") -> None:
    """Make the queue, as its owner, and share it with a group, as the documentation says."""
    run_as(OWNER, place, f"PersistentQueue(directory, {settings}).close()")
    for directory in (place, place / "log", place / "inbox"):
        os.chown(directory, OWNER, GROUP)
    place.chmod(0o750)
    (place / "log").chmod(0o750)
    (place / "inbox").chmod(0o2770)


@pytest.mark.parametrize("settings", ["{}", "{'sync': False}", "{'wipe': True}"])
def test_row_08_a_group_publishes(place: Path, settings: str) -> None:
    """Members of a group publish into a queue that is shared with the group, whatever their umask. The owner consumes
    their items, also after a crash, without the right to write to the files."""
    share(place)
    assert run_as(OTHER, place, PUBLISH) is True
    assert run_as(OWNER, place, PUBLISH) is True
    assert run_as(OTHER, place, PUBLISH) in {True, False}
    adopt = f"queue = PersistentQueue(directory, **{settings}); answer = len(queue); sys.stdout.flush(); "
    assert run_as(OWNER, place, adopt + "print(json.dumps(answer)); sys.stdout.flush(); os._exit(0)") == 6
    report = run_as(OWNER, place, "answer = [check(directory).ok, check(directory).items]")
    assert report == [True, 6]
    found = run_as(OWNER, place, f"settings = {settings}\n" + CONSUME)
    assert found == {"items": [f"from {OTHER}"] * 3 + [f"from {OWNER}"] * 3, "errors": []}


def test_row_08_a_group_publishes_after_a_rename(place: Path) -> None:
    """A queue with ``data_path`` stays shared with the group when its directory was renamed, and when an opening has
    found its location at another path."""
    media = place.parent / "media"
    run_as(OWNER, place, f"PersistentQueue(directory, data_path={str(media)!r}).close()")
    shared = {"": 0o750, "log": 0o750, "data.path": 0o640}
    located = {"": 0o750, "inbox": 0o2770, "queue.id": 0o640}
    media.chmod(0o755)
    for root, modes in ((place, shared), (media, located)):
        for name, mode in modes.items():
            os.chown(root / name, OWNER, GROUP)
            (root / name).chmod(mode)
    assert run_as(OTHER, place, PUBLISH) is True
    renamed, moved = place.with_name("renamed"), place.parent / "moved"
    place.rename(renamed)
    run_as(OWNER, renamed, "PersistentQueue(directory).close()")
    assert run_as(OTHER, renamed, PUBLISH) in {True, False}
    media.rename(moved)
    run_as(OWNER, renamed, f"PersistentQueue(directory, data_path={str(moved)!r}).close()")
    assert run_as(OTHER, renamed, PUBLISH) in {True, False}
    assert run_as(OWNER, renamed, "settings = {}\n" + CONSUME)["items"] == [f"from {OTHER}"] * 3


def test_row_08_limits_count_for_a_group(place: Path) -> None:
    """A member of the group can read the limits, whatever the umask of the owner is."""
    share(place, "max_items=4")
    assert run_as(OTHER, place, PUBLISH) is True
    refused = """
with Producer(directory) as producer:
    producer.enqueue_many([b"x"] * 2)
    try:
        producer.flush()
    except QueueFullError as error:
        answer = str(error)
        producer.rollback()
"""
    assert "max_items=4" in run_as(OTHER, place, refused)


def test_row_08_a_stranger_is_refused(place: Path) -> None:
    """A user that may not publish, or whose files the owner could not read, is refused with advice when the producer is
    made. A writer of parts is refused, too."""
    share(place)
    refused = """
answer = []
for make in (Producer, PartWriter):
    try:
        make(directory)
    except InboxAccessError as error:
        answer.append(str(error))
"""
    messages = run_as(OTHER, place, refused, group=0)
    (place / "inbox").chmod(0o777)
    place.chmod(0o755)
    (place / "log").chmod(0o755)
    messages += run_as(OTHER, place, refused, group=0)
    assert len(messages) == 4
    assert all("chmod 2770 the inbox" in message for message in messages)
    assert not list((place / "inbox").iterdir())


def test_row_08_the_superuser_publishes_for_others(place: Path) -> None:
    """Files that root publishes into another user's queue are readable for its owner."""
    run_as(OWNER, place, "PersistentQueue(directory).close()")
    assert run_as(0, place, PUBLISH.replace("Producer(directory", "Producer(directory, trust=True")) is True
    assert run_as(OWNER, place, "settings = {}\n" + CONSUME)["items"] == ["from 0"] * 3


@pytest.mark.parametrize("verb", ["put", "load"])
def test_the_command_line_of_the_superuser_owns_no_queue_of_others(place: Path, verb: str) -> None:
    """``put`` and ``load`` of root publish into another user's queue, and do not open it: no file of root takes the
    place of one that its owner must write."""
    run_as(OWNER, place, "PersistentQueue(directory).close()")
    (place / "pool" / "log.free").unlink()  # an opening makes another one
    words = [verb, str(place), ".", "--trust", *(["x"] if verb == "put" else ["--input", str(place.parent / "lines")])]
    (place.parent / "lines").write_text('{"text": "x"}\n')
    code = f"""
import contextlib, io
from persistentqueue.cli import main
with contextlib.redirect_stderr(io.StringIO()) as told:
    status = main({words!r})
answer = status, told.getvalue()
"""
    status, told = run_as(0, place, code)
    assert status == 0 and f"published: the queue belongs to user {OWNER}" in told
    assert [path for path in place.rglob("*") if path.stat().st_uid != OWNER] == list((place / "inbox").iterdir())
    assert run_as(OWNER, place, "settings = {}\n" + CONSUME)["items"] == ["x"]


def test_the_superuser_registers_schemas_for_others(place: Path) -> None:
    """A schema of rows that root registers in another user's queue is one for its owner, as any other. The owner also
    registers the next one, and deletes the queue."""
    run_as(OWNER, place, "PersistentQueue(directory).close()")
    register = """
from persistentqueue.rows.registry import Registry
from persistentqueue.rows.schema import schema_from_json
fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in NAMES]
answer = Registry(directory).register("json", schema_from_json({"type": "struct", "fields": fields})).number
"""
    assert run_as(0, place, register.replace("NAMES", "'a'")) == 1
    assert run_as(OWNER, place, "answer = list(check(directory).problems)") == []
    assert run_as(OWNER, place, register.replace("NAMES", "'a'")) == 1
    assert run_as(OWNER, place, register.replace("NAMES", "'ab'")) == 2
    assert run_as(0, place, register.replace("NAMES", "'abc'")) == 3
    run_as(OWNER, place, "delete_queue(directory)")
    assert not (place / "schemas").exists()


@pytest.mark.parametrize("renames", [True, False])
def test_row_08_what_cannot_be_read_keeps_nobody(place: Path, renames: bool) -> None:
    """A file that the owner cannot read is set aside, or skipped if it cannot be renamed, and other files are adopted.
    The error, ``check`` and ``repair`` name it."""
    share(place)
    assert run_as(OTHER, place, PUBLISH) is True
    (file,) = (place / "inbox").iterdir()
    file.chmod(0o600)
    assert run_as(OWNER, place, PUBLISH) is True
    problems = run_as(OWNER, place, "answer = check(directory).problems")
    assert len(problems) == 1 and file.name in problems[0] and "let its user grant the right" in problems[0]
    if not renames:
        os.chown(place / "inbox", OTHER, GROUP)
        (place / "inbox").chmod(0o3770)  # in a sticky directory, a user may rename only its own files
    found = run_as(OWNER, place, f"settings = {{'trust': {not renames}}}\n" + CONSUME)
    assert found["items"] == [f"from {OWNER}"] * 3
    assert len(found["errors"]) == 1 and file.name in found["errors"][0]
    assert file.exists() is not renames
    if renames:
        shutil.move(f"{file}.damaged", file)
    repaired = run_as(OWNER, place, f"answer = repair(directory, trust={not renames}).problems")
    assert any("let its user grant the right" in problem for problem in repaired)
    os.chown(place / "inbox", OWNER, GROUP)
    (place / "inbox").chmod(0o2770)
    left = file if file.exists() else Path(f"{file}.damaged")
    left.chmod(0o640)
    left.rename(file)
    assert run_as(OWNER, place, "settings = {}\n" + CONSUME)["items"] == [f"from {OTHER}"] * 3
