//! The daemon as a side of the comparison, with clients that count what it sends.

use std::path::Path;
use std::time::{Duration, Instant};

use kprobed_client::api::Pace;

use crate::accounts::{self, Used};
use crate::daemon::Daemon;
use crate::lab::Lab;
use crate::measured::Measured;
use crate::producer::Producer;
use crate::profile::Profile;
use crate::subscriber::{Counted, Subscriber};
use crate::tool::{Cost, settle};

/// How the daemon is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use<'a> {
    pub(crate) side: &'static str,
    /// The program.
    pub(crate) daemon: &'a Path,
    pub(crate) subscribers: usize,
    pub(crate) history: bool,
    pub(crate) iterations: u64,
    /// Iterations a second; 0: as many as can be.
    pub(crate) per_second: u64,
    pub(crate) profile: bool,
}

impl<'a> Use<'a> {
    /// One subscriber, as fast as can be.
    pub(crate) fn plain(lab: &Lab<'a>) -> Self {
        Self {
            side: "kprobed",
            daemon: &lab.arguments.daemon,
            subscribers: 1,
            history: false,
            iterations: lab.arguments.iterations,
            per_second: 0,
            profile: false,
        }
    }
}

/// One run. The first row is the daemon, the second the (first) client.
pub(crate) fn run(lab: &Lab<'_>, how: Use<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut producer = Producer::start(lab.workload)?;
    let daemon = Daemon::start(lab, how.daemon, producer.pid(), how.history)?;
    let subscribers: Vec<_> = (0..how.subscribers)
        .map(|_| Subscriber::start(daemon.socket.clone(), Pace::Unspecified, false))
        .collect::<anyhow::Result<_>>()?;
    // Pages are touched, files opened and names looked up for the first time.
    producer.run(10_000, 100_000)?;
    let warm = 10_000 * lab.workload.events_each();
    let seen = || Ok(subscribers.iter().map(Subscriber::seen).min().unwrap_or_default());
    settle(warm, seen)?;
    let profile = how.profile.then(|| Profile::start(lab, daemon.pid())).transpose()?;
    let (before, start) = (daemon.threads()?, Instant::now());
    let run = producer.run(how.iterations, how.per_second)?;
    let end = settle(warm + how.iterations * lab.workload.events_each(), seen)?;
    let threads = accounts::since(&before, &daemon.threads()?);
    if let Some(profile) = profile {
        profile.print()?;
    }
    let cpu: Duration = threads.values().map(|used: &Used| used.cpu).sum();
    let peak_rss_kib = daemon.peak_rss_kib();
    let counted: Vec<Counted> =
        subscribers.into_iter().map(Subscriber::stop).collect::<anyhow::Result<_>>()?;
    daemon.stop()?;

    let mut measured = Measured::new(how.side, lab, how.iterations, run, Cost { cpu, peak_rss_kib });
    let first = counted.first().cloned().unwrap_or_default();
    measured.delivered = first.events - warm;
    measured.told = Some(first.lost);
    measured.wall = end.saturating_duration_since(start);
    let mut client = Measured { side: format!("{} client", how.side), ..measured.clone() };
    client.cpu = first.cpu.mul_f64(measured.delivered as f64 / first.events.max(1) as f64);
    client.peak_rss_kib = 0;
    client.parts = vec![("events in a batch".to_owned(), first.events as f64 / first.batches.max(1) as f64)];
    Ok(vec![measured.with_parts(&threads), client])
}

/// Ten seconds without an event, with a subscriber: how often threads of the daemon were switched,
/// and what they used, by kind.
pub(crate) fn idle(lab: &Lab<'_>) -> anyhow::Result<Idle> {
    let producer = Producer::start(lab.workload)?;
    let daemon = Daemon::start(lab, &lab.arguments.daemon, producer.pid(), true)?;
    let subscriber = Subscriber::start(daemon.socket.clone(), Pace::Latency, false)?;
    std::thread::sleep(Duration::from_secs(3));
    let before = daemon.threads()?;
    let seconds = 10;
    std::thread::sleep(Duration::from_secs(seconds));
    let threads = accounts::since(&before, &daemon.threads()?);
    subscriber.stop()?;
    daemon.stop()?;
    let switches = threads.iter().map(|(kind, used)| (kind.clone(), used.switches)).collect();
    let cpu_us = threads.values().map(|used| used.cpu).sum::<Duration>().as_secs_f64() * 1e6;
    Ok(Idle { seconds, switches, cpu_us })
}

/// A daemon without events.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Idle {
    pub(crate) seconds: u64,
    /// By kind of thread.
    pub(crate) switches: Vec<(String, u64)>,
    /// Processor time of all of them, in microseconds.
    pub(crate) cpu_us: f64,
}

/// How old events are when the client has them, and what the daemon takes, at 10,000 a second and at a pace.
pub(crate) fn latency(
    lab: &Lab<'_>,
    (side, program): (&'static str, &Path),
    pace: Pace,
) -> anyhow::Result<Latency> {
    let mut producer = Producer::start(lab.workload)?;
    let daemon = Daemon::start(lab, program, producer.pid(), false)?;
    let subscriber = Subscriber::start(daemon.socket.clone(), pace, true)?;
    let (seconds, each) = (10, lab.workload.events_each());
    let per_second = 10_000 / each;
    let before = daemon.threads()?;
    producer.run(seconds * per_second, per_second)?;
    settle(seconds * per_second * each, || Ok(subscriber.seen()))?;
    let threads = accounts::since(&before, &daemon.threads()?);
    let mut counted = subscriber.stop()?;
    daemon.stop()?;
    counted.ages_ns.sort_unstable();
    let at = |permille: usize| {
        let last = counted.ages_ns.len().saturating_sub(1);
        counted.ages_ns.get(last * permille / 1000).map_or(0.0, |age| *age as f64 / 1e3)
    };
    let percent = |cpu: Duration| 100.0 * cpu.as_secs_f64() / seconds as f64;
    Ok(Latency {
        side,
        pace: if pace == Pace::Latency { "latency" } else { "default" },
        parts: threads.iter().map(|(kind, used)| (kind.clone(), percent(used.cpu))).collect(),
        events: counted.events,
        p50_us: at(500),
        p99_us: at(990),
        p999_us: at(999),
        max_us: at(1000),
        daemon_percent: percent(threads.values().map(|used| used.cpu).sum()),
    })
}

/// Ages of events at their client, in microseconds.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Latency {
    /// Which daemon.
    pub(crate) side: &'static str,
    /// At which pace.
    pub(crate) pace: &'static str,
    pub(crate) events: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    /// The daemon's share of a CPU for that.
    pub(crate) daemon_percent: f64,
    /// The same by kind of thread.
    pub(crate) parts: Vec<(String, f64)>,
}
