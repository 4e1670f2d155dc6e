//! Columns of decoded events, in the layout that is sent.
//!
//! Owns the layout and keeps its invariants: all columns have the same number of rows, strings have
//! one offset more than values, and a fault bitmap is either empty or long enough for all values.
//! Never reads a record: `row` and `gather` do.
//!
//! A column of symbol names holds addresses at first: [`Columns::name_addresses`] replaces them by
//! names, which the caller looks up.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::sync::Arc;

use bytes::Bytes;
use kprobed_proto::v1;

use super::packed::Packed;
use super::row::DecodeError;
use super::stack;
use super::{FieldKind, Notation, Schema};

/// Size of a kernel address.
pub(super) const ADDRESS_BYTES: usize = 8;

/// Events of one plan, in the order in which they were appended.
#[derive(Clone, Debug)]
pub struct Columns {
    schema: Arc<Schema>,
    /// Times in nanoseconds of the trace clock.
    pub timestamps_ns: Vec<u64>,
    /// Thread ids (`common_pid`), 32 bits each; 0 is the idle task.
    pub tids: Packed,
    /// `common_flags` as recorded, a byte each.
    pub flags: Packed,
    /// `common_preempt_count` as recorded, a byte each.
    pub preempt_counts: Packed,
    /// Addresses of the probe, or of the function for a return probe. Empty for events of
    /// tracepoints.
    pub ips: Packed,
    /// Addresses that return probes return to. Empty for all others.
    pub return_ips: Packed,
    /// One column for each field of the schema.
    pub fields: Vec<Column>,
}

/// The values of one field. The values of a row's array are adjacent.
#[derive(Clone, Debug)]
pub struct Column {
    /// Kind of the stored values: a symbol name is a string.
    kind: FieldKind,
    values_per_row: usize,
    /// Little-endian values of each row. Empty for strings, except for addresses that have no names
    /// yet.
    pub values: Packed,
    /// Little-endian 32-bit offsets into `bytes`, one more than there are strings. Empty for
    /// scalars.
    pub offsets: Vec<u8>,
    /// The strings one after the other, without NULs. Empty for scalars.
    pub bytes: Vec<u8>,
    /// One bit for each value, lowest first: set if the value could not be read, which is then 0 or
    /// empty. No bytes at all if every value could be read.
    pub faults: Vec<u8>,
}

/// One value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Unsigned integer.
    Unsigned(u64),
    /// Signed integer.
    Signed(i64),
    /// Character.
    Char(u8),
    /// Kernel address.
    Symbol(u64),
    /// String.
    Bytes(&'a [u8]),
    /// It could not be read.
    Fault,
}

impl Columns {
    /// No rows yet.
    pub(super) fn new(schema: Arc<Schema>) -> Self {
        let fields =
            schema.fields.iter().map(|field| Column::new(field.kind, field.values_per_row())).collect();
        Self {
            schema,
            timestamps_ns: Vec::new(),
            tids: Packed::new(4),
            flags: Packed::new(1),
            preempt_counts: Packed::new(1),
            ips: Packed::new(ADDRESS_BYTES),
            return_ips: Packed::new(ADDRESS_BYTES),
            fields,
        }
    }

    /// The schema of the columns.
    pub const fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Whether they were made for that schema, and not only for an equal one.
    pub(super) fn is_of(&self, schema: &Arc<Schema>) -> bool {
        Arc::ptr_eq(&self.schema, schema)
    }

    /// Number of rows.
    pub const fn len(&self) -> usize {
        self.timestamps_ns.len()
    }

    /// Whether there are no rows.
    pub const fn is_empty(&self) -> bool {
        self.timestamps_ns.is_empty()
    }

