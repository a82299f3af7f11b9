"""Several processes on one queue: rates, wake-ups, kills and idle connections.

- ``team``: starts the worker processes of a contender, and gives them work.
- ``rates``: the items per second of eight processes, and of one that is connected.
"""
