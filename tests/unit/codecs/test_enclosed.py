"""Items in envelopes: the format, round trips, changed bytes, bounds, keys, threads, forks and pickles."""

from __future__ import annotations

import copy
import os
import pickle
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast
from zlib import crc32

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue import CodecError, CorruptionError, Encryption, ItemTooLargeError, MissingExtraError, WrongKeyError
from persistentqueue.codecs import BYTES, JSON, Enclosed, decode, encode
from persistentqueue.codecs.enclosed_item import FRONT_BYTES, decode_item, encode_item
from persistentqueue.core import encryption as core_encryption
from persistentqueue.core.block import ENCRYPTED, BlockHeader, decode_envelope
from persistentqueue.core.encryption import OF_ITEMS, Envelopes

KEYS = {name: (name * 32).encode()[:32] for name in ("k", "new")}
TEXT = b"an item of text, as there are many; " * 9


def find_key(key_id: str) -> bytes:
    """Return a key, as a function of a module that looks it up."""
    return KEYS[key_id]


K = Encryption("k", find_key)
WAYS: dict[str, Enclosed[bytes]] = {
    "plain": Enclosed(),
    "compressed": Enclosed(compression="zstd"),
    "encrypted": Enclosed(encryption=K),
    "both": Enclosed(compression="zstd", encryption=K),
}
ways = pytest.mark.parametrize("way", WAYS)


def nonce(data: bytes) -> tuple[bytes, int]:
    """Return the salt and the counter of an encrypted item."""
    header = BlockHeader(data[1], 1, 0, 0, len(data) - FRONT_BYTES, 0, 0)
    envelope, _ = decode_envelope(data[FRONT_BYTES:], header, 0, "")
    return envelope.salt, envelope.counter


def forged(flags: int, body: bytes, version: int = 1) -> bytes:
    """Return an envelope with a correct checksum and any content."""
    front = struct.pack("<BB", version, flags)
    return front + struct.pack("<I", crc32(front + body)) + body


# --- the format ------------------------------------------------------------------------------------------------------


def test_example_of_the_document() -> None:
    """The worked example of the format is what the code writes and reads, byte by byte."""
    source = SimpleNamespace(getpid=os.getpid, forks=int, urandom=bytes)
    envelopes = Envelopes(None, K, purpose=OF_ITEMS)
    data = encode_item(b"a", envelopes.encloser(source))
    shown = sys.modules[encode_item.__module__].__doc__ or ""
    example = shown.rpartition("::")[2]
    assert data == bytes.fromhex(example.replace("\n", " "))
    assert WAYS["encrypted"].decode(data) == b"a"


def test_the_other_kinds_of_bodies() -> None:
    """A plain body is the length and the item. A compressed one has the raw length before a zstd frame."""
    data = WAYS["plain"].encode(b"abc")
    assert data == forged(1, bytes.fromhex("03000000") + b"abc")
    data = WAYS["compressed"].encode(TEXT)
    assert data[:2] == bytes([1, 1 | 4])
    assert data[6:14] == (len(TEXT) + 4).to_bytes(8, "little")
    assert zstandard.decompress(data[14:]) == len(TEXT).to_bytes(4, "little") + TEXT


@ways
@given(item=st.one_of(st.binary(), st.binary(max_size=20).map(lambda part: part * 50), st.just(TEXT)))
def test_any_item_comes_back(way: str, item: bytes) -> None:
    """Any bytes come back, and compression makes no item longer."""
    data = WAYS[way].encode(item)
    assert WAYS[way].decode(data) == item
    over = FRONT_BYTES + 4 + (8 + 16 + 8 + 1 + 1 + 16 if data[1] & ENCRYPTED else 0)
    assert len(data) <= len(item) + over


@pytest.mark.unwatched
@given(item=st.recursive(st.none() | st.integers() | st.text(), st.lists))
def test_items_of_an_inner_codec_come_back(item: Any) -> None:
    """The envelope contains what the inner codec makes of an item."""
    codec = Enclosed(JSON, compression="zstd", encryption=K)
    assert codec.decode(codec.encode(item)) == item


