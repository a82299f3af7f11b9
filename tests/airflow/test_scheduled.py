"""Airflow with all its processes: items start a DAG by the trigger, a task is killed, and each item is moved once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue, Producer, QueueNotFoundError, View

pytestmark = [pytest.mark.airflow, pytest.mark.filterwarnings("default")]  # Airflow warns of its own packages

LIMIT_SECONDS = 300
DAG_FILE = """
import os
import signal
from datetime import timedelta

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, task

from persistentqueue import transaction
from persistentqueue.airflow.hook import QueueHook

trigger = MessageQueueTrigger(scheme="persistentqueue", name="orders", poll_seconds=0.2)
orders = Asset("orders", watchers=[AssetWatcher(name="orders", trigger=trigger)])

with DAG("move_orders", schedule=[orders], max_active_runs=1, is_paused_upon_creation=False):

    @task(retries=5, retry_delay=timedelta(seconds=1))
    def move():
        with QueueHook(name="orders").connect() as source, QueueHook(name="taken").connect() as target:
            while True:
                with transaction(source, target) as (orders, taken):
                    items = orders.dequeue_many(10)
                    if not items:
                        return
                    taken.enqueue_many(items)
                    if b"15" in items and not os.path.exists(KILLED):
                        open(KILLED, "w").close()
                        os.kill(os.getpid(), signal.SIGKILL)

    move()
"""


@contextmanager
def airflow_running(home: Path) -> Iterator[None]:
    """Run the scheduler, the triggerer, the DAG processor and the server of Airflow, for the length of a block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    }
    with (home / "standalone.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "standalone"],
            env=os.environ | settings,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until(condition: Callable[[], bool], log: Path) -> None:
    """Wait until the condition holds, for minutes at most."""
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, log.read_text(errors="replace")[-5000:]
        time.sleep(0.2)


def count(queues: Path, name: str) -> int:
    """Return the number of items in a queue, from outside; 0 if it is not there yet."""
    try:
        return View(queues, name).look().depth
    except QueueNotFoundError:
        return 0


def test_items_start_a_dag_and_are_moved_once(airflow_home: Path, queues: Path, tmp_path: Path) -> None:
    """Items that a producer enqueues start a run; its task is killed in a transaction, and tried again.

    Each item is moved once. Items that come later start a run, too.
    """
    killed, log = tmp_path / "killed", airflow_home / "standalone.log"
    (airflow_home / "dags" / "move_orders.py").write_text(DAG_FILE.replace("KILLED", repr(str(killed))))
    with airflow_running(airflow_home), Producer(queues, "orders") as producer:
        for first, last in ((0, 25), (25, 30)):
            producer.enqueue_many(b"%d" % number for number in range(first, last))
            producer.flush()
            wait_until(lambda last=last: count(queues, "taken") == last, log)  # type: ignore[misc]
        assert killed.exists()
    with PersistentQueue(queues, "taken") as queue:
        assert sorted(map(int, queue.browse())) == list(range(30))
    with PersistentQueue(queues, "orders") as queue:
        assert len(queue) == 0
