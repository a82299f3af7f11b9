"""Pure data and formats: bytes, sets of sequences, and the state that they add up to. No files, threads or clock."""
