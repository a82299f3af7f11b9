"""Expected outcomes of damaged queues, and their comparison with the real ones.

The expected outcome follows from the frames or blocks that differ from the written ones, never from the queue's own
report. A damaged log is refused, with file and offset, or opens to an exact state. A damaged data file costs the live
items of the blocks that differ, and no others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, pairwise
from typing import NamedTuple

from persistentqueue.core.frame import END
from persistentqueue.engine.store import Store
from persistentqueue.errors import CorruptionError, UnsupportedFormatError
from persistentqueue.recovery.opening import open_store
from persistentqueue.system.disk import Disk

from .content import Content
from .disk import SimulatedDisk
from .explorer import DIRECTORY, content_of
from .exploring import ViolationError
from .images import Image


class Report(NamedTuple):
    """Result of a campaign without a violation. Each case is in one of the counts after ``cases``."""

    cases: int
    refused: int
    """Cases in which opening raised an error, with the right file and offset."""
    torn: int
    """Cases in which the log opened to the exact prefix before the damage.

    The queue reported the damage if any byte of it was left.
    """
    damaged: int
    """Cases in which reading raised an error, with the right file and offset.

    Exactly the live items of the damaged blocks were missing.
    """
    right: int
    """Cases in which everything was there, and no damage was met."""
    forged: int
    """Cases with checksums that were made to fit.

    They led to any content or a ``PersistentQueueError``, and to a repair that opens.
    """
    items_lost: int
    """Number of items lost in all ``damaged`` cases."""
    seconds: float

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {name}" for name, n in zip(self._fields[1:7], self[1:7], strict=True) if n)
        rate = self.cases / max(self.seconds, 1e-9)
        return f"{self.cases} cases, 0 violations: {counts}; {self.seconds:.1f} s, {rate:.0f} per second"


class Expected(NamedTuple):
    """Expected outcome of a case: refused at an offset, or opened to a content, with the damage that is met."""

    outcome: str
    content: Content
    refused_at: int | None = None
    torn: bool = False
    damaged: frozenset[int] = frozenset()
    """Offsets at which damage may be reported."""
    silent: bool = True
    """True if the damage need not be reported."""
    items_lost: int = 0


# --- expected outcomes -----------------------------------------------------------------------------------------------


def changed_pieces(image: Image, path: str, data: bytes) -> list[int]:
    """Return the pieces of the file that differ from the written ones.

    Blocks that the log carries do not count: opening writes them again. Nor do zeros at the end of the segment that a
    killed owner was writing to: opening gives the file its length again.
    """
    written, starts = image.files[path], image.starts[path]
    if not image.sealed and path in image.blocks and path == max(image.blocks):
        data = data.ljust(len(written), b"\0")
    carried = [block for block in image.blocks.get(path, ()) if block.carried]
    for block in carried:
        data = data[: block.start].ljust(block.start, b"\0") + written[block.start : block.end] + data[block.end :]
    bounds = pairwise([*starts, max(len(written), len(data))])
    return [number for number, (start, end) in enumerate(bounds) if data[start:end] != written[start:end]]


def expect(image: Image, path: str, changed: list[int], data: bytes | bytearray) -> Expected:
    """Return the expected outcome if the file at ``path`` is ``data``, with these of its pieces changed."""
    return _expect_log(image, changed, data) if path == image.log else _expect_segment(image, path, changed)


def _expect_log(image: Image, changed: list[int], data: bytes | bytearray) -> Expected:
    starts, unused = image.starts[image.log], len(image.frames) + 1
    bad = changed[0] if changed else unused
    content = image.content(*image.moments[-1])
    if bad == unused:
        torn = not image.sealed and any(data[starts[-1] :][: len(END)])
        return Expected("torn" if torn else "right", content, torn=torn)
    if bad < 2 or not set(range(bad, unused)) <= set(changed):
        return Expected("refused", content, refused_at=starts[bad])
    torn = any(data[starts[bad] :][: len(END)])
    return Expected("torn", image.content(*image.moments[bad - 2]), torn=torn)


def _expect_segment(image: Image, path: str, changed: list[int]) -> Expected:
    last, its = image.moments[-1], image.blocks[path]
    blocks = [its[piece - 1] for piece in changed if 0 < piece <= len(its)]
    lost = set(last.live).intersection(*[chain.from_iterable(block.sequences for block in blocks)])
    damaged = {block.start for block in blocks} | ({0} if 0 in changed else set())
    # A damaged header costs no item. It is not read if recovery has the file in hand, or if no item in it is wanted.
    is_wanted = image.sealed and not set(last.live).isdisjoint(chain.from_iterable(block.sequences for block in its))
    silent = not lost and not (0 in changed and is_wanted)
    left = image.content((sequence for sequence in last.live if sequence not in lost), last.markers)
    outcome = "right" if silent else "damaged"
    return Expected(outcome, left, damaged=frozenset(damaged), silent=silent, items_lost=len(lost))


# --- a case ----------------------------------------------------------------------------------------------------------


def mount(image: Image, changed: dict[str, bytes]) -> SimulatedDisk:
    """Return a machine with the files of the image, some of them ``changed``."""
    disk = SimulatedDisk(image.directories)
    for name, written in image.files.items():
        disk.add_file(name, changed.get(name, written))
    return disk


def open_queue(image: Image, disk: Disk, memory_bytes: int = 1 << 20) -> Store:
    settings = replace(image.settings, memory_bytes=memory_bytes)
    return open_store(disk, DIRECTORY, settings, create=False)


def read_all(store: Store, how: int) -> tuple[Content, list[tuple[str, int]]]:
    """Return all items that can be read past the damage, and the places of the damage.

    ``how`` selects the way of reading: browse, take few items at a time, or take all.
    """
    items: list[bytes] = []
    damages: list[tuple[str, int]] = []
    while True:
        try:
            if how == 0:
                return content_of(store), damages
            more = store.reader.take(50 if how == 1 else 2**62)[1]
        except CorruptionError as damage:
            damages.append((damage.file, damage.offset))
            if len(damages) > 10_000:
                raise ViolationError("damage is met for ever") from damage
            continue
        if not more:
            return Content(tuple(items), tuple(sorted(store.state.markers.items()))), damages
        items += more


def check_case(image: Image, path: str, data: bytes, changed: list[int], how: int) -> Expected:
    """Open the image with this file, read everything, compare with the expected outcome, and return that outcome."""
    expected, disk = expect(image, path, changed, data), mount(image, {path: data})
    try:
        store = open_queue(image, disk.disk, how % 2 << 20)
    except (CorruptionError, UnsupportedFormatError) as error:
        at = error.offset if isinstance(error, CorruptionError) else 0
        require((error.file, at) == (path, expected.refused_at), expected, error)
        require(is_as_it_was(image, disk, {path: data}), expected, "a refusal that changed files")
        return expected
    content, damages = read_all(store, how % 3)
    report = store.recovery
    missing_bytes = max(len(image.files[path]) - len(data), 0) if path == image.log and not image.sealed else 0
    require(expected.refused_at is None, expected, content)
    require(content == expected.content, expected, (content, damages, report))
    require({(path, at) for at in expected.damaged} >= set(damages), expected, damages)
    require(len(set(damages)) == len(damages), expected, damages)
    require(bool(damages) or expected.silent, expected, "no error")
    require(len(store.reader.ready.damaged) == expected.items_lost, expected, list(store.reader.ready.damaged))
    require((bool(report.torn_bytes), report.missing_bytes) == (expected.torn, missing_bytes), expected, report)
    store.release()
    return expected


def require(right: bool, expected: object, found: object) -> None:
    if not right:
        raise ViolationError(f"expected {short(expected)}\nfound    {short(found)}")


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 1000 else f"{text[:500]} … {text[-500:]}"


def is_as_it_was(image: Image, disk: SimulatedDisk, changed: dict[str, bytes]) -> bool:
    """Return if only the lock file has changed, and no descriptor is open."""
    names = {name: number for name, number in disk.names.items() if number > 0}
    return (
        names.keys() == image.files.keys()
        and not disk.descriptors
        and all(
            disk.inodes[names[name]].cache == changed.get(name, written)
            for name, written in image.files.items()
            if not name.endswith("/lock")
        )
    )


class Tally:
    """Counts outcomes, and turns an unexpected exception of a case into a violation."""

    def __init__(self, replay: str) -> None:
        self._replay = replay
        self._began = time.perf_counter()
        self._outcomes: Counter[str] = Counter()
        self._items_lost = 0

    def add(self, expected: Expected, cases: int = 1) -> None:
        """Count ``cases`` cases that came out as expected."""
        self._outcomes[expected.outcome] += cases
        self._items_lost += expected.items_lost * cases

    def violated(self, error: Exception, what: str) -> ViolationError:
        """Return the violation to raise for an error."""
        if isinstance(error, ViolationError):
            return ViolationError(f"{what}: {error}\nreplay with: {self._replay}")
        return ViolationError(f"{what}: {type(error).__name__}: {error}\nreplay with: {self._replay}")

    def report(self) -> Report:
        """Return the counts."""
        counts = [self._outcomes[name] for name in Report._fields[1:6]]
        return Report._make([sum(counts), *counts, self._items_lost, time.perf_counter() - self._began])


def add_reports(reports: Iterable[Report]) -> Report:
    """Return the sum of several campaigns, as if they had run one after the other."""
    return Report._make(map(sum, zip(*reports, strict=True)))
