"""Errors of the command line that say what helps: about missing queues, locks, subscriptions and keys."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from persistentqueue import Encryption, PersistentQueue, QueueNotFoundError, SubscriptionNotFoundError, View
from persistentqueue.cli import write_verbs
from persistentqueue.cli.app import explanation
from persistentqueue.cli.output import log_at_once, logged
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.faces.test_cli import cli
from tests.support.disks import using_disk
from tests.support.queues import flip, put

MISSING = "/queues/q: no queue here to read"
"""An error of the library about a path without a queue."""


@pytest.fixture
def queues(path: Path) -> Path:
    """Return a directory with the queues ``mails`` and ``orders``; the second one has an item."""
    PersistentQueue(path, "mails").close()
    with PersistentQueue(path, "orders") as queue:
        put(queue, b"item")
    return path


# --- queues that are missing, or named twice -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["move", "PATH", "orders", "--to", "orders"],
        ["move", "PATH/orders", ".", "--to", "orders"],
        ["requeue", "PATH", "a", "--from", "a"],
        ["requeue", "PATH/orders", ".", "--from", "orders"],
    ],
)
def test_a_queue_is_not_its_own_target(queues: Path, words: list[str]) -> None:
    """A command that is to move items of a queue to that queue itself is refused as a wrong use, and opens nothing."""
    done = cli(*(each.replace("PATH", str(queues)) for each in words))
    assert (done.status, done.out) == (2, b"")
    assert done.err.startswith(f"UsageError: {words[3]} {words[4]}: this is the queue itself: ")
    assert View(queues, "orders").look().depth == 1
    assert not (queues / "a").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["stat", "PATH", "ordrs"],
        ["peek", "PATH", "ordrs"],
        ["check", "PATH", "ordrs"],
        ["repair", "PATH", "ordrs"],
        ["pool", "show", "PATH", "ordrs"],
        ["compact", "PATH", "ordrs"],
        ["clear", "PATH", "ordrs"],
        ["delete", "PATH", "ordrs"],
        ["delete", "PATH", "ordrs", "--yes"],
        ["report", "PATH", "ordrs"],
        ["top", "PATH", "ordrs", "--once"],
        ["get", "PATH", "ordrs"],
        ["put", "PATH", "ordrs", "item", "--no-create"],
        ["load", "PATH", "ordrs", "--no-create"],
        ["move", "PATH", "ordrs", "--to", "new"],
        ["move", "PATH", "ordrs", "--back"],
        ["requeue", "PATH", "ordrs", "--from", "mails"],
        ["requeue", "PATH", "mails", "--from", "ordrs"],
        ["serve", "PATH", "mails", "ordrs", "--no-create"],
        ["worker", "PATH", "ordrs", "os:fsencode", "--no-create", "--lock-timeout", "0"],
    ],
)
def test_a_mistyped_name_is_answered_with_the_names_that_exist(queues: Path, words: list[str]) -> None:
    """The error for a missing queue has the name, the most similar one and all others, and no argument of Python."""
    done = cli(*(str(queues) if each == "PATH" else each for each in words))
    assert (done.status, done.out) == (2, b"")
    assert done.err == (
        f"QueueNotFoundError: {queues}: there is no queue 'ordrs' in this directory; did you mean orders? Its queues: "
        "mails, orders\n"
    )
    assert sorted(each.name for each in queues.iterdir()) == ["mails", "orders"]


def test_dead_letters_are_looked_for_beside_a_queue_without_a_name(queues: Path) -> None:
    """With . as the name, ``requeue`` tells which queue is missing: the one at the path, or the one beside it."""
    done = cli("requeue", queues / "orders", ".", "--from", "mial")
    assert done.err == (
        f"QueueNotFoundError: {queues}: there is no queue 'mial' in this directory; did you mean mails? "
        "Its queues: mails, orders\n"
    )
    for dead_letter in ("mails", "mial"):
        assert cli("requeue", queues, ".", "--from", dead_letter).err == (
            f"QueueNotFoundError: {queues}: this directory is no queue itself: name one of its queues: mails, orders\n"
        )


def test_only_the_first_names_are_listed(path: Path) -> None:
    """The error for a missing queue lists ten names at most, and says if there are more."""
    for number in range(11):
        PersistentQueue(path, f"q{number:02}").close()
    said = cli("get", path, "x").err
    assert said.endswith(
        f"there is no queue 'x' in this directory. Its queues: {', '.join(f'q0{n}' for n in range(10))}, …\n"
    )


def test_a_directory_without_queues(queues: Path, tmp_path: Path) -> None:
    """The error for a missing queue says whether the directory is missing, is empty, or is a queue itself."""
    (tmp_path / "empty").mkdir()
    nowhere, empty, orders = tmp_path / "nowhere", tmp_path / "empty", queues / "orders"
    for words, said in (
        (["get", nowhere, "q"], f"{nowhere}: there is no such directory: check the path"),
        (["list", nowhere], f"{nowhere}: there is no such directory: check the path"),
        (["get", empty, "q"], f"{empty}: there is no queue in this directory: check the path"),
        (["get", empty], f"{empty}: there is no queue in this directory: check the path"),
        (["get", queues], f"{queues}: this directory is no queue itself: name one of its queues: mails, orders"),
        (["get", queues, "."], f"{queues}: this directory is no queue itself: name one of its queues: mails, orders"),
        (["get", orders, "orders"], f"{orders}: this directory is itself a queue, and has none of the name 'orders': "),
    ):
        done = cli(*words)
        assert (done.status, done.out) == (2, b"")
        assert done.err.startswith(f"QueueNotFoundError: {said}"), done.err
        assert cli(*words, "--json").error["type"] == "QueueNotFoundError"
    assert (list(empty.iterdir()), nowhere.exists()) == ([], False)


def test_serve_without_queues_says_that_it_makes_named_ones(tmp_path: Path) -> None:
    """``serve`` in a directory without queues asks for names of queues to make, unless it may make none."""
    making = f"name the queues to make: persistentqueue serve {tmp_path} NAME"
    assert cli("serve", tmp_path).err == (
        f"QueueNotFoundError: {tmp_path}: there is no queue in this directory: {making}\n"
    )
    assert "check the path" in cli("serve", tmp_path, "--no-create").err
    assert list(tmp_path.iterdir()) == []


def test_an_open_queue_that_was_renamed_keeps_its_error(queues: Path) -> None:
    """If the directory of an open queue is renamed, the error says so, and does not ask for another name."""
    with PersistentQueue(queues, "orders") as queue:
        (queues / "orders").rename(queues / "sent")
        with pytest.raises(QueueNotFoundError) as raised:
            queue.view()
        values = {"path": str(queues), "name": "orders"}
        assert explanation(raised.value, values) == str(raised.value)
        assert "its directory was renamed" in str(raised.value)


def test_a_queue_that_was_made_meanwhile_keeps_its_error(queues: Path) -> None:
    """If all queues of the command exist when an error tells of a missing one, its words stay."""
    for values in ({"path": str(queues), "name": "orders"}, {"path": str(queues / "orders"), "name": None}):
        assert explanation(QueueNotFoundError(MISSING), values) == MISSING


def test_a_directory_that_cannot_be_read_leaves_an_error_its_words(
    queues: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the names of the queues cannot be read, the error of a missing queue has its own words."""

    def refuse(_path: object) -> list[str]:
        raise PermissionError("not for you")

    monkeypatch.setattr("persistentqueue.cli.app.list_queues", refuse)
    assert explanation(QueueNotFoundError(MISSING), {"path": str(queues), "name": "q"}) == MISSING


