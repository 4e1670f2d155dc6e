//! The figures of the daemon: what Prometheus scrapes and OpenTelemetry is sent.
//!
//! Owns what the series are. Every value is read from the ledger at that moment: there is no second set of counters that could disagree. A series
//! of a probe is labelled with its name and nothing else that events have, and ends with the probe.

mod collect;
mod families;
mod process;
#[cfg(test)]
pub(super) mod samples;

pub use collect::{Figures, Sources};
pub use families::{Family, Kind, Point, SERIES_OF_A_PROBE, Value};
