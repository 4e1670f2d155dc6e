"""Columns of events, checked against their schema before they are read.

Owns the decoding of bytes. Bytes that contradict the schema raise ``MalformedError`` when a group is
created; after that no index below the number of values can fail.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from ._notation import text_of
from .v1 import event_pb2

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

# The letters of `array` and `memoryview` for widths in bytes.
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}
_SIGNED = {1: "b", 2: "h", 4: "i", 8: "q"}


class MalformedError(Exception):
    """The daemon sent a message that contradicts the API or the schema."""


class FieldKind(Enum):
    """What the values of a field are, and the Python type of one."""

    UNSIGNED = event_pb2.FIELD_TYPE_UNSIGNED
    """``int``."""
    SIGNED = event_pb2.FIELD_TYPE_SIGNED
    """``int``."""
    CHAR = event_pb2.FIELD_TYPE_CHAR
    """``bytes`` of length 1."""
    SYMBOL = event_pb2.FIELD_TYPE_SYMBOL
    """``Address``."""
    STRING = event_pb2.FIELD_TYPE_STRING
    """``bytes``, not necessarily UTF-8."""


@dataclass(frozen=True)
class Field:
    """One field of a probe's events."""

    name: str
    kind: FieldKind
    width: int
    """Bytes of one value: 1, 2, 4 or 8. 0 for strings."""
    hexadecimal: bool
    """Whether integers are meant to be shown in hexadecimal."""
    array_length: int
    """Values in an array. 0: not an array."""
    fault_detected: bool
    """Whether a read that failed is distinguished from a value. If not, the values of this field are unproven."""
    notation: int
    """How people write its numbers: a ``FieldNotation``."""
    names: Mapping[int, str]
    """Names of numbers."""

    def text(self, value: Value) -> str | None:
        """What people write for a value, such as ``ENOENT``; ``None`` if that is the value itself."""
        return text_of(self.notation, self.names, value, self.width)

    @classmethod
    def of(cls, probe: str, field: event_pb2.EventField) -> Field:
        widths = {
            event_pb2.FIELD_TYPE_UNSIGNED: (1, 2, 4, 8),
            event_pb2.FIELD_TYPE_SIGNED: (1, 2, 4, 8),
            event_pb2.FIELD_TYPE_CHAR: (1,),
            event_pb2.FIELD_TYPE_SYMBOL: (8,),
            event_pb2.FIELD_TYPE_STRING: (0,),
        }
        if field.width not in widths.get(field.type, ()):
            raise MalformedError(f"field `{field.name}` of `{probe}` has type {field.type} with a width of {field.width} bytes")
        return cls(
            name=field.name,
            kind=FieldKind(field.type),
            width=field.width,
            hexadecimal=field.base == event_pb2.FIELD_BASE_HEX,
            array_length=field.array_length,
            fault_detected=field.fault_detected,
            notation=field.notation,
            # Of a number with several names the first is its name.
            names={one.number: one.name for one in reversed(field.names)},
        )

    @property
    def values_per_row(self) -> int:
        return max(self.array_length, 1)


@dataclass(frozen=True)
class Schema:
    """The fields of a probe's events."""

    id: int
    probe: str
    """``GROUP/EVENT``."""
    probe_uid: int
    """Never given out twice on a host."""
    is_return: bool
    fields: tuple[Field, ...]

    @classmethod
    def of(cls, schema: event_pb2.EventSchema) -> Schema:
        fields = tuple(Field.of(schema.probe, field) for field in schema.fields)
        return cls(schema.schema_id, schema.probe, schema.probe_uid, schema.is_return, fields)

    @property
    def unproven(self) -> tuple[str, ...]:
        """Names of the fields whose values are unproven."""
        return tuple(field.name for field in self.fields if not field.fault_detected)


@dataclass(frozen=True)
class Address:
    """A kernel address, and ``SYMBOL+0xOFFSET/0xSIZE`` if its name is known."""

    address: int
    text: str | None = None

    def __str__(self) -> str:
        return self.text if self.text is not None else f"{self.address:#x}"


@dataclass(frozen=True)
class Context:
    """In which context an event happened: the kernel's ``common_flags`` and ``common_preempt_count``."""

    flags: int
    preempt_count: int

    irqs_off = property(lambda self: bool(self.flags & 0x01))
    # At once (0x04), once preemption is on again (0x20), or lazily (0x02, since 6.13).
    need_resched = property(lambda self: bool(self.flags & 0x26))
    hardirq = property(lambda self: bool(self.flags & 0x08))
    softirq = property(lambda self: bool(self.flags & 0x10))
    nmi = property(lambda self: bool(self.flags & 0x40))
    bh_off = property(lambda self: bool(self.flags & 0x80))
    preempt_depth = property(lambda self: self.preempt_count & 0x0F)
    migrate_disable_depth = property(lambda self: self.preempt_count >> 4)


