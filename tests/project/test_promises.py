"""The index of promises: each promise of the README has tests and campaigns, and the page is current."""

from __future__ import annotations

import pytest

from tests.crash.__main__ import parser

from .promises import FOLDERS, PAGE, PROMISES, TESTS, count_tests, module, page, words_of_readme


def test_each_promise_has_tests_and_campaigns() -> None:
    """The table names the promises of the README, each with modules that hold tests."""
    assert [promise.name for promise in PROMISES] == list(words_of_readme())
    for promise in PROMISES:
        assert promise.campaigns
        for name in promise.tests:
            assert count_tests(module(name)) > 0, name


def test_each_module_holds_a_promise() -> None:
    """No module of these folders is without a promise."""
    named = {module(name) for promise in PROMISES for name in promise.tests}
    for folder in FOLDERS:
        assert set((TESTS / folder).glob("test_*.py")) <= named


@pytest.mark.parametrize("command", sorted({command for promise in PROMISES for command in promise.campaigns}))
def test_each_campaign_is_a_command(command: str) -> None:
    """``python -m tests.crash`` understands each command of the table."""
    assert callable(parser().parse_args(command.split()).do)


def test_page_is_current() -> None:
    """The page is the one that the table generates; otherwise run ``python -m tests.project.promises``."""
    assert PAGE.read_text(encoding="utf-8") == page()
