"""Items in envelopes between processes: the owner has no key and no library. A missing key is not a bad item."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    CodecError,
    DeadLetter,
    Encryption,
    PersistentQueue,
    Producer,
    View,
    WrongKeyError,
    aio,
    codecs,
    connect,
)
from persistentqueue.codecs import JSON, Enclosed
from persistentqueue.compat import Queue
from persistentqueue.workers import SharedQueue
from tests.support.worker_processes import CallError, Colleague

KEYS = {"k": b"k" * 32, "new": b"n" * 32}
COUNTING: dict[str, Any] = {"max_attempts": 2, "dead_letter": "dead"}
SECRET = {"name": "a recognisable secret"}


def find_key(key_id: str) -> bytes:
    """Return a key of a process that has all of them."""
    return KEYS[key_id]


def find_new_key(key_id: str) -> bytes:
    """Return the key of a process that has only the new one."""
    return {"new": KEYS["new"]}[key_id]


SEALING: Enclosed[Any] = Enclosed(JSON, compression="zstd", encryption=Encryption("k", find_key))
NEW: Enclosed[Any] = Enclosed(JSON, encryption=Encryption("new", find_new_key))
"""Codec of a process without the key ``k``."""
KEYLESS: Enclosed[Any] = Enclosed(JSON)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Colleague]]:
    """Return a function that starts a process; the first one is the owner."""
    made: list[Colleague] = []

    def begin(**settings: Any) -> Colleague:
        made.append(Colleague(tmp_path, **settings))
        made[-1].result()
        return made[-1]

    yield begin
    for each in made:
        each.__exit__(None, None, None)


def files(directory: Path) -> bytes:
    """Return the bytes of all files below a directory."""
    return b"".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


def test_keys_stay_in_the_workers(start: Callable[..., Colleague], tmp_path: Path) -> None:
    """The owner can load no library and sees no plaintext. A worker reads the items of one that was killed.

    A worker without the key gets an error, and the items go back.
    """
    owner = start()
    owner.call("forbid", "cryptography", "zstandard")
    first, second = start(codec=SEALING), start(codec=SEALING)
    keyless, newer = start(codec=KEYLESS), start(codec=NEW)
    first.call("enqueue_many", [SECRET, [1], [2]])
    assert first.call("flush") is True
    assert first.call("dequeue_many", 2) == [SECRET, [1]]
    first.kill()
    assert second.call("peek", 9) == [SECRET, [1], [2]]
    for worker, problem in ((keyless, "no key was given"), (newer, "KeyError")):
        for call in (("dequeue",), ("dequeue_many", 3), ("peek", 3)):
            with pytest.raises(CallError, match=f"WrongKeyError: the key 'k': an item needs it: .*{problem}"):
                worker.call(*call)
        assert owner.call("length") == 3
    stored = owner.call("peek", 9)
    assert [type(each) for each in stored] == [bytes] * 3
    assert [SEALING.decode(each) for each in stored] == [SECRET, [1], [2]]
    assert b"recognisable" not in b"".join(stored) + files(tmp_path)
    assert second.call("dequeue_many", 9) == [SECRET, [1], [2]]
    assert second.call("flush") is True
    assert owner.call("length") == 0


def test_items_before_one_without_a_key_come_first(start: Callable[..., Colleague]) -> None:
    """``dequeue_many`` returns the items before the first that cannot be opened, and releases the rest in order."""
    start()
    all_keys, newer = start(codec=SEALING), start(codec=NEW)
    newer.call("enqueue_many", [1, 2])
    assert newer.call("flush") is True
    all_keys.call("enqueue_many", [3])
    assert all_keys.call("flush") is True
    newer.call("enqueue_many", [4])
    assert newer.call("flush") is True
    assert newer.call("dequeue_many", 9) == [1, 2]
    with pytest.raises(CallError, match="WrongKeyError"):
        newer.call("dequeue")
    assert newer.call("flush") is True  # of the two items that it got
    assert all_keys.call("dequeue_many", 9) == [3, 4]
    assert all_keys.call("flush") is True


def test_a_session_of_the_owner_returns_the_items_before_one_without_a_key(tmp_path: Path) -> None:
    """``dequeue_many`` of the owner returns the items that its key opens, and the others are in the queue again."""
    with PersistentQueue(tmp_path, "q", codec=NEW) as queue, queue.transaction() as session:
        session.enqueue_many([1, 2])
    with PersistentQueue(tmp_path, "q", codec=SEALING) as queue, queue.transaction() as session:
        session.enqueue(3)
    with PersistentQueue(tmp_path, "q", codec=NEW) as queue:
        with queue.transaction() as session:
            assert session.dequeue_many(9) == [1, 2]
        assert len(queue) == 1


def test_wrong_keys_use_up_no_attempts(start: Callable[..., Colleague], tmp_path: Path) -> None:
    """In a queue that counts attempts, a worker without the key can try again and again: no item is given up."""
    settings: dict[str, Any] = {"lock_timeout": 60.0}
    with PersistentQueue(tmp_path, "q", serve=True, **COUNTING) as owner:
        with connect(tmp_path, "q", codec=SEALING, serve="never", **settings) as queue:
            with queue.transaction() as session:
                session.enqueue_many([1, 2])
            with connect(tmp_path, "q", codec=KEYLESS, serve="never", **settings) as other:
                for _ in range(5):
                    with other.session() as session, pytest.raises(WrongKeyError):
                        session.dequeue_many(2)
                with pytest.raises(WrongKeyError), other.session() as session:
                    session.dequeue(timeout=None)
            with queue.transaction() as session:
                assert session.dequeue_many(9) == [1, 2]  # both at once: neither was tried before
        assert (len(owner.dead_letters), owner.stats().undecodable, owner.stats().dead) == (0, 0, 0)


def test_an_uncounted_delivery_is_durable(tmp_path: Path) -> None:
    """A session of the owner counts no attempt either, also after a reopening. Attempts that were made stay counted."""
    with PersistentQueue(tmp_path, "q", codec=SEALING, **COUNTING) as queue:
        with queue.transaction() as session:
            session.enqueue("item")
        with queue.session() as session:
            assert session.dequeue() == "item"
            session.rollback()
    for _ in range(3):
        with PersistentQueue(tmp_path, "q", codec=KEYLESS, **COUNTING) as queue:
            with pytest.raises(WrongKeyError), queue.session() as session:
                session.dequeue()
            assert (len(queue), len(queue.dead_letters)) == (1, 0)
    with PersistentQueue(tmp_path, "q", codec=SEALING, **COUNTING) as queue:
        with queue.transaction() as session:
            session.reject(session.dequeue(), "the second attempt")
        assert [DeadLetter.decode(letter).attempts for letter in queue.dead_letters.browse()] == [2]


def test_items_that_no_key_has_made_are_bad_items(tmp_path: Path) -> None:
    """A forged or plain item raises ``CodecError``: it can be rejected, and items behind it come out."""
    with PersistentQueue(tmp_path, "q", serve=True, **COUNTING) as owner, owner.transaction() as session:
        session.enqueue_many([b"forged", KEYLESS.encode("in the clear")])
        session.flush()
        with connect(tmp_path, "q", codec=SEALING, serve="never") as queue:
            with queue.transaction() as good:
                good.enqueue("good")
            with queue.session() as worker:
                for _ in range(2):
                    with pytest.raises(CodecError, match="Enclosed cannot decode") as caught:
                        worker.dequeue()
                    worker.reject(caught.value, retry=False)
                    worker.flush()
                assert worker.dequeue() == "good"
                worker.flush()
        assert (len(owner.dead_letters), owner.stats().undecodable) == (2, 2)


def test_all_faces_take_the_codec(tmp_path: Path) -> None:
    """A producer, sessions, subscriptions, event loops and the queue of the standard library read the same items."""
    with PersistentQueue(tmp_path, "q", codec=SEALING) as queue, Producer(tmp_path, "q", codec=SEALING) as producer:
        billing = queue.subscribe("billing")
        producer.enqueue_many([1, 2])
        producer.flush()
        assert queue.wait(timeout=0)
        assert list(queue.browse()) == list(queue.browse_all()) == list(billing.browse()) == [1, 2]
        assert [codecs.decode(SEALING, item.data) for item in View(tmp_path, "q").peek(9)] == [1, 2]
        with billing.transaction() as session:
            assert session.dequeue_many(2) == [1, 2]

    async def consume() -> None:
        async with aio.PersistentQueue(tmp_path, "q", codec=SEALING) as queue, queue.transaction() as session:
            assert await session.dequeue() == 1
        async with await aio.connect(tmp_path, "q", codec=SEALING) as shared, shared.transaction() as worker:
            assert await worker.dequeue() == 2
            await worker.enqueue(3)

    asyncio.run(consume())
    for shares in (False, True):
        with Queue[Any](tmp_path / "q", codec=SEALING, shared=shares) as standard:
            assert standard.get() == 3
            standard.put(3)
            standard.task_done()


@pytest.mark.parametrize("counting", [{}, COUNTING], ids=["plain", "counting"])
def test_queues_of_the_standard_library_give_back(tmp_path: Path, counting: dict[str, Any]) -> None:
    """``get`` without the key raises ``WrongKeyError`` in threads and in tasks. The item is in the queue again."""
    with Queue[Any](tmp_path / "q", codec=SEALING, **counting) as queue:
        queue.put_many([1, 2])
    for shares in (False, True):
        with Queue[Any](tmp_path / "q", codec=KEYLESS, shared=shares, **counting) as queue:
            for _ in range(3):
                with pytest.raises(WrongKeyError):
                    queue.get()
            with pytest.raises(WrongKeyError):
                queue.get_many(2)
            assert queue.qsize() == queue.unfinished_tasks == 2
            with pytest.raises(ValueError, match="too many times"):
                queue.task_done()

    async def get() -> None:
        async with aio.Queue[Any](tmp_path / "q", codec=KEYLESS, **counting) as queue:
            for _ in range(3):
                with pytest.raises(WrongKeyError):
                    await queue.get()
            assert queue.qsize() == 2
        async with aio.Queue[Any](tmp_path / "q", codec=SEALING, **counting) as queue:
            assert [await queue.get(), await queue.get()] == [1, 2]
            await queue.put(3)
            assert await queue.get() == 3
            for _ in range(3):
                queue.task_done()
            await queue.join()

    asyncio.run(get())


def test_a_handle_has_no_keys(tmp_path: Path) -> None:
    """A shared queue whose codec could carry keys cannot be pickled; with a function of a module it can."""
    carrying: Enclosed[bytes] = Enclosed(encryption=Encryption("k", KEYS.__getitem__))
    with connect(tmp_path, "q", codec=carrying) as queue, pytest.raises(TypeError, match="may have keys in it"):
        pickle.dumps(queue)
    with connect(tmp_path, "q", codec=SEALING) as shared:
        pickled = pickle.dumps(shared)
        assert KEYS["k"] not in pickled
        again: SharedQueue[Any] = pickle.loads(pickled)
        with again, again.transaction() as session:
            session.enqueue(SECRET)
        assert shared.peek() == [SECRET]
