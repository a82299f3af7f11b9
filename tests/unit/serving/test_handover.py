"""The file by which an owner hands over held items: each list of holds comes back whole, and nothing else does."""

from __future__ import annotations

import errno
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue.core.checksum import crc32
from persistentqueue.serving.handover import Handover, KeptHold, decode_holds, encode_holds, place_of
from persistentqueue.serving.protocol import CONNECTION_BYTES, JSON_BYTES_MAX
from persistentqueue.storage.layout import HOLDS_NAME
from persistentqueue.system.byte_locks import LockFile
from persistentqueue.system.disk import DISK

RUNS = st.lists(st.tuples(st.integers(0, 2**62), st.integers(1, 2**61)), min_size=1, max_size=5)
HOLDS = st.builds(
    KeptHold,
    st.binary(min_size=CONNECTION_BYTES, max_size=CONNECTION_BYTES),
    st.integers(0, 2**32),
    st.text(max_size=9),
    st.text(max_size=9),
    st.text(max_size=9),
    st.text(max_size=300),
    st.none() | st.floats(1e-3, 1e9),
    RUNS,
)
HOLD = KeptHold(b"0123456789abcdef", 1, "process", "thread", "name", "subscription", 2.5, [(3, 4), (9, 1)])


def file_of(body: object) -> bytes:
    """Return a file with this json, and a checksum that fits."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return struct.pack("<8sII", b"PQ-HOLDS", len(data), crc32(data)) + data


def fields_of(hold: KeptHold, **others: Any) -> dict[str, Any]:
    """Return the fields of the hold in the file, with others."""
    return {**hold._asdict(), "connection": hold.connection.hex(), **others}


@given(st.lists(HOLDS, max_size=4), st.binary(max_size=9))
def test_holds_come_back(holds: list[KeptHold], rest: bytes) -> None:
    """The holds that were written are read, also in front of what a longer file has left."""
    found = decode_holds(encode_holds(holds) + rest)
    assert found == holds
    assert [each.held for each in found] == [sum(count for _, count in each.runs) for each in holds]


@given(st.lists(HOLDS, min_size=1, max_size=3), st.data())
def test_a_torn_file_has_no_holds(holds: list[KeptHold], data: st.DataObject) -> None:
    """Neither a part of a file nor one with a changed bit is believed."""
    whole = encode_holds(holds)
    assert decode_holds(whole[: data.draw(st.integers(0, len(whole) - 1))]) == []
    flipped, bit = bytearray(whole), data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped[bit // 8] ^= 1 << bit % 8
    assert decode_holds(bytes(flipped)) == []


@given(st.binary(max_size=200))
def test_other_bytes_have_no_holds(data: bytes) -> None:
    """Bytes of any kind have none, with a checksum that fits or without, and raise nothing."""
    assert decode_holds(data) == decode_holds(file_of(data)) == []


MALFORMED: list[Any] = [
    None,
    1,
    {},
    [1],
    [[]],
    [{}],
    [fields_of(HOLD, connection="00")],
    [fields_of(HOLD, connection="x" * 32)],
    [fields_of(HOLD, connection=1)],
    [fields_of(HOLD, process="1")],
    [fields_of(HOLD, process=True)],
    [fields_of(HOLD, name=1)],
    [fields_of(HOLD, thread=None)],
    [fields_of(HOLD, process_name=[])],
    [fields_of(HOLD, subscription=1)],
    [fields_of(HOLD, hold_seconds=0)],
    [fields_of(HOLD, hold_seconds="1")],
    [fields_of(HOLD, hold_seconds=float("nan"))],
    [fields_of(HOLD, runs=[])],
    [fields_of(HOLD, runs=None)],
    [fields_of(HOLD, runs=[[1]])],
    [fields_of(HOLD, runs=[[1, 0]])],
    [fields_of(HOLD, runs=[[-1, 2]])],
    [fields_of(HOLD, runs=[[1.0, 2]])],
    [fields_of(HOLD, runs=[[2**63 - 2, 3]])],
    [fields_of(HOLD), fields_of(HOLD, runs=[[1, -1]])],
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_fields_that_no_owner_writes_have_no_holds(body: object) -> None:
    """A file with one malformed hold has none at all."""
    assert decode_holds(file_of(body)) == []


def test_fields_of_later_versions_are_passed_over() -> None:
    """A later version may add fields."""
    assert decode_holds(file_of([fields_of(HOLD, further=1)])) == [HOLD]


def test_a_file_has_a_longest_length(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A hold that the file has no room for is left out, and the others are there."""
    many = HOLD._replace(connection=bytes(16), runs=[(2**40 + 2 * at, 1) for at in range(JSON_BYTES_MAX // 17)])
    (tmp_path / HOLDS_NAME).touch()
    handover = Handover(DISK, str(tmp_path))
    assert handover.leave([many]) == set()
    assert handover.take() == []
    assert handover.leave([many, HOLD]) == {HOLD.connection}
    assert handover.take() == [HOLD]
    assert "no room for the holds of 1 sessions" in caplog.text


def test_a_file_is_filled(tmp_path: Path) -> None:
    """Holds that fill the file are all there, and one byte more leaves one out."""
    (tmp_path / HOLDS_NAME).touch()
    handover = Handover(DISK, str(tmp_path))
    half_bytes = JSON_BYTES_MAX // 2 - len(json.dumps(fields_of(HOLD._replace(name="")), separators=(",", ":"))) - 2
    holds = [HOLD._replace(connection=bytes([each] * 16), name="n" * half_bytes) for each in range(2)]
    assert len(handover.leave(holds)) == 2
    assert len(handover.take()) == 2
    holds[0] = holds[0]._replace(name="n" * (half_bytes + 1))
    assert len(handover.leave(holds)) == 1


def test_holds_are_taken_once(tmp_path: Path) -> None:
    """The next owner reads them and empties the file. It sees which sessions are still there."""
    handover = Handover(DISK, str(tmp_path))
    assert (handover.take(), handover.present([HOLD.connection])) == ([], set())
    assert handover.leave([HOLD]) == set()  # no session has made the file
    assert handover.leave([]) == set()
    locks = LockFile(str(tmp_path), HOLDS_NAME)
    assert locks.lock(place_of(HOLD.connection))
    assert handover.leave([HOLD])
    assert handover.take() == [HOLD]
    assert (handover.take(), (tmp_path / HOLDS_NAME).read_bytes()) == ([], b"")
    assert handover.present([HOLD.connection, bytes(16)]) == {HOLD.connection}
    locks.abandon()
    assert handover.present([HOLD.connection]) == set()


def test_a_session_that_cannot_be_seen_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a free descriptor, an owner gives nothing back, and takes nothing from the file."""

    def lacking(*_: object) -> int:
        raise OSError(errno.EMFILE, "none is free")

    locks = LockFile(str(tmp_path), HOLDS_NAME)
    assert locks.lock(0)
    assert Handover(DISK, str(tmp_path)).leave([HOLD])
    handover = Handover(replace(DISK, open=lacking), str(tmp_path))
    assert handover.present([HOLD.connection]) == {HOLD.connection}
    assert handover.take() == []
    assert "could not be taken" in caplog.text
    assert Handover(DISK, str(tmp_path)).take() == [HOLD]
    locks.abandon()
