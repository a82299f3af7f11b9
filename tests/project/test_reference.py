"""The reference of the documentation is complete: each public name has a place, and each generated part its entries.

A page names what it describes in directives of Sphinx, such as ``.. autoclass:: persistentqueue.Session``. Sphinx then
takes the parameters from the docstrings, which ``test_help`` checks.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import persistentqueue
from docs import generate
from persistentqueue import Options, Stats

from .modules import ROOT

REFERENCE = ROOT / "docs" / "reference"
MODULES = [
    "persistentqueue",
    *(
        f"persistentqueue.{name}"
        for name in ["codecs", "rows", "compat", "importers", "aio", "scrapy", "prometheus", "spark", "cli"]
    ),
]
OPTION = r"(?:\n   :[\w-]+:.*)*"
DIRECTIVE = re.compile(rf"^\.\. auto(class|function|data|exception):: ([\w.]+)({OPTION})", re.MULTILINE)


def sources() -> dict[Path, str]:
    """Return the sources of the pages of the reference, each with the generated parts that it includes."""
    parts = {"errors": generate.error_page}
    texts = {path: path.read_text(encoding="utf-8") for path in REFERENCE.rglob("*.md")}
    for name, make in parts.items():
        texts[REFERENCE / f"{name}.md"] += make()
    return texts


def described() -> list[tuple[str, str, str]]:
    """Return what the pages describe: the kind of its directive, its name, and the options of the directive."""
    return [found for text in sources().values() for found in DIRECTIVE.findall(text)]


def public_names(module: str) -> set[str]:
    """Return the public names of a module: those of ``__all__``, or else the classes, functions and values it makes."""
    loaded = importlib.import_module(module)
    if hasattr(loaded, "__all__"):
        return {f"{module}.{name}" for name in loaded.__all__}
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    made = re.findall(r"^(?:class|def) (\w+)|^(\w+): Final\b", source, re.MULTILINE)
    return {f"{module}.{name}" for pair in made for name in pair if name and not name.startswith("_")}


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_has_one_place(module: str) -> None:
    """Each public name of the module is described once."""
    names = [name for _, name, _ in described()]
    assert {name for name in public_names(module) if names.count(name) != 1} == set()


def test_each_described_name_exists() -> None:
    """Each directive names an object, with the directive of its kind."""
    for kind, name, _ in described():
        module, _, attribute = name.rpartition(".")
        value = getattr(importlib.import_module(module), attribute)
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        is_kind = {"exception": is_error, "class": inspect.isclass(value) and not is_error}
        assert is_kind.get(kind, not inspect.isclass(value)), name


def test_no_public_method_is_left_out() -> None:
    """The page of a class describes its public methods, also those of a private base."""
    for kind, name, options in described():
        module, _, attribute = name.rpartition(".")
        value = getattr(importlib.import_module(module), attribute)
        if kind != "class" or "inherited-members" in options or name.endswith("QueueDataSource"):
            continue
        for base in value.__mro__[1:]:
            if base.__module__.startswith("persistentqueue"):
                assert [each for each in vars(base) if not each.startswith("_") and each not in vars(value)] == [], name


def test_each_page_is_in_a_table_of_contents() -> None:
    """The index, or the index of the API, lists each page of the reference."""
    listed = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed += (REFERENCE / "api" / "index.md").read_text(encoding="utf-8")
    for path in REFERENCE.rglob("*.md"):
        entry = path.relative_to(REFERENCE).with_suffix("").as_posix()
        assert re.search(rf"^(reference/{entry}|{entry.removeprefix('api/')})$", listed, re.MULTILINE), entry


def test_parts_are_included() -> None:
    """A page includes each generated part, and no other."""
    included = re.findall(r"^```\{include\} \.\./_generated/(\w+)\.md$", "".join(sources().values()), re.MULTILINE)
    assert sorted(included) == sorted(generate.PARTS)


def test_options_are_complete() -> None:
    """The table has each option, with a sentence, and each has a section."""
    text = generate.options()
    names = [field.name for field in fields(Options)] + ["codec", "progress", "serve"]
    assert sorted(re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \|(?:.+\|){2} \S.*\. \|$", text, re.MULTILINE)) == sorted(names)
    assert sorted(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == sorted(names)
    assert "| `int \\| MemoryBudget` | 64 MiB |" in text


def test_arguments_that_options_do_not_accept_say_so() -> None:
    """The section of an argument that is no field of ``Options`` says that ``Options`` does not accept it."""
    sections = dict(re.findall(r"^### (\w+)\n\n(.+)$", generate.options(), re.MULTILINE))
    refused = {name for name, text in sections.items() if text.endswith("`Options` does not accept this argument.")}
    assert refused == {"codec", "progress", "serve"}


def test_errors_has_what_it_lists() -> None:
    """``persistentqueue.errors`` has each error of its tree, also those of worker processes."""
    for name in {*generate.advice(), "PersistentQueueError", "UnflushedWarning", "OtherOptionsWarning"}:
        assert getattr(persistentqueue.errors, name) is getattr(persistentqueue, name)


def test_errors_are_complete() -> None:
    """The page has each error, with the action that helps."""
    errors = {name for name in persistentqueue.__all__ if name.endswith(("Error", "Warning"))}
    assert {kind.__name__ for kind in generate.error_classes()} == errors
    assert generate.advice().keys() == errors - {"PersistentQueueError", "UnflushedWarning", "OtherOptionsWarning"}
    assert all(generate.advice().values())
    assert generate.advice()["DiskFullError"] == "flush the same session again later, when there is free space"
    assert generate.advice()["OutcomeUnknownError"] == "look, or repeat it with a marker"
    assert "- [`UnflushedWarning`](#unflushedwarning): A session, a producer or an" in generate.error_page()


def test_commands_are_complete() -> None:
    """The page has each command, with the status of its failure and its options."""
    text = generate.command_line()
    modules = ("read_verbs", "write_verbs", "maintenance_verbs", "workers/verbs", "verbs")
    verbs = [
        len(
            re.findall(r"^@verb\(", (ROOT / "persistentqueue" / "cli" / f"{name}.py").read_text(encoding="utf-8"), re.M)
        )
        for name in modules
    ]
    assert len(re.findall(r"^### \w+$", text, re.MULTILINE)) == sum(verbs) > 10
    assert "Exit status: 0 success" in text
    assert "| `--lock-timeout SECONDS` | Seconds to wait for the lock. | 1.0; at least 0 |" in text


def test_metrics_are_complete() -> None:
    """The table has a metric with a meaning for each field of ``Stats`` that is a number or a histogram."""
    rows = re.findall(r"^\| `persistentqueue_\w+` \| (gauge|counter|histogram) \| \S.* \|$", generate.metrics(), re.M)
    assert len(rows) == len([field for field in fields(Stats) if not str(field.type).startswith("tuple")])


def test_limits_are_numbers_of_the_code() -> None:
    """The tables have the limits that errors name."""
    text = generate.limits()
    assert "| bytes of an item | 0 to 4,294,967,295 |" in text
    assert "| name of a marker | 1 to 65,535 bytes of UTF-8 |" in text


@pytest.mark.parametrize("modules", [generate.FORMATS, generate.WRITE_ORDERS])
def test_docstrings_are_whole(modules: dict[str, str]) -> None:
    """The page has each line of the docstrings that begins a format or a step, under its heading."""
    text = generate.docstrings(modules)
    for module, heading in modules.items():
        assert f"\n## {heading}\n" in text
        for line in (inspect.getdoc(importlib.import_module(f"persistentqueue.{module}")) or "").splitlines():
            if "``" not in line:
                assert line in text, line


def test_each_write_order_is_on_a_page() -> None:
    """Each module whose docstring marks a commit point is on the page of the formats or of the write orders."""
    for path in sorted((ROOT / "persistentqueue").rglob("*.py")):
        text = path.read_text(encoding="utf-8").partition('\n"""\n')[0]
        if "the commit point" in text and "**" in text:
            name = path.relative_to(ROOT / "persistentqueue").with_suffix("").as_posix().replace("/", ".")
            assert name in {**generate.FORMATS, **generate.WRITE_ORDERS}, name


