"""The rules of the standard library's queues that ``compat.Queue`` and ``aio.Queue`` share."""

from __future__ import annotations

import pytest

from persistentqueue.faces.lifecycle import Lifecycle, oldest


def test_unfinished_items_are_in_the_queue_or_got() -> None:
    """An item is unfinished from its put to its ``task_done``."""
    lifecycle = Lifecycle()
    assert (lifecycle.size(3), lifecycle.unfinished(3)) == (3, 3)
    lifecycle.undone += 1
    assert (lifecycle.size(2), lifecycle.unfinished(2)) == (2, 3)
    lifecycle.undone -= 1
    assert lifecycle.unfinished(2) == 2


def test_only_an_immediate_shutdown_drains() -> None:
    """Items remain in a queue that is shut down; an immediate shutdown leaves only those that were got, for good."""
    lifecycle = Lifecycle()
    lifecycle.undone = 1
    assert not lifecycle.is_shutdown
    lifecycle.shut_down(immediate=False)
    assert (lifecycle.is_shutdown, lifecycle.size(2), lifecycle.unfinished(2)) == (True, 2, 3)
    lifecycle.shut_down(immediate=True)
    lifecycle.shut_down(immediate=False)
    assert (lifecycle.is_shutdown, lifecycle.size(2), lifecycle.unfinished(2)) == (True, 0, 1)


def test_the_oldest_is_done_first() -> None:
    """``task_done`` is for the first of what was got; without any, it raises the standard library's error."""
    assert oldest(["one", "two"]) == "one"
    with pytest.raises(ValueError, match=r"^task_done\(\) called too many times$"):
        oldest([])
