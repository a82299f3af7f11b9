"""Calls of programs that use the library wrongly, their arguments, and the ledger of acknowledged calls."""

from __future__ import annotations

import itertools
import logging
import mmap
import queue as standard
import re
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from math import inf, nan
from types import TracebackType
from typing import Any, NamedTuple
from unittest.mock import patch

from persistentqueue import (
    BrokenQueueError,
    CodecError,
    PersistentQueue,
    PersistentQueueError,
    Producer,
    Session,
    Ticket,
    View,
    codecs,
    transaction,
)
from persistentqueue.compat import ShutDown
from persistentqueue.core.block import ITEM_BYTES_MAX
from persistentqueue.runtime.session_state import hold_of
from persistentqueue.system import progress
from persistentqueue.system.disk import DISK
from tests.support.disks import call_on

from .exploring import ViolationError

_ID = re.compile(rb"T?(\d+\.\d+);")


class MischiefError(Exception):
    """The error that callbacks of the programs raise."""


class Step(NamedTuple):
    """One call of a program."""

    call: str
    target: int
    how: str
    hook: Step | None
    """Call that the first callback inside this call makes."""

    def __repr__(self) -> str:
        inside = f" with {self.hook!r} inside" if self.hook is not None else ""
        return f"{self.call}[{self.target}]({self.how}){inside}"


class Program(NamedTuple):
    """A program, as its seed determines it."""

    seed: int
    style: str
    settings: dict[str, Any]
    shares: bool
    """True if threads use each other's sessions."""
    switches: float
    """Seconds after which the interpreter changes threads."""
    traced: int
    """Line of the package, counted from the start of the program, before which a trace function makes a call."""
    threads: tuple[tuple[Step, ...], ...]

    def __repr__(self) -> str:
        head = f"seed {self.seed}: {self.style} {self.settings} shares={self.shares} traced={self.traced}"
        return "\n".join([head, *(f"  thread {n}: {steps!r}" for n, steps in enumerate(self.threads))])


# --- arguments of the calls ------------------------------------------------------------------------------------------


class _Index:
    """A number that runs a callback when its value is requested."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __index__(self) -> int:
        self._world.callback()
        return 1


class _Equal:
    """An object that runs a callback when it is compared."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, world: World) -> None:
        self._world = world

    def __eq__(self, other: object) -> bool:
        return self._world.callback() is None


