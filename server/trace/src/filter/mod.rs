//! Filters of subscriptions, on what the daemon decodes.
//!
//! Owns what of a filter only the daemon knows: rows of its columns, functions of the running
//! kernel, and which filters would harm the host. The language is [`kprobed_filter`]'s, which
//! clients evaluate too.

mod harm;
mod row;
#[cfg(test)]
mod tests;

pub use harm::harm;
pub use kprobed_filter::{
    Binding, BoundFilter, Filter, FilterCode, FilterError, FilterEvent, Functions, KernelFilterFeatures,
    LeftOut, Program, PushDown,
};
pub use row::RowOf;
