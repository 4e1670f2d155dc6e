//! The kprobed daemon as a library: control thread, database, API, exporters.
//!
//! Control, from a request to the kernel and back:
//!
//! ```text
//! rpc -> kprobed_lang (parse) -> kprobed_host (facts) + kprobed_verdict (judge) -> control (single writer)
//!     -> store (intent) -> kprobed_host::tracefs (write) -> store (outcome) -> rpc
//! ```
//!
//! Events, from a raw page to a client, go through [`kprobed_trace`], and leave through `rpc` and
//! `export`.
//!
//! A third path judges definitions for kernels that do not run:
//!
//! ```text
//! package or image -> kprobed_host (image, facts) -> kprobed_verdict (checker) -> rpc (verdict)
//!     -> offline (text, JSON)
//! ```
//!
//! Files make requests as clients do: `declared` (directory, documents) → `rpc` (requests) →
//! `control`.
//!
//! Owns what needs a daemon: the single writer (`control`), its database (`store`), the API (`rpc`)
//! behind its front end (`front`), exporters and configuration. Imports point one way: `app`, `offline`
//! → `front`, `declared` → `rpc` → `export` → `doctor` → `control` → `health`,
//! `auditor` → `store` → `auth`. Below all of them, `sandbox` takes from the process what it does not need,
//! `turns` divides threads among peers, and `error` has
//! the errors of requests.
//! Parsing, judging and decoding are crates below, of plain functions without I/O; one thread owns all
//! writes to the kernel.

pub mod app;
pub mod auditor;
pub mod auth;
pub mod config;
pub mod control;
pub mod declared;
pub mod doctor;
pub mod error;
pub mod export;
pub mod front;
pub mod health;
pub mod offline;
mod places;
pub mod rpc;
pub mod sandbox;
pub mod shutdown;
pub mod store;
pub mod telemetry;
mod turns;
