"""The command line: effects, answers and traces of each verb, in and beside the process that owns the queue."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from inspect import Parameter, signature
from io import BytesIO, TextIOWrapper
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import persistentqueue.cli
from persistentqueue import Encryption, PersistentQueue, Producer, View
from persistentqueue.cli import main, output, write_verbs
from persistentqueue.cli.app import Access, Owning, own
from persistentqueue.cli.formatting import (
    item_of,
)
from persistentqueue.cli.parser import GROUPS, VERBS, in_group
from persistentqueue.cli.workers.verbs import Serving
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
    streams = [TextIOWrapper(BytesIO(data), encoding="utf-8") for data in (given, b"", b"")]
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = streams
    try:
        status = main([str(each) for each in arguments])
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    for stream in streams[1:]:
        stream.flush()
    out, err = (stream.buffer.getvalue() for stream in streams[1:])
    return Done(status, out, err.decode())


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a verb in a process of its own."""
    line = [sys.executable, "-m", "persistentqueue", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, check=False, timeout=60, **options)


def on_terminal(line: list[str], fd: int = 2, **environment: str) -> bytes:
    """Run a program with a terminal of 80 columns as its stdout or stderr, and return what the terminal was sent."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(
        line,
        stdout=slave if fd == 1 else subprocess.DEVNULL,
        stderr=slave if fd == 2 else subprocess.DEVNULL,
        env=os.environ | {"TERM": "xterm"} | environment,
    ) as process:
        os.close(slave)
        seen = b""
        with suppress(OSError):  # reading ends with an error when no process has the terminal open
            while data := os.read(master, 65536):
                seen += data
        os.close(master)
        assert process.wait(60) == 0
    return seen


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


WITHOUT = """
import sys, runpy


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"rich", "shtab"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
runpy.run_module("persistentqueue", run_name="__main__", alter_sys=True)
"""
"""A program that is the command line in an environment without the packages of the extra."""


def bare(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a verb in a process of its own, in which the packages of the extra cannot be imported."""
    line = [sys.executable, "-c", WITHOUT, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, check=False, timeout=60, **options)


def test_each_verb_works_without_the_extra(open_queue: QueueFactory, path: Path, tmp_path: Path) -> None:
    """Without the packages of the extra, each verb has its status; only a picture and the completion name the extra."""
    with open_queue("q") as queue:
        put(queue, b"one", b"two", b"three")
    PersistentQueue(path, "dead").close()
    for verb, *rest in (
        ("list",),
        ("stat", "q"),
        ("peek", "q"),
        ("dump", "q", "-o", tmp_path / "q.jsonl"),
        ("check", "q"),
        ("explain", "q"),
        ("top", "--once", "--interval", "0.05", "--json"),
        ("report", "-o", tmp_path / "page.html"),
        ("put", "q", "four"),
        ("load", "q", "-i", tmp_path / "q.jsonl"),
        ("get", "q"),
        ("move", "q", "--to", "other"),
        ("requeue", "other", "--from", "dead", "-n", "0"),
        ("repair", "q"),
        ("compact", "q"),
        ("clear", "q"),
        ("delete", "dead"),
        ("bench", "--seconds", "0.1"),
    ):
        done = bare(verb, path, *rest)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), (verb, done.stderr)
    assert bare("pool", "show", path, "q").returncode == 0
    for arguments in (("top", path, "--once"), ("completion", "bash")):
        done = bare(*arguments)
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(b"MissingExtraError: ")
        assert b"pip install 'persistentqueue[cli]'" in done.stderr


def test_a_terminal_without_the_extra_gets_no_bar(open_queue: QueueFactory, path: Path, tmp_path: Path) -> None:
    """Without rich, a verb with a terminal on stderr draws no progress bar, and succeeds."""
    with open_queue("q") as queue:
        put(queue, b"one")
    line = [sys.executable, "-c", WITHOUT, "dump", str(path), "q", "-o", str(tmp_path / "q.jsonl")]
    assert on_terminal(line).endswith(b"1 item written to %s\r\n" % str(tmp_path / "q.jsonl").encode())


