"""The inbox of a queue that is full, busy, or handed what it cannot take: nobody waits for ever, and who can helps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from persistentqueue import CorruptionError
from persistentqueue.disk import DISK
from persistentqueue.publication import Draft, Part, TooManyPartsError

from .conftest import OpenQueue
from .support import drain, put

PRODUCER = f"{7:016x}"


def inbox(directory: Path) -> list[str]:
    """The names in the inbox, in order."""
    return sorted(os.listdir(directory / "inbox"))


# --- what does not fit a frame ---------------------------------------------------------------------------------------


def test_a_manifest_that_nobody_would_read(
    open_queue: OpenQueue, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who names more parts than an owner reads hears so, nothing is published, and fewer of them can be."""
    monkeypatch.setattr("persistentqueue.publication._FRAME_BYTES_MAX", 2000)
    queue = open_queue()
    draft = Draft(DISK, str(directory / "inbox"), PRODUCER, 5)
    parts = [Part(f"{n:016x}-{n:016x}.part", n, 100, 1, 50, 7) for n in range(40)]
    with pytest.raises(TooManyPartsError, match=r"40 parts .* 2000: publish fewer, larger parts"):
        draft.publish(None, 5, parts)
    assert drain(queue) == []
    assert draft.is_intact
    draft.publish(("app", 1), 6)
    assert drain(queue) == []
    assert queue.marker("app") == 1


@pytest.mark.damages
def test_more_items_than_the_bytes_have(open_queue: OpenQueue, directory: Path) -> None:
    """A file that counts more items than blocks of its length can have is damaged, and so is a manifest of a part that
    does; one with as many empty items as there can be is not."""
    queue = open_queue()
    path = str(directory / "inbox")
    for count, in_part in ((2**63 + 5, False), (65_537, False), (65_537, True)):
        draft = Draft(DISK, path, PRODUCER, 5)
        if in_part:
            draft.publish(None, 5, [Part(f"{5:016x}-{5:016x}.part", 5, 95, count, 95, 7)])
        else:
            draft.write([b""], 0, 0)
            draft._segment.ordinal = count
            draft.publish(None, 5)
        with queue.session() as session, pytest.raises(CorruptionError, match="a frame that enqueues"):
            session.dequeue()
    draft = Draft(DISK, path, PRODUCER, 6)
    draft.write([b""] * 65_536, 0, 0)
    draft.publish(None, 6)
    assert len(drain(queue)) == 65_536
    put(queue, b"x")
    assert drain(queue) == [b"x"]
