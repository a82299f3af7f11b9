"""Real file systems over a network: their types, the refusal of owners, and its reason, one row for each promise.

``python -m tests.support.network_disks --conformance`` prints the table that the documentation has. ``make cluster``
runs this.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import machines
from tests.support.machines import network
from tests.support.network_disks import KINDS, ROWS, SHARED, Gluster, Local, Mounted, Sshfs

pytestmark = pytest.mark.skipif(bool(machines.missing()), reason=machines.missing() or "root can make machines here")
BROKEN: dict[type[Mounted], set[str]] = {
    Local: set(),
    Gluster: {"a lock lasts while the server starts again, or its owner cannot write afterwards"},
    Sshfs: {"a lock keeps other machines out"},
}
"""The promises about locks that a type breaks each time."""
OPEN = """
import sys
from persistentqueue import NetworkDiskError, PersistentQueue, Producer
for call in (PersistentQueue, Producer):
    try:
        call(sys.argv[1]).close()
    except NetworkDiskError as error:
        print(error.found)
with PersistentQueue(sys.argv[1], network_disk=True) as queue, queue.transaction() as session:
    session.enqueue(b"item")
with PersistentQueue(sys.argv[1], network_disk=True) as queue:
    print(queue.peek())
"""


@pytest.fixture(params=KINDS, ids=lambda kind: kind.kind)
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mounted]:
    """Yield a file system that two machines share."""
    kind: type[Mounted] = request.param
    if kind.missing():
        pytest.skip(f"{kind.kind} needs {kind.missing()}")
    with network(tmp_path) as made:
        yield kind(made)


def test_owners_are_refused(mounted: Mounted) -> None:
    """An owner and a producer are refused with the type of the file system; ``network_disk=True`` insists."""
    printed = mounted.machines[0].run(sys.executable, "-c", OPEN, f"{SHARED}/queue")
    refused = [] if isinstance(mounted, Local) else [mounted.kind, mounted.kind]
    assert printed.splitlines() == [*refused, "[b'item']"]
    assert (mounted.brick / "queue" / "log").is_dir()


def test_command_line_is_refused(mounted: Mounted) -> None:
    """``put`` is refused on a network file system, with the option that insists; with that option it works."""
    if isinstance(mounted, Local):
        pytest.skip("a local directory is not refused")
    command = [sys.executable, "-m", "persistentqueue", "put", SHARED, "queue", "item"]
    refused = mounted.machines[0].run(*command, check=False)
    assert f"found {mounted.kind}" in refused and "(on the command line: --network-disk)" in refused
    assert "1 item" in mounted.machines[0].run(*command[:-1], "--network-disk", command[-1])


def test_reason_for_the_refusal(mounted: Mounted) -> None:
    """A local directory keeps each promise that an owner needs; a refused type breaks at least the one about locks."""
    broken = set()
    for number, (title, row) in enumerate(ROWS.items()):
        try:
            kept = row(mounted, f"{SHARED}/row{number}")
        except OSError:
            kept = False
        if not kept:
            broken.add(title)
    assert broken >= BROKEN[type(mounted)] and BROKEN[type(mounted)] <= set(ROWS)
    assert bool(broken) == bool(BROKEN[type(mounted)])
