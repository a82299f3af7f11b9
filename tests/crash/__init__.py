"""Every crash that a program can meet, on a disk that forgets. For the commands, see ``__main__``."""