    /// Columns made from a message that was sent or stored. Absent if it does not fit the schema: [`Columns`] keeps its
    /// invariants.
    pub fn from_message(schema: Arc<Schema>, group: v1::EventGroup) -> Option<Self> {
        let rows = group.rows as usize;
        if group.offsets_ns.len() != rows.checked_mul(4)? || group.columns.len() != schema.fields.len() {
            return None;
        }
        let common = |row_bytes: usize, bytes: Bytes| {
            // One value stands for all rows, of which there may be none.
            let has_none = bytes.is_empty() || (rows == 0 && bytes.len() == row_bytes);
            if has_none {
                Some(Packed::new(row_bytes))
            } else {
                Packed::from_bytes(row_bytes, rows, bytes.into())
            }
        };
        let mut columns = Self::new(schema);
        for (column, part) in columns.fields.iter_mut().zip(group.columns) {
            let values = rows.checked_mul(column.values_per_row)?;
            column.bytes = part.data.into();
            column.faults = part.faults.into();
            if column.kind == FieldKind::String {
                column.offsets = part.offsets.into();
                if !column.offsets_are_sound(values) || !part.values.is_empty() {
                    return None;
                }
            } else {
                if !part.offsets.is_empty() || !column.bytes.is_empty() {
                    return None;
                }
                let row_bytes = column.values_per_row.checked_mul(column.kind.value_bytes())?;
                column.values = Packed::from_bytes(row_bytes, rows, part.values.into())?;
            }
            if !column.faults.is_empty() && column.faults.len() != values.div_ceil(8) {
                return None;
            }
        }
        let offsets = group.offsets_ns.as_chunks().0.iter().map(|offset| u32::from_le_bytes(*offset));
        columns.timestamps_ns = offsets.map(|offset| group.base_ns.wrapping_add(offset.into())).collect();
        columns.tids = common(4, group.tids)?;
        columns.flags = common(1, group.flags)?;
        columns.preempt_counts = common(1, group.preempt_counts)?;
        columns.ips = common(ADDRESS_BYTES, group.ips)?;
        columns.return_ips = common(ADDRESS_BYTES, group.return_ips)?;
        Some(columns)
    }

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.timestamps_ns.clear();
        self.tids.clear();
        self.flags.clear();
        self.preempt_counts.clear();
        self.ips.clear();
        self.return_ips.clear();
        for column in &mut self.fields {
            column.truncate(0);
        }
    }

    /// The rows with these indices, which are ascending. Indices after the last row are ignored.
    #[must_use]
    pub(crate) fn take_rows(&self, rows: &[u32]) -> Self {
        let rows = rows.get(..rows.partition_point(|row| (*row as usize) < self.len())).unwrap_or_default();
        let fields = self.fields.iter().map(|column| column.take_rows(rows)).collect();
        Self {
            schema: Arc::clone(&self.schema),
            timestamps_ns: rows
                .iter()
                .filter_map(|row| self.timestamps_ns.get(*row as usize))
                .copied()
                .collect(),
            tids: self.tids.take_rows(rows),
            flags: self.flags.take_rows(rows),
            preempt_counts: self.preempt_counts.take_rows(rows),
            ips: self.ips.take_rows(rows),
            return_ips: self.return_ips.take_rows(rows),
            fields,
        }
    }

    /// Replaces all addresses of symbol columns by names: `append_name` appends the name of an
    /// address.
    pub(crate) fn name_addresses(&mut self, mut append_name: impl FnMut(u64, &mut Vec<u8>)) {
        for (column, field) in self.fields.iter_mut().zip(&self.schema.fields) {
            if field.notation == Notation::Stack {
                column.name_frames(self.ips.is_empty(), &mut append_name);
            } else {
                column.name_addresses(&mut append_name);
            }
        }
    }

    /// Replaces every number that can be an address by what `replace` gives for it: the addresses of the
    /// probe, values that have 64 bits, and texts of symbols that are an address.
    pub(crate) fn replace_addresses(&mut self, replace: impl Fn(u64) -> u64 + Copy) {
        self.ips.replace_u64(replace);
        self.return_ips.replace_u64(replace);
        for (column, field) in self.fields.iter_mut().zip(&self.schema.fields) {
            if field.kind.can_hold_address() {
                column.values.replace_u64(replace);
            }
        }
        self.replace_unnamed(replace);
    }

    /// Replaces every address in texts of symbols by what `replace` gives for it, and no number.
    pub(crate) fn replace_unnamed(&mut self, replace: impl Fn(u64) -> u64 + Copy) {
        for (column, field) in self.fields.iter_mut().zip(&self.schema.fields) {
            if field.names_addresses() {
                column.replace_unnamed(replace);
            }
        }
    }

    /// Thread id of one row, if it is known.
    pub fn tid(&self, row: usize) -> Option<i32> {
        self.tids.get(row).map(i32::from_le_bytes)
    }

    /// Flags of one row, if they are known.
    pub fn flags(&self, row: usize) -> Option<u8> {
        self.flags.get(row).map(u8::from_le_bytes)
    }

    /// Preempt count of one row, if it is known.
    pub fn preempt_count(&self, row: usize) -> Option<u8> {
        self.preempt_counts.get(row).map(u8::from_le_bytes)
    }

    /// Address of the probe in one row. Absent for tracepoints.
    pub fn ip(&self, row: usize) -> Option<u64> {
        self.ips.get(row).map(u64::from_le_bytes)
    }

    /// Address that one row returns to. Absent for all but return probes.
    pub fn return_ip(&self, row: usize) -> Option<u64> {
        self.return_ips.get(row).map(u64::from_le_bytes)
    }

    /// Bytes of memory that the values take: about as many as a message with them, or more.
    pub fn bytes(&self) -> usize {
        let common = [&self.tids, &self.flags, &self.preempt_counts, &self.ips, &self.return_ips];
        let common = common.iter().map(|column| column.held().len());
        let fields = self.fields.iter().map(|column| {
            column.values.held().len().saturating_add(column.offsets.len()).saturating_add(column.bytes.len())
        });
        let columns = common.chain(fields).fold(0, usize::saturating_add);
        self.len().saturating_mul(size_of::<u64>()).saturating_add(columns)
    }

    /// Removes the values that were appended after the last whole row.
    pub(super) fn drop_unfinished_row(&mut self) {
        let rows = self.len();
        for column in &mut self.fields {
            column.truncate(rows);
        }
    }
}

