"""A cluster of Spark on machines of its own: a master, a driver and workers that share one file system, and no more."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .machines import Machine, Network, network
from .network_disks import Agent, Mounted
from .spark_modes import SPARK, java_home

MASTER_PORT = 7077
START_SECONDS = 240
CORES = 1
"""Cores of each worker: so each executor runs one task at a time."""
MODULE = "tests.support.cluster_jobs"


class Cluster:
    """A master with the driver's machine, and workers, each on a machine of its own.

    The clock of the last worker is off by ``clock_seconds``.
    """

    def __init__(self, machines: Network, mounted: Mounted, workers: int = 2, clock_seconds: int = 0) -> None:
        self.mounted = mounted
        self.driver = mounted.mount(machines.add("driver", mounted.binds()))
        self.url = f"spark://{self.driver.address}:{MASTER_PORT}"
        self._start(self.driver, "Master", "--host", self.driver.address, "--port", str(MASTER_PORT))
        self.workers = [
            mounted.mount(machines.add(f"worker{number}", mounted.binds())) for number in range(1, workers + 1)
        ]
        if clock_seconds:
            self.workers[-1].shift_clock(clock_seconds)
        for machine in self.workers:
            self.add_worker(machine)

    def add_worker(self, machine: Machine) -> None:
        """Start a worker on a machine."""
        options = ["--host", machine.address, "--cores", str(CORES), "--memory", "1g", "--work-dir", "/tmp/work"]
        self._start(machine, "Worker", *options, self.url)

    def _start(self, machine: Machine, name: str, *options: str) -> None:
        java_home(machine.directory)
        environment = {"JAVA_HOME": "/tmp/java", "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": machine.address}
        environment |= {"SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false -Dspark.worker.timeout=40"}
        environment |= {"PYSPARK_PYTHON": sys.executable}
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}"]
        with (machine.directory / f"{name}.log").open("wb") as log:
            machine.start(
                *command, *options, "--webui-port", "0", environment=environment, stdout=log, stderr=log, cwd="/"
            )

    def settings(self) -> dict[str, str]:
        """Return the settings of a session on this cluster."""
        return {
            "spark.master": self.url,
            "spark.driver.host": self.driver.address,
            "spark.driver.bindAddress": self.driver.address,
            "spark.executorEnv.JAVA_HOME": "/tmp/java",
            "spark.executor.memory": "512m",
            "spark.network.timeout": "45s",
            "spark.network.timeoutInterval": "5s",
            "spark.executor.heartbeatInterval": "2s",
            "spark.sql.warehouse.dir": "/tmp/warehouse",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.cores.max": str(len(self.workers) * CORES),
        }


class Driver(Agent):
    """The program of a user on the driver's machine, with a session of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.log = cluster.driver.directory / f"driver-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            super().__init__(cluster.driver, MODULE, stderr=log, cwd="/")
        self("open_session", cluster.settings(), len(cluster.workers), timeout=START_SECONDS)


@contextmanager
def cluster(root: Path, kind: type[Mounted], size_mib: int | None = None, **more: Any) -> Iterator[Cluster]:
    """Yield a cluster that shares a file system of this kind, and size; all of it ends with the block."""
    with network(root) as machines:
        yield Cluster(machines, kind(machines, 0, size_mib), **more)
