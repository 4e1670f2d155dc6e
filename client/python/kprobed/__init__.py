"""Client of kprobed: dynamic kernel probes as a service.

``connect`` opens a connection; ``Client`` has the calls; ``EventStream`` iterates events, in
columns or row by row. Messages and enums are the generated ones in ``kprobed.v1`` (``from
kprobed.v1 import probe_pb2``); proto/reference describes each.
"""

from ._client import Client, connect
from ._columns import Address, Column, Context, Field, FieldKind, Group, MalformedError, Schema
from ._errors import Finding, KprobedError
from ._events import (
    Batch,
    CaughtUp,
    Cursor,
    Epoch,
    EventStream,
    Item,
    Loss,
    Row,
    Started,
    Watermark,
)

__all__ = [
    "Address",
    "Batch",
    "CaughtUp",
    "Client",
    "Column",
    "Context",
    "Cursor",
    "Epoch",
    "EventStream",
    "Field",
    "FieldKind",
    "Finding",
    "Group",
    "Item",
    "KprobedError",
    "Loss",
    "MalformedError",
    "Row",
    "Schema",
    "Started",
    "Watermark",
    "connect",
]
