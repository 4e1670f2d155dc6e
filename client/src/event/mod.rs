//! Events as rows.
//!
//! The daemon sends events column by column, since that is what costs least. This module checks each batch once, on receipt,
//! and then gives access to it without copying: by rows ([`Batch::rows`]) for everybody, by columns ([`Group::field`]) for those
//! who want to compute on them.
//!
//! Owns the reading of the columnar form. It never trusts a length: a batch that does not fit its schema is a
//! [`MalformedError`], and behind that check no access can fail.

mod batch;
mod column;
mod context;
mod escape;
mod group;
mod malformed;
mod row;
mod schema;
mod stream;
mod value;

#[cfg(test)]
mod tests;

pub use batch::Batch;
pub use column::ColumnView;
pub use context::Context;
pub use escape::Escaped;
pub use group::Group;
pub use malformed::{ColumnFault, MalformedError};
pub use row::{Fields, Row, Rows};
pub use schema::{Base, Field, FieldKind, Schema, Width};
pub use stream::{EventStream, Loss, LossCause, Started, StreamItem};
pub use value::{Address, List, Value};
