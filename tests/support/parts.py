"""Part of the places of a campaign, for ``.ci/run``: each commit takes another one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
PARTS = int(os.environ.get("PARTS", "1"))
"""Number of parts of which one run takes one; ``PART`` says which."""


def in_part(places: Sequence[T]) -> Sequence[T]:
    """Return the places of this run: all of them unless ``PARTS`` is in the environment."""
    return places[int(os.environ.get("PART", "0")) % PARTS :: PARTS]
