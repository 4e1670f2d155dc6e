//! Probe documents: YAML or JSON files that declare which probes a daemon should have.
//!
//! ```yaml
//! probe: kprobes/open
//! definition: p do_sys_openat2 name=+0($arg2):ustring
//! enabled: true
//! filter: dfd >= 0
//! labels:
//!   team: storage
//! owner: storage team
//! description: who opens what
//! lease: 2h
//! on_kernel_change: hold
//! take_over: false
//! ```
//!
//! Owns the form of such documents, which is a promise to those who keep such files: reading them
//! with a place for every mistake, writing them, and the requests that make a probe match its
//! document. A document is complete: a key that it lacks has the value that a new probe has. It
//! never judges a definition, and never talks to a daemon: the daemon does the first, and clients
//! the second.

mod change;
mod document;
mod duration;
pub mod json;
mod place;
mod read;

#[cfg(test)]
mod tests;

pub use change::{ROLLOUT_LABEL, changed, creation, described, document_of, keeping_mark};
pub use document::{Document, KernelChange, Lease, write, yaml};
pub use duration::{read_duration, write_duration};
pub use place::{Place, Problem};
pub use read::{PlacedDocument, read};
