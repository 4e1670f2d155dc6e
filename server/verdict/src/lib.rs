//! Whether a kernel takes a probe, where it stands in its code, and what it means there.
//!
//! Owns the checker (text to verdict), the rules and the comparison of builds. Needs no daemon:
//! facts of a kernel that runs or of its image are enough. Never writes anything.
#![forbid(unsafe_code)]

pub mod checker;
pub mod meaning;
pub mod validate;
