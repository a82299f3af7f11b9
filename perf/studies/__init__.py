"""Measurements other than the workloads. Each module is one program, or one part of ``python -m perf``."""
