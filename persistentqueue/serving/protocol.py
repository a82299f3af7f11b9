"""The messages between the owner of a queue and its workers, in both directions. Pure bytes, no sockets.

A *worker* is a process that uses a queue which another process owns. Each session of a worker is a connection to the
owner. So the kernel tells the owner at once that a worker died: the connection ends, and its session is rolled back.

All integers are little-endian::

    message = length u32 of what follows, kind u8, call u32, fields
    items   = count u32, uniform u8, lengths u32, then the payloads back to back
    json    = an object in UTF-8, to the end of the message

If all items are equally long and not empty, ``uniform`` is 1, and there is one length. Else there are as many lengths
as items.

The worker numbers its calls, and the answer has the number of its call. A worker makes one call at a time. Only
*cancel* may come while a call is under way: it has no answer, and ends the wait of that call. The kinds of messages,
with their numbers and fields::

     1 hello      json                                the first message: versions, the connection's id, its session
     2 take       most u32, milliseconds u32          hold up to ``most`` items, after a wait for the first of them
     3 put        items                               buffer these items
     4 flush      number u64, milliseconds u32, items buffer these items, and commit everything
     5 mark       version u64, name in UTF-8          the marker of the next flush; without an answer
     6 give back  count u32                           release the last ``count`` items that were taken
     7 roll back                                      drop what was put, and release what was taken
     8 outcome    number u64                          ask whether the flush with this number was committed
     9 cancel                                         end the wait of the call that is under way
    10 call       json                                any other call: its name, and its arguments
    11 browse     which u8                            the next items that are ready (0), or not consumed by all (1)
    12 reject     retry u8, items                     reject a held item: the item, the reason, and seconds as text
    13 end                                            the worker will ask no more about this connection; no answer
    14 ahead      back u32, most u32                  the next flush releases the last ``back`` items first, and is
                                                      answered by *taken* with up to ``most`` others; no answer
    64 welcome    json                                the answer to *hello*: the version, and facts about the queue
    65 done       value u8                            1 for success, and for a true answer; otherwise 0
    66 taken      more u8, items                      items; ``more`` is 1 if the message has no room for others
    67 failed     json                                the error that the call raises
    68 result     json                                the answer to *call*

A wait of ``FOR_EVER`` milliseconds has no end. The flushes of a connection are numbered from 1 on. The owner records
the number in the transaction of the flush (see ``operations``), so the next owner knows the outcome.

An owner that closes the queue does not answer a *take* of a session without work. The worker makes it again, at the
next owner, when the connection ends. Held items may go to the next owner (see ``handover``): the ``kept`` of *welcome*
is the number of the items that it holds for this connection, 0 if it is missing.

A message that is malformed, longer than ``MESSAGE_BYTES_MAX``, or out of turn ends the connection, and no other one.
Lengths are checked before memory is taken for what they announce.

Versions: *hello* has the lowest and the highest version that the worker speaks. The owner answers with the highest
that both speak, or with *failed*. A new version may add kinds, and fields of a json.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

from ..core.items import Alike

VERSION: Final = 1
"""Version of the protocol that this module speaks."""
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest message in bytes, with its header."""
ITEM_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 1024
"""Longest item in bytes that a worker can put or take."""
JSON_BYTES_MAX: Final = 4 * 1024 * 1024
"""Longest json in bytes."""
TAKEN_BYTES: Final = 4 * 1024 * 1024
"""Bytes of payloads from which on an answer has no room for a further item."""
FOR_EVER: Final = 2**32 - 1
"""Milliseconds of a wait without an end."""
CONNECTION_BYTES: Final = 16
"""Length of the id of a connection."""
CALLS_ONLY: Final = "calls"
"""The ``role`` in the *hello* of a connection that only makes calls of the queue, for no session."""
_HEADER = struct.Struct("<IBI")
HEADER_BYTES: Final = _HEADER.size
_REST_BYTES = HEADER_BYTES - 4
_COUNT = struct.Struct("<IB")
_UNIFORM = struct.Struct("<IBI")
_CUT_ITEMS_MAX = 4096
"""Items of one length that are cut apart by one call."""
_IS_BIG_ENDIAN = sys.byteorder == "big"


FIRST_CALL = 1
"""Number of the first call of a connection, its hello."""


class ProtocolError(ValueError):
    """Bytes that no peer sends: the connection must end."""


class Hello(NamedTuple):
    """The first message of a connection. ``fields``: ``versions``, ``connection``, ``process``, ``name`` and others.

    ``process_name``, ``thread`` and ``role`` only describe the worker: see ``connections``.
    """

    fields: Mapping[str, Any]


class Take(NamedTuple):
    """Hold up to ``most`` items, after a wait of up to so many milliseconds. With 0, only wait."""

    most: int
    wait_milliseconds: int


class Put(NamedTuple):
    """Buffer these items."""

    items: Sequence[bytes]


