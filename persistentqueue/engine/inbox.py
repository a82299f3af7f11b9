"""The inbox, as the owner of the queue sees it: which published files are there, and what becomes of each of them.

``Inbox`` lists, reads, renames, sets aside, deletes and sweeps the files. ``adoption`` commits what they hold, and has
the write order that the failpoints here belong to. Everything here is for the writer.

The inbox may contain any files, in any number. The work is bounded by the bytes that are really there. It is done in
*steps* of at most ``LOOK_NAMES`` names, or of ``STEP_NAMES`` names if none of these is valid. Files that are not valid
are set aside. A file that can neither be read nor renamed is *skipped*, with all files that its producer has published
behind it. The files of other producers are adopted all the same.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from logging import ERROR, WARNING

from ..core.header import HEADER_BYTES
from ..core.operations import Adoption
from ..errors import CorruptionError, MemoryShortageError, PersistentQueueError, UnsupportedFormatError
from ..storage.layout import DAMAGED_SUFFIX, names_in, set_aside
from ..storage.locations import INBOX_DIRECTORY
from ..storage.publication import (
    DRAFT_SUFFIX,
    PRODUCER,
    Part,
    Publication,
    Request,
    is_part,
    is_published,
    opened_dense,
    parse_name,
    read_publication,
)
from ..storage.segment_files import Piece, Segments
from ..system.disk import DIRECTORY, READ, basename, join
from ..system.event_log import LOGGER
from ..system.files import names_of, sync_directory
from ..system.path_errors import faults, suppress
from ..system.quota import OverLimitError
from ..system.trust import need_regular
from .context import Context
from .transaction import Transaction

ADOPTED_MAX = 256
"""Number of files in a frame from which on no further publication is added to it."""
STEP_NAMES = 256
"""Number of listed names that one step looks at, if none of them is valid."""
LOOK_NAMES = 1024
"""Number of listed names that one step looks at, at most.

A caller that does not wait, or only passes by, looks at about as many, which takes a few hundredths of a second."""
TOLD_MAX = 64
"""Largest number of errors that wait to be raised. The event log and the counters have all errors."""
_SKIPS_ASKED = 16
"""Number of skipped files that a caller checks again if it finds nothing else: they may be readable now."""
_RELISTINGS_MAX = 8
"""Largest number of further listings, for files that were published while a listing was made."""
DRAFT_SECONDS_KEPT = 3600.0
"""Seconds since the last write to a draft, after which it is swept if no process holds its lock."""
PART_SECONDS_KEPT = 7 * 86400.0
"""Age in seconds at which a part is swept if no manifest names it. No part of six days is published any more."""
_TICK_NS, _COARSE_TICK_NS = 20_000_000, 2_000_000_000
"""Nanoseconds within which two changes of a directory may leave the same time of change.

