//! Packed numbers: little-endian values of a fixed width in a byte string.
//!
//! Owns reading them, and the common columns, which may hold one value for all rows. It checks
//! lengths when a column is made, and never again.

use bytes::Bytes;

/// A number of a fixed width. The bits of a field are read as they are: `u64` and `i64` fit the
/// same columns.
pub trait Number: sealed::Sealed + Copy {
    /// Size in bytes.
    const WIDTH: usize;
}

mod sealed {
    pub trait Sealed: Sized {
        /// Reads a number from exactly as many bytes as it has.
        fn read(bytes: &[u8]) -> Self;
    }
}

macro_rules! numbers {
    ($($number:ident),*) => {$(
        impl Number for $number {
            const WIDTH: usize = size_of::<$number>();
        }

        impl sealed::Sealed for $number {
            #[inline]
            fn read(bytes: &[u8]) -> Self {
                bytes.first_chunk().map_or(0, |bytes| $number::from_le_bytes(*bytes))
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, i8, i16, i32, i64);

/// Packed numbers, one after the other. Bytes after the last whole number are ignored.
pub(crate) fn numbers<T: Number>(bytes: &[u8]) -> impl ExactSizeIterator<Item = T> + Clone {
    bytes.chunks_exact(T::WIDTH).map(T::read)
}

/// The same packed numbers, so many times.
pub(crate) fn repeated<T: Number>(bytes: &[u8], times: usize) -> impl Iterator<Item = T> + Clone {
    std::iter::repeat_n(bytes, times).flat_map(numbers::<T>)
}

/// Number `index` of packed numbers; 0 after the end.
#[inline]
pub(crate) fn at<T: Number + Default>(bytes: &[u8], index: usize) -> T {
    let start = index.saturating_mul(T::WIDTH);
    bytes.get(start..).map_or_else(T::default, T::read)
}

/// Elements of packed bytes with these indices, one after the other.
pub(crate) fn gather(bytes: &Bytes, width: usize, indices: &[usize]) -> Bytes {
    let mut gathered = Vec::with_capacity(indices.len().saturating_mul(width));
    for index in indices {
        let start = index.saturating_mul(width);
        gathered.extend_from_slice(bytes.get(start..start.saturating_add(width)).unwrap_or_default());
    }
    gathered.into()
}

/// A common column, which events of every probe can have.
#[derive(Clone, Debug)]
pub(crate) enum Packed<T> {
    /// A projection left it out, or such events do not have it.
    Absent,
    /// The same in all rows.
    One(T),
    /// One for each row.
    Each(Bytes),
}

impl<T: Number + Default> Packed<T> {
    /// Checks the length against the number of rows; `None` when it does not fit.
    pub(crate) fn new(bytes: Bytes, rows: usize) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::Absent);
        }
        if bytes.len() == T::WIDTH {
            return Some(Self::One(at(&bytes, 0)));
        }
        (Some(bytes.len()) == rows.checked_mul(T::WIDTH)).then_some(Self::Each(bytes))
    }

    /// The value of a row. `None` if the column is absent. After the last row it is 0, or the
    /// common value of a column that has one value for all rows.
    #[inline]
    pub(crate) fn get(&self, row: usize) -> Option<T> {
        match self {
            Self::Absent => None,
            Self::One(value) => Some(*value),
            Self::Each(bytes) => Some(at(bytes, row)),
        }
    }

    /// Bytes of its values, apart from itself.
    pub(crate) fn bytes(&self) -> usize {
        if let Self::Each(bytes) = self { bytes.len() } else { 0 }
    }

    /// The values of these rows.
    pub(crate) fn take(&self, rows: &[usize]) -> Self {
        match self {
            Self::Absent => Self::Absent,
            Self::One(value) => Self::One(*value),
            Self::Each(bytes) => Self::Each(gather(bytes, T::WIDTH, rows)),
        }
    }

    /// The values of all rows.
    pub(crate) fn all(&self, rows: usize) -> Option<impl ExactSizeIterator<Item = T>> {
        let is_there = !matches!(self, Self::Absent);
        is_there.then(|| (0..rows).map(move |row| self.get(row).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_read_as_they_were_written(values: Vec<i32>) {
            let bytes: Bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let numbers = numbers::<i32>(&bytes);
            prop_assert_eq!(numbers.len(), values.len());
            prop_assert_eq!(numbers.clone().fold(0_i64, |sum, value| sum + i64::from(value)), values.iter().map(|value| i64::from(*value)).sum::<i64>());
            prop_assert_eq!(numbers.collect::<Vec<_>>(), values.clone());
            for (index, value) in values.iter().enumerate() {
                prop_assert_eq!(at::<i32>(&bytes, index), *value);
            }
            prop_assert_eq!(at::<i32>(&bytes, values.len()), 0);
        }

        #[test]
        fn a_row_stands_for_all(row in proptest::collection::vec(any::<u16>(), 1..5), rows in 0..6_usize) {
            let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
            let all = repeated::<u16>(&bytes, rows);
            prop_assert_eq!(all.clone().count(), row.len() * rows);
            let sum = |sum: u64, value: u16| sum + u64::from(value);
            prop_assert_eq!(all.clone().fold(0, sum), row.repeat(rows).into_iter().fold(0, sum));
            prop_assert_eq!(all.collect::<Vec<_>>(), row.repeat(rows));
        }

        #[test]
        fn a_column_is_absent_or_has_one_value_or_one_for_each_row(bytes in proptest::collection::vec(any::<u8>(), 0..40), rows in 0..12_usize) {
            let length = bytes.len();
            match Packed::<u32>::new(bytes.into(), rows) {
                Some(Packed::Absent) => prop_assert_eq!(length, 0),
                Some(column @ Packed::One(_)) => {
                    prop_assert_eq!((length, column.all(rows).unwrap().len()), (4, rows));
                }
                Some(column @ Packed::Each(_)) => {
                    prop_assert_eq!(length, 4 * rows);
                    let all: Vec<_> = column.all(rows).unwrap().collect();
                    prop_assert_eq!(all, (0..rows).filter_map(|row| column.get(row)).collect::<Vec<_>>());
                }
                None => prop_assert!(length != 4 * rows && length != 4 && length != 0),
            }
        }
    }
}
