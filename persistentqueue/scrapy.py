"""Scrapy crawls that survive ``kill -9``: each request that was scheduled and not finished is scheduled again.

With a ``JOBDIR``, one setting enables it (Scrapy 2.18 or newer)::

    ADDONS = {"persistentqueue.scrapy.Addon": 500}

The add-on sets ``SCHEDULER_DISK_QUEUE`` and ``SCHEDULER_START_DISK_QUEUE``; the order is breadth first. It also sets
``SCHEDULER_PRIORITY_QUEUE`` and ``DUPEFILTER_CLASS``. These two are needed because Scrapy itself records its queues and
the requests that it has seen only at a clean end.

The add-on keeps each setting that the project has set. The queues work only together: if the project has set one of
another module, the add-on sets nothing. Scrapy then warns that the add-on is disabled.

A request is durable when it is scheduled. From then on it is on hold until Scrapy has finished it. It is finished when
its callback has ended and all requests that the callback yielded are durable. After a kill, the next crawl fetches
again only the requests that were in progress.

A fingerprint is recorded as seen before its request is consumed. While a request is in the queue, its fingerprint
counts as seen, too. So no request is dropped as seen that was never scheduled, and no finished request is fetched
twice.

The files are in ``JOBDIR/persistentqueue``. One queue is shared by all slots and priorities. It has the first requests
of each, which are also in memory and on hold; each takes one sync. A slot and priority with a longer backlog has a
queue of its own for the rest. Thousands of slots therefore do not make thousands of directories.

Requests are pickled, as in Scrapy's default; ``MarshalFifoDiskQueue`` is the alternative. Scrapy keeps a request that
cannot be serialized in memory, and a kill or a clean end loses it. It counts as seen for the next crawl if it was
finished. If the disk is full, Scrapy also keeps new requests in memory. The requests in progress are then fetched again
by the next crawl, and lead to the lost ones once more. Damage loses only the damaged requests, and is logged.

``PERSISTENTQUEUE_SYNC = False`` in the settings omits the syncs. A kill of the process then still loses nothing, but a
power cut may lose the latest requests.
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

from persistentqueue import (
    CorruptionError,
    MemoryBudget,
    MissingExtraError,
    PersistentQueue,
    ResourceError,
    Session,
    delete_queue,
    list_queues,
)
from persistentqueue.system.disk import abspath, basename, dirname, fspath, join, relpath

try:
    from scrapy import Request, signals
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import RFPDupeFilter
    from scrapy.exceptions import NotConfigured
    from scrapy.pqueues import DownloaderAwarePriorityQueue
    from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
    from scrapy.utils.misc import load_object
    from scrapy.utils.request import request_from_dict
except ImportError as missing:
    raise MissingExtraError("the scheduler for Scrapy", "scrapy") from missing

T = TypeVar("T")
__all__ = ["Addon", "PickleFifoDiskQueue", "MarshalFifoDiskQueue", "PriorityQueue", "DupeFilter"]

FRONT_ITEMS = 32
"""Requests of each slot and priority that are in the shared queue and in memory."""
MEMORY_BYTES = 64 * 1024 * 1024
"""Upper bound of the page caches of all queues of a crawl together."""
LOG_BYTES = 64 * 1024
_LONG = "long-"
"""Prefix of the names of queues that have the rest of one backlog."""


class Addon:
    """Scrapy add-on that sets everything that a crawl needs to survive a kill."""

    def update_settings(self, settings: BaseSettings) -> None:
        """Set the four settings of this module that the project has not set.

        Args:
            settings: The settings of the crawler. They are changed in place, with the priority ``"addon"``.

        Raises:
            NotConfigured: The project has set a disk queue or a priority queue of another module. Nothing is set, and
                Scrapy logs the reason as a warning.
        """
        for name, base in (
            ("SCHEDULER_DISK_QUEUE", _FifoDiskQueue),
            ("SCHEDULER_START_DISK_QUEUE", _FifoDiskQueue),
            ("SCHEDULER_PRIORITY_QUEUE", PriorityQueue),
        ):
            own = settings[name] if (settings.getpriority(name) or 0) > SETTINGS_PRIORITIES["addon"] else None
            if own and not _is_kind(load_object(own), base):
                raise NotConfigured(
                    f"{name} is {own!r}, which does not work with the disk queues of persistentqueue.scrapy: a killed "
                    f"crawl loses requests, as without the add-on. Remove {name} from the settings to enable it"
                )
        for name, of in (
            ("SCHEDULER_DISK_QUEUE", PickleFifoDiskQueue),
            ("SCHEDULER_START_DISK_QUEUE", PickleFifoDiskQueue),
            ("SCHEDULER_PRIORITY_QUEUE", PriorityQueue),
            ("DUPEFILTER_CLASS", DupeFilter),
        ):
            settings.set(name, of, priority="addon")


def _is_kind(found: object, base: type) -> bool:
    return isinstance(found, type) and issubclass(found, base)


class _Stored(NamedTuple):
    """A request as it is on disk: one line of JSON, then its bytes."""

    key: str
    """Key of its FIFO: directory and priority, as Scrapy names them."""
    slot: str
    """Name of its slot in Scrapy's downloader."""
    fingerprint: bytes
    """Fingerprint for the duplicate filter; empty if the request must not be filtered."""
    data: bytes

    def encode(self) -> bytes:
        """Return the request as it is on disk."""
        head = json.dumps([self.key, self.slot, self.fingerprint.hex()])
        return b"%b\n%b" % (head.encode(), self.data)

    @classmethod
    def decode(cls, item: bytes) -> _Stored:
        """Return the request that ``encode`` has encoded."""
        head, _, data = item.partition(b"\n")
        key, slot, fingerprint = json.loads(head)
        return cls(key, slot, bytes.fromhex(fingerprint), data)


