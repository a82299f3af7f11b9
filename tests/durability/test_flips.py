"""Damage with few cases: bits flipped, files cut, formats mutated; and tests that the campaigns find planted faults.

The full campaigns take long, so they are commands: ``python -m tests.crash --help``.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from persistentqueue.engine.reader import Reader
from persistentqueue.storage import log_reader, segment
from persistentqueue.storage.segment import Segment
from tests.crash import damage, flips, fuzz
from tests.crash.content import Content
from tests.crash.exploring import ViolationError
from tests.crash.images import image

_RIGHT = damage.Expected("right", Content())


def _nothing(*arguments: object) -> None:
    """Return None, in place of a check that finds faults."""


def test_every_bit_of_a_closed_queue() -> None:
    """A flip in a sealed log is refused; one in a data file costs the live items of its block, and no others."""
    report = flips.flip_sealed(4096)
    assert report.cases > 2 * 8 * 4096
    assert report.refused > 8 * 4096
    assert report.damaged > 8 * 2048 and report.items_lost > report.damaged
    assert report.right > 0 and report.torn == report.forged == 0


def test_every_bit_of_what_is_compressed_and_encrypted() -> None:
    """A flip in a compressed and encrypted block costs its live items, and no others."""
    report = flips.flip_enclosed(2048)
    assert report.damaged > 8 * 1024 and report.items_lost > report.damaged
    assert report.right > 0 and report.refused == report.torn == report.forged == 0


def test_every_bit_of_a_killed_owners_log() -> None:
    """A flip before the last group is refused; one in the last group costs that group, and is reported."""
    report = flips.flip_unsealed(1024)
    assert report.refused > 8 * 900
    assert report.torn > 8 * 100
    assert report.cases == report.refused + report.torn + report.right > 8 * 1024


def test_every_cut() -> None:
    """Each cut or longer file leads to an exact prefix that is reported, a refusal, or the loss of only the cut
    blocks."""
    report = flips.cut(400)
    assert min(report.refused, report.torn, report.damaged) > 200
    assert report.cases > 4000


def test_mutations() -> None:
    """Mutations that know the formats lead to an answer or to a documented error, and to a queue that repairs."""
    report = fuzz.fuzz(250)
    assert report.cases == 250
    assert min(report.refused, report.damaged, report.forged) > 5


@pytest.mark.parametrize(
    ("number", "story"),
    [
        (34, "blocks whose ordinals repeat made two extents of the same items"),
        (84, "a log whose extents contradict each other got past the repair as an internal error"),
        (143, "a block with fewer items than the log says made every consumer hang"),
        (353, "a damaged header of a segment made the repair fail"),
        (129, "two extents that claim the same bytes were both believed"),
        (1163, "extents that cut a block were not rewritten"),
        (1656, "a run of 2^62 consumed items reserved memory for each"),
    ],
)
def test_mutations_that_were_bugs(number: int, story: str) -> None:
    """Seeds that once found a bug find none any more."""
    assert fuzz.fuzz_case(number).outcome, story


@pytest.mark.parametrize("campaign", [flips.flip_sealed, flips.flip_unsealed, flips.cut])
def test_parts_make_the_whole(campaign: Callable[..., damage.Report], monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that share the work do all of it, and nothing twice."""
    monkeypatch.setattr(flips, "_flip_chunk", lambda image, path, offsets, tally: [tally.add(_RIGHT) for _ in offsets])
    monkeypatch.setattr(flips, "check_case", lambda *arguments: _RIGHT)
    parts = [campaign(400, 1, part, 3) for part in range(3)]
    assert damage.add_reports(parts).cases == campaign(400, 1).cases
    assert min(report.cases for report in parts) > 100


def test_sums_of_reports() -> None:
    """The sum of two reports is the report of both parts together, and its text is readable."""
    one = damage.Report(10, 1, 2, 3, 4, 0, 5, 0.5)
    both = damage.add_reports([one, one])
    assert both == damage.Report(20, 2, 4, 6, 8, 0, 10, 1.0)
    assert (
        str(both)
        == "20 cases, 0 violations: 2 refused, 4 torn, 6 damaged, 8 right, 10 items_lost; 1.0 s, 20 per second"
    )


def test_a_flip_that_is_served_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checksum of blocks a wrong byte comes out, and the campaign names the flip."""
    monkeypatch.setattr(segment, "check_body", _nothing)
    with pytest.raises(
        ViolationError, match=r"(?s)bit \d of byte \d+ flipped.*python -m tests.crash flips --bytes 400"
    ):
        flips.flip_sealed(400)


def test_a_silent_loss_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign finds a log that takes damage for a torn tail, and so loses acknowledged items."""
    monkeypatch.setattr(log_reader, "_judge_end", lambda *arguments: 1)
    with pytest.raises(ViolationError, match="it was read"):
        flips.flip_unsealed(400)


def test_a_block_too_many_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign finds damage that costs the rest of its extent, which is too much."""
    monkeypatch.setattr(Segment, "_resume", lambda self, offset, ordinal, end, end_ordinal: (end, end_ordinal))
    with pytest.raises(ViolationError, match="expected"):
        flips.flip_sealed(400)


def test_an_unreported_cut_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign finds a dropped tail that is not reported, although the prefix is right."""
    monkeypatch.setattr(log_reader, "_judge_end", lambda *arguments: 0)
    with pytest.raises(ViolationError, match=r"(?s)cut at \d+.*python -m tests.crash truncate --bytes 400"):
        flips.cut(400, parts=8)


def test_a_wrong_byte_of_a_mutation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checksum of blocks, the mutations find a wrong byte and name the seed."""
    monkeypatch.setattr(segment, "check_body", _nothing)
    with pytest.raises(ViolationError, match=r"python -m tests.crash fuzz --first \d+ --count 1"):
        for number in range(200):
            fuzz.fuzz_case(number)


def test_a_hang_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case without an answer ends, and is a violation."""

    def browse(reader: Reader) -> Iterator[tuple[int, list[bytes]]]:
        while True:
            time.sleep(0.01)
            yield 0, []

    monkeypatch.setattr(Reader, "browse", browse)
    monkeypatch.setattr(fuzz, "_CASE_SECONDS", 0.1)
    with pytest.raises(ViolationError, match="no answer"):
        for number in range(50):
            fuzz.fuzz_case(number)


def test_a_large_allocation_is_noticed() -> None:
    """The process that runs the mutations cannot have more memory than its limit."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=fuzz._limit_memory) as pool, pytest.raises(MemoryError):
        pool.submit(bytes, 1 << 30).result()


def test_large_image() -> None:
    """A large queue can be made for damage: the part of its log that enqueues may use is large enough."""
    large = image(200_000, 0, False)
    assert large.frames[-1] >= 200_000