impl Column {
    pub(super) fn new(kind: FieldKind, values_per_row: usize) -> Self {
        let kind = if kind == FieldKind::SymbolName { FieldKind::String } else { kind };
        let offsets = if kind == FieldKind::String { vec![0; 4] } else { Vec::new() };
        // A string may be an address first, which is one value of each row.
        let row_bytes = if kind == FieldKind::String {
            ADDRESS_BYTES
        } else {
            values_per_row.saturating_mul(kind.value_bytes())
        };
        let values = Packed::new(row_bytes);
        Self { kind, values_per_row, values, offsets, bytes: Vec::new(), faults: Vec::new() }
    }

    /// Replaces lines that are an address, as [`Columns::name_addresses`] leaves those without a symbol.
    fn replace_unnamed(&mut self, replace: impl Fn(u64) -> u64) {
        self.rewrite(|text, replaced| {
            for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
                let digits = std::str::from_utf8(line).ok().and_then(|line| line.strip_prefix("0x"));
                let address = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                replaced.extend((index > 0).then_some(b'\n'));
                match address {
                    Some(address) => replaced.extend(format!("{:#x}", replace(address)).into_bytes()),
                    None => replaced.extend_from_slice(line),
                }
            }
        });
    }

    /// Replaces the addresses of call stacks by names, one a line. Those of a tracepoint begin with the tracing itself.
    fn name_frames(&mut self, of_tracepoint: bool, append_name: &mut impl FnMut(u64, &mut Vec<u8>)) {
        self.rewrite(|frames, named| {
            let mut is_tracing = of_tracepoint;
            for frame in frames.as_chunks().0 {
                let line = named.len();
                named.extend((line > 0).then_some(b'\n'));
                let name = named.len();
                append_name(u64::from_le_bytes(*frame), named);
                is_tracing &= stack::is_tracing(named.get(name..).unwrap_or_default());
                if is_tracing {
                    named.truncate(line);
                }
            }
        });
    }

    /// Replaces every text by what `append` appends for it: nothing for those that 32 bits cannot count any more.
    fn rewrite(&mut self, mut append: impl FnMut(&[u8], &mut Vec<u8>)) {
        let mut rewritten = Self::new(self.kind, self.values_per_row);
        let mut text = Vec::new();
        for index in 0..self.len() {
            text.clear();
            append(self.text(index).unwrap_or_default(), &mut text);
            if rewritten.push_text(&text).is_err() {
                rewritten.push_text(&[]).unwrap_or_default();
            }
        }
        (self.offsets, self.bytes) = (rewritten.offsets, rewritten.bytes);
    }

    /// Gives a text its bytes that was a fault until now. It stays one if 32 bits cannot count so many.
    pub(super) fn fill_text(&mut self, index: usize, text: &[u8]) {
        let Ok(more) = u32::try_from(text.len()) else { return };
        let room = u32::try_from(self.bytes.len()).ok().and_then(|bytes| bytes.checked_add(more));
        let (Some(at), Some(_)) = (self.offset(index).filter(|_| self.is_fault(index)), room) else { return };
        self.bytes.splice(at..at, text.iter().copied());
        for offset in self.offsets.as_chunks_mut::<4>().0.iter_mut().skip(index.saturating_add(1)) {
            *offset = u32::from_le_bytes(*offset).saturating_add(more).to_le_bytes();
        }
        if let Some(byte) = self.faults.get_mut(index / 8) {
            *byte &= !bit(index);
        }
        if self.faults.iter().all(|byte| *byte == 0) {
            self.faults.clear();
        }
    }

    /// These rows, for columns without addresses that have no names yet.
    fn take_rows(&self, rows: &[u32]) -> Self {
        let mut taken = Self::new(self.kind, self.values_per_row);
        if self.kind == FieldKind::String {
            for row in rows.iter().map(|row| *row as usize) {
                let first = row.saturating_mul(self.values_per_row);
                for index in first..first.saturating_add(self.values_per_row) {
                    // No more bytes than before, which 32 bits could count.
                    taken.push_text(self.text(index).unwrap_or_default()).unwrap_or_default();
                }
            }
        } else {
            taken.values = self.values.take_rows(rows);
        }
        if !self.faults.is_empty() {
            let values = |row: usize| row.saturating_mul(self.values_per_row);
            for (place, row) in rows.iter().enumerate() {
                for element in 0..self.values_per_row {
                    if self.is_fault(values(*row as usize).saturating_add(element)) {
                        taken.mark_fault(values(place).saturating_add(element));
                    }
                }
            }
            taken.finish_row();
        }
        taken
    }

    /// A value by its row and its place in the array of that row, which is 0 for all that are not
    /// arrays. Absent beyond the end.
    pub fn value(&self, row: usize, element: usize) -> Option<Value<'_>> {
        if element >= self.values_per_row {
            return None;
        }
        let index = row.checked_mul(self.values_per_row)?.checked_add(element)?;
        let value = match self.kind {
            FieldKind::Unsigned { .. } => Value::Unsigned(self.number(row, element)?),
            FieldKind::Signed { bytes } => {
                let unused = 64_u32.saturating_sub(u32::from(bytes).saturating_mul(8));
                let shifted = self.number(row, element)?.checked_shl(unused)?;
                Value::Signed(shifted.cast_signed().checked_shr(unused)?)
            }
            FieldKind::Char => Value::Char(*self.values.row(row)?.get(element)?),
            FieldKind::Symbol => Value::Symbol(self.number(row, element)?),
            FieldKind::String | FieldKind::SymbolName => Value::Bytes(self.text(index)?),
        };
        Some(if self.is_fault(index) { Value::Fault } else { value })
    }

    /// Whether there is one offset more than values, none lies before the one before it, and the
    /// last one is within the bytes.
    fn offsets_are_sound(&self, values: usize) -> bool {
        let (offsets, rest) = self.offsets.as_chunks::<4>();
        let mut offsets = offsets.iter().map(|offset| u32::from_le_bytes(*offset));
        rest.is_empty()
            && values.checked_add(1) == Some(offsets.len())
            && offsets.clone().is_sorted()
            && offsets.next_back().is_some_and(|end| end as usize <= self.bytes.len())
    }

    fn number(&self, row: usize, element: usize) -> Option<u64> {
        let width = self.kind.value_bytes();
        let value = self.values.row(row)?.get(element.checked_mul(width)?..)?.get(..width)?;
        Some(value.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn offset(&self, index: usize) -> Option<usize> {
        let offset = self.offsets.get(index.checked_mul(4)?..)?.first_chunk()?;
        usize::try_from(u32::from_le_bytes(*offset)).ok()
    }

    /// A string by its place among all values of all rows. Absent for scalars and beyond the end.
    pub fn text(&self, index: usize) -> Option<&[u8]> {
        let (start, end) = (self.offset(index)?, self.offset(index.checked_add(1)?)?);
        self.bytes.get(start..end)
    }

    /// Whether a value could not be read, by its place among all values of all rows.
    pub fn is_fault(&self, index: usize) -> bool {
        self.faults.get(index / 8).is_some_and(|byte| byte & bit(index) != 0)
    }

    /// How many values there are in all rows.
    pub(super) fn len(&self) -> usize {
        match self.kind {
            FieldKind::String => self.texts().saturating_add(self.values.rows()),
            _ => self.values.rows().saturating_mul(self.values_per_row),
        }
    }

    /// How many texts there are.
    fn texts(&self) -> usize {
        (self.offsets.len() / 4).saturating_sub(1)
    }

    /// Appends an address that has no name yet. For symbol names only.
    #[inline]
    pub(super) fn push_address(&mut self, address: [u8; ADDRESS_BYTES]) {
        self.values.push(&address);
    }

    /// Replaces addresses by names.
    fn name_addresses(&mut self, append_name: &mut impl FnMut(u64, &mut Vec<u8>)) {
        if self.kind != FieldKind::String || self.values.is_empty() {
            return;
        }
        let mut addresses = std::mem::replace(&mut self.values, Packed::new(ADDRESS_BYTES));
        for address in (0..addresses.rows()).filter_map(|row| addresses.get(row)) {
            let start = self.bytes.len();
            if !self.is_fault(self.texts()) {
                append_name(u64::from_le_bytes(address), &mut self.bytes);
            }
            let end = u32::try_from(self.bytes.len()).unwrap_or_else(|_full| {
                self.bytes.truncate(start);
                u32::try_from(start).unwrap_or(u32::MAX)
            });
            self.offsets.extend_from_slice(&end.to_le_bytes());
        }
        addresses.clear();
        self.values = addresses;
    }

    /// Appends the values of one row in the layout of the column. For scalars only.
    #[inline]
    pub(super) fn push_values(&mut self, values: &[u8]) {
        self.values.push(values);
    }

    /// Appends one row of a scalar field that could not be read.
    pub(super) fn push_faulted_row(&mut self) {
        let first = self.len();
        self.values.push_zeros();
        for index in first..first.saturating_add(self.values_per_row) {
            self.mark_fault(index);
        }
    }

    /// Appends one string.
    #[inline]
    pub(super) fn push_text(&mut self, text: &[u8]) -> Result<(), DecodeError> {
        self.push_made_text(|bytes| bytes.extend_from_slice(text))
    }

    /// Appends one string that is written behind those before it.
    #[inline]
    pub(super) fn push_made_text(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), DecodeError> {
        let before = self.bytes.len();
        write(&mut self.bytes);
        let Ok(end) = u32::try_from(self.bytes.len()) else {
            self.bytes.truncate(before);
            return Err(DecodeError::ColumnFull);
        };
        self.offsets.extend_from_slice(&end.to_le_bytes());
        Ok(())
    }

    /// Appends one string that could not be read.
    pub(super) fn push_text_fault(&mut self) {
        self.mark_fault(self.len());
        // The last offset again; there always is one.
        if let Some(end) = self.offsets.last_chunk::<4>().copied() {
            self.offsets.extend_from_slice(&end);
        }
    }

    /// To be called after each row: once there are faults, the bitmap grows with the values.
    #[inline]
    pub(super) fn finish_row(&mut self) {
        if !self.faults.is_empty() {
            let bytes = self.len().div_ceil(8);
            self.faults.resize(bytes, 0);
        }
    }

    fn mark_fault(&mut self, index: usize) {
        let byte = index / 8;
        if self.faults.len() <= byte {
            self.faults.resize(byte.saturating_add(1), 0);
        }
        if let Some(byte) = self.faults.get_mut(byte) {
            *byte |= bit(index);
        }
    }

    fn truncate(&mut self, rows: usize) {
        let values = rows.saturating_mul(self.values_per_row);
        if self.kind == FieldKind::String {
            self.values.truncate(values.saturating_sub(self.texts()));
            self.offsets.truncate(values.saturating_add(1).saturating_mul(4));
            self.bytes.truncate(self.offset(values.min(self.texts())).unwrap_or(0));
        } else {
            self.values.truncate(rows);
        }
        self.faults.truncate(values.div_ceil(8));
        if let (Some(last), used @ 1..) = (self.faults.last_mut(), values % 8) {
            *last &= bit(used).wrapping_sub(1);
        }
        if self.faults.iter().all(|byte| *byte == 0) {
            self.faults.clear();
        }
    }
}

/// The bit of a value in its byte of the bitmap.
const fn bit(index: usize) -> u8 {
    1 << (index % 8)
}
