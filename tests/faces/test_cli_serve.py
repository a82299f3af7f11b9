"""The verb ``serve``: a process that only owns queues, for workers in others; its start, its end, its death."""

from __future__ import annotations

import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import DeadLetter, Options, PersistentQueue, QueueFullError, View, connect, transaction
from persistentqueue.cli.parser import VERBS
from persistentqueue.options import relied_on
from persistentqueue.storage.inbox_limits import read_limits
from persistentqueue.storage.layout import SOCKET_NAME
from persistentqueue.system.disk import DISK
from tests.faces.test_cli import cli
from tests.support.commands import Command
from tests.support.queues import wait_for


def serving(path: Path, *arguments: object) -> Command:
    """Return the verb, which serves when its line has come."""
    command = Command("serve", path, *arguments, directory=path.parent)
    line = command.line()
    assert line.startswith(("serving ", '{"serving"')), command.finish()
    return command


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_use_the_queues_until_a_signal_seals_them(path: Path, number: signal.Signals) -> None:
    """Processes that never own a queue use those that are served. A signal ends the owner with status 0, and seals."""
    with serving(path, "orders", "mails") as owner:
        with connect(path, "orders", serve="never") as orders, connect(path, "mails", serve="never") as mails:
            with orders.transaction() as session:
                session.enqueue_many([b"one", b"two"])
            with mails.transaction() as session:
                session.enqueue(b"mail")
            assert (orders.peek(3), mails.peek(3)) == ([b"one", b"two"], [b"mail"])
        assert View(path, "orders").look().is_owned
        owner.send(number)
        assert owner.finish() == (0, "", f"made the queue {path}/orders\nmade the queue {path}/mails\n")
    for name in ("orders", "mails"):
        seen = View(path, name).look()
        assert (seen.is_owned, seen.is_sealed) == (False, True)


def test_a_line_says_what_is_served(path: Path, tmp_path: Path) -> None:
    """Without names, all queues of the directory are served, and none is made. The line is text, or JSON. It has each
    queue once."""
    for name in ("orders", "mails"):
        PersistentQueue(path, name).close()
    for arguments in ([], ["mails", "orders", "mails"], ["--json"]):
        with Command("serve", path, *arguments, directory=tmp_path) as owner:
            line = owner.line()
            if "--json" in arguments:
                expected = {"serving": ["mails", "orders"], "path": str(path), "process": owner.process.pid}
                assert json.loads(line) == expected
            else:
                assert line == f"serving mails, orders in {path}, process {owner.process.pid}"
            owner.send(signal.SIGTERM)
            assert owner.finish() == (0, "", "")


def test_a_queue_without_a_name(tmp_path: Path) -> None:
    """PATH is the queue if its name is a dot, or if it holds no other queues."""
    for names in (["."], []):
        with serving(tmp_path / "queue", *names) as owner:
            with connect(tmp_path / "queue", None, serve="never") as queue:
                assert len(queue) == 0
            owner.send(signal.SIGTERM)
            assert owner.finish()[0] == 0


def test_nothing_to_serve(path: Path, tmp_path: Path) -> None:
    """A path without a queue is an error, and so is a missing queue with ``--no-create``: nothing is made."""
    tmp_path.joinpath("empty").mkdir()
    for arguments in ([tmp_path / "empty"], [path], [path, "orders", "--no-create"]):
        done = cli("serve", *arguments)
        assert (done.status, done.out) == (2, b"")
        assert done.err.startswith("QueueNotFoundError: "), done.err
    assert "--max-attempts needs --dead-letter" in cli("serve", path, "orders", "--max-attempts", 3).err
    done = cli("serve", path, "orders", "--dead-letter", "orders")
    assert done.err == (
        "UsageError: --dead-letter orders: no queue is left to serve: name another queue for dead letters\n"
    )
    assert os.listdir(tmp_path) == ["empty"]
    assert os.listdir(tmp_path / "empty") == []


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_lets_workers_finish(path: Path, threads: ThreadPoolExecutor, signals: int) -> None:
    """An owner that was told to end waits for the flush of a session that holds an item, and gives no item to another
    one. A second signal ends the wait, and the session goes on at the next owner."""
    with serving(path, "orders", "--grace-seconds", 600) as owner, connect(path, "orders") as orders:
        with orders.transaction() as session:
            session.enqueue_many([b"1", b"2"])
        with orders.session() as session, orders.session() as other:

            def take_until_another_process_owns() -> bytes | None:
                while (item := other.dequeue()) is not None and not orders.owns:
                    other.rollback()
                return item

            assert session.dequeue() == b"1"
            owner.send(signal.SIGTERM)
            taking = threads.submit(take_until_another_process_owns)
            wait_for(lambda: any(each.waits for each in orders.connections()))
            if signals == 1:
                assert session.flush() is True
            else:
                owner.send(signal.SIGTERM)
            assert owner.finish()[0] == 0
            assert taking.result() == b"2"
            other.rollback()
            assert session.flush() is True  # at the next owner, if the wait was ended


