"""Queues of each format version, as directories, with a description of their content beside them; see ``make``."""
