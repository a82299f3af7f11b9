"""The interface for Scrapy: the contract of its disk queues, and crawls that are killed."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import persistentqueue
from persistentqueue import DiskFullError, PersistentQueue, Session, list_queues

pytest.importorskip("scrapy")

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import Scheduler
from scrapy.settings import Settings
from scrapy.squeues import PickleFifoDiskQueue
from scrapy.utils.test import get_crawler

from persistentqueue import scrapy as face
from tests.peers.crawl import CONCURRENT
from tests.support.queues import flip, segment_files

SOURCES = Path(persistentqueue.__file__).parents[1]
PAGES = 300
NO_EXTENSIONS: dict[str, Any] = {"EXTENSIONS_BASE": {}}
"""Setting without Scrapy's own extensions: they fail if a crawl ends without having begun."""
IN_PROGRESS_MOST = 3 * CONCURRENT
"""Upper bound on the requests in progress: some are fetched, some wait for their callbacks, and some have just
ended."""


class Site(ThreadingHTTPServer):
    """A site of ``PAGES`` pages on loopback, each with five links. It kills its crawler when it was told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.lives: list[list[int]] = []
        """Pages that were fetched, in order, by each life of the crawler."""
        self.crawler: subprocess.Popen[bytes] | None = None
        self.kill_at = 0

    def crawl(self, jobdir: Path, kill_at: int = 0) -> int:
        """Crawl the site, kill the crawler in the middle of fetch number ``kill_at`` (0: never), and return its exit
        code."""
        self.lives.append([])
        self.kill_at = kill_at
        url = f"http://127.0.0.1:{self.server_port}/0"
        command = [sys.executable, "-m", "tests.peers.crawl", url, str(jobdir)]
        with subprocess.Popen(command, cwd=SOURCES, env=os.environ | {"PYTHONPATH": str(SOURCES)}) as self.crawler:
            try:
                return self.crawler.wait(timeout=120)
            finally:
                self.crawler.kill()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the connections that a killed crawler has left."""


class Page(BaseHTTPRequestHandler):
    """Handler of one page."""

    protocol_version = "HTTP/1.1"
    server: Site

    def setup(self) -> None:
        """Note the life of the crawler that has connected: its requests may be handled after its end."""
        super().setup()
        self.life = self.server.lives[-1]

    def do_GET(self) -> None:
        """Answer with the links of the page; other pages have some of these links, too."""
        page, life = int(self.path[1:]), self.life
        life.append(page)
        if 0 < self.server.kill_at <= len(life) and self.server.crawler is not None:  # others append meanwhile
            self.server.crawler.kill()
        links = {3 * page + 1, 3 * page + 2, 3 * page + 3, 7 * page % PAGES, (page + 1) % PAGES}
        body = "".join(f'<a href="/{link}">{link}</a>' for link in sorted(links) if link < PAGES).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def site() -> Iterator[Site]:
    """Yield the site, served by threads of this process."""
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_killed_crawl_goes_on(site: Site, tmp_path: Path) -> None:
    """A crawl that is killed twice and resumed fetches every page. It fetches a page twice only if that was in progress
    at a kill."""
    job = tmp_path / "job"
    assert [site.crawl(job, kill_at) for kill_at in (60, 90)] == [-signal.SIGKILL] * 2
    assert site.crawl(job) == 0
    first, second, third = site.lives
    assert set(first) | set(second) | set(third) == set(range(PAGES))
    in_progress = set(first[-IN_PROGRESS_MOST:]) | set(second[-IN_PROGRESS_MOST:])
    twice = {page for page, times in Counter(first + second + third).items() if times > 1}
    assert twice <= in_progress
    assert all(len(life) == len(set(life)) for life in site.lives)
    assert list_queues(job / "persistentqueue") == ["requests", "seen"]
    assert site.crawl(job) == 0  # every request is done: no page is fetched again
    assert site.lives[-1] == []


