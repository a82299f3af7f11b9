"""The verbs ``serve`` and ``worker``: an owner that only serves, and processes that run a function for each item."""