def test_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that is longer than the library takes at once has several nonces, and no later item has one of them."""
    monkeypatch.setattr(core_encryption, "PIECE_BYTES", 96)
    codec = Enclosed(encryption=K)
    first, second = codec.encode(bytes(1000)), codec.encode(bytes(1000))
    assert codec.decode(first) == codec.decode(second) == bytes(1000)
    (salt, counter), (other_salt, other_counter) = nonce(first), nonce(second)
    assert (salt, counter, other_salt, other_counter) == (other_salt, 0, salt, 11)


# --- changed bytes ---------------------------------------------------------------------------------------------------


@ways
def test_each_flip_and_each_cut_is_an_error(way: str) -> None:
    """An item with any bit changed, or cut at any byte, raises ``CorruptionError``, and a queue raises
    ``CodecError``."""
    data = WAYS[way].encode(b"0123456789" * 12)
    changed = [data[:length] for length in range(len(data))]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        changed.append(bytes(flipped))
    for each in changed:
        with pytest.raises(CorruptionError):
            WAYS[way].decode(each)
    with pytest.raises(CodecError, match="Enclosed cannot decode"):
        decode(WAYS[way], changed[-1])


@pytest.mark.parametrize("way", ["encrypted", "both"])
def test_each_change_with_a_right_checksum_is_an_error(way: str) -> None:
    """A changed byte of an encrypted item never gives other bytes, also if its checksum is made to fit."""
    data = WAYS[way].encode(b"0123456789" * 12)
    kinds = set()
    for at in (1, *range(FRONT_BYTES, len(data))):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises((CorruptionError, WrongKeyError, ItemTooLargeError)) as caught:
                WAYS[way].decode(forged(flipped[1], bytes(flipped[FRONT_BYTES:])))
            kinds.add(caught.type)
    assert kinds == {CorruptionError, WrongKeyError, ItemTooLargeError}


@pytest.mark.parametrize(
    ("flags", "body", "version"),
    [
        (1, b"", 1),
        (1, b"\x02\x00\x00\x00a", 1),
        (1, b"\x01\x00\x00\x00a", 2),
        (0, b"\x01\x00\x00\x00a", 1),
        (2, b"\x01\x00\x00\x00a", 1),
        (1 | 16, b"\x01\x00\x00\x00a", 1),
        (1 | 8, bytes(7), 1),
        (1 | 8, bytes(20), 1),
        (1 | 4, struct.pack("<Q", 3) + zstandard.compress(b"abc"), 1),
        (1 | 4, struct.pack("<Q", 8) + zstandard.compress(b"abc"), 1),
        (1 | 4, struct.pack("<Q", 8) + b"no frame", 1),
    ],
)
def test_forged_envelopes(flags: int, body: bytes, version: int) -> None:
    """An envelope that no writer makes is refused, although its checksum is correct."""
    with pytest.raises(CorruptionError):
        WAYS["compressed"].decode(forged(flags, body, version))


def test_with_a_key_nothing_in_the_clear_is_accepted() -> None:
    """A codec with a key refuses plain and compressed items, which any program could have made."""
    for way in ("plain", "compressed"):
        data = WAYS[way].encode(TEXT)
        with pytest.raises(CorruptionError, match="expected an encrypted item"):
            WAYS["both"].decode(data)
        assert WAYS["plain"].decode(data) == TEXT


def test_an_item_is_no_block() -> None:
    """The key of an item is derived for another use than the key of a block."""
    data = WAYS["encrypted"].encode(b"a")
    assert decode_item(data, Envelopes(None, K, purpose=OF_ITEMS), 10, must_be_encrypted=True) == b"a"
    with pytest.raises(WrongKeyError, match="its checksum is correct"):
        decode_item(data, Envelopes(None, K), 10, must_be_encrypted=True)


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_longest_item() -> None:
    """An item at the bound passes in both directions; a longer one is refused in both."""
    codec, wider = Enclosed(max_item_bytes=10), Enclosed(compression="zstd")
    assert codec.decode(codec.encode(bytes(10))) == bytes(10)
    with pytest.raises(CodecError, match="max_item_bytes=10"):
        encode(codec, bytes(11))
    for item in (bytes(11), bytes(100_000)):
        with pytest.raises(ItemTooLargeError, match=f"{len(item)} bytes"):
            codec.decode(wider.encode(item))


def test_bomb_is_refused_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that would grow beyond the bound, or that claims more than a frame can hold, is never decompressed."""
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(100 * 2**20))
    assert len(bomb) < 20_000
    monkeypatch.delattr(zstandard, "ZstdDecompressor")
    with pytest.raises(ItemTooLargeError, match="exceeds the maximum of 67108864"):
        WAYS["plain"].decode(forged(1 | 4, struct.pack("<Q", 100 * 2**20) + bomb))
    monkeypatch.undo()
    with pytest.raises(CorruptionError, match="a zstd frame of 5 bytes"):
        WAYS["plain"].decode(forged(1 | 4, struct.pack("<Q", 5) + bomb))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"codec": dict}, TypeError),
        ({"compression": "zip"}, ValueError),
        ({"encryption": "key"}, TypeError),
        ({"max_item_bytes": 1.5}, TypeError),
        ({"max_item_bytes": -1}, ValueError),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    """Arguments of a wrong type or range are refused at once."""
    with pytest.raises(error):
        Enclosed(**arguments)


