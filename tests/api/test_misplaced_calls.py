"""Calls that a queue does not have: their errors show the right call, and nothing else about attributes changes."""

from __future__ import annotations

import asyncio
import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import PersistentQueue, aio, connect, transaction
from persistentqueue.misplaced_calls import MisplacedCalls
from tests.support.type_checks import lines_of_mypy

CALLS = {
    "enqueue": "session.enqueue(item)",
    "enqueue_many": "session.enqueue_many(items)",
    "dequeue": "session.dequeue()",
    "dequeue_many": "session.dequeue_many(max_items)",
    "put": "session.enqueue(item)",
    "get": "session.dequeue()",
    "flush": "session.enqueue(item); the end of the block flushes",
    "commit": "session.enqueue(item); the end of the block commits",
    "ack": "session.dequeue(); the end of the block acknowledges",
    "task_done": "session.dequeue(); the end of the block acknowledges",
}


@pytest.fixture(params=["embedded", "connected", "aio"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Yield a queue of each interface that has sessions."""
    if request.param == "aio":  # it is not opened: an attribute needs no file
        yield aio.PersistentQueue(tmp_path, "q")
        return
    with PersistentQueue(tmp_path, "q") if request.param == "embedded" else connect(tmp_path, "q") as opened:
        yield opened


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_a_session_shows_its_place(queue: Any, name: str) -> None:
    """A call of a session on the queue raises ``AttributeError`` with the block to write, and with no other name."""
    with pytest.raises(AttributeError) as caught:
        getattr(queue, name)
    words = ("async with", "await ") if isinstance(queue, aio.PersistentQueue) else ("with", "")
    assert str(caught.value) == (
        f"a queue has no {name}(): use a session: {words[0]} queue.transaction() as session: {words[1]}{CALLS[name]}"
    )
    assert caught.value.name == name and caught.value.obj is None


def test_a_call_on_a_subscription_shows_its_place(tmp_path: Path) -> None:
    """A call of a session on a subscription, or a loop over it, shows the block or the call for a subscription."""
    with PersistentQueue(tmp_path, "q") as queue, connect(tmp_path, "c") as connected:
        subscriptions: list[Any] = [queue.subscribe("s"), connected.subscribe("s")]
        for named in subscriptions:
            with pytest.raises(
                AttributeError, match=r"a subscription has no dequeue\(\).*: with subscription\.transaction"
            ):
                named.dequeue()
            with pytest.raises(TypeError, match=r"a subscription is not iterable: loop over subscription\.browse\(\)"):
                iter(named)


def test_a_call_on_a_subscription_of_aio_shows_its_place(tmp_path: Path) -> None:
    """A call of a session on a subscription of ``aio`` shows the asynchronous block."""

    async def main() -> None:
        async with aio.PersistentQueue(tmp_path, "q") as queue, aio.connect(tmp_path, "c") as connected:
            subscriptions: list[Any] = [await queue.subscribe("s"), await connected.subscribe("s")]
            for named in subscriptions:
                with pytest.raises(AttributeError, match=r"async with subscription\.transaction\(\) .*: await session"):
                    await named.dequeue()

    asyncio.run(main())


def test_the_queue_has_no_such_attribute(queue: Any) -> None:
    """``hasattr``, ``dir`` and ``getattr`` with a default see no call of a session."""
    for name in CALLS:
        assert not hasattr(queue, name)
        assert getattr(queue, name, None) is None
        assert name not in dir(queue)


def test_other_names_keep_their_error(queue: Any) -> None:
    """Any other missing attribute has the error of Python, whose object lets a traceback suggest a similar name."""
    with pytest.raises(AttributeError, match=f"^'{type(queue).__name__}' object has no attribute 'sesion'$") as caught:
        queue.sesion()
    assert caught.value.name == "sesion" and caught.value.obj is queue


def test_an_error_inside_a_property_comes_out() -> None:
    """An ``AttributeError`` that the code of a property raises keeps its text."""

    class Broken(MisplacedCalls):
        """A queue with a property that fails."""

        @property
        def depth(self) -> int:
            """Number of items."""
            return self.missing_part  # type: ignore[attr-defined,no-any-return]

    with pytest.raises(AttributeError, match="no attribute 'missing_part'"):
        Broken().depth  # noqa: B018 - the access is the test


def test_a_traceback_suggests_no_other_call(tmp_path: Path) -> None:
    """A program that ends with the error shows the block to write, and not another call such as ``requeue``."""
    code = f"import persistentqueue; persistentqueue.PersistentQueue({str(tmp_path)!r}).enqueue(b'x')"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("with queue.transaction() as session: session.enqueue(item)\n")


def test_a_transaction_without_its_block_shows_it(tmp_path: Path) -> None:
    """A call on a transaction whose ``with`` is forgotten raises ``AttributeError`` with the block to write."""
    with PersistentQueue(tmp_path, "q") as queue, connect(tmp_path, "c") as connected:
        blocks: list[Any] = [queue.transaction(), connected.transaction(), transaction(queue, queue.subscribe("s"))]
        for block in [*blocks, queue.subscribe("s").transaction()]:
            with pytest.raises(AttributeError, match=r"write 'with … as session:' around session\.enqueue$"):
                block.enqueue(b"x")
            assert not hasattr(block, "enqueue")


def test_an_asynchronous_transaction_without_its_block_shows_it(tmp_path: Path) -> None:
    """A call on a transaction of ``aio`` whose ``async with`` is forgotten shows the block to write."""

    async def main() -> None:
        async with aio.PersistentQueue(tmp_path, "q") as queue, aio.connect(tmp_path, "c") as connected:
            named, other = await queue.subscribe("s"), await connected.subscribe("s")
            blocks: list[Any] = [
                *(each.transaction() for each in (queue, connected, named, other)),
                *(aio.transaction(*each) for each in ([queue], [queue, named], [connected, other])),
            ]
            for block in blocks:
                with pytest.raises(AttributeError, match=r"write 'async with … as session:' around session\.enqueue$"):
                    block.enqueue(b"x")
                with pytest.raises(TypeError, match=r"cannot be copied.*begin another transaction\(\)"):
                    copy.copy(block)

    asyncio.run(main())


def test_a_loop_names_the_calls_for_it(queue: Any) -> None:
    """A loop over a queue raises ``TypeError`` with the two calls that it could mean."""
    with pytest.raises(TypeError, match=r"not iterable: loop over queue\.browse\(\) to look .*session\.dequeue\(\) to"):
        iter(queue)


def test_a_type_checker_reports_the_call(tmp_path: Path) -> None:
    """mypy reports a call of a session on the queue, and a loop over it."""
    program = (
        "from persistentqueue import PersistentQueue\n"
        "queue = PersistentQueue('queues')\n"
        "queue.enqueue(b'x')\n"
        "for item in queue:\n"
        "    pass\n"
    )
    said = "\n".join(lines_of_mypy(tmp_path, program))
    assert 'has no attribute "enqueue"' in said
    assert "not iterable" in said or '"__iter__"' in said
