"""The engine of one queue, without threads of its own: commits, reading, trims, compaction, and adoption."""
