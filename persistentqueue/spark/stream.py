"""Streaming reads: a query is a consumer with a subscription of its own, and consumes its committed batches.

An offset contains the sequence of the first item that was not read yet, and the identity of its queue. It also contains
the first sequence and the number of items of the batch that ends there. So a batch that is run again has the same rows,
or fails. A committed batch is acknowledged by a request in the inbox, for which the query does not wait. The owner
answers it when it next looks at its inbox: the items are then consumed, and freed if no other consumer needs them.

An offset also names its queue and its subscription, for ``acknowledge``. If the offset of a checkpoint names another
place, the next look at the queue ends a batch, even without rows. Then the last offset names the queue that is read.

Spark tells a source that a batch is committed when it plans the next one. So the last batch of a query stays in the
queue until the query goes on, or until ``acknowledge`` is called after its end.
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
from persistentqueue.drawing.text import many
from persistentqueue.interprocess import (
    LATEST,
    Onlooker,
    is_published,
    look,
    plan,
    read_publication,
    request_subscription,
)
from persistentqueue.interprocess import acknowledge as acknowledge_sequence
from persistentqueue.system.disk import DISK, join

from .options import Place, StreamOptions, stream_read_options
from .partition_reader import adopt, batches, partitions, rows_to_read

limits: Any
try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:  # before Spark 4.2, Spark passes no limits: only the options set them
    limits = None
_AvailableNow: Any = limits.SupportsTriggerAvailableNow if limits is not None else object
Offset = dict[str, Any]
_UNKNOWN = -1
"""The item count of a batch whose beginning is unknown: Spark 4.0 and 4.1 do not pass it to ``latestOffset``."""
_UNLIMITED = 2**63


class DataLossError(PersistentQueueError):
    """Items that a query has to read are gone, or the queue does not keep them for it any more.

    Nothing is damaged. With ``failOnDataLoss=false`` the query goes on with the items that are left.
    """

    def __init__(self, options: StreamOptions, offset: int, reason: str) -> None:
        super().__init__(
            f"{options.place.directory}: the query with the subscription {options.subscription!r} is at offset "
            f"{offset}, but {reason}: begin a new query with another checkpoint, or set failOnDataLoss=false to go on "
            "with the items that are left"
        )


class StreamReader(DataSourceStreamReader, _AvailableNow):  # type: ignore[misc]
    """Reads the items of a queue for one subscription, one micro-batch after the other."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._rows = rows_to_read(options, schema)
        self._options = options
        self._onlooker = Onlooker(DISK, options.place.directory)
        self._target: int | None = None
        """The end of the queue when a query with the trigger ``availableNow`` began; None for another trigger."""
        self._last: Offset | None = None
        """The beginning of the next batch; None if it is not known in this process."""
        self._identity = ""
        """The identity of the queue at the last look; empty before a look, and for an older queue, which has none."""
        self._is_asked = False
        """True if this process has requested the subscription."""
        self._was_there = False
        """True if the subscription was seen since then."""

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the beginning of a new query: the frontier of its subscription, which is requested if missing.

        Raises ``ValueError`` if the options begin beyond the end of the queue: the items before would be read.
        """
        state = self._look()[1]
        cursor = self._cursor(state)
        if cursor is not state.gone:
            first = cursor.frontier
        else:
            start, end = self._options.start, state.next_sequence
            if end < start != LATEST:
                raise ValueError(
                    f"{self._options.place.directory}: startingOffsets is {start}, but the queue ends at {end}: give "
                    f"an offset up to {end}, or latest, or begin the query later"
                )
            first = max(min(start, end), state.gone.frontier)
            # Skip items that were consumed out of order there: the subscription will skip them, too.
            first = next((at for at, _ in state.gone.unconsumed(first, state.next_sequence)), state.next_sequence)
            self._ask(first)
        self._last = self._offset(first, 0)
        return self._last

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Return one of the limits of the options; ``latestOffset`` applies both."""
        if self._options.max_rows is not None:
            return limits.ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return limits.ReadMaxBytes(self._options.max_bytes)
        return limits.ReadAllAvailable()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Offset | None = None, limit: Any = None
    ) -> Offset:
        """Return the end of the next batch: as far as the limits allow, and one item at least, if there is one."""
        inbox, state = self._look()
        last = start if start is not None else self._last
        end = state.next_sequence if self._target is None else min(self._target, state.next_sequence)
        if last is None:
            return self._offset(end, _UNKNOWN)
        begin = self._resumed(last, inbox, state)
        if not state.gone.live_between(begin, end):
            return last if self._is_here(last) else self._offset(begin, 0)
        if limits is None or not isinstance(limit, limits.ReadAllAvailable):
            end = self._limited(begin, end)
        return self._offset(end, state.gone.live_between(begin, end)) | {"begin": begin}

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the end of the queue, which Spark shows in the progress of the query."""
        return self._offset(self._look()[1].next_sequence, 0)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Let the query end at the current end of the queue."""
        self._target = self._look()[1].next_sequence

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan a batch, and return its partitions.

        Raises ``DataLossError`` if items that the batch had are gone, and what the planning of a batch read raises.

        When Spark runs the first batch of a query again, ``start`` is the frontier that the subscription has by then.
        So the first sequence and the number of items of the batch are taken from ``end``.
        """
        options, self._last = self._options, end
        if start == end or not end["items"]:
            return []
        count = end["items"]
        begin: int = end["begin"] if "begin" in end else start["offset"]
        places, recovered = self._onlooker.look(durably=True)
        alien = self._alien(end)
        is_other = alien is not None or _is_of_another(end, recovered.identity)
        if count == _UNKNOWN and alien is None:
            alien = self._alien(start)
            begin = begin if alien is None else self._cursor(recovered.state).frontier
        if alien is not None and options.fail_on_data_loss:
            raise DataLossError(options, begin, alien)
        runs = [(begin, end["offset"] - begin)] if begin < end["offset"] and not is_other else []
        splits = plan(DISK, places, recovered, runs)
        missing = count - sum(split.items for split in splits)
        if count != _UNKNOWN and missing and options.fail_on_data_loss:
            gone = many(missing, "item is", "items are")
            raise DataLossError(options, begin, f"{gone} gone, of the batch that ends at {end['offset']}")
        return partitions(splits, options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in a task.

        Raises ``CorruptionError``, ``GoneError``, ``MissingExtraError`` (compressed), ``WrongKeyError`` (encrypted),
        ``CodecError`` (an item that is no row) and ``OSError``.
        """
        return batches(self._options, partition.value or [], self._rows)

    def commit(self, end: Offset) -> None:
        """Acknowledge all items before this offset. An error fails no query: the next batch acknowledges them again.

        The request goes to the queue and the subscription of the options. ``end`` may come from the checkpoint of a
        copy, and then names the place of the original. If it names another subscription, nothing is acknowledged.
        """
        options = self._options
        if self._alien(end) is not None:
            return
        with suppress(PersistentQueueError, OSError):
            _acknowledge(options.place, options.subscription, end, self._onlooker.look()[1].identity)

    def _look(self) -> tuple[str, Any]:
        """Return the path of the inbox, and the durable state of the queue.

        If the queue has no owner, published transactions are adopted first.
        """
        place = self._options.place
        adopt(place)
        places, recovered = self._onlooker.look(durably=True)
        self._identity = recovered.identity
        return places.path("inbox"), recovered.state

    def _resumed(self, last: Offset, inbox: str, state: Any) -> int:
        """Return the sequence at which a query that is at the offset ``last`` goes on. Raises ``DataLossError``."""
        offset, cursor = last["offset"], self._cursor(state)
        is_there, reason = cursor is not state.gone, self._alien(last)
        is_other = reason is not None or _is_of_another(last, self._identity)
        if reason is not None:
            pass  # the offset is what another consumer has read
        elif is_other:
            reason = "another queue has taken the place of the one that it read"
        elif state.next_sequence < offset:
            reason = f"the queue ends at {state.next_sequence} (an older copy has taken its place)"
        elif offset < cursor.frontier:
            count = many(cursor.frontier - offset, "item")
            reason = f"the items before {cursor.frontier} were consumed by others ({count})"
        elif not is_there and not self._is_pending(inbox):
            reason = "the subscription was removed, so that the queue does not keep the items to read"
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

    def _alien(self, offset: Offset) -> str | None:
        """Return why the offset is no position of this query: it names another subscription. None if it is one."""
        found = offset.get("subscription", self._options.subscription)
        return None if found == self._options.subscription else f"its checkpoint is that of the subscription {found!r}"

    def _cursor(self, state: Any) -> Any:
        """Return the place of the subscription in the queue; that of all consumers if it is not there."""
        number = state.number_of(self._options.subscription)
        return state.gone if number is None else state.subscriptions[number]

    def _is_pending(self, inbox: str) -> bool:
        """Return whether the missing subscription was requested, and the owner has not answered yet."""
        if self._is_asked:
            return not self._was_there
        for published in filter(is_published, DISK.listdir(inbox)):
            with suppress(PersistentQueueError, FileNotFoundError):
                request = read_publication(DISK, join(inbox, published)).request
                if request is not None and request.name == self._options.subscription and not request.end:
                    return True
        # The owner may have answered between the look at the log and the look at the inbox.
        return self._onlooker.look()[1].state.number_of(self._options.subscription) is not None

    def _ask(self, first: int) -> None:
        place = self._options.place
        request_subscription(place.path, place.queue, self._options.subscription, first)
        self._is_asked, self._was_there = True, False

    def _offset(self, sequence: int, items: int) -> Offset:
        return {**self._consumer(), "offset": sequence, "items": items, "identity": self._identity}

    def _consumer(self) -> Offset:
        """Return the fields of an offset that name the queue and the subscription."""
        place = self._options.place
        return {"path": place.path, "queue": place.queue or "", "subscription": self._options.subscription}

    def _is_here(self, offset: Offset) -> bool:
        """Return whether the offset names the queue and the subscription of this query."""
        return self._consumer().items() <= offset.items()

    def _limited(self, begin: int, end: int) -> int:
        """Return the end of a batch that begins at ``begin``, within both limits of the options."""
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
                    return first + int(room)
                rows += count
                size_bytes += int(count * item_bytes)
        return end


