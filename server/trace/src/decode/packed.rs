//! Values of a fixed size for each row, held once as long as all rows have the same.
//!
//! Most columns of a batch are of this kind: the task, the flags, the address of the probe, and
//! arguments that are the same in every call. Nothing is copied for their rows, neither here nor
//! into a message, which has one row for all of them too.
//!
//! Owns both forms. Never knows what the bytes mean.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// Values of all rows, in the layout that goes over the wire.
#[derive(Clone, Debug)]
pub struct Packed {
    row_bytes: usize,
    rows: usize,
    /// `row_bytes` for each row; or, if all rows have the same values, `row_bytes` once.
    bytes: Vec<u8>,
}

impl Packed {
    /// No rows yet; each of them has `row_bytes` bytes.
    pub(super) const fn new(row_bytes: usize) -> Self {
        Self { row_bytes, rows: 0, bytes: Vec::new() }
    }

    /// The values of `rows` rows, or of one row for all of them. Absent if the bytes are neither.
    pub(crate) fn from_bytes(row_bytes: usize, rows: usize, bytes: Vec<u8>) -> Option<Self> {
        let is_whole = row_bytes.checked_mul(rows) == Some(bytes.len());
        let is_once = rows > 0 && bytes.len() == row_bytes;
        (is_whole || is_once).then_some(Self { row_bytes, rows, bytes })
    }

    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The values of one row, if all rows have these.
    pub fn once(&self) -> Option<&[u8]> {
        (self.rows > 0 && self.bytes.len() == self.row_bytes).then_some(&self.bytes)
    }

    /// The bytes as they are held: those of one row if all rows have the same.
    pub fn held(&self) -> &[u8] {
        &self.bytes
    }

    /// The values of one row. Absent beyond the end.
    #[inline]
    pub fn row(&self, row: usize) -> Option<&[u8]> {
        if row >= self.rows {
            return None;
        }
        let start = if self.bytes.len() == self.row_bytes { 0 } else { row.saturating_mul(self.row_bytes) };
        self.bytes.get(start..start.saturating_add(self.row_bytes))
    }

    /// The first bytes of one row. Absent beyond the end, and if a row has fewer.
    #[inline]
    pub fn get<const N: usize>(&self, row: usize) -> Option<[u8; N]> {
        self.row(row)?.first_chunk().copied()
    }

    /// Appends one row, of as many bytes as all rows have.
    #[inline]
    pub(super) fn push(&mut self, values: &[u8]) {
        if !self.takes_once(values) {
            self.spread();
            self.bytes.extend_from_slice(values);
        } else if self.rows == 0 {
            self.bytes.extend_from_slice(values);
        }
        self.rows = self.rows.saturating_add(1);
    }

    /// Appends one row of zeros.
    pub(super) fn push_zeros(&mut self) {
        let are_zeros = self.once().is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0));
        if !are_zeros {
            self.room(1);
            return;
        }
        self.rows = self.rows.saturating_add(1);
    }

    /// Whether rows with these values can be appended, and all rows still be held once.
    #[inline]
    pub(super) fn takes_once(&self, values: &[u8]) -> bool {
        self.rows == 0 || (self.bytes.len() == self.row_bytes && self.bytes == values)
    }

    /// Appends rows that all have these values, if [`takes_once`](Self::takes_once) says so.
    #[inline]
    pub(super) fn push_once(&mut self, values: &[u8], rows: usize) {
        if self.rows == 0 {
            self.bytes.extend_from_slice(values);
        }
        self.rows = self.rows.saturating_add(rows);
    }

    /// Appends rows of zeros, for the caller to fill: from here on each row has its own bytes.
    pub(super) fn room(&mut self, rows: usize) -> &mut [u8] {
        self.spread();
        let start = self.bytes.len();
        self.bytes.resize(start.saturating_add(rows.saturating_mul(self.row_bytes)), 0);
        self.rows = self.rows.saturating_add(rows);
        self.bytes.get_mut(start..).unwrap_or_default()
    }

    /// Gives each row its own bytes.
    fn spread(&mut self) {
        if self.rows > 1 && self.bytes.len() == self.row_bytes {
            self.bytes = self.bytes.repeat(self.rows);
        }
    }

    /// Replaces every number of 64 bits by what `replace` gives for it. Rows with the same values stay
    /// held once.
    pub(super) fn replace_u64(&mut self, replace: impl Fn(u64) -> u64) {
        for bytes in self.bytes.as_chunks_mut::<8>().0 {
            *bytes = replace(u64::from_le_bytes(*bytes)).to_le_bytes();
        }
    }

    /// Removes all rows and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.truncate(0);
    }

    /// Removes the rows from this one on.
    pub(super) fn truncate(&mut self, rows: usize) {
        if rows < self.rows {
            self.rows = rows;
            self.bytes.truncate(rows.saturating_mul(self.row_bytes));
        }
    }

    /// The rows with these indices. Indices after the last row are ignored.
    pub(super) fn take_rows(&self, rows: &[u32]) -> Self {
        let mut taken = Self::new(self.row_bytes);
        for values in rows.iter().filter_map(|row| self.row(*row as usize)) {
            taken.push(values);
        }
        taken
    }
}

