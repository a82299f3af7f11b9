"""The options of an opening as one value, ``Options``; their keyword arguments; and all their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from math import inf
from typing import Any, Literal, Protocol, TypedDict

from .core.encryption import Compression, Encryption, Envelopes, check_kinds
from .engine.context import Full, Settings
from .interrupts.locks import Lock
from .runtime.memory_budget import MemoryBudget
from .runtime.retries import Delay, counts_attempts
from .storage.inbox_limits import LIMITS, LOGS_LEAST
from .system.disk import StrPath

Start = Literal["earliest", "latest"]
"""Place where a new subscription begins."""


class Unnamed(Enum):
    """The default of the parameter ``name`` where an opening may make a queue: no name was passed."""

    NO_NAME = "no name"

    def __repr__(self) -> str:
        return self.name


class DeadLetterQueue(Protocol):
    """An open ``PersistentQueue`` that gets dead letters."""

    @property
    def closed(self) -> bool:
        """True if the queue is closed."""

    def peek(self, n: int = 1) -> list[Any]:
        """Return the first ready items."""


class PlainOptionArguments(TypedDict, total=False):
    """Keyword arguments of ``PersistentQueue`` that its other interfaces accept, too; all but ``codec``."""

    data_path: StrPath | None
    sync: bool
    create: bool
    lock_timeout: float
    grace_seconds: float
    segment_bytes: int
    memory_bytes: int | MemoryBudget
    inline_bytes: int
    log_bytes: int
    pool_min_bytes: int
    pool_max_bytes: int | None
    shared_pool: bool
    wipe: bool
    fan_out: bool
    compact_below: float
    compact_bytes_per_second: int
    max_items: int | None
    max_bytes: int | None
    max_disk_bytes: int | None
    keep_limits: bool
    min_free_bytes: int
    full: Full
    trust: bool
    network_disk: bool
    compression: Compression | None
    encryption: Encryption | None


class OptionArguments(PlainOptionArguments, total=False):
    """Keyword arguments of ``PersistentQueue``, for ``**options: Unpack[OptionArguments]``. See ``Options``."""

    max_attempts: int | None
    dead_letter: str | DeadLetterQueue | None
    retry_delay_seconds: Delay


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of an opening, as a value that several openings can share::

        small = Options(memory_bytes=1024 * 1024, log_bytes=64 * 1024)
        orders = PersistentQueue("queues", "orders", options=small)
        events = PersistentQueue("queues", "events", options=small, max_items=1000)

    Each field is also a keyword argument of ``PersistentQueue``, which describes it. A keyword argument has precedence
    over the field. Options never change; ``dataclasses.replace`` makes others from them.

    Raises:
        TypeError, ValueError: An option has the wrong type or range, or contradicts another one.
    """

    data_path: StrPath | None = None
    sync: bool = Settings.sync
    create: bool = True
    lock_timeout: float = 0.0
    grace_seconds: float = 1.0
    segment_bytes: int = Settings.segment_bytes
    memory_bytes: int | MemoryBudget = Settings.memory_bytes
    inline_bytes: int = Settings.inline_bytes
    log_bytes: int = Settings.log_bytes
    pool_min_bytes: int = Settings.pool_min_bytes
    pool_max_bytes: int | None = None
    shared_pool: bool = Settings.shared_pool
    wipe: bool = Settings.wipe
    fan_out: bool = Settings.fan_out
    compact_below: float = Settings.compact_below
    compact_bytes_per_second: int = Settings.compact_bytes_per_second
    max_items: int | None = None
    max_bytes: int | None = None
    max_disk_bytes: int | None = None
    keep_limits: bool = Settings.keep_limits
    min_free_bytes: int = Settings.min_free_bytes
    full: Full = "raise"
    trust: bool = Settings.trust
    network_disk: bool = Settings.network_disk
    max_attempts: int | None = None
    dead_letter: str | DeadLetterQueue | None = None
    retry_delay_seconds: Delay = 0.0
    compression: Compression | None = None
    encryption: Encryption | None = None

    def __post_init__(self) -> None:
        check_numbers({name: getattr(self, name) for name in _PLAIN})
        low_bytes, high_bytes = self.pool_min_bytes, self.pool_max_bytes
        if not self.compact_below <= 1:
            raise ValueError(f"compact_below must be a share from 0 to 1, got {self.compact_below}")
        if self.full not in {"raise", "block"}:
            raise ValueError(f'full must be "raise" or "block", got {self.full!r}')
        for name in LIMITS:
            if self.keep_limits and getattr(self, name) is not None:
                raise ValueError(f"keep_limits keeps the limits of an earlier opening: omit it, or {name}")
        if high_bytes is not None and high_bytes < low_bytes:
            raise ValueError(f"pool_max_bytes must be at least pool_min_bytes, {low_bytes}, got {high_bytes}")
        check_kinds(self.compression, self.encryption)
        counts_attempts(self.max_attempts, self.dead_letter is not None, self.retry_delay_seconds, self.sync)


