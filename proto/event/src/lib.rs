//! Events of kprobed: decoder of the columnar form, access by rows and columns, and output as lines
//! and JSON.
//!
//! The daemon sends events column by column, which costs least. This crate checks each batch once,
//! on receipt, and then gives access to it without copying: by rows ([`Batch::rows`]) for most
//! programs, by columns ([`Group::field`]) for programs that compute on them. The client library
//! reads its streams with it, and the daemon's exporters read the same messages, so that an event
//! has the same values wherever it arrives.
//!
//! Owns the reading of the columnar form ([`Decoder`]), the order of time over CPUs
//! ([`TimeOrdered`]), the entries of functions joined with their returns ([`Calls`]), and the lines
//! and objects that events become ([`format`](mod@format)). It
//! never trusts a length: a batch that does not fit its schema is a [`MalformedError`], and after
//! that check no access can fail. It knows neither connections nor files.
#![forbid(unsafe_code)]

mod batch;
mod calls;
mod column;
mod context;
mod cursor;
mod decoder;
mod escape;
pub mod format;
mod group;
mod loss;
mod ordered;
mod packed;
pub mod published;
mod row;
mod schema;
mod select;
mod value;

#[cfg(test)]
mod tests;

pub use batch::Batch;
pub use calls::{CallEnd, Calls, Incomplete, Thread};
pub use column::ColumnView;
pub use context::Context;
pub use cursor::{Cursor, CursorError};
pub use decoder::{Decoder, Epoch, MalformedError, StreamItem};
pub use escape::{Escaped, is_unprintable};
pub use group::Group;
pub use kprobed_filter::{Base, FieldKind, FieldSchema, Notation};
pub use loss::{Loss, RecordingPause, cause_name, reason_name};
pub use ordered::TimeOrdered;
pub use packed::Number;
pub use row::{Fields, OwnedRow, Row, Rows};
pub use schema::{Schema, field_message};
pub use select::{COMMON_FIELDS, Projected, Projection};
pub use value::{Address, List, Value};

use kprobed_proto::v1 as api;
pub use kprobed_proto::v1::{LossCause, PauseReason};
