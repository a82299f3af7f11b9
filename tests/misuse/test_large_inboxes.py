"""Row 10, the slowest cases: very large files, and very many files, in an inbox. ``make long`` runs them."""

from __future__ import annotations

import os
import shutil
from itertools import chain
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue, Producer
from persistentqueue.core.operations import Adoption, Enqueue, SubscriptionClosed, encode_transaction
from persistentqueue.engine.inbox import TOLD_MAX
from tests.support.hostile import aside, consume_in_little_memory, forge, hostile_name


@pytest.mark.damages
@pytest.mark.parametrize("kind", ["transactions", "operations", "parts"])
def test_row_10_empty_transactions(attacked: Path, directory: Path, kind: str) -> None:
    """A process with little memory sets aside a published file of sixty megabytes of transactions, operations, or
    missing parts."""
    name, size_bytes = hostile_name(), 60 * 10**6
    if kind == "transactions":
        forge(attacked / name, [], body=bytes(size_bytes))
    elif kind == "operations":
        one = encode_transaction([SubscriptionClosed(1)])[4:]
        count = size_bytes // len(one)
        forge(attacked / name, [SubscriptionClosed(1)] * 2, body=count.to_bytes(4, "little") + one * count)
    else:
        names = [hostile_name(number, ".part") for number in range(1, 440_000)]
        files = [(Adoption(0, 5, 100, part), Enqueue(0, 1, 0, 64, 60, 0, 9)) for part in names]
        forge(attacked / name, [Adoption(0, 5, 0, name), *chain.from_iterable(files)])
        del files
    assert (attacked / name).stat().st_size > 50 * 10**6
    found = consume_in_little_memory(directory, 1, processor_seconds=60)
    assert found == ([b"innocent, with a marker"], ["CorruptionError"])
    assert aside(attacked) == [f"{name}.damaged"]


@pytest.mark.damages
def test_row_10_very_many_empty_files(attacked: Path, directory: Path) -> None:
    """A hundred thousand empty files are set aside, each with an error in the log, and some of the errors are raised.
    The publication behind them is adopted."""
    for number in range(100_000):
        os.close(os.open(attacked / hostile_name(number), os.O_WRONLY | os.O_CREAT, 0o600))
    found = consume_in_little_memory(directory, 1, processor_seconds=60)
    assert found.items == [b"innocent, with a marker"]
    assert set(found.errors) == {"CorruptionError"} and len(found.errors) == TOLD_MAX
    assert len(aside(attacked)) == 100_000
    shutil.rmtree(attacked)
    attacked.mkdir(0o700)


@pytest.mark.damages
def test_row_10_a_block_that_becomes_a_gibibyte(attacked: Path, directory: Path) -> None:
    """An item of a gibibyte in 32 KiB, for which the process has no memory, is named in an error and skipped. The
    publication behind it is adopted, and the next opening has the item again."""
    pytest.importorskip("zstandard")
    with Producer(directory, compression="zstd") as producer:
        producer.enqueue(bytes(2**30))
        producer.flush()
    (file,) = attacked.iterdir()
    assert file.stat().st_size < 10**5
    found = consume_in_little_memory(directory, 1, processor_seconds=60)
    assert found == ([b"innocent, with a marker"], ["MemoryShortageError"])
    with PersistentQueue(directory) as queue, queue.session() as session:
        item = session.dequeue()
        assert item is not None and len(item) == 2**30
        session.rollback()
