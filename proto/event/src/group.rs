//! Event group: events of one probe on one CPU.
//!
//! Owns the check of a group as a whole, and of the common columns. Never accepts a group that does
//! not fit its schema.

use std::sync::Arc;

use bytes::Bytes;

use crate::MalformedError;
use crate::api;
use crate::column::{Column, ColumnView};
use crate::context::Context;
use crate::packed::{Number, Packed, at, gather, numbers};
use crate::schema::Schema;
use crate::select::Projected;

/// Events of one probe on one CPU, in the order of time.
#[derive(Clone, Debug)]
pub struct Group {
    schema: Arc<Schema>,
    rows: usize,
    base_ns: u64,
    offsets_ns: Bytes,
    tids: Packed<i32>,
    flags: Packed<u8>,
    preempt_counts: Packed<u8>,
    ips: Packed<u64>,
    return_ips: Packed<u64>,
    columns: Vec<Column>,
}

impl Group {
    /// Checks a group against its schema.
    pub(crate) fn new(schema: Arc<Schema>, group: api::EventGroup) -> Result<Self, MalformedError> {
        let rows = group.rows as usize;
        check_times(&schema, rows, group.base_ns, &group.offsets_ns)?;
        let return_ips = packed(&schema, "return_ips", rows, group.return_ips)?;
        if !schema.is_return() && !matches!(return_ips, Packed::Absent) {
            let probe = schema.probe();
            let message = format!("`{probe}` is not a return probe, and its batch has return addresses");
            return Err(MalformedError(message));
        }
        if group.columns.len() != schema.fields().len() {
            let (fields, columns) = (schema.fields().len(), group.columns.len());
            let message =
                format!("`{}` has {fields} fields, and its batch has {columns} columns", schema.probe());
            return Err(MalformedError(message));
        }
        let mut columns = Vec::with_capacity(group.columns.len());
        for (field, column) in schema.fields().iter().zip(group.columns) {
            let malformed = |fault: String| {
                let (name, probe) = (&field.name, schema.probe());
                MalformedError(format!("field `{name}` of `{probe}` with {rows} rows: {fault}"))
            };
            columns.push(Column::new(field, rows, column).map_err(malformed)?);
        }
        Ok(Self {
            rows,
            base_ns: group.base_ns,
            offsets_ns: group.offsets_ns,
            tids: packed(&schema, "tids", rows, group.tids)?,
            flags: packed(&schema, "flags", rows, group.flags)?,
            preempt_counts: packed(&schema, "preempt_counts", rows, group.preempt_counts)?,
            ips: packed(&schema, "ips", rows, group.ips)?,
            return_ips,
            columns,
            schema,
        })
    }

    /// These rows, in this order.
    pub(crate) fn take(&self, rows: &[usize]) -> Self {
        let fields = self.schema.fields().iter();
        Self {
            schema: Arc::clone(&self.schema),
            rows: rows.len(),
            base_ns: self.base_ns,
            offsets_ns: gather(&self.offsets_ns, u32::WIDTH, rows),
            tids: self.tids.take(rows),
            flags: self.flags.take(rows),
            preempt_counts: self.preempt_counts.take(rows),
            ips: self.ips.take(rows),
            return_ips: self.return_ips.take(rows),
            columns: fields.zip(&self.columns).map(|(field, column)| column.take(field, rows)).collect(),
        }
    }

    /// All rows with fewer columns.
    pub(crate) fn project(&self, projected: &Projected) -> Self {
        fn only<T: Clone>(stays: bool, packed: &Packed<T>) -> Packed<T> {
            if stays { packed.clone() } else { Packed::Absent }
        }
        let kept = &projected.fields;
        let fields = kept.iter().filter_map(|index| self.schema.fields().get(*index)).cloned().collect();
        Self {
            schema: Arc::new(self.schema.with_fields(fields)),
            rows: self.rows,
            base_ns: self.base_ns,
            offsets_ns: self.offsets_ns.clone(),
            tids: only(projected.tid, &self.tids),
            flags: only(projected.context, &self.flags),
            preempt_counts: only(projected.context, &self.preempt_counts),
            ips: only(projected.location, &self.ips),
            return_ips: only(projected.location, &self.return_ips),
            columns: kept.iter().filter_map(|index| self.columns.get(*index)).cloned().collect(),
        }
    }

