"""An owner with a thousand idle connections: the memory of each at the owner, and the processor time of the owner.

The first process owns the queue. A few others hold the connections. Each has a session, which has asked once and found
no item. Memory is the growth of the owner after the first connections. The processor time is that of the owner's
process, which nothing asks meanwhile.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import persistentqueue

from ...contenders.shared import OURS, Hand, Shared
from ...harness import Row, met
from ..churn import give_heap_back, rss_bytes
from .team import Member, team

MEMORY_KIB_BAR = 30.0
IDLE_MS_BAR = 1.0
"""Largest processor time in ``_IDLE_SECONDS``."""
DESCRIPTORS = 8_192
HOLDERS = 4
_IDLE_SECONDS = 2.0
_held: list[Any] = []
"""The connections and sessions of this process. They stay open until the process ends."""


class Idle(NamedTuple):
    """The resources of the owner: bytes for each connection, and processor seconds of all in ``_IDLE_SECONDS``."""

    connections: int
    memory_bytes: float
    processor_seconds: float


def allow_descriptors(_hand: Hand) -> None:
    """Let this process open 8,192 descriptors, or as many as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def connect(address: str, count: int, _hand: Hand) -> None:
    """Open this number of connections, each with a session, and keep them."""
    for _ in range(count):
        queue = persistentqueue.connect(address)
        session = queue.session()
        assert session.dequeue() is None
        _held.extend((queue, session))


def disconnect(_hand: Hand) -> None:
    """Close the connections."""
    while _held:
        _held.pop().close()


def settled_bytes(_hand: Hand) -> int:
    """Return the resident memory of this process, without what the C library only keeps."""
    gc.collect()
    give_heap_back()
    return rss_bytes()


def processor_seconds(member: Member) -> float:
    """Return the processor time of a process, which does not notice it."""
    pid = member.process.pid
    assert pid is not None
    return time.clock_gettime((~pid << 3) | 2)  # the number of the clock of a process: see clock_getcpuclockid(3)


def measure(contender: Shared, directory: Path, count: int, seconds: float = _IDLE_SECONDS) -> Idle:
    """Open this number of connections to one owner, and measure the owner."""
    first = max(count // 20, HOLDERS)
    with team(contender, directory, 1 + HOLDERS) as workers:
        workers.all(allow_descriptors)
        owner, *holders = workers.members

        def open_more(connections: int) -> int:
            for number, holder in enumerate(holders):
                part = connections // HOLDERS + (number < connections % HOLDERS)
                holder.ask(partial(connect, workers.place.address, part))
            for holder in holders:
                holder.answer()
            return owner.call(settled_bytes)

        before_bytes = open_more(first)
        after_bytes = open_more(count - first)
        start = processor_seconds(owner)
        time.sleep(seconds)
        taken_seconds = processor_seconds(owner) - start
        for holder in holders:
            holder.call(disconnect)
    return Idle(count, (after_bytes - before_bytes) / (count - first), taken_seconds)


def rows(directory: Path, count: int, ours: Shared = OURS) -> Iterator[Row]:
    """Yield the line of the table."""
    row = Row(
        f"{count:,} idle connections to one owner, {_IDLE_SECONDS:g} s",
        f"not measured: {ours.reason()}",
        "",
        "",
        f"at most {MEMORY_KIB_BAR:g} KiB each, under {IDLE_MS_BAR:g} ms",
        "",
    )
    if not ours.reason():
        idle = measure(ours, directory, count)
        memory_kib, taken_ms = idle.memory_bytes / 1024, 1e3 * idle.processor_seconds
        row = row._replace(
            ours=f"{memory_kib:.1f} KiB each at the owner, {taken_ms:.2f} ms of processor time",
            met=met(memory_kib <= MEMORY_KIB_BAR and taken_ms < IDLE_MS_BAR),
        )
    yield row
