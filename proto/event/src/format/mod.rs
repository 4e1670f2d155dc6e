//! Events as bytes: lines for people, and objects for programs.
//!
//! Owns the layout of both. It is written for millions of events a second: everything goes straight
//! into one buffer, by hand, with no formatting machinery and no allocation for each event. It
//! never writes to a file, and knows no time zone.

mod digits;
mod json;
mod text;
mod value;

pub use json::{EXACT, JsonLines, Progress};
pub use text::{TextLines, TextParts, TimeForm};

/// Which of several hosts an event is of, and when it happened by the clock that all of them are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The host.
    pub host: &'a str,
    /// Nanoseconds since 1970.
    pub corrected_ns: u64,
    /// Whether events that are later are before it.
    pub late: bool,
}
