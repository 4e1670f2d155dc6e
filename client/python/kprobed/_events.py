"""Event streams: items of a stream, and rows of a batch."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import grpc

from ._columns import Address, Context, Group, MalformedError, Schema, Value
from ._errors import KprobedError
from .v1 import event_pb2, event_service_pb2


@dataclass(frozen=True)
class Cursor:
    """A place in the log of a host: everything before it has been seen. ``str`` and ``parse`` are
    inverse to each other.
    """

    boot_id: str
    epoch: int
    """The run of the daemon."""
    sequence: int
    """The next event; counts from 0 in each epoch."""

    def __str__(self) -> str:
        return f"{self.boot_id}:{self.epoch}:{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Reads ``BOOT:EPOCH:SEQUENCE``, as ``kprobectl observe --cursor`` writes it. Raises ``ValueError``."""
        found = re.fullmatch(r"([^\s]*):([0-9]{1,20}):([0-9]{1,20})", text)
        if not found or int(found[2]) >= 1 << 64 or int(found[3]) >= 1 << 64:
            raise ValueError(f"`{text}` is not a cursor: write `BOOT:EPOCH:SEQUENCE`")
        return cls(found[1], int(found[2]), int(found[3]))

    def message(self) -> event_pb2.Cursor:
        return event_pb2.Cursor(boot_id=self.boot_id, epoch=self.epoch, sequence=self.sequence)

    @classmethod
    def of(cls, cursor: event_pb2.Cursor) -> Cursor:
        return cls(cursor.boot_id, cursor.epoch, cursor.sequence)


@dataclass(frozen=True)
class Started:
    """The first item."""

    subscriber_id: int
    """Identifies this subscriber in the ledger."""
    hostname: str
    kernel_release: str
    clock: str
    watermark_slack_ns: int
    """How long the daemon waits for events of other CPUs before it declares a watermark."""


@dataclass(frozen=True)
class Epoch:
    """The second item, and again when the history goes from one run of the daemon to the next.
    Earlier schemas are not valid any more.
    """

    cursor: Cursor
    may_miss: bool
    """Events may be missing before this."""


@dataclass(frozen=True)
class CaughtUp:
    """The end of the history: what follows is new."""

    cursor: Cursor


@dataclass(frozen=True)
class Watermark:
    """All events with an earlier time stamp were sent, but for those that are counted as late."""

    watermark_ns: int
    """Trace clock."""
    late_events: int


@dataclass(frozen=True)
class Loss:
    """Events that will never arrive. It comes before the first event that follows the gap."""

    cause: str
    """Lower snake case, such as ``overrun``; ``other`` for a cause that this version does not know."""
    cpu: int | None
    """``None``: any."""
    count: int | None
    """``None``: some; the ledger has the sum. 0: told with an earlier gap of the CPU."""
    before_ns: int | None
    """Trace-clock time of the first event after the gap; ``None``: there is none yet."""
    gaps: int
    """How many gaps this stands for; at least 1."""
    message: event_pb2.Loss
    """The message, which also says what a pause was."""


