"""The shape of the package: floors, the only access to the operating system, sizes. Each rule has a counterexample."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import persistentqueue

from .modules import DOCUMENT, FACES_MAY_IMPORT, FACES_MAY_USE, FIRST_FACE, PACKAGE, PLACE, ROOT, Folder, document

DOOR_ONLY = {"os", "fcntl", "mmap", "socket", "portalocker", "random", "secrets"}
THREADS_ONLY = {"threading", "time", "concurrent", "queue"}
MODULES_WITH_THREADS = {
    "aio/futures",
    "aio/persistent_queue",
    "compat/__init__",
    "compat/mutex",
    "compat/standard_queue",
    "interrupts/call_guard",
    "interrupts/locks",
    "interrupts/signal_shield",
    "queue",
    "runtime/background",
    "runtime/closing",
    "runtime/group_commit",
    "runtime/maintenance",
    "runtime/memory_budget",
    "runtime/open_queue",
    "runtime/pipeline",
    "runtime/space",
    "runtime/waiting",
    "serving/server",
    "system/disk",
    "workers/link",
    "workers/owner",
    "workers/shared_queue",
}
DOORS = {"system/byte_locks", "system/disk", "system/sockets", "system/startup", "system/wakeup"}
CATCHES_PLAINLY = ("serving/", "system/path_errors")
"""Modules below the faces that may catch an ``OSError`` of a signal handler: the threads of ``serving`` have none."""
FOLDER_FILES_MAX = 14
TESTS = ROOT / "tests"
TESTS_FILES_MAX = 3
MODULE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70


def problems(module: str, source: str) -> Iterator[str]:
    """Yield the problems of a module's source."""
    tree = ast.parse(source)
    if source.count("\n") > MODULE_LINES_MAX:
        yield f"{module} has more than {MODULE_LINES_MAX} lines"
    allowed = _defined(tree) | _used_of_self(tree) | (FACES_MAY_USE if PLACE[module][0] >= FIRST_FACE else set())
    for name in sorted((_used(tree) & _defined_anywhere()) - allowed):
        yield f"{module} uses {name}, which is private to another module"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            lines = (node.end_lineno or 0) - node.lineno - docstring.count("\n")
            if lines > FUNCTION_LINES_MAX:
                yield f"{module}.{node.name} has {lines} lines"
        for lock in _entered(node) & _plain_locks():
            yield f"{module} enters {lock}, a plain lock of threading: make it by interrupts.locks"
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            yield f"{module} imports *"
        if PLACE[module][0] < FIRST_FACE and not module.startswith(CATCHES_PLAINLY) and _catches_plainly(node):
            yield f"{module} catches an OSError of signal handlers, too: except faults(OSError), and its suppress"
        if isinstance(node, ast.Call) and _name(node.func) == "import_module" and ast.unparse(node.args[0])[0] in "'\"":
            yield f"{module} imports a module by a call: programs that pack modules find only statements"
        for imported in _imports(node):
            if imported.startswith("."):
                for below in _modules_of(module, node):
                    if PLACE[module][0] >= FIRST_FACE > PLACE.get(below, (99, 0))[0] and module != "__main__":
                        yield f"{module} imports {below}: faces use the public names"
                    if PLACE.get(below, (99, 0)) >= PLACE[module]:
                        yield f"{module} imports {below}, which is not on a lower floor"
            elif imported.startswith("persistentqueue") and PLACE[module][0] < FIRST_FACE:
                yield f"{module} imports the package from outside"
            elif imported.startswith("persistentqueue") and imported not in FACES_MAY_IMPORT:
                yield f"{module} imports {imported}: faces use the public names"
            elif module.startswith(("spark/", "cli/")):
                continue
            elif imported == "asyncio":
                if not module.startswith("aio/") and module != "airflow/trigger":
                    yield f"{module} imports asyncio: only aio and a trigger of Airflow have an event loop"
            elif imported in DOOR_ONLY and module not in DOORS:
                yield f"{module} imports {imported}: only the doors of system reach the operating system"
            elif imported in THREADS_ONLY and module not in MODULES_WITH_THREADS:
                yield f"{module} imports {imported}: the core has no threads and no clock"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_self(node: ast.expr) -> bool:
    """Return True for ``self``, ``cls`` and ``super()``."""
    name = node.func if isinstance(node, ast.Call) else node
    return isinstance(name, ast.Name) and name.id in {"self", "cls", "super"}


