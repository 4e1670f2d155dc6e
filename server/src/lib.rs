//! The kprobed daemon as a library.
//!
//! Two paths run through it. Control, from a request to the kernel and back:
//!
//! ```text
//! rpc -> definition (parse) -> kernel (facts) + validate (judge) -> control (single writer)
//!     -> store (intent) -> tracefs (write) -> store (outcome) -> rpc
//! ```
//!
//! Events, from a raw page to a client:
//!
//! ```text
//! tracefs instance -> ring (pages, records) -> decode (columns)
//!     -> pipeline (log, selection, queues), wire (messages) -> rpc
//! ```
//!
//! A third one judges definitions for kernels that do not run:
//!
//! ```text
//! package or image -> kernel (image, facts) -> control (checker) -> rpc (verdict) -> offline (text, JSON)
//! ```
//!
//! Files make requests as clients do: `declared` (directory, documents) → `rpc` (requests) → `control`.
//!
//! Imports point one way: `app`, `offline` → `front`, `declared` → `rpc` → `export` → `messages` → `control`, `feed` → `history`, `pipeline`, `filter` → `meaning` → `store`, `spool`, `tracefs`, `decode`, `ring`,
//! `validate` → `definition`, `insn`, `kernel` → `model`. Parsing and deciding are plain functions without I/O; one thread owns all writes to
//! the kernel.

pub mod app;
pub mod config;
pub mod control;
pub mod declared;
pub mod decode;
pub mod definition;
pub mod export;
pub mod feed;
pub mod filter;
pub mod front;
pub mod history;
pub mod insn;
pub mod kernel;
pub mod meaning;
mod messages;
pub mod model;
pub mod offline;
pub mod pipeline;
pub mod ring;
pub mod rpc;
pub mod shutdown;
pub mod spool;
pub mod store;
pub mod telemetry;
pub mod tracefs;
pub mod validate;
pub mod wire;
