"""One queue of orders and two departments, each of which gets all of them, at its own pace.

    python examples/fan_out.py --directory demo

Three processes share the queue "orders". The shop puts orders in; it never owns the queue. Shipping and billing have a
subscription each: the orders are stored once, and one goes from the disk when both have it. Both open the queue for a
moment, take what there is, or as much as they can do, write down what they did, and only then commit; meanwhile the
other one waits for the lock.

Kill any of them wherever you like (``kill -9``), start it again, and every order is shipped once and billed once:

- The shop puts each delivery of orders in with a marker, and begins from the first one again: what is there is skipped.
- A department writes a file for each of its steps, whose number is a marker that goes up with the commit. Killed before
  the commit, it is given the same orders again, and writes the same file again.

Everything lies in ``--directory``; delete it to begin anew.
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
    """The shop: put all orders in, some in each transaction."""
    opened(directory).close()
    with Producer(directory / "queues", QUEUE) as shop:
        for first in range(0, orders, PER_DELIVERY):
            shop.enqueue_many(b"order %d" % number for number in range(first, min(first + PER_DELIVERY, orders)))
            shop.flush(marker=("shop", first + PER_DELIVERY))
            time.sleep(0.01)
    print("shop: all orders are in", flush=True)


def opened(directory: Path) -> PersistentQueue:
    """The queue, for as long as nobody else needs it. What every subscription has is gone, so all of them are made by
    whoever is first."""
    queue = PersistentQueue(directory / "queues", QUEUE, fan_out=True, lock_timeout=60)
    for department in AT_ONCE:
        queue.subscribe(department)
    return queue


def work(directory: Path, department: str, orders: int) -> None:
    """A department: take orders until it has had all of them."""
    results = directory / department
    results.mkdir(exist_ok=True)
    while True:
        step = take(directory, department, results)
        if count(results, step) == orders:
            break
        time.sleep(PAUSE_SECONDS[department])
    print(f"{department}: done with all orders, in {step} steps", flush=True)


def take(directory: Path, department: str, results: Path) -> int:
    """Take some orders, if there are any, and return the number of the last step that is committed."""
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
    """How many orders there are in so many steps."""
    return sum((results / f"{step:06}").read_bytes().count(b"\n") for step in range(1, steps + 1))


def write_whole(path: Path, text: bytes) -> None:
    """Write a file so that its name leads to all of it or to what was there before; on return it is durable."""
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
    parser.add_argument("--directory", type=Path, default=Path("demo"), help="where everything lies (default: demo)")
    parser.add_argument("--part", choices=("shop", *AT_ONCE, "all"), default="all", help="be one of them, or all")
    parser.add_argument("--orders", type=int, default=500, help="how many orders there are (default: 500)")
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
