"""The owner's side of worker processes: it serves its queue to them over a socket in the queue's directory."""