@contextmanager
def crawler(jobdir: Path | None, **more: Any) -> Iterator[Any]:
    """Yield a crawler of Scrapy that does not run, with the add-on."""
    settings = {"ADDONS": {face.Addon: 500}} | NO_EXTENSIONS | more
    crawler = get_crawler(Spider, ({"JOBDIR": str(jobdir)} if jobdir is not None else {}) | settings)
    crawler.spider = Spider.from_crawler(crawler, "spider")
    try:
        yield crawler
    finally:
        crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason="finished")


def urls(queue: Any) -> list[str]:
    """Pop all requests, and return their addresses."""
    return [request.url for request in iter(queue.pop, None)]


@pytest.mark.parametrize("kind", [face.PickleFifoDiskQueue, face.MarshalFifoDiskQueue])
def test_contract(kind: Any, tmp_path: Path) -> None:
    """The disk queues keep the contract of ``push``, ``pop``, ``peek``, ``__len__`` and ``close``: first in, first out,
    None when empty, and whole requests."""
    with crawler(tmp_path) as job:
        queue = kind.from_crawler(job, f"{tmp_path}/requests.queue/site/0")
        assert (len(queue), queue.pop(), queue.peek()) == (0, None, None)
        for number in range(3 * face.FRONT_ITEMS):
            queue.push(Request(f"http://site/{number}", headers={"X": "1"}, meta={"depth": number}, priority=7))
        assert len(queue) == 3 * face.FRONT_ITEMS
        first = queue.peek()
        assert (first.url, first.headers["X"], first.meta, first.priority) == ("http://site/0", b"1", {"depth": 0}, 7)
        assert urls(queue) == [f"http://site/{number}" for number in range(3 * face.FRONT_ITEMS)]
        assert (len(queue), queue.peek()) == (0, None)
        queue.close()
    assert list_queues(tmp_path / "persistentqueue") == ["requests", "seen"]  # the long queue was empty and is deleted


@pytest.mark.parametrize(
    ("kind", "meta"),
    [(face.PickleFifoDiskQueue, threading.Lock()), (face.MarshalFifoDiskQueue, Path())],
)
def test_what_cannot_be_serialized(kind: Any, meta: Any, tmp_path: Path) -> None:
    """A request that cannot be serialized raises ``ValueError``, so that Scrapy keeps it in memory, and the queue goes
    on."""
    with crawler(tmp_path) as job:
        queue = kind.from_crawler(job, f"{tmp_path}/requests.queue/site/0")
        with pytest.raises(ValueError):
            queue.push(Request("http://site/", meta={"it": meta}))
        queue.push(Request("http://site/other"))
        assert urls(queue) == ["http://site/other"]


def test_a_disk_queue_needs_a_jobdir() -> None:
    """A disk queue is refused without the setting ``JOBDIR``."""
    with crawler(None) as job, pytest.raises(ValueError, match="JOBDIR"):
        face.PickleFifoDiskQueue.from_crawler(job, "anything")


def test_what_is_in_progress_comes_back(tmp_path: Path) -> None:
    """A popped request is held while an object refers to it, and is recorded as done afterwards."""
    with crawler(tmp_path) as job:
        queue = face.PickleFifoDiskQueue.from_crawler(job, f"{tmp_path}/requests.queue/site/0")
        for number in range(3):
            queue.push(Request(f"http://site/{number}"))
        done, kept = queue.pop(), queue.pop()
        del done
        queue.push(Request("http://site/3"))
        crawl = face.Crawl.of(job)
        assert crawl is not None
        assert [popped.request() for popped in crawl._popped] == [kept]
        assert list(crawl._log.browse()) == [job.request_fingerprinter.fingerprint(Request("http://site/0"))]


class Engine:
    """The part of Scrapy's engine that the interface reads."""

    def __init__(self) -> None:
        self._slot = self
        self.inprogress: set[Request] = set()
        self.downloader = self
        self.slots: dict[str, Any] = {}

    def get_slot_key(self, request: Request) -> str:
        """Return the slot of the downloader: a name that no directory could have."""
        return f"site:/{request.url.rpartition('/')[2][0]}"