    /// Bytes of memory, about.
    pub(crate) fn bytes(&self) -> usize {
        let common = self.tids.bytes() + self.flags.bytes() + self.preempt_counts.bytes();
        let places = self.ips.bytes() + self.return_ips.bytes();
        let columns: usize = self.columns.iter().map(|column| size_of::<Column>() + column.bytes()).sum();
        size_of::<Self>() + self.offsets_ns.len() + common + places + columns
    }

    /// The probe and its fields.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Number of events.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The values of a field in all events; `None` if the events have no such field, or a
    /// projection left it out.
    pub fn field(&self, name: &str) -> Option<ColumnView<'_>> {
        let index = self.schema.fields().iter().position(|field| field.name == name)?;
        self.column(index)
    }

    /// The values of the field with this index in the schema.
    #[inline]
    pub fn column(&self, index: usize) -> Option<ColumnView<'_>> {
        Some(ColumnView::new(self.schema.fields().get(index)?, self.columns.get(index)?, self.rows))
    }

    /// Trace-clock time stamps of all events, in nanoseconds. They never decrease.
    pub fn timestamps_ns(&self) -> impl ExactSizeIterator<Item = u64> + use<'_> {
        let base_ns = self.base_ns;
        numbers::<u32>(&self.offsets_ns).map(move |offset_ns| base_ns + u64::from(offset_ns))
    }

    /// Thread ids of all events. `None` if a projection left them out, as for the methods that
    /// follow.
    pub fn tids(&self) -> Option<impl ExactSizeIterator<Item = i32>> {
        self.tids.all(self.rows)
    }

    /// Addresses of the probe in all events, or of the probed function for a return probe. `None`
    /// for tracepoints too.
    pub fn ips(&self) -> Option<impl ExactSizeIterator<Item = u64>> {
        self.ips.all(self.rows)
    }

    /// Addresses that a return probe returns to in all events. `None` for all other probes too.
    pub fn return_ips(&self) -> Option<impl ExactSizeIterator<Item = u64>> {
        self.return_ips.all(self.rows)
    }

    /// Trace-clock time stamp of an event, in nanoseconds. After the last row it is the base time
    /// of the group, and most other values are 0.
    #[inline]
    pub fn timestamp_ns(&self, row: usize) -> u64 {
        self.base_ns + u64::from(at::<u32>(&self.offsets_ns, row))
    }

    /// Thread id of an event. `None` if a projection left it out, as for the methods that follow.
    #[inline]
    pub fn tid(&self, row: usize) -> Option<i32> {
        self.tids.get(row)
    }

    /// Execution context of an event; `None` also if the kernel recorded garbage.
    #[inline]
    pub fn context(&self, row: usize) -> Option<Context> {
        Context::new(self.flags.get(row)?, self.preempt_counts.get(row)?)
    }

    /// Address of the probe, or of the probed function for a return probe. `None` for tracepoints
    /// too.
    #[inline]
    pub fn ip(&self, row: usize) -> Option<u64> {
        self.ips.get(row)
    }

    /// Address that a return probe returns to. `None` for all other probes too.
    #[inline]
    pub fn return_ip(&self, row: usize) -> Option<u64> {
        self.return_ips.get(row)
    }
}

/// There must be as many time stamps as rows, in order, and they must fit into 64 bits: then
/// reading one cannot fail.
fn check_times(schema: &Schema, rows: usize, base_ns: u64, offsets_ns: &[u8]) -> Result<(), MalformedError> {
    if Some(offsets_ns.len()) != rows.checked_mul(u32::WIDTH) {
        return Err(common_column(schema, "offsets_ns", rows, offsets_ns.len()));
    }
    let last_ns = numbers::<u32>(offsets_ns).last().unwrap_or(0);
    let in_order = numbers::<u32>(offsets_ns).is_sorted();
    if !in_order || base_ns.checked_add(u64::from(last_ns)).is_none() {
        let message = format!("the time stamps of `{}` are not in order", schema.probe());
        return Err(MalformedError(message));
    }
    Ok(())
}

fn packed<T: Number + Default>(
    schema: &Schema,
    column: &'static str,
    rows: usize,
    bytes: Bytes,
) -> Result<Packed<T>, MalformedError> {
    let length = bytes.len();
    Packed::new(bytes, rows).ok_or_else(|| common_column(schema, column, rows, length))
}

fn common_column(schema: &Schema, column: &'static str, rows: usize, bytes: usize) -> MalformedError {
    MalformedError(format!("`{column}` of `{}` has {bytes} bytes for {rows} rows", schema.probe()))
}
