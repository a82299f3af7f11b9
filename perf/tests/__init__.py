"""The tests of the measurements themselves."""
