//! The verdict on definitions for kernels that do not run: no daemon, no root, no guest.
//!
//! Owns the daemon's own judgement over the image of a kernel, its comparison of what definitions mean on several of them, and saying what only a
//! running kernel knows: what boot made of some code, and what modules have. Never takes such a place for one that works.
//!
//! Not known here, and not said of each verdict: names that a module has as well, which kernels since 6.7 refuse as ambiguous; probes and
//! livepatches of a host; and switches on its command line.

mod asked;
mod document;
mod junit;
mod kernel;
mod run;
mod text;

pub use kernel::{OfflineKernel, OfflineVerdict, Outcome};
pub use run::{Format, Request, RunError, run};
