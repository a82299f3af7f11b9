"""The test suites of others, taken from where they are installed and run against our faces."""
