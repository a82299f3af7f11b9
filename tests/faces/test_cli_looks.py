"""Verbs of the command line on damaged, unreadable and hostile queues and files, further verbs, and the words for
numbers."""

from __future__ import annotations

import base64
import errno
import io
import json
import math
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue, Snapshot, View, connect, delete_queue
from persistentqueue.cli import bench, summary, write_verbs
from persistentqueue.cli.formatting import item_json, item_of, item_text
from persistentqueue.drawing.text import bound_text, many, rate_text, share_text, size_text, span_text
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, flip, interruptible, put, segment_files
from tests.unit.recovery.test_in_doubt import in_doubt

from .test_cli import NOISE, cli

# --- looking -------------------------------------------------------------------------------------------------------


def test_a_directory_without_queues_and_a_queue_by_its_own_path(
    tmp_path: Path, open_queue: QueueFactory, path: Path
) -> None:
    """``list`` shows a queue that is given by its own directory; a missing directory is an error."""
    put(open_queue("q"), b"a")
    assert cli("list", path / "q", "--json").json["queues"][0]["name"] == "."
    assert cli("list", tmp_path / "nothing").status == 2


def test_a_queue_without_a_name_beside_named_queues(open_queue: QueueFactory, path: Path) -> None:
    """A program that forgot the name has made a queue in the directory itself: the looks show it, as ``.``."""
    put(open_queue(None), b"a", b"b")
    put(open_queue("q"), b"c")
    found = [(each["name"], each["depth"]) for each in cli("list", path, "--json").json["queues"]]
    assert found == [(".", 2), ("q", 1)]
    assert cli("report", path, "-o", path / "page.html").text.endswith("2 queues\n")


def test_a_transaction_in_doubt_is_told(open_queue: QueueFactory, path: Path) -> None:
    """``stat`` and ``check`` tell of a transaction over several queues that they do not count, and name the queue that
    knows it."""
    a, _ = in_doubt(open_queue, decided=False)
    assert "in doubt" not in cli("stat", path, "a").text
    assert "which is not shown: the queue a does not say that it is committed" in cli("stat", path, "b").text
    assert "in doubt" not in cli("check", path, "a").text
    assert (
        "in doubt: the last transaction, over several queues: the next opening asks a" in cli("check", path, "b").text
    )
    crash(a)
    for name in "ab":
        open_queue(name)


