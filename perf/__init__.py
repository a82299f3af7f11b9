"""How fast the queue is, beside the bare disk and SQLite in the same run: ``python -m perf``. See ``README.md``."""
