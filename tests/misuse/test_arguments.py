"""Wrong arguments: each interface to a queue refuses them before anything is buffered, with the same words."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from inspect import isawaitable
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
    CodecError,
    DeadLetter,
    Encryption,
    MemoryBudget,
    NotHeldError,
    PersistentQueue,
    Producer,
    SubscriptionNotFoundError,
    aio,
    codecs,
    compat,
    connect,
)
from tests.conftest import QueueFactory
from tests.support.queues import drain, put


class Record(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int),)


async def _answers_of_loop(path: Path, ask: Callable[[Any], Any]) -> list[str]:
    """Return what the sessions of ``aio`` answer."""
    answers = []
    async with (
        aio.PersistentQueue(path, "tasks") as tasks,
        aio.connect(path, "joined") as joined,
        tasks.session() as session,
        joined.session() as connected,
    ):
        for each in (session, connected):
            try:
                answers.append(f"took {await ask(each)}")
            except (TypeError, ValueError) as error:
                answers.append(f"{type(error).__name__}: {error}")
            await each.rollback()
    return answers


def _answers(path: Path, ask: Callable[[Any], Any]) -> list[str]:
    """Return what each interface with sessions answers: the call has taken the argument, or its error."""
    answers = []
    with ExitStack() as stack:
        queue = stack.enter_context(PersistentQueue(path, "own", serve=True))
        far = stack.enter_context(connect(path, "own", serve="never"))
        producer = stack.enter_context(Producer(path, "own"))
        asked: list[Any] = [stack.enter_context(queue.session()), stack.enter_context(far.session()), producer]
        for each in asked:
            try:
                answers.append(f"took {ask(each)}")
            except (TypeError, ValueError) as error:
                answers.append(f"{type(error).__name__}: {error}")
            each.rollback()
    return answers + asyncio.run(_answers_of_loop(path, ask))


_NUMBER = "pass Python's own number with codec=codecs.JSON, or memoryview(item).tobytes() for its memory"


@pytest.mark.parametrize(
    ("item", "what"),
    [
        (ctypes.c_int(3), f"the single value of this c_int: {_NUMBER}"),
        (memoryview(ctypes.c_double(1.5)), f"the single value of this memoryview: {_NUMBER}"),
        (Record(3), f"the single value of this Record: {_NUMBER}"),
        ((ctypes.py_object * 1)(), "references to objects in this py_object_Array_1: pass their values"),
    ],
    ids=["number", "view", "record", "references"],
)
def test_a_buffer_that_is_no_sequence_of_bytes(tmp_path: Path, item: Any, what: str) -> None:
    """A single value with the buffer protocol is refused with advice, as are references to objects."""
    expected = f"TypeError: an item must be a bytes-like object, not {what}"
    assert set(_answers(tmp_path, lambda session: session.enqueue(item))) == {expected}
    assert set(_answers(tmp_path, lambda session: session.enqueue_many([b"x", item]))) == {expected}
    with compat.Queue(tmp_path / "c", codec=codecs.BYTES) as queue:
        with pytest.raises(TypeError) as caught:
            queue.put(item)
        assert f"TypeError: {caught.value}" == expected
        assert queue.empty()


@pytest.mark.parametrize("kind", ["int64", "str_", "object_"])
def test_a_scalar_of_numpy_is_no_item(open_queue: QueueFactory, kind: str) -> None:
    """A scalar of numpy is refused, and an array of at least one dimension is stored as its bytes."""
    numpy = pytest.importorskip("numpy")
    queue = open_queue()
    with queue.transaction() as session:
        scalar = numpy.array(["3"]).astype(getattr(numpy, kind))
        with pytest.raises(TypeError, match="an item must be a bytes-like object, not"):
            session.enqueue(scalar if kind == "object_" else scalar[0])
        session.enqueue(numpy.array([[1, 2], [3, 4]], "u1"))
        session.enqueue(numpy.bytes_(b"ab"))
    assert drain(queue) == [b"\1\2\3\4", b"ab"]


def test_a_buffer_of_any_dimensions_is_an_item(open_queue: QueueFactory) -> None:
    """A buffer of one or more dimensions is stored as its bytes, in their order, also if it has gaps."""
    queue = open_queue()
    with queue.transaction() as session:
        session.enqueue((ctypes.c_ubyte * 2)(1, 2))
        session.enqueue(memoryview(b"abcd").cast("B", (2, 2)))
        session.enqueue(memoryview(b"abcd")[::2])
    assert drain(queue) == [b"\1\2", b"abcd", b"ac"]


@pytest.mark.parametrize(
    "items", [{b"a": 1}, MappingProxyType({}), Counter([b"a"])], ids=lambda each: type(each).__name__
)
def test_a_mapping_is_no_series_of_items(tmp_path: Path, items: Any) -> None:
    """A mapping in the place of several items is refused with advice: only its keys would be enqueued."""
    what = (
        f"takes several items, not the mapping {type(items).__name__}: pass its values(), or list() of it for its keys"
    )
    expected = f"TypeError: enqueue_many {what}, or use enqueue for one item"
    assert set(_answers(tmp_path, lambda session: session.enqueue_many(items))) == {expected}
    with PersistentQueue(tmp_path / "j", codec=codecs.JSON) as queue, queue.session() as session:
        with pytest.raises(TypeError) as caught:
            session.enqueue_many(items)
        assert f"TypeError: {caught.value}" == expected


def test_compat_puts_several_items_only(tmp_path: Path) -> None:
    """``put_many`` refuses a mapping and a single item as ``enqueue_many`` does, and names the calls of its queue."""
    with compat.Queue(tmp_path) as queue:
        with pytest.raises(TypeError, match=r"^put_many takes several items, not the mapping dict: .* use put for one"):
            queue.put_many({"a": 1})
        with pytest.raises(TypeError, match=r"^put_many takes several items, not str: use put for one item$"):
            queue.put_many("ab")
        assert queue.empty()
        queue.put_many({"a": 1}.values())
        assert queue.get() == 1
        queue.task_done()


def test_a_set_is_a_series_of_items(tmp_path: Path) -> None:
    """A set is taken, with each of its items once, in the order in which it is iterated."""
    items = {b"c", b"a", b"b"}
    assert set(_answers(tmp_path, lambda session: session.enqueue_many(items))) == {"took None"}
    with PersistentQueue(tmp_path / "s") as queue:
        with queue.transaction() as session:
            session.enqueue_many(items)
        assert drain(queue) == list(items)


async def _asked(queue: Any, ask: Callable[[Any], Any]) -> str:
    """Return what a queue of any interface answers."""
    try:
        answer = ask(queue)
        return f"took {await answer if isawaitable(answer) else answer}"
    except (TypeError, ValueError, SubscriptionNotFoundError) as error:
        return f"{type(error).__name__}: {error}"


async def _answers_of_queues(path: Path, ask: Callable[[Any], Any]) -> list[str]:
    """Return what each interface to a queue answers."""
    with PersistentQueue(path, "own", serve=True) as own, connect(path, "own", serve="never") as far:
        async with aio.PersistentQueue(path, "tasks") as tasks, aio.connect(path, "joined") as joined:
            return [await _asked(each, ask) for each in (own, far, tasks, joined)]


@pytest.mark.parametrize("name", [5, b"a", ("a", 1), ["a"]], ids=lambda name: type(name).__name__)
@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("session", "a session's name must be text or None"),
        ("marker", "a marker's name must be text"),
        ("subscribe", "a subscription's name must be text"),
        ("unsubscribe", "a subscription's name must be text"),
    ],
)
def test_a_name_is_text(tmp_path: Path, call: str, what: str, name: Any) -> None:
    """Each interface refuses a name that is no text, and says of what it would be the name."""
    answers = asyncio.run(_answers_of_queues(tmp_path, lambda queue: getattr(queue, call)(name)))
    assert answers == [f"TypeError: {what}, not {name!r}"] * 4


@pytest.mark.parametrize("wait", [0, 1, None, "x"], ids=repr)
def test_a_flush_waits_or_does_not(tmp_path: Path, wait: Any) -> None:
    """``wait`` of a flush is True or False: a number could be meant as seconds."""
    answers = asyncio.run(_answers_of_queues(tmp_path, lambda queue: queue.session().flush(wait=wait)))
    assert answers == [f"TypeError: wait must be True or False, not {wait!r}"] * 4


@pytest.mark.parametrize("count", [0, 1])
def test_a_timeout_is_checked_for_any_number_of_items(tmp_path: Path, count: int) -> None:
    """Each interface refuses a negative timeout, also of a dequeue of no items."""
    answers = asyncio.run(_answers_of_queues(tmp_path, lambda queue: queue.session().dequeue_many(count, -1)))
    assert answers == ["ValueError: timeout must be None or at least 0 seconds, got -1"] * 4


@pytest.mark.parametrize("timeout", [False, "", []], ids=repr)
def test_a_timeout_that_is_false_is_checked(tmp_path: Path, timeout: Any) -> None:
    """Each interface refuses a timeout that is no number, also one that counts as false."""
    answers = asyncio.run(_answers_of_queues(tmp_path, lambda queue: queue.session().dequeue(timeout)))
    assert answers == [f"TypeError: timeout must be None or a number of seconds, not {timeout!r}"] * 4


@pytest.mark.parametrize("opening", [PersistentQueue, connect])
def test_what_ends_a_wait_is_a_function(tmp_path: Path, opening: Callable[[Path, str], Any]) -> None:
    """An event in place of its ``is_set`` is refused by each ``wait``, also while items are ready."""
    with opening(tmp_path, "own") as queue:
        subscription = queue.subscribe("a")
        with queue.transaction() as session:
            session.enqueue(b"ready")
        for each in (queue, subscription):
            with pytest.raises(TypeError, match=r"^stop must be a function, such as event\.is_set, not <.*Event"):
                each.wait(stop=Event())
            assert each.wait(stop=Event().is_set)


def test_no_items_need_no_consumer(tmp_path: Path) -> None:
    """Each interface returns no items for a count of 0, also if only subscriptions read the queue."""
    for name in ("own", "tasks", "joined"):
        PersistentQueue(tmp_path, name, fan_out=True).close()
    answers = asyncio.run(_answers_of_queues(tmp_path, lambda queue: queue.session().dequeue_many(0)))
    assert answers == ["took []"] * 4


def test_a_closed_session_takes_nothing(tmp_path: Path) -> None:
    """Each interface refuses a dequeue of a session that is closed, also of no items."""

    async def ask(queue: Any) -> Any:
        session = queue.session()
        closing = session.close()
        if isawaitable(closing):
            await closing
        try:
            answer = session.dequeue_many(0)
            return await answer if isawaitable(answer) else answer
        except ClosedError:
            return "nothing: it is closed"

    assert asyncio.run(_answers_of_queues(tmp_path, ask)) == ["took nothing: it is closed"] * 4


def test_a_session_of_a_subscription_has_a_name_of_text(tmp_path: Path) -> None:
    """A session of a subscription is refused if its name is no text, also if it is false like no name."""

    async def ask(queue: Any) -> Any:
        made = queue.subscribe("a")
        return (await made if isawaitable(made) else made).session(0)

    answers = asyncio.run(_answers_of_queues(tmp_path, ask))
    assert answers == ["TypeError: a session's name must be text or None, not 0"] * 4


def test_the_start_of_a_subscription_is_a_word(tmp_path: Path) -> None:
    """Each interface says which words ``start`` may be, also for a value without a hash."""
    answers = asyncio.run(_answers_of_queues(tmp_path, lambda queue: queue.subscribe("a", [])))
    assert answers == ['ValueError: start must be "earliest" or "latest", got []'] * 4


def test_a_session_of_tasks_can_have_an_empty_name(tmp_path: Path) -> None:
    """The name of a session may be empty; only without a name it is that of the thread or the task."""
    answers = asyncio.run(_answers_of_queues(tmp_path, lambda queue: repr(queue.session("").name)))
    assert answers == ["took ''"] * 4


def test_a_view_looks_for_a_subscription_by_text(open_queue: QueueFactory) -> None:
    """A view refuses the name of a subscription that is no text, in place of an error that it is not there."""
    view: Any = open_queue().view()
    for look in (view.browse, partial(view.peek, 1)):
        with pytest.raises(TypeError, match=r"^a subscription's name must be text, not 5$"):
            look(5)


@pytest.mark.parametrize(
    ("call", "arguments", "what"),
    [
        ("compact", {"below": "x"}, "below must be a number, not 'x'"),
        ("compact", {"bytes_per_second": b"x"}, "bytes_per_second must be a number, not b'x'"),
        ("requeue", {"max_items": {1}}, "max_items must be a whole number, not {1}"),
        ("resize", {"segment_bytes": b"x"}, "segment_bytes must be a whole number, not b'x'"),
    ],
)
def test_a_number_of_a_call_is_named(tmp_path: Path, call: str, arguments: Any, what: str) -> None:
    """Each interface names an argument that is no number, before it is sent to the owner."""
    answers = asyncio.run(_answers_of_queues(tmp_path, lambda queue: getattr(queue, call)(**arguments)))
    assert answers == [f"TypeError: {what}"] * 4


@pytest.mark.parametrize("number", [10**400, -(10**400), Fraction(10**400), Decimal("NaN")], ids=str)
def test_a_share_is_a_number_of_any_size(tmp_path: Path, number: Any) -> None:
    """Each interface refuses a share that is out of its range, also one that no float can hold."""
    answers = asyncio.run(_answers_of_queues(tmp_path, lambda queue: queue.compact(below=number)))
    assert answers == [f"ValueError: below must be a share from 0 to 1, got {number}"] * 4


@pytest.mark.parametrize("rate", [10**400, Fraction(10**400), Decimal("1e400")], ids=str)
def test_a_rate_is_a_number_of_any_size(tmp_path: Path, rate: Any) -> None:
    """Each interface takes a rate that no float can hold as one without a bound."""
    answers = asyncio.run(_answers_of_queues(tmp_path, lambda queue: queue.compact(bytes_per_second=rate)))
    assert answers == ["took Compacted(segments=0, copied_bytes=0)"] * 4


def test_a_memory_budget_is_for_the_owner(tmp_path: Path) -> None:
    """A queue that another object owns refuses a ``MemoryBudget``, and says where it belongs."""
    with PersistentQueue(tmp_path, serve=True) as own, connect(tmp_path, serve="never") as far:
        budget: Any = MemoryBudget(2**20)
        with pytest.raises(TypeError, match="a MemoryBudget is for the process of the owner"):
            far.resize(memory_bytes=budget)
        own.resize(memory_bytes=budget)


@pytest.mark.parametrize("count", [-1, True, 1.5, "x"], ids=repr)
def test_a_count_of_cached_items_is_checked(open_queue: QueueFactory, count: Any) -> None:
    """``dequeue_cached`` refuses what is no count, as ``dequeue_many`` does, and holds nothing."""
    queue = open_queue()
    put(queue, b"a")
    with queue.session() as session:
        errors = []
        for take in (session.dequeue_cached, session.dequeue_many):
            with pytest.raises((TypeError, ValueError), match=r"^max_items must be") as caught:
                take(count)
            errors.append(str(caught.value))
        assert errors[0] == errors[1]
        assert queue.stats().held == 0


def _left(queue: Any) -> list[Any]:
    """Consume all items, and return them as text, which tells equal ones apart."""
    with queue.transaction() as session:
        return [repr(item) for item in session.dequeue_many(10)]


@pytest.mark.parametrize("item", [1.0, [1.0], {"a": 1.0}, (1.0,)], ids=repr)
def test_the_rejected_item_has_the_types_of_the_one_that_is_passed(tmp_path: Path, item: Any) -> None:
    """``reject`` prefers a held item of equal types to one that is only equal, in the owner and in a worker."""
    options: Any = {"codec": codecs.UNSAFE_PICKLE, "retry_delay_seconds": 0.0, "max_attempts": 9, "dead_letter": "dead"}
    equal = [eval(repr(item).replace("1.0", word)) for word in ("True", "1", "1.0")]
    with (
        PersistentQueue(tmp_path, "own", serve=True, **options) as own,
        connect(tmp_path, "own", serve="never", **options) as far,
    ):
        for queue in (own, far):
            with own.transaction() as session:
                session.enqueue_many(equal)
            with queue.session() as session:
                assert session.dequeue_many(3) == equal
                session.reject(item)
                session.flush()
            assert _left(own) == [repr(item)]


def test_the_rejected_item_may_be_only_equal(tmp_path: Path) -> None:
    """``reject`` takes an equal item if none has equal types; an item with NaN is like another one with NaN."""
    options: Any = {"codec": codecs.UNSAFE_PICKLE, "max_attempts": 9, "dead_letter": "dead"}
    with PersistentQueue(tmp_path, "q", **options) as queue:
        with queue.transaction() as session:
            session.enqueue_many([[2], {"a": float("nan")}, 1])
        with queue.session() as session:
            assert len(session.dequeue_many(3)) == 3
            session.reject(1.0)
            session.reject({"a": float("nan")})
            with pytest.raises(NotHeldError, match="the session holds no such item"):
                session.reject((2,))
            session.flush()
        assert _left(queue) == ["{'a': nan}"]
        assert _left(queue) == ["1"]


class Salted:
    """A codec whose encoding differs each time, as that of a program which encrypts its items itself."""

    def encode(self, item: Any) -> bytes:
        return os.urandom(8) + codecs.JSON.encode(item)

    def decode(self, data: bytes) -> Any:
        return codecs.JSON.decode(data[8:])


@pytest.mark.parametrize("item", [1, 1.0, True, [1.0]])
def test_the_rejected_item_is_found_if_its_encoding_differs(tmp_path: Path, item: Any) -> None:
    """``reject`` takes the item that is passed, and not an equal one of another type, with any codec."""
    items: list[Any] = [1, 1.0, True, [1], [1.0]]
    with PersistentQueue(tmp_path, "q", codec=Salted(), max_attempts=9, dead_letter="dead") as queue:
        with queue.transaction() as session:
            session.enqueue_many(items)
        with queue.session() as session:
            session.dequeue_many(5)
            session.reject(item)
            session.flush()
        assert _left(queue) == [repr(item)]


def _find_key(_: str) -> bytes:
    return b"k" * 32


@dataclass(eq=False)
class Job:
    """An object that equals only itself."""

    number: int


@dataclass(eq=False)
class Column:
    """An object that cannot be compared, as an array of numpy."""

    number: int
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("the truth value of a column is ambiguous")


@pytest.mark.parametrize("encloses", [False, True])
@pytest.mark.parametrize("make", [Job, Column])
def test_the_rejected_item_may_be_incomparable(tmp_path: Path, encloses: bool, make: Callable[[int], Any]) -> None:
    """``reject`` takes an object that equals only itself, or that cannot be compared, as ``dequeue`` returned it."""
    codec: Any = codecs.UNSAFE_PICKLE
    if encloses:
        pytest.importorskip("cryptography", reason="cryptography is not installed")
        codec = codecs.Enclosed(codec, encryption=Encryption("one", _find_key))
    options: Any = {"codec": codec, "retry_delay_seconds": 0.0, "max_attempts": 9, "dead_letter": "dead"}
    with (
        PersistentQueue(tmp_path, "own", serve=True, **options) as own,
        connect(tmp_path, "own", serve="never", **options) as far,
    ):
        for queue in (own, far):
            with own.transaction() as session:
                session.enqueue_many(map(make, range(2, 5)))
            with queue.session() as session:
                session.reject(session.dequeue_many(3)[1])
                session.flush()
            assert _left(own) == [repr(make(3))]


def test_a_queue_of_tasks_rejects_the_object_that_it_returned(tmp_path: Path) -> None:
    """``aio.Queue.reject`` takes the object that ``get`` returned before an equal one that was got earlier."""

    async def main() -> list[Any]:
        async with aio.Queue(tmp_path / "q", dead_letter="dead") as queue:
            for item in (True, 1, 1.0):
                await queue.put(item)
            got = [await queue.get() for _ in range(3)]
            await queue.reject(got[2], retry=False)
            letters = [DeadLetter.decode(each).item async for each in queue.dead_letters.browse()]
            for _ in range(2):
                queue.task_done()
            return letters

    assert asyncio.run(main()) == [b"1.0"]


def test_a_queue_of_tasks_buries_an_error_without_its_advice(tmp_path: Path) -> None:
    """The reason of an item that cannot be decoded is the text of its error without the advice, as in a session."""

    async def main() -> str:
        async with aio.Queue(tmp_path / "q", dead_letter="dead") as queue:
            with pytest.raises(CodecError) as caught:
                await queue.get()
            assert str(caught.value) != caught.value.problem
            await queue.reject(caught.value, retry=False)
            (letter,) = [DeadLetter.decode(each) async for each in queue.dead_letters.browse()]
            assert letter.reason == caught.value.problem
            return letter.reason

    with PersistentQueue(tmp_path / "q") as raw, raw.transaction() as session:
        session.enqueue(b"{")
    assert "cannot decode 1 byte" in asyncio.run(main())
