"""One writer, without threads: commits, reads, trims, compaction, and the adoption of what was published."""
