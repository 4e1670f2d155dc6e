//! Output formats of events: text lines for people, and JSON lines for programs.
//!
//! Owns the layout of both. It is written for millions of events a second: everything goes straight
//! into one buffer, by hand, with no formatting machinery and no allocation for each event. It
//! never writes to a file, and knows no time zone.

mod call;
mod digits;
mod json;
mod text;
mod value;

#[cfg(test)]
mod tests;

pub use call::Call;
pub use json::{EXACT, JsonLines, Progress};
pub use text::{LocationForm, TextColours, TextLines, TextParts, TimeForm};
pub use value::push_name;
pub(crate) use value::push_value;

/// Host of an event in a merged stream, and its time by the clock that all hosts are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The host.
    pub host: &'a str,
    /// Nanoseconds since 1970.
    pub corrected_ns: u64,
    /// Whether later events precede it in the output.
    pub late: bool,
}
