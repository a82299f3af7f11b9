"""Several processes do the jobs of one queue, and ``kill -9`` of the one that owns it stops none of the others.

    python examples/worker_processes.py --directory demo

Each process connects to the queue. The first one owns it, and serves the others. In the middle of a job it kills
itself. Then another process owns the queue, and does that job. A job and its result are one transaction: the session
takes the job, and puts the result behind all jobs. So each job has exactly one result, whichever process is killed.
"""

from __future__ import annotations

import argparse
import os
import signal
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

from persistentqueue import SessionLostError, codecs, connect

JOBS, PROCESSES = 1000, 3


def work(directory: Path, together: Barrier, is_killed: Event) -> None:
    """Turn jobs into results, until all that is left in the queue is results."""
    done, did_own = 0, False
    with connect(directory, "shared-jobs", codec=codecs.JSON) as queue, queue.session() as session:
        together.wait()
        while True:
            if queue.owns and not did_own:
                print(f"process {os.getpid()} owns the queue", flush=True)
            did_own = queue.owns
            try:
                item = session.dequeue(timeout=10.0)
                if item is None or "result" in item:
                    session.rollback()
                    break
                if item["job"] >= JOBS // 4 and queue.owns and not is_killed.is_set():
                    print(f"process {os.getpid()} dies with a job on hold", flush=True)
                    is_killed.set()
                    os.kill(os.getpid(), signal.SIGKILL)
                session.enqueue({"result": item["job"] ** 2})
                session.flush()
                done += 1
            except SessionLostError:  # the owner has died: the job is back in the queue, and its result is dropped
                continue
    print(f"process {os.getpid()} has done {done} jobs", flush=True)


def main() -> None:
    """Enqueue the jobs, let the processes do them, and compare the results with what they must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("demo"), help="directory of the queue (default: demo)")
    directory = parser.parse_args().directory
    with connect(directory, "shared-jobs", codec=codecs.JSON) as queue, queue.transaction() as session:
        session.enqueue_many([{"job": number} for number in range(JOBS)])
    context = get_context("spawn")
    together, is_killed = context.Barrier(PROCESSES), context.Event()
    processes = [context.Process(target=work, args=(directory, together, is_killed)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    with connect(directory, "shared-jobs", codec=codecs.JSON) as queue, queue.transaction() as session:
        results = sorted(item["result"] for item in session.dequeue_many(2 * JOBS))
    expected = [number**2 for number in range(JOBS)]
    missing, doubled = len({*expected} - {*results}), len(results) - len({*results})
    killed = sum(process.exitcode == -signal.SIGKILL for process in processes)
    print(f"{killed} of {PROCESSES} processes killed, {JOBS} jobs: {missing} missing, {doubled} doubled")


if __name__ == "__main__":
    main()
