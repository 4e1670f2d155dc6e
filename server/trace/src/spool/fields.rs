//! Reader of little-endian numbers from a slice of bytes.
//!
//! Owns the walk over the slice. It returns `None` if the slice is too short, and never a reason.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// The bytes that were not read yet.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    /// The next `N` bytes.
    pub(super) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next four bytes.
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// The next eight bytes, two's complement.
    pub(super) fn i64(&mut self) -> Option<i64> {
        self.bytes().map(i64::from_le_bytes)
    }
}
