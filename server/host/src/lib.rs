//! What is so on a host: facts of its kernel, its machine code, its tracefs, and the form of its ring buffers.
//!
//! Owns every file of the kernel that is read, from a running host or from an image, and every one that is written: `tracefs` is the only
//! code that writes. Never judges a probe, and never decides what should be in tracefs: `kprobed-verdict` and the daemon do.

pub mod insn;
pub mod kernel;
pub mod ring;
#[doc(hidden)]
pub mod samples;
pub mod tracefs;
