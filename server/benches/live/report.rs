//! The printed tables of the benchmark, or its JSON.

use serde::Serialize;

use crate::kprobed::{Idle, Latency};
use crate::measured::Measured;

/// All that was measured.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// The median of each side.
    pub(crate) sides: Vec<Measured>,
    pub(crate) idle: Option<Idle>,
    pub(crate) latency: Vec<Latency>,
    /// Sides that were left out, and why.
    pub(crate) notes: Vec<String>,
}

/// The run in the middle, by processor time for each event.
pub(crate) fn median(mut runs: Vec<Measured>) -> Option<Measured> {
    runs.sort_by(|one, other| one.each_ns().total_cmp(&other.each_ns()));
    let middle = runs.len() / 2;
    runs.into_iter().nth(middle)
}

/// Sides of a tool that are one job: a recording must be read as well.
const JOBS: [(&str, &[&str]); 5] = [
    ("the other daemon", &["other"]),
    ("trace_pipe", &["trace_pipe"]),
    ("trace-cmd record + report", &["trace-cmd record", "trace-cmd report"]),
    ("perf record + script", &["perf record", "perf script"]),
    ("bpftrace", &["bpftrace"]),
];

impl Report {
    pub(crate) fn print(&self) {
        println!(
            "\n{:<9} {:<28} {:>9} {:>11} {:>11} {:>10} {:>10} {:>8} {:>9} {:>9}",
            "workload",
            "side",
            "ns/event",
            "produced",
            "delivered",
            "lost",
            "told",
            "wall s",
            "RSS MiB",
            "loop ns"
        );
        for row in &self.sides {
            println!(
                "{:<9} {:<28} {:>9.1} {:>11} {:>11} {:>10} {:>10} {:>8.2} {:>9.1} {:>9.0}",
                row.workload,
                row.side,
                row.each_ns(),
                row.produced,
                row.delivered,
                row.lost(),
                row.told.map_or("-".to_owned(), |told| told.to_string()),
                row.wall.as_secs_f64(),
                row.peak_rss_kib as f64 / 1024.0,
                row.producer_ns,
            );
            let parts: Vec<_> = row
                .parts
                .iter()
                .filter(|(_, value)| *value >= 0.05)
                .map(|(kind, value)| format!("{kind} {value:.1}"))
                .collect();
            if !parts.is_empty() {
                println!("{:>32}  {}", "of it", parts.join(", "));
            }
        }
        self.print_ratios();
        if let Some(idle) = &self.idle {
            let switches: Vec<_> =
                idle.switches.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
            println!(
                "\nidle for {} s, subscribed: {:.0} us of processor time; switches: {}",
                idle.seconds,
                idle.cpu_us,
                switches.join(", ")
            );
        }
        for latency in &self.latency {
            println!(
                "\n{}, {} pace, 10,000 events a second ({} events): p50 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, longest {:.0} us; daemon {:.1} % of a CPU",
                latency.side,
                latency.pace,
                latency.events,
                latency.p50_us,
                latency.p99_us,
                latency.p999_us,
                latency.max_us,
                latency.daemon_percent
            );
            let parts: Vec<_> =
                latency.parts.iter().map(|(kind, percent)| format!("{kind} {percent:.2} %")).collect();
            println!("{:>32}  {}", "of it", parts.join(", "));
        }
        for note in &self.notes {
            println!("\nleft out: {note}");
        }
    }

    /// Processor time for each event in relation to the daemon with one client.
    fn print_ratios(&self) {
        let mut workloads: Vec<_> = self.sides.iter().map(|row| row.workload).collect();
        workloads.dedup();
        for workload in workloads {
            let sum = |sides: &[&str]| {
                let rows: Vec<_> = sides
                    .iter()
                    .filter_map(|side| {
                        self.sides.iter().find(|row| row.workload == workload && row.side == *side)
                    })
                    .collect();
                (rows.len() == sides.len()).then(|| rows.iter().map(|row| row.each_ns()).sum::<f64>())
            };
            let (Some(daemon), Some(both)) = (sum(&["kprobed"]), sum(&["kprobed", "kprobed client"])) else {
                continue;
            };
            println!(
                "\n{workload}: processor time for each event that came out\n{:<28} {:>9} {:>12} {:>18}",
                "", "ns", "x the daemon", "x daemon + client"
            );
            println!("{:<28} {daemon:>9.1} {:>12.1} {:>18}", "kprobed", 1.0, "");
            println!("{:<28} {both:>9.1} {:>12.1} {:>18.1}", "kprobed + client", both / daemon, 1.0);
            for (job, sides) in JOBS {
                if let Some(each) = sum(sides) {
                    println!("{job:<28} {each:>9.1} {:>12.1} {:>18.1}", each / daemon, each / both);
                }
            }
        }
    }
}