class _Popped:
    """A request that Scrapy has taken, until it is finished."""

    __slots__ = ("began", "fingerprint", "hold", "request")

    def __init__(self, request: Request, fingerprint: bytes, hold: tuple[_Sessions, Session[bytes]] | None) -> None:
        self.request = weakref.ref(request)
        self.fingerprint = fingerprint
        self.hold = hold
        """Session that holds the request, behind the sessions of its queue; None for a request that was in memory."""
        self.began = False
        """True if the engine was found working on it."""


class _Sessions:
    """A queue, with sessions that are reused."""

    def __init__(self, queue: PersistentQueue[bytes]) -> None:
        self.queue = queue
        self._idle: list[Session[bytes]] = []

    def get(self) -> Session[bytes]:
        return self._idle.pop() if self._idle else self.queue.session("scrapy")

    def put(self, stored: _Stored) -> Session[bytes]:
        """Enqueue a request, durable on return. Return the session that has done so."""
        session = self.get()
        try:
            session.enqueue(stored.encode())
            session.flush()
        except BaseException:
            session.rollback()
            raise
        return session

    def first(self) -> tuple[Session[bytes], _Stored] | None:
        """Return the first request and the session that holds it; None if there is none. Damaged items are skipped."""
        session = self.get()
        item = _undamaged(session.dequeue)
        if item is None:
            self._idle.append(session)
            return None
        return session, _Stored.decode(item)

    def peek(self) -> _Stored | None:
        """Return the first request without holding it; None if there is none. Damaged items are skipped."""
        items = _undamaged(self.queue.peek)
        return _Stored.decode(items[0]) if items else None

    def flush(self, session: Session[bytes]) -> None:
        """Flush the session, which can then be reused."""
        session.flush()
        self._idle.append(session)


class _Fifo:
    """One FIFO of a crawl: the requests in memory, and behind them those on disk only."""

    def __init__(self) -> None:
        self.front: deque[tuple[Session[bytes], _Stored]] = deque()
        self.rest: _Sessions | None = None

    def __len__(self) -> int:
        return len(self.front) + self.rest_len

    @property
    def rest_len(self) -> int:
        return 0 if self.rest is None else len(self.rest.queue)


