//! The measurement of one run of one side: processor time, events, losses.

use std::time::Duration;

use serde::Serialize;

use crate::accounts::Threads;
use crate::lab::Lab;
use crate::producer::Run;
use crate::tool::Cost;

/// One row of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) workload: &'static str,
    /// Who.
    pub(crate) side: String,
    /// Events that the workload made.
    pub(crate) produced: u64,
    /// Events that came out.
    pub(crate) delivered: u64,
    /// Events that this side says were lost, if it says so.
    pub(crate) told: Option<u64>,
    /// Processor time, user and system, for all of them.
    #[serde(serialize_with = "nanos")]
    pub(crate) cpu: Duration,
    /// From the first event made to the last one delivered.
    #[serde(serialize_with = "nanos")]
    pub(crate) wall: Duration,
    /// The most memory in use at any time, in KiB; not that of the kernel's buffers.
    pub(crate) peak_rss_kib: u64,
    /// Cost of an event to the workload itself, in nanoseconds of processor time, the loop
    /// included.
    pub(crate) producer_ns: f64,
    /// Events made in a second.
    pub(crate) per_second: f64,
    /// Parts of the processor time, by kind of thread, in nanoseconds for each event.
    pub(crate) parts: Vec<(String, f64)>,
}

fn nanos<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl Measured {
    pub(crate) fn new(side: &str, lab: &Lab<'_>, iterations: u64, run: Run, cost: Cost) -> Self {
        let produced = iterations * lab.workload.events_each();
        Self {
            workload: lab.workload.name(),
            side: side.to_owned(),
            produced,
            delivered: 0,
            told: None,
            cpu: cost.cpu,
            wall: run.elapsed,
            peak_rss_kib: cost.peak_rss_kib,
            producer_ns: run.cpu.as_nanos() as f64 / produced as f64,
            per_second: produced as f64 / run.elapsed.as_secs_f64(),
            parts: Vec::new(),
        }
    }

    pub(crate) fn lost(&self) -> i64 {
        self.produced.cast_signed() - self.delivered.cast_signed()
    }

    /// Processor time for each event that came out, in nanoseconds.
    pub(crate) fn each_ns(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.delivered.max(1) as f64
    }

    /// Splits the time by kinds of threads.
    pub(crate) fn with_parts(mut self, threads: &Threads) -> Self {
        let each = |cpu: Duration| cpu.as_nanos() as f64 / self.delivered.max(1) as f64;
        self.parts = threads.iter().map(|(kind, used)| (kind.clone(), each(used.cpu))).collect();
        self
    }
}
