//! Column: the values of one field in many events.
//!
//! Owns the reading of packed values. Lengths and offsets are checked when a column is made; after
//! that an index below the number of values always finds one. Never reads outside of the bytes of a
//! column.

use bytes::Bytes;
use kprobed_filter::{Base, FieldKind, FieldSchema, sign_extended};

use crate::api;
use crate::packed::{Number, at, gather, numbers, repeated};
use crate::value::{Address, List, Value};

/// Said of more values than memory can hold.
const TOO_MANY: &str = "too many values";

/// The checked bytes of a column.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    cells: Cells,
    /// One bit for each value; empty when nothing faulted. Bits after the last value mean nothing.
    faults: Bytes,
}

#[derive(Clone, Debug)]
enum Cells {
    /// Values of all rows.
    Numbers(Bytes),
    /// The values that every row has, and how many values that are.
    Same {
        row: Bytes,
        values: usize,
    },
    Strings {
        offsets: Bytes,
        data: Bytes,
    },
}

impl Column {
    /// Checks a column against its field and the number of events.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn new(field: &FieldSchema, rows: usize, column: api::Column) -> Result<Self, String> {
        let values = rows.checked_mul(field.values_per_row()).ok_or(TOO_MANY)?;
        if !column.faults.is_empty() && column.faults.len() != values.div_ceil(8) {
            return Err(format!("{} bytes of fault bits", column.faults.len()));
        }
        let cells = if field.kind.is_text() {
            if !column.values.is_empty() {
                return Err(format!("{} bytes of values", column.values.len()));
            }
            check_offsets(values, &column.offsets, column.data.len())?;
            Cells::Strings { offsets: column.offsets, data: column.data }
        } else {
            let width = field.kind.value_bytes();
            let wanted = values.checked_mul(width).ok_or(TOO_MANY)?;
            let each = field.values_per_row();
            let is_same = rows > 1 && Some(column.values.len()) == each.checked_mul(width);
            if column.values.len() != wanted && !is_same {
                return Err(format!("{} bytes of values", column.values.len()));
            }
            if !column.offsets.is_empty() || !column.data.is_empty() {
                let bytes = column.offsets.len().saturating_add(column.data.len());
                return Err(format!("{bytes} bytes of texts and their offsets, and the field has numbers"));
            }
            if is_same {
                Cells::Same { row: column.values, values: each }
            } else {
                Cells::Numbers(column.values)
            }
        };
        Ok(Self { cells, faults: column.faults })
    }

    /// The values of these rows.
    pub(crate) fn take(&self, field: &FieldSchema, rows: &[usize]) -> Self {
        let each = field.values_per_row();
        let values =
            || rows.iter().flat_map(|row| (0..each).map(move |value| row.saturating_mul(each) + value));
        let cells = match &self.cells {
            Cells::Numbers(bytes) => {
                Cells::Numbers(gather(bytes, field.kind.value_bytes().saturating_mul(each), rows))
            }
            // Copied: a row that is kept does not keep the message that it came in.
            Cells::Same { row, values } => Cells::Same { row: Bytes::copy_from_slice(row), values: *values },
            Cells::Strings { .. } => {
                let (mut offsets, mut data) = (0_u32.to_le_bytes().to_vec(), Vec::new());
                for value in values() {
                    data.extend_from_slice(self.string(value));
                    // No more bytes than before, which 32 bits could count.
                    offsets.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes());
                }
                Cells::Strings { offsets: offsets.into(), data: data.into() }
            }
        };
        let mut faults = Vec::new();
        if !self.faults.is_empty() {
            faults.resize(rows.len().saturating_mul(each).div_ceil(8), 0_u8);
            for (index, value) in values().enumerate() {
                if let Some(byte) = faults.get_mut(index / 8) {
                    *byte |= u8::from(self.is_fault(value)) << (index % 8);
                }
            }
        }
        Self { cells, faults: faults.into() }
    }

    /// Bytes of its values.
    pub(crate) fn bytes(&self) -> usize {
        let values = match &self.cells {
            Cells::Numbers(bytes) | Cells::Same { row: bytes, .. } => bytes.len(),
            Cells::Strings { offsets, data } => offsets.len() + data.len(),
        };
        values + self.faults.len()
    }

    #[inline]
    fn is_fault(&self, index: usize) -> bool {
        // Most columns have no faults.
        !self.faults.is_empty() && self.faults.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1)
    }

    /// The bits of value `index`, of `width` bytes, zero-extended. 0 for a string and after the end.
    #[inline]
    fn bits(&self, width: usize, index: usize) -> u64 {
        let (bytes, index) = match &self.cells {
            Cells::Numbers(bytes) => (bytes, index),
            Cells::Same { row, values } => (row, index.checked_rem(*values).unwrap_or(0)),
            Cells::Strings { .. } => return 0,
        };
        match width {
            1 => u64::from(at::<u8>(bytes, index)),
            2 => u64::from(at::<u16>(bytes, index)),
            4 => u64::from(at::<u32>(bytes, index)),
            _ => at(bytes, index),
        }
    }

    /// The bytes of string `index`. Empty for a number and after the end.
    fn string(&self, index: usize) -> &[u8] {
        let Cells::Strings { offsets, data } = &self.cells else { return &[] };
        let range = at::<u32>(offsets, index) as usize..at::<u32>(offsets, index.saturating_add(1)) as usize;
        data.get(range).unwrap_or(&[])
    }

    #[inline]
    fn value<'a>(&'a self, field: &FieldSchema, index: usize, symbols: &'a [api::Symbol]) -> Value<'a> {
        if self.is_fault(index) {
            return Value::Fault;
        }
        let bits = |width: u8| self.bits(width.into(), index);
        let base = field.base.unwrap_or(Base::Decimal);
        match field.kind {
            FieldKind::Unsigned { bytes } => Value::Unsigned { value: bits(bytes), base },
            FieldKind::Signed { bytes } => {
                Value::Signed { value: sign_extended(bits(bytes), bytes.into()), base }
            }
            FieldKind::Char => Value::Char(bits(1).to_le_bytes()[0]),
            FieldKind::Symbol => Value::Symbol(Address::find(bits(8), symbols)),
            FieldKind::String | FieldKind::SymbolName => Value::Bytes(self.string(index)),
        }
    }
}

