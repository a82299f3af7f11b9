"""Tasks of the Airflow provider, run by Airflow: each item is enqueued once, and consumed once."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import persistentqueue
from persistentqueue import PersistentQueue
from tests.project.test_pages import PAGES, code_of, is_on_airflow
from tests.support.queues import drain, put

from .conftest import CONNECTION

pytestmark = [pytest.mark.airflow, pytest.mark.filterwarnings("default")]  # Airflow warns of its own packages
SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(persistentqueue.__file__)))


def context(run_id: str = "run 1") -> dict[str, Any]:
    """Return the part of a task's context that the operator needs."""
    return {"ti": SimpleNamespace(dag_id="dag", task_id="enqueue", map_index=-1, run_id=run_id)}


@contextmanager
def dag_file(home: Path, source: str) -> Iterator[Path]:
    """Yield a file in the folder of DAGs: Airflow runs only DAGs that it finds there."""
    path = home / "dags" / "of_a_test.py"
    path.write_text(source, encoding="utf-8")
    yield path
    path.unlink()


def dag_of(path: Path) -> Any:
    """Return the DAG that a file defines."""
    return runpy.run_path(str(path))["dag"]


def test_airflow_finds_the_provider(airflow_home: Path) -> None:
    """Airflow finds the provider by its entry point, accepts what it says, and has its hook and its queues."""
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    manager = ProvidersManager()
    manager.initialize_providers_queues()
    assert manager.providers["persistentqueue"].version == persistentqueue.__version__
    hook = ProvidersManagerTaskRuntime().hooks["persistentqueue"]
    assert hook is not None
    assert hook.hook_class_name == "persistentqueue.airflow.hook.QueueHook"
    assert "persistentqueue.airflow.message_queue.QueueProvider" in manager.queue_class_names


HAND_ON = """
from airflow.sdk import DAG, task

from persistentqueue import transaction
from persistentqueue.airflow.hook import QueueHook
from persistentqueue.airflow.operator import EnqueueOperator
from persistentqueue.airflow.sensor import QueueSensor

with DAG("hand_on", schedule=None) as dag:
    items = ["{{ dag.dag_id }}", {"number": 1}, "zwölf"]
    enqueue = EnqueueOperator(task_id="enqueue", items=items, name="orders")
    wait = QueueSensor(task_id="wait", name="orders", deferrable=False)

    @task
    def take():
        with (
            QueueHook(name="orders").connect() as source,
            QueueHook(name="taken").connect() as target,
            transaction(source, target) as (taken, moved),
        ):
            moved.enqueue_many(taken.dequeue_many(10))

    enqueue >> wait >> take()
"""


def test_a_dag_enqueues_waits_and_consumes(airflow_home: Path, queues: Path) -> None:
    """A task enqueues, a sensor lets it pass, and a task consumes by a session of the hook's queue: each item once."""
    with dag_file(airflow_home, HAND_ON) as path:
        assert dag_of(path).test().state == "success"
    with PersistentQueue(queues, "taken") as queue:
        assert drain(queue) == [b"hand_on", b'{"number":1}', "zwölf".encode()]
    with PersistentQueue(queues, "orders") as queue:
        assert len(queue) == 0


WAIT = """
from airflow.sdk import DAG

from persistentqueue.airflow.sensor import QueueSensor

with DAG("wait", schedule=None) as dag:
    QueueSensor(task_id="wait", name="orders", min_items=2, poke_interval=0.05)
"""


