"""The operator: a task that enqueues items, durably and, however often it is tried, once in each run of its DAG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from airflow.sdk import BaseOperator

from persistentqueue.codecs import JSON
from persistentqueue.core.items import need_several
from persistentqueue.drawing.text import many
from persistentqueue.storage.layout import queue_directory

from .hook import DEFAULT_CONNECTION, QueueHook

_MARKER_FIELDS = 2


class EnqueueOperator(BaseOperator):  # type: ignore[misc]
    """Enqueues items as one transaction, which is durable when the task ends, and returns their number.

    The queue may be owned by another program, by a task, or by none: a ``Producer`` publishes the items, and the owner,
    now or later, adopts them. The queue is made if it does not exist.

    Airflow tries a task again if it does not know how the last attempt has ended. The marker of the transaction makes
    that safe: the second attempt enqueues nothing, and returns 0. A run that is cleared enqueues nothing, either.

    Args:
        items: The items, in their order; a template, or the output of another task. Bytes are enqueued as they are, and
            texts in UTF-8. Each other item is written as JSON.
        name: The name of the queue, a template. With None, the default, that of the connection.
        path: The directory of queues, or a queue's own directory, a template. With None, the default, that of the
            connection.
        conn_id: The id of the connection. Default: ``persistentqueue_default``.
        marker: ``"run"``, the default: a marker for this task in this run of its DAG. The queue keeps the name of each
            such marker for ever, about as many bytes as the ids of DAG, task and run have. For a DAG of very many runs,
            pass a pair ``(name, version)`` whose version grows with each run: a template, or the output of another
            task. A version may be a number in text. None: no marker, so that an attempt that is repeated may enqueue
            the items twice.
        **arguments: The arguments of all operators, such as ``task_id``.
    """

    template_fields: Sequence[str] = ("items", "name", "path", "marker")

    def __init__(
        self,
        *,
        items: Iterable[Any],
        name: str | None = None,
        path: str | None = None,
        conn_id: str = DEFAULT_CONNECTION,
        marker: tuple[str, int | str] | Literal["run"] | None = "run",
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.items = items
        self.name = name
        self.path = path
        self.conn_id = conn_id
        self.marker = marker

    def execute(self, context: Any) -> int:
        """Enqueue the items, and return their number; 0 if an earlier attempt has enqueued them.

        Raises what ``Producer`` and ``Producer.flush`` raise, and ``TypeError`` for an item that is no JSON. It also
        raises ``TypeError`` if ``items`` is a text, as a template becomes by default, or bytes, or a mapping. It raises
        ``TypeError`` or ``ValueError`` for a marker that is no pair of a name and a version, and ``ValueError`` for NaN
        in an item. Nothing is enqueued then.
        """
        need_several(self.items, "EnqueueOperator", "a list")
        encoded = [_encode(item) for item in self.items]
        marker = None if self.marker is None else _marker(self.marker, context)
        hook = QueueHook(self.conn_id, self.name, path=self.path)
        with hook.producer() as producer:
            producer.enqueue_many(encoded)
            is_new = producer.flush(marker=marker)
        directory = queue_directory(hook.place.path, hook.place.name)
        self.log.info("%s: %s %s", directory, many(len(encoded), "item"), "enqueued" if is_new else "known")
        return len(encoded) if is_new else 0


def _marker(marker: Any, context: Any) -> tuple[str, int]:
    """Return the marker of a run, from what a template or another task has made of the argument."""
    if marker == "run":
        task = context["ti"]
        return f"airflow {task.dag_id} {task.task_id} {task.map_index} {task.run_id}", 1
    name, version = marker if isinstance(marker, tuple | list) and len(marker) == _MARKER_FIELDS else (None, None)
    if isinstance(version, str) and version.strip().isdecimal():
        version = int(version)
    if not isinstance(name, str) or type(version) is not int:
        raise TypeError(f'marker must be a pair of a name and a version, "run" or None, not {marker!r}')
    return name, version


def _encode(item: Any) -> bytes:
    if isinstance(item, bytes):
        return item
    return item.encode() if isinstance(item, str) else JSON.encode(item)
