"""The verb ``worker``: a function for each item, in processes that die, are killed, fail, and end gracefully."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from persistentqueue import DeadLetter, Encryption, PersistentQueue, View, connect
from persistentqueue.cli.workers import crew, loop
from persistentqueue.cli.workers.signals import Signals
from tests.crash.interrupts import Place, Tracer
from tests.faces.test_cli import cli
from tests.support.commands import PYTHON_PATH, SOURCES, Command
from tests.support.limits import SECONDS
from tests.support.queues import drain, put, wait_for

TASKS = r'''
import fcntl
import os
import signal
import threading


def write(name, line):
    fd = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, line + b"\n")
    os.close(fd)


def is_first(name):
    """Make the file; return False if it was there."""
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def await_file(name):
    while not os.path.exists(name):
        threading.Event().wait(0.005)


def record(item):
    write("done", item)


def stuck(item):
    """At the item 5, the first time, say which process it is, and stay."""
    if item == b"5" and is_first("stuck"):
        write("pid", b"%d" % os.getpid())
        while True:
            signal.pause()
    record(item)


def suicide(item):
    """At the item 5 end by ``kill -9``, each time."""
    if item == b"5":
        os.kill(os.getpid(), signal.SIGKILL)
    record(item)


def odd(number):
    """Take even numbers only."""
    if number % 2:
        raise ValueError(f"{number} is odd")
    record(b"%d" % number)


def once(item):
    """Fail at the item 5, the first time."""
    if item == b"5" and is_first("failed"):
        raise RuntimeError("not yet")
    record(item)


def halfway(item):
    """At the item 50, say that it has begun, and finish it when the gate is open."""
    if item == b"50":
        write("begun", item)
        await_file("gate")
    record(item)


def gated(item):
    """Say that the item has begun, and finish it when the gate is open. The process keeps a lock until its end."""
    global lock
    lock = os.open(f"lock-{os.getpid()}", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    write("begun", b"%d" % os.getpid())
    await_file("gate")
    record(item)


def signalled(item):
    """Say that the item has begun, and finish it when the process has got its signal."""
    write("begun", b"%d" % os.getpid())
    while not signal.getsignal(signal.SIGTERM).__self__.came:
        threading.Event().wait(0.005)
    record(item)


def parental(item):
    """Fork a child, end it by SIGTERM when it waits for a signal, and record its end."""
    child = os.fork()
    if not child:
        write("child", b"%d" % signal.set_wakeup_fd(-1))
        signal.pause()
        os._exit(0)
    await_file("child")
    os.kill(child, signal.SIGTERM)
    record(b"%d" % -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def grandparental(item):
    """Fork a child that ignores SIGTERM and forks another one, which records whether it ignores SIGTERM, too."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        grandchild = os.fork()
        if not grandchild:
            write("grandchild", b"%d" % (signal.getsignal(signal.SIGTERM) is signal.SIG_IGN))
        else:
            os.waitpid(grandchild, 0)
        os._exit(0)
    os.waitpid(child, 0)
    record(item)


def pair(first, second):
    record(first)


def alone():
    record("nothing")


async def later(item):
    record(item)


class Later:
    async def __call__(self, item):
        record(item)


def parts(item):
    yield record(item)


later_object = Later()
later_call = lambda item: later(item)
NUMBER = 5


def loud(item):
    """Print more than a buffer has room for."""
    record(item)
    print("x" * 9000)


def wordy(item):
    raise ValueError("x" * 70_000_000)


if is_first("imported") or not os.path.exists("slow"):
    pass
else:
    write("importing", b"%d" % os.getpid())
    await_file("never")
