"""Workers of ``asyncio`` that take jobs from a queue and put the results into it, in one transaction each.

    python examples/async_workers.py --directory demo

A hundred workers share one queue, one thread that commits for all of them, and its syncs. Kill it at any moment (``kill
-9``) and start it again: each job is done, and has one result. A job that a worker had taken when it was killed is
delivered again. The jobs themselves are enqueued once, with a marker. Everything is in ``--directory``; delete it to
start over.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from persistentqueue import aio

WORKERS = 100


async def work(jobs: aio.Subscription[bytes]) -> None:
    """Do jobs until there are no more."""
    async with jobs.session() as session:
        while (item := await session.dequeue()) is not None:
            kind, _, number = item.partition(b" ")
            if kind == b"job":
                await asyncio.sleep(0.001)  # the work
                await session.enqueue(b"result %d" % int(number) ** 2)
            await session.flush()  # commits the dequeue and its result together


async def main(directory: Path, count: int) -> None:
    """Enqueue the jobs, run the workers, and print the results."""
    async with aio.PersistentQueue(directory, "async-jobs", fan_out=True) as queue:
        jobs, results = await queue.subscribe("jobs"), await queue.subscribe("results")
        async with queue.session() as session:
            await session.enqueue_many(b"job %d" % number for number in range(count))
            await session.flush(marker=("jobs", 1))
        await asyncio.gather(*(work(jobs) for _ in range(WORKERS)))
        found = [
            int(item.split()[1]) for item in [each async for each in results.browse()] if item.startswith(b"result")
        ]
        print(f"{len(found)} results, sum {sum(found)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("demo"), help="directory of all files (default: demo)")
    parser.add_argument("--jobs", type=int, default=2_000, help="number of jobs (default: 2000)")
    options = parser.parse_args()
    asyncio.run(main(options.directory, options.jobs))
