"""``top``: queues at work, looked at again and again from outside."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count

from rich.live import Live

from persistentqueue import View

from .app import PROBLEMS, WELL, answer, console, is_live
from .look import named
from .screen import draw
from .watch import Watched, document_of_look


def watch(path: str, names: Sequence[str], is_chosen: bool, interval: float, once: bool, as_json: bool) -> int:
    """Look, and show, until somebody interrupts; the exit status."""
    queues = [Watched(name, View(path, named(name))) for name in names]
    try:
        for _ in _looks(queues, interval, 2 if once else None) if as_json or once else ():
            if as_json:
                answer({"queues": [document_of_look(queue) for queue in queues]})
        if once and not as_json:
            console().print(draw(path, queues, is_chosen, interval, console().width))
        elif not as_json:
            _live(path, queues, is_chosen, interval)
    except KeyboardInterrupt:
        return WELL
    return PROBLEMS if any(queue.error for queue in queues) else WELL


def _looks(queues: Sequence[Watched], interval: float, most: int | None) -> Iterator[int]:
    """Look at all of them, again and again, or so many times."""
    due = time.monotonic()
    for number in range(most) if most is not None else count():
        if number:
            due = max(due + interval, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0))
        for queue in queues:
            queue.look()
        yield number


def _live(path: str, queues: Sequence[Watched], is_chosen: bool, interval: float) -> None:
    screen = console()
    if not is_live(sys.stdout):
        for _ in _looks(queues, interval, None):
            screen.print(draw(path, queues, is_chosen, interval, screen.width))
        return
    with Live(console=screen, screen=True, auto_refresh=False) as live:
        for _ in _looks(queues, interval, None):
            live.update(draw(path, queues, is_chosen, interval, screen.width), refresh=True)
