"""The payloads of stages: each is a directory of Parquet files under the payload root.

The root lies on a local file system, or on any other that Spark can write, under Hadoop's name for it (``s3a://``,
``hdfs://`` …). A local payload is made durable here: the files first, then the names that lead to them. On another file
system, a file that Spark has written and closed is as durable as that storage makes it.

A classic session reaches another file system through the driver's Java. Under Spark Connect there is no Java at hand:
jobs of Spark list and delete the files. They take tenths of a second, and leave an empty directory for each deleted
payload, where the storage has directories.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol

from pyarrow.parquet import read_metadata
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from persistentqueue.system.disk import DISK
from persistentqueue.system.files import make_directory, sync_directory, sync_names

from .options import local_path
from .sessions import is_connect

_PATTERN = set("*?[]{}\\")
_SUCCESS = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
_LACKS_JARS = re.compile(r"No FileSystem for scheme|ClassNotFoundException: Class [\w.]+ not found")
_JARS = (
    "the jars of this Spark do not have this file system: add them to it, for s3a:// by the setting "
    "spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION, with the version of the jar hadoop-client-api"
)
LOST_SUFFIX = ".lost"
"""The suffix of the name of a payload whose stage was given up."""


class Payloads(Protocol):
    """The payloads under one root, each identified by the name of its directory."""

    root: str
    """The root, as messages show it."""
    is_path: bool
    """Whether the root is a path, which can be another directory on each machine."""

    def prepare(self) -> None:
        """Make the root if it does not exist."""

    def names(self, identity: str) -> dict[str, float]:
        """Return the names of the directories under the root that contain the identity between two hyphens.

        Each comes with the time of its last change, in seconds since 1970.
        """

    def make(self, name: str) -> str:
        """Make an empty payload, and return the address that Spark writes to."""

    def files(self, name: str) -> dict[str, int]:
        """Return the Parquet files of a payload, sorted by name, with their sizes in bytes; none if it is missing."""

    def rows(self, name: str, files: Sequence[str]) -> int:
        """Return the number of rows in these files; reading it from their footers checks that they are complete."""

    def sync(self, name: str) -> None:
        """Make the payload durable."""

    def address(self, name: str, file: str) -> str:
        """Return the address at which Spark reads a file."""

    def remove(self, name: str) -> None:
        """Delete a payload, and ignore errors: a payload that stays is an orphan for the next sweep."""

    def set_aside(self, name: str) -> None:
        """Add ``LOST_SUFFIX`` to the name of a payload, if it exists, so that no sweep removes it.

        A payload that was set aside before, and put back since, gets a number as well. Raises ``OSError``.
        """


def payloads(root: str | os.PathLike[str], spark: SparkSession | None) -> Payloads:
    """Return the payloads under this root. Raises ``ValueError`` if Spark would read the root as a pattern."""
    text = os.fspath(root)
    path = local_path(text)
    root = text if path is None else str(Path(path).resolve())
    if set(root) & _PATTERN:
        raise ValueError(f"{root}: Spark reads * ? [ ] {{ }} and \\ as a pattern: choose another payload_root")
    if path is not None:
        return _Local(Path(root))
    session = spark or SparkSession.active()
    return (_ByJobs if is_connect(session) else _ByJava)(root.rstrip("/"), session)


def on_the_server(root: str, spark: SparkSession) -> Payloads:
    """Return the payloads under a path of the server of Spark Connect that this process does not see."""
    return _ByJobs(root if local_path(root) is None else f"file://{root}", spark)


class _Local:
    """The payloads on a local file system."""

    is_path = True

    def __init__(self, root: Path) -> None:
        self._root = root
        self.root = str(root)

    def prepare(self) -> None:
        make_directory(DISK, self.root)
        sync_names(DISK, self.root)

    def names(self, identity: str) -> dict[str, float]:
        """Return what ``Payloads.names`` says, from one look at the directory."""
        found: dict[str, float] = {}
        with os.scandir(self._root) as entries:
            for entry in entries:
                if f"-{identity}-" in entry.name and entry.is_dir(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # the process of a micro-batch has removed its payload
                        found[entry.name] = entry.stat().st_mtime
        return found

    def make(self, name: str) -> str:
        (self._root / name).mkdir(mode=0o700)
        return self._url(self._root / name)

    def files(self, name: str) -> dict[str, int]:
        """Return the Parquet files that the directory contains now, with their sizes in bytes."""
        try:
            found = sorted(os.listdir(self._root / name))
        except FileNotFoundError:
            return {}
        return {file: (self._root / name / file).stat().st_size for file in found if _is_data(file)}

    def rows(self, name: str, files: Sequence[str]) -> int:
        return sum(read_metadata(self._root / name / file).num_rows for file in files)

    def sync(self, name: str) -> None:
        """Sync the files first, and then the names that lead to them.

        Hadoop's checksum files are synced, too: a torn one would make an intact file unreadable.
        """
        for file in (self._root / name).iterdir():
            with DISK.opened(str(file)) as fd:
                DISK.fsync(fd)
        sync_directory(DISK, str(self._root / name))
        sync_directory(DISK, self.root)

    def address(self, name: str, file: str) -> str:
        return self._url(self._root / name / file)

    def remove(self, name: str) -> None:
        shutil.rmtree(self._root / name, ignore_errors=True)

    def set_aside(self, name: str) -> None:
        """Add ``LOST_SUFFIX`` to the name of a payload, if it exists."""
        with suppress(FileNotFoundError):
            os.rename(self._root / name, self._root / _lost(name, lambda each: os.path.lexists(self._root / each)))
            sync_directory(DISK, self.root)

    @staticmethod
    def _url(path: Path) -> str:
        """Return the path as an address on the local file system, whatever Spark's default file system is."""
        return f"file://{path}"


