"""A pipeline of ten stages is killed at random and at each named place: its results are those of an unkilled run.

``KILLS`` is the number of random kills. ``make kills-pipeline`` makes 200 of them on Spark, whose Java dies, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Timer

import pytest

import persistentqueue
from tests.support.pipeline_kills import PLACES, left_over, results

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="kills groups of processes")

SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(persistentqueue.__file__)))
TIMEOUT_SECONDS = 300
KILLS = int(os.environ.get("KILLS", "0"))
SEED = int(os.environ.get("SEED", "1"))
EVERY_PLACE = bool(os.environ.get("EVERY_PLACE"))


class Campaign:
    """Pipelines in directories of their own, each of which is killed and started again until it is drained."""

    def __init__(self, root: Path, kind: str) -> None:
        self._root, self._kind = root, kind
        self.pipelines, self.kills = 0, 0
        self._directory = self._new()
        self.seconds = 0.0
        """Seconds of the slowest run so far that was not killed from its beginning to its end."""
        assert not self.live()

    def _new(self) -> Path:
        self.pipelines += 1
        directory = self._root / f"{self._kind}-{self.pipelines}"
        directory.mkdir()
        return directory

    def live(self, seconds: float | None = None, place: str = "") -> bool:
        """Start the program, and return whether it was killed: so long after the beginning of its run, or at a place.

        If it comes to its end, its results are compared, and the next start begins a new pipeline.
        """
        directory = self._directory
        (directory / "place").unlink(missing_ok=True)
        if place:
            (directory / "place").write_text(place)
        status, printed = self._run(directory, seconds)
        assert status in {0, -signal.SIGKILL}, printed
        if status:
            assert seconds is not None or (directory / "struck").exists(), f"it did not end in time:\n{printed}"
            self.kills += 1
            return True
        if self.pipelines == 1:
            self.expected = results(directory)
        assert results(directory) == self.expected, printed
        assert left_over(directory) == set(), printed
        self._directory = self._new()
        return False

    def _run(self, directory: Path, seconds: float | None) -> tuple[int, str]:
        """Run the program once, and return its status and what it has printed."""
        with subprocess.Popen(
            [sys.executable, "-m", "tests.support.pipeline_kills", str(directory), self._kind],
            cwd=SOURCES,
            env=os.environ | {"PYTHONPATH": SOURCES, "TMPDIR": str(directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:

            def kill() -> None:
                if process.returncode is None:
                    with suppress(ProcessLookupError):  # another thread has just heard of its end
                        os.killpg(process.pid, signal.SIGKILL)

            timers = [Timer(TIMEOUT_SECONDS, kill)]
            timers[0].start()
            lines, begun = [], 0.0
            assert process.stdout is not None
            try:
                for line in process.stdout:  # Java holds the pipe, too: at its end, none of them is left
                    lines.append(line)
                    if line == "running\n":
                        begun = time.monotonic()
                        if seconds is not None:
                            timers.append(Timer(seconds, kill))
                            timers[-1].start()
                    if line.startswith("drained"):
                        self.seconds = max(self.seconds, time.monotonic() - begun)
                status = process.wait()
            finally:
                for timer in timers:
                    timer.cancel()
                    timer.join()
                kill()
        return status, "".join(lines)

    def check(self) -> None:
        """Drain the pipeline that was killed last, and print what was done."""
        assert not self.live()
        print(f"{self._kind}: {self.kills} kills, {self.pipelines - 1} pipelines, each with the expected results")


def strike(campaign: Campaign, random: Random) -> None:
    """Kill the program at each place, in a pipeline that has not passed it."""
    for place in PLACES:
        for most in (1 if place in {"giving up", "given up"} else 9, 1, 1):
            if campaign.live(place=f"{place} {random.randint(1, most)}"):
                break
        else:
            pytest.fail(f"the program never got to {place!r}: {PLACES[place]}")


def kill_at_random(campaign: Campaign, random: Random, kills: int) -> None:
    """Kill the program this many times, at a random moment of its run.

    The more kills a pipeline has had, the longer its next run may last: a busy machine may need more time than ever
    before for one commit, and an input whose attempts are all killed would become a letter.
    """
    last = campaign.kills + kills
    in_a_row = 0
    while campaign.kills < last:
        seconds = random.uniform(0.0, campaign.seconds * (1 + in_a_row / 4))
        in_a_row = in_a_row + 1 if campaign.live(seconds=seconds) else 0
        if in_a_row and campaign.kills % 10 == 0:
            print(f"{campaign.kills} kills of {last}, {campaign.pipelines - 1} pipelines drained", flush=True)


def test_killed_without_spark_each_result_comes_once(tmp_path: Path) -> None:
    """After a kill at each place, and kills at random, the results on the stand-in are those of an unkilled run.

    Nothing waits inside the graph, and no payload is left over.
    """
    random = Random(SEED)
    campaign = Campaign(tmp_path, "stand-in")
    strike(campaign, random)
    kill_at_random(campaign, random, KILLS or 5)
    campaign.check()


@pytest.mark.spark
@pytest.mark.skipif(not (EVERY_PLACE or KILLS), reason="starts Spark for each kill: make kills has it")
def test_killed_on_spark_each_result_comes_once(tmp_path: Path) -> None:
    """After random kills of the driver with its Java, the results are those of an unkilled run on the stand-in, too.

    With ``KILLS``, the program is killed at each place as well.
    """
    random = Random(SEED)
    expected = Campaign(tmp_path, "stand-in").expected
    campaign = Campaign(tmp_path, "spark")
    assert campaign.expected == expected
    if KILLS:
        strike(campaign, random)
    kill_at_random(campaign, random, KILLS or 2)
    campaign.check()
