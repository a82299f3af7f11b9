"""Hostile lock files, directories that another user has prepared, names that collide, arguments of the wrong shape."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import View, delete_queue, move_data, repair
from persistentqueue.disk import DISK, StatResult
from persistentqueue.errors import QueueLockedError, UntrustedError
from persistentqueue.lock import Lock, is_held, read_owner

from .conftest import OpenQueue
from .support import drain, put

ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\n\x7f\x9b\ud800"
"""What must not reach a terminal."""


# --- Row 11: what is in the place of a lock, or in a lock -------------------------------------------------------------


def link(path: Path) -> None:
    """Put a second name of somebody's file there."""
    other = path.parent.parent / "precious"
    other.write_bytes(b"precious")
    os.link(other, path)


def symlink(path: Path) -> None:
    """Put a link to somebody's file there."""
    other = path.parent.parent / "precious"
    other.write_bytes(b"precious")
    path.symlink_to(other)


def bind(path: Path) -> None:
    """Put a socket there, by its relative name, since those of sockets are short."""
    above = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(above)


def device(path: Path) -> None:
    """Put a device there, as only root can."""
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
    except OSError as error:
        pytest.skip(f"no device can be made here: {error}")


PLANTED = [link, symlink, os.mkfifo, os.mkdir, bind, device]


@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize("is_there", [True, False])
def test_row_11_no_lock_is_taken_through_what_is_planted(
    tmp_path: Path, directory: Path, open_queue: OpenQueue, plant: Callable[[Path], object], is_there: bool
) -> None:
    """A lock that is another file's name, or no plain file, is a named error for each who takes it; nothing is written
    through it, and the queue opens once it is gone."""
    if is_there:
        queue = open_queue()
        put(queue, b"kept")
        queue.close()
        (directory / "lock").unlink()
    else:
        directory.mkdir(parents=True)
    plant(directory / "lock")
    before = os.lstat(directory / "lock")
    calls: list[Callable[[], object]] = [open_queue]
    if is_there:
        calls += [
            lambda: delete_queue(directory),
            lambda: move_data(directory, data_path=tmp_path / "data"),
            lambda: repair(directory),
        ]
    for call in calls:
        with pytest.raises(UntrustedError, match=r"expected .*plain file.* found") as caught:
            call()
        assert caught.value.path == str(directory / "lock")
    assert os.lstat(directory / "lock")[:8] == before[:8]
    if (tmp_path / "queues" / "precious").exists():
        assert (tmp_path / "queues" / "precious").read_bytes() == b"precious"
    if is_there:
        assert View(directory).look().owner is None, "what it says is nobody's"
    (directory / "lock").rmdir() if plant is os.mkdir else (directory / "lock").unlink()
    assert drain(open_queue()) == ([b"kept"] if is_there else [])


def test_row_11_what_is_planted_in_the_last_moment(tmp_path: Path) -> None:
    """A second name that the lock file gets between its opening and its signing is seen, and nothing is written."""
    path = tmp_path / "lock"
    path.write_bytes(b"precious")

    def lock(fd: int) -> bool:
        os.link(path, tmp_path / "other")
        return DISK.lock(fd)

    with pytest.raises(UntrustedError, match="2 names"):
        Lock(replace(DISK, lock=lock), str(path)).acquire(0.0)
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["symlink", "directory"])
def test_row_11_what_is_planted_before_it_is_opened(tmp_path: Path, kind: str) -> None:
    """What comes to be in the lock's place behind the first look at it is the same named error."""
    path = tmp_path / "lock"

    def lstat(name: str) -> StatResult:
        try:
            return DISK.lstat(name)
        except FileNotFoundError:
            path.mkdir() if kind == "directory" else path.symlink_to(tmp_path / "other")
            raise

    with pytest.raises(UntrustedError, match="plain file"):
        Lock(replace(DISK, lstat=lstat), str(path)).acquire(0.0)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 4096,
        b'{"pid":' * 512,
        b'{"pid": Infinity, "host": "h", "since": "s"}',
        b'{"pid": NaN, "host": "h", "since": "s"}',
        b'{"pid": 1e999, "host": "h", "since": "s"}',
        b'{"pid": 1.5, "host": "h", "since": "s"}',
        b'{"pid": true, "host": "h", "since": "s"}',
        b'{"pid": 0, "host": "h", "since": "s"}',
        b'{"pid": -1, "host": "h", "since": "s"}',
        b'{"pid": "7", "host": "h", "since": "s"}',
        b'{"pid": %d, "host": "h", "since": "s"}' % 10**4000,
        b'{"pid": 4294967296, "host": "h", "since": "s"}',
        b'{"pid": 7, "host": ["h"], "since": "s"}',
        b'{"pid": 7, "host": "h", "since": 8}',
        b'{"pid": 7, "host": "h"}',
        b'["pid", "host", "since"]',
        b'"' + bytes(range(128, 256)) + b'"',
        b"\xff\xfe{\x00",
        b"",
        b"null",
    ],
)
def test_row_11_nonsense_in_a_lock_is_an_unknown_owner(directory: Path, open_queue: OpenQueue, content: bytes) -> None:
    """Whatever a held lock's file holds, a second opening gets ``QueueLockedError``, and a look says: owner unknown."""
    with open_queue() as queue:
        put(queue, b"item")
        (directory / "lock").write_bytes(content)
        with pytest.raises(QueueLockedError, match="an owner that has not named itself") as caught:
            open_queue()
        assert (caught.value.pid, caught.value.host, caught.value.since) == (None, None, None)
        seen = View(directory).look()
        assert seen.owner is None
        assert seen.is_owned in {True, None}
        assert drain(queue) == [b"item"]


def test_row_11_no_control_characters_in_any_message(directory: Path, open_queue: OpenQueue) -> None:
    """What a lock file says of its owner is printable, and of bounded length, in each message and each look."""
    with open_queue():
        signed = {"pid": 7, "host": ESCAPES + "h" * 2000, "since": ESCAPES}
        (directory / "lock").write_bytes(json.dumps(signed).encode())
        with pytest.raises(QueueLockedError) as caught:
            open_queue()
        owner = View(directory).look().owner
    assert owner is not None
    assert (owner.pid, caught.value.pid) == (7, 7)
    for text in (owner.host, owner.since, str(caught.value.host), str(caught.value.since), str(caught.value)):
        assert text.isprintable()
        assert len(text) < 1000
    assert "\\x1b" in owner.host
    assert QueueLockedError("q", 1, ESCAPES, ESCAPES).args[0].isprintable(), "whoever makes one"


def test_row_11_a_look_opens_nothing_but_a_plain_file(tmp_path: Path) -> None:
    """Who is asked for an owner opens no device and no pipe, whatever that would do."""
    os.mkfifo(tmp_path / "lock")
    opened: list[str] = []

    def watched(path: str, flags: int, mode: int) -> int:
        opened.append(path)
        return DISK.open(path, flags, mode)

    disk = replace(DISK, open=watched)
    assert read_owner(disk, str(tmp_path / "lock")) is None
    assert is_held(disk, str(tmp_path / "lock")) in {False, None}
    assert str(tmp_path / "lock") not in opened
