"""The drawings of the command line: the live tables of ``top``, and the page with charts of ``report``."""
