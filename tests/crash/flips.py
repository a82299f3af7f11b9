"""Exhaustive damage: every bit flipped and every cut, of files in memory.

An *image* is the files of one queue, made once from a seed. A *case* is the image with one file changed. The expected
outcome follows from the frames or blocks that differ from the written ones, never from the queue's own report. A
damaged log is refused, with file and offset, or opens to an exact state. A damaged data file costs the live items of
the blocks that differ, and no others. The first case that differs raises ``ViolationError`` with the command that
replays it.

The code of the package decides each flip. If the log must be refused, ``decode_frame`` must refuse the frame; for each
8th flip, ``read_log`` must refuse the log instead. In a data file, ``Segment.load`` must lose the block and continue
directly after it. For each 16th flip, ``Reader`` must serve the block before it or after it. Each 61st flip, and each
flip that may have another outcome, goes through ``open_store`` and all items.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, chain
from random import Random

from persistentqueue.core.availability import Availability
from persistentqueue.core.frame import END, decode_frame
from persistentqueue.core.intervals import Intervals
from persistentqueue.core.page_cache import Pages
from persistentqueue.engine.reader import Reader
from persistentqueue.errors import CorruptionError
from persistentqueue.storage.log_reader import read_log
from persistentqueue.system.disk import Disk

from .damage import (
    Expected,
    Report,
    Tally,
    add_reports,
    changed_pieces,
    check_case,
    expect,
    is_as_it_was,
    mount,
    open_queue,
    require,
)
from .exploring import ViolationError
from .images import Image, image

_WHOLE_EVERY = 61
"""One in this number of flips goes through opening and reading everything; a prime, so that each bit has its turn."""
_UNUSED_EVERY = 509
"""One in this number of bytes of unused space has its bits flipped."""
_CHUNK_BYTES = 64


# --- every bit -------------------------------------------------------------------------------------------------------


class _Probe:
    """Reads the surroundings of a block of an open queue again and again, like a consumer."""

    def __init__(self, image: Image, disk: Disk, path: str) -> None:
        self._image, self._path, self._blocks = image, path, image.blocks[path]
        self._store = open_queue(image, disk, memory_bytes=0)
        self._ready = Availability(self._store.state)
        self._ready.hold(len(self._ready))
        live = set(image.moments[-1].live)
        self._live = [[s for s in block.sequences if s in live] for block in self._blocks]
        self._ordinals = list(accumulate((len(block.items) for block in self._blocks), initial=0))
        self.around = lru_cache(maxsize=8)(self._around)

    def check(self, piece: int, bit: int, offset: int) -> Expected:
        """Check the loss that a flip in this block causes, and return the outcome."""
        turn, behind = (offset + bit) % 16, (offset + bit) // 16 % 2
        return self._load(piece) if turn and self._live[piece - 1] else self._take(piece, behind)

    def _load(self, piece: int) -> Expected:
        """Load from this damaged block on: one error, and reading would continue directly after it."""
        block, ordinal = self._blocks[piece - 1], self._ordinals[piece - 1]
        _, expected = self.around(piece, 0)
        first = self._live[piece - 1][0]
        extent = self._store.state.find(first)
        segment = self._store.segments.pin(self._store.state.segments[extent.segment])
        wanted, end = ordinal + first - block.sequences[0], extent.offset + extent.length_bytes
        loaded = segment.load(block.start, ordinal, end, extent.ordinal + extent.count, wanted)
        require(loaded.damage is not None and not loaded.items, expected, loaded)
        assert loaded.damage is not None
        require((loaded.damage.file, loaded.damage.offset) == (self._path, block.start), expected, loaded)
        goes_on = (loaded.next_offset, loaded.next_ordinal, loaded.lost)
        require(goes_on == (block.end, ordinal, len(block.items)), expected, loaded)
        return expected

    def _around(self, piece: int, behind: int) -> tuple[list[tuple[int, int]], Expected]:
        """Return the runs of live items in this block and a neighbour, and the expected outcome of reading them.

        The neighbour is the block after it if ``behind`` is 1, otherwise the block before it.
        """
        at = piece - 1
        around = sorted(chain.from_iterable(self._live[max(at - 1 + behind, 0) : at + 1 + behind]))
        lost, start = set(self._live[at]), self._blocks[at].start
        left = self._image.content((sequence for sequence in around if sequence not in lost), ())
        outcome = "damaged" if lost else "right"
        expected = Expected(outcome, left, damaged=frozenset({start} if lost else ()), items_lost=len(lost))
        return list(Intervals((sequence, 1) for sequence in around)), expected

    def _take(self, piece: int, behind: int) -> Expected:
        """Take the live items of this damaged block and of one neighbour, and return the outcome."""
        runs, expected = self.around(piece, behind)
        store, ready = self._store, self._ready
        ready.returned, ready.damaged = Intervals(runs), Intervals()
        reader = Reader(store.context, ready, store.segments, Pages(0))
        items: list[bytes] = []
        damages: list[tuple[str, int]] = []
        while len(ready):
            try:
                items += reader.take(2**62)[1]
            except CorruptionError as damage:
                damages.append((damage.file, damage.offset))
        require(tuple(items) == expected.content.items, expected, items)
        require(damages == [(self._path, start) for start in expected.damaged], expected, damages)
        require(len(ready.damaged) == expected.items_lost, expected, ready.damaged)
        return expected


def _flip_chunk(image: Image, path: str, offsets: Iterable[int], tally: Tally) -> None:
    """Flip each bit of the bytes at these offsets, in place, and flip it back."""
    disk, starts, is_log = mount(image, {}), image.starts[path], path == image.log
    door, data = disk.disk, disk.inodes[disk.names[path]].cache
    probe = None if is_log or not image.sealed else _Probe(image, door, path)
    changed, expected = [-1], None
    for offset in offsets:
        piece = bisect_right(starts, offset) - 1
        if expected is None or [piece] != changed:
            changed = [piece]
            expected = expect(image, path, changed, data)
        for bit in range(8):
            number = 8 * offset + bit
            data[offset] ^= 1 << bit
            try:
                if expected.refused_at is not None:
                    _refuse(image, door, data, piece, expected, number)
                elif probe is not None and 0 < piece < len(starts) - 1 and number % _WHOLE_EVERY:
                    require(
                        probe.check(piece, bit, offset).items_lost == expected.items_lost, expected, "another block"
                    )
                else:
                    expected = check_case(image, path, bytes(data), changed, number)
            except Exception as error:
                raise tally.violated(error, f"{path}, bit {bit} of byte {offset} flipped") from error
            data[offset] ^= 1 << bit
            tally.add(expected)
    if probe is None and not is_as_it_was(image, disk, {}):
        raise tally.violated(ViolationError("a refusal changed files"), f"{path}, bytes from {offset}")


def _refuse(image: Image, door: Disk, data: bytearray, piece: int, expected: Expected, number: int) -> None:
    """Require that this piece of the log is refused: by opening, by reading the log, or by decoding the piece
    itself."""
    try:
        if number % _WHOLE_EVERY == 0:
            open_queue(image, door)
        elif piece == 0 or (number // 8 + number) % 8 == 0:
            read_log(door, image.log)
        else:
            (salt,) = struct.unpack_from("<Q", data, 24)
            decode_frame(bytes(data), image.starts[image.log][piece], salt, image.log)
    except CorruptionError as error:
        if (error.file, error.offset) != (image.log, expected.refused_at):
            raise
        return
    raise ViolationError("it was read")


def _flip(image: Image, paths: Iterable[str], part: int, parts: int, replay: str) -> Report:
    """Flip all used bits one after the other, and those of some bytes of the unused space after them."""
    chunks: list[tuple[str, range]] = []
    for path in paths:
        used_bytes = image.starts[path][-1] + len(END)
        chunks += [(path, range(at, min(at + _CHUNK_BYTES, used_bytes))) for at in range(0, used_bytes, _CHUNK_BYTES)]
        unused = range(used_bytes, len(image.files[path]), _UNUSED_EVERY)
        chunks += [(path, unused[at : at + _CHUNK_BYTES]) for at in range(0, len(unused), _CHUNK_BYTES)]
    tally = Tally(replay)
    for path, offsets in chunks[part::parts]:
        _flip_chunk(image, path, [at for at in offsets if at < len(image.files[path])], tally)
    return tally.report()


def flip_sealed(length_bytes: int, number: int = 0, part: int = 0, parts: int = 1) -> Report:
    """Flip each bit of the log and of the data files of a queue that was closed.

    A flip in the log is refused. A flip in a block costs its live items and no others, once, with the error that names
    the block. A flip costs nothing in a block without live items, or in unused space. Raises ``ViolationError``. Of
    ``parts`` processes, each does the ``part`` with its number.
    """
    queue = image(length_bytes, number, True)
    replay = f"python -m tests.crash flips --bytes {length_bytes} --seed {number}"
    return _flip(queue, [queue.log, *queue.blocks], part, parts, replay)


def flip_enclosed(length_bytes: int, number: int = 0, part: int = 0, parts: int = 1) -> Report:
    """Flip each bit of the data files of a queue that compresses and encrypts, like ``flip_sealed``."""
    queue = image(length_bytes, number, True, encloses=True)
    replay = f"python -m tests.crash flips-enclosed --bytes {length_bytes} --seed {number}"
    return _flip(queue, queue.blocks, part, parts, replay)


def flip_unsealed(length_bytes: int, number: int = 0, part: int = 0, parts: int = 1) -> Report:
    """Flip each bit of the log of a killed owner.

    A flip is refused if a valid frame follows. After a flip in the last frame, the exact prefix without it is there,
    and the frame is reported as torn. After a flip behind it, everything is there, and a torn tail is reported at the
    place of the next frame.
    """
    queue = image(length_bytes, number, False)
    replay = f"python -m tests.crash flips --bytes {length_bytes} --seed {number}"
    return _flip(queue, [queue.log], part, parts, replay)


def flips(length_bytes: int, number: int = 0, part: int = 0, parts: int = 1) -> Report:
    """Run ``flip_sealed`` and ``flip_unsealed``, and return the sum of their reports."""
    return add_reports(flip(length_bytes, number, part, parts) for flip in (flip_sealed, flip_unsealed))


# --- every cut -------------------------------------------------------------------------------------------------------


def _cuts(image: Image, path: str, random: Random) -> Iterator[tuple[str, bytes]]:
    """Yield the file in all cut versions: cut at every used byte, and at some bytes after those.

    Each cut is followed by nothing, and by one kind of other bytes. At last, yield the whole file, made longer.
    """
    written, used_bytes = image.files[path], image.starts[path][-1] + len(END)
    own_end = written[max(used_bytes - 300, 0) : used_bytes]
    for at in chain(range(min(used_bytes, len(written)) + 1), range(used_bytes + 1, len(written), _UNUSED_EVERY)):
        yield f"cut at {at}", written[:at]
        rest_bytes = len(written) - at
        tails = {"zeros": bytes(rest_bytes), "garbage": random.randbytes(rest_bytes), "its own end": own_end}
        name = list(tails)[at % len(tails)]
        yield f"cut at {at}, followed by {name}", written[:at] + tails[name]
    one_more = {f"the byte {byte}": bytes([byte]) for byte in (0, 1, 255)}
    longer = {"zeros": bytes(5000), "garbage": random.randbytes(5000), "its own end": own_end, "itself": written}
    for name, tail in (one_more | longer).items():
        yield f"followed by {name}", written + tail


def cut(length_bytes: int, number: int = 0, part: int = 0, parts: int = 1) -> Report:
    """Cut the logs and the data files of a closed queue and of a killed owner at every byte, and make them longer.

    The log of a closed queue is refused unless it is complete. The log of a killed owner opens to the exact prefix of
    commits that is there, and reports how many bytes are torn or missing. It is refused if its checkpoint is cut. A
    data file costs the live items of the blocks that are not whole. Raises ``ViolationError``. Of ``parts`` processes,
    each does the ``part`` with its number.
    """
    tally = Tally(f"python -m tests.crash truncate --bytes {length_bytes} --seed {number}")
    for sealed in (True, False):
        queue = image(length_bytes, number, sealed)
        for path in queue.starts:
            for at, (what, data) in enumerate(_cuts(queue, path, Random(number))):
                if at % parts == part:
                    try:
                        tally.add(check_case(queue, path, data, changed_pieces(queue, path, data), at))
                    except Exception as error:
                        raise tally.violated(error, f"{path}, {what}") from error
    return tally.report()