def test_done_is_what_the_engine_has_done(tmp_path: Path) -> None:
    """A request to which references are left is done when the engine has begun and ended it. It is not done before it
    began."""
    with crawler(tmp_path) as job:
        job.engine = Engine()
        queue = face.PickleFifoDiskQueue.from_crawler(job, f"{tmp_path}/requests.queue/site/0")
        crawl = face.Crawl.of(job)
        assert crawl is not None
        queue.push(Request("http://site/0"))
        request = queue.pop()
        crawl.settle()
        assert len(crawl._popped) == 1  # not begun
        job.engine.inprogress.add(request)
        crawl.settle()
        assert len(crawl._popped) == 1
        job.engine.inprogress.clear()
        crawl.settle()
        assert len(crawl._popped) == 0


def test_what_cannot_be_read_is_kept(tmp_path: Path) -> None:
    """A request that cannot be deserialized raises once, the requests behind it come out, and the next crawl has it
    again."""
    with crawler(tmp_path) as job:
        path = f"{tmp_path}/requests.queue/site/0"
        queue = face.PickleFifoDiskQueue.from_crawler(job, path)
        crawl = face.Crawl.of(job)
        assert crawl is not None
        crawl.push(face._Stored(crawl.key(path), "site", b"", b"no pickle"))
        queue.push(Request("http://site/1"))
        with pytest.raises(pickle.UnpicklingError):
            queue.pop()
        assert urls(queue) == ["http://site/1"]
    with crawler(tmp_path) as job:
        assert len(face.PickleFifoDiskQueue.from_crawler(job, path)) == 1


@pytest.mark.damages
def test_damage_costs_what_is_damaged(tmp_path: Path) -> None:
    """A crawl goes on behind damage in the shared queue, in a long queue, and in the record of seen requests."""
    many, path = range(2 * face.FRONT_ITEMS), f"{tmp_path}/requests.queue/site/0"
    with crawler(tmp_path) as job:
        queue = face.PickleFifoDiskQueue.from_crawler(job, path)
        for number in many:
            queue.push(Request(f"http://site/{number}/"))
        queue.pop()
        crawl = face.Crawl.of(job)
        assert crawl is not None
        crawl.settle(is_end=True)
    for name in list_queues(tmp_path / "persistentqueue"):
        directory = tmp_path / "persistentqueue" / name
        with PersistentQueue(directory) as it:
            second = [*it.peek(2), b""][name.startswith("requests")]
        (segment,) = segment_files(directory)
        flip(segment, segment.read_bytes().index(second))
    with crawler(tmp_path) as job:
        queue = face.PickleFifoDiskQueue.from_crawler(job, path)
        found = [int(url.split("/")[3]) for url in urls(queue)]
        assert found == [number for number in many if number not in {0, 2, face.FRONT_ITEMS}]
    assert len(list_queues(tmp_path / "persistentqueue")) == 3  # a damaged queue is not deleted


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a push finds no room, Scrapy keeps its request in memory. The requests in progress, which may have led to it,
    come back with the next crawl; later ones are recorded when there is room."""
    full = [False]

    def flush(session: Session[bytes], *arguments: Any) -> bool:
        if full[0]:
            raise DiskFullError(str(tmp_path), errno.ENOSPC, "filled by a test")
        return flushed(session, *arguments)

    flushed = Session.flush
    monkeypatch.setattr(Session, "flush", flush)
    path = f"{tmp_path}/requests.queue/site/0"
    with crawler(tmp_path) as job:
        queue = face.PickleFifoDiskQueue.from_crawler(job, path)
        crawl = face.Crawl.of(job)
        assert crawl is not None
        for number in range(4):
            queue.push(Request(f"http://site/{number}"))
        done = queue.pop()
        full[0] = True
        del done
        crawl.settle()
        in_progress = queue.pop()
        assert in_progress is not None
        with pytest.raises(ValueError, match="filled by a test"):
            queue.push(Request("http://site/child"))
        full[0] = False
        later = queue.pop()
        del later
        crawl.settle()
        assert list(crawl._log.browse()) == [job.request_fingerprinter.fingerprint(Request("http://site/2"))]
    with crawler(tmp_path) as job:
        queue = face.PickleFifoDiskQueue.from_crawler(job, path)
        assert urls(queue) == [f"http://site/{number}" for number in (0, 1, 3)]


def test_settling_is_interrupted_by_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was settled before the disk was full is not settled again: its session may be another request's by
    then."""
    with crawler(tmp_path) as job:
        queue = face.PickleFifoDiskQueue.from_crawler(job, f"{tmp_path}/requests.queue/site/0")
        crawl = face.Crawl.of(job)
        assert crawl is not None
        for number in range(3):
            queue.push(Request(f"http://site/{number}"))
        popped = [queue.pop() for _ in range(2)]
        flushed, left = face._Sessions.flush, [1]

        def flush(sessions: Any, session: Session[bytes]) -> None:
            if not left[0]:
                raise DiskFullError(str(tmp_path), errno.ENOSPC, "filled by a test")
            left[0] -= 1
            flushed(sessions, session)

        monkeypatch.setattr(face._Sessions, "flush", flush)
        popped.clear()
        crawl.settle()
        left[0] = 100
        queue.push(Request("http://site/3"))
        assert len(crawl._popped) == 0
        assert len({id(session) for session in crawl._shared._idle}) == len(crawl._shared._idle) == 1
        assert crawl._shared.queue.stats().held == 2
        assert urls(queue) == ["http://site/2", "http://site/3"]


