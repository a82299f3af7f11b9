"""The hook: an Airflow connection names a directory of queues, and the hook opens one of them.

The connection has the type ``persistentqueue``. Its *extra* is a JSON object with these fields:

- ``path``: The directory of queues, or a queue's own directory, which all workers see. Required.
- ``name``: The name of the queue in ``path``. Default: the hook's, or else ``path`` is the queue's own directory.
- ``options``: The settings of the queue, as in ``Options``. Default: none.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

from airflow.sdk import BaseHook

from persistentqueue import Options, PersistentQueueError, Producer, View, connect
from persistentqueue.codecs import BYTES
from persistentqueue.drawing.text import many
from persistentqueue.options import chosen_options
from persistentqueue.workers import SharedQueue

DEFAULT_CONNECTION = "persistentqueue_default"
_FIELDS = ("path", "name", "options")


class Place(NamedTuple):
    """The place of a queue, and its settings."""

    path: str
    """The directory of queues, or the queue's own directory."""
    name: str | None
    """The name of the queue in ``path``; None if ``path`` is its own directory."""
    options: Options
    """The settings of the queue, for the process that owns it."""


def place_of(connection: Any, name: str | None = None) -> Place:
    """Return the place that an Airflow connection names.

    Args:
        connection: The connection.
        name: The name of the queue; with None, the default, that of the connection.

    Raises:
        ValueError: The connection has no path, or a field that is not known.
        TypeError: An option of the connection is not known, or has the wrong type.
    """
    extra = connection.extra_dejson
    unknown = sorted(extra.keys() - set(_FIELDS))
    if unknown or not extra.get("path"):
        what = f"has the unknown field {unknown[0]!r}" if unknown else "has no field 'path'"
        raise ValueError(
            f"the extra of the connection {connection.conn_id!r} {what}: it needs a path, such as "
            '{"path": "/data/queues"}, and may have a name and options'
        )
    return Place(extra["path"], name or extra.get("name"), chosen_options(None, extra.get("options") or {}))


class QueueHook(BaseHook):  # type: ignore[misc]
    """Opens the queue that an Airflow connection names, in a task::

        with QueueHook(name="orders").connect() as queue, queue.transaction() as session:
            order = session.dequeue()

    Args:
        conn_id: The id of the connection. It is read when it is first needed. Default: ``persistentqueue_default``.
        name: The name of the queue. With None, the default, that of the connection.
        path: The directory of queues, or a queue's own directory. With None, the default, that of the connection. With
            a path, no connection is read.
    """

    conn_name_attr = "conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "persistentqueue"
    hook_name = "persistentqueue"

    def __init__(
        self, conn_id: str = DEFAULT_CONNECTION, name: str | None = None, *, path: str | None = None, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self.conn_id = conn_id
        self._name = name
        self._path = path

    @cached_property
    def place(self) -> Place:
        """Place of the queue. Raises ``ValueError`` and ``TypeError`` as ``place_of``, and what Airflow raises."""
        if self._path is not None:
            return Place(self._path, self._name, Options())
        return place_of(self.get_connection(self.conn_id), self._name)

    def connect(self, codec: Any = BYTES) -> SharedQueue[Any]:
        """Return the queue, for any number of tasks at once: the first one owns it, and serves the others.

        All tasks that use a queue must run on one machine. If the task that owns the queue ends, another one takes
        over. A task that is killed gives its items back, and what it has not flushed is dropped.

        Args:
            codec: Converts items to bytes and back. Default ``codecs.BYTES``.

        Raises:
            NotServedError: Another program owns the queue, and does not serve it.

        It also raises what ``persistentqueue.connect`` raises.
        """
        path, name, options = self.place
        return connect(path, name, codec=codec, options=options)

    def get_conn(self) -> SharedQueue[Any]:
        """Return the queue, as ``connect`` does: the method of all hooks."""
        return self.connect()

    def producer(self, codec: Any = BYTES) -> Producer[Any]:
        """Return a producer, which enqueues beside any owner, whether it serves or not; see ``Producer``.

        Args:
            codec: Converts items to bytes. Default ``codecs.BYTES``.

        It raises what ``Producer`` raises.
        """
        path, name, options = self.place
        return Producer(
            path,
            name,
            codec=codec,
            compression=options.compression,
            trust=options.trust,
            network_disk=options.network_disk,
        )

    def view(self) -> View:
        """Return a view of the queue, which looks and consumes nothing; see ``View``."""
        return View(self.place.path, self.place.name)

    def test_connection(self) -> tuple[bool, str]:
        """Look at the queue, for the button *Test* of Airflow.

        Returns:
            True and the number of items; or False and the error.
        """
        try:
            found = self.view().look()
        except (PersistentQueueError, OSError, ValueError, TypeError) as error:
            return False, str(error)
        return True, f"{found.directory}: {many(found.depth, 'item waits', 'items wait')}"

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return the fields of Airflow's form: of the usual ones, only the extra is used."""
        return {
            "hidden_fields": ["host", "schema", "login", "password", "port"],
            "relabeling": {},
            "placeholders": {"extra": '{"path": "/data/queues", "name": "orders"}'},
        }
