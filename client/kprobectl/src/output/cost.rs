//! Costs: what a hit takes, and what probes and the daemon have taken.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use clap::ValueEnum;
use jiff::Timestamp;
use kprobed_client::api::{DayCost, HitCost, ListCostsResponse, ProbeCost};
use kprobed_document::json::Json;

use super::Output;
use super::table::{Cell, Table};

/// What one hit takes: `500±20 ns`, with `?` if it was not measured on this host.
pub(super) fn hit(cost: &HitCost) -> String {
    let mark = if cost.calibrated { "" } else { "?" };
    format!("{:.0}±{:.0} ns{mark}", cost.ns, cost.error_ns)
}

/// What a row of costs is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CostKey {
    /// One probe
    #[default]
    Probe,
    /// All probes of a group
    Group,
    /// All probes that a principal has made
    Creator,
}

impl CostKey {
    fn of(self, cost: &ProbeCost) -> &str {
        match self {
            Self::Probe => &cost.probe,
            Self::Group => cost.probe.split_once('/').map_or(&cost.probe, |(group, _)| group),
            Self::Creator => &cost.creator,
        }
    }
}

/// What was taken in the days that are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Taken {
    runs: u64,
    cpu_s: f64,
}

impl Taken {
    fn of(days: &[DayCost]) -> Self {
        Self {
            runs: days.iter().map(|day| day.runs).sum(),
            // The sum of no numbers would be -0.
            cpu_s: days.iter().fold(0.0, |sum, day| sum + day.cpu_seconds),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self { runs: self.runs.saturating_add(other.runs), cpu_s: self.cpu_s + other.cpu_s }
    }
}

/// Seconds from the beginning of the first day until now.
fn shown_s(costs: &ListCostsResponse, now: Timestamp) -> f64 {
    let start = costs.start_time.as_ref().map_or(0, |start| start.seconds);
    (now.as_second() - start).max(1) as f64
}

fn share(cpu_s: f64, of_s: f64) -> Cell {
    Cell::text(format!("{:.3} %", 100.0 * cpu_s / of_s)).right()
}

fn seconds(cpu_s: f64) -> Cell {
    Cell::text(format!("{cpu_s:.3} s")).right()
}

impl Output {
    /// Prints how often a probe was hit in a trial, and what that costs if a hit costs so much.
    pub(crate) fn trial(
        &mut self,
        (hits, time): (u64, Duration),
        cost: &HitCost,
        tripped: Option<&str>,
    ) -> io::Result<()> {
        let hits_per_second = hits as f64 / time.as_secs_f64().max(1e-9);
        let ns_per_second = hits_per_second * cost.ns;
        let value = serde_json::json!({
            "hits": hits,
            "seconds": time.as_secs_f64(),
            "hits_per_second": hits_per_second,
            "ns_per_second": ns_per_second,
            "tripped": tripped,
        });
        if self.structured_stream(&value)? {
            return Ok(());
        }
        if let Some(reason) = tripped {
            return self.line(&format!("the daemon has ended the trial: {reason}"));
        }
        self.line(&format!(
            "{hits_per_second:.0} hits a second: {:.3} ms of processor time a second, {:.2} % of one CPU",
            ns_per_second / 1e6,
            ns_per_second / 1e7
        ))
    }

    /// Prints what probes and the daemon have taken until `now`.
    pub(crate) fn costs(&mut self, costs: &ListCostsResponse, by: CostKey, now: Timestamp) -> io::Result<()> {
        if self.structured(&Json::full(costs))? {
            return Ok(());
        }
        let of_s = shown_s(costs, now);
        let mut table = match by {
            CostKey::Probe => by_probe(&costs.probes, of_s),
            CostKey::Group | CostKey::Creator => added_up(&costs.probes, by, of_s),
        };
        let Taken { cpu_s, .. } = Taken::of(&costs.daemon);
        table.row(vec![
            Cell::text("(kprobed itself)"),
            Cell::text("-").right(),
            Cell::text("-").right(),
            seconds(cpu_s),
            share(cpu_s, of_s),
        ]);
        self.table(&table)
    }
}

fn by_probe(costs: &[ProbeCost], of_s: f64) -> Table {
    let mut table = Table::new(&["PROBE", "HIT", "HITS", "CPU", "SHARE"]);
    for ProbeCost { probe, hit_cost, days, .. } in costs {
        let Taken { runs, cpu_s } = Taken::of(days);
        let hit = hit_cost.as_ref().map_or_else(|| "-".to_owned(), hit);
        table.row(vec![
            Cell::text(probe),
            Cell::text(hit).right(),
            Cell::number(runs),
            seconds(cpu_s),
            share(cpu_s, of_s),
        ]);
    }
    table
}

/// Those that took the most come first.
fn added_up(costs: &[ProbeCost], by: CostKey, of_s: f64) -> Table {
    let mut sums = BTreeMap::<&str, (u64, Taken)>::new();
    for cost in costs {
        let (probes, taken) = sums.entry(by.of(cost)).or_default();
        (*probes, *taken) = (*probes + 1, taken.plus(Taken::of(&cost.days)));
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(_, (_, a)), (_, (_, b))| b.cpu_s.total_cmp(&a.cpu_s));
    let key = if by == CostKey::Group { "GROUP" } else { "CREATOR" };
    let mut table = Table::new(&[key, "PROBES", "HITS", "CPU", "SHARE"]);
    for (key, (probes, Taken { runs, cpu_s })) in sums {
        table.row(vec![
            Cell::text(if key.is_empty() { "-" } else { key }),
            Cell::number(probes),
            Cell::number(runs),
            seconds(cpu_s),
            share(cpu_s, of_s),
        ]);
    }
    table
}