def scheduler_of(job: Any) -> Any:
    """Return Scrapy's scheduler, opened."""
    scheduler = Scheduler.from_crawler(job)
    scheduler.open(job.spider)
    return scheduler


def test_scheduler_finds_what_was_left(tmp_path: Path) -> None:
    """Scrapy's scheduler finds all slots and priorities by their names, including long ones, without its own files.
    Requests that are scheduled or done count as seen."""
    many = [f"http://site/{slot}{number}" for slot in "abc" for number in range(2 * face.FRONT_ITEMS)]
    with crawler(tmp_path) as job:
        job.engine = Engine()
        scheduler = scheduler_of(job)
        assert all(scheduler.enqueue_request(Request(url, priority=len(url) % 3)) for url in many)
        assert not scheduler.enqueue_request(Request(many[0]))
        assert scheduler.enqueue_request(Request(many[0], dont_filter=True))
        done = scheduler.next_request().url
    assert not (tmp_path / "requests.queue" / "active.json").exists()
    PersistentQueue(tmp_path / "persistentqueue", "long-0").close()  # as left by a crawl that was killed just then
    with crawler(tmp_path) as job:
        job.engine = Engine()
        scheduler = scheduler_of(job)
        assert len(scheduler) == len(many)
        assert not any(scheduler.enqueue_request(Request(url)) for url in many)
        left = Counter(request.url for request in iter(scheduler.next_request, None))
        assert left + Counter([done]) == Counter([*many, many[0]])
    with crawler(tmp_path) as job:
        crawl = face.Crawl.of(job)
        assert crawl is not None
        assert crawl.pending() == {}
        crawl.fifo("site/0")
        assert crawl.pending() == {}
    assert list_queues(tmp_path / "persistentqueue") == ["requests", "seen"]


def no_method(_: object) -> None:
    """Do nothing. A request with this callback cannot be serialized, since it is no method of the spider."""


def test_a_finished_request_that_was_in_memory_is_not_fetched_again(tmp_path: Path) -> None:
    """A request that cannot be serialized counts as seen in the next crawl if it was finished. It does not if it must
    not be filtered, was in progress, or was never fetched."""
    names = ["s-finished", "s-unfiltered", "s-in-progress", "s-waiting"]

    def schedule(scheduler: Any) -> list[str]:
        return [name for name in names if scheduler.enqueue_request(unserializable(name))]

    def unserializable(name: str) -> Request:
        return Request(f"http://site/{name}", callback=no_method, dont_filter=name == "s-unfiltered")

    with crawler(tmp_path, SCHEDULER_MEMORY_QUEUE="scrapy.squeues.FifoMemoryQueue") as job:
        job.engine = Engine()
        scheduler = scheduler_of(job)
        assert schedule(scheduler) == names
        for _ in range(2):
            assert scheduler.next_request() is not None
        in_progress = scheduler.next_request()
        job.engine.inprogress.add(in_progress)
        crawl = face.Crawl.of(job)
        assert crawl is not None
        assert list(crawl._log.browse()) == [job.request_fingerprinter.fingerprint(unserializable("s-finished"))]
    with crawler(tmp_path) as job:
        job.engine = Engine()
        assert schedule(scheduler_of(job)) == names[1:]


