"""The Airflow of these tests: a home of its own, with a new database. ``make airflow`` installs it and runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

CONNECTION = "AIRFLOW_CONN_PERSISTENTQUEUE_DEFAULT"


@pytest.fixture(scope="session")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make the home and the database of Airflow, before a test imports it; skip the tests if it is not installed."""
    if find_spec("airflow") is None:
        pytest.skip("Airflow is not installed: make airflow does so")
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    settings = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # its processes start the command
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        command = [sys.executable, "-m", "airflow", "db", "migrate"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=os.environ)
        assert done.returncode == 0, done.stderr
        yield home


@pytest.fixture
def queues(airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory of queues, to which the default connection leads."""
    directory = tmp_path / "queues"
    connection = {"conn_type": "persistentqueue", "extra": {"path": str(directory)}}
    monkeypatch.setenv(CONNECTION, json.dumps(connection))
    return directory
