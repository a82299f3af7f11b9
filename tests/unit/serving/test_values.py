"""Results of calls arrive at a worker as they were, and nothing else is made of what arrives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue.drawing.charts import SegmentShare
from persistentqueue.engine.segment_use import Holder, SegmentUse
from persistentqueue.engine.store import RecoveryReport
from persistentqueue.errors import PersistentQueueError
from persistentqueue.measuring.metrics import Histogram, Sample
from persistentqueue.runtime.inspection import Stats
from persistentqueue.runtime.maintenance import Compacted, Maintained
from persistentqueue.serving.connections import Connection
from persistentqueue.serving.values import _KINDS, decode_value, encode_value

from ...conftest import QueueFactory

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(PLAIN | st.tuples(PLAIN, PLAIN), inner)
        | st.builds(Holder, st.text(), st.integers(), st.integers(), st.floats(allow_nan=False))
    ),
    max_leaves=20,
)


def sent(value: object) -> Any:
    """Return the value as it arrives at the worker."""
    return decode_value(json.loads(json.dumps(encode_value(value))))


@pytest.mark.unwatched
@given(VALUES)
def test_values_arrive(value: Any) -> None:
    """Lists, tuples, dictionaries and the classes of results arrive equal, and of the same types."""
    found = sent(value)
    assert (found, type(found)) == (value, type(value))
    assert repr(found) == repr(value)


def test_results_of_a_queue_arrive(open_queue: QueueFactory) -> None:
    """Statistics, the uses of segments, and reports of maintenance arrive equal."""
    queue = open_queue()
    with queue.transaction() as session:
        session.enqueue_many([b"1", b"2"])
    with queue.session() as session:
        session.dequeue()
        for value in (queue.explain(), queue.maintain(), queue.compact(), queue.recovery):
            assert (sent(value), type(sent(value))) == (value, type(value))
        stats = queue.stats()
        assert vars(sent(stats)) == vars(stats)
        session.rollback()


def test_the_classes_are_listed() -> None:
    """Only these classes cross the wire. Another one needs a decision."""
    kinds = {
        Compacted,
        Connection,
        Histogram,
        Holder,
        Maintained,
        RecoveryReport,
        Sample,
        SegmentShare,
        SegmentUse,
        Stats,
    }
    assert set(_KINDS.values()) == kinds
    assert all(_KINDS[kind.__name__] is kind for kind in kinds)


@pytest.mark.parametrize(
    "value",
    [b"bytes", object(), {1, 2}, 1j, [b"inside"], {"a": b"inside"}],
    ids=lambda value: type(value).__name__,
)
def test_other_objects_are_refused(value: object) -> None:
    """An object of another class raises ``TypeError`` at the owner."""
    with pytest.raises(TypeError, match="cannot be sent"):
        encode_value(value)


@pytest.mark.parametrize("kind", ["Session", "PersistentQueue", "eval", "", None, 3, ["tuple"]])
def test_unknown_kinds_make_no_object(kind: object) -> None:
    """A name that is not listed raises ``PersistentQueueError``, and no object is made."""
    with pytest.raises(PersistentQueueError, match="one version of the package"):
        decode_value([{"kind": kind, "fields": {}}])