def test_what_an_inner_codec_refuses() -> None:
    """An error of the inner codec comes out as the cause of a ``CodecError``, and so does a result of no bytes."""
    with pytest.raises(CodecError, match="not JSON serializable"):
        encode(Enclosed(JSON), {1})
    with pytest.raises(CodecError, match="must return bytes, not bytearray"):
        encode(Enclosed(BYTES), cast(bytes, bytearray(b"a")))
    with pytest.raises(CodecError, match="JSONDecodeError"):
        decode(Enclosed(JSON), Enclosed().encode(b"{"))


# --- keys and packages -----------------------------------------------------------------------------------------------


def test_keys_are_changed_by_their_ids() -> None:
    """A codec with a new key still reads items of the old one, and a codec without the new key says so."""
    old, new = Enclosed(encryption=K), Enclosed(encryption=Encryption("new", find_key))
    assert [new.decode(codec.encode(b"item")) for codec in (old, new)] == [b"item", b"item"]
    only_old = Enclosed(encryption=Encryption("k", {"k": KEYS["k"]}.__getitem__))
    with pytest.raises(WrongKeyError, match=r"an item needs it: key\(\) raised KeyError\('new'\)") as caught:
        decode(only_old, new.encode(b"item"))
    assert (caught.value.key_id, caught.value.file, caught.value.offset) == ("new", None, None)


def test_missing_and_wrong_keys_are_no_codec_errors() -> None:
    """Without the key, or with another one, ``decode`` raises ``WrongKeyError``, which says what to do."""
    data = Enclosed(encryption=K).encode(b"item")
    with pytest.raises(WrongKeyError, match=r"no key was given; nothing is lost.*pass an encryption="):
        decode(Enclosed(), data)
    other = Enclosed(encryption=Encryption("k", lambda key_id: bytes(32)))
    with pytest.raises(WrongKeyError, match="another key was given, or the item was changed on purpose"):
        decode(other, data)
    with pytest.raises(WrongKeyError, match=r"the key 'lost'.*KeyError"):
        Enclosed(encryption=Encryption("lost", find_key))


def test_a_codec_without_its_key_encodes_nothing() -> None:
    """The error of a codec that lacks a key or a package while it encodes is not wrapped."""

    class Locked:
        """Codec that has lost its key."""

        def encode(self, item: bytes) -> bytes:
            raise WrongKeyError("k", f"the key for {len(item)} bytes is lost")

        def decode(self, data: bytes) -> bytes:
            return data

    with pytest.raises(WrongKeyError, match="1 bytes is lost"):
        encode(Locked(), b"a")


def test_a_key_is_asked_for_once_in_a_process() -> None:
    """``key`` is called once for each id: at the beginning for the key to write with."""
    asked = []

    def key(key_id: str) -> bytes:
        asked.append(key_id)
        return KEYS[key_id]

    codec = Enclosed(encryption=Encryption("k", key))
    assert asked == ["k"]
    new = Enclosed(encryption=Encryption("new", find_key))
    for _ in range(3):
        codec.decode(codec.encode(b""))
        codec.decode(new.encode(b""))
    assert asked == ["k", "new"]


def test_derived_keys_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader derives the key of a writer once, and keeps few of them, however many writers there were."""
    derived: list[bytes] = []
    derive = core_encryption._derive

    def counting(key: bytes, salt: bytes, purpose: bytes) -> Any:
        derived.append(salt)
        return derive(key, salt, purpose)

    monkeypatch.setattr(core_encryption, "_derive", counting)
    reader: Enclosed[bytes] = Enclosed(encryption=K)
    writers: list[Enclosed[bytes]] = [Enclosed(encryption=K) for _ in range(200)]
    for writer in writers:
        assert [reader.decode(writer.encode(item)) for item in (b"one", b"two")] == [b"one", b"two"]
    assert len(derived) == 2 * len(writers)  # one by the writer, and one by the reader
    assert 0 < len(reader._envelopes._ciphers) <= core_encryption._CIPHERS_MAX


@pytest.mark.parametrize(("package", "way"), [("zstandard", "compressed"), ("cryptography", "encrypted")])
def test_missing_package(package: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a package, the codec cannot be made to write, and reading raises ``MissingExtraError``."""
    data = WAYS[way].encode(TEXT)
    for name in [each for each in sys.modules if each.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match="pip install"):
        Enclosed(compression="zstd" if way == "compressed" else None, encryption=K if way == "encrypted" else None)
    with pytest.raises(MissingExtraError, match="pip install"):
        decode(Enclosed(), data)


