"""The common part of ``compat`` and ``aio``: the rules of the standard library's queues, and refusals."""
