"""``report``: the page that explains a queue, as a document and in a browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import PersistentQueue, View, connect
from persistentqueue.cli import main, report_html
from persistentqueue.cli.display.report import page
from persistentqueue.cli.summary import findings, see, see_inside
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import flip, put, segment_files

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)
FRAME = '<iframe style="width:{width}px;height:900px;border:0" srcdoc="{html}"></iframe>'
"""Frame that shows a page. A window has a least width; a frame has none."""
MEASURE = """<script>addEventListener("load", () => {
  const pages = [...document.querySelectorAll("iframe")].map(frame => frame.contentDocument.documentElement);
  document.title = pages.map(page => `${page.scrollWidth} ${page.clientWidth} ${page.scrollHeight}`).join(", "); })
</script>"""
VOID = {"meta", "link", "br", "rect", "polyline", "path"}


def at_work(queue: PersistentQueue) -> Callable[[], None]:
    """Give the queue holds, holes and a backlog larger than memory; return a function that closes the sessions."""
    for start in range(0, 2000, 50):
        put(queue, *(b"%d" % n + bytes(1000) for n in range(start, start + 50)))
    slow, importer, quick = (queue.session(name) for name in ("slow <b>mailer</b>", "importer", "quick"))
    slow.dequeue_many(3)
    quick.dequeue_many(200)
    importer.dequeue_many(40)
    quick.dequeue_many(400)
    quick.flush()
    importer.enqueue_many([bytes(1000)] * 6000)

    def end() -> None:
        for session in (slow, importer, quick):
            session.close()

    return end


class Outline(HTMLParser):
    """Classes and addresses of the tags of a page; it fails if a tag is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.classes: set[str] = set()
        self.addresses: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.classes |= set((given.get("class") or "").split())
        self.addresses += [value or "" for name, value in attrs if name in {"href", "src", "style"}]
        assert tag != "script"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.classes |= set((dict(attrs).get("class") or "").split())

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def text_of(html: str) -> str:
    """Return the text that a page shows."""
    return " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL)).split())


def test_from_inside_it_says_who_keeps_what(open_queue: QueueFactory) -> None:
    """A report from the owning process tells which session keeps which file, with how many items. It tells how much of
    the backlog is in memory."""
    queue = open_queue(segment_bytes=60_000, memory_bytes=100_000)
    end = at_work(queue)
    html = report_html(queue)
    text = text_of(html)
    assert "Segment 1, 49.2 KiB, is kept by session 'slow <b>mailer</b>': it holds 3 items" in text
    assert "session 'importer' holds 40 items" in text
    assert "<b>mailer" not in html
    assert "written 3," in text or "written 4," in text
    assert "The queue has flowed to disk" in text
    assert "written ahead, or set aside: 3.8 MiB" in text
    assert "of them on hold" in text
    assert re.search(r"a flush, as its caller sees it [\d, up to µms<>]* 41 ", text)
    assert "Looked at from outside" not in text
    found = Outline(html)
    assert {"held", "little", "full", "youngest", "cached", "age", "live", "dead", "log", "spare"} <= found.classes
    end()
    assert "every session has flushed" in text_of(report_html(queue))


def test_from_inside_it_takes_open_queues_only(open_queue: QueueFactory, directory: Path) -> None:
    """A report from inside says what it takes if an argument is no open queue."""
    queue = open_queue()
    for wrong in (str(directory), None, [queue], queue.view()):
        with pytest.raises(TypeError, match="report_html takes queues that this process has open, not "):
            report_html(queue, wrong)  # type: ignore[arg-type]


def test_from_outside_it_says_what_cannot_be_seen(open_queue: QueueFactory, directory: Path, tmp_path: Path) -> None:
    """A report from another process shows no holds, and says that it was made from outside."""
    queue = open_queue(segment_bytes=60_000, memory_bytes=100_000)
    end = at_work(queue)
    target = tmp_path / "report.html"
    assert main(["report", str(directory), "-o", str(target)]) == 0
    html = target.read_text(encoding="utf-8")
    text = text_of(html)
    assert "Looked at from outside" in text
    assert "43 items were overtaken" in text
    assert "importer" not in text
    assert "held" not in Outline(html).classes
    end()


def test_depth_and_rates_over_time_come_first(open_queue: QueueFactory, directory: Path, tmp_path: Path) -> None:
    """A report from another process begins with the depth and the rates that the owner has published. If there is no
    past yet, it says so."""
    now = [10**18]
    queue = open_queue(disk=replace(DISK, time_ns=lambda: now[0]))
    assert "has taken no samples yet" in text_of(report_html(queue))
    for count in (100, 300):
        put(queue, *[b"x"] * count)
        now[0] += 10 * 10**9
        queue.maintain()
    target = tmp_path / "report.html"
    assert main(["report", str(directory), "-o", str(target)]) == 0
    html = target.read_text(encoding="utf-8")
    text = text_of(html)
    assert "Items left: 400 now, 400 at most" in text
    assert re.search(r"enqueued [\d.]+/s now, \d+/s at most", text)
    assert text.index("Depth and rates") < text.index("Findings, and what to do")
    assert "The last hour" in text and "The last two days" in text  # the clock of the command is years ahead
    assert {"depth", "line-in", "line-out"} <= Outline(html).classes
    assert all("<title>" in picture for picture in re.findall(r'<svg class="wide".*?</svg>', html))


