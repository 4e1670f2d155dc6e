//! Property: schema messages, and batches that refer to them: the daemon reads them from disk, and
//! the client library from the daemon.

use std::sync::Arc;

use kprobed_client::api::{EventBatch, EventGroup, EventSchema};
use kprobed_client::event::{self, Batch, Group, MalformedError};
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_trace::decode::{Columns, FieldKind, Schema, Value};
use kprobed_trace::wire::{read_batch, schema_message};
use prost::Message as _;

use super::batch::check_heads;
use super::format::check_fields;

/// The first two bytes are the length of a schema, which follows; the rest is a message with a
/// batch.
///
/// Daemon and client read schemas with the same code. A batch that the client accepts fits its schema in every row,
/// and the daemon accepts it too, and reads the same values.
pub fn check(data: &[u8]) {
    let Some((length, rest)) = data.split_first_chunk() else { return };
    let (schema, batch) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    let Ok(message) = EventSchema::decode(schema) else { return };
    let ours = match read(&message) {
        Ok(ours) => Arc::new(ours),
        Err(bad) => {
            let bad = bad.to_string();
            let is_of = |name: &str| bad.starts_with(&format!("field `{name}` of "));
            assert!(message.fields.iter().any(|field| is_of(&field.name)), "{bad}");
            return;
        }
    };
    check_schema(&message, &ours);
    if let Some(batch) = read_batch(batch) {
        check_batch(message, &ours, batch);
    }
}

fn read(message: &EventSchema) -> Result<Schema, MalformedError> {
    let read = event::Schema::try_from(message.clone())?;
    Ok(Schema { fields: read.fields().to_vec(), is_return: read.is_return() })
}

/// A field matches its message, and is the same after it was written and read again.
fn check_schema(message: &EventSchema, ours: &Schema) {
    assert_eq!(ours.is_return, message.is_return);
    assert_eq!(ours.fields.len(), message.fields.len());
    for (field, message) in ours.fields.iter().zip(&message.fields) {
        assert_eq!(field.name, message.name);
        assert_eq!(
            field.kind.value_bytes(),
            message.width as usize,
            "numbers have a width, and strings none"
        );
        assert!(field.kind == FieldKind::String || message.width.is_power_of_two());
        assert_ne!(field.array_len, Some(0), "an array has values");
        assert_eq!(field.array_len.unwrap_or(0), message.array_length);
        assert_eq!(field.fault_detected, message.fault_detected);
    }
    let name = ProbeName::new("g", "e").expect("a name");
    let again = read(&schema_message(1, &name, ProbeUid(1), ours, None));
    assert_eq!(again.as_ref(), Ok(ours));
}

fn check_batch(schema: EventSchema, ours: &Arc<Schema>, mut batch: EventBatch) {
    for group in &mut batch.groups {
        group.schema_id = schema.schema_id;
    }
    let read = |group: &EventGroup| Columns::from_message(Arc::clone(ours), group.clone());
    let columns: Vec<_> = batch.groups.iter().map(read).collect();
    for columns in columns.iter().flatten() {
        check_heads(columns);
        check_fields(columns);
    }
    let Ok(theirs) = Batch::from_parts(vec![schema], batch) else { return };
    for (group, columns) in theirs.groups().iter().zip(&columns) {
        check_group(group, columns.as_ref().expect("the daemon takes what the client takes"));
    }
    let mut rows = 0;
    for row in theirs.rows() {
        rows += 1;
        let names = row.fields().map(|(name, value)| {
            // Any value can be shown.
            drop(value.to_string());
            name
        });
        assert!(names.eq(ours.fields.iter().map(|field| &field.name)));
    }
    assert_eq!(rows, theirs.len());
}

/// Both find the same rows.
fn check_group(group: &Group, columns: &Columns) {
    let rows = group.rows();
    assert_eq!((columns.len(), group.timestamps_ns().len()), (rows, rows));
    assert!(group.timestamps_ns().eq(columns.timestamps_ns.iter().copied()));
    let tids: Vec<_> = group.tids().into_iter().flatten().collect();
    assert!(tids.iter().copied().eq((0..columns.tids.rows()).filter_map(|row| columns.tid(row))));
    for (index, (field, column)) in columns.schema().fields.iter().zip(&columns.fields).enumerate() {
        let view = group.column(index).expect("a column for each field");
        let per_row = field.array_len.map_or(1, |count| count as usize);
        assert_eq!(view.values(), rows * per_row);
        for place in 0..view.values() {
            let ours = column.value(place / per_row, place % per_row).expect("a value in each place");
            assert!(is_same(ours, view.value(place)), "{ours:?} is not {:?}", view.value(place));
        }
    }
}

fn is_same(ours: Value<'_>, theirs: event::Value<'_>) -> bool {
    match (ours, theirs) {
        (Value::Unsigned(ours), event::Value::Unsigned { value, .. }) => ours == value,
        (Value::Signed(ours), event::Value::Signed { value, .. }) => ours == value,
        (Value::Char(ours), event::Value::Char(theirs)) => ours == theirs,
        (Value::Symbol(ours), event::Value::Symbol(theirs)) => ours == theirs.address,
        (Value::Bytes(ours), event::Value::Bytes(theirs)) => ours == theirs,
        (Value::Fault, event::Value::Fault) => true,
        _ => false,
    }
}
