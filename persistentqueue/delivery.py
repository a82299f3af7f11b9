"""What logs say of deliveries, where a queue counts them (see ``retries``): the format. Pure bytes, no files.

Operations of the transaction log, of which ``frame`` and ``pact`` have the others::

       16 delivered        subscription u32, first u64, count u64, times u32
       17 delayed          subscription u32, first u64, count u64, due u64, delay u64

*Delivered* says that the subscription was given the sequences ``first … first + count - 1`` so many ``times`` more, one
where they were handed out just then, and is not done with any of them; a delay of theirs is over. *Delayed* says that
they are not to be handed out before ``due``, in nanoseconds since the epoch; ``delay`` is how long that was then, so
that a clock which was set back meanwhile holds them no longer than that. Behind a checkpoint both say what there is of
this, without a delivery that was consumed. Of a sequence that is consumed nothing is remembered.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from .fields import fixed

_DELIVERED = struct.Struct("<BIQQI")
_DELAYED = struct.Struct("<BIQQQQ")
_KIND_DELIVERED, _KIND_DELAYED = range(16, 18)
TIMES_MAX = 2**32 - 1


class Delivered(NamedTuple):
    """The subscription was given these sequences so many times more."""

    subscription: int
    first: int
    count: int  # type: ignore[assignment]
    times: int


class Delayed(NamedTuple):
    """The subscription is not given these sequences before then, which was so far off."""

    subscription: int
    first: int
    count: int  # type: ignore[assignment]
    due_ns: int
    delay_ns: int


Delivery = Delivered | Delayed

DELIVERY_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Delivered: lambda operation: _DELIVERED.pack(_KIND_DELIVERED, *operation),
    Delayed: lambda operation: _DELAYED.pack(_KIND_DELAYED, *operation),
}
DELIVERY_DECODERS: dict[int, Callable[[bytes, int, int], tuple[Delivery, int]]] = {
    _KIND_DELIVERED: fixed(Delivered, _DELIVERED),
    _KIND_DELAYED: fixed(Delayed, _DELAYED),
}
