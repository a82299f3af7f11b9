"""The golden queues: this tree opens each queue that an older tree wrote, and finds the content that is described."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import DataMissingError, DeadLetter, Encryption, PersistentQueue, View, check, list_queues
from tests.conftest import QueueFactory
from tests.faces.test_cli import cli as verb
from tests.golden.make import CASES, SUMS, TINY, Queue, make_all, sums
from tests.support.queues import IN_CACHE, drain, put

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = sorted(path for path in GOLDEN.glob("v*") if path.is_dir())
ALL = [pytest.param(path, id=f"{path.parent.name}-{path.stem}") for v in VERSIONS for path in sorted(v.glob("*.json"))]
BYTES_MAX = 1 << 20


@pytest.fixture(autouse=True, scope="module")
def untouched() -> Iterator[None]:
    """Check that no golden queue has changed, before and after the tests: all files have their original digests."""
    for version in VERSIONS:
        assert sums(version) == (version / SUMS).read_text(), version
    yield
    for version in VERSIONS:
        assert sums(version) == (version / SUMS).read_text(), version


class Case:
    """A copy of a golden case, with the modes and empty directories that Git does not keep."""

    def __init__(self, path: Path, root: Path) -> None:
        contents = json.loads(path.read_text(encoding="utf-8"))
        shutil.copytree(path.with_suffix(""), root)
        for directory in ["", *contents["directories"]]:
            (root / directory).mkdir(mode=0o700, exist_ok=True)
            os.chmod(root / directory, 0o700)
        for file in root.rglob("*"):
            if file.is_file():
                os.chmod(file, 0o600)
        self.queues, self.media = root / "queues", root / "media"
        self.contents: dict[str, Queue] = {name: Queue(**fields) for name, fields in contents["queues"].items()}

    def encryption(self, queue: Queue) -> Encryption | None:
        """Return the encryption of the queue; None if it has none."""
        keys = {key_id: bytes.fromhex(key) for key_id, key in queue.keys.items()}
        return Encryption(list(keys)[-1], keys.__getitem__) if keys else None

    def view(self, name: str) -> View:
        """Return a view of the queue from outside."""
        return View(self.queues, name or None, encryption=self.encryption(self.contents[name]))

    def opened(self, name: str, open_queue: QueueFactory) -> PersistentQueue:
        """Open a queue, and its dead-letter queue if it has one."""
        queue = self.contents[name]
        settings: dict[str, Any] = TINY | queue.settings | {"encryption": self.encryption(queue), "disk": IN_CACHE}
        if queue.is_elsewhere:
            settings["data_path"] = self.media
        if queue.dead_letter:
            settings["dead_letter"] = open_queue(queue.dead_letter, path=self.queues, disk=IN_CACHE, **TINY)
        return open_queue(name or None, path=self.queues, **settings)


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """Return the case of the test."""
    return Case(request.param, tmp_path / "golden")


def consumed(queue: Queue) -> int:
    """Return the number of items that can be seen before the queue is opened."""
    return len(queue.items) - queue.waiting


@pytest.mark.damages  # segments on other media are not found
@pytest.mark.parametrize("case", ALL, indirect=True)
def test_golden_queue_is_seen_from_outside(case: Case) -> None:
    """``check`` and ``View`` find the described content of a golden queue without opening it."""
    assert list_queues(case.queues) == sorted(filter(None, case.contents))
    for name, expected in case.contents.items():
        if expected.is_elsewhere:  # the media of the original place are gone
            with pytest.raises(DataMissingError):
                case.view(name).look()
            continue
        report = check(case.queues, name or None)
        assert report.problems == ()
        assert (report.sealed, report.torn_bytes > 0) == (expected.is_sealed, expected.is_torn)
        assert (report.published, report.in_doubt) == (expected.waiting, expected.in_doubt)
        view, seen = case.view(name), consumed(expected)
        snapshot = view.look()
        assert (snapshot.is_sealed, snapshot.is_synced) == (expected.is_sealed, expected.settings.get("sync", True))
        assert snapshot.fan_out == expected.settings.get("fan_out", False)
        assert not snapshot.in_doubt  # the log of the coordinator has the outcome
        if not expected.waiting:
            assert snapshot.markers == expected.markers
        if snapshot.published:  # a subscription is requested, and not made yet
            assert not snapshot.subscriptions
            continue
        assert [name for name, _ in snapshot.subscriptions] == list(expected.subscriptions)
        if not snapshot.fan_out and not expected.dead_letters:
            assert [item.data.decode() for item in view.browse()] == expected.items[:seen]
        for subscription, items in expected.subscriptions.items():
            assert [item.data.decode() for item in view.browse(subscription)] == items


@pytest.mark.parametrize("case", ALL, indirect=True)
def test_golden_queue_opens(case: Case, open_queue: QueueFactory) -> None:
    """An opening of a golden queue finds the described content, and the queue can be used from there."""
    for name, expected in case.contents.items():
        queue = case.opened(name, open_queue)
        assert (queue.recovery.clean, queue.recovery.torn_bytes > 0) == (expected.is_sealed, expected.is_torn)
        assert queue.recovery.resolved == (True if expected.in_doubt else None)
        state = queue._open()._store.state
        assert state.markers == expected.markers
        assert {connection.hex(): number for connection, number in state.flushes.items()} == expected.flushes
        assert {number: state.times(0, int(number)) for number in expected.attempts} == expected.attempts
        assert sorted(queue.subscriptions()) == sorted(expected.subscriptions)
        for subscription, items in expected.subscriptions.items():
            taken = drain_of(queue.subscribe(subscription))
            assert [item.decode() for item in taken] == items
        if not expected.settings.get("fan_out"):
            letters = [DeadLetter.decode(item) for item in queue.browse()] if expected.dead_letters else []
            assert [[each.item.decode(), each.reason, each.attempts] for each in letters] == expected.dead_letters
            left = len(expected.items) or len(letters)
            assert len(queue) == left
            put(queue, b"the next life")
            taken = drain_one_by_one(queue) if expected.attempts else drain(queue)
            assert len(taken) == left + 1
            if not letters:
                assert [item.decode() for item in taken] == [*expected.items, "the next life"]
        queue.close()
        report = check(case.queues, name or None)
        assert (report.problems, report.sealed, report.published) == ((), True, 0)


def drain_of(queue: Any) -> list[bytes]:
    """Dequeue everything that the subscription has left."""
    with queue.session() as session:
        items: list[bytes] = session.dequeue_many(1000)
        session.flush()
    return items


def drain_one_by_one(queue: PersistentQueue) -> list[bytes]:
    """Dequeue everything, item by item: an item that failed before is delivered alone."""
    items: list[bytes] = []
    with queue.session() as session:
        while (item := session.dequeue()) is not None:
            items.append(item)
            session.flush()
    return items


@pytest.mark.damages  # segments on other media are not found
@pytest.mark.parametrize("case", ALL, indirect=True)
def test_golden_queue_by_the_command_line(case: Case, tmp_path: Path) -> None:
    """``check``, ``peek`` and ``dump`` of the command line find the described content of a golden queue."""
    for name, expected in case.contents.items():
        if expected.is_elsewhere or expected.settings.get("fan_out") or expected.dead_letters:
            continue
        where = [str(case.queues), *([name] if name else [])]
        assert "0 problems" in cli("check", *where)
        keys = []
        for key_id, key in expected.keys.items():
            (tmp_path / key_id).write_bytes(bytes.fromhex(key))
            keys += ["--key", f"{key_id}={tmp_path / key_id}"]
        shown = [json.loads(line) for line in cli("peek", *where, "-n", "1000", "--json", *keys).splitlines()]
        assert [each["text"] for each in shown] == expected.items[: consumed(expected)]
        dumped = [json.loads(line) for line in cli("dump", *where, *keys).splitlines()]
        assert [each["text"] for each in dumped] == expected.items[: consumed(expected)]


def cli(*arguments: str) -> str:
    """Return the output of the command line, which must succeed."""
    done = verb(*arguments)
    assert done.status == 0, done.err
    assert not done.err or done.err.startswith("not included: 4 transactions in the inbox")
    return done.text


def test_golden_queues_are_small_and_complete() -> None:
    """There is a golden queue of each feature for each format version, and all together are small."""
    assert [version.name for version in VERSIONS] == ["v1", "v2"]
    for version, since in zip(VERSIONS, ({"flushes"}, set()), strict=True):
        made = {path.stem for path in version.glob("*.json")}
        assert made == {case.__name__ for case in CASES} - since
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < BYTES_MAX


def test_golden_queues_are_made_alike(
    tmp_path: Path, open_queue: QueueFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """The program that makes golden queues makes equal bytes each time, and they open like the stored ones."""
    one, other = tmp_path / "one", tmp_path / "other"
    make_all(one)
    make_all(other)
    assert (one / SUMS).read_text() == (other / SUMS).read_text()
    assert sums(one) == sums(other) == (one / SUMS).read_text()
    for path in sorted(one.glob("*.json")):
        test_golden_queue_opens(Case(path, tmp_path / "copies" / path.stem), open_queue)
    shutil.rmtree(one)
    shutil.rmtree(other)