/// Whether all rows are equal, in whichever form they are held.
impl PartialEq for Packed {
    fn eq(&self, other: &Self) -> bool {
        (self.row_bytes, self.rows) == (other.row_bytes, other.rows)
            && (0..self.rows).all(|row| self.row(row) == other.row(row))
    }
}

impl Eq for Packed {}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_rows_are_held_once_until_one_differs() {
        let mut packed = Packed::new(2);
        assert_eq!((packed.once(), packed.row(0), packed.held()), (None, None, &[][..]));
        packed.push(&[1, 2]);
        packed.push(&[1, 2]);
        packed.push_once(&[1, 2], 3);
        assert_eq!((packed.rows(), packed.once()), (5, Some(&[1, 2][..])));
        assert_eq!((packed.row(4), packed.row(5)), (Some(&[1, 2][..]), None));
        packed.push(&[1, 3]);
        assert_eq!((packed.once(), packed.held()), (None, &[1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 3][..]));
        packed.truncate(1);
        assert_eq!((packed.once(), packed.row(1)), (Some(&[1, 2][..]), None));
        packed.clear();
        packed.push_zeros();
        packed.push_zeros();
        assert_eq!((packed.rows(), packed.once()), (2, Some(&[0, 0][..])));
    }

    #[test]
    fn bytes_are_of_all_rows_or_of_one() {
        let rows =
            |rows, bytes: &[u8]| Packed::from_bytes(2, rows, bytes.to_vec()).map(|packed| packed.rows());
        assert_eq!((rows(3, &[0; 6]), rows(3, &[0; 2]), rows(0, &[])), (Some(3), Some(3), Some(0)));
        assert_eq!((rows(3, &[0; 4]), rows(3, &[]), rows(0, &[0; 2])), (None, None, None));
        assert_eq!(Packed::from_bytes(2, usize::MAX, vec![0; 4]), None);
    }

    proptest! {
        #[test]
        fn rows_are_what_was_appended(rows in vec((0_u8..2, 1_usize..4), 0..20), chosen in vec(0_u32..60, 0..20)) {
            let mut packed = Packed::new(3);
            let mut all = Vec::new();
            for (index, (value, count)) in rows.into_iter().enumerate() {
                let values = [value, 7, value];
                all.extend(std::iter::repeat_n(values, count));
                match index % 3 {
                    0 if packed.takes_once(&values) => packed.push_once(&values, count),
                    1 => (0..count).for_each(|_| packed.push(&values)),
                    _ => packed.room(count).copy_from_slice(&values.repeat(count)),
                }
            }
            prop_assert_eq!(packed.rows(), all.len());
            prop_assert!(all.iter().enumerate().all(|(row, values)| packed.get(row) == Some(*values)));
            let whole = Packed::from_bytes(3, all.len(), all.concat());
            prop_assert_eq!(Some(&packed), whole.as_ref());
            let taken = packed.take_rows(&chosen);
            let expected: Vec<_> = chosen.iter().filter_map(|row| all.get(*row as usize)).copied().collect();
            prop_assert_eq!(taken, Packed::from_bytes(3, expected.len(), expected.concat()).unwrap());
        }
    }
}