Value = int | bytes | Address | list[Any] | None
"""One value: ``None`` is a fault, a list an array."""


def numbers(data: bytes, letter: str) -> memoryview[int]:
    """Little-endian numbers as a typed view: without a copy on little-endian machines."""
    if sys.byteorder == "little" or letter in "bB":
        view: Any = memoryview(data) if data else memoryview(array(letter))
        return cast("memoryview[int]", view.cast("B").cast(letter))
    swapped = array(letter, data)
    swapped.byteswap()
    return cast("memoryview[int]", memoryview(swapped))


class Column:
    """The values of one field in all events of a group. Value ``i`` of event ``row`` of an array
    has index ``row * array_length + i``.
    """

    def __init__(self, probe: str, field: Field, rows: int, column: event_pb2.Column) -> None:
        self.field = field
        self.rows = rows
        count = rows * field.values_per_row
        self._count = count

        def fail(what: str) -> MalformedError:
            return MalformedError(f"field `{field.name}` of `{probe}` with {rows} rows: {what}")

        if column.faults and len(column.faults) != (count + 7) // 8:
            raise fail(f"{len(column.faults)} bytes of fault bits")
        self._faults = column.faults
        if field.kind is FieldKind.STRING:
            if column.values:
                raise fail(f"{len(column.values)} bytes of values")
            if len(column.offsets) != 4 * (count + 1):
                raise fail(f"{len(column.offsets)} bytes of offsets")
            self._numbers = numbers(column.offsets, "I")
            offsets = self._numbers.tolist()
            if offsets[-1] > len(column.data) or any(a > b for a, b in zip(offsets, offsets[1:])):
                raise fail(f"offsets that do not lie in order within {len(column.data)} bytes of data")
            self._data = column.data
        else:
            values = column.values
            if rows > 1 and len(values) == field.values_per_row * field.width:
                # The values of one row, which all rows have.
                values *= rows
            if len(values) != count * field.width:
                raise fail(f"{len(column.values)} bytes of values")
            if column.offsets or column.data:
                extra = len(column.offsets) + len(column.data)
                raise fail(f"{extra} bytes of texts and their offsets, and the field has numbers")
            letters = _SIGNED if field.kind is FieldKind.SIGNED else _UNSIGNED
            self._numbers = numbers(values, letters[field.width])
            self._data = b""

    def __len__(self) -> int:
        """Number of values: more than events for an array."""
        return self._count

    @property
    def numbers(self) -> memoryview[int]:
        """All values of a scalar field as a typed view without a copy, faults included, which are 0.

        Raises ``TypeError`` for strings.
        """
        if self.field.kind is FieldKind.STRING:
            raise TypeError(f"`{self.field.name}` has strings: use `strings`")
        return self._numbers

    def numpy(self) -> NDArray[Any]:
        """The same as a numpy array without a copy, two-dimensional for an array field. Needs numpy."""
        import numpy

        flat: numpy.ndarray[Any, Any] = numpy.asarray(self.numbers)
        return flat.reshape(self.rows, self.field.array_length) if self.field.array_length else flat

    @property
    def strings(self) -> list[bytes]:
        """All values of a string field, faults included, which are empty. Raises ``TypeError`` for scalars."""
        if self.field.kind is not FieldKind.STRING:
            raise TypeError(f"`{self.field.name}` has numbers: use `numbers`")
        offsets = self._numbers.tolist()
        return [self._data[start:end] for start, end in zip(offsets, offsets[1:])]

    @property
    def has_faults(self) -> bool:
        """Whether the memory of any value could not be read."""
        return any(self._faults)

    def is_fault(self, index: int) -> bool:
        """Whether the memory of this value could not be read. Such a value is 0 or empty, and means nothing."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        return bool(self._faults) and bool(self._faults[index // 8] >> (index % 8) & 1)

    def value(self, index: int, symbols: Mapping[int, str] | None = None) -> Value:
        """One value with its meaning; ``None`` is a fault."""
        if self.is_fault(index):
            return None
        if self.field.kind is FieldKind.STRING:
            return self._data[self._numbers[index] : self._numbers[index + 1]]
        number = self._numbers[index]
        if self.field.kind is FieldKind.CHAR:
            return bytes([number])
        if self.field.kind is FieldKind.SYMBOL:
            return Address(number, (symbols or {}).get(number))
        return number

    def row(self, row: int, symbols: Mapping[int, str] | None = None) -> Value:
        """What one event has: a value, or the list of an array."""
        if self.field.array_length == 0:
            return self.value(row, symbols)
        start = row * self.field.array_length
        return [self.value(index, symbols) for index in range(start, start + self.field.array_length)]


class Group:
    """Events of one probe on one CPU, in the order of time."""

    def __init__(self, schema: Schema, group: event_pb2.EventGroup) -> None:
        self.schema = schema
        self.rows: int = group.rows
        self._base_ns: int = group.base_ns
        probe = schema.probe

        if len(group.offsets_ns) != 4 * self.rows:
            raise MalformedError(f"`offsets_ns` of `{probe}` has {len(group.offsets_ns)} bytes for {self.rows} rows")
        self._offsets_ns = numbers(group.offsets_ns, "I")
        offsets = self._offsets_ns.tolist()
        late = bool(offsets) and self._base_ns + offsets[-1] >= 1 << 64
        if late or any(a > b for a, b in zip(offsets, offsets[1:])):
            raise MalformedError(f"the time stamps of `{probe}` are not in order")
        if group.return_ips and not schema.is_return:
            raise MalformedError(f"`{probe}` is not a return probe, and its batch has return addresses")
        if len(group.columns) != len(schema.fields):
            raise MalformedError(f"`{probe}` has {len(schema.fields)} fields, and its batch has {len(group.columns)} columns")
        self._tids = self._packed("tids", group.tids, "i")
        self._flags = self._packed("flags", group.flags, "B")
        self._preempt_counts = self._packed("preempt_counts", group.preempt_counts, "B")
        self._ips = self._packed("ips", group.ips, "Q")
        self._return_ips = self._packed("return_ips", group.return_ips, "Q")
        self.columns = tuple(
            Column(probe, field, self.rows, column) for field, column in zip(schema.fields, group.columns)
        )

    def _packed(self, name: str, data: bytes, letter: str) -> memoryview[int] | None:
        """A column that may hold one value for all rows. ``None``: a projection left it out, or
        such events do not have it.
        """
        if not data:
            return None
        width = array(letter).itemsize
        if len(data) not in (width, self.rows * width):
            raise MalformedError(f"`{name}` of `{self.schema.probe}` has {len(data)} bytes for {self.rows} rows")
        return numbers(data, letter)

    def __len__(self) -> int:
        return self.rows

    def column(self, name: str) -> Column | None:
        """The values of a field in all events; ``None``: the events have no such field, or a projection left it out."""
        return next((column for column in self.columns if column.field.name == name), None)

    @property
    def timestamps_ns(self) -> list[int]:
        """Trace-clock time stamps of all events, in nanoseconds. They never decrease."""
        return [self._base_ns + offset for offset in self._offsets_ns]

    def timestamp_ns(self, row: int) -> int:
        """Trace-clock time stamp of an event, in nanoseconds."""
        return self._base_ns + self._offsets_ns[row]

    @property
    def tids(self) -> Sequence[int] | None:
        """Thread ids of all events; ``None``: a projection left them out."""
        return self._all(self._tids)

    @property
    def ips(self) -> Sequence[int] | None:
        """Addresses of the probe in all events; ``None`` for tracepoints too."""
        return self._all(self._ips)

    def _all(self, packed: memoryview[int] | None) -> Sequence[int] | None:
        if packed is None:
            return None
        return packed.tolist() if len(packed) == self.rows else packed.tolist() * self.rows

    @staticmethod
    def _one(packed: memoryview[int] | None, row: int) -> int | None:
        if packed is None:
            return None
        return packed[row if len(packed) > 1 else 0]

    def tid(self, row: int) -> int | None:
        """Thread id of an event; ``None``: a projection left it out."""
        return self._one(self._tids, row)

    def ip(self, row: int) -> int | None:
        """Address of the probe, or of the probed function for a return probe; ``None`` for tracepoints too."""
        return self._one(self._ips, row)

    def return_ip(self, row: int) -> int | None:
        """Address that a return probe returns to; ``None`` for all other probes."""
        return self._one(self._return_ips, row)

    def context(self, row: int) -> Context | None:
        """Execution context; ``None`` also if the kernel does not record it soundly."""
        flags, count = self._one(self._flags, row), self._one(self._preempt_counts, row)
        # 0xff: the kernel records garbage for probes that are hit through a breakpoint.
        if flags is None or count is None or count == 0xFF:
            return None
        return Context(flags, count)
