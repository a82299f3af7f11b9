"""What the command line draws: tables that are watched, and a page of charts."""
