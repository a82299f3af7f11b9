"""Power cuts of real file systems, where a part of the machine is in the way."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

from tests.crash import cuts


def test_a_tool_that_never_ends_is_given_up() -> None:
    """A tool that waits in the kernel raises a named error after the limit, and nothing waits for its end."""
    begun = time.monotonic()
    with pytest.raises(cuts.StuckError, match=r"has not ended after 0.2 s"):
        cuts._run(sys.executable, "-c", "import signal; signal.pause()", limit_seconds=0.2)
    assert time.monotonic() - begun < 30


def test_a_stuck_file_system_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an unmounting that never ends, the file system is not touched again; others are unmounted and deleted."""
    called = []

    def run(tool: str, *arguments: str) -> None:
        called.append(tool)
        if tool == "umount" and is_stuck:
            raise cuts.StuckError(f"{tool} {arguments}")

    monkeypatch.setattr(cuts, "_run", run)
    monkeypatch.setattr(cuts, "fast_directory", lambda: str(tmp_path))
    is_stuck = True
    with pytest.raises(cuts.StuckError), cuts.machine_with(cuts.MODES[0], random.Random(0)) as machine:
        machine.unmount()
    assert called == ["mkfs.ext4", "mount", "umount"]
    assert len(list(tmp_path.iterdir())) == 1
    is_stuck = False
    with cuts.machine_with(cuts.MODES[0], random.Random(0)):
        assert len(list(tmp_path.iterdir())) == 2
    assert called[3:] == ["mkfs.ext4", "mount", "umount"]
    assert len(list(tmp_path.iterdir())) == 1
