//! Metrics of the daemon, for Prometheus and OTLP.
//!
//! Owns which series exist. Every value is read from the ledger when it is requested: there is no
//! second set of counters that could disagree. A series of a probe is labelled with its name and
//! with no other field of its events, and ends with the probe.

mod collect;
mod families;
mod process;
#[cfg(test)]
pub(super) mod samples;

pub use collect::{Metrics, Sources};
pub use families::{Family, Kind, Point, SERIES_OF_A_PROBE, Value};
