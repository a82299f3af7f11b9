"""``requeue``: dead letters go back to the end of the queue that they came from."""

from __future__ import annotations

from ..core.dead_letter import DeadLetter
from ..core.intervals import join_runs, last_of, without
from ..engine.transaction import SPILL_BYTES, Transaction
from ..errors import DeadLetterError
from ..system.disk import basename
from .multi_queue import commit_jointly
from .open_queue import OpenQueue

_BATCH_ITEMS = 256


def requeue(group: OpenQueue, dead: OpenQueue, max_items: int | None) -> int:
    """Move up to so many (None: all) of the dead letters that came from the queue of ``group`` to its end, out of their
    envelopes; how many. One transaction over both queues, durable on return.

    Those of other queues, and what is no dead letter, stay where they are; meanwhile nobody else may dequeue them.
    Raises what a flush raises, and ``CorruptionError`` like a dequeue; then nothing was moved.
    """
    reader, name = dead.store.reader, basename(group.store.directory)
    into, out, held = Transaction(), Transaction(reader.ready), Transaction(reader.ready)
    count = 0
    try:
        while max_items is None or count < max_items:
            batch = _BATCH_ITEMS if max_items is None else min(_BATCH_ITEMS, max_items - count)
            envelopes = dead.take(reader, batch, 0.0, held.runs)
            if not envelopes:
                break
            runs = reversed(last_of(held.runs, len(envelopes)))
            sequences = (sequence for first, length in runs for sequence in range(first, first + length))
            for sequence, envelope in zip(sequences, envelopes, strict=True):
                item = _item_of(envelope, name)
                if item is not None:
                    join_runs(out.runs, [(sequence, 1)])
                    into.add([item])
                    count += 1
                    if into.cost_bytes > SPILL_BYTES:
                        group.spill(into)
        if count:
            commit_jointly([(group, into), (dead, out)])
    finally:
        if out.committed:
            held.runs = without(held.runs, out.runs)
        dead.discard(held)
        group.discard(into)
    return count


def _item_of(envelope: bytes, queue: str) -> bytes | None:
    """The item, if it came from this queue."""
    try:
        letter = DeadLetter.decode(envelope)
    except DeadLetterError:
        return None
    return letter.item if letter.queue == queue else None
