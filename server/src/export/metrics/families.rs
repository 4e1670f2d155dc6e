//! Metric families: names, labels and values of all series.
//!
//! Owns the names, which are a promise: alerts and dashboards use them.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use kprobed_proto::v1::{ExporterLedger, ExporterState};

use super::Metrics;
use kprobed_control::{Ledger, ProbeLedger};
use kprobed_trace::pipeline::{BufferCounts, QueueCounts};

/// Series of one name.
#[derive(Debug)]
pub struct Family<'a> {
    /// Words with points between them, as OpenTelemetry writes names: Prometheus has `_` in their
    /// place.
    pub name: &'static str,
    /// Its meaning, in a sentence.
    pub help: &'static str,
    /// How it moves.
    pub kind: Kind,
    /// One for each set of labels.
    pub points: Vec<Point<'a>>,
}

/// How a value moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A counter, from 0 at the start of the daemon.
    Counter,
    /// A gauge.
    Gauge,
}

/// One series.
#[derive(Debug)]
pub struct Point<'a> {
    /// Names and values.
    pub labels: Vec<(&'static str, Cow<'a, str>)>,
    /// Its value.
    pub value: Value,
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A count.
    Count(u64),
    /// Anything else.
    Number(f64),
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Count(flag.into())
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<SystemTime> for Value {
    /// In seconds since 1970.
    fn from(time: SystemTime) -> Self {
        Self::Number(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64())
    }
}

/// The terms of a probe's hits. Read, undecodable, lost, disabled, filtered, own and unexplained add up
/// to the hits; paused is a part of lost. Those that are not known have no series.
fn terms(probe: &ProbeLedger) -> [(&'static str, Option<u64>); 8] {
    let terms = &probe.terms;
    let of_hits = |term: Option<u64>| term.filter(|_| probe.has_hits);
    [
        ("read", Some(terms.counts.read)),
        ("undecodable", Some(terms.counts.undecodable)),
        ("lost", of_hits(terms.lost)),
        ("paused", of_hits(Some(terms.paused))),
        ("disabled", of_hits(Some(terms.disabled))),
        ("filtered", of_hits(terms.filtered)),
        ("own", of_hits(terms.own)),
        ("unexplained", of_hits(terms.unexplained)),
    ]
}

/// A point with one label.
fn point<'a>(label: &'static str, of: impl Into<Cow<'a, str>>, value: impl Into<Value>) -> Point<'a> {
    Point { labels: vec![(label, of.into())], value: value.into() }
}

/// A family without labels. An absent value has no series.
fn alone<'a>(
    name: &'static str,
    help: &'static str,
    kind: Kind,
    value: Option<impl Into<Value>>,
) -> Family<'a> {
    let point = |value| Point { labels: Vec::new(), value };
    Family { name, help, kind, points: value.map(Into::into).map(point).into_iter().collect() }
}

fn gauge<'a>(name: &'static str, help: &'static str, value: Option<impl Into<Value>>) -> Family<'a> {
    alone(name, help, Kind::Gauge, value)
}