def test_what_is_shown_has_no_key() -> None:
    """The text of a codec names the id of the key, and not the key."""
    assert repr(WAYS["both"]) == "<codecs.Enclosed(codecs.BYTES), compression 'zstd', encryption with key 'k'>"
    assert repr(WAYS["plain"]) == "<codecs.Enclosed(codecs.BYTES), compression None>"


# --- nonces ----------------------------------------------------------------------------------------------------------


def test_no_nonce_twice_in_many_threads() -> None:
    """Threads that share a codec never share a nonce, and all items come back."""
    codec = Enclosed(JSON, encryption=K)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(codec.encode, range(4000)))
        assert list(pool.map(codec.decode, found)) == list(range(4000))
    assert len(set(map(nonce, found))) == 4000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_nonce_twice_after_a_fork() -> None:
    """A forked child draws a salt of its own, and parent and child read the items of each other."""
    codec: Enclosed[bytes] = Enclosed(encryption=K)
    before = codec.encode(b"before")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # pragma: no cover - another process
        try:
            os.write(writing, codec.encode(codec.decode(before)))
        finally:
            os._exit(0)
    os.close(writing)
    of_child = os.read(reading, 4096)
    os.close(reading)
    assert os.waitpid(child, 0)[1] == 0
    after = codec.encode(b"after")
    assert codec.decode(of_child) == b"before"
    assert nonce(before)[0] == nonce(after)[0] != nonce(of_child)[0]
    assert (nonce(before)[1], nonce(after)[1], nonce(of_child)[1]) == (0, 1, 0)


def test_an_interrupted_encode_gives_its_nonces_up() -> None:
    """After an error while an item is encrypted, its nonces are not used again."""
    codec: Enclosed[bytes] = Enclosed(encryption=K)
    first = codec.encode(b"first")
    (writer,) = codec._idle
    encoder: Any = writer.__self__  # type: ignore[attr-defined]
    cipher = encoder._cipher

    def fail(*_arguments: object) -> bytes:
        raise KeyboardInterrupt

    encoder._cipher = SimpleNamespace(encrypt=fail)
    with pytest.raises(KeyboardInterrupt):
        codec.encode(b"interrupted")
    encoder._cipher = cipher
    assert codec._idle == []
    codec._idle.append(writer)
    assert [nonce(first)[1], nonce(codec.encode(b"next"))[1]] == [0, 2]


# --- pickles ---------------------------------------------------------------------------------------------------------


def test_pickle_has_no_keys_and_no_nonces() -> None:
    """A pickled codec works in another process, finds its key there, and draws another salt."""
    codec = Enclosed(JSON, compression="zstd", encryption=K, max_item_bytes=100)
    data = codec.encode([1])
    pickled = pickle.dumps(codec)
    assert KEYS["k"] not in pickled
    for again in (pickle.loads(pickled), copy.copy(codec), copy.deepcopy(codec)):
        assert again.decode(data) == [1]
        assert nonce(again.encode([1]))[0] != nonce(data)[0]
        assert repr(again) == repr(codec)
        with pytest.raises(ItemTooLargeError):
            again.encode("x" * 99)


@pytest.mark.parametrize(
    "key",
    [KEYS.__getitem__, SimpleNamespace(find=find_key).find.__call__, lambda key_id: KEYS[key_id]],
    ids=["method of a dictionary", "wrapper", "lambda"],
)
def test_keys_are_never_pickled(key: Any) -> None:
    """An encryption whose function could carry keys with it cannot be pickled, neither alone nor in a codec."""
    encryption = Encryption("k", key)
    for each in (encryption, Enclosed(encryption=encryption)):
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)) as caught:
            pickle.dumps(each)
        if caught.type is TypeError:
            assert "which may have keys in it" in str(caught.value)
    assert pickle.loads(pickle.dumps(K)) == K
