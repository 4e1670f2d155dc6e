//! Row events: columns converted to rows, for consumers that do not want columns.
//!
//! Owns the order and the text of their values. Never filters an event, and makes no more rows than one message has.

use std::collections::HashMap;
use std::sync::Arc;
use std::vec;

use kprobed_proto::v1;
use prost::Message as _;

use super::messages;
use kprobed_filter::push_ipv6;
use kprobed_trace::decode::{Column, Context, FieldSchema, Notation, Value};
use kprobed_trace::pipeline::{ColumnBatch, Group};
use kprobed_trace::wire::{Projected, Projection, Task};

/// Names that the rows of a batch share.
struct Names<'a> {
    batch: &'a ColumnBatch,
    /// By thread id.
    tasks: HashMap<i32, &'a Task>,
    /// By address.
    symbols: HashMap<u64, &'a str>,
}

/// One probe's part of a batch, and the wanted fields.
struct Part<'a> {
    group: &'a Group,
    projected: Projected,
}

/// Rows in one message, and bytes after which it has no more: far below the 4 MiB that gRPC clients take by
/// default.
const MESSAGE_ROWS: usize = 512;
const MESSAGE_BYTES: usize = 256 << 10;

/// A batch that is sent as rows, message by message.
pub(super) struct BatchRows {
    batch: Arc<ColumnBatch>,
    /// Of the events that are still to be sent: time, group and row.
    order: vec::IntoIter<(u64, usize, usize)>,
    /// Where the stream is after the last of them.
    end: v1::Cursor,
}

impl BatchRows {
    /// The rows of a batch, in the order of time.
    pub(super) fn new(batch: Arc<ColumnBatch>, end: v1::Cursor) -> Self {
        let times = |group: &Group| group.columns.timestamps_ns.clone().into_iter();
        let mut order: Vec<(u64, usize, usize)> = (0..)
            .zip(&batch.groups)
            .flat_map(|(index, group)| (0..).zip(times(group)).map(move |(row, time)| (time, index, row)))
            .collect();
        // Stable: events of one probe stay as the kernel recorded them even if the clock stands still.
        order.sort_by_key(|(time, ..)| *time);
        Self { batch, order: order.into_iter(), end }
    }

    /// The next message. None after the last one.
    pub(super) fn next(&mut self, projection: &Projection) -> Option<v1::EventRows> {
        let batch = &*self.batch;
        if self.order.as_slice().is_empty() {
            return None;
        }
        let names = Names {
            batch,
            tasks: batch.tasks.iter().map(|task| (task.tid, task)).collect(),
            symbols: batch.symbols.iter().map(|symbol| (symbol.address, &*symbol.text)).collect(),
        };
        let part = |group| Part { group, projected: projection.of(&group.origin.schema) };
        let parts: Vec<_> = batch.groups.iter().map(part).collect();
        let row = |(time, index, row): (u64, usize, usize)| Some(names.event(parts.get(index)?, row, time));
        let (mut events, mut bytes) = (Vec::new(), 0);
        for event in self.order.by_ref().take(MESSAGE_ROWS).filter_map(row) {
            bytes += event.encoded_len();
            events.push(event);
            if bytes >= MESSAGE_BYTES {
                break;
            }
        }
        let is_last = self.order.as_slice().is_empty();
        Some(v1::EventRows { events, cursor: is_last.then(|| self.end.clone()) })
    }
}

