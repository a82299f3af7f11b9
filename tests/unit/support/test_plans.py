"""Plans: the campaigns of each, and a campaign that fails."""

from __future__ import annotations

import pytest

from tests.crash.__main__ import parser
from tests.crash.plans import CAMPAIGNS, PLANS, lines_of, run_lines


@pytest.mark.parametrize("plan", PLANS)
def test_each_line_of_a_plan_is_a_command(plan: str) -> None:
    """The command line of ``tests.crash`` takes each line of each plan."""
    lines = lines_of(plan, 7)
    assert len(set(lines)) == len(lines) > 5
    for line in lines:
        assert "{" not in line
        assert callable(parser().parse_args(line.split()).do)


def test_a_release_has_each_campaign_of_a_commit() -> None:
    """No campaign is smaller before a release than with a commit."""
    for campaign in CAMPAIGNS:
        if campaign.commit is not None:
            assert campaign.release is not None, campaign
            is_part = campaign.size == "--parts"  # one in so many
            assert (campaign.release <= campaign.commit) if is_part else (campaign.release >= campaign.commit), campaign


def test_a_search_begins_at_its_seed() -> None:
    """The seeds of a search are new, those of the other plans are always the same."""
    assert "random --first 7 --schedules 400000" in lines_of("search", 7)
    for plan in ("minute", "commit", "release"):
        first, second = ([line for line in lines_of(plan, seed) if " --seed " not in line] for seed in (7, 8))
        assert first == second


def test_each_commit_plants_another_part_of_the_bugs() -> None:
    """The seed of the plan chooses the part, also of the places at which a handler calls the queue."""
    for seed in (7, 8):
        assert f"mutants --jobs 2 --seed {seed} --parts 3" in lines_of("commit", seed)
        assert f"reentry --seed {seed} --parts 32" in lines_of("commit", seed)


def test_a_campaign_that_fails_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    """The other campaigns go on, each output is printed as a whole, and the failed line is returned."""
    good, bad = "random --count 0", "random --style none"
    assert run_lines([bad, good, bad], jobs=2) == [bad, bad]
    printed = capfd.readouterr().out
    assert printed.count(f"s: python -m tests.crash {bad}\nusage: python -m tests.crash random") == 2
    assert printed.count("invalid choice: 'none'") == 2
    assert f"s: python -m tests.crash {good}\n0 schedules, 0 lives, 0 violations" in printed
