"""A worker that one of its items kills, again and again, until that item is moved aside.

    python examples/dead_letters.py --directory demo

The worker is a process of its own. The ``bomb`` ends it by ``kill -9``, which no program can catch. Then it is started
again, as a supervisor would do. The queue logs each delivery before the worker gets the item. After the third delivery
the item becomes a dead letter. All other items are consumed, once, in their order. At the end the dead letters are
requeued, and done by hand.
"""

from __future__ import annotations

import argparse
import os
import signal
from multiprocessing import Process
from pathlib import Path

from persistentqueue import DeadLetter, Options, PersistentQueue

QUEUE = "bomb-jobs"
OPTIONS = Options(max_attempts=3, dead_letter="bomb-jobs.dead")


def work(directory: Path) -> None:
    """Consume all items, ten at a time; items of a batch that failed are delivered one by one."""
    with PersistentQueue(directory, QUEUE, options=OPTIONS) as jobs, jobs.session() as session:
        while batch := session.dequeue_many(10):
            for job in batch:
                if job == b"bomb":
                    os.kill(os.getpid(), signal.SIGKILL)
                if job.startswith(b"late"):
                    session.reject(job, "it is too late for that", retry=False)
            session.flush()
            print("flushed:", *(job.decode() for job in batch), flush=True)


def run_worker(directory: Path) -> int | None:
    """Run the worker in a process of its own, and return its exit code: negative for the signal that has killed it."""
    worker = Process(target=work, args=(directory,))
    worker.start()
    worker.join()
    return worker.exitcode


def main() -> None:
    """Enqueue the jobs, start the worker until it succeeds, and requeue the dead letters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("demo"), help="directory of the queues (default: demo)")
    directory = parser.parse_args().directory
    with PersistentQueue(directory, QUEUE) as jobs, jobs.transaction() as session:
        session.enqueue_many([b"job %d" % number for number in range(20)] + [b"late job"])
        session.enqueue_many([b"bomb", b"last job"])
    while run_worker(directory) == -signal.SIGKILL:
        print("the worker died, and is started again", flush=True)
    with PersistentQueue(directory, QUEUE, options=OPTIONS) as jobs:
        for letter in map(DeadLetter.decode, jobs.dead_letters.browse()):
            print(f"given up after {letter.attempts} attempts: {letter.item.decode()}: {letter.reason}")
        print(f"{jobs.requeue()} are taken back")
        with jobs.transaction() as session:
            print("done by hand:", *(job.decode() for job in session.dequeue_many(10)))


if __name__ == "__main__":
    main()
