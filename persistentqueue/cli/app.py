"""The parts that all verbs share: parameters, the opening of a queue, exit statuses and the words of errors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from persistentqueue import (
    CorruptionError,
    Encryption,
    NetworkDiskError,
    PersistentQueue,
    QueueLockedError,
    UntrustedError,
    WrongKeyError,
)

from .parser import Number, UsageError, parameter

WELL, PROBLEMS = 0, 1
"""Exit statuses: 0 for success, 1 for problems or no item. ``FAILED``, 2, and ``INTERRUPTED``, 130, are in ``streams``.
"""
STATUS = "Exit status: 0 success, 1 problems found or no item, 2 the command failed, 130 interrupted by Ctrl-C."
LOCK_SECONDS = 0.1
"""Seconds to wait for a lock, by default: ``put`` and ``load`` of other processes hold it only for a moment."""

own = partial(PersistentQueue, wipe=True)
"""Opens a queue with its lock. It wipes each file that it frees: the queue's maker may rely on that, and no verb knows.
"""
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
    help="A key of an encrypted queue; FILE holds its bytes, raw or in hex. Repeatable: the first key encrypts.",
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


def explanation(error: BaseException) -> str:
    """Return the error's message, with the option or the command that helps."""
    if isinstance(error, WrongKeyError):
        return f"{error} (on the command line: --key {error.key_id}=FILE)"
    if isinstance(error, CorruptionError):
        return f"{error} (persistentqueue repair keeps what is intact; persistentqueue dump writes it to a file)"
    if isinstance(error, UntrustedError):
        return f"{error} (on the command line: --trust)"
    if isinstance(error, NetworkDiskError):
        return f"{error} (on the command line: --network-disk)"
    if not isinstance(error, QueueLockedError):
        return str(error)
    who = f"process {error.pid} on {error.host} opened it at {error.since}" if error.pid else "a process has it open"
    return (
        f"{error.path}: {who}; this command needs the queue's lock: end that process, or wait for it with "
        "--lock-timeout, which repair does not have (put, load and the commands that only read need no lock)"
    )


def encryption_of(keys: Sequence[str] | None) -> Encryption | None:
    """Return the encryption for the ``--key`` options; None if there are none. Raises ``UsageError``.

    A key file is read when its key is needed.
    """
    files: dict[str, Path] = {}
    for each in keys or ():
        key_id, _, file = each.partition("=")
        if not key_id or not file:
            raise UsageError(f"--key {each}: expected ID=FILE")
        files[key_id] = Path(file)

    def key(key_id: str) -> bytes:
        """Return the key from the file with this id. Raises ``UsageError``, which never shows the bytes."""
        try:
            data = files[key_id].read_bytes()
            return data if len(data) in {16, 24, 32} else bytes.fromhex(data.decode())
        except OSError as error:
            raise UsageError(f"{files[key_id]}: {error.strerror}") from None
        except ValueError:  # its message would show the bytes
            raise UsageError(f"{files[key_id]}: expected a key of 16, 24 or 32 bytes, raw or in hex") from None

    return Encryption(next(iter(files)), key) if files else None
