"""One module for each kind of file: segments, the log, the pool of empty files, the lock, and published files."""
