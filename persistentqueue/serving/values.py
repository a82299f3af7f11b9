"""Results of calls as a json, and back: numbers, texts, and the named tuples and data classes of the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ..drawing.charts import SegmentShare
from ..engine.segment_use import Holder, SegmentUse
from ..engine.store import RecoveryReport
from ..errors import PersistentQueueError
from ..measuring.metrics import Histogram, Sample
from ..runtime.inspection import Stats
from ..runtime.maintenance import Compacted, Maintained
from .connections import Connection

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Compacted,
        Connection,
        Histogram,
        Holder,
        Maintained,
        RecoveryReport,
        Sample,
        SegmentShare,
        SegmentUse,
        Stats,
    )
}
"""Classes whose objects cross the wire. A name that is not here is never made."""


def encode_value(value: object) -> Any:
    """Return the value as a json can hold it. Raises ``TypeError`` for an object of another class."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if type(value).__name__ in _KINDS:
        names = [each.name for each in fields(value)] if is_dataclass(value) else value._fields  # type: ignore[attr-defined]
        return {"kind": type(value).__name__, "fields": {name: encode_value(getattr(value, name)) for name in names}}
    if isinstance(value, tuple):
        return {"kind": "tuple", "items": [encode_value(each) for each in value]}
    if isinstance(value, list):
        return [encode_value(each) for each in value]
    if isinstance(value, Mapping):
        return {"kind": "dict", "items": [[encode_value(name), encode_value(each)] for name, each in value.items()]}
    raise TypeError(f"{type(value).__name__} cannot be sent to another process")


def decode_value(value: Any) -> Any:
    """Return what ``encode_value`` has encoded. Raises ``PersistentQueueError`` for anything else."""
    if isinstance(value, list):
        return [decode_value(each) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("kind")
    if kind == "tuple":
        return tuple(decode_value(each) for each in value["items"])
    if kind == "dict":
        return {decode_value(name): decode_value(each) for name, each in value["items"]}
    made = _KINDS.get(str(kind))
    if made is None:
        raise PersistentQueueError(f"the owner of the queue has sent a {kind!r}: use one version of the package")
    return made(**{name: decode_value(each) for name, each in value["fields"].items()})