def test_a_queue_that_cannot_be_seen_now_is_not_left_out(queues: Path) -> None:
    """If a directory cannot be listed now, ``list`` says so, in place of the queues that it found until then."""

    def listdir(path: str) -> list[str]:
        if str(path).endswith("/log"):
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), path)
        return DISK.listdir(path)

    with using_disk(replace(DISK, listdir=listdir)):
        done = cli("list", queues)
    assert done.status == 2
    assert os.strerror(errno.ETIMEDOUT) in done.err


def test_bench_needs_a_directory(tmp_path: Path) -> None:
    """``bench`` of a directory that does not exist is refused with the path that was given."""
    done = cli("bench", tmp_path / "nowhere")
    assert (done.status, done.out) == (2, b"")
    assert done.err == (
        f"UsageError: {tmp_path / 'nowhere'}: there is no such directory: name one on the disk to measure\n"
    )


def test_bench_names_the_directory_that_takes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If ``bench`` cannot make its directory, the error has the path that was given, and no random name."""

    def refuse(**asked: str) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", f"{asked}")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    assert cli("bench", tmp_path).err == (
        f"PermissionError: {tmp_path}: no directory can be made here: Permission denied: name a directory on the disk "
        "to measure that this user may write to\n"
    )


# --- locks, subscriptions and keys ---------------------------------------------------------------------------------


class Beside(NamedTuple):
    """The advice of a command beside an owner."""

    waits: bool
    is_served: bool


@pytest.mark.parametrize("serves", [False, True])
@pytest.mark.usefixtures("patient")
def test_who_needs_the_lock_learns_how_to_do_without(queues: Path, serves: bool) -> None:
    """Beside an owner that serves, the error points to workers. Only a command without ``--lock-timeout`` says so."""
    with PersistentQueue(queues, "orders", serve=serves):
        for words, expected in (
            (["get", queues, "orders"], Beside(True, serves)),
            (["move", queues, "orders", "--to", "new"], Beside(True, serves)),
            (["serve", queues, "orders"], Beside(True, serves)),
            (["repair", queues, "orders"], Beside(False, False)),
        ):
            said = cli(*words).err
            assert said.startswith("QueueLockedError: ")
            found = Beside("or wait for it with --lock-timeout" in said, "persistentqueue worker" in said)
            assert (found, "repair" in said) == (expected, False), said
            assert ("has no --lock-timeout" in said) == (not expected.waits)
            assert ("persistentqueue.connect" in said) == expected.is_served


def test_the_names_of_subscriptions_are_told(open_queue: QueueFactory, path: Path) -> None:
    """If a command cannot take items from a queue, its error names the subscriptions, and the option for them."""
    with open_queue("fan", fan_out=True) as queue:
        for name in ("audit", "bills"):
            queue.subscribe(name)
    open_queue("none", fan_out=True).close()
    open_queue("plain").close()
    fan, none = (f"SubscriptionNotFoundError: {path / name}: the queue has" for name in ("fan", "none"))
    option = "name one of these with --subscription: audit, bills\n"
    assert cli("get", path, "fan").err == f"{fan} only subscriptions: {option}"
    assert cli("get", path / "fan").err == f"{fan} only subscriptions: {option}"
    for verb in ("get", "peek", "dump"):
        assert cli(verb, path, "fan", "--subscription", "bill").err == f"{fan} no subscription 'bill': {option}"
    assert cli("get", path, "none").err.startswith(f"{none} only subscriptions: none exists: ")
    assert cli("move", path, "fan", "--to", "plain").err == (
        f"{fan} only subscriptions: this command takes none of their items: use persistentqueue get --subscription "
        "with one of: audit, bills\n"
    )
    assert cli("move", path, "fan", "--to", "new").status == 2 and not (path / "new").exists()


def test_the_path_of_an_unknown_subscription(path: Path) -> None:
    """The error of ``get`` has the directory of the queue, also if the queue was opened by its name."""
    for arguments in ((path, "fan"), (path / "fan",)):
        with (
            PersistentQueue(*arguments) as queue,
            pytest.raises(SubscriptionNotFoundError) as caught,
        ):
            write_verbs._session(queue, "bill")
        assert caught.value.path == str(path / "fan") and str(caught.value).startswith(f"{path / 'fan'}: ")


def test_segments_at_another_path_are_named_to_repair(open_queue: QueueFactory, path: Path, tmp_path: Path) -> None:
    """The error about segments that are not at their place has the command by which their new path is named."""
    open_queue("q", data_path=tmp_path / "old").close()
    (tmp_path / "old").rename(tmp_path / "new")
    assert "where that disk is mounted now (persistentqueue repair --data-path DIR); if" in cli("get", path, "q").err
    assert cli("repair", path, "q", "--data-path", tmp_path / "new").status == 1
    assert cli("get", path, "q").status == 1 and not cli("get", path, "q").err


@pytest.mark.parametrize(
    "words",
    [
        ["put", "PATH", "q", "item"],
        ["load", "PATH", "q"],
        ["peek", "PATH", "q"],
        ["dump", "PATH", "q"],
        ["get", "PATH", "q"],
        ["move", "PATH", "q", "--to", "other"],
        ["compact", "PATH", "q", "--below", "1"],
        ["worker", "PATH", "q", "os:fsencode", "--until-empty"],
    ],
)
def test_a_key_file_that_is_missing_is_a_wrong_use(
    open_queue: QueueFactory, path: Path, tmp_path: Path, words: list[str]
) -> None:
    """The error for a key file that cannot be read is that of the option, not that of the key."""
    with open_queue("q", encryption=Encryption("k", lambda _: bytes(32))) as queue:
        put(queue, b"secret")
    file = tmp_path / "none.key"
    given = b'{"text": "loaded"}\n'
    done = cli(*(str(path) if each == "PATH" else each for each in words), "--key", f"k={file}", given=given)
    assert (done.status, done.out) == (2, b"")
    assert done.err == f"UsageError: --key k={file}: No such file or directory\n"
    assert View(path, "q").look().depth == 1


KEY = bytes(range(16)).hex()
"""A key of 16 bytes in hex: its 32 characters could also be a key of 32 bytes."""


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (f"{KEY}\n".encode(), bytes(range(16))),
        (KEY.encode().hex().encode(), KEY.encode()),
        (f"{KEY[:24]}\r\n".encode() * 2, bytes.fromhex(2 * KEY[:24])),
        (KEY[:24].encode(), KEY[:24].encode()),
        (bytes(32), bytes(32)),
    ],
)
def test_a_key_file_is_raw_or_in_hex(
    open_queue: QueueFactory, path: Path, tmp_path: Path, content: bytes, key: bytes
) -> None:
    """A key file is read as raw bytes or as hex, if only one of them is a key."""
    with open_queue("q", encryption=Encryption("k", lambda _: key)) as queue:
        put(queue, b"secret")
    (tmp_path / "key").write_bytes(content)
    assert cli("get", path, "q", "--key", f"k={tmp_path / 'key'}").out == b"secret\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (KEY.encode(), "the 32 characters are a key of 16 bytes in hex, or of 32 bytes, raw: if they are hex, end"),
        (b"ab" * 20, "expected a key of 16, 24 or 32 bytes, raw or in hex; found 20 bytes in hex: give the file of"),
        (b"", "expected a key of 16, 24 or 32 bytes, raw or in hex; found 0 bytes: give the file of"),
        (b"x" * 40, "expected a key of 16, 24 or 32 bytes, raw or in hex; found 40 bytes: give the file of"),
    ],
)
def test_a_key_file_that_is_no_certain_key_is_refused(path: Path, tmp_path: Path, content: bytes, told: str) -> None:
    """A file that is no key, or whose bytes are two different keys, is refused as a wrong use, without its bytes."""
    file = tmp_path / "key"
    file.write_bytes(content)
    done = cli("put", path, "q", "item", "--key", f"k={file}")
    assert done.status == 2
    assert done.err.splitlines()[-1].startswith(f"UsageError: --key k={file}: {told}")
    assert not content or content.decode() not in done.err


def test_a_key_may_come_through_a_pipe(open_queue: QueueFactory, path: Path) -> None:
    """A command that opens two queues reads its key only once: the file may be a pipe, as that of ``<(command)``."""
    pytest.importorskip("cryptography", reason="cryptography is not installed")
    key = bytes(range(32))
    with open_queue("q", encryption=Encryption("k", lambda _: key)) as queue:
        put(queue, b"secret")
    reader, writer = os.pipe()
    os.write(writer, key)
    os.close(writer)
    try:
        done = cli("move", path, "q", "--to", "other", "--key", f"k=/dev/fd/{reader}")
    finally:
        os.close(reader)
    assert (done.status, done.text) == (0, "moved: 1 item from q to other\n"), done.err


# --- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.damages
@pytest.mark.parametrize("words", [["get", "PATH", "q"], ["move", "PATH", "q", "--to", "r"], ["serve", "PATH", "q"]])
@pytest.mark.parametrize("as_json", [False, True])
def test_damage_that_ends_a_command_is_told_once(path: Path, words: list[str], as_json: bool) -> None:
    """An error about damage stands once on stderr: as the error of the command, and not as a line of the log, too."""
    with PersistentQueue(path, "q", inline_bytes=0) as queue:
        put(queue, bytes(1000))
    kind = "log" if words[0] == "serve" else "data"
    flip(max((path / "q" / kind).glob("*.log" if kind == "log" else "*.seg")), 200 if kind == "data" else 20)
    PersistentQueue(path, "r").close()
    done = cli(*(str(path) if each == "PATH" else each for each in words), *(["--json"] if as_json else []))
    (line,) = done.err.splitlines()
    assert done.status == 2
    assert (done.error["type"] if as_json else line.partition(": ")[0]) == "CorruptionError"


@pytest.mark.parametrize("error", [None, OSError("other"), ValueError("damaged")])
@pytest.mark.parametrize("is_long", [False, True])
def test_a_line_of_the_log_is_left_out_only_for_its_own_error(
    capsys: pytest.CaptureFixture[str], error: Exception | None, is_long: bool
) -> None:
    """An error that is logged, and not raised, is a line on stderr, in the order of the log. A verb that runs for long
    writes it at once."""
    log = logging.getLogger("persistentqueue")
    with suppress(OSError, ValueError), logged(as_json=False):
        log.error("%s", ValueError("first"))
        if is_long:
            log_at_once()
        log.error("%s", ValueError("damaged"))
        said = capsys.readouterr().err
        assert ("damaged" in said) == is_long
        if error is not None:
            raise error
    said += capsys.readouterr().err
    assert said == ("first\n" if isinstance(error, ValueError) and not is_long else "first\ndamaged\n")


# --- answers -------------------------------------------------------------------------------------------------------


def test_an_empty_queue_is_explained(queues: Path) -> None:
    """``explain`` says of a queue without data files that no item is left; it is silent about that for others."""
    assert cli("explain", queues, "mails").text == "no segment holds items: none is left\n"
    assert cli("explain", queues, "mails", "--json").json == {"name": "mails", "segments": [], "findings": []}
    assert "no segment" not in cli("explain", queues, "orders").text


# --- streams and files that cannot be read or written --------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(
    "words",
    [
        ["get", "PATH", "orders"],
        ["list", "PATH"],
        ["dump", "PATH", "orders"],
        ["dump", "PATH", "orders", "-o", "/dev/full"],
        ["report", "PATH", "-o", "/dev/full"],
        ["top", "PATH", "--once"],
        ["--version"],
    ],
)
def test_an_output_that_is_full_is_named(queues: Path, words: list[str]) -> None:
    """An error of stdout, or of an output file, names it, so that it is not taken for an error of the queue."""
    line = [sys.executable, "-m", "persistentqueue", *(each.replace("PATH", str(queues)) for each in words)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    output = words[-1] if words[-1] == "/dev/full" else "stdout"
    told = "No space left on device: give another output, or free some space"
    assert (done.returncode, done.stderr.decode()) == (2, f"OSError: {output} cannot be written: {told}\n")
    assert View(queues, "orders").look().depth == 1


def _without_a_reader() -> int:
    """Return the end of a pipe that no process reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("problem", ["No space left on device", "Broken pipe"])
