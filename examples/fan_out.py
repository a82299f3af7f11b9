"""One queue of orders and two departments, each of which gets all of them, at its own pace.

    python examples/fan_out.py --directory demo

Three processes share the queue "orders". The shop enqueues orders; it never owns the queue for long. Shipping and
billing have a subscription each. An order is stored once, and is deleted from the disk when both have it. A department
opens the queue for a moment, and dequeues as many orders as it can handle. It writes its results down, and only then
commits. Meanwhile the other department waits for the lock.

Kill any of them at any moment (``kill -9``) and start it again: every order is shipped once and billed once.

- The shop enqueues each delivery of orders with a marker. After a restart it begins with the first delivery again, and
  the queue skips those that it has.
- A department writes a file for each of its steps. The number of the step is a marker, which the commit raises. If the
  department is killed before the commit, it gets the same orders again, and writes the same file again.

Everything is in ``--directory``; delete it to start over.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from persistentqueue import PersistentQueue, Producer

QUEUE = "orders"
AT_ONCE, PAUSE_SECONDS = {"shipping": 50, "billing": 7}, {"shipping": 0.02, "billing": 0.05}
PER_DELIVERY = 10


def sell(directory: Path, orders: int) -> None:
    """Enqueue all orders as the shop, some in each transaction."""
    opened(directory).close()
    with Producer(directory / "queues", QUEUE) as shop:
        for first in range(0, orders, PER_DELIVERY):
            shop.enqueue_many(b"order %d" % number for number in range(first, min(first + PER_DELIVERY, orders)))
            shop.flush(marker=("shop", first + PER_DELIVERY))
            time.sleep(0.01)
    print("shop: all orders are in", flush=True)


def opened(directory: Path) -> PersistentQueue:
    """Open the queue, after waiting for other processes to close it, with all subscriptions.

    An order that all existing subscriptions have consumed is gone. So the first process makes the subscriptions of all
    departments.
    """
    queue = PersistentQueue(directory / "queues", QUEUE, fan_out=True, lock_timeout=60)
    for department in AT_ONCE:
        queue.subscribe(department)
    return queue


def work(directory: Path, department: str, orders: int) -> None:
    """Take orders as a department until it has had all of them."""
    results = directory / department
    results.mkdir(exist_ok=True)
    while True:
        step = take(directory, department, results)
        if count(results, step) == orders:
            break
        time.sleep(PAUSE_SECONDS[department])
    print(f"{department}: done with all orders, in {step} steps", flush=True)


def take(directory: Path, department: str, results: Path) -> int:
    """Take some orders, if there are any, and return the number of the last committed step."""
    with opened(directory) as queue:
        subscription = queue.subscribe(department)
        step = queue.marker(department) or 0
        with subscription.session() as session:
            taken = session.dequeue_many(AT_ONCE[department])
            if not taken:
                return step
            step += 1
            write_whole(results / f"{step:06}", b"".join(b"%s\n" % order for order in taken))
            session.flush(marker=(department, step))
        print(f"{department}: {len(taken)} orders in step {step}, {len(subscription)} more are waiting", flush=True)
        return step


def count(results: Path, steps: int) -> int:
    """Return the number of orders in this number of steps."""
    return sum((results / f"{step:06}").read_bytes().count(b"\n") for step in range(1, steps + 1))


def write_whole(path: Path, text: bytes) -> None:
    """Write a file durably; after a crash, its name leads to the whole new content or to the old one."""
    draft = path.with_suffix(".tmp")
    with draft.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=Path("demo"), help="directory of all files (default: demo)")
    parser.add_argument(
        "--part",
        choices=("shop", *AT_ONCE, "all"),
        default="all",
        help="run one of the processes, or all of them (default)",
    )
    parser.add_argument("--orders", type=int, default=500, help="number of orders (default: 500)")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.part == "all":
        command = [sys.executable, __file__, f"--directory={options.directory}", f"--orders={options.orders}"]
        parts = [subprocess.Popen([*command, f"--part={part}"]) for part in ("shop", *AT_ONCE)]
        sys.exit(max([part.wait() for part in parts]))
    elif options.part == "shop":
        sell(options.directory, options.orders)
    else:
        work(options.directory, options.part, options.orders)


if __name__ == "__main__":
    main()
