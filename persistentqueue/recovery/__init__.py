"""Opening and repair: from a directory to an open store, and the salvage of data from a damaged queue."""