class Row:
    """One event, a reference into its batch."""

    def __init__(self, batch: Batch, group: Group, index: int) -> None:
        self.batch = batch
        self.group = group
        self.index = index

    @property
    def probe(self) -> str:
        """``GROUP/EVENT``."""
        return self.group.schema.probe

    @property
    def timestamp_ns(self) -> int:
        """Trace clock, nanoseconds."""
        return self.group.timestamp_ns(self.index)

    @property
    def wall_ns(self) -> int:
        """Wall clock, nanoseconds since 1970; cut off at 1970 and 2262."""
        return min(max(self.timestamp_ns + self.batch.wall_offset_ns, 0), (1 << 63) - 1)

    @property
    def cpu(self) -> int:
        return self.batch.cpu

    @property
    def tid(self) -> int | None:
        """Thread id in the initial pid namespace; ``None``: a projection left it out."""
        return self.group.tid(self.index)

    @property
    def tgid(self) -> int | None:
        """Id of the process; ``None``: not known."""
        task = self.batch.tasks.get(self.tid if self.tid is not None else -1)
        return (task.tgid or None) if task else None

    @property
    def comm(self) -> bytes | None:
        """Name of the task; ``None``: not known."""
        task = self.batch.tasks.get(self.tid if self.tid is not None else -1)
        return (task.comm or None) if task else None

    @property
    def context(self) -> Context | None:
        """Execution context; ``None``: not recorded soundly, or left out."""
        return self.group.context(self.index)

    @property
    def location(self) -> Address | None:
        """Where the probe sits, or which function returned; ``None`` for tracepoints."""
        return self.batch.address(self.group.ip(self.index))

    @property
    def return_location(self) -> Address | None:
        """Where a return probe returns to; ``None`` for all other probes."""
        return self.batch.address(self.group.return_ip(self.index))

    @property
    def fields(self) -> dict[str, Value]:
        """Values by name, in the order of the definition. ``None`` is a fault: the memory could not be read."""
        symbols = self.batch.symbols
        return {column.field.name: column.row(self.index, symbols) for column in self.group.columns}

    @property
    def unproven(self) -> tuple[str, ...]:
        """Names of the fields whose values are unproven: nothing tells whether their memory could be read."""
        return self.group.schema.unproven

    def to_json(self) -> dict[str, Any]:
        """The object that ``kprobectl observe -o json`` prints for this event. Integers beyond 2^53 are text."""
        fields = self.fields
        context = self.context
        flags = ("irqs_off", "hardirq", "softirq", "nmi", "need_resched", "bh_off", "preempt_depth", "migrate_disable_depth")
        second = datetime.fromtimestamp(self.wall_ns // 1_000_000_000, timezone.utc)
        texts = ((column.field, fields[column.field.name]) for column in self.group.columns)
        names = {field.name: text for field, value in texts if (text := field.text(value)) is not None}
        return {
            "type": "event",
            "time": f"{second:%Y-%m-%dT%H:%M:%S}.{self.wall_ns % 1_000_000_000:09}Z",
            "timestamp_ns": _json(self.timestamp_ns),
            "probe": self.probe,
            "cpu": self.cpu,
            "tid": self.tid,
            "tgid": self.tgid,
            "comm": _json(self.comm),
            "context": None if context is None else {flag: getattr(context, flag) for flag in flags},
            "location": _json(self.location),
            "return_location": _json(self.return_location),
            "fields": {name: _json(value) for name, value in fields.items()},
            "faults": [name for name, value in fields.items() if value is None or isinstance(value, list) and None in value],
            "unproven": list(self.unproven),
            **({"names": names} if names else {}),
        }


def _json(value: Value) -> Any:
    if isinstance(value, Address):
        return str(value)
    # Beyond that, readers that take every number for a double would change it.
    if isinstance(value, int) and abs(value) > 1 << 53:
        return str(value)
    if isinstance(value, list):
        return [_json(one) for one in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    return value


class Batch:
    """Events of one CPU."""

    def __init__(self, batch: event_pb2.EventBatch, schemas: dict[int, Schema], wall_offset_ns: int) -> None:
        self.cpu: int = batch.cpu
        self.sequence: int = batch.sequence
        """Where in the log the entry begins that these events are from."""
        self.end_sequence: int = batch.sequence + batch.log_events
        """Where it ends: everything before is seen with this batch."""
        self.wall_offset_ns = wall_offset_ns
        """Wall clock minus trace clock, nanoseconds."""
        groups = []
        for group in batch.groups:
            if group.schema_id not in schemas:
                raise MalformedError(f"batch refers to schema {group.schema_id}, which was not sent before")
            groups.append(Group(schemas[group.schema_id], group))
        self.groups = tuple(groups)
        self.tasks = {task.tid: task for task in batch.tasks}
        """What is known of the tasks that occur here, by thread id."""
        self.symbols = {symbol.address: symbol.text for symbol in batch.symbols}
        """Names of kernel addresses that occur here."""

    def __len__(self) -> int:
        return sum(group.rows for group in self.groups)

    def address(self, address: int | None) -> Address | None:
        return None if address is None else Address(address, self.symbols.get(address))

    def rows(self) -> Iterator[Row]:
        """All events in the order of time; of two at the same time, that of the earlier group comes first."""
        order = ([(group.timestamp_ns(row), number, row) for row in range(group.rows)] for number, group in enumerate(self.groups))
        for _, number, row in heapq.merge(*order):
            yield Row(self, self.groups[number], row)


Item = Started | Epoch | Schema | Batch | Loss | CaughtUp | Watermark


class EventStream(Iterator[Item]):
    """Items of a stream. Close it, or use it in a ``with``, when it is not needed any more: the
    daemon goes on sending until then.

    It does not connect again by itself: ask for a new stream with ``after=stream.cursor``, and no
    event comes twice or is missing without a ``Loss``.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._decoder = Decoder()

    @property
    def cursor(self) -> Cursor | None:
        """Where to go on: after everything that was read so far. ``None`` before ``Epoch``."""
        return self._decoder.cursor

    def __next__(self) -> Item:
        """The next item. Raises ``KprobedError`` if the stream fails, and ``MalformedError``, after
        which it can be read on.
        """
        while True:
            try:
                message = next(self._call)
            except grpc.RpcError as error:
                raise KprobedError.of(error) from error
            item = self._decoder.item(message)
            if item is not None:
                return item

    def rows(self) -> Iterator[Row]:
        """Only the events, one by one. Losses are not shown: look at items if they matter."""
        for item in self:
            if isinstance(item, Batch):
                yield from item.rows()

    def close(self) -> None:
        """Ends the stream."""
        self._call.cancel()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Decoder:
    """What is remembered between the messages of a stream."""

    def __init__(self) -> None:
        self.cursor: Cursor | None = None
        self._schemas: dict[int, Schema] = {}
        self._wall_offset_ns = 0

    def item(self, message: event_service_pb2.StreamEventsResponse) -> Item | None:
        """Makes an item of a message; ``None`` for one that only says where the stream is."""
        kind = message.WhichOneof("message")
        if kind == "started":
            started = message.started
            self._learn_clock(started)
            return Started(
                started.subscriber_id, started.hostname, started.kernel_release, started.clock_name, started.watermark_slack_ns
            )
        if kind == "epoch":
            self._schemas.clear()
            if not message.epoch.HasField("cursor"):
                raise MalformedError("an epoch without a cursor")
            return Epoch(self._go_on(message.epoch.cursor), message.epoch.may_miss)
        if kind == "schema":
            schema = Schema.of(message.schema)
            self._schemas[schema.id] = schema
            return schema
        if kind == "batch":
            self._learn_clock(message.batch)
            batch = Batch(message.batch, self._schemas, self._wall_offset_ns)
            if self.cursor is not None and batch.end_sequence > self.cursor.sequence:
                self.cursor = Cursor(self.cursor.boot_id, self.cursor.epoch, batch.end_sequence)
            return batch
        if kind == "loss":
            return _loss(message.loss)
        if kind == "caught_up":
            return CaughtUp(self._go_on(message.caught_up))
        if kind == "watermark":
            return Watermark(message.watermark.watermark_ns, message.watermark.late_events)
        if kind == "progress":
            self._go_on(message.progress)
            return None
        raise MalformedError("stream message without content")

    def _go_on(self, cursor: Any) -> Cursor:
        self.cursor = Cursor.of(cursor)
        return self.cursor

    def _learn_clock(self, message: Any) -> None:
        if message.HasField("clock"):
            self._wall_offset_ns = message.clock.wall_offset_ns


def _loss(loss: event_pb2.Loss) -> Loss:
    causes = event_pb2.LossCause.values()
    name = event_pb2.LossCause.Name(loss.cause) if loss.cause in causes and loss.cause else "LOSS_CAUSE_OTHER"
    return Loss(
        cause=name.removeprefix("LOSS_CAUSE_").lower(),
        cpu=loss.cpu if loss.HasField("cpu") else None,
        count=loss.count if loss.HasField("count") else None,
        before_ns=loss.before_ns or None,
        gaps=max(loss.gaps, 1),
        message=loss,
    )