class _Pair:
    """A marker that runs a callback when it is unpacked."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __iter__(self) -> Iterator[object]:
        self._world.callback()
        return iter(("m", 1))


class _Bytes(bytes):
    """Bytes that report a wrong length."""

    def __len__(self) -> int:
        return 7


_HUGE: list[mmap.mmap] = []


def _huge(_: bytes) -> object:
    if not _HUGE:
        # Only for reading, so that the system reserves no memory: other processes may have taken it.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        _HUGE.append(mmap.mmap(-1, ITEM_BYTES_MAX + 1, flags=flags, prot=mmap.PROT_READ))
    return _HUGE[0]


def _released(data: bytes) -> object:
    view = memoryview(data)
    view.release()
    return view


ITEMS: dict[str, Callable[[bytes], object]] = {
    "bytes": lambda data: data,
    "bytearray": bytearray,
    "view": memoryview,
    "subclass": _Bytes,
    "long": lambda data: data + bytes(9000),
    "large": lambda data: data + bytes(1_500_000),
}
WRONG_ITEMS: dict[str, Callable[[bytes], object]] = {
    "none": lambda _: None,
    "number": lambda _: 7,
    "text": lambda _: "text",
    "list": lambda data: [data],
    "object": lambda _: object(),
    "class": lambda _: bytes,
    "huge": _huge,
    "released": _released,
}
COUNTS: dict[str, Callable[[World], Any]] = {
    "one": lambda _: 1,
    "many": lambda _: 100,
    "none": lambda _: 0,
    "negative": lambda _: -1,
    "far": lambda _: 10**30,
    "true": lambda _: True,
    "float": lambda _: 1.5,
    "nan": lambda _: nan,
    "text": lambda _: "1",
    "None": lambda _: None,
    "index": _Index,
}
TIMEOUTS: dict[str, object] = {
    "0": 0,
    "0.0": 0.0,
    "-0.0": -0.0,
    "soon": 0.0005,
    "negative": -1.0,
    "nan": nan,
    "text": "1",
    "object": object(),
    "decimal": Decimal("0.0005"),
    "false": False,
    "list": [],
    "bytes": b"1",
}
WAITS: dict[str, object] = {"None": None, "1e6": 1e6, "inf": inf, "1e300": 1e300, "10**400": 10**400}
ODD_NAMES: dict[str, object] = {
    "empty": "",
    "surrogate": "\ud800",
    "long": "x" * 70000,
    "number": 3,
    "bytes": b"s",
    "list": ["s"],
    "zero": "a\0b",
    "object": object(),
    "up": "../x",
    "dot": ".",
    "slash": "a/b",
}
NAMES: dict[str, object] = {"s": "s", "other": "other", "None": None} | ODD_NAMES
MARKERS: dict[str, Callable[[World], Any]] = {
    "None": lambda _: None,
    "right": lambda world: ("m", next(world.clock)),
    "old": lambda _: ("m", 0),
    "list": lambda world: ["m", next(world.clock)],
    "one": lambda _: ("m",),
    "three": lambda _: ("m", 1, 2),
    "text": lambda _: "mm",
    "number": lambda _: 5,
    "version text": lambda _: ("m", "1"),
    "version none": lambda _: ("m", None),
    "version float": lambda _: ("m", 1.5),
    "negative": lambda _: ("m", -1),
    "far": lambda _: ("m", 2**64),
    "true": lambda _: ("m", True),
    "bytes": lambda _: (b"m", 1),
    "empty": lambda _: ("", 1),
    "long": lambda _: ("x" * 70000, 1),
    "surrogate": lambda _: ("\ud800", 1),
    "dict": lambda _: {"m": 1},
    "object": lambda _: object(),
    "pair": _Pair,
}
LISTS = ("list", "tuple", "generator", "reentrant", "raises", "wrong", "none", "text", "array", "empty")

# --- the ledger ------------------------------------------------------------------------------------------------------


@dataclass
class Note:
    """One call in the ledger."""

    world: World
    kind: str
    key: tuple[str, str, int]
    """Queue, consumer and session."""
    items: list[bytes]
    begin: int = 0
    end: int = 0
    ok: bool | None = False
    """True if the call was acknowledged; None if its effect is unknown."""

    def __enter__(self) -> Note:
        self.begin = next(self.world.clock)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end = next(self.world.clock)
        if error is None:
            self.ok = True if self.ok is False else self.ok
        elif not isinstance(error, PersistentQueueError | TypeError | ValueError):
            self.ok = None
        elif isinstance(error, CodecError) and self.kind == "dequeue" and isinstance(error.item, bytes):
            self.items, self.ok = [error.item], True
        self.world.notes.append(self)


def _fates(note: Note, enders: list[Note]) -> set[str]:
    """Return the ways in which the work of this call may have ended; ``enders`` are calls of the same session."""
    last = min((each.end for each in enders if each.begin > note.end and each.ok is not None), default=inf)
    found = set()
    for each in enders:
        if each.end > note.begin and each.begin < last:
            found.add("maybe" if each.ok is None else each.kind)
    # The session's own end is a rollback. It counts only if no other end surely came before.
    return found if last < inf else found | {"rollback"}


class Ledger:
    """Items that must be in a queue, and items that must not, according to the acknowledged calls."""

    def __init__(self, notes: list[Note]) -> None:
        self._enders: dict[tuple[str, str, int], list[Note]] = {}
        for note in notes:
            if note.kind in {"flush", "rollback", "maybe"} and note.ok is not False:
                self._enders.setdefault(note.key, []).append(note)
        self._notes = notes

    def require(self, queue: str, consumer: str, found: list[bytes], since: int = 0) -> None:
        """Raise ``ViolationError`` if the consumer of a queue finds a wrong item, or misses one."""
        must, may, consumed, touched = self._sort(queue, consumer, since)
        twice = [item for item, times in Counter(found).items() if times > 1]
        again = [item for item, times in Counter(consumed).items() if times > 1]
        lost = sorted(must - touched - set(found))
        back = sorted(set(consumed) & set(found))
        foreign = sorted(set(found) - must - may)
        where = f"queue {queue}, consumer {consumer!r}"
        for what, items in (
            ("there twice", twice),
            ("consumed twice", again),
            ("lost", lost),
            ("consumed and there", back),
            ("there without a flush", foreign),
        ):
            if items:
                raise ViolationError(f"{where}: {what}: {items[:5]} ({len(items)} in all)")

    def _sort(self, queue: str, consumer: str, since: int) -> tuple[set[bytes], set[bytes], list[bytes], set[bytes]]:
        must: set[bytes] = set()
        may: set[bytes] = set()
        consumed: list[bytes] = []
        touched: set[bytes] = set()
        clears = any(note.kind == "clear" and note.key[0] == queue and note.ok is not False for note in self._notes)
        for note in self._notes:
            if note.key[0] != queue or note.ok is False:
                continue
            fates = _fates(note, self._enders.get(note.key, []))
            items = [id_of(item) for item in note.items]
            if note.kind == "enqueue" and fates & {"flush", "maybe"}:
                sure = fates == {"flush"} and note.ok and (not since or note.begin > since)
                (must if sure else may).update(items)
            elif note.kind == "dequeue" and note.key[1] == consumer and fates & {"flush", "maybe"}:
                touched.update(items)
                if fates == {"flush"} and note.ok:
                    consumed += items
        if clears and not consumer:
            touched |= must
        return must, may, consumed, touched


def id_of(data: object) -> bytes:
    """Return the part of an item that no other item has."""
    found = _ID.match(data) if isinstance(data, bytes) else None
    return found[1] if found is not None else repr(data)[:40].encode()


# --- the world of a program ------------------------------------------------------------------------------------------


class Hostile:
    """A codec that runs callbacks, raises, and returns wrong types."""

    def __init__(self, world: World) -> None:
        self._world = world

    def encode(self, item: Any, /) -> Any:
        """Return the bytes of the item, or a wrong value if the callback of this call asks for one."""
        wrong = self._world.callback()
        return b"T" + memoryview(item).tobytes() if wrong is None else wrong

    def decode(self, data: bytes, /) -> Any:
        """Return the item."""
        self._world.callback()
        return data[1:]


class _Handler(logging.Handler):
    """A log handler that runs callbacks."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.callback(may_raise=False)


