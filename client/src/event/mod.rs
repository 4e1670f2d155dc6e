//! Events as rows and as columns.
//!
//! The daemon sends events column by column, since that is what costs least. This module checks each batch once, on receipt,
//! and then gives access to it without copying: by rows ([`Batch::rows`]) for most programs, by columns ([`Group::field`]) for those
//! who want to compute on them.
//!
//! Owns the reading of the columnar form, and what makes one stream of many connections ([`ResumingStream`]) and CPUs
//! ([`TimeOrdered`]). It never trusts a length: a batch that does not fit its schema is a [`MalformedError`], and behind that check no
//! access can fail.

mod batch;
mod column;
mod context;
mod cursor;
mod escape;
mod group;
mod loss;
mod malformed;
mod ordered;
mod packed;
mod request;
mod resume;
mod row;
mod schema;
mod stream;
mod value;

#[cfg(test)]
mod tests;

pub use batch::Batch;
pub use column::ColumnView;
pub use context::Context;
pub use cursor::{Cursor, CursorError};
pub use escape::Escaped;
pub use group::Group;
pub use loss::{Loss, LossCause, PauseReason, RecordingPause};
pub use malformed::{ColumnFault, MalformedError};
pub use ordered::TimeOrdered;
pub use packed::{Number, Numbers, PackedNumbers};
pub use request::StreamRequest;
pub use resume::{Backoff, Interruption, ResumingItem, ResumingStream};
pub use row::{Fields, Row, Rows};
pub use schema::{Base, Field, FieldKind, Schema, Width};
pub use stream::{Epoch, EventStream, Started, StreamItem, Watermark};
pub use value::{Address, List, Value};