def test_a_bar_swallows_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the work that a bar shows is raised, also one that looks as if rich were missing."""
    for is_terminal in (True, False):
        monkeypatch.setattr(output, "is_live", lambda _stream, found=is_terminal: found)
        with pytest.raises(ModuleNotFoundError, match="odd"), output.progress("work") as at:
            at(1, 2)
            raise ModuleNotFoundError("odd")


def test_the_start_imports_nothing_of_the_extra(path: Path) -> None:
    """A verb that draws nothing on a terminal imports neither rich nor shtab."""
    program = "import sys; from persistentqueue.cli import verbs; print({'rich', 'shtab', 'typer'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- parameters ----------------------------------------------------------------------------------------------------


TYPES_OF_SEVERAL: dict[str, type] = {f"Unpack[{each.__name__}]": each for each in (Access, Owning, Serving)}


def test_declared_parameters_are_those_of_the_functions() -> None:
    """Each verb declares exactly the parameters that its function has."""
    for name, verb in VERBS.items():
        declared = {each.key for each in verb.parameters}
        found = dict(signature(verb.function).parameters)
        several = [each for each in found.values() if each.kind is Parameter.VAR_KEYWORD]
        of_several = {key for each in several for key in TYPES_OF_SEVERAL[each.annotation].__annotations__}
        assert declared == {*found, *of_several} - {each.name for each in several}, name


@pytest.mark.parametrize(
    "words",
    [
        ["stat", "PATH", "q", "--json"],
        ["stat", "PATH", "--json", "q"],
        ["stat", "--json", "PATH", "q"],
        ["--json", "stat", "PATH", "q"],
        ["--json", "stat", "--", "PATH", "q"],
        ["stat", "PATH", "--json", "--", "q"],
    ],
)
def test_options_stand_anywhere(open_queue: QueueFactory, path: Path, words: list[str]) -> None:
    """Options may stand before, between and behind the arguments."""
    put(open_queue("q"), b"one")
    assert cli(*(str(path) if each == "PATH" else each for each in words)).json["depth"] == 1


def test_each_word_behind_two_hyphens_is_an_argument(path: Path) -> None:
    """Behind ``--`` each word is an argument, also one that looks like an option, or is ``--`` itself."""
    items = ["--json", "-n", "--", "-5", "--help", ""]
    assert cli("put", path, "q", "--trust", "--", *items).err == f"made the queue {path}/q\n6 items enqueued\n"
    assert [each["text"] for each in cli("get", path, "q", "--all", "--json").lines] == items


def test_option_values_are_read_in_each_form(path: Path) -> None:
    """The value of an option may stand behind it, behind ``=``, or, for a short one, at it. The last one counts."""
    cli("put", path, "q", *"abcdef")
    for words in (["-n", "2"], ["-n2"], ["--count=2"], ["--count", "5", "--count", "2"]):
        assert cli("peek", path, "q", *words).text.count("1 byte ") == 2
    assert cli("put", path, "r", "x", "--no-create", "--create").status == 0
    assert cli("put", path, "s", "x", "--create", "--no-create").status == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stta", "."], "no such command: stta; did you mean stat?"),
        (["--jsno", "stat"], "no such option: --jsno; did you mean --json?"),
        (["zzz"], "no such command: zzz. persistentqueue --help lists all."),
        (["get", ".", "q", "--cuont", "1"], "get: no such option: --cuont; did you mean --count?"),
        (["get", ".", "q", "--coun=1"], "get: no such option: --coun=1; did you mean --count?"),
        (["pool", "shwo", "."], "did you mean show?"),
        (["stat"], "stat: PATH is missing. Usage: persistentqueue stat PATH [NAME]"),
        (["stat", ".", "q", "r"], "stat: unexpected argument: 'r'"),
        (
            ["requeue", ".", "q"],
            "requeue: --from is missing. Usage: persistentqueue requeue PATH NAME --from DEAD [OPTION ...]",
        ),
        (["peek", ".", "-n"], "peek: -n/--count: expected one argument"),
        (["peek", ".", "-n", "nan"], "expected a whole number, at least 0; found 'nan'"),
        (["get", ".", "--timeout", "nan"], "expected a number, at least 0; found 'nan'"),
        (["compact", ".", "--below", "1.5"], "expected a number, from 0 to 1; found '1.5'"),
    ],
)
def test_a_mistake_is_named_with_what_helps(words: list[str], said: str) -> None:
    """A command line that is mistaken has status 2, and an error that names the mistake and what is possible."""
    done = cli(*words)
    assert (done.status, done.out) == (2, b"")
    assert done.err.startswith("UsageError: ")
    assert said in done.err
    done = cli("--json", *words)
    assert (done.error["type"], said in done.error["message"]) == ("UsageError", True)


def test_help_is_grouped_by_purpose() -> None:
    """The help lists each verb under its purpose. Without a verb, it is shown with status 2; ``--json`` is an error."""
    shown = cli("--help").text
    at = [shown.index(f"{group}:\n") for group in GROUPS]
    assert at == sorted(at)
    assert sum(len(in_group(group)) for group in GROUPS) == len(VERBS)
    for name in VERBS:
        assert re.search(rf"^  {name} ", shown, re.MULTILINE)
    assert (cli().status, cli().text) == (2, shown)
    assert "a command is missing" in cli("--json").error["message"]
    assert cli("stat", "nowhere", "-h").text == cli("stat", "--help").text


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
    assert len(VERBS) == 23
    for verb in VERBS:
        assert main([verb, "--help"]) == 0
        told = " ".join(capsys.readouterr().out.split())
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


# --- on a terminal, and in a shell ---------------------------------------------------------------------------------


def test_a_table_fits_its_terminal(open_queue: QueueFactory, path: Path) -> None:
    """On a terminal, headings are bold, and the last column is folded to its width; a pipe gets one line for a row."""
    item = "".join(chr(ord("a") + n % 26) for n in range(90))
    with open_queue("q") as queue:
        put(queue, item.encode())
    line = [sys.executable, "-m", "persistentqueue", "peek", str(path), "q"]
    heading, *rows = on_terminal(line, fd=1).decode().splitlines()
    assert heading.startswith("\x1b[1msequence")
    assert len(rows) > 1
    assert max(map(len, rows)) == 80
    assert "".join(row.split(" ")[-1] for row in rows) == item
    for quiet in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in on_terminal(line, fd=1, **quiet).decode()
    assert [row.endswith(item) for row in cli("peek", path, "q").text.splitlines()] == [False, True]


def test_a_table_is_aligned_by_columns_of_the_terminal(open_queue: QueueFactory, path: Path) -> None:
    """A wide character takes two columns of a table, and a combining one takes none."""
    queue = open_queue("q")
    for name in ("\N{CJK UNIFIED IDEOGRAPH-5217}", "e\N{COMBINING ACUTE ACCENT}e"):
        queue.subscribe(name)
    wide, accented = (line for line in cli("stat", path, "q").text.splitlines() if line.startswith("subscription"))
    assert wide.index("0 items") == accented.index("0 items") - 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["st"], ["stat"]),
        (["stat", "que"], ["queues"]),
        (["stat", "queues", ""], ["orders", "others"]),
        (["--json", "stat", "queues", "ord"], ["orders"]),
        (["pool", "sh"], ["show"]),
        (["pool", "show", "queues", "ot"], ["others"]),
        (["requeue", "queues", "orders", "--from", "ot"], ["others"]),
        (["dump", "queues", "orders", "-o", "fi"], ["file"]),
        (["get", "queues", "--lock"], ["--lock-timeout"]),
        (["completion", "f"], ["fish"]),
    ],
)
def test_bash_completes(tmp_path: Path, words: list[str], expected: list[str]) -> None:
    """Bash completes verbs, options, choices, paths, and the names of queues; no name of a directory is executed."""
    for name in ("orders", "others"):
        PersistentQueue(tmp_path / "queues", name).close()
    (tmp_path / "queues" / "$(touch planted)" / "log").mkdir(parents=True)
    (tmp_path / "queues" / "none").mkdir()
    (tmp_path / "file").touch()
    line = (
        'eval "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_persistentqueue; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    script = cli("completion", "bash").text
    done = subprocess.run(
        ["bash", "--norc", "-c", line, script, "persistentqueue", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert sorted(done.stdout.split()) == expected
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "queues"]


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
def test_fish_completes(tmp_path: Path) -> None:
    """Fish completes the names of queues."""
    for name in ("orders", "others"):
        PersistentQueue(tmp_path / "queues", name).close()
    line = f"{cli('completion', 'fish').text}\ncomplete -C 'persistentqueue stat queues ord'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split("\t")[0] == "orders"


def test_a_script_for_each_shell() -> None:
    """``completion`` prints a script for each shell that it names, also as JSON."""
    for shell in ("bash", "zsh", "fish"):
        script = cli("completion", shell).text
        assert "_persistentqueue_names" in script
        assert cli("completion", shell, "--json").json == {"shell": shell, "script": script.removesuffix("\n")}


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
    """Verbs that need the lock are refused beside an owner, and the error names its process."""
    for arguments in (
        ["get"],
        ["compact"],
        ["repair"],
        ["clear"],
        ["delete", "--yes"],
        ["move", "--to", "b"],
        ["move", "--back"],
    ):
        done = cli(arguments[0], path, "orders", *arguments[1:], "--json")
        assert done.status == 2, arguments
        assert done.error["type"] == "QueueLockedError"
        assert f"process {owner.process.pid} on" in done.error["message"]
        assert "--lock-timeout" in done.error["message"]


# --- in and out ----------------------------------------------------------------------------------------------------


def test_put_and_get(path: Path) -> None:
    """``put`` takes items as arguments, as lines or as a whole, and ``get`` returns them in their order until there is
    none."""
    assert cli("put", path, "q", "one", "two").err == f"made the queue {path}/q\n2 items enqueued\n"
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
    seen = on_terminal(line)
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
    assert cli("load", path, "copy", "-i", file).err == f"made the queue {path}/copy\n{len(items)} items enqueued\n"
    assert cli("load", path, "other", given=done.out).status == 0
    for name in ("copy", "other"):
        with PersistentQueue(path, name) as queue:
            assert drain(queue) == items


def test_a_load_with_a_marker_is_done_once(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load with a marker that is cut short and run again adds no item twice, even if its publications were not
    adopted yet."""
    monkeypatch.setattr(write_verbs, "BATCH_BYTES", 5 * (20 + write_verbs.ITEM_BYTES))
    file = tmp_path / "in.jsonl"
    lines = [json.dumps({"text": f"{n:020d}"}) for n in range(50)]
    file.write_text("\n".join([*lines[:20], "", *lines[20:33], "garbage"]))
    done = cli("load", path, "q", "-i", file, "--marker", "m")
    assert done.status == 2
    assert "line 35: " in done.err
    assert "lines 32 to 35 were not loaded: correct line 35, and repeat the command with the same marker\n" in done.err
    assert (View(path, "q").look().published, View(path, "q").look().depth) == (0, 30)
    file.write_text("\n".join([*lines[:20], "", *lines[20:]]) + "\n")
    done = cli("load", path, "q", "-i", file, "--marker", "m", "--json")
    assert (done.status, done.json["items"], done.json["skipped"]) == (0, 20, 31)  # one line is empty
    assert cli("load", path, "q", "-i", file, "--marker", "m", "--json").json["items"] == 0
    with PersistentQueue(path, "q") as queue:
        assert queue.marker("m") == 51
        assert drain(queue) == [b"%020d" % n for n in range(50)]