class World:
    """Objects of a program while it runs, shared by its threads."""

    def __init__(self, program: Program, root: str) -> None:
        self.program, self.root = program, root
        self.clock: Iterator[int] = itertools.count(1)
        self.notes: list[Note] = []
        self.bare: list[tuple[object, BaseException]] = []
        self.local = threading.local()
        self.ids = itertools.count()
        settings = dict(program.settings)
        self.b: PersistentQueue[bytes] = PersistentQueue(root, "b", sync=True, log_bytes=1 << 16)
        if program.style == "typed":
            settings["codec"] = Hostile(self)
        if program.style == "retries":
            settings |= {"max_attempts": 3, "dead_letter": self.b, "retry_delay_seconds": self._delay}
        disk = replace(DISK, failpoint=self._failpoint)
        self.a: PersistentQueue[Any] = call_on(disk, PersistentQueue, root, "a", **settings)
        self.s = self.a.subscribe("s")
        codec = settings.get("codec", codecs.BYTES)
        self.producers = [Producer(root, "a", codec=codec) for _ in program.threads]
        self.view = View(root, "a")
        self.sessions: list[tuple[tuple[str, str, int], Session[Any]]] = []
        for number, _ in enumerate(program.threads):
            self.sessions.append((("a", "", number), self.a.session()))
            self.sessions.append((("a", "s", number), self.s.session()))
        self.handler = _Handler(self)

    def fresh(self) -> bytes:
        """Return an item that no other call has."""
        return b"%d.%d;" % (self.program.seed % 1000, next(self.ids))

    def session(self, at: int) -> tuple[tuple[str, str, int], Session[Any]]:
        """Return one of the sessions, with its key in the ledger."""
        return self.sessions[at % len(self.sessions)]

    def close(self) -> None:
        """Close the queues, which ends the calls that wait."""
        self.a.close()
        self.b.close()

    def end(self) -> None:
        """Close the producers, each of which is for one thread at a time. No thread is left."""
        for producer in self.producers:
            producer.close()

    def callback(self, *, may_raise: bool = True) -> object:
        """Make the call of the step's hook, once; return None, or the wrong value that a codec must return."""
        hook: Step | None = getattr(self.local, "hook", None)
        if hook is None:
            return None
        self.local.hook = None
        if hook.call == "raise":
            if may_raise:
                raise MischiefError("a callback raises")
            return None
        if hook.call == "wrong":
            return {"text": "x", "none": 0, "bytearray": bytearray(b"1")}.get(hook.how, 3.5)
        run_step(self, hook)
        return None

    def call_back(self) -> None:
        """Run the callback like ``callback``, and return nothing."""
        self.callback()

    def _failpoint(self, _: str) -> None:
        self.callback(may_raise=False)

    def _delay(self, attempts: int) -> float:
        self.callback()
        return 0.0 if attempts else 0.1


