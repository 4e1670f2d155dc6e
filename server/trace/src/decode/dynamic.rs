//! Dynamic data descriptors, and their state after the kernel failed to read a string.
//!
//! A descriptor has 32 bits: offset in the low half, length with the NUL in the high half. Before
//! it fetches an argument, the kernel presets its first descriptor with the place where dynamic
//! data goes next and with all the room that is left there; when the argument took some of that
//! room, the next one begins after it (kernel/trace/trace_probe_tmpl.h:store_trace_args). For an
//! argument of a dynamic event, with *own* its first descriptor and *next* the first descriptor of
//! the following argument, this implies:
//!
//! * The offset of *own* and *next* is always written, and `next.offset - own.offset` is what the
//!   argument really took.
//! * Length 0: the text itself could not be read (fetch_store_string), or there was no room for it.
//! * Took nothing: a fault too, whatever the length says, since even an empty string takes its NUL.
//!   The pointer to the text could not be read, so that the preset stayed and now covers the text
//!   of the *next* argument.
//! * `symstr` never corrects its preset, and stores no NUL before the next text: the end is where
//!   the next begins.
//! * In an array of strings, a pointer that cannot be read ends the fetch. The array then takes
//!   nothing, the next argument overwrites what earlier elements stored, and later descriptors are
//!   never written: all elements are faults.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::ffi::CStr;

use super::columns::Column;
use super::row::{DecodeError, fixed};

/// A descriptor. Both numbers are at most 65535.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor {
    offset: usize,
    length: usize,
}

impl Descriptor {
    fn read(record: &[u8], at: usize) -> Result<Self, DecodeError> {
        let [offset_low, offset_high, length_low, length_high] = fixed(record, at)?;
        Ok(Self {
            offset: u16::from_le_bytes([offset_low, offset_high]).into(),
            length: u16::from_le_bytes([length_low, length_high]).into(),
        })
    }

    /// The end of its bytes.
    const fn end(self) -> usize {
        self.offset.saturating_add(self.length)
    }

    fn bytes(self, record: &[u8], at: usize) -> Result<&[u8], DecodeError> {
        let Self { offset, length } = self;
        record.get(offset..self.end()).ok_or(DecodeError::DescriptorOutOfBounds {
            at,
            offset,
            length,
            record_bytes: record.len(),
        })
    }

    /// Bytes taken by the argument whose first descriptor is this one, at `at`.
    fn taken(self, record: &[u8], at: usize, next_at: usize) -> Result<usize, DecodeError> {
        let next = Self::read(record, next_at)?;
        next.offset.checked_sub(self.offset).ok_or(DecodeError::DescriptorOrder {
            at,
            offset: self.offset,
            next: next.offset,
        })
    }
}

/// Up to the first NUL.
fn text(bytes: &[u8]) -> &[u8] {
    CStr::from_bytes_until_nul(bytes).map_or(bytes, CStr::to_bytes)
}

/// A hidden string that could be read if and only if some field could be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    pub(super) at: usize,
    pub(super) next_at: usize,
}

impl Guard {
    /// Whether the field could not be read. A length of 0 is not a fault of the field: the pointer
    /// was read, and it does not point to text.
    pub(super) fn tells_fault(&self, record: &[u8]) -> Result<bool, DecodeError> {
        let own = Descriptor::read(record, self.at)?;
        Ok(own.taken(record, self.at, self.next_at)? == 0 && own.length != 0)
    }
}

/// The string argument of a dynamic event. `None`: it could not be read.
#[inline]
pub(super) fn argument(
    record: &[u8],
    at: usize,
    next_at: Option<usize>,
) -> Result<Option<&[u8]>, DecodeError> {
    let own = Descriptor::read(record, at)?;
    let room = match next_at {
        Some(next_at) => own.taken(record, at, next_at)?,
        None => own.length,
    };
    let length = own.length.min(room);
    if length == 0 {
        return Ok(None);
    }
    Ok(Some(text(Descriptor { length, ..own }.bytes(record, at)?)))
}

/// Appends the string argument of a dynamic event.
pub(super) fn append_argument(
    record: &[u8],
    at: usize,
    next_at: Option<usize>,
    column: &mut Column,
) -> Result<(), DecodeError> {
    let Some(text) = argument(record, at, next_at)? else {
        column.push_text_fault();
        return Ok(());
    };
    column.push_text(text)
}

/// The string array argument of a dynamic event.
pub(super) fn append_argument_array(
    record: &[u8],
    at: usize,
    count: usize,
    next_at: Option<usize>,
    column: &mut Column,
) -> Result<(), DecodeError> {
    let own = Descriptor::read(record, at)?;
    let took_something = match next_at {
        Some(next_at) => own.taken(record, at, next_at)? != 0,
        None => true,
    };
    // Written descriptors follow each other without gaps. One that does not was never written, nor
    // was any after it.
    let mut expected = took_something.then_some(own.offset);
    for element in 0..count {
        let at = at.saturating_add(element.saturating_mul(4));
        let descriptor = Descriptor::read(record, at)?;
        expected = expected.filter(|offset| *offset == descriptor.offset).map(|_| descriptor.end());
        if expected.is_none() || descriptor.length == 0 {
            column.push_text_fault();
        } else {
            column.push_text(text(descriptor.bytes(record, at)?))?;
        }
    }
    Ok(())
}

/// Dynamic data of a tracepoint, which never faults and whose length is always right.
pub(super) fn append_data(
    record: &[u8],
    at: usize,
    relative: bool,
    is_text: bool,
    column: &mut Column,
) -> Result<(), DecodeError> {
    let mut descriptor = Descriptor::read(record, at)?;
    if relative {
        descriptor.offset = descriptor.offset.saturating_add(at).saturating_add(4);
    }
    let bytes = descriptor.bytes(record, at)?;
    column.push_text(if is_text { text(bytes) } else { bytes })
}

/// A fixed number of characters, of which those before the first NUL count.
pub(super) fn append_characters(bytes: &[u8], column: &mut Column) -> Result<(), DecodeError> {
    column.push_text(text(bytes))
}