def test_a_load_goes_on_behind_what_waits_in_the_inbox(path: Path, open_queue: QueueFactory) -> None:
    """A load whose lines were cut short, and are not adopted yet, goes on behind them when it is run again whole."""
    queue = open_queue("q")
    lines = [json.dumps({"text": f"{n}"}) + "\n" for n in range(10)]
    for count, skipped in ((3, 0), (5, 3), (10, 5), (10, 10)):
        done = cli("load", path, "q", "--marker", "m", "--json", given="".join(lines[:count]).encode())
        assert done.json == {"items": count - skipped, "published": True, "skipped": skipped}
    assert drain(queue) == [b"%d" % n for n in range(10)]
    assert queue.marker("m") == 10


def test_a_load_that_exceeds_a_limit_is_cut_into_parts(path: Path, tmp_path: Path) -> None:
    """A load into a queue with a low limit fills it. It tells the number of loaded items, and its error names a command
    to make room. The same load goes on when the queue has room again."""
    PersistentQueue(path, "q", max_items=50).close()
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps({"text": f"{n}"}) + "\n\n" for n in range(120)))
    words = ("load", path, "q", "-i", file, "--marker", "m")
    taken: list[str] = []
    for count in (30, 45):  # the parts of 120 and of 90 items that fit
        done = cli(*words)
        assert (done.status, f"{count} items enqueued\n" in done.err) == (2, True)
        assert f"max_items=50 leaves no room for {count} more, the queue holds {count}" in done.err
        assert "persistentqueue get takes items out" in done.err
        taken += cli("get", path, "q", "--all").text.split()
    assert cli(*words).err.endswith("45 items enqueued\n")
    assert taken + cli("get", path, "q", "--all").text.split() == [f"{n}" for n in range(120)]


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
    assert (done.status, "stdin: line 2: expected " in done.error["message"]) == (2, line != '{"base64": "!"}')


