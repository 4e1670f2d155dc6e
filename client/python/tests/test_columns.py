"""Columns: what is written is read, and bytes that contradict their schema are refused and never read."""

import json

import pytest
from hypothesis import given, strategies as st

from kprobed import Address, Batch, Cursor, FieldKind, MalformedError, Schema
from kprobed._columns import Context
from kprobed._events import Decoder
from kprobed.v1 import event_pb2, event_service_pb2

WIDTHS = st.sampled_from([1, 2, 4, 8])
LIMIT = 1 << 63


def little(values, width, signed=False):
    return b"".join(value.to_bytes(width, "little", signed=signed) for value in values)


def bits(flags):
    data = bytearray((len(flags) + 7) // 8)
    for index, flag in enumerate(flags):
        data[index // 8] |= flag << (index % 8)
    return bytes(data)


@st.composite
def fields(draw):
    """A field of a schema, and its column for some rows with the values that it has."""
    kind = draw(st.sampled_from(list(FieldKind)))
    length, rows = draw(st.integers(0, 3)), draw(st.shared(st.integers(1, 20), key="rows"))
    count = rows * max(length, 1)
    faults = draw(st.lists(st.booleans(), min_size=count, max_size=count)) if draw(st.booleans()) else [False] * count
    column = event_pb2.Column(faults=bits(faults) if any(faults) else b"")
    if kind is FieldKind.STRING:
        width, values = 0, draw(st.lists(st.binary(max_size=9), min_size=count, max_size=count))
        values = [b"" if fault else value for value, fault in zip(values, faults)]
        ends = [sum(map(len, values[:index])) for index in range(count + 1)]
        column.offsets, column.data = little(ends, 4), b"".join(values)
    else:
        width = {FieldKind.CHAR: 1, FieldKind.SYMBOL: 8}.get(kind) or draw(WIDTHS)
        signed = kind is FieldKind.SIGNED
        low, high = (-(1 << 8 * width - 1), (1 << 8 * width - 1) - 1) if signed else (0, (1 << 8 * width) - 1)
        numbers = st.integers(low, high)
        if draw(st.booleans()):
            # One row that stands for all.
            row = draw(st.lists(numbers, min_size=max(length, 1), max_size=max(length, 1)))
            values, column.values = row * rows, little(row, width, signed)
        else:
            values = draw(st.lists(numbers, min_size=count, max_size=count))
            column.values = little(values, width, signed)
    field = event_pb2.EventField(name=draw(st.sampled_from("abc")), type=kind.value, width=width, array_length=length, fault_detected=True)
    return field, column, values, faults


def group_of(columns, rows, **more):
    group = event_pb2.EventGroup(schema_id=1, rows=rows, base_ns=5, offsets_ns=little(range(rows), 4), **more)
    group.columns.extend(column for _, column, _, _ in columns)
    return group


def schema_of(columns):
    schema = event_pb2.EventSchema(schema_id=1, probe="g/e")
    schema.fields.extend(field for field, _, _, _ in columns)
    return Schema.of(schema)


def batch_of(schema, *groups, **more):
    return Batch(event_pb2.EventBatch(cpu=3, sequence=7, log_events=2, groups=groups, **more), {1: schema}, 0)


@given(st.lists(fields(), max_size=4))
def test_what_is_written_is_read(columns):
    rows = len(columns[0][2]) // max(columns[0][0].array_length, 1) if columns else 3
    batch = batch_of(schema_of(columns), group_of(columns, rows, tids=little([9], 4)))
    assert len(batch) == rows and [row.tid for row in batch.rows()] == [9] * rows
    assert [row.timestamp_ns for row in batch.rows()] == list(range(5, 5 + rows))
    for column, (field, _, values, faults) in zip(batch.groups[0].columns, columns):
        assert len(column) == len(values) and column.has_faults == any(faults)
        kind = column.field.kind
        if kind is FieldKind.STRING:
            assert column.strings == values
            with pytest.raises(TypeError):
                column.numbers
        else:
            assert column.numbers.tolist() == values and column.numbers.itemsize == field.width
            with pytest.raises(TypeError):
                column.strings
        for index, (value, fault) in enumerate(zip(values, faults)):
            if kind is FieldKind.CHAR:
                value = bytes([value])
            if kind is FieldKind.SYMBOL:
                value = Address(value)
            assert column.value(index) == (None if fault else value)
        json.dumps([row.to_json() for row in batch.rows()])


@given(st.lists(fields(), min_size=1, max_size=3), st.data())
def test_columns_of_another_length_are_refused(columns, data):
    rows = len(columns[0][2]) // max(columns[0][0].array_length, 1)
    group = group_of(columns, rows)
    index = data.draw(st.integers(0, len(columns) - 1))
    column, (field, _, values, _) = group.columns[index], columns[index]
    name = data.draw(st.sampled_from(["values", "offsets", "faults"]))
    before = getattr(column, name)
    setattr(column, name, before + b"\x00" * data.draw(st.integers(1, 9)))
    if name == "values" and len(column.values) == len(values) * field.width > 0:
        # The values of one row became those of all.
        return
    # Where nothing faulted, as many zeros as there are bytes of bits are no fault either.
    fits = name == "faults" and not before and len(column.faults) == (len(columns[0][2]) + 7) // 8
    lengths = {len(values) for _, _, values, _ in columns}
    if fits or (name == "faults" and not before and any(len(column.faults) == (length + 7) // 8 for length in lengths)):
        return
    with pytest.raises(MalformedError, match="of `g/e` with"):
        batch_of(schema_of(columns), group)


SMALL = st.binary(max_size=40)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 2)), max_size=3),
    st.integers(0, 5),
    st.integers(0, (1 << 64) - 1),
    st.lists(SMALL, min_size=6, max_size=6),
    st.lists(st.tuples(SMALL, SMALL, SMALL, SMALL), max_size=3),
    st.booleans(),
)
def test_any_bytes_are_refused_or_readable(described, rows, base, common, columns, is_return):
    """Whatever a group has: MalformedError, or every value can be read."""
    schema = event_pb2.EventSchema(schema_id=1, probe="g/e", is_return=is_return)
    for index, (kind, width, length) in enumerate(described):
        schema.fields.add(name=str(index), type=kind, width=width, array_length=length)
    names = ("offsets_ns", "tids", "flags", "preempt_counts", "ips", "return_ips")
    group = event_pb2.EventGroup(schema_id=1, rows=rows, base_ns=base, **dict(zip(names, common)))
    for values, offsets, data, faults in columns:
        group.columns.add(values=values, offsets=offsets, data=data, faults=faults)
    try:
        batch = batch_of(Schema.of(schema), group)
    except MalformedError:
        return
    json.dumps([row.to_json() for row in batch.rows()])
    assert len(list(batch.rows())) == rows
    for column in batch.groups[0].columns:
        values = column.strings if column.field.kind is FieldKind.STRING else column.numbers
        assert len(values) == len(column) == rows * column.field.values_per_row


