"""The rules of the language, as far as a program can hold them: see "The language" in ``CONTRIBUTING.md``.

They hold for the docstrings and comments of the package, of its tests and measurements, and of the examples. Each rule
has a counterexample.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from .modules import ROOT
from .test_pages import PAGES

WORDS_MAX = 25
NOT_IMPERATIVE = {
    *("a", "all", "an", "and", "any", "as", "at", "by", "each", "for", "from", "he", "how", "if", "in", "it", "its"),
    *("like", "likewise", "no", "none", "not", "of", "on", "one", "same", "so", "some", "that", "the", "their", "they"),
    *("this", "those", "to", "what", "when", "where", "whether", "which", "who", "whoever", "whose", "with", "true"),
    *("false", "says", "returns", "raises", "gives", "makes", "is", "are", "has"),
}
"""Words that no function's docstring begins with, since they are no imperative verbs."""
PEOPLE = re.compile(r"\b(he|him|his|who|whoever|whom|somebody|nobody|anybody|everybody|someone|anyone)\b", re.I)
OPENINGS = re.compile(
    r"^(the same(?= (for|of|as|but|with|in|to)\b|[,.;:])|likewise\b|as above\b"
    r"|what(?!\b[^?]*\?)\b|whatever\b)",
    re.I,
)
RETIRED = re.compile(
    r"``(fsck|pact|bell|insist|shield|seats|doubt|joint|together|several|stationary|adopt|mend|upkeep|deadletter"
    r"|counting|logger|sharing)``"
)
"""Names that modules had before they were moved into folders, where they are named as modules."""


class Prose(NamedTuple):
    """A piece of prose: where it stands, what it describes, and its text."""

    place: str
    kind: str
    text: str


def prose_of(source: str, path: str) -> Iterator[Prose]:
    """Yield the docstrings and the comments of a module."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for at, statement in enumerate(body):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            if isinstance(statement.value.value, str):
                kind = _kind(node) if at == 0 and not isinstance(node, ast.If | ast.With | ast.Try) else "attribute"
                yield Prose(f"{path}:{statement.lineno}", kind, statement.value.value)
    comments: list[tuple[int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ")
        if token.type != tokenize.COMMENT or text.startswith(("type:", "noqa", "ruff:", "---", "pragma")):
            continue
        line, column = token.start
        if comments and comments[-1][0] == line - 1 and comments[-1][1] == column:
            comments[-1] = (line, column, f"{comments[-1][2]} {text}")
        else:
            comments.append((line, column, text))
    for line, _, text in comments:
        yield Prose(f"{path}:{line}", "comment", re.sub(r"\s*(#\s*)?(noqa|type: ignore).*", "", text))


def _kind(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        names = {each.id for each in node.decorator_list if isinstance(each, ast.Name)}
        names |= {each.attr for each in node.decorator_list if isinstance(each, ast.Attribute)}
        if node.name.startswith("test_"):  # its docstring states a promise
            return "test"
        return "attribute" if names & {"property", "cached_property", "setter"} else "function"
    return "class" if isinstance(node, ast.ClassDef) else "module" if isinstance(node, ast.Module) else "attribute"


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, without literal blocks, tables and the names of parameters."""
    plain: list[str] = []
    literal: int | None = None
    for line in text.expandtabs().splitlines():
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            plain.append("\n\n")
            continue
        if literal is not None:
            if indent > literal:
                continue
            literal = None
        if line.rstrip().endswith("::"):
            literal = indent
        if re.match(r"\s*(\||\+-|\.\. |>>>)", line):
            plain.append("\n\n")
            continue
        named = re.sub(r"^\s*([-*]|\d+\.|[`*]*\w+[`*]*( \([^)]*\))?:)\s+", "\n\n", line)
        titled = re.sub(r"^\s*[\w.]+:$", "\n\n", named)
        plain.append(titled.strip(" ").removesuffix("::"))
    joined = re.sub(r"``[^`]*``", "code", " ".join(plain).replace("\n\n ", "\n\n"))
    for paragraph in joined.split("\n\n"):
        yield from filter(
            None, (each.strip() for each in re.split(r"(?<=[.!?:;])[*)]*\s+", " ".join(paragraph.split())))
        )


