"""Queues of each format version, as directories, with what they contain beside them; see ``make``."""
