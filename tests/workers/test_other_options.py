"""A process that connects learns which of its options have no effect, since the owner of the queue has others."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import Encryption, Options, OtherOptionsWarning, PersistentQueue, connect
from persistentqueue.options import relied_on, without_effect
from persistentqueue.workers import SharedQueue

from ..conftest import QueueFactory


def join(queue: PersistentQueue, **options: Any) -> SharedQueue[bytes]:
    """Connect to the queue as another process does."""
    return connect(queue.path, queue.name, serve="never", lock_timeout=0.2, **options)


def warned(queue: PersistentQueue, **options: Any) -> list[str]:
    """Return the warnings of a connection with these options, and of what it does."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with join(queue, **options) as shared, shared.transaction() as session:
            session.enqueue(b"1")
    assert {each.category for each in caught} <= {OtherOptionsWarning}
    assert all(each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_attempts": 3, "dead_letter": "d"}, "dead_letter='d' (owner: None)"),
        ({"retry_delay_seconds": lambda attempts: 2.0**attempts}, "retry_delay_seconds='a callable' (owner: 0.0)"),
        ({"max_items": 9}, "max_items=9 (owner: 5)"),
        ({"max_bytes": 900}, "max_bytes=900 (owner: None)"),
        ({"full": "block"}, "full='block' (owner: 'raise')"),
        ({"wipe": True}, "wipe=True (owner: False)"),
        ({}, "sync=True (owner: False)"),
    ],
)
def test_an_option_without_effect_is_told(open_queue: QueueFactory, options: dict[str, Any], told: str) -> None:
    """An option that has no effect is told once for a connection, with the value of the owner and with what to do."""
    queue = open_queue(serve=True, max_items=5, sync=False)
    (text,) = warned(queue, **options)
    assert told in text
    assert text.startswith(f"{queue.path}{os.sep}{queue.name}: these options of this process have no effect")
    assert text.endswith("open the queue with the same options in all processes")


@pytest.mark.parametrize("options", [{"max_items": 5, "wipe": True}, {}, {"memory_bytes": 0, "segment_bytes": 4096}])
def test_the_same_options_are_no_news(open_queue: QueueFactory, options: dict[str, Any]) -> None:
    """Options that are the owner's, defaults, and those that only change how quick a queue is, give no warning."""
    assert warned(open_queue(serve=True, max_items=5, wipe=True), **options) == []


def test_recorded_limits_are_those_of_the_owner(open_queue: QueueFactory) -> None:
    """An owner that keeps recorded limits has them, so that a worker that passes the same ones gets no warning."""
    open_queue("q", max_items=7).close()
    queue = open_queue("q", serve=True, keep_limits=True)
    assert warned(queue, max_items=7) == []
    assert "max_items=8 (owner: 7)" in warned(queue, max_items=8)[0]


def test_a_queue_without_fan_out_is_told(open_queue: QueueFactory) -> None:
    """A worker that passes ``fan_out`` learns that the queue was made without it: its plain queue keeps all items."""
    assert "fan_out=True (owner: False)" in warned(open_queue("plain", serve=True), fan_out=True)[0]
    open_queue("named", fan_out=True).close()
    assert warned(open_queue("named", serve=True), fan_out=True) == []  # a later opening need not pass it


def test_segments_elsewhere_are_told(open_queue: QueueFactory, tmp_path: Path) -> None:
    """A worker that passes ``data_path`` learns that the segments are elsewhere, unless a link leads to them."""
    media, link = tmp_path / "media", tmp_path / "link"
    link.symlink_to(media)
    queue = open_queue("away", serve=True, data_path=media)
    assert warned(queue, data_path=media) == warned(queue, data_path=link) == warned(queue) == []
    (text,) = warned(queue, data_path=tmp_path / "other")
    assert f"data_path={str(tmp_path / 'other' / 'away')!r} (owner: {str(media / 'away')!r})" in text
    queue = open_queue("here", serve=True)
    assert warned(queue, data_path=queue.path) == []
    (text,) = warned(queue, data_path=media)
    assert f"data_path={str(media / 'here')!r} (owner: {queue.data_path!r})" in text


def test_encryption_of_the_owner(open_queue: QueueFactory) -> None:
    """A worker with a key learns that the owner stores the items in the clear. The text does not have the key."""
    pytest.importorskip("cryptography")
    encryption = Encryption("k", lambda _key_id: b"0123456789abcdef")
    (text,) = warned(open_queue(serve=True), encryption=encryption)
    assert "encryption='a key' (owner: None)" in text


def test_a_warning_that_is_an_error_ends_the_connection(open_queue: QueueFactory) -> None:
    """If a filter makes an error of the warning, ``connect`` raises it, and nothing stays connected."""
    queue = open_queue(serve=True)
    with pytest.raises(OtherOptionsWarning, match="max_items=3"):
        join(queue, max_items=3)
    assert queue.connections() == []


def test_a_later_owner_with_other_options(open_queue: QueueFactory) -> None:
    """A worker is warned again if a later owner of the queue has still other options, and not if it has the same."""
    queue = open_queue("q", serve=True)
    with pytest.warns(OtherOptionsWarning, match="max_items=3 .owner: None."):
        shared = join(queue, max_items=3)
    with shared:
        queue.close()
        queue = open_queue("q", serve=True)
        assert len(shared) == 0
        queue.close()
        queue = open_queue("q", serve=True, max_items=4)
        with pytest.warns(OtherOptionsWarning, match="max_items=3 .owner: 4."):
            assert len(shared) == 0


def test_an_owner_of_an_older_version_tells_no_options() -> None:
    """An owner that does not tell an option causes no warning of it."""
    assert without_effect(Options(max_items=3, wipe=True), {}) == []
    assert without_effect(Options(max_items=3, wipe=True), {"wipe": False}) == ["wipe=True (owner: False)"]


def test_an_open_dead_letter_queue(tmp_path: Path) -> None:
    """An open queue for dead letters may be the named one of the other process, and is more than none."""
    named = Options(dead_letter="dead")
    with PersistentQueue(tmp_path, "dead") as dead:
        given = Options(dead_letter=dead)
        assert without_effect(named, relied_on(given)) == without_effect(given, relied_on(named)) == []
        told = ["dead_letter='an open queue' (owner: None)"]
        assert without_effect(given, relied_on(Options())) == told
        assert without_effect(named, relied_on(Options(dead_letter="other"))) == ["dead_letter='dead' (owner: 'other')"]
