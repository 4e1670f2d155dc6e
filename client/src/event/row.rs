//! Events one by one.
//!
//! Owns the merge of a batch's groups by time. A row is a reference into its batch: making one allocates nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::batch::Batch;
use super::context::Context;
use super::group::Group;
use super::schema::{Field, Schema};
use super::value::{Address, Value};

/// The events of a batch in the order of time; of two at the same time, that of the earlier group is first.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    batch: &'a Batch,
    /// The next row of each group that has one: time stamp, group, row.
    heads: BinaryHeap<Reverse<(u64, usize, usize)>>,
    remaining: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn new(batch: &'a Batch) -> Self {
        let groups = batch.groups().iter().enumerate();
        let heads = groups
            .filter(|(_, group)| group.rows() > 0)
            .map(|(index, group)| Reverse((group.timestamp_ns(0), index, 0)))
            .collect();
        Self { batch, heads, remaining: batch.len() }
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Row<'a>;

    fn next(&mut self) -> Option<Row<'a>> {
        let mut head = self.heads.peek_mut()?;
        let Reverse((timestamp_ns, index, row)) = *head;
        let group = self.batch.groups().get(index)?;
        if row + 1 < group.rows() {
            *head = Reverse((group.timestamp_ns(row + 1), index, row + 1));
        } else {
            PeekMut::pop(head);
        }
        self.remaining = self.remaining.saturating_sub(1);
        Some(Row { batch: self.batch, group, index: row, timestamp_ns })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl ExactSizeIterator for Rows<'_> {}

/// One event.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    batch: &'a Batch,
    group: &'a Group,
    index: usize,
    timestamp_ns: u64,
}

impl<'a> Row<'a> {
    /// The probe and its fields.
    pub fn schema(&self) -> &'a Schema {
        self.group.schema()
    }

    /// `GROUP/EVENT`.
    pub fn probe(&self) -> &'a str {
        self.schema().probe()
    }

    /// Trace-clock time, in nanoseconds.
    pub fn timestamp_ns(&self) -> u64 {
        self.timestamp_ns
    }

    /// Wall-clock time, in nanoseconds since 1970. Times outside of 1970 to 2262 stop at its ends.
    pub fn wall_ns(&self) -> u64 {
        wall_ns(self.timestamp_ns, self.batch.wall_offset_ns())
    }

    /// Wall-clock time.
    pub fn time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.wall_ns())
    }

    /// CPU.
    pub fn cpu(&self) -> u32 {
        self.batch.cpu()
    }

    /// Thread id, in the initial pid namespace.
    pub fn tid(&self) -> i32 {
        self.group.tid(self.index)
    }

    /// Name of the task, where it is known. Names are sampled: an event may be older than an exec that changed the name.
    pub fn comm(&self) -> Option<&'a [u8]> {
        self.batch.comm(self.tid())
    }

    /// Execution context; `None` where the kernel does not record it soundly.
    pub fn context(&self) -> Option<Context> {
        self.group.context(self.index)
    }

    /// Where the probe sits, or which function returned.
    pub fn location(&self) -> Address<'a> {
        self.batch.symbol(self.group.ip(self.index))
    }

    /// Where a return probe returns to; `None` for entry probes.
    pub fn return_location(&self) -> Option<Address<'a>> {
        Some(self.batch.symbol(self.group.return_ip(self.index)?))
    }

    /// The fields with their names, in the order of the definition.
    pub fn fields(&self) -> Fields<'a> {
        Fields { row: *self, next: 0 }
    }

    /// The value of a field; `None` when the event has no such field.
    pub fn field(&self, name: &str) -> Option<Value<'a>> {
        Some(self.group.field(name)?.row(self.index, self.batch.symbols()))
    }
}

/// A trace-clock time as wall-clock nanoseconds since 1970, cut off at the ends of what 63 bits can say.
pub(super) fn wall_ns(timestamp_ns: u64, offset_ns: i64) -> u64 {
    timestamp_ns.saturating_add_signed(offset_ns).min(i64::MAX as u64)
}

/// The fields of one event.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    row: Row<'a>,
    next: usize,
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a str, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let column = self.row.group.column(self.next)?;
        self.next += 1;
        let field: &'a Field = column.field();
        Some((&field.name, column.row(self.row.index, self.row.batch.symbols())))
    }
}
