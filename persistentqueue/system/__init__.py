"""The operating system and the interpreter: access to the disk, signals, forks, and the rights of other users."""
