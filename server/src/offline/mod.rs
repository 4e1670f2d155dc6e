//! `kprobed check`: verdicts on definitions for kernels that do not run, without daemon, root or
//! guest.
//!
//! Owns applying the daemon's own rules to a kernel image, comparing what a definition means on
//! several kernels, and reporting what only a running kernel knows: what boot made of some code,
//! and the contents of modules. Never reports such a place as accepted.
//!
//! Not known here, and not repeated in each verdict: names that a module has as well, which kernels
//! since 6.7 refuse as ambiguous; probes and livepatches of a host; and switches on its command
//! line.

mod definitions;
mod document;
mod junit;
mod kernel;
mod run;
mod text;

pub use kernel::{OfflineKernel, OfflineVerdict, Outcome};
pub use run::{Format, Request, RunError, run};
