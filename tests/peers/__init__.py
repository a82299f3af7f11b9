"""Test suites of other packages, taken from their installation and run against the matching interface of this one."""
