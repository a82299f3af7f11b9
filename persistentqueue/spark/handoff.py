"""Hand whole DataFrames from one Spark job to the next, durably, through a named queue.

Spark moves the rows, as Parquet files that it writes and reads in parallel: the *payload*. The queue carries one small
item for each DataFrame, its *manifest*. The transaction of that item is the commit: a put that was killed before it
leaves only a payload that no manifest names, and such orphans are swept when the hand-off is next opened.

The payload lies on a file system that the driver and all executors see under the same path: on one machine, any local
one.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from persistentqueue import (
    CorruptionError,
    PersistentQueue,
    PersistentQueueError,
    ResourceError,
    Subscription,
    SubscriptionNotFoundError,
)

from .payload import payloads
from .progress import Report, reporting
from .workers import QUERY_ID

_FORMAT = "persistentqueue stage 1"
_PAYLOAD_NAME = re.compile(r"stage-[0-9a-f]{16}-[0-9a-f]{32}")


class NotAStageError(PersistentQueueError, ValueError):
    """The queue holds an item that no hand-off put there: give the hand-off a queue of its own."""


@dataclass(frozen=True)
class Manifest:
    """What one stage consists of; the queue's item carries exactly this."""

    directory: str
    """The payload's directory: a name under the payload root."""
    schema: dict[str, Any]
    """The schema of the DataFrame, as ``StructType.jsonValue()`` gives it."""
    files: tuple[str, ...]
    """The Parquet files: names in the directory."""
    sizes: tuple[int, ...]
    """The size of each file, in bytes."""
    bytes: int
    """The sum of the sizes."""
    rows: int
    marker: tuple[str, int] | None
    """The marker that the same transaction recorded."""


class PayloadLostError(CorruptionError):
    """A file of a stage's payload is gone, or has another size than its manifest says. The stage was given back.

    It stays the first one until its files are back, or until ``handoff.skip(error.manifest)`` gives it up.
    """

    def __init__(self, manifest: Manifest, file: str, expected: str, found: str) -> None:
        self.manifest = manifest
        consequence = "the stage stays in the queue: bring the file back, or call handoff.skip(error.manifest)"
        super().__init__(file, 0, expected, found, consequence)


@dataclass(frozen=True)
class Stage:
    """A DataFrame that was taken over. ``df`` reads the payload lazily: run every action on it inside the block."""

    df: DataFrame
    manifest: Manifest


