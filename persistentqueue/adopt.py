"""Adopting what other processes have published: their files become segments, by a frame and a rename.

The write order of an adoption (``adopt.1`` …):

1. Read what is published (see ``publication``), in the order of the names; set aside what does not check out. Sync the
   inbox: a name that its producer has yet to make durable could vanish after the frame that speaks of it. *A crash
   leaves what was published, which is found again.*
2. Write the frame: an *adoption*, an *enqueue* and perhaps a *marker* for each. **This is the commit point.** What says
   a marker that was reached before is skipped.
3. Rename each file to its segment. *A crash leaves files in the inbox that the log says are segments; the next opening
   renames them.* The names are durable before a trim drops the frame. A power cut may take a frame that a killed owner
   left in the page cache, or that was never synced, and not the names: a published file that the log knows nothing of,
   and has not retired, goes back to the inbox.
4. Apply the operations to the state in memory, as any commit does. Then delete what was skipped: found again, it would
   be skipped again.

No byte of an item is copied, or read before it is dequeued. What there is no room for stays where it is, and all behind
it, since each producer's order is kept. Everything here is for the thread that writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from stat import S_ISREG

from .directory import names_in, set_aside
from .disk import READ, Disk, join, sync_directory
from .errors import CorruptionError, UnsupportedFormatError
from .frame import Adoption
from .header import HEADER_BYTES
from .publication import Name, Publication, parse_name, read_publication
from .quota import OverLimitError, Quota
from .segments import Piece, Segments
from .transaction import Transaction

ADOPTED_MAX = 256
"""So many at most share a frame."""
GRACE_SECONDS = 3600.0
"""A draft that nobody holds the lock of is swept when it was not written to for so long."""
_TICK_NS, _COARSE_TICK_NS = 20_000_000, 2_000_000_000
"""Two changes of a directory within this time may have left it with the same time of change: Linux counts in steps of
up to 10 ms, and a file system that keeps whole milliseconds, or less, perhaps in steps of two seconds."""
_PATIENCE_NS = 1_000_000


class Adopter:
    """The inbox of a queue, as its owner sees it."""

    def __init__(self, disk: Disk, directory: str, segments: Segments, quota: Quota) -> None:
        self._disk = disk
        self.directory = directory
        self._segments = segments
        self._quota = quota
        self._seen_ns = -1
        """The time of the directory's last change when it was looked into, and found empty."""
        self._is_doubtful = False
        """Whether it may have changed since, and not show it."""
        self._looked_ns = -_PATIENCE_NS
        self._listed: deque[str] = deque()
        """What was found when the directory was last looked into, in order, and not dealt with yet."""
        self.damage: deque[CorruptionError] = deque()
        """What was set aside, and told to nobody yet."""

    def has_news(self, insists: bool = False) -> bool:
        """Whether there may be anything to adopt: one call of the system, in the usual case, and none within a
        millisecond of the last look, unless who asks ``insists``. Raises ``OSError``."""
        now_ns = self._disk.time_ns()
        if not insists and self._looked_ns <= now_ns < self._looked_ns + _PATIENCE_NS:
            return False
        self._looked_ns = now_ns
        try:
            return self._is_doubtful or self._disk.lstat(self.directory).st_mtime_ns != self._seen_ns
        except FileNotFoundError:  # somebody has taken it away: nobody can publish anything
            return False

    def begin(self) -> list[Transaction]:
        """Step 1, but for the sync: the transactions to commit, each of one published file.

        Raises ``OSError`` and ``UnsupportedFormatError`` for a file that cannot be read, if none is before it: it stays
        where it is, and so does what is behind it. Nothing has changed then.
        """
        if not self._listed:
            self._list()
        if self._listed:
            self._disk.failpoint("adopt.1 read")
        transactions: list[Transaction] = []
        while self._listed and len(transactions) < ADOPTED_MAX:
            path = self._path(self._listed[0])
            try:
                publication = read_publication(self._disk, path)
                if publication.name != self._listed[0]:
                    raise CorruptionError(path, 0, f"what was published as {self._listed[0]}", publication.name)
                self._quota.take(path, self._segments.directory)
            except FileNotFoundError:  # somebody has taken it away
                pass
            except CorruptionError as damage:
                set_aside(self._disk, path)
                self.damage.append(damage)
            except OverLimitError:
                break
            except (OSError, UnsupportedFormatError):
                if not transactions:
                    raise
                break
            else:
                transactions.append(self._transaction(publication))
            self._listed.popleft()
        return transactions

    def sync(self) -> None:
        """Step 1, the end of it. Raises ``OSError``."""
        sync_directory(self._disk, self.directory)

    def rename(self, transactions: Sequence[Transaction]) -> None:
        """Step 3, for those that were committed. Raises ``OSError``."""
        for transaction in transactions:
            for number, _, _, name in transaction.adoptions:
                self._disk.failpoint("adopt.3 rename")
                self._segments.adopt(number, self._path(name))

    def end(self, transactions: Sequence[Transaction]) -> bool:
        """Step 4, the end of it: delete what was skipped, and what had no items. Whether any file has left the inbox;
        nothing happened to those that are not settled."""
        has_left = False
        refused = [transaction.published for transaction in transactions if not transaction.settled]
        self._listed.extendleft(reversed(refused))
        for transaction in transactions:
            path = self._path(transaction.published)
            if not transaction.settled:
                self._quota.leave(path)
            elif transaction.skipped or not transaction.adoptions:  # its marker is durable
                with suppress(OSError):  # found again, it is skipped again
                    self._disk.unlink(path)
                    has_left = True
            else:
                has_left = True
        return has_left

    def take_back(self, names: Mapping[int, str]) -> None:
        """Put segments back into the inbox under these names, durably, since a power cut took their adoption. They are
        whole: their producers have synced them."""
        for number, name in names.items():
            self._disk.rename(self._segments.path(number), self._path(name))
        sync_directory(self._disk, self.directory)

    def sweep(self) -> bool:
        """Delete drafts that their producers have left behind; whether there is anything else."""
        names = names_in(self._disk, self.directory)
        for name in names:
            parsed = parse_name(name)
            if parsed is not None and parsed.is_draft:
                with suppress(OSError):
                    self._sweep(self._path(name))
        return bool(names)

    def _sweep(self, path: str) -> None:
        if not S_ISREG(self._disk.lstat(path).st_mode):
            return
        fd = self._disk.open(path, READ, 0)
        try:
            # Between the making of a file and its lock there is a moment in which it seems to be nobody's.
            age_ns = self._disk.time_ns() - self._disk.fstat(fd).st_mtime_ns
            if age_ns >= GRACE_SECONDS * 1e9 and self._disk.lock(fd):
                self._disk.unlink(path)
        finally:
            self._disk.close(fd)

    def _list(self) -> None:
        """Look for what is published. None is left out that its producer published before another one."""
        now_ns, changed_ns = self._disk.time_ns(), self._disk.lstat(self.directory).st_mtime_ns
        newest = {parsed.producer: parsed.time_ns for _, parsed in self._published()}
        if newest:
            # A listing may miss what came while it was made, and have what came later.
            published = self._published()
            self._listed.extend(name for name, parsed in published if parsed.time_ns <= newest.get(parsed.producer, -1))
        self._seen_ns = -1 if newest else changed_ns
        tick_ns = _TICK_NS if changed_ns % 1_000_000 else _COARSE_TICK_NS
        self._is_doubtful = now_ns - changed_ns <= tick_ns

    def _published(self) -> list[tuple[str, Name]]:
        """The names of what is published, in order."""
        names = sorted(self._disk.listdir(self.directory))
        return [(name, parsed) for name in names if (parsed := parse_name(name)) is not None and not parsed.is_draft]

    def _transaction(self, publication: Publication) -> Transaction:
        transaction = Transaction()
        transaction.published = publication.name
        transaction.marker = publication.marker
        if publication.count:
            number = self._segments.next_number
            self._segments.next_number = number + 1
            adoption = Adoption(number, publication.salt, publication.capacity_bytes, publication.name)
            transaction.adoptions = [adoption]
            _, _, _, count, length_bytes, checksum, _ = publication
            transaction.pieces = [Piece(number, HEADER_BYTES, length_bytes, count, 0, checksum, [])]
        return transaction

    def _path(self, name: str) -> str:
        return join(self.directory, name)
