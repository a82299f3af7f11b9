"""Tests of ``persistentqueue.codecs``."""
