"""Errors of a call keep their class, text and plain attributes on their way to a worker."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

import persistentqueue
from persistentqueue.errors import (
    CodecError,
    CorruptionError,
    DiskFullError,
    HoldLostError,
    NotServedError,
    OutcomeUnknownError,
    PathDeniedError,
    PersistentQueueError,
    QueueDeletedError,
    QueueFullError,
    QueueLockedError,
    RefusedError,
    ResourceError,
    SessionLostError,
    SubscriptionNotFoundError,
)
from persistentqueue.serving.errors import decode_error, encode_error

CLASSES = sorted(
    {
        each
        for each in (getattr(persistentqueue, name) for name in persistentqueue.__all__)
        if isinstance(each, type) and issubclass(each, Exception) and not issubclass(each, Warning)
    },
    key=lambda each: each.__name__,
)
MADE = [
    CorruptionError("/q/data/1.seg", 12, "a whole block", "a cut one"),
    HoldLostError("/q", 1.5),
    NotServedError("/q", 7),
    NotServedError("/q", None),
    NotServedError("/q", None, exists=False),
    NotServedError("/q", 7, taken="/dead"),
    NotServedError("/q", None, in_doubt=True),
    OutcomeUnknownError("/q", "and no owner is there"),
    QueueDeletedError("/q"),
    RefusedError("/q", "no\nreason"),
    SessionLostError("/q", "which held 2 items for this session"),
    SubscriptionNotFoundError("/q", "a", ["b", "c"]),
    PathDeniedError(errno.EACCES, "Permission denied", "/q"),
    OSError(errno.EIO, "Input/output error", "/q/log"),
    OSError("only a text"),
    ValueError("a value"),
    TypeError("a type"),
    OverflowError("too large"),
    MemoryError("no memory"),
]


def made(kind: type[Exception], text: str) -> Exception:
    """Return an error of this class without the arguments of its constructor."""
    built_in: Any = kind
    while built_in.__module__ != "builtins":
        built_in = built_in.__base__
    error: Exception = built_in.__new__(kind, text)
    built_in.__init__(error, text)
    return error


def sent(error: BaseException) -> Exception:
    """Return the error as it arrives at the worker."""
    return decode_error(json.loads(json.dumps(encode_error(error))))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_class_arrives(kind: type[Exception]) -> None:
    """Each public error keeps its class, its text and its plain attributes."""
    error = made(kind, "what failed")
    vars(error).update(directory="/q", count=3, seconds=0.5, is_it=True, nothing=None)
    found = sent(error)
    assert (type(found), str(found), vars(found)) == (kind, str(error), vars(error))


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_errors_as_calls_raise_them_arrive(error: Exception) -> None:
    """Errors with several arguments, or with attributes that Python keeps, have their text at the worker."""
    found = sent(error)
    assert (type(found), str(found)) == (type(error), str(error))
    if isinstance(error, OSError):
        assert isinstance(found, OSError)
        assert (found.errno, found.strerror, found.filename) == (error.errno, error.strerror, error.filename)
    plain = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | None)}
    assert vars(found) == plain


def test_attributes_that_are_not_plain_stay() -> None:
    """An attribute that a json cannot hold is left out."""
    error = CodecError("decode", persistentqueue.codecs.JSON, b"\xff", ValueError("no json"), "/q")
    found = sent(error)
    assert (type(found), str(found)) == (CodecError, str(error))
    assert "item" not in vars(found)


class _OwnFullError(QueueFullError):
    """An error that a worker does not know."""


class _Odd(BaseException):
    """An error of no known class."""


def test_unknown_classes_become_the_nearest_known_one() -> None:
    """An error of an unknown class arrives as the nearest class above that the worker knows."""
    assert type(sent(made(_OwnFullError, "full"))) is QueueFullError
    assert type(sent(_Odd("odd"))) is PersistentQueueError
    assert type(sent(KeyError("key"))) is PersistentQueueError
    assert type(sent(PermissionError(1, "denied"))) is OSError
    error = UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
    assert (type(sent(error)), str(sent(error))) == (ValueError, str(error))


def test_an_unknown_class_is_named_in_the_text() -> None:
    """The text of an error that no class of the worker describes begins with the name of its class."""
    assert str(sent(KeyError("key"))) == "KeyError: 'key'"
    assert str(sent(_OwnFullError.__new__(_OwnFullError, "full"))) == "full"


def test_a_long_text_is_cut_in_its_middle() -> None:
    """A message has room for each error: a long text, and a long attribute, keep their beginning and their end."""
    found = sent(SubscriptionNotFoundError("/q", "n" * 10**6, [f"{number:06}" * 10_000 for number in range(100)]))
    assert isinstance(found, SubscriptionNotFoundError)
    assert str(found).startswith("/q: the queue has no subscription 'nnn")
    assert str(found).endswith("create one with queue.subscribe(name)")
    assert len(str(found)) + sum(map(len, map(str, vars(found).values()))) < 50_000
    assert "nnn ... nnn" in str(vars(found))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"error": "SystemExit", "text": "ends the process"},
        {"error": "Any", "text": "a name of the module"},
        {"error": "printable", "text": "a function"},
        {"error": ["ValueError"], "text": 7, "attributes": []},
        {"error": "eval", "attributes": {"__class__": "int", "__traceback__": 3}},
    ],
    ids=str,
)
def test_other_names_make_no_object(fields: dict[str, Any]) -> None:
    """A name that is no known error, or fields of another type, make a ``PersistentQueueError`` and nothing else."""
    found = decode_error(fields)
    assert type(found) is PersistentQueueError
    assert str(found) == str(fields.get("text", ""))
    assert vars(found) == {}


def test_attributes_that_cannot_be_set_are_left_out() -> None:
    """An attribute that the class computes, or of the wrong type, does not hide the error."""
    found = decode_error(
        {"error": "PathDeniedError", "text": "denied", "attributes": {"path": "/q", "args": 5, "errno": 13}}
    )
    assert isinstance(found, PathDeniedError)
    assert found.errno == errno.EACCES


def test_the_known_classes_are_those_of_the_package() -> None:
    """These errors have attributes that callers use: the number of the system, the limit, the process."""
    assert isinstance(sent(made(DiskFullError, "full")), ResourceError)
    found = sent(QueueLockedError("/q/lock", 12, "host", None))
    assert isinstance(found, QueueLockedError)
    assert (found.path, found.pid, found.host, found.since) == ("/q/lock", 12, "host", None)