@pytest.mark.parametrize("is_owned", [False, True])
def test_a_load_that_ends_early_tells_where_to_go_on(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_queue: QueueFactory, is_owned: bool
) -> None:
    """A load that meets a wrong line tells how many items are loaded, and from which line on to load the rest."""
    monkeypatch.setattr(write_verbs, "BATCH_BYTES", 10 * (3 + write_verbs.ITEM_BYTES))
    lines = [json.dumps({"text": f"{n:03}"}) for n in range(40)]
    owner = open_queue("q") if is_owned else None
    for wrong, left in ((22, "lines 21 to 23 were"), (20, "line 21 was")):
        given = "\n".join([*lines[:wrong], "wrong", *lines[wrong + 1 :]]).encode()
        done = cli("load", path, "q", given=given)
        assert done.status == 2
        assert f"{left} not loaded: correct line {wrong + 1}, and load from line 21 on\n" in done.err
        assert "20 items " in done.err and "line 21 and all lines behind it were not loaded\n" in done.err
        done = cli("load", path, "q", "--json", given=given)
        assert (done.status, done.json) == (2, {"items": 20, "published": is_owned, "next_line": 21})
        assert f"{left} not loaded" in done.error["message"]
    rest = "\n".join(lines[20:]).encode()
    assert cli("load", path, "q", given=rest).status == 0
    if owner is None:
        assert View(path, "q").look().published == 0
    with owner or PersistentQueue(path, "q") as queue:
        assert drain(queue) == [b"%03d" % n for n in [*range(20)] * 4 + [*range(20, 40)]]