impl Metrics {
    /// All of them.
    pub fn families(&self) -> Vec<Family<'_>> {
        let mut all = self.of_probes();
        all.extend(self.of_buffers());
        all.extend(self.of_subscribers());
        all.extend(self.of_history());
        all.extend(self.of_exporters());
        all.extend(self.of_daemon());
        all
    }

    fn of_probes(&self) -> Vec<Family<'_>> {
        let probes = || self.ledger.probes.iter().map(|probe| (probe, probe.name.to_string()));
        let counted = || probes().filter(|(probe, _)| probe.has_hits);
        let of_term = |(probe, name): (&ProbeLedger, String)| {
            let known = terms(probe).into_iter().filter_map(|(term, value)| Some((term, value?)));
            let series = known.map(move |(term, value)| Point {
                labels: vec![("probe", name.clone().into()), ("term", term.into())],
                value: value.into(),
            });
            series.collect::<Vec<_>>()
        };
        let on = probes().zip(&self.enabled).filter(|(_, enabled)| **enabled);
        let up = on.map(|((probe, name), _)| {
            point("probe", name, !self.ledger.problems.iter().any(|problem| problem.uid == probe.uid))
        });
        vec![
            Family {
                name: "kprobed.probe.hits",
                help: "Runs of the probe's handler, as the kernel counts them",
                kind: Kind::Counter,
                points: counted().map(|(probe, name)| point("probe", name, probe.terms.hits.hits)).collect(),
            },
            Family {
                name: "kprobed.probe.missed",
                help: "Runs that the kernel skipped",
                kind: Kind::Counter,
                points: counted()
                    .map(|(probe, name)| point("probe", name, probe.terms.hits.nmissed))
                    .collect(),
            },
            // Terms are derived in part: one that was not known for a while can come back smaller,
            // as a counter that began anew.
            Family {
                name: "kprobed.probe.events",
                help: "Where the hits of the probe went: read + undecodable + lost + disabled + filtered + own + unexplained = hits; paused is a part of lost; a term that is not known has no series",
                kind: Kind::Counter,
                points: probes().flat_map(of_term).collect(),
            },
            Family {
                name: "kprobed.probe.up",
                help: "1: the probe records as it was asked; 0: it is on and does not (`kprobectl ledger` says why); no series: it is off",
                kind: Kind::Gauge,
                points: up.collect(),
            },
        ]
    }

    fn of_buffers(&self) -> Vec<Family<'_>> {
        let Ledger { buffers, buffer_bytes, settled, .. } = &self.ledger;
        let sum = |term: fn(&BufferCounts) -> u64| buffers.iter().map(term).sum::<u64>();
        vec![
            Family {
                name: "kprobed.buffer.events",
                help: "Events in the ring buffers of all CPUs, by what became of them",
                kind: Kind::Counter,
                points: vec![
                    point("term", "read", sum(|buffer| buffer.read)),
                    point("term", "overrun", sum(|buffer| buffer.overrun)),
                    point("term", "commit_overrun", sum(|buffer| buffer.commit_overrun)),
                    point("term", "dropped_events", sum(|buffer| buffer.dropped_events)),
                    point("term", "taken", sum(|buffer| buffer.taken)),
                    point("term", "undecodable", sum(|buffer| buffer.undecodable)),
                ],
            },
            alone(
                "kprobed.buffer.resets",
                "Times that another program emptied a ring buffer; how many events that cost is counted nowhere",
                Kind::Counter,
                Some(sum(|buffer| buffer.resets)),
            ),
            gauge(
                "kprobed.buffer.bytes",
                "Size of the ring buffers of all CPUs",
                Some(buffer_bytes.saturating_mul(buffers.len() as u64)),
            ),
            gauge(
                "kprobed.ledger.settled",
                "1: nothing was recorded while the ledger was read, so that its terms belong to one moment",
                Some(*settled),
            ),
        ]
    }

    fn of_subscribers(&self) -> Vec<Family<'_>> {
        let subscribers = &self.ledger.subscribers;
        let sum = |term: fn(&QueueCounts) -> u64| {
            subscribers.iter().map(|subscriber| term(&subscriber.counts)).sum::<u64>()
        };
        vec![
            gauge("kprobed.subscribers", "Clients that follow events", Some(subscribers.len() as u64)),
            // They end with their subscribers, so they are not counters.
            Family {
                name: "kprobed.subscriber.events",
                help: "Events of the clients that are connected now, by what became of them",
                kind: Kind::Gauge,
                points: vec![
                    point("term", "delivered", sum(|counts| counts.delivered)),
                    point("term", "queued", sum(|counts| counts.queued)),
                    point("term", "dropped", sum(|counts| counts.dropped)),
                    point("term", "limited", sum(|counts| counts.limited)),
                ],
            },
        ]
    }

    fn of_history(&self) -> Vec<Family<'_>> {
        let Some(history) = &self.history else { return Vec::new() };
        let oldest =
            history.stats.oldest.map(|(_, wall_ns)| UNIX_EPOCH + std::time::Duration::from_nanos(wall_ns));
        vec![
            Family {
                name: "kprobed.history.events",
                help: "Events of the history, by what became of them",
                kind: Kind::Counter,
                points: vec![
                    point("term", "stored", history.stored),
                    point("term", "not_stored", history.not_stored),
                    point("term", "expired", history.expired),
                ],
            },
            gauge("kprobed.history.available.events", "Events on disk", Some(history.stats.events)),
            gauge(
                "kprobed.history.in_memory.events",
                "Events that wait until the disk works again",
                Some(history.in_memory),
            ),
            gauge("kprobed.history.bytes", "Bytes on disk", Some(history.stats.bytes)),
            gauge(
                "kprobed.history.oldest.timestamp_seconds",
                "Time of the oldest event on disk, in seconds since 1970",
                oldest,
            ),
        ]
    }

    fn of_exporters(&self) -> Vec<Family<'_>> {
        let each = |value: fn(&ExporterLedger) -> Option<Value>| -> Vec<Point<'_>> {
            let exporters = self.exporters.iter();
            exporters
                .filter_map(|exporter| Some(point("exporter", exporter.name.as_str(), value(exporter)?)))
                .collect()
        };
        let terms = self.exporters.iter().flat_map(|exporter| {
            [
                ("acknowledged", exporter.acknowledged),
                ("dropped", exporter.dropped),
                ("expired", exporter.expired),
                ("not_selected", exporter.not_selected),
            ]
            .map(|(term, value)| Point {
                labels: vec![("exporter", exporter.name.as_str().into()), ("term", term.into())],
                value: value.into(),
            })
        });
        vec![
            Family {
                name: "kprobed.exporter.events",
                help: "Events that an exporter has left behind, by what became of them",
                kind: Kind::Counter,
                points: terms.collect(),
            },
            Family {
                name: "kprobed.exporter.failures",
                help: "Attempts of an exporter that failed",
                kind: Kind::Counter,
                points: each(|exporter| Some(exporter.failures.into())),
            },
            Family {
                name: "kprobed.exporter.queued.events",
                help: "Events of the log that an exporter has not come to; no series: not known",
                kind: Kind::Gauge,
                points: each(|exporter| exporter.queued.map(Value::from)),
            },
            Family {
                name: "kprobed.exporter.up",
                help: "1: the receiver accepts events; 0: it does not",
                kind: Kind::Gauge,
                points: each(|exporter| Some((exporter.state() != ExporterState::Failing).into())),
            },
            Family {
                name: "kprobed.exporter.acknowledged.timestamp_seconds",
                help: "Time of the last acknowledgement of the receiver, in seconds since 1970",
                kind: Kind::Gauge,
                points: each(|exporter| Some(SystemTime::try_from(exporter.acknowledged_time?).ok()?.into())),
            },
        ]
    }

    fn of_daemon(&self) -> Vec<Family<'_>> {
        let process = &self.process;
        vec![
            alone(
                "kprobed.budget.trips",
                "Times that a probe was disarmed since it cost more than its budget, or all probes more than that of the host",
                Kind::Counter,
                Some(self.ledger.trips),
            ),
            gauge(
                "kprobed.store.up",
                "1: changes can be stored; 0: the last one could not be",
                Some(self.stores),
            ),
            gauge(
                "kprobed.tls.not_after.timestamp_seconds",
                "When the daemon's certificate for clients ends, in seconds since 1970",
                self.certificate_end,
            ),
            Family {
                name: "kprobed.build.info",
                help: "Versions, as labels of a 1",
                kind: Kind::Gauge,
                points: vec![Point {
                    labels: vec![
                        ("version", env!("CARGO_PKG_VERSION").into()),
                        ("kernel_release", self.kernel_release.as_str().into()),
                    ],
                    value: Value::Count(1),
                }],
            },
            alone(
                "process.cpu.seconds",
                "Processor time of the daemon",
                Kind::Counter,
                process.cpu.map(|cpu| cpu.as_secs_f64()),
            ),
            gauge("process.resident_memory.bytes", "Memory of the daemon", process.resident_bytes),
            gauge("process.open_fds", "Open file descriptors of the daemon", process.open_files),
            gauge(
                "process.start_time.seconds",
                "When the daemon was started, in seconds since 1970",
                process.start,
            ),
        ]
    }
}
