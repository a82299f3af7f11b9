"""A stream into a queue: each line once, whatever is killed on the way, and wherever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import persistentqueue
from persistentqueue import PersistentQueue, check
from persistentqueue.spark import JavaNotFoundError, java

from .support import drain

pytestmark = pytest.mark.spark

SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(persistentqueue.__file__)))
VICTIMS = ("worker", "java", "program")
PLACES = ("among the rows", "behind the part", "before the manifest", "behind the manifest")
EVERYWHERE = [(victim, place) for victim in VICTIMS for place in PLACES]
CHOSEN = EVERYWHERE if os.environ.get("EVERY_PLACE") else [("java", "behind the manifest")]
"""Each place takes two Javas of its own: ``make flights`` goes to all of them, ``make test`` to the one where it is
decided, and Spark does not know."""
PROGRAM = """
import os, signal, sys
from pathlib import Path
from persistentqueue.spark import local_session, register, sink
from persistentqueue.spark.source import QueueDataSource

root, victim, place = Path(sys.argv[1]), *sys.argv[2:]
program = os.getpid()


def pass_by(here):
    # Kill once, in the second batch; who has killed another waits for his own end, which follows from that.
    if here != place or (root / "killed").exists() or not (root / "checkpoint" / "offsets" / "1").exists():
        return
    (root / "killed").touch()
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    os.kill({"worker": os.getpid(), "java": int(daemon[1]), "program": program}[victim], signal.SIGKILL)
    signal.pause()


class FatalWriter(sink.ArrowStreamWriter):
    def write(self, iterator):
        def rows():
            for batch in iterator:
                yield batch
                pass_by("among the rows")

        message = super().write(rows())
        pass_by("behind the part")
        return message

    def commit(self, messages, batchId):
        pass_by("before the manifest")
        super().commit(messages, batchId)
        pass_by("behind the manifest")


class FatalDataSource(QueueDataSource):
    @classmethod
    def name(cls):
        return "fatal"

    def streamWriter(self, schema, overwrite):
        return FatalWriter(super().streamWriter(schema, overwrite)._options)


spark = local_session("killed", {"spark.master": "local[2,2]"})
spark.dataSource.register(FatalDataSource)
lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(root / "in"))
writer = lines.writeStream.format("fatal").option("queue", "q").option("checkpointLocation", str(root / "checkpoint"))
query = writer.trigger(availableNow=True).start(str(root))
query.awaitTermination()
spark.stop()
"""


def run(root: Path, victim: str, place: str) -> int:
    """Run the program, which tells how it ended, and wait until its Java has, too."""
    command = [sys.executable, "-c", PROGRAM, str(root), victim, place]
    environ = os.environ | {"PYTHONPATH": SOURCES}
    with subprocess.Popen(
        command, env=environ, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as program:
        try:
            code = program.wait(300)
            end = time.monotonic() + 60
            while time.monotonic() < end:
                os.killpg(program.pid, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            return code
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    raise AssertionError("Java outlives its program")


@pytest.mark.parametrize(("victim", "place"), CHOSEN, ids=str)
def test_each_line_once(tmp_path: Path, victim: str, place: str) -> None:
    """A worker, Java or the program itself is killed: started again, the query writes each line once."""
    try:
        java._find_java(os.environ)
    except JavaNotFoundError as reason:
        pytest.skip(str(reason))
    (tmp_path / "in").mkdir()
    expected = []
    for number in range(3):
        lines = [f"line {line} of {number}" for line in range(100)]
        (tmp_path / "in" / f"{number}").write_text("\n".join(lines))
        expected += [line.encode() for line in lines]
    codes = [run(tmp_path, victim, place)]
    assert (tmp_path / "killed").exists()
    while codes[-1] != 0 and len(codes) < 3:
        codes.append(run(tmp_path, victim, place))
    # A task whose worker was killed is tried again at once; all else ends the query.
    is_retried = victim == "worker" and place in PLACES[:2]
    assert [code == 0 for code in codes] == ([True] if is_retried else [False, True])
    report = check(tmp_path, "q")
    assert (report.ok, report.published) == (True, len(expected))
    with PersistentQueue(tmp_path, "q") as queue:
        assert sorted(drain(queue)) == sorted(expected)