def test_empty_items_fill_a_transaction_too(
    path: Path, monkeypatch: pytest.MonkeyPatch, open_queue: QueueFactory
) -> None:
    """A transaction of a load has a bounded number of items, also if they are empty."""
    monkeypatch.setattr(write_verbs, "BATCH_BYTES", 100 * write_verbs.ITEM_BYTES)
    open_queue("q")
    given = b'{"text": ""}\n' * 1000
    assert cli("load", path, "q", "--json", given=given).json == {"items": 1000, "published": True}
    assert View(path, "q").look().published == 10


def test_a_file_that_is_no_dump_is_named(path: Path, tmp_path: Path) -> None:
    """The error of a load has the name of its file, and says what a line must be."""
    (tmp_path / "table.csv").write_text("a,b\n")
    done = cli("load", path, "q", "-i", tmp_path / "table.csv")
    assert done.status == 2
    assert f"{tmp_path / 'table.csv'}: line 1: expected JSON, as dump writes it: " in done.err


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


def test_the_neighbours_of_a_queue_that_is_the_path(path: Path) -> None:
    """If PATH is the queue itself, ``requeue`` and ``move`` find and make the other queue beside it."""
    with PersistentQueue(path, "rows", max_attempts=1, dead_letter="dead") as queue:
        put(queue, b"a")
        with pytest.raises(ValueError, match="bad"), queue.transaction() as session:
            raise ValueError(f"bad {session.dequeue()!r}")
    assert cli("requeue", path / "rows", ".", "--from", "dead").out == b"requeued: 1 item from dead to .\n"
    assert cli("move", path / "rows", ".", "--to", "other").out == b"moved: 1 item from . to other\n"
    assert sorted(each.name for each in path.iterdir()) == ["dead", "other", "rows"]


