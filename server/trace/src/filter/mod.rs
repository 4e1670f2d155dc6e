//! Event filters of subscriptions, on decoded columns.
//!
//! Owns the parts of a filter that only the daemon has: rows of its columns, functions of the
//! running kernel, and the refusal of filters that would harm the host. Never parses a filter: the
//! language is that of [`kprobed_filter`], which clients evaluate too.

mod harm;
mod proof;
mod row;
#[cfg(test)]
mod tests;

pub use harm::harm;
pub use kprobed_filter::{
    Binding, BoundFilter, Filter, FilterCode, FilterError, FilterEvent, Functions, KERNEL_ADDRESSES,
    KernelFilterFeatures, Program, PushDown, buckets_tell_address, is_place,
};
pub use proof::Proofs;
pub use row::RowOf;
