"""The code of the pages on Spark runs; ``test_pages`` runs that of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_pages import PAGES, is_on_spark, run_page


@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in PAGES if is_on_spark(page)], ids=lambda page: page.stem)
def test_code_of_a_page_on_spark_runs_twice(page: Path, tmp_path: Path) -> None:
    """The code of a page on Spark runs twice in one directory."""
    run_page(page, tmp_path)
    run_page(page, tmp_path)