def test_references_lead_to_modules() -> None:
    """A reference between the docstrings leads to a heading of one of the two pages."""
    text = generate.docstrings(generate.FORMATS) + generate.docstrings(generate.WRITE_ORDERS)
    targets = re.findall(r":ref:`\w+ <(module-\w+)>`", text)
    assert len(targets) > 10
    assert set(targets) <= set(re.findall(r"^\((module-\w+)\)=$", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 bytes"), (4096, "4 KiB"), (2**20, "1 MiB"), (3 * 2**30, "3 GiB"), (1500, "1,500 bytes")]
)
def test_sizes_are_readable(value: int, text: str) -> None:
    """A size has the largest unit of which it is a multiple."""
    assert generate.size(value) == text


def test_sections_of_docstrings() -> None:
    """A section ends where its indentation ends; the lines of an entry are joined."""
    docstring = "Do it.\n\nArgs:\n    a: One\n        two.\n    b: Three.\n\nRaises:\n    c: Four.\n\nMore: text."
    assert generate.section(docstring, "Args") == {"a": "One two.", "b": "Three."}
    assert generate.section(docstring, "Yields") == {}


def test_files_are_written_once(tmp_path: Path) -> None:
    """A second build leaves a part that is current as it is."""
    folder = tmp_path / "parts"
    generate.write(folder)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    generate.write(folder)
    assert before == {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert before.keys() == {f"{name}.md" for name in generate.PARTS}
