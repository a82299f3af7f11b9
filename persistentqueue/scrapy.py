"""Scrapy crawls that survive ``kill -9``: whatever was scheduled and not finished is scheduled again.

With a ``JOBDIR``, one setting does it (Scrapy 2.13 or newer)::

    ADDONS = {"persistentqueue.scrapy.Addon": 500}

It sets ``SCHEDULER_DISK_QUEUE`` and ``SCHEDULER_START_DISK_QUEUE`` (the order is breadth first), and two more, since
Scrapy itself writes down only at a clean end which queues there are, and which requests it has seen:
``SCHEDULER_PRIORITY_QUEUE`` and ``DUPEFILTER_CLASS``. What a project sets itself, it keeps.

A request is durable when it was scheduled. It is on hold from then on until Scrapy is done with it, which is when its
callback has ended, and what that has yielded is durable, too; if the crawl is killed before, it is fetched again. That
is at most what was in progress. That it was seen is written down before it goes, and follows, as long as it is there,
from its being there: so nothing is dropped as seen that was never scheduled, and nothing fetched twice that was done.

On the disk, in ``JOBDIR/persistentqueue``, is one queue for all slots and priorities, of which the first requests of
each are in memory, on hold, at a sync for each; one whose backlog is longer than that has a queue of its own for the
rest. Thousands of slots are no thousands of directories. Requests are pickled, as Scrapy does by default; there is
``MarshalFifoDiskQueue``, too. What cannot be, Scrapy keeps in memory, and a kill takes it. So it does where the disk is
full; what was in progress then is fetched again by the next crawl, and leads to it once more. Damage costs the requests
that are damaged, and is logged.

``PERSISTENTQUEUE_SYNC = False`` in the settings spares the syncs: a kill of the process still takes nothing, a power
cut may take the latest requests.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import pickle
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.pqueues import DownloaderAwarePriorityQueue
from scrapy.settings import BaseSettings
from scrapy.utils.request import request_from_dict

from persistentqueue import (
    CorruptionError,
    MemoryBudget,
    PersistentQueue,
    ResourceError,
    Session,
    delete_queue,
    list_queues,
)
from persistentqueue.system.disk import abspath, basename, dirname, join, relpath

T = TypeVar("T")
__all__ = ["Addon", "PickleFifoDiskQueue", "MarshalFifoDiskQueue", "PriorityQueue", "DupeFilter"]

FRONT_ITEMS = 32
"""So many requests of each slot and priority are in the queue that all share, and in memory."""
MEMORY_BYTES = 64 * 1024 * 1024
"""What those behind them take of it at most, of all slots."""
LOG_BYTES = 64 * 1024
_LONG = "long-"
"""What the names of the queues begin with that hold the rest of one backlog."""


class Addon:
    """Scrapy's add-on with all that a crawl needs to survive a kill."""

    def update_settings(self, settings: BaseSettings) -> None:
        """Set what the project has not set."""
        for name, of in (
            ("SCHEDULER_DISK_QUEUE", PickleFifoDiskQueue),
            ("SCHEDULER_START_DISK_QUEUE", PickleFifoDiskQueue),
            ("SCHEDULER_PRIORITY_QUEUE", PriorityQueue),
            ("DUPEFILTER_CLASS", DupeFilter),
        ):
            settings.set(name, of, priority="addon")


class _Stored(NamedTuple):
    """A request as it is on the disk: a line of JSON, then its bytes."""

    key: str
    """Of its FIFO: its directory and its priority, as Scrapy names them."""
    slot: str
    """As Scrapy's downloader calls it."""
    fingerprint: bytes
    """By which it is seen; empty where it is not to be filtered."""
    data: bytes

    def encode(self) -> bytes:
        """As it is on the disk."""
        head = json.dumps([self.key, self.slot, self.fingerprint.hex()])
        return b"%b\n%b" % (head.encode(), self.data)

    @classmethod
    def decode(cls, item: bytes) -> _Stored:
        """What ``encode`` has made bytes of."""
        head, _, data = item.partition(b"\n")
        key, slot, fingerprint = json.loads(head)
        return cls(key, slot, bytes.fromhex(fingerprint), data)


class _Popped:
    """A request that Scrapy has, on hold in its session until it is done."""

    __slots__ = ("began", "fingerprint", "request", "session")

    def __init__(self, request: Request, session: Session[bytes], fingerprint: bytes) -> None:
        self.request = weakref.ref(request)
        self.session = session
        self.fingerprint = fingerprint
        self.began = False
        """Whether the engine was seen to work on it."""


