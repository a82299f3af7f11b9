"""Tests of ``python -m perf``: the harness, the counts, the report, the comparison, and the studies at small sizes."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from array import array
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from persistentqueue import PersistentQueue

from .. import compare, counts, harness, older_trees
from ..contenders import BARE, OURS, OURS_MANY, SQLITE, Contender, Durability, Lane
from ..contenders.peers import is_there
from ..harness import ROOT, Measured
from ..report import tables
from ..studies import (
    attempts,
    backlog,
    beside,
    compaction,
    durable_writes,
    enclosed,
    envelopes,
    large,
    many_names,
    moves,
    opening,
    tail,
    tasks,
    tickets,
    waiting,
    warm,
    written,
)
from ..workloads import SWEEPS, WORKLOADS, Entry, Workload

ALL = [*WORKLOADS, *(workload for sweep in SWEEPS.values() for workload in sweep)]
SMALL = Workload(
    "single",
    "Small",
    8,
    {each.name: Entry(each) for each in (OURS, BARE, SQLITE)},
    {"in": {BARE.name: 1e-6, SQLITE.name: 1e9}, "out": {BARE.name: 1e-6}},
)


def test_names_are_told_apart() -> None:
    """Workload names are unique, and the first entry of each workload is ours."""
    assert len({workload.name for workload in ALL}) == len(ALL)
    assert all(next(iter(workload.entries)).startswith("ours") for workload in ALL)


def test_bars_are_of_those_who_contend() -> None:
    """Every bar names a contender of its workload."""
    for workload in ALL:
        assert {name for bars in workload.bars.values() for name in bars} <= set(workload.entries)


def test_rounds_and_bars(tmp_path: Path) -> None:
    """All contenders have the same number of rounds, and a line says whether its bars are met."""
    measured = harness.run(SMALL, tmp_path, 3)
    assert {len(found.put_seconds) for found in measured.values()} == {3}
    assert {len(found.flush_seconds("in")) for found in measured.values()} == {24}
    assert [row.met for row in harness.bar_rows(SMALL, measured)] == ["**no**", "yes"]


def test_ratios_are_taken_within_a_round() -> None:
    """A ratio compares the first round with the first round, and so on; medians do not matter."""
    ours, other = (Measured(10, [1.0, 10.0], [1.0, 1.0], array("d"), array("d")) for _ in range(2))
    other.put_seconds[:] = [2.0, 5.0]
    assert harness.ratios({"ours": ours, "other": other}, "in", "ours", "other") == [2.0, 0.5]


def test_who_takes_something_else_is_seen(tmp_path: Path) -> None:
    """A contender that returns other items, or fewer, raises an error and gives no figure."""

    @contextmanager
    def forgetful(_directory: Path, _threads: int) -> Any:
        yield [Lane(lambda _items: None, lambda count: [b"else"] * count)]

    workload = SMALL._replace(entries={"ours": Entry(Contender("ours", Durability.NEVER, forgetful))})
    with pytest.raises(AssertionError, match="or the last item differs"):
        harness.run(workload, tmp_path, 1)


def test_who_is_not_installed_is_left_out(tmp_path: Path) -> None:
    """A contender that is not installed has no line, and the table names it."""
    absent = Contender("absent", Durability.EACH, BARE.open, ("no_such_module_at_all",))
    workload = SMALL._replace(entries={**SMALL.entries, "absent": Entry(absent)})
    assert not is_there(absent)
    measured = harness.run(workload, tmp_path, 1)
    assert "absent" not in measured
    assert "Not installed: absent.\n" in list(tables.table(tables.record(workload, measured, {})))


@pytest.mark.parametrize("pattern", ["in_turn", "restarts", "ahead", "take_batch", "threads"])
def test_patterns(tmp_path: Path, pattern: str) -> None:
    """Every item that is put is taken, whatever the order of the phases."""
    entry = Entry(OURS_MANY, threads=3 if pattern == "threads" else 1)
    workload = SMALL._replace(
        entries={"ours": entry},
        batch=4,
        flushes=6,
        in_turn=pattern == "in_turn",
        restarts=pattern == "restarts",
        ahead=5 * (pattern == "ahead"),
        take_batch=8 * (pattern == "take_batch"),
    )
    harness.run(workload, tmp_path, 2)
    with PersistentQueue(tmp_path / "single" / "ours") as queue:
        assert len(queue) == 0


def test_syncs_are_counted_from_a_trace() -> None:
    """Between two marks, durable writes, writes to files opened with O_DSYNC, and sync calls are counted."""
    trace = """
    1 fsync(3) = 0
    1 access("/perf-mark", F_OK) = -1 ENOENT
    1 openat(AT_FDCWD, "a", O_RDWR|O_DSYNC) = 7
    1 pwrite64(7, "x", 1, 0) = 1
    12 pwritev2(5, [{iov_base="x", iov_len=1}], 1, 0, RWF_DSYNC) = 1
    1 pwritev2(5, [{iov_base="x", iov_len=1}], 1, 0, 0) = 1
    1 access("/perf-mark", F_OK) = -1 ENOENT
    1 openat(AT_FDCWD, "b", O_RDWR) = 7
    1 pwrite64(7, "x", 1, 0) = 1
    1 fdatasync(7) = 0
    1 msync(0x7f, 4096, MS_SYNC) = 0
    1 fsync(3 <unfinished ...>
    1 <... fsync resumed>) = 0
    1 access("/perf-mark", F_OK) = -1 ENOENT
    1 fsync(3) = 0
    """
    assert list(counts.syncs_of([line.strip() for line in trace.splitlines()])) == [2, 3]


def test_costs_are_counted(tmp_path: Path) -> None:
    """The queue and the bare disk sync once per flush, and their other costs are above zero."""
    named = next(workload for workload in WORKLOADS if workload.name == "single")
    workload = named._replace(entries={each.name: Entry(each) for each in (OURS, BARE)})
    found = counts.count(workload, tmp_path, scale=0.1)
    assert set(found) == {"in", "out"}
    for costs in found.values():
        for cost in costs.values():
            assert cost.syncs in ({None} if shutil.which("strace") is None else {1.0})
            assert cost.written_bytes > 0 and cost.processor_seconds > 0


def test_costs_of_one_who_takes_many_at_once(tmp_path: Path) -> None:
    """If one flush takes several batches, that many are put before it."""
    named = next(workload for workload in WORKLOADS if workload.take_batch)
    workload = named._replace(entries={OURS.name: Entry(OURS)})
    assert counts.count(workload, tmp_path, scale=0.001)["in"][OURS.name].written_bytes > 0


def test_results_are_shown(tmp_path: Path) -> None:
    """The JSON becomes tables and charts. In a document only the text between the markers changes."""
    workloads = [*WORKLOADS[:1], *SWEEPS["by-batch"][:2], *(each for each in WORKLOADS if each.name == "batch")]
    found: tables.Found = {"command": "python -m perf", "seconds": 1.0, "bars": [], "workloads": {}}
    found["machine"] = tables.machine(tmp_path)
    for number, workload in enumerate(workloads):
        entries = {
            name: entry for name, entry in workload.entries.items() if entry.contender in (OURS, OURS_MANY, BARE)
        }
        small = workload._replace(entries=entries).scaled(0.01)
        measured = harness.run(small, tmp_path / str(number), 1)
        found["workloads"][workload.name] = tables.record(small, measured, {})
    directory = tmp_path / "perf" / "results"
    directory.mkdir(parents=True)
    blocks = {"rates": tables.rates_block(found), "bars": tables.bars_block(found)}
    documents = {"rates": tmp_path / "README.md", "bars": tmp_path / "perf" / "README.md"}
    for name, document in documents.items():
        document.write_text(f"above\n\n<!-- {name} -->\nold\n<!-- end of {name} -->\n\nbelow\n", encoding="utf-8")
    tables.save(found, directory)
    for name, document in documents.items():
        assert document.read_text(encoding="utf-8") == f"above\n\n{blocks[name]}\n\nbelow\n"
    shown = (directory / "results.md").read_text(encoding="utf-8")
    assert all(workload.what in shown for workload in workloads)
    assert {path.name for path in directory.glob("*.png")} == {"headline.png", "by-batch.png"}
    assert json.loads((directory / "results.json").read_text(encoding="utf-8"))["machine"]["cores"]


def test_two_trees_are_compared(tmp_path: Path) -> None:
    """A round of a tree runs the package of that tree, and fails if the tree has none."""
    found = compare.measure(ROOT, tmp_path, "single", 0.01)
    assert set(found) == {"in", "out"} and min(found.values()) > 0
    found = compare.measure(ROOT, tmp_path, "warm", 0.01)
    assert set(found) == {"1, in", "1, out", "1,000, in", "1,000, out"} and min(found.values()) > 0
    with pytest.raises(subprocess.CalledProcessError):
        compare.measure(tmp_path, tmp_path, "single", 0.01)  # no package there


def test_an_unknown_workload_is_named() -> None:
    """An unknown name is refused by an error that lists the known names."""
    done = subprocess.run(
        [sys.executable, "-m", "perf", "--only", "nothing"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 2 and "unknown NAME: nothing; choose from single," in done.stderr


def test_opening_is_measured(tmp_path: Path) -> None:
    """Opening is measured after a clean close and after a crash, each in a process of its own."""
    lines = list(opening.rows(tmp_path, 10_000, 1))
    assert [line.what for line in lines] == [
        "Opening 10,000 items after a clean close",
        "Opening 10,000 items after a crash",
    ]
    assert all("MiB" in line.ours for line in lines)


def test_backlog_is_measured(tmp_path: Path) -> None:
    """A backlog has lines for memory, in, out and opening, and a small one meets the bars of memory."""
    lines = list(backlog.rows(tmp_path, 200_000, 1))
    whats = [line.what.rpartition(", ")[2] for line in lines]
    assert whats == ["memory"] * 2 + ["in", "out"] * 2 + [
        "Opening 200,000 items after a clean close",
        "Opening 200,000 items after a crash",
    ]
    assert lines[0].met == lines[1].met == "yes"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--directory", "/dev/null/nowhere"],
            "/dev/null/nowhere is not a directory: choose an existing one with --directory",
        ),
        (["--directory", "/dev/shm"], "/dev/shm is kept in memory: choose a directory on a disk with --directory"),
        (["--rounds", "0"], "argument --rounds: invalid at_least_one value: '0'"),
    ],
)
@pytest.mark.parametrize("program", ["perf", "perf.compare"])
def test_what_is_asked_for_wrongly_is_told_in_a_line(program: str, arguments: list[str], line: str) -> None:
    """Both programs answer a wrong argument with one line, and without a traceback."""
    base = ["HEAD"] if program == "perf.compare" else []
    command = [sys.executable, "-m", program, *base, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode != 0
    assert line in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_memory_is_no_disk() -> None:
    """A directory that is kept in memory is refused unless the caller allows it."""
    memory = Path("/dev/shm")
    refused = pytest.raises(ValueError, match=r"^/dev/shm is kept in memory: choose a directory on a disk$")
    with refused, harness.workspace(memory):
        pass
    with harness.workspace(memory, memory=True) as directory:
        assert directory.parent == memory


@pytest.mark.parametrize(
    ("block", "lines", "document"), [(tables.bars_block, 40, "perf/README.md"), (tables.rates_block, 10, "README.md")]
)
def test_readmes_have_the_tables_of_the_results(
    block: Callable[[tables.Found], str], lines: int, document: str
) -> None:
    """The documents contain exactly the tables of the committed results."""
    shown = block(json.loads((ROOT / "perf" / "results" / "results.json").read_text(encoding="utf-8")))
    assert len(shown.splitlines()) >= lines
    assert shown in (ROOT / document).read_text(encoding="utf-8")


def test_compaction_is_measured(tmp_path: Path) -> None:
    """Compaction is measured for disk use, extra space, traffic beside it, and orders of completion."""
    lines = list(compaction.rows(tmp_path, 10_000, 1))
    assert len(lines) == 4 + len(compaction.PIECES_BYTES)
    assert lines[1].met == "yes"


def test_large_items_are_measured(tmp_path: Path) -> None:
    """Large items have a line for in and a line for out."""
    assert [line.what.rpartition(", ")[2] for line in large.rows(tmp_path / "large", 2, 1)] == ["in", "out"]


def test_moves(tmp_path: Path) -> None:
    """Both ways move all items, there and back, and a line compares the two ways."""
    found = moves.rates(tmp_path / "rates", 3, 2, 3)
    assert {way: len(rounds) for way, rounds in found.items()} == {"together": 3, "apart": 3}
    assert [row.beside.endswith("in two flushes") for row in moves.rows(tmp_path / "rows", 3, 2)] == [True, True]


def test_envelopes_are_measured(tmp_path: Path) -> None:
    """Each way returns all items, and compression reduces the disk use of text."""
    found = envelopes.measure(tmp_path, envelopes.lines(200), 100, 2)
    assert {way: len(rounds) for way, rounds in found.items()} == dict.fromkeys(envelopes.WAYS, 2)
    parts = {row[0]: float(row[-1]) for row in envelopes.rows(found, "lines")}
    assert parts["lines, compressed"] < 0.5 < parts["lines, plain"] == 1.0 < parts["lines, encrypted"] + 0.5


def test_items_in_envelopes_are_measured() -> None:
    """Each way returns all items, and there is a line for each."""
    found = enclosed.measure(50, 2)
    assert {way: len(rounds) for way, rounds in found.items()} == dict.fromkeys(enclosed.WAYS, 2)
    sizes = {row[0]: int(row[-1]) for row in enclosed.rows(found)}
    assert sizes["JSON"] + 10 == sizes["in an envelope"] > sizes["compressed"]
    assert sizes["encrypted"] > sizes["both"]


def test_attempts_are_measured(tmp_path: Path) -> None:
    """There is a line for each number of items in a step."""
    assert [row[0] for row in attempts.rows(tmp_path, 2, 1)] == ["1", "100", "1,000"]


def test_durable_writes_are_measured(tmp_path: Path) -> None:
    """There is a line for each length, and all files get their full length."""
    assert [row[0] for row in durable_writes.rows(tmp_path, 2)] == ["4,096", "106,496", "1,048,576"]
    assert {path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()} == {8192, 212_992, 2_097_152}


def test_many_names_are_measured(tmp_path: Path) -> None:
    """There is a line for making, listing and opening queues, and an open queue has few descriptors."""
    lines = list(many_names.rows(tmp_path, 12, 4))
    assert len(lines) == 6 and float(lines[-1][1]) <= 4


def test_python_alone_is_measured(tmp_path: Path) -> None:
    """Without a device a flush takes less than 1 ms of processor time, and no byte reaches a segment."""
    lines = list(warm.rows(tmp_path, 1))
    assert [line.what.rpartition(", ")[2] for line in lines] == ["in", "out"] * 2
    assert all(float(line.ours.split()[0]) < 1_000 for line in lines)
    assert not any(any(path.read_bytes()) for path in tmp_path.glob("1/data/*"))


def test_the_tail_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each contender flushes at full and at half load, and a contender that stalls does not meet the bars."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        """Let time pass by the clock of this test, by which each look at it takes 1/128 s."""
        now[0] += seconds

    def perf_counter() -> float:
        sleep(1 / 128)
        return now[0]

    monkeypatch.setattr(tail, "time", SimpleNamespace(perf_counter=perf_counter, sleep=sleep))
    load = tail.Load(10, False, True)
    times = tail.measure(tmp_path, load, 0.25, 2)
    assert set(times) == {each.name for each in tail.CONTENDERS if is_there(each)}
    for each in times.values():
        assert (len(each.full), len(each.half)) == (16, 8)
    smooth = {name: dict.fromkeys(tail.PARTS, 1.0) for name in times}
    assert tail._row(load, "full", smooth).met == "yes"
    stalled = smooth | {"ours": smooth["ours"] | {"longest": 50.0}}
    assert tail._row(load, "full", stalled).met == "**no**"


def test_waiting_takes_nothing(tmp_path: Path) -> None:
    """An idle queue and a waiting consumer take almost no processor time, and each waiting consumer is woken."""
    assert len(waiting.wake_ups(tmp_path / "wake", 10)) == 10
    assert len(waiting.adoptions(tmp_path / "adopt", 10)) == 10
    for waits in (False, True):
        assert waiting.idle_seconds(tmp_path / str(waits), waits=waits, seconds=0.3) < 0.05


def test_tasks_are_measured(tmp_path: Path) -> None:
    """All ways have two rounds, and waiting tasks are woken and take almost no processor time."""
    found = tasks.rates(tmp_path / "rates", 100, 2)
    assert {way: len(rounds) for way, rounds in found.items()} == dict.fromkeys(found, 2) and len(found) == 6
    assert len(tasks.wake_ups(tmp_path / "wake", 5)) == 5
    assert tasks.idle_seconds(tmp_path / "idle", 20, seconds=0.3) < 0.05


def test_tickets_are_measured(tmp_path: Path) -> None:
    """Flushes in and out are measured, waited for and not, and each line has their ratio."""
    found = tickets.rates(tmp_path / "rates", 50, 2)
    assert len(found) == 4 and all(len(each) == 2 for each in found.values())
    each = tickets.apart(tmp_path / "apart", 10, 2)
    assert len(each) == 6 and all(len(rounds) == 2 for rounds in each.values())
    assert [row.met for row in tickets.rows(tmp_path / "rows", 50, 1)].count("") == 0


def test_files_beside_the_items_are_measured(tmp_path: Path) -> None:
    """There is a line for each of the two loads, and the files of a busy queue are more than its log at the start."""
    assert len(list(beside.rows(tmp_path / "rows", 60))) == 2
    assert beside.kept_bytes(tmp_path / "kept", 60, in_turn=True) > beside.MIB


def test_bytes_written_are_measured(tmp_path: Path) -> None:
    """The bytes written for each byte enqueued are counted, with one sync for a flush and with two."""
    assert len(list(written.rows(tmp_path / "rows", 2))) == 4
    default, two_syncs = written.measure(tmp_path / "sides", 2, in_turn=False)
    assert (len(default.seconds), len(two_syncs.seconds)) == (2, 2)


def test_tasks_of_two_trees_are_compared(tmp_path: Path) -> None:
    """``tasks`` gives a rate for each number of tasks and of threads, in and out."""
    found = compare.measure(ROOT, tmp_path, "tasks", 0.01)
    assert {"100 tasks, in", "1 task, out", "32 threads, out"} < set(found)
    assert len(found) == 10 and min(found.values()) > 0


def test_tails_of_two_trees_are_compared(tmp_path: Path) -> None:
    """``tail`` gives four parts of each load, and a slower part has the lower rate."""
    found = compare.measure(ROOT, tmp_path, "tail", 0.02)
    assert len(found) == 4 * len(tail.LOADS)
    for load in tail.LOADS:
        half, *_, longest = (found[f"{load.what}, {part}"] for part in ("half", "99 %", "99.9 %", "longest"))
        assert half >= longest > 0


IMPORTED = """
import ast, json, sys
import perf.compare
found = set()
for name, module in list(sys.modules.items()):
    if name.startswith("perf"):
        for node in ast.walk(ast.parse(open(module.__file__, encoding="utf-8").read())):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module)
