"""Where the rows of a stage lie: a directory of Parquet files under the payload root.

On a local file system, and on any other that Spark can write, by Hadoop's name for it (``s3a://``, ``hdfs://`` …). The
local one is made durable here, files first, then the names that lead to them; of another, what Spark has written and
closed is as durable as that storage makes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pyarrow.parquet import read_metadata
from pyspark.sql import SparkSession

_PATTERN = set("*?[]{}\\")
SCHEME = "://"
LOST_SUFFIX = ".lost"
"""Behind the name of what is left of a payload whose stage was given up."""


class Payloads(Protocol):
    """The payloads under one root, by the names of their directories."""

    root: str
    """The root, as messages show it."""

    def prepare(self) -> None:
        """Make the root, if it is not there."""

    def names(self) -> list[str]:
        """What stands under the root."""

    def make(self, name: str) -> str:
        """Make an empty payload; the address that Spark writes to."""

    def files(self, name: str) -> dict[str, int]:
        """The Parquet files of a payload, in order, and their sizes in bytes; none where it is not there."""

    def rows(self, name: str, files: Sequence[str]) -> int:
        """How many rows they hold, by their footers."""

    def sync(self, name: str) -> None:
        """Make the payload durable."""

    def address(self, name: str, file: str) -> str:
        """Where Spark reads a file."""

    def remove(self, name: str) -> None:
        """Delete a payload. Raises nothing: what stays is an orphan for the next sweep."""

    def set_aside(self, name: str) -> None:
        """Add ``LOST_SUFFIX`` to the name of a payload, if it is there, so that no sweep removes it."""


def payloads(root: str | os.PathLike[str], spark: SparkSession | None) -> Payloads:
    """The payloads under this root. Raises ``ValueError`` for a root that Spark would take for a pattern."""
    text = os.fspath(root)
    remote = SCHEME in text and not text.startswith("file" + SCHEME)
    root = text if remote else str(Path(text.removeprefix("file" + SCHEME)).resolve())
    if set(root) & _PATTERN:
        raise ValueError(f"{root}: Spark reads * ? [ ] {{ }} and \\ as a pattern: choose another payload_root")
    return _Remote(root.rstrip("/"), spark or SparkSession.active()) if remote else _Local(Path(root))


class _Local:
    """On a local file system."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.root = str(root)

    def prepare(self) -> None:
        _make_directory(self._root)

    def names(self) -> list[str]:
        with os.scandir(self._root) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def make(self, name: str) -> str:
        (self._root / name).mkdir(mode=0o700)
        return self._url(self._root / name)

    def files(self, name: str) -> dict[str, int]:
        """As the directory has them now."""
        try:
            found = sorted(os.listdir(self._root / name))
        except FileNotFoundError:
            return {}
        return {file: (self._root / name / file).stat().st_size for file in found if _is_data(file)}

    def rows(self, name: str, files: Sequence[str]) -> int:
        return sum(read_metadata(self._root / name / file).num_rows for file in files)

    def sync(self, name: str) -> None:
        """Files first, then the names that lead to them; Hadoop's checksum files, too, since a torn one would make the
        good file unreadable."""
        for file in (self._root / name).iterdir():
            _sync(file)
        _sync(self._root / name)
        _sync(self._root)

    def address(self, name: str, file: str) -> str:
        return self._url(self._root / name / file)

    def remove(self, name: str) -> None:
        shutil.rmtree(self._root / name, ignore_errors=True)

    def set_aside(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.rename(self._root / name, self._root / f"{name}{LOST_SUFFIX}")
            _sync(self._root)

    @staticmethod
    def _url(path: Path) -> str:
        """The path so that Spark looks on the local file system, whatever its default is."""
        return f"file://{path}"


class _Remote:
    """On any other that Spark knows, by its driver's own way to it."""

    def __init__(self, root: str, spark: SparkSession) -> None:
        self.root = root
        self._spark = spark
        context: Any = spark.sparkContext
        self._path = context._jvm.org.apache.hadoop.fs.Path
        with _explaining(root):
            self._files = self._path(root).getFileSystem(context._jsc.hadoopConfiguration())

    def prepare(self) -> None:
        with _explaining(self.root):
            self._files.mkdirs(self._path(self.root))

    def names(self) -> list[str]:
        return [status.getPath().getName() for status in self._list(self.root) if status.isDirectory()]

    def make(self, name: str) -> str:
        return f"{self.root}/{name}"  # many such storages have no empty directories

    def files(self, name: str) -> dict[str, int]:
        found = {status.getPath().getName(): status.getLen() for status in self._list(f"{self.root}/{name}")}
        return {file: found[file] for file in sorted(found) if _is_data(file)}

    def rows(self, name: str, files: Sequence[str]) -> int:
        return self._spark.read.parquet(*(self.address(name, file) for file in files)).count()

    def sync(self, name: str) -> None:
        pass  # it was written and closed, and that is all that can be asked of it

    def address(self, name: str, file: str) -> str:
        return f"{self.root}/{name}/{file}"

    def remove(self, name: str) -> None:
        with suppress(Py4JJavaError):
            self._files.delete(self._path(f"{self.root}/{name}"), True)

    def set_aside(self, name: str) -> None:
        path = self._path(f"{self.root}/{name}")
        with _explaining(f"{self.root}/{name}"):
            if self._files.exists(path):
                self._files.rename(path, self._path(f"{self.root}/{name}{LOST_SUFFIX}"))

    def _list(self, directory: str) -> list[Any]:
        path = self._path(directory)
        with _explaining(directory):
            return list(self._files.listStatus(path)) if self._files.exists(path) else []


@contextmanager
def _explaining(address: str) -> Iterator[None]:
    """Raise an ``OSError`` that names the address, not half a page of Java."""
    try:
        yield
    except Py4JJavaError as error:
        raise OSError(f"{address}: {error.java_exception.toString()}") from error


def _is_data(file: str) -> bool:
    return file.endswith(".parquet") and file[0] not in "._"


def _make_directory(directory: Path) -> None:
    """Make the directory and its parents, private and with durable names."""
    if not directory.is_dir():
        _make_directory(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
    _sync(directory.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
