"""Operations of other processes than the owner, without the lock of the queue: enqueue, consume and look.

This is the second interface of the package, beside the public names. ``spark`` is built on it.
"""

from ..core.block import Columns
from ..storage.publication import LATEST, Part, is_published, read_publication
from .consumer_requests import acknowledge, request_subscription
from .multi_writer import PartWriter, list_published, publish_parts, published_version, remove_parts
from .producer import is_reached, reached_version
from .splits import Found, FoundRun, Onlooker, Split, look, partition, plan, read, read_columns, wrong_keys

__all__ = [
    "LATEST",
    "Columns",
    "Found",
    "FoundRun",
    "Onlooker",
    "Part",
    "PartWriter",
    "Split",
    "acknowledge",
    "is_published",
    "is_reached",
    "list_published",
    "look",
    "partition",
    "plan",
    "publish_parts",
    "published_version",
    "reached_version",
    "read",
    "read_columns",
    "read_publication",
    "remove_parts",
    "request_subscription",
    "wrong_keys",
]