def test_load_makes_no_queue_beside_named_ones(path: Path) -> None:
    """``load`` without a name is refused in a directory of named queues; ``.`` makes a queue in it."""
    PersistentQueue(path, "orders").close()
    done = cli("load", path, given=b'{"text": "a"}\n')
    assert (done.status, "holds named queues: orders" in done.err) == (2, True)
    assert [each.name for each in path.iterdir()] == ["orders"]
    assert cli("load", path, ".", given=b'{"text": "a"}\n').err == f"made the queue {path}\n1 item enqueued\n"


def test_limits_are_kept(path: Path) -> None:
    """The command line works under the limits that the queue's program has set, and keeps them."""
    PersistentQueue(path, "q", max_items=2).close()
    said = [cli("put", path, "q", str(number)) for number in range(5)]
    assert [each.status for each in said] == [0, 0, 0, 0, 2]
    assert said[1].err == "1 item enqueued\n"
    assert said[2].err == (
        "1 item published, and not adopted yet: the queue is at a limit, or the file of an earlier producer cannot be "
        "read: see the commands stat and check\n"
    )
    assert "max_items=2 leaves no room for 1 more" in said[4].err
    assert cli("put", path, "other", "x", "--json").json == {"items": 1, "published": False}
    for words in (["get", path, "q"], ["compact", path, "q"], ["repair", path, "q"]):
        assert cli(*words).status == 0
    with PersistentQueue(path, "q", keep_limits=True) as queue:
        assert queue.stats().fill == 1.0


def test_a_move_to_a_queue_that_is_smaller_than_a_batch(path: Path) -> None:
    """A move fills a queue whose limit is below a batch, and then tells of the limit; each item is in one queue."""
    items = [b"%d" % n for n in range(600)]
    with PersistentQueue(path, "q") as queue:
        put(queue, *items)
    for size in (500, 1):
        name = f"room-{size}"
        PersistentQueue(path, name, max_items=size).close()
        done = cli("move", path, "q", "--to", name)
        assert (done.status, "leaves no room" in done.err) == (2, True)
    moved: list[bytes] = []
    for name, count in (("room-500", 300), ("room-1", 1), ("q", 299)):
        with PersistentQueue(path, name) as queue:
            taken = drain(queue)
        assert len(taken) == count
        moved += taken
    assert moved == items