@pytest.mark.parametrize(
    ("words", "done"),
    [
        (["put", "PATH", "orders", "a", "b", "--json"], "enqueued 2 items"),
        (["load", "PATH", "orders", "--json"], "enqueued 1 item"),
        (["move", "PATH", "orders", "--to", "mails"], "moved 1 item from orders to mails"),
        (["move", "PATH", "orders", "--to", "mails", "--json"], "moved 1 item from orders to mails"),
        (["requeue", "PATH", "mails", "--from", "orders"], "requeued 0 items from orders to mails"),
        (["requeue", "PATH", "mails", "--from", "orders", "--json"], "requeued 0 items from orders to mails"),
    ],
)
def test_a_change_without_an_answer_is_told(queues: Path, words: list[str], done: str, problem: str) -> None:
    """If the answer of a command that changes a queue cannot be written, the error says what was changed."""
    line = [sys.executable, "-m", "persistentqueue", *(each.replace("PATH", str(queues)) for each in words)]
    with open("/dev/full" if problem.startswith("No space") else _without_a_reader(), "wb") as output:
        ended = subprocess.run(
            line, input=b'{"text": "a"}\n', stdout=output, stderr=subprocess.PIPE, check=False, timeout=60
        )
    told = f"stdout cannot be written: {problem}: the command has {done}, so do not repeat it"
    assert ended.returncode == 2
    assert told in ended.stderr.decode()


