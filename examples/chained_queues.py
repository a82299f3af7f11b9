"""Two stages with a queue between them, and one transaction over both queues: every order becomes one invoice.

    python examples/chained_queues.py --directory demo

The orders wait in one named queue, the invoices go to another. A step dequeues some orders, works, and enqueues the
invoices. Leaving the block commits both queues or neither. Kill it at any moment (``kill -9``), and start it again.
Then each order has exactly one invoice, in the order of the orders. Only the step that was cut short is repeated.

Everything is in ``--directory``; delete it to start over.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from persistentqueue import PersistentQueue, transaction

PRICES_CENTS = {"queue": 1250, "log": 480, "block": 75}


def place_orders(orders: PersistentQueue, count: int) -> None:
    """Enqueue the orders, once: after a restart the marker shows that they were enqueued."""
    names = list(PRICES_CENTS)
    with orders.session() as session:
        for number in range(count):
            order = {"order": number, "what": names[number % len(names)], "pieces": number % 7 + 1}
            session.enqueue(json.dumps(order).encode())
        session.flush(marker=("orders", 1))


def write_invoice(data: bytes) -> bytes:
    """Return the invoice of an order: the work of the stage."""
    order = json.loads(data)
    return json.dumps({"order": order["order"], "cents": order["pieces"] * PRICES_CENTS[order["what"]]}).encode()


def work(orders: PersistentQueue, invoices: PersistentQueue, step: int) -> None:
    """Dequeue orders and enqueue their invoices, in one transaction for each step, until no order is left."""
    done = len(invoices)
    while True:
        with transaction(orders, invoices) as (source, target):
            taken = source.dequeue_many(step)
            if not taken:
                return
            target.enqueue_many(map(write_invoice, taken))
        done += len(taken)
        print(f"{done} invoices written", flush=True)


def main() -> None:
    """Run both stages, or the rest of them after a restart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("demo"), help="directory of the queues (default: demo)")
    parser.add_argument("--orders", type=int, default=1000, help="number of orders (default: 1000)")
    parser.add_argument("--step", type=int, default=5, help="orders in a transaction (default: 5)")
    options = parser.parse_args()
    with (
        PersistentQueue(options.directory, "orders") as orders,
        PersistentQueue(options.directory, "invoices") as invoices,
    ):
        place_orders(orders, options.orders)
        work(orders, invoices, options.step)
        cents = sum(json.loads(invoice)["cents"] for invoice in invoices.browse())
        print(f"{len(orders)} orders are left, {len(invoices)} invoices over {cents / 100:,.2f} wait to be sent")


if __name__ == "__main__":
    main()
