"""Measurements that are not workloads.

Each module is a program of its own, a part of ``python -m perf``, or both.
"""
