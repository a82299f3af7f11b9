"""Several processes on one queue: rates, wake-ups, kills and idle connections.

- ``team``: starts the worker processes of a contender, and gives them work.
- ``rates``: the items per second of eight processes, and of one that is connected.
- ``wake_ups``: the time from a commit in one process to the wake-up of a consumer in another one.
- ``kills``: the time from the death of a worker, or of the owner, until another process has an item.
- ``connections``: the memory and processor time of an owner with a thousand idle connections.
"""
