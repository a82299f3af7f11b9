"""Pure data and formats: bytes, sets of sequences, and what they add up to. No files, threads or clock."""
