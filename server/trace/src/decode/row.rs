//! Row decoder: one record becomes one row of the columns.
//!
//! Owns the execution of a plan. It checks all bounds: the offsets in the plan come from the
//! kernel's `format` file, the bytes from the kernel's memory, and they may not fit each other.
//! Never appends half a row.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::columns::{ADDRESS_BYTES, Column, Columns};
use super::compiled::{Action, CompiledFormat, Step};
use super::dynamic;

/// Why a record is not an event of the plan. Nothing was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The record does not have room for the fixed part of the event.
    #[error("record of {found} bytes is too short, the event needs {needed}")]
    TooShort {
        /// Size of the fixed part in bytes.
        needed: usize,
        /// Bytes of the record.
        found: usize,
    },
    /// The record belongs to another event.
    #[error("record is of event {found}, not {expected}")]
    OtherEvent {
        /// The plan's id.
        expected: u16,
        /// `common_type` of the record.
        found: u16,
    },
    /// A descriptor points outside of the record.
    #[error("descriptor at {at} means {length} bytes at {offset} of a record of {record_bytes}")]
    DescriptorOutOfBounds {
        /// Offset of the descriptor in the record, in bytes.
        at: usize,
        /// Offset at which the data should begin.
        offset: usize,
        /// How long it should be, in bytes.
        length: usize,
        /// Bytes of the record.
        record_bytes: usize,
    },
    /// The data of an argument begins after that of the next one.
    #[error("descriptor at {at} begins at {offset}, after its successor at {next}")]
    DescriptorOrder {
        /// Offset of the descriptor in the record, in bytes.
        at: usize,
        /// Where its data begins.
        offset: usize,
        /// Where the data of the next one begins.
        next: usize,
    },
    /// A column of strings has reached 4 GiB.
    #[error("column of strings is full")]
    ColumnFull,
    /// The columns were made by another plan.
    #[error("columns belong to another plan")]
    ForeignColumns,
}

impl CompiledFormat {
    /// Appends one event: the payload of a record, recorded at `timestamp_ns`. After an error the
    /// columns are as before.
    pub fn decode(&self, record: &[u8], timestamp_ns: u64, columns: &mut Columns) -> Result<(), DecodeError> {
        if !columns.is_of(&self.schema) {
            return Err(DecodeError::ForeignColumns);
        }
        if record.len() < self.fixed_bytes {
            return Err(DecodeError::TooShort { needed: self.fixed_bytes, found: record.len() });
        }
        let found = u16::from_le_bytes(fixed(record, 0)?);
        if found != self.id {
            return Err(DecodeError::OtherEvent { expected: self.id, found });
        }
        let head = &self.head;
        let tid = fixed::<4>(record, head.pid)?;
        let flags = fixed::<1>(record, head.flags)?;
        let preempt_count = fixed::<1>(record, head.preempt_count)?;
        let ip = head.ip.map(|at| fixed::<ADDRESS_BYTES>(record, at)).transpose()?;
        let return_ip = head.return_ip.map(|at| fixed::<ADDRESS_BYTES>(record, at)).transpose()?;

        for (step, column) in self.steps.iter().zip(&mut columns.fields) {
            if let Err(error) = step.append(record, column) {
                columns.drop_unfinished_row();
                return Err(error);
            }
            column.finish_row();
        }
        columns.timestamps_ns.push(timestamp_ns);
        columns.tids.push(&tid);
        columns.flags.push(&flags);
        columns.preempt_counts.push(&preempt_count);
        if let Some(ip) = ip {
            columns.ips.push(&ip);
        }
        if let Some(return_ip) = return_ip {
            columns.return_ips.push(&return_ip);
        }
        Ok(())
    }
}

impl Step {
    #[inline]
    fn append(&self, record: &[u8], column: &mut Column) -> Result<(), DecodeError> {
        for guard in &self.guards {
            if guard.tells_fault(record)? {
                column.push_faulted_row();
                return Ok(());
            }
        }
        match &self.action {
            // Copies of a known size are a load and a store.
            Action::Copy { bytes: 8 } => column.push_values(&fixed::<8>(record, self.at)?),
            Action::Copy { bytes: 4 } => column.push_values(&fixed::<4>(record, self.at)?),
            Action::Copy { bytes: 2 } => column.push_values(&fixed::<2>(record, self.at)?),
            Action::Copy { bytes: 1 } => column.push_values(&fixed::<1>(record, self.at)?),
            Action::Copy { bytes } => column.push_values(range(record, self.at, *bytes)?),
            Action::Address => column.push_address(fixed(record, self.at)?),
            Action::Characters { bytes } => {
                dynamic::append_characters(range(record, self.at, *bytes)?, column)?;
            }
            Action::Argument { next_at } => {
                dynamic::append_argument(record, self.at, *next_at, column)?;
            }
            Action::ArgumentArray { count, next_at } => {
                dynamic::append_argument_array(record, self.at, *count, *next_at, column)?;
            }
            Action::Data { relative, is_text } => {
                dynamic::append_data(record, self.at, *relative, *is_text, column)?;
            }
            // Until its record comes.
            Action::Stack => column.push_text_fault(),
            Action::Computed { formula, bytes } => {
                let value = formula.value(record)?.map(u64::to_le_bytes);
                match value.as_ref().and_then(|value| value.get(..*bytes)) {
                    Some(value) => column.push_values(value),
                    None => column.push_faulted_row(),
                }
            }
            Action::Path(path) => path.append(record, column)?,
        }
        Ok(())
    }
}

/// `N` bytes of the fixed part.
#[inline]
pub(super) fn fixed<const N: usize>(record: &[u8], at: usize) -> Result<[u8; N], DecodeError> {
    match record.get(at..).and_then(<[u8]>::first_chunk) {
        Some(bytes) => Ok(*bytes),
        None => Err(DecodeError::TooShort { needed: at.saturating_add(N), found: record.len() }),
    }
}

pub(super) fn range(record: &[u8], at: usize, bytes: usize) -> Result<&[u8], DecodeError> {
    let end = at.saturating_add(bytes);
    record.get(at..end).ok_or(DecodeError::TooShort { needed: end, found: record.len() })
}
