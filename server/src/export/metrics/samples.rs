//! Metrics of a made-up daemon, for tests.

use std::time::{Duration, UNIX_EPOCH};

use kprobed_proto::v1::{ExporterLedger, ExporterState};

use super::{Metrics, Process};
use kprobed_control::{Ledger, ProbeLedger, Terms};
use kprobed_lang::model::{Hits, ProbeName, ProbeUid};
use kprobed_trace::pipeline::{BufferCounts, ProbeCounts};

fn probe(number: i64) -> ProbeLedger {
    let counts = ProbeCounts { read: 6, undecodable: 1, ..ProbeCounts::default() };
    let terms = Terms {
        hits: Hits { hits: 13, nmissed: 2 },
        counts,
        not_read: 6,
        lost: Some(2),
        paused: 1,
        disabled: 1,
        filtered: Some(0),
        own: Some(3),
        unexplained: Some(0),
        shared: false,
    };
    let name = ProbeName::new("kprobes", &format!("p{number}")).unwrap();
    ProbeLedger { uid: ProbeUid(number), name, has_hits: true, terms }
}

/// Of a daemon with so many probes, two CPUs and one exporter.
pub(in crate::export) fn figures(probes: i64) -> Metrics {
    let buffer = BufferCounts { read: 6, overrun: 2, resets: 1, ..BufferCounts::default() };
    let exporter = ExporterLedger {
        name: "jsonl".to_owned(),
        destination: "/var/log/events.jsonl".to_owned(),
        start_time: Some(UNIX_EPOCH.into()),
        state: ExporterState::Running.into(),
        queued: Some(7),
        acknowledged_time: Some((UNIX_EPOCH + Duration::from_secs(5)).into()),
        failures: 4,
        ..ExporterLedger::default()
    };
    Metrics {
        ledger: Ledger {
            probes: (1..=probes).map(probe).collect(),
            buffers: vec![buffer, buffer],
            subscribers: Vec::new(),
            buffer_bytes: 4096,
            settled: true,
            problems: Vec::new(),
            trips: 2,
        },
        enabled: (0..probes).map(|_| true).collect(),
        history: None,
        exporters: vec![exporter],
        stores: true,
        certificate_end: Some(UNIX_EPOCH + Duration::from_hours(24)),
        kernel_release: "6.12.1".to_owned(),
        process: Process::default(),
    }
}
