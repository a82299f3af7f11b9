"""The command line under hostile names, closed and odd streams, and Ctrl-C: its files, its statuses and its JSON.

Most cases run in forks of one process that has imported the command line. Each fork has standard streams of its own,
made as Python makes them, and ends as a process ends.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from persistentqueue import PersistentQueue, View
from persistentqueue.cli import files, main
from persistentqueue.errors import BrokenQueueError
from tests.conftest import QueueFactory
from tests.support.queues import drain, interruptible, put

SERVER = r"""
import io, json, os, shutil, signal, sys
import persistentqueue.cli.verbs
from persistentqueue.cli import main


def stream(fd, mode, how):
    if how == "closed":
        os.close(fd)
        return None
    if how == "broken":
        reader, target = os.pipe()
        os.close(reader)
    else:
        target = os.open(how, os.O_RDONLY if mode == "r" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(target, fd)
    os.close(target)
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    errors = "backslashreplace" if fd == 2 else "strict"
    return io.open(fd, mode, encoding=encoding, errors=errors, closefd=False, buffering=1 if fd == 2 else -1)


for line in sys.stdin:
    case = json.loads(line)
    if pid := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue
    if case["template"]:
        shutil.copytree(case["template"], case["path"])
    os.environ.update(case["environment"])
    sys.stderr = sys.__stderr__ = stream(2, "w", case["streams"][2])
    sys.stdout = sys.__stdout__ = stream(1, "w", case["streams"][1])
    sys.stdin = sys.__stdin__ = stream(0, "r", case["streams"][0])
    sys.argv = ["persistentqueue", *case["arguments"]]
    sys.exit(main())
"""
TRACES = ("Traceback", "Exception ignored", "lost sys.stderr", "Logging error", "Fatal Python")

VERBS: dict[str, tuple[str, ...]] = {
    "list": ("list", "PATH"),
    "list --json": ("list", "PATH", "--json"),
    "stat": ("stat", "PATH", "q"),
    "stat --json": ("stat", "PATH", "q", "--json"),
    "stat of none": ("stat", "PATH", "n\N{LATIN SMALL LETTER O WITH DIAERESIS}ne"),
    "stat of none --json": ("stat", "PATH", "n\N{LATIN SMALL LETTER O WITH DIAERESIS}ne", "--json"),
    "peek": ("peek", "PATH", "q"),
    "peek --json": ("peek", "PATH", "q", "--json"),
    "dump": ("dump", "PATH", "q"),
    "dump --json": ("dump", "PATH", "q", "--json"),
    "dump -o": ("dump", "PATH", "q", "-o", "OUT"),
    "dump -o /dev/stdout": ("dump", "PATH", "q", "-o", "/dev/stdout"),
    "check": ("check", "PATH", "q"),
    "check --json": ("check", "PATH", "q", "--json"),
    "explain": ("explain", "PATH", "q"),
    "explain --json": ("explain", "PATH", "q", "--json"),
    "top": ("top", "PATH", "--once", "--interval", "0.05"),
    "top --json": ("top", "PATH", "--once", "--interval", "0.05", "--json"),
    "report": ("report", "PATH", "-o", "OUT"),
    "report --json": ("report", "PATH", "-o", "OUT", "--json"),
    "put": ("put", "PATH", "q", "one"),
    "put --json": ("put", "PATH", "q", "one", "--json"),
    "put of stdin": ("put", "PATH", "q"),
    "load": ("load", "PATH", "q"),
    "load --json": ("load", "PATH", "q", "--json", "--marker", "m"),
    "get": ("get", "PATH", "q"),
    "get --all --json": ("get", "PATH", "q", "--all", "--json"),
    "get of nothing": ("get", "PATH", "empty"),
    "get of nothing --json": ("get", "PATH", "empty", "--json"),
    "move --to": ("move", "PATH", "q", "--to", "empty"),
    "move --to --json": ("move", "PATH", "q", "--to", "empty", "--json"),
    "move --data-path": ("move", "PATH", "q", "--data-path", "OUT"),
    "requeue": ("requeue", "PATH", "q", "--from", "empty"),
    "requeue --json": ("requeue", "PATH", "q", "--from", "empty", "--json"),
    "compact": ("compact", "PATH", "q"),
    "compact --json": ("compact", "PATH", "q", "--json"),
    "clear": ("clear", "PATH", "q"),
    "clear --json": ("clear", "PATH", "q", "--json"),
    "delete": ("delete", "PATH", "q", "--yes"),
    "delete --json": ("delete", "PATH", "q", "--yes", "--json"),
    "delete of items --json": ("delete", "PATH", "q", "--json"),
    "repair": ("repair", "PATH", "q"),
    "repair --json": ("repair", "PATH", "q", "--json"),
    "pool": ("pool", "show", "PATH", "q"),
    "pool --json": ("pool", "show", "PATH", "q", "--json"),
    "bench": ("bench", "PATH", "--seconds", "0.1"),
    "completion": ("completion", "bash"),
    "completion --json": ("completion", "bash", "--json"),
    "help": ("--help",),
    "help of get": ("get", "--help"),
    "no such verb": ("n\N{LATIN SMALL LETTER O WITH DIAERESIS}ne", "--json"),
}
"""Arguments for each verb. PATH and OUT stand for paths of its own."""
READS = {"put of stdin", "load", "load --json"}
CONDITIONS: dict[str, tuple[str | None, str | None, str | None]] = {
    "<&-": ("closed", None, None),
    ">&-": (None, "closed", None),
    "2>&-": (None, None, "closed"),
    "all closed": ("closed", "closed", "closed"),
    ">/dev/full": (None, "/dev/full", None),
    "2>/dev/full": (None, None, "/dev/full"),
    "broken pipe": (None, "broken", None),
    "both broken": (None, "broken", "broken"),
    "ascii": (None, None, None),
}
ASCII = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}


class Done(NamedTuple):
    """Result of a verb: its status, its output, and the paths that it was given."""

    status: int
    out: bytes
    err: bytes
    path: Path
    file: Path

    def is_quiet(self) -> bool:
        """Return whether stderr has no traceback, and no message of Python's own."""
        return not any(trace.encode() in self.err for trace in TRACES)


class Server:
    """A process that forks for each verb."""

    def __init__(self, root: Path) -> None:
        self._root, self._count = root, 0
        self.template = root / "template"
        with PersistentQueue(self.template, "empty", segment_bytes=65536) as queue:
            put(queue, b"gone")
            drain(queue)
        with PersistentQueue(self.template, "q", segment_bytes=65536) as queue:
            put(queue, *(f"{n} \N{SNOWMAN}".encode() for n in range(20)))
        self.given = root / "given"
        self.given.write_bytes(b'{"text": "a"}\n{"text": "b"}\n')
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, arguments: Sequence[str], condition: str = "") -> Done:
        """Run a verb with a copy of the template as its PATH."""
        self._count += 1
        at = self._root / f"{self._count}"
        at.mkdir()
        stdin, stdout, stderr = CONDITIONS.get(condition, (None, None, None))
        case = {
            "template": str(self.template),
            "path": str(at / "path"),
            "environment": ASCII if condition == "ascii" else {},
            "streams": [stdin or str(self.given), stdout or str(at / "out"), stderr or str(at / "err")],
            "arguments": [{"PATH": str(at / "path"), "OUT": str(at / "file")}.get(each, each) for each in arguments],
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        out, err = (each.read_bytes() if each.exists() else b"" for each in (at / "out", at / "err"))
        return Done(status, out, err, at / "path", at / "file")

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Yield the process, for one test."""
    server = Server(tmp_path)
    yield server
    server.close()


# --- files that the user names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["dump", "report"])
def test_row_06_the_users_own_part_and_a_planted_link_are_left_alone(
    open_queue: QueueFactory, tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted file or link is neither written to nor removed, even if it has the temporary name that the verb would
    take."""
    put(open_queue("q"), b"item")
    place = tmp_path / "place"
    place.mkdir()
    victim, own = place / "victim", place / "second.part"
    victim.write_bytes(b"precious")
    (place / "first.part").symlink_to(victim)
    own.write_bytes(b"the user's")
    tokens = iter(["0" * 16, "1" * 16, "2" * 16, "3" * 16])
    monkeypatch.setattr(files, "token_hex", lambda _length: next(tokens), raising=False)
    (place / f".{'0' * 16}.part").symlink_to(victim)
    (place / f".{'2' * 16}.part").symlink_to(place / "dangling")
    names = ["q"] if verb == "dump" else []
    for name in ("first", "second"):
        assert main([verb, str(tmp_path / "queues"), *names, "-o", str(place / name)]) == 0
        assert stat.S_IMODE((place / name).lstat().st_mode) == 0o600
    assert (victim.read_bytes(), own.read_bytes()) == (b"precious", b"the user's")
    left = {"victim", "first", "first.part", "second", "second.part", f".{'0' * 16}.part", f".{'2' * 16}.part"}
    assert {each.name for each in place.iterdir()} == left


def test_row_06_a_file_keeps_its_mode_and_its_directory_is_synced(
    open_queue: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is synced with its final mode and renamed, and then its directory is synced."""
    put(open_queue("q"), b"item")
    for mode in (0o640, 0o400):
        file = tmp_path / f"{mode:o}"
        file.write_bytes(b"before")
        file.chmod(mode)
        synced: list[tuple[bool, int, bytes]] = []
        fsync = os.fsync

        def note(
            fd: int, file: Path = file, synced: list[tuple[bool, int, bytes]] = synced, fsync: Any = fsync
        ) -> None:
            found = os.fstat(fd)
            synced.append((stat.S_ISDIR(found.st_mode), stat.S_IMODE(found.st_mode), file.read_bytes()[:6]))
            fsync(fd)

        with monkeypatch.context() as patched:
            patched.setattr("persistentqueue.cli.files.os.fsync", note)
            assert main(["dump", str(tmp_path / "queues"), "q", "-o", str(file)]) == 0
        assert synced[0] == (False, mode, b"before")
        assert (synced[1][0], synced[1][2]) == (True, b'{"sequ')
        assert stat.S_IMODE(file.stat().st_mode) == mode


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "full"), FileExistsError(17, "there")])
@pytest.mark.parametrize("call", ["open", "fchmod", "fsync", "replace"])
def test_row_06_whatever_ends_the_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: Any
) -> None:
    """An error or Ctrl-C just behind any call leaves no temporary file. The file is then the one before, or the new
    one."""
    file = tmp_path / "file"
    file.write_bytes(b"before")
    real = getattr(os, call)

    def fail(*arguments: Any, **options: Any) -> Any:
        if call == "open" and not options:  # opens the directory
            return real(*arguments, **options)
        result = real(*arguments, **options)
        if call == "open":
            os.close(result)
        raise error

    monkeypatch.setattr(f"persistentqueue.cli.files.os.{call}", fail)
    with pytest.raises(BaseException) as raised, files.written_to(str(file)) as part:
        part.write(b"new")
    assert raised.type is (error if isinstance(error, type) else type(error))
    monkeypatch.undo()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == (b"new" if call == "replace" else b"before")


def test_row_06_a_file_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no file can be made in the directory, the error names the file that the user has chosen."""
    opened = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if options:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opened(path, *arguments)

    monkeypatch.setattr("persistentqueue.cli.files.os.open", refuse)
    with pytest.raises(PermissionError) as raised, files.written_to(str(tmp_path / "page.html")):
        raise AssertionError("the file cannot be made")
    assert raised.value.filename == str(tmp_path / "page.html")


def test_row_06_devices_directories_and_stdout(open_queue: QueueFactory, tmp_path: Path, capfdbinary: Any) -> None:
    """A device stays a device, a directory is refused, and output to ``/dev/stdout`` follows the content that is
    there."""
    put(open_queue("q"), b"item")
    queues = str(tmp_path / "queues")
    assert main(["dump", queues, "q", "-o", os.devnull]) == 0
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    (tmp_path / "directory").mkdir()
    assert main(["dump", queues, "q", "-o", str(tmp_path / "directory")]) == 2
    assert list((tmp_path / "directory").iterdir()) == []
    line = [sys.executable, "-m", "persistentqueue", "dump", queues, "q", "-o", "/dev/stdout"]
    log = tmp_path / "log"
    log.write_bytes(b"before\n")
    with log.open("ab") as file:
        subprocess.run(line, stdout=file, stderr=subprocess.DEVNULL, check=True, timeout=60)
    before, item = log.read_bytes().splitlines()
    assert (before, json.loads(item)["text"]) == (b"before", "item")


# --- odd streams ---------------------------------------------------------------------------------------------------


def expected(normal: Done, name: str, condition: str) -> int:
    """Return the status that a verb must have under a condition, from its result without one."""
    stdin, stdout, _ = CONDITIONS[condition]
    if (stdin and name in READS) or (stdout and normal.out):
        return 2
    return normal.status


def wrong(normal: Done, done: Done, name: str, condition: str) -> Iterator[str]:
    """Yield each difference between a verb's result and the documentation."""
    status = expected(normal, name, condition)
    if done.status != status:
        yield f"status {done.status} instead of {status}: {done.err!r}"
    if not done.is_quiet():
        yield f"a traceback: {done.err!r}"
    if b'"error": {"type"' in done.out and b'"error": {"type"' not in normal.out:
        yield f"an error on stdout: {done.out!r}"
    if "--json" in VERBS[name]:
        for line in [*done.out.splitlines(), *done.err.splitlines()]:
            try:
                json.loads(line)
            except ValueError:
                yield f"no JSON: {line!r}"
        if done.status == 2 and condition in {"<&-", ">&-", ">/dev/full", "ascii"} and b'"error"' not in done.err:
            yield f"no error on stderr: {done.err!r}"
    elif condition == "ascii" and not name.startswith(("dump", "get")) and not (done.out + done.err).isascii():
        yield f"not ASCII: {done.out!r} {done.err!r}"
    if done.status != 2 and not CONDITIONS[condition][1] and bool(done.out) != bool(normal.out):
        yield f"another answer: {done.out!r}"
    if name.startswith("get ") and done.status == 2 and View(done.path, "q").look().depth != 20:
        yield "consumed what nobody was shown"


def test_row_13_each_verb_with_closed_and_odd_streams(server: Server) -> None:
    """Status and JSON of each verb are as documented under odd streams: one kind for each verb, or with EVERY_PLACE=1
    all."""
    problems = []
    names = list(CONDITIONS)
    for number, (name, arguments) in enumerate(VERBS.items()):
        normal = server.run(arguments)
        assert normal.is_quiet(), normal.err
        for condition in names if os.environ.get("EVERY_PLACE") else [names[number % len(names)]]:
            done = server.run(arguments, condition)
            problems += [f"{name} {condition}: {each}" for each in wrong(normal, done, name, condition)]
            shutil.rmtree(done.path.parent)
        shutil.rmtree(normal.path.parent)
    assert problems == []


@pytest.mark.parametrize(
    ("redirected", "arguments", "status"),
    [
        (">&-", "stat PATH q --json", 2),
        ("2>&-", "stat PATH none --json", 2),
        ("<&-", "put PATH q", 2),
        ("<&- >&- 2>&-", "get PATH q", 2),
        (">/dev/full", "--help", 2),
        ("2>/dev/full", "stat PATH none --json", 2),
    ],
)
def test_row_13_in_a_process_of_its_own(
    open_queue: QueueFactory, tmp_path: Path, redirected: str, arguments: str, status: int
) -> None:
    """In a process of its own, a verb has the documented status, no error on stdout, and no traceback on stderr."""
    with open_queue("q") as queue:
        put(queue, b"item")
    text = arguments.replace("PATH", str(tmp_path / "queues"))
    line = ["sh", "-c", f"exec {sys.executable} -m persistentqueue {text} {redirected}"]
    done = subprocess.run(line, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (status, b"")
    assert not any(trace.encode() in done.stderr for trace in TRACES)
    assert View(tmp_path / "queues", "q").look().depth == 1


@pytest.mark.parametrize("lines", [1, 40])
def test_row_13_get_into_head_consumes_what_was_shown(open_queue: QueueFactory, tmp_path: Path, lines: int) -> None:
    """When its reader ends, ``get`` consumes at most one more transaction than that of the last line shown. The items
    behind stay, in order."""
    with open_queue("q") as queue:
        put(queue, *(b"%d" % n for n in range(5000)))
    line = [sys.executable, "-m", "persistentqueue", "get", str(tmp_path / "queues"), "q", "--all"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        shown = [process.stdout.readline() for _ in range(lines)]
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(60)) == (b"", 2)
    assert shown == [b"%d\n" % n for n in range(lines)]
    with open_queue("q") as queue:
        left = drain(queue)
    consumed = 5000 - len(left)
    assert lines <= consumed <= 4 * lines + 3
    assert left == [b"%d" % n for n in range(consumed, 5000)]


def test_row_13_a_pipe_gets_all_items_in_order(open_queue: QueueFactory, tmp_path: Path) -> None:
    """``get`` into a pipe writes all items in order, by transactions that grow, and has status 0."""
    with open_queue("q") as queue:
        put(queue, *(b"%d" % n for n in range(5000)))
    line = [sys.executable, "-m", "persistentqueue", "get", str(tmp_path / "queues"), "q", "-n", "4321"]
    done = subprocess.run(line, capture_output=True, check=True, timeout=60)
    assert done.stdout == b"".join(b"%d\n" % n for n in range(4321))
    assert View(tmp_path / "queues", "q").look().depth == 5000 - 4321


# --- Ctrl-C --------------------------------------------------------------------------------------------------------

INTERRUPTED_VERBS = (
    ("get", "PATH", "empty", "--timeout", "60"),
    ("get", "PATH", "q", "--all"),
    ("put", "PATH", "q", "one"),
    ("dump", "PATH", "q"),
    ("move", "PATH", "q", "--to", "empty"),
    ("compact", "PATH", "q"),
    ("check", "PATH", "q", "--json"),
    ("top", "PATH", "--interval", "0.05"),
)


BEGIN = r"""
import os, signal, sys
from persistentqueue.cli import main

if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # as of the first import of the package
sys.stdout.write("begun\n")
sys.stdout.flush()
sys.exit(main())
"""
AT_IMPORT = r"""
import os, signal, sys


class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)


sys.meta_path.insert(0, Interrupting())
"""


@pytest.mark.parametrize("seed", range(4))
def test_row_03_an_interrupt_at_any_moment_of_any_verb(server: Server, tmp_path: Path, seed: int) -> None:
    """Ctrl-C gives status 130 without a message on stderr, unless the verb has ended before, with its own status."""
    choice = random.Random(seed)
    for number, verb in enumerate(INTERRUPTED_VERBS):
        path = tmp_path / f"interrupted-{number}"
        shutil.copytree(server.template, path)
        line = [sys.executable, "-c", BEGIN, *(str(path) if each == "PATH" else each for each in verb)]
        with interruptible():
            process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            with suppress(subprocess.TimeoutExpired):
                process.wait(choice.random())
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        assert not any(trace.encode() in err for trace in (*TRACES, "Interrupt", "Error")), (verb, err)
        assert process.returncode in ({130} if "--timeout" in verb else {130, 0}), (verb, process.returncode, err)
        with PersistentQueue(path, "q") as queue, PersistentQueue(path, "empty") as other:
            items = [item for item in (*drain(queue), *drain(other)) if item != b"one"]
        assert len(items) == 20 or verb[:3] == ("get", "PATH", "q"), verb


AT_SYNC = r"""
import os, signal, sys
from persistentqueue.cli import main

number = int(sys.argv.pop())
signal.signal(number, signal.SIG_DFL)  # a test run under nohup ignores SIGHUP
os.fsync = lambda _fd: os.kill(os.getpid(), number)
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_row_03_a_signal_leaves_nothing_behind(
    open_queue: QueueFactory, tmp_path: Path, number: signal.Signals
) -> None:
    """SIGTERM and SIGHUP end a verb as Ctrl-C does, without a file that is half written. The status has the signal."""
    put(open_queue("q"), b"one")
    output = tmp_path / "output"
    output.mkdir()
    line = ["dump", str(tmp_path / "queues"), "q", "-o", str(output / "dump"), str(int(number))]
    done = subprocess.run([sys.executable, "-c", AT_SYNC, *line], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-number, b"", b"")
    assert list(output.iterdir()) == []


@pytest.mark.parametrize("is_script", [False, True])
@pytest.mark.parametrize(
    "name", ["persistentqueue.errors", "persistentqueue.queue", "persistentqueue.cli", "persistentqueue.cli.verbs"]
)
def test_row_03_an_interrupt_while_it_starts(tmp_path: Path, name: str, is_script: bool) -> None:
    """From the first import of the package on, Ctrl-C gives status 130, without output."""
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT)
    script = tmp_path / "bin" / "persistentqueue"
    script.parent.mkdir()
    script.write_text("import sys\nfrom persistentqueue.cli import main\nsys.exit(main())\n")
    line = [sys.executable, *([str(script)] if is_script else ["-m", "persistentqueue"]), "list", str(tmp_path)]
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    with interruptible():
        process = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "INTERRUPT_AT": name},
        )
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize("error", [RuntimeError("release unlocked lock"), BrokenQueueError("broken", Path("q"))])
def test_row_03_an_error_that_came_of_an_interrupt(
    open_queue: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, error: Exception
) -> None:
    """An interrupt that becomes another error on its way out gives status 130, without output."""
    open_queue("q").close()

    def interrupted(*_: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise error

    monkeypatch.setattr("persistentqueue.Session.dequeue_many", interrupted)
    assert main(["get", str(tmp_path / "queues"), "q"]) == 130
    assert capfd.readouterr() == ("", "")


def test_row_03_an_unexpected_error_is_not_the_status_of_nothing(
    open_queue: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """An error that no verb expects is reported in JSON, with status 2."""
    open_queue("q").close()

    def fail(*_: object) -> None:
        raise RuntimeError("odd")

    monkeypatch.setattr("persistentqueue.Session.dequeue_many", fail)
    assert main(["get", str(tmp_path / "queues"), "q", "--json"]) == 2
    out, err = capfd.readouterr()
    assert (out, json.loads(err)) == ("", {"error": {"type": "RuntimeError", "message": "odd"}})


def test_too_little_memory_is_told_in_words(
    open_queue: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """An error of Python about memory, which has no words of its own, says what to do."""
    open_queue("q").close()

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("persistentqueue.Session.dequeue_many", fail)
    assert main(["get", str(tmp_path / "queues"), "q"]) == 2
    expected = "MemoryError: this process has too little memory for the command: give it more, then run"
    assert capfd.readouterr().err.startswith(expected)


def test_row_03_an_ignored_interrupt_stays_ignored(open_queue: QueueFactory, tmp_path: Path) -> None:
    """A verb that was started with SIGINT ignored, as by ``nohup``, runs to its end."""
    open_queue("q").close()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        line = [sys.executable, "-c", BEGIN, "get", str(tmp_path / "queues"), "q", "--timeout", "1"]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        assert process.communicate() == (b"", b"")
    assert process.returncode == 1