class _Remote:
    """The payloads on any other file system that Spark knows, with the methods of both kinds of sessions."""

    is_path = False

    def __init__(self, root: str, spark: SparkSession) -> None:
        self.root = root
        self._spark = spark

    def rows(self, name: str, files: Sequence[str]) -> int:
        return self._spark.read.parquet(*(self.address(name, file) for file in files)).count()

    def sync(self, name: str) -> None:
        pass  # Hadoop offers no more than the close of each file, which Spark has done

    def address(self, name: str, file: str) -> str:
        return f"{self.root}/{name}/{file}"


class _ByJava(_Remote):
    """The payloads, reached through the driver's Java."""

    def __init__(self, root: str, spark: SparkSession) -> None:
        super().__init__(root, spark)
        context: Any = spark.sparkContext
        self._path = context._jvm.org.apache.hadoop.fs.Path
        with _explaining(root):
            self._files = self._path(root).getFileSystem(context._jsc.hadoopConfiguration())

    def prepare(self) -> None:
        with _explaining(self.root):
            self._files.mkdirs(self._path(self.root))

    def names(self, identity: str) -> dict[str, float]:
        """Return what ``Payloads.names`` says, from the file system of Java."""
        named = [status.getPath().getName() for status in self._list(self.root) if status.isDirectory()]
        return {name: self._changed(name) for name in named if f"-{identity}-" in name}

    def make(self, name: str) -> str:
        return f"{self.root}/{name}"  # nothing to make: many such storages have no empty directories

    def files(self, name: str) -> dict[str, int]:
        found = {status.getPath().getName(): status.getLen() for status in self._list(f"{self.root}/{name}")}
        return {file: found[file] for file in sorted(found) if _is_data(file)}

    def remove(self, name: str) -> None:
        with suppress(OSError), _explaining(self.root):
            self._files.delete(self._path(f"{self.root}/{name}"), True)

    def set_aside(self, name: str) -> None:
        """Add ``LOST_SUFFIX`` to the name of a payload, if it exists."""
        path = self._path(f"{self.root}/{name}")
        with _explaining(f"{self.root}/{name}"):
            if self._files.exists(path):
                lost = _lost(name, lambda each: self._files.exists(self._path(f"{self.root}/{each}")))
                if not self._files.rename(path, self._path(f"{self.root}/{lost}")):  # Hadoop raises no error
                    raise OSError(f"{self.root}/{name}: the file system does not rename it to {lost}")

    def _changed(self, name: str) -> float:
        """Return the time of the last change of a file in a payload: an object store knows none of a directory."""
        changed = 0.0
        with _explaining(f"{self.root}/{name}"):
            files = self._files.listFiles(self._path(f"{self.root}/{name}"), True)
            while files.hasNext():
                changed = max(changed, files.next().getModificationTime() / 1000)
        return changed or time.time()

    def _list(self, directory: str) -> list[Any]:
        path = self._path(directory)
        with _explaining(directory):
            return list(self._files.listStatus(path)) if self._files.exists(path) else []


