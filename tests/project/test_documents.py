"""The documents: their links lead to files, and the README stays short. ``test_pages`` runs their code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from persistentqueue.core.header import VERSION

from .test_pages import PAGES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
README_LINES_MAX = 250
README_BYTES_MAX = 16 * 1024
NAMES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "perf/README.md")
DOCUMENTS = [ROOT / name for name in NAMES] + PAGES


def test_readme_is_read_in_five_minutes() -> None:
    """The README stays short: the pages of ``docs`` have the details."""
    assert README.count("\n") <= README_LINES_MAX
    assert len(README.encode()) <= README_BYTES_MAX


def prose_of(document: Path) -> str:
    """Return the text of a document without its code."""
    return re.sub(r"^(`{3,}).*?^\1", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors_of(document: Path) -> set[str]:
    """Return the anchors that the headings of a document have on the site and in a repository."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose_of(document)), re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", each.strip().lower())) for each in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link in a document leads to a file, and to a heading of it unless that file is generated."""
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", prose_of(document)):
        file = document.parent / target if target else document
        assert file.exists(), target
        if anchor and "_generated/" not in file.read_text(encoding="utf-8"):
            assert anchor in anchors_of(file), f"{target}#{anchor}"


def test_modules_that_contributing_names_exist() -> None:
    """Every path of a module in CONTRIBUTING leads to a file, from the top or from the package."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`([a-z_/]+\.py)`", text))
    assert len(paths) > 10
    for path in paths:
        assert any((above / path).exists() for above in (ROOT, ROOT / "persistentqueue")), path


def test_the_page_about_versions_has_the_version_of_the_format() -> None:
    """The version of the format that the page names is the one that is written."""
    text = (ROOT / "docs" / "explanation" / "compatibility.md").read_text(encoding="utf-8")
    assert f"; now {VERSION} |" in text


def test_make_targets_exist() -> None:
    """Every ``make`` command that a document names is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"^make ([\w-]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
