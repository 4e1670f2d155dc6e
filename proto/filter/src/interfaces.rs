//! Interfaces of a filter to its surroundings: the event, and the addresses of kernel functions.

use std::ops::Range;

/// An event, as a filter sees it.
///
/// A value that could not be read is absent: neither a comparison with it nor its opposite holds.
pub trait FilterEvent {
    /// The value of a field that is a number, by the place of the field in the schema and the place
    /// in its array (0 without one): sign or zeros extended to 64 bits.
    fn number(&self, field: usize, element: usize) -> Option<u64>;
    /// The value of a field that is a text; of an array of texts the first.
    fn text(&self, field: usize) -> Option<&[u8]>;
    /// Address of the probe, or of the function for a return probe.
    fn ip(&self) -> Option<u64>;
    /// Address that a return probe returns to.
    fn return_ip(&self) -> Option<u64>;
    /// Thread id (`common_pid`).
    fn tid(&self) -> i32;
    /// Process id.
    fn tgid(&self) -> Option<i32>;
    /// Name of the task.
    fn comm(&self) -> Option<&[u8]>;
    /// CPU that recorded it.
    fn cpu(&self) -> u32;
    /// Number of the event (`common_type`).
    fn type_id(&self) -> u16;
    /// `common_flags` as recorded.
    fn flags(&self) -> u8;
    /// `common_preempt_count` as recorded.
    fn preempt_count(&self) -> u8;
}

/// Where functions are.
pub trait Functions {
    /// The addresses of the function of that name, which may be `MODULE:NAME`.
    fn named(&self, name: &str) -> Option<Range<u64>>;
    /// The addresses of the function that this one lies in.
    fn at(&self, address: u64) -> Option<Range<u64>>;
    /// Another name that may have been meant.
    fn nearest(&self, name: &str) -> Option<&str>;
}

/// A hit of one task, for tests.
#[cfg(test)]
pub(crate) struct TestHit<N> {
    /// The numbers of its fields, by their places.
    pub(crate) numbers: N,
    /// Every text of it.
    pub(crate) text: Option<&'static str>,
    /// Where it was hit, and where it returns to.
    pub(crate) address: u64,
}

#[cfg(test)]
impl<N: Fn(usize) -> u64> FilterEvent for TestHit<N> {
    fn number(&self, field: usize, _element: usize) -> Option<u64> {
        Some((self.numbers)(field))
    }

    fn text(&self, _field: usize) -> Option<&[u8]> {
        self.text.map(str::as_bytes)
    }

    fn ip(&self) -> Option<u64> {
        Some(self.address)
    }

    fn return_ip(&self) -> Option<u64> {
        Some(self.address)
    }

    fn tid(&self) -> i32 {
        7
    }

    fn tgid(&self) -> Option<i32> {
        Some(7)
    }

    fn comm(&self) -> Option<&[u8]> {
        Some(b"cat")
    }

    fn cpu(&self) -> u32 {
        1
    }

    fn type_id(&self) -> u16 {
        9
    }

    fn flags(&self) -> u8 {
        0
    }

    fn preempt_count(&self) -> u8 {
        0
    }
}
