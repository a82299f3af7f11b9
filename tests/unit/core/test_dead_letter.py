"""The envelope of a dead letter: its content comes back unchanged, and other bytes are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue import DeadLetter, DeadLetterError, PersistentQueueError
from persistentqueue.core.dead_letter import LINE_BYTES_MAX

LETTER = DeadLetter(
    b"\0item\n", "orders", "", 7, 5, "ValueError: bad row", datetime(2026, 1, 2, 3, 4, 5, 6, timezone.utc)
)
LINE = (
    b'{"queue": "orders", "subscription": "", "sequence": 7, "attempts": 5, "reason": "ValueError: bad row", '
    b'"time": "2026-01-02T03:04:05.000006+00:00"}'
)


def test_an_envelope_is_a_line_and_the_item() -> None:
    """An envelope is one readable line, then the unchanged bytes of the item."""
    assert LETTER.encode() == LINE + b"\n\0item\n"
    assert DeadLetter.decode(LETTER.encode()) == LETTER


@given(st.binary(), st.text(max_size=100), st.text(max_size=1000), st.integers(0, 2**63), st.integers(0, 2**32))
def test_whatever_is_in_it_comes_out(item: bytes, subscription: str, reason: str, sequence: int, attempts: int) -> None:
    """Any item and any text come back unchanged, line feeds and characters above U+FFFF included; a text that is too
    long is cut."""
    letter = replace(LETTER, item=item, subscription=subscription, reason=reason, sequence=sequence, attempts=attempts)
    assert DeadLetter.decode(letter.encode()) == letter
    long = replace(letter, subscription="\U0001f40c" * 70_000, reason="\U0001f40c" * 70_000)
    found = DeadLetter.decode(long.encode())
    assert (len(found.subscription), len(found.reason), found.reason[-2:]) == (100, 1000, "\U0001f40c…")
    assert found.item == item


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"no envelope",
        b"[]\n",
        b"7\n",
        b"{}\n",
        b"\xff\n",
        b"[" * 10_000 + b"\n",
        b" " * LINE_BYTES_MAX + LINE + b"\n",
        *[json.dumps({**json.loads(LINE), **other}).encode() + b"\n" for other in (
            {"more": 1}, {"sequence": -1}, {"sequence": True}, {"attempts": "5"}, {"attempts": -1}, {"queue": None},
            {"time": "yesterday"}, {"time": "2026-01-02T03:04:05"}, {"time": 7},
        )],
    ],
)  # fmt: skip
def test_what_is_none_says_so(foreign: bytes) -> None:
    """Bytes that are no envelope raise ``DeadLetterError``, an error of this package, which says what was expected."""
    with pytest.raises(DeadLetterError, match="not a dead letter: expected a line") as caught:
        DeadLetter.decode(foreign)
    assert isinstance(caught.value, PersistentQueueError)
    assert isinstance(caught.value, ValueError)
