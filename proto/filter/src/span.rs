//! Where in the given text something stands.

use std::ops::Range;

/// A half-open range of byte offsets into the text that was parsed; both ends are on character boundaries.
///
/// Nodes that the daemon makes itself (guards, explicit names) carry the empty span at the place they belong
/// to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The span from `start` up to, but without, `end`.
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// The empty span at `at`, for what is missing there.
    pub const fn point(at: usize) -> Self {
        Self { start: at, end: at }
    }

    /// The same as a range, for slicing the text.
    pub const fn range(self) -> Range<usize> {
        self.start..self.end
    }
}
