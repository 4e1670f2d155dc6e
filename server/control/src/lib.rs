//! Control of probes: one thread makes all changes of the kernel and the database,
//! one command after the other.
//!
//! Owns that order: the journal, then the kernel, then the rows of the database, then the answer. Never removes an
//! event from the kernel that the database does not know of.
//!
//! `store` has the database, `auth` who asks for a change and whether the roles of this host allow it, and `error`
//! why a request was not carried out, of which `status` makes the status of gRPC. Nothing here knows a connection, a
//! service or the configuration: commands come in by [`ControlHandle`], and probes and their changes are read from
//! [`Registry`].

mod account;
mod adopt;
mod aggregation;
mod audited;
pub mod auth;
mod budget;
mod change;
mod command;
mod controller;
mod create;
pub mod error;
mod execute;
mod footprint;
mod foreign;
mod guard;
mod guard_watch;
mod handover;
mod interference;
mod job;
mod judge;
mod lease;
mod ledger;
mod livepatched;
mod names;
mod observed;
mod observer;
mod own;
mod pause;
pub mod permission;
pub mod places;
mod plan;
mod probe;
mod reconcile;
mod registry;
mod remove;
mod repair;
mod retries;
mod sample;
#[doc(hidden)]
pub mod samples;
mod sight;
mod source;
mod state_log;
pub mod status;
mod step;
pub mod store;
#[cfg(test)]
mod tests;
mod triggers;
mod turn;
mod update;
mod watch;

pub use account::Terms;
pub use adopt::{AdoptRequest, Declared};
pub use aggregation::{CreateAggregation, NumberedAggregation, grown_since};
pub use budget::{BudgetSettings, CostTable, Costs};
pub use command::{
    Applied, Change, Changed, ControlHandle, CreateRequest, RemoveRequest, Removed, Unit, UpdateRequest,
};
pub use controller::{CommandQueue, Controller, ControllerParts, OnExit};
pub use footprint::Footprint;
pub use foreign::{Foreign, place};
pub use guard::Guarded;
pub use lease::{Hold, Holds};
pub use ledger::{CountedHits, Ledger, ProbeLedger};
pub use livepatched::livepatch_warning;
pub use names::Names;
pub use observed::{KPROBES_ON, Observed, altered};
pub use observer::{Observer, ProbeStates, ftrace_enabled};
pub use plan::PlannedStep;
pub use probe::{Probe, ProbeState, Trouble};
pub use registry::Registry;
pub use repair::{Reconciled, Reconciliation};
pub use sight::Sight;
pub use source::host_event_fields;
pub use state_log::{ProbeChange, StateLog, WatchPosition};
pub use step::Step;
pub use watch::{ProbeWatch, Watched};
