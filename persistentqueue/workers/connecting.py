"""The function ``connect``: a queue that any number of processes use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from ..codecs import BYTES, Codec, T
from ..options import OptionArguments, Options, Unnamed, chosen_options
from ..system.disk import StrPath
from .shared_queue import SharedQueue

if TYPE_CHECKING:
    from typing_extensions import Unpack

WAIT_SECONDS: Final = 10.0
"""Default of ``lock_timeout``, in seconds."""


def connect(
    path: StrPath,
    name: str | Unnamed | None = Unnamed.NO_NAME,
    *,
    codec: Codec[T] = BYTES,  # type: ignore[assignment] # where it is left out, T is bytes
    serve: Literal["auto", "never"] = "auto",
    hold_seconds: float | None = None,
    prefetch: bool = False,
    options: Options | None = None,
    **arguments: Unpack[OptionArguments],
) -> SharedQueue[T]:
    """Return a queue that any number of processes can use, to enqueue and to dequeue::

        with connect("queues", "orders") as queue:
            with queue.session() as session:
                item = session.dequeue(timeout=None)
                session.enqueue(b"result")
                session.flush()  # durable; shares its sync with all other processes

    One process *owns* the queue, and serves the others through a socket in the queue's directory. The first process
    that connects becomes the owner. If the owner ends, however it ends, another process takes over. All processes must
    be on one machine. Processes that connect to the same queues of a directory get one owner for all of them, which
    ``transaction`` over several queues needs.

    Args:
        path: Directory of the queue, or, if ``name`` is given, the directory above it.
        name: Name of the queue; see ``PersistentQueue``.
        codec: Converts items to bytes and back, in this process. Default ``codecs.BYTES``. With ``codecs.Enclosed``,
            keys stay in this process: the owner gets encrypted items.
        serve: ``"auto"`` (default) to own the queue if no process does. ``"never"`` to wait for an owner instead.
        hold_seconds: Seconds for which a session of this process may hold items without a flush, more than 0. Then they
            go back, and its late flush raises ``HoldLostError``. Default None: as long as the process lives. It has no
            effect in the process that owns the queue.
        prefetch: True if ``flush`` also brings the next items, as many as the session dequeued behind its last flush of
            the same kind: one with dequeues, or one without. The next dequeue then needs no answer of the owner. The
            owner holds these items for the session until that dequeue or the next flush. Set it only if the work on an
            item is short. It has no effect in the owner, nor for a queue that counts attempts. Default False.
        options: The settings of the queue as one value; see ``Options``. Default None.
        **arguments: The other keyword arguments of ``PersistentQueue``. They count when this process owns the queue, so
            pass the same ones in all processes: an ``OtherOptionsWarning`` tells which ones have no effect, since the
            owner has others. ``lock_timeout`` is 10.0 by default here: the seconds that a call waits
            for an owner that serves, or for the lock. ``Options(lock_timeout=0.0)`` counts as the default; the argument
            ``lock_timeout=0.0`` does not wait. ``compression`` and ``encryption`` are for the files that the owner
            writes: items travel to it in the clear.

    Returns:
        The queue. Use it in a ``with`` block, or call ``close``.

    Raises:
        NotServedError: If a process owns the queue without ``serve=True`` for as long as ``lock_timeout``.
        RefusedError: If the owner refuses this process, or speaks another version.
        TypeError, ValueError: If a setting has the wrong type or range, or ``prefetch`` comes with ``hold_seconds``.

    The errors of ``PersistentQueue`` can occur as well. Everything that was committed before is durable on return. For
    any thread.
    """
    chosen = connect_options(options, arguments)
    queue: SharedQueue[T] = SharedQueue(path, name, codec, chosen, serve, hold_seconds, prefetch)
    queue.open()
    return queue


def connect_options(options: Options | None, arguments: Mapping[str, Any]) -> Options:
    """Return the options of a connection: as ``chosen_options``, but ``lock_timeout`` has the default 10.0."""
    chosen = chosen_options(options, arguments)
    if "lock_timeout" in arguments or chosen.lock_timeout:
        return chosen
    return replace(chosen, lock_timeout=WAIT_SECONDS)
