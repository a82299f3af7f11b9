"""Measurements of the queue beside other queues, SQLite and the bare disk, in one run: ``python -m perf``.

``README.md`` has the figures. Each part imports only from the parts above it:

- ``disks``: another disk for the queues that a study opens.
- ``contenders``: the queue, the bare disk, SQLite and other libraries, behind one interface.
- ``workloads``: the operations of the contenders, their number, and the bars that the queue must reach.
- ``harness``: runs the contenders in turn, compares them, and has the options that all programs share.
- ``counts``: the costs of one flush: syncs, bytes, processor time and memory.
- ``report``: JSON, Markdown tables and charts.
- ``studies``: the other measurements, one module each; ``studies.processes`` has those of several processes.
- ``compare`` and ``__main__``: two commits in turn, and ``python -m perf``. ``older_trees`` lets ``compare`` measure
  commits from before the modules of the package were moved.
"""
