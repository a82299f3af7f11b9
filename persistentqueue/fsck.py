"""Read-only inspection of a queue's directory: does everything add up?

Reads the log as recovery does, then every block that holds an unconsumed item, then asks whether the state's own
invariants hold (they are listed in ``state``). Changes nothing, takes no lock. A directory that is owned meanwhile may
be inspected too: what its owner changes while we read shows as a problem at worst.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .directory import (
    DATA_DIRECTORY,
    LOG_DIRECTORY,
    POOL_DIRECTORY,
    find_generations,
    names_in,
    queue_directory,
)
from .disk import DISK, Disk, StrPath, join
from .errors import CorruptionError, QueueNotFoundError
from .log import parse_log_name
from .pool import SPARE_NAME
from .recovery import Recovered, recover
from .segment import Segment, parse_segment_name, segment_name
from .state import Extent, State


@dataclass(frozen=True)
class CheckReport:
    """What ``check`` found."""

    problems: tuple[str, ...]
    """What is wrong, each with file and offset; empty: all is well."""
    sealed: bool
    """Whether the queue was closed cleanly."""
    items: int
    """Unconsumed items whose blocks were read and checked."""
    transactions: int
    """Transactions in the log after its checkpoint."""
    torn_bytes: int
    """Bytes of an unfinished group at the log's end, which the next opening will drop."""
    leftovers: tuple[str, ...]
    """Files that nothing refers to, which the next opening will sweep, and files that are not the queue's."""

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def check(path: StrPath, name: str | None = None, *, disk: Disk = DISK) -> CheckReport:
    """Inspect the queue at ``path/name``. Raises ``QueueNotFoundError`` where there is none; problems are reported."""
    directory = queue_directory(path, name)
    try:
        if not find_generations(disk, directory):
            raise QueueNotFoundError(f"{directory}: no queue here to check")
        recovered = recover(disk, directory)
    except CorruptionError as damage:
        return CheckReport((str(damage),), False, 0, 0, 0, ())
    assert recovered is not None
    problems: list[str] = []
    items = 0
    for extent in recovered.state.extents:
        try:
            _check_extent(disk, directory, recovered, extent)
            items += extent.live
        except CorruptionError as damage:
            problems.append(str(damage))
    problems += _check_state(recovered.state)
    replay = recovered.replay
    return CheckReport(
        tuple(problems),
        replay.sealed,
        items,
        recovered.transactions,
        replay.torn_bytes,
        tuple(_leftovers(disk, directory, recovered)),
    )


def _check_extent(disk: Disk, directory: str, recovered: Recovered, extent: Extent) -> None:
    info = recovered.state.segments[extent.segment]
    path = join(directory, DATA_DIRECTORY, segment_name(info.number))
    segment = Segment.open(disk, path, info.number, info.salt, info.capacity_bytes)
    try:
        # Blocks that the log carries may not have reached the segment yet: opening writes them once more.
        carried = {operation.offset: operation for operation in recovered.redo if operation.segment == info.number}
        offset, end, count = extent.offset, extent.offset + extent.length_bytes, 0
        while offset < end:
            if offset in carried:
                count += carried[offset].count
                offset += carried[offset].length_bytes
                continue
            stop = min((start for start in carried if offset < start < end), default=end)
            count += segment.checksums(offset, stop)[1]
            offset = stop
    finally:
        segment.close()
    if count != extent.count:
        raise CorruptionError(path, extent.offset, f"{extent.count} items", f"{count}")


def _check_state(state: State) -> Iterator[str]:
    """The invariants of ``state``."""
    above = 0
    live: dict[int, int] = dict.fromkeys(state.segments, 0)
    for extent in state.extents:
        if extent.first < above:
            yield f"extent {extent.row()} overlaps the one before it"
        above = extent.end
        start = max(extent.first, state.frontier)
        unconsumed = extent.end - start - state.consumed.overlap(start, extent.end)
        if unconsumed != extent.live or unconsumed == 0:
            yield f"extent {extent.row()} has {unconsumed} unconsumed items"
        live[extent.segment] += extent.live
    for number, segment in state.segments.items():
        if segment.live != live[number] or (segment.live == 0) != (number in state.drained):
            yield f"segment {number} counts {segment.live} live items, its extents {live[number]}"
    if sum(live.values()) + state.consumed_count != state.next_sequence:
        yield f"{sum(live.values())} live and {state.consumed_count} consumed of {state.next_sequence} items"


def _leftovers(disk: Disk, directory: str, recovered: Recovered) -> Iterator[str]:
    yield from recovered.sweep
    yield from recovered.set_aside
    own = {LOG_DIRECTORY: parse_log_name, DATA_DIRECTORY: parse_segment_name}
    for part, parse in own.items():
        yield from (join(part, name) for name in names_in(disk, directory, part) if parse(name) is None)
    yield from (join(POOL_DIRECTORY, name) for name in names_in(disk, directory, POOL_DIRECTORY) if name != SPARE_NAME)
