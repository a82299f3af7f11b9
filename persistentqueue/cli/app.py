"""The parts that all verbs share: parameters, the opening of a queue, and the words of errors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypedDict

from persistentqueue import (
    CorruptionError,
    Encryption,
    NetworkDiskError,
    PersistentQueue,
    PersistentQueueError,
    QueueFullError,
    QueueLockedError,
    QueueNotFoundError,
    SubscriptionNotFoundError,
    UntrustedError,
    View,
    WrongKeyError,
    list_queues,
)
from persistentqueue.storage.layout import holds_queue
from persistentqueue.system.disk import current_disk

from .parser import Number, UsageError, parameter, suggestion

STATUS = "Exit status: 0 success, 1 problems found or no item, 2 the command failed, 130 interrupted by Ctrl-C."
LOCK_SECONDS, ADOPTION_SECONDS = 1.0, 0.1
"""Seconds to wait for a lock, by default: ``put`` and ``load`` of other processes hold it only for a moment. They
themselves wait less: if the queue has an owner, it adopts their items."""
ANSWER_SECONDS = 0.5
"""Longest wait for the answer of an owner, in seconds."""
_KEY_SIZES = (16, 24, 32)
"""Bytes of a key."""
_SHOWN = 10
"""Most names that an error lists."""
_NOT_THERE = ": no queue here "
"""Words of each error about a path without a queue; other errors of that type tell of an open queue that was renamed.
"""
_HINTS: Mapping[type[Exception], str] = {
    CorruptionError: "persistentqueue repair keeps what is intact",
    UntrustedError: "on the command line: --trust",
    NetworkDiskError: "on the command line: --network-disk",
    QueueFullError: "persistentqueue get takes items out; the limit is that of the program that opens the queue",
}
"""The option or the command that helps, by the type of the error."""
_OF_IMPORT = re.compile(r"(?<!\S)(again|column|newest_first|order|skip_damaged|table)=(True)?(?![^ ,])")
"""An argument of ``import_queue``, as its errors name it, for which the verb ``import`` has an option."""

own = partial(PersistentQueue, wipe=True, keep_limits=True)
"""Opens a queue with its lock, under the limits that the queue's maker has set. It wipes each file that it frees: the
maker may rely on that, and no verb knows."""
PATH = parameter("path", completes="directory", help="A queue's directory, or the parent directory of queues.")
NAME = parameter("name", nargs="?", completes="queue", help="The queue's name; omit it if PATH is the queue.")
NAME_NEEDED = parameter("name", completes="queue", help="The queue's name, or . if PATH is the queue.")
NAMES = parameter(
    "names", nargs="*", metavar="NAME", completes="queue", help="The queues' names; default: all queues in PATH."
)
SUBSCRIPTION = parameter(
    "--subscription", default="", metavar="NAME", help="The subscription to read; default: the plain queue."
)
KEYS = parameter(
    "--key",
    action="append",
    dest="keys",
    metavar="ID=FILE",
    help="A key of an encrypted queue; FILE holds it raw, or as a line of hex with its line end. Repeatable: the first "
    "key encrypts.",
)
LOCK_TIMEOUT = parameter(
    "--lock-timeout",
    type=Number(float, 0),
    default=LOCK_SECONDS,
    metavar="SECONDS",
    help="Seconds to wait for the lock.",
)
TRUST = parameter(
    "--trust", action="store_true", help="Accept a queue that another user has prepared, or may write to."
)
NETWORK_DISK = parameter(
    "--network-disk", action="store_true", help="Accept a queue on a network file system, where two owners can write."
)
ACCESS = (TRUST, NETWORK_DISK, KEYS)
"""Options of verbs that publish items; ``Access`` has their values."""
OWNING = (LOCK_TIMEOUT, *ACCESS)
"""Options of verbs that own a queue; ``Owning`` has their values."""
CREATE = (
    parameter(
        "--create", action="store_true", default=True, help="Make the queue if it does not exist; this is the default."
    ),
    parameter("--no-create", action="store_false", dest="create", help="Fail if the queue does not exist."),
)
"""Both options of verbs that may make a queue; of several, the last one counts."""


class Access(TypedDict):
    """The values of the options ``ACCESS``, as a verb gets them."""

    trust: bool
    network_disk: bool
    keys: Sequence[str] | None


class Owning(Access):
    """The values of the options ``OWNING``, as a verb gets them."""

    lock_timeout: float


def settings_of(access: Access) -> dict[str, Any]:
    """Return the values as settings of a queue. Raises ``UsageError`` for a key that is no ``ID=FILE``."""
    settings: dict[str, Any] = dict(access)
    return {"encryption": encryption_of(settings.pop("keys")), **settings}


def reported(error: Exception) -> Exception:
    """Return the error to report: for a key file that cannot be read, the ``UsageError`` that names this file.

    The library asks for a key when it needs one, and wraps the error of that call.
    """
    cause = error.__cause__
    return cause if isinstance(error, WrongKeyError) and isinstance(cause, UsageError) else error


def explanation(error: BaseException, values: Mapping[str, Any]) -> str:
    """Return the error's message, with the option or the command that helps.

    ``values`` are those of the verb's parameters. With them, a message has the words of the command line in place of
    arguments of Python. If the directory cannot be read, the message is the error's own one.
    """
    if isinstance(error, QueueLockedError):
        return _locked_text(error, values)
    with suppress(PersistentQueueError, OSError):
        if isinstance(error, QueueNotFoundError) and _NOT_THERE in str(error):
            return _no_queue_text(error, values)
        if isinstance(error, SubscriptionNotFoundError):
            return _no_subscription_text(error, values)
    if isinstance(error, WrongKeyError):
        return f"{error} (on the command line: --key {error.key_id}=FILE)"
    if isinstance(error, MemoryError) and not str(error):  # Python's own, which has no words
        return "this process has too little memory for the command: give it more, then run the command again"
    hint = next((each for kind, each in _HINTS.items() if isinstance(error, kind)), "")
    if isinstance(error, CorruptionError) and error.file.endswith(".seg"):
        hint += "; persistentqueue dump writes it to a file"  # of a damaged log no verb but repair reads anything
    text = str(error)
    if "skip_damaged" in values:
        text = _OF_IMPORT.sub(lambda argument: "--" + argument[1].replace("_", "-"), text)
    return f"{text} ({hint})" if hint and hint not in text else text


def _locked_text(error: QueueLockedError, values: Mapping[str, Any]) -> str:
    """Return the owner of the lock, and the ways to do without it."""
    who = f"process {error.pid} on {error.host} opened it at {error.since}" if error.pid else "a process has it open"
    may_wait = "lock_timeout" in values
    wait = ", or wait for it with --lock-timeout" if may_wait else ", since this command has no --lock-timeout"
    text = (
        f"{error.path}: {who}; this command needs the queue's lock: end that process{wait} (put, load and the commands "
        "that only read need no lock)"
    )
    if may_wait and _is_served(os.path.dirname(error.path)):
        text += (
            "; that process serves the queue: persistentqueue worker, or persistentqueue.connect in a program, takes "
            "items beside it"
        )
    return text


def _is_served(directory: str) -> bool:
    """Return whether the owner of the queue in this directory serves it, and answers soon."""
    return View(directory).connections(ANSWER_SECONDS) is not None


def _names_in(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the queues that the verb was to find. A target of ``move`` is made if it is missing."""
    names = [values.get("name"), *values.get("names", ()), values.get("dead_letter")]
    return [each for each in names if each not in {None, "."}]


