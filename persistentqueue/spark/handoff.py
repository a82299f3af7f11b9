"""The hand-off of whole DataFrames from one Spark job to the next, durably, through a named queue.

Spark writes and reads the rows in parallel, as Parquet files: the *payload*. The queue carries one small item for each
DataFrame: its *manifest*. The transaction of that item is the commit. If a put is killed before its commit, it leaves a
payload that no manifest names. Opening the hand-off again sweeps such payloads.

The payload lies on a file system that the driver and all executors see under the same path. On one machine, any local
file system will do.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from persistentqueue import (
    ClosedError,
    CorruptionError,
    Options,
    PersistentQueue,
    PersistentQueueError,
    QueueLockedError,
    ResourceError,
    Subscription,
    SubscriptionNotFoundError,
)
from persistentqueue.core.items import checked_marker, checked_text
from persistentqueue.options import Start
from persistentqueue.storage.layout import DAMAGED_SUFFIX, queue_directory
from persistentqueue.storage.locations import DATA_DIRECTORY, INBOX_DIRECTORY, LOG_DIRECTORY
from persistentqueue.system.disk import DISK

from .payload import payloads
from .progress import Report, need_report, reporting
from .sessions import is_connect
from .stages import (
    BatchHandoff,
    Manifest,
    NotAStageError,
    batch_handoff,
    decode,
    encode,
    new_name,
    query_id,
    unused,
    write,
)
from .workers import need_next

LETTERS, AGAIN = ".letters", ".again"
"""Suffixes of the names of queues in which a pipeline keeps manifests of its edges: those of letters, and those of
inputs that a stage takes again. The payloads of these manifests lie at the edges."""
_LOCKED = "another job owns the hand-off, or the pipeline: wait for its end, or close it there"
_OPEN_HERE = "that is this process: use the hand-off or the pipeline that is open, in any thread, or close it"
_SKIP = "call handoff.skip(error.manifest)"
"""Action that helps if a payload is lost, and cannot be restored."""
_LOGGER = logging.getLogger("persistentqueue.spark")


class PayloadLostError(CorruptionError):
    """A file of a stage's payload is missing, or its size differs from the manifest. The stage was released.

    It stays the first stage until its files are restored, or until ``handoff.skip(error.manifest)`` gives it up. In a
    pipeline, ``pipeline.skip(edge, error.manifest)`` gives up what ``take`` reads. A stage gives its inputs up with
    ``max_attempts``. ``manifest`` is that of the stage.
    """

    def __init__(self, manifest: Manifest, file: str, expected: str, found: str, way_out: str = _SKIP) -> None:
        self.manifest = manifest
        super().__init__(file, 0, expected, found, f"its manifest is kept: restore the file, or {way_out}")


def open_queue(path: str | os.PathLike[str], name: str, options: Options, more: str = "") -> PersistentQueue:
    """Open a queue of a hand-off, or of a pipeline. Raises ``QueueLockedError`` with the advice for these, and more."""
    try:
        return PersistentQueue(os.fspath(path), name, options=options)
    except QueueLockedError as error:
        advice = _OPEN_HERE if (error.pid, error.host) == (DISK.getpid(), DISK.gethostname()) else _LOCKED
        raise QueueLockedError(error.path, error.pid, error.host, error.since, advice + more) from None


def lacks_items(*directories: str) -> bool:
    """Return whether the queue in these directories may lack items: a part that could not be read is ``*.damaged``.

    Raises ``OSError``.
    """
    parts = [
        os.path.join(each, part) for each in directories for part in (LOG_DIRECTORY, DATA_DIRECTORY, INBOX_DIRECTORY)
    ]
    return any(name.endswith(DAMAGED_SUFFIX) for part in filter(os.path.isdir, parts) for name in os.listdir(part))


@dataclass(frozen=True)
class Stage:
    """A DataFrame that was taken. Run each action on it inside the block of ``take``, because it is read lazily."""

    df: DataFrame
    """The rows, in no certain order. They are read from the payload when an action needs them."""
    manifest: Manifest
    """The description of the stage."""


class StageHandoff:
    """A named queue of whole DataFrames, called stages; each is handed over exactly once, by ``put`` and ``take``.

    The hand-off owns the queue from its construction until ``close()``, or for the length of a ``with`` block. No other
    process can put or take meanwhile, so that opening never sweeps a payload that is still being written. Opening
    removes the payloads of this queue that no waiting manifest names, and nothing else. In the directory of a
    ``Pipeline`` with dead letters it removes none, since the letters may need them. It removes none, either, while a
    block of the queue is damaged. While the queue keeps ``*.damaged`` files, as a repair leaves them, such payloads get
    ``.lost`` behind their name instead. A payload that cannot be renamed stays, with a warning in the log. All methods
    may be called from several threads.

    By default one stage is taken once. With subscriptions, each consumer takes every stage: see ``subscribe``, and
    ``take(subscription=…)``. A payload stays until all subscriptions, and the consumers without a name, have taken it.

    Example::

        with StageHandoff(spark, "queues", "clean-flights") as handoff:
            handoff.put(frame, marker=("flights-2013", 1))
            with handoff.take() as stage:
                stage.df.show()

    Args:
        spark: The session that reads the stages that are taken. With None, it is the session that is active when
            ``take`` is called, so that a program can call ``waiting`` before it starts Spark. If ``payload_root`` is
            not a local path, a session is needed at once: this one, or else the active one.
        path: The directory of the queue's directory, as for ``PersistentQueue``. Made if missing.
        name: The name of the queue, as for ``PersistentQueue``.
        payload_root: The directory of the payloads, which is made if missing. The default, None, is
            ``<path>/<name>+payload``, beside the queue; no queue's name can contain a plus sign. It may lie on any file
            system that Spark can write, under Hadoop's name for it, such as ``"s3a://bucket/payloads"``. A local path
            may be an address, such as ``"file:/mnt/payloads"``. Many queues, also of many machines, may share a root:
            the names of payloads contain the identity of their queue, and only payloads with its own identity are
            removed. A copy of a queue has the same identity: give it a new one
            by ``repair(…, renew=True)`` before it is opened with the root of the original.
        fan_out: If true, a new queue has no consumer but its subscriptions, so that a stage is taken only by them.
            Default: False.
        dead_letter: The name of the queue, in ``path``, that receives the stages that ``skip`` gives up. With None, the
            default, ``skip`` drops them.
        network_disk: Whether the queue may be on a network file system, as for ``PersistentQueue``. Default: False.
            Payloads may always be there.

    Raises:
        QueueLockedError: Another process owns the queue.
        PersistentQueueError: The queue cannot be opened; see ``PersistentQueue``.
        NotAStageError: The queue holds an item that is no stage.
        ValueError: The path of the payload root contains a character that Spark reads as a pattern. Or the name ends in
            ``.letters`` or ``.again``, as those of queues that a ``Pipeline`` makes beside its edges.
        OSError: The payload root cannot be made or read.
    """

    _way_out = _SKIP

    def __init__(
        self,
        spark: SparkSession | None,
        path: str | os.PathLike[str],
        name: str,
        payload_root: str | os.PathLike[str] | None = None,
        *,
        fan_out: bool = False,
        dead_letter: str | None = None,
        network_disk: bool = False,
    ) -> None:
        if str(name).endswith((LETTERS, AGAIN)):
            raise ValueError(
                f"a hand-off cannot have the name {name!r}: queues with names that end in {LETTERS} or {AGAIN} are "
                "those of pipelines: choose another name; to keep a hand-off that has it, rename its two directories"
            )
        self._spark = spark
        self._payloads = payloads(payload_root or Path(path, f"{name}+payload"), spark)
        self._path, self._name = os.path.abspath(path), name
        options = Options(fan_out=fan_out, dead_letter=dead_letter, network_disk=network_disk)
        self._queue, self._network_disk = open_queue(path, name, options), network_disk
        self._dead_letter, self._shares_root = dead_letter, payload_root is not None
        self._id = self._queue.identity[:16]
        try:
            self._may_have_letters = self._has_letters()
            self._payloads.prepare()
            self._sweep()
        except BaseException:
            self._queue.close()
            raise

    def put(self, df: DataFrame, marker: tuple[str, int] | None = None, progress: Report | None = None) -> bool:
        """Write a DataFrame with Spark, and hand it over as one stage.

        On return, the rows and the manifest are durable. The order of the rows is not kept. It may be called from any
        thread.

        Args:
            df: The DataFrame. Spark computes it once.
            marker: A pair ``(name, version)``, the version from 0 to 2**64 - 1; the default is None. The transaction
                records it. If the queue has already recorded this version, or a later one, for this name, Spark is not
                run. So a program that is killed and started again puts the stage only once.
            progress: A function that is called about twice a second, from a thread of its own, and once at the end. It
                gets the numbers of tasks as a ``Progress``. If it raises, nothing is handed over, and the error is
                raised here. The default is None.

        Returns:
            True if the stage was handed over; False if the marker was recorded before, and nothing was handed over.

        Raises:
            TypeError: ``df`` is no DataFrame, the marker is not a pair of str and int, or ``progress`` is no function.
                Spark was not run.
            ValueError: The name of the marker is empty, or its version is out of range. Spark was not run.
            FileNotFoundError: This process sees no file of what Spark has written: they share no file system.
            ClosedError: The hand-off was closed. If that was before the call, Spark was not run. Nothing was handed
                over, and the payload was removed.
            ResourceError: The queue has no resources for the manifest. Nothing was handed over, and the payload was
                removed.
            BrokenQueueError: It is unknown whether the stage was handed over. If it was not, the next opening removes
                the payload.

        It also raises what Spark raises while it writes; then nothing was handed over, and the payload was removed.
        For other errors of ``Session.flush``, the next opening removes the payload, unless it was handed over.
        """
        need_report(progress)
        return self._put(df, marker, progress)

    def _put(
        self, df: DataFrame, marker: tuple[str, int] | None, progress: Report | None = None, *, keeps_empty: bool = True
    ) -> bool:
        self._queue.subscriptions()  # it raises ``ClosedError`` before Spark runs
        if marker is not None and self._is_recorded(marker):
            return False
        manifest = write(self._payloads, new_name(self._id), df, marker, progress)
        if not (manifest.rows or keeps_empty):
            self._payloads.remove(manifest.directory)
            return False
        # One item commits it. Another failure than these two leaves the payload: its manifest may be durable.
        try:
            with self._queue.session() as session:
                session.enqueue(encode(manifest))
                committed = session.flush(marker=marker)
        except (ResourceError, ClosedError):
            self._payloads.remove(manifest.directory)
            raise
        if not committed:
            self._payloads.remove(manifest.directory)
        return committed

    def put_batch(self, df: DataFrame, batch_id: int, query: str | None = None) -> bool:
        """Hand over one micro-batch of a streaming query, exactly once.

        Pass this method to the query: ``stream.writeStream.foreachBatch(handoff.put_batch)``. On return, the stage is
        durable.

        Spark calls the function in the driver's process, which owns the hand-off. Spark Connect pickles it, and calls
        it in a process beside its server. If that process sees the directory of the queue, this method works there
        without the lock, and without an owner: it publishes the manifest, which the owner takes in. Other methods raise
        ``SparkConnectError`` there.

        The marker is ``(query id, batch id)``. Spark runs a batch again if it does not know whether the batch was
        committed; a batch that was handed over before is then not written again. The id of a query is kept in its
        checkpoint: with a new checkpoint it is another query. Spark computes each batch once.

        A batch has one DataFrame. If a second DataFrame of one batch is handed over here, it has the same marker: it is
        not written, and is lost. Use a hand-off of its own for it.

        Args:
            df: The DataFrame of the batch.
            batch_id: The number of the batch, which Spark gives.
            query: The name of the query, which ``queryName`` has set. Spark Connect does not tell the function which
                query calls it, so a session with several active queries needs this. Elsewhere it has no effect. The
                default is None.

        Returns:
            True if the stage was handed over; False if the batch was handed over before, or has no rows. A batch
            without rows is no stage, and its marker is not recorded.

        Raises:
            ValueError: The call does not come from ``foreachBatch`` of a streaming query.
            OldCheckpointError: A later batch of the query was handed over before.
            SparkConnectError: Spark Connect runs the function where the queue is not seen; or the session has several
                active queries, or none, of this name.

        It also raises what ``put`` raises, and under Spark Connect what ``Producer.flush`` raises.
        """
        return self._put_batch(df, batch_id, query)

    def _put_batch(self, df: DataFrame, batch_id: int, _: str | None) -> bool:
        query = query_id(df)
        if query is None:
            raise ValueError("put_batch is for foreachBatch of a streaming query: use put(df, marker=…) elsewhere")
        need_next(queue_directory(self._path, self._name), query, batch_id, self._queue.marker(query))
        return self._put(df, (query, batch_id), keeps_empty=False)

    def __reduce__(self) -> tuple[Callable[..., BatchHandoff], tuple[str, str, str, str, bool]]:
        """Pickle what ``put_batch`` needs in a process of Spark Connect. A classic session needs no other process."""
        if not (is_connect(self._spark) if self._spark is not None else is_remote()):
            raise TypeError("a StageHandoff belongs to one process, and cannot be pickled: open it where it is used")
        return batch_handoff, (self._path, self._name, self._payloads.root, self._id, self._network_disk)

    @contextmanager
    def take(
        self, timeout: float | None = 0.0, *, subscription: str | None = None, progress: Report | None = None
    ) -> Iterator[Stage | None]:
        """Take the oldest waiting stage, for the length of a ``with`` block.

        If the block ends without an exception, the take is committed: it is then durable, and the payload is removed
        unless another consumer needs it. If the block raises, or the process is killed in it, the stage is released: it
        is again the oldest one. So the effects of the block outside the queue must be repeatable, and must be durable
        before the block ends. It may be called from any thread.

        Args:
            timeout: Seconds to wait for a stage, None for ever; the default is 0. Only another thread of this process
                can put a stage meanwhile, because the hand-off owns the queue.
            subscription: The name of the consumer, which ``subscribe`` has made. With None, the default, it is the
                plain queue.
            progress: A function that is called as by ``put``, for the jobs that this thread starts in the block. If it
                raises, the take is not committed. The default is None.

        Yields:
            The stage; None if no stage waits within the timeout.

        Raises:
            PayloadLostError: A file of the payload is missing, or its size differs from the manifest. The stage was
                released; see ``skip``.
            CorruptionError: A block of the queue is damaged. The stages in it are set aside until the next opening:
                take again to get the next one.
            SubscriptionNotFoundError: There is no such subscription; or only subscriptions read the queue.
            TypeError: ``progress`` is no function. Nothing was taken.

        It also raises what ``Session.flush`` raises when the block ends.
        """
        need_report(progress)
        with self._consumer(subscription).session() as session:
            item = session.dequeue(timeout=timeout)
            if item is None:
                yield None
                return
            manifest = self._decode(item)
            self._require_payload(manifest, self._way_out)
            spark = self._reader()
            stage = Stage(self._read(manifest, spark), manifest)
            with reporting(spark, progress):
                yield stage
            session.flush()
        # After a crash here, or without permission, the payload stays: an orphan that the next opening sweeps.
        is_kept = self._may_have_letters and bool(self._queue.subscriptions())
        if self._is_own(manifest.directory) and not is_kept and not self._is_needed(manifest.directory):
            self._payloads.remove(manifest.directory)

    def skip(self, manifest: Manifest, reason: str = "", *, subscription: str | None = None) -> bool:
        """Give up a waiting stage, so that the stages behind it can be taken.

        If the hand-off has a dead-letter queue, the manifest is moved there, with the reason; otherwise it is consumed.
        The payload is not deleted: ``.lost`` is added to its name, when no other consumer needs it. If that name is
        taken, because the payload was lost and put back before, it ends in ``.lost-2``. On return, all of this is
        durable. It may be called from any thread; the stages before this one are on hold meanwhile.

        Example::

            try:
                with handoff.take() as stage:
                    ...
            except PayloadLostError as error:
                handoff.skip(error.manifest, str(error))

        Args:
            manifest: The manifest of the stage, from ``PayloadLostError.manifest`` or from ``waiting()``.
            reason: A text for the dead letter; empty by default.
            subscription: The name of the consumer that gives the stage up; the other consumers still take it. With
                None, the default, it is the plain queue.

        Returns:
            True if the stage was given up; False if it does not wait for this consumer.

        Raises:
            SubscriptionNotFoundError: There is no such subscription; or only subscriptions read the queue.
            OSError: The payload cannot be renamed.

        It also raises what ``Session.flush`` raises; the stage then still waits.
        """
        consumer = self._consumer(subscription)
        with ExitStack() as ahead:  # each session holds one stage before it, until all of them are closed
            while True:
                session = consumer.session()
                ahead.callback(session.close)
                item = session.dequeue()
                if item is None:
                    return False
                if self._decode(item).directory == manifest.directory:
                    break
            lost, is_own = self._damage(manifest) is not None, self._is_own(manifest.directory)
            if lost and is_own and not self._queue.subscriptions():
                self._payloads.set_aside(manifest.directory)  # before the commit: a sweep would remove it after a crash
            if self._dead_letter is not None:
                session.reject(item, reason, retry=False)
            session.flush()
        if is_own and not self._is_needed(manifest.directory):
            self._payloads.set_aside(manifest.directory)
        return True

    def subscribe(self, name: str, start: Start = "earliest") -> None:
        """Add a consumer that takes every stage; do nothing if it exists.

        On return, the subscription is durable. It may be called from any thread.

        Args:
            name: The name of the consumer: not empty, at most 65,535 bytes.
            start: The first stage of a new consumer. ``"earliest"``, the default, is the oldest one that any consumer
                has still to take; ``"latest"`` is the next one that is put.

        Raises:
            ValueError: The name is empty or too long, or ``start`` is another word.
            ResourceError: The queue has no resources to record it; nothing was changed.
            BrokenQueueError: It is unknown whether the subscription is durable: open the hand-off again.
        """
        self._queue.subscribe(name, start)

    def unsubscribe(self, name: str) -> None:
        """Remove a consumer, and the payloads that only this consumer had still to take.

        On return, the removal of the subscription is durable. It may be called from any thread.

        Args:
            name: The name of the consumer.

        Raises:
            SubscriptionNotFoundError: There is no such subscription.
            ResourceError: The queue has no resources to record it; nothing was changed.
            BrokenQueueError: It is unknown whether the removal is durable: open the hand-off again.
        """
        left: set[str] = set()
        with suppress(CorruptionError):  # the sweep of an opening finds the payloads behind the damage
            left.update(manifest.directory for manifest in self.waiting(name))
        self._queue.unsubscribe(name)
        if not self._may_have_letters:
            for directory in filter(self._is_own, left - self._still_needed(left)):
                self._payloads.remove(directory)

    def subscriptions(self) -> list[str]:
        """Return the names of the subscriptions.

        Returns:
            The names, the oldest subscription first.
        """
        return self._queue.subscriptions()

    def waiting(self, subscription: str | None = None) -> Iterator[Manifest]:
        """Iterate over the manifests of the waiting stages, the oldest first, without taking them.

        A stage that is being taken is not among them. Spark is not needed. A micro-batch that Spark Connect has handed
        over appears when the owner has found it. A ``take`` that finds no other stage looks for it.

        Args:
            subscription: The name of the consumer whose stages are meant. With None, the default, it is the consumer
                without a name.

        Returns:
            An iterator over the manifests.

        Raises:
            SubscriptionNotFoundError: There is no such subscription; or only subscriptions read the queue.
            CorruptionError: The iterator reaches a damaged block of the queue.
        """
        return map(self._decode, self._consumer(subscription).browse())

    def close(self) -> None:
        """Close the queue and release its lock. The Spark session stays open. A second call does nothing."""
        self._queue.close()

    def __enter__(self) -> StageHandoff:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _is_recorded(self, marker: tuple[str, int]) -> bool:
        name, version = checked_marker(marker)
        recorded = self._queue.marker(name)
        return recorded is not None and version <= recorded

    def _consumer(self, subscription: str | None) -> PersistentQueue | Subscription:
        if subscription is None:
            with suppress(SubscriptionNotFoundError):
                len(self._queue)  # it has no length if only subscriptions read it
                return self._queue
            subscription = ""
        names = self._queue.subscriptions()
        if checked_text("a subscription's name", subscription, "text or None") in names:
            return self._queue.subscribe(subscription)
        directory = queue_directory(self._path, self._name)
        raise SubscriptionNotFoundError(directory, subscription, names, owner="handoff")

    def _decode(self, item: bytes) -> Manifest:
        """Return the manifest in an item of the queue. Raises ``NotAStageError`` with the place of the item."""
        try:
            return decode(item)
        except NotAStageError as error:
            place = "an item"
            with suppress(PersistentQueueError, OSError):
                place = next(f"item {each.sequence}" for each in self._queue.view().browse() if each.data == item)
            raise NotAStageError(
                f"{queue_directory(self._path, self._name)}: {place} is no manifest ({error.__cause__!r}), so another "
                "program has put it there: consume it by PersistentQueue, in each subscription, while another session "
                "holds the items before it; then give the hand-off a queue of its own"
            ) from error

    def _require_payload(self, manifest: Manifest, way_out: str) -> None:
        damage = self._damage(manifest)
        if damage is not None:
            raise PayloadLostError(manifest, *damage, way_out)

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
        # These options override the session's settings, because a stage is taken as a whole or not at all.
        reader = spark.read.options(ignoreCorruptFiles=False, ignoreMissingFiles=False)
        return reader.schema(schema).parquet(*addresses)

    def _reader(self) -> SparkSession:
        """Return the session that reads a stage. It is called when there is one, so that a look starts no Spark."""
        return self._spark or SparkSession.active()

    def _needed(self, naming: str) -> set[str]:
        """Return the payloads that any consumer has still to take, or is taking; only those with ``naming`` in their
        item."""
        return {self._decode(item).directory for item in self._queue.browse_all() if naming.encode() in item}

    def _still_needed(self, directories: set[str], naming: str = "") -> set[str]:
        """Return those of these payloads that a manifest names; all of them while a damaged block may hide a manifest.

        ``naming`` is that of ``_needed``.
        """
        try:
            return directories & self._needed(naming)
        except CorruptionError:  # a consumer gets this error, too
            return directories

    def _lacks_manifests(self) -> bool:
        """Return whether manifests may be lost, so that a payload without one is no orphan of a put for certain."""
        return lacks_items(queue_directory(self._path, self._name), self._queue.data_path)

    def _has_letters(self) -> bool:
        """Return whether letters of a pipeline may need payloads of this queue: whether their queues lie beside it.

        This queue feeds no stage while it is open here, so none begins to need one later.
        """
        return any(name.endswith((LETTERS, AGAIN)) for name in os.listdir(self._path) if name != self._dead_letter)

    def _is_own(self, directory: str) -> bool:
        """Return whether no other queue can need a payload.

        A queue that was copied, and then got a new identity, has manifests with the identity of the original. In a root
        that several queues may share, the original may need these payloads.
        """
        return not self._shares_root or f"-{self._id}-" in directory

    def _is_needed(self, directory: str) -> bool:
        """Return whether another consumer needs a payload that was just taken."""
        return bool(self._queue.subscriptions()) and bool(self._still_needed({directory}, directory))

    def _sweep(self) -> None:
        """Remove the payloads of this queue that no manifest in it names, and that no process may hand over.

        The queue's lock makes this safe for those of ``put``: no put is writing a payload now. Behind a repair, a
        manifest of such a payload may be lost: then the payload is kept under another name. If it cannot get that name,
        it keeps its own until the next opening.
        """
        if self._may_have_letters:
            return
        names = self._payloads.names(self._id)
        is_kept = self._lacks_manifests()
        for name in unused(names, self._still_needed(set(names)), self._id, self._queue.marker, time.time()):
            if is_kept:
                self._set_aside(name)
            else:
                self._payloads.remove(name)

    def _set_aside(self, name: str) -> None:
        """Set a payload aside, or warn that it keeps its name: that is no reason to refuse the stages that wait."""
        try:
            self._payloads.set_aside(name)
        except OSError as error:
            _LOGGER.warning(
                "%s/%s: no manifest names this payload, and it cannot be renamed (%s), so it stays: "
                "let this process write to the payload root; the next opening tries again",
                self._payloads.root,
                name,
                error.strerror or error,
            )
