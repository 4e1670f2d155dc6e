//! Verdicts on probe definitions: whether a kernel accepts a probe, at which instruction it is, and
//! what it records there.
//!
//! Owns the checker (text to verdict), the rules, the comparison of builds, and verdicts as messages.
//! Needs no daemon: facts of a running kernel or of its image suffice. Never writes anything.
#![forbid(unsafe_code)]

pub mod checker;
pub mod meaning;
pub mod message;
pub mod offline;
pub mod validate;