class Flush(NamedTuple):
    """Buffer these items, and commit. A wait for room takes up to so many milliseconds."""

    number: int
    wait_milliseconds: int
    items: Sequence[bytes]


class Mark(NamedTuple):
    """Name and version of the marker of the next flush."""

    version: int
    name: str


class GiveBack(NamedTuple):
    """Release the last items that were taken."""

    items: int


class RollBack(NamedTuple):
    """Drop and release everything since the last flush."""


class Outcome(NamedTuple):
    """Ask whether the flush of this connection with this number was committed."""

    number: int


class Cancel(NamedTuple):
    """End the wait of the call that is under way."""


class Call(NamedTuple):
    """Any other call. ``fields`` has its name as ``call``, and its arguments."""

    fields: Mapping[str, Any]


class Browse(NamedTuple):
    """Ask for the next items. ``which`` is 0 for those that are ready, 1 for those not consumed by all."""

    which: int


class Reject(NamedTuple):
    """Mark a held item as failed. ``items``: the item, the reason in UTF-8, and the delay as text, or an empty one."""

    retry: int
    items: Sequence[bytes]


class End(NamedTuple):
    """Say that the worker ends the connection, and will not ask for the outcome of its flushes."""


class Ahead(NamedTuple):
    """Two more steps of the next flush: release the last ``back`` items before it, and take up to ``most`` behind it.

    With a ``most`` above 0, the answer to a flush that commits is ``Taken``. It does not wait for items.
    """

    back: int
    most: int


class Welcome(NamedTuple):
    """The answer to ``Hello``."""

    fields: Mapping[str, Any]


class Done(NamedTuple):
    """The answer to a call that returns a truth value or nothing."""

    value: int


class Taken(NamedTuple):
    """The answer to ``Take``, to ``Browse``, and to a flush behind ``Ahead``."""

    more: int
    items: Sequence[bytes]


class Failed(NamedTuple):
    """The answer to a call that raises."""

    fields: Mapping[str, Any]


class Result(NamedTuple):
    """The answer to ``Call``."""

    fields: Mapping[str, Any]


Message: TypeAlias = (
    Hello
    | Take
    | Put
    | Flush
    | Mark
    | GiveBack
    | RollBack
    | Outcome
    | Cancel
    | Call
    | Browse
    | Reject
    | End
    | Ahead
    | Welcome
    | Done
    | Taken
    | Failed
    | Result
)


class _Form(NamedTuple):
    """How a message is written: the struct of its header and integers, and what follows them."""

    kind: int
    make: Callable[..., Message]
    head: struct.Struct
    tail: str


def _form(kind: int, make: Callable[..., Message], integers: str = "", tail: str = "") -> _Form:
    return _Form(kind, make, struct.Struct(f"<IBI{integers}"), tail)


_FORMS: dict[type, _Form] = {
    Hello: _form(1, Hello, tail="json"),
    Take: _form(2, Take, "II"),
    Put: _form(3, Put, tail="items"),
    Flush: _form(4, Flush, "QI", "items"),
    Mark: _form(5, Mark, "Q", "text"),
    GiveBack: _form(6, GiveBack, "I"),
    RollBack: _form(7, RollBack),
    Outcome: _form(8, Outcome, "Q"),
    Cancel: _form(9, Cancel),
    Call: _form(10, Call, tail="json"),
    Browse: _form(11, Browse, "B"),
    Reject: _form(12, Reject, "B", "items"),
    End: _form(13, End),
    Ahead: _form(14, Ahead, "II"),
    Welcome: _form(64, Welcome, tail="json"),
    Done: _form(65, Done, "B"),
    Taken: _form(66, Taken, "B", "items"),
    Failed: _form(67, Failed, tail="json"),
    Result: _form(68, Result, tail="json"),
}
_WELCOME = _FORMS[Welcome].kind
FROM_WORKER: Final = {form.kind: form for form in _FORMS.values() if form.kind < _WELCOME}
"""Messages that a worker sends, by their kinds."""
FROM_OWNER: Final = {form.kind: form for form in _FORMS.values() if form.kind >= _WELCOME}
"""Messages that the owner sends, by their kinds."""


def encode(message: Message, call: int) -> bytes:
    """Return the bytes of the message. Raises ``ValueError`` if it is longer than a peer takes."""
    kind, _, head, tail = _FORMS[type(message)]
    fields: tuple[Any, ...] = message
    if not tail:
        return head.pack(head.size - 4, kind, call, *fields)
    *integers, last = fields
    if tail == "items":
        rest = _encode_items(last)
    elif tail == "text":
        rest = last.encode()
    else:
        rest = json.dumps(last, separators=(",", ":")).encode()
        if len(rest) > JSON_BYTES_MAX:
            raise ValueError(f"a json of {len(rest)} bytes exceeds the maximum of {JSON_BYTES_MAX} bytes")
    length_bytes = head.size + len(rest)
    if length_bytes > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {length_bytes} bytes exceeds the maximum of {MESSAGE_BYTES_MAX} bytes")
    return head.pack(length_bytes - 4, kind, call, *integers) + rest


