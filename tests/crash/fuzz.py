"""Mutations that know the formats: fields, frames and blocks changed, moved and forged, checksums fitting or not."""

from __future__ import annotations

import errno
import multiprocessing
import resource
import signal
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from random import Random
from types import FrameType
from zlib import crc32

from persistentqueue.core.block import BLOCK_HEADER_BYTES
from persistentqueue.core.frame import FRAME_HEADER_BYTES
from persistentqueue.core.header import HEADER_BYTES, seed
from persistentqueue.engine.transaction import Transaction
from persistentqueue.errors import PersistentQueueError, UnsupportedFormatError
from persistentqueue.recovery import check
from persistentqueue.system.disk import Buffers, Disk
from tests.support.disks import call_on

from .content import Content
from .damage import (
    Expected,
    Report,
    Tally,
    changed_pieces,
    check_case,
    is_as_it_was,
    mount,
    open_queue,
    read_all,
    require,
)
from .disk import SimulatedDisk
from .explorer import DIRECTORY
from .exploring import ViolationError
from .hostile import MEMORY_BYTES, hostile
from .images import Image, image

_FILE_BYTES_MAX = 1 << 24
_CASE_SECONDS = 10.0
_FUZZED_BYTES = (400, 2000)
_FORGED = (0, 1, 2, 7, 0x7F, 0xFF, 0xFFFF, 2**16, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**63, 2**64 - 64, 2**64 - 1)
_FIELDS_OFFSETS = (0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 41, 44, 48, 49, 57, 65, 73, 81, 89, *range(97, 400, 8))


def _mutate(queue: Image, donor: Image, path: str, random: Random) -> list[bytearray]:
    """Return the pieces of the file after one to three mutations; some have parts of the donor's file."""
    starts, written = queue.starts[path], queue.files[path]
    pieces = [bytearray(written[start:end]) for start, end in pairwise([*starts, len(written)])]
    theirs = donor.files[donor.log if path == queue.log else min(donor.blocks)]
    bounds = [*donor.starts[donor.log if path == queue.log else min(donor.blocks)], len(theirs)]
    for _ in range(random.choice([1, 1, 2, 3])):
        at, other = random.randrange(len(pieces)), random.randrange(len(pieces))
        piece = pieces[at]
        place = random.choice([*_FIELDS_OFFSETS, random.randrange(len(piece) + 1)])
        how = random.choice(
            ["flip", "field", "field", "field", "twice", "swap", "drop", "splice", "theirs", "cut", "add"]
        )
        if how == "flip" and place < len(piece):
            piece[place] ^= 1 << random.randrange(8)
        elif how == "field":
            width = random.choice([1, 2, 4, 8])
            old = int.from_bytes(piece[place : place + width], "little")
            value = random.choice([*_FORGED, old + 1, old - 1, old * 2]) % 256**width
            piece[place : place + width] = value.to_bytes(width, "little")[: max(len(piece) - place, 0)]
        elif how == "twice":
            pieces.insert(other, bytearray(piece))
        elif how == "swap":
            pieces[at], pieces[other] = pieces[other], piece
        elif how == "drop" and len(pieces) > 1:
            del pieces[at]
        elif how == "splice":
            pieces[at] = piece[:place] + pieces[other][random.randrange(len(pieces[other]) + 1) :]
        elif how == "theirs":
            index = random.randrange(1, len(bounds) - 1)  # a header of another queue is valid as a header
            pieces[at] = bytearray(theirs[bounds[index] : bounds[index + 1]])
        elif how == "cut":
            pieces[at:] = [piece[:place]]
        elif how == "add":
            piece[place:place] = random.randbytes(random.choice([1, 8, 300]))
    return pieces