@pytest.mark.parametrize("words", [["put", "PATH", "orders", "-"], ["put", "PATH", "orders", "a", "-"]])
def test_a_dash_among_the_arguments_is_refused(queues: Path, words: list[str]) -> None:
    """An argument ``-`` is neither stdin nor an item, unless it stands behind ``--``."""
    done = cli(*(each.replace("PATH", str(queues)) for each in words))
    told = "UsageError: put: no such option: -. An argument that begins with a hyphen stands behind --.\n"
    assert (done.status, done.err) == (2, told)
    assert View(queues, "orders").look().depth == 1
    assert cli("put", queues, "orders", "--", "-").status == 0
    assert list(View(queues, "orders").browse())[-1].data == b"-"


@pytest.mark.parametrize("verb", ["dump", "report"])
def test_an_output_that_is_a_directory_is_named(queues: Path, verb: str) -> None:
    """If the output is a directory, the error advises another output alone: free space would not help."""
    done = cli(verb, queues, *(["orders"] if verb == "dump" else []), "-o", queues)
    told = f"IsADirectoryError: {queues} cannot be written: Is a directory: give another output\n"
    assert (done.status, done.err) == (2, told)


@pytest.mark.parametrize("verb", ["dump", "report"])
def test_an_output_that_is_a_circle_of_links_is_named(queues: Path, tmp_path: Path, verb: str) -> None:
    """If the output is a link to itself, the error names it, and the link stays."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    done = cli(verb, queues, *(["orders"] if verb == "dump" else []), "-o", loop)
    told = f"OSError: {loop} cannot be written: {os.strerror(errno.ELOOP)}: give another output\n"
    assert (done.status, done.err) == (2, told)
    assert os.readlink(loop) == str(loop)


@pytest.mark.parametrize("words", [["put"], ["put", "--whole"], ["load"]])
def test_a_closed_stdin_is_named(queues: Path, words: list[str]) -> None:
    """If stdin is closed, the error names it, and no item is enqueued."""
    verb, *options = words
    line = [sys.executable, "-m", "persistentqueue", verb, str(queues), "orders", *options]
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *line]
    done = subprocess.run(closed, capture_output=True, check=False, timeout=60)
    told = "OSError: stdin cannot be read: Bad file descriptor: give another input\n"
    assert (done.returncode, done.stderr.decode()) == (2, told)
    assert View(queues, "orders").look().depth == 1