class Crawl:
    """Everything that a crawl keeps in its ``JOBDIR``.

    The first component that needs it makes it. It is closed with the spider.
    """

    def __init__(self, crawler: Crawler, jobdir: str) -> None:
        self._crawler = weakref.ref(crawler)
        self._root = join(jobdir, "requests.queue")
        """Prefix of Scrapy's keys."""
        self._directory = abspath(join(jobdir, "persistentqueue"))  # the working directory may change
        self._sync = crawler.settings.getbool("PERSISTENTQUEUE_SYNC", True)
        self._budget = MemoryBudget(MEMORY_BYTES)
        self._slots: dict[str, str] = {}
        """Slot of each directory."""
        self._fifos: dict[str, _Fifo] = {}
        self._popped: list[_Popped] = []
        self._kept: list[Session[bytes]] = []
        """Sessions of requests that are left to the next crawl: unreadable, or in progress when the disk was full."""
        self._shared = _Sessions(self._open("requests"))
        self._log = self._open("seen")
        self.seen: set[bytes] = set()
        _undamaged(lambda: self.seen.update(self._log.browse()))
        self._resume()
        self.seen.discard(b"")

    @classmethod
    def of(cls, crawler: Crawler) -> Crawl | None:
        """Return the ``Crawl`` of the crawler, made if needed; None if the crawler has no ``JOBDIR``."""
        jobdir = crawler.settings.get("JOBDIR")
        if not jobdir:
            return None
        crawl = _CRAWLS.get(crawler)
        if crawl is None:
            crawl = _CRAWLS[crawler] = cls(crawler, fspath(jobdir, "JOBDIR"))
            for signal in (signals.spider_closed, signals.engine_stopped):
                crawler.signals.connect(crawl.close, signal)
        return crawl

    def close(self) -> None:
        """Close the queues. The engine has finished everything that it had begun."""
        if self._log.closed:
            return
        with ExitStack() as closing:  # close all of them, also if settle() fails
            long = [fifo.rest.queue for fifo in self._fifos.values() if fifo.rest is not None]
            for queue in [self._shared.queue, self._log, *long]:
                closing.callback(self._end, queue)
            self.settle(is_end=True)

    def key(self, path: str) -> str:
        """Return the part of Scrapy's key that does not depend on the path of the ``JOBDIR``."""
        return relpath(path, self._root)

    def fifo(self, key: str) -> _Fifo:
        """Return the FIFO of this key; make it if it does not exist."""
        return self._fifos.setdefault(key, _Fifo())

    def pending(self) -> dict[str, list[int]]:
        """Return the priorities of each slot that has requests."""
        found: dict[str, list[int]] = {}
        for key, fifo in self._fifos.items():
            if fifo:
                found.setdefault(self._slots[dirname(key)], []).append(int(basename(key).removesuffix("s")))
        return {slot: sorted(set(priorities)) for slot, priorities in found.items()}

    def push(self, stored: _Stored) -> None:
        """Append a request to its FIFO, durable on return, and consume the requests that are finished.

        Raises ``ResourceError``; the request is then not stored. The requests in progress, which may have led to it,
        are kept for the next crawl, which finds it again.
        """
        self.settle()
        try:
            self._push(stored)
        except ResourceError:
            self._kept += [popped.hold[1] for popped in self._popped if popped.hold is not None]
            self._popped.clear()
            raise

    def _push(self, stored: _Stored) -> None:
        key = stored.key
        fifo = self.fifo(key)
        if len(fifo.front) < FRONT_ITEMS and not fifo.rest_len:
            session = self._shared.put(stored)
            session.dequeue()  # this request: all others are on hold
            fifo.front.append((session, stored))
            return
        if fifo.rest is None:
            name = _LONG + hashlib.sha256(key.encode()).hexdigest()[:32]
            fifo.rest = _Sessions(self._open(name))
        fifo.rest.flush(fifo.rest.put(stored))

    def pop(self, key: str, load: Callable[[bytes], Request]) -> Request | None:
        """Return the first request of a FIFO, held until it is finished; None if there is none."""
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
        self._popped.append(_Popped(request, stored.fingerprint, (sessions, session)))
        return request

    def pop_from_memory(self, request: Request, fingerprint: bytes) -> None:
        """Note a request that Scrapy has taken from memory: its fingerprint is recorded when it is finished."""
        self._popped.append(_Popped(request, fingerprint, None))

    def peek(self, key: str) -> bytes | None:
        """Return the data of the first request of a FIFO, without holding it; None if there is none."""
        fifo = self.fifo(key)
        if fifo.front:
            return fifo.front[0][1].data
        stored = fifo.rest.peek() if fifo.rest is not None else None
        return None if stored is None else stored.data

    def settle(self, is_end: bool = False) -> None:
        """Consume the requests that Scrapy has finished.

        1. Record their fingerprints as seen. *A crash leaves the requests, which are fetched once more.*
        2. Consume them.

        If the disk is full, this is left to a later call.

        At the end of a crawl (``is_end``), each request that is not in progress counts as finished.
        """
        working = self._in_progress()
        left, done = [], []
        for each in self._popped:
            request = each.request()
            if request is not None and working is not None and request in working:
                each.began = True
                left.append(each)
            elif request is None or each.began or is_end:
                done.append(each)
            else:
                left.append(each)
        if not done:
            return
        try:
            with suppress(ResourceError):
                with self._log.transaction() as log:
                    log.enqueue_many(popped.fingerprint for popped in done if popped.fingerprint)
                while done:
                    if done[0].hold is not None:
                        sessions, session = done[0].hold
                        sessions.flush(session)
                    del done[0]
        finally:
            self._popped = left + done

    def _in_progress(self) -> Any:
        """Return the requests that the engine works on; None if they are unknown.

        If they are unknown, a request is finished when its object no longer exists.
        """
        with suppress(AttributeError, RuntimeError):  # the engine is not running, or stores them differently
            crawler: Any = self._crawler()
            return crawler.engine._slot.inprogress
        return None

    def _open(self, name: str) -> PersistentQueue[bytes]:
        settings: dict[str, Any] = {"memory_bytes": self._budget, "log_bytes": LOG_BYTES}
        return PersistentQueue(self._directory, name, sync=self._sync, **settings)

    def _resume(self) -> None:
        """Take over what a former crawl has left. Afterwards every item of the shared queue is on hold."""
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
        """Close the queue; delete it if it had the rest of one backlog and is empty."""
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
    """Return what ``read`` returns; call it again for each damaged block.

    Damage loses the damaged items, not the crawl. It was logged when it was found, and the items are set aside.
    """
    while True:
        with suppress(CorruptionError):  # raised once for each damaged block
            return read()