class _ByJobs(_Remote):
    """The payloads, reached by jobs of Spark."""

    def prepare(self) -> None:
        self._list("-")  # nothing to make, since Spark makes directories: this asks whether it knows the file system

    def names(self, identity: str) -> dict[str, float]:
        """Return what ``Payloads.names`` says, from the files in the payloads: the server lists no directories."""
        found: dict[str, float] = {}
        for path, _, changed in self._list(f"*-{identity}-*"):
            name = path.rpartition("/")[0].rpartition("/")[2]
            found[name] = max(changed, found.get(name, 0.0))
        return found

    def make(self, name: str) -> str:
        """Leave a file in the payload: Spark lists no files of a job that was killed, and no empty directories."""
        address = f"{self.root}/{name}"
        self._mark(address)
        return address

    def files(self, name: str) -> dict[str, int]:
        found = {path.rpartition("/")[2]: size_bytes for path, size_bytes, _ in self._list(name)}
        return {file: found[file] for file in sorted(found) if _is_data(file)}

    def remove(self, name: str) -> None:
        """Overwrite the payload with the partitions of a frame without rows: there are none, so no file is left."""
        with suppress(PySparkException):
            writer = self._spark.range(0).selectExpr("id AS part", "id").write.partitionBy("part").mode("overwrite")
            settings = {_SUCCESS: "false", "partitionOverwriteMode": "static"}
            writer.options(**settings).parquet(f"{self.root}/{name}")

    def set_aside(self, name: str) -> None:
        """Leave a mark beside the payload: Spark renames nothing, and no sweep removes a payload with a mark."""
        if self._list(name):
            self._mark(f"{self.root}/{name}{LOST_SUFFIX}")

    def _mark(self, address: str) -> None:
        with _explaining(address):
            self._spark.sql("SELECT '' AS value").write.mode("append").option(_SUCCESS, "false").text(address)

    def _list(self, directory: str) -> list[tuple[str, int, float]]:
        """Return the files in the matching directories: each with its path, size and time of the last change."""
        address = f"{self.root}/{directory}"
        files = self._spark.read.format("binaryFile").load(address)
        try:
            with _explaining(address):
                rows = files.selectExpr("path", "length", "CAST(modificationTime AS DOUBLE)").collect()
        except FileNotFoundError:
            return []
        return [tuple(row) for row in rows]


@contextmanager
def _explaining(address: str) -> Iterator[None]:
    """Turn an error of Spark or Java into an ``OSError`` that names the address, without the Java stack trace."""
    try:
        yield
    except PySparkException as error:
        kind = FileNotFoundError if error.getCondition() == "PATH_NOT_FOUND" else OSError
        raise kind(_advised(address, str(error).partition("JVM stacktrace")[0].strip())) from error
    except Exception as error:
        if not hasattr(error, "java_exception"):  # the error of py4j, which a client of Spark Connect does not have
            raise
        raise OSError(_advised(address, error.java_exception.toString())) from error


def _advised(address: str, text: str) -> str:
    """Return the message for an error at an address, with the advice if Spark lacks the file system."""
    return f"{address}: {text}: {_JARS}" if _LACKS_JARS.search(text) else f"{address}: {text}"


def _lost(name: str, is_there: Callable[[str], bool]) -> str:
    """Return the first free name for a payload that is set aside."""
    names = (f"{name}{LOST_SUFFIX}{again}" for again in chain([""], map("-{}".format, count(2))))
    return next(each for each in names if not is_there(each))


def _is_data(file: str) -> bool:
    return file.endswith(".parquet") and file[0] not in "._"
