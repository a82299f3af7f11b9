"""The inbox at work: what other processes have published becomes the queue's, through its commits.

The write order is at the top of ``adopt``. Everything here is for the thread that writes.

Adopting what other processes have published: their files become segments, by a frame and a rename.

The write order of an adoption (``adopt.1`` …):

1. Read what is published (see ``publication``), in the order of the names, and look whether the parts of a manifest
   are there; set aside what does not check out. Sync the inbox: a name that its producer has yet to make durable could
   vanish after the frame that speaks of it. *A crash leaves what was published, which is found again.*
2. Write the frame: an *adoption*, an *enqueue* and perhaps a *marker* for each. **This is the commit point.** What says
   a marker that was reached before is skipped.
3. Rename each file to its segment, a manifest behind its parts: it is a segment without items, which the next trim
   retires. *A crash leaves files in the inbox that the log says are segments; the next opening renames them.* A file
   that finds no room for its new name keeps the old one until a trim. The names are durable before a trim drops the
   frame. A power cut may take a frame that a killed owner left in the page cache, or that was never synced, and not the
   names: a published file that the log knows nothing of, and has not retired, goes back to the inbox, parts durably
   before their manifest.
4. Apply the operations to the state in memory, as any commit does. Then delete what was skipped: found again, it would
   be skipped again. Requests, which have no version, go durably before anything else is done. Parts go when their
   manifest has gone durably: without them it would be damaged. *A crash leaves parts that no manifest names, which are
   swept when they are old. Whoever opens the queue after one makes durable what is gone from the inbox.*

No byte of an item is copied, or read before it is dequeued. What there is no room for stays where it is, and all behind
it, since each producer's order is kept; but to acknowledge what is in the queue already needs no order, and may make
room.

The inbox may hold anything, in any number. The work is bounded by the bytes that are really there, and done in *steps*
of at most ``STEP_NAMES`` names. What does not check out is set aside. A file that can neither be read nor renamed is
*skipped*, and so is what its producer has published behind it. Everybody else's goes on. Everything here is for the
thread that writes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, takewhile
from logging import ERROR, WARNING
from typing import Protocol

from ..core.header import HEADER_BYTES
from ..core.operations import Adoption
from ..core.state import State
from ..errors import (
    CorruptionError,
    MemoryShortageError,
    PersistentQueueError,
    QueueFullError,
    UnsupportedFormatError,
    unless_lacking,
)
from ..storage.layout import DAMAGED_SUFFIX, names_in, set_aside
from ..storage.publication import (
    DRAFT_SUFFIX,
    PRODUCER,
    Part,
    Publication,
    Request,
    is_part,
    is_published,
    open_dense,
    parse_name,
    read_publication,
)
from ..storage.segment_files import Piece, Segments
from ..system.disk import DIRECTORY, READ, Disk, basename, join, names_of, sync_directory
from ..system.event_log import LOGGER
from ..system.quota import OverLimitError, Quota
from ..system.trust import need_regular
from .admission import Limits
from .commit import Committer
from .reader import Guard
from .subscriptions import Subscriptions
from .transaction import Transaction
from .trim import Generations

COMMIT_FILES = 16
"""A commit takes about as long as to look at so many files."""


class Writing(Protocol):
    """What it asks of the store: its parts, the last steps of a commit, and what comes behind."""

    adopter: Adopter
    committer: Committer
    generations: Generations
    limits: Limits
    state: State
    subscriptions: Subscriptions

    def check(self) -> None:
        """Raise ``BrokenQueueError`` if a sync or a write of the log failed."""

    def log_group(self, group: Sequence[Transaction], inline: bool) -> None:
        """The steps of a commit from the frame on."""

    def trim(self) -> None:
        """Begin a new generation of the log."""

    def trim_if_worth(self) -> None:
        """Trim if what is drained is worth it."""

    def doubt(self, error: BaseException) -> None:
        """Break the store for what only recovery can tell the outcome of."""


class Inbox:
    """Adopts what is published for a queue."""

    def __init__(self, store: Writing, mutex: Guard, sync: bool) -> None:
        self._store = store
        self._adopter, self._committer, self._generations = store.adopter, store.committer, store.generations
        self._state, self._subscriptions, self._limits = store.state, store.subscriptions, store.limits
        self._mutex = mutex
        self._sync = sync
        self.adopted = 0
        """How many transactions were adopted."""
        self._told = ""
        """What never fits, and was told of."""
        self._full_at: tuple[int, int] | None = None
        """How many items were gone, and trims made, when there was no room for what is published."""

    def adopt(self, insists: bool = False, most: int | None = None) -> int:
        """Adopt what other processes have published until now, as far as there is room; how many transactions.

        What comes meanwhile is left to the next call, so that this one ends. It ends before that once it has dealt with
        about ``most`` files (None: all), a commit counted as ``COMMIT_FILES``. The rest is left to the next call, and
        ``is_cut`` says that there is any. Where there was no room it is tried again once something is gone, or who
        calls ``insists``; what is acknowledged behind it is answered all the same. What does not check out is set
        aside, and told of in the adopter's ``damage``, as is what is skipped, and what never fits. Raises ``OSError``
        for what cannot be read for now, which stays, ``ResourceError`` for what the system lacks, and
        ``BrokenQueueError``.
        """
        self._store.check()
        # Behind the frame of an adoption no call may fail for want of a descriptor, so that the inbox is open by then.
        with unless_lacking(self._adopter.directory, "to adopt what was published", "then dequeue again"):
            self._adopter.look(insists)
            if not self._adopter.left:
                self._adopter.is_cut = False
                return 0
            with self._adopter.opened():
                return self._adopt_listed(insists, most)

    def _adopt_listed(self, insists: bool, most: int | None) -> int:
        self._adopter.is_cut = False
        adopted, is_its_turn = 0, insists or self._full_at != self._progress
        left = self._adopter.left if most is not None else 0
        dealt, most = 0, most or 0
        while True:
            before = self._adopter.left
            try:
                published = self._begin(is_its_turn)
            except OSError:
                if adopted:
                    break  # first what is there, then what is wrong
                raise
            refused = None
            if published:
                adopted += self._commit(published)
                self._store.check()
                refused = next((transaction for transaction in published if not transaction.settled), None)
                dealt += COMMIT_FILES
            elif not is_its_turn or self._adopter.left in {0, before}:
                break
            if refused is None:
                self._full_at, is_its_turn = None, True
                if left and left - self._adopter.left + dealt >= most:
                    self._adopter.is_cut = self._adopter.left > 0
                    break
            elif is_its_turn:
                self._full_at, is_its_turn = self._progress, False
                self._tell_if_lasting(refused)
            else:
                break
        return adopted

    @property
    def is_cut(self) -> bool:
        """Whether the last ``adopt`` ended before it had dealt with all that it had listed."""
        return self._adopter.is_cut

    def _begin(self, is_its_turn: bool) -> list[Transaction]:
        """What comes next, or, if there is no room for that, what needs none."""
        if is_its_turn:
            return self._adopter.begin(self._state.next_sequence)
        return self._adopter.begin_behind(self._needs_no_order)

    def _needs_no_order(self, request: Request) -> bool:
        """Whether it says now what it will say in its turn: that what is in the queue already is consumed."""
        is_there = self._state.number_of(request.name) is not None
        return is_there and 0 < request.end <= self._state.next_sequence

    def _tell_if_lasting(self, transaction: Transaction) -> None:
        """Where it does not even fit into an empty queue nobody would ever hear why it waits."""
        error = self._limits.refuse_for_ever(transaction)
        if error is not None and self._told != transaction.published:
            path = self._adopter.path(transaction.published)
            self._told = transaction.published
            self._adopter.tell(QueueFullError(path, error.limit, error.most, error.holds, error.asked, True))

    def _commit(self, published: list[Transaction]) -> int:
        """Commit what the adopter has begun, as far as there is room; how many transactions."""
        try:
            self._adopt(published)
            self._committer.come_again(published)
            dropped = [each for each in published if each.skipped or (each.settled and not each.adoptions)]
            if dropped and not self._sync:
                self._store.trim()  # a power cut must not take a marker when nothing is left that it stands for
            self._adopter.end(published)
            self._store.trim_if_worth()
        except BaseException as error:
            self._store.doubt(error)
            raise
        adopted = sum(transaction.committed for transaction in published)
        self.adopted += adopted
        return adopted

    @property
    def _progress(self) -> tuple[int, int]:
        """Changes whenever there may be room that there was not."""
        return self._state.gone_count, self._generations.trims

    def _adopt(self, published: list[Transaction]) -> None:
        self._adopter.sync()
        if published[0].request is not None:
            self._answer(published)
            return
        self._committer.admit(published)
        group = list(takewhile(lambda each: each.error is None, published))  # the others wait, and keep their order
        group = [each for each in group if not each.skipped]
        if group:
            self._store.log_group(group, inline=False)

    def _answer(self, published: list[Transaction]) -> None:
        """Do what was asked, which may be nothing: make a subscription; or acknowledge, in one frame, of each
        subscription what is furthest, since that says what its others do."""
        furthest: dict[str, tuple[Transaction, Request]] = {}
        for transaction in published:
            request = transaction.request
            if request is not None and (request.name not in furthest or furthest[request.name][1].end < request.end):
                furthest[request.name] = transaction, request
        for transaction, request in furthest.values():
            number = self._state.number_of(request.name)
            if not request.end and number is None:
                transaction.operations = [self._state.next_subscription(request.name, request.first)]
            elif request.end and number:
                ready = self._subscriptions.find(request.name).ready
                with self._mutex:
                    transaction.ready, transaction.runs = ready, ready.hold_below(request.end)
        group = [transaction for transaction, _ in furthest.values() if transaction.operations or transaction.runs]
        if group:
            self._store.log_group(group, inline=False)
            with self._mutex:
                self._subscriptions.follow()
                for transaction in group:
                    if not transaction.settled and transaction.ready is not None:
                        transaction.ready.release(transaction.runs)
        if all(transaction.settled for transaction in group):
            for transaction in published:
                if not transaction.settled:
                    transaction.skipped = transaction.settled = True


ADOPTED_MAX = 256
"""A frame that has so many files takes no more publications."""
STEP_NAMES = 256
"""How many of the names that are listed one step looks at, where nothing of them checks out."""
LOOK_NAMES = 1024
"""And how many are looked at, about, by who does not wait, or only passes by; it takes a few hundredths of a second."""
TOLD_MAX = 64
"""How many errors wait to be raised: the log and the count have all of them."""
_SKIPS_ASKED = 16
"""How many of the files that are skipped are asked, by who finds nothing else, whether they can be read by now."""
_RELISTINGS_MAX = 8
"""How often a listing is made once more for what came while it was made."""
GRACE_SECONDS = 3600.0
"""A draft that nobody holds the lock of is swept when it was not written to for so long."""
PART_GRACE_SECONDS = 7 * 86400.0
"""A part that no manifest names is swept when it is so old; nobody publishes one of six days."""
_TICK_NS, _COARSE_TICK_NS = 20_000_000, 2_000_000_000
"""Two changes of a directory within this time may have left it with the same time of change: Linux counts in steps of
up to 10 ms, and a file system that keeps whole milliseconds, or less, perhaps in steps of two seconds."""
_PATIENCE_NS, _PATIENCE_NS_MAX = 1_000_000, 1_000_000_000
_LISTINGS = 10
"""A thread that only passes by waits so many times the duration of the last listing before the next one, but between
the first and the second of these times: the files may be many."""
READABLE = "a file that the owner of the queue may read"
MEND = "have its user give the right to read it, to the group of the inbox for instance, then give it back its name"
_SEQUENCES = 2**63
"""No queue has more; what would, was made by somebody else, of a file with holes."""


class Adopter:
    """The inbox of a queue, as its owner sees it."""

    def __init__(self, disk: Disk, directory: str, segments: Segments, quota: Quota) -> None:
        self._disk = disk
        self.directory = directory
        self._segments = segments
        self._quota = quota
        self._seen_ns = -1
        """The time of the directory's last change when it was listed."""
        self._is_doubtful = False
        """Whether it may have changed since, and not show it."""
        self._listed_ns = -_PATIENCE_NS
        self.monotonic = disk.monotonic
        self.passing_seconds = 0.0
        """When, by ``monotonic``, the next thread that passes by is to look; for the group."""
        self._patience_ns = _PATIENCE_NS
        self._listed: OrderedDict[str, None] = OrderedDict()
        """What was found when the directory was last listed, in order, and not dealt with yet."""
        self.is_cut = False
        """Whether the last step was not the last one that there is: the next one goes on with what is listed."""
        self._skipped: dict[str, tuple[str, tuple[int, int]]] = {}
        """Of each producer with a file that is skipped, the name of the first one, and what ``_traits`` it had."""
        self._skips_told: set[str] = set()
        self._asked: dict[str, Request | None] = {}
        """What some of that asks for: what was read since there was no room for what is before it."""
        self.damage: deque[PersistentQueueError] = deque()
        """What was set aside, or can never be adopted, and told to nobody yet."""
        self.set_aside = 0
        """How many publications were set aside."""
        self._swept_ns = 0
        self._sync_names: Callable[[], None] | None = None
        """Syncs the inbox while it is ``opened``."""
        self.is_gone = False
        """Whether the directory was not there when it was last looked at."""

    @contextmanager
    def watched(self) -> Iterator[int]:
        """Open the directory, for as long as the block lasts. Raises ``OSError``."""
        fd = self._disk.open(self.directory, READ | DIRECTORY, 0)
        try:
            yield fd
        finally:
            self._disk.close(fd)

    def has_news(self, insists: bool = False) -> bool:
        """Whether there may be anything to adopt: one call of the system, in the usual case. Raises ``OSError``."""
        return bool(self._listed) or self._has_changed(insists) or (insists and self._ends_skip())

    @property
    def left(self) -> int:
        """How much is listed, and was not dealt with."""
        return len(self._listed)

    def look(self, insists: bool = False) -> None:
        """List what is published, if that may be something else than what is listed. Raises ``OSError``."""
        if not self._listed or (not self.is_cut and self._has_changed(insists)):
            self._list()

    def _has_changed(self, insists: bool) -> bool:
        """Whether the directory may have changed since it was listed; where listing takes long, not too soon."""
        if not insists and self._listed_ns <= self._disk.time_ns() < self._listed_ns + self._patience_ns:
            return False
        try:
            changed_ns = self._disk.lstat(self.directory).st_mtime_ns
        except FileNotFoundError:  # somebody has taken it away: nobody can publish anything
            self.is_gone = True
            return False
        self.is_gone = False
        return self._is_doubtful or changed_ns != self._seen_ns

    def begin(self, next_sequence: int) -> list[Transaction]:
        """Step 1, but for the sync: the next of what is listed, as transactions to commit, each of one published file;
        none where nothing of the next ``STEP_NAMES`` checks out. For the last of them there may be no room: its
        ``error`` says so. Their items are numbered from ``next_sequence`` on.

        Raises ``OSError`` for a file that cannot be read for now, if none is before it: it stays where it is, and so
        does what is behind it.
        """
        if self._listed:
            self._disk.failpoint("adopt.1 read")
        transactions: list[Transaction] = []
        taken: set[str] = set()
        for looked, name in enumerate(list(islice(self._listed, LOOK_NAMES))):
            if looked >= STEP_NAMES and not transactions:
                break
            try:
                publication = self._read(name, next_sequence)
            except OSError:
                if not transactions:
                    raise
                break
            if publication is None:
                del self._listed[name]
                continue
            if transactions and not _are_alike(transactions[-1].request, publication.request):
                break  # what it asks for depends on what is before it
            if not taken.isdisjoint(part.name for part in publication.parts):
                break  # what it names has gone by then
            transactions.append(self._transaction(publication))
            taken.update(file.name for file in publication.files)
            next_sequence += publication.items
            if transactions[-1].error is not None or len(taken) >= ADOPTED_MAX:
                break
        return transactions

    def begin_behind(self, needs_no_order: Callable[[Request], bool]) -> list[Transaction]:
        """The same where there is no room for what is first: of what is behind it that what is asked for, and needs no
        order. Each file is read once for that; what is wrong with it is told in its turn."""
        for name in self._listed:
            if name not in self._asked:
                try:
                    publication = read_publication(self._disk, self.path(name))
                except (FileNotFoundError, CorruptionError, UnsupportedFormatError):
                    self._asked[name] = None
                except PermissionError:
                    continue
                except (OSError, MemoryShortageError):
                    break  # nobody knows what it asks for
                else:
                    self._asked[name] = publication.request if publication.name == name else None
        transactions = []
        for name in self._listed:
            request = self._asked.get(name)
            if request is not None and needs_no_order(request):
                transaction = Transaction()
                transaction.published, transaction.request = name, request
                transactions.append(transaction)
        return transactions

    def tell(self, error: PersistentQueueError) -> None:
        """Let whoever dequeues what finds nothing hear of it, once, and the log of this owner's program at once.

        Of more than ``TOLD_MAX`` that nobody has heard of yet only the log hears.
        """
        if len(self.damage) < TOLD_MAX:
            self.damage.append(error.with_traceback(None))
        is_damage = isinstance(error, CorruptionError)
        LOGGER.log(ERROR if is_damage else WARNING, "%s", error)

    def path(self, name: str) -> str:
        """Where the file with this name is in the inbox."""
        return join(self.directory, name)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep the inbox open, so that no ``sync`` in the block needs a descriptor. Raises ``OSError``."""
        with names_of(self._disk, self.directory) as sync_names:
            self._sync_names = sync_names
            try:
                yield
            finally:
                self._sync_names = None

    def sync(self) -> None:
        """Step 1, the end of it. Raises ``OSError``."""
        if self._sync_names is not None:
            self._sync_names()
        else:
            sync_directory(self._disk, self.directory)

    def rename(self, transactions: Sequence[Transaction]) -> None:
        """Step 3, for those that were committed. Raises ``OSError``."""
        for transaction in transactions:
            for number, _, _, name in transaction.adoptions:
                self._disk.failpoint("adopt.3 rename")
                self._segments.adopt(number, self.path(name))

    def end(self, transactions: Sequence[Transaction]) -> None:
        """Step 4, the end of it: delete what was skipped, and what had no items. What is settled is listed no more;
        nothing happened to the others. Raises ``OSError`` for a request that does not go."""
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
                with suppress(OSError):  # found again, it is skipped again
                    self._disk.unlink(self.path(transaction.published))
                    parts += filter(is_part, names)
        for name in answered:
            with suppress(FileNotFoundError):  # somebody has taken it away
                self._disk.unlink(self.path(name))
        if answered:
            # Were one to come back, it would make a subscription again that was removed, or consume what a session has
            # held.
            self.sync()
        if parts:
            with suppress(OSError):  # they are swept
                self.sync()
                for name in parts:
                    self._disk.unlink(self.path(name))

    def take_back(self, names: Mapping[int, str]) -> None:
        """Put segments back into the inbox under these names, durably, since a power cut took their adoption. They are
        whole: their producers have synced them."""
        for is_its_turn in (is_part, is_published):
            for number, name in names.items():
                if is_its_turn(name):
                    self._disk.rename(self._segments.path(number), self.path(name))
            sync_directory(self._disk, self.directory)

    def sweep_if_due(self) -> None:
        """The next one, if the last ``sweep`` is long ago: for an owner who is never idle."""
        if not 0 <= self._disk.time_ns() - self._swept_ns < GRACE_SECONDS * 1e9:
            self.sweep()

    def sweep(self) -> bool:
        """Delete drafts that their producers have left behind, and old parts that no manifest names; whether there is
        anything else."""
        self._swept_ns = self._disk.time_ns()
        if self._skipped:  # it may be that there is the memory now
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
        """Delete nothing where anything cannot be read, or was set aside: it may name them."""
        before_ns = self._disk.time_ns() - int(PART_GRACE_SECONDS * 1e9)
        adopted = self._adopted()
        parts = [name for name in names if is_part(name) and name not in adopted]
        old = [name for name in parts if self._disk.lstat(self.path(name)).st_mtime_ns <= before_ns]
        if not old or any(name.endswith(DAMAGED_SUFFIX) for name in names):
            return
        # Listed once more: a manifest may have come before this look at it, and none comes for what is so old.
        manifests = [read_publication(self._disk, self.path(name)) for name in self._published()]
        named = {part.name for manifest in manifests for part in manifest.parts}
        sync_directory(self._disk, self.directory)  # no manifest that has gone comes back without its parts
        for name in old:
            if name not in named:
                with suppress(OSError):  # a directory, for instance, is no part, and keeps no other
                    self._disk.unlink(self.path(name))

    def _sweep_draft(self, path: str) -> None:
        need_regular(self._disk, path)
        # Between the making of a file and its lock there is a moment in which it seems to be nobody's.
        if self._disk.time_ns() - self._disk.lstat(path).st_mtime_ns < GRACE_SECONDS * 1e9:
            return
        fd, _ = open_dense(self._disk, path)
        try:
            age_ns = self._disk.time_ns() - self._disk.fstat(fd).st_mtime_ns
            if age_ns >= GRACE_SECONDS * 1e9 and self._disk.lock(fd):
                self._disk.unlink(path)
        finally:
            self._disk.close(fd)

    def _list(self) -> None:
        """Look for what is published: none is left out that was published before one that is found, by its own
        producer, or by one who was there when the other began."""
        began_ns, changed_ns = self._disk.time_ns(), self._disk.lstat(self.directory).st_mtime_ns
        # A listing may miss what came while it was made, and have what came later. Whatever was published before
        # anything in it is in the next one, and is older. So of that one only what is older than what was new in the
        # one before may not wait, and that soon is nothing: what comes meanwhile is younger. It also is where a name
        # lies in the future, since that is new only once.
        found = new = dict.fromkeys(self._published())
        for _ in range(_RELISTINGS_MAX):
            if not new:
                break
            youngest = max(new)
            new = {name: None for name in self._published() if name <= youngest and name not in found}
            found |= new
        if new:
            # Somebody publishes, as fast as this lists, what is older and older. Of the last of it only what must not
            # wait is taken: what the same producer has published before something else that was found.
            youngest_of = {name[PRODUCER]: name for name in sorted(found) if name not in new}
            found = {name: None for name in found if name not in new or name < youngest_of.get(name[PRODUCER], "")}
        self._ends_skip(len(self._skipped))
        self._listed = OrderedDict.fromkeys(
            name for name in sorted(found) if not self._skipped or not self._is_skipped(name)
        )
        self._asked = {name: request for name, request in self._asked.items() if name in self._listed}
        self._seen_ns, self._listed_ns = changed_ns, self._disk.time_ns()
        self._is_doubtful = began_ns - changed_ns <= (_TICK_NS if changed_ns % 1_000_000 else _COARSE_TICK_NS)
        self._patience_ns = min(max(_PATIENCE_NS, _LISTINGS * (self._listed_ns - began_ns)), _PATIENCE_NS_MAX)

    def _published(self) -> list[str]:
        """The names of what is published, in no order, but for what is adopted, and has no other name yet."""
        adopted = self._adopted()
        return [name for name in self._disk.listdir(self.directory) if is_published(name) and name not in adopted]

    def _adopted(self) -> set[str]:
        """The names of files that are segments already."""
        return set(map(basename, self._segments.in_inbox.values()))

    def _read(self, name: str, next_sequence: int) -> Publication | None:
        """What was published under this name; None if it is gone, or was set aside, since it does not check out, or is
        skipped. Raises ``OSError`` for what cannot be read for now."""
        path = self.path(name)
        if self._is_skipped(name):
            return None
        try:
            publication = read_publication(self._disk, path)
            if publication.name != name:
                raise CorruptionError(path, 0, f"what was published as {name}", publication.name)
            self._need_parts(path, publication)
            if publication.items > _SEQUENCES - next_sequence:
                raise CorruptionError(path, 0, f"items up to sequence {_SEQUENCES}", f"{publication.items} more")
        except FileNotFoundError:  # somebody has taken it away
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
        """Set the file aside, and tell; where that is not allowed, skip it."""
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
        """Leave the file where it is, and what its producer has published behind it; tell once."""
        self._skipped[name[PRODUCER]] = name, self._traits(name)
        if name not in self._skips_told:
            self._skips_told.add(name)
            self.tell(error)

    def _is_skipped(self, name: str) -> bool:
        """Whether the file with this name is skipped, or its producer has one before it that is."""
        first = self._skipped.get(name[PRODUCER])
        return first is not None and name >= first[0]

    def _ends_skip(self, most: int = _SKIPS_ASKED) -> bool:
        """Skip no longer what has changed, of the first so many files; whether that is so of any."""
        changed = [
            producer for producer, (name, traits) in islice(self._skipped.items(), most) if self._traits(name) != traits
        ]
        for producer in changed:
            self._skips_told.discard(self._skipped.pop(producer)[0])
        self._is_doubtful = self._is_doubtful or bool(changed)
        return bool(changed)

    def _traits(self, name: str) -> tuple[int, int]:
        """What is not the same of a file if its content was replaced, or somebody else may read it."""
        try:
            found = self._disk.lstat(self.path(name))
        except FileNotFoundError:
            return -1, -1
        return found.st_mtime_ns, found.st_ctime_ns

    def _need_parts(self, path: str, publication: Publication) -> None:
        """Raise ``CorruptionError`` unless the parts of what was published at ``path`` are there, and can be read."""
        for part in publication.parts:
            size_bytes, found = HEADER_BYTES + part.capacity_bytes, -1
            with suppress(FileNotFoundError):
                found = self._measure(part)
            if found != size_bytes:
                there = "no file: it is gone, or was published before" if found < 0 else f"{found} bytes"
                raise CorruptionError(path, 0, f"{size_bytes} bytes in its part {part.name}", there)

    def _measure(self, part: Part) -> int:
        """The size of a part. Raises ``CorruptionError``, ``FileNotFoundError`` and ``PermissionError``."""
        path = self.path(part.name)
        need_regular(self._disk, path)
        fd, size_bytes = open_dense(self._disk, path)
        self._disk.close(fd)
        return size_bytes

    def _transaction(self, publication: Publication) -> Transaction:
        """The transaction that it is; with an ``error`` if the limits on the disk leave no room for its files."""
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
    """Whether these may be in one batch: what enqueues, or acknowledgements. A subscription is made by itself."""
    if one is None or other is None:
        return one is other
    return one.end > 0 and other.end > 0
