"""Queues of ``aio`` and their event loop."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from pathlib import Path

import pytest

from persistentqueue import aio, codecs

from .test_aio import run


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "queue"


class NamingCodec(codecs.Codec[str]):
    """Adds the value of a context variable to each item."""

    def encode(self, item: str) -> bytes:
        return f"{item} by {CALLER.get()}".encode()

    def decode(self, data: bytes) -> str:
        return f"{data.decode()} for {CALLER.get()}"


CALLER: ContextVar[str] = ContextVar("CALLER", default="nobody")


def test_codecs_see_the_context_of_the_caller(place: Path) -> None:
    """A codec sees the context variables of the calling task, in memory and in a thread."""

    async def look(queue: aio.PersistentQueue[str], name: str) -> list[str]:
        CALLER.set(name)
        return await queue.peek(2) + [item async for item in queue.browse()]

    async def main() -> None:
        CALLER.set("task")
        async with aio.PersistentQueue(place, codec=NamingCodec()) as queue:
            async with queue.transaction() as session:
                await session.enqueue("1")
                await session.enqueue_many(["2"])
            looks = await asyncio.gather(look(queue, "a"), look(queue, "b"))
            assert list(looks) == [["1 by task for " + name, "2 by task for " + name] * 2 for name in "ab"]
        async with aio.PersistentQueue(place, codec=NamingCodec()) as queue, queue.session() as session:
            assert [await session.dequeue(), await session.dequeue()] == ["1 by task for task", "2 by task for task"]
            await session.rollback()

    run(main())
