"""The buffer of items that wait to be written or sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue.core.items import Alike, Batch
from persistentqueue.core.page_cache import ITEM_OVERHEAD_BYTES
from persistentqueue.errors import ItemTooLargeError

LENGTHS = st.lists(st.integers(0, 3) | st.just(2), max_size=5)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3)),
        st.tuples(st.just("extend"), LENGTHS),
        st.just(("clear", None)),
    ),
    max_size=20,
)


@given(CALLS)
def test_a_batch_knows_its_items(calls: list[tuple[str, object]]) -> None:
    """A batch has the items that were added, also behind spills, and the sum of their lengths. If it says that they
    have one length, they have it. A first series of one length is known to have it."""
    batch, expected, spilled = Batch(4 * ITEM_OVERHEAD_BYTES), [], []

    def spill() -> None:
        spilled.extend(batch.items)
        batch.clear()

    for name, argument in calls:
        if name == "add":
            assert isinstance(argument, int)
            item = b"a" * argument
            batch.add(item, spill)
            expected.append(item)
        elif name == "extend":
            assert isinstance(argument, list)
            items, was_empty, before = [b"e" * length for length in argument], not batch.items, len(spilled)
            batch.extend(items, spill)
            expected += items
            if was_empty and len(spilled) == before and len(set(argument)) == 1:
                assert isinstance(batch.measured, Alike)
        else:
            spill()
        measured = batch.measured
        assert spilled + batch.items == expected
        assert measured == batch.items
        assert batch.payload_bytes == sum(map(len, batch.items))
        assert not isinstance(measured, Alike) or {len(item) for item in measured} <= {measured.each_bytes}


def test_an_item_that_no_message_has_room_for() -> None:
    """A batch refuses an item above its maximum with the error of its user, and adds nothing of that series."""
    batch = Batch(1000, 3, lambda size_bytes: ItemTooLargeError(f"{size_bytes} bytes for a message"))
    with pytest.raises(ItemTooLargeError, match="4 bytes for a message"):
        batch.add(b"long", batch.clear)
    with pytest.raises(ItemTooLargeError, match="5 bytes for a message"):
        batch.extend([b"a", b"large"], batch.clear)
    batch.extend([b"abc", b"def"], batch.clear)
    assert batch.items == [b"abc", b"def"]
