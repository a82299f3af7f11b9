"""Typed rows: items that have columns, with the schemas that the queue keeps.

The codec ``RowCodec`` is for Python, and ``option("format", …)`` of the data source for Spark. Both see the same rows.
The formats are ``arrow``, ``avro`` and ``json``. The queue keeps each schema under a number. A later schema may add
columns that can be null. Any other change raises ``SchemaMismatchError``.
"""

from .codec import RowCodec
from .errors import SchemaMismatchError, SchemaNotFoundError

__all__ = ["RowCodec", "SchemaMismatchError", "SchemaNotFoundError"]
