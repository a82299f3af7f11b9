"""The fan-out example: each department gets every order once, after a kill of any process at any moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistentqueue import PersistentQueue
from tests.support.examples import EXAMPLE, Run

FAN_OUT = EXAMPLE.with_name("fan_out.py")
ORDERS = [b"order %d" % number for number in range(100)]


def had(demo: Path, department: str) -> list[bytes]:
    """Return the orders that the department has recorded, in order."""
    steps = sorted(path for path in (demo / department).iterdir() if path.suffix != ".tmp")
    return b"".join(step.read_bytes() for step in steps).splitlines()


@pytest.mark.parametrize("still", ["before", "after"])
def test_one_of_them_is_killed(tmp_path: Path, still: str) -> None:
    """After kills and restarts, both departments have had every order once, in order, and the queue is empty.

    Billing is killed right before or right after its commit, and later at any moment; the shop is killed, too.
    """
    demo = tmp_path / "a demo"

    def part(name: str, hold: str | None = None) -> Run:
        return Run(demo, f"--part={name}", f"--orders={len(ORDERS)}", still=hold, example=FAN_OUT)

    with part("shop") as shop, part("shipping") as shipping:
        with part("billing", still) as billing:
            billing.kill_at("standing still")
        with part("billing") as billing:
            billing.kill_at("billing: 7 orders in step [2-9]", 0.01)
        shop.kill_at("shop: all orders")
        with part("shop") as again, part("billing") as billing:
            assert "done with all orders" in billing.finish()
            again.finish()
        assert "done with all orders" in shipping.finish()
    assert had(demo, "shipping") == had(demo, "billing") == ORDERS
    with PersistentQueue(demo / "queues", "orders") as queue:
        assert [len(queue.subscribe(name)) for name in queue.subscriptions()] == [0, 0]
        assert queue.stats().live_bytes == 0


def test_all_parts_by_one_command(tmp_path: Path) -> None:
    """One command runs all parts."""
    demo = tmp_path / "demo"
    with Run(demo, "--orders=30", example=FAN_OUT) as run:
        printed = run.finish()
    assert printed.count("done with all orders") == 2
    assert had(demo, "shipping") == had(demo, "billing") == ORDERS[:30]
