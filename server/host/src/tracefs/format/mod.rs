//! The `format` file of a trace event: the layout of its records.
//!
//! Owns the grammar of that file and of its `print fmt` line. Never does I/O, and never sees a
//! record. Strict about the fields, which give offsets; lenient about `print fmt`, which gives only
//! the presentation: for a conversion that is not understood the declaration counts.

mod field;
mod file;
#[cfg(test)]
mod tests;

pub use field::{Field, Presentation, Shape};
pub use file::{Format, FormatError};
