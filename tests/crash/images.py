"""Queues made once from a seed, as files in memory, with everything that is known from making them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from random import Random
from typing import NamedTuple

from persistentqueue.core.block import BLOCK_HEADER_BYTES, ENVELOPED, decode_block_header
from persistentqueue.core.encryption import Envelopes
from persistentqueue.core.frame import FRAME_HEADER_BYTES
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.core.operations import Compaction, Enqueue, encode_operation
from persistentqueue.engine.context import Settings
from persistentqueue.engine.transaction import Transaction
from persistentqueue.recovery.opening import open_store
from persistentqueue.storage.log_reader import decode_log
from persistentqueue.storage.segment import segment_name

from .content import Content
from .disk import SimulatedDisk
from .explorer import DIRECTORY, ways

_Batch = tuple[list[bytes], list[int]]
"""Items that become a block, and their sequences, once they have them."""


class Block(NamedTuple):
    """A block, and the sequences of its items: none if it was rolled back."""

    start: int
    end: int
    items: list[bytes]
    sequences: list[int]
    carried: bool
    """True if the log has the block, too, so that opening writes it again."""


class Moment(NamedTuple):
    """Content of the queue after a frame."""

    live: tuple[int, ...]
    markers: tuple[tuple[str, int], ...]


class Image(NamedTuple):
    """Files of a queue, and everything that is known from making them."""

    files: dict[str, bytes]
    directories: list[str]
    settings: Settings
    sealed: bool
    log: str
    frames: list[int]
    """End of each frame of the log; the first frame holds the checkpoint."""
    moments: list[Moment]
    """Content of the queue after each frame."""
    enqueued: list[range]
    """Sequences that each frame enqueues."""
    items: list[bytes]
    """Items, by sequence."""
    blocks: dict[str, list[Block]]
    """Blocks, by data file."""
    starts: dict[str, list[int]]
    """Starts of the pieces of each file: the header, the frames or blocks, the unused space."""

    def content(self, live: Iterable[int], markers: tuple[tuple[str, int], ...]) -> Content:
        """Return the content with these sequences."""
        return Content(tuple(self.items[sequence] for sequence in live), markers)


class _Maker:
    """Works on a queue, and remembers its work."""

    def __init__(self, length_bytes: int, number: int, sealed: bool, compacts: bool, encloses: bool) -> None:
        self.random = Random(number)
        self.longest_bytes = max(min(length_bytes // (8 if sealed else 4), 16_000), 300)
        self.disk = SimulatedDisk()
        # The checksums of another image never fit.
        self.disk.salt = ((encloses << 64 | number << 32 | length_bytes) * 4 + 2 * sealed + compacts) << 32
        # Add reserves: at most seven tenths of a log may be used by enqueues, and that must be enough.
        used_bytes = length_bytes + 2 * self.longest_bytes
        log_bytes = max(length_bytes + 4 * self.longest_bytes + 1024, used_bytes * 10 // 7)
        self._compacts = compacts
        segment_bytes = length_bytes // 3 if compacts else length_bytes + self.longest_bytes
        self.settings = Settings(True, segment_bytes + HEADER_BYTES, 1 << 20, self.longest_bytes * 3 // 4, log_bytes)
        self._envelopes = ways()[-1] if encloses else None
        self.settings = replace(self.settings, envelopes=self._envelopes)
        self.store = open_store(self.disk.disk, DIRECTORY, self.settings, create=True)
        self.items: list[bytes] = []
        self.live: list[int] = []
        self.markers: dict[str, int] = {}
        self.written: dict[str, list[_Batch]] = {}
        """The blocks of each data file, in the order of writing."""
        self._waiting: list[tuple[Transaction, _Batch]] = []
        self.frames: list[int] = []
        self.moments: list[Moment] = []
        self.enqueued: list[range] = []

    def trim(self) -> None:
        """Begin a new generation; the remembered frames begin with its first."""
        self.store.trim()
        self.frames, self.moments, self.enqueued = [], [], []
        self._remember(range(0))

    def step(self, last: bool = False) -> None:
        """Commit a transaction. The ``last`` one is an item of a few bytes, so that the last frame is short."""
        chance = self.random.random
        if self._compacts and not last and chance() < 0.3:
            self._compact()
        batches: list[_Batch] = []
        if not last and chance() < 0.25:
            self.store.discard(self._spilled()[0])
        if not last and chance() < 0.2:
            self._waiting.append(self._spilled())
        transaction = Transaction()
        if self._waiting and not last and chance() < 0.3:
            transaction, batch = self._waiting.pop(0)
            batches.append(batch)
        batches.append(self._fill(transaction, [b"the last"] if last else None))
        skipped = Transaction(self.store.reader.ready)
        taken: list[int] = []
        if not last and len(self.live) > 10 and chance() < 0.3:
            skipped.runs += self._take(self.random.randrange(len(self.live) - 5))[0]
            transaction.ready = self.store.reader.ready
            transaction.runs, taken = self._take(self.random.randrange(1, 4))
        if not last and chance() < 0.1:
            name = self.random.choice("abc")
            self.markers[name] = self.markers.get(name, 0) + 1
            transaction.marker = (name, self.markers[name])
        self._commit(transaction, batches, taken)
        self._place(batches[-1])
        self.store.discard(skipped)

    def _compact(self) -> None:
        """Move the live items of one or two segments, unless a trim would follow at once."""
        room = 2 - len(self.store.state.drained)
        copy = self.store.begin_compaction(1.1, False, self.random.choice([0, 64])) if room > 0 else None
        if copy is None:
            return
        while copy.step() and len(copy.done) < room:
            pass
        transaction = Transaction()
        transaction.operations = copy.finish()
        moves = [move for each in transaction.operations if isinstance(each, Compaction) for move in each.moves]
        moved = [range(move.first, move.first + move.count) for move in moves]
        for _, sequences in chain.from_iterable(self.written.values()):
            sequences[:] = [n for n in sequences if not any(n in its for its in moved)]
        live = set(self.live)
        batches = [([self.items[n] if n in live else b"" for n in its], [n for n in its if n in live]) for its in moved]
        if batches:
            self.written[copy.target.path] = batches
            self._commit(transaction, [], [])
        self.store.end_compaction(copy)

    def mark(self) -> None:
        """Commit a new marker, which makes checkpoints longer."""
        transaction = Transaction()
        name = f"{len(self.markers)} " + self.random.choice("xé€") * self.random.randrange(1, self.longest_bytes // 3)
        self.markers[name] = self.random.randrange(2**64)
        transaction.marker = (name, self.markers[name])
        self._commit(transaction, [], [])

    def end(self, sealed: bool) -> Image:
        """Close the queue, or leave it like a killed owner; return its files and everything that is known of them."""
        if sealed:
            self.store.close()
        else:
            self.store.abandon()
        files = {name: bytes(self.disk.inodes[n].cache) for name, n in self.disk.names.items() if n > 0}
        log = max(name for name in files if name.endswith(".log"))
        if sealed:
            (body_bytes,) = struct.unpack_from("<I", files[log], HEADER_BYTES + 16)
            self.frames = [HEADER_BYTES + FRAME_HEADER_BYTES + body_bytes]
            self.moments, self.enqueued = self.moments[-1:], [range(0)]
        operations = (o for frame in decode_log(files[log], log).frames for done in frame.transactions for o in done)
        enqueues = (operation for operation in operations if isinstance(operation, Enqueue) and operation.inline)
        carried = {(f"{DIRECTORY}/data/{segment_name(enqueue.segment)}", enqueue.offset) for enqueue in enqueues}
        blocks: dict[str, list[Block]] = {}
        for name in sorted(name for name in files if name.endswith(".seg")):
            blocks[name] = []
            for (start, end, items), (wrote, sequences) in zip(
                _blocks_in(files[name], self._envelopes), self.written[name], strict=sealed
            ):
                assert items == wrote, "the format is not what its document says"
                blocks[name].append(Block(start, end, items, sequences, (name, start) in carried))
        starts = {log: [0, HEADER_BYTES, *self.frames]}
        starts |= {name: [0, HEADER_BYTES, *(block.end for block in its)] for name, its in blocks.items()}
        known = (self.frames, self.moments, self.enqueued, self.items, blocks, starts)
        directories = [name for name, n in self.disk.names.items() if n < 0]
        return Image(files, directories, self.settings, sealed, log, *known)

    def _spilled(self) -> tuple[Transaction, _Batch]:
        transaction = Transaction()
        batch = self._fill(transaction)
        self.store.spill(transaction)
        self._place(batch)
        return transaction, batch

    def _fill(self, transaction: Transaction, items: list[bytes] | None = None) -> _Batch:
        items = self._some_items() if items is None else items
        transaction.add(items)
        return items, []

    def _place(self, batch: _Batch) -> None:
        """Note that the batch is one block, and was written last."""
        current = self.store.segments.current
        assert current is not None
        self.written.setdefault(current.path, []).append(batch)

    def _take(self, count: int) -> tuple[list[tuple[int, int]], list[int]]:
        runs, items = self.store.reader.take(count)
        sequences = [sequence for first, size in runs for sequence in range(first, first + size)]
        assert items == [self.items[sequence] for sequence in sequences]
        return runs, sequences

    def _commit(self, transaction: Transaction, batches: list[_Batch], taken: list[int]) -> None:
        used_bytes, capacity_bytes = self.store.generations.log_bytes
        if capacity_bytes - used_bytes < self.longest_bytes + 1000:
            self.trim()
        generation, first = self.store.generations.number, len(self.items)
        self.store.commit([transaction])
        assert self.store.generations.number == generation, "the log was trimmed"
        for items, sequences in batches:
            sequences.extend(range(len(self.items), len(self.items) + len(items)))
            self.items += items
        enqueued = range(first, len(self.items))
        self.live = [sequence for sequence in self.live if sequence not in taken] + list(enqueued)
        self._remember(enqueued)

    def _remember(self, enqueued: range) -> None:
        self.frames.append(self.store.generations.log_bytes[0])
        self.moments.append(Moment(tuple(self.live), tuple(sorted(self.markers.items()))))
        self.enqueued.append(enqueued)

    def _some_items(self) -> list[bytes]:
        """Return items of all shapes; some look like a block or a frame."""
        random, many = self.random, self.random.choice([1, 1, 2, 3, 8])
        text = b"%d " % len(self.items)
        kind = random.choice(["mixed", "mixed", "uniform", "empty", "copy", "long", "long"])
        if kind == "uniform":
            return [(text + b"%d " % at).ljust(40, b".") for at in range(many)]
        if kind == "empty":
            return [b""] * many
        if kind == "copy":
            path = random.choice([name for name in self.disk.names if name.endswith((".seg", ".log"))])
            return [text, bytes(self.disk.inodes[self.disk.names[path]].cache[HEADER_BYTES:][:200])]
        if kind == "long":
            return [random.randbytes(random.randrange(self.longest_bytes - 50))]
        return [text * random.randrange(self.longest_bytes // 10 // len(text)) for _ in range(many)]


def _blocks_in(data: bytes, envelopes: Envelopes | None) -> Iterator[tuple[int, int, list[bytes]]]:
    """Yield start, end and items of the blocks of an undamaged data file.

    The blocks are read by the documented format, without the code of the package for plain blocks.
    """
    (salt,) = struct.unpack_from("<Q", data, 24)
    at = HEADER_BYTES
    while data[at : at + 4] == b"PQBk":
        flags, count = struct.unpack_from("<II", data, at + 4)
        (body_bytes,) = struct.unpack_from("<Q", data, at + 24)
        body_at, end = at + BLOCK_HEADER_BYTES, at + BLOCK_HEADER_BYTES + body_bytes
        if flags & ENVELOPED:
            assert envelopes is not None
            header = decode_block_header(data, at, salt, at, "")
            yield at, end, envelopes.open(data[body_at:end], header, at, "")
            at = end
            continue
        written = 1 if flags else count
        sizes = struct.unpack_from(f"<{written}I", data, body_at) * (count if flags else 1)
        ends = list(accumulate(sizes, initial=body_at + 4 * written))
        yield at, end, [data[a:b] for a, b in pairwise(ends)]
        at = end


@lru_cache(maxsize=32)
def image(length_bytes: int, number: int, sealed: bool, compacts: bool = False, encloses: bool = False) -> Image:
    """Return a queue with a log of ``length_bytes`` or a little more in use; up to a MiB.

    If ``sealed``, its first data file is used for as many bytes, too. The log has older frames in its unused space.
    Some blocks were rolled back. Some have items that are consumed in part or as a whole. Not all blocks are in the
    order of their sequences. With ``compacts`` there are several segments, and live items of some were moved to others.
    With ``encloses`` the queue compresses and encrypts.
    """
    maker = _Maker(length_bytes, number, sealed, compacts, encloses)
    for _ in range(3):  # so that the log's file has older content
        maker.step()
        maker.trim()
    if not sealed:
        while maker.frames[-1] < length_bytes:
            maker.step()
        maker.step(last=True)
        return maker.end(sealed)
    while sum(name.endswith(".seg") for name in maker.disk.names) < 2:
        maker.step()
    maker.step(last=True)
    checkpoint_bytes = len(encode_operation(maker.store.state.checkpoint(0, None, ())))
    while checkpoint_bytes < length_bytes:
        maker.mark()
        checkpoint_bytes += len(list(maker.markers)[-1].encode()) + 11
    return maker.end(sealed)
