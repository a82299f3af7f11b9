"""The operator of the Airflow provider without Airflow: an empty class stands for each of its base classes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from persistentqueue import list_queues

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

path, items = sys.argv[1:]
operator = EnqueueOperator(items=eval(items), name="orders", path=path)
try:
    operator.execute({"ti": SimpleNamespace(dag_id="dag", task_id="enqueue", map_index=-1, run_id="run")})
except TypeError as error:
    print(error)
"""


@pytest.mark.parametrize("items", ["'[1, 2]'", "b'abc'", "{'order': 1}"])
def test_what_is_no_series_of_items_is_refused(tmp_path: Path, items: str) -> None:
    """A text, bytes or a mapping for the items are refused before anything is published."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), items]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("EnqueueOperator takes several items, not ")
    assert list_queues(tmp_path) == []
