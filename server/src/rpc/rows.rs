//! Batches as rows, for consumers that do not want columns.

use kprobed_proto::v1;

use super::convert;
use crate::decode::{Context, Value};
use crate::pipeline::{Batch, Group};

/// The selected events of a batch, in the order of time.
pub(super) fn of_batch(batch: &Batch, selected: &[usize]) -> Vec<v1::EventRow> {
    let groups = selected.iter().filter_map(|index| batch.groups.get(*index));
    let mut order: Vec<(u64, &Group, usize)> = groups
        .flat_map(|group| {
            group.columns.timestamps_ns.iter().enumerate().map(move |(row, time)| (*time, group, row))
        })
        .collect();
    // Stable: events of one probe stay as the kernel recorded them even when the clock stands still.
    order.sort_by_key(|(time, _, _)| *time);
    order.into_iter().map(|(time, group, row)| event(batch, group, row, time)).collect()
}

fn event(batch: &Batch, group: &Group, row: usize, timestamp_ns: u64) -> v1::EventRow {
    let columns = &group.columns;
    let tid = columns.tids.get(row).copied().unwrap_or_default();
    let task = batch.tasks.iter().find(|(known, _)| *known == tid);
    let symbol = |addresses: &[u64]| {
        addresses.get(row).map(|address| symbol_text(batch, *address)).unwrap_or_default()
    };
    let context = columns
        .flags
        .get(row)
        .zip(columns.preempt_counts.get(row))
        .and_then(|(flags, preempt_count)| Context::from_raw(*flags, *preempt_count));
    let fields = group.source.schema().fields.iter().enumerate().map(|(index, field)| {
        let cell = |element: usize| {
            columns.fields.get(index).and_then(|column| column.value(row, element)).unwrap_or(Value::Fault)
        };
        let value = match field.array_len {
            None => value(batch, &cell(0)),
            Some(elements) => {
                let values = (0..elements as usize).map(|element| value(batch, &cell(element))).collect();
                v1::Value { kind: Some(v1::value::Kind::List(v1::ValueList { values })) }
            }
        };
        v1::NamedValue { name: field.name.clone(), value: Some(value) }
    });
    v1::EventRow {
        probe: group.source.name.to_string(),
        time: Some(convert::timestamp(batch.clock.wall_time(timestamp_ns))),
        timestamp_ns,
        cpu: batch.cpu,
        tid,
        comm: task.map(|(_, comm)| String::from_utf8_lossy(comm).into_owned()).unwrap_or_default(),
        context: context.map(event_context),
        location: symbol(&columns.ips),
        return_location: symbol(&columns.return_ips),
        fields: fields.collect(),
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
    let known = batch.symbols.binary_search_by_key(&address, |(known, _)| *known).ok();
    known
        .and_then(|index| batch.symbols.get(index))
        .map_or_else(|| format!("{address:#x}"), |(_, text)| text.to_string())
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
