"""One kind of file each: segments, the log, the pool of empty files, the lock, and what other processes publish."""