ALLOWED = (
    PersistentQueueError,
    TypeError,
    ValueError,
    MischiefError,
    standard.Full,
    standard.Empty,
    ShutDown,
)


def is_named(error: BaseException) -> bool:
    """Return if the documentation names this error for misuse.

    No disk fails here, so no queue may be broken.
    """
    if isinstance(error, UnicodeError):
        return False
    return isinstance(error, ALLOWED) and not isinstance(error, BrokenQueueError)


def run_step(world: World, step: Step) -> None:
    """Make one call, and record an error that the documentation does not name."""
    before = getattr(world.local, "hook", None)
    world.local.hook = step.hook
    try:
        CALLS[step.call](world, step.target, step.how)
    except BaseException as error:
        if not is_named(error):
            world.bare.append((step, error))
    finally:
        world.local.hook = before


# --- the calls -------------------------------------------------------------------------------------------------------


def _item(world: World, how: str) -> tuple[Any, list[bytes]]:
    data = world.fresh()
    if how in ITEMS:
        return ITEMS[how](data), [data]
    return WRONG_ITEMS[how](data), []


def _items(world: World, how: str) -> tuple[Any, list[bytes], bool | None]:
    """Return an argument of ``enqueue_many``, its items, and None if a failure may leave some of them."""
    data = [world.fresh() for _ in range(3)]

    def generated() -> Iterator[object]:
        for number, each in enumerate(data):
            if number == 1 and how in {"reentrant", "raises"}:
                world.callback()
                if how == "raises":
                    raise MischiefError("an iterable raises")
            yield each

    if how in {"generator", "reentrant", "raises"}:
        return generated(), data, None
    wrong = {"wrong": [data[0], 3], "none": None, "text": "text", "array": array("d", [1.5]), "empty": []}
    if how in wrong:
        return wrong[how], [], False
    return (tuple(data) if how == "tuple" else data), data, False


def _enqueue(world: World, at: int, how: str) -> None:
    key, session = world.session(at)
    item, ids = _item(world, how)
    with Note(world, "enqueue", key, ids):
        session.enqueue(item)


def _enqueue_many(world: World, at: int, how: str) -> None:
    key, session = world.session(at)
    items, ids, unknown = _items(world, how)
    note = Note(world, "enqueue", key, ids)
    with note:
        note.ok = unknown
        session.enqueue_many(items)
        note.ok = True


def _dequeue(world: World, at: int, how: str) -> None:
    key, session = world.session(at)
    with Note(world, "dequeue", key, []) as note:
        item = session.dequeue({**TIMEOUTS, **WAITS}[how])  # type: ignore[arg-type]
        note.items = [item] if item is not None else []