def _forge(pieces: list[bytearray], is_log: bool, chained: bool) -> bytes:
    """Return the file with checksums that fit in the header and in each piece.

    With ``chained``, its frames also follow each other.
    """
    offsets = list(accumulate(map(len, pieces), initial=0))
    data = bytearray().join(pieces)
    data[60:HEADER_BYTES] = crc32(data[:60]).to_bytes(4, "little")
    salt = int.from_bytes(data[24:32], "little")
    previous, number = bytes(4), int.from_bytes(data[HEADER_BYTES + 8 : HEADER_BYTES + 16], "little")
    for at in offsets[1:-2]:
        start, end = seed(salt, at), at + (FRAME_HEADER_BYTES if is_log else BLOCK_HEADER_BYTES)
        if end > len(data):
            break
        if is_log:
            if chained:
                data[at + 4 : at + 8] = data[24:28]
                data[at + 8 : at + 16] = (number % 2**64).to_bytes(8, "little")
                data[at + 28 : at + 32] = previous
            body = data[end:][: int.from_bytes(data[at + 16 : at + 20], "little")]
            data[end - 4 : end] = previous = crc32(body, crc32(data[at : end - 4], start)).to_bytes(4, "little")
            number += 1
        else:
            body = data[end:][: int.from_bytes(data[at + 24 : at + 32], "little")]
            data[at + 12 : at + 16] = crc32(body, start).to_bytes(4, "little")
            data[end - 4 : end] = crc32(data[at : end - 4], start).to_bytes(4, "little")
    return bytes(data)


