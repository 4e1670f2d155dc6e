//! Call stacks: a record of its own behind the record of each event that asks for one.
//!
//! The kernel writes such a record after it has written the event, on the same CPU, and in between can be interrupted,
//! by what has events and stacks too (kernel/trace/trace.c:__ftrace_trace_stack).
//!
//! Owns the layout of the record, where in it the stack of the event begins, and the column of stacks: addresses first,
//! and one name a line once [`Columns::name_addresses`] has named them. Never decides to which event a stack belongs.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::columns::{ADDRESS_BYTES, Columns};
use super::{FieldKind, FieldSchema, Notation};
use kprobed_host::tracefs::format::{Format, Shape};

/// Name of the field that has the call stack.
pub const STACK_FIELD: &str = "stack";

/// Bytes of code at a probe in which the kernel goes on after it has hit: behind an INT3, behind the call to ftrace,
/// and behind the `endbr64` before that.
const PLACE_BYTES: u64 = 16;

/// How the names of the functions begin with which the kernel records a tracepoint.
const TRACING: [&str; 4] = ["trace_event_", "event_triggers_", "ftrace_syscall_", "__traceiter_"];

/// Whether a function records a tracepoint.
pub(super) fn is_tracing(name: &[u8]) -> bool {
    TRACING.iter().any(|beginning| name.starts_with(beginning.as_bytes()))
}

/// That field, the last one of an event.
pub(super) fn field() -> FieldSchema {
    FieldSchema {
        may_fault: false,
        notation: Notation::Stack,
        ..FieldSchema::new(STACK_FIELD, FieldKind::SymbolName)
    }
}

/// Layout of the records of call stacks (`events/ftrace/kernel_stack/format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackFormat {
    id: u16,
    flags_at: usize,
    tid_at: usize,
    count_at: usize,
    frames_at: usize,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack<'r> {
    /// Its thread.
    pub tid: i32,
    /// `common_flags` as recorded.
    pub flags: u8,
    /// Addresses, little-endian, the innermost first: those of the tracing itself, and then those of the event.
    frames: &'r [[u8; ADDRESS_BYTES]],
}

impl StackFormat {
    /// The layout, if the kernel describes one that is known. The number of frames in the description is no limit: it
    /// is what the kernel shows of a record.
    pub fn of(format: &Format) -> Option<Self> {
        let at = |name: &str, shape: Shape| {
            let mut fields = format.common.iter().chain(&format.fields);
            Some(fields.find(|field| field.name == name && field.shape == shape)?.offset)
        };
        let frames = format.fields.iter().find(|field| field.name == "caller")?;
        let are_addresses = matches!(frames.shape, Shape::Array { element_size: ADDRESS_BYTES, .. });
        Some(Self {
            id: format.id,
            flags_at: at("common_flags", Shape::Scalar { size: 1 })?,
            tid_at: at("common_pid", Shape::Scalar { size: 4 })?,
            count_at: at("size", Shape::Scalar { size: 4 })?,
            frames_at: are_addresses.then_some(frames.offset)?,
        })
    }

    /// Whether a record is a call stack.
    pub fn is_of(&self, record: &[u8]) -> bool {
        record.first_chunk().is_some_and(|id| u16::from_le_bytes(*id) == self.id)
    }

    /// Reads such a record. Absent if it has less than it says.
    pub fn read<'r>(&self, record: &'r [u8]) -> Option<Stack<'r>> {
        let count: [u8; 4] = *record.get(self.count_at..)?.first_chunk()?;
        let count = usize::try_from(i32::from_le_bytes(count)).ok()?;
        let (frames, _) = record.get(self.frames_at..)?.as_chunks();
        Some(Stack {
            tid: i32::from_le_bytes(*record.get(self.tid_at..)?.first_chunk()?),
            flags: *record.get(self.flags_at)?,
            frames: frames.get(..count)?,
        })
    }
}

