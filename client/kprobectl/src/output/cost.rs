//! Costs: how often probes are hit, what a hit takes, and what the hits of a probe take together.

use std::io;
use std::time::Duration;

use kprobed_client::HitRates;
use kprobed_client::api::{HitCost, HitProfile, Probe};
use kprobed_document::json::json as message;
use serde_json::{Value, json};

use super::{Cell, Column, Interval, Row};

/// What one hit takes: `500±20 ns`, with `?` if it was not measured on this host.
pub(super) fn hit(cost: &HitCost) -> String {
    let mark = if cost.calibrated { "" } else { "?" };
    format!("{:.0}±{:.0} ns{mark}", cost.ns, cost.error_ns)
}

/// The same in a sentence.
pub(super) fn hit_in_words(cost: &HitCost) -> String {
    let origin = if cost.calibrated { "" } else { " (an estimate: this host was not measured)" };
    format!("a hit takes {:.0}±{:.0} ns{origin}", cost.ns, cost.error_ns)
}

/// The hits without those by kprobed's own threads, as far as these are known.
pub(crate) fn hits_of_others(counted: &HitProfile) -> u64 {
    counted.hits.saturating_sub(counted.own.unwrap_or(0))
}

/// The hits by kprobed's own threads, marked if they are not known.
pub(crate) fn own_hits(counted: &HitProfile) -> Cell {
    if counted.own_unknown.is_empty() { Cell::optional(counted.own) } else { Cell::maybe(None) }
}

/// What a probe takes.
pub(crate) struct ProbeCost {
    probe: Probe,
    /// The place that a person asked for, of a probe that only a command has.
    place: String,
    /// What a command has counted: nothing else of it is set.
    counted: Option<HitProfile>,
    /// With the runs that the kernel skipped. Absent if no second was watched.
    hits_per_second: Option<f64>,
    ns_per_second: Option<f64>,
}

impl ProbeCost {
    /// Of hits and skipped runs that were counted for this time.
    pub(crate) fn counted(probe: Probe, is_temporary: bool, counted: HitProfile, time: Duration) -> Self {
        let runs = hits_of_others(&counted).saturating_add(counted.nmissed);
        let seconds = time.as_secs_f64();
        let place =
            if is_temporary { probe.location.trim_end_matches("+0x0").to_owned() } else { String::new() };
        let hits_per_second = (seconds > 0.0).then(|| runs as f64 / seconds);
        Self { place, counted: Some(counted), ..Self::of(probe, hits_per_second) }
    }

    /// Hits that a command has counted, as they are shown.
    pub(crate) fn hits(&self) -> u64 {
        self.counted.as_ref().map_or(0, hits_of_others)
    }

    /// Why the hits by kprobed's own threads are not known. Empty if they are.
    pub(crate) fn own_unknown(&self) -> &str {
        self.counted.as_ref().map_or("", |counted| &counted.own_unknown)
    }

    fn of(probe: Probe, hits_per_second: Option<f64>) -> Self {
        let hit_ns = probe.hit_cost.as_ref().map(|cost| cost.ns);
        let ns_per_second = hits_per_second.zip(hit_ns).map(|(rate, ns)| rate * ns);
        Self { probe, place: String::new(), counted: None, hits_per_second, ns_per_second }
    }

    pub(crate) fn new(probe: Probe, rates: &HitRates) -> Self {
        let points = rates.series.iter().filter(|series| series.probe_uid == probe.uid);
        let all: Interval = points.flat_map(|series| &series.points).map(Interval::from).sum();
        // With the runs that the kernel skipped.
        let runs = Interval { hits: all.hits.saturating_add(all.nmissed), ..all };
        Self::of(probe, runs.rate())
    }
}

fn known(text: Option<String>) -> Cell {
    Cell::text(text.unwrap_or_default()).right()
}