def faults(prose: Prose) -> Iterator[str]:
    """Yield the faults of a piece of prose."""
    first = re.match(r"[A-Za-z']+", prose.text.strip())
    if prose.kind == "function" and first is not None and first.group().lower() in NOT_IMPERATIVE:
        yield f"{prose.place}: begins with {first.group()!r}, not with an imperative verb"
    for found in RETIRED.findall(prose.text):
        yield f"{prose.place}: the retired name {found!r}"
    for sentence in sentences(prose.text):
        if OPENINGS.match(sentence):
            yield f"{prose.place}: a sentence without a subject: {sentence[:60]!r}"
        if found := PEOPLE.search(sentence):
            yield f"{prose.place}: {found.group()!r} in {sentence[:60]!r}"
        if (count := len(sentence.split())) > WORDS_MAX:
            yield f"{prose.place}: {count} words in {sentence[:60]!r}"


def pieces_of(document: str) -> Iterator[str]:
    """Yield the paragraphs, the entries of lists and the cells of tables of a document in Markdown, without code."""
    document = re.sub(r"^(`{3,}).*?^\1$|<!--.*?-->", "", document, flags=re.DOTALL | re.MULTILINE)
    document = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", document))
    for paragraph in re.split(r"\n\s*\n", document):
        if paragraph.lstrip().startswith("|"):
            yield from (cell for line in paragraph.splitlines() for cell in line.strip().strip("|").split("|"))
        elif not paragraph.lstrip().startswith("#"):
            yield from (re.sub(r"^\s*([-*]|\d+\.)\s+", "", each) for each in _ENTRIES.split(paragraph))


_ENTRIES = re.compile(r"\n(?=\s*(?:[-*]|\d+\.)\s)")
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")] + PAGES


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents_keep_the_rules(path: Path) -> None:
    """Documents have short sentences, and name the persons and programs that they speak of."""
    found = document_faults(path.read_text(encoding="utf-8"))
    assert found == [], "\n".join(found)


def document_faults(document: str) -> list[str]:
    """Return the sentences of a document that are too long, or name no person or program."""
    found = (sentence for piece in pieces_of(document) for sentence in sentences(piece))
    return [each for each in found if PEOPLE.search(each) or len(each.split()) > WORDS_MAX]


@pytest.mark.parametrize(
    "document",
    [
        f"# Title\n\n{'word ' * 25}word.",
        f"- Short.\n- {'word ' * 25}word.",
        "| a |\n|---|\n| whoever asks |",
        "He asks.",
    ],
)
def test_document_rule_catches(document: str) -> None:
    """A long sentence or an unnamed person is found in a paragraph, in a list and in a table."""
    assert len(document_faults(document)) == 1


MODULES = [
    path for name in ("persistentqueue", "tests", "perf", "examples") for path in sorted((ROOT / name).rglob("*.py"))
]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_prose_keeps_the_rules(path: Path) -> None:
    """Each docstring and comment has named subjects, short sentences, and the terms of the glossary."""
    name = path.relative_to(ROOT).as_posix()
    found = [fault for prose in prose_of(path.read_text(encoding="utf-8"), name) for fault in faults(prose)]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('def f():\n    """The number."""', "imperative"),
        ('def f():\n    """Whether it is so."""', "imperative"),
        ('x = 1\n"""The bytes of who writes."""', "'who'"),
        ('def f():\n    """Return it. The same for others."""', "without a subject"),
        ("# What is done is done\nx = 1", "without a subject"),
        (f'"""{"word " * 25}word."""', "26 words"),
        ('"""A module (see ``fsck``)."""', "retired name"),
        ("# nobody knows\nx = 1", "'nobody'"),
    ],
)
def test_rule_catches(source: str, fault: str) -> None:
    """Each rule catches its counterexample."""
    assert any(fault in found for prose in prose_of(source, "x.py") for found in faults(prose))


@pytest.mark.parametrize(
    "source",
    [
        'class A:\n    """A thing."""\n\n    @property\n    def size(self):\n        """The number of items."""',
        'def f(a):\n    """Return it.\n\n    Args:\n        a: Bytes.\n\n    Thus::\n\n        who = 1\n"""',
        'def f():\n    """Write the frame; ' + 'a b c d e f g h i j k l m n o p q r; s t u v w x y z a b c d e f g."""',
        "x = 1  # noqa: E501\n",
    ],
)
def test_rule_lets_pass(source: str) -> None:
    """No rule reports a fault in prose that keeps the rules."""
    assert [found for prose in prose_of(source, "x.py") for found in faults(prose)] == []