def test_a_sensor_waits_in_the_triggerer(airflow_home: Path, queues: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sensor finds nothing, waits by its trigger, and succeeds with the event when an item comes."""
    from persistentqueue.airflow.waiting import Watch

    is_waiting, news = threading.Event(), Watch.news

    def tell(watch: Watch, now_seconds: float) -> Any:
        found = news(watch, now_seconds)
        is_waiting.set()
        return found

    def enqueue() -> None:
        assert is_waiting.wait(120)
        with PersistentQueue(queues, "orders") as queue:
            put(queue, b"1", b"2")

    monkeypatch.setattr(Watch, "news", tell)
    thread = threading.Thread(target=enqueue)
    thread.start()
    with dag_file(airflow_home, WAIT) as path:
        run = dag_of(path).test()
    thread.join()
    assert is_waiting.is_set()
    assert run.state == "success"
    (task,) = run.get_task_instances()
    event = task.xcom_pull(task_ids="wait")
    assert event == {
        "path": str(queues),
        "name": "orders",
        "subscription": "",
        "items": 2,
        "published": 0,
        "enqueued": 2,
    }


KILLED = """
import os, signal, sys
from types import SimpleNamespace
from persistentqueue import Producer
from persistentqueue.airflow.operator import EnqueueOperator

flush = Producer.flush

def die(self, marker=None):
    flush(self, marker)
    os.kill(os.getpid(), signal.SIGKILL)

Producer.flush = die
task = EnqueueOperator(task_id="enqueue", items=["1", "2"], name="orders")
task.execute({"ti": SimpleNamespace(dag_id="dag", task_id="enqueue", map_index=-1, run_id="run 1")})
"""


def test_an_attempt_that_is_repeated_enqueues_nothing(queues: Path) -> None:
    """A task that is killed after its commit, and tried again, has enqueued its items once; another run adds its own.

    Without a marker the items come twice. A pair as the marker counts for all runs.
    """
    from persistentqueue.airflow.operator import EnqueueOperator

    environment = os.environ | {"PYTHONPATH": SOURCES}
    killed = subprocess.run([sys.executable, "-c", KILLED], env=environment, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    task = EnqueueOperator(task_id="enqueue", items=["1", "2"], name="orders")
    assert task.execute(context()) == 0
    assert task.execute(context("run 2")) == 2
    unmarked = EnqueueOperator(task_id="unmarked", items=[b"\xff"], name="orders", marker=None)
    assert [unmarked.execute(context()) for _ in range(2)] == [1, 1]
    paired = EnqueueOperator(task_id="paired", items=[3], name="orders", marker=("daily", 20261125))
    assert [paired.execute(context(run)) for run in ("run 1", "run 2")] == [1, 0]
    with PersistentQueue(queues, "orders") as queue:
        assert drain(queue) == [b"1", b"2", b"1", b"2", b"\xff", b"\xff", b"3"]


def test_the_hook_reads_the_connection(queues: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection gives path, name and options; a path of the hook needs no connection."""
    from persistentqueue.airflow.hook import QueueHook

    extra = {"path": str(queues), "name": "orders", "options": {"max_items": 3, "lock_timeout": 1.0}}
    monkeypatch.setenv(CONNECTION, json.dumps({"conn_type": "persistentqueue", "extra": extra}))
    hook = QueueHook()
    assert hook.test_connection()[0] is False
    with hook.get_conn() as queue, queue.transaction() as session:
        session.enqueue(b"1")
    assert hook.test_connection() == (True, f"{queues / 'orders'}: 1 item waits")
    assert (hook.place.options.max_items, hook.place.options.lock_timeout) == (3, 1.0)
    assert QueueHook("no connection", path=str(queues / "orders")).view().look().depth == 1
    assert QueueHook(name="other").place.name == "other"
    assert QueueHook.get_ui_field_behaviour()["hidden_fields"]


@pytest.mark.parametrize(
    ("extra", "kind", "message"),
    [
        ({}, ValueError, "has no field 'path'"),
        ({"path": "/q", "queue": "orders"}, ValueError, "has the unknown field 'queue'"),
        ({"path": "/q", "options": {"max_item": 1}}, TypeError, "did you mean 'max_items'"),
    ],
)
def test_a_connection_that_names_no_queue(
    queues: Path, monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """A connection without a path, or with a field that is not known, is refused with what is wrong."""
    from persistentqueue.airflow.hook import QueueHook

    monkeypatch.setenv(CONNECTION, json.dumps({"conn_type": "persistentqueue", "extra": extra}))
    with pytest.raises(kind, match=message):
        QueueHook().connect()


@pytest.mark.parametrize("page", [page for page in PAGES if is_on_airflow(page)], ids=lambda page: page.stem)
def test_code_of_a_page_on_airflow_runs_twice(airflow_home: Path, queues: Path, tmp_path: Path, page: Path) -> None:
    """The code of a page on Airflow runs twice: each fence is a DAG file, and runs its DAG if it is the program."""
    environment = os.environ | {"PYTHONPATH": SOURCES}
    for _, code in 2 * code_of(page):
        with dag_file(airflow_home, code) as path:
            done = subprocess.run(
                [sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False, timeout=300
            )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
