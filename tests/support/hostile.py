"""Files that only an attacker publishes, and a process with little memory that reads them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import persistentqueue
from persistentqueue import Producer
from persistentqueue.core.block import SEGMENT_MAGIC
from persistentqueue.core.frame import encode_frame
from persistentqueue.core.header import HEADER_BYTES, Header, encode_header
from persistentqueue.core.operations import encode_transaction
from persistentqueue.storage.segment import PUBLISHED

LIMITED = """
import resource, sys
used = 0
if "t" in sys.abiflags:  # a free-threaded Python takes gibibytes of addresses at its start
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 512 * 2**20,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[4]),) * 2)
sys.path.insert(0, sys.argv[2])
import logging
logging.disable(logging.CRITICAL)
from persistentqueue import PersistentQueue, PersistentQueueError, Producer
errors, items = [], []
with Producer(sys.argv[1]) as producer:
    producer.enqueue(b"innocent, with a marker")
    assert producer.flush(marker=("innocent", 1))
    producer.enqueue(b"once more")
    assert not producer.flush(marker=("innocent", 1))
with PersistentQueue(sys.argv[1]) as queue, queue.session() as session:
    while len(items) < int(sys.argv[3]):
        try:
            item = session.dequeue(timeout=300)
            assert item is not None, (items, errors)
            items.append(item if len(item) < 100 else b"%d bytes" % len(item))
        except PersistentQueueError as error:
            errors.append(type(error).__name__)
    while True:
        try:
            if session.dequeue() is None:
                break
        except PersistentQueueError as error:
            errors.append(type(error).__name__)
    session.flush()
print(repr((items, errors)))
"""


class Outcome(NamedTuple):
    """Items that a process with little memory got out of a queue, and the names of the errors."""

    items: list[bytes]
    errors: list[str]


def consume_in_little_memory(directory: Path, count: int, processor_seconds: int = 20) -> Outcome:
    """Publish an item, open the queue, and dequeue ``count`` items and the rest, in a child process.

    The child has 512 MiB of address space, and is killed when it has used this much time of a processor.
    Work that grows with the square of the files would need far more, on any machine.
    """
    root = Path(persistentqueue.__file__).parent.parent
    command = [sys.executable, "-c", LIMITED, str(directory), str(root), str(count), str(processor_seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return Outcome(*ast.literal_eval(done.stdout))


def innocent(directory: Path, item: bytes = b"innocent") -> None:
    """Publish an item with a regular producer."""
    with Producer(directory) as producer:
        producer.enqueue(item)
        producer.flush()


def hostile_name(number: int = 0, suffix: str = ".seg") -> str:
    """Return a name that sorts before all others that count."""
    return f"{1 + number:016x}-{number:016x}{suffix}"


def forge(path: Path, operations: list[Any], length_bytes: int = 0, body: bytes | None = None, salt: int = 5) -> None:
    """Write a published file whose checksums fit: blocks of zeros, as holes, then a frame with these operations."""
    body = encode_transaction(operations) if body is None else body
    transactions = 1 if operations else len(body) // 4
    frame, _ = encode_frame(body, salt, 0, 1, 0, transactions, len(operations))
    end = HEADER_BYTES + length_bytes
    with path.open("wb") as file:
        file.write(encode_header(SEGMENT_MAGIC, Header(0, PUBLISHED, salt, 0, end)))
        file.truncate(end)
        file.seek(end)
        file.write(frame + body)


def aside(inbox: Path) -> list[str]:
    """Return the names of the files that were set aside in the inbox."""
    return sorted(path.name for path in inbox.iterdir() if path.name.endswith(".damaged"))