class StageHandoff:
    """A named queue of whole DataFrames, each handed over exactly once, by ``put`` and ``take``.

    ``path`` and ``name`` say which queue, as for ``PersistentQueue``. The payloads lie under ``payload_root``, by
    default ``<path>/<name>+payload``, beside the queue (a plus sign cannot stand in a queue's name). Many queues may
    share a root, of many machines: the names of a queue's payloads bear its identity, which only a copy of it has as
    well, and none is swept that bears another. From the constructor until ``close()``, or for the ``with``
    block, the hand-off owns the queue: no other process can put or take meanwhile, and so no payload is swept that
    somebody is still writing. The root may lie on any file system that Spark can write, by Hadoop's name for it:
    ``payload_root="s3a://bucket/payloads"``.

    Several consumers may each take every stage: by ``subscribe``, and ``take(subscription=…)``; a payload stays until
    all of them, and those who take without a name, have taken it. A new hand-off with ``fan_out`` has no others.

    ``dead_letter`` is the name of the queue beside this one for the stages that ``skip`` gives up (None: it drops
    them).

    ``spark`` reads what is taken; with ``None`` it is the session that is active by then, so that a program can look
    into ``waiting()`` before it starts Spark. Opening removes payloads of this queue that no waiting manifest names,
    and nothing else. ``put`` and ``take`` may be called from several threads.

    Raises what ``PersistentQueue`` raises, ``QueueLockedError`` above all; ``NotAStageError`` where the queue holds
    other things than stages; ``ValueError`` where the root's path holds a character that Spark takes for a pattern.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        path: str | os.PathLike[str],
        name: str,
        payload_root: str | os.PathLike[str] | None = None,
        *,
        fan_out: bool = False,
        dead_letter: str | None = None,
    ) -> None:
        self._spark = spark
        self._payloads = payloads(payload_root or Path(path, f"{name}+payload"), spark)
        self._queue = PersistentQueue(os.fspath(path), name, fan_out=fan_out, dead_letter=dead_letter)
        self._buries = dead_letter is not None
        self._id = self._queue.identity[:16]
        try:
            self._payloads.prepare()
            self._sweep()
        except BaseException:
            self._queue.close()
            raise

    def put(self, df: DataFrame, marker: tuple[str, int] | None = None, progress: Report | None = None) -> bool:
        """Have Spark write the DataFrame, and hand it over: on return it is durable, rows and manifest.

        ``marker`` is ``(who, version)``. When the queue has already recorded that version, or a later one, for this
        name, nothing is run and the result is ``False``: so a program that was killed and started again puts the same
        stage only once. Otherwise the result is ``True``, and the marker is recorded in the same transaction.

        ``progress`` is called twice a second, by a thread of its own, with how many of Spark's tasks are done, of those
        that it knows of, and once at the end; what it raises is raised here.

        The order of rows is not kept. Raises what Spark raises while it writes, and ``ResourceError``, with nothing
        handed over and the files removed; and what else ``Session.flush`` raises, after which the next opening removes
        them, if they were not handed over. ``TypeError`` or ``ValueError`` for a marker that cannot be.
        """
        return self._put(df, marker, progress)

    def _put(
        self, df: DataFrame, marker: tuple[str, int] | None, progress: Report | None = None, *, keeps_empty: bool = True
    ) -> bool:
        if marker is not None and self._is_recorded(marker):
            return False
        directory = f"stage-{self._id}-{uuid.uuid4().hex}"
        address = self._payloads.make(directory)
        try:
            # 1. Spark writes the payload. 2. The payload is made durable, files first, then the names that lead to it.
            with reporting(df.sparkSession, progress):
                df.write.mode("append").parquet(address)
            manifest = self._measure(directory, df, marker)
            if not (manifest.rows or keeps_empty):
                self._payloads.remove(directory)
                return False
            self._payloads.sync(directory)
        except BaseException:
            self._payloads.remove(directory)
            raise
        # 3. One item commits it. Any other failure leaves the payload alone: its manifest may be durable.
        try:
            with self._queue.session() as session:
                session.enqueue(_encode(manifest))
                committed = session.flush(marker=marker)
        except ResourceError:
            self._payloads.remove(directory)
            raise
        if not committed:
            self._payloads.remove(directory)
        return committed

    def put_batch(self, df: DataFrame, batch_id: int) -> bool:
        """Hand over one micro-batch of a streaming query, exactly once: ``stream.writeStream.foreachBatch(put_batch)``.

        The marker is ``(query id, batch id)``: a batch that Spark runs again, since it does not know whether it was
        committed, is handed over only if it was not; then the result is ``False``, and Spark writes nothing. The query
        keeps its id with its checkpoint: a new checkpoint is another query. A batch without rows is no stage, and
        nothing is recorded of it; Spark computes each batch once. Of one batch one DataFrame is handed over: a second
        one, as it has the same marker, is ``False`` and lost, so put it into a hand-off of its own.

        For the driver process that owns the hand-off, where Spark calls it; not for Spark Connect, which calls it
        elsewhere. Raises ``ValueError`` outside of a streaming query, and what ``put`` raises.
        """
        query = df.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if query is None:
            raise ValueError("put_batch is for foreachBatch of a streaming query: use put(df, marker=…) elsewhere")
        return self._put(df, (query, batch_id), keeps_empty=False)

    @contextmanager
    def take(
        self, timeout: float | None = 0.0, *, subscription: str | None = None, progress: Report | None = None
    ) -> Iterator[Stage | None]:
        """Take the oldest waiting stage over, for the length of a ``with`` block; ``None`` when nothing waits.

        Leaving the block well commits: on return the take is durable, and the payload is removed, if nobody else needs
        it. Leaving it by an exception, or being killed inside, gives the stage back to the front. What the block does
        outside the queue must therefore bear being done again, and be durable before the block ends.

        ``subscription`` is for whom: one that ``subscribe`` has made. ``timeout`` is in seconds, ``None`` for ever; it
        waits for a put by another thread of this process, since no other process can put meanwhile. ``progress`` is
        told of the jobs that this thread starts in the block, as by ``put``. Raises ``PayloadLostError`` if a file
        of the payload is missing or has another size than the manifest says, with the stage given back (see ``skip``);
        ``SubscriptionNotFoundError``; and what ``Session.flush`` raises.
        """
        with self._consumer(subscription).session() as session:
            item = session.dequeue(timeout=timeout)
            if item is None:
                yield None
                return
            manifest = _decode(item)
            self._require_payload(manifest)
            spark = self._spark or SparkSession.active()
            stage = Stage(self._read(manifest, spark), manifest)
            with reporting(spark, progress):
                yield stage
            session.flush()
        # What is not removed now, by a crash or for want of permission, is an orphan for the next sweep.
        if not self._is_needed(manifest.directory):
            self._payloads.remove(manifest.directory)

    def skip(self, manifest: Manifest, reason: str = "", *, subscription: str | None = None) -> bool:
        """Give up a waiting stage, so that it is not in the way: durable on return; False if it does not wait.

        With ``dead_letter`` the stage's manifest is moved there, with the reason; without, it is consumed. Nothing of
        the payload is deleted: ``.lost`` is added to its name, once no other consumer needs it::

            except PayloadLostError as error:
                handoff.skip(error.manifest, str(error))

        Args:
            manifest: Of the stage, from ``PayloadLostError.manifest`` or ``waiting()``.
            reason: A text for the dead letter.
            subscription: The consumer that gives it up; the others still take the stage.

        Raises:
            SubscriptionNotFoundError: There is no such subscription.
            OSError: The payload cannot be renamed.

        It also raises what ``Session.flush`` raises; the stage then still waits.
        """
        consumer = self._consumer(subscription)
        with ExitStack() as ahead:  # the stages before it are on hold meanwhile
            while True:
                session = consumer.session()
                ahead.callback(session.close)
                item = session.dequeue()
                if item is None:
                    return False
                if _decode(item).directory == manifest.directory:
                    break
            lost = self._damage(manifest) is not None
            if lost and not self._queue.subscriptions():
                self._payloads.set_aside(manifest.directory)  # first: after a crash the next sweep would remove it
            if self._buries:
                session.reject(item, reason, retry=False)
            session.flush()
        if not self._is_needed(manifest.directory):
            self._payloads.set_aside(manifest.directory)
        return True

    def subscribe(self, name: str, start: str = "earliest") -> None:
        """Let another consumer take every stage: with ``"earliest"``, if it is new, also those that somebody has still
        to take, with ``"latest"`` what is put from now on. Durable on return; raises what
        ``PersistentQueue.subscribe`` does.
        """
        self._queue.subscribe(name, start)

    def unsubscribe(self, name: str) -> None:
        """Remove a consumer, and the payloads that only it had still to take. Durable on return. Raises
        ``SubscriptionNotFoundError``."""
        left = {manifest.directory for manifest in self.waiting(name)}
        self._queue.unsubscribe(name)
        for directory in left - self._needed():
            self._payloads.remove(directory)

    def subscriptions(self) -> list[str]:
        """The names of those who have subscribed, the oldest first."""
        return self._queue.subscriptions()

    def waiting(self, subscription: str | None = None) -> Iterator[Manifest]:
        """The manifests of the stages that wait, oldest first, without taking them; ``subscription``: for whom."""
        return map(_decode, self._consumer(subscription).browse())

    def close(self) -> None:
        """Give the queue up. The Spark session stays as it is. Closing twice does nothing."""
        self._queue.close()

    def __enter__(self) -> StageHandoff:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _is_recorded(self, marker: tuple[str, int]) -> bool:
        name, version = _checked_marker(marker)
        recorded = self._queue.marker(name)
        return recorded is not None and version <= recorded

    def _consumer(self, subscription: str | None) -> PersistentQueue | Subscription:
        if subscription is None:
            return self._queue
        if subscription not in self._queue.subscriptions():
            raise SubscriptionNotFoundError(subscription, self._queue.subscriptions())
        return self._queue.subscribe(subscription)

    def _require_payload(self, manifest: Manifest) -> None:
        damage = self._damage(manifest)
        if damage is not None:
            raise PayloadLostError(manifest, *damage)

    def _damage(self, manifest: Manifest) -> tuple[str, str, str] | None:
        """Return the first file that is not as the manifest says, with expected and found; None if all are."""
        there = self._payloads.files(manifest.directory)
        for name, size in zip(manifest.files, manifest.sizes, strict=True):
            if there.get(name) != size:
                found = f"{there[name]} bytes" if name in there else "no file"
                return self._payloads.address(manifest.directory, name), f"{size} bytes", found
        return None

    def _read(self, manifest: Manifest, spark: SparkSession) -> DataFrame:
        schema = StructType.fromJson(manifest.schema)
        addresses = (self._payloads.address(manifest.directory, name) for name in manifest.files)
        # Whatever the session says: a stage is taken as a whole or not at all.
        reader = spark.read.options(ignoreCorruptFiles=False, ignoreMissingFiles=False)
        return reader.schema(schema).parquet(*addresses)

    def _measure(self, directory: str, df: DataFrame, marker: tuple[str, int] | None) -> Manifest:
        """Describe the payload from the files themselves; their footers tell that each one was finished."""
        files = self._payloads.files(directory)
        if not files:
            address = f"{self._payloads.root}/{directory}"
            raise FileNotFoundError(
                f"{address}: Spark wrote nothing here: driver and executors need a shared file system"
            )
        rows = self._payloads.rows(directory, list(files))
        sizes = tuple(files.values())
        return Manifest(directory, df.schema.jsonValue(), tuple(files), sizes, sum(sizes), rows, marker)

    def _needed(self) -> set[str]:
        """The payloads that anybody has still to take, or is taking."""
        return {_decode(item).directory for item in self._queue.browse_all()}

    def _is_needed(self, directory: str) -> bool:
        """Whether anybody else needs a payload that was just taken."""
        return bool(self._queue.subscriptions()) and directory in self._needed()

    def _sweep(self) -> None:
        """Remove the payloads of this queue that no waiting manifest names. The queue's lock makes this safe."""
        needed = self._needed()
        for name in self._payloads.names():
            if name.startswith(f"stage-{self._id}-") and _PAYLOAD_NAME.fullmatch(name) and name not in needed:
                self._payloads.remove(name)


