"""The operator of the Airflow provider without Airflow: an empty class stands for each of its base classes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue, codecs, list_queues

PROGRAM = """
import sys
from types import ModuleType, SimpleNamespace

class Base:
    def __init__(self, **arguments):
        pass

sdk = ModuleType("airflow.sdk")
sdk.BaseHook = sdk.BaseOperator = Base
sys.modules.update({"airflow": ModuleType("airflow"), "airflow.sdk": sdk})

from persistentqueue.airflow.operator import EnqueueOperator

path, items, marker = sys.argv[1:]
operator = EnqueueOperator(items=eval(items), name="orders", path=path, marker=eval(marker))
operator.log = SimpleNamespace(info=lambda text, *values: print(text % values))
try:
    operator.execute({"ti": SimpleNamespace(dag_id="dag", task_id="enqueue", map_index=-1, run_id="run")})
except (TypeError, ValueError) as error:
    print(error)
"""


def execute(path: Path, items: str, marker: str = "'run'") -> str:
    """Return what an operator with these arguments prints."""
    command = [sys.executable, "-c", PROGRAM, str(path), items, marker]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("items", ["'[1, 2]'", "b'abc'", "{'order': 1}"])
def test_what_is_no_series_of_items_is_refused(tmp_path: Path, items: str) -> None:
    """A text, bytes or a mapping for the items are refused before anything is published."""
    assert execute(tmp_path, items).startswith("EnqueueOperator takes several items, not ")
    assert list_queues(tmp_path) == []


def test_an_item_is_written_as_json(tmp_path: Path) -> None:
    """An item that is no text is the JSON that ``codecs.JSON`` writes. NaN, which JSON does not have, is refused."""
    assert "not JSON compliant" in execute(tmp_path, "[{'price': float('nan')}]")
    assert list_queues(tmp_path) == []
    execute(tmp_path, "[{'name': 'Zoë'}, 'Zoë', b'x']")
    with PersistentQueue(tmp_path, "orders") as queue:
        assert list(queue.browse()) == [codecs.JSON.encode({"name": "Zoë"}), "Zoë".encode(), b"x"]


@pytest.mark.parametrize("marker", ["('minutely', '{}')", "('minutely', {})", "['minutely', ' {}']"])
def test_a_marker_of_a_template_or_another_task(tmp_path: Path, marker: str) -> None:
    """A marker may be a tuple or a list, with a version in text. The log names the queue."""
    words = [execute(tmp_path, "['item']", marker.format(version)) for version in (7, 7, 8)]
    assert words == [f"{tmp_path / 'orders'}: 1 item {word}\n" for word in ("enqueued", "known", "enqueued")]
    with PersistentQueue(tmp_path, "orders") as queue:
        assert (len(queue), queue.marker("minutely")) == (2, 8)


@pytest.mark.parametrize("marker", ["'minutely'", "('minutely', 'x')", "('minutely', 1.5)", "(7, 7)", "('a', 1, 2)"])
def test_what_is_no_marker_is_refused(tmp_path: Path, marker: str) -> None:
    """A marker that is no pair of a name and a version is refused before anything is published."""
    assert execute(tmp_path, "['item']", marker).startswith("marker must be a pair of a name and a version")
    assert list_queues(tmp_path) == []
