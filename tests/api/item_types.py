"""The types of items and sessions, as the type checkers of users see them.

No test runs this module: ``make lint`` checks it with mypy, ``make types`` with pyright and pyrefly. A comment that
ignores an error is a promise, too: mypy and pyright report a comment without an error.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import assert_type

from persistentqueue import PersistentQueue, Producer, Session, Subscription, aio, codecs, connect, transaction
from persistentqueue.cli import report_html
from persistentqueue.compat import Queue
from persistentqueue.workers import SharedQueue


class Order:
    """An object of a user's program."""


class OrderCodec:
    """A codec of a user's program. It inherits from no class of the package."""

    def encode(self, item: Order, /) -> bytes:
        return repr(item).encode()

    def decode(self, data: bytes, /) -> Order:
        return Order()


ORDERS = OrderCodec()


def use_no_codec() -> None:
    """Take and return bytes; take buffers of bytes as well."""
    queue = PersistentQueue("queues", "orders")
    assert_type(queue, PersistentQueue[bytes])
    assert_type(connect("queues", "orders"), SharedQueue[bytes])
    assert_type(Producer("queues", "orders"), Producer[bytes])
    assert_type(aio.PersistentQueue("queues", "orders"), aio.PersistentQueue[bytes])
    with queue.session() as session:
        session.enqueue(bytearray(b"one"))
        assert_type(session.dequeue(), bytes | None)
        assert_type(session.dequeue_many(2), list[bytes])
        session.enqueue("one")  # type: ignore[call-overload]


def use_a_codec() -> None:
    """Take and return the objects of the codec, and no others."""
    queue = PersistentQueue("queues", "orders", codec=ORDERS)
    assert_type(queue, PersistentQueue[Order])
    assert_type(connect("queues", "orders", codec=ORDERS), SharedQueue[Order])
    assert_type(Producer("queues", "orders", codec=ORDERS), Producer[Order])
    assert_type(aio.PersistentQueue("queues", "orders", codec=ORDERS), aio.PersistentQueue[Order])
    assert_type(PersistentQueue("queues", "orders", codec=codecs.JSON), PersistentQueue[Any])
    assert_type(queue.peek(2), list[Order])
    subscription = queue.subscribe("reports")
    assert_type(subscription, Subscription[Order])
    with subscription.session() as session:
        assert_type(session, Session[Order])
        session.enqueue(Order())
        session.enqueue("one")  # type: ignore[arg-type]


def annotate_without_a_parameter(queue: PersistentQueue, session: Session) -> None:
    """Mean bytes by ``PersistentQueue`` and ``Session``."""
    assert_type(queue.peek(2), list[bytes])
    assert_type(session.dequeue(), bytes | None)


def call_as_queue_does() -> None:
    """Give ``compat.Queue`` the type that its user writes, or that of its codec."""
    numbers: Queue[int] = Queue("queues")
    assert_type(numbers.get(), int)
    assert_type(Queue("queues", codec=codecs.TEXT), Queue[str])


def use_several_queues() -> None:
    """Give each session of a transaction over several queues the items of its own queue."""
    with connect("a", codec=codecs.TEXT) as a, connect("b") as b, transaction(a, b) as (one, other):
        assert_type(one.dequeue(), str | None)
        assert_type(other.dequeue(), bytes | None)
    with PersistentQueue("a", codec=codecs.TEXT) as queue, transaction(queue.subscribe("all"), queue) as sessions:
        assert_type(sessions, tuple[Session[str], Session[str]])
    with PersistentQueue("a", codec=codecs.TEXT) as queue, transaction(*[queue]) as several:
        assert_type(several, tuple[Session[str], ...])


def use_many_queues(
    texts: PersistentQueue[str], raw: PersistentQueue, shared: SharedQueue[str], shared_raw: SharedQueue
) -> None:
    """Take more than three queues of several types of items, or as many as a list has."""
    with transaction(texts, raw, texts, raw) as sessions:
        assert_type(sessions, tuple[Session[Any], ...])
    either: list[PersistentQueue[str] | PersistentQueue] = [texts, raw]
    with transaction(*either) as sessions:
        sessions[0].dequeue()
    with transaction(shared, shared_raw, shared, shared_raw) as others:
        others[0].dequeue()


async def use_many_queues_of_asyncio(
    texts: aio.PersistentQueue[str],
    raw: aio.PersistentQueue,
    shared: aio.ConnectedQueue[str],
    shared_raw: aio.ConnectedQueue,
) -> None:
    """Take more than three queues of several types of items in asyncio."""
    async with aio.transaction(texts, raw, texts, raw) as sessions:
        assert_type(sessions, tuple[aio.Session[Any], ...])
    async with aio.transaction(shared, shared_raw, shared, shared_raw) as others:
        await others[0].dequeue()


def write_a_report() -> None:
    """Show queues of any items, also connected ones."""
    with PersistentQueue("a", codec=codecs.TEXT) as a, connect("b") as b, connect("c", codec=codecs.TEXT) as c:
        assert_type(report_html(a, b, c), str)


async def use_asyncio() -> None:
    """Have the same types in asyncio."""
    async with aio.connect("a", codec=codecs.TEXT) as a, aio.transaction(a) as (session,):
        assert_type(await session.dequeue(), str | None)
        await session.enqueue(1)  # type: ignore[arg-type]
    async with aio.connect("b") as b, b.session() as other:
        assert_type(await other.dequeue(), bytes | None)
