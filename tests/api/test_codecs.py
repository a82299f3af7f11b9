"""Typed queues: encoding and decoding of items, and the reaction to items that a codec refuses."""

from __future__ import annotations

import asyncio
import builtins
import copy
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue import (
    CodecError,
    MissingExtraError,
    PersistentQueue,
    Producer,
    aio,
    codecs,
    compat,
    transaction,
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
)
"""JSON values whose text has no half of a surrogate pair: such a half is not valid text."""


class Numbers:
    """Codec for whole numbers from 0 to 9, as digits. Each other kind of value raises another kind of error."""

    def encode(self, item: int) -> bytes:
        return "0123456789"[item].encode()

    def decode(self, data: bytes) -> int:
        return int(data)


@pytest.fixture
def raw(tmp_path: Path) -> list[bytes]:
    """Write items as bytes into the queue ``numbers``, and return them."""
    items = [b"0", b"1", b"x", b"3", b"y"]
    with PersistentQueue(tmp_path, "numbers") as queue, queue.transaction() as session:
        session.enqueue_many(items)
    return items


@pytest.mark.parametrize(
    ("codec", "items"),
    [
        (codecs.BYTES, [b"", b"\x00\xff"]),
        (codecs.TEXT, ["", "naïve", "\U0001f600"]),
        (codecs.JSON, [None, True, 1.5, 2**70, "naïve", [1, [2]], {"a": {"b": None}}]),
        (codecs.MessagePack(), [None, 1, "a", b"b", [1, 2], {"a": 1}]),
        (codecs.UNSAFE_PICKLE, [None, {1, 2}, (1, 2), 1 + 2j]),
        (Numbers(), [0, 9, 5]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_items_come_out_as_they_went_in(tmp_path: Path, codec: codecs.Codec[Any], items: list[Any]) -> None:
    """Items come back equal through sessions, subscriptions, producers, browsing and peeking, singly and in batches,
    also after a reopening."""
    with PersistentQueue(tmp_path, "typed", codec=codec) as queue:
        with queue.transaction() as session:
            session.enqueue_many(items)
        with queue.session() as session:
            for item in items:
                session.enqueue(item)
            for item in items:
                session.enqueue_many([item])
            session.flush()
        audit = queue.subscribe("audit")
        with Producer(tmp_path, "typed", codec=codec) as producer:
            producer.enqueue(items[0])
            producer.enqueue_many(items[1:])
            producer.flush()
    with PersistentQueue(tmp_path, "typed", codec=codec) as queue:
        assert list(queue.browse()) == list(queue.browse_all()) == items * 4
        assert queue.peek(1) == items[:1]
        audit = queue.subscribe("audit")
        assert list(audit.browse()) == items * 4
        with audit.transaction() as session:
            assert session.dequeue_many(len(items)) == items
        with queue.transaction() as session:
            assert [session.dequeue() for _ in items] == items
            assert session.dequeue_many(100) == items * 3
            assert (session.dequeue(), session.dequeue_many(1)) == (None, [])


@pytest.mark.unwatched
@given(JSON_VALUES)
def test_json_says_whatever_json_can_say(value: Any) -> None:
    """Any JSON value is decoded to an equal value."""
    assert codecs.decode(codecs.JSON, codecs.encode(codecs.JSON, value)) == value


@pytest.mark.parametrize(
    ("codec", "item"),
    [
        (codecs.TEXT, b"bytes"),
        (codecs.TEXT, "\ud800"),
        (codecs.JSON, {1, 2}),
        (codecs.JSON, float("nan")),
        (codecs.MessagePack(), object()),
        (codecs.UNSAFE_PICKLE, lambda: None),
        (Numbers(), 10),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_encoded_is_not_in_the_session(tmp_path: Path, codec: codecs.Codec[Any], item: Any) -> None:
    """An item that cannot be encoded raises an error that has the item. Items enqueued before and after it are
    committed."""
    good = 1 if isinstance(codec, Numbers) else "good"
    with PersistentQueue(tmp_path, "typed", codec=codec) as queue, queue.session() as session:
        session.enqueue(good)
        with pytest.raises(CodecError, match="cannot encode") as caught:
            session.enqueue(item)
        assert caught.value.item is item
        assert caught.value.__cause__ is not None
        with pytest.raises(CodecError):
            session.enqueue_many([good, item])
        with pytest.raises(CodecError):
            session.enqueue_many(iter([item, good]))
        session.enqueue(good)
        session.flush()
        assert queue.peek(10) == [good, good]


@pytest.mark.parametrize(
    ("codec", "item", "reason"),
    [
        (codecs.JSON, {1, 2}, "TypeError: Object of type set"),
        (codecs.JSON, float("nan"), "ValueError: Out of range float"),
        (codecs.JSON, "\ud800", "ValueError: 'utf-8' codec"),
        (codecs.TEXT, b"bytes", "TypeError: expected text, not bytes"),
    ],
)
def test_an_item_of_another_kind_names_other_codecs(
    tmp_path: Path, codec: codecs.Codec[Any], item: Any, reason: str
) -> None:
    """The error for an item that JSON or text cannot hold names codecs that can, in a session and in a producer."""
    text = f"{reason}.*: to store other items, open the queue with codec=.*UNSAFE_PICKLE"
    with PersistentQueue(tmp_path, "typed", codec=codec) as queue, pytest.raises(CodecError, match=text):
        queue.session().enqueue(item)
    with Producer(tmp_path, "typed", codec=codec) as producer, pytest.raises(CodecError, match=text):
        producer.enqueue(item)


def test_bytes_are_as_they_are() -> None:
    """The codec ``BYTES`` encodes and decodes bytes to equal bytes."""
    assert codecs.decode(codecs.BYTES, codecs.encode(codecs.BYTES, b"ab")) == b"ab"


def test_an_encoder_must_give_bytes(tmp_path: Path) -> None:
    """A codec whose ``encode`` returns text raises ``CodecError`` before anything is buffered."""

    class Wrong(Numbers):
        def encode(self, item: int) -> bytes:
            return str(item)  # type: ignore[return-value]

    with PersistentQueue(tmp_path, "typed", codec=Wrong()) as queue, queue.session() as session:
        with pytest.raises(CodecError, match="encode must return bytes, not str"):
            session.enqueue(1)
        assert session.flush()
        assert len(queue) == 0


def test_what_cannot_be_decoded_is_told_once_it_comes(tmp_path: Path, raw: list[bytes]) -> None:
    """Items before an undecodable item are returned first. Then the error is raised alone and the item is held: a flush
    consumes it."""
    del raw
    with PersistentQueue(tmp_path, "numbers", codec=Numbers()) as queue, queue.session() as session:
        assert session.dequeue_many(10) == [0, 1]
        assert queue.stats().held == 2
        with pytest.raises(CodecError, match=r"Numbers cannot decode 1 byte: ValueError: invalid literal") as caught:
            session.dequeue_many(10)
        assert (caught.value.item, queue.stats().held) == (b"x", 3)
        assert session.dequeue() == 3
        with pytest.raises(CodecError):
            session.dequeue()
        session.flush()
        assert len(queue) == 0


def test_what_cannot_be_decoded_is_given_back(tmp_path: Path, raw: list[bytes]) -> None:
    """After a rollback an undecodable item is ready in its old place. An opening without the codec returns its
    bytes."""
    with PersistentQueue(tmp_path, "numbers", codec=Numbers()) as queue:
        with pytest.raises(CodecError), queue.transaction() as session:
            session.dequeue_many(2)
            session.dequeue()
        looked = queue.browse()
        assert [next(looked), next(looked)] == [0, 1]
        with pytest.raises(CodecError):
            next(looked)
        assert next(looked) == 3
    with PersistentQueue(tmp_path, "numbers") as queue:
        assert queue.peek(10) == raw


def test_what_is_behind_keeps_its_order(tmp_path: Path) -> None:
    """Items that a session took behind an undecodable item are ready again for all sessions, in order."""
    with PersistentQueue(tmp_path, "numbers") as bytes_queue, bytes_queue.transaction() as bytes_session:
        bytes_session.enqueue_many([*(b"%d" % n for n in range(6)), b"bad", b"7", b"8", b"9"])
    with (
        PersistentQueue(tmp_path, "numbers", codec=Numbers()) as queue,
        queue.session() as session,
        queue.session() as other,
    ):
        assert session.dequeue_many(2) == [0, 1]
        assert other.dequeue_many(2) == [2, 3]
        session.rollback()
        assert session.dequeue_many(10) == [0, 1, 4, 5]  # stops at the bad item and releases it and the rest
        assert queue.stats().held == 6
        assert len(queue) == 4
        other.rollback()
        assert other.dequeue_many(2) == [2, 3]
        with pytest.raises(CodecError):
            other.dequeue_many(10)
        assert session.dequeue_many(10) == [7, 8, 9]
        session.rollback()
        assert (session.dequeue_many(4), session.dequeue_many(10)) == ([0, 1, 4, 5], [7, 8, 9])
        other.rollback()
        session.rollback()


@pytest.mark.parametrize("codec", ["json", None, 3, codecs.MessagePack])
def test_what_is_no_codec_is_refused(tmp_path: Path, codec: Any) -> None:
    """A codec that is a name or an uncalled class is refused before anything is made."""
    with pytest.raises(TypeError, match="codec must be an object with encode and decode"):
        PersistentQueue(tmp_path, "typed", codec=codec)
    with pytest.raises(TypeError, match=r"persistentqueue\.codecs\.JSON"):
        Producer(tmp_path, "typed", codec=codec)
    assert list(tmp_path.iterdir()) == []


def test_message_pack_checks_types(tmp_path: Path) -> None:
    """``MessagePack(T)`` decodes items of type ``T``, and refuses stored items of another type."""

    @dataclass
    class Order:
        number: int
        price: float = 0.0

    with PersistentQueue(tmp_path, "typed", codec=codecs.MessagePack()) as anything, anything.transaction() as untyped:
        untyped.enqueue_many([{"number": 1, "price": 2.5}, {"number": "one"}])
    with PersistentQueue(tmp_path, "typed", codec=codecs.MessagePack(Order)) as queue, queue.session() as session:
        assert session.dequeue() == Order(1, 2.5)
        with pytest.raises(CodecError, match=r"Expected `int`, got `str` - at `\$.number`"):
            session.dequeue()
        session.flush()


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without msgspec the error names the extra to install."""
    imported = builtins.__import__

    def missing(name: str, *others: Any) -> Any:
        if name == "msgspec":
            raise ImportError(name)
        return imported(name, *others)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'persistentqueue\[msgpack\]'") as caught:
        codecs.MessagePack()
    assert caught.value.extra == "msgpack"


def test_queues_of_different_types_in_one_transaction(tmp_path: Path) -> None:
    """One transaction moves an item atomically between queues with different codecs."""
    with PersistentQueue(tmp_path, "a", codec=codecs.TEXT) as a, PersistentQueue(tmp_path, "b", codec=Numbers()) as b:
        with a.transaction() as session:
            session.enqueue("7")
        with transaction(a, b) as (source, target):
            text = source.dequeue()
            assert text is not None
            target.enqueue(int(text))
        assert (len(a), b.peek()) == (0, [7])


def test_codecs_are_shown_by_their_public_names() -> None:
    """The ``repr`` of a codec is its public name, without an address."""
    assert [repr(each) for each in (codecs.BYTES, codecs.TEXT, codecs.JSON, codecs.UNSAFE_PICKLE)] == [
        "codecs.BYTES",
        "codecs.TEXT",
        "codecs.JSON",
        "codecs.UNSAFE_PICKLE",
    ]


@pytest.mark.parametrize("codec", [codecs.BYTES, codecs.TEXT, codecs.JSON, codecs.UNSAFE_PICKLE], ids=repr)
def test_a_copy_of_a_named_codec_is_that_codec(tmp_path: Path, codec: codecs.Codec[Any]) -> None:
    """A named codec that was pickled or copied is the same object, and a queue knows ``BYTES`` then."""
    for again in (pickle.loads(pickle.dumps(codec)), copy.copy(codec), copy.deepcopy(codec)):
        assert again is codec
        if codec is codecs.BYTES:
            with PersistentQueue(tmp_path, "copied", codec=again) as queue, queue.transaction() as session:
                session.enqueue(memoryview(b"x"))


@pytest.mark.parametrize("codec", [codecs.MessagePack(list[int]), codecs.Enclosed(codecs.MessagePack(list[int]))])
def test_message_pack_is_pickled_with_its_type(codec: codecs.Codec[Any]) -> None:
    """A ``MessagePack`` that was pickled or copied checks the same type, also within ``Enclosed``."""
    for again in (pickle.loads(pickle.dumps(codec)), copy.copy(codec), copy.deepcopy(codec)):
        assert codecs.decode(again, codecs.encode(codec, [1, 2])) == [1, 2]
        with pytest.raises(CodecError, match="Expected `int`, got `str`"):
            codecs.decode(again, codecs.encode(again, ["one"]))


def test_text_is_text() -> None:
    """The error for bytes in a queue of texts says what was expected."""
    codec: codecs.Codec[Any] = codecs.TEXT
    with pytest.raises(CodecError, match="expected text, not bytes"):
        codecs.encode(codec, b"bytes")


class Narrow:
    """Codec whose ``decode`` lacks memory while ``left_bytes`` are too few."""

    left_bytes = 0

    def encode(self, item: bytes) -> bytes:
        return item

    def decode(self, data: bytes) -> bytes:
        if len(data) > self.left_bytes:
            raise MemoryError
        return data


def test_a_lack_of_memory_makes_no_dead_letter(tmp_path: Path) -> None:
    """If a codec lacks memory, the error has the cause, and advises to give the item back. Later it is decoded."""
    codec = Narrow()
    advice = r"decode 4 bytes: MemoryError: this process lacked memory, and the item may be intact.* by rollback\(\)"
    with PersistentQueue(tmp_path, "q", codec=codec, dead_letter="dead") as queue, queue.session() as session:
        session.enqueue(b"item")
        session.flush()
        for _ in range(2):
            with pytest.raises(CodecError, match=advice) as caught:
                session.dequeue()
            assert isinstance(caught.value.__cause__, MemoryError)
            assert "reject(error, retry=False)" not in str(caught.value)
            session.rollback()
        with pytest.raises(CodecError, match=r"MemoryError: this process lacked memory.* then read it again"):
            next(queue.browse())
        with pytest.raises(CodecError, match=advice) as caught:
            session.dequeue()
        session.reject(caught.value, retry=True)
        session.flush()
        codec.left_bytes = 4
        assert session.dequeue() == b"item"
        session.flush()
        assert len(queue.dead_letters) == 0


def test_a_lack_of_memory_in_other_interfaces(tmp_path: Path) -> None:
    """The queues of ``compat``, of ``aio`` and of worker processes give the same advice, and the item back."""
    codec = Narrow()

    async def get() -> bytes:
        async with aio.Queue(tmp_path / "a", codec=codec, dead_letter="dead") as queue:
            await queue.put(b"item")
        codec.left_bytes = 0
        async with aio.Queue(tmp_path / "a", codec=codec, dead_letter="dead") as queue:
            with pytest.raises(CodecError, match="lacked memory") as caught:
                await queue.get()
            assert isinstance(caught.value.__cause__, MemoryError)
            await queue.reject(caught.value)
            codec.left_bytes = 4
            return await queue.get()

    codec.left_bytes = 4
    assert asyncio.run(get()) == b"item"
    codec.left_bytes = 0
    for shared in (False, True):
        with compat.Queue(tmp_path / "c", codec=codec, shared=shared, dead_letter="dead") as queue:
            queue.put(b"item")
            with pytest.raises(CodecError, match="lacked memory") as caught:
                queue.get()
            queue.reject(caught.value)
            codec.left_bytes = 4
            assert queue.get() == b"item"
            queue.task_done()
            codec.left_bytes = 0
