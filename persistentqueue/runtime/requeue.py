"""The function ``requeue``: it moves dead letters back to the end of the queue that they came from."""

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
    """Move up to ``max_items`` dead letters (None: all) to the end of the queue that they came from; return their
    number.

    ``group`` is that queue and ``dead`` the dead-letter queue. The items are taken out of their envelopes. One
    transaction over both queues does it, and it is durable on return.

    Dead letters of other queues, and items that are no dead letters, stay in place. They are on hold meanwhile, so no
    other session can dequeue them. Raises the errors of a flush, and ``CorruptionError`` as a dequeue does; then
    nothing was moved.
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
    """Return the item if it came from this queue, else None."""
    try:
        letter = DeadLetter.decode(envelope)
    except DeadLetterError:
        return None
    return letter.item if letter.queue == queue else None