def test_a_queue_that_is_deleted_meanwhile_is_no_problem(
    open_queue: QueueFactory, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that is deleted between the listing and the look is left out, unless it was named."""
    put(open_queue("q"), b"a")
    monkeypatch.setattr(summary, "list_queues", lambda _: ["gone", "q"])
    listed = cli("list", path, "--json")
    assert (listed.status, [each["name"] for each in listed.json["queues"]]) == (0, ["q"])
    reported = cli("report", path, "-o", tmp_path / "page.html", "--json")
    assert (reported.status, reported.json["errors"]) == (0, {})
    assert cli("report", path, "gone", "q", "-o", tmp_path / "page.html").status == 1


@pytest.mark.damages
def test_a_damaged_queue_without_a_name_hides_no_other(open_queue: QueueFactory, path: Path) -> None:
    """``list`` reports it in its row, with status 1, and the other queues in theirs."""
    put(open_queue(None), b"a")
    put(open_queue("q"), b"c")
    (log,) = (path / "log").iterdir()
    flip(log, 70)
    listed = cli("list", path, "--json")
    assert listed.status == 1
    assert listed.json["queues"][0]["error"]["type"] == "CorruptionError"
    assert listed.json["queues"][1]["depth"] == 1


@pytest.mark.usefixtures("patient")
def test_who_is_connected(open_queue: QueueFactory, path: Path) -> None:
    """``stat`` and ``explain`` name the processes that hold items, if the owner serves. Without such an owner, ``stat``
    has no row about them."""
    with open_queue("q") as queue:
        put(queue, b"a", b"b")
        done = cli("stat", path, "q", "--json")
        assert (done.json["connections"], "of other processes" in cli("stat", path, "q").text) == (None, False)
    queue = open_queue("q", serve=True)
    assert cli("stat", path, "q", "--json").json["connections"] == []
    with connect(path, "q", serve="never") as shared, shared.session("mailer\x1b") as session:
        session.dequeue()
        (one,) = cli("stat", path, "q", "--json").json["connections"]
        told, explained = cli("stat", path, "q").text, cli("explain", path, "q").text
        session.rollback()
    assert (one["process"], one["session"], one["held"], one["waits"]) == (os.getpid(), "mailer\x1b", 1, False)
    assert "1 session of other processes, 0 waiting" in told
    assert f"process {os.getpid()} " in told and "session 'mailer\\x1b': holds 1 for" in told
    assert f"Process {os.getpid()} " in explained and "holds 1 item in its session" in explained


@pytest.mark.damages
def test_a_damaged_queue_is_listed_among_the_others(path: Path) -> None:
    """The row of a damaged queue shows the error, and the status is 1. ``check``, ``top``, ``report`` and ``repair``
    tell of the damage, too."""
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
    done = cli("report", path, "-o", "-")
    assert (done.status, "Queues that cannot be read" in done.text, "left out: " in done.err) == (1, True, True)
    assert done.text.startswith("<!doctype") and done.text.endswith("</html>\n")
    assert json.loads(cli("report", path, "-o", "-", "--json").err)["errors"]["bad"]["type"] == "CorruptionError"
    page.unlink()
    done = cli("repair", path, "bad", "--json")
    assert (done.status, done.json["items"]) == (1, 0)
    assert cli("repair", path, "good", "--json").json["problems"] == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows which locks are held")
def test_a_check_tells_an_open_queue_from_a_closed_one(open_queue: QueueFactory, path: Path) -> None:
    """``check`` does not say that a queue was closed while it is open, also if nothing was written since."""
    open_queue("q").close()
    assert "closed cleanly" in cli("check", path, "q").text
    with open_queue("q"):
        assert "closed cleanly" not in cli("check", path, "q").text
    assert "closed cleanly" in cli("check", path, "q").text


@pytest.mark.damages
def test_a_dump_rescues_what_is_intact(path: Path, tmp_path: Path) -> None:
    """``dump`` also writes the items behind damage; stderr says what is lost, and the status is 1."""
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
    """``get`` and ``move`` on a damaged queue name the repair as remedy, and consume nothing."""
    with PersistentQueue(path, "q") as queue:
        put(queue, b"one")
        put(queue, b"two")
    flip(segment_files(path / "q")[0], 64 + 50)
    for arguments in (["get", "--all"], ["move", "--to", "r"]):
        done = cli(arguments[0], path, "q", *arguments[1:])
        assert (done.status, done.out, "persistentqueue repair" in done.err) == (2, b"", True)
        done = cli(arguments[0], path, "q", *arguments[1:], "--json")
        (line,) = done.err.splitlines()
        assert "damaged at offset" in json.loads(line)["error"]["message"]
        assert View(path, "q").look().depth == 2


def test_a_dump_never_takes_the_place_of_a_device(open_queue: QueueFactory, path: Path, tmp_path: Path) -> None:
    """``dump`` writes into a pipe, which stays a pipe. ``dump`` and ``report`` write to the file that a link points
    to."""
    put(open_queue("q"), b"item")
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    link.symlink_to(target)
    with open(os.open(pipe, os.O_RDWR), "rb", buffering=0) as reader:  # opened for writing as well: no opening blocks
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
    """A report that fails leaves the one before, because a new one gets its name when it is complete."""
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
    """If a queue may not be read, ``list``, ``top`` and ``report`` show the others, with status 1."""
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
    """The error for a file that is no key, or cannot be read, names the file and shows none of its bytes."""
    put(open_queue("q"), b"item")
    file = tmp_path / "key"
    file.write_bytes(bytes(range(65, 97)) + b"\xff")  # one byte too many, and not valid text
    done = cli("put", path, "q", "item", "--key", f"k={file}")
    assert (done.status, f"{file}: expected a key of 16, 24 or 32 bytes" in done.err) == (2, True)
    assert "ABC" not in done.err
    done = cli("put", path, "q", "item", "--key", f"k={tmp_path / 'none'}")
    assert (done.status, f"{tmp_path / 'none'}: No such file" in done.err) == (2, True)


def test_paths_are_no_commands_to_the_terminal(tmp_path: Path) -> None:
    """Errors and answers are printable whatever a path or a lock file contains, and JSON stays JSON."""
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
    """A line that is nested too deep ends a load, and the error has the number of the line."""
    done = cli("load", path, "q", given=b'{"text": "a"}\n' + b"[" * 200_000)
    assert (done.status, "ValueError: stdin: line 2: " in done.err) == (2, True)


def test_names_are_no_commands_to_the_terminal(open_queue: QueueFactory, path: Path) -> None:
    """Names of subscriptions and markers, and the bytes of items, are shown without terminal codes, and not taken for
    markup."""
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
    """``compact`` copies the items of sparse files together, and reports the emptied files and the freed bytes."""
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
    """In JSON, ``pool`` reports the files that it made, the files that are there, and the bytes that it deleted."""
    sizes = ("--bytes", "1000", "--file-bytes", "500")
    assert cli("pool", "fill", path, "--shared", *sizes, "--json").json["made"] == [500, 500]
    assert cli("pool", "show", path, "--shared", "--json").json["files"] == 2
    assert cli("pool", "clear", path, "--shared", "--json").json["deleted_bytes"] == 1000


def test_bench_compares_and_leaves_nothing(tmp_path: Path) -> None:
    """``bench`` shows four kinds of flushes, each with the rates of the disk and of the queue, their ratio, and the
    syncs. It leaves no file."""
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
    """A bench that is interrupted deletes its files."""

    def stop(done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.measure(str(tmp_path), 0.1, stop)
    assert list(tmp_path.iterdir()) == []


def test_a_bench_deletes_what_one_left_that_was_killed(tmp_path: Path) -> None:
    """A bench deletes the directory of a bench that was killed, but not one that is in use or was just made."""
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
    os.utime(young, (2**32, 2**32))  # young, however long this test takes
    os.utime(place, (0, 0))
    bench.measure(str(tmp_path), 0.1)
    assert list(tmp_path.iterdir()) == [young]


@pytest.mark.parametrize("arguments", [["get", "--all"], ["move", "--to", "other"]])
def test_what_a_verb_gives_back_is_wiped(open_queue: QueueFactory, path: Path, arguments: list[str]) -> None:
    """``get`` and ``move`` wipe the files that they give back: the queue may have been made with that setting, which is
    not stored."""
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
    """``put`` succeeds if its items are published and only the lock is refused: a caller that repeats it would add them
    twice."""
    cli("put", path, "q", "one")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "lock")

    monkeypatch.setattr(write_verbs, "own", refuse)
    done = cli("put", path, "q", "two")
    assert (done.status, "published: the next opening of the queue adopts them" in done.err) == (0, True)
    monkeypatch.undo()
    assert cli("get", path, "q", "--all").out == b"one\ntwo\n"


def test_an_interrupt_gives_items_back(open_queue: QueueFactory, path: Path) -> None:
    """Ctrl-C while ``get`` waits gives status 130, without output."""
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
    """Sizes, spans, rates and shares are written in units that are easy to read."""
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
    """Bounds of times are written in microseconds, milliseconds or seconds, or as beyond the highest measured bound."""
    assert [bound_text(each, 50.0) for each in (1e-5, 5e-4, 2e-3, 0.5, 50.0, math.inf)] == [
        "10 µs",
        "500 µs",
        "2 ms",
        "500 ms",
        "50 s",
        "> 50 s",
    ]


def test_items_in_json_and_in_a_table() -> None:
    """An item of any bytes comes back from its JSON; its text in a table has no terminal codes."""
    for item in (b"", b"a", NOISE, "ü".encode(), b"\xed\xa0\x80"):
        assert item_of(json.loads(json.dumps(item_json(item)))) == item
    assert item_json(b"\xff") == {"base64": base64.b64encode(b"\xff").decode()}
    assert item_text(b"\x1b[31mred\n", 40) == r"\x1b[31mred\n"
    assert item_text(b"a" * 100, 10) == "a" * 9 + "…"
    assert item_text(b"", 10) == ""
    assert io.StringIO(item_text(NOISE, 2000)).read().isprintable()
