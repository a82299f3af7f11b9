"""Fixtures for the tests of several faces."""

from __future__ import annotations

import pytest


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give an owner a minute to answer a command: on a loaded machine, half a second is not enough."""
    for module in ("app", "summary"):
        monkeypatch.setattr(f"persistentqueue.cli.{module}.ANSWER_SECONDS", 60.0)
