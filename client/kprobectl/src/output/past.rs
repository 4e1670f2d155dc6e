//! Past of a probe: its hits, and its states.

use std::time::Duration;

use kprobed_client::HitRates;
use kprobed_client::api::{HitProfile, Probe, ProbeStateRecord};
use kprobed_document::json::Json;
use serde::{Serialize, Serializer};

use super::probe::state_name;
use super::style::{Style, Tone};
use super::table::{Cell, Table};
use super::time::rfc3339;

/// The rate is that of the latest time of this length that was watched.
const RATE_OVER: Duration = Duration::from_mins(1);

/// The past of a probe.
#[derive(Serialize)]
pub(crate) struct ProbePast {
    /// As the kernel counts them, and as text, as in all JSON of the API. Absent when it does not
    /// have the probe.
    hits: Option<String>,
    misses: Option<String>,
    /// Over the latest minute that was watched. Absent when none was.
    hits_per_second: Option<f64>,
    /// The beginning of the latest interval in which it was hit. Absent when it was not, in the
    /// last hour.
    last_hit_time: Option<String>,
    /// The latest first.
    #[serde(serialize_with = "as_messages")]
    states: Vec<ProbeStateRecord>,
}

fn as_messages<S: Serializer>(states: &[ProbeStateRecord], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(states.iter().map(Json::full))
}

impl ProbePast {
    pub(crate) fn new(
        probe: &Probe,
        states: Vec<ProbeStateRecord>,
        profile: Option<&HitProfile>,
        rates: &HitRates,
    ) -> Self {
        let series = rates.series.iter().filter(|series| series.probe_uid == probe.uid);
        let mut points: Vec<_> = series.flat_map(|series| &series.points).collect();
        points.sort_by_key(|point| point.start_time.map(|time| time.seconds));
        let last_hit = points.iter().rev().find(|point| point.hits > 0);
        let (mut hits, mut covered) = (0, 0);
        for point in points.iter().rev() {
            if u64::from(covered) >= RATE_OVER.as_secs() {
                break;
            }
            (hits, covered) = (hits + point.hits, covered + point.covered_seconds);
        }
        Self {
            hits: profile.map(|profile| profile.hits.to_string()),
            misses: profile.map(|profile| profile.nmissed.to_string()),
            hits_per_second: (covered > 0).then(|| hits as f64 / f64::from(covered)),
            last_hit_time: last_hit.and_then(|point| rfc3339(point.start_time.as_ref())),
            states,
        }
    }

    /// As properties of the probe.
    pub(super) fn properties(&self) -> Vec<(&'static str, String)> {
        vec![
            ("hits", self.hits.clone().unwrap_or_default()),
            ("misses", self.misses.clone().unwrap_or_default()),
            ("hits per second", self.hits_per_second.map_or_else(String::new, |rate| format!("{rate:.3}"))),
            ("last hit", self.last_hit_time.clone().unwrap_or_default()),
        ]
    }

    /// The states as a table. Absent when there are none.
    pub(super) fn table(&self, style: Style) -> Option<String> {
        let mut table = Table::new(&["SINCE", "STATE", "WHY"]);
        for state in &self.states {
            table.row(vec![
                Cell::text(rfc3339(state.time.as_ref()).unwrap_or_default()),
                Cell::toned(state_name(state.state()).0, Tone::Plain),
                Cell::text(&state.state_message),
            ]);
        }
        (!self.states.is_empty()).then(|| table.render(style))
    }
}

#[cfg(test)]
mod tests {
    use kprobed_client::api::{HitRate, HitSeries};

    use super::*;

    fn point(seconds: i64, covered_seconds: u32, hits: u64) -> HitRate {
        let start_time = Some(prost_types::Timestamp { seconds, nanos: 0 });
        HitRate { start_time, covered_seconds, hits, ..HitRate::default() }
    }

    #[test]
    fn the_rate_is_that_of_what_was_watched() {
        let probe = Probe { uid: 7, ..Probe::default() };
        let past = |points: Vec<HitRate>| {
            let of = |uid, points| HitSeries { probe_uid: uid, points, ..HitSeries::default() };
            let series = vec![of(8, vec![point(90, 10, 1000)]), of(7, points)];
            let past = ProbePast::new(&probe, Vec::new(), None, &HitRates { step_seconds: 10, series });
            (past.hits_per_second, past.last_hit_time)
        };
        assert_eq!(past(Vec::new()), (None, None));
        assert_eq!(past(vec![point(0, 0, 0)]), (None, None), "no daemon watched");
        let busy = vec![point(0, 30, 600), point(30, 30, 60), point(60, 30, 0)];
        assert_eq!(past(busy), (Some(1.0), Some("1970-01-01T00:00:30Z".to_owned())));
        // It is watched for half a minute only.
        assert_eq!(past(vec![point(60, 30, 60)]).0, Some(2.0));
    }
}
