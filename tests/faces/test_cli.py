"""The command line: what each verb does, says and leaves, in and beside the process that owns the queue."""

from __future__ import annotations

import base64
import errno
import io
import json
import math
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import persistentqueue.cli
from persistentqueue import Encryption, PersistentQueue, Producer, Snapshot, View, delete_queue
from persistentqueue.cli import bench, main, write_verbs
from persistentqueue.cli.app import app
from persistentqueue.cli.formatting import (
    bound_text,
    item_json,
    item_of,
    item_text,
    many,
    rate_text,
    share_text,
    size_text,
    span_text,
)
from persistentqueue.cli.verbs import VERBS
from tests.conftest import QueueFactory
from tests.durability.test_processes import Child
from tests.support.queues import drain, flip, interruptible, put, segment_files
from tests.unit.interprocess.test_snapshot_view import entries, rest_alone

NOISE = bytes(range(256))
READING = (
    ["list"],
    ["list", "--json"],
    ["stat", "orders"],
    ["stat", "orders", "--json"],
    ["peek", "orders", "-n", "3"],
    ["peek", "orders", "--json"],
    ["dump", "orders"],
    ["check", "orders"],
    ["check", "orders", "--json"],
    ["explain", "orders"],
    ["explain", "orders", "--json"],
    ["top", "--once", "--interval", "0.05"],
    ["top", "orders", "--once", "--interval", "0.05", "--json"],
    ["report", "-o", "OUTSIDE"],
    ["report", "orders", "-o", "OUTSIDE", "--json"],
)
"""What only looks; the path comes behind the verb."""


