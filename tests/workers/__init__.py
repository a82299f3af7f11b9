"""Worker processes: sessions of a queue that another process owns."""
