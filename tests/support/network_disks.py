"""File systems over a network, between machines of the tests; and what a queue needs of them, row by row.

``python -m tests.support.network_disks`` prints the table of ``docs/explanation/promises_limits.md``: each row is a
promise that an owner needs, tried from two machines. With ``--conformance`` the last row is the result of
``tests/durability/test_conformance.py`` on that file system.

A server is a program in user space, and its clients are FUSE mounts. So neither needs a module of the kernel.
"""

from __future__ import annotations

import argparse
import errno
import os
import pickle
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from persistentqueue import PersistentQueueError
from persistentqueue.system.disk import CREATE, CREATE_NEW, DIRECTORY, DISK, DSYNC, READ, join

from .machines import SOURCES, Machine, Network, kill, missing, network

MODULE = "tests.support.network_disks"
SHARED = "/tmp/shared"
"""The place of a mount on each machine."""
BRICK = "/tmp/brick"
"""The directory of the server that the clients mount."""
PORT = 7000
PATIENCE_SECONDS = 30
PING_SECONDS = 4
"""Time after which a server or a client of GlusterFS takes the other end for dead; its default is 42."""
_SFTP = "/usr/lib/openssh/sftp-server"
_SYNCS = "/tmp/syncs"
_BRICK_VOLUME = """
volume posix
  type storage/posix
  option directory {brick}
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume {brick}
  type performance/io-threads
  subvolumes locks
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.listen-port {port}
  option transport.tcp-user-timeout {ping}
  option transport.socket.keepalive-time 1
  option transport.socket.keepalive-interval 1
  option transport.socket.keepalive-count 3
  option auth-path {brick}
  option auth.addr.{brick}.allow *
  subvolumes {brick}
end-volume
"""
_CLIENT_VOLUME = """
volume remote
  type protocol/client
  option transport-type tcp
  option remote-host {host}
  option remote-port {port}
  option remote-subvolume {brick}
  option ping-timeout {ping}
end-volume
"""


class Agent:
    """A process on a machine that makes calls for the test: of the disk, and of the functions of this module."""

    def __init__(self, machine: Machine, module: str = MODULE, **more: Any) -> None:
        self._process = machine.start(
            *(sys.executable, "-m", module, "agent"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, **more
        )

    def __call__(self, name: str, *arguments: Any, timeout: float = PATIENCE_SECONDS) -> Any:
        """Make a call there; raise its ``OSError``, or ``TimeoutError`` if it has not ended in time."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(pickle.dumps((name, arguments)))
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            raise TimeoutError(f"{name}: no answer for {timeout} seconds")
        result = pickle.load(self._process.stdout)
        if isinstance(result, BaseException):
            raise result
        return result

    def kill(self) -> None:
        """Kill the process."""
        kill(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def serve_calls(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Make the calls that arrive on stdin, and answer on stdout: the program of an ``Agent``."""
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # other code may print
        while True:
            try:
                name, arguments = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            try:
                result = functions[name](*arguments)
            except Exception as error:
                result = error if isinstance(error, PersistentQueueError) else _plain(error)
            answers.write(pickle.dumps(result))
            answers.flush()


def _plain(error: Exception) -> Exception:
    """Return an error that any process can unpickle."""
    if isinstance(error, FileNotFoundError | FileExistsError):
        return type(error)(error.errno, error.strerror or str(error))
    if isinstance(error, OSError):
        return OSError(error.errno, str(error.strerror or error))
    return RuntimeError(str(error)[:4000])


def write_file(path: str, data: bytes) -> None:
    """Write a new file durably, with its name."""
    fd = DISK.open(path, CREATE, 0o600)
    DISK.pwritev(fd, [data], 0, 0)
    DISK.fdatasync(fd)
    DISK.close(fd)
    directory = DISK.open(os.path.dirname(path), READ | DIRECTORY, 0)
    DISK.fsync(directory)
    DISK.close(directory)


def read_file(path: str) -> bytes:
    """Return the content of a file."""
    fd = DISK.open(path, READ, 0)
    try:
        return DISK.pread(fd, 1 << 20, 0)
    finally:
        DISK.close(fd)


def exists(path: str) -> bool:
    """Return whether there is a file."""
    try:
        DISK.lstat(path)
    except FileNotFoundError:
        return False
    return True


def replace_often(path: str, count: int) -> None:
    """Replace a file by a new one, many times: each has its number, over and over."""
    for number in range(count):
        write_file(f"{path}.new", b"%06d" % number * 2000)
        DISK.rename(f"{path}.new", path)


def watch_content(path: str, seconds: float) -> list[str]:
    """Read a file over and over; return what no version of ``replace_often`` has."""
    found, last, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            data = read_file(path)
        except OSError as error:
            found.append(repr(error))
            continue
        if len(data) != 12000 or len({data[at : at + 6] for at in range(0, len(data), 6)}) != 1:
            found.append(f"{len(data)} bytes, {data[:6]!r}…")
        elif int(data[:6]) < last:
            found.append(f"version {int(data[:6])} after {last}")
        else:
            last = int(data[:6])
    return found


def make_names(directory: str, count: int) -> set[int]:
    """Make files that must not exist; return the numbers of those that this process has made."""
    made = set()
    for number in range(count):
        with suppress(FileExistsError):
            DISK.close(DISK.open(join(directory, str(number)), CREATE_NEW, 0o600))
            made.add(number)
    return made


CALLS = ("open", "close", "lock", "pread", "pwritev", "fdatasync", "unlink", "mkdir")
"""The calls of the disk that an ``Agent`` makes."""
FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(DISK, name) for name in CALLS}
FUNCTIONS |= {each.__name__: each for each in (write_file, read_file, exists, replace_often, watch_content, make_names)}