def test_a_full_disk_leaves_what_was_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a push finds no room, requests in progress that were in memory do not count as seen: they may have led to it,
    as those of the disk queues may."""

    def no_room(_: object) -> None:
        raise DiskFullError(str(tmp_path), errno.ENOSPC, "filled by a test")

    with crawler(tmp_path) as job:
        job.engine = Engine()
        scheduler = scheduler_of(job)
        parent = Request("http://site/s0", callback=no_method)
        assert scheduler.enqueue_request(parent)
        job.engine.inprogress.add(scheduler.next_request())
        crawl = face.Crawl.of(job)
        assert crawl is not None
        with monkeypatch.context() as full:
            full.setattr(crawl, "_push", no_room)
            assert scheduler.enqueue_request(Request("http://site/s1"))
        job.engine.inprogress.clear()
        assert scheduler.next_request().url == "http://site/s1"
    with crawler(tmp_path) as job:
        job.engine = Engine()
        scheduler = scheduler_of(job)
        assert [scheduler.enqueue_request(Request(f"http://site/s{number}")) for number in range(2)] == [True, False]


def test_thousands_of_slots_are_no_directories(tmp_path: Path) -> None:
    """A thousand slots with a few requests each take one queue, and no descriptors of their own."""
    with crawler(tmp_path, PERSISTENTQUEUE_SYNC=False) as job:
        queues = [face.PickleFifoDiskQueue(job, f"{tmp_path}/requests.queue/site{n}-0/0") for n in range(1_000)]
        for queue in queues:
            queue.push(Request("http://site/"))
        assert list_queues(tmp_path / "persistentqueue") == ["requests", "seen"]
        assert all(len(queue) == 1 for queue in queues)


def crawled(jobdir: Path, **settings: Any) -> Iterator[str]:
    """Yield the requests that three crawls fetch, one each: the first one schedules them all."""
    for turn in range(3):
        with crawler(jobdir, **settings) as job:
            job.engine = Engine()
            scheduler = scheduler_of(job)
            for number in range(3):
                assert scheduler.enqueue_request(Request(f"http://site/s{number}")) is (turn == 0)
            yield scheduler.next_request().url
            scheduler.close("finished")


def test_disk_queue_alone(tmp_path: Path) -> None:
    """As ``SCHEDULER_DISK_QUEUE`` alone, with Scrapy's own priority queue and filter, the disk queue goes on after a
    clean end. The add-on finds its requests, and the other way round."""
    alone = {
        "JOBDIR": str(tmp_path),
        "SCHEDULER_DISK_QUEUE": "persistentqueue.scrapy.PickleFifoDiskQueue",
    } | NO_EXTENSIONS
    popped: list[str] = []
    for settings in (alone, alone | {"ADDONS": {face.Addon: 500}}, alone):
        job: Any = get_crawler(Spider, settings)
        job.spider = Spider.from_crawler(job, "spider")
        job.engine = Engine()
        scheduler = scheduler_of(job)
        for number in range(3 * (not popped)):
            assert scheduler.enqueue_request(Request(f"http://site/s{number}"))
        popped.append(scheduler.next_request().url)
        scheduler.close("finished")
        job.signals.send_catch_log(signals.spider_closed, spider=job.spider, reason="finished")
    assert popped == ["http://site/s0", "http://site/s1", "http://site/s2"]


def test_the_jobdir_may_be_a_path_object(tmp_path: Path) -> None:
    """``JOBDIR`` may be a path object, as for Scrapy: a crawl finds what one with the same path as text has left."""
    with crawler(tmp_path) as job:
        face.PickleFifoDiskQueue.from_crawler(job, f"{tmp_path}/requests.queue/site/0").push(Request("http://site/0"))
    with crawler(tmp_path, JOBDIR=tmp_path) as job:
        queue = face.PickleFifoDiskQueue.from_crawler(job, f"{tmp_path}/requests.queue/site/0")
        assert urls(queue) == ["http://site/0"]


def test_filter_without_a_jobdir() -> None:
    """Without ``JOBDIR`` the filter is Scrapy's own, in memory."""
    with crawler(None) as job:
        job.engine = Engine()
        scheduler = scheduler_of(job)
        assert [scheduler.enqueue_request(Request("http://site/1")) for _ in range(2)] == [True, False]
        assert scheduler.next_request().url == "http://site/1"