class _Sessions:
    """A queue with sessions that are used again and again."""

    def __init__(self, queue: PersistentQueue[bytes]) -> None:
        self.queue = queue
        self._idle: list[Session[bytes]] = []

    def get(self) -> Session[bytes]:
        return self._idle.pop() if self._idle else self.queue.session("scrapy")

    def put(self, stored: _Stored) -> Session[bytes]:
        """Put a request in; durable on return. The session that has done so."""
        session = self.get()
        try:
            session.enqueue(stored.encode())
            session.flush()
        except BaseException:
            session.rollback()
            raise
        return session

    def first(self) -> tuple[Session[bytes], _Stored] | None:
        """The first request, on hold in its session; None if there is none. What is damaged is passed over."""
        session = self.get()
        item = _undamaged(session.dequeue)
        if item is None:
            self._idle.append(session)
            return None
        return session, _Stored.decode(item)

    def peek(self) -> _Stored | None:
        """Likewise, which stays."""
        items = _undamaged(self.queue.peek)
        return _Stored.decode(items[0]) if items else None

    def flush(self, session: Session[bytes]) -> None:
        """Commit it; it may be used again then."""
        session.flush()
        self._idle.append(session)


class _Fifo:
    """One FIFO of a crawl: what is in memory, and then what is not."""

    def __init__(self) -> None:
        self.front: deque[tuple[Session[bytes], _Stored]] = deque()
        self.rest: _Sessions | None = None

    def __len__(self) -> int:
        return len(self.front) + self.rest_len

    @property
    def rest_len(self) -> int:
        return 0 if self.rest is None else len(self.rest.queue)