def test_put_beside_another_producer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``put`` does not blame a limit for what another producer publishes while the command has the queue open."""

    @contextmanager
    def busy(*arguments: Any, **options: Any) -> Iterator[PersistentQueue]:
        with own(*arguments, **options) as queue:
            with Producer(path, "q") as producer:
                producer.enqueue(b"other")
                producer.flush()
            yield queue

    monkeypatch.setattr(write_verbs, "own", busy)
    PersistentQueue(path, "q").close()
    assert cli("put", path, "q", "mine").err == "1 item enqueued\n"
    with PersistentQueue(path, "q") as queue:
        assert drain(queue) == [b"mine", b"other"]


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


def test_a_queue_is_emptied_and_deleted(open_queue: QueueFactory, path: Path) -> None:
    """``clear`` consumes what is ready, also without a key; ``delete`` deletes a queue that is empty."""
    pytest.importorskip("cryptography", reason="cryptography is not installed")
    with open_queue("q", encryption=Encryption("k", lambda _: bytes(32))) as queue:
        put(queue, b"a", b"b")
    assert cli("clear", path, "q").text == "consumed: 2 items\n"
    assert cli("clear", path / "q", ".", "--json").json == {"items": 0}
    assert cli("delete", path, "q").text == f"deleted: {path}/q\n"
    assert not (path / "q").exists()
    assert cli("put", path, "q", "again").status == 0
    assert cli("delete", path / "q", ".", "--yes", "--json").json == {"deleted": str(path / "q")}
    assert list((path / "q").iterdir()) == []  # without a name, the directory is the user's
    for verb in ("clear", "delete"):
        assert cli(verb, path, "q", "--json").error["type"] == "QueueNotFoundError"


def test_a_deletion_that_was_cut_short_is_run_again(open_queue: QueueFactory, path: Path) -> None:
    """The same command deletes what is left, also without ``--yes``."""
    open_queue("q").close()
    queue = path / "q"
    (queue / "deleted").mkdir()
    for log in (queue / "log").iterdir():
        log.rename(queue / "deleted" / log.name)
    (queue / "log").rmdir()
    assert cli("delete", path, "q").text == f"deleted: {path}/q\n"
    assert not queue.exists()


def test_a_queue_with_items_is_deleted_only_if_that_is_said(open_queue: QueueFactory, path: Path) -> None:
    """``delete`` refuses a queue that has items for any consumer, or in its inbox, unless it has ``--yes``."""
    for name in ("ready", "subscribed", "published"):
        with open_queue(name) as queue:
            if name == "subscribed":
                queue.subscribe("audit")
            if name != "published":
                put(queue, b"a", b"b")
            if name == "subscribed":
                queue.clear()
    with Producer(path, "published") as producer:
        producer.enqueue(b"a")
        producer.flush()
    for name, told in (
        ("ready", "2 items left"),
        ("subscribed", "2 items left for 'audit'"),
        ("published", "1 transaction in its inbox"),
    ):
        done = cli("delete", path, name)
        assert (done.status, done.out) == (2, b"")
        assert done.err == f"UsageError: {path}/{name}: the queue has {told}: to delete them, too, give --yes\n"
        assert cli("delete", path, name, "--yes").status == 0
    assert list(path.iterdir()) == []


def test_a_clear_leaves_the_items_of_subscriptions(open_queue: QueueFactory, path: Path) -> None:
    """``clear`` consumes nothing for subscriptions, and says so if a queue has only them."""
    with open_queue("q", fan_out=True) as queue:
        queue.subscribe("audit")
        put(queue, b"a")
    done = cli("clear", path, "q")
    assert (done.status, done.out) == (2, b"")
    assert "the queue has only subscriptions" in done.err
    assert View(path, "q").look().depth == 1


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
