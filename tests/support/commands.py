"""Commands of the command line that run until a signal ends them, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import persistentqueue

SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(persistentqueue.__file__)))
PYTHON_PATH = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), SOURCES]))
"""Where a process looks for modules: where this one does, for a bug that is planted there, and in this tree."""
TIMEOUT_SECONDS = 60
"""Time that a command may take for any step before it is killed."""


class Command:
    """A verb in a process of its own, with its output. It is killed at the end, if it still runs."""

    def __init__(self, *arguments: object, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "persistentqueue", *map(str, arguments)],
            cwd=directory,
            env=os.environ | {"PYTHONPATH": PYTHON_PATH},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._watchdog = threading.Timer(TIMEOUT_SECONDS, self.process.kill)
        self._watchdog.start()

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._watchdog.cancel()
        self._watchdog.join()
        self.process.__exit__(None, None, None)

    def line(self) -> str:
        """Return the next line on stdout; an empty text if the process has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Send ``kill -9``, and wait until the process is gone."""
        self.process.kill()
        self.process.wait()

    def finish(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit status, and the rest of stdout and of stderr."""
        out, err = self.process.communicate()
        return self.process.returncode, out, err

    def result(self) -> Any:
        """Wait for an end without an error, and return the JSON on stdout."""
        status, out, err = self.finish()
        assert status == 0, err
        return json.loads(out)
