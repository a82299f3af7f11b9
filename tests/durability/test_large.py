"""The largest possible item: needs about 14 GiB of memory and 9 GiB of disk, so the test runs only on request.

``LARGE_ITEMS=1 python -m pytest tests/durability/test_large.py``
"""

from __future__ import annotations

import os
from zlib import crc32

import pytest

from persistentqueue.core.block import ITEM_BYTES_MAX
from tests.conftest import QueueFactory
from tests.support.queues import crash


@pytest.mark.large
@pytest.mark.skipif("LARGE_ITEMS" not in os.environ, reason="needs 14 GiB of memory: set LARGE_ITEMS=1")
def test_the_largest_item(open_queue: QueueFactory) -> None:
    """An item of 4 GiB - 1 bytes survives a crash between its flush and its dequeue, and so do its neighbours."""
    queue = open_queue()
    item = os.urandom(1 << 20) * 4096
    item = item[:ITEM_BYTES_MAX]
    assert len(item) == 2**32 - 1
    checksum = crc32(item)
    with queue.transaction() as session:
        session.enqueue(b"before")
        session.enqueue(item)
        session.enqueue(b"behind")
    crash(queue)
    del item, session
    queue = open_queue()
    with queue.transaction() as session:
        assert session.dequeue() == b"before"
        found = session.dequeue()
        assert found is not None
        assert (len(found), crc32(found)) == (2**32 - 1, checksum)
        assert session.dequeue() == b"behind"
    del found
