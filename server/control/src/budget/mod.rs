//! Budgets: how much processor time probes may take, and the breaker that disarms what takes more.
//!
//! Owns what a hit costs, what each probe and the host have spent, and when a probe is disarmed for it.
//! A hit costs the task that runs into the probe, on its own processor, and no one sees that time
//! anywhere: it is the number of hits, which the kernel counts, times the cost of one. Never takes part
//! in what is recorded, and never arms a probe that a client has not enabled.

mod breaker;
mod calibrate;
mod cost;
mod costs;
mod meter;
mod pace;

pub(super) use breaker::{Budget, stored_trouble};
pub(super) use calibrate::{remove_leftovers, temporary_instance};
pub use cost::CostTable;
pub use costs::Costs;
pub use meter::BudgetSettings;