def test_add_on_leaves_what_the_project_sets(tmp_path: Path) -> None:
    """The add-on sets the queues and the filter, except those that a project has set itself."""
    own = {"SCHEDULER_START_DISK_QUEUE": None, "ADDONS": {face.Addon: 500}}
    settings = get_crawler(Spider, own).settings
    assert settings["SCHEDULER_DISK_QUEUE"] is face.PickleFifoDiskQueue
    assert settings["DUPEFILTER_CLASS"] is face.DupeFilter
    assert settings["SCHEDULER_START_DISK_QUEUE"] is None


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("SCHEDULER_DISK_QUEUE", "scrapy.squeues.PickleFifoDiskQueue"),
        ("SCHEDULER_START_DISK_QUEUE", PickleFifoDiskQueue),
        ("SCHEDULER_PRIORITY_QUEUE", "scrapy.pqueues.DownloaderAwarePriorityQueue"),
    ],
)
def test_a_queue_of_another_module_loses_nothing(
    name: str, own: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside a queue of another module the add-on sets nothing and says so. No request is lost or fetched twice."""
    with caplog.at_level("WARNING"), crawler(tmp_path, **{name: own}) as job:
        assert job.settings[name] == own
        assert job.settings["DUPEFILTER_CLASS"] == Settings()["DUPEFILTER_CLASS"]
    assert f"Disabled <class 'persistentqueue.scrapy.Addon'>: {name} is {own!r}, which does not work" in caplog.text
    assert sorted(crawled(tmp_path, **{name: own})) == [f"http://site/s{number}" for number in range(3)]


def test_queues_of_other_modules_in_the_priority_queue(tmp_path: Path) -> None:
    """The priority queue, if it is set without the add-on, finds what the queues of other modules have left."""
    own = {"SCHEDULER_PRIORITY_QUEUE": face.PriorityQueue, "SCHEDULER_DISK_QUEUE": PickleFifoDiskQueue, "ADDONS": {}}
    assert sorted(crawled(tmp_path, **own)) == [f"http://site/s{number}" for number in range(3)]


def test_the_other_disk_queue_works_with_the_add_on(tmp_path: Path) -> None:
    """The project can set another disk queue of the module."""
    own = {"SCHEDULER_DISK_QUEUE": "persistentqueue.scrapy.MarshalFifoDiskQueue"}
    with crawler(tmp_path, **own) as job:
        assert job.settings["SCHEDULER_PRIORITY_QUEUE"] is face.PriorityQueue
    assert sorted(crawled(tmp_path, **own)) == [f"http://site/s{number}" for number in range(3)]


@pytest.mark.parametrize("sync", ["True", "False"])
def test_sync_is_a_setting(sync: str, tmp_path: Path) -> None:
    """``PERSISTENTQUEUE_SYNC`` decides whether a push syncs, and so whether a request is durable against a power
    cut."""
    job = get_crawler(Spider, {"JOBDIR": str(tmp_path), "PERSISTENTQUEUE_SYNC": sync})
    crawl = face.Crawl.of(job)
    assert crawl is not None
    before = crawl._shared.queue.stats().syncs
    crawl.push(face._Stored("site/0", "site", b"", b"data"))
    assert (crawl._shared.queue.stats().syncs > before) is (sync == "True")
    crawl.close()
    crawl.close()


def test_without_the_extra_it_says_what_to_install() -> None:
    """Without Scrapy the import raises the package's own error, which says what is missing."""
    code = "import sys; sys.modules['scrapy'] = None; import persistentqueue.scrapy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "MissingExtraError: the scheduler for Scrapy needs a package that is not installed: pip" in done.stderr
