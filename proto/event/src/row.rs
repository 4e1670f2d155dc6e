//! Event rows: single events in the order of time.
//!
//! Owns the merge of a batch's groups by time. A row is a reference into its batch, and never a
//! copy: making one allocates nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kprobed_filter::FieldSchema;

use crate::batch::Batch;
use crate::context::Context;
use crate::group::Group;
use crate::schema::Schema;
use crate::value::{Address, Value};

/// The next row of a group: time stamp, group, row.
type Head = (u64, usize, usize);

/// The events of a batch in the order of time; of two at the same time, the one of the earlier
/// group is first.
///
/// Events of one probe mostly come in runs, so that the iterator tries the group of the last event
/// first; it only walks through a batch of one group.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    batch: &'a Batch,
    next: Option<Head>,
    /// The next rows of the other groups.
    others: BinaryHeap<Reverse<Head>>,
    remaining: usize,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(batch: &'a Batch) -> Self {
        let groups = batch.groups().iter().enumerate();
        let mut heads = groups
            .filter(|(_, group)| group.rows() > 0)
            .map(|(index, group)| Reverse((group.timestamp_ns(0), index, 0)));
        let (first, mut others) = (heads.next(), heads.collect::<BinaryHeap<_>>());
        let next = least(first.map(|Reverse(head)| head), &mut others);
        Self { batch, next, others, remaining: batch.len() }
    }
}

/// The least of a head and of the others, among which the head waits if it is not that.
#[inline]
pub(crate) fn least<H: Ord>(head: Option<H>, others: &mut BinaryHeap<Reverse<H>>) -> Option<H> {
    match (head, others.peek_mut()) {
        (Some(head), Some(mut least)) if least.0 < head => Some(std::mem::replace(&mut least.0, head)),
        (Some(head), _) => Some(head),
        (None, least) => least.map(|least| PeekMut::pop(least).0),
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Row<'a>;

    #[inline]
    fn next(&mut self) -> Option<Row<'a>> {
        let (timestamp_ns, index, row) = self.next?;
        let group = self.batch.groups().get(index)?;
        let following = (row + 1 < group.rows()).then(|| (group.timestamp_ns(row + 1), index, row + 1));
        self.next = least(following, &mut self.others);
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
    /// Row `index` of a group of a batch; `None` if there is no such group.
    pub(crate) fn of(batch: &'a Batch, group: usize, index: usize) -> Option<Self> {
        let group = batch.groups().get(group)?;
        Some(Self { batch, group, index, timestamp_ns: group.timestamp_ns(index) })
    }

    /// A copy that can be kept without its batch.
    pub fn to_owned(&self) -> OwnedRow {
        let group = self.group.take(&[self.index]);
        OwnedRow { batch: self.batch.around(&group, self.number()), group }
    }

    /// A number of the event that no other event of its run of the daemon has, and that it has whenever it is read.
    pub fn number(&self) -> u64 {
        let before = self.batch.groups().iter().take_while(|group| !std::ptr::eq(*group, self.group));
        let rows: usize = before.map(Group::rows).sum();
        self.batch.sequence() + (rows + self.index) as u64
    }

    /// The probe and its fields.
    #[inline]
    pub fn schema(&self) -> &'a Schema {
        self.group.schema()
    }

    /// `GROUP/EVENT`.
    #[inline]
    pub fn probe(&self) -> &'a str {
        self.schema().probe()
    }

    /// Trace-clock time, in nanoseconds.
    #[inline]
    pub fn timestamp_ns(&self) -> u64 {
        self.timestamp_ns
    }

    /// Wall-clock time, in nanoseconds since 1970. Times before 1970 or after 2262 are clamped to
    /// these.
    #[inline]
    pub fn wall_ns(&self) -> u64 {
        wall_ns(self.timestamp_ns, self.batch.wall_offset_ns())
    }

    /// Wall clock minus trace clock when its batch was read, in nanoseconds. Samples of two batches
    /// differ: see [`Self::timestamp_ns`] for how long something took.
    pub fn wall_offset_ns(&self) -> i64 {
        self.batch.wall_offset_ns()
    }

    /// Wall-clock time.
    pub fn time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.wall_ns())
    }

    /// CPU.
    #[inline]
    pub fn cpu(&self) -> u32 {
        self.batch.cpu()
    }

    /// Thread id, in the initial pid namespace. `None`: a projection left it out.
    #[inline]
    pub fn tid(&self) -> Option<i32> {
        self.group.tid(self.index)
    }

    /// Id of the process (thread group), if it is known.
    pub fn tgid(&self) -> Option<i32> {
        self.batch.tgid(self.tid()?)
    }

    /// Name of the task, if it is known. Names are sampled: an event may be older than an exec that
    /// changed the name.
    #[inline]
    pub fn comm(&self) -> Option<&'a [u8]> {
        self.batch.comm(self.tid()?)
    }

    /// Execution context; `None` if the kernel recorded garbage, or a projection left it out.
    #[inline]
    pub fn context(&self) -> Option<Context> {
        self.group.context(self.index)
    }

    /// Address of the probe, or of the function that returned; `None` for tracepoints, or if a
    /// projection left it out.
    #[inline]
    pub fn location(&self) -> Option<Address<'a>> {
        Some(self.batch.symbol(self.group.ip(self.index)?))
    }

    /// Address that a return probe returns to; `None` for all other probes, or if a projection left
    /// it out.
    #[inline]
    pub fn return_location(&self) -> Option<Address<'a>> {
        Some(self.batch.symbol(self.group.return_ip(self.index)?))
    }

    /// The fields with their names, in the order of the definition.
    #[inline]
    pub fn fields(&self) -> Fields<'a> {
        Fields { row: *self, next: 0 }
    }

    /// The value of the field with this index in the schema; `None` after the last.
    #[inline]
    pub fn value(&self, index: usize) -> Option<Value<'a>> {
        Some(self.group.column(index)?.row(self.index, self.batch.symbols()))
    }

    /// The value of a field; `None` if the event has no such field.
    pub fn field(&self, name: &str) -> Option<Value<'a>> {
        Some(self.group.field(name)?.row(self.index, self.batch.symbols()))
    }
}

/// An event that was copied out of its batch ([`Row::to_owned`]).
#[derive(Clone, Debug)]
pub struct OwnedRow {
    /// What the event refers to.
    batch: Batch,
    /// The event alone.
    group: Group,
}

impl OwnedRow {
    /// The event.
    pub fn row(&self) -> Row<'_> {
        let Self { batch, group } = self;
        Row { batch, group, index: 0, timestamp_ns: group.timestamp_ns(0) }
    }

    /// Bytes of memory, about.
    pub fn bytes(&self) -> usize {
        self.batch.bytes() + self.group.bytes()
    }
}

/// A trace-clock time as wall-clock nanoseconds since 1970, clamped to 0 and to the largest 63-bit
/// number.
pub(crate) fn wall_ns(timestamp_ns: u64, offset_ns: i64) -> u64 {
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

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let column = self.row.group.column(self.next)?;
        self.next += 1;
        let field: &'a FieldSchema = column.field();
        Some((&field.name, column.row(self.row.index, self.row.batch.symbols())))
    }
}
