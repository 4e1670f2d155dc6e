//! Row of decoded events, as filters read it.
//!
//! Owns the access to [`Columns`]: no other file of this module knows their layout. Never decides
//! whether a row matches.

use super::FilterEvent;
use crate::decode::{Columns, Value};

/// One event of a batch, with the facts that its columns do not hold.
#[derive(Clone, Copy, Debug)]
pub struct RowOf<'a> {
    /// The events of one probe.
    pub columns: &'a Columns,
    /// Index of the row.
    pub row: usize,
    /// CPU that recorded them.
    pub cpu: u32,
    /// Number of the event (`common_type`).
    pub type_id: u16,
    /// Process id of the task, if it is known.
    pub tgid: Option<i32>,
    /// Name of the task, if it is known.
    pub comm: Option<&'a [u8]>,
}

impl RowOf<'_> {
    fn value(&self, field: usize, element: usize) -> Option<Value<'_>> {
        self.columns.fields.get(field)?.value(self.row, element)
    }
}

impl FilterEvent for RowOf<'_> {
    #[inline]
    fn number(&self, field: usize, element: usize) -> Option<u64> {
        match self.value(field, element)? {
            Value::Unsigned(number) | Value::Symbol(number) => Some(number),
            Value::Signed(number) => Some(number.cast_unsigned()),
            Value::Char(byte) => Some(byte.into()),
            Value::Bytes(_) | Value::Fault => None,
        }
    }

    fn text(&self, field: usize) -> Option<&[u8]> {
        match self.value(field, 0)? {
            Value::Bytes(text) => Some(text),
            _ => None,
        }
    }

    fn ip(&self) -> Option<u64> {
        self.columns.ip(self.row)
    }

    fn return_ip(&self) -> Option<u64> {
        self.columns.return_ip(self.row)
    }

    fn tid(&self) -> i32 {
        self.columns.tid(self.row).unwrap_or_default()
    }

    fn tgid(&self) -> Option<i32> {
        self.tgid
    }

    fn comm(&self) -> Option<&[u8]> {
        self.comm
    }

    fn cpu(&self) -> u32 {
        self.cpu
    }

    fn type_id(&self) -> u16 {
        self.type_id
    }

    fn flags(&self) -> u8 {
        self.columns.flags(self.row).unwrap_or_default()
    }

    fn preempt_count(&self) -> u8 {
        self.columns.preempt_count(self.row).unwrap_or_default()
    }
}
