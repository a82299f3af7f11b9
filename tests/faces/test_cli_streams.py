"""The standard streams of the command line: without a buffer, non-blocking, in a notebook, and as a file."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import PersistentQueue, View
from persistentqueue.cli import main, streams
from tests.conftest import QueueFactory
from tests.faces.test_cli import cli
from tests.support.queues import drain, put, tmpfs

ITEMS = [b"%05d" % n + bytes(300) for n in range(1000)]
UNBUFFERED = ("", "1")
"""Values of ``PYTHONUNBUFFERED``: stdout has a buffer, or it has none."""


class Slow(io.RawIOBase):
    """A raw file that takes at most three bytes at a time, and nothing each second time."""

    def __init__(self, can_wait: bool = True) -> None:
        self.taken = b""
        self._calls, self._can_wait = 0, can_wait

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        if not self._can_wait:
            raise io.UnsupportedOperation("fileno")
        return 2  # it can be written at any time

    def write(self, data: Any) -> int | None:
        self._calls += 1
        if self._calls % 2:
            return None
        part = bytes(data)[:3]
        self.taken += part
        return len(part)


class Trickle(io.RawIOBase):
    """A raw file that gives one byte at a time, and nothing each second time."""

    def __init__(self, data: bytes) -> None:
        self._left, self._calls = data, 0
        self._reader, self._writer = os.pipe()
        os.close(self._writer)

    def close(self) -> None:
        if not self.closed:
            os.close(self._reader)
        super().close()

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._reader  # it can be read at any time

    def readinto(self, buffer: Any) -> int | None:
        self._calls += 1
        if self._calls % 2:
            return None
        part, self._left = self._left[:1], self._left[1:]
        buffer[: len(part)] = part
        return len(part)


def started(*arguments: object, unbuffered: str = "", **options: Any) -> subprocess.Popen[bytes]:
    """Start a verb in a process of its own."""
    line = [sys.executable, "-m", "persistentqueue", *map(str, arguments)]
    return subprocess.Popen(line, env=os.environ | {"PYTHONUNBUFFERED": unbuffered}, **options)


@contextmanager
def non_blocking_pipe() -> Iterator[tuple[io.FileIO, io.FileIO]]:
    """Yield the two ends of a pipe of one page that is non-blocking at both."""
    ends = os.pipe()
    for fd in ends:
        os.set_blocking(fd, False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4096)
    with io.FileIO(ends[0], "r") as reader, io.FileIO(ends[1], "w") as writer:
        yield reader, writer


# --- writes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffered", [False, True])
def test_a_file_that_takes_parts_gets_all_bytes(buffered: bool) -> None:
    """A write to a file that takes only parts, or nothing at first, ends when the file has all bytes."""
    raw = Slow()
    file: Any = io.BufferedWriter(raw, 8) if buffered else raw
    streams.write_whole(file, bytes(range(100)))
    streams.flush_whole(file)
    assert raw.taken == bytes(range(100))


def test_a_file_that_cannot_be_waited_for_is_an_error() -> None:
    """A write raises an error if the file takes nothing, and has no descriptor to wait for."""
    file: Any = Slow(can_wait=False)
    with pytest.raises(BlockingIOError):
        streams.write_whole(file, b"data")


@pytest.mark.parametrize("unbuffered", UNBUFFERED)
def test_a_get_to_a_disk_that_becomes_full_consumes_nothing(
    open_queue: QueueFactory, path: Path, tmp_path: Path, unbuffered: str
) -> None:
    """If the disk takes only a part of a transaction, ``get`` says so, and consumes nothing."""
    with open_queue("q") as queue:
        put(queue, *ITEMS)
    with tmpfs(tmp_path / "small", 4096) as small, (small / "out").open("wb") as out:
        process = started("get", path, "q", "--all", unbuffered=unbuffered, stdout=out, stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=60)
    told = "OSError: stdout cannot be written: No space left on device: give another output, or free some space\n"
    assert (process.returncode, err.decode()) == (2, told)
    assert View(path, "q").look().depth == len(ITEMS)


@pytest.mark.parametrize("unbuffered", UNBUFFERED)
@pytest.mark.parametrize("verb", [["get", "--all"], ["dump"]])
def test_a_non_blocking_pipe_gets_all_items(
    open_queue: QueueFactory, path: Path, verb: list[str], unbuffered: str
) -> None:
    """A pipe that another process has made non-blocking gets all items, however slowly they are read."""
    with open_queue("q") as queue:
        put(queue, *ITEMS)
    with non_blocking_pipe() as (reader, writer):
        process = started(verb[0], path, "q", *verb[1:], unbuffered=unbuffered, stdout=writer, stderr=subprocess.PIPE)
        writer.close()
        os.set_blocking(reader.fileno(), True)
        taken = b""
        while data := reader.read(999):
            taken += data
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    if verb[0] == "get":
        assert taken == b"".join(item + b"\n" for item in ITEMS)
    else:
        assert [json.loads(line)["text"].encode() for line in taken.splitlines()] == ITEMS
    assert View(path, "q").look().depth == (0 if verb[0] == "get" else len(ITEMS))


# --- reads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffered", [False, True])
def test_a_stdin_that_gives_nothing_at_first_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, buffered: bool
) -> None:
    """Reads of a non-blocking stdin go on to its end, and begin behind the bytes that its buffer has given already."""
    given: Any = Trickle(b"one\ntwo\nthree")
    file: Any = io.BufferedReader(given) if buffered else given
    monkeypatch.setattr(sys, "stdin", type("Stream", (), {"buffer": file}))
    with file:
        assert list(streams.stdin()) == [b"one\n", b"two\n", b"three"]


@pytest.mark.parametrize(
    ("words", "given", "expected"),
    [
        (["put"], [b"one\ntw", b"o\nthree\n"], [b"one", b"two", b"three"]),
        (["put", "--whole"], [b"one\ntw", b"o\n"], [b"one\ntwo\n"]),
        (["load"], [b'{"text": "one"}\n{"te', b'xt": "two"}\n'], [b"one", b"two"]),
    ],
)
def test_a_non_blocking_stdin_is_read_to_its_end(
    path: Path, words: list[str], given: list[bytes], expected: list[bytes]
) -> None:
    """A verb waits for the rest of a stdin that another process has made non-blocking, and cuts no item in two."""
    with non_blocking_pipe() as (reader, writer):
        process = started(words[0], path, "q", *words[1:], stdin=reader, stderr=subprocess.PIPE)
        reader.close()
        for part in given:
            writer.write(part)
            with open(writer.fileno(), "w", closefd=False) as pipe:
                streams.await_reader(pipe)
        writer.close()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    with PersistentQueue(path, "q") as queue:
        assert drain(queue) == expected


# --- text ----------------------------------------------------------------------------------------------------------


def test_a_stdout_that_takes_only_text_gets_it(open_queue: QueueFactory, path: Path) -> None:
    """A call of ``main`` writes to a stdout without a binary file, as notebooks have: text, and other bytes escaped."""
    with open_queue("q") as queue:
        put(queue, "ünïcödé".encode(), b"\xff", b"last")
    for words, expected in (
        (["get", "-n", "2"], "ünïcödé\n\\xff\n"),
        (["dump"], '"text": "last"}\n'),
        (["stat"], "1 item, "),
        (["stat", "--json"], '"depth": 1'),
    ):
        with redirect_stdout(io.StringIO()) as out:
            assert main([words[0], str(path), "q", *words[1:]]) == 0
        assert expected in out.getvalue()


def test_a_stdin_that_gives_only_text_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of ``main`` reads a stdin without a binary file as UTF-8."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("ünï\ncödé\n"))
    assert main(["put", str(path), "q"]) == 0
    assert cli("get", path, "q", "--all").text == "ünï\ncödé\n"


# --- a file as stdout ----------------------------------------------------------------------------------------------


def test_items_are_durable_in_a_file_before_they_are_consumed(
    open_queue: QueueFactory, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``get`` syncs a stdout that is a file, and consumes nothing if that fails."""
    with open_queue("q") as queue:
        put(queue, b"a", b"b")
    synced, sync = [], os.fsync

    def note(fd: int) -> None:
        synced.append(fd)
        sync(fd)

    def fail(fd: int) -> None:
        if fd == out.fileno():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)

    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(os, "fsync", fail)
        assert main(["get", str(path), "q"]) == 2
        assert View(path, "q").look().depth == 2
        monkeypatch.setattr(os, "fsync", note)
        assert main(["get", str(path), "q"]) == 0
        assert out.fileno() in synced
    assert (tmp_path / "out").read_bytes() == b"a\na\n"
    assert View(path, "q").look().depth == 1