impl Names<'_> {
    fn event(&self, part: &Part<'_>, row: usize, timestamp_ns: u64) -> v1::EventRow {
        let Part { group: Group { origin, columns }, projected } = part;
        let tid = columns.tid(row).unwrap_or_default();
        let task = self.tasks.get(&tid);
        let symbol = |address: Option<u64>| {
            let shown = address.filter(|_| projected.location);
            shown.map(|address| self.symbol_text(address)).unwrap_or_default()
        };
        let context = columns
            .flags(row)
            .zip(columns.preempt_count(row))
            .and_then(|(flags, preempt_count)| Context::from_raw(flags, preempt_count));
        let fields = projected.fields.iter().filter_map(|index| {
            let field = origin.schema.fields.get(*index)?;
            let column = columns.fields.get(*index)?;
            let cell = |element: usize| self.value(&column.value(row, element).unwrap_or(Value::Fault));
            let value = match field.array_len {
                None => cell(0),
                Some(elements) => {
                    let values = (0..elements as usize).map(cell).collect();
                    v1::Value { kind: Some(v1::value::Kind::List(v1::ValueList { values })) }
                }
            };
            Some(v1::NamedValue {
                name: field.name.clone(),
                text: shown(field, column, row),
                value: Some(value),
            })
        });
        let shown = projected.fields.iter().filter_map(|index| origin.schema.fields.get(*index));
        let unproven = shown.filter(|field| !field.fault_detected).map(|field| field.name.clone());
        let comm =
            task.filter(|_| projected.comm).map(|task| String::from_utf8_lossy(&task.comm).into_owned());
        v1::EventRow {
            probe: origin.name.to_string(),
            time: Some(messages::timestamp(self.batch.clock.wall_time(timestamp_ns))),
            timestamp_ns,
            cpu: self.batch.cpu,
            tid: if projected.tid { tid } else { 0 },
            comm: comm.unwrap_or_default(),
            context: context.filter(|_| projected.context).map(event_context),
            location: symbol(columns.ip(row)),
            return_location: symbol(columns.return_ip(row)),
            fields: fields.collect(),
            tgid: task.filter(|_| projected.tid).map_or(0, |task| task.tgid),
            unproven: unproven.collect(),
        }
    }

    fn value(&self, value: &Value<'_>) -> v1::Value {
        use v1::value::Kind;
        let kind = match value {
            Value::Fault => None,
            Value::Unsigned(value) => Some(Kind::Unsigned(*value)),
            Value::Signed(value) => Some(Kind::Signed(*value)),
            Value::Char(byte) => Some(text_or_bytes(&[*byte])),
            Value::Symbol(address) => Some(Kind::Symbol(self.symbol_text(*address))),
            Value::Bytes(bytes) => Some(text_or_bytes(bytes)),
        };
        v1::Value { kind }
    }

    /// The symbol, or the address in hexadecimal.
    fn symbol_text(&self, address: u64) -> String {
        match self.symbols.get(&address) {
            Some(text) => (*text).to_owned(),
            None => format!("{address:#x}"),
        }
    }
}

/// What people write for a value; empty if that is the value itself.
fn shown(field: &FieldSchema, column: &Column, row: usize) -> String {
    let mut text = Vec::new();
    let bits = |element| match column.value(row, element)? {
        Value::Unsigned(value) => Some(value),
        Value::Signed(value) => Some(value.cast_unsigned()),
        _ => None,
    };
    match (&field.notation, field.array_len) {
        (Notation::Number, _) => {}
        (Notation::Ipv6, Some(16)) => {
            let address: Option<Vec<u8>> =
                (0..16).map(|element| bits(element).map(|bits| bits.to_le_bytes()[0])).collect();
            if let Some(Ok(address)) = address.map(<[u8; 16]>::try_from) {
                push_ipv6(&mut text, address);
            }
        }
        (notation, None) => {
            if let Some(bits) = bits(0) {
                notation.push(&mut text, bits, field.kind.value_bytes());
            }
        }
        _ => {}
    }
    String::from_utf8(text).unwrap_or_default()
}

fn text_or_bytes(bytes: &[u8]) -> v1::value::Kind {
    match std::str::from_utf8(bytes) {
        Ok(text) => v1::value::Kind::Text(text.to_owned()),
        Err(_) => v1::value::Kind::Bytes(bytes.to_vec()),
    }
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
