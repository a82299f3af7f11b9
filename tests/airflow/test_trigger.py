"""The trigger of the Airflow provider: its events, its way to the triggerer, and the scheme that leads to it."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import PersistentQueue, View
from tests.airflow.test_waiting import LEASTS
from tests.support.queues import drain, put

pytestmark = pytest.mark.airflow


def trigger_of(classpath: str, arguments: dict[str, Any]) -> Any:
    """Return the trigger that the triggerer makes of what was serialized."""
    from airflow.sdk.module_loading import import_string

    return import_string(classpath)(**arguments)


def test_events_come_as_items_do(queues: Path) -> None:
    """An event comes for the items that are there, then one for new ones, and no event consumes anything."""
    from persistentqueue.airflow.trigger import QueueTrigger

    trigger = trigger_of(*QueueTrigger("orders", path=str(queues), poll_seconds=0.01).serialize())

    async def run() -> list[Any]:
        events = trigger.run()
        found = [(await anext(events)).payload]
        await asyncio.to_thread(put, queue, b"3")
        found.append((await anext(events)).payload)
        await events.aclose()
        return found

    with PersistentQueue(queues, "orders") as queue:
        put(queue, b"1", b"2")
        found = asyncio.run(run())
        assert drain(queue) == [b"1", b"2", b"3"]
    place = {"path": str(queues), "name": "orders", "subscription": "", "published": 0}
    assert found == [place | {"items": n, "enqueued": n} for n in (2, 3)]


def test_the_event_loop_never_waits_for_a_disk(queues: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a look hangs, as on a slow disk, other triggers of the event loop go on."""
    from persistentqueue.airflow.trigger import QueueTrigger

    is_looking, may_go_on, look = threading.Event(), threading.Event(), View.look

    def hang(view: View) -> Any:
        is_looking.set()
        assert may_go_on.wait(60)
        return look(view)

    async def run() -> Any:
        event = asyncio.ensure_future(anext(QueueTrigger("orders", path=str(queues)).run()))
        while not is_looking.is_set():
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not event.done()
        may_go_on.set()
        return await asyncio.wait_for(event, 60)

    with PersistentQueue(queues, "orders") as queue:
        put(queue, b"1")
        monkeypatch.setattr(View, "look", hang)
        assert asyncio.run(run()).payload["items"] == 1


def test_the_scheme_leads_to_the_trigger(airflow_home: Path) -> None:
    """``MessageQueueTrigger`` finds the trigger by the scheme, with all its arguments, and by an address."""
    from airflow.exceptions import AirflowProviderDeprecationWarning
    from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

    classpath, arguments = MessageQueueTrigger(
        scheme="persistentqueue", name="orders", subscription="bills", min_items=5
    ).serialize()
    assert classpath == "persistentqueue.airflow.trigger.QueueTrigger"
    assert arguments.items() >= {"name": "orders", "subscription": "bills", "min_items": 5, "path": None}.items()
    with pytest.warns(AirflowProviderDeprecationWarning):
        addressed = MessageQueueTrigger(queue="persistentqueue:///data/my%20queues/orders")
    assert addressed.serialize()[1].items() >= {"name": None, "path": "/data/my queues/orders"}.items()


def test_a_watcher_survives_its_serialization(queues: Path) -> None:
    """A DAG that waits for an asset is serialized with the trigger, and what is read back yields the event."""
    from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
    from airflow.sdk import DAG, Asset, AssetWatcher
    from airflow.serialization.serialized_objects import DagSerialization

    trigger = MessageQueueTrigger(scheme="persistentqueue", name="orders", path=str(queues), poll_seconds=0.01)
    asset = Asset("orders", watchers=[AssetWatcher(name="orders", trigger=trigger)])
    with DAG("invoices", schedule=[asset]) as dag:
        pass
    found: list[dict[str, Any]] = []

    def keep(fields: dict[str, Any]) -> dict[str, Any]:
        if "classpath" in fields:
            found.append(fields)
        return fields

    json.loads(json.dumps(DagSerialization.to_dict(dag)), object_hook=keep)
    (each,) = found
    with PersistentQueue(queues, "orders") as queue:
        put(queue, b"1")
        read = trigger_of(each["classpath"], each["kwargs"].get("__var", each["kwargs"]))

        async def first() -> Any:
            return await anext(read.run())

        assert asyncio.run(first()).payload["items"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_items": 0}, "min_items must be at least 1, got 0"),
        ({"poll_seconds": 0}, "poll_seconds must be above 0, got 0"),
        ({"repeat_seconds": -1.0}, "repeat_seconds must be above 0, got -1.0"),
    ],
)
def test_numbers_out_of_range_are_refused(airflow_home: Path, arguments: dict[str, Any], message: str) -> None:
    """A number out of its range is refused when the DAG is read."""
    from persistentqueue.airflow.trigger import QueueTrigger

    with pytest.raises(ValueError, match=message):
        QueueTrigger("orders", **arguments)


@pytest.mark.parametrize("min_items", LEASTS)
def test_a_sensor_refuses_a_least_number(airflow_home: Path, min_items: Any) -> None:
    """A sensor refuses a number of items below 1, or of another type, when the DAG is read."""
    from persistentqueue.airflow.sensor import QueueSensor

    with pytest.raises((TypeError, ValueError), match="min_items must be"):
        QueueSensor(task_id="wait", name="orders", min_items=min_items)
