"""The first screen of ``help()``: a description, an example, and the parameters with their units."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Callable
from typing import Any

import pytest

import persistentqueue
from persistentqueue import OptionArguments, Options, PersistentQueue, Producer, Session, View, aio, compat
from persistentqueue.spark import Pipeline, StageHandoff
from persistentqueue.workers import SharedQueue, SharedSubscription, WorkerSession
from persistentqueue.workers.worker_state import WorkerState

CALLABLES = [getattr(persistentqueue, name) for name in persistentqueue.__all__]
FUNCTIONS = [each for each in CALLABLES if inspect.isfunction(each)]
CLASSES = [PersistentQueue, Session, Producer, View, persistentqueue.Subscription, persistentqueue.MemoryBudget]
CLASSES += [SharedQueue, SharedSubscription, WorkerSession]
CLASSES += [aio.Session, aio.ConnectedSession, aio.ConnectedSubscription]
CLASSES += [aio.PersistentQueue, aio.Subscription, aio.ConnectedQueue, aio.Queue, compat.Queue, StageHandoff, Pipeline]


def methods() -> list[tuple[str, Callable[..., Any]]]:
    """Return the public methods of the classes that users call, and the public functions.

    Those of ``WorkerState`` are for the package only.
    """
    found: list[tuple[str, Callable[..., Any]]] = [(each.__name__, each) for each in FUNCTIONS]
    for kind in CLASSES:
        for base in kind.__mro__:
            if base.__module__.startswith("persistentqueue"):
                found += [
                    (f"{kind.__module__}.{kind.__name__}.{name}", value)
                    for name, value in vars(base).items()
                    if inspect.isfunction(value)
                    and base is not WorkerState
                    and not name.startswith("_")
                    and getattr(kind, name) is value
                ]
    return found


def test_help_of_the_queue_begins_with_an_example() -> None:
    """The first screen describes a queue, shows an example, and begins the parameters."""
    text = pydoc.plain(pydoc.render_doc(PersistentQueue))
    first = text.splitlines()[:40]
    assert any("with PersistentQueue(" in line for line in first)
    assert any(line.strip(" |") == "Args:" for line in first)
    documented = inspect.getdoc(PersistentQueue) or ""
    parameters = {*inspect.signature(PersistentQueue).parameters, *inspect.signature(Options).parameters}
    for parameter in parameters - {"arguments"}:
        assert re.search(rf"^ +{parameter}: ", documented, re.MULTILINE), parameter


def test_no_disk_is_a_public_parameter() -> None:
    """No public callable takes the disk: only tests replace it, by ``CURRENT_DISK``."""
    callables: list[Callable[..., Any]] = [*CLASSES, *(method for _, method in methods())]
    for each in callables:
        assert "disk" not in inspect.signature(each).parameters, each


def test_options_and_their_keyword_arguments_are_the_same() -> None:
    """Each field of ``Options`` is a keyword argument of the same type, and there is no other argument."""
    assert OptionArguments.__annotations__.keys() == Options.__dataclass_fields__.keys()
    types = {name: field.type for name, field in Options.__dataclass_fields__.items()}
    assert {name: each.__forward_arg__ for name, each in OptionArguments.__annotations__.items()} == types


def test_help_of_flush_says_all() -> None:
    """The first screen describes a flush, shows an example, and has the parameters, with units."""
    first = pydoc.plain(pydoc.render_doc(Session.flush)).splitlines()[:24]
    assert any("session.flush()" in line for line in first)
    assert {"Args:", "marker:", "timeout:", "wait:"} < {line.split()[0] for line in first if line.strip()}
    text = inspect.getdoc(Session.flush) or ""
    for word in ("Args:", "Returns:", "Raises:", "seconds", "durable"):
        assert word.lower() in text.lower()


@pytest.mark.parametrize("each", [*CLASSES, *FUNCTIONS], ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_help_shows_no_address(each: Callable[..., Any]) -> None:
    """No default is shown by its address in memory."""
    assert not re.search(r"0x[0-9a-f]{6,}", pydoc.plain(pydoc.render_doc(each)))


def test_the_signature_of_a_block_says_so() -> None:
    """The signature of each ``transaction`` has the block that it returns, and no iterator that makes the block."""
    found = [method for name, method in methods() if name.rpartition(".")[2] == "transaction"]
    assert len(found) >= 5
    for method in found:
        assert re.match(r"Abstract(Async)?ContextManager\[", inspect.signature(method).return_annotation), method


@pytest.mark.parametrize(("name", "method"), methods(), ids=[name for name, _ in methods()])
def test_each_parameter_is_described(name: str, method: Callable[..., Any]) -> None:
    """``Args`` names each parameter of a public method or function."""
    documented = inspect.getdoc(method) or ""
    parameters = [each for each in inspect.signature(method).parameters if each not in {"self", "cls"}]
    if parameters:
        assert "Args:" in documented, name
    for parameter in parameters:
        assert re.search(rf"^ +\**{parameter}: ", documented, re.MULTILINE), f"{name}: {parameter}"