def counts_deliveries(options: Options) -> bool:
    """Return whether a queue with these options counts delivery attempts, and logs each delivery."""
    return counts_attempts(
        options.max_attempts, options.dead_letter is not None, options.retry_delay_seconds, options.sync
    )


_ARGUMENTS = {
    "codec": "PersistentQueue() and connect()",
    "progress": "PersistentQueue()",
    "serve": "PersistentQueue() and connect()",
    "hold_seconds": "connect()",
    "prefetch": "connect()",
}
"""Arguments of openings that are no options, and the calls that have them. A misspelt one is taken for an option."""
_OTHERS = {"data_path", "max_attempts", "dead_letter", "retry_delay_seconds", "compression", "encryption"}
_DEFAULTS = {field.name: field.default for field in fields(Options)}
_PLAIN = [name for name in _DEFAULTS if name not in _OTHERS]
"""Options that are numbers, truth values or words."""
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
    "grace_seconds": 0,
}
_RELIED_ON = (
    "data_path",
    "sync",
    "wipe",
    "max_items",
    "max_bytes",
    "max_disk_bytes",
    "min_free_bytes",
    "full",
    "max_attempts",
    "compression",
    "fan_out",
)
"""Plain options that a program relies on. The others count for the opening alone, or change only how quick a queue is,
and how much memory and space it takes."""
_OPEN = "an open queue"
_NUMBER_MAX = 2**63 - 1
"""Largest size and offset of a file, and largest whole number that is recorded. An option above it is refused."""
_KINDS: tuple[tuple[Any, str], ...] = (
    (bool, "True or False"),
    (int, "a whole number"),
    (int | float, "a number"),
    (str, "text"),
)
"""Types and their names in messages. An option must have the first type that its default is an instance of."""


