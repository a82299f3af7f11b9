"""Notes of the command line on stderr: a queue that was made, a terminal that is read, and errors about files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue, View
from tests.faces.test_cli import cli
from tests.support.queues import put

MARKED = "made the queue "


@pytest.fixture
def words(path: Path, tmp_path: Path) -> dict[str, list[object]]:
    """Return the words of each command that makes the queue ``new``, by the name of the command."""
    with PersistentQueue(path, "orders") as queue:
        put(queue, b"item")
    lines, table = tmp_path / "lines", tmp_path / "old"
    lines.write_text('{"text": "a"}\n')
    from queuelib import FifoDiskQueue

    old = FifoDiskQueue(str(table))
    old.push(b"a")
    old.close()
    return {
        "put": ["put", path, "new", "item"],
        "load": ["load", path, "new", "-i", lines],
        "import": ["import", table, path, "new", "--from", "queuelib"],
        "move": ["move", path, "orders", "--to", "new"],
        "worker": ["worker", path, "new", "os:fsencode", "--until-empty"],
    }


@pytest.mark.parametrize("verb", ["put", "load", "import", "move", "worker"])
def test_a_command_that_makes_a_queue_says_so(path: Path, words: dict[str, list[object]], verb: str) -> None:
    """A command that makes a queue notes it on stderr, since the name may be mistyped. It notes it only once."""
    if verb == "import":
        pytest.importorskip("queuelib")
    made = cli(*words[verb])
    assert (made.status, made.err.splitlines()[0]) == (0, f"{MARKED}{path}/new")
    assert MARKED not in cli(*words[verb]).err


@pytest.mark.parametrize("verb", ["put", "load", "move", "worker"])
def test_with_json_there_is_no_note(path: Path, words: dict[str, list[object]], verb: str) -> None:
    """With ``--json`` a command that makes a queue writes its result to stdout, and no note."""
    made = cli(*words[verb], "--json")
    assert (made.status, made.err) == (0, "")
    assert isinstance(made.json, dict)
    assert View(path, "new").look().depth >= 0


def test_a_queue_that_exists_gets_no_note(path: Path) -> None:
    """A command that finds its queue notes nothing, also if the path names the queue itself."""
    PersistentQueue(path, "orders").close()
    assert cli("put", path, "orders", "one").err == "1 item enqueued\n"
    assert cli("put", path / "orders", ".", "two").err == "1 item enqueued\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["put", "PATH", "q"], "reading items, one a line, from the terminal; end with Ctrl-D"),
        (["put", "PATH", "q", "--whole"], "reading one item from the terminal; end with Ctrl-D"),
        (["load", "PATH", "q"], "reading JSON lines from the terminal; end with Ctrl-D"),
        (["put", "PATH", "q", "item"], None),
        (["put", "PATH", "q", "--json"], None),
    ],
)
def test_a_terminal_that_is_read_is_named(path: Path, words: list[str], said: str | None) -> None:
    """A command that waits for a terminal says so on stderr. It says nothing if it reads no terminal."""
    PersistentQueue(path, "q").close()
    master, slave = os.openpty()
    try:
        os.write(master, b"\x04")  # Ctrl-D
        line = [sys.executable, "-m", "persistentqueue", *(str(path) if each == "PATH" else each for each in words)]
        done = subprocess.run(line, stdin=slave, capture_output=True, text=True, check=False, timeout=60)
    finally:
        os.close(master)
        os.close(slave)
    assert done.returncode == 0
    assert [each for each in done.stderr.splitlines() if "reading" in each] == ([said] if said else [])
    assert "reading" not in cli(*(path if each == "PATH" else each for each in words)).err


def test_a_worker_says_what_it_runs(path: Path) -> None:
    """``worker`` notes on stderr what it runs before its processes start; its result is the only line of stdout."""
    PersistentQueue(path, "q").close()
    done = cli("worker", path, "q", "os:fsencode", "--processes", 2, "--until-empty")
    assert (
        done.err == f"running os:fsencode for the items of {path}/q in 2 processes, started by process {os.getpid()}\n"
    )
    assert done.text == "0 items done, 0 calls failed, 0 restarts\n"


def test_a_file_to_load_that_is_missing_makes_no_queue(path: Path, tmp_path: Path) -> None:
    """The error for a missing file, or for a directory in its place, names it and says what to give, before a queue is
    made."""
    for source, kind, reason in (
        (tmp_path / "nofile", "FileNotFoundError", "No such file or directory"),
        (tmp_path, "IsADirectoryError", "Is a directory"),
    ):
        done = cli("load", path, "q", "-i", source)
        assert (done.status, done.out) == (2, b"")
        assert done.err == f"{kind}: {source}: {reason}: give -i a file that this user can read, or - for stdin\n"
    assert not path.exists()


@pytest.mark.parametrize("verb", ["report", "dump"])
def test_the_directory_of_an_output_is_missing(path: Path, tmp_path: Path, verb: str) -> None:
    """The error for an output in a missing directory names the file and the directory, and says what to do."""
    with PersistentQueue(path, "q") as queue:
        put(queue, b"item")
    output = tmp_path / "nope" / "file"
    done = cli(verb, path, "q", "-o", output)
    assert (done.status, done.out) == (2, b"")
    assert done.err == (
        f"FileNotFoundError: {output}: the directory {output.parent} does not exist: make it, or give another FILE\n"
    )
    (tmp_path / "plain").write_bytes(b"")
    assert cli(verb, path, "q", "-o", tmp_path / "plain" / "file").err == (
        f"NotADirectoryError: {tmp_path}/plain/file: the directory {tmp_path}/plain cannot be opened: Not a directory: "
        "give another FILE\n"
    )
