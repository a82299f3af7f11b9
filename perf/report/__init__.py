"""Writes measurements as JSON, Markdown tables and charts.

``tables`` does so for ``python -m perf``, ``programs`` for the programs of the section "Spark" of ``README.md``.
"""