fn check_offsets(values: usize, offsets: &[u8], data_bytes: usize) -> Result<(), String> {
    let wanted = values.checked_add(1).and_then(|count| count.checked_mul(4)).ok_or(TOO_MANY)?;
    if offsets.len() != wanted {
        return Err(format!("{} bytes of offsets", offsets.len()));
    }
    let last = at::<u32>(offsets, values) as usize;
    if last > data_bytes || !numbers::<u32>(offsets).is_sorted() {
        return Err(format!("offsets that do not lie in order within {data_bytes} bytes of data"));
    }
    Ok(())
}

/// The values of one field in all events of a group, without a copy.
///
/// Values have one index over all events: event I of an array field of length L has the values `I *
/// L .. (I + 1) * L`. An index after the end gives 0, an empty text, or a value of that kind.
#[derive(Clone, Copy, Debug)]
pub struct ColumnView<'a> {
    field: &'a FieldSchema,
    column: &'a Column,
    rows: usize,
}

impl<'a> ColumnView<'a> {
    pub(crate) fn new(field: &'a FieldSchema, column: &'a Column, rows: usize) -> Self {
        Self { field, column, rows }
    }

    /// The field of the values.
    pub fn field(&self) -> &'a FieldSchema {
        self.field
    }

    /// Number of events.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of values: more than events for an array.
    pub fn values(&self) -> usize {
        self.rows * self.field.values_per_row()
    }

    /// All values as numbers, faults included, which are 0. `None` if the values are not of that
    /// width: strings never are.
    ///
    /// ```
    /// # fn total(group: &kprobed_event::Group) -> u64 {
    /// let sizes = group.field("size").and_then(|column| column.numbers::<u64>());
    /// sizes.map_or(0, |sizes| sizes.fold(0, u64::wrapping_add))
    /// # }
    /// ```
    #[inline]
    pub fn numbers<T: Number>(&self) -> Option<impl Iterator<Item = T> + Clone + use<'a, T>> {
        let (bytes, times) = match &self.column.cells {
            Cells::Numbers(bytes) => (bytes, 1),
            Cells::Same { row, .. } => (row, self.rows),
            Cells::Strings { .. } => return None,
        };
        (self.field.kind.value_bytes() == T::WIDTH).then(|| repeated::<T>(bytes, times))
    }

    /// Whether any value could not be read.
    pub fn has_faults(&self) -> bool {
        self.column.faults.iter().any(|byte| *byte != 0)
    }

    /// Whether the memory of a value could not be read.
    #[inline]
    pub fn is_fault(&self, index: usize) -> bool {
        self.column.is_fault(index)
    }

    /// A value as an unsigned integer: the bits of any scalar, zero-extended. 0 for strings and
    /// faults.
    #[inline]
    pub fn unsigned(&self, index: usize) -> u64 {
        self.column.bits(self.field.kind.value_bytes(), index)
    }

    /// A value as a signed integer: the bits of any scalar, sign-extended. 0 for strings and
    /// faults.
    #[inline]
    pub fn signed(&self, index: usize) -> i64 {
        sign_extended(self.unsigned(index), self.field.kind.value_bytes())
    }

    /// A value as bytes. Empty for scalars and faults.
    #[inline]
    pub fn bytes(&self, index: usize) -> &'a [u8] {
        self.column.string(index)
    }

    /// A value with its meaning; symbols without their names, which only the batch has.
    #[inline]
    pub fn value(&self, index: usize) -> Value<'a> {
        self.named(index, &[])
    }

    /// As [`Self::value`], with the names of symbols.
    #[inline]
    pub(crate) fn named(&self, index: usize, symbols: &'a [api::Symbol]) -> Value<'a> {
        self.column.value(self.field, index, symbols)
    }

    /// The field of one event: one value, or the list of an array.
    #[inline]
    pub(crate) fn row(&self, row: usize, symbols: &'a [api::Symbol]) -> Value<'a> {
        match self.field.array_len {
            None => self.named(row, symbols),
            Some(length) => {
                let length = length as usize;
                Value::List(List::new(*self, row * length..(row + 1) * length, symbols))
            }
        }
    }
}