'''


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Return the working directory of the commands, which has a module ``tasks``."""
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


def worker(tasks: Path, function: str, *options: object) -> Command:
    """Start the verb on the queue ``orders``."""
    return Command("worker", tasks / "queues", "orders", f"tasks:{function}", *options, directory=tasks)


def enqueue(tasks: Path, *items: bytes) -> None:
    """Enqueue the items in the queue ``orders``."""
    with PersistentQueue(tasks / "queues", "orders") as queue:
        put(queue, *items)


def numbers(count: int) -> list[bytes]:
    """Return so many items, from 1."""
    return [b"%d" % number for number in range(1, count + 1)]


def lines(tasks: Path, name: str = "done") -> Counter[bytes]:
    """Return the whole lines that tasks have written, and how often."""
    path = tasks / name
    *whole, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
    return Counter(whole)


def rest(tasks: Path) -> list[bytes]:
    """Return what is left in the queue, and check that its log was sealed."""
    assert View(tasks / "queues", "orders").look().is_sealed
    with PersistentQueue(tasks / "queues", "orders") as queue:
        return drain(queue)


@pytest.mark.parametrize("batch", [1, 7])
def test_each_item_is_done_once(tasks: Path, batch: int) -> None:
    """Four processes do each item once, with one item in a flush or several, and end when the queue is drained."""
    enqueue(tasks, *numbers(300))
    options = ["--processes", 4, "--batch", batch, "--until-empty", "--json"]
    with worker(tasks, "record", *options) as command:
        assert command.result() == {"done": 300, "failed": 0, "restarted": 0, "damaged": 0}
    assert lines(tasks) == Counter(numbers(300))
    assert rest(tasks) == []


def test_a_subscription_has_workers_of_its_own(tasks: Path) -> None:
    """With ``--subscription``, the processes take the items of that subscription, and end when it is drained."""
    with PersistentQueue(tasks / "queues", "orders", fan_out=True) as queue:
        bills, audit = queue.subscribe("bills"), queue.subscribe("audit")
        put(queue, *numbers(30))
    options = ["--processes", 2, "--subscription", "bills", "--until-empty", "--json"]
    with worker(tasks, "record", *options) as command:
        assert command.result() == {"done": 30, "failed": 0, "restarted": 0, "damaged": 0}
    assert lines(tasks) == Counter(numbers(30))
    with PersistentQueue(tasks / "queues", "orders") as queue:
        left = {each.name: len(queue.subscribe(each.name)) for each in (bills, audit)}
    assert left == {"bills": 0, "audit": 30}


def test_a_subscription_that_does_not_exist_ends_the_command(tasks: Path) -> None:
    """A missing subscription is not made: the command ends with its name, at once, or when a program removes it."""
    with PersistentQueue(tasks / "queues", "orders", fan_out=True) as queue:
        queue.subscribe("bills")
    for options, missing in ([], "has only subscriptions"), (["--subscription", "bill"], "has no subscription 'bill'"):
        with worker(tasks, "record", *options) as command:
            status, _, err = command.finish()
        assert (status, err.count("\n")) == (2, 1)
        assert f"the queue {missing}: name one of these with --subscription: bills" in err
    with worker(tasks, "record", "--subscription", "bills") as command:
        with connect(tasks / "queues", "orders", serve="never", lock_timeout=60.0) as queue:
            wait_for(lambda: bool(queue.connections()))
            queue.unsubscribe("bills")
        status, _, err = command.finish()
    assert (status, "no subscription 'bills': none exists" in err.splitlines()[-1]) == (2, True), err


def test_an_item_of_a_killed_process_is_done_by_another(tasks: Path) -> None:
    """After ``kill -9`` in the middle of an item, another process does the item, and the process is started again."""
    enqueue(tasks, *numbers(20))
    with worker(tasks, "stuck", "--processes", 2, "--until-empty") as command:
        wait_for(lambda: bool(lines(tasks, "pid")))
        os.kill(int(next(iter(lines(tasks, "pid")))), signal.SIGKILL)
        status, out, err = command.finish()
    assert (status, out) == (0, "20 items done, 0 calls failed, 1 restart\n")
    assert "has ended by signal 9" in err
    assert lines(tasks) == Counter(numbers(20))
    assert rest(tasks) == []


def test_an_item_that_kills_each_process_becomes_a_dead_letter(tasks: Path) -> None:
    """Processes that die again and again are started again, and all other items are done once."""
    enqueue(tasks, *numbers(20))
    attempts = ["--max-attempts", 3, "--dead-letter", "dead"]
    with worker(tasks, "suicide", *attempts, "--processes", 2, "--until-empty", "--json") as command:
        assert command.result() == {"done": 19, "failed": 0, "restarted": 3, "damaged": 0}
    assert lines(tasks) == Counter(each for each in numbers(20) if each != b"5")
    assert [letter.item for letter in dead_letters(tasks)] == [b"5"]


def dead_letters(tasks: Path) -> list[DeadLetter]:
    """Return the dead letters."""
    with PersistentQueue(tasks / "queues", "dead") as queue:
        return list(map(DeadLetter.decode, queue.browse()))


@pytest.mark.parametrize("delay", [0, 0.01])
def test_a_function_that_fails_leaves_dead_letters(tasks: Path, delay: float) -> None:
    """Items that fail become dead letters after all attempts, with the error as reason. So do items that the codec
    refuses."""
    enqueue(tasks, *numbers(6), b"{")
    attempts = ["--max-attempts", 2, "--dead-letter", "dead", "--retry-delay", delay, "--codec", "json"]
    with worker(tasks, "odd", *attempts, "--batch", 3, "--processes", 2, "--until-empty", "--json") as command:
        assert command.result() == {"done": 3, "failed": 8, "restarted": 0, "damaged": 0}
    assert lines(tasks) == Counter([b"2", b"4", b"6"])
    letters = {letter.item: letter for letter in dead_letters(tasks)}
    assert letters.keys() == {b"1", b"3", b"5", b"{"}
    assert {letter.attempts for letter in letters.values()} == {2}
    assert letters[b"3"].reason == "ValueError: 3 is odd"
    assert letters[b"{"].reason.startswith("JSONDecodeError: ")


def test_an_item_that_fails_is_tried_again(tasks: Path) -> None:
    """Without attempts, an item that fails goes back with those behind it, and is tried again."""
    enqueue(tasks, *numbers(10))
    with worker(tasks, "once", "--batch", 10, "--until-empty") as command:
        status, out, err = command.finish()
    assert (status, out) == (0, "10 items done, 1 call failed, 0 restarts\n")
    assert "an item failed: RuntimeError: not yet (once in " in err
    assert (tasks / "done").read_bytes().split() == numbers(10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_each_process_finish_its_item(tasks: Path, number: signal.Signals) -> None:
    """After a signal, each process finishes the item that it has, and takes no other; those of its batch go back."""
    enqueue(tasks, *numbers(20))
    with worker(tasks, "signalled", "--processes", 2, "--batch", 4, "--json") as command:
        wait_for(lambda: len(lines(tasks, "begun")) == 2)
        command.send(number)
        assert command.result() == {"done": 2, "failed": 0, "restarted": 0, "damaged": 0}
    done = set(lines(tasks))
    assert len(done) == 2
    assert rest(tasks) == [each for each in numbers(20) if each not in done]


def test_a_signal_ends_a_child_of_the_function(tasks: Path) -> None:
    """A child that the function forks has Python's own handlers: SIGTERM ends it, as ``multiprocessing`` needs."""
    enqueue(tasks, b"1")
    with worker(tasks, "parental", "--until-empty") as command:
        assert command.finish()[0] == 0
    assert (lines(tasks), lines(tasks, "child")) == ({b"%d" % signal.SIGTERM: 1}, {b"-1": 1})


def test_a_grandchild_of_the_function_has_the_handlers_of_its_parent(tasks: Path) -> None:
    """A child that the function forks may set handlers, which its own children keep."""
    enqueue(tasks, b"1")
    with worker(tasks, "grandparental", "--until-empty") as command:
        assert command.finish()[0] == 0
    assert (lines(tasks), lines(tasks, "grandchild")) == ({b"1": 1}, {b"1": 1})


def test_a_second_signal_kills(tasks: Path) -> None:
    """A second signal kills the processes, with status 130. Their items stay in the queue."""
    enqueue(tasks, *numbers(5))
    with worker(tasks, "gated", "--processes", 2) as command:
        wait_for(lambda: len(lines(tasks, "begun")) == 2)
        command.send(signal.SIGTERM)
        command.send(signal.SIGINT)
        status, out, _ = command.finish()
        assert (status, out) == (130, "0 items done, 0 calls failed, 0 restarts\n")
    assert rest(tasks) == numbers(5)


@pytest.mark.parametrize("is_served", [False, True])
def test_a_key_that_the_owner_lacks_ends_the_command(tasks: Path, is_served: bool) -> None:
    """If the owner cannot open the next item, all processes end, and the command says which key the owner needs."""
    with PersistentQueue(tasks / "queues", "orders", encryption=Encryption("one", lambda _: bytes(32))) as queue:
        put(queue, *numbers(5))
    (tasks / "key").write_bytes(bytes(32))
    with ExitStack() as stack:
        if is_served:
            owner = stack.enter_context(Command("serve", tasks / "queues", directory=tasks))
            assert owner.line().startswith("serving orders")
        keys = ["--key", f"one={tasks / 'key'}"] if is_served else []
        with worker(tasks, "record", "--processes", 2, *keys) as command:
            status, out, err = command.finish()
    assert (status, out) == (2, "0 items done, 0 calls failed, 0 restarts\n")
    assert "(on the command line: --key one=FILE, for the command that owns the queue)" in err
    assert lines(tasks) == Counter()


def test_processes_end_without_their_parent(tasks: Path) -> None:
    """After ``kill -9`` of the parent, its processes end by themselves, and say so in one line. No item is lost."""
    enqueue(tasks, *numbers(5))
    with worker(tasks, "gated", "--processes", 2, "--lock-timeout", 3600) as command:
        wait_for(lambda: len(lines(tasks, "begun")) == 2)
        command.kill()
        (tasks / "gate").touch()
        for pid in lines(tasks, "begun"):
            wait_for(lambda pid=pid: is_free(tasks / f"lock-{int(pid)}"))  # type: ignore[misc]
        _, *ends = command.finish()[2].splitlines()  # its stderr is that of the processes
        parent = command.process.pid
    assert sorted(ends) == [
        f"worker {number}: it ends, since the command, process {parent}, has ended: what is not done stays in the "
        "queue: run it again"
        for number in (1, 2)
    ]
    with PersistentQueue(tasks / "queues", "orders", lock_timeout=60.0) as queue:
        assert drain(queue) == numbers(5)


def is_free(path: Path) -> bool:
    """Return whether no process has the lock of the file."""
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_killed_owner_is_replaced_by_the_parent(tasks: Path) -> None:
    """Workers use an owner that serves. After its ``kill -9`` their parent becomes the owner, and all is done."""
    enqueue(tasks, *numbers(100))
    with Command("serve", tasks / "queues", directory=tasks) as owner:
        assert owner.line().startswith("serving orders")
        with worker(tasks, "halfway", "--processes", 2, "--lock-timeout", 60, "--until-empty", "--json") as command:
            wait_for(lambda: bool(lines(tasks, "begun")))
            owner.kill()
            (tasks / "gate").touch()
            result = command.result()
    assert (result["failed"], result["restarted"]) == (0, 0)
    assert lines(tasks).keys() == {*numbers(100)}
    assert lines(tasks).total() <= 102  # the two items that the workers had on hold
    assert rest(tasks) == []


@pytest.mark.parametrize("attempts", [[], ["--max-attempts", 2, "--dead-letter", "dead"]])
def test_a_reader_of_stdout_that_ends(tasks: Path, attempts: list[object]) -> None:
    """If the reader of what the function prints ends, as ``head`` does, the command ends with status 2. No item fails
    for it."""
    (tasks / "printing.py").write_text(
        "import os, time\n"
        "def show(item):\n"
        "    while item != b'1' and not os.path.exists('closed'):\n"
        "        time.sleep(0.01)\n"
        "    print(item.decode(), flush=True)\n"
    )
    enqueue(tasks, *numbers(20))
    arguments = ["worker", tasks / "queues", "orders", "printing:show", "--until-empty", *attempts]
    with Command(*arguments, directory=tasks) as command:
        assert command.line() == "1"
        assert command.process.stdout is not None
        command.process.stdout.close()
        command.process.stdout = None
        (tasks / "closed").touch()
        status, _, err = command.finish()
    assert status == 2
    assert "stdout has no reader any more" in err
    assert rest(tasks) == numbers(20)[1:]
    if attempts:
        assert dead_letters(tasks) == []


def test_the_second_signal_ends_a_worker_whose_owner_is_stopped(tasks: Path) -> None:
    """The second signal kills the processes of a command that waits for an owner which is stopped."""
    enqueue(tasks, *numbers(3))
    with Command("serve", tasks / "queues", directory=tasks) as owner:
        assert owner.line().startswith("serving orders")
        with worker(tasks, "record", "--processes", 2) as command:
            wait_for(lambda: View(tasks / "queues", "orders").look().depth == 0)  # each item is consumed, not only done
            owner.send(signal.SIGSTOP)
            place = Path(f"/proc/{command.process.pid}/wchan")
            wait_for(lambda: "unix" in place.read_text())  # the look for an owner waits for its answer
            command.send(signal.SIGTERM)
            wait_for(lambda: "unix" in place.read_text() or command.process.poll() is not None)
            command.send(signal.SIGTERM)
            assert command.finish()[0] == 130
        owner.send(signal.SIGCONT)
        owner.send(signal.SIGTERM)
        assert owner.finish()[0] == 0
    assert rest(tasks) == []


def test_an_owner_without_dead_letters_is_refused(tasks: Path) -> None:
    """A worker that asks for dead letters ends at once with status 2 if the owner has none, and does no item."""
    enqueue(tasks, *numbers(10))
    attempts = ["--max-attempts", 1, "--dead-letter", "dead"]
    with Command("serve", tasks / "queues", directory=tasks) as owner:
        assert owner.line().startswith("serving orders")
        with worker(tasks, "record", *attempts, "--until-empty") as command:
            status, out, err = command.finish()
        assert (status, out) == (2, "")
        assert err.startswith(
            f"UsageError: --dead-letter dead: the owner of the queue, process {owner.process.pid} on "
        )
        assert "give the options about attempts to the command of that process, such as persistentqueue serve" in err
        owner.send(signal.SIGTERM)
        assert owner.finish()[0] == 0
    assert lines(tasks) == Counter()
    assert rest(tasks) == numbers(10)


def test_options_without_effect_are_noted(tasks: Path) -> None:
    """A worker says which of its options have no effect, since the owner of the queue has others. Its processes, which
    have none of their own, say nothing."""
    enqueue(tasks, *numbers(2))
    with Command("serve", tasks / "queues", "--no-sync", directory=tasks) as owner:
        assert owner.line().startswith("serving orders")
        with worker(tasks, "record", "--retry-delay", 5, "--until-empty", "--processes", 2) as command:
            status, _, err = command.finish()
        owner.send(signal.SIGTERM)
        assert owner.finish()[0] == 0
    assert status == 0
    assert [line for line in err.splitlines() if "running" not in line] == [
        f"{tasks / 'queues' / 'orders'}: these options of this process have no effect, since another process owns the "
        "queue: sync=True (owner: False), retry_delay_seconds=5.0 (owner: 0.0): open the queue with the same options "
        "in all processes"
    ]


def test_an_owner_with_dead_letters_serves_a_worker_that_asks_for_them(tasks: Path) -> None:
    """A worker and the owner that serves it may both have the options about attempts."""
    enqueue(tasks, *numbers(6))
    attempts = ["--max-attempts", 2, "--dead-letter", "dead"]
    with Command("serve", tasks / "queues", "orders", *attempts, directory=tasks) as owner:
        assert owner.line().startswith("serving orders")
        with worker(tasks, "odd", *attempts, "--codec", "json", "--until-empty", "--json") as command:
            assert command.result() == {"done": 3, "failed": 6, "restarted": 0, "damaged": 0}
        owner.send(signal.SIGTERM)
        assert owner.finish()[0] == 0
    assert [letter.item for letter in dead_letters(tasks)] == [b"1", b"3", b"5"]


def test_options_without_an_effect_are_told(tasks: Path) -> None:
    """Beside an owner with other options, ``worker`` tells on stderr which ones count: in words, or with ``--json`` as
    JSON."""
    with PersistentQueue(tasks / "queues", "orders", serve=True):
        for words in ([], ["--json"]):
            with worker(tasks, "record", "--retry-delay", 1, "--until-empty", *words) as command:
                status, _, err = command.finish()
            told = json.loads(err)["log"]["message"] if words else err.splitlines()[0]
            assert (status, "retry_delay_seconds=" in told) == (0, True), err


def test_an_item_that_always_fails_holds_up_those_behind_it(tasks: Path) -> None:
    """Without attempts and delay no item behind one that fails is done; with a delay, the others overtake it."""
    enqueue(tasks, b"1", *(b"%d" % number for number in range(2, 20, 2)))
    with worker(tasks, "odd", "--codec", "json") as command:
        assert command.process.stderr is not None
        assert "running " in command.process.stderr.readline()
        said = [command.process.stderr.readline() for _ in range(3)]
        command.send(signal.SIGTERM)
        assert command.finish()[0] == 0
    assert all("1 is odd" in line for line in said)
    assert lines(tasks) == Counter()
    with worker(tasks, "odd", "--codec", "json", "--retry-delay", 1000) as command:
        wait_for(lambda: len(lines(tasks)) == 9)
        command.send(signal.SIGTERM)
        assert command.finish()[:2] == (0, "9 items done, 1 call failed, 0 restarts\n")


def test_the_owner_decides_about_delays(tasks: Path) -> None:
    """If the owner counts no attempts, a worker that asks for a delay says so, and tries the item again."""
    enqueue(tasks, *numbers(10))
    with Command("serve", tasks / "queues", directory=tasks) as owner:
        assert owner.line().startswith("serving orders")
        with worker(tasks, "once", "--retry-delay", 1000, "--until-empty") as command:
            status, out, err = command.finish()
        assert (status, out) == (0, "10 items done, 1 call failed, 0 restarts\n")
        assert "this queue does not count attempts" in err
        owner.send(signal.SIGTERM)
        assert owner.finish()[0] == 0
    assert lines(tasks) == Counter(numbers(10))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("tasks", "expected MODULE:FUNCTION"),
        ("nowhere:record", "the module nowhere cannot be imported: ModuleNotFoundError"),
        ("tasks.py:record", "found that of a file: run the command in the directory of the file, with tasks:record"),
        ("jobs/tasks:record", "found that of a file: run the command in the directory of the file, with tasks:record"),
        ("broken:record", "the module broken cannot be imported: ZeroDivisionError"),
        ("leaving:record", "the module leaving cannot be imported: SystemExit"),
        ("tasks:recrod", "the module tasks has no recrod"),
        ("tasks:NUMBER", "5 is no function"),
        ("tasks:later", "only begins its work"),
        ("tasks:pair", "expected a function that takes one item, found (first, second): missing a required argument"),
        ("tasks:alone", "expected a function that takes one item, found (): too many positional arguments"),
    ],
)
def test_a_function_that_is_not_there(tasks: Path, monkeypatch: pytest.MonkeyPatch, function: str, said: str) -> None:
    """A function that cannot be imported or called is an error before anything is made or started."""
    (tasks / "broken.py").write_text("1 / 0\n")
    (tasks / "leaving.py").write_text("raise SystemExit(0)\n")
    monkeypatch.chdir(tasks)
    monkeypatch.setattr("sys.path", [each for each in sys.path if each])
    try:
        done = cli("worker", tasks / "queues", "orders", function, "--until-empty")
    finally:
        for name in ("tasks", "broken", "leaving"):
            sys.modules.pop(name, None)
    assert (done.status, done.out) == (2, b"")
    assert done.err.startswith("UsageError: ")
    assert said in done.err
    assert not (tasks / "queues").exists()


@pytest.mark.parametrize(("name", "value"), [("frozen", True), ("executable", ""), ("executable", None)])
def test_a_program_that_is_no_python_starts_no_worker(
    tasks: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    """A program of PyInstaller, or one that embeds Python, is refused: each worker would start it again."""
    monkeypatch.setattr(sys, name, value, raising=False)
    done = cli("worker", tasks / "queues", "orders", "tasks:record", "--until-empty")
    assert (done.status, done.out) == (2, b"")
    assert done.err.startswith(
        "UsageError: worker processes need a Python interpreter, and this program is not run by one: run the command"
    )
    assert not (tasks / "queues").exists()


def test_the_help_says_what_an_item_that_fails_holds_up() -> None:
    """The help tells that an item which always fails stops the queue, and names the options that prevent it."""
    told = " ".join(cli("worker", "--help").text.split())
    assert "one item that always fails stops the queue, with any number of processes" in told
    assert "With --retry-delay, others overtake the item" in told
    assert "With --max-attempts and --dead-letter it is given up" in told


@pytest.mark.parametrize("function", ["later_object", "later_call"])
def test_a_call_that_only_begins_its_work_has_failed(tasks: Path, function: str) -> None:
    """A call that returns a coroutine has done no work, so its item is not consumed."""
    enqueue(tasks, b"1", b"2")
    options = ["--until-empty", "--max-attempts", 1, "--dead-letter", "dead", "--json"]
    with worker(tasks, function, *options) as command:
        assert command.result() == {"done": 0, "failed": 2, "restarted": 0, "damaged": 0}
    assert ["only begun its work" in letter.reason for letter in dead_letters(tasks)] == [True, True]
    assert not lines(tasks)


def test_output_without_a_reader_fails_no_call(tasks: Path) -> None:
    """If stdout is closed, what a function prints is dropped, and its item is done once."""
    enqueue(tasks, *numbers(3))
    words = [sys.executable, "-m", "persistentqueue", "worker", "queues", "orders", "tasks:loud", "--until-empty"]
    surroundings = os.environ | {"PYTHONPATH": PYTHON_PATH}
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *words]
    subprocess.run(closed, cwd=tasks, env=surroundings, check=False, timeout=SECONDS)
    assert lines(tasks) == Counter(numbers(3))


@pytest.mark.damages
def test_damaged_items_are_told_at_the_end(tasks: Path) -> None:
    """If items cannot be read, the others are done, and the command says how many are left, with the status 1."""
    with PersistentQueue(tasks / "queues", "orders", inline_bytes=0) as queue:
        put(queue, *[b"%1000d" % number for number in range(5)])
        put(queue, b"6")
    (segment,) = (tasks / "queues" / "orders" / "data").glob("*.seg")
    with segment.open("r+b") as file:
        file.seek(1000)
        file.write(b"ZZZZ")
    with worker(tasks, "record", "--until-empty", "--json") as command:
        status, out, err = command.finish()
    assert (status, json.loads(out)) == (1, {"done": 1, "failed": 0, "restarted": 1, "damaged": 5})
    assert "5 items cannot be read" in json.loads(err.splitlines()[-1])["log"]["message"]
    assert all(json.loads(line) for line in err.splitlines())


def test_modules_in_the_working_directory_hide_none_of_python(tasks: Path) -> None:
    """A file of the user with the name of a module of Python, or of this package, stops no process."""
    for name in ("queue", "json", "select", "persistentqueue"):
        (tasks / f"{name}.py").write_text("raise RuntimeError\n")
    enqueue(tasks, b"1")
    program = "import sys; sys.path[0] = sys.argv.pop(1); from persistentqueue.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", program, SOURCES, "worker", "queues", "orders", "tasks:record", "--until-empty"]
    subprocess.run(words, cwd=tasks, check=True, timeout=SECONDS)
    assert lines(tasks) == Counter([b"1"])


def test_a_signal_ends_a_process_that_still_imports(tasks: Path) -> None:
    """A process whose module takes long to import ends at once after a signal: it has no item."""
    enqueue(tasks, b"1")
    (tasks / "slow").touch()
    with worker(tasks, "record", "--json") as command:
        wait_for(lambda: bool(lines(tasks, "importing")))
        command.send(signal.SIGTERM)
        assert command.result() == {"done": 0, "failed": 0, "restarted": 0, "damaged": 0}
    assert rest(tasks) == [b"1"]


def test_a_full_queue_of_dead_letters_ends_no_process(tasks: Path) -> None:
    """While the dead-letter queue is full, the process waits, and goes on when there is room."""
    enqueue(tasks, b"1")
    with PersistentQueue(tasks / "queues", "dead", max_items=1) as dead:
        put(dead, b"in the way")
    with worker(tasks, "odd", "--codec", "json", "--max-attempts", 1, "--dead-letter", "dead", "--json") as command:
        assert command.process.stderr is not None
        while "queues/dead" not in (line := command.process.stderr.readline()):
            assert line
        command.send(signal.SIGTERM)
        result = command.result()
    assert (result["done"], result["restarted"]) == (0, 0)
    assert result["failed"] >= 1
    assert rest(tasks) == [b"1"]


def test_a_long_text_of_an_error_is_cut(tasks: Path) -> None:
    """An error with a very long text is a failure like others, and fills no log."""
    enqueue(tasks, b"1")
    with worker(tasks, "wordy", "--until-empty", "--max-attempts", 1, "--dead-letter", "dead") as command:
        status, _, err = command.finish()
    assert status == 0
    assert len(err) < 10_000
    assert [len(letter.reason) for letter in dead_letters(tasks)] == [1000]


class Signalling(Tracer):
    """Sends a signal at the place, as the kernel may."""

    def _look(self, place: Place) -> None:
        count = self.seen[place] = self.seen.get(place, 0) + 1
        if self._target == (place, count):
            signal.raise_signal(signal.SIGTERM)


def test_a_signal_at_any_place_of_the_look_for_an_owner_is_noted() -> None:
    """A signal that comes while the parent looks for an owner ends the look, and is left for the loop to take."""
    job = loop.Job("", None, "", "", "bytes", 1, False, False, 0.0, False, False, False)

    def keep_owner(target: tuple[Place, int] | None) -> dict[Place, int]:
        """Let a parent look, with a signal at the target; return the places that it reaches."""
        tracer = Signalling(target)
        with Signals() as signals:
            parent = crew.Crew(job, 1, signals.ready(), lambda: None)
            parent._looks_at = 0.0
            tracer.run(parent._keep_owner)
            assert (signals.came, signals._raises) == ([signal.SIGTERM] if target else [], False), target
        return tracer.seen

    places = keep_owner(None)
    assert len(places) > 4
    for target in places.items():
        keep_owner(target)


def test_pauses_are_bounded() -> None:
    """Each pause after a failure or a death is twice as long as the one before, up to a bound."""
    after = (0, 1, 2, 3, 7, 8, 10**6)
    assert [loop.pause_seconds(deaths, 10.0) for deaths in after] == [0.0, 0.1, 0.2, 0.4, 6.4, 10.0, 10.0]
