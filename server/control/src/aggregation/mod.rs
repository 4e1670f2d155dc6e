//! Aggregations: histograms, latencies and call stacks that the kernel counts itself.
//!
//! Owns what an aggregation is, which triggers it takes, and its life. Everything happens in a
//! tracing instance of its own, which is made with the first aggregation and removed with the last
//! one: triggers that use time stamps change the clock and the records of their instance, and the
//! deletion of a probe empties the buffers of each instance that had it armed. Never stores
//! anything: the kernel's tables are removed with the instance.

mod access;
mod command;
mod leftovers;
mod life;
mod own_threads;
mod plan;
mod result;
#[cfg(test)]
mod tests;

pub use command::{CreateAggregation, NumberedAggregation};
pub(super) use leftovers::remove_leftovers;
pub(super) use life::Aggregations;
pub(super) use own_threads::of_others;
pub use result::grown_since;

/// Name of the instance of the aggregations of a daemon whose own instance has this name.
pub(super) fn instance_name(own: &str) -> String {
    format!("{own}-aggregation")
}

/// Prefix of the names of the daemon's synthetic events. A number follows.
const SYNTHETIC_PREFIX: &str = "kprobed_latency_";

/// The field of our synthetic events.
const LATENCY_FIELD: &str = "latency_ns";

/// Most aggregations at a time. Each costs every hit of its probe.
const MAX_AGGREGATIONS: usize = 64;

/// Most of them that one principal has made: the others have places too.
const MAX_OF_ONE: usize = MAX_AGGREGATIONS / 2;