def check_numbers(options: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for an option of the wrong type, and ``ValueError`` for a number out of its range.

    The options are numbers, truth values or words, by name. A memory budget has checked itself.
    """
    options = {name: value for name, value in options.items() if not isinstance(value, MemoryBudget)}
    for name, value in options.items():
        default = _DEFAULTS[name]
        if default is None and value is None:
            continue
        kind, what = next((kind, what) for kind, what in _KINDS if isinstance(0 if default is None else default, kind))
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{name} must be {what}, not {value!r}")
    least_of = _LEAST | {"max_disk_bytes": LOGS_LEAST * options.get("log_bytes", 0)}
    for name, least in least_of.items():
        value = options.get(name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    for name, value in options.items():
        if isinstance(value, int) and value > _NUMBER_MAX:
            raise ValueError(f"{name} must be at most 2**63 - 1, got a number of {value.bit_length()} bits")


def checked_compaction(below: Any, bytes_per_second: Any) -> tuple[float, float]:
    """Return the arguments of ``PersistentQueue.compact`` as floats. Raises ``TypeError`` and ``ValueError``."""
    for name, value in (("below", below), ("bytes_per_second", bytes_per_second)):
        if not hasattr(value, "__float__") or isinstance(value, bool):
            raise TypeError(f"{name} must be a number, not {value!r}")
    share, rate = _nearest_float(below), _nearest_float(bytes_per_second)
    if not 0 <= share <= 1:
        raise ValueError(f"below must be a share from 0 to 1, got {below}")
    if not rate > 0:
        raise ValueError(f"bytes_per_second must be more than 0, got {bytes_per_second}")
    return share, rate


def _nearest_float(number: Any) -> float:
    """Return the number as a float; an infinite one if no float is as large."""
    try:
        return float(number)
    except OverflowError:
        return inf if number > 0 else -inf


def chosen_options(options: Options | None, arguments: Mapping[str, Any]) -> Options:
    """Return the options with the keyword arguments in the place of their fields. Raises ``TypeError`` for an unknown
    argument, and the errors of ``Options``."""
    if not isinstance(options, Options | None):
        raise TypeError(f"options must be Options, not {options!r}")
    for name in arguments:
        if name not in _DEFAULTS:
            from difflib import get_close_matches  # noqa: PLC0415  late: only this error needs it

            if name in _ARGUMENTS:
                raise TypeError(f"this call has no argument {name!r}, which is one of {_ARGUMENTS[name]}: omit it")
            near = get_close_matches(name, [*_DEFAULTS, *_ARGUMENTS], 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(_DEFAULTS)}"
            raise TypeError(f"a queue has no option {name!r}: {hint}")
    return replace(options if options is not None else Options(), **arguments)


def relied_on(options: Options) -> dict[str, Any]:
    """Return the options that a program relies on, as plain values: the owner of a queue tells them to its workers."""
    dead_letter, delay = options.dead_letter, options.retry_delay_seconds
    return {name: getattr(options, name) for name in _RELIED_ON} | {
        "dead_letter": dead_letter if isinstance(dead_letter, str | None) else _OPEN,
        "retry_delay_seconds": "a callable" if callable(delay) else delay,
        "encryption": None if options.encryption is None else "a key",
    }


def without_effect(options: Options, owners: Mapping[str, Any]) -> list[str]:
    """Return what a worker relies on with its options, and the owner of the queue has otherwise: ``name=value``.

    ``owners`` is what ``relied_on`` returns at the owner. An option with its default relies on nothing, but for
    ``sync``: the default relies on it. An open queue for dead letters may be the one that the other process names.
    """
    mine, defaults = relied_on(options), relied_on(Options()) | {"sync": False}
    found = [name for name in mine if name in owners and mine[name] not in (defaults[name], owners[name])]
    if owners.get("dead_letter") and _OPEN in (mine["dead_letter"], owners["dead_letter"]):
        found = [name for name in found if name != "dead_letter"]
    return [f"{name}={mine[name]!r} (owner: {owners[name]!r})" for name in found]


def for_dead_letters(options: Options) -> Options:
    """Return the options of the dead-letter queue that is opened with a queue of these options.

    It keeps the limits that its own opening has recorded.
    """
    return Options(
        keep_limits=True,
        lock_timeout=options.lock_timeout,
        grace_seconds=options.grace_seconds,
        memory_bytes=0,
        wipe=options.wipe,
        trust=options.trust,
        network_disk=options.network_disk,
        compression=options.compression,
        encryption=options.encryption,
    )


def settings_of(options: Options) -> Settings:
    """Return what the engine needs of the options. Raises the errors of ``Envelopes``."""
    shared: dict[str, Any] = {
        field.name: getattr(options, field.name) for field in fields(Settings) if field.name in _DEFAULTS
    }
    if isinstance(options.memory_bytes, MemoryBudget):
        shared["memory_bytes"] = 0
    if options.pool_max_bytes is None:
        shared["pool_max_bytes"] = options.pool_min_bytes
    envelopes = Envelopes(options.compression, options.encryption, Lock())
    return Settings(**shared, counts_attempts=counts_deliveries(options), envelopes=envelopes)
