"""The programs of the pages on Spark run; ``test_pages`` runs those of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_pages import PAGES, code_of, is_on_spark, run_fence

PROGRAMS = [
    pytest.param(page, *fence, id=f"{page.stem}-{number}")
    for page in PAGES
    if is_on_spark(page)
    for number, fence in enumerate(code_of(page), 1)
]


@pytest.mark.spark
@pytest.mark.parametrize(("page", "language", "code"), PROGRAMS)
def test_a_program_on_spark_runs_twice(page: Path, language: str, code: str, tmp_path: Path) -> None:
    """Each program runs twice in one directory, without those before it: a reader finds no trap."""
    run_fence(page, language, code, tmp_path)
    run_fence(page, language, code, tmp_path)
