"""What logs say of transactions over several queues (see ``several``): the format. Pure bytes, no files.

Operations of the transaction log, of which ``frame`` has the others::

       11 prepare          transaction 16 bytes, number u64, then the coordinator: length u8, name in ASCII
       12 decision         transaction 16 bytes, count u32 of participants, each as in 11
       13 resolution       transaction 16 bytes, committed u8
       14 identity         queue 16 bytes, forgotten u64
       15 prepare          transaction 16 bytes, number u64, queue 16 bytes, then the coordinator as in 11
       18 decision         transaction 16 bytes, count u32 of participants, each: queue 16 bytes, then as in 11

The queues are named by their directories, which are neighbours. What stands behind a *prepare* in its transaction, the
only one of its frame, counts only if it is decided by a *decision* in the log of the coordinator, in the frame with
that ``number`` or nowhere. The next frame of the log that has the prepare begins with the *resolution*, which says so
once more. A *decision* behind a checkpoint is one that a participant may have to ask for.

An *identity* stands behind each checkpoint: the ``queue`` has it for ever, whatever it is called, and no other has it
that was made anew, also by a repair that had nothing but blocks. A *prepare* has that of its coordinator, so that no
other is taken for it that has its name. The decisions in frames up to the ``forgotten`` one may have been forgotten for
a participant whose directory was gone: of what was prepared for these, and is not decided, nobody knows what became.
A *decision* of kind 18 has the identities of its participants: another queue that has the name of one of them settles
nothing for it. Older logs lack an identity, and their prepares, of kind 11, and their decisions, of kind 12, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from .fields import FieldError, fixed, take, unpack

_PREPARE = struct.Struct("<B16sQ")
_DECISION = struct.Struct("<B16sI")
_RESOLUTION = struct.Struct("<B16s?")
_IDENTITY = struct.Struct("<B16sQ")
_PREPARE_FOR = struct.Struct("<B16sQ16s")
_KIND_PREPARE, _KIND_DECISION, _KIND_RESOLUTION, _KIND_IDENTITY, _KIND_PREPARE_FOR = range(11, 16)
_KIND_DECISION_FOR = 18  # those between are of deliveries
RESOLUTION_BYTES = _RESOLUTION.size
IDENTITY_BYTES = 16


class Prepare(NamedTuple):
    """What follows in this transaction counts if the coordinator, the neighbour of this name, has decided so in the
    frame of this number."""

    transaction: bytes
    number: int
    coordinator: str
    queue: bytes = b""
    """The coordinator's identity; of older logs empty."""


class Participant(NamedTuple):
    """A queue that takes part in a transaction: its name, and its identity, which is empty if an older log says so."""

    name: str
    queue: bytes


class Decision(NamedTuple):
    """The transaction is committed, here and in the participants."""

    transaction: bytes
    participants: tuple[str, ...]
    queues: tuple[bytes, ...] = ()
    """The identity of each participant; of older logs empty."""

    def asking(self) -> tuple[Participant, ...]:
        """Return who may have to ask for it, by name and identity."""
        queues = self.queues or (b"",) * len(self.participants)
        return tuple(map(Participant, self.participants, queues))


class Resolution(NamedTuple):
    """What became of the transaction that the frame before has prepared."""

    transaction: bytes
    committed: bool


class Identity(NamedTuple):
    """Which queue this is, and up to which frame it may have forgotten decisions that somebody may come and ask for."""

    queue: bytes
    forgotten: int


Pact = Prepare | Decision | Resolution | Identity


def _encode_prepare(operation: Prepare) -> bytes:
    transaction, number, coordinator, queue = operation
    if queue:
        return _PREPARE_FOR.pack(_KIND_PREPARE_FOR, transaction, number, queue) + _encode_name(coordinator)
    return _PREPARE.pack(_KIND_PREPARE, transaction, number) + _encode_name(coordinator)


def _encode_decision(operation: Decision) -> bytes:
    kind = _KIND_DECISION_FOR if operation.queues else _KIND_DECISION
    parts = [each.queue + _encode_name(each.name) for each in operation.asking()]
    return _DECISION.pack(kind, operation.transaction, len(parts)) + b"".join(parts)


def _encode_name(name: str) -> bytes:
    return bytes([len(name)]) + name.encode("ascii")


def _decode_prepare(data: bytes, at: int, end: int) -> tuple[Prepare, int]:
    _, transaction, number = unpack(_PREPARE, data, at, end)
    coordinator, at = _decode_name(data, at + _PREPARE.size, end)
    return Prepare(transaction, number, coordinator), at


def _decode_prepare_for(data: bytes, at: int, end: int) -> tuple[Prepare, int]:
    _, transaction, number, queue = unpack(_PREPARE_FOR, data, at, end)
    coordinator, at = _decode_name(data, at + _PREPARE_FOR.size, end)
    return Prepare(transaction, number, coordinator, queue), at


def _decode_decision(data: bytes, at: int, end: int) -> tuple[Decision, int]:
    kind, transaction, count = unpack(_DECISION, data, at, end)
    participants, queues, at = [], [], at + _DECISION.size
    for _ in range(count):
        if kind == _KIND_DECISION_FOR:
            queue, at = take(data, at, IDENTITY_BYTES, end)
            queues.append(queue)
        participant, at = _decode_name(data, at, end)
        participants.append(participant)
    return Decision(transaction, tuple(participants), tuple(queues)), at


def _decode_name(data: bytes, at: int, end: int) -> tuple[str, int]:
    """The name of a neighbour: nothing that leads anywhere else."""
    length, at = take(data, at, 1, end)
    name, at = take(data, at, length[0], end)
    if not name.isascii() or name[:1] in {b"", b"."} or b"/" in name or b"\0" in name:
        raise FieldError("the name of a queue beside this one", f"{name!r}")
    return name.decode("ascii"), at


PACT_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Prepare: _encode_prepare,
    Decision: _encode_decision,
    Resolution: lambda operation: _RESOLUTION.pack(_KIND_RESOLUTION, *operation),
    Identity: lambda operation: _IDENTITY.pack(_KIND_IDENTITY, *operation),
}
PACT_DECODERS: dict[int, Callable[[bytes, int, int], tuple[Pact, int]]] = {
    _KIND_PREPARE: _decode_prepare,
    _KIND_DECISION: _decode_decision,
    _KIND_RESOLUTION: fixed(Resolution, _RESOLUTION),
    _KIND_IDENTITY: fixed(Identity, _IDENTITY),
    _KIND_PREPARE_FOR: _decode_prepare_for,
    _KIND_DECISION_FOR: _decode_decision,
}
