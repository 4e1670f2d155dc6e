//! Batches as rows, for consumers that do not want columns.

use std::collections::HashMap;
use std::sync::Arc;

use kprobed_proto::v1;

use crate::messages;
use kprobed_host::kernel::ClockMapping;
use kprobed_trace::decode::{Columns, Context, Value};
use kprobed_trace::pipeline::{Delivery, Origin};
use kprobed_trace::wire::{Projection, ReadError, read_batch, read_group};

/// A batch that was read again.
struct Batch {
    cpu: u32,
    clock: ClockMapping,
    groups: Vec<(Arc<Origin>, Columns)>,
    /// By thread id.
    tasks: HashMap<i32, v1::Task>,
    /// By address.
    symbols: HashMap<u64, String>,
}

/// The events of a batch, in the order of time.
///
/// # Errors
/// [`ReadError`], for bytes that are no batch or that do not fit the schemas.
pub(super) fn of_delivery(
    delivery: &Delivery,
    projection: &Projection,
) -> Result<Vec<v1::EventRow>, ReadError> {
    let batch = read(delivery)?;
    let mut order: Vec<(u64, &Origin, &Columns, usize)> = batch
        .groups
        .iter()
        .flat_map(|(origin, columns)| {
            (0..).zip(&columns.timestamps_ns).map(move |(row, time)| (*time, &**origin, columns, row))
        })
        .collect();
    // Stable: events of one probe stay as the kernel recorded them even when the clock stands still.
    order.sort_by_key(|(time, ..)| *time);
    let row = |(time, origin, columns, row)| event(&batch, origin, columns, row, time, projection);
    Ok(order.into_iter().map(row).collect())
}

fn read(delivery: &Delivery) -> Result<Batch, ReadError> {
    let message = read_batch(&delivery.message)?;
    let mut groups = Vec::with_capacity(message.groups.len());
    for group in message.groups {
        let id = group.schema_id;
        let origin =
            delivery.origins.iter().find(|origin| origin.schema_id == id).ok_or(ReadError::Group(id))?;
        groups.push((Arc::clone(origin), read_group(group, &origin.schema)?));
    }
    let clock = message.clock.unwrap_or_default();
    Ok(Batch {
        cpu: message.cpu,
        clock: ClockMapping {
            wall_offset_ns: clock.wall_offset_ns,
            error_bound_ns: clock.error_bound_ns,
            sampled_at_ns: clock.sampled_at_ns,
        },
        groups,
        tasks: message.tasks.into_iter().map(|task| (task.tid, task)).collect(),
        symbols: message.symbols.into_iter().map(|symbol| (symbol.address, symbol.text)).collect(),
    })
}

fn event(
    batch: &Batch,
    origin: &Origin,
    columns: &Columns,
    row: usize,
    timestamp_ns: u64,
    projection: &Projection,
) -> v1::EventRow {
    let projected = projection.of(&origin.schema);
    let tid = columns.tids.get(row).copied().unwrap_or_default();
    let task = batch.tasks.get(&tid);
    let symbol = |addresses: &[u64]| {
        addresses.get(row).map(|address| symbol_text(batch, *address)).unwrap_or_default()
    };
    let context = columns
        .flags
        .get(row)
        .zip(columns.preempt_counts.get(row))
        .and_then(|(flags, preempt_count)| Context::from_raw(*flags, *preempt_count));
    let fields = projected.fields.iter().filter_map(|index| {
        let field = origin.schema.fields.get(*index)?;
        let column = columns.fields.get(*index)?;
        let cell = |element: usize| value(batch, &column.value(row, element).unwrap_or(Value::Fault));
        let value = match field.array_len {
            None => cell(0),
            Some(elements) => {
                let values = (0..elements as usize).map(cell).collect();
                v1::Value { kind: Some(v1::value::Kind::List(v1::ValueList { values })) }
            }
        };
        Some(v1::NamedValue { name: field.name.clone(), value: Some(value) })
    });
    let shown = projected.fields.iter().filter_map(|index| origin.schema.fields.get(*index));
    let unproven = shown.filter(|field| !field.fault_detected).map(|field| field.name.clone());
    let comm = task.filter(|_| projected.comm).map(|task| String::from_utf8_lossy(&task.comm).into_owned());
    v1::EventRow {
        probe: origin.name.to_string(),
        time: Some(messages::timestamp(batch.clock.wall_time(timestamp_ns))),
        timestamp_ns,
        cpu: batch.cpu,
        tid: if projected.tid { tid } else { 0 },
        comm: comm.unwrap_or_default(),
        context: context.filter(|_| projected.context).map(event_context),
        location: if projected.location { symbol(&columns.ips) } else { String::new() },
        return_location: if projected.location { symbol(&columns.return_ips) } else { String::new() },
        fields: fields.collect(),
        tgid: task.filter(|_| projected.tid).map_or(0, |task| task.tgid),
        unproven: unproven.collect(),
    }
}

fn value(batch: &Batch, value: &Value<'_>) -> v1::Value {
    use v1::value::Kind;
    let kind = match value {
        Value::Fault => None,
        Value::Unsigned(value) => Some(Kind::Unsigned(*value)),
        Value::Signed(value) => Some(Kind::Signed(*value)),
        Value::Char(byte) => Some(text_or_bytes(&[*byte])),
        Value::Symbol(address) => Some(Kind::Symbol(symbol_text(batch, *address))),
        Value::Bytes(bytes) => Some(text_or_bytes(bytes)),
    };
    v1::Value { kind }
}

fn text_or_bytes(bytes: &[u8]) -> v1::value::Kind {
    match std::str::from_utf8(bytes) {
        Ok(text) => v1::value::Kind::Text(text.to_owned()),
        Err(_) => v1::value::Kind::Bytes(bytes.to_vec()),
    }
}

/// The symbol, or the address in hexadecimal.
fn symbol_text(batch: &Batch, address: u64) -> String {
    batch.symbols.get(&address).cloned().unwrap_or_else(|| format!("{address:#x}"))
}

fn event_context(context: Context) -> v1::EventContext {
    v1::EventContext {
        irqs_off: context.irqs_off,
        hardirq: context.hardirq,
        softirq: context.softirq,
        nmi: context.nmi,
        need_resched: context.need_resched,
        bh_off: context.bh_off,
        preempt_depth: context.preempt_depth.into(),
        migrate_disable_depth: context.migrate_disable_depth.into(),
    }
}
