"""The collector for Prometheus: names, kinds, help texts and values of the metrics, and queues that are left out."""

from __future__ import annotations

import errno
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from persistentqueue import PersistentQueue, Stats, connect, delete_queue, prometheus
from persistentqueue.measuring.metrics import SECONDS as BOUNDS
from persistentqueue.prometheus import COUNTERS, QueueCollector
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import put, put_each
from tests.unit.runtime.test_open_queue import SECONDS, Gate

PICTURES = {"history", "shares"}
"""Fields that are pictures of the past and of the files, and no metrics."""
FIELDS = {field.name for field in fields(Stats)} - PICTURES


def scrape(*queues: PersistentQueue | Callable[[], Iterable[Any]]) -> dict[str, Metric]:
    """Return the metrics of a scrape by their names, read by the client's own parser."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(*queues))
    return {metric.name: metric for metric in parse(generate_latest(registry).decode())}


def values(metric: Metric) -> dict[str, float]:
    """Return the values of a metric by the name of the queue."""
    return {sample.labels["queue"]: sample.value for sample in metric.samples}


def test_each_field_is_a_metric(open_queue: QueueFactory) -> None:
    """Each field of ``Stats`` but the pictures is a metric, in base units, with the help text of the field."""
    queue = open_queue()
    put(queue, b"x")
    found = scrape(queue)
    assert len(found) == len(FIELDS)
    assert all(re.fullmatch("persistentqueue_[a-z_]+", name) and metric.documentation for name, metric in found.items())
    assert found["persistentqueue_ready_items"].type == "gauge"
    assert found["persistentqueue_enqueued_items"].type == "counter"
    assert found["persistentqueue_flush_seconds"].type == "histogram"
    assert found["persistentqueue_fill_ratio"].type == "gauge"
    assert found["persistentqueue_held_items"].documentation.startswith("Items that sessions without a subscription")


def test_counters_are_what_counts_since_something(open_queue: QueueFactory) -> None:
    """A field whose help text says since when it counts is a counter or a histogram, and no other field is."""
    helps = prometheus._helps()
    since = {name for name, text in helps.items() if "since the queue was" in text}
    histograms = {
        field.name for field in fields(Stats) if field.type.endswith("Histogram") or field.type.endswith("Histogram]")
    }
    assert since == COUNTERS | histograms
    assert set(helps) == {field.name for field in fields(Stats)}


def test_a_queue_that_is_given_twice_has_one_sample(open_queue: QueueFactory) -> None:
    """A queue that an argument and a callable both give has one sample in each metric: a scrape may refuse a second."""
    orders, others = open_queue(), open_queue("others")
    put(orders, b"a")
    registry = CollectorRegistry()
    with open_queue("gone") as closed:
        pass
    again = open_queue("gone")
    registry.register(QueueCollector(orders, lambda: [closed, orders, others, again]))
    samples = [
        (each.name, tuple(sorted(each.labels.items()))) for metric in registry.collect() for each in metric.samples
    ]
    assert len(samples) == len(set(samples))
    (metric,) = [each for each in registry.collect() if each.name == "persistentqueue_ready_items"]
    assert [each.value for each in metric.samples] == [1, 0, 0]


def test_values_are_those_of_stats(open_queue: QueueFactory, tmp_path: Path) -> None:
    """Each queue has its own values, labelled with path and name. The name of an unnamed queue is empty."""
    orders, unnamed = open_queue(), open_queue(None, path=tmp_path / "one")
    put(orders, b"a", b"b")
    found = scrape(orders, unnamed)
    assert values(found["persistentqueue_ready_items"]) == {"orders": 2, "": 0}
    assert values(found["persistentqueue_enqueued_bytes"])["orders"] == orders.stats().enqueued_bytes
    (sample, _) = found["persistentqueue_trims"].samples
    assert (sample.name, sample.labels["path"]) == ("persistentqueue_trims_total", str(tmp_path / "queues"))


def test_stalls_have_a_label_for_their_cause(open_queue: QueueFactory) -> None:
    """``stall_seconds`` is one histogram for each cause, and the counts are those of ``stats()``."""
    queue = open_queue()
    put(queue, b"x")
    stalls = queue.stats().stall_seconds
    family = next(each for each in QueueCollector(queue).collect() if each.name == "persistentqueue_stall_seconds")
    counts = {each.labels["cause"]: each.value for each in family.samples if each.name.endswith("_count")}
    assert counts == {cause: histogram.count for cause, histogram in stalls.items()} and sum(counts.values()) > 0


def test_histograms(open_queue: QueueFactory) -> None:
    """Buckets of a histogram are cumulative, and the bucket up to +Inf is the count."""
    queue = open_queue()
    put_each(queue, [b"x"] * 10)
    histogram = queue.stats().flush_seconds
    samples = scrape(queue)["persistentqueue_flush_seconds"].samples
    buckets = {float(each.labels["le"]): each.value for each in samples if each.name.endswith("_bucket")}
    assert list(buckets) == [*BOUNDS, float("inf")]
    assert list(buckets.values()) == sorted(buckets.values()) and buckets[float("inf")] == 10
    assert buckets[BOUNDS[-1]] - buckets[BOUNDS[-2]] == histogram.counts[-2]
    rest = {each.name.rpartition("_")[2]: each.value for each in samples if not each.name.endswith("_bucket")}
    assert rest == {"count": 10, "sum": pytest.approx(histogram.sum)}


def test_openmetrics_has_no_objection(open_queue: QueueFactory) -> None:
    """The stricter OpenMetrics format accepts all metrics."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(open_queue()))
    text = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    assert len(list(parse_openmetrics(text))) == len(FIELDS)  # type: ignore[no-untyped-call]


