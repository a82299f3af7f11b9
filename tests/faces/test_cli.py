"""The command line: effects, answers and traces of each verb, in and beside the process that owns the queue."""

from __future__ import annotations

import json
import os
import re
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
from persistentqueue import Encryption, PersistentQueue, Producer, View
from persistentqueue.cli import main, write_verbs
from persistentqueue.cli.app import app
from persistentqueue.cli.formatting import (
    item_of,
)
from persistentqueue.cli.verbs import VERBS
from tests.conftest import QueueFactory
from tests.durability.test_processes import Child
from tests.support.queues import drain, flip, put
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
"""Arguments of the verbs that only read; the path comes behind the verb."""


class Done:
    """Answer of a verb: exit status, stdout and stderr."""

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
        """The documents on stdout, one on each line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """The error in JSON, from the last line on stderr."""
        return json.loads(self.err.splitlines()[-1])["error"]


def cli(*arguments: object, given: bytes = b"") -> Done:
    """Run a verb in this process."""
    result = CliRunner().invoke(app, [str(each) for each in arguments], input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout_bytes, result.stderr)


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a verb in a process of its own."""
    line = [sys.executable, "-m", "persistentqueue", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, check=False, timeout=60, **options)


def owner_body(pipe: Connection, path: str) -> None:
    """Own the queue, with holds and holes, and do nothing except dequeue on request."""
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
def owner(path: Path) -> Iterator[Child]:
    """Yield another process that owns ``orders`` and rests."""
    path.mkdir()
    with Child(owner_body, str(path)) as child:
        assert child.hear() == "begun"
        yield child
        child.tell(None)
        child.finish()


# --- without the extra, and with wrong arguments -------------------------------------------------------------------


def test_without_the_extra_there_is_one_clear_line(tmp_path: Path) -> None:
    """If typer or rich is missing, a verb says how to install them, and has status 2."""
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
    """Wrong arguments give status 2 and an error on stderr, as a line or in JSON, and nothing is made."""
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
    """Ctrl-C before a verb begins gives status 130, without output."""

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("persistentqueue.cli.verbs.run", interrupted)
    assert main(["list", "."]) == 130
    assert capsys.readouterr() == ("", "")


def test_every_verb_tells_what_it_changes_and_whether_it_needs_the_lock(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of every verb tells its effect on the disk and whether it needs the lock. Every verb has ``--json``."""
    verbs: list[str] = list(get_command(app).commands)  # type: ignore[attr-defined]
    assert len(verbs) == 17
    assert len(VERBS) == 3
    for verb in verbs:
        assert main([verb, "--help"]) == 0
        told = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert re.search("Disk: .* Lock: ", told), verb
        assert "--json" in told, verb


def test_what_does_not_go_has_status_2(tmp_path: Path) -> None:
    """A verb for a missing queue has status 2, names the error in words or in JSON, and makes nothing."""
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
    """Verbs that only read answer beside an owner, and leave bytes, sizes and times of every file and directory
    unchanged."""
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
    """Beside an owner, verbs show its process, the items that are left, and the number of overtaken items, but not the
    session that holds them."""
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
    """``put`` and ``load`` publish items beside an owner, which gets them when it next looks. ``put`` names the
    owner."""
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
    """``get``, ``compact``, ``move`` and ``repair`` are refused beside an owner, and the error names its process."""
    for arguments in (["get"], ["compact"], ["repair"], ["move", "--to", "b"], ["move", "--back"]):
        done = cli(arguments[0], path, "orders", *arguments[1:], "--json")
        assert done.status == 2, arguments
        assert done.error["type"] == "QueueLockedError"
        assert f"process {owner.process.pid} on" in done.error["message"]
        assert "--lock-timeout" in done.error["message"]


# --- in and out ----------------------------------------------------------------------------------------------------


def test_put_and_get(path: Path) -> None:
    """``put`` takes items as arguments, as lines or as a whole, and ``get`` returns them in their order until there is
    none."""
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
    """``get`` with a subscription consumes for that subscription alone, and does not make a missing one."""
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
    """A terminal gets a progress bar on stderr; anything else gets not a byte of it."""
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
    with suppress(OSError):  # reading ends with an error when no process has the terminal open
        while data := os.read(master, 65536):
            seen += data
    os.close(master)
    assert b"dump" in seen
    assert b"%" in seen
    assert b"5,000 items written" in seen


def test_a_broken_pipe_loses_no_item(open_queue: QueueFactory, path: Path) -> None:
    """If the output cannot be written to its pipe, a verb has status 2 without a message, and consumes nothing."""
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
    """``load`` restores what ``dump`` has written: any bytes, empty items and line ends, in order, through a file and a
    pipe."""
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
    """A load with a marker that is cut short and run again adds no item twice, even if its publications were not
    adopted yet."""
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
    """Load a file, and stop in the middle, to be killed."""
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
    """After a ``kill -9`` in the middle of a load, the flushed items are there, and the same command adds the rest."""
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
    """A line that is not an item ends a load, and the error has the number of the line."""
    done = cli("load", path, "q", "--json", given=b'{"text": "a"}\n' + line.encode() + b"\n")
    assert (done.status, "line 2: " in done.error["message"]) == (2, True)


def test_items_move_to_another_queue(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``move`` moves all items or a given number of them, in transactions over both queues."""
    monkeypatch.setattr(write_verbs, "BATCH_ITEMS", 7)
    with PersistentQueue(path, "a") as queue:
        put(queue, *(b"%d" % n for n in range(30)))
    assert cli("move", path, "a", "--to", "b", "-n", "10").out == b"moved: 10 items from a to b\n"
    assert cli("move", path, "a", "--to", "b", "--json").json == {"items": 20, "source": "a", "target": "b"}
    with PersistentQueue(path, "a") as a, PersistentQueue(path, "b") as b:
        assert (drain(a), drain(b)) == ([], [b"%d" % n for n in range(30)])


def test_dead_letters_go_back(path: Path) -> None:
    """``requeue`` gives dead letters back to their queue, all or a given number, and ``peek`` shows their envelopes
    before. A mistyped name makes no queue."""
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
    """Items that are put into a queue that cannot be opened are published, and the answer says why they are not adopted
    now."""
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
    """``--key`` gives the key for reading, consuming and writing. Without it no item is lost, and ``stat`` still tells
    the age."""
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


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    """``--version`` prints the version of the package."""
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"persistentqueue {persistentqueue.__version__}\n"


def test_json_before_the_verb(tmp_path: Path, open_queue: QueueFactory, capfd: pytest.CaptureFixture[str]) -> None:
    """``--json`` may stand before the verb: results and errors are JSON all the same."""
    put(open_queue(), b"one")
    assert main(["--json", "stat", str(tmp_path / "queues"), "orders"]) == 0
    assert json.loads(capfd.readouterr().out)["depth"] == 1
    assert main(["--json", "stat", str(tmp_path / "missing")]) == 2
    assert "error" in json.loads(capfd.readouterr().err)
