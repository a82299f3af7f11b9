"""The command ``python -m persistentqueue``, which runs the command ``persistentqueue`` (see ``cli``)."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