def _encode_items(items: Sequence[bytes]) -> bytes:
    lengths = {items.each_bytes} if items and isinstance(items, Alike) else set(map(len, items))
    if len(lengths) == 1 and 0 not in lengths:  # each empty item has a length of its own: no message holds billions
        return b"".join((_UNIFORM.pack(len(items), 1, *lengths), *items))
    each = array("I", map(len, items))
    if _IS_BIG_ENDIAN:
        each.byteswap()
    return b"".join((_COUNT.pack(len(items), 0), each.tobytes(), *items))


class Incoming:
    """The bytes that one peer has sent: ``feed`` takes them as they come, and returns whole messages.

    At most one message is kept in memory. Args: the messages that the peer may send, by their kinds.
    """

    def __init__(self, forms: Mapping[int, _Form]) -> None:
        self._forms = forms
        self._rest = bytearray()
        """Beginning of a message; one object, however small the parts are that it comes in."""
        self.need_bytes = HEADER_BYTES

    def feed(self, data: bytes) -> list[tuple[int, Message]]:
        """Return the messages that are whole now, each with the number of its call. Raises ``ProtocolError``."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self.need_bytes:
                return []
            data, self._rest = bytes(self._rest), bytearray()
        messages: list[tuple[int, Message]] = []
        at, have_bytes, need_bytes = 0, len(data), HEADER_BYTES
        while have_bytes - at >= HEADER_BYTES:
            length_bytes, kind, call = _HEADER.unpack_from(data, at)
            form = self._forms.get(kind)
            if form is None:
                raise ProtocolError(f"a message of kind {kind}, which this peer never sends")
            if not _REST_BYTES <= length_bytes <= MESSAGE_BYTES_MAX - 4:
                raise ProtocolError(f"a message of {length_bytes} bytes, allowed are {MESSAGE_BYTES_MAX - 4}")
            end = at + 4 + length_bytes
            if end > have_bytes:
                need_bytes = end - at
                break
            messages.append((call, _decode(form, data, at, end)))
            at = end
        if at < have_bytes:
            self._rest, self.need_bytes = bytearray(data[at:] if at else data), need_bytes
        return messages


def _decode(form: _Form, data: bytes, at: int, end: int) -> Message:
    _, make, head, tail = form
    behind = at + head.size
    if behind > end:
        raise ProtocolError(f"a {make.__name__} that is cut")
    integers = head.unpack_from(data, at)[3:]
    if tail == "items":
        return make(*integers, _decode_items(data, behind, end))
    if not tail and behind == end:
        return make(*integers)
    if tail == "text":
        return make(*integers, _decode_text(data[behind:end]))
    if tail == "json" and end - behind <= JSON_BYTES_MAX:
        return make(*integers, _decode_json(data[behind:end]))
    raise ProtocolError(f"a {make.__name__} with {end - behind} further bytes")


def _decode_items(data: bytes, at: int, end: int) -> list[bytes]:
    if end - at < _COUNT.size:
        raise ProtocolError("items without a count")
    count, uniform = _COUNT.unpack_from(data, at)
    payloads = at + _COUNT.size + 4 * (1 if uniform else count)
    if uniform > 1 or payloads > end:
        raise ProtocolError(f"the lengths of {count} items in {end - at} bytes")
    if uniform:
        _, _, length_bytes = _UNIFORM.unpack_from(data, at)
        if not length_bytes or not count or count * length_bytes != end - payloads:
            raise ProtocolError(f"{count} items of {length_bytes} bytes in {end - payloads} bytes")
        if count == 1:
            return [data[payloads:end]]
        if count <= _CUT_ITEMS_MAX:
            return Alike(_cut(count, length_bytes).unpack_from(data, payloads), length_bytes)
        starts = range(payloads, end, length_bytes)
        slices = map(slice, starts, range(payloads + length_bytes, end + 1, length_bytes))
        return Alike(map(data.__getitem__, slices), length_bytes)
    lengths = array("I")
    lengths.frombytes(data[at + _COUNT.size : payloads])
    if _IS_BIG_ENDIAN:
        lengths.byteswap()
    ends = list(accumulate(lengths, initial=payloads))
    if ends[-1] != end:
        raise ProtocolError(f"items of {ends[-1] - payloads} bytes in {end - payloads} bytes")
    return list(map(data.__getitem__, map(slice, ends, ends[1:])))


@lru_cache(64)
def _cut(count: int, length_bytes: int) -> struct.Struct:
    """Return what cuts payloads of one length apart in one call of C code."""
    return struct.Struct(f"{length_bytes}s" * count)


def _decode_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a text that is not UTF-8: {error}") from error


def _decode_json(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a json that is none: {error}") from error
    if not isinstance(fields, dict):
        raise ProtocolError(f"a json that is no object, but {type(fields).__name__}")
    return fields
