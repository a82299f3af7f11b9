"""Adoptions whose frames are damaged: the published files prove them, or are adopted again.

The checksum of a frame covers all of its transactions, so one flipped bit takes all of them. But an adoption repeats
what its published file says, except for the number of its segment and its first sequence. So a file proves its adoption
if the same bytes stand in the damaged part of the log. The adoption then counts like that of an intact frame.

Without a proof the file is adopted again, also one that was renamed already. Its items may come twice then, if a later
frame has consumed them: no item of a file is lost for a doubt.

In the inbox, a file counts as repeated if its marker is not above the recorded one, and is deleted. So a renamed file
does not go back there if a later frame has recorded a higher version of its marker. It is adopted where it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from ..core.header import HEADER_BYTES
from ..core.operations import (
    Adoption,
    Enqueue,
    FieldError,
    MarkerSet,
    Operation,
    decode_operation,
    encode_operation,
)
from ..core.state import State
from ..errors import PersistentQueueError
from ..storage.layout import names_in
from ..storage.locations import DATA_DIRECTORY, Places
from ..storage.publication import Publication, is_published, read_publication
from ..storage.segment import parse_segment_name, segment_name, was_published
from ..system.disk import Disk, join
from .replay import look_into_inbox, read_waiting

_NAME = re.compile(rb"[0-7][0-9a-f]{15}-[0-9a-f]{16}\.seg")
_BEFORE_NAME = len(encode_operation(Adoption(0, 0, 0, "")))


def find_adoptions(
    disk: Disk, places: Places, data: bytes, start: int, end: int, inbox: Mapping[str, str]
) -> Iterator[list[Operation]]:
    """Yield the operations of each proven adoption between these offsets of a log, in their order.

    ``inbox`` maps the names of the files in the inbox to their paths. A file that is not there is a segment already.
    """
    for match in _NAME.finditer(data, start, end):
        with suppress(FieldError, FileNotFoundError, PersistentQueueError):
            own, _ = decode_operation(data, match.start() - _BEFORE_NAME, end)
            first, _ = decode_operation(data, match.end(), end)
            if isinstance(own, Adoption) and isinstance(first, Enqueue):
                path = inbox.get(own.name) or join(DATA_DIRECTORY, segment_name(own.segment))
                publication = read_publication(disk, places.path(path))
                if own.segment < len(publication.files) or first.first >= 2**63:
                    continue  # damaged numbers, which no queue can have
                adoptions, others = _adopt(publication, own.segment, first.first)
                before, behind = (b"".join(map(encode_operation, each)) for each in (adoptions, others))
                if publication.items and data.startswith(before + behind, match.end() - len(before)):
                    yield [*adoptions, *others]


def find_outrun(
    disk: Disk, places: Places, state: State, first_number: int, markers: Mapping[str, int], files: dict[str, str]
) -> Iterator[list[Operation]]:
    """Yield the operations that adopt each file again that later frames have outrun.

    A lost frame has adopted the renamed files: their numbers are from ``first_number`` on, and the ``state`` does not
    know them. A file in the inbox counts if its marker is above that of ``markers``, which are from before the first
    lost frame. ``files`` maps the names in the inbox to paths; the renamed files are added to it. The caller applies
    the operations to the state before it asks for the next ones.
    """
    found, renamed, top = list[tuple[int, Publication]](), dict[str, str](), 0
    for name in sorted(names_in(disk, places.path(DATA_DIRECTORY))):
        number, path = parse_segment_name(name), join(DATA_DIRECTORY, name)
        if number is None:  # a copy that was set aside
            continue
        top = number
        if first_number <= number and number not in state.segments and was_published(disk, places.path(path)):
            with suppress(FileNotFoundError, PersistentQueueError):
                publication = read_publication(disk, places.path(path))
                renamed[publication.name] = path
                found.append((number, publication))
    found += ((0, publication) for publication in read_waiting(disk, places, files))
    for number, publication in found:
        marker, version = publication.marker or ("", 0)
        is_outrun = version <= state.markers.get(marker, -1) and (number or version > markers.get(marker, -1))
        if is_outrun and is_published(publication.name) and publication.items:
            if not number:
                files |= renamed  # parts that this manifest names
            last = number or max(top, state.next_segment - 1) + len(publication.files)
            adoptions, others = _adopt(publication, last, state.next_sequence)
            yield [*adoptions, *(each for each in others if isinstance(each, Enqueue))]


def _adopt(publication: Publication, last: int, sequence: int) -> tuple[list[Operation], list[Operation]]:
    """Return the operations that adopt a publication: those of its files, up to segment ``last``, and the others."""
    adoptions, others = list[Operation](), list[Operation]()
    for number, file in enumerate(publication.files, last + 1 - len(publication.files)):
        adoptions.append(Adoption(number, file.salt, file.capacity_bytes, file.name))
        if file.count:
            others.append(Enqueue(sequence, file.count, number, HEADER_BYTES, file.length_bytes, 0, file.checksum))
            sequence += file.count
    if publication.marker is not None:
        others.append(MarkerSet(*publication.marker))
    return adoptions, others


def count_doubtful(disk: Disk, places: Places, markers: Mapping[str, int], most: int) -> int:
    """Return the number of published files in the inbox that a lost frame may have adopted, and that are adopted again.

    They have no more items than the ``most`` that lost frames have enqueued, and are not repeated by their markers.
    """
    count = 0
    for publication in read_waiting(disk, places, look_into_inbox(disk, places)) if most else ():
        marker, version = publication.marker or ("", 0)
        count += 0 < publication.items <= most and version > markers.get(marker, -1)
    return count