def _dequeue_many(world: World, at: int, how: str) -> None:
    key, session = world.session(at)
    with Note(world, "dequeue", key, []) as note:
        note.items = session.dequeue_many(COUNTS[how](world))


def _flush(world: World, at: int, how: str) -> None:
    key, session = world.session(at)
    with Note(world, "flush", key, []) as note:
        marker, timeout, *later = how.split("/")
        arguments: Any = MARKERS[marker](world), {**TIMEOUTS, **WAITS}[timeout or "None"]
        if not (_flush_later(session, note, arguments) if later else session.flush(*arguments)):
            note.kind = "rollback"
        if world.program.style == "retries":
            note.ok = None  # a flush may keep rejected items


def _flush_later(session: Session[Any], note: Note, arguments: Any) -> bool:
    """Hand the flush over, and wait for it. A flush that was handed over and failed is rolled back."""
    ticket: Ticket = session.flush(*arguments, wait=False)
    try:
        return ticket.result()
    except PersistentQueueError as error:
        note.kind = "maybe" if isinstance(error, BrokenQueueError) else "rollback"
        session.rollback()
        raise


def _flush_all(world: World, at: int, how: str) -> None:
    pairs = [world.session(at), world.session(at ^ 1)]
    if how == "twice":
        pairs = [pairs[0]] * 2
    notes = [Note(world, "maybe", key, [], ok=None) for key, _ in pairs]
    begin = next(world.clock)
    try:
        given: Any = [session for _, session in pairs]
        world.a.flush_all(3 if how == "number" else given, [("m",)] * 2 if how == "marker" else ())  # type: ignore[list-item, arg-type]
    finally:
        for note in notes:
            note.begin, note.end = begin, next(world.clock)
            world.notes.append(note)


def _rollback(world: World, at: int, _: str) -> None:
    key, session = world.session(at)
    with Note(world, "rollback", key, []):
        session.rollback()


def _close_session(world: World, at: int, _: str) -> None:
    key, session = world.session(at)
    with Note(world, "rollback", key, []):
        session.close()


def _put_back(world: World, at: int, how: str) -> None:
    key, session = world.session(at)
    with Note(world, "maybe", key, []) as note:
        session.put_back(COUNTS[how](world))
        note.ok = None


def _reject(world: World, at: int, how: str) -> None:
    _, session = world.session(at)
    session.reject(_Equal(world), "because", retry=how != "last", delay_seconds=nan if how == "nan" else None)


def _session_like(world: World, at: int, how: str) -> None:
    _, session = world.session(at)
    if how == "keeps":
        hold_of(session)
    elif how == "give up":
        session.give_up()
    elif how == "with":
        with world.a.session(name=3) as other:  # type: ignore[arg-type]
            other.dequeue()
    else:
        bool(session.closed)


def _queue_like(world: World, _: int, how: str) -> None:
    queue = world.a
    if how == "stop":
        queue.wait(0.0005, stop=lambda: bool(world.callback()))
        return
    if how == "progress":
        with patch.object(progress, "STEP_BYTES", 0):
            queue.compact(below=1.0, progress=lambda *_: world.call_back())
        return
    if how == "clear":
        with Note(world, "clear", ("a", "", -1), []):
            queue.clear()
        return
    calls: dict[str, Callable[[], object]] = {
        "len": lambda: len(queue),
        "stats": queue.stats,
        "explain": queue.explain,
        "trim": queue.trim,
        "compact": lambda: queue.compact(below="1"),  # type: ignore[arg-type]
        "maintain": queue.maintain,
        "peek": lambda: queue.peek(2),
        "peek odd": lambda: queue.peek("2"),  # type: ignore[arg-type]
        "browse": lambda: list(queue.browse()),
        "browse all": lambda: list(queue.browse_all()),
        "resize": lambda: queue.resize(memory_bytes=0),
        "resize odd": lambda: queue.resize(memory_bytes="1"),  # type: ignore[arg-type]
        "marker": lambda: queue.marker("m"),
        "marker odd": lambda: queue.marker(["m"]),  # type: ignore[arg-type]
        "wake": queue.wake,
        "view": lambda: queue.view().look(),
        "requeue odd": lambda: queue.requeue("1"),  # type: ignore[arg-type]
        "dead letters": lambda: queue.dead_letters,
        "wait odd": lambda: queue.wait("1"),  # type: ignore[arg-type]
        "subscriptions": queue.subscriptions,
        "open again": lambda: PersistentQueue(world.root, "a").close(),
        "close": queue.close,
    }
    calls[how]()


