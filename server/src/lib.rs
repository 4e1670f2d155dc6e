//! The kprobed daemon as a library: API, exporters, configuration.
//!
//! Control, from a request to the kernel and back:
//!
//! ```text
//! rpc -> kprobed_control (single writer) -> kprobed_lang (parse) -> kprobed_host (facts) + kprobed_verdict (judge)
//!     -> kprobed_control::store (intent) -> kprobed_host::tracefs (write) -> kprobed_control::store (outcome) -> rpc
//! ```
//!
//! Events, from a raw page to a client, go through [`kprobed_trace`], and leave through `rpc` and
//! `export`.
//!
//! Files make requests as clients do: `declared` (directory, documents) → `rpc` (requests) →
//! [`kprobed_control`].
//!
//! Owns what needs a daemon: the API (`rpc`) behind its front end (`front`), exporters and configuration. Imports
//! point one way: `app` → `front`, `declared` → `rpc` → `export` → `doctor` → `health`, `auditor` → `auth`.
//! Below all of them, `sandbox` takes from the process what it does not need, and `turns` divides threads among peers.
//! The single writer and its database are [`kprobed_control`]; parsing, judging and decoding are crates below, of
//! plain functions without I/O.

pub mod app;
pub mod auditor;
pub mod auth;
pub mod config;
pub mod declared;
pub mod doctor;
pub mod export;
pub mod front;
pub mod health;
pub mod rpc;
pub mod sandbox;
pub mod shutdown;
mod start_error;
pub mod telemetry;
mod turns;