def _checked_marker(marker: Any) -> tuple[str, int]:
    """Refuse a wrong marker before Spark does the work, not when the queue sees it."""
    if not (isinstance(marker, tuple) and [type(part) for part in marker] == [str, int]):
        raise TypeError(f"a marker is a pair (name, version) of str and int, not {marker!r}")
    if not marker[0] or not 0 <= marker[1] < 2**64:
        raise ValueError(f"a marker has a name and a version from 0 to 2**64 - 1, not {marker!r}")
    return marker


def _encode(manifest: Manifest) -> bytes:
    return json.dumps({"format": _FORMAT, **asdict(manifest)}, separators=(",", ":")).encode()


def _decode(item: bytes) -> Manifest:
    try:
        return _parse(json.loads(item))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NotAStageError(f"an item is no stage ({error!r}): give the hand-off a queue of its own") from error


def _parse(fields: dict[str, Any]) -> Manifest:
    """Check what a manifest says. Its names lead to files that will be removed: none may lead out of the root."""
    if fields.pop("format") != _FORMAT:
        raise ValueError("another format")
    files, sizes, marker = tuple(fields.pop("files")), tuple(fields.pop("sizes")), fields.pop("marker")
    if not _PAYLOAD_NAME.fullmatch(fields["directory"]) or any(os.path.basename(name) != name for name in files):
        raise ValueError("a path instead of a name")
    return Manifest(files=files, sizes=sizes, marker=marker and tuple(marker), **fields)
