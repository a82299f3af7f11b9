"""Lets ``perf.compare`` measure a commit from before the modules of the package were moved into folders.

The harness imports a few internal modules of the package. An older tree has these modules under other names. This
module imports nothing of ``perf``, because the aliases must exist before the harness is imported.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

MOVED = {
    "persistentqueue.core.checksum": "persistentqueue.checksum",
    "persistentqueue.system.disk": "persistentqueue.disk",
}
"""The modules that ``perf.compare`` and its imports need: their present names, and their names in an older tree."""


def alias_moved_modules() -> None:
    """Make the modules of an older tree importable by their present names. Do nothing in a present tree.

    The package must be importable. An entry in ``sys.modules`` suffices: ``from a.b.c import d`` looks there first.
    """
    tree = Path(str(importlib.import_module("persistentqueue").__file__)).parent.parent
    for present, older in MOVED.items():
        # Importing it would not tell: an editable installation finds it in the installed tree.
        if not tree.joinpath(*present.split(".")).with_suffix(".py").exists():
            sys.modules[present] = importlib.import_module(older)