class Crawl:
    """All that a crawl keeps in its ``JOBDIR``; made by the first that needs it, and closed with the spider."""

    def __init__(self, crawler: Crawler, jobdir: str) -> None:
        self._crawler = weakref.ref(crawler)
        self._root = join(jobdir, "requests.queue")
        """What Scrapy lets its keys begin with."""
        self._directory = abspath(join(jobdir, "persistentqueue"))  # queues are opened and deleted as the crawl goes
        self._sync = crawler.settings.getbool("PERSISTENTQUEUE_SYNC", True)
        self._budget = MemoryBudget(MEMORY_BYTES)
        self._slots: dict[str, str] = {}
        """The slot of each directory."""
        self._fifos: dict[str, _Fifo] = {}
        self._popped: list[tuple[_Sessions, _Popped]] = []
        self._kept: list[Session[bytes]] = []
        """What could not be read, which is there again for the next crawl."""
        self._shared = _Sessions(self._open("requests"))
        self._log = self._open("seen")
        self.seen: set[bytes] = set()
        _undamaged(lambda: self.seen.update(self._log.browse()))
        self._resume()
        self.seen.discard(b"")

    @classmethod
    def of(cls, crawler: Crawler) -> Crawl | None:
        """That of the crawler; None where it has no ``JOBDIR``."""
        jobdir = crawler.settings.get("JOBDIR")
        if not jobdir:
            return None
        crawl = _CRAWLS.get(crawler)
        if crawl is None:
            crawl = _CRAWLS[crawler] = cls(crawler, jobdir)
            for signal in (signals.spider_closed, signals.engine_stopped):
                crawler.signals.connect(crawl.close, signal)
        return crawl

    def close(self) -> None:
        """Close the queues. The engine has finished whatever it had begun."""
        if self._log.closed:
            return
        with ExitStack() as closing:  # all of them, also where there is no room to settle
            long = [fifo.rest.queue for fifo in self._fifos.values() if fifo.rest is not None]
            for queue in [self._shared.queue, self._log, *long]:
                closing.callback(self._end, queue)
            self.settle(is_end=True)

    def key(self, path: str) -> str:
        """What of Scrapy's key does not depend on where the ``JOBDIR`` is."""
        return relpath(path, self._root)

    def fifo(self, key: str) -> _Fifo:
        """The FIFO of this key."""
        return self._fifos.setdefault(key, _Fifo())

    def pending(self) -> dict[str, list[int]]:
        """The priorities of each slot that has requests."""
        found: dict[str, list[int]] = {}
        for key, fifo in self._fifos.items():
            if fifo:
                found.setdefault(self._slots[dirname(key)], []).append(int(basename(key).removesuffix("s")))
        return {slot: sorted(set(priorities)) for slot, priorities in found.items()}

    def push(self, stored: _Stored) -> None:
        """Put a request into its FIFO; durable on return, and what is done by now is gone.

        Raises ``ResourceError``: it is not in. Then what is in progress, and may have led to it, is kept for the next
        crawl, which finds it once more.
        """
        self.settle()
        try:
            self._push(stored)
        except ResourceError:
            self._kept += [popped.session for _, popped in self._popped]
            self._popped.clear()
            raise

    def _push(self, stored: _Stored) -> None:
        key = stored.key
        fifo = self.fifo(key)
        if len(fifo.front) < FRONT_ITEMS and not fifo.rest_len:
            session = self._shared.put(stored)
            session.dequeue()  # which is this one: all others are on hold
            fifo.front.append((session, stored))
            return
        if fifo.rest is None:
            name = _LONG + hashlib.sha256(key.encode()).hexdigest()[:32]
            fifo.rest = _Sessions(self._open(name))
        fifo.rest.flush(fifo.rest.put(stored))

    def pop(self, key: str, load: Callable[[bytes], Request]) -> Request | None:
        """The first request of a FIFO, on hold until it is done; None if there is none."""
        self.settle()
        fifo = self.fifo(key)
        if fifo.front:
            sessions, (session, stored) = self._shared, fifo.front.popleft()
        elif fifo.rest is not None and (found := fifo.rest.first()) is not None:
            sessions, (session, stored) = fifo.rest, found
        else:
            return None
        try:
            request = load(stored.data)
        except BaseException:
            self._kept.append(session)
            raise
        self._popped.append((sessions, _Popped(request, session, stored.fingerprint)))
        return request

    def peek(self, key: str) -> bytes | None:
        """What is first in a FIFO; None if there is nothing."""
        fifo = self.fifo(key)
        if fifo.front:
            return fifo.front[0][1].data
        stored = fifo.rest.peek() if fifo.rest is not None else None
        return None if stored is None else stored.data

    def settle(self, is_end: bool = False) -> None:
        """Let go of what Scrapy is done with: first it is written down as seen, then it goes. A crash in between leaves
        it, to be fetched once more. Where the disk is full it is left for later."""
        working = self._in_progress()
        left, done = [], []
        for each in self._popped:
            request = each[1].request()
            if request is not None and working is not None and request in working:
                each[1].began = True
                left.append(each)
            elif request is None or each[1].began or is_end:
                done.append(each)
            else:
                left.append(each)
        if not done:
            return
        try:
            with suppress(ResourceError):
                with self._log.transaction() as log:
                    log.enqueue_many(popped.fingerprint for _, popped in done if popped.fingerprint)
                while done:
                    sessions, popped = done[0]
                    sessions.flush(popped.session)
                    del done[0]
        finally:
            self._popped = left + done

    def _in_progress(self) -> Any:
        """The requests that the engine is at work on; None where nobody knows, and what is no more is done."""
        with suppress(AttributeError, RuntimeError):  # it does not run yet, or keeps them elsewhere
            crawler: Any = self._crawler()
            return crawler.engine._slot.inprogress
        return None

    def _open(self, name: str) -> PersistentQueue[bytes]:
        settings: dict[str, Any] = {"memory_bytes": self._budget, "log_bytes": LOG_BYTES}
        return PersistentQueue(self._directory, name, sync=self._sync, **settings)

    def _resume(self) -> None:
        """Take what a former crawl has left; everything that is in the shared queue is on hold then."""
        while (found := self._shared.first()) is not None:
            session, stored = found
            self._note(stored).front.append((session, stored))
            self.seen.add(stored.fingerprint)
        for name in list_queues(self._directory):
            if name.startswith(_LONG):
                rest = _Sessions(self._open(name))
                first = rest.peek()
                if first is not None:
                    self._note(first).rest = rest
                    _undamaged(partial(self._see, rest.queue))
                else:
                    self._end(rest.queue)

    def _see(self, queue: PersistentQueue[bytes]) -> None:
        self.seen.update(_Stored.decode(item).fingerprint for item in queue.browse())

    def _end(self, queue: PersistentQueue[bytes]) -> None:
        """Close it, and delete it where it was for what did not fit elsewhere, of which nothing is left."""
        is_drained = False
        if queue.name is not None and queue.name.startswith(_LONG):
            stats = queue.stats()
            is_drained = not (stats.ready or stats.held or stats.damaged)
        queue.close()
        if is_drained:
            delete_queue(queue.path, queue.name)

    def _note(self, stored: _Stored) -> _Fifo:
        self._slots[dirname(stored.key)] = stored.slot
        return self.fifo(stored.key)


