"""The operating system: access to the disk, sockets, forks, and the rights of other users."""
