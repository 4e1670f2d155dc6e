//! Recorded answers of the control thread: the same on all hosts, so that sums over hosts are
//! known.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use kprobed_control::{Ledger, Probe, ProbeLedger, Reconciliation, Recorded, Registry, Terms};
use kprobed_host::kernel::HostIdentity;
use kprobed_lang::model::{HitProfile, Hits};
use kprobed_proto::v1;
use kprobed_proto::v1::key_value::Value;
use kprobed_trace::pipeline::{BufferCounts, ProbeCounts};

/// Hits of each probe of each host.
pub(crate) const HITS: u64 = 1000;

/// Rows of each aggregation of each host.
const ROWS: u64 = 20;

/// Events that each of them has counted.
pub(crate) const COUNTED: u64 = ROWS * (ROWS + 1) / 2;

pub(crate) fn answers(registry: &Registry, host: &HostIdentity) -> anyhow::Result<Recorded> {
    let probes = registry.all();
    let first = probes.first().context("a host without probes")?;
    let hits = Hits { hits: HITS, nmissed: 0 };
    let profile = |probe: &Probe| HitProfile {
        uid: probe.uid,
        name: probe.name.clone(),
        boot_id: host.boot_id.clone(),
        time: SystemTime::now(),
        hits,
    };
    let counts = ProbeCounts { read: HITS, ..ProbeCounts::default() };
    let terms = Terms { hits, counts, lost: Some(0), filtered: Some(0), own: Some(0), ..Terms::default() };
    let account =
        |probe: &Probe| ProbeLedger { uid: probe.uid, name: probe.name.clone(), has_hits: true, terms };
    let buffer = BufferCounts { read: HITS * probes.len() as u64, ..BufferCounts::default() };
    let ledger = Ledger {
        probes: probes.iter().map(|probe| account(probe)).collect(),
        buffers: vec![buffer],
        subscribers: Vec::new(),
        buffer_bytes: 4 << 20,
        settled: true,
        problems: Vec::new(),
        trips: 0,
    };
    let row = |number| v1::AggregationRow {
        keys: vec![v1::KeyValue { value: Some(Value::Unsigned(number)) }],
        count: number,
        sums: Vec::new(),
    };
    let now = SystemTime::now();
    let snapshot = v1::AggregationSnapshot {
        time: Some(now.into()),
        since: Some((now - Duration::from_secs(1)).into()),
        rows: (1..=ROWS).map(row).collect(),
        hits: COUNTED,
        kernel_rows: u32::try_from(ROWS)?,
        ..Default::default()
    };
    Ok(Recorded {
        probe: Arc::clone(first),
        profiles: probes.iter().map(|probe| profile(probe)).collect(),
        ledger,
        snapshot,
        keys: vec![v1::AggregationColumn { name: "dfd".to_owned(), hexadecimal: false, unproven: false }],
        reconciliation: Reconciliation::default(),
    })
}