def stream_reader(options: Mapping[str, str], schema: StructType) -> StreamReader:
    """Return the reader of a query. Raises ``ValueError`` for an unknown option or value, or another schema."""
    return StreamReader(stream_read_options(options), schema)


def acknowledge(query: StreamingQuery) -> int:
    """Acknowledge the last batch of a streaming query that has ended, to each queue that it reads.

    Spark tells a source that a batch is committed only when it plans the next one. So without this call, the items of
    the last batch stay in the queue until the query goes on. On return, the request to each queue is durable; the owner
    consumes the items when it next looks at its inbox. It may be called from any thread.

    The last offset of the query names the queue. A query that goes on elsewhere with its checkpoint may repeat its last
    batch, whose offset names the old place. So call this function when a later batch has ended.

    Args:
        query: The query, which must have ended, so that its last batch is committed.

    Returns:
        The number of queues that got a request. It is 0 if the query has run no batch, or reads no queue. A queue that
        was replaced by another one gets none.

    Raises:
        QueueNotFoundError: A queue is not where its last batch was read. Queues before it have got their requests. If
            the directory was moved, run the query there once more.
        DataPathError: The segments of a queue are being moved: call it again later.
        ResourceError: A request cannot be written; free resources, and call it again.
        BrokenQueueError: It is unknown whether a request is durable. It may be called again.
        OSError: The files of a queue cannot be read or written.

    It also raises what a look at a queue raises, such as ``CorruptionError``.
    """
    progress = query.lastProgress
    offsets = [_own(source.get("endOffset")) for source in _sources(progress)] if progress else []
    told = 0
    for offset in offsets:
        if offset is not None:
            place = Place(offset["path"], offset["queue"] or None)
            told += _acknowledge(place, offset["subscription"], offset, _identity(place))
    return told