def _undamaged(read: Callable[[], T]) -> T:
    """What it reads. Damage costs what is damaged, not the crawl: it was logged when it was met, and is set aside."""
    while True:
        with suppress(CorruptionError):  # once for each damaged block
            return read()


_CRAWLS: weakref.WeakKeyDictionary[Crawler, Crawl] = weakref.WeakKeyDictionary()


class _FifoDiskQueue:
    """What Scrapy calls a disk queue: the FIFO of one slot and priority of a crawl."""

    _dump: Callable[[dict[str, Any]], bytes]
    _load: Callable[[bytes], dict[str, Any]]

    def __init__(self, crawler: Crawler, key: str) -> None:
        crawl = Crawl.of(crawler)
        if crawl is None:
            raise ValueError("a disk queue needs the setting JOBDIR")
        self._crawl = crawl
        self._key = crawl.key(key)
        self._crawler: Any = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler, key: str, *_: Any, **__: Any) -> _FifoDiskQueue:
        """How Scrapy makes one."""
        return cls(crawler, key)

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._crawl.fifo(self._key))

    def push(self, request: Request) -> None:
        """Put a request in; durable on return. Raises ``ValueError`` where it cannot be serialized, or there is no room
        on the disk, and Scrapy keeps it in memory then."""
        data = self._dump(request.to_dict(spider=self._crawler.spider))
        slot = ""
        with suppress(AttributeError, RuntimeError):  # there is no downloader yet
            slot = self._crawler.engine.downloader.get_slot_key(request)
        fingerprint = b"" if request.dont_filter else self._crawler.request_fingerprinter.fingerprint(request)
        try:
            self._crawl.push(_Stored(self._key, slot, fingerprint, data))
        except ResourceError as error:
            raise ValueError(str(error)) from error

    def pop(self) -> Request | None:
        """The first request, which comes back after a crash until Scrapy is done with it; None if there is none."""
        return self._crawl.pop(self._key, self._request)

    def peek(self) -> Request | None:
        """The first request, which stays; None if there is none."""
        data = self._crawl.peek(self._key)
        return None if data is None else self._request(data)

    def close(self) -> None:
        """Nothing: the crawl is closed as a whole."""

    def _request(self, data: bytes) -> Request:
        return request_from_dict(self._load(data), spider=self._crawler.spider)


def _pickled(fields: dict[str, Any]) -> bytes:
    """The fields of a request. Raises ``ValueError`` where they cannot be pickled, as Scrapy wants to hear it."""
    try:
        return pickle.dumps(fields, protocol=4)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(str(error)) from error


class PickleFifoDiskQueue(_FifoDiskQueue):
    """The FIFO of one slot and priority, of pickled requests."""

    _dump, _load = staticmethod(_pickled), staticmethod(pickle.loads)


class MarshalFifoDiskQueue(_FifoDiskQueue):
    """The FIFO of one slot and priority, of requests by ``marshal``: only of what Python builds in."""

    _dump, _load = staticmethod(marshal.dumps), staticmethod(marshal.loads)


class PriorityQueue(DownloaderAwarePriorityQueue):
    """Scrapy's default priority queue, which finds by itself what a killed crawl has left."""

    def __init__(
        self, crawler: Crawler, downstream_queue_cls: Any, key: str, slot_startprios: Any = None, **options: Any
    ) -> None:
        crawl = Crawl.of(crawler) if key else None  # which is empty for those in memory
        if crawl is not None:
            slot_startprios = crawl.pending()
        super().__init__(crawler, downstream_queue_cls, key, slot_startprios, **options)


class DupeFilter(RFPDupeFilter):
    """Scrapy's default filter, which has seen what is scheduled, and what is done: also after a kill."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(
            None, crawler.settings.getbool("DUPEFILTER_DEBUG"), fingerprinter=crawler.request_fingerprinter
        )
        crawl = Crawl.of(crawler)
        self._seen: set[bytes] = crawl.seen if crawl is not None else set()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> DupeFilter:
        """How Scrapy makes one."""
        return cls(crawler)

    def request_seen(self, request: Request) -> bool:
        """Whether it is, or was, scheduled; from now on it counts as such."""
        fingerprint = self.fingerprinter.fingerprint(request)
        if fingerprint in self._seen:
            return True
        self._seen.add(fingerprint)
        return False
