//! The `format` file of an event: what its records look like.
//!
//! Owns the grammar of that file and of the `print fmt` line in it. A plain function over text: never does I/O, knows
//! nothing of records. It is strict about the fields, from which offsets are taken, and lenient about `print fmt`, from
//! which only the presentation is taken: what is not understood there falls back to the declaration.

mod field;
mod file;
mod print_fmt;
#[cfg(test)]
mod tests;

pub use field::{Field, Presentation, Shape};
pub use file::{Format, FormatError, FormatProblem};
