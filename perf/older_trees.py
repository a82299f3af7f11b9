"""Lets the harness run with a package from before its modules were moved into folders.

The harness imports a few modules of the package beside its public names. An older tree has them under other names.
This module imports nothing of ``perf`` or of the package when it is loaded: aliases must exist before the harness does.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

MOVED = {
    "persistentqueue.core.checksum": "persistentqueue.checksum",
    "persistentqueue.system.disk": "persistentqueue.disk",
}
"""Modules that ``perf.compare`` and its imports name, by their present names, and their names in an older tree."""


def alias_moved_modules() -> None:
    """Make the modules of an older tree importable by their present names; do nothing in a present tree.

    The package must be importable. An entry of ``sys.modules`` is enough: ``from a.b.c import d`` looks there first.
    """
    tree = Path(str(importlib.import_module("persistentqueue").__file__)).parent.parent
    for present, older in MOVED.items():
        # An attempt to import it would not tell: an editable installation finds it in the tree that is installed.
        if not tree.joinpath(*present.split(".")).with_suffix(".py").exists():
            sys.modules[present] = importlib.import_module(older)
