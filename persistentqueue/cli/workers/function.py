"""The function of the verb ``worker``: from ``module:function`` to the function itself."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from ..parser import UsageError

_TEXT_CHARACTERS_MAX = 1000
"""Most characters of the text of an error: a log shows them, and a dead letter keeps no more."""


def function_at(place: str) -> Callable[[Any], object]:
    """Return the function at ``module:function``. Modules are found in the working directory, too.

    Raises ``UsageError`` if there is no such function, or if its call would not do the work.
    """
    module, _, name = place.partition(":")
    if not module or not name:
        raise UsageError(f"expected MODULE:FUNCTION, such as tasks:handle; found {place!r}")
    if module.endswith(".py") or "/" in module:
        raise UsageError(
            f"{place}: expected the name of a module, found that of a file: run the command in the directory of the "
            f"file, with {os.path.basename(module).removesuffix('.py')}:{name}"
        )
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{place}: the module {module} cannot be imported: {words_of(error)}: run the command in the directory of "
            "the module, or name that directory in PYTHONPATH"
        ) from error
    for each in name.split("."):
        if not hasattr(found, each):
            raise UsageError(f"{place}: the module {module} has no {name}: name a function that takes one item")
        found = getattr(found, each)
    if not callable(found):
        raise UsageError(f"{place}: {found!r} is no function: name a function that takes one item")
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise UsageError(
            f"{place}: a call of this function only begins its work: name a plain function, for example one that calls "
            "asyncio.run"
        )
    _need_one_item(place, found)
    function: Callable[[Any], object] = found
    return function


def _need_one_item(place: str, function: Callable[..., object]) -> None:
    """Raise ``UsageError`` if each call with an item alone would fail."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions that are written in C have none
        return
    try:
        signature.bind(b"")
    except TypeError as error:
        raise UsageError(
            f"{place}: expected a function that takes one item, found {signature}: {error}: name another one, or give "
            "its other arguments a default"
        ) from None


def need_finished(result: object) -> None:
    """Raise ``TypeError`` for the result of a call that has only begun its work, such as a coroutine, and close it."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if not inspect.isasyncgen(result):
            getattr(result, "close", lambda: None)()
        raise TypeError(
            f"the call has only begun its work: its result is {type(result).__name__}, expected a plain function, for "
            "example one that calls asyncio.run"
        )


def words_of(error: BaseException) -> str:
    """Return the type and the text of an error, as the reason of a dead letter has them; a long text is cut."""
    try:
        text = str(error)
    except Exception:  # an error of the user's own class
        text = "its text cannot be made"
    return f"{type(error).__name__}: {text[:_TEXT_CHARACTERS_MAX]}".encode(errors="backslashreplace").decode()