def _limited(disk: Disk) -> Disk:
    """Return the disk with two properties of a real one: it refuses offsets that are too large, and allocates reads."""

    def limit(offset: int, end: int, most: int) -> None:
        if max(offset, end) >= 2**63:
            raise OverflowError("Python int too large to convert to C long")
        if end > most:
            raise OSError(errno.EFBIG, "File too large")

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        limit(offset, length_bytes, 2**63)
        return disk.pread(fd, len(bytearray(length_bytes)), offset)

    def pwritev(fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        limit(offset, offset, _FILE_BYTES_MAX)
        return disk.pwritev(fd, buffers, offset, flags)

    def ftruncate(fd: int, size_bytes: int) -> None:
        limit(0, size_bytes, _FILE_BYTES_MAX)
        disk.ftruncate(fd, size_bytes)

    def fallocate(fd: int, offset: int, length_bytes: int) -> None:
        limit(length_bytes, offset + length_bytes, _FILE_BYTES_MAX)
        disk.fallocate(fd, offset, length_bytes)

    return replace(disk, pread=pread, pwritev=pwritev, ftruncate=ftruncate, fallocate=fallocate)


def _damage(queue: Image, path: str, data: bytes, how: int) -> Expected:
    """Check a file with checksums that do not fit, and return its expected outcome.

    Opening, ``check`` and ``repair`` must have exactly that outcome.
    """
    changed = changed_pieces(queue, path, data)
    expected, disk = check_case(queue, path, data, changed, how), mount(queue, {path: data})
    report = call_on(disk.disk, check.check, DIRECTORY)
    require(is_as_it_was(queue, disk, {path: data}), "a check that changes nothing", disk.names)
    if expected.outcome in {"refused", "damaged"} or not changed:
        require(report.ok == (not changed), expected, report)
    repaired = call_on(disk.disk, check.repair, DIRECTORY)
    found = _reopen(queue, disk)
    require(repaired.items == len(found.items), repaired, found)
    if expected.refused_at is None:
        require(found == expected.content, expected, (found, repaired))
    elif changed[0] < 2:
        blocks = chain.from_iterable(queue.blocks[name] for name in sorted(queue.blocks))
        everything = tuple(chain.from_iterable(block.items for block in blocks))
        require(found.items == everything, everything, (found, repaired))
    else:
        gone = set(chain.from_iterable(queue.enqueued[piece - 1] for piece in changed if piece <= len(queue.frames)))
        must = [queue.items[sequence] for sequence in queue.moments[-1].live if sequence not in gone]
        require(_are_among(must, found.items), must, (found, repaired))
        require(_are_among(found.items, queue.items), "items in their order", (found, repaired))
    kept = [disk.inodes[number].cache for name, number in disk.names.items() if name.endswith(".damaged")]
    require(data in kept or expected.outcome in {"right", "torn"} or not expected.items_lost, "a copy", disk.names)
    return expected


def _reopen(queue: Image, disk: SimulatedDisk) -> Content:
    """Return the content after a repair. ``check`` must find no problem."""
    report = call_on(disk.disk, check.check, DIRECTORY)
    require(report.ok, "a queue that is in order after its repair", report)
    store = open_queue(queue, disk.disk)
    found, damages = read_all(store, 2)
    require(not damages, "no damage after a repair", damages)
    store.release()
    return found


def _are_among(some: Iterable[bytes], items: Iterable[bytes]) -> bool:
    """Return if ``some`` are among the items, in the same order."""
    left = iter(items)
    return all(item in left for item in some)


def _forged(queue: Image, files: dict[str, bytes]) -> None:
    """Check files with checksums that fit: any content, or a ``PersistentQueueError``; and a repair that opens."""
    with suppress(PersistentQueueError):
        store = open_queue(queue, _limited(mount(queue, files).disk))
        try:
            read_all(store, 0)
            read_all(store, 2)
            transaction = Transaction()
            transaction.add([b"one more"])
            store.commit([transaction])
            store.close()
        finally:
            store.release()
    disk = mount(queue, files)
    with suppress(UnsupportedFormatError):
        call_on(_limited(disk.disk), check.check, DIRECTORY)
        call_on(_limited(disk.disk), check.repair, DIRECTORY)
        _reopen(queue, disk)


def fuzz_case(number: int) -> Expected:
    """Run one mutation with all its checks within ten seconds; return its outcome. Raises ``ViolationError``."""
    tally, random = Tally(f"python -m tests.crash fuzz --first {number} --count 1"), Random(number)
    queue, donor = (
        image(random.choice(_FUZZED_BYTES), random.randrange(4), random.random() < 0.5, random.random() < 0.5)
        for _ in range(2)
    )
    paths = random.sample(list(queue.starts), random.choice([1, 1, 2]))
    pieces = {path: _mutate(queue, donor, path, random) for path in paths}
    signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, _CASE_SECONDS)
    try:
        if len(paths) == 1 and random.random() < 0.5:
            data = b"".join(pieces[paths[0]])
            return _damage(queue, paths[0], data, number)
        files = {path: _forge(its, path == queue.log, random.random() < 0.7) for path, its in pieces.items()}
        _forged(queue, files)
        return Expected("forged", Content())
    except Exception as error:
        raise tally.violated(error, f"{paths} mutated") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _late(number: int, frame: FrameType | None) -> None:
    raise ViolationError(f"no answer in {_CASE_SECONDS} s")


def _fuzz(first: int, count: int) -> Report:
    tally = Tally("")
    for number in range(first, first + count):
        tally.add(fuzz_case(number))
    return tally.report()


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def fuzz(count: int, first: int = 0) -> Report:
    """Run mutations that know the formats, from seed ``first`` on, in a process with 512 MiB of address space.

    If the checksums do not fit, the promises are those of flips and cuts. ``check`` reports the damage and changes
    nothing, and ``repair`` restores everything intact, in its order. If the checksums fit, any content or a
    ``PersistentQueueError`` is allowed, soon and in bounded memory. After a ``repair`` the queue is in order.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_limit_memory) as pool:
        try:
            return pool.submit(_fuzz, first, count).result()
        except BrokenProcessPool as error:
            raise ViolationError(f"the process died of a seed from {first} to {first + count - 1}") from error


def fuzz_files(count: int, first: int = 0) -> str:
    """Plant hostile files in every place of a queue's directory, open it by every entry, and return a summary.

    Each case runs in a fork of one process; see ``hostile``. Raises ``ViolationError``.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(hostile, first, count).result()