def _defined(tree: ast.AST) -> set[str]:
    """Return the private names that a module defines: of functions, modules, classes and ``self``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            found.add(node.attr)
    return set(filter(_is_private, found))


def _used_of_self(tree: ast.AST) -> set[str]:
    """Return the names that the classes of a module use of themselves, and so perhaps of their base classes."""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_self(node.value)}


def _used(tree: ast.AST) -> set[str]:
    """Return the private names that a module uses of any object."""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_private(node.attr)}


@cache
def _defined_anywhere() -> set[str]:
    """Return the private names that the package defines, without those that each ``NamedTuple`` has."""
    found = set().union(*(_defined(ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES))
    return found - set(dir(Folder))


def _catches_plainly(node: ast.AST) -> bool:
    """Return whether a clause names ``OSError`` itself, or a module takes ``suppress`` from ``contextlib`` for it."""
    if isinstance(node, ast.ExceptHandler):
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        return any(each is not None and _name(each) == "OSError" for each in kinds)
    if not isinstance(node, ast.Module):
        return False
    within = list(ast.walk(node))
    plain = any(
        isinstance(each, ast.ImportFrom) and each.module == "contextlib" and _takes_suppress(each) for each in within
    )
    calls = [each for each in within if isinstance(each, ast.Call) and _name(each.func) == "suppress"]
    return plain and any(_name(kind) == "OSError" for call in calls for kind in call.args)


def _takes_suppress(node: ast.ImportFrom) -> bool:
    return any(alias.name == "suppress" for alias in node.names)


def _entered(node: ast.AST) -> set[str]:
    """Return the names of the attributes and variables that a ``with`` statement enters."""
    entered = [item.context_expr for item in node.items] if isinstance(node, ast.With) else []
    return {name for each in entered if (name := _name(each))}


@cache
def _plain_locks() -> set[str]:
    """Return the names to which the package assigns locks and condition variables of ``threading``."""
    return set().union(*(_locks_made(ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES))


def _locks_made(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = [each for target in node.targets for each in getattr(target, "elts", [target])]
            calls = [each for each in ast.walk(node.value) if isinstance(each, ast.Call)]
            if any(isinstance(call.func, ast.Attribute) and _is_threading(call.func) for call in calls):
                found.update(filter(None, map(_name, targets)))
    return found


def _is_threading(function: ast.Attribute) -> bool:
    return _name(function.value) == "threading" and function.attr in {"Lock", "RLock", "Condition"}


def _name(node: ast.AST) -> str:
    """Return the name of a variable or an attribute; an empty text for any other expression."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield _top(alias.name)
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            yield "."
        elif node.module:
            yield _top(node.module)


def _modules_of(module: str, node: ast.AST) -> Iterator[str]:
    """Yield the modules from which a relative import takes names: a module, or the modules of a folder."""
    assert isinstance(node, ast.ImportFrom)
    above = module.split("/")[:-1]
    path = "/".join([*above[: len(above) - node.level + 1], *(node.module or "").split(".")]).strip("/")
    if path in PLACE:
        yield path
        return
    for alias in node.names:
        module = f"{path}/{alias.name}".strip("/")
        places = (module, f"{module}/__init__", f"{path}/__init__".strip("/"))
        yield next((each for each in places if each in PLACE), places[-1])


def _top(module: str) -> str:
    """Return the module of an import from this package, or the top package of another one."""
    return module if module.startswith("persistentqueue") else module.split(".", maxsplit=1)[0]


