"""Sessions on a Python without a GIL: an error leaves none of them in use. Another Python stands for that one here."""

from __future__ import annotations

import pytest

from persistentqueue.interrupts import call_guard
from persistentqueue.interrupts.call_guard import BUSY, TORN, SessionCalls, end_all


class Calls(SessionCalls):
    """The calls of a session that counts its cleanups."""

    cleanups = 0

    def _clean_up(self) -> None:
        self.cleanups += 1


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Return a session in a call, as on a free-threaded Python."""
    monkeypatch.setattr(call_guard, "FREE_THREADED", True)
    session = Calls()
    session._busy = BUSY
    return session


def test_an_interruption_before_the_cleanup_leaves_no_session_in_use(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Ctrl-C comes before the cleanup of a call that raised, the next call of the session cleans up first."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Calls, "_end_badly", interrupted)
        with pytest.raises(KeyboardInterrupt):
            end_all([calls])
    assert calls.cleanups == 0
    calls._begin()
    assert (calls.cleanups, calls._busy) == (1, BUSY)


def test_a_call_that_is_refused_prevents_no_cleanup(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a call of another thread has the token for a moment, and is then refused, the call that raised cleans up."""
    claims, refusals = SessionCalls._claims, [BUSY]

    def refused_once(session: SessionCalls) -> bool:
        return not refusals.pop() if refusals else claims(session)

    monkeypatch.setattr(Calls, "_claims", refused_once)
    end_all([calls])
    assert (calls.cleanups, refusals) == (1, [])
    assert calls._busy not in {BUSY, TORN}
