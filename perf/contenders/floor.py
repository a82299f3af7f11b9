"""The floor for processes that share a queue: a server in Python that makes what it receives durable, and nothing more.

``python -m perf.contenders.floor DIRECTORY`` runs it. Each process sends what it puts, and waits for the answer. The
server takes all messages that have come, writes them with one durable call, and answers. A take is one message, and one
durable write as well. There is no order between processes, no checksum and no hold. Nothing is found after a restart.
It is a mark to compare with, and no proof of a limit: a server that does even less is faster.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from mmap import mmap
from pathlib import Path

_HEAD = struct.Struct("<II")
"""Bytes that follow, and a number of items: those that follow, or those that a take asks for."""
_PAGE_BYTES = 4096
_FILE_BYTES = 16 * 1024 * 1024
_RECEIVE_BYTES = 256 * 1024
_START_SECONDS = 10.0
_SOCKET = "socket"
_NOTHING = _HEAD.pack(0, 0)


class _Items:
    """The queued items, in the parts in which they came. All items of a part are equally long."""

    def __init__(self) -> None:
        self._parts: deque[tuple[int, bytes]] = deque()

    def put(self, count: int, data: bytes) -> None:
        self._parts.append((count, data))

    def take(self, most: int) -> tuple[int, bytes]:
        """Remove the first items of the first part."""
        if not self._parts:
            return 0, b""
        count, data = self._parts.popleft()
        if count > most:
            cut = most * (len(data) // count)
            self._parts.appendleft((count - most, data[cut:]))
            return most, data[:cut]
        return count, data


def _serve(directory: Path) -> None:
    """Serve until the process is killed."""
    memory = mmap(-1, _FILE_BYTES)
    fd = os.open(directory / "data", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    os.pwritev(fd, [memory], 0)
    os.fsync(fd)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / _SOCKET))
    listener.listen()
    poll, items, peers, rests, at = select.epoll(), _Items(), {}, {}, 0
    poll.register(listener, select.EPOLLIN)
    while True:
        answers = []
        for ready, _ in poll.poll():
            if ready == listener.fileno():
                peer, _ = listener.accept()
                peers[peer.fileno()], rests[peer.fileno()] = peer, b""
                poll.register(peer, select.EPOLLIN)
                continue
            data = rests[ready] + peers[ready].recv(_RECEIVE_BYTES)
            if len(data) == len(rests[ready]):
                poll.unregister(ready)
                peers.pop(ready).close()
                continue
            length_bytes, count = _HEAD.unpack_from(data)
            if len(data) < _HEAD.size + length_bytes:
                rests[ready] = data
                continue
            rests[ready] = b""
            if length_bytes:
                items.put(count, data[_HEAD.size :])
                answer = _NOTHING
            else:
                found, payload = items.take(count)
                answer = _HEAD.pack(len(payload), found) + payload
            answers.append((peers[ready], answer, data))
        if answers:
            group = b"".join(data for _, _, data in answers)
            size_bytes = min(len(group) + -len(group) % _PAGE_BYTES, _FILE_BYTES)
            at = at if at + size_bytes <= _FILE_BYTES else 0
            memory[: len(group)] = group
            os.pwritev(fd, [memoryview(memory)[:size_bytes]], at, os.RWF_DSYNC)
            at += size_bytes
        for peer, answer, _ in answers:
            peer.sendall(answer)


@contextmanager
def floor_server(directory: Path) -> Iterator[tuple[str, int]]:
    """Run the server in a process of its own, and yield its address and its process id when it serves."""
    directory.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen([sys.executable, "-m", "perf.contenders.floor", str(directory)])
    try:
        deadline, address = time.monotonic() + _START_SECONDS, directory / _SOCKET
        while not address.exists():
            if time.monotonic() > deadline or process.poll() is not None:
                raise TimeoutError(f"the floor does not serve {directory} after {_START_SECONDS:g} s")
            time.sleep(0.01)
        yield str(address), process.pid
    finally:
        process.kill()
        process.wait()


class Client:
    """The calls of one process."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def put(self, items: Sequence[bytes]) -> None:
        """Put equally long items, which are not empty; durable on return."""
        data = b"".join(items)
        self._socket.sendall(_HEAD.pack(len(data), len(items)) + data)
        self._answer()

    def take(self, count: int) -> Sequence[bytes]:
        """Take up to so many items; durable on return."""
        self._socket.sendall(_HEAD.pack(0, count))
        found, data = self._answer()
        size = len(data) // found if found else 1
        return [data[at : at + size] for at in range(0, len(data), size)]

    def _answer(self) -> tuple[int, bytes]:
        data = self._socket.recv(_RECEIVE_BYTES)
        length_bytes, found = _HEAD.unpack_from(data)
        while len(data) < _HEAD.size + length_bytes:
            data += self._socket.recv(_RECEIVE_BYTES)
        return found, data[_HEAD.size :]


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