@pytest.mark.usefixtures("patient")
def test_who_is_connected_has_a_table(open_queue: QueueFactory, directory: Path, tmp_path: Path) -> None:
    """If the owner serves, the page has the sessions of other processes, made from outside or in the owner. Else it
    does not speak of them."""
    target = tmp_path / "report.html"

    def outside() -> str:
        assert main(["report", str(directory), "-o", str(target)]) == 0
        return text_of(target.read_text(encoding="utf-8"))

    with open_queue() as queue:
        put(queue, *[b"x"] * 60)
        assert "Connected processes" not in outside() + text_of(report_html(queue))
    queue = open_queue(serve=True)
    assert "No other process has a session." in outside()
    assert "Connected processes" not in text_of(report_html(queue))
    with ExitStack() as stack:
        shared = stack.enter_context(connect(directory.parent, directory.name, serve="never"))
        sessions: list[Any] = [stack.enter_context(shared.session(f"<b>mailer {number}</b>")) for number in range(51)]
        for session in sessions[1:]:
            session.dequeue()
        sessions[0].flush(("marker", 1))
        html, words = report_html(queue), outside()
        for session in sessions:
            session.rollback()
    for text in (text_of(html), words):
        assert "51 sessions of other processes, 0 waiting for an item; the first 50 are shown" in text
        assert f"{os.getpid()} " in text and "thread MainThread" in text
        assert "<b>mailer 1</b> - 1 " in text
        assert "mailer 0" not in text
    assert "<b>mailer" not in html
    assert "Process " in words and "holds 1 item in its session" in words
    assert f"is kept by session '<b>mailer 1</b> (process {os.getpid()}, thread MainThread)'" in text_of(html)
    Outline(html)


def test_near_equal_files_are_one_tile(open_queue: QueueFactory) -> None:
    """Near-equal neighbours are one tile with their number; a file that a session keeps is apart, and names it."""
    queue = open_queue(segment_bytes=4096)
    for _ in range(300):
        put(queue, b"x" * 3000)
    with queue.session("mailer") as session:
        session.dequeue()
        html = report_html(queue)
        session.rollback()
    assert html.count("<svg width=") < 20
    assert "298 segments, 2 to 299: " in html or "299 segments, 2 to 300: " in html
    assert "kept by &#x27;mailer&#x27;" in html


def test_it_needs_nothing_from_elsewhere(open_queue: QueueFactory) -> None:
    """A page has no script, and no address, picture or style of another file."""
    queue = open_queue()
    put(queue, b"a")
    html = report_html(queue, open_queue("b"))
    assert [each for each in Outline(html).addresses if not each.startswith(("#", "data:,"))] == []
    assert not re.search(r"https?:|url\(|@import|//[a-z]", html)
    assert len(html) < 100_000


def test_queues_of_a_directory_on_one_page(open_queue: QueueFactory) -> None:
    """A page of several queues has a table above them, also with an empty queue and one with subscriptions."""
    empty, sales = open_queue("empty"), open_queue("sales", fan_out=True)
    for name in ("billing", "audit"):
        sales.subscribe(name)
    put(sales, b"a", b"b")
    text = text_of(report_html(empty, sales, open_queue("plain")))
    for words in (
        "3 queues",
        "All queues",
        "No item waits.",
        "Consumers",
        "billing",
        "No problems",
        "There are none",
    ):
        assert words in text, words
    put(open_queue("both"), b"a")
    assert "(no subscription)" not in text
    both = open_queue("other")
    both.subscribe("audit")
    put(both, b"a")
    assert "(no subscription)" in text_of(report_html(both))


@pytest.mark.damages
def test_a_first_item_that_cannot_be_read_is_found(open_queue: QueueFactory, directory: Path) -> None:
    """From outside, a damaged block at the front of the queue is a finding, although no session has met it."""
    with open_queue() as queue:
        put(queue, b"a" * 100)
        assert not any("could not be read" in each.what for each in findings(see(View(directory), "orders")))
    flip(segment_files(directory)[0], 70)
    (found,) = findings(see(View(directory), "orders"))
    assert found.is_urgent and "The first item that is left could not be read" in found.what
    assert "nothing to do" not in text_of(page([see(View(directory), "orders")]))


def test_more_memory_is_advised_only_if_it_is_full(open_queue: QueueFactory) -> None:
    """A backlog that is on disk because the queue was just opened is no reason for a larger ``memory_bytes``."""
    with open_queue() as queue:
        put(queue, b"a", b"b")
    queue = open_queue(memory_bytes=10_000)
    (flowed,) = findings(see_inside(queue))
    assert "0 of 2 ready items are in memory" in flowed.what and "memory_bytes" not in flowed.advice
    put(queue, *[bytes(1000)] * 50)
    with queue.session() as session:
        session.dequeue_many(5)
        session.rollback()
    (flowed,) = findings(see_inside(queue))
    assert "A larger memory_bytes keeps more in memory" in flowed.advice


