"""Row 20: the participants of a transaction over several queues are known by their identities.

A copy of a queue is never taken for the original, and never takes its segments.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import DataPathError, PersistentQueue, Producer, check, delete_queue, move_data, repair
from persistentqueue.core.operations import Decision
from persistentqueue.errors import CopiedQueueError, InDoubtError
from persistentqueue.interprocess.multi_writer import PartWriter
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import crash, put
from tests.unit.engine.test_two_phase import contents, move, operations
from tests.unit.recovery.test_in_doubt import in_doubt


def test_row_20_a_participant_is_put_aside_and_a_new_one_has_its_name(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A participant in doubt that was put aside learns that its transaction is committed. A new queue under its name
    took part in other transactions meanwhile."""
    path = tmp_path / "queues"
    a, _ = in_doubt(open_queue, True)
    (path / "b").rename(tmp_path / "aside")
    with open_queue("b") as new:
        put(a, b"2", b"3")
        move(a, new)
        move(a, new)
        a.trim()
        assert contents(new) == [[b"2", b"3"]]
    (path / "b").rename(tmp_path / "new")
    (tmp_path / "aside").rename(path / "b")
    b = open_queue("b")
    assert b.recovery.resolved is True
    assert contents(a, b) == [[], [b"1"]]


@pytest.mark.damages
def test_row_20_a_coordinator_that_met_the_new_one_alone(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A coordinator that was opened while another queue had its participant's name reports afterwards that the outcome
    is lost. ``repair`` then drops the transaction in doubt."""
    path = tmp_path / "queues"
    a, _ = in_doubt(open_queue, True)
    crash(a)
    (path / "b").rename(tmp_path / "aside")
    with open_queue("b") as new:
        put(new, b"other")
    a = open_queue("a")
    put(a, b"2")
    a.trim()
    (path / "b").rename(tmp_path / "new")
    (tmp_path / "aside").rename(path / "b")
    with pytest.raises(InDoubtError, match="has forgotten it") as caught:
        open_queue("b")
    assert caught.value.lost
    assert any("the transaction was dropped" in problem for problem in repair(path, "b").problems)


def test_row_20_a_log_says_who_took_part(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A decision has the identity of each participant, in its own frame and behind each checkpoint."""
    a, b, c = open_queue("a"), open_queue("b"), open_queue("c")
    put(a, b"1", b"2")
    move(a, b)
    move(a, c)
    found = [each for each in operations(tmp_path / "queues", "a") if isinstance(each, Decision)]
    assert [(each.participants, each.queues) for each in found] == [
        (("b",), (bytes.fromhex(b.identity),)),
        (("c",), (bytes.fromhex(c.identity),)),
    ]
    a.trim()
    state = a._open()._store.state
    kept = [each for each in state.supplement() if isinstance(each, Decision)]
    assert kept == found


def test_row_20_a_copy_is_refused_beside_the_other(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A copy is refused beside its original, open or not, until ``repair`` gives it an identity of its own. Then both
    have their items, and take part in transactions."""
    path = tmp_path / "queues"
    a, target = open_queue("a"), open_queue("target")
    put(a, b"1")
    a.close()
    shutil.copytree(path / "a", path / "copy")
    with open_queue("a") as a:
        before = a.identity
        with pytest.raises(CopiedQueueError) as caught:
            open_queue("copy")
    assert (caught.value.path, caught.value.other) == (str(path / "copy"), str(path / "a"))
    for _ in range(2):
        with pytest.raises(CopiedQueueError):
            open_queue("copy")
    with pytest.raises(CopiedQueueError):
        repair(path, "copy")
    assert repair(path, "copy", renew=True).problems == ()
    a, copy = open_queue("a"), open_queue("copy")
    assert a.identity == before != copy.identity
    move(a, target)
    move(copy, target)
    assert contents(a, copy, target) == [[], [], [b"1", b"1"]]
    identity = copy.identity
    copy.close()
    assert open_queue("copy").identity == identity, "for ever"


def test_row_20_a_copy_is_refused_while_another_process_has_the_other(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A copy is refused while another process has the original open."""
    path = tmp_path / "queues"
    with open_queue("a") as a:
        put(a, b"1")
    shutil.copytree(path / "a", path / "copy")
    open_queue("a")
    code = "import sys; from persistentqueue import PersistentQueue as Q, CopiedQueueError as E\n"
    code += "try: Q(sys.argv[1], 'copy')\nexcept E as error: print(error.other)"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{path / 'a'}\n"
    shutil.rmtree(path / "copy")


def test_row_20_a_copy_that_is_alone_is_looked_at_once(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A copy without its original beside it opens, and its neighbours are listed only once. The neighbours of a
    directory that was only renamed are never listed."""
    path, listed = tmp_path / "queues", list[str]()

    def listdir(name: str) -> list[str]:
        listed.append(name)
        return DISK.listdir(name)

    disk = replace(DISK, listdir=listdir)
    with open_queue("a") as a:
        put(a, b"1")
    with open_queue("other") as other:
        put(other, b"2")
    (path / "a").rename(path / "b")
    open_queue("b", disk=disk).close()
    assert str(path) not in listed
    shutil.copytree(path / "b", path / "c")
    shutil.rmtree(path / "b")
    open_queue("c", disk=disk).close()
    assert listed.count(str(path)) == 1
    with open_queue("c", disk=disk) as queue:
        assert queue.peek(9) == [b"1"]
    assert listed.count(str(path)) == 1


def test_row_20_neighbours_that_cannot_be_read_are_no_originals(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A neighbour that is not a queue, is damaged, or may not be listed does not keep a copy from being opened."""
    path = tmp_path / "queues"
    with open_queue("a") as a:
        put(a, b"1")
    shutil.copytree(path / "a", path / "copy")
    (path / "a").rename(tmp_path / "away")
    (path / "file").touch()
    (path / "current").symlink_to("copy")
    (path / "no queue" / "log").mkdir(parents=True)
    (path / "no queue" / "log" / "000000000001.log").write_bytes(b"nothing of the kind")

    def listdir(name: str) -> list[str]:
        if name == str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return DISK.listdir(name)

    open_queue("copy", disk=replace(DISK, listdir=listdir)).close()
    (path / "copy" / "lock").write_bytes(b"{}")
    with open_queue("copy") as copy:
        assert copy.peek(9) == [b"1"]
    shutil.rmtree(path / "no queue")


@pytest.mark.parametrize("beside", [True, False])
def test_a_copy_takes_no_segments_of_the_original(tmp_path: Path, open_queue: QueueFactory, beside: bool) -> None:
    """A copied directory whose segments are on other media is neither opened, repaired, moved nor deleted by its name
    alone. The segments may belong to the original, which stays untouched."""
    path, media = tmp_path / "queues", tmp_path / "media"
    with open_queue("a", data_path=media) as a:
        put(a, b"1", b"2")
    above = path if beside else tmp_path / "backup"
    shutil.copytree(path / "a", above / "copy")
    calls: list[Callable[[], object]] = [
        lambda: open_queue("copy", path=above),
        lambda: repair(above, "copy"),
        lambda: repair(above, "copy", renew=True),
        lambda: repair(above, "copy", renew=True, data_path=media),
        lambda: move_data(above, "copy", data_path=None),
        lambda: delete_queue(above, "copy"),
    ]
    for call in calls * 2:
        with pytest.raises((DataPathError, CopiedQueueError)) as caught:
            call()
        assert not isinstance(caught.value, DataPathError) or str(media / "a") in str(caught.value)
    with open_queue("a") as a:
        assert contents(a) == [[b"1", b"2"]]
    shutil.rmtree(above / "copy")


def test_a_copy_with_segments_of_its_own(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A copy of the directory and of its segments is opened with the path of these, and is a queue of its own."""
    path, media = tmp_path / "queues", tmp_path / "media"
    with open_queue("a", data_path=media) as a:
        put(a, b"1", b"2")
    shutil.copytree(path / "a", path / "copy")
    shutil.copytree(media / "a", tmp_path / "other" / "copy")
    assert repair(path, "copy", renew=True, data_path=tmp_path / "other").problems == ()
    with open_queue("a") as a, open_queue("copy") as copy:
        assert copy.data_path == str(tmp_path / "other" / "copy")
        assert copy.clear() == 2
        copy.trim()
        assert contents(a, copy) == [[b"1", b"2"], []]
    delete_queue(path, "copy")
    with open_queue("a") as a:
        assert contents(a) == [[b"1", b"2"]]


def test_a_restored_queue_names_its_segments_once(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A queue whose original is gone opens with the path of its segments, and from then on without it."""
    path, media = tmp_path / "queues", tmp_path / "media"
    with open_queue("a", data_path=media) as a:
        put(a, b"1")
    (path / "a").rename(tmp_path / "gone")  # and not deleted: its lock keeps its inode, and the copy gets another one
    shutil.copytree(tmp_path / "gone", path / "a")
    with pytest.raises(DataPathError, match="if the original is gone, open this one once with data_path="):
        open_queue("a")
    open_queue("a", data_path=media).close()
    with open_queue("a") as a:
        assert contents(a) == [[b"1"]]
    with pytest.raises(DataPathError, match=r"those of a copy, .* which was opened with their path"):
        open_queue(None, path=tmp_path / "gone")
    (path / "a" / "lock").unlink()  # by a person: the next opening makes another one
    for _ in range(2):
        open_queue("a").close()
    shutil.rmtree(tmp_path / "gone")


def test_a_copy_never_uses_the_segments_of_its_original(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A copy without segments of its own is not sound, gets no items, and is not opened with those of its original."""
    path, media, copy = tmp_path / "queues", tmp_path / "media", tmp_path / "backup" / "a"
    with open_queue("a", data_path=media) as a:
        put(a, b"1")
    shutil.copytree(path / "a", copy)
    (problem,) = check(copy).problems
    assert f"a copy, or a queue that was moved, with its segments at {media / 'a'}" in problem
    assert f"data_path={str(media)!r} and the name 'a' (or data_path={str(media / 'a')!r} without a name)" in problem
    for call in (Producer, PartWriter):
        with pytest.raises(DataPathError, match="copy the segments, too"):
            call(copy)
    with pytest.raises(DataPathError, match=f"found the queue in {path / 'a'}: copy the segments, too"):
        open_queue("a", path=tmp_path / "backup", data_path=media)
    with pytest.raises(DataPathError, match="copy the segments, too"):
        repair(copy, renew=True, data_path=media / "a")
    with open_queue("a") as a:
        assert contents(a) == [[b"1"]]
    shutil.rmtree(copy)


def test_a_copy_with_segments_of_its_own_is_renewed_at_any_time(tmp_path: Path, open_queue: QueueFactory) -> None:
    """Once a copy has segments of its own, it is repaired with or without their path, also after a refused opening."""
    path, media = tmp_path / "queues", tmp_path / "media"
    with open_queue("a", data_path=media) as a:
        put(a, b"1")
    for root in (path, media):
        shutil.copytree(root / "a", root / "trial")
    with pytest.raises(CopiedQueueError, match="run repair --renew on the copy"):
        open_queue("trial", data_path=media)
    for data_path in (media, None, media):
        assert repair(path, "trial", renew=True, data_path=data_path).items == 1
    with open_queue("trial") as trial, open_queue("a") as a:
        assert trial.data_path != a.data_path
        assert contents(trial) == contents(a) == [[b"1"]]


def test_a_queue_that_was_made_only_half_is_no_copy(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A new queue on other media whose maker was killed opens without its ``data_path``."""

    class KilledError(BaseException):
        pass

    for stop in range(1, 40):
        path, left = tmp_path / str(stop), [stop]

        def failpoint(_name: str, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise KilledError

        try:
            call_on(
                replace(DISK, failpoint=failpoint), PersistentQueue, path, "q", data_path=tmp_path / f"media{stop}"
            ).close()
        except KilledError:
            open_queue("q", path=path).close()
        else:
            break
    assert stop > 3
