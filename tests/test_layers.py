"""The shape of the package: floors, the one door to the operating system, sizes. Each rule has a counterexample."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import persistentqueue

PACKAGE = Path(persistentqueue.__file__).parent

FLOORS = [
    {"errors", "checksum", "insist", "starting", "stationary"},
    {"disk", "intervals", "header", "bell", "fields", "codecs", "meters", "logger"},
    {"pact", "delivery", "trust"},
    {"block", "frame", "pages", "direct", "quota", "roots", "cursor", "attempts", "shield"},
    {"calls"},
    {"envelope"},
    {"items", "deadletter", "state", "segment", "pool", "spare", "lock", "log", "place", "sharing"},
    {"publication", "ready", "doubt"},
    {"segments", "directory"},
    {"reader", "recovery", "transaction", "move"},
    {"counting"},
    {"subscriptions"},
    {"limits", "bounds", "explain", "splits"},
    {"settings", "commit", "compact", "salvage", "mend", "generations", "adopt"},
    {"inbox"},
    {"store"},
    {"opening", "catalog"},
    {"fsck", "several"},
    {"maintenance", "memory", "line", "waiters", "seats"},
    {"group", "producer"},
    {"joint", "parts", "remote", "view", "upkeep", "stats"},
    {"retries"},
    {"session"},
    {"requeue", "subscription", "typed"},
    {"queue"},
    {"together"},
    {"__init__"},
    {
        "spark/java",
        "spark/options",
        "spark/payload",
        "spark/progress",
        "spark/workers",
        "cli/words",
        "cli/style",
        "cli/streams",
        "cli/files",
    },
    {"compat", "scrapy", "prometheus"},
    {"spark/sink", "spark/handoff", "spark/rows", "aio/threads", "cli/pictures", "cli/bench"},
    {"spark/stream", "aio/flushes", "aio/watch", "aio/work", "cli/svg", "cli/look"},
    {"spark/source", "aio/session", "cli/watch", "cli/report"},
    {"spark/__init__", "aio/queue", "aio/face", "cli/app", "cli/screen"},
    {"aio/__init__", "cli/top"},
    {"cli/reading", "cli/writing", "cli/upkeep"},
    {"cli/verbs"},
    {"cli/__init__"},
    {"__main__"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

DOOR_ONLY = {"os", "fcntl", "mmap", "socket", "portalocker", "random", "secrets"}
THREADS_ONLY = {"threading", "time", "concurrent", "queue"}
ROOMS_WITH_THREADS = {"maintenance", "memory", "line", "waiters", "seats", "group", "upkeep", "queue", "disk"} | {
    "shield",
    "calls",
    "session",
    "compat",
    "aio/threads",
    "aio/queue",
}
FACES_MAY_IMPORT = {"persistentqueue"} | {
    f"persistentqueue.{room}"
    for room in (
        "codecs",
        "directory",
        "disk",
        "parts",
        "pool",
        "publication",
        "remote",
        "settings",
        "splits",
        "stationary",
    )
}
"""The public names, and the rooms that were made for those who write, read, or fill a pool beside the owner."""
ROOM_LINES_MAX = 800
FUNCTION_LINES_MAX = 70


def problems(room: str, source: str) -> Iterator[str]:
    """What is wrong with the source of a room."""
    tree = ast.parse(source)
    if source.count("\n") > ROOM_LINES_MAX:
        yield f"{room} has more than {ROOM_LINES_MAX} lines"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            lines = (node.end_lineno or 0) - node.lineno - docstring.count("\n")
            if lines > FUNCTION_LINES_MAX:
                yield f"{room}.{node.name} has {lines} lines"
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            yield f"{room} imports *"
        for module in _imports(node):
            if module.startswith("."):
                below = f"{room.rpartition('/')[0]}/{module[1:]}".strip("/") if module[1:] else "__init__"
                if FLOOR.get(below, FLOOR.get(f"{below}/__init__", 99)) >= FLOOR[room]:
                    yield f"{room} imports {below}, which is not on a lower floor"
            elif module.startswith("persistentqueue") and FLOOR[room] <= FLOOR["__init__"]:
                yield f"{room} imports the package from outside"
            elif module.startswith("persistentqueue") and module not in FACES_MAY_IMPORT:
                yield f"{room} imports {module}: faces use the public names"
            elif room.startswith(("spark/", "cli/")):
                continue
            elif module == "asyncio":
                if not room.startswith("aio/"):
                    yield f"{room} imports asyncio: only aio has an event loop"
            elif module in DOOR_ONLY and room not in {"disk", "bell", "starting"}:
                yield f"{room} imports {module}: only disk and bell reach the operating system"
            elif module in THREADS_ONLY and room not in ROOMS_WITH_THREADS:
                yield f"{room} imports {module}: the core has no threads and no clock"


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield _top(alias.name)
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            yield "." + (node.module or "")
        elif node.module:
            yield _top(node.module)


def _top(module: str) -> str:
    """Of others the package, of ours the room."""
    return module if module.startswith("persistentqueue") else module.split(".", maxsplit=1)[0]


def room_of(path: Path) -> str:
    """The room that is in this file."""
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


ROOMS = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", ROOMS, ids=room_of)
def test_room_keeps_the_rules(path: Path) -> None:
    """Each room imports from lower floors only, leaves the operating system to ``disk``, and stays small."""
    room = room_of(path)
    assert room in FLOOR, f"{room} has no floor yet"
    assert list(problems(room, path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("room", "source", "problem"),
    [
        ("block", "from .store import Store", "not on a lower floor"),
        ("block", "from .frame import Frame", "not on a lower floor"),
        ("store", "import os", "only disk"),
        ("state", "import threading", "no threads"),
        ("group", "import asyncio", "only aio"),
        ("aio/watch", "import threading", "no threads"),
        ("aio/session", "from persistentqueue.group import Group", "public names"),
        ("state", "from .frame import *", "imports *"),
        ("queue", "import persistentqueue", "from outside"),
        ("queue", "from persistentqueue.store import Store", "from outside"),
        ("spark/sink", "from persistentqueue.store import Store", "public names"),
        ("cli/look", "from persistentqueue.store import Store", "public names"),
        ("cli/look", "from persistentqueue.spark import register", "public names"),
        ("cli/look", "from .app import app", "not on a lower floor"),
        ("spark/sink", "from .source import register", "not on a lower floor"),
        ("spark/options", "from .store import Store", "not on a lower floor"),
        ("state", "def f():\n" + "    x = 1\n" * 71, "71 lines"),
        ("state", "x = 1\n" * 801, "800 lines"),
    ],
)
def test_rule_catches(room: str, source: str, problem: str) -> None:
    """Each rule catches what it is there for."""
    assert any(problem in found for found in problems(room, source))


def test_every_room_is_named_in_the_package_docstring() -> None:
    """Who reads the package's docstring has seen every room."""
    docstring = persistentqueue.__doc__ or ""
    for room in map(room_of, ROOMS):
        assert room == "__init__" or f"``{room.partition('/')[0]}``" in docstring


