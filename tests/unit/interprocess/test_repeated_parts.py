"""Parts that two manifests name, and parts that keep their names in the inbox: their items come once."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue.interprocess import multi_writer
from persistentqueue.interprocess.multi_writer import publish_parts
from persistentqueue.storage.publication import is_part
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.queues import drain
from tests.unit.interprocess.test_multi_writer import ALL, LISTS, inbox, publish


def without_room(names: list[str]) -> Disk:
    """Return a disk that has no room for the new name of a part, as often as ``names`` has an element."""

    def rename(source: str, target: str) -> None:
        if names and is_part(os.path.basename(source)):
            names.pop()
            raise OSError(errno.ENOSPC, "No space left on device", target)
        DISK.rename(source, target)

    return replace(DISK, rename=rename)


def test_a_part_that_keeps_its_name_is_not_published_again(open_queue: QueueFactory, directory: Path) -> None:
    """If the system has no room for the new name of an adopted part, its manifest stays beside it. So a call that is
    repeated publishes nothing, and deletes nothing."""
    queue = open_queue(disk=without_room(["the first part"]))
    parts = publish(directory, *LISTS, marker=("app", 1))
    queue._open()._look(insists=True)
    assert len(queue) == len(ALL) and len(inbox(directory)) == len(LISTS) + 1
    assert publish_parts(directory, None, parts, ("app", 1)) is False
    assert drain(queue) == ALL
    queue.close()
    assert inbox(directory) == []


@pytest.mark.damages
@pytest.mark.parametrize("marker", [("app", 1), None])
@pytest.mark.parametrize("keeps_name", [False, True])
def test_parts_that_two_manifests_name_come_once(
    open_queue: QueueFactory, directory: Path, keeps_name: bool, marker: tuple[str, int] | None
) -> None:
    """If two publishers of the same parts do not see each other, the items come once. So they do if an adopted part
    keeps its name for lack of room. With a marker the second manifest is skipped; without one it is reported."""
    queue = open_queue(disk=without_room(["the first part"] * keeps_name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multi_writer, "_waiting_version", lambda *_: None)
        parts = publish(directory, *LISTS, marker=marker)
        assert publish_parts(directory, None, parts, marker)
    if marker is None:
        queue._open()._look(insists=True)
        (error,) = queue._open()._store.inbox.damage
        assert "it is gone, or was published before" in str(error)
        queue._open()._store.inbox.damage.clear()
    assert drain(queue) == ALL
    assert drain(queue) == []
    queue.close()
    assert len(inbox(directory)) == (marker is None)
    assert len(drain(open_queue())) == 0


def test_parts_that_are_gone_do_not_count_for_the_limit(open_queue: QueueFactory, directory: Path) -> None:
    """The second manifest of adopted parts takes no room of ``max_disk_bytes``. Each one took that of its parts until
    the next opening."""
    queue = open_queue(max_disk_bytes=100 * 1024 * 1024)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multi_writer, "_waiting_version", lambda *_: None)
        parts = publish(directory, *LISTS, marker=("app", 1))
        assert publish_parts(directory, None, parts, ("app", 1))
    assert drain(queue) == ALL
    quota = queue._open()._store.inbox._quota
    assert [path for path in quota._files if not os.path.exists(path)] == []
