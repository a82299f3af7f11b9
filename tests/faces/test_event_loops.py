"""Event loops and threads of other libraries: uvloop, which uvicorn runs, and the greenlets of gevent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 60.0

UNDER_UVLOOP = """
import asyncio, sys
from contextlib import suppress

import uvloop

from persistentqueue import aio


async def main(path):
    async with aio.connect(path, "shared") as owner, aio.connect(path, "shared", serve="never") as worker:
        async with worker.session() as session:
            waiting = asyncio.create_task(session.dequeue(timeout=None))
            await asyncio.sleep(0)
            async with owner.transaction() as other:
                await other.enqueue_many([b"one", b"two"])
            items = [await waiting, await session.dequeue()]
            given_up = asyncio.create_task(session.dequeue(timeout=None))
            await asyncio.sleep(0)
            given_up.cancel()
            with suppress(asyncio.CancelledError):
                await given_up
            await session.flush()
        print(type(asyncio.get_running_loop()).__module__, *items, (await owner.stats()).ready)


uvloop.run(main(sys.argv[1]))
"""

UNDER_GEVENT = """
import sys

from gevent import monkey

monkey.patch_all()

import gevent

from persistentqueue import PersistentQueue, connect


def produce(queue, number):
    for count in range(10):
        with queue.transaction() as session:
            session.enqueue(b"%d %d" % (number, count))


def consume(queue, items):
    while len(items) < 40:
        with queue.session() as session:
            item = session.dequeue(timeout=0.1)
            if item is not None:
                session.flush()
                items.append(item)


path, ticks = sys.argv[1], []
clock = gevent.spawn(lambda: [ticks.append(gevent.sleep(0.01)) for _ in iter(int, 1)])
with PersistentQueue(path, "own") as own, connect(path, "shared") as shared:
    for queue in (own, shared):
        items = []
        consumers = [gevent.spawn(consume, queue, items) for _ in range(3)]
        producers = [gevent.spawn(produce, queue, number) for number in range(4)]
        gevent.joinall(consumers + producers, timeout=30, raise_error=True)
        print(sorted(items) == sorted(b"%d %d" % (number, count) for number in range(4) for count in range(10)))
    ticked = len(ticks)
    with own.session() as session:
        assert session.dequeue(timeout=0.5) is None
    print(len(ticks) > ticked)
clock.kill()
"""


def printed(program: str, path: Path) -> str:
    """Return what a program in a process of its own prints; it may print no error."""
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_uvloop_runs_tasks_of_a_queue(tmp_path: Path) -> None:
    """Under uvloop a task of a worker waits for an item that the owner commits, and a cancelled one takes none."""
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    assert printed(UNDER_UVLOOP, tmp_path) == "uvloop b'one' b'two' 0\n"


def test_greenlets_share_a_queue(tmp_path: Path) -> None:
    """After ``monkey.patch_all()`` of gevent each item is consumed once, and a wait lets other greenlets run."""
    pytest.importorskip("gevent", reason="gevent is not installed")
    assert printed(UNDER_GEVENT, tmp_path) == "True\nTrue\nTrue\n"
