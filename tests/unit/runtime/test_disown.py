"""Queues that are disowned, and threads that are interrupted when their turn comes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
    PersistentQueue,
)
from persistentqueue.runtime.group_commit import _Member
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, put, wait_for
from tests.unit.runtime.test_open_queue import Gate, Interruption


def test_disowning_twice(tmp_path: Path) -> None:
    """Disowning or closing a disowned queue again does nothing, and waits for no lock: its holder may be gone."""
    queue = PersistentQueue(tmp_path / "q")
    crash(queue)
    crash(queue)
    with queue._open_queue.mutex:  # type: ignore[union-attr]
        queue.close()
    with pytest.raises(ClosedError, match="crashed by a test"):
        len(queue)


@pytest.mark.parametrize("is_heir", [False, True])
def test_interrupted_when_its_turn_comes(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, is_heir: bool
) -> None:
    """If a follower is interrupted when its turn comes, its transaction is committed.

    If the interrupted thread was to lead the next group, its transaction is not committed, and it passes the lead on.
    """
    gate = Gate()
    queue = open_queue(disk=replace(DISK, failpoint=gate.failpoint))

    class Turn:
        """A lock whose second ``acquire`` is interrupted just when it has succeeded."""

        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.calls = 0

        def acquire(self) -> None:
            self.calls += 1
            self.lock.acquire()
            if self.calls == 2:
                raise Interruption

        def release(self) -> None:
            self.lock.release()

    original = _Member.__init__

    def init(member: Any, transactions: Any) -> None:
        original(member, transactions)
        if transactions[0].items == [b"interrupted"]:
            member.turn = Turn()
            member.turn.acquire()

    monkeypatch.setattr(_Member, "__init__", init)
    group = queue._open_queue
    assert group is not None
    gate.armed = True
    items = [b"interrupted", b"other"] if is_heir else [b"other", b"interrupted"]
    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(put, queue, b"leader")
        assert gate.reached.wait(30)
        results = {items[0]: pool.submit(put, queue, items[0])}
        wait_for(lambda: len(group._group_commit) == 1)
        results[items[1]] = pool.submit(put, queue, items[1])
        wait_for(lambda: len(group._group_commit) == 2)
        gate.go_on.set()
        leader.result(30)
        results[b"other"].result(30)
        with pytest.raises(Interruption):
            results[b"interrupted"].result(30)
    assert drain(queue) == [b"leader", b"other"] + ([] if is_heir else [b"interrupted"])
