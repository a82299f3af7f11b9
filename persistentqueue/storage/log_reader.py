"""The reading of the transaction log: the mechanics, which all uses share, and a policy for each use.

A log is read in three steps. ``read_steadily`` finds the generations, of which the newest one counts. It reads again if
the owner may have replaced that one meanwhile. ``read_log`` reads the bytes of the file. ``decode_log`` decodes them,
and judges how they end. Nothing here changes a file.

A listing of a directory is not atomic. If the owner names the next generation and deletes the last one meanwhile, a
listing may show neither of them, as on btrfs. So ``list_generations`` lists again before it returns none.

A policy says how a use of the log meets each condition:

| Policy    | Newer log    | Damage           | Torn tail | Seal     | Shortage | Bytes  | Name     | In doubt         |
|-----------|--------------|------------------|-----------|----------|----------|--------|----------|------------------|
| STRICT    | unexpected   | error            | the end   | believed | counted  | all    | as it is | asked or left    |
| SALVAGE   | unexpected   | skipped          | skipped   | ignored  | ignored  | all    | as it is | asked or dropped |
| SNAPSHOT  | read instead | error, 10th time | the end   | believed | counted  | all    | as it is | asked or left    |
| NEIGHBOUR | read instead | error            | the end   | believed | counted  | all    | durable  | left             |
| HEAD      | read instead | error            | the end   | believed | ignored  | 64 KiB | durable  | left             |

*Newer log* means that a generation appears during the reading. *Shortage* means that the file is shorter than it was
made. ``decode_log`` tells a torn tail from damage. A log with a seal ends behind its checkpoint. Damage to the header
or to the checkpoint is an error for ``SALVAGE``, too. A missing file counts as damage, and so do bytes that the device
cannot read. ``HEAD`` reads all bytes if the log does not end in the first ones. *Name* says whether the name of the
newest generation is made durable. *In doubt* is for the callers: an operation is applied by ``recovery.replay``, and
never here.

The uses of each policy, and what the result of each may lack:

- ``STRICT``: An opening holds the lock, and asks for the outcome. The result lacks a torn tail and missing bytes, and
  counts both. The repair of locations, and a store that rebuilds its state, hold the lock as well. ``check`` holds no
  lock, and leaves the transaction in doubt. A log that is replaced meanwhile may look damaged or missing to ``check``.
- ``SALVAGE``: A repair of a damaged log holds the lock, and asks for the outcome. If no queue can know the outcome any
  more, the transaction is dropped. The result lacks the damaged frames.
- ``SNAPSHOT``: Views and splits read beside the owner. A view looks for the outcome in the log of the coordinator; a
  split leaves the transaction in doubt. The last frame may not be durable yet.
- ``NEIGHBOUR``: The settlement of a transaction in doubt looks for prepares and decisions in the log of another queue.
  It applies no operation. The last frame may not be durable yet.
- ``HEAD``: A search among all neighbours does what ``NEIGHBOUR`` does, and reads less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from ..core.frame import (
    CHECKSUM_BYTES,
    END,
    FRAME_HEADER_BYTES,
    LOG_MAGIC,
    SEALED,
    SYNCED,
    Frame,
    claimed_bytes,
    decode_frame,
    find_frame,
)
from ..core.header import HEADER_BYTES, Header, decode_header
from ..core.operations import Adoption, Checkpoint, Operation, SegmentCreated
from ..errors import CorruptionError, MemoryShortageError
from ..system.bad_pages import read_around, read_needed
from ..system.disk import Disk, basename, join
from ..system.files import read_all, sync_directory
from ..system.path_errors import ABSENT
from ..system.progress import SILENT, Meter
from ..system.trust import opened_plain
from .locations import LOG_DIRECTORY
from .lock import LOCK_NAME
from .log import generations_of, log_name, parse_log_name

T = TypeVar("T")
LISTINGS_MAX = 10
"""Most listings that show no log, while other signs say that there is a queue, until they are believed."""
_TRIES = 100
_ZEROS = bytes(64 * 1024)
_STEP_BYTES = 64 * 1024
"""Bytes that are read at once of the frames behind those that were read before, unless one is longer."""
_REPAIR = "nothing was changed: run repair, which keeps what can be read"


class Policy(NamedTuple):
    """A row of the table above: how one use of the log meets each condition."""

    is_live: bool = False
    """Whether an owner may replace the log meanwhile. Then the newest generation is read again, up to 100 times."""
    looks: int = 1
    """Number of times that damage, or a missing file, must be found before it is an error.

    A single look may meet a file that is being replaced."""
    skips_damage: bool = False
    """Whether every intact frame counts, wherever it stands. Otherwise damage is an error."""
    head_bytes: int = 0
    """Bytes that are read at first. The rest is read only if the log does not end there. 0 means to read all."""
    syncs_name: bool = False
    """Whether to make the name of the newest generation durable before the log is read."""


STRICT = Policy()
SALVAGE = Policy(skips_damage=True)
SNAPSHOT = Policy(is_live=True, looks=10)
NEIGHBOUR = Policy(is_live=True, syncs_name=True)
HEAD = NEIGHBOUR._replace(head_bytes=64 * 1024)


class Replay(NamedTuple):
    """The content of a log: its checkpoint, the transactions after it, and how it ends.

    ``end`` is the offset after the last valid frame. ``torn_bytes`` counts the bytes after it that began a frame and
    are none; it is 0 at a clean end. ``missing_bytes`` is how much shorter the file is than it was made.
    """

    file: str
    header: Header
    checkpoint: Checkpoint
    frames: list[Frame]
    end: int
    torn_bytes: int
    missing_bytes: int
    behind: int = 0
    """Number of transactions in valid frames behind the end. Only in a log that is not synced, they are no damage."""

    @property
    def sealed(self) -> bool:
        """Whether the log was closed cleanly."""
        return bool(self.header.flags & SEALED)

    @property
    def synced(self) -> bool:
        """Whether its frames were made durable before they were acknowledged."""
        return bool(self.header.flags & SYNCED)

    @property
    def supplement(self) -> Sequence[Operation]:
        """The operations that follow the checkpoint in its frame, and are a part of it."""
        return self.frames[0].transactions[0][1:] if self.frames[0].transactions else ()

    @property
    def last_number(self) -> int:
        """The number of the last valid frame."""
        return self.frames[-1].number


class Last(NamedTuple):
    """The last frame of a log that was read, which others may follow."""

    offset: int
    number: int
    checksum: int


def last_of(frames: Sequence[Frame]) -> Last:
    """Return the last one of these frames, without its content."""
    frame = frames[-1]
    return Last(frame.offset, frame.number, frame.checksum)


def list_generations(disk: Disk, directory: str) -> list[int]:
    """Return the generations of the log in a queue's directory, lowest first.

    A listing without a generation is repeated, up to ``LISTINGS_MAX`` times, if the lock file is there: an owner makes
    it before the log, and deletes it after the log. Raises ``FileNotFoundError`` if there is no directory of the log,
    and ``OSError``.
    """
    found: list[int] = []
    for _ in range(LISTINGS_MAX):
        found = generations_of(disk.listdir(join(directory, LOG_DIRECTORY)))
        if found or not _has_lock(disk, directory):
            break
    return found


def _has_lock(disk: Disk, directory: str) -> bool:
    """Return whether there is a lock file. Without one, no owner is changing the log."""
    try:
        disk.lstat(join(directory, LOCK_NAME))
    except ABSENT:
        return False
    return True


def read_newest(disk: Disk, directory: str, policy: Policy) -> Replay | None:
    """Return the newest generation of the log of the queue in this directory.

    Return None if there is no log, or if a new generation appears at each try.

    Raises ``CorruptionError``, also for a log that is just being written, ``FileNotFoundError``,
    ``UnsupportedFormatError``, ``MemoryShortageError`` and ``OSError``.
    """
    path = join(directory, LOG_DIRECTORY)

    def read(generations: list[int]) -> Replay | None:
        """Read the newest of these generations."""
        if policy.syncs_name and len(generations) > 1:
            sync_directory(disk, path)  # the older one is deleted only after the name of the newer one is durable
        return read_log(disk, join(path, log_name(generations[-1])), policy) if generations else None

    return read_steadily(partial(list_generations, disk, directory), read, policy)


def read_steadily(find: Callable[[], list[int]], read: Callable[[list[int]], T], policy: Policy) -> T | None:
    """Return what ``read`` makes of the generations that ``find`` returns, lowest first; the last one counts.

    Return None if the policy expects an owner, and a new generation appears at each try. Raises what both callables
    raise.
    """
    if not policy.is_live:
        return read(find())
    looks = policy.looks
    while True:
        looks -= 1
        try:
            return _read_live(find, read)
        except (CorruptionError, FileNotFoundError):
            if not looks:
                raise


def _read_live(find: Callable[[], list[int]], read: Callable[[list[int]], T]) -> T | None:
    """Return what ``read`` makes of the generations, if the newest one is still the newest one afterwards.

    A log that was superseded meanwhile may have been cut or overwritten during the reading. So what was read of it
    counts no more than the damage that was found in it.
    """
    generations = find()
    for _ in range(_TRIES):
        result, damage, newest = None, None, generations[-1:]
        try:
            result = read(generations)
        except (CorruptionError, FileNotFoundError) as error:
            damage = error
        generations = find()
        if generations[-1:] == newest:
            if damage is not None:
                raise damage
            return result
    return None


def read_log(disk: Disk, path: str, policy: Policy = STRICT, meter: Meter = SILENT) -> Replay:
    """Read and check the log at ``path``, and change nothing. ``meter`` is that of ``decode_log``.

    Raises ``CorruptionError``, ``UnsupportedFormatError``, ``MemoryShortageError`` and ``OSError``.
    """
    with opened_plain(disk, path) as fd:
        if policy.head_bytes:
            head = read_needed(disk, fd, policy.head_bytes, 0, path, _REPAIR)
            with suppress(CorruptionError):  # the part that was read may end inside a frame
                short = decode_log(head, path)
                if not short.torn_bytes and short.end + len(END) <= len(head):
                    return short
        read = partial(read_needed, path=path, consequence=_REPAIR)
        return decode_log(_read_open(read, disk, fd, path), path, policy, meter)


def read_bytes(disk: Disk, path: str) -> bytes:
    """Return the bytes of the log at ``path``, with zeros in place of the pages that cannot be read.

    Raises ``CorruptionError``, ``MemoryShortageError`` and ``OSError``.
    """
    with opened_plain(disk, path) as fd:
        return _read_open(read_around, disk, fd, path)


def _read_open(read: Callable[[Disk, int, int, int], bytes], disk: Disk, fd: int, path: str) -> bytes:
    """Return the content of the open log. Raises ``MemoryShortageError``, and the errors of ``read``."""
    size_bytes = disk.fstat(fd).st_size
    try:
        return read(disk, fd, size_bytes, 0)
    except MemoryError:
        raise MemoryShortageError(path, 0, size_bytes) from None


def decode_log(data: bytes, file: str, policy: Policy = STRICT, meter: Meter = SILENT) -> Replay:
    """Check and decode a whole log. This function reads no file.

    An invalid frame ends the log if no valid one follows it: a torn tail. Otherwise it is damage, and so is any invalid
    byte in the header, in the checkpoint, or in a sealed log. Then this raises ``CorruptionError``.

    If the policy skips damage, only the header and the checkpoint must be valid.

    ``meter`` expects each byte twice: the caller counts a frame once more when it has applied it.
    """
    header, first, checkpoint = _first_frame(data, file)
    if meter is not SILENT:
        meter.expect(2 * (_used_bytes(data) - first.end))
    if policy.skips_damage:
        # The seal is removed, and all bytes behind the checkpoint count as torn. So the opening writes a new generation
        # and sets this one aside.
        unsealed = header._replace(flags=header.flags & SYNCED)
        frames = _intact_frames(data, file, header.salt, first, meter)
        return Replay(file, unsealed, checkpoint, frames, first.end, len(data) - first.end, 0)
    frames = [first]
    end = first.end
    torn_bytes = behind = 0
    if not header.flags & SEALED:
        while True:
            try:
                frame = decode_frame(data, end, header.salt, file)
                if (frame.number, frame.previous) != (frames[-1].number + 1, frames[-1].checksum):
                    raise CorruptionError(file, end, f"frame {frames[-1].number + 1}", f"frame {frame.number}")
            except CorruptionError as damage:
                later = _intact_frames(data, file, header.salt, frames[-1], SILENT)[1:]
                torn_bytes = _judge_end(data, end, header, later, damage)
                behind = sum(len(each.transactions) for each in later)
                break
            frames.append(frame)
            meter.advance(frame.end - end)
            end = frame.end
    missing_bytes = max(header.size_bytes - len(data), 0)
    return Replay(file, header, checkpoint, frames, end, torn_bytes, missing_bytes, behind)


def _first_frame(data: bytes, file: str) -> tuple[Header, Frame, Checkpoint]:
    """Return the header, the first frame and its checkpoint. Raises like ``decode_log``."""
    header = decode_header(data, LOG_MAGIC, file)
    if parse_log_name(basename(file)) != header.number:
        raise CorruptionError(file, 0, "the generation that the file is named by", f"{header.number}")
    first = decode_frame(data, HEADER_BYTES, header.salt, file)
    operation = first.transactions[0][0] if first.transactions and first.transactions[0] else None
    if not isinstance(operation, Checkpoint):
        raise CorruptionError(file, HEADER_BYTES, "a checkpoint", f"{operation}")
    return header, first, operation


def _intact_frames(data: bytes, file: str, salt: int, first: Frame, meter: Meter) -> list[Frame]:
    """Return the first frame, and every valid frame behind it, wherever it stands."""
    frames = [first]
    while (frame := find_frame(data, frames[-1].end, salt, file)) is not None:
        meter.advance(frame.end - frames[-1].end)
        frames.append(frame)
    return frames


def _used_bytes(data: bytes) -> int:
    """Return the length of a log without most of the zeros behind its last frame."""
    end = len(data)
    while data.endswith(_ZEROS, 0, end):
        end -= len(_ZEROS)
    return end


def _judge_end(data: bytes, end: int, header: Header, later: Sequence[Frame], damage: CorruptionError) -> int:
    """Return 0 for a clean end, and the number of bytes for a torn tail. ``later`` has the valid frames behind it.

    Raises ``CorruptionError`` for damage.
    """
    if later and header.flags & SYNCED:
        raise CorruptionError(
            damage.file,
            end,
            damage.expected,
            damage.found,
            f"frame {later[0].number} at offset {later[0].offset} is valid, so this is no torn tail, but damage to "
            "acknowledged transactions; nothing was changed: restore the file, or copy the directory, then repair",
        )
    behind = data[end : end + len(END)]
    if behind == END[: len(behind)]:
        return 0
    return len(data[end:].rstrip(b"\0"))


def named_segments(replay: Replay) -> list[tuple[int, int, str]]:
    """Return number, salt and published name of each segment in the log.

    No other segments of the queue have live items: the log forgets a segment only by a new generation.
    """
    named = [(row.number, row.salt, "") for row in replay.checkpoint.segments]
    for frame in replay.frames[1:]:
        for transaction in frame.transactions:
            named += [(each.number, each.salt, "") for each in transaction if isinstance(each, SegmentCreated)]
            named += [(each.segment, each.salt, each.name) for each in transaction if isinstance(each, Adoption)]
    return named


def read_further(disk: Disk, read: Replay, last: Last) -> Replay | None:
    """Return a log that was ``read`` up to the frame ``last``, with the frames that follow alone.

    Return None if the whole log must be read: it is not the file that was read, or it does not end clearly. A change of
    what was read is not noticed if it leaves the header, and the checksum in the last frame, as they were.

    Raises ``CorruptionError``, ``UnsupportedFormatError``, ``MemoryShortageError`` and ``OSError``.
    """
    with opened_plain(disk, read.file) as fd:
        header = decode_header(read_all(disk, fd, HEADER_BYTES, 0), LOG_MAGIC, read.file)
        checksum = read_all(disk, fd, CHECKSUM_BYTES, last.offset + FRAME_HEADER_BYTES - CHECKSUM_BYTES)
        if header != read.header or checksum != last.checksum.to_bytes(CHECKSUM_BYTES, "little"):
            return None
        frames, end, needed_bytes = list[Frame](), read.end, len(END)
        while True:
            rest = read_needed(disk, fd, needed_bytes, end, read.file, _REPAIR)
            found = _frames_behind(rest, end, header.salt, read.file, last)
            if found:
                rest, end, last = rest[found[-1].end - end :], found[-1].end, last_of(found)
                frames += found
            if rest[: len(END)] == END:
                break
            size_bytes = disk.fstat(fd).st_size
            if rest == END[: size_bytes - end]:  # the file ends here
                break
            needed_bytes = claimed_bytes(rest, header.salt) + len(END)
            if needed_bytes <= len(rest) or end + needed_bytes > size_bytes + len(END) or header.flags & SEALED:
                return None
            needed_bytes = max(needed_bytes, _STEP_BYTES)
    return read._replace(frames=frames, end=end)


def _frames_behind(data: bytes, offset: int, salt: int, file: str, last: Last) -> list[Frame]:
    """Return the frames that follow the frame ``last`` in a log of which ``data`` are the bytes from ``offset`` on."""
    frames: list[Frame] = []
    at = offset
    with suppress(CorruptionError):  # the end of the log, or of the bytes that were read
        while True:
            frame = decode_frame(data, at, salt, file, offset)
            if (frame.number, frame.previous) != (last.number + 1, last.checksum):
                break
            frames.append(frame)
            at, last = frame.end, last_of(frames)
    return frames
