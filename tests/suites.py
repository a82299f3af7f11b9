"""Suites: the tests that run together, and the options of pytest that they need.

``python -m tests.suites long -n 4`` runs the tests of ``make long`` in four processes: pytest gets the arguments behind
the name. Each test module is in one of the suites of ``APART``, or else in ``test``. The suites of ``ELSEWHERE`` select
some of the same modules for other surroundings.

A name such as ``unit/core/state`` is a test module, ``tests/unit/core/test_state.py``, or a folder. Names of the tests
of ``perf`` begin with ``perf/tests/``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

COVERED = (
    "codecs rows options subscription transactions typed "
    "core.availability core.block core.dead_letter core.delivery_counts core.encryption core.frame core.header "
    "core.intervals core.operations core.state "
    "engine.admission engine.adoption engine.commit engine.compaction engine.context engine.inbox engine.reader "
    "engine.segment_use engine.store engine.subscriptions engine.two_phase "
    "faces.lifecycle faces.refusals "
    "interprocess.consumer_requests interprocess.multi_writer interprocess.producer interprocess.snapshot_view "
    "interprocess.splits "
    "measuring.metrics "
    "recovery.in_doubt recovery.mounts recovery.opening recovery.replay "
    "runtime.inspection runtime.multi_queue runtime.pipeline runtime.retries runtime.session_state "
    "serving.calls serving.errors serving.portion serving.protocol serving.service serving.values serving.waits "
    "storage.inbox_access storage.inbox_limits storage.log storage.log_reader storage.publication storage.schema_files "
    "system.event_log system.path_errors system.progress system.quota"
)
"""Modules of the package of which ``make test`` covers every branch. Coverage watches only them: it takes its time."""

COVERING = (
    "api/codecs api/encryption api/flush_all api/options api/progress api/queue api/subscriptions api/tickets "
    "faces/aio_sessions unit/faces "
    "misuse/arguments misuse/corners misuse/errors misuse/foreign_directories misuse/identities misuse/inbox_limits "
    "misuse/inboxes misuse/location_repair misuse/passing_errors misuse/renames misuse/scarce_resources "
    "misuse/sessions misuse/subinterpreters misuse/trust "
    "predecessors/diskqueue_faults predecessors/diskqueue_log predecessors/diskqueue_weaknesses "
    "unit/codecs unit/interprocess unit/measuring unit/rows unit/serving "
    "unit/core/availability unit/core/dead_letter unit/core/delivery_counts unit/core/encryption unit/core/formats "
    "unit/core/intervals unit/core/state "
    "unit/engine/admission unit/engine/adoption unit/engine/commit unit/engine/compaction "
    "unit/engine/compaction_faults unit/engine/many_gaps unit/engine/reader_races unit/engine/segment_use "
    "unit/engine/spill unit/engine/store unit/engine/trim unit/engine/two_phase "
    "unit/recovery/check unit/recovery/decisions unit/recovery/in_doubt unit/recovery/lost_adoptions "
    "unit/recovery/mounts unit/recovery/opening unit/recovery/replay "
    "unit/runtime/dead_letters unit/runtime/disown unit/runtime/history unit/runtime/maintenance "
    "unit/runtime/open_queue unit/runtime/pipeline unit/runtime/retries unit/runtime/ticket_futures "
    "unit/runtime/waiting "
    "unit/storage/layout unit/storage/lock unit/storage/log unit/storage/pool unit/storage/schema_files "
    "unit/storage/segment "
    "unit/system/event_log unit/system/path_errors unit/system/progress unit/system/quota "
    "workers/common_owner workers/enclosed workers/other_options workers/sessions"
)
"""Tests that cover them, but for those that are marked ``unwatched``: those run as all others, without coverage."""


class Suite(NamedTuple):
    """The names of tests, those that are left out of them, and options of pytest."""

    tests: str
    without: str = ""
    options: tuple[str, ...] = ()


_CONNECTED = (
    "spark/batches spark/damaged_manifests spark/handoff spark/pipeline spark/pipeline_excuses "
    "spark/pipeline_failures spark/pipeline_on_spark spark/processes spark/rows spark/several_machines spark/source "
    "spark/stream spark/typed_rows spark/workers"
)
_SPARK = f"spark/java {_CONNECTED}"
APART = {
    "long": Suite(
        # First, since some take a minute: tests that start Spark, code of the documentation, rehearsals of make perf.
        "spark/batches spark/handoff spark/java spark/pipeline_on_spark spark/rows spark/several_machines spark/source "
        "spark/stream spark/typed_rows spark/workers project/documents_spark project/pages perf/tests/perf "
        "perf/tests/worker_processes "
        # The tests of other queues, on each Python there is, and a crawl.
        "peers/asked peers/asyncio peers/coming_from peers/cpython peers/persistqueue peers/queuelib faces/scrapy "
        # The command line in a process of its own for each verb, a terminal, a browser, importers.
        "faces/cli faces/cli_errors faces/cli_looks faces/cli_report faces/cli_serve faces/cli_streams faces/cli_top "
        "faces/cli_worker "
        "faces/importers "
        # Other surroundings, other users, hostile files of any size, calls that lack something or are interrupted.
        "misuse/command_line misuse/interrupts misuse/large_inboxes misuse/scarce_calls misuse/shared_inboxes "
        "misuse/surroundings unit/storage/locations "
        # Several processes, and kills of one, of many and of imports.
        "durability/compat_killed durability/import_killed durability/processes durability/producers_killed "
        "durability/several_killed examples/async_workers examples/fan_out faces/compat_shared "
        "predecessors/diskqueue_kills workers/simulated_network "
        # Disks that are full or fail, and files flipped at every bit.
        "durability/flips durability/full_disk predecessors/diskqueue_damage predecessors/diskqueue_failing_disk"
    ),
    # The main job, with all its data and killed at every place.
    "flights": Suite("examples/flights_killed examples/flights_pipeline"),
    # The processes of Spark, killed; their calls; a rehearsal of make perf-spark.
    "kills": Suite(
        "spark/killed spark/pipeline_killed spark/processes spark/tasks_that_run_twice examples/streaming_pipeline "
        "perf/tests/spark_perf",
        options=("-k", "not hand-offs"),
    ),
    # A stream over several queues, killed around a commit: beside other programs that users have.
    "neighbours": Suite("examples/route_batches"),
    # The models of protocols, which spin searches: they change with the protocols, not with the code.
    "models": Suite("models"),
    # Machines in namespaces: file systems over a network, and a cluster of Spark on them.
    "cluster": Suite("durability/network_disks spark/cluster spark/cluster_killed"),
}
_FOLDERS = "unit api misuse faces workers peers"
ELSEWHERE = {
    "kills-pipeline": Suite("spark/pipeline_killed"),
    # The other Pythons may differ here from the one of make test.
    "pythons": Suite(f"{_FOLDERS} golden predecessors"),
    # Without the tests that need mypy, or a package that has no wheels for this Python. CPython has fewer tests of its
    # own for it. One test leaves an error in a circle of objects, with a socket that this Python may release before the
    # object that closes it.
    "free-threaded": Suite(
        _FOLDERS,
        "api/codecs api/encryption faces/aio_steps faces/dashboard unit/codecs/enclosed unit/core/encryption "
        "workers/enclosed",
        (
            "-k",
            "not msgpack and not encrypted and not key_file and not headers_are_read_without and not "
            "settings_that_do_not_go and not cannot_be_opened_come_first and not every_error_survives and not row_22 "
            "and not type_checker and not test_looks_at_many_items and not envelopes and not its_own_tests_pass "
            "and not a_key_that_the_owner_lacks and not positions_that_cannot_be_read",
        ),
    ),
    # The connector's own tests, with each version of Spark.
    "sparks": Suite(_SPARK),
    # Sessions of Spark Connect run the same tests: on each version; with the kills; the kills of each commit.
    "sparks-connect": Suite(f"spark/connect {_CONNECTED}"),
    "connect": Suite(f"spark/connect spark/killed {_CONNECTED}"),
    "kills-connect": Suite("spark/killed spark/connect::test_a_query_is_found_by_its_name"),
    # In classic sessions: make flights has other hand-offs.
    "hand-offs": Suite("spark/killed", options=("-k", "hand-offs")),
    "airflow": Suite("airflow"),
    "declarative": Suite("spark/declarative"),
    # From the unpacked source distribution, without a second look at each file for itself.
    "unpacked": Suite("project api", f"project/language project/layers {APART['long'].tests}"),
    # With the oldest and newest versions of all dependencies.
    "bounds": Suite("api faces unit/core unit/system spark/handoff spark/source"),
}

ONE_JAVA = (
    "spark/batches spark/handoff spark/pipeline_on_spark spark/rows spark/several_machines spark/source spark/stream "
    "spark/typed_rows spark/workers"
)
"""Tests with the fixture ``spark``: one process runs them. Its start takes ten seconds and one gibibyte."""
DIVIDED = (
    "durability/campaigns durability/failing_closes durability/syscalls unit/engine/store unit/recovery/repair "
    "unit/recovery/replay"
)
"""Modules that take longest, and whose tests share nothing: the last process would be busy with one alone."""


def paths(names: str) -> list[str]:
    """Return the files and folders of these names, relative to the root of the repository."""
    return [_path(name) for name in names.split()]


def _path(name: str) -> str:
    module, colons, test = name.partition("::")
    path = Path(module) if module.startswith("perf/") else Path("tests", module)
    if not (ROOT / path).is_dir():
        path = path.with_name(f"test_{path.name}.py")
    return f"{path}{colons}{test}"


def arguments(name: str) -> list[str]:
    """Return the arguments of pytest for a suite. Raises ``KeyError`` if there is none of this name."""
    if name == "test":
        watched = [f"--cov=persistentqueue.{module}" for module in COVERED.split()]
        return [*watched, "--cov-report=", *_without(" ".join(suite.tests for suite in APART.values()))]
    suite = (APART | ELSEWHERE)[name]
    return [*paths(suite.tests), *_without(suite.without), *suite.options]


def _without(names: str) -> list[str]:
    return [f"--ignore={path}" for path in paths(names)]


def main() -> None:
    """Become the process of pytest that runs a suite."""
    name, *options = sys.argv[1:] or [""]
    names = ["test", *APART, *ELSEWHERE]
    if name not in names:
        sys.exit(f"usage: python -m tests.suites SUITE [OPTIONS OF PYTEST]; a suite is one of {' '.join(names)}")
    if name == "test":
        os.environ["WATCHED"] = " ".join(paths(COVERING))
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments(name), *options])


if __name__ == "__main__":
    main()
