"""A collector of ``prometheus_client`` that exports ``stats()`` of queues. It needs the extra ``prometheus``.

::

    from prometheus_client import REGISTRY, start_http_server
    from persistentqueue.prometheus import QueueCollector

    REGISTRY.register(QueueCollector(queue))
    start_http_server(8000)

Each field of ``Stats`` is one metric, named ``persistentqueue_`` and the field; ``history`` and ``shares`` are none. A
unit is added if the field does not name one (``ready_items``), and ``_total`` for a counter. The help of a metric is
the description of the field in ``Stats``.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache
from itertools import accumulate, pairwise
from typing import TypeAlias

from persistentqueue import Histogram, MissingExtraError, PersistentQueue, PersistentQueueError, Stats

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ImportError as missing:
    raise MissingExtraError("the collector for Prometheus", "prometheus") from missing

COUNTERS = {
    "damaged",
    "damage_found",
    "enqueued",
    "enqueued_bytes",
    "dequeued",
    "given_back",
    "adopted",
    "groups",
    "transactions",
    "refused",
    "syncs",
    "generation",
    "pool_taken",
    "page_hits",
    "page_reads",
    "compacted_segments",
    "copied_bytes",
    "rejected",
    "dead",
    "undecodable",
}
"""Fields that only grow while the queue is open. Some continue to grow after the next opening."""
_ITEMS = ("ready", "held", "damaged", "enqueued", "dequeued", "cached", "given_back", "delayed", "rejected", "dead")
_NAMES = {
    **{name: f"{name}_items" for name in _ITEMS},
    "generation": "trims",
    "fill": "fill_ratio",
    "published": "published_transactions",
    "adopted": "adopted_transactions",
}
"""Names of the metrics that are not named like their field."""
_LABELS = ("path", "queue")
CAUSE = "cause"
"""Further label of a field that has a histogram for each cause."""
_Family: TypeAlias = "CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily"


class QueueCollector(Collector):
    """A collector of the metrics of one or several queues. Any thread may use it.

    Each sample has the labels ``path`` and ``queue``: the path and the name that its queue was opened with. Without a
    name, ``queue`` is empty. Bytes of a path that are not UTF-8 are escaped. A scrape omits each queue that is closed,
    whose directories cannot be read, or that raises another error of the package. It calls ``stats()`` once per queue,
    and waits for no flush. For a queue that ``connect`` has opened, it waits up to ``lock_timeout`` for an owner.

    Args:
        *queues: Open queues, and callables that return the queues of each scrape.

    Example::

        REGISTRY.register(QueueCollector(orders, lambda: open_queues))

    Raises:
        TypeError: An argument is neither an open queue nor a callable.
    """

    def __init__(self, *queues: PersistentQueue | Callable[[], Iterable[PersistentQueue]]) -> None:
        for given in queues:
            if not (isinstance(given, PersistentQueue) or callable(given)):
                raise TypeError(
                    f"a collector takes open queues and callables that return queues, not {given!r}: pass a queue that "
                    "connect() has opened as lambda: [queue]"
                )
        self._queues = queues

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values, so that the registry can refuse names that are taken. Reads no queue."""
        return _families().values()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all queues at this moment.

        Raises:
            Exception: A callable of ``queues`` raised it.
        """
        families, given = _families(), set[tuple[str, str]]()
        for queue in self._all():
            labels = _text_of(queue.path), queue.name or ""
            if labels in given:  # a second sample with these labels makes a scrape invalid
                continue
            with suppress(PersistentQueueError, OSError):
                stats = queue.stats()
                for name, family in families.items():
                    _add(family, labels, getattr(stats, name))
                given.add(labels)
        return families.values()

    def _all(self) -> Iterator[PersistentQueue]:
        for given in self._queues:
            if isinstance(given, PersistentQueue):
                yield given
            else:
                yield from given()


def _text_of(path: str) -> str:
    """Return the path as text that can be encoded: otherwise one label would fail the scrape of all queues."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _families() -> dict[str, _Family]:
    """Return an empty family for each field."""
    helps = _helps()
    return {
        field.name: _family(field.name, str(field.type), helps.get(field.name, ""))
        for field in fields(Stats)
        if not str(field.type).startswith("tuple")  # pictures of the past and of the files: Prometheus makes its own
    }


def _family(name: str, kind: str, help_text: str) -> _Family:
    metric = f"persistentqueue_{_NAMES.get(name, name)}"
    if kind == Histogram.__name__:
        return HistogramMetricFamily(metric, help_text, labels=_LABELS)
    if kind.endswith(f"{Histogram.__name__}]"):
        return HistogramMetricFamily(metric, help_text, labels=(*_LABELS, CAUSE))
    return (CounterMetricFamily if name in COUNTERS else GaugeMetricFamily)(metric, help_text, labels=_LABELS)


def _add(family: _Family, labels: tuple[str, ...], value: float | Histogram | Mapping[str, Histogram]) -> None:
    if isinstance(value, Mapping):
        for cause, histogram in value.items():
            _add(family, (*labels, cause), histogram)
    elif isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Histogram)
        bounds = [*map(floatToGoString, value.bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(value.counts), strict=True)), value.sum)
    else:
        assert not isinstance(value, Histogram)
        family.add_metric(labels, value)


@cache
def _helps() -> dict[str, str]:
    """Return the description of each field of ``Stats``, read from its source; empty if there is no source."""
    try:
        (definition,) = ast.parse(inspect.getsource(Stats)).body
    except OSError:
        return {}
    assert isinstance(definition, ast.ClassDef)
    helps = {}
    for field, text in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            help_text = str(ast.literal_eval(text.value)) if isinstance(text, ast.Expr) else ""
            helps[field.target.id] = inspect.cleandoc(help_text).replace("\n", " ").replace("``", "")
    return helps