def test_exports_are_complete() -> None:
    """``__all__`` names what the package offers, and nothing else public is in it but its rooms."""
    public = {name for name in vars(persistentqueue) if not name.startswith("_")}
    rooms = {room_of(path).partition("/")[0] for path in ROOMS}
    assert public - rooms <= set(persistentqueue.__all__) | {"annotations"}
    assert set(persistentqueue.__all__) <= public
    assert len(set(persistentqueue.__all__)) == len(persistentqueue.__all__)


def test_public_names_have_docstrings() -> None:
    """Every public class and function, and every public method of it, says what it promises."""
    for name in persistentqueue.__all__:
        value = getattr(persistentqueue, name)
        assert value.__doc__, name
        if isinstance(value, type):
            for member, attribute in vars(value).items():
                if not member.startswith("_") and (callable(attribute) or isinstance(attribute, property)):
                    assert attribute.__doc__, f"{name}.{member}"


def test_spark_is_never_imported_by_the_package() -> None:
    """``import persistentqueue`` needs no PySpark."""
    for path in ROOMS:
        if not room_of(path).startswith("spark/"):
            assert "pyspark" not in path.read_text(encoding="utf-8")


def test_typer_and_rich_are_imported_by_the_verbs_alone() -> None:
    """``import persistentqueue``, and the page of ``report``, need neither."""
    for path in ROOMS:
        modules = {
            module for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for module in _imports(node)
        }
        if modules & {"typer", "rich"}:
            assert room_of(path).startswith("cli/"), path
            assert FLOOR[room_of(path)] >= FLOOR["cli/app"], path
