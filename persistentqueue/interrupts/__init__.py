"""Interruptions: signal handlers in the middle of a call, and calls of several threads at once."""
