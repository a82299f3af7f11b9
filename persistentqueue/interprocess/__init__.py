"""Without the lock: what another process than the owner can do, to enqueue, to consume, and to look.

This is the second interface of the package, beside the public names: the faces use it.
"""

from ..storage.publication import LATEST, Part, is_published, read_publication
from .consumer_requests import acknowledge, request_subscription
from .multi_writer import PartWriter, count_published, publish_parts, remove_parts
from .splits import Found, Onlooker, Split, look, partition, plan, read

__all__ = [
    "LATEST",
    "Found",
    "Onlooker",
    "Part",
    "PartWriter",
    "Split",
    "acknowledge",
    "count_published",
    "is_published",
    "look",
    "partition",
    "plan",
    "publish_parts",
    "read",
    "read_publication",
    "remove_parts",
    "request_subscription",
]