def _identity(place: Place) -> str:
    try:
        return look(DISK, place.directory)[1].identity
    except QueueNotFoundError as error:
        raise QueueNotFoundError(
            f"{error}; the query read its last batch there: if the directory was moved, run the query at its new place "
            "once more, and acknowledge that run"
        ) from error


def _sources(progress: Any) -> Sequence[Any]:
    fields = progress if isinstance(progress, dict) else json.loads(progress.json)
    sources: list[Any] = fields["sources"]
    return sources


def _own(offset: Any) -> Offset | None:
    """Return an offset of this data source as a dictionary; None for an offset of another source."""
    fields = offset
    if isinstance(offset, str):
        try:
            fields = json.loads(offset)
        except ValueError:
            with suppress(ValueError, SyntaxError):
                fields = literal_eval(offset)  # Spark 4.0 and 4.1 report it as Python's repr
    return fields if isinstance(fields, dict) and {"path", "queue", "subscription", "offset"} <= fields.keys() else None


def _acknowledge(place: Place, subscription: str, end: Offset, identity: str) -> bool:
    """Acknowledge an offset to the queue with this identity; return False, and do nothing, if it is another queue's."""
    if _is_of_another(end, identity):
        return False
    acknowledge_sequence(place.path, place.queue, subscription, end["offset"])
    return True


def _is_of_another(offset: Offset, identity: str) -> bool:
    """Return whether the offset is known to belong to another queue than the one with this identity."""
    return identity != "" and offset.get("identity", identity) not in {"", identity}
