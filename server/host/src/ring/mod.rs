//! Ring-buffer ABI: the layout of a sub-buffer, as a read of `trace_pipe_raw` returns it.
//!
//! Owns the layout of a page ([`PageLayout`], read from the running kernel's `events/header_page`),
//! its header ([`Page`]) and the walk over its records ([`Records`]). Plain functions over bytes:
//! never does I/O, never looks into a record's payload, allocates nothing, and survives any bytes.
//!
//! A page that breaks the rules gives one [`PageError`] that says where. What came before it on the
//! page stays good; what comes after it cannot be found, since records are chained by their
//! lengths.

mod layout;
mod page;
mod record;
#[cfg(test)]
mod tests;

pub use layout::{LayoutError, PageLayout};
pub use page::{Lost, Page, PageError};
pub use record::{Record, Records};
