"""The sockets between the owner of a queue and its workers: their names, the rights of peers, and non-blocking sends.

A socket's name in the file system has at most 107 bytes on Linux, and a queue's path may be longer. So the directory is
opened, and its socket is reached through ``/proc/self/fd``.

The owner binds a socket under another name, and renames it. So a worker finds the old socket, which refuses it, or the
new one, which accepts it.

A peer is believed if it runs as the same user, as root, or in a group that may write to the directory. The kernel says
which user and groups a peer has. Of a process in more than 256 groups, only its primary one counts.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial
from stat import S_IMODE, S_ISSOCK, S_IWGRP
from typing import Final, TypeAlias

from .path_errors import faults, suppress

Socket: TypeAlias = socket.socket
NEW_SUFFIX: Final = ".new"
"""Suffix of a socket that has not its name yet."""
NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)
"""Flag of each send; 0 if the system has none, as an old macOS. Without it, a process in which SIGPIPE has its default
effect ends with its peer."""
BACKLOG: Final = 512
"""Connections that may wait until the owner accepts them."""
_NAME_BYTES_MAX = 100
_CREDENTIALS = struct.Struct("3i")
_GROUPS_BYTES = 1024
"""The largest buffer that ``getsockopt`` of Python takes."""
_SO_PEERGROUPS = 59
_TIME_VALUE = struct.Struct("ll")
"""A ``struct timeval`` of the system: seconds and microseconds."""
_MICROSECONDS = 1_000_000
_ROOT = 0
_NO_SOCKETS = frozenset({errno.EPERM, errno.EIO, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of file systems that make no sockets."""
_ADVICE = (
    "the file system may have no sockets: put the queue on another one, or use it in one process, without connect() "
    "and serve=True; other processes can enqueue with a Producer"
)
_MAIN_PROCESS = "MainProcess"


def listen(directory: str, name: str) -> Socket:
    """Return the listening socket of a queue's owner, in place of the one of an earlier owner. Raises ``OSError``."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        new = f"{name}{NEW_SUFFIX}"
        path = os.path.join(directory, new)
        mode = 0o660 if os.stat(directory).st_mode & S_IWGRP else 0o600
        with suppress(FileNotFoundError):
            os.unlink(path)
        with suppress(OSError):  # on Linux, the file is made with these rights, less those that the umask takes
            os.fchmod(server.fileno(), mode)
        _reach(directory, new, partial(_bind, server, path))
        if S_IMODE(os.lstat(path).st_mode) != mode:
            _permit(path, mode)
        server.listen(BACKLOG)
        server.setblocking(False)
        os.rename(path, os.path.join(directory, name))
    except BaseException:
        server.close()
        raise
    return server


def _bind(server: Socket, path: str, short: str) -> None:
    """Bind the socket to its path, by a name that is short enough. Raises ``OSError`` with the path."""
    try:
        server.bind(short)
    except faults(OSError) as error:
        advice = f": {_ADVICE}" if error.errno in _NO_SOCKETS else ""
        raise OSError(error.errno, f"{error.strerror}{advice}", path) from error


def _permit(path: str, mode: int) -> None:
    """Give a socket these rights. Raises ``OSError`` if its name leads to another file by now, which keeps its own."""
    if os.chmod in os.supports_follow_symlinks:  # not on Linux
        os.chmod(path, mode, follow_symlinks=False)
        return
    fd = os.open(path, getattr(os, "O_PATH", 0) | os.O_NOFOLLOW)
    try:
        if not S_ISSOCK(os.fstat(fd).st_mode):
            raise OSError(errno.ENOTSOCK, "another process has put a file in the place of the new socket", path)
        os.chmod(f"/proc/self/fd/{fd}", mode)
    except FileNotFoundError:
        advice = "the rights of the socket cannot be set without /proc: mount it, or set the umask to 007"
        raise OSError(errno.ENOSYS, advice, path) from None
    finally:
        os.close(fd)


def spare() -> Socket:
    """Return a socket that only keeps a descriptor, for a moment in which no other is free. Raises ``OSError``."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def connect(directory: str, name: str, timeout_seconds: float | None = None) -> Socket | None:
    """Return a connection to the owner; None if no owner serves at this moment. Raises ``OSError``.

    ``timeout_seconds`` bounds each wait for the owner, also those of the connection that is returned: they end with
    ``EAGAIN``. Python's own time limit raises a ``TimeoutError`` without a number, as signal handlers do.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if timeout_seconds is not None:
            microseconds = max(1, int(timeout_seconds * _MICROSECONDS))
            limit = _TIME_VALUE.pack(*divmod(microseconds, _MICROSECONDS))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        _reach(directory, name, client.connect)
    except (FileNotFoundError, ConnectionError, NotADirectoryError):
        client.close()
        return None
    except BaseException:
        client.close()
        raise
    return client


def _reach(directory: str, name: str, call: Callable[[str], None]) -> None:
    """Call ``bind`` or ``connect`` with a path that is short enough."""
    path = os.path.join(directory, name)
    if len(os.fsencode(path)) <= _NAME_BYTES_MAX:
        call(path)
        return
    fd = os.open(directory, os.O_RDONLY | getattr(os, "O_PATH", 0) | os.O_DIRECTORY)
    try:
        short = f"/proc/self/fd/{fd}"
        if not os.path.isdir(short):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        call(f"{short}/{name}")
    finally:
        os.close(fd)


def is_believed(peer: Socket, directory: os.stat_result) -> bool:
    """Return whether the process at the other end may use a queue in a directory of this status. For both sides."""
    if not hasattr(socket, "SO_PEERCRED"):  # then the mode of the socket decides
        return True
    _, user, group = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user in {os.geteuid(), directory.st_uid, _ROOT}:
        return True
    return bool(directory.st_mode & S_IWGRP) and directory.st_gid in {group, *_groups_of(peer)}


def _groups_of(peer: Socket) -> tuple[int, ...]:
    with suppress(OSError):  # the peer has more groups, or the system does not tell
        data = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
        return struct.unpack(f"{len(data) // 4}i", data)
    return ()


def process_name() -> str:
    """Return the name of this process for people: the one that ``multiprocessing`` gave it, or that of its program."""
    multiprocessing = sys.modules.get("multiprocessing.process")  # not imported for this alone
    name = str(multiprocessing.current_process().name) if multiprocessing is not None else _MAIN_PROCESS
    if name != _MAIN_PROCESS:
        return name
    path = str((getattr(sys, "argv", None) or [""])[0])
    directory, program = os.path.split(path)
    return os.path.basename(directory) if program == "__main__.py" else program


def cut(peer: Socket) -> None:
    """End a connection, also for a thread that waits for the other end. For any thread."""
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