class Done:
    """What a verb answered."""

    def __init__(self, status: int, out: bytes, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The documents on stdout, a line each."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """What went wrong, in JSON."""
        return json.loads(self.err.splitlines()[-1])["error"]


def cli(*arguments: object, given: bytes = b"") -> Done:
    """A verb, in this process."""
    result = CliRunner().invoke(app, [str(each) for each in arguments], input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout_bytes, result.stderr)


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """A verb, in a process of its own."""
    line = [sys.executable, "-m", "persistentqueue", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, check=False, timeout=60, **options)


def owner_body(pipe: Connection, path: str) -> None:
    """Own the queue, with holds and holes, and do nothing, but dequeue where that is asked for."""
    rest_alone()
    with PersistentQueue(path, "orders", segment_bytes=60_000, memory_bytes=50_000) as queue:
        for start in range(0, 400, 20):
            put(queue, *(b"%d" % n + bytes(1000) for n in range(start, start + 20)))
        with queue.session("slow") as slow, queue.session("quick") as quick:
            slow.dequeue_many(2)
            quick.dequeue_many(100)
            quick.flush()
            pipe.send("begun")
            while (count := pipe.recv()) is not None:
                with queue.transaction() as session:
                    pipe.send(session.dequeue_many(count))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where ``open_queue`` makes its queues."""
    return tmp_path / "queues"


@pytest.fixture
def owner(path: Path) -> Iterator[Child]:
    """Another process that owns ``orders``, and rests."""
    path.mkdir()
    with Child(owner_body, str(path)) as child:
        assert child.hear() == "begun"
        yield child
        child.tell(None)
        child.finish()


# --- without the extra, and with wrong arguments -------------------------------------------------------------------


def test_without_the_extra_there_is_one_clear_line(tmp_path: Path) -> None:
    """Where typer or rich is missing, every verb says how they are installed, and has status 2."""
    hide = (
        "import sys, runpy\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == {!r}:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "sys.argv = ['persistentqueue', 'check', '.']\n"
        "runpy.run_module('persistentqueue', run_name='__main__', alter_sys=True)\n"
    )
    for needed in ("typer", "rich"):
        done = subprocess.run([sys.executable, "-c", hide.format(needed)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == persistentqueue.cli.HINT + "\n"
        assert "pip install 'persistentqueue[cli]'" in done.stderr


def test_arguments_that_are_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are a line on stderr, or JSON, and status 2; nothing is made."""
    for arguments, said in (
        (["nothing"], "nothing"),
        (["stat"], "PATH"),
        (["move", str(tmp_path), "a"], "--to TARGET"),
        (["move", str(tmp_path), "a", "b", "--to", "c"], "one NAME"),
        (["put", str(tmp_path), "a", "x", "--whole"], "--whole"),
        (["peek", str(tmp_path), "-n", "-1"], "count"),
        (["top", str(tmp_path), "--interval", "inf"], "interval"),
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert said in captured.err
        assert main([*arguments, "--json"]) == 2
        assert said in json.loads(capsys.readouterr().err)["error"]["message"]
    assert main(["--help"]) == 0
    assert "Exit status" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_before_a_verb_begins(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C while libraries are being imported has the same status, without a word."""

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("persistentqueue.cli.verbs.run", interrupted)
    assert main(["list", "."]) == 130
    assert capsys.readouterr() == ("", "")


def test_every_verb_tells_what_it_changes_and_whether_it_needs_the_lock(capsys: pytest.CaptureFixture[str]) -> None:
    """Its help says so; it has ``--json``, and is in the README."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    verbs: list[str] = list(get_command(app).commands)  # type: ignore[attr-defined]
    assert len(verbs) == 17
    assert len(VERBS) == 3
    for verb in verbs:
        assert main([verb, "--help"]) == 0
        told = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert re.search("Disk: .* Lock: ", told), verb
        assert "--json" in told, verb
        assert f"`{verb}" in readme, verb


def test_what_does_not_go_has_status_2(tmp_path: Path) -> None:
    """A queue that is not there is named, in words or in JSON, and not made."""
    for arguments in (
        ["stat"],
        ["peek"],
        ["dump"],
        ["check"],
        ["explain"],
        ["get"],
        ["compact"],
        ["repair"],
        ["report"],
    ):
        done = cli(arguments[0], tmp_path / "nothing")
        assert (done.status, done.out) == (2, b"")
        assert done.err.startswith("QueueNotFoundError: ")
        done = cli(arguments[0], tmp_path / "nothing", "--json")
        assert (done.status, done.error["type"]) == (2, "QueueNotFoundError")
    assert list(tmp_path.iterdir()) == []


# --- beside an owner -----------------------------------------------------------------------------------------------


def test_what_only_looks_works_beside_an_owner_and_leaves_no_trace(owner: Child, path: Path, tmp_path: Path) -> None:
    """Each verb answers, and every file and directory is the same afterwards: bytes, sizes, times."""
    before = entries(path)
    for verb, *rest in READING:
        done = cli(verb, path, *(str(tmp_path / "page.html") if each == "OUTSIDE" else each for each in rest))
        assert done.status == 0, (verb, rest, done.err)
        assert done.out, (verb, rest)
        assert entries(path) == before, (verb, rest)
    done = cli("pool", "show", path, "orders")
    assert (done.status, done.text) == (0, "0 files, 0 bytes\n")
    assert cli("pool", "show", path, "--shared").status == 0
    assert command("stat", path, "orders", "--json").returncode == 0
    assert entries(path) == before


def test_what_is_seen_beside_an_owner(owner: Child, path: Path) -> None:
    """Who owns it, what is left, and that some items were overtaken, though not by whom they are held."""
    listed = cli("list", path, "--json").json["queues"]
    assert [(each["name"], each["depth"], each["is_owned"], each["owner"]["pid"]) for each in listed] == [
        ("orders", 300, True, owner.process.pid)
    ]
    assert f"{owner.process.pid} on" in cli("list", path).text
    seen = cli("stat", path, "orders", "--json").json
    assert (seen["depth"], seen["overtaken"], seen["gaps"], seen["enqueued"]) == (300, 2, 1, 400)
    if sys.platform == "linux":
        assert seen["owner_resident_bytes"] > 2**20
    assert "300 items" in cli("stat", path, "orders").text
    explained = cli("explain", path, "orders").text
    assert "2 items were overtaken" in explained
    assert "segment 1:" in explained
    findings = cli("explain", path, "orders", "--json").json["findings"]
    assert any("overtaken" in each["what"] for each in findings)
    peeked = cli("peek", path, "orders", "-n", "3", "--json").lines
    assert [each["sequence"] for each in peeked] == [0, 1, 102]
    assert item_of(peeked[0]) == b"0" + bytes(1000)


def test_put_and_load_work_beside_an_owner(owner: Child, path: Path) -> None:
    """What they publish is the owner's when he next looks; they say who he is."""
    done = cli("put", path, "orders", "one", "two")
    assert done.status == 0
    assert f"published: process {owner.process.pid} on" in done.err
    done = cli("load", path, "orders", "--json", given=b'{"text": "three"}\n')
    assert done.json == {"items": 1, "published": True}
    seen = cli("stat", path, "orders", "--json").json
    assert seen["published"] == 2
    assert "2 publications" in cli("list", path).text
    assert "3 items were published by others" in cli("check", path, "orders").text
    assert "2 transactions in the inbox" in cli("dump", path, "orders").err
    assert "owner" in " ".join(each["what"] for each in cli("explain", path, "orders", "--json").json["findings"])
    owner.tell(1000)
    taken = owner.hear()
    owner.tell(1000)
    assert (taken + owner.hear())[-3:] == [b"one", b"two", b"three"]


def test_who_has_the_lock_is_told_to_who_needs_it(owner: Child, path: Path) -> None:
    """``get``, ``compact``, ``move`` and ``repair`` name the owner, and change nothing but the clock of his lock."""
    for arguments in (["get"], ["compact"], ["repair"], ["move", "--to", "b"], ["move", "--back"]):
        done = cli(arguments[0], path, "orders", *arguments[1:], "--json")
        assert done.status == 2, arguments
        assert done.error["type"] == "QueueLockedError"
        assert f"process {owner.process.pid} on" in done.error["message"]
        assert "--lock-timeout" in done.error["message"]


# --- in and out ----------------------------------------------------------------------------------------------------


def test_put_and_get(path: Path) -> None:
    """Items go in as arguments, as lines, or as a whole, and come out in their order; then there is nothing."""
    assert cli("put", path, "q", "one", "two").err == "2 items: in the queue\n"
    assert cli("put", path, "q", given=b"three\nfour").status == 0
    assert cli("put", path, "q", "--whole", "--json", given=b"five\nsix\n").json == {"items": 1, "published": False}
    assert cli("get", path, "q").out == b"one\n"
    assert cli("get", path, "q", "-n", "2").out == b"two\nthree\n"
    assert cli("get", path, "q", "-n", "0").status == 0
    assert cli("get", path, "q", "--all", "--json").lines == [{"text": "four"}, {"text": "five\nsix\n"}]
    done = cli("get", path, "q", "--timeout", "0.01")
    assert (done.status, done.out) == (1, b"")
    assert cli("put", path / "q", ".", "again").status == 0
    assert cli("get", path / "q").out == b"again\n"
    assert cli("put", path, "r", "--no-create", "x").status == 2
    assert not (path / "r").exists()


def test_get_for_a_subscription(open_queue: QueueFactory, path: Path) -> None:
    """It consumes for that one alone; one that is not there is not made."""
    with open_queue("q") as queue:
        queue.subscribe("audit")
        put(queue, b"a", b"b")
    assert cli("get", path, "q", "--subscription", "audit").out == b"a\n"
    assert [each["text"] for each in cli("peek", path, "q", "--subscription", "audit", "--json").lines] == ["b"]
    assert [each["text"] for each in cli("peek", path, "q", "--json").lines] == ["a", "b"]
    done = cli("get", path, "q", "--subscription", "other")
    assert (done.status, "SubscriptionNotFoundError" in done.err) == (2, True)
    assert dict(View(path, "q").look().subscriptions) == {"audit": 1}


def test_a_terminal_sees_how_far_it_is(path: Path, tmp_path: Path) -> None:
    """A bar on stderr, which goes when it is done; elsewhere there is not a byte of it."""
    with PersistentQueue(path, "q") as queue:
        put(queue, *(b"%d" % n for n in range(5000)))
    line = [sys.executable, "-m", "persistentqueue", "dump", str(path), "q", "-o", str(tmp_path / "q.jsonl")]
    assert subprocess.run(line, capture_output=True, check=True).stderr == (
        f"5,000 items written to {tmp_path / 'q.jsonl'}\n".encode()
    )
    master, slave = os.openpty()
    subprocess.run(line, stderr=slave, check=True, env=os.environ | {"TERM": "xterm"})
    os.close(slave)
    seen = b""
    with suppress(OSError):  # the end of a terminal that nobody has open
        while data := os.read(master, 65536):
            seen += data
    os.close(master)
    assert b"dump" in seen
    assert b"%" in seen
    assert b"5,000 items written" in seen


def test_a_broken_pipe_loses_no_item(open_queue: QueueFactory, path: Path) -> None:
    """Where nobody reads what is printed, nothing is consumed, and no word is lost on it."""
    with open_queue("q") as queue:
        put(queue, *(b"%d" % n + bytes(1000) for n in range(500)))
    reader, writer = os.pipe()
    os.close(reader)
    for arguments in (["get", "--all"], ["dump"], ["stat"], ["top", "--interval", "0.05"]):
        line = [sys.executable, "-m", "persistentqueue", arguments[0], str(path), "q", *arguments[1:]]
        done = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (2, b"")
    os.close(writer)
    assert View(path, "q").look().depth == 500


def test_what_was_dumped_is_loaded_as_it_was(path: Path, tmp_path: Path) -> None:
    """``load`` undoes ``dump``: any bytes, empty items, line ends, in their order, through a file and a pipe."""
    items = [
        b"",
        b"text",
        b"two\nlines\r\n",
        NOISE,
        "ünïcödé \u2028".encode(),
        b"\xff\xfe",
        b'{"text": "x"}',
        bytes(10**5),
    ]
    with PersistentQueue(path, "q") as queue:
        put(queue, *items)
    done = cli("dump", path, "q")
    assert [each["sequence"] for each in done.lines] == list(range(len(items)))
    assert [item_of(each) for each in done.lines] == items
    assert all(each["time"].startswith("20") for each in done.lines)
    file = tmp_path / "q.jsonl"
    assert cli("dump", path, "q", "-o", file).err == f"{len(items)} items written to {file}\n"
    assert file.read_bytes() == done.out
    summary = {"items": len(items), "published": 0, "lost": []}
    assert json.loads(cli("dump", path, "q", "-o", file, "--json").err) == summary
    assert sorted(each.name for each in tmp_path.iterdir()) == ["q.jsonl", "queues"]
    assert cli("load", path, "copy", "-i", file).err == f"{len(items)} items: in the queue\n"
    assert cli("load", path, "other", given=done.out).status == 0
    for name in ("copy", "other"):
        with PersistentQueue(path, name) as queue:
            assert drain(queue) == items


def test_a_load_with_a_marker_is_done_once(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut short anywhere, and run again, also beside an owner who has not looked, it puts nothing in twice."""
    monkeypatch.setattr(write_verbs, "BATCH_BYTES", 100)
    file = tmp_path / "in.jsonl"
    lines = [json.dumps({"text": f"{n:020d}"}) for n in range(50)]
    file.write_text("\n".join([*lines[:20], "", *lines[20:33], "garbage"]))
    done = cli("load", path, "q", "-i", file, "--marker", "m")
    assert done.status == 2
    assert "line 35: " in done.err
    assert View(path, "q").look().published == 6
    file.write_text("\n".join([*lines[:20], "", *lines[20:]]) + "\n")
    done = cli("load", path, "q", "-i", file, "--marker", "m", "--json")
    assert (done.status, done.json["items"], done.json["skipped"]) == (0, 20, 30)
    assert cli("load", path, "q", "-i", file, "--marker", "m", "--json").json["items"] == 0
    with PersistentQueue(path, "q") as queue:
        assert queue.marker("m") == 51
        assert drain(queue) == [b"%020d" % n for n in range(50)]


def killed_body(pipe: Connection, path: str, file: str) -> None:
    """Load, and stop in the middle, to be killed."""
    write_verbs.BATCH_BYTES = 1000
    flush: Any = Producer.flush
    flushed = 0

    def flush_and_wait(self: Producer[Any], marker: tuple[str, int] | None = None) -> Any:
        nonlocal flushed
        result = flush(self, marker)
        flushed += 1
        if flushed == 7:
            pipe.send("in the middle")
            pipe.recv()
        return result

    Producer.flush = flush_and_wait  # type: ignore[method-assign]
    main(["load", path, "q", "-i", file, "--marker", "m"])


def test_a_load_that_is_killed_goes_on(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``kill -9`` in the middle: what was flushed is there, and the same command puts in the rest."""
    monkeypatch.setattr(write_verbs, "BATCH_BYTES", 1000)
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps({"text": f"{n:030d}"}) + "\n" for n in range(1000)))
    with Child(killed_body, str(path), str(file)) as child:
        assert child.hear() == "in the middle"
        child.kill()
    assert View(path, "q").look().published == 7
    assert cli("load", path, "q", "-i", file, "--marker", "m").status == 0
    with PersistentQueue(path, "q") as queue:
        assert drain(queue) == [b"%030d" % n for n in range(1000)]


@pytest.mark.parametrize("line", ["1", "{}", '{"text": 1}', '{"text": "a", "base64": "YQ=="}', '{"base64": "!"}', "{"])
def test_lines_that_are_no_items(path: Path, line: str) -> None:
    """They end a load; their number is told."""
    done = cli("load", path, "q", "--json", given=b'{"text": "a"}\n' + line.encode() + b"\n")
    assert (done.status, "line 2: " in done.error["message"]) == (2, True)


def test_items_move_to_another_queue(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, or so many, in transactions over both queues."""
    monkeypatch.setattr(write_verbs, "BATCH_ITEMS", 7)
    with PersistentQueue(path, "a") as queue:
        put(queue, *(b"%d" % n for n in range(30)))
    assert cli("move", path, "a", "--to", "b", "-n", "10").out == b"moved: 10 items from a to b\n"
    assert cli("move", path, "a", "--to", "b", "--json").json == {"items": 20, "source": "a", "target": "b"}
    with PersistentQueue(path, "a") as a, PersistentQueue(path, "b") as b:
        assert (drain(a), drain(b)) == ([], [b"%d" % n for n in range(30)])


def test_dead_letters_go_back(path: Path) -> None:
    """To the queue that they came from, so many or all, and their envelopes can be read before; a name that was
    mistyped makes no queue."""
    with PersistentQueue(path, "rows", max_attempts=1, dead_letter="dead") as queue:
        put(queue, b"a", b"b", b"c")
        for _ in range(3):
            with pytest.raises(ValueError, match="bad"), queue.transaction() as session:
                raise ValueError(f"bad {session.dequeue()!r}")
    (letter,) = cli("peek", path, "dead", "-n", "1", "--json").lines
    assert json.loads(letter["text"].splitlines()[0])["reason"] == "ValueError: bad b'a'"
    assert cli("requeue", path, "rows", "--from", "dead", "-n", "1").out == b"requeued: 1 item from dead to rows\n"
    assert cli("requeue", path, "rows", "--from", "dead", "--json").json == {
        "items": 2,
        "source": "dead",
        "target": "rows",
    }
    assert cli("requeue", path, "rows", "--from", "dead").status == 1
    assert cli("requeue", path, "rows", "--from", "daed", "--json").error["type"] == "QueueNotFoundError"
    assert sorted(each.name for each in path.iterdir()) == ["dead", "rows"]
    with PersistentQueue(path, "rows") as rows, PersistentQueue(path, "dead") as dead:
        assert (drain(rows), drain(dead)) == ([b"a", b"b", b"c"], [])


@pytest.mark.damages
def test_what_is_put_into_a_queue_that_does_not_open_is_durable(path: Path) -> None:
    """It is published, and the answer says why nobody takes it in now."""
    with PersistentQueue(path, "q") as queue:
        put(queue, b"a")
    log = max((path / "q" / "log").glob("*.log"))
    flip(log, 20)
    done = cli("put", path, "q", "b")
    assert done.status == 0
    assert "it could not be opened now" in done.err
    flip(log, 20)
    with PersistentQueue(path, "q") as queue:
        assert drain(queue) == [b"a", b"b"]


def test_an_encrypted_queue_needs_its_key(open_queue: QueueFactory, path: Path, tmp_path: Path) -> None:
    """``--key`` brings it, to look, to take and to put; without it nothing is lost, and the age is told."""
    key, file = bytes(range(32)), tmp_path / "key"
    file.write_text(key.hex() + "\n")
    encryption = Encryption("k", lambda _: key)
    with open_queue("q", encryption=encryption) as queue:
        put(queue, b"secret")
    for verb in ("peek", "dump", "get"):
        done = cli(verb, path, "q", "--json")
        assert (done.status, done.error["type"]) == (2, "WrongKeyError")
        assert "--key k=FILE" in done.error["message"]
    assert cli("stat", path, "q", "--json").json["oldest_seconds"] > 0
    option = ("--key", f"k={file}")
    assert cli("put", path, "q", "hidden", *option).status == 0
    assert cli("load", path, "q", *option, given=b'{"text": "loaded"}\n').status == 0
    assert [each["text"] for each in cli("peek", path, "q", "--json", *option).lines] == ["secret", "hidden", "loaded"]
    assert not any(b"hidden" in each.content for each in entries(path).values())
    assert cli("move", path, "q", "--to", "r", *option).status == 0
    file.write_bytes(key)
    assert cli("get", path, "r", "--all", *option).out == b"secret\nhidden\nloaded\n"
    done = cli("peek", path, "r", "--key", "nothing", "--json")
    assert (done.status, done.error["type"]) == (2, "UsageError")


# --- looking -------------------------------------------------------------------------------------------------------


def test_a_directory_without_queues_and_a_queue_by_its_own_path(
    tmp_path: Path, open_queue: QueueFactory, path: Path
) -> None:
    """The queue's own directory is listed as one; where there is none, that is an error."""
    put(open_queue("q"), b"a")
    assert cli("list", path / "q", "--json").json["queues"][0]["name"] == "."
    assert cli("list", tmp_path / "nothing").status == 2


@pytest.mark.damages
def test_a_damaged_queue_is_listed_among_the_others(path: Path) -> None:
    """Its row says what is wrong, with status 1; what is read of it is an error; ``check`` and ``repair`` tell."""
    for name in ("good", "bad"):
        with PersistentQueue(path, name) as queue:
            put(queue, *(b"%d" % n for n in range(10)))
    flip(segment_files(path / "bad")[0], 115)
    assert cli("list", path).status == 0
    assert "damaged at offset" in cli("check", path, "bad").text
    done = cli("check", path, "bad", "--json")
    assert (done.status, done.json["ok"], len(done.json["problems"])) == (1, False, 1)
    flip(max((path / "bad" / "log").glob("*.log")), 20)
    done = cli("list", path)
    assert (done.status, "CorruptionError" in done.text) == (1, True)
    done = cli("list", path, "--json")
    assert [each.get("error", {}).get("type") for each in done.json["queues"]] == ["CorruptionError", None]
    done = cli("top", path, "--once", "--interval", "0.05")
    assert (done.status, "CorruptionError" in done.text) == (1, True)
    done = cli("top", path, "--once", "--interval", "0.05", "--json")
    assert done.lines[-1]["queues"][0]["error"]["type"] == "CorruptionError"
    page = path / "page.html"
    done = cli("report", path, "-o", page)
    assert (done.status, "left out: " in done.text) == (1, True)
    assert "Queues that cannot be read" in page.read_text(encoding="utf-8")
    assert cli("report", path, "-o", page, "--json").json["errors"]["bad"]["type"] == "CorruptionError"
    page.unlink()
    done = cli("repair", path, "bad", "--json")
    assert (done.status, done.json["items"]) == (1, 0)
    assert cli("repair", path, "good", "--json").json["problems"] == []


@pytest.mark.damages
def test_a_dump_rescues_what_is_intact(path: Path, tmp_path: Path) -> None:
    """What lies behind damage is written, too; stderr says what is lost, and the status is 1."""
    with PersistentQueue(path, "q") as queue:
        for start in range(0, 30, 10):
            put(queue, *(b"%d" % n + bytes(1000) for n in range(start, start + 10)))
    flip(segment_files(path / "q")[0], 15_000)
    done = cli("dump", path, "q")
    assert [each["sequence"] for each in done.lines] == [*range(10), *range(20, 30)]
    problem, lost = done.err.splitlines()
    assert (done.status, lost) == (1, "lost: 10 items, sequences 10 to 19")
    assert "damaged at offset" in problem
    file = tmp_path / "q.jsonl"
    done = cli("dump", path, "q", "-o", file, "--json")
    assert (done.status, json.loads(done.err)) == (1, {"items": 20, "published": 0, "lost": [[10, 10]]})
    assert len(file.read_bytes().splitlines()) == 20
    assert cli("load", path, "copy", "-i", file).status == 0


@pytest.mark.damages
def test_what_takes_out_of_a_damaged_queue_says_what_to_do(path: Path) -> None:
    """Nothing is consumed or lost; what the library logs of it is JSON, too, if the answer is."""
    with PersistentQueue(path, "q") as queue:
        put(queue, b"one")
        put(queue, b"two")
    flip(segment_files(path / "q")[0], 64 + 50)
    for arguments in (["get", "--all"], ["move", "--to", "r"]):
        done = cli(arguments[0], path, "q", *arguments[1:])
        assert (done.status, done.out, "persistentqueue repair" in done.err) == (2, b"", True)
        done = cli(arguments[0], path, "q", *arguments[1:], "--json")
        (kind, logged), *rest = (next(iter(json.loads(line).items())) for line in done.err.splitlines())
        assert (kind, logged["level"], "damaged at offset" in logged["message"]) == ("log", "ERROR", True)
        assert [each[0] for each in rest] == ["error"]
        assert View(path, "q").look().depth == 2


def test_a_dump_never_takes_the_place_of_a_device(open_queue: QueueFactory, path: Path, tmp_path: Path) -> None:
    """A pipe, like a device, is written to and stays; a link leads on to the file; a report does the same."""
    put(open_queue("q"), b"item")
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    link.symlink_to(target)
    with open(os.open(pipe, os.O_RDWR), "rb", buffering=0) as reader:  # also as a writer, so that nobody waits
        assert cli("dump", path, "q", "-o", pipe).status == 0
        assert item_of(json.loads(reader.read(10_000))) == b"item"
    assert pipe.is_fifo()
    assert cli("dump", path, "q", "-o", link).status == 0
    assert item_of(json.loads(target.read_bytes())) == b"item"
    target.chmod(0o600)
    assert cli("report", path, "-o", link).status == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert target.read_bytes().startswith(b"<!doctype html>")
    assert link.is_symlink()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "pipe", "queues", "target"]


def test_a_report_that_fails_leaves_the_one_before(
    open_queue: QueueFactory, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets its name when it is complete."""
    put(open_queue("q"), b"item")
    file = tmp_path / "report.html"
    file.write_text("before")

    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("persistentqueue.cli.files.os.fsync", fail)
    done = cli("report", path, "-o", file)
    assert (done.status, "No space left" in done.err) == (2, True)
    assert file.read_text() == "before"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["queues", "report.html"]


def test_a_queue_that_may_not_be_read_is_left_out(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``list``, ``top`` and ``report`` show the others, with status 1."""
    for name in ("good", "secret"):
        with PersistentQueue(path, name) as queue:
            put(queue, b"item")
    look = View.look

    def refuse(view: View) -> Snapshot:
        if "secret" in repr(view):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "log")
        return look(view)

    monkeypatch.setattr(View, "look", refuse)
    page = tmp_path / "page.html"
    for arguments in (["list"], ["top", "--once", "--interval", "0.05"], ["report", "-o", page]):
        done = cli(arguments[0], path, *arguments[1:])
        assert (done.status, done.err) == (1, "")
        assert ("PermissionError" if arguments[0] != "report" else "Permission denied") in done.text
    assert "good" in page.read_text(encoding="utf-8")


def test_what_a_key_file_holds_is_never_shown(open_queue: QueueFactory, path: Path, tmp_path: Path) -> None:
    """One that is no key, or that cannot be read, is named in the error, without its bytes."""
    put(open_queue("q"), b"item")
    file = tmp_path / "key"
    file.write_bytes(bytes(range(65, 97)) + b"\xff")  # one too many, and no text
    done = cli("put", path, "q", "item", "--key", f"k={file}")
    assert (done.status, f"{file}: expected a key of 16, 24 or 32 bytes" in done.err) == (2, True)
    assert "ABC" not in done.err
    done = cli("put", path, "q", "item", "--key", f"k={tmp_path / 'none'}")
    assert (done.status, f"{tmp_path / 'none'}: No such file" in done.err) == (2, True)


def test_paths_are_no_commands_to_the_terminal(tmp_path: Path) -> None:
    """Nor is what others wrote into files: errors and answers are printable, and JSON is JSON, whatever a path is."""
    path = tmp_path / "esc\x1b[31m\udcff"
    with PersistentQueue(path, "q") as queue:
        put(queue, b"item")
        lock = json.loads((path / "q" / "lock").read_text())
        (path / "q" / "lock").write_text(json.dumps(lock | {"host": "\x1b[31mhost"}))
        for arguments in (["get", "q"], ["put", "q", "item"], ["top", "--once", "--interval", "0.05"], ["check", "x"]):
            done = cli(arguments[0], path, *arguments[1:])
            assert r"\x1b[31m" in done.text + done.err
            assert "\x1b" not in done.text + done.err
        assert cli("list", path, "--json").json["path"] == str(path)
        assert cli("report", path, "-o", tmp_path / "page.html").status == 0


def test_a_line_that_is_nested_too_deep_is_no_item(path: Path) -> None:
    """It ends a load like any other line that is none."""
    done = cli("load", path, "q", given=b'{"text": "a"}\n' + b"[" * 200_000)
    assert (done.status, "ValueError: line 2: " in done.err) == (2, True)


def test_names_are_no_commands_to_the_terminal(open_queue: QueueFactory, path: Path) -> None:
    """Neither colours nor markup: subscriptions and markers may have any name, items any bytes."""
    queue, name = open_queue("q"), "[red]\x1b[31m[/nothing]"
    queue.subscribe(name)
    with queue.session() as session:
        session.enqueue(name.encode())
        session.flush(marker=(name, 1))
    for arguments in (
        ["stat", path, "q"],
        ["peek", path, "q"],
        ["explain", path, "q"],
        ["top", path, "--once", "--interval", "0.05"],
    ):
        done = cli(*arguments)
        assert done.status == 0
        assert "\x1b" not in done.text
        assert r"[red]\x1b[31m[/nothing]" in done.text or arguments[0] == "top"


def test_compact_gives_files_back(open_queue: QueueFactory, path: Path) -> None:
    """What lives in sparse files is copied together, and the answer says what that gave."""
    with open_queue("q", segment_bytes=50_000) as queue:
        for start in range(0, 500, 10):
            put(queue, *(b"%d" % n + bytes(1000) for n in range(start, start + 10)))
        with queue.session() as slow, queue.session() as quick:
            for _ in range(10):
                slow.dequeue()
                quick.dequeue_many(45)
            quick.flush()
            slow.rollback()
    assert "sparse" in cli("explain", path, "q").text
    done = cli("compact", path, "q", "--json").json
    assert done["segments"] > 3
    assert done["freed_bytes"] > 200_000
    assert "0 data files emptied" in cli("compact", path, "q").text
    assert View(path, "q").look().depth == 50


def test_pool_in_json(path: Path) -> None:
    """What was made, what is there, what was deleted."""
    sizes = ("--bytes", "1000", "--file-bytes", "500")
    assert cli("pool", "fill", path, "--shared", *sizes, "--json").json["made"] == [500, 500]
    assert cli("pool", "show", path, "--shared", "--json").json["files"] == 2
    assert cli("pool", "clear", path, "--shared", "--json").json["deleted_bytes"] == 1000


def test_bench_compares_and_leaves_nothing(tmp_path: Path) -> None:
    """Four kinds of flushes, each with the disk's rate, the queue's, their ratio, and the syncs that the queue took."""
    done = cli("bench", tmp_path, "--seconds", "0.4", "--json")
    rows = done.json["rows"]
    assert [(row["items_per_flush"], row["what"][-3:].strip()) for row in rows] == [
        (1, "in"),
        (1, "out"),
        (1000, "in"),
        (1000, "out"),
    ]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["queue_per_second"] / row["bare_per_second"])
        assert row["bare_per_second"] > 0
        assert row["syncs_per_flush"] > 0
    assert rows[0]["syncs_per_flush"] < 1.5
    assert list(tmp_path.iterdir()) == []
    assert "ratio" in cli("bench", tmp_path, "--seconds", "0.2").text


def test_a_bench_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    """Also where the disk fails."""

    def stop(done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.measure(str(tmp_path), 0.1, stop)
    assert list(tmp_path.iterdir()) == []


def test_a_bench_deletes_what_one_left_that_was_killed(tmp_path: Path) -> None:
    """Not what one works in, nor what is just being made."""
    line = [sys.executable, "-m", "persistentqueue", "bench", str(tmp_path), "--seconds", "60"]
    with subprocess.Popen(line) as process:
        while not list(tmp_path.glob("*/queue/log/*.log")):
            assert process.poll() is None
        (place,) = tmp_path.iterdir()
        os.utime(place, (0, 0))
        bench.measure(str(tmp_path), 0.1)
        assert list(tmp_path.iterdir()) == [place]
        assert (place / "queue").is_dir()
        process.kill()
    young = tmp_path / f"{place.name}-young"
    young.mkdir()
    os.utime(young, (2**32, 2**32))  # however long this test takes
    os.utime(place, (0, 0))
    bench.measure(str(tmp_path), 0.1)
    assert list(tmp_path.iterdir()) == [young]


@pytest.mark.parametrize("arguments", [["get", "--all"], ["move", "--to", "other"]])
def test_what_a_verb_gives_back_is_wiped(open_queue: QueueFactory, path: Path, arguments: list[str]) -> None:
    """Whoever made the queue may want that, and no verb knows."""
    with open_queue("q") as queue:
        put(queue, *[b"secret"] * 100)
        with queue.transaction() as session:
            session.dequeue_many(50)
    with open(segment_files(path / "q")[0], "rb") as file:
        assert b"secret" in file.read()
        assert cli(arguments[0], path, "q", *arguments[1:]).status == 0
        file.seek(0)
        assert os.fstat(file.fileno()).st_nlink == 0
        assert b"secret" not in file.read()


def test_what_is_published_is_no_failure_where_the_lock_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever would put it in once more had it twice."""
    cli("put", path, "q", "one")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "lock")

    monkeypatch.setattr(write_verbs, "own", refuse)
    done = cli("put", path, "q", "two")
    assert (done.status, "published: the next opening of the queue adopts them" in done.err) == (0, True)
    monkeypatch.undo()
    assert cli("get", path, "q", "--all").out == b"one\ntwo\n"


def test_an_interrupt_gives_items_back(open_queue: QueueFactory, path: Path) -> None:
    """Ctrl-C while ``get`` waits: status 130, and what was not consumed is in the queue."""
    with open_queue("q") as queue:
        put(queue, b"a")
        drain(queue)
    line = [sys.executable, "-m", "persistentqueue", "get", str(path), "q", "--timeout", "60"]
    with interruptible():
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        while not View(path, "q").look().is_owned:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")
    delete_queue(path, "q")


# --- words ---------------------------------------------------------------------------------------------------------


def test_words() -> None:
    """Sizes, spans, rates and shares, as people read them."""
    assert [size_text(each) for each in (0, 1023, 1024, 15 * 2**20, 2**30 * 200, 2**60)] == [
        "0 bytes",
        "1,023 bytes",
        "1.0 KiB",
        "15.0 MiB",
        "200 GiB",
        "1,048,576 TiB",
    ]
    assert [span_text(each) for each in (None, 0, 0.25, 2.34, 59, 60, 3700, 90000)] == [
        "-",
        "< 1 ms",
        "250 ms",
        "2.3 s",
        "59 s",
        "1 min",
        "1 h 1 min",
        "1 d 1 h",
    ]
    assert [rate_text(each) for each in (None, 0, 0.5, 1234.5)] == ["-", "0", "0.5", "1,234"]
    assert [share_text(each) for each in (0, 0.001, 0.5, 0.999, 1)] == ["0 %", "< 1 %", "50 %", "> 99 %", "100 %"]
    assert (many(1, "item"), many(2000, "item"), many(2, "flush", "flushes")) == ("1 item", "2,000 items", "2 flushes")


def test_bounds_of_times() -> None:
    """In microseconds, milliseconds or seconds, or beyond what was measured."""
    assert [bound_text(each, 50.0) for each in (1e-5, 5e-4, 2e-3, 0.5, 50.0, math.inf)] == [
        "10 µs",
        "500 µs",
        "2 ms",
        "500 ms",
        "50 s",
        "> 50 s",
    ]


def test_items_in_json_and_in_a_table() -> None:
    """Any bytes come back; what is shown in a table is no command to the terminal."""
    for item in (b"", b"a", NOISE, "ü".encode(), b"\xed\xa0\x80"):
        assert item_of(json.loads(json.dumps(item_json(item)))) == item
    assert item_json(b"\xff") == {"base64": base64.b64encode(b"\xff").decode()}
    assert item_text(b"\x1b[31mred\n", 40) == r"\x1b[31mred\n"
    assert item_text(b"a" * 100, 10) == "a" * 9 + "…"
    assert item_text(b"", 10) == ""
    assert io.StringIO(item_text(NOISE, 2000)).read().isprintable()
