"""The operating system and the interpreter: the door to the disk, and what signals, forks and other users may do."""
