"""Independence of the suite from its surroundings: signals, terminals, locales, users, order and load."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for name in ("tests", "perf") for path in (ROOT / name).rglob("*.py"))
PERSONAL = {"DISPLAY", "EDITOR", "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "SHELL", "TZ", "USER"}
"""Variables that describe a person's surroundings, which no test may read."""

IGNORING = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGALRM})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""A program that starts Python as a careless supervisor does: signals are ignored or blocked."""

HANDLERS = """
import signal
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM).name)
print(signal.getsignal(signal.SIGCHLD).name, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
"""
RECEIVED = "True SIG_DFL\nSIG_DFL []\n"


# --- signals -------------------------------------------------------------------------------------------------------


def test_build_08_an_interrupt_reaches_the_tests() -> None:
    """SIGINT that a test sends to this process or to a child raises ``KeyboardInterrupt`` there."""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert subprocess.run([sys.executable, "-c", HANDLERS], capture_output=True, check=True).stdout == RECEIVED.encode()


@pytest.mark.parametrize("options", [("-p", "no:xdist"), ("-n", "1")], ids=["alone", "worker"])
def test_build_08_a_suite_that_was_started_with_signals_ignored(options: tuple[str, ...]) -> None:
    """A suite that was started with signals ignored, as by ``nohup make test &``, receives them all the same."""
    name = test_build_08_an_interrupt_reaches_the_tests.__name__
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *options, f"{__file__}::{name}"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    done = subprocess.run(
        [sys.executable, "-c", IGNORING, *command],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, b"1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


# --- what the sources may not do -------------------------------------------------------------------------------------


def parsed() -> Iterator[tuple[str, ast.AST]]:
    """Yield each node of each source of tests and measurements, with its place."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_bytes())):
            yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node


def dotted(node: ast.AST) -> str:
    """Return the dotted name of an expression; empty if it is not a name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def variables_read(node: ast.AST) -> list[str]:
    """Return the environment variables that the expression reads."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and dotted(node.value) == "os.environ":
        asked: list[ast.expr] = [node.slice]
    elif isinstance(node, ast.Call) and dotted(node.func) in ("os.environ.get", "os.getenv"):
        asked = node.args[:1]
    else:
        asked = []
    return [each.value for each in asked if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def sleeps_blindly(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of calls of ``time.sleep`` outside a loop: such a call waits for a while, and not for an
    event."""
    looped = {id(node) for loop in ast.walk(tree) if isinstance(loop, ast.While | ast.For) for node in ast.walk(loop)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or dotted(node.func) != "time.sleep" or id(node) in looped:
            continue
        if isinstance(node.args[0], ast.Constant):
            yield node.lineno


def test_build_08_no_test_reads_what_is_personal() -> None:
    """A test sets the variables that it depends on, and reads none that differ from person to person."""
    assert variables_read(ast.parse("os.environ['HOME']", mode="eval").body) == ["HOME"]
    assert variables_read(ast.parse("os.environ.get('TZ', '')", mode="eval").body) == ["TZ"]
    found = [(place, name) for place, node in parsed() for name in variables_read(node) if name in PERSONAL]
    assert found == []


def test_build_08_no_test_sleeps_for_a_while() -> None:
    """A test waits for an event, however slow the machine is: it looks again in a loop, or is woken."""
    assert list(sleeps_blindly(ast.parse("import time\ntime.sleep(1)\nwhile f():\n    time.sleep(0.1)"))) == [2]
    tests = [path for path in SOURCES if path.is_relative_to(ROOT / "tests")]  # a measurement may need idle seconds
    assert [(path.name, line) for path in tests for line in sleeps_blindly(ast.parse(path.read_bytes()))] == []


def test_build_08_documents_are_read_as_utf_8() -> None:
    """Code that reads or writes a document, a page or a module names the encoding, for locales other than UTF-8."""
    names = [f"project/{name}" for name in ("test_documents", "test_layers", "modules", "promises")]
    names += ["peers/test_coming_from", "faces/test_cli_report", "crash/mutants"]
    for path in (ROOT / "tests" / f"{name}.py" for name in names):
        calls = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)]
        texts = [node for node in calls if dotted(node.func).rpartition(".")[2] in ("read_text", "write_text")]
        unnamed = [node.lineno for node in texts if "encoding" not in [keyword.arg for keyword in node.keywords]]
        assert (path.name, unnamed) == (path.name, [])
