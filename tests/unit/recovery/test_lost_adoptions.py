"""Published files whose adoption stands in a damaged frame: the file proves it, or is adopted again."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import (
    PersistentQueue,
    Producer,
    repair,
)
from persistentqueue.interprocess.multi_writer import PartWriter, publish_parts
from persistentqueue.storage.publication import read_publication
from persistentqueue.system.disk import DISK
from tests.support.disks import call_on
from tests.support.queues import crash, drain, flip, log_file, put, put_each, segment_files

from .test_repair import taken_out
from .test_replay import replay_of

ITEMS = [b"%03d " % number * 50 for number in range(60)]
SETTINGS = {"segment_bytes": 4096, "inline_bytes": 0, "log_bytes": 65536}

pytestmark = pytest.mark.damages


def adopted(
    tmp_path: Path,
    *,
    renames: bool,
    parts: bool = False,
    consumed: int = 2,
    behind: bool = True,
    outrun: bool = False,
) -> Path:
    """Make a queue whose owner was killed behind an adoption of ``p0`` and ``p1``, and return its path.

    The owner has put ``own`` before and, if asked, ``later`` behind, and has consumed the first items. If asked, the
    marker of the published files was ``outrun`` by that of ``later``. Without ``renames`` there was no room for the new
    names of the published files.
    """
    path = tmp_path / "queue"

    def rename(source: str, target: str) -> None:
        if not renames and "/inbox/" in source and "/data/" in target:
            raise OSError(errno.ENOSPC, "No space left on device")
        DISK.rename(source, target)

    def work() -> None:
        queue = PersistentQueue(path, **SETTINGS)  # type: ignore[arg-type]
        put(queue, b"own")
        marker = ("marker", 7) if consumed < 3 else None
        if parts:
            written = []
            for item in (b"p0", b"p1"):
                part = PartWriter(path)
                part.write([item])
                written.append(part.end())
            publish_parts(path, None, [part for part in written if part is not None], marker)
        else:
            with Producer(path) as producer:
                producer.enqueue_many([b"p0", b"p1"])
                producer.flush(marker)
        with queue.session() as session:
            for item in (b"own", b"p0", b"p1"):
                assert session.dequeue(timeout=10.0) == item
            session.rollback()
        with queue.transaction() as session:
            session.dequeue_many(consumed)
        if behind:
            with queue.session() as session:
                session.enqueue(b"later")
                session.flush(("marker", 8) if outrun else None)
        crash(queue)

    call_on(replace(DISK, rename=rename), work)
    assert bool([*(path / "inbox").iterdir()]) is not renames
    return path


def adoption_of(path: Path) -> tuple[int, int]:
    """Return the offsets of the frame that has adopted files, and of the last name in it."""
    frame = next(frame for frame in replay_of(path).frames if "Adoption" in str(frame.transactions))
    return frame.offset, log_file(path).read_bytes().index(b".seg", frame.offset)


@pytest.mark.parametrize(("consumed", "behind"), [(0, True), (2, True), (3, True), (2, False), (3, False)])
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("renames", [False, True])
def test_a_lost_adoption_that_its_file_proves(
    tmp_path: Path, renames: bool, parts: bool, consumed: int, behind: bool
) -> None:
    """The items of a published file stay in their place if its adoption stands in a damaged frame, and consumed ones do
    not come again. They came twice, or were set aside with a renamed file."""
    path = adopted(tmp_path, renames=renames, parts=parts, consumed=consumed, behind=behind)
    flip(log_file(path), adoption_of(path)[0] + 12)
    report = repair(path)
    assert report.lost == () and not [problem for problem in report.problems if "adopted" in problem]
    with PersistentQueue(path) as queue:
        assert consumed == 3 or queue.marker("marker") == 7
    assert taken_out(path) == [b"own", b"p0", b"p1", b"later"][consumed : 4 if behind else 3]


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("renames", [False, True])
@pytest.mark.parametrize("damage", ["name", "sequence", "kind", "page"])
def test_a_lost_adoption_without_a_proof(tmp_path: Path, renames: bool, parts: bool, damage: str) -> None:
    """A published file that a lost frame may have adopted is adopted again, and the report says so. No item is lost."""
    path = adopted(tmp_path, renames=renames, parts=parts)
    frame, name = adoption_of(path)
    if damage == "page":
        with log_file(path).open("r+b") as log:
            log.seek(frame)
            log.write(bytes(name + 4 - frame))
    else:
        offset, mask = {"name": (0, 64), "sequence": (4 + 1, 64), "kind": (4, 2)}[damage]
        flip(log_file(path), name + offset, mask)
    report = repair(path)
    assert report.lost == ((2, 1),)
    (problem,) = [problem for problem in report.problems if "adopted" in problem]
    assert problem.startswith(
        f"{path / 'inbox'}: 1 published file may have been adopted by a lost frame: the items come"
    )
    assert taken_out(path) == [b"later", b"p0", b"p1"]
    assert repair(path).problems == ()


@pytest.mark.parametrize("damage", ["segment", "sequence"])
def test_a_lost_adoption_with_numbers_that_no_queue_can_have(tmp_path: Path, damage: str) -> None:
    """Numbers of a damaged frame that cannot be encoded prove nothing. The repair raised an error of ``struct``."""
    path = adopted(tmp_path, renames=False, parts=True)
    _, name = adoption_of(path)
    with log_file(path).open("r+b") as log:
        # Before the name stand the segment, the salt, the capacity, and the length of the name. Behind it, the kind.
        log.seek(name + 5 if damage == "sequence" else name - 33 - 2 - 24)
        log.write(bytes([0 if damage == "segment" else 255]) * 8)
    assert any("1 published file may have been adopted" in problem for problem in repair(path).problems)
    assert taken_out(path) == [b"later", b"p0", b"p1"]


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("consumed", [1, 2])
@pytest.mark.parametrize("renames", [False, True])
def test_a_lost_adoption_whose_marker_was_outrun(tmp_path: Path, renames: bool, parts: bool, consumed: int) -> None:
    """A file of a lost adoption is kept if a later frame has recorded a higher version of its marker. It counted as
    repeated, and was deleted."""
    path = adopted(tmp_path, renames=renames, parts=parts, consumed=consumed, outrun=True)
    flip(log_file(path), adoption_of(path)[1])
    report = repair(path)
    assert report.lost == (((1, 2),) if consumed == 1 else ((2, 1),))
    assert any("1 published file may have been adopted by a lost frame" in problem for problem in report.problems)
    with PersistentQueue(path) as queue:
        assert queue.marker("marker") == 8
    assert taken_out(path) == [b"later", b"p0", b"p1"]
    assert repair(path).problems == ()


def test_a_file_that_an_earlier_repair_has_set_aside_is_not_adopted(tmp_path: Path) -> None:
    """A part is adopted again from the file of its segment, and not from a copy that was set aside beside it."""
    path = adopted(tmp_path, renames=True, parts=True, outrun=True)
    flip(log_file(path), adoption_of(path)[1])
    first, second, manifest = segment_files(path)[1:]
    for file in (second, manifest):
        file.rename(path / "inbox" / read_publication(DISK, str(file)).name)
    kept = path / "data" / f"{first.name}.damaged"
    kept.write_bytes(first.read_bytes())
    flip(kept, first.read_bytes().index(b"p0"))
    report = repair(path)
    assert any("1 published file may have been adopted by a lost frame" in problem for problem in report.problems)
    assert kept.exists()
    assert taken_out(path) == [b"later", b"p0", b"p1"]
    assert repair(path).problems == ()


@pytest.mark.parametrize("renamed", ["first part", "manifest"])
def test_a_lost_adoption_that_was_outrun_and_renamed_in_part(tmp_path: Path, renamed: str) -> None:
    """The files of a manifest are found again where they are: some in the inbox, and some among the segments."""
    path = adopted(tmp_path, renames=True, parts=True, outrun=True)
    flip(log_file(path), adoption_of(path)[1])
    first, second, manifest = segment_files(path)[1:]
    for file in (first, second, manifest):
        if file is not {"first part": first, "manifest": manifest}[renamed]:
            file.rename(path / "inbox" / read_publication(DISK, str(file)).name)
    report = repair(path)
    assert any("1 published file may have been adopted by a lost frame" in problem for problem in report.problems)
    assert taken_out(path) == [b"later", b"p0", b"p1"]
    assert [*(path / "inbox").iterdir()] == []
    assert repair(path).problems == ()


def test_a_file_that_is_repeated_behind_a_lost_frame(tmp_path: Path) -> None:
    """A file whose marker was recorded before the first lost frame is repeated: its items do not come, and the report
    does not announce them."""
    path = tmp_path / "queue"
    queue = PersistentQueue(path, **SETTINGS)  # type: ignore[arg-type]
    with queue.session() as session:
        session.enqueue(b"own")
        session.flush(("marker", 8))
    put_each(queue, ITEMS[:3])
    crash(queue)
    flip(log_file(path), replay_of(path).frames[3].offset + 50)
    with Producer(path) as producer:
        producer.enqueue(b"p0")
        producer.flush(("marker", 8))
    report = repair(path)
    assert report.lost == ((2, 1),) and not [problem for problem in report.problems if "adopted" in problem]
    assert taken_out(path) == [b"own", ITEMS[0], ITEMS[2]]


def test_a_lost_adoption_of_parts_without_their_manifest(tmp_path: Path) -> None:
    """If their manifest is damaged, the parts of a lost adoption stay among the segments, under other names: in the
    inbox they would be swept when they are old."""
    path = adopted(tmp_path, renames=True, parts=True)
    flip(log_file(path), adoption_of(path)[1])
    *parts, manifest = segment_files(path)[1:]
    flip(manifest, 20)
    report = repair(path)
    assert {f"data/{file.name}.damaged" for file in (*parts, manifest)} <= {*report.kept}
    assert [*(path / "inbox").iterdir()] == []
    assert taken_out(path) == [b"later"]


def test_an_opening_keeps_the_parts_of_a_damaged_manifest(tmp_path: Path) -> None:
    """An opening that drops an adoption as a torn tail sets its parts aside if their manifest is damaged. They went
    back to the inbox, where they were swept when they were old."""
    path = adopted(tmp_path, renames=True, parts=True, consumed=0, behind=False)
    flip(log_file(path), adoption_of(path)[0] + 12)
    *parts, manifest = segment_files(path)[1:]
    flip(manifest, 20)
    with PersistentQueue(path) as queue:
        assert drain(queue) == [b"own"]
    assert [*(path / "inbox").iterdir()] == []
    assert all(file.with_name(f"{file.name}.damaged").exists() for file in (*parts, manifest))


def test_a_lost_adoption_whose_manifest_was_not_renamed(tmp_path: Path) -> None:
    """The parts of a lost adoption go back to the inbox if their manifest is still there."""
    path = adopted(tmp_path, renames=True, parts=True)
    flip(log_file(path), adoption_of(path)[1])
    manifest = segment_files(path)[-1]
    manifest.rename(path / "inbox" / read_publication(DISK, str(manifest)).name)
    (problem,) = [problem for problem in repair(path).problems if "adopted" in problem]
    assert "1 published file" in problem
    assert taken_out(path) == [b"later", b"p0", b"p1"]


def test_a_file_that_a_lost_frame_did_not_adopt(tmp_path: Path) -> None:
    """A file with more items than lost frames have enqueued was not adopted there: the report is silent about it."""
    path = tmp_path / "queue"
    queue = PersistentQueue(path, **SETTINGS)  # type: ignore[arg-type]
    put_each(queue, ITEMS[:3])
    crash(queue)
    flip(log_file(path), replay_of(path).frames[2].offset + 50)
    with Producer(path) as producer:
        producer.enqueue_many([b"p0", b"p1"])
        producer.flush()
    report = repair(path)
    assert report.lost == ((1, 1),) and not [problem for problem in report.problems if "adopted" in problem]
    assert taken_out(path) == [ITEMS[0], ITEMS[2], b"p0", b"p1"]
