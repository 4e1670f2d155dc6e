//! Errors of malformed messages in an event stream.
//!
//! Owns their text. Never recovers: the decoder keeps its state, and the caller can read the next
//! message.

use thiserror::Error;

/// A message that contradicts the API or its schema.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MalformedError {
    /// A stream message without content.
    #[error("stream message without content")]
    Empty,
    /// Events as rows, of a stream that was asked for in columns.
    #[error("events come as rows, and not in columns")]
    Rows,
    /// A field of a schema has a type that is unknown, or a width that its type cannot have.
    #[error("field `{field}` of `{probe}` has type {kind} with a width of {width} bytes")]
    BadField {
        /// The probe.
        probe: String,
        /// The field.
        field: String,
        /// Number of the type.
        kind: i32,
        /// Width in bytes.
        width: u32,
    },
    /// A batch refers to a schema that was not sent before.
    #[error("batch refers to schema {0}, which was not sent before")]
    UnknownSchema(u32),
    /// A group has another number of columns than its schema has fields.
    #[error("`{probe}` has {fields} fields, and its batch has {columns} columns")]
    ColumnCount {
        /// The probe.
        probe: String,
        /// Fields in the schema.
        fields: usize,
        /// Columns in the batch.
        columns: usize,
    },
    /// A common column does not have the length that the number of rows requires.
    #[error("`{column}` of `{probe}` has {bytes} bytes for {rows} rows")]
    CommonColumn {
        /// The probe.
        probe: String,
        /// Name in the API.
        column: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// Number of rows.
        rows: usize,
    },
    /// Time stamps that decrease, or exceed 64 bits.
    #[error("the time stamps of `{probe}` are not in order")]
    TimeOrder {
        /// The probe.
        probe: String,
    },
    /// Return addresses in events that do not come from a return probe.
    #[error("`{probe}` is not a return probe, and its batch has return addresses")]
    NotAReturn {
        /// The probe.
        probe: String,
    },
    /// An epoch without a cursor.
    #[error("`epoch` without a cursor")]
    NoCursor,
    /// The column of a field does not fit its schema.
    #[error("field `{field}` of `{probe}` with {rows} rows: {fault}")]
    Column {
        /// The probe.
        probe: String,
        /// The field.
        field: String,
        /// Number of rows.
        rows: usize,
        /// What is wrong.
        fault: ColumnFault,
    },
}

/// Fault of one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ColumnFault {
    /// More values than memory can hold.
    #[error("too many values")]
    TooMany,
    /// Not as many bytes as the number of values requires.
    #[error("{0} bytes of values")]
    ValuesLength(usize),
    /// Texts, or offsets of them, in a field of numbers.
    #[error("{0} bytes of texts and their offsets, and the field has numbers")]
    NotTexts(usize),
    /// The number of offsets is not one more than the number of strings.
    #[error("{0} bytes of offsets")]
    OffsetsLength(usize),
    /// An offset that is smaller than the one before, or is after the end of the data.
    #[error("offsets that do not lie in order within {0} bytes of data")]
    OffsetsOrder(usize),
    /// A fault bitmap that does not have one bit for each value.
    #[error("{0} bytes of fault bits")]
    FaultsLength(usize),
}
