"""Interruptions: Ctrl-C and other signals, and calls of several threads at once."""
