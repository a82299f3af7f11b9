"""Every crash that a program can meet, on a disk that forgets; see ``__main__`` for the commands."""
