"""Looks of the Airflow provider: they report waiting items when they are new, or after some time, and consume none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue, Producer
from persistentqueue.airflow import get_provider_info, waiting
from persistentqueue.airflow.waiting import Waiting, Watch, checked_least
from persistentqueue.interprocess import request_subscription
from tests.support.queues import drain, put

LEASTS = [0, -1, 1.5, "2", True, None]
"""Values that no least number of items can have."""


def watch(root: Path, subscription: str = "", min_items: int = 1, repeat_seconds: float | None = None) -> Watch:
    return Watch(str(root), "orders", subscription, min_items, repeat_seconds)


def test_new_items_are_reported_once(tmp_path: Path) -> None:
    """Items are reported once, and again when more of them come; a look consumes none, and needs no lock."""
    looks = watch(tmp_path)
    assert looks.news(0.0) is None
    assert list(tmp_path.iterdir()) == []
    with PersistentQueue(tmp_path, "orders") as queue:
        assert looks.news(1.0) is None
        put(queue, b"1", b"2")
        assert looks.news(2.0) == Waiting(items=2, published=0, enqueued=2)
        assert looks.news(1e9) is None
        put(queue, b"3")
        assert looks.news(3.0) == Waiting(3, 0, 3)
        assert drain(queue) == [b"1", b"2", b"3"]
        assert looks.news(4.0) is None
        put(queue, b"4")
        assert looks.news(5.0) == Waiting(1, 0, 4)


def test_published_transactions_are_reported(tmp_path: Path) -> None:
    """Transactions that no owner has adopted are reported, each new one; when they are adopted, their items are."""
    looks = watch(tmp_path)
    with Producer(tmp_path, "orders") as producer:
        for published in (1, 2):
            producer.enqueue(b"item")
            producer.flush()
            assert looks.news(0.0) == Waiting(0, published, 0)
            assert looks.news(0.0) is None
        with PersistentQueue(tmp_path, "orders"):
            assert looks.news(0.0) == Waiting(2, 0, 2)
        producer.enqueue(b"item")
        producer.flush()
        assert looks.news(0.0) == Waiting(2, 1, 2)


def test_a_publication_without_items_is_not_reported(tmp_path: Path) -> None:
    """A marker and a request in the inbox are no items. An item that is published in their place later is reported."""
    looks = watch(tmp_path)
    with Producer(tmp_path, "orders") as producer:
        producer.flush(("progress", 1))
        request_subscription(str(tmp_path), "orders", "bills", 0)
        assert looks.news(0.0) is None
        PersistentQueue(tmp_path, "orders").close()
        assert looks.news(0.0) is None
        producer.enqueue(b"item")
        producer.flush()
        producer.flush(("progress", 2))
        assert looks.news(0.0) == Waiting(0, 1, 0)
        assert looks.news(0.0) is None
        assert looks.look() == Waiting(0, 1, 0)


@pytest.mark.damages
def test_a_publication_that_cannot_be_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file in the inbox counts as items: the owner says what it is. One that is gone counts as none."""
    looks = watch(tmp_path)
    for _ in range(2):
        with Producer(tmp_path, "orders") as producer:
            producer.enqueue(b"item")
            producer.flush()
    next((tmp_path / "orders" / "inbox").iterdir()).write_bytes(b"damage")
    assert looks.news(0.0) == Waiting(0, 2, 0)

    def gone(*_: object) -> None:
        raise FileNotFoundError("adopted")

    monkeypatch.setattr(waiting, "read_publication", gone)
    assert watch(tmp_path).news(0.0) is None


def test_waiting_items_are_reported_again(tmp_path: Path) -> None:
    """Items that a task has left are reported once more after the time to repeat, and not when they are consumed."""
    looks = watch(tmp_path, repeat_seconds=60.0)
    with PersistentQueue(tmp_path, "orders") as queue:
        put(queue, b"1", b"2")
        assert looks.news(100.0) == Waiting(2, 0, 2)
        with queue.transaction() as session:
            session.dequeue()
        assert looks.news(159.0) is None
        assert looks.news(160.0) == Waiting(1, 0, 2)
        assert looks.news(219.0) is None
        drain(queue)
        assert looks.news(1000.0) is None


def test_a_report_has_enough_items(tmp_path: Path) -> None:
    """Fewer items than the least number are not reported; a subscription has items of its own."""
    looks, subscribed = watch(tmp_path, min_items=3), watch(tmp_path, subscription="bills")
    with PersistentQueue(tmp_path, "orders") as queue:
        put(queue, b"1", b"2")
        assert looks.look() is None
        assert subscribed.look() is None
        queue.subscribe("bills")
        drain(queue)
        assert subscribed.news(0.0) == Waiting(2, 0, 2)
        put(queue, b"3", b"4", b"5")
        assert looks.news(0.0) == Waiting(3, 0, 5)


def test_a_queue_that_was_made_anew_is_reported_afresh(tmp_path: Path) -> None:
    """A queue that was deleted and made again is another one: its items are new, however few they are."""
    looks = watch(tmp_path)
    with PersistentQueue(tmp_path, "orders") as queue:
        put(queue, b"1", b"2")
        assert looks.news(0.0) is not None
    shutil.rmtree(tmp_path / "orders")
    with PersistentQueue(tmp_path, "orders") as queue:
        put(queue, b"other")
        assert [looks.news(0.0), looks.news(0.0)] == [None, Waiting(1, 0, 1)]


def test_an_event_is_json(tmp_path: Path) -> None:
    """An event names the queue and what waits, as JSON."""
    looks = watch(tmp_path, subscription="bills")
    expected = {"path": str(tmp_path), "name": "orders", "subscription": "bills"}
    expected |= {"items": 2, "published": 0, "enqueued": 7}  # type: ignore[dict-item]
    assert json.loads(json.dumps(looks.event(Waiting(2, 0, 7)))) == expected


def test_the_provider_names_modules_that_exist() -> None:
    """The information for Airflow names files of this package, and imports nothing of Airflow."""
    info = get_provider_info()
    package = Path(__file__).parents[2]
    names = [name for kind in ("hooks", "triggers", "sensors", "operators") for name in info[kind][0]["python-modules"]]
    names += [each.rpartition(".")[0] for each in info["queues"]]
    names += [each["hook-class-name"].rpartition(".")[0] for each in info["connection-types"]]
    assert len(names) == 6
    assert [name for name in names if not (package / f"{name.replace('.', '/')}.py").exists()] == []


@pytest.mark.parametrize("min_items", LEASTS)
def test_a_least_number_of_items(min_items: object) -> None:
    """The least number of items is an integer of at least 1: with 0, an empty queue would have enough."""
    with pytest.raises((TypeError, ValueError), match=r"^min_items must be (a whole number, not|at least 1, got) "):
        checked_least(min_items)
    assert checked_least(1) == 1
