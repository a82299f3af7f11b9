"""One edge of a pipeline: a hand-off, from which each stage takes by a subscription of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from persistentqueue import CorruptionError, PersistentQueue, Subscription

from ..handoff import AGAIN, LETTERS, StageHandoff, lacks_items
from ..options import local_path
from ..stages import Manifest, new_name, write
from .graph import Marker, PipelineDefinitionError

TAKER = "take()"
"""The consumer of an edge that no stage takes from: ``Pipeline.take``. No stage can have this name."""


class Edge(StageHandoff):
    """A hand-off whose consumers are the stages that take from the edge. For any number of threads.

    Args:
        session: Returns the session that reads the payloads. It is called when a payload is read first, or at once if
            the payload root is not a local path.
        path: The directory of the pipeline.
        name: The name of the edge, and of its queue.
        payload_root: The directory of the payloads, as for ``StageHandoff``.
        kept: Returns the payloads that must stay, although nothing waits for them at the edge: those of the letters.
            Its argument is that of ``_needed``. If it raises while the edge is opened, no payload is removed.
        network_disk: Whether the directory may be on a network file system.

    Raises:
        ValueError: The queue was made by another program, without ``fan_out``.
    """

    def __init__(
        self,
        session: Callable[[], SparkSession],
        path: str | os.PathLike[str],
        name: str,
        payload_root: str | os.PathLike[str] | None,
        kept: Callable[[str], set[str]],
        network_disk: bool,
    ) -> None:
        self._kept = kept
        self.name = name
        self._way_out = f"call pipeline.skip({name!r}, error.manifest)"
        self._session = session
        is_local = payload_root is None or local_path(os.fspath(payload_root)) is not None
        super().__init__(
            None if is_local else session(), path, name, payload_root, fan_out=True, network_disk=network_disk
        )

    @property
    def queue(self) -> PersistentQueue[bytes]:
        """The queue of the manifests."""
        return self._queue

    def connect(self, readers: Sequence[str], forgotten: Sequence[str]) -> None:
        """Subscribe the stages that take from the edge, and remove consumers that the pipeline does not have.

        A new consumer begins at the oldest DataFrame that any consumer has still to take. So nothing is lost when a
        stage gets another name, or when the edge gets its first stage.

        Raises:
            PipelineDefinitionError: A consumer that no stage has any more has still something to take.
        """
        wanted = readers or (TAKER,)
        others = [each for each in self.subscriptions() if each not in wanted]
        for other in others:
            count = self.waiting_count(other)
            # The stages begin where the taker is.
            if count and other not in forgotten and not (other == TAKER and readers):
                raise PipelineDefinitionError(
                    f"edge {self.name!r} keeps {count} DataFrames for stage {other!r}, which does not take from it any "
                    f"more: define the stage with this source again, or call pipeline.forget({other!r}). If it is a "
                    "stage of another pipeline, give each pipeline a directory of its own"
                )
        for reader in wanted:
            self.subscribe(reader)
        for other in others:
            self.unsubscribe(other)

    def consumer(self, reader: str) -> Subscription[bytes]:
        """Return the place of a stage."""
        return self._queue.subscribe(reader)

    def waiting_count(self, reader: str | None = None) -> int:
        """Return how many DataFrames wait for this consumer, without those that it is taking; for any, by default.

        With the default, it is the number for the consumer that has most.
        """
        if reader is None:
            return max((self.waiting_count(each) for each in self.subscriptions()), default=0)
        return len(self.consumer(reader))

    def unconsumed(self) -> list[Manifest]:
        """Return the manifests that any consumer has still to take, or is taking; the oldest first.

        While a block is damaged, they are those that can be read, as a look from outside finds them.
        """
        try:
            return [self._decode(item) for item in self._queue.browse_all()]
        except CorruptionError:
            return [self._decode(item.data) for item in self._queue.view().browse(damaged=lambda *_: None)]

    def decode(self, item: bytes) -> Manifest:
        """Return the manifest in an item of the queue. Raises ``NotAStageError``."""
        return self._decode(item)

    def is_recorded(self, marker: Marker) -> bool:
        """Return whether the queue has recorded this version of the marker, or a later one.

        Raises ``TypeError`` and ``ValueError`` if it is no marker.
        """
        return self._is_recorded(marker)

    def record(self, marker: Marker) -> None:
        """Record a marker alone, durably. Raises what ``Session.flush`` raises."""
        with self._queue.session() as session:
            session.flush(marker=marker)

    def write(self, df: DataFrame) -> Manifest:
        """Write a durable payload that no item names yet. Raises the errors of Spark; then nothing is left."""
        return write(self._payloads, new_name(self._id), df)

    def read(self, manifest: Manifest) -> DataFrame:
        """Return the rows of an input of a stage. Raises ``PayloadLostError``."""
        self._require_payload(
            manifest,
            "set it aside: with max_attempts=1, the stage makes a letter of its inputs, which pipeline.discard deletes",
        )
        return self._read(manifest, self._session())

    def is_needed(self, manifest: Manifest) -> bool:
        """Return whether a consumer, or a letter, needs the payload, or may need it since a block is damaged."""
        return bool(self._still_needed({manifest.directory}, manifest.directory))

    def _reader(self) -> SparkSession:
        return self._session()

    def remove(self, manifest: Manifest) -> None:
        """Delete a payload. One that stays is an orphan, which the next opening sweeps."""
        self._payloads.remove(manifest.directory)

    def _needed(self, naming: str) -> set[str]:
        return super()._needed(naming) | self._kept(naming)

    def _lacks_manifests(self) -> bool:
        others = [name for name in os.listdir(self._path) if name.endswith((LETTERS, AGAIN))]
        return super()._lacks_manifests() or any(lacks_items(os.path.join(self._path, name)) for name in others)

    def _has_letters(self) -> bool:
        return False  # ``_kept`` tells exactly what they need

    def __enter__(self) -> Any:
        return self
