"""A small stand-in for ``persistentqueue.connect``, with which the measurements are tested before there is one.

The first process to call ``connect`` owns the queue, and serves each connection in a thread with a session. When the
owner dies, the next process that calls something becomes the owner. ``python -m perf.tests.stand_in PATH`` only serves.
It has no protocol of its own: it sends pickled calls.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from typing import Any

from persistentqueue import ClosedError, PersistentQueue, QueueLockedError

_RETRY_SECONDS = 0.001
_LOST = (EOFError, ConnectionError, FileNotFoundError)


class connect:  # noqa: N801  (its users call it like the function)
    """Own the queue, or connect to its owner."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = os.path.join(path, "socket")
        self._queue: PersistentQueue | None = None
        self.own()

    def __enter__(self) -> connect:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()

    def own(self) -> PersistentQueue | None:
        """Return the queue if this process owns it, or can."""
        if self._queue is None:
            with suppress(QueueLockedError):
                self._queue = PersistentQueue(self._path, lock_timeout=0)
                with suppress(FileNotFoundError):
                    os.unlink(self._socket)
                threading.Thread(target=self._serve, args=(connection.Listener(self._socket),), daemon=True).start()
        return self._queue

    def _serve(self, listener: connection.Listener) -> None:
        while True:
            threading.Thread(target=self._answer, args=(listener.accept(),), daemon=True).start()

    def _answer(self, pipe: connection.Connection) -> None:
        assert self._queue is not None
        with suppress(EOFError, OSError, ClosedError), pipe, self._queue.session() as session:
            while True:
                name, arguments, named = pipe.recv()
                pipe.send(getattr(session, name)(*arguments, **named))

    def session(self) -> _Session:
        return _Session(self, self._socket)


class _Session:
    def __init__(self, queue: connect, address: str) -> None:
        self._queue, self._address = queue, address
        self._pipe: connection.Connection | None = None
        self._local: Any = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **named: self._call(name, arguments, named)

    def _call(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        while True:
            owned = self._queue.own()
            if owned is not None:
                self._local = self._local or owned.session()
                result = getattr(self._local, name)(*arguments, **named)
                return None if name == "flush" else result
            try:
                self._pipe = self._pipe or connection.Client(self._address)
                self._pipe.send((name, arguments, named))
                return self._pipe.recv()
            except _LOST:
                self._pipe = None
                time.sleep(_RETRY_SECONDS)

    def close(self) -> None:
        if self._local is not None:
            self._local.close()
        if self._pipe is not None:
            self._pipe.close()


if __name__ == "__main__":
    with connect(sys.argv[1]):
        signal.sigwait([signal.SIGTERM])
