"""Access to the inbox of another user's queue: the only way to share a queue, and the rules for publishing.

A queue belongs to its user alone: directories are made with mode 0700, files with 0600. To let a group publish, the
user of the queue opens three directories, and nothing else::

    chgrp GROUP QUEUE QUEUE/log QUEUE/inbox
    chmod 750 QUEUE QUEUE/log
    chmod 2770 QUEUE/inbox

The user of the queue must be in the group. The inbox is then writable for its group, and gives its own group to new
files (set-group-ID). In such an inbox every process publishes files that the group may read. The owner needs no more
than that to serve them. It renames them, which is its right in its own directories, and never writes to them.

In any other inbox only the user of the inbox publishes, since files of another user could never be read. The one
exception is the superuser: its files are readable for each user that may enter the inbox.

The schemas of rows belong to the user of the queue, also if the superuser has made them: that user adds schemas later,
and deletes them.
"""

from __future__ import annotations

from stat import S_ISGID, S_IWGRP

from ..errors import InboxAccessError
from ..system.disk import Disk
from ..system.path_errors import suppress

_OWN, _GROUP, _ALL = 0o600, 0o640, 0o644
_SUPERUSER = 0


def publication_mode(disk: Disk, inbox: str) -> int:
    """Return the mode of a file that this process publishes in this inbox, so that the owner can read it.

    Raises ``InboxAccessError`` if the owner could not read it, and ``FileNotFoundError`` if there is no inbox.
    """
    if is_shared(disk, inbox):
        return _GROUP
    found, user = disk.lstat(inbox), disk.geteuid()
    if user == found.st_uid:
        return _OWN
    if user == _SUPERUSER:
        return _ALL
    raise InboxAccessError(inbox, f"it is user {found.st_uid}'s alone, and this process is user {user}")


def is_shared(disk: Disk, inbox: str) -> bool:
    """Return whether the user of this inbox shares it with a group. Raises ``FileNotFoundError``."""
    found = disk.lstat(inbox)
    return bool(found.st_mode & S_IWGRP and found.st_mode & S_ISGID)


def make_readable(disk: Disk, fd: int, mode: int) -> None:
    """Give the open new file this mode, even if the umask of the process removed a part of it."""
    if mode != _OWN and disk.fstat(fd).st_mode & mode != mode:
        disk.fchmod(fd, mode)


def give_to_user(disk: Disk, fd: int, directory: str) -> None:
    """Give the open file to the user of the queue in this directory, if the superuser has made it.

    Do nothing if a container does not know that user.
    """
    if disk.geteuid() == _SUPERUSER:
        with suppress(OSError):
            disk.fchown(fd, disk.lstat(directory).st_uid, -1)
