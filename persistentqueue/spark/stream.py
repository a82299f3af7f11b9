"""Streaming reads: a query is a consumer of its own, by a subscription, and consumes what it has surely done with.

An offset is the sequence of the first item that was not read yet, and says of which queue, by its identity, and of the
batch before it where it begins and how many items it has, so that a batch that is run again has the same rows or fails.
What a query has committed is acknowledged, through the inbox, and goes when nobody else needs it; whoever owns the
queue answers when he looks into it, and nobody waits for him.

Spark tells a source that a batch is done when it plans the next one. So that of the last one stays until the query goes
on, or ``acknowledge`` is called with it when it has ended.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from persistentqueue import PersistentQueueError, QueueNotFoundError
from persistentqueue.interprocess import Onlooker, is_published, look, plan, read_publication, request_subscription
from persistentqueue.interprocess import acknowledge as acknowledge_sequence
from persistentqueue.system.disk import DISK, join

from .options import Place, StreamOptions, stream_read_options
from .partition_reader import SCHEMA, adopt, batches, partitions

limits: Any
try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:  # before Spark 4.2 there are no limits but those of the options
    limits = None
_AvailableNow: Any = limits.SupportsTriggerAvailableNow if limits is not None else object
Offset = dict[str, Any]
_UNKNOWN = -1
"""How many items a batch has whose beginning is not known: Spark 4.0 and 4.1 do not tell it."""
_UNLIMITED = 2**63


class DataLossError(PersistentQueueError):
    """What a query was to read is gone, or is not kept for it any more.

    Nothing is damaged. With ``failOnDataLoss=false`` the query goes on with what there is.
    """

    def __init__(self, options: StreamOptions, offset: int, reason: str) -> None:
        super().__init__(
            f"{options.place.directory}: the query that reads by subscription {options.subscription!r} is at offset "
            f"{offset}, and {reason}: begin a new query, with another checkpoint, or go on with what there is by "
            "failOnDataLoss=false"
        )


class StreamReader(DataSourceStreamReader, _AvailableNow):  # type: ignore[misc]
    """Reads what is enqueued, for one subscription, from one micro-batch to the next."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        if schema != SCHEMA:
            raise ValueError(f"persistentqueue reads {SCHEMA.simpleString()}, not {schema.simpleString()}")
        self._options = options
        self._onlooker = Onlooker(DISK, options.place.directory)
        self._target: int | None = None
        """What the queue had when a query began that is to read that, and to end."""
        self._last: Offset | None = None
        """Where the next batch begins, as far as that is known here."""
        self._identity = ""
        """The queue's, as it was looked at last; "" where it is older than that."""
        self._is_asked = False
        """Whether the subscription was asked for by this very process."""
        self._was_there = False
        """Whether it was seen since."""

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Where a new query begins: where its subscription is, which is made if it is not there."""
        state = self._look()[1]
        number = state.number_of(self._options.subscription)
        if number is not None:
            first = state.subscriptions[number].frontier
        else:
            first = max(min(self._options.start, state.next_sequence), state.gone.frontier)
            # Behind what was consumed out of order there: the subscription will begin there as well.
            first = next((at for at, _ in state.gone.unconsumed(first, state.next_sequence)), state.next_sequence)
            self._ask(first)
        self._last = self._offset(first, 0)
        return self._last

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
        inbox, state = self._look()
        last = start if start is not None else self._last
        end = state.next_sequence if self._target is None else min(self._target, state.next_sequence)
        if last is None:
            return self._offset(end, _UNKNOWN)
        begin = self._resumed(last, inbox, state)
        if not state.gone.live_between(begin, end):
            return last
        if limits is None or not isinstance(limit, limits.ReadAllAvailable):
            end = self._limited(begin, end)
        return self._offset(end, state.gone.live_between(begin, end)) | {"begin": begin}

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """What there is, for the progress of the query."""
        return self._offset(self._look()[1].next_sequence, 0)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What is there now is all that this query is to read."""
        self._target = self._look()[1].next_sequence

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan a batch. Raises ``DataLossError`` where it has not the items that it had, and what a batch read raises.

        Spark asks the first batch of a query to begin where the subscription is, also when it runs that batch again:
        what it had is in ``end``.
        """
        options, self._last = self._options, end
        if start == end or not end["items"]:
            return []
        count = end["items"]
        begin: int = end["begin"] if "begin" in end else start["offset"]
        places, recovered = self._onlooker.look(durably=True)
        is_other = _is_of_another(end, recovered.identity)
        runs = [(begin, end["offset"] - begin)] if begin < end["offset"] and not is_other else []
        splits = plan(DISK, places, recovered, runs)
        missing = count - sum(split.items for split in splits)
        if count != _UNKNOWN and missing and options.fail_on_data_loss:
            raise DataLossError(options, begin, f"{missing} items of the batch that ends at {end['offset']} are gone")
        return partitions(splits, options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the rows. Raises ``CorruptionError``, ``GoneError``, ``MissingExtraError`` (compressed),
        ``WrongKeyError`` (encrypted) and ``OSError``."""
        return batches(self._options.place, partition.value or [], not self._options.fail_on_data_loss)

    def commit(self, end: Offset) -> None:
        """Acknowledge what comes before. What fails here is told again with the next batch, and fails no query."""
        with suppress(PersistentQueueError, OSError):
            _acknowledge(end, self._onlooker.look()[1].identity)

    def _look(self) -> tuple[str, Any]:
        """The inbox, and what the queue holds, durably; also what is published, if nobody owns it."""
        place = self._options.place
        adopt(place)
        try:
            places, recovered = self._onlooker.look(durably=True)
        except QueueNotFoundError as error:
            raise QueueNotFoundError(f"{error}: name another path or queue, or make it first, by opening it") from error
        self._identity = recovered.identity
        return places.path("inbox"), recovered.state

    def _resumed(self, last: Offset, inbox: str, state: Any) -> int:
        """Where a query that is at this offset goes on. Raises ``DataLossError``."""
        name, offset = self._options.subscription, last["offset"]
        number = state.number_of(name)
        is_there = number is not None
        cursor = state.subscriptions[number] if is_there else state.gone
        is_other, reason = _is_of_another(last, self._identity), None
        if is_other:
            reason = "another queue has taken the place of the one that it has read"
        elif state.next_sequence < offset:
            reason = f"the queue ends at {state.next_sequence}: an older copy of it was put there"
        elif offset < cursor.frontier:
            reason = f"what comes before {cursor.frontier} was consumed by others, {cursor.frontier - offset} items"
        elif not is_there and not self._is_pending(inbox):
            reason = "the queue has no such subscription, by which it would keep what is to be read: it was removed"
        self._was_there |= is_there
        if reason is None:
            return int(offset)
        if self._options.fail_on_data_loss:
            raise DataLossError(self._options, offset, reason)
        is_anew = is_other or state.next_sequence < offset
        first = cursor.frontier if is_anew else max(offset, cursor.frontier)
        if not is_there and not self._is_pending(inbox):
            self._ask(first)
        return int(first)

    def _is_pending(self, inbox: str) -> bool:
        """Whether the subscription, which is not there, was asked for, and the owner has not looked yet."""
        if self._is_asked:
            return not self._was_there
        for published in filter(is_published, DISK.listdir(inbox)):
            with suppress(PersistentQueueError, FileNotFoundError):
                request = read_publication(DISK, join(inbox, published)).request
                if request is not None and request.name == self._options.subscription and not request.end:
                    return True
        # It may have been answered between the two looks.
        return self._onlooker.look()[1].state.number_of(self._options.subscription) is not None

    def _ask(self, first: int) -> None:
        place = self._options.place
        request_subscription(place.path, place.queue, self._options.subscription, first)
        self._is_asked, self._was_there = True, False

    def _offset(self, sequence: int, items: int) -> Offset:
        place = self._options.place
        return {
            "path": place.path,
            "queue": place.queue or "",
            "subscription": self._options.subscription,
            "offset": sequence,
            "items": items,
            "identity": self._identity,
        }

    def _limited(self, begin: int, end: int) -> int:
        """Up to where the options allow: both limits count, whichever Spark speaks of."""
        most_rows = self._options.max_rows or _UNLIMITED
        most_bytes = self._options.max_bytes or _UNLIMITED
        if most_rows == most_bytes == _UNLIMITED:
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
    """The reader of a query. Raises ``ValueError``."""
    return StreamReader(stream_read_options(options), schema)


def acknowledge(query: StreamingQuery) -> int:
    """Tell the queues that this query reads of its last batch, which it has surely committed; for one that has ended.

    Durable on return, for its owners to find. The answer is how many queues were told: 0 where it has done nothing yet,
    or another queue has taken the place. Raises what ``Producer.flush`` raises, and ``QueueNotFoundError``.
    """
    progress = query.lastProgress
    offsets = [_own(source.get("endOffset")) for source in _sources(progress)] if progress else []
    told = 0
    for offset in offsets:
        if offset is not None:
            place = Place(offset["path"], offset["queue"] or None)
            told += _acknowledge(offset, look(DISK, place.directory)[1].identity)
    return told


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


def _acknowledge(end: Offset, identity: str) -> bool:
    """Acknowledge to the queue with this identity, if it is the one; whether it is."""
    if _is_of_another(end, identity):
        return False
    acknowledge_sequence(end["path"], end["queue"] or None, end["subscription"], end["offset"])
    return True


def _is_of_another(offset: Offset, identity: str) -> bool:
    """Whether the offset is surely not of the queue with this identity."""
    return identity != "" and offset.get("identity", identity) not in {"", identity}
