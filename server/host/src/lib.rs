//! Facts of a Linux host: its kernel, its machine code, its tracefs and its ring buffers.
//!
//! Owns every kernel file that kprobed reads, from a running host or from a kernel image, and every
//! one that it writes: `tracefs` is the only code that writes. Never judges a probe, and never
//! decides what should be in tracefs: `kprobed-verdict` and the daemon do.

pub mod insn;
pub mod kernel;
mod little_endian;
pub mod ring;
#[doc(hidden)]
#[path = "../../fixtures/samples/kernel.rs"]
pub mod samples;
pub mod tracefs;