def _subscribe(world: World, _: int, how: str) -> None:
    world.a.subscribe(NAMES[how], "latest")  # type: ignore[arg-type]


def _open(world: World, _: int, how: str) -> None:
    PersistentQueue(world.root + "/odd", NAMES[how]).close()  # type: ignore[arg-type]


def _view(world: World, _: int, how: str) -> None:
    if how == "name":
        View(world.root, 3).look()  # type: ignore[arg-type]
    elif how == "peek":
        world.view.peek("1")  # type: ignore[arg-type]
    elif how == "times":
        world.view.times_of([None, "x"])  # type: ignore[list-item]
    elif how == "browse":
        list(View(world.root, "a").browse(how))
    else:
        View(world.root, "a").look()


def _produce(world: World, at: int, how: str) -> None:
    at %= len(world.producers)
    producer, key = world.producers[at], ("a", "producer", at)
    if how == "close":
        with Note(world, "rollback", key, []):
            producer.close()
    elif how == "many":
        items, ids, unknown = _items(world, "reentrant")
        note = Note(world, "enqueue", key, ids)
        with note:
            note.ok = unknown
            producer.enqueue_many(items)
            note.ok = True
    elif how in MARKERS:
        with Note(world, "flush", key, []) as note:
            # The owner may drop a publication whose marker was reached meanwhile: its items are uncertain.
            if not producer.flush(MARKERS[how](world)):
                note.kind = "rollback"
            elif how != "None":
                note.ok = None
    else:
        item, ids = _item(world, how)
        with Note(world, "enqueue", key, ids):
            producer.enqueue(item)


def _together(world: World, at: int, how: str) -> None:
    wrong: dict[str, tuple[Any, ...]] = {
        "twice": (world.a, world.a),
        "subscription": (world.a, world.s),
        "number": (world.a, 3),
        "none": (),
        "session": (world.a, world.session(at)[1]),
    }
    if how in wrong:
        with transaction(*wrong[how]):
            pass
        return
    number = -1 - next(world.clock)  # no session of the world has this number
    into, out = ("b", "", number), ("a", "", number)
    data = world.fresh()
    with Note(world, "flush", into, []) as end, transaction(world.a, world.b) as (first, second):
        with Note(world, "enqueue", into, [data]):
            second.enqueue(data)
        with Note(world, "dequeue", out, []) as note:
            item = first.dequeue()
            note.items = [item] if item is not None else []
        if how == "closed inside":
            second.close()
        elif how == "marker":
            first.flush(("m",))  # type: ignore[arg-type]
        elif how == "raise":
            raise MischiefError("the block raises")
        elif how == "nested":
            _together(world, at, "right")
        end.begin = next(world.clock)
    world.notes.append(Note(world, "flush", out, [], end.begin, end.end, True))


CALLS: dict[str, Callable[[World, int, str], None]] = {
    "enqueue": _enqueue,
    "enqueue_many": _enqueue_many,
    "dequeue": _dequeue,
    "dequeue_many": _dequeue_many,
    "flush": _flush,
    "flush_all": _flush_all,
    "rollback": _rollback,
    "close session": _close_session,
    "put_back": _put_back,
    "reject": _reject,
    "session": _session_like,
    "queue": _queue_like,
    "subscribe": _subscribe,
    "open": _open,
    "view": _view,
    "produce": _produce,
    "together": _together,
}