@pytest.mark.parametrize("is_first", [True, False])
def test_a_signal_lets_transactions_over_several_queues_finish(
    path: Path, threads: ThreadPoolExecutor, is_first: bool
) -> None:
    """An owner that was told to end stays with all queues until a transaction over two of them has ended. It does so
    even if that has nothing yet in one of them."""
    names = ("orders", "mails") if is_first else ("mails", "orders")
    with (
        serving(path, *names, "--grace-seconds", 600) as owner,
        connect(path, "orders") as orders,
        connect(path, "mails") as mails,
        orders.session() as other,
    ):
        with orders.transaction() as session:
            session.enqueue_many([b"1", b"2"])

        def take_until_another_process_owns() -> bytes | None:
            while (item := other.dequeue()) is not None and not orders.owns:
                other.rollback()
            return item

        with transaction(orders, mails) as (taking, putting):
            assert taking.dequeue() == b"1"
            owner.send(signal.SIGTERM)
            at_next_owner = threads.submit(take_until_another_process_owns)
            wait_for(lambda: any(each.waits for each in orders.connections()))
            assert (len(mails), mails.owns) == (0, False)  # it serves both of them
            putting.enqueue(b"about 1")
        assert owner.finish()[0] == 0
        assert at_next_owner.result() == b"2"
        other.rollback()
        assert (orders.peek(9), mails.peek(9)) == ([b"2"], [b"about 1"])


def test_a_second_owner_is_refused_or_waits(path: Path) -> None:
    """A second owner fails with the process that has the lock. With ``--lock-timeout`` it waits for the end."""
    with serving(path, "orders") as first:
        with Command("serve", path, "orders", directory=path) as refused:
            status, out, err = refused.finish()
            assert (status, out) == (2, "")
            assert err.startswith("QueueLockedError: ")
            assert f"process {first.process.pid} on" in err
        with Command("serve", path, "orders", "--lock-timeout", 100, directory=path) as second:
            first.send(signal.SIGTERM)
            assert second.line().startswith("serving orders")
            assert first.finish()[0] == 0
            with connect(path, "orders", serve="never") as queue:
                assert len(queue) == 0


def test_a_signal_ends_the_wait_for_the_lock(path: Path) -> None:
    """A process that waits for the lock ends at SIGTERM, with status 130, and closes what it has opened."""
    PersistentQueue(path, "mails").close()
    with (
        serving(path, "orders"),
        Command("serve", path, "mails", "orders", "--lock-timeout", 100, directory=path) as waiting,
    ):
        wait_for((path / "mails" / SOCKET_NAME).exists)  # behind the imports, which a signal may leave with a file open
        waiting.send(signal.SIGTERM)
        assert waiting.finish() == (130, "", "")
    assert View(path, "mails").look().is_sealed


def test_a_worker_takes_over_from_a_killed_owner(path: Path) -> None:
    """After ``kill -9`` of the owner, a process that is connected becomes the owner, and every flush is there."""
    with serving(path, "orders") as owner, connect(path, "orders", lock_timeout=60.0) as queue:
        put_session = queue.session()
        put_session.enqueue_many([b"one", b"two"])
        put_session.flush()
        roles = [queue.owns]
        owner.kill()
        put_session.enqueue(b"three")
        put_session.flush()
        assert [*roles, queue.owns] == [False, True]
        with queue.transaction() as session:
            assert session.dequeue_many(9) == [b"one", b"two", b"three"]
        put_session.close()


