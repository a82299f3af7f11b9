"""The checks of the settings of a queue, which come before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .admission import LOGS_LEAST
from .transaction import Settings

_LEAST = {
    "segment_bytes": 1,
    "memory_bytes": 0,
    "inline_bytes": 0,
    "log_bytes": 4096,
    "pool_min_bytes": 0,
    "compact_below": 0,
    "compact_bytes_per_second": 1,
    "max_items": 1,
    "max_bytes": 1,
    "min_free_bytes": 0,
    "lock_timeout": 0,
}
_BYTES_MAX = 2**63 - 1
"""Largest size and offset of a file. A setting above it is refused."""
_KINDS: tuple[tuple[Any, str], ...] = (
    (bool, "True or False"),
    (int, "a whole number"),
    (int | float, "a number"),
    (str, "text"),
)
"""Types and their names in messages. A setting must have the first type that its default is an instance of."""


def check_some(settings: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for a setting of the wrong type, and ``ValueError`` for a number out of its range."""
    for name, value in settings.items():
        default = getattr(Settings, name, 0.0)
        if default is None and value is None:
            continue
        kind, what = next((kind, what) for kind, what in _KINDS if isinstance(0 if default is None else default, kind))
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {what}, not {value!r}")
    least_of = _LEAST | {"max_disk_bytes": LOGS_LEAST * settings.get("log_bytes", 0)}
    for name, least in least_of.items():
        value = settings.get(name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    for name, value in settings.items():
        if name.endswith("_bytes") and value is not None and value > _BYTES_MAX:
            raise ValueError(f"{name} must be at most 2**63 - 1, got a number of {value.bit_length()} bits")


def check_settings(settings: Settings, lock_timeout: float) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless all settings are valid, with combinations and enumerated values."""
    check_some(vars(settings) | {"lock_timeout": lock_timeout})
    low_bytes, high_bytes = settings.pool_min_bytes, settings.pool_max_bytes
    if not settings.compact_below <= 1:
        raise ValueError(f"compact_below must be a share from 0 to 1, got {settings.compact_below}")
    if settings.full not in {"raise", "block"}:
        raise ValueError(f'full must be "raise" or "block", got {settings.full!r}')
    if high_bytes < low_bytes:
        raise ValueError(f"pool_max_bytes must be at least pool_min_bytes, {low_bytes}, got {high_bytes}")
