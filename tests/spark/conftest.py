"""Fixtures of the tests of the connector for Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pipelines import Flow


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    """Yield the maker of pipelines in ``tmp_path/flow``."""
    flow = Flow(tmp_path)
    yield flow
    flow.close()
