"""Items that a session holds: their decoding behind a take, and the search for one that its caller passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..core.encryption import UNOPENED
from ..errors import CodecError
from ..system.path_errors import faults, suppress
from . import C, Codec, encode_plain

OTHER, EQUAL, ALIKE = 0, 1, 2
"""Ranks of a held item beside the one that a caller passes: another one; an equal one; one that is encoded alike."""


def decode_held(
    codec: Codec[C],
    data: list[bytes],
    give_back: Callable[[int], object],
    undecodable: Callable[[Codec[C], bytes, Exception], CodecError],
    uncount: Callable[[int], object],
) -> list[C]:
    """Return the items that a session has just put on hold, decoded, up to the first that cannot be decoded.

    That one and those behind it are released by ``give_back``, which takes their number. Before that, ``uncount`` takes
    back their last delivery: their caller does not get them. If the first item cannot be decoded, it stays on hold
    alone, and the error that ``undecodable`` returns is raised.

    An item for which the codec has no key or no package is not a bad one. If it is the first, the error of the codec is
    raised. The caller releases all items if anything but a ``CodecError`` is raised.
    """
    items: list[C] = []
    for each in data:
        try:
            items.append(codec.decode(each))
        except faults(Exception) as error:
            is_bad = not (items or isinstance(error, UNOPENED))
            behind = len(data) - len(items) - is_bad
            if behind:
                uncount(behind)
            if not (items or is_bad):
                raise
            if behind:
                give_back(behind)
            if is_bad:
                raise undecodable(codec, each, error) from error
            break
    return items


def first_meant(held: Iterable[tuple[int, bytes]], matches: Callable[[int, bytes], int]) -> tuple[int, bytes] | None:
    """Return the number and the bytes of the first held item that ``matches`` ranks ``ALIKE``, else of the first one
    that it ranks ``EQUAL``; None if it ranks all of them ``OTHER``."""
    found = None
    for number, raw in held:
        rank = matches(number, raw)
        if rank == ALIKE:
            return number, raw
        if rank == EQUAL and found is None:
            found = number, raw
    return found


def ranking(codec: Codec[Any], item: object) -> Callable[[bytes], int]:
    """Return a function that ranks stored bytes: how well ``item`` matches them, or what the codec makes of them.

    1, 1.0 and True are equal, and different items: their encodings differ. Some objects, such as arrays, can only be
    compared by their encodings. Some codecs encode an item differently each time: then the texts of equal items tell.
    The session keeps no references that could tell them apart.
    """
    encoded: bytes | None = None
    with suppress(Exception):  # such an item is compared as an object
        encoded = encode_plain(codec, item)

    def rank(raw: bytes) -> int:
        """Compare the bytes first, then the encodings, then the objects."""
        if isinstance(item, bytes) and raw == item:
            return ALIKE
        with suppress(Exception):  # bytes that cannot be decoded are another item
            decoded = codec.decode(raw)
            with suppress(Exception):
                if encode_plain(codec, decoded) == encoded:
                    return ALIKE
            if decoded == item:  # some objects cannot be compared: they are other items, too
                return ALIKE if repr(decoded) == repr(item) else EQUAL
        return OTHER

    return rank
