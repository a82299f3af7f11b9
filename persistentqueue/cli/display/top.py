"""The loop of ``top``: looks at queues from outside, at an interval, and shows each look."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice

from persistentqueue import MissingExtraError, QueueNotFoundError, View

from ..output import answer
from ..streams import PROBLEMS, WELL, is_live, written
from ..summary import named, queues_in
from .watch import Watched, document_of_look


def watch(path: str, names: Sequence[str], interval: float, once: bool, as_json: bool) -> int:
    """Look and show until an interrupt, or for two looks if ``once``, and return the exit status.

    If the first look fails for every queue, the first of these errors is raised. Without rich, which JSON does not
    need, ``MissingExtraError`` is raised.
    """
    looks = islice(_looks(path, names, interval), 2 if once else None)
    queues: list[Watched] = []
    try:
        if as_json:
            for queues in looks:
                answer({"queues": [document_of_look(queue) for queue in queues]})
        else:
            queues = _show(looks, path, bool(names), interval, once)
    except KeyboardInterrupt:
        return WELL
    return PROBLEMS if any(queue.error for queue in queues) else WELL


def _looks(path: str, names: Sequence[str], interval: float) -> Iterator[list[Watched]]:
    """Yield the queues after each look: those that were named, or else those that exist at that time."""
    known: dict[str, Watched] = {}
    due = time.monotonic()
    for number in count():
        time.sleep(max(due - time.monotonic(), 0))
        due = max(due + interval, time.monotonic())
        meant = list(names) or queues_in(path)
        # A queue that was deleted may be made again: it is then another queue, with a history of its own.
        kept = {name: each for name, each in known.items() if not isinstance(each.failure, QueueNotFoundError)}
        known = {name: kept.get(name) or Watched(name, View(path, named(name))) for name in meant}
        for queue in known.values():
            queue.look()
        failures = [queue.failure for queue in known.values() if queue.failure is not None]
        if not number and len(failures) == len(known):
            raise failures[0]
        yield list(known.values())


def _show(looks: Iterator[list[Watched]], path: str, is_chosen: bool, interval: float, once: bool) -> list[Watched]:
    """Draw each look: in place on a terminal, otherwise one picture below the other. If ``once``, draw the last one.

    A terminal that calls itself ``dumb`` or ``unknown`` cannot be drawn in place.

    Return the queues after the last look.
    """
    try:
        from .console import Live, console  # noqa: PLC0415 - the optional dependency, as the next one
        from .screen import draw  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "rich":
            raise
        raise MissingExtraError("top without --json", "cli") from None
    screen, queues = console(), []
    if once:
        *_, queues = looks
        with written("stdout"):
            screen.print(draw(path, queues, is_chosen, interval, screen.width))
        return queues
    if not is_live(sys.stdout) or screen.is_dumb_terminal:
        for queues in looks:
            screen.print(draw(path, queues, is_chosen, interval, screen.width))
        return queues
    with Live(console=screen, screen=True, auto_refresh=False) as live:
        for queues in looks:
            live.update(draw(path, queues, is_chosen, interval, *screen.size), refresh=True)
    return queues
