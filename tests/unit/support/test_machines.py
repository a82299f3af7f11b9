"""Machines of the tests: they share a network, and nothing is left of them, however their test ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machines import SOURCES, missing, network
from tests.support.queues import wait_for

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "root can make machines here")

PROGRAM = """
import sys, threading
from pathlib import Path
from tests.support.machines import network
with network(Path(sys.argv[1])) as made:
    machine = made.add("one")
    machine.start("sleep", "600")
    print(machine.pid, flush=True)
    threading.Event().wait()
"""


def namespaces(kind: str) -> set[str]:
    """Return the namespaces of this kind in which processes live."""
    found = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.add(os.readlink(f"/proc/{entry}/ns/{kind}"))
        except OSError:
            continue
    return found


def test_machines_share_a_network_and_no_directory(tmp_path: Path) -> None:
    """A machine reaches another one unless it is cut off, and it sees no file of the test."""
    (tmp_path / "secret").touch()
    with network(tmp_path) as made:
        one, other = made.add("one"), made.add("other")
        (one.directory / "mine").touch()
        assert "mine" in one.run("ls", "/tmp") and "mine" not in other.run("ls", "/tmp")
        assert "No such file" in one.run("ls", f"{tmp_path}/secret", check=False)
        ping = f"import socket; socket.create_connection(({one.address!r}, 7000), 1).close(); print('reached')"
        listening = "import socket; s = socket.create_server(('', 7000)); print('up', flush=True); input()"
        server = one.start(sys.executable, "-c", listening, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with server:
            assert server.stdout is not None and server.stdout.readline() == "up\n"
            assert other.run(sys.executable, "-c", ping) == "reached\n"
            other.cut()
            assert "Error" in other.run(sys.executable, "-c", ping, check=False)
            other.mend()
            wait_for(lambda: other.run(sys.executable, "-c", ping, check=False) == "reached\n")
            server.communicate("\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_machines(tmp_path: Path, number: signal.Signals) -> None:
    """If the program that made machines is killed, their processes, networks and mounts end as well."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, cwd=SOURCES, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        machine = int(program.stdout.readline())
        made = {kind: os.readlink(f"/proc/{machine}/ns/{kind}") for kind in ("net", "pid", "mnt")}
        assert all(made[kind] in namespaces(kind) for kind in made)
        program.send_signal(number)
        program.wait()
    wait_for(lambda: not any(made[kind] in namespaces(kind) for kind in made))
    assert not os.path.exists(f"/proc/{machine}")
