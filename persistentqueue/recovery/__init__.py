"""Opening and mending: from a directory to an open store, and what can be had from damage."""