def module_of(path: Path) -> str:
    """Return the name of the module in this file."""
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_module_keeps_the_rules(path: Path) -> None:
    """Each module imports from lower floors only, leaves the operating system to the doors of ``system``, and stays
    small."""
    module = module_of(path)
    assert module in PLACE, f"{module} is not in the table of modules yet"
    assert list(problems(module, path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("core/block", "from ..engine.store import Store", "not on a lower floor"),
        ("core/block", "from .frame import Frame", "not on a lower floor"),
        ("core/block", "from . import frame", "not on a lower floor"),
        ("storage/log", "from ..unknown import Frame", "not on a lower floor"),
        ("engine/store", "import os", "only the doors"),
        ("core/state", "import threading", "no threads"),
        ("runtime/open_queue", "import asyncio", "only aio"),
        ("aio/item_waiter", "import threading", "no threads"),
        ("aio/session", "from persistentqueue.runtime.open_queue import Group", "public names"),
        ("core/state", "from .frame import *", "imports *"),
        ("core/state", 'import_module("json")', "by a call"),
        ("transactions", "def join(session):\n    session._together = None", "private to another module"),
        ("runtime/maintenance", "def trim(open_queue):\n    open_queue._store.trim()", "private to another module"),
        ("aio/session", "def hold(session):\n    session._open_queue.now()", "private to another module"),
        ("queue", "import persistentqueue", "from outside"),
        ("queue", "from persistentqueue.engine.store import Store", "from outside"),
        ("spark/writer", "from persistentqueue.engine.store import Store", "public names"),
        ("cli/summary", "from persistentqueue.engine.store import Store", "public names"),
        ("cli/summary", "from persistentqueue.spark import register", "public names"),
        ("cli/streams", "from .app import app", "not on a lower floor"),
        ("spark/writer", "from .source import register", "not on a lower floor"),
        ("spark/options", "from ..engine.store import Store", "public names"),
        ("compat/standard_queue", "def f(self):\n    with self.not_full:\n        pass", "a plain lock"),
        ("engine/store", "try:\n    pass\nexcept OSError:\n    pass", "of signal handlers"),
        ("engine/store", "try:\n    pass\nexcept (KeyError, OSError):\n    pass", "of signal handlers"),
        ("queue", "from contextlib import suppress\nwith suppress(OSError):\n    pass", "of signal handlers"),
        ("core/state", "def f():\n" + "    x = 1\n" * 71, "71 lines"),
        ("core/state", "x = 1\n" * 801, "800 lines"),
    ],
)
def test_rule_catches(module: str, source: str, problem: str) -> None:
    """Each rule catches its counterexample."""
    assert any(problem in found for found in problems(module, source))


def test_table_holds_no_other_modules() -> None:
    """The table names each module, once."""
    assert sorted(PLACE) == sorted(map(module_of, MODULES))


def test_map_is_current() -> None:
    """The map in the reference is that of the table; otherwise run ``python -m tests.project.modules``."""
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "it is stale: run python -m tests.project.modules"


def test_folders_stay_small() -> None:
    """No folder of the package has more files than a reader can keep in view."""
    for folder in {path.parent for path in MODULES}:
        assert sum(path.is_file() for path in folder.iterdir()) <= FOLDER_FILES_MAX, folder


def test_the_folder_of_the_tests_stays_small() -> None:
    """The tests stand in folders: beside these, ``tests`` has the fixtures and no other module."""
    assert sum(path.is_file() for path in TESTS.iterdir()) <= TESTS_FILES_MAX


def test_exports_are_complete() -> None:
    """``__all__`` names all public names of the package, and the package has no others but its modules."""
    public = {name for name in vars(persistentqueue) if not name.startswith("_")}
    modules = {module_of(path).partition("/")[0] for path in MODULES}
    assert public - modules <= set(persistentqueue.__all__) | {"annotations"}
    assert [name for name in persistentqueue.__all__ if not hasattr(persistentqueue, name)] == []
    assert len(set(persistentqueue.__all__)) == len(persistentqueue.__all__)


def test_public_names_have_docstrings() -> None:
    """Every public class, function and method has a docstring."""
    for name in persistentqueue.__all__:
        value = getattr(persistentqueue, name)
        assert value.__doc__, name
        if isinstance(value, type):
            for member, attribute in vars(value).items():
                if not member.startswith("_") and (callable(attribute) or isinstance(attribute, property)):
                    assert attribute.__doc__, f"{name}.{member}"


def test_spark_is_never_imported_by_the_package() -> None:
    """``import persistentqueue`` needs no PySpark."""
    for path in MODULES:
        if not module_of(path).startswith("spark/"):
            assert "pyspark" not in path.read_text(encoding="utf-8")


def test_airflow_is_imported_by_its_provider_alone() -> None:
    """Only the modules of the provider import Airflow, and its ``__init__``, which Airflow imports, does not."""
    for path in MODULES:
        modules = {
            module for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for module in _imports(node)
        }
        if "airflow" in modules:
            assert module_of(path).startswith("airflow/")
            assert module_of(path) not in {"airflow/__init__", "airflow/waiting"}


def test_rich_is_imported_by_the_terminal_alone() -> None:
    """Only the pictures for a terminal import Rich: the package, the verbs and the page of ``report`` do not need
    it."""
    for path in MODULES:
        modules = {
            module for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for module in _imports(node)
        }
        if "rich" in modules:
            assert module_of(path) in {"cli/display/console", "cli/display/screen"}