def _no_queue_text(error: QueueNotFoundError, values: Mapping[str, Any]) -> str:
    """Return which queue is missing, and the names of those that exist. Raises ``UnusablePathError``."""
    path, names = values["path"], _names_in(values)
    is_queue = holds_queue(current_disk(), path)
    if names and values.get("name") == ".":  # the queue of dead letters lies beside the one at the path
        path, names = (os.path.dirname(os.path.abspath(path)), names) if is_queue else (path, [])
        is_queue = False
    if not os.path.isdir(path):
        problem, found = "there is no such directory", []
    else:
        problem, found = "there is no queue in this directory", list_queues(path)
    missing = [each for each in names if each not in found]
    listed = ", ".join(found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
    if missing and found:
        what = ", ".join(map(repr, missing))
        return f"{path}: there is no queue {what} in this directory{suggestion(missing[0], found)} Its queues: {listed}"
    if missing and is_queue:
        return f"{path}: this directory is itself a queue, and has none of the name {missing[0]!r}: give . as the name"
    if is_queue or (names and not missing):  # the queue was made meanwhile
        return str(error)
    if found:
        return f"{path}: this directory is no queue itself: name one of its queues: {listed}"
    if values.get("create") and "names" in values:
        return f"{path}: {problem}: name the queues to make: persistentqueue serve {path} NAME"
    return f"{path}: {problem}: check the path"


def _no_subscription_text(error: SubscriptionNotFoundError, values: Mapping[str, Any]) -> str:
    """Return the names of the subscriptions, and the option for them. Raises errors of a look at the queue."""
    # The other queue of a verb only gets items, or is a dead-letter queue, which can be read as a plain queue.
    seen = View(values["path"], next(iter(_names_in(values)), None)).look()
    names = ", ".join(each for each, _ in seen.subscriptions)
    what = f"no subscription {error.subscription!r}" if error.subscription else "only subscriptions"
    if not names:
        advice = "none exists: a program makes one by queue.subscribe(name)"
    elif "subscription" in values:
        advice = f"name one of these with --subscription: {names}"
    else:
        advice = f"this command takes none of their items: use persistentqueue get --subscription with one of: {names}"
    return f"{seen.directory}: the queue has {what}: {advice}"


def encryption_of(keys: Sequence[str] | None) -> Encryption | None:
    """Return the encryption for the ``--key`` options; None if there are none. Raises ``UsageError``.

    A key file is read when its key is needed, and only once: it may be a pipe.
    """
    files: dict[str, Path] = {}
    for each in keys or ():
        key_id, _, file = each.partition("=")
        if not key_id or not file:
            raise UsageError(f"--key {each}: expected ID=FILE")
        files[key_id] = Path(file)

    @cache
    def key(key_id: str) -> bytes:
        """Return the key from the file with this id. Raises ``UsageError``, which never shows the bytes."""
        option = f"--key {key_id}={files[key_id]}"
        try:
            return _key_in(files[key_id].read_bytes())
        except OSError as error:
            raise UsageError(f"{option}: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"{option}: {error}") from None

    return Encryption(next(iter(files)), key) if files else None


def _key_in(data: bytes) -> bytes:
    """Return the key that the content of a key file stands for. Raises ``ValueError``, which never shows the bytes."""
    try:
        from_hex = bytes.fromhex(data.decode())
    except ValueError:  # its message would show the bytes
        from_hex = b""
    found = [each for each in (data, from_hex) if len(each) in _KEY_SIZES]
    if not found:
        what = f"{len(from_hex)} bytes in hex" if from_hex else f"{len(data)} bytes"
        raise ValueError(f"expected a key of 16, 24 or 32 bytes, raw or in hex; found {what}: give the file of the key")
    if len(found) > 1:
        raise ValueError(
            f"the {len(data)} characters are a key of {len(from_hex)} bytes in hex, or of {len(data)} bytes, raw: if "
            "they are hex, end the file with a line end; if they are the key itself, write each of them in hex"
        )
    return found[0]
