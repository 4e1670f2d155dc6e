//! Events of one probe on one CPU.
//!
//! Owns the check of a group as a whole.

use std::sync::Arc;

use bytes::Bytes;

use super::MalformedError;
use super::column::{Column, ColumnView, u32_at, u64_at};
use super::context::Context;
use super::schema::Schema;
use crate::api;

/// Events of one probe on one CPU, in the order of time.
#[derive(Clone, Debug)]
pub struct Group {
    schema: Arc<Schema>,
    rows: usize,
    timestamps_ns: Bytes,
    tids: Bytes,
    flags: Bytes,
    preempt_counts: Bytes,
    ips: Bytes,
    return_ips: Bytes,
    columns: Vec<Column>,
}

impl Group {
    /// Checks a group against its schema.
    pub(super) fn new(schema: Arc<Schema>, group: api::EventGroup) -> Result<Self, MalformedError> {
        let rows = group.rows as usize;
        let common = |column, bytes: &Bytes, width: usize| {
            if Some(bytes.len()) == rows.checked_mul(width) {
                return Ok(());
            }
            Err(MalformedError::CommonColumn {
                probe: schema.probe().to_owned(),
                column,
                bytes: bytes.len(),
                rows,
            })
        };
        common("timestamps_ns", &group.timestamps_ns, 8)?;
        common("tids", &group.tids, 4)?;
        common("flags", &group.flags, 1)?;
        common("preempt_counts", &group.preempt_counts, 1)?;
        // Tracepoints have no address.
        common("ips", &group.ips, if group.ips.is_empty() { 0 } else { 8 })?;
        common("return_ips", &group.return_ips, if schema.is_return() { 8 } else { 0 })?;
        if group.columns.len() != schema.fields().len() {
            return Err(MalformedError::ColumnCount {
                probe: schema.probe().to_owned(),
                fields: schema.fields().len(),
                columns: group.columns.len(),
            });
        }
        let mut columns = Vec::with_capacity(group.columns.len());
        for (field, column) in schema.fields().iter().zip(group.columns) {
            columns.push(Column::new(field, rows, column).map_err(|fault| MalformedError::Column {
                probe: schema.probe().to_owned(),
                field: field.name.clone(),
                rows,
                fault,
            })?);
        }
        Ok(Self {
            rows,
            timestamps_ns: group.timestamps_ns,
            tids: group.tids,
            flags: group.flags,
            preempt_counts: group.preempt_counts,
            ips: group.ips,
            return_ips: group.return_ips,
            columns,
            schema,
        })
    }

    /// The probe and its fields.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Number of events.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The values of a field in all events; `None` when the events have no such field.
    pub fn field(&self, name: &str) -> Option<ColumnView<'_>> {
        let index = self.schema.fields().iter().position(|field| field.name == name)?;
        self.column(index)
    }

    /// The values of the field with this index in the schema.
    pub fn column(&self, index: usize) -> Option<ColumnView<'_>> {
        Some(ColumnView::new(self.schema.fields().get(index)?, self.columns.get(index)?, self.rows))
    }

    /// Trace-clock time stamp of an event, in nanoseconds; 0 behind the last row, as for all accessors here.
    pub fn timestamp_ns(&self, row: usize) -> u64 {
        u64_at(&self.timestamps_ns, row)
    }

    /// Thread id of an event.
    pub fn tid(&self, row: usize) -> i32 {
        u32_at(&self.tids, row) as i32
    }

    /// Execution context of an event; `None` where the kernel does not record it soundly.
    pub fn context(&self, row: usize) -> Option<Context> {
        Context::new(*self.flags.get(row)?, *self.preempt_counts.get(row)?)
    }

    /// Address of the probe, or of the probed function for a return probe.
    pub fn ip(&self, row: usize) -> u64 {
        u64_at(&self.ips, row)
    }

    /// Address that a return probe returns to; `None` for entry probes.
    pub fn return_ip(&self, row: usize) -> Option<u64> {
        self.schema.is_return().then(|| u64_at(&self.return_ips, row))
    }
}