impl<'r> Stack<'r> {
    /// The frames from the place of an event on: of the probe at `ip`, of the return to `return_ip`, or else all.
    /// Absent if there is no such place in the stack, which then is another event's, or could not be followed: the
    /// kernel knows no way out of the code that a jump of an optimized probe leads to.
    fn frames_of(&self, ip: Option<u64>, return_ip: Option<u64>) -> Option<&'r [[u8; ADDRESS_BYTES]]> {
        let is_place = |frame: &[u8; ADDRESS_BYTES]| {
            let frame = u64::from_le_bytes(*frame);
            match (return_ip, ip) {
                (Some(return_ip), _) => frame == return_ip,
                (None, Some(ip)) => frame.checked_sub(ip).is_some_and(|distance| distance < PLACE_BYTES),
                (None, None) => true,
            }
        };
        self.frames.get(self.frames.iter().position(is_place)?..)
    }
}

impl Columns {
    /// Gives one row its call stack, if it can be its own.
    pub(crate) fn put_stack(&mut self, row: usize, stack: &Stack<'_>) {
        let Some(frames) = stack.frames_of(self.ip(row), self.return_ip(row)) else { return };
        if let Some(column) = self.fields.last_mut() {
            column.fill_text(row, frames.as_flattened());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As 6.1 and 6.12 have it.
    const FORMAT: &str = "name: kernel_stack\nID: 4\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
        \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:int size;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:unsigned long caller[8];\toffset:16;\tsize:64;\tsigned:0;\n\n\
        print fmt: \"\"\n";

    fn format() -> StackFormat {
        StackFormat::of(&Format::parse(FORMAT).unwrap()).unwrap()
    }

    fn record(count: i32, frames: &[u64]) -> Vec<u8> {
        let mut record = vec![4, 0, 0x10, 1, 7, 0, 0, 0];
        record.extend(count.to_le_bytes());
        record.extend([0xcc; 4]);
        record.extend(frames.iter().flat_map(|frame| frame.to_le_bytes()));
        record
    }

    fn addresses(frames: Option<&[[u8; 8]]>) -> Option<Vec<u64>> {
        Some(frames?.iter().map(|frame| u64::from_le_bytes(*frame)).collect())
    }

    #[test]
    fn a_stack_begins_at_the_place_of_its_event() {
        let record = record(4, &[0xa0, 0x1009, 0x2005, 0x3000]);
        let stack = format().read(&record).unwrap();
        assert_eq!((stack.tid, stack.flags), (7, 0x10));
        let from = |ip, return_ip| addresses(stack.frames_of(ip, return_ip));
        assert_eq!(from(Some(0x1004), None), Some(vec![0x1009, 0x2005, 0x3000]));
        assert_eq!(
            from(Some(0x1000), Some(0x2005)),
            Some(vec![0x2005, 0x3000]),
            "where a function returns to"
        );
        assert_eq!(from(None, None).map(|frames| frames.len()), Some(4), "a tracepoint has no place");
        for other in [0x100a, 0x0ff9, 0x2006] {
            assert_eq!(from(Some(other), None), None, "{other:#x}");
        }
        assert_eq!(from(Some(0x1004), Some(0x2004)), None);
    }

    #[test]
    fn a_record_has_what_it_says() {
        let frames = [1, 2, 3];
        for (count, expected) in
            [(3, Some(3)), (2, Some(2)), (0, Some(0)), (4, None), (-1, None), (i32::MAX, None)]
        {
            let record = record(count, &frames);
            assert_eq!(format().read(&record).map(|stack| stack.frames.len()), expected, "{count}");
        }
        let mut other = Format::parse(FORMAT).unwrap();
        other.fields.retain(|field| field.name != "size");
        assert_eq!(StackFormat::of(&other), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(record: Vec<u8>, cut in 0..64_usize, count: i32) {
            let whole = self::record(count, &[1, 2, 3, 4, 5]);
            for record in [record.as_slice(), whole.get(..cut).unwrap_or(&whole)] {
                if let Some(stack) = format().read(record) {
                    prop_assert!(stack.frames.as_flattened().len().saturating_add(16) <= record.len());
                }
            }
        }
    }
}