impl Row for ProbeCost {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("PROBE", |cost| {
            Cell::text(if cost.place.is_empty() { &cost.probe.name } else { &cost.place })
        }),
        Column::optional("HITS", |cost| Cell::optional(cost.counted.as_ref().map(hits_of_others))),
        Column::optional("OWN", |cost| cost.counted.as_ref().map_or_else(|| known(None), own_hits)),
        Column::optional("NMISSED", |cost| {
            Cell::optional(cost.counted.as_ref().map(|counted| counted.nmissed))
        }),
        Column::new("HIT", |cost| known(cost.probe.hit_cost.as_ref().map(hit))),
        Column::new("HITS/S", |cost| known(cost.hits_per_second.map(|rate| format!("{rate:.1}")))),
        Column::new("SHARE", |cost| known(cost.ns_per_second.map(|ns| format!("{:.3} %", ns / 1e7)))),
    ];

    fn json(&self) -> io::Result<Value> {
        let mut value = json!({
            "probe": self.probe.name,
            "probe_uid": self.probe.uid.to_string(),
            "hit_cost": self.probe.hit_cost.as_ref().map(message).transpose()?,
            "hits_per_second": self.hits_per_second,
            "ns_per_second": self.ns_per_second,
        });
        if let Some(HitProfile { hits, own, own_unknown, nmissed, .. }) = &self.counted {
            value["definition"] = self.probe.definition.as_str().into();
            // 64-bit numbers are text, as in messages of the API.
            value["hits"] = hits.to_string().into();
            if let Some(own) = own {
                value["own"] = own.to_string().into();
            }
            value["own_unknown"] = own_unknown.as_str().into();
            value["nmissed"] = nmissed.to_string().into();
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use kprobed_client::api::{HitRate, HitSeries};

    use super::*;

    #[test]
    fn what_a_probe_takes_follows_from_its_hits() {
        let point =
            |covered_seconds, hits, nmissed| HitRate { covered_seconds, hits, nmissed, ..HitRate::default() };
        let series =
            |probe_uid, points: Vec<HitRate>| HitSeries { probe_uid, points, ..HitSeries::default() };
        let series =
            vec![series(1, vec![point(60, 900, 100), point(40, 0, 0)]), series(2, vec![point(0, 0, 0)])];
        let rates = HitRates { series, ..HitRates::default() };
        let hit_cost = Some(HitCost { ns: 512.0, error_ns: 26.0, calibrated: true });
        let taken = |uid| {
            let cost = ProbeCost::new(Probe { uid, hit_cost, ..Probe::default() }, &rates);
            (cost.hits_per_second, cost.ns_per_second)
        };
        assert_eq!(taken(1), (Some(10.0), Some(5120.0)));
        assert_eq!(taken(2), (None, None), "nothing was watched");
        assert_eq!(taken(3), (None, None));
    }

    #[test]
    fn counted_hits_are_shown_by_the_function_of_a_temporary_probe() {
        let probe = |location: &str| Probe {
            name: "kprobes/p_vfs_read_0".to_owned(),
            location: location.to_owned(),
            ..Probe::default()
        };
        let shown = |location: &str, is_temporary| {
            let counted = HitProfile { hits: 90, nmissed: 10, ..HitProfile::default() };
            let cost = ProbeCost::counted(probe(location), is_temporary, counted, Duration::from_secs(2));
            (cost.name(), cost.hits(), cost.hits_per_second)
        };
        assert_eq!(shown("vfs_read+0x0", true), ("vfs_read".to_owned(), 90, Some(50.0)));
        assert_eq!(shown("vfs_read+0x10", true).0, "vfs_read+0x10");
        assert_eq!(shown("vfs_read+0x0", false).0, "kprobes/p_vfs_read_0");
    }

    #[test]
    fn programs_get_the_count_of_the_kernel_and_the_own_part_of_it() {
        let counted = |own, own_unknown: &str| {
            let own_unknown = own_unknown.to_owned();
            let counted = HitProfile { hits: 60, own, own_unknown, nmissed: 4, ..HitProfile::default() };
            ProbeCost::counted(Probe::default(), false, counted, Duration::from_secs(2))
        };
        let known = counted(Some(20), "");
        let json = known.json().unwrap();
        assert_eq!((known.hits(), &json["hits"], &json["own"]), (40, &"60".into(), &"20".into()), "{json}");
        let unknown = counted(None, "the probe has a filter");
        let json = unknown.json().unwrap();
        assert_eq!((unknown.hits(), &json["hits"], &json["own"]), (60, &"60".into(), &Value::Null), "{json}");
        assert_eq!(json["own_unknown"], "the probe has a filter");
    }
}
