"""The dashboard for Grafana and the alerts of the monitoring page: their form, and the metrics that they name.

``msgspec`` checks the form. The structs below are the part of the dashboard's schema that the file uses.
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import Literal, TypeAlias

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from persistentqueue.prometheus import QueueCollector
from tests.conftest import QueueFactory
from tests.project.modules import ROOT

DASHBOARD = (ROOT / "examples" / "grafana_dashboard.json").read_text(encoding="utf-8")
MONITORING = (ROOT / "docs" / "howto" / "monitoring.md").read_text(encoding="utf-8")
Any: TypeAlias = dict[str, object]


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """A struct that refuses fields that it does not know."""


class Source(Strict):
    type: Literal["prometheus"]
    uid: Literal["${datasource}"]


class Place(Strict):
    x: int
    y: int
    w: int
    h: int


class Target(Strict):
    refId: str  # noqa: N815 - the name in the file
    datasource: Source
    expr: str
    legendFormat: str  # noqa: N815


class Panel(Strict):
    id: int
    type: Literal["timeseries", "stat"]
    title: str
    description: str
    datasource: Source
    gridPos: Place  # noqa: N815
    fieldConfig: Any  # noqa: N815
    options: Any
    targets: list[Target]


class Variable(Strict):
    type: Literal["datasource", "query"]
    name: str
    label: str
    query: str
    datasource: Source | None = None
    refresh: int = 0
    includeAll: bool = False  # noqa: N815
    multi: bool = False
    allValue: str = ""  # noqa: N815
    current: Any = {}


class Variables(Strict, rename={"variables": "list"}):
    variables: list[Variable]


class Span(Strict, rename={"begin": "from"}):
    begin: str
    to: str


class Dashboard(Strict):
    uid: str
    title: str
    tags: list[str]
    schemaVersion: int  # noqa: N815
    version: int
    editable: bool
    refresh: str
    time: Span
    templating: Variables
    panels: list[Panel]


def exported(open_queue: QueueFactory) -> set[str]:
    """Return the names of all samples that the collector exports."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(open_queue()))
    return set(re.findall(r"^(persistentqueue_\w+)", generate_latest(registry).decode(), re.MULTILINE))


def named(text: str) -> set[str]:
    """Return the names of samples in queries."""
    return set(re.findall(r"\bpersistentqueue_\w+", text))


def test_the_dashboard_keeps_the_schema() -> None:
    """The dashboard has the form that Grafana loads: unique ids, panels that do not overlap, known variables."""
    found = msgspec.json.decode(DASHBOARD, type=Dashboard)
    assert [panel.id for panel in found.panels] == list(range(1, len(found.panels) + 1))
    for one, other in combinations((panel.gridPos for panel in found.panels), 2):
        apart = one.x + one.w <= other.x or other.x + other.w <= one.x
        assert apart or one.y + one.h <= other.y or other.y + other.h <= one.y, (one, other)
    assert all(panel.gridPos.x + panel.gridPos.w <= 24 for panel in found.panels)
    variables = {variable.name for variable in found.templating.variables}
    used = set(re.findall(r"\$\{?(\w+)", DASHBOARD)) - {"__rate_interval", "__all"}
    assert used == variables == {"datasource", "path", "queue"}
    for panel in found.panels:
        assert len({target.refId for target in panel.targets}) == len(panel.targets)
        assert panel.description.endswith(".")
        for target in panel.targets:
            assert target.expr.count("(") == target.expr.count(")")
            assert '{path=~"$path", queue=~"$queue"}' in target.expr


@pytest.mark.parametrize(("text", "least"), [(DASHBOARD, 20), (MONITORING, 8)], ids=["dashboard", "alerts"])
def test_each_metric_is_exported(open_queue: QueueFactory, text: str, least: int) -> None:
    """Each metric that the dashboard or an alert names is one that the collector exports."""
    names = named(text)
    assert len(names) >= least
    assert names - exported(open_queue) == set()


def test_a_wrong_dashboard_would_be_seen(open_queue: QueueFactory) -> None:
    """A field that is unknown or missing is refused, and a metric of another name is found."""
    for wrong in (DASHBOARD.replace('"targets"', '"target"', 1), DASHBOARD.replace('"stat"', '"state"', 1)):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(wrong, type=Dashboard)
    wrong = DASHBOARD.replace("ready_items", "readyitems")
    assert named(wrong) - exported(open_queue) == {"persistentqueue_readyitems"}


def test_each_alert_has_a_severity() -> None:
    """Each alert of the monitoring page is a page or a ticket."""
    alerts = MONITORING.split("- alert: ")[1:]
    assert len(alerts) >= 9
    assert all(re.search(r"labels: \{severity: (page|ticket)\}", alert) for alert in alerts)