print(json.dumps(sorted(found)))
"""


def test_a_tree_without_folders_is_compared(tmp_path: Path) -> None:
    """Every internal module that ``perf.compare`` imports has an alias, and an older tree gets these aliases."""
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True, cwd=ROOT)
    assert {name for name in json.loads(done.stdout) if name.startswith("persistentqueue.")} == set(older_trees.MOVED)
    older = tmp_path / "persistentqueue"
    older.mkdir()
    (older / "__init__.py").touch()
    for present, name in older_trees.MOVED.items():
        (older / f"{name.rpartition('.')[2]}.py").write_text(f"WAS = {present!r}\n", encoding="utf-8")
    wanted = "".join(f"from {present} import WAS; assert WAS == {present!r}\n" for present in older_trees.MOVED)
    code = f"from perf.older_trees import alias_moved_modules\nalias_moved_modules()\n{wanted}"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path)


def test_imports_go_downward() -> None:
    """A module imports only from those parts that come before its own part in this order; tests may import anything."""
    order = [
        "older_trees",
        "disks",
        "contenders",
        "workloads",
        "harness",
        "counts",
        "report",
        "studies",
        "compare",
        "__main__",
    ]
    perf = ROOT / "perf"
    for path in perf.rglob("*.py"):
        parts = path.relative_to(perf).with_suffix("").parts
        if parts[0] in ("tests", "__init__"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == len(parts):
                names = [node.module.partition(".")[0]] if node.module else [alias.name for alias in node.names]
                assert all(order.index(name) < order.index(parts[0]) for name in names), (path, names)
    assert {path.stem for path in perf.iterdir() if path.suffix == ".py" or path.name in order} <= {"__init__", *order}