def test_a_path_that_is_no_text(open_queue: QueueFactory, tmp_path: Path) -> None:
    """A path that is not UTF-8 is a label with escapes: it does not fail the scrape of all queues."""
    with PersistentQueue(tmp_path / os.fsdecode(b"caf\xe9"), "q") as odd:
        samples = scrape(open_queue(), odd)["persistentqueue_ready_items"].samples
    assert {sample.labels["path"] for sample in samples} >= {str(tmp_path / r"caf\xe9")}
    assert len(samples) == 2


def test_who_is_left_out(open_queue: QueueFactory, tmp_path: Path) -> None:
    """A queue that is closed, or whose directory cannot be listed, is left out, and the other queues are there."""
    armed: list[OSError] = []

    def listdir(path: str) -> list[str]:
        if armed:
            raise armed[0]
        return DISK.listdir(path)

    closed, lost, well = open_queue("closed"), open_queue("lost", disk=replace(DISK, listdir=listdir)), open_queue()
    closed.close()
    for number in (errno.EACCES, errno.EMFILE):  # users get the second one as a ``ResourceError``
        armed[:] = [OSError(number, os.strerror(number), "q")]
        assert set(values(scrape(closed, lost, well)["persistentqueue_ready_items"])) == {"orders"}
    armed.clear()


def test_a_connected_queue_without_an_owner(open_queue: QueueFactory, tmp_path: Path) -> None:
    """A queue that "connect" has opened is left out while no process owns it, and after its deletion. The other queues
    are there."""
    path = tmp_path / "queues"
    well, owner = open_queue(), open_queue("jobs", serve=True)
    with connect(path, "jobs", serve="never", lock_timeout=0.0) as jobs:
        family = "persistentqueue_ready_items"
        assert set(values(scrape(well, lambda: [jobs])[family])) == {"orders", "jobs"}
        owner.close()
        assert set(values(scrape(well, lambda: [jobs])[family])) == {"orders"}
        delete_queue(path, "jobs")
        assert set(values(scrape(well, lambda: [jobs])[family])) == {"orders"}


def test_queues_that_come_and_go(open_queue: QueueFactory) -> None:
    """A callable is asked for the queues at each scrape, and not at the registration."""
    queues: list[PersistentQueue] = []
    asked: list[int] = []

    def those() -> Iterator[PersistentQueue]:
        asked.append(len(queues))
        yield from queues

    registry = CollectorRegistry()
    registry.register(QueueCollector(those))
    assert asked == []
    assert registry.get_sample_value("persistentqueue_sessions", {"path": "", "queue": ""}) is None
    queues.append(queue := open_queue())
    assert registry.get_sample_value("persistentqueue_sessions", {"path": queue.path, "queue": "orders"}) == 0
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(QueueCollector(those))


def test_without_a_source_there_is_no_help(monkeypatch: pytest.MonkeyPatch, open_queue: QueueFactory) -> None:
    """A package that is installed without its source can be scraped all the same."""

    def gone(_: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsource", gone)
    prometheus._helps.cache_clear()
    try:
        assert values(scrape(open_queue())["persistentqueue_ready_items"]) == {"orders": 0}
    finally:
        prometheus._helps.cache_clear()


def test_a_scrape_over_http_while_a_flush_is_under_way(open_queue: QueueFactory) -> None:
    """A scrape of a real server is answered while a flush waits for the disk."""
    gate = Gate()
    queue = open_queue(disk=replace(DISK, failpoint=gate.failpoint))
    registry = CollectorRegistry()
    registry.register(QueueCollector(queue))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    gate.armed = True
    try:
        with ThreadPoolExecutor(1) as pool:
            flushing = pool.submit(put, queue, b"x")
            assert gate.reached.wait(SECONDS)
            with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=SECONDS) as answer:
                found = {metric.name: metric for metric in parse(answer.read().decode())}
            assert not flushing.done()
            gate.go_on.set()
    finally:
        gate.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
    assert values(found["persistentqueue_ready_items"]) == {"orders": 0}


def test_without_the_extra_it_says_what_to_install() -> None:
    """Without ``prometheus_client`` the import raises the package's own error, which says what is missing."""
    code = "import sys; sys.modules['prometheus_client.core'] = None; import persistentqueue.prometheus"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "MissingExtraError: the collector for Prometheus needs a package that is not installed" in done.stderr


def test_only_queues_are_collected() -> None:
    """A collector refuses arguments that are neither open queues nor callables when it is made, not at each scrape."""
    with pytest.raises(TypeError, match=r"not 'orders': pass a queue that connect\(\) has opened as lambda: \[queue\]"):
        QueueCollector("orders")  # type: ignore[arg-type]