# --- servers and mounts ----------------------------------------------------------------------------------------------


class Mounted:
    """A file system that two machines, or more, share. ``kind`` is that of ``/proc/self/mountinfo``."""

    kind = ""
    needs: tuple[str, ...] = ()

    def __init__(self, network: Network, machines: int = 2, size_mib: int | None = None) -> None:
        self.server = network.add("server")
        self.brick = Path(f"/proc/{self.server.pid}/root{BRICK}")
        """The directory of the server that the clients mount, as the test sees it."""
        self._is_traced = shutil.which("strace") is not None and machines > 0
        (self.server.directory / "brick").mkdir()
        if size_mib is not None:
            self.server.run("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "brick", BRICK)
        self._process: subprocess.Popen[Any] | None = None
        self.start()
        self.machines = [self.mount(network.add(f"host{number}", self.binds())) for number in range(machines)]

    def binds(self) -> dict[str, str]:
        """Return the directories of this host that a new machine sees."""
        return {}

    @classmethod
    def missing(cls) -> str:
        """Return the programs that are not there; empty if all are."""
        return ", ".join(tool for tool in cls.needs if shutil.which(tool) is None)

    def start(self) -> None:
        """Start the server."""

    def stop(self) -> None:
        """Kill the server, with all its processes."""
        if self._process is not None:
            self.server.crash(keeps_running=True)
            self._process.wait()

    def mount(self, machine: Machine) -> Machine:
        """Mount the file system on a machine, and return the machine."""
        (machine.directory / "shared").mkdir(exist_ok=True)
        self.connect(machine)
        return machine

    def connect(self, machine: Machine) -> None:
        """Start the client of a machine."""

    def traced(self, *words: str) -> list[str]:
        """Return the command of a server whose syncs are noted."""
        return ["strace", "-f", "-o", _SYNCS, "-e", "trace=fsync,fdatasync", *words] if self._is_traced else [*words]

    def syncs(self) -> int:
        """Return the number of syncs that the server has made; -1 if they are not noted."""
        file = self.server.directory / "syncs"
        return len(re.findall(r"f(?:data)?sync\(\d+\) += 0", file.read_text())) if file.exists() else -1

    def listens(self) -> None:
        """Wait until the server listens."""
        probe = f"import socket; socket.create_connection(('127.0.0.1', {PORT}), 1).close()"
        end = time.monotonic() + PATIENCE_SECONDS
        while "Error" in (said := self.server.run(sys.executable, "-c", probe, check=False)):
            if time.monotonic() > end:
                raise TimeoutError(f"{self.kind}: the server does not listen: {said}")


class Local(Mounted):
    """One directory of this host, which both machines see: the control."""

    kind = "local"

    def binds(self) -> dict[str, str]:
        return {str(self.server.directory / "brick"): SHARED}


class Sshfs(Mounted):
    """Files by SFTP, without SSH around it: the server's program talks to the client over a plain connection."""

    kind = "fuse.sshfs"
    needs = ("sshfs", _SFTP)

    def start(self) -> None:
        command = self.traced(sys.executable, "-m", MODULE, "sftp")
        self._process = self.server.start(*command)
        self.listens()

    def connect(self, machine: Machine) -> None:
        options = f"directport={PORT},reconnect,dcache_timeout=1"
        machine.run("sshfs", "-o", options, f"{self.server.address}:{BRICK}", SHARED)


class Gluster(Mounted):
    """A GlusterFS volume of one brick, without its management."""

    kind = "fuse.glusterfs"
    needs = ("glusterfsd", "glusterfs")

    def start(self) -> None:
        volume = _BRICK_VOLUME.format(brick=BRICK, port=PORT, ping=PING_SECONDS)
        (self.server.directory / "brick.vol").write_text(volume)
        command = ["glusterfsd", "-N", "--volfile=/tmp/brick.vol", "--log-file=/tmp/brick.log"]
        self._process = self.server.start(*self.traced(*command))
        self.listens()

    def connect(self, machine: Machine) -> None:
        volume = _CLIENT_VOLUME.format(host=self.server.address, port=PORT, brick=BRICK, ping=PING_SECONDS)
        (machine.directory / "client.vol").write_text(volume)
        machine.run("glusterfs", "--volfile=/tmp/client.vol", "--log-file=/tmp/client.log", SHARED)


KINDS: tuple[type[Mounted], ...] = (Local, Gluster, Sshfs)


def serve_sftp() -> None:
    """Serve files by SFTP, one process for each connection: the program of the server of ``Sshfs``."""
    import socket

    with socket.create_server(("", PORT)) as listening:
        while True:
            client, _ = listening.accept()
            with client:
                if client.fileno() >= 0:
                    subprocess.Popen([_SFTP], stdin=client.fileno(), stdout=client.fileno())


# --- the rows --------------------------------------------------------------------------------------------------------


@contextmanager
def agents(mounted: Mounted) -> Iterator[tuple[Agent, Agent]]:
    """Yield a process on each of two machines."""
    made = [Agent(machine) for machine in mounted.machines[:2]]
    try:
        yield made[0], made[1]
    finally:
        for agent in made:
            agent.kill()


def gets_lock(agent: Agent, path: str, seconds: float = 0) -> int | None:
    """Return the descriptor of a lock file, if the process gets its lock within a time; else None."""
    end = time.monotonic() + seconds
    while True:
        try:
            fd: int = agent("open", path, CREATE, 0o600)
            if agent("lock", fd):
                return fd
            agent("close", fd)
        except OSError as error:
            if error.errno in {errno.ENOSYS, errno.EOPNOTSUPP}:
                raise
        if time.monotonic() >= end:
            return None
        time.sleep(0.1)


def lock_excludes(mounted: Mounted, path: str) -> bool:
    """Hold a lock on one machine: the other one does not get it."""
    with agents(mounted) as (one, other):
        assert gets_lock(one, path) is not None
        return gets_lock(other, path) is None


def lock_ends_with_its_process(mounted: Mounted, path: str) -> bool:
    """Kill the process that holds a lock: the other machine gets it."""
    with agents(mounted) as (one, other):
        assert gets_lock(one, path) is not None
        one.kill()
        return gets_lock(other, path, PATIENCE_SECONDS) is not None


def _is_sole_owner(one: Agent, other: Agent, fd: int, path: str, mend: Callable[[], None], seconds: float) -> bool:
    """Return whether the first process has lost its right to write, if the second one gets its lock."""
    taken = gets_lock(other, path, seconds)
    mend()
    if taken is None:
        return True
    with suppress(OSError):
        one("pwritev", fd, [b"I am the owner"], 0, DSYNC)
        return False
    return True


def lock_outlives_a_cut(mounted: Mounted, path: str) -> bool:
    """Cut the owner's machine off for some time: no other machine gets its lock, or its writes fail from then on."""
    with agents(mounted) as (one, other):
        fd = gets_lock(one, path, PATIENCE_SECONDS)  # after a cut, a client takes time to come back
        assert fd is not None
        machine = mounted.machines[0]
        machine.cut()
        try:
            return _is_sole_owner(one, other, fd, path, machine.mend, 6 * PING_SECONDS)
        finally:
            machine.mend()


def lock_outlives_its_server(mounted: Mounted, path: str) -> bool:
    """Start the server again while a lock is held: no other machine gets it, or the owner's writes fail afterwards."""
    with agents(mounted) as (one, other):
        fd = gets_lock(one, path, PATIENCE_SECONDS)  # after a cut, a client takes time to come back
        assert fd is not None
        mounted.stop()
        mounted.start()
        return _is_sole_owner(one, other, fd, path, lambda: None, 6 * PING_SECONDS)


def rename_is_one_step(mounted: Mounted, path: str) -> bool:
    """Replace a file over and over: the other machine always finds a whole version, never an older one."""
    with agents(mounted) as (one, other), ThreadPoolExecutor(1) as pool:
        one("replace_often", path, 1)
        watching = pool.submit(other, "watch_content", path, 3.0)
        one("replace_often", path, 100)
        return not watching.result()


def creation_is_exclusive(mounted: Mounted, path: str) -> bool:
    """Make files of equal names on two machines at once: each name is made by one of them."""
    with agents(mounted) as (one, other), ThreadPoolExecutor(1) as pool:
        one("mkdir", path, 0o700)
        making = pool.submit(other, "make_names", path, 300)
        made, too = one("make_names", path, 300), making.result()
        return not made & too and made | too == set(range(300))


def names_are_seen(mounted: Mounted, path: str) -> bool:
    """Make and delete a file: the other machine sees both at once, although it has looked before."""
    with agents(mounted) as (one, other):
        for _ in range(5):
            before = other("exists", path)
            one("write_file", path, b"new")
            found = other("exists", path)
            one("unlink", path)
            if before or not found or other("exists", path):
                return False
        return True


def bytes_are_seen(mounted: Mounted, path: str) -> bool:
    """Append to a file: the other machine reads the new bytes at once, by a descriptor that has read before."""
    with agents(mounted) as (one, other):
        one("write_file", path, b"0" * 100)
        writes, reads = one("open", path, CREATE, 0o600), other("open", path, READ, 0)
        for number in range(1, 6):
            assert len(other("pread", reads, 1000, 0)) >= 1
            one("pwritev", writes, [b"%d" % number * 100], number * 100, DSYNC)
            if other("pread", reads, 100, number * 100) != b"%d" % number * 100:
                return False
        return True


def sync_reaches_the_server(mounted: Mounted, path: str) -> bool:
    """Sync a file: the server has its bytes, and has synced them itself."""
    with agents(mounted) as (one, _):
        fd = one("open", path, CREATE, 0o600)
        one("pwritev", fd, [b"durable"], 0, 0)
        before = mounted.syncs()
        one("fdatasync", fd)
        there = mounted.brick / os.path.basename(path)
        return there.read_bytes() == b"durable" and (before < 0 or mounted.syncs() > before)


ROWS: dict[str, Callable[[Mounted, str], bool]] = {
    "a lock keeps other machines out": lock_excludes,
    "a lock ends with its process": lock_ends_with_its_process,
    "a lock lasts while its machine is cut off, or its owner cannot write afterwards": lock_outlives_a_cut,
    "a lock lasts while the server starts again, or its owner cannot write afterwards": lock_outlives_its_server,
    "a rename is one step for other machines": rename_is_one_step,
    "a new name is made by one machine only": creation_is_exclusive,
    "other machines see new and deleted names at once": names_are_seen,
    "other machines see appended bytes at once": bytes_are_seen,
    "a sync reaches the disk of the server": sync_reaches_the_server,
}


def conformance(mounted: Mounted) -> str:
    """Run the conformance test of the disk on the file system; return its last line."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={SHARED}/basetemp"]
    file = f"{SOURCES}/tests/durability/test_conformance.py"
    printed = mounted.machines[0].run(*command, f"--rootdir={SOURCES}", file, timeout=1800, check=False)
    lines = printed.strip().splitlines()
    print(*(line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))), sep="\n", file=sys.stderr)
    return lines[-1].partition(" in ")[0]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.network_disks", description=__doc__)
    parser.add_argument("--conformance", action="store_true", help="also run the conformance test on each file system")
    parser.add_argument("--only", help="the type of one file system")
    chosen = parser.parse_args()
    reason = missing()
    if reason:
        parser.exit(1, f"{reason}\n")
    columns: dict[str, list[str]] = {}
    for kind in KINDS:
        if kind.missing() or chosen.only not in {None, kind.kind}:
            print(f"{kind.kind}: left out, {kind.missing() or 'not asked for'}", file=sys.stderr)
            continue
        root = Path(tempfile.mkdtemp(prefix="network-disks-"))
        try:
            with network(root) as hosts:
                mounted = kind(hosts)
                found = columns[kind.kind] = []
                for number, (title, row) in enumerate(ROWS.items()):
                    try:
                        kept = row(mounted, f"{SHARED}/row{number}")
                        found.append("yes" if kept else "**no**")
                    except OSError as error:
                        found.append(f"**no**: {error.strerror or error}")
                    print(f"{kind.kind}: {title}: {found[-1]}", file=sys.stderr)
                if chosen.conformance:
                    found.append(conformance(mounted))
        finally:
            shutil.rmtree(root, ignore_errors=True)
    titles = [*ROWS, *["`tests/durability/test_conformance.py`" for _ in [None] if chosen.conformance]]
    print(f"| promise | {' | '.join(f'`{kind}`' for kind in columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    for title, *cells in zip(titles, *columns.values(), strict=True):
        print(f"| {title} | {' | '.join(cells)} |")


if __name__ == "__main__":
    {"agent": lambda: serve_calls(FUNCTIONS), "sftp": serve_sftp}.get("".join(sys.argv[1:2]), main)()
