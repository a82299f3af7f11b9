"""The side of the worker processes: queues that another process owns, their sessions, and the take-over of an owner."""

from ..serving.server import leave_together
from .connecting import connect, connect_options
from .owner import STOP
from .shared_queue import SharedQueue, SharedSubscription, Sizes, session_at_owner
from .worker_session import WorkerSession

__all__ = [
    "STOP",
    "SharedQueue",
    "SharedSubscription",
    "Sizes",
    "WorkerSession",
    "connect",
    "connect_options",
    "leave_together",
    "session_at_owner",
]