@given(st.binary(max_size=200))
def test_any_message_is_an_item_or_malformed(data):
    message = event_service_pb2.StreamEventsResponse()
    try:
        message.ParseFromString(data)
    except Exception:
        return
    try:
        Decoder().item(message)
    except MalformedError:
        pass


def test_offsets_lie_in_order():
    field = event_pb2.EventField(name="s", type=event_pb2.FIELD_TYPE_STRING)
    for offsets, data in [([0, 2, 1], b"ab"), ([0, 1, 3], b"ab"), ([2, 1, 2], b"ab")]:
        column = event_pb2.Column(offsets=little(offsets, 4), data=data)
        with pytest.raises(MalformedError, match="order"):
            batch_of(schema_of([(field, column, None, None)]), group_of([(field, column, None, None)], 2))


def test_rows_of_several_groups_are_merged_by_time():
    schema = schema_of([])
    late = event_pb2.EventGroup(schema_id=1, rows=2, base_ns=10, offsets_ns=little([0, 5], 4))
    early = event_pb2.EventGroup(schema_id=1, rows=3, base_ns=9, offsets_ns=little([0, 1, 9], 4))
    assert [row.timestamp_ns for row in batch_of(schema, late, early).rows()] == [9, 10, 10, 15, 18]
    with pytest.raises(MalformedError, match="not in order"):
        batch_of(schema, event_pb2.EventGroup(schema_id=1, rows=2, offsets_ns=little([5, 4], 4)))
    with pytest.raises(MalformedError, match="not in order"):
        batch_of(schema, event_pb2.EventGroup(schema_id=1, rows=1, base_ns=(1 << 64) - 1, offsets_ns=little([1], 4)))
    with pytest.raises(MalformedError, match="schema 2"):
        batch_of(schema, event_pb2.EventGroup(schema_id=2))