_CRAWLS: weakref.WeakKeyDictionary[Crawler, Crawl] = weakref.WeakKeyDictionary()


class _FifoDiskQueue:
    """A disk queue of Scrapy: the FIFO of one slot and priority of a crawl.

    Args:
        crawler: The crawler, with the setting ``JOBDIR``.
        key: The path of the FIFO, as Scrapy names it.

    Raises:
        ValueError: The crawler has no ``JOBDIR``.
    """

    _dump: Callable[[dict[str, Any]], bytes]
    _load: Callable[[bytes], dict[str, Any]]

    def __init__(self, crawler: Crawler, key: str) -> None:
        crawl = Crawl.of(crawler)
        if crawl is None:
            raise ValueError("a disk queue needs the setting JOBDIR: set it to a directory")
        self._crawl = crawl
        self._key = crawl.key(key)
        self._crawler: Any = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler, key: str, *_: Any, **__: Any) -> _FifoDiskQueue:
        """Return a disk queue; Scrapy calls this.

        Args:
            crawler: The crawler, with the setting ``JOBDIR``.
            key: The path of the FIFO, as Scrapy names it.
            *_: Ignored.
            **__: Ignored.

        Raises:
            ValueError: The crawler has no ``JOBDIR``.
        """
        return cls(crawler, key)

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._crawl.fifo(self._key))

    def push(self, request: Request) -> None:
        """Append a request, durable on return.

        Args:
            request: The request.

        Raises:
            ValueError: The request cannot be serialized, or the system has no room. Scrapy then keeps it in memory.
            BrokenQueueError: A sync failed. It is unknown whether the request is stored.
        """
        data = self._dump(request.to_dict(spider=self._crawler.spider))
        slot = ""
        with suppress(AttributeError, RuntimeError):  # no downloader yet
            slot = self._crawler.engine.downloader.get_slot_key(request)
        try:
            self._crawl.push(_Stored(self._key, slot, _fingerprint(self._crawler, request), data))
        except ResourceError as error:
            raise ValueError(str(error)) from error

    def pop(self) -> Request | None:
        """Return the first request, or None if there is none.

        It is on hold until Scrapy has finished it. After a crash, the next crawl has it again.
        """
        return self._crawl.pop(self._key, self._request)

    def peek(self) -> Request | None:
        """Return the first request without taking it, or None if there is none."""
        data = self._crawl.peek(self._key)
        return None if data is None else self._request(data)

    def close(self) -> None:
        """Do nothing: all queues of a crawl are closed together."""

    def _request(self, data: bytes) -> Request:
        return request_from_dict(self._load(data), spider=self._crawler.spider)