def test_dead_letters_are_served(path: Path) -> None:
    """Queues share a queue of dead letters, which is served as well; without names it is not served twice."""
    options = ["--max-attempts", 2, "--dead-letter", "dead"]
    for names in (["orders", "mails"], []):
        made = [f"made the queue {path}/{each}\n" for each in ("dead", *names)] if names else []
        with serving(path, *names, *options) as owner:
            for name in ("orders", "mails"):
                with connect(path, name, serve="never", dead_letter="dead") as queue:
                    with queue.transaction() as session:
                        session.enqueue(name.encode())
                    for _ in range(2):
                        with queue.transaction() as session:
                            item = session.dequeue(timeout=60.0)
                            assert item is not None
                            session.reject(item, "no")
                    (letter,) = map(DeadLetter.decode, queue.dead_letters.browse())
                    assert (letter.item, letter.attempts, letter.reason) == (name.encode(), 2, "no")
                    queue.dead_letters.clear()
            owner.send(signal.SIGTERM)
            assert owner.finish() == (0, "", "".join(made))


def test_dead_letters_of_a_queue_that_holds_named_ones(path: Path) -> None:
    """Named queues share their queue of dead letters also if PATH is a queue itself. Its own lie beside it."""
    for name in ("a", "b", None):
        PersistentQueue(path, name).close()
    with serving(path, "--dead-letter", "dead") as owner:
        for name in ("a", "b", None):
            with connect(path, name, serve="never", dead_letter="dead") as queue:
                assert len(queue.dead_letters) == 0
        owner.send(signal.SIGTERM)
        assert owner.finish()[0] == 0
    assert [(each / "dead").exists() for each in (path, path.parent)] == [True, True]


def test_limits_are_those_of_the_owner(path: Path) -> None:
    """The options of the owner hold for all workers."""
    with (
        serving(path, "orders", "--max-items", 2),
        connect(path, "orders", serve="never") as queue,
        queue.session() as session,
    ):
        session.enqueue_many([b"one", b"two"])
        session.flush()
        session.enqueue(b"three")
        with pytest.raises(QueueFullError):
            session.flush()
        session.rollback()


def test_all_that_a_worker_relies_on(path: Path, tmp_path: Path) -> None:
    """``serve`` has an option for each one that a worker may rely on. A worker with equal options is not warned."""
    pytest.importorskip("zstandard")
    relied_on_here: dict[str, Any] = {
        "data_path": str(tmp_path / "media"),
        "fan_out": True,
        "min_free_bytes": 4096,
        "compression": "zstd",
        "max_bytes": 5000,
        "full": "block",
        "wipe": True,
    }
    names = {"retry_delay_seconds": "retry_delay", "encryption": "keys"}
    assert {names.get(each, each) for each in relied_on(Options())} <= {each.key for each in VERBS["serve"].options}
    words: list[object] = []
    for name, value in relied_on_here.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
    with serving(path, "orders", *words), connect(path, "orders", serve="never", **relied_on_here) as queue:
        assert queue.data_path == str(tmp_path / "media" / "orders")


@pytest.mark.damages
def test_an_owner_that_cannot_go_on_ends(path: Path) -> None:
    """If a queue is deleted, the owner ends with status 2, so that a supervisor starts another one."""
    with serving(path, "orders") as owner:
        shutil.rmtree(path / "orders")
        status, out, err = owner.finish()
        assert (status, out) == (2, "")
        assert "\nQueueDeletedError: " in err, err


def test_an_owner_without_limits_keeps_those_of_the_queue(path: Path) -> None:
    """``serve`` without an option of a limit keeps the recorded limits; with one, its own limits are recorded."""
    for _ in range(2):
        with PersistentQueue(path, "orders", max_items=1, max_bytes=1000):
            pass
    for arguments, recorded in (((), {"max_items": 1, "max_bytes": 1000}), (("--max-items", "5"), {"max_items": 5})):
        with serving(path, "orders", *arguments) as owner:
            limits = read_limits(DISK, str(path / "orders"))
            owner.send(signal.SIGTERM)
            assert owner.finish() == (0, "", "")
        assert {name: limits[name] for name in limits if name != "log_bytes"} == recorded
