"""The protocol between an owner and its workers: each message arrives, however it is split, and nothing else does."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from persistentqueue.core.items import Alike
from persistentqueue.serving import protocol
from persistentqueue.serving.protocol import (
    FROM_OWNER,
    FROM_WORKER,
    HEADER_BYTES,
    ITEM_BYTES_MAX,
    JSON_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    Ahead,
    Browse,
    Call,
    Cancel,
    Done,
    End,
    Failed,
    Flush,
    GiveBack,
    Hello,
    Incoming,
    Mark,
    Message,
    Outcome,
    ProtocolError,
    Put,
    Reject,
    Result,
    RollBack,
    Take,
    Taken,
    Welcome,
    encode,
)

ALL = FROM_WORKER | FROM_OWNER
EMPTY_MOST = 20 if sys.abiflags != "t" else 22
"""Bytes of memory for each byte of a message of empty items. Objects are larger on a free-threaded Python."""
U8, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))
ITEMS = st.lists(st.binary(max_size=40), max_size=8)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = st.dictionaries(st.text(), PLAIN | st.lists(PLAIN) | st.dictionaries(st.text(), PLAIN))
MESSAGES: st.SearchStrategy[Any] = st.one_of(
    *(st.builds(kind, JSON) for kind in (Hello, Call, Welcome, Failed, Result)),
    st.builds(Take, U32, U32),
    st.builds(Put, ITEMS),
    st.builds(Flush, U64, U32, ITEMS),
    st.builds(Mark, U64, st.text()),
    st.builds(GiveBack, U32),
    st.builds(Ahead, U32, U32),
    st.just(RollBack()),
    st.builds(Outcome, U64),
    st.just(Cancel()),
    st.builds(Browse, U8),
    st.builds(Reject, U8, ITEMS),
    st.builds(Done, U8),
    st.builds(Taken, U8, ITEMS),
)
GOLDEN: list[tuple[Message, int, str]] = [
    (Hello({"versions": [1, 1]}), 1, "17000000" "01" "01000000" + b'{"versions":[1,1]}'.hex()),
    (Take(3, 250), 2, "0d000000" "02" "02000000" "03000000" "fa000000"),
    (Put([b"a", b"", b"bc"]), 3, "19000000" "03" "03000000" "03000000" "00" "01000000" "00000000" "02000000" "616263"),
    (Flush(7, 9, [b"x"]), 4, "1b000000" "04" "04000000" "0700000000000000" "09000000" "01000000" "01" "01000000" "78"),
    (Mark(5, "mä"), 0, "10000000" "05" "00000000" "0500000000000000" "6dc3a4"),
    (GiveBack(2), 5, "09000000" "06" "05000000" "02000000"),
    (RollBack(), 6, "05000000" "07" "06000000"),
    (Outcome(7), 7, "0d000000" "08" "07000000" "0700000000000000"),
    (Cancel(), 8, "05000000" "09" "08000000"),
    (Call({"call": "trim"}), 9, "14000000" "0a" "09000000" + b'{"call":"trim"}'.hex()),
    (Browse(1), 10, "06000000" "0b" "0a000000" "01"),
    (Reject(1, [b"i", b"why", b""]), 11, "1b0000000c0b000000" "01" "0300000000" "010000000300000000000000" "69776879"),
    (End(), 0, "05000000" "0d" "00000000"),
    (Ahead(1, 3), 0, "0d000000" "0e" "00000000" "01000000" "03000000"),
    (Welcome({}), 1, "07000000" "40" "01000000" + b"{}".hex()),
    (Done(1), 2**32 - 1, "06000000" "41" "ffffffff" "01"),
    (Taken(1, [b"a"]), 2, "10000000" "42" "02000000" "01" "01000000" "01" "01000000" "61"),
    (Failed({"a": "é"}), 3, "13000000" "43" "03000000" + b'{"a":"\\u00e9"}'.hex()),
    (Result({"result": None}), 4, "14000000" "44" "04000000" + b'{"result":null}'.hex()),
]  # fmt: skip


def fed(*chunks: bytes, kinds: Mapping[int, Any] = ALL) -> list[tuple[int, Message]]:
    """Return the messages in these chunks."""
    incoming = Incoming(kinds)
    return [message for chunk in chunks for message in incoming.feed(chunk)]


def raw(kind: int, rest: bytes, length_bytes: int | None = None) -> bytes:
    """Return a message with this kind and these bytes behind its header, however wrong they are."""
    return struct.pack("<IBI", len(rest) + 5 if length_bytes is None else length_bytes, kind, 1) + rest


@pytest.mark.unwatched
@given(MESSAGES, U32)
def test_each_message_arrives(message: Message, call: int) -> None:
    """A message is decoded as it was encoded, with the number of its call, and of the same type."""
    ((found_call, found),) = fed(encode(message, call))
    assert (found_call, found, type(found)) == (call, message, type(message))


@given(st.lists(st.tuples(MESSAGES, U32), min_size=1, max_size=4), st.data())
def test_messages_arrive_however_they_are_split(messages: list[tuple[Message, int]], data: st.DataObject) -> None:
    """Several messages in one chunk, and messages in chunks of any length, arrive whole and in order."""
    joined = b"".join(encode(message, call) for message, call in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(joined)), max_size=6)))
    chunks = [joined[start:end] for start, end in zip([0, *cuts], [*cuts, len(joined)], strict=True)]
    expected = [(call, message) for message, call in messages]
    assert fed(joined) == expected
    assert fed(*filter(None, chunks)) == expected


def test_messages_arrive_when_split_at_every_byte() -> None:
    """All kinds of messages in a row arrive, split once at any byte, and byte by byte."""
    joined = b"".join(encode(message, call) for message, call, _ in GOLDEN)
    expected = [(call, message) for message, call, _ in GOLDEN]
    for at in range(1, len(joined)):
        assert fed(joined[:at], joined[at:]) == expected
    assert fed(*(joined[at : at + 1] for at in range(len(joined)))) == expected


@pytest.mark.parametrize(("message", "call", "expected"), GOLDEN, ids=lambda each: type(each).__name__)
def test_the_bytes_of_each_message_stay(message: Message, call: int, expected: str) -> None:
    """The protocol is a format: these bytes are those of version 1, and stay."""
    assert encode(message, call).hex() == expected
    assert fed(bytes.fromhex(expected)) == [(call, message)]


def test_each_kind_has_a_golden_message() -> None:
    """Each kind of message is among the golden ones, and belongs to one direction."""
    assert {bytes.fromhex(expected)[4] for _, _, expected in GOLDEN} == ALL.keys()
    assert len(ALL) == len(FROM_WORKER) + len(FROM_OWNER)


@pytest.mark.parametrize(("message", "call", "expected"), GOLDEN, ids=lambda each: type(each).__name__)
def test_a_message_that_is_cut_raises(message: Message, call: int, expected: str) -> None:
    """A message whose length leaves out its last bytes raises, or is another message of its kind."""
    data = bytes.fromhex(expected)
    for length_bytes in range(len(data) - 4):
        cut = struct.pack("<I", length_bytes) + data[4 : 4 + length_bytes]
        try:
            found = fed(cut)
        except ProtocolError:
            continue
        assert not found or (found[0][1] != message and type(message) is Mark)


@pytest.mark.parametrize(
    "data",
    [
        raw(0, b""),
        raw(14, b""),
        raw(63, b""),
        raw(255, b"x" * 10),
        raw(7, b"x"),
        raw(9, bytes(4)),
        raw(2, bytes(9)),
        raw(8, bytes(7)),
        raw(3, b""),
        raw(3, b"\1\0\0"),
        raw(3, struct.pack("<IB", 2**32 - 1, 0)),
        raw(3, struct.pack("<IB", 2**32 - 1, 1)),
        raw(3, struct.pack("<IBI", 2**32 - 1, 1, 2**32 - 1)),
        raw(3, struct.pack("<IBI", 2**32 - 1, 1, 0)),
        raw(3, struct.pack("<IBI", 0, 1, 0)),
        raw(3, struct.pack("<IBI", 1, 2, 2) + b"ab"),
        raw(3, struct.pack("<IBI", 1, 1, 3) + b"ab"),
        raw(3, struct.pack("<IBI", 1, 0, 2**32 - 1)),
        raw(3, struct.pack("<IBI", 1, 0, 3) + b"ab"),
        raw(3, struct.pack("<IBI", 1, 0, 1) + b"ab"),
        raw(3, struct.pack("<IBII", 2, 0, 2**32 - 1, 2) + b"a"),
        raw(5, bytes(8) + b"\xff"),
        raw(1, b""),
        raw(1, b"{"),
        raw(1, b"[]"),
        raw(1, b"null"),
        raw(1, b"\xff\xfe"),
        raw(1, b'{"a":' + b"[" * 100_000),
        raw(1, b'{"a":' + b"9" * 10_000 + b"}"),
        raw(1, b" " * (JSON_BYTES_MAX + 1)),
        raw(7, b"", length_bytes=4),
        raw(7, b"", length_bytes=0),
        raw(3, b"", length_bytes=MESSAGE_BYTES_MAX - 3),
        raw(3, b"", length_bytes=2**32 - 1),
    ],
    ids=lambda data: data[:20].hex(),
)
def test_what_no_peer_sends_raises(data: bytes) -> None:
    """A message that is unknown, too long, too short or malformed raises ``ProtocolError``, alone or behind others."""
    good = encode(RollBack(), 1)
    for chunks in ([data], [good + data], [data[:1], data[1:]]):
        with pytest.raises(ProtocolError):
            fed(*chunks)


@pytest.mark.parametrize("kinds", [FROM_WORKER, FROM_OWNER], ids=["to the owner", "to a worker"])
def test_a_message_in_the_wrong_direction_raises(kinds: Mapping[int, Any]) -> None:
    """Each peer refuses the kinds that it sends itself."""
    for message, call, _ in GOLDEN:
        data = encode(message, call)
        if data[4] in kinds:
            assert fed(data, kinds=kinds) == [(call, message)]
        else:
            with pytest.raises(ProtocolError, match="never sends"):
                fed(data, kinds=kinds)


@given(st.binary(max_size=200) | st.builds(raw, st.sampled_from(sorted(ALL)), st.binary(max_size=100)))
@example(raw(3, struct.pack("<II", 1, 2**31) + b"x"))
def test_garbage_raises_nothing_else(data: bytes) -> None:
    """Any bytes are messages, or the beginning of one, or raise ``ProtocolError``."""
    incoming = Incoming(ALL)
    try:
        messages = incoming.feed(data)
    except ProtocolError:
        return
    assert all(type(message) in protocol._FORMS for _, message in messages)
    assert incoming.need_bytes <= MESSAGE_BYTES_MAX


@given(st.binary(max_size=200) | st.builds(raw, st.sampled_from(sorted(ALL)), st.binary(max_size=100)), st.data())
def test_bytes_mean_the_same_however_they_come(data: bytes, draw: st.DataObject) -> None:
    """Bytes that come at once are the messages that they are in two parts, or raise the same error."""
    at = draw.draw(st.integers(0, len(data)))
    found: list[object] = []
    for chunks in ([data], filter(None, [data[:at], data[at:]])):
        try:
            found.append(fed(*chunks, kinds=FROM_WORKER))
        except ProtocolError as error:
            found.append(str(error))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("data", "most"),
    [
        (raw(3, struct.pack("<IB", 2**32 - 1, 0), length_bytes=MESSAGE_BYTES_MAX - 4), 4096),
        (raw(3, struct.pack("<IB", 2**24 - 1, 0)), 4096),
        (raw(3, struct.pack("<IBI", 2**24 - 1, 1, 0)), 4096),
        (raw(3, struct.pack("<IBI", 1, 0, 2**32 - 1)), 4096),
        (raw(2, b"", length_bytes=MESSAGE_BYTES_MAX - 4), 4096),
        (raw(3, struct.pack("<IB", 200_000, 0) + bytes(800_000)), EMPTY_MOST * 800_000),
        (raw(3, struct.pack("<IBI", 100_000, 1, 8) + bytes(800_000)), 20 * 800_000),
        (raw(1, b'{"a":[' + b"[]," * 100_000 + b"0]}"), 40 * 300_000),
        (raw(3, struct.pack("<IBI", 1, 0, 2_000_000) + bytes(2_000_000)), 3 * 2_000_000),
    ],
    ids=["announced", "count", "no lengths", "length", "long take", "empty items", "equal items", "json", "one item"],
)
def test_memory_is_taken_for_what_came(data: bytes, most: int) -> None:
    """A message takes no more memory than a small multiple of its bytes, whatever it announces."""
    incoming = Incoming(ALL)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        with suppress(ProtocolError):
            incoming.feed(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before <= most


def test_bytes_that_trickle_in_take_no_more_memory() -> None:
    """A message that comes byte by byte takes no more memory while it waits than its bytes."""
    incoming, data = Incoming(ALL), encode(Put([bytes(100_000)]), 1)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for at in range(len(data) - 1):
            assert incoming.feed(data[at : at + 1]) == []
        waiting, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert waiting - before <= 2 * len(data)
    assert incoming.feed(data[-1:]) == [(1, Put([bytes(100_000)]))]


def test_bytes_that_wait_are_counted() -> None:
    """A reader knows how many bytes the message under way needs, and joins them once."""
    incoming = Incoming(ALL)
    data = encode(Put([b"x" * 1000]), 1)
    assert incoming.need_bytes == HEADER_BYTES
    assert incoming.feed(data[:5]) == []
    assert incoming.need_bytes == HEADER_BYTES
    assert incoming.feed(data[5:HEADER_BYTES]) == []
    assert incoming.need_bytes == len(data)
    assert incoming.feed(data[HEADER_BYTES:-1]) == []
    assert incoming.feed(data[-1:] + data[:3]) == [(1, Put([b"x" * 1000]))]
    assert incoming.feed(data[3:]) == [(1, Put([b"x" * 1000]))]


def test_what_is_too_long_is_not_sent() -> None:
    """A message that no peer takes raises ``ValueError`` where it is made. The longest item is sent."""
    assert len(encode(Flush(1, 0, [bytes(ITEM_BYTES_MAX)]), 1)) <= MESSAGE_BYTES_MAX
    with pytest.raises(ValueError, match="exceeds the maximum"):
        encode(Put([bytes(MESSAGE_BYTES_MAX)]), 1)
    with pytest.raises(ValueError, match="exceeds the maximum"):
        encode(Call({"call": "x" * JSON_BYTES_MAX}), 1)


def test_the_order_of_bytes_is_that_of_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of the other byte order swaps the lengths of items, in both directions."""
    monkeypatch.setattr(protocol, "_IS_BIG_ENDIAN", not protocol._IS_BIG_ENDIAN)
    data = encode(Put([b"ab", b"c"]), 1)
    assert data[HEADER_BYTES + 5 : HEADER_BYTES + 9] == struct.pack(">I", 2)
    assert fed(data) == [(1, Put([b"ab", b"c"]))]


@pytest.mark.parametrize("count", [1, 2, 4096, 4097, 9000])
def test_items_of_one_length_are_cut_apart(count: int) -> None:
    """Items of one length have that length once, however many there are."""
    items = [b"%07d" % number for number in range(count)]
    data = encode(Put(items), 1)
    assert len(data) == HEADER_BYTES + 9 + 7 * count
    assert fed(data) == [(1, Put(items))]


@given(ITEMS | st.integers(0, 3).flatmap(lambda length: st.lists(st.binary(min_size=length, max_size=length))))
def test_the_length_of_items_is_measured_once(items: list[bytes]) -> None:
    """Items of a message are known to have one length only if they have it, and if they are several. A message of such
    items has the bytes of one that measures them."""
    data, lengths = encode(Put(items), 1), {len(item) for item in items}
    ((_, found),) = fed(data)
    assert isinstance(found, Put)
    assert isinstance(found.items, Alike) == (len(items) > 1 and len(lengths) == 1 and lengths != {0})
    assert not isinstance(found.items, Alike) or lengths == {found.items.each_bytes}
    assert encode(found, 1) == data
    if len(lengths) == 1:
        assert encode(Put(Alike(items, *lengths)), 1) == data
