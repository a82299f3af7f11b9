"""The README's snippets that use Spark run; ``test_documents`` runs the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_documents import ON_SPARK, run
from .test_pages import PAGES, is_on_spark, run_page

IN_TURN = "import sys\nfor snippet in sys.argv[1:]:\n    exec(compile(snippet, snippet, 'exec'), {})"


@pytest.mark.spark
def test_readme_snippets_run_on_spark(tmp_path: Path) -> None:
    """The snippets run one after the other: they share a Java and its directory, but no names."""
    assert len(ON_SPARK) == 3
    run(IN_TURN, tmp_path, *ON_SPARK)


@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in PAGES if is_on_spark(page)], ids=lambda page: page.stem)
def test_code_of_a_page_on_spark_runs_twice(page: Path, tmp_path: Path) -> None:
    """The code of a page on Spark runs twice in one directory."""
    run_page(page, tmp_path)
    run_page(page, tmp_path)
