"""Threads around one engine, or around several: group commit, waiting, maintenance, retries."""