@pytest.mark.damages
def test_what_is_urgent_comes_first(open_queue: QueueFactory, directory: Path) -> None:
    """Urgent findings come first: a hold of an hour, items that cannot be read, and a queue that is nearly full."""
    with open_queue() as queue:
        put(queue, b"a" * 100, b"b")
        put(queue, b"c")
    flip(segment_files(directory)[0], 130)
    queue = open_queue(max_items=2)
    with queue.session("slow") as session:
        with pytest.raises(Exception, match="damaged"):
            session.dequeue()
        assert session.dequeue() == b"c"
        sight = see_inside(queue)
        assert any(each.is_urgent and "2 items were set aside" in each.what for each in findings(sight))
        (use,) = [use for use in sight.uses if use.holders]
        old = use._replace(holders=(use.holders[0]._replace(seconds=3700.0),))
        assert sight.stats is not None
        sight = replace(sight, uses=(old,), stats=replace(sight.stats, fill=0.95, waiting=2))
        told = findings(sight)
        assert [each.is_urgent for each in told] == sorted([each.is_urgent for each in told], reverse=True)
        text = text_of(page([sight]))
        assert "holds 1 item for 1 h 1 min" in text
        assert "95 % full by its nearest limit; 2 flushes wait" in text
        assert "urgent" in Outline(page([sight])).classes
        session.rollback()


# --- in a browser --------------------------------------------------------------------------------------------------


@pytest.fixture
def show(tmp_path: Path) -> Callable[..., str]:
    """Return a function that shows a page in headless Chromium and returns its stdout and stderr."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    browser: str = CHROMIUM
    number = iter(range(100))

    def shown(html: str, width: int, height: int, *flags: str) -> str:
        at = next(number)
        file, profile = tmp_path / f"page{at}.html", tmp_path / f"profile{at}"
        file.write_text(html, encoding="utf-8")
        command = [
            browser,
            *FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            *flags,
            file.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        shutil.rmtree(profile)
        return done.stdout + done.stderr

    return shown


def framed(html: str, *widths: int) -> str:
    """Return a page that shows this one in frames of these widths, and measures it."""
    return MEASURE + "".join(FRAME.format(width=width, html=escape(html)) for width in widths)


def measured(told: str) -> list[list[int]]:
    """Return, for each frame, the width of its page, the width of the frame, and the height of the page."""
    title = re.search(r"<title>([0-9 ,]+)</title>", told)
    assert title is not None, told
    return [[int(each) for each in one.split()] for one in title[1].split(",")]


def colours_of(path: Path) -> set[tuple[int, ...]]:
    """Return the colours of a picture."""
    image = pytest.importorskip("matplotlib.image").imread(str(path))
    return {tuple(int(value * 255) for value in pixel[:3]) for row in image[::3] for pixel in row[::3]}


def test_a_browser_shows_it(open_queue: QueueFactory, tmp_path: Path, show: Callable[..., str]) -> None:
    """A browser shows the page without an error, without sideways scrolling on a telephone or a desktop, and in light
    and dark colours."""
    queue = open_queue(segment_bytes=60_000, memory_bytes=100_000)
    end = at_work(queue)
    sales = open_queue("a" * 64, fan_out=True)
    sales.subscribe("b" * 200)
    put(sales, b"a")
    html = report_html(queue, sales)
    end()
    told = show(framed(html, 400, 1280), 1400, 900, "--dump-dom")
    assert [(wide, room) for wide, room, _ in measured(told)] == [(400, 400), (1280, 1280)]
    assert all(high > 1000 for _, _, high in measured(told))
    assert "CONSOLE" not in told
    shots = {mode: tmp_path / f"{mode}.png" for mode in ("light", "dark")}
    show(html, 1280, 2000, f"--screenshot={shots['light']}")
    show(html, 1280, 2000, f"--screenshot={shots['dark']}", "--force-dark-mode")
    light, dark = (colours_of(shots[mode]) for mode in ("light", "dark"))
    for found, paper, bar in ((light, (246, 247, 249), (31, 138, 76)), (dark, (18, 22, 28), (63, 184, 113))):
        assert {paper, bar} <= found
        assert len(found) > 50
    assert (246, 247, 249) not in dark


def test_what_is_wrong_with_a_page_would_be_seen(show: Callable[..., str]) -> None:
    """An error of a script, a file that cannot be loaded, and a page that is too wide would be noticed."""
    wide = "<div style='width:3000px'>x</div>"
    bad = f"<html><head></head><body>{wide}<img src='missing.png'><script>nothing()</script></body>"
    told = show(framed(bad, 400), 1400, 900, "--dump-dom")
    assert "CONSOLE" in told
    assert measured(told)[0][0] >= 3000