def _fingerprint(crawler: Any, request: Request) -> bytes:
    """Return the fingerprint for the duplicate filter; empty if the request must not be filtered."""
    if request.dont_filter:
        return b""
    fingerprint: bytes = crawler.request_fingerprinter.fingerprint(request)
    return fingerprint


def _pickled(fields: dict[str, Any]) -> bytes:
    """Return the pickled fields of a request. Raises ``ValueError``, as Scrapy expects, if they cannot be pickled."""
    try:
        return pickle.dumps(fields, protocol=4)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(str(error)) from error


class PickleFifoDiskQueue(_FifoDiskQueue):
    """The FIFO of one slot and priority, for pickled requests.

    Args:
        crawler: The crawler, with the setting ``JOBDIR``.
        key: The path of the FIFO, as Scrapy names it.

    Raises:
        ValueError: The crawler has no ``JOBDIR``.
    """

    _dump, _load = staticmethod(_pickled), staticmethod(pickle.loads)


class MarshalFifoDiskQueue(_FifoDiskQueue):
    """The FIFO of one slot and priority, for requests serialized by ``marshal``, which takes built-in types only.

    Args:
        crawler: The crawler, with the setting ``JOBDIR``.
        key: The path of the FIFO, as Scrapy names it.

    Raises:
        ValueError: The crawler has no ``JOBDIR``.
    """

    _dump, _load = staticmethod(marshal.dumps), staticmethod(marshal.loads)


class PriorityQueue(DownloaderAwarePriorityQueue):
    """Scrapy's default priority queue, which also finds the queues that a killed crawl has left.

    Args:
        crawler: The crawler.
        downstream_queue_cls: The class of the disk queues or memory queues.
        key: The path of the queues, as Scrapy names it; empty for queues in memory.
        slot_startprios: The priorities of each slot, from Scrapy's state. Default None. Ignored with disk queues of
            this module, which know their requests themselves.
        **options: Further arguments of Scrapy's priority queue.
    """

    def __init__(
        self, crawler: Crawler, downstream_queue_cls: Any, key: str, slot_startprios: Any = None, **options: Any
    ) -> None:
        kinds = downstream_queue_cls, options.get("start_queue_cls") or downstream_queue_cls
        self._crawl = Crawl.of(crawler)
        if key and self._crawl is not None and all(_is_kind(each, _FifoDiskQueue) for each in kinds):
            slot_startprios = self._crawl.pending()
        super().__init__(crawler, downstream_queue_cls, key, slot_startprios, **options)

    def pop(self) -> Request | None:
        """Return the next request, or None if there is none.

        One from memory is recorded as seen when Scrapy has finished it, if the crawler has a ``JOBDIR``.
        """
        crawl = None if self.key else self._crawl  # an empty key: queues in memory
        if crawl is not None:
            crawl.settle()  # first: if it raises, the request stays in memory
        request = super().pop()
        if request is not None and crawl is not None:
            crawl.pop_from_memory(request, _fingerprint(self.crawler, request))
        return request


class DupeFilter(RFPDupeFilter):
    """Scrapy's default filter, which also knows, after a kill, the requests that are scheduled or finished.

    Args:
        crawler: The crawler. Without ``JOBDIR``, the filter begins empty.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(
            None, crawler.settings.getbool("DUPEFILTER_DEBUG"), fingerprinter=crawler.request_fingerprinter
        )
        crawl = Crawl.of(crawler)
        self._seen: set[bytes] = crawl.seen if crawl is not None else set()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> DupeFilter:
        """Return a filter; Scrapy calls this.

        Args:
            crawler: The crawler.
        """
        return cls(crawler)

    def request_seen(self, request: Request) -> bool:
        """Return True if the request was seen before; from now on it counts as seen.

        The fingerprint is durable when its request is scheduled.

        Args:
            request: The request.
        """
        fingerprint = self.fingerprinter.fingerprint(request)
        if fingerprint in self._seen:
            return True
        self._seen.add(fingerprint)
        return False