@given(st.integers(0, (1 << 64) - 1) | st.sampled_from([1 << 53, (1 << 53) + 1, LIMIT - 1, LIMIT, (1 << 64) - 1]))
def test_sixty_four_bits_survive(value):
    field = event_pb2.EventField(name="x", type=event_pb2.FIELD_TYPE_UNSIGNED, width=8)
    column = event_pb2.Column(values=little([value], 8))
    batch = batch_of(schema_of([(field, column, None, None)]), group_of([(field, column, None, None)], 1))
    (row,) = batch.rows()
    assert row.fields == {"x": value}
    shown = json.loads(json.dumps(row.to_json()))["fields"]["x"]
    assert int(shown) == value and isinstance(shown, str) == (value > 1 << 53)
    # After 104 days of uptime, time stamps are beyond it too.
    later = event_pb2.EventGroup(schema_id=1, rows=1, base_ns=value, offsets_ns=little([0], 4))
    (row,) = batch_of(schema_of([]), later).rows()
    assert row.to_json()["timestamp_ns"] == shown
    # What reads numbers as doubles reads the same.
    assert json.loads(json.dumps(shown), parse_int=float) == shown


@given(st.text(max_size=40))
def test_no_text_but_a_cursor_is_read_as_one(text):
    try:
        assert str(Cursor.parse(text)) is not None
    except ValueError:
        pass


@given(st.from_regex(r"[0-9a-f-]{0,36}", fullmatch=True), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))
def test_cursors_are_written_and_read(boot, epoch, sequence):
    cursor = Cursor(boot, epoch, sequence)
    assert Cursor.parse(str(cursor)) == cursor


def test_numbers_are_written_as_people_do():
    def text(notation, value, width, names=()):
        names = [event_pb2.NumberName(number=number, name=name) for number, name in names]
        field = event_pb2.EventField(name="x", type=event_pb2.FIELD_TYPE_UNSIGNED, width=width, notation=notation, names=names)
        column = event_pb2.Column(values=little([value], width))
        (row,) = batch_of(schema_of([(field, column, None, None)]), group_of([(field, column, None, None)], 1)).rows()
        return row.to_json().get("names", {}).get("x")

    for notation, value, width, shown in [
        ("ERRNO", (1 << 32) - 2, 4, "ENOENT"),
        ("ERRNO", (1 << 64) - 512, 8, "ERESTARTSYS"),
        ("ERRNO", 3, 4, None),
        ("NETWORK_ORDER", 0xBB01, 2, "443"),
        ("IPV4", 16777343, 4, "127.0.0.1"),
        ("DEVICE", 254 << 20, 4, "254:0"),
        ("OCTAL", 0o644, 2, "0644"),
        ("BOOL", 1, 1, "true"),
        ("BOOL", 7, 1, None),
        ("OPEN_FLAGS", 0o4010102, 4, "O_RDWR|O_CREAT|O_SYNC"),
        ("OPEN_FLAGS", (1 << 32) + 3, 8, "0x100000003"),
        ("UNSPECIFIED", 7, 1, None),
    ]:
        assert text(event_pb2.FieldNotation.Value(f"FIELD_NOTATION_{notation}"), value, width) == shown
    names = [(-1, "NONE"), (1, "ONE"), (1, "UNO")]
    shown = [text(event_pb2.FIELD_NOTATION_NAMES, value, 4, names) for value in (1, (1 << 32) - 1, 5)]
    assert shown == ["ONE", "NONE", None]


def test_a_reschedule_is_due_for_each_reason():
    """As in ``proto/event/src/context.rs``: 0x02, lazily, is the usual one since 6.13."""
    assert all(Context(flags, 0).need_resched for flags in (0x02, 0x04, 0x20, 0x24))
    assert not Context(0xD9, 0).need_resched
