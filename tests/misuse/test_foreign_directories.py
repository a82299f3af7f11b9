"""Row 9: a directory that another user has prepared is opened only with ``trust=True``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import Producer, View, check, delete_queue, move_data, repair
from persistentqueue.errors import UntrustedError
from persistentqueue.system.disk import DISK, Disk
from persistentqueue.system.trust import distrusted
from tests.conftest import QueueFactory
from tests.support.queues import drain, log_file, put, traits

SOMEBODY = 4711
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def stranger() -> Disk:
    """Return the disk of a process of another user, for which the files of this user are foreign."""
    return replace(DISK, geteuid=lambda: SOMEBODY)


def own_by(path: Path, user: int) -> None:
    """Give a directory, and everything in it, to a user."""
    for each in [path, *path.rglob("*")]:
        os.chown(each, user, -1, follow_symlinks=False)


def openings(directory: Path, tmp_path: Path, **settings: object) -> list[Callable[[], object]]:
    """Return calls that take the lock of a queue, or publish into it."""
    return [
        lambda: Producer(directory, **settings),  # type: ignore[arg-type]
        lambda: Producer(directory, create=False, **settings),  # type: ignore[arg-type]
        lambda: repair(directory, **settings),  # type: ignore[arg-type]
        lambda: move_data(directory, data_path=tmp_path / "place", **settings),  # type: ignore[arg-type]
        lambda: delete_queue(directory, **settings),  # type: ignore[arg-type]
    ]


@needs_root
@pytest.mark.parametrize("part", ["", "lock", "log", "data", "inbox", "pool", "a log"])
def test_row_09_what_another_user_owns(tmp_path: Path, directory: Path, open_queue: QueueFactory, part: str) -> None:
    """A directory that another user owns, in whole or in part, is refused by each opening, and not changed. ``View``
    and ``check`` work, ``check`` reports it, and ``trust=True`` opens it."""
    queue = open_queue()
    put(queue, b"kept")
    queue.close()
    foreign = log_file(directory) if part == "a log" else directory / part
    os.chown(foreign, SOMEBODY, -1)
    before = {path: traits(path) for path in [directory, *directory.rglob("*")]}
    for opening in [open_queue, *openings(directory, tmp_path)]:
        with pytest.raises(
            UntrustedError, match=rf"expected an owner that is .* found user {SOMEBODY}.*trust=True"
        ) as c:
            opening()
        assert c.value.path == str(foreign)
    assert {path: traits(path) for path in [directory, *directory.rglob("*")]} == before
    assert [item.data for item in View(directory).browse()] == [b"kept"]
    report = check(directory)
    assert report.ok
    assert [str(foreign) in each for each in report.untrusted] == [True]
    Producer(directory, trust=True).close()
    assert repair(directory, trust=True).problems == ()
    with open_queue(trust=True) as queue:
        assert drain(queue) == [b"kept"]


@needs_root
def test_row_09_a_directory_that_was_prepared(tmp_path: Path, open_queue: QueueFactory) -> None:
    """In a directory that all users may write to, an empty queue of another user is not taken for a new one. The
    publications in its inbox are not adopted."""
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o1777)
    with open_queue("bait", path=tmp_path / "elsewhere") as queue:
        put(queue)
        with Producer(tmp_path / "elsewhere", "bait") as producer:
            producer.enqueue(b"planted")
            producer.flush()
        (published,) = (tmp_path / "elsewhere" / "bait" / "inbox").iterdir()
        content, name = published.read_bytes(), published.name
    (public / "q" / "inbox").mkdir(parents=True)
    (public / "q" / "lock").touch()
    (public / "q" / "inbox" / name).write_bytes(content)
    own_by(public / "q", SOMEBODY)
    with pytest.raises(UntrustedError):
        open_queue("q", path=public)
    assert (public / "q" / "lock").read_bytes() == b""
    assert drain(open_queue("mine", path=public)) == []
    with open_queue("q", path=public, trust=True) as queue:
        assert drain(queue) == [b"planted"]


@pytest.mark.parametrize("part", ["", "log", "data", "inbox", "pool", "lock"])
def test_row_09_what_others_may_write_to(tmp_path: Path, directory: Path, open_queue: QueueFactory, part: str) -> None:
    """A path that others may write to is refused, like a path that they own. A group may write to it, and so may others
    if it is a directory with the sticky bit."""
    queue = open_queue()
    put(queue, b"kept")
    queue.close()
    path = directory / part
    mode = path.stat().st_mode & 0o777
    path.chmod(mode | 0o002)
    for opening in [open_queue, *openings(directory, tmp_path)]:
        with pytest.raises(UntrustedError, match=r"expected no right for others to write, found ........w"):
            opening()
    assert check(directory).untrusted
    path.chmod(mode | 0o060)
    open_queue().close()
    if path.is_dir():
        path.chmod(mode | 0o1077)
        open_queue().close()
    path.chmod(mode)
    assert not check(directory).untrusted
    assert drain(open_queue()) == [b"kept"]


@needs_root
def test_row_09_the_place_of_the_segments(tmp_path: Path, directory: Path, open_queue: QueueFactory) -> None:
    """The location of the segments is trusted by the rule for the queue's directory: when it is opened, taken, and
    moved to."""
    place = tmp_path / "place" / "orders"
    with open_queue(data_path=tmp_path / "place") as queue:
        put(queue, b"kept")
    own_by(place, SOMEBODY)
    calls: list[Callable[[], object]] = [open_queue, lambda: Producer(directory)]
    for opening in calls:
        with pytest.raises(UntrustedError) as caught:
            opening()
        assert caught.value.path == str(place)
    assert check(directory).untrusted
    own_by(place, 0)
    other = tmp_path / "other"
    other.mkdir()
    os.chown(other, SOMEBODY, -1)
    with pytest.raises(UntrustedError):
        open_queue(None, path=tmp_path / "new", data_path=other)
    with pytest.raises(UntrustedError):
        move_data(directory, data_path=other)
    assert list(other.iterdir()) == []
    assert drain(open_queue()) == [b"kept"]


@needs_root
def test_row_09_a_neighbour_that_is_opened(tmp_path: Path, open_queue: QueueFactory) -> None:
    """The queue of the dead letters is trusted by the setting of the queue to which it belongs."""
    open_queue("dead").close()
    own_by(tmp_path / "queues" / "dead", SOMEBODY)
    with pytest.raises(UntrustedError):
        open_queue(dead_letter="dead")
    open_queue(dead_letter="dead", trust=True).close()


def test_row_09_whom_a_user_believes(tmp_path: Path, stranger: Disk) -> None:
    """A user trusts its own files and those of root, and no others. On a system without users all files are trusted."""
    user = os.geteuid()
    paths = [str(tmp_path), str(tmp_path / "missing")]
    assert len(list(distrusted(stranger, paths))) == (0 if user == 0 else 1)
    assert list(distrusted(DISK, paths)) == []
    tmp_path.chmod(0o777)
    (tmp_path / "link").symlink_to("nowhere")
    assert list(distrusted(replace(DISK, geteuid=lambda: None), paths)) == []
    assert len(list(distrusted(DISK, [*paths, str(tmp_path / "link")]))) == 1
    tmp_path.chmod(0o700)


@needs_root
def test_row_09_the_command_line(directory: Path, open_queue: QueueFactory) -> None:
    """Verbs that open a queue refuse the directory of another user with status 2, and take ``--trust``. ``check``
    reports it, with status 0."""
    with open_queue() as queue:
        put(queue, b"kept")
    own_by(directory, SOMEBODY)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "persistentqueue", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for verb in (["get"], ["put", "item"], ["compact"], ["repair"], ["move", "--back"]):
        where = [str(directory)] if verb[0] != "put" else [str(directory), "."]
        refused = run(verb[0], *where, *verb[1:])
        assert (refused.returncode, "UntrustedError" in refused.stderr, "--trust" in refused.stderr) == (2, True, True)
        accepted = run(verb[0], *where, *verb[1:], "--trust")
        assert accepted.returncode == 0, accepted.stderr
    checked = run("check", str(directory))
    assert checked.returncode == 0
    assert "not trusted: " in checked.stdout


@needs_root
def test_a_directory_that_cannot_be_listed() -> None:
    """A queue is never made in a directory that its user cannot read. One that is there is used, and deleted."""
    stack = ExitStack()
    program = (
        "import os, sys\n"
        "import portalocker  # which the other user may not be able to read\n"
        "from persistentqueue import PathDeniedError, PersistentQueue, Producer, connect, delete_queue\n"
        f"os.setgid({SOMEBODY}); os.setuid({SOMEBODY})\n"
        "for make in (PersistentQueue, PersistentQueue, Producer, Producer, connect, connect):\n"
        "    try:\n"
        "        make(sys.argv[1], 'new')\n"
        "    except PathDeniedError:\n"
        "        print(make.__name__)\n"
        "with PersistentQueue(sys.argv[1], 'own') as queue, queue.transaction() as session:\n"
        "    session.enqueue(b'item')\n"
        "delete_queue(sys.argv[1], 'own')\n"
    )
    root = Path(stack.enter_context(tempfile.TemporaryDirectory()))  # others may not enter the tests' directory
    (root / "own").mkdir()
    os.chown(root / "own", SOMEBODY, -1)
    root.chmod(0o1733)
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=False)
    refused = ["PersistentQueue", "Producer", "connect"]
    assert (done.returncode, done.stdout.split()) == (0, [each for each in refused for _ in range(2)]), done.stderr
    assert os.listdir(root) == []
    stack.close()


@needs_root
def test_row_09_another_user_believes_root() -> None:
    """A process of another user opens a queue that it has made itself, and refuses the directory of a third user."""
    stack = ExitStack()
    program = (
        "import os, sys\n"
        "import portalocker  # which the other user may not be able to read\n"
        "from persistentqueue import PersistentQueue, UntrustedError\n"
        f"os.setgid({SOMEBODY}); os.setuid({SOMEBODY})\n"
        "with PersistentQueue(sys.argv[1], 'own') as queue, queue.transaction() as session:\n"
        "    session.enqueue(b'item')\n"
        "with PersistentQueue(sys.argv[1], 'own') as queue:\n"
        "    assert len(queue) == 1\n"
        "try:\n"
        "    PersistentQueue(sys.argv[1], 'third')\n"
        "except UntrustedError as error:\n"
        "    print(error.found)\n"
    )
    root = Path(stack.enter_context(tempfile.TemporaryDirectory()))  # others may not enter the tests' directory
    root.chmod(0o1777)
    (root / "third").mkdir()
    os.chown(root / "third", SOMEBODY + 1, -1)
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"user {SOMEBODY + 1}\n"), done.stderr
    assert check(root / "own").ok
    stack.close()
