"""Machines of a small network, in namespaces of Linux: each has an address, mounts and a ``/tmp`` of its own.

All machines share the software of this host, and nothing below ``/tmp``. Their processes are in one namespace of
processes, whose first process reads a pipe from the test. However the test ends, the pipe ends as well. Then the kernel
kills all processes, and removes their networks and mounts. Nothing is made outside of these namespaces, except
the directories of the machines, below the one of the network.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import persistentqueue

SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(persistentqueue.__file__)))
TMP = "/tmp"
START_SECONDS = 60
_TOOLS = ("unshare", "nsenter", "ip", "mount")
_CLOCK = """\
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, id, now);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += SECONDS;
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    int result = syscall(SYS_gettimeofday, now, zone);
    if (result == 0) now->tv_sec += SECONDS;
    return result;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now != NULL) *now = found.tv_sec;
    return found.tv_sec;
}
"""
"""A library that shifts the time of day for the programs that load it. Sleeps and time-outs are as always."""


def missing() -> str:
    """Return why this process cannot make machines; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root can make the namespaces of machines, on Linux"
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"the machines need {', '.join(lacking)}"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else f"no namespaces here: {tried.stderr.decode().strip()}"


class Machine:
    """A machine. Its ``/tmp`` is ``directory``, as the test sees it.

    ``binds`` has directories of this host, and their places below the ``/tmp`` of the machine.
    """

    def __init__(self, network: Network, name: str, number: int, binds: Mapping[str, str]) -> None:
        self.name = name
        self.address = f"10.77.0.{number}"
        self.directory = network.root / name
        self._network = network
        self._preload: tuple[str, ...] = ()
        self.directory.mkdir()
        kept = [path for path in (SOURCES, sys.prefix, sys.base_prefix) if path.startswith(f"{TMP}/")]
        lines = ["set -e", "ip link set lo up"]
        for path, place in (dict(zip(kept, kept, strict=True)) | dict(binds)).items():
            inner = f"{self.directory}{place.removeprefix(TMP)}"
            lines += [f"mkdir -p '{inner}'", f"mount --bind '{path}' '{inner}'"]
        lines += [f"mount --rbind '{self.directory}' {TMP}", f"cd {TMP}"]
        if not str(network.root).startswith(f"{TMP}/"):
            lines.append(f"mount -t tmpfs hidden '{network.root}'")
        command = [*network.entry("mount", "pid"), "unshare", "--net", "--mount", "--", "sh", "-c"]
        self._process = started([*command, "; ".join([*lines, "echo up", "exec cat"])])
        self.pid = child_of(self._process)
        network.link(self, number)

    def command(self, *words: str) -> list[str]:
        """Return the command that runs a program on this machine."""
        entry = [f"--{kind}" for kind in ("net", "mount", "pid")]
        return ["nsenter", f"--target={self.pid}", *entry, f"--wd={TMP}", "--", *self._preload, *words]

    def shift_clock(self, seconds: int) -> None:
        """Let all programs that are started from now on see another time of day. It needs ``cc``.

        Only the time that they ask for is shifted. The times of files come from the kernel, which all machines share.
        """
        library = self.directory / "clock.so"
        command = ["cc", "-shared", "-fPIC", "-O1", f"-DSECONDS=({seconds})", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=_CLOCK, text=True, check=True, timeout=START_SECONDS)
        self._preload = ("env", f"LD_PRELOAD={TMP}/{library.name}")

    def start(self, *words: str, environment: Mapping[str, str] | None = None, **more: Any) -> subprocess.Popen[Any]:
        """Start a program on this machine; end it by ``kill``."""
        variables = os.environ | {"PYTHONPATH": SOURCES, "TMPDIR": TMP} | dict(environment or {})
        program = subprocess.Popen(self.command(*words), env=variables, **more)
        self._network.started.append(program)
        return program

    def run(self, *words: str, timeout: float = START_SECONDS, check: bool = True, **more: Any) -> str:
        """Run a program on this machine, and return what it printed. Raises ``RuntimeError`` if it failed."""
        with self.start(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more) as process:
            try:
                printed = process.communicate(timeout=timeout)[0]
            except BaseException:
                kill(process)
                raise
        if check and process.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(words)}: status {process.returncode}: {printed}")
        return str(printed)

    def crash(self, keeps_running: bool = False) -> None:
        """Kill all processes of the machine, also those of its mounts; its network and mounts go with the last one.

        With ``keeps_running``, the first process stays, and so does the machine.
        """
        own = os.readlink(f"/proc/{self.pid}/ns/net")
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if os.readlink(f"/proc/{entry}/ns/net") == own and not (keeps_running and int(entry) == self.pid):
                    os.kill(int(entry), signal.SIGKILL)

    def cut(self) -> None:
        """Cut the machine off from the network: packets are lost, and connections stay open at both ends."""
        self._network.run("ip", "link", "set", f"to-{self.name}", "down")

    def mend(self) -> None:
        """Connect the machine with the network again."""
        self._network.run("ip", "link", "set", f"to-{self.name}", "up")


class Network:
    """A network of machines, whose directories are below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machines: list[Machine] = []
        self.started: list[subprocess.Popen[Any]] = []
        """The programs on the machines."""
        kinds = ["--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
        self._process = started(["unshare", *kinds, "--", "sh", "-c", "echo up; exec cat"])
        self._pid = child_of(self._process)
        self.run("ip", "link", "add", "name", "middle", "type", "bridge")
        self.run("ip", "link", "set", "middle", "up")

    def entry(self, *kinds: str) -> list[str]:
        """Return the beginning of a command that runs in namespaces of the network."""
        return ["nsenter", f"--target={self._pid}", *(f"--{kind}" for kind in kinds), "--"]

    def run(self, *words: str) -> None:
        """Run a program of the system in the middle of the network."""
        subprocess.run([*self.entry("net"), *words], check=True, capture_output=True, timeout=START_SECONDS)

    def link(self, machine: Machine, number: int) -> None:
        """Connect a machine with the network."""
        name = f"to-{machine.name}"
        self.run(*f"ip link add {name} type veth peer name eth0 netns {machine.pid}".split())
        self.run(*f"ip link set {name} master middle up".split())
        machine.run(*f"ip address add 10.77.0.{number}/24 dev eth0".split())
        machine.run(*["ip", "link", "set", "eth0", "up"])

    def add(self, name: str, binds: Mapping[str, str] | None = None) -> Machine:
        """Add a machine. Its name has at most 12 letters."""
        machine = Machine(self, name, len(self.machines) + 1, binds or {})
        self.machines.append(machine)
        return machine

    def close(self) -> None:
        """End all processes of all machines, and wait for their end."""
        for process in (self._process, *(machine._process for machine in self.machines), *self.started):
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait(START_SECONDS)


@contextmanager
def network(root: Path) -> Iterator[Network]:
    """Yield a network, which ends with the block."""
    made = Network(root)
    try:
        yield made
    finally:
        made.close()


def started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command that prints a line when it is ready, and ends when its input does."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    if process.stdout.readline() != b"up\n":
        process.kill()
        process.wait()
        raise RuntimeError(f"did not start: {' '.join(command)}")
    return process


def child_of(process: subprocess.Popen[Any]) -> int:
    """Return the one child of a process: the program that ``nsenter`` or ``unshare`` has started in a namespace."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.005)
    raise TimeoutError(f"process {process.pid} has no child")


def kill(process: subprocess.Popen[Any], number: int = signal.SIGKILL) -> None:
    """Send a signal to a program on a machine, and wait for its end."""
    if process.poll() is None:
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(child_of(process), number)
    process.wait(START_SECONDS)
