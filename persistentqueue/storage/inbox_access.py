"""Publishing for another user's queue: the one way in which a queue is shared, and who may publish at all.

A queue is its user's alone: directories are made with mode 0700, files with 0600. To let a group publish, the user of
the queue opens three directories, and nothing else::

    chgrp GROUP QUEUE QUEUE/log QUEUE/inbox
    chmod 750 QUEUE QUEUE/log
    chmod 2770 QUEUE/inbox

The user of the queue must be in the group. In an inbox that is writable for its group, and gives its own group to new
files (set-group-ID), everybody publishes files that the group may read. The owner needs no more than that to serve
them: it renames them, which is its right in its own directories, and never writes to them.

Elsewhere nobody but the user of the inbox publishes, since what another user writes could never be read. The one
exception is the superuser, whose files everybody may read who may enter the inbox.
"""

from __future__ import annotations

from stat import S_ISGID, S_IWGRP

from ..errors import InboxAccessError
from ..system.disk import Disk

_OWN, _GROUP, _ALL = 0o600, 0o640, 0o644
_SUPERUSER = 0


def publication_mode(disk: Disk, inbox: str) -> int:
    """The mode of a file that this process publishes in this inbox, so that its owner can read it.

    Raises ``InboxAccessError``: it could not; and ``FileNotFoundError``.
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
    """Give the open file, which is new, this mode, whatever the process keeps back from new files (its umask)."""
    if mode != _OWN and disk.fstat(fd).st_mode & mode != mode:
        disk.fchmod(fd, mode)
