"""Streaming reads: a query is a consumer of its own, by a subscription, and consumes what it has surely done with.

An offset is the sequence of the first item that was not read yet, and how many items the batch before it has, so that a
batch that is run again has the same rows or fails. What a query has committed is acknowledged, through the inbox, and
goes when nobody else needs it; whoever owns the queue answers when he looks into it, and nobody waits for him.

Spark tells a source that a batch is done when it plans the next one. So that of the last one stays until the query goes
on, or ``acknowledge`` is called with it when it has ended.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from persistentqueue import PersistentQueueError, Producer
from persistentqueue.disk import DISK
from persistentqueue.remote import acknowledge as acknowledge_sequence
from persistentqueue.remote import request_subscription
from persistentqueue.splits import GoneError, Onlooker, plan

from .options import StreamOptions, stream_read_options
from .rows import SCHEMA, adopt, batches, partitions

limits: Any
try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:  # before Spark 4.2 there are no limits but those of the options
    limits = None
_AvailableNow: Any = limits.SupportsTriggerAvailableNow if limits is not None else object
Offset = dict[str, Any]
_UNKNOWN = -1
"""How many items a batch has whose beginning is not known: Spark 4.0 and 4.1 do not tell it."""


class StreamReader(DataSourceStreamReader, _AvailableNow):  # type: ignore[misc]
    """Reads what is enqueued, for one subscription, from one micro-batch to the next."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        if schema != SCHEMA:
            raise ValueError(f"persistentqueue reads {SCHEMA.simpleString()}, not {schema.simpleString()}")
        self._options = options
        self._onlooker = Onlooker(DISK, options.place.directory)
        self._target: int | None = None
        """What the queue had when a query began that is to read that, and to end."""
        self._position: int | None = None
        """Where the next batch begins, as far as that is known here."""
        Producer(options.place.path, options.place.queue).close()  # makes the queue, if it is not there

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Where a new query begins: where its subscription is, which is made if it is not there."""
        options = self._options
        place, name = options.place, options.subscription
        state = self._state()
        number = state.number_of(name)
        if number is not None:
            first = state.subscriptions[number].frontier
        else:
            first = max(min(options.start, state.next_sequence), state.gone.frontier)
            request_subscription(place.path, place.queue, name, first)
        self._position = first
        return self._offset(first, 0)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """What the options say; ``latestOffset`` knows both."""
        if self._options.max_rows is not None:
            return limits.ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return limits.ReadMaxBytes(self._options.max_bytes)
        return limits.ReadAllAvailable()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Offset | None = None, limit: Any = None
    ) -> Offset:
        """Up to where the next batch may go: as far as the limits allow, and one item at least, if there is one."""
        state = self._state()
        begin = start["offset"] if start is not None else self._position
        end = state.next_sequence if self._target is None else min(self._target, state.next_sequence)
        if begin is None:
            return self._offset(end, _UNKNOWN)
        if state.next_sequence < begin and self._options.fail_on_data_loss:
            raise GoneError(self._options.place.directory, self._options.place.directory, begin - state.next_sequence)
        items = state.gone.live_between(begin, end)
        if not items:
            return start if start is not None else self._offset(begin, 0)
        if limits is None or not isinstance(limit, limits.ReadAllAvailable):
            end = self._limited(begin, end)
        return self._offset(end, state.gone.live_between(begin, end))

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """What there is, for the progress of the query."""
        return self._offset(self._state().next_sequence, 0)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What is there now is all that this query is to read."""
        self._target = self._state().next_sequence

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan a batch. Raises ``GoneError`` where it has not the items that it had, and what a batch read raises."""
        options, begin = self._options, start["offset"]
        self._position = end["offset"]
        if begin >= end["offset"]:
            return []
        directory = options.place.directory
        places, recovered = self._onlooker.look(durably=True)
        splits = plan(DISK, places, recovered, [(begin, end["offset"] - begin)])
        missing = end["items"] - sum(split.items for split in splits)
        if end["items"] != _UNKNOWN and missing and options.fail_on_data_loss:
            raise GoneError(directory, directory, missing)
        return partitions(splits, options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the rows. Raises ``CorruptionError``, ``GoneError`` and ``OSError``."""
        return batches(self._options.place, partition.value or [], not self._options.fail_on_data_loss)

    def commit(self, end: Offset) -> None:
        """Acknowledge what comes before. What fails here is told again with the next batch, and fails no query."""
        with suppress(PersistentQueueError, OSError):
            _acknowledge(end)

    def _state(self) -> Any:
        """What the queue holds, durably; also what is published, if nobody owns it."""
        adopt(self._options.place)
        return self._onlooker.look(durably=True)[1].state

    def _offset(self, sequence: int, items: int) -> Offset:
        place = self._options.place
        return {
            "path": place.path,
            "queue": place.queue or "",
            "subscription": self._options.subscription,
            "offset": sequence,
            "items": items,
        }

    def _limited(self, begin: int, end: int) -> int:
        """Up to where the options allow: both limits count, whichever Spark speaks of."""
        most_rows = self._options.max_rows or inf
        most_bytes = self._options.max_bytes or inf
        if most_rows == most_bytes == inf:
            return end
        places, recovered = self._onlooker.look(durably=True)
        rows = size_bytes = 0
        for split in plan(DISK, places, recovered, [(begin, end - begin)]):
            item_bytes = max(split.length_bytes / split.items, 1.0)
            for first, count in split.runs:
                room = min(most_rows - rows, max((most_bytes - size_bytes) // item_bytes, 0 if rows else 1))
                if room < count:
                    return first + int(room) if room else first
                rows += count
                size_bytes += int(count * item_bytes)
        return end


def stream_reader(options: Mapping[str, str], schema: StructType) -> StreamReader:
    """The reader of a query; the queue is made if it is not there. Raises ``ValueError``, and like ``Producer``."""
    return StreamReader(stream_read_options(options), schema)


def acknowledge(query: StreamingQuery) -> int:
    """Tell the queues that this query reads of its last batch, which it has surely committed; for one that has ended.

    Durable on return, for its owners to find. The answer is how many queues were told: 0 where it has done nothing yet.
    Raises what ``Producer.flush`` raises.
    """
    progress = query.lastProgress
    offsets = [_own(source.get("endOffset")) for source in _sources(progress)] if progress else []
    told = [offset for offset in offsets if offset is not None]
    for offset in told:
        _acknowledge(offset)
    return len(told)


def _sources(progress: Any) -> Sequence[Any]:
    fields = progress if isinstance(progress, dict) else json.loads(progress.json)
    sources: list[Any] = fields["sources"]
    return sources


def _own(offset: Any) -> Offset | None:
    """An offset of ours; None for what another source says."""
    fields = offset
    if isinstance(offset, str):
        try:
            fields = json.loads(offset)
        except ValueError:
            with suppress(ValueError, SyntaxError):
                fields = literal_eval(offset)  # Spark 4.0 and 4.1 tell it as Python prints it
    return fields if isinstance(fields, dict) and {"path", "queue", "subscription", "offset"} <= fields.keys() else None


def _acknowledge(end: Offset) -> None:
    acknowledge_sequence(end["path"], end["queue"] or None, end["subscription"], end["offset"])