Linux counts this time in steps of up to 10 ms. The second value is for a file system that keeps whole milliseconds or
less, perhaps in steps of two seconds."""
_PATIENCE_NS, _PATIENCE_NS_MAX = 1_000_000, 1_000_000_000
"""Least and largest pause before a thread that only passes by lists the inbox again."""
_LISTINGS = 10
"""Length of this pause, in durations of the last listing: the files may be many."""
READABLE = "a file that the owner of the queue may read"
MEND = "let its user grant the right to read it, for example to the group of the inbox, then rename it to its old name"
_SEQUENCES = 2**63
"""Upper bound of all sequences. No queue reaches it, so that a file which exceeds it is forged, with holes."""


class Inbox:
    """The inbox of a queue: lists, reads, sets aside, renames and deletes its files."""

    def __init__(self, context: Context, segments: Segments) -> None:
        self._disk = context.disk
        self._state = context.state
        self.directory = context.places.path(INBOX_DIRECTORY)
        self._quota = context.quota
        self._segments = segments
        self._seen_ns = -1
        """Time of the directory's last change, when it was listed."""
        self._is_doubtful = False
        """Whether the directory may have changed since then without a new time of change."""
        self._listed_ns = -_PATIENCE_NS
        self._patience_ns = _PATIENCE_NS
        self._listed: OrderedDict[str, None] = OrderedDict()
        """Names of the last listing that were not dealt with yet, in order."""
        self.is_cut = False
        """Whether the last adoption ended before the end of the listing. The next one continues with the rest."""
        self._skipped: dict[str, tuple[str, tuple[int, int]]] = {}
        """By producer, the name of its first skipped file, and the ``_traits`` that the file had."""
        self._skips_told: set[str] = set()
        self._unread: list[str] = []
        """Listed names that were not read ahead of their turn, the next one last."""
        self._read_ahead: set[str] = set()
        """Listed names that were read ahead of their turn."""
        self._requests: dict[str, Request] = {}
        """Requests among these: few of very many files."""
        self.damage: deque[PersistentQueueError] = deque()
        """Errors that no consumer has got yet, of files that were set aside, are skipped, or never fit."""
        self.set_aside = 0
        """Number of published files that were set aside."""
        self._swept_ns = 0
        self._sync_names: Callable[[], None] | None = None
        """Function that syncs the inbox while it is ``opened``; None otherwise."""
        self.is_gone = False
        """Whether the directory was missing at the last look."""

    def watched(self) -> AbstractContextManager[int]:
        """Open the directory, and yield its descriptor, for the duration of the ``with`` block. Raises ``OSError``."""
        return self._disk.opened(self.directory, READ | DIRECTORY)

    def has_news(self, insists: bool = False) -> bool:
        """Return whether there may be anything to adopt. Usually this is one system call. Raises ``OSError``."""
        return bool(self._listed) or self._has_changed(insists) or (insists and self._ends_skip())

    @property
    def left(self) -> int:
        """Number of listed names that were not dealt with."""
        return len(self._listed)

    def look(self, insists: bool = False) -> None:
        """List the published files if nothing is listed, or if the inbox may have changed. Raises ``OSError``.

        After an adoption that ``is_cut``, keep the list until it is empty.
        """
        if not self._listed or (not self.is_cut and self._has_changed(insists)):
            self._list()

    def _has_changed(self, insists: bool) -> bool:
        """Return whether the directory may have changed since it was listed.

        Unless the caller ``insists``, return False for a while after each listing, longer if listing takes long.
        """
        if not insists and self._listed_ns <= self._disk.time_ns() < self._listed_ns + self._patience_ns:
            return False
        try:
            changed_ns = self._disk.lstat(self.directory).st_mtime_ns
        except FileNotFoundError:  # the inbox was removed, so that no process can publish anything
            self.is_gone = True
            return False
        self.is_gone = False
        return self._is_doubtful or changed_ns != self._seen_ns

    def begin(self, next_sequence: int, most: int, fits: Callable[[int, int], bool]) -> list[Transaction]:
        """Do step 1 without the sync: return the next listed files as transactions, one for each published file.

        These are at most ``most`` files, up to the first one that does not fit behind the others. ``fits`` takes a
        number of items, and the bytes of their blocks. The items are numbered from ``next_sequence`` on. Return an
        empty list if none of the next ``STEP_NAMES`` files is valid. The last transaction has its ``error`` set if a
        limit on the disk leaves no room for it.

        Raises ``OSError`` if the first file cannot be read for now. It stays in the inbox, with all files behind it.
        """
        if self._listed:
            self._disk.failpoint("adopt.1 read")
        transactions: list[Transaction] = []
        taken: set[str] = set()
        count = length_bytes = 0
        for looked, name in enumerate(list(islice(self._listed, LOOK_NAMES))):
            if looked >= STEP_NAMES and not transactions:
                break
            try:
                publication = self._read(name, next_sequence)
            except faults(OSError):
                if not transactions:
                    raise
                break
            if publication is None:
                del self._listed[name]
                continue
            if transactions and not _are_alike(transactions[-1].request, publication.request):
                break  # the answer to a request depends on what is before it
            if not taken.isdisjoint(part.name for part in publication.parts):
                break  # a manifest before it names the same part, which is not in the inbox any more by then
            transactions.append(self._transaction(publication))
            taken.update(file.name for file in publication.files)
            next_sequence += publication.items
            count += publication.items
            length_bytes += sum(file.length_bytes for file in publication.files)
            if transactions[-1].error is not None or len(taken) >= ADOPTED_MAX or len(transactions) >= most:
                break
            if count and not fits(count, length_bytes):
                break
        return transactions

    def begin_behind(self, needs_no_order: Callable[[Request], bool]) -> list[Transaction]:
        """Return later requests that may be handled out of order, when there is no room for the first listed file.

        Each file is read once for this. An invalid file is reported in its turn.
        """
        while self._unread:
            name = self._unread[-1]
            try:
                request = self._read_request(name)
            except PermissionError:  # it is read again behind the next listing
                request = None
            except faults(OSError, MemoryShortageError):
                break  # this file may be a request that the later ones depend on
            else:
                self._read_ahead.add(name)
            self._unread.pop()
            if request is not None:
                self._requests[name] = request
        transactions = []
        for name, request in self._requests.items():
            if name in self._listed and needs_no_order(request):
                transaction = Transaction()
                transaction.published, transaction.request = name, request
                transactions.append(transaction)
        return transactions

    def _read_request(self, name: str) -> Request | None:
        """Return the request in this file; None for another file, and for an invalid one. Raises ``OSError`` and
        ``MemoryShortageError``."""
        with suppress(FileNotFoundError, CorruptionError, UnsupportedFormatError):
            publication = read_publication(self._disk, self.path(name))
            return publication.request if publication.name == name else None
        return None

    def tell(self, error: PersistentQueueError) -> None:
        """Write the error to the event log, and keep it for the next consumer that finds no item.

        If ``TOLD_MAX`` errors wait already, only write it to the event log.
        """
        if len(self.damage) < TOLD_MAX:
            self.damage.append(error.with_traceback(None))
        is_damage = isinstance(error, CorruptionError)
        LOGGER.log(ERROR if is_damage else WARNING, "%s", error)

    def path(self, name: str) -> str:
        """Return the path of a name in the inbox."""
        return join(self.directory, name)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep the inbox open, so that no ``sync`` in the ``with`` block needs a descriptor. Raises ``OSError``."""
        with names_of(self._disk, self.directory) as sync_names:
            self._sync_names = sync_names
            try:
                yield
            finally:
                self._sync_names = None

    def sync(self) -> None:
        """Make the names in the inbox durable. This is the end of step 1. Raises ``OSError``."""
        if self._sync_names is not None:
            self._sync_names()
        else:
            sync_directory(self._disk, self.directory)

    def rename(self, transactions: Sequence[Transaction]) -> None:
        """Do step 3 for committed transactions. Raises ``OSError``."""
        for transaction in transactions:
            self._segments.adopt((number, self.path(name)) for number, _, _, name in transaction.adoptions)

    def end(self, transactions: Sequence[Transaction]) -> None:
        """Do the end of step 4: delete the skipped files, and those without items.

        Settled transactions leave the list. The others stay as if they were never begun. Raises ``OSError`` if a
        request cannot be deleted.
        """
        answered: list[str] = []
        parts: list[str] = []
        for transaction in transactions:
            names = dict.fromkeys([adoption.name for adoption in transaction.adoptions] + [transaction.published])
            if not transaction.settled:
                for name in names:
                    self._quota.leave(self.path(name))
                continue
            self._listed.pop(transaction.published, None)
            if transaction.request is not None:
                answered.append(transaction.published)
            elif transaction.skipped or not transaction.adoptions:  # its marker is durable
                with suppress(OSError):  # a file that stays is skipped again
                    self._disk.unlink(self.path(transaction.published))
                    adopted = self._adopted()
                    parts += [name for name in names if is_part(name) and name not in adopted]
        for name in answered:
            with suppress(FileNotFoundError):  # another process has removed it
                self._disk.unlink(self.path(name))
        if answered:
            # A request that comes back after a power cut would make a removed subscription again, or consume an item
            # that a session has held.
            self.sync()
        if parts:
            with suppress(OSError):  # parts that stay are swept later
                self.sync()
                for name in parts:
                    with suppress(FileNotFoundError):  # another manifest has named it, and was adopted
                        self._disk.unlink(self.path(name))

    def take_back(self, names: Mapping[int, str]) -> None:
        """Move segments back into the inbox under these names, durably, after a power cut dropped their adoption.

        The files are whole, since their producers have synced them.
        """
        for is_its_turn in (is_part, is_published):
            for number, name in names.items():
                if is_its_turn(name):
                    self._disk.rename(self._segments.path(number), self.path(name))
            sync_directory(self._disk, self.directory)

    def sweep_if_due(self) -> None:
        """Call ``sweep`` if the last one was more than ``DRAFT_SECONDS_KEPT`` ago, for an owner that is never idle."""
        if not 0 <= self._disk.time_ns() - self._swept_ns < DRAFT_SECONDS_KEPT * 1e9:
            self.sweep()

    def sweep(self) -> bool:
        """Delete drafts that their producers have left behind, and old parts that no manifest names.

        Return whether the inbox had any files before.
        """
        self._swept_ns = self._disk.time_ns()
        if self._skipped:  # a file that was skipped for lack of memory may be readable now
            self._skipped, self._is_doubtful = {}, True
        names = names_in(self._disk, self.directory)
        for name in names:
            if name.endswith(DRAFT_SUFFIX) and parse_name(name) is not None:
                with suppress(OSError, CorruptionError):
                    self._sweep_draft(self.path(name))
        with suppress(OSError, CorruptionError, UnsupportedFormatError, MemoryShortageError):
            self._sweep_parts(names)
        return bool(names)

    def _sweep_parts(self, names: Sequence[str]) -> None:
        """Delete old parts that no manifest names.

        Delete nothing if a manifest cannot be read, or a file was set aside: it may name them.
        """
        before_ns = self._disk.time_ns() - int(PART_SECONDS_KEPT * 1e9)
        adopted = self._adopted()
        parts = [name for name in names if is_part(name) and name not in adopted]
        old = [name for name in parts if self._disk.lstat(self.path(name)).st_mtime_ns <= before_ns]
        if not old or any(name.endswith(DAMAGED_SUFFIX) for name in names):
            return
        # List again: a manifest may have been published since the first listing. Later on none can name such old parts.
        manifests = [read_publication(self._disk, self.path(name)) for name in self._published()]
        named = {part.name for manifest in manifests for part in manifest.parts}
        sync_directory(self._disk, self.directory)  # a deleted manifest must not come back without its parts
        for name in old:
            if name not in named:
                with suppress(OSError):  # for example a directory: it must not stop the sweep of the others
                    self._disk.unlink(self.path(name))

    def _sweep_draft(self, path: str) -> None:
        need_regular(self._disk, path)
        # A new draft is not locked for a moment, so that it seems to be left behind. Therefore young files are spared.
        if self._disk.time_ns() - self._disk.lstat(path).st_mtime_ns < DRAFT_SECONDS_KEPT * 1e9:
            return
        with opened_dense(self._disk, path) as (fd, _):
            age_ns = self._disk.time_ns() - self._disk.fstat(fd).st_mtime_ns
            if age_ns >= DRAFT_SECONDS_KEPT * 1e9 and self._disk.lock(fd):
                self._disk.unlink(path)

    def _list(self) -> None:
        """List the published files, and none without the files that must be adopted before it.

        If a file is listed, so is each file that was published before it by the same producer. So is each one published
        before it by a producer that was already there when its own producer began.
        """
        began_ns, changed_ns = self._disk.time_ns(), self._disk.lstat(self.directory).st_mtime_ns
        # A listing may miss a file that was published while it was made, and have a later one. The next listing has
        # each file that was published before any file of this one, and its name is older. So of the next listing, only
        # a name that is older than a new name of this one must be added now. Soon there is no such name, since files
        # that are published meanwhile have younger names. This ends even if a name lies in the future, since that name
        # is new only once.
        found = new = dict.fromkeys(self._published())
        for _ in range(_RELISTINGS_MAX):
            if not new:
                break
            youngest = max(new)
            new = {name: None for name in self._published() if name <= youngest and name not in found}
            found |= new
        if new:
            # A process publishes older and older names, as fast as this lists them. Of the last new names, take only
            # those that must not wait: the same producer has published them before another file that was found.
            youngest_of = {name[PRODUCER]: name for name in sorted(found) if name not in new}
            found = {name: None for name in found if name not in new or name < youngest_of.get(name[PRODUCER], "")}
        self._ends_skip(len(self._skipped))
        self._listed = OrderedDict.fromkeys(
            name for name in sorted(found) if not self._skipped or not self._is_skipped(name)
        )
        self._read_ahead.intersection_update(self._listed)
        self._unread = [name for name in reversed(self._listed) if name not in self._read_ahead]
        self._requests = {name: request for name, request in self._requests.items() if name in self._listed}
        self._seen_ns, self._listed_ns = changed_ns, self._disk.time_ns()
        self._is_doubtful = began_ns - changed_ns <= (_TICK_NS if changed_ns % 1_000_000 else _COARSE_TICK_NS)
        self._patience_ns = min(max(_PATIENCE_NS, _LISTINGS * (self._listed_ns - began_ns)), _PATIENCE_NS_MAX)

    def _published(self) -> list[str]:
        """Return the names of the published files, in no order, without adopted files that were not renamed yet."""
        adopted = self._adopted()
        return [name for name in self._disk.listdir(self.directory) if is_published(name) and name not in adopted]

    def _adopted(self) -> set[str]:
        """Return the names of the adopted files that were not renamed yet."""
        return set(map(basename, self._segments.in_inbox.values()))

    def _read(self, name: str, next_sequence: int) -> Publication | None:
        """Return the publication of this name; None if the file is gone, is skipped, or is invalid and now set aside.

        Raises ``OSError`` if the file cannot be read for now.
        """
        path = self.path(name)
        if self._is_skipped(name):
            return None
        try:
            publication = read_publication(self._disk, path)
            if publication.name != name:
                raise CorruptionError(path, 0, f"a file that was published as {name}", publication.name)
            self._need_parts(path, publication)
            if publication.items > _SEQUENCES - next_sequence:
                raise CorruptionError(
                    path, 0, f"items with sequences below {_SEQUENCES}", f"{publication.items} items that exceed it"
                )
        except FileNotFoundError:  # another process has removed it
            return None
        except CorruptionError as damage:
            self._put_aside(name, damage)
            return None
        except PermissionError as error:
            self._put_aside(name, CorruptionError(path, 0, READABLE, f"{error.strerror}", MEND))
            return None
        except (UnsupportedFormatError, MemoryShortageError) as error:
            self._skip(name, error)
            return None
        return publication

    def _put_aside(self, name: str, damage: CorruptionError) -> None:
        """Set the file aside, and report the damage. If renaming is not allowed, skip the file instead."""
        try:
            set_aside(self._disk, self.path(name))
        except FileNotFoundError:
            return
        except PermissionError:
            self._skip(name, damage)
        else:
            self.set_aside += 1
            self.tell(damage)

    def _skip(self, name: str, error: PersistentQueueError) -> None:
        """Leave the file in the inbox, with all files that its producer has published behind it; report it once."""
        self._skipped[name[PRODUCER]] = name, self._traits(name)
        if name not in self._skips_told:
            self._skips_told.add(name)
            self.tell(error)

    def _is_skipped(self, name: str) -> bool:
        """Return whether this file is skipped, or an earlier file of its producer is."""
        first = self._skipped.get(name[PRODUCER])
        return first is not None and name >= first[0]

    def _ends_skip(self, most: int = _SKIPS_ASKED) -> bool:
        """Stop skipping those of the first ``most`` skipped files that have changed; return whether there were any."""
        changed = [
            producer for producer, (name, traits) in islice(self._skipped.items(), most) if self._traits(name) != traits
        ]
        for producer in changed:
            self._skips_told.discard(self._skipped.pop(producer)[0])
        self._is_doubtful = self._is_doubtful or bool(changed)
        return bool(changed)

    def _traits(self, name: str) -> tuple[int, int]:
        """Return the times that change if a file's content is replaced, or its permissions change."""
        try:
            found = self._disk.lstat(self.path(name))
        except FileNotFoundError:
            return -1, -1
        return found.st_mtime_ns, found.st_ctime_ns

    def _need_parts(self, path: str, publication: Publication) -> None:
        """Raise ``CorruptionError`` unless all parts of the publication at ``path`` are there, with the right size.

        If its marker was reached before, perhaps by another manifest of these parts, none of them is needed.
        """
        if publication.marker is not None:
            name, version = publication.marker
            if version <= self._state.markers.get(name, -1):
                return
        adopted = self._adopted()
        for part in publication.parts:
            size_bytes, found = HEADER_BYTES + part.capacity_bytes, -1
            with suppress(FileNotFoundError):
                found = self._measure(part) if part.name not in adopted else -1
            if found != size_bytes:
                there = "no file: it is gone, or was published before" if found < 0 else f"{found} bytes"
                raise CorruptionError(path, 0, f"{size_bytes} bytes in its part {part.name}", there)

    def _measure(self, part: Part) -> int:
        """Return the size of a part. Raises ``CorruptionError``, ``FileNotFoundError`` and ``PermissionError``."""
        path = self.path(part.name)
        need_regular(self._disk, path)
        with opened_dense(self._disk, path) as (_, size_bytes):
            return size_bytes

    def _transaction(self, publication: Publication) -> Transaction:
        """Return the transaction of a publication, with its ``error`` set if the quota has no room for its files."""
        transaction = Transaction()
        transaction.published = publication.name
        transaction.marker = publication.marker
        transaction.request = publication.request
        first = self._segments.next_number
        numbered = list(enumerate(publication.files, first))
        self._segments.next_number = first + len(numbered)
        transaction.adoptions = [Adoption(n, file.salt, file.capacity_bytes, file.name) for n, file in numbered]
        transaction.pieces = [
            Piece(number, HEADER_BYTES, file.length_bytes, file.count, 0, file.checksum, [])
            for number, file in numbered
            if file.count
        ]
        try:
            for adoption in transaction.adoptions:
                size_bytes = HEADER_BYTES + adoption.capacity_bytes
                self._quota.take(self.path(adoption.name), size_bytes, self._segments.directory)
        except OverLimitError as error:
            transaction.error = error
        return transaction


def _are_alike(one: Request | None, other: Request | None) -> bool:
    """Return whether two publications may be in one group, by their requests.

    Either both enqueue, or both are acknowledgements. A request to make a subscription is always alone.
    """
    if one is None or other is None:
        return one is other
    return one.end > 0 and other.end > 0
