"""The payloads of stages: each is a directory of Parquet files under the payload root.

The root lies on a local file system, or on any other that Spark can write, under Hadoop's name for it (``s3a://``,
``hdfs://`` …). A local payload is made durable here: the files first, then the names that lead to them. On another file
system, a file that Spark has written and closed is as durable as that storage makes it.
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
"""The suffix of the name of a payload whose stage was given up."""


class Payloads(Protocol):
    """The payloads under one root, each identified by the name of its directory."""

    root: str
    """The root, as messages show it."""

    def prepare(self) -> None:
        """Make the root if it does not exist."""

    def names(self) -> list[str]:
        """Return the names of the directories under the root."""

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
        """Add ``LOST_SUFFIX`` to the name of a payload, if it exists, so that no sweep removes it."""


def payloads(root: str | os.PathLike[str], spark: SparkSession | None) -> Payloads:
    """Return the payloads under this root. Raises ``ValueError`` if Spark would read the root as a pattern."""
    text = os.fspath(root)
    remote = SCHEME in text and not text.startswith("file" + SCHEME)
    root = text if remote else str(Path(text.removeprefix("file" + SCHEME)).resolve())
    if set(root) & _PATTERN:
        raise ValueError(f"{root}: Spark reads * ? [ ] {{ }} and \\ as a pattern: choose another payload_root")
    return _Remote(root.rstrip("/"), spark or SparkSession.active()) if remote else _Local(Path(root))


class _Local:
    """The payloads on a local file system."""

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
            _sync(file)
        _sync(self._root / name)
        _sync(self._root)

    def address(self, name: str, file: str) -> str:
        return self._url(self._root / name / file)

    def remove(self, name: str) -> None:
        shutil.rmtree(self._root / name, ignore_errors=True)

    def set_aside(self, name: str) -> None:
        """Add ``LOST_SUFFIX`` to the name of a payload, if it exists."""
        with suppress(FileNotFoundError):
            os.rename(self._root / name, self._root / f"{name}{LOST_SUFFIX}")
            _sync(self._root)

    @staticmethod
    def _url(path: Path) -> str:
        """Return the path as an address on the local file system, whatever Spark's default file system is."""
        return f"file://{path}"


class _Remote:
    """The payloads on any other file system that Spark knows, reached through the driver's Java."""

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
        return f"{self.root}/{name}"  # nothing to make: many such storages have no empty directories

    def files(self, name: str) -> dict[str, int]:
        found = {status.getPath().getName(): status.getLen() for status in self._list(f"{self.root}/{name}")}
        return {file: found[file] for file in sorted(found) if _is_data(file)}

    def rows(self, name: str, files: Sequence[str]) -> int:
        return self._spark.read.parquet(*(self.address(name, file) for file in files)).count()

    def sync(self, name: str) -> None:
        pass  # Hadoop offers no more than the close of each file, which Spark has done

    def address(self, name: str, file: str) -> str:
        return f"{self.root}/{name}/{file}"

    def remove(self, name: str) -> None:
        with suppress(Py4JJavaError):
            self._files.delete(self._path(f"{self.root}/{name}"), True)

    def set_aside(self, name: str) -> None:
        """Add ``LOST_SUFFIX`` to the name of a payload, if it exists."""
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
    """Turn an error of Java into an ``OSError`` that names the address, without the Java stack trace."""
    try:
        yield
    except Py4JJavaError as error:
        raise OSError(f"{address}: {error.java_exception.toString()}") from error


def _is_data(file: str) -> bool:
    return file.endswith(".parquet") and file[0] not in "._"


def _make_directory(directory: Path) -> None:
    """Make the directory and its missing parents, private to the user and with durable names."""
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
