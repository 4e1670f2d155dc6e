//! Record decoder: from the bytes of records to typed columns.
//!
//! Owns the meaning of an event's bytes: it compiles a `format` once into a [`CompiledFormat`], a flat list
//! of copy steps, which then appends records to [`Columns`], the layout that is also
//! sent. Never does I/O, never resolves symbols, and survives any bytes: a record either becomes
//! one row or leaves the columns as they were.
//!
//! It also owns the knowledge of how the kernel fails to record: see `dynamic` for strings, and
//! `companion` for the hidden arguments which distinguish numbers that could not be read from
//! numbers that were.
//!
//! It allocates nothing per event, except when a column grows.

mod columns;
mod companion;
mod compiled;
mod computed;
mod dynamic;
mod gather;
mod packed;
mod path;
mod row;
mod stack;
#[cfg(test)]
mod tests;

pub use columns::{Column, Columns, Value};
pub use compiled::{CompileError, CompileOptions, CompiledFormat};
pub use gather::{WINDOW_BYTES, Window};
pub use kprobed_filter::{Base, FieldKind, FieldSchema, Notation, Position, Schema};
pub use packed::Packed;
pub use row::DecodeError;
pub use stack::{STACK_FIELD, Stack, StackFormat};
