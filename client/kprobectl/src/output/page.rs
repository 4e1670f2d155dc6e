//! Everything about one probe: its properties, its past, its fields and its warnings.

use std::io;
use std::time::Duration;

use jiff::Timestamp;
use kprobed_client::HitRates;
use kprobed_client::api::{HitProfile, KernelChange, Probe, ProbeStateRecord};
use kprobed_client::event::{FieldSchema, Schema};
use kprobed_document::document_of;
use kprobed_document::json::json;
use kprobed_lines::Origin;
use serde_json::Value;

use super::data::{moment, rfc3339};
use super::probe::{can_be_hit, kind_name, labels_text, lease, state_name};
use super::table::{Cell, Table};
use super::{Output, diagnostic, meaning, terminal};
use crate::global::Format;

/// The rate is that of the latest time of this length that was watched.
const RATE_OVER: Duration = Duration::from_mins(1);

/// The past of a probe.
pub(crate) struct ProbePast {
    /// Absent when the kernel does not have it.
    profile: Option<HitProfile>,
    /// Over the latest minute that was watched. Absent when none was, and for a probe that cannot be hit now.
    hits_per_second: Option<f64>,
    /// The beginning of the latest interval in which it was hit. Absent when it was not, in the
    /// last hour.
    last_hit_after: Option<String>,
    /// The latest first.
    states: Vec<ProbeStateRecord>,
}

impl ProbePast {
    pub(crate) fn new(
        probe: &Probe,
        states: Vec<ProbeStateRecord>,
        profile: Option<HitProfile>,
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
            profile,
            hits_per_second: (covered > 0 && can_be_hit(probe.state()))
                .then(|| hits as f64 / f64::from(covered)),
            last_hit_after: last_hit.and_then(|point| rfc3339(point.start_time.as_ref())),
            states,
        }
    }

    fn json(&self, probe: &Probe) -> io::Result<Value> {
        let mut value = json(probe)?;
        value["profile"] = self.profile.as_ref().map(json).transpose()?.into();
        value["hits_per_second"] = self.hits_per_second.into();
        value["last_hit_after"] = self.last_hit_after.clone().into();
        value["states"] = self.states.iter().map(json).collect::<Result<Vec<_>, _>>()?.into();
        Ok(value)
    }
}

impl Output {
    /// Prints everything about probes; as YAML their documents, as JSON the probes with their past.
    pub(crate) fn probes_in_full(
        &mut self,
        probes: &[Probe],
        pasts: &[ProbePast],
        is_one: bool,
    ) -> io::Result<()> {
        if matches!(self.format, Format::Name | Format::Csv) {
            return self.rows(probes);
        }
        for (number, (probe, past)) in probes.iter().zip(pasts).enumerate() {
            let value = match self.format {
                Format::Yaml => serde_json::to_value(document_of(probe))?,
                Format::Json => past.json(probe)?,
                _ => {
                    if number > 0 {
                        self.line("")?;
                    }
                    self.probe_page(probe, past)?;
                    continue;
                }
            };
            if is_one {
                self.structured(&value)?
            } else {
                self.structured_stream(&value)?
            };
        }
        Ok(())
    }

    fn probe_page(&mut self, probe: &Probe, past: &ProbePast) -> io::Result<()> {
        let count = |count: fn(&HitProfile) -> u64| past.profile.as_ref().map(count).map(|n| n.to_string());
        let time = |time: Option<&prost_types::Timestamp>| moment(time).unwrap_or_default();
        let on_kernel_change = match probe.on_kernel_change() {
            KernelChange::Hold => "hold",
            KernelChange::ArmAnyway => "arm-anyway",
            KernelChange::Unspecified => "unknown",
        };
        let rows = [
            ("name", probe.name.clone()),
            ("uid", probe.uid.to_string()),
            ("kind", kind_name(probe.kind()).to_owned()),
            ("state", state_name(probe.state()).0.to_owned()),
            ("state reason", probe.state_message.clone()),
            ("state hint", probe.state_hint.clone()),
            ("state since", time(probe.state_time.as_ref())),
            ("enabled", if probe.enabled { "yes" } else { "no" }.to_owned()),
            ("location", probe.location.clone()),
            ("filter", probe.filter.clone()),
            ("labels", labels_text(probe)),
            ("description", probe.description.clone()),
            ("owner", probe.owner.clone()),
            ("created by", probe.creator.clone()),
            ("declared by", probe.declared_by.clone()),
            ("lease", lease(probe, Timestamp::now())),
            ("on kernel change", on_kernel_change.to_owned()),
            ("definition", probe.definition.clone()),
            ("kernel definition", probe.kernel_definition.clone()),
            ("created", time(probe.create_time.as_ref())),
            ("updated", time(probe.update_time.as_ref())),
            ("etag", probe.etag.clone()),
            ("hits", count(|profile| profile.hits).unwrap_or_default()),
            ("misses", count(|profile| profile.nmissed).unwrap_or_default()),
            ("hits per second", past.hits_per_second.map(|rate| format!("{rate:.3}")).unwrap_or_default()),
            (
                "last hit",
                past.last_hit_after.as_ref().map(|time| format!("after {time}")).unwrap_or_default(),
            ),
        ];
        let origin = Origin::find(&probe.definition);
        let source = origin.as_ref().map(|origin| ("source", origin.in_words()));
        let rows: Vec<_> = rows.into_iter().chain(source).collect();
        self.properties(&rows)?;
        if let Some(change) = &probe.meaning_change {
            self.text(&meaning::render(change, terminal::columns()))?;
            if origin.is_some() {
                self.text(&format!(
                    "\nits source line on this kernel:\n  kprobectl lines --port {}\n",
                    probe.name
                ))?;
            }
        }
        let states = history(&past.states);
        let mut fields = Table::new(&["FIELD", "TYPE", "FAULTS"]);
        if let Some(schema) = &probe.schema {
            // A schema that the library does not understand is shown without types.
            let known = Schema::try_from(schema.clone()).ok();
            let types = known.iter().flat_map(Schema::fields).map(FieldSchema::type_name);
            for (field, name) in
                schema.fields.iter().zip(types.chain(std::iter::repeat("unknown".to_owned())))
            {
                let faults = if field.fault_detected { "detected" } else { "unproven" };
                fields.row(vec![Cell::text(&field.name), Cell::text(name), Cell::text(faults)]);
            }
        }
        for table in [states, fields].into_iter().filter(|table| !table.is_empty()) {
            self.line("")?;
            self.table(&table)?;
        }
        if !probe.warnings.is_empty() {
            let text = diagnostic::render(&probe.definition, &probe.warnings, self.style);
            self.line("")?;
            self.text(&text)?;
        }
        Ok(())
    }
}

/// The states that a probe had, each with its reason: a sentence.
fn history(states: &[ProbeStateRecord]) -> Table {
    let mut table = Table::new(&["SINCE", "STATE", "WHY"]).ending_in_sentences(true);
    for record in states {
        let state = Cell::text(state_name(record.state()).0);
        table.row(vec![Cell::time(record.time.as_ref()), state, Cell::text(&record.state_message)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use kprobed_client::api::{HitRate, HitSeries, ProbeState};

    use super::*;
    use crate::output::table::Page;
    use crate::output::terminal::Style;

    #[test]
    fn the_reason_of_a_state_is_broken_and_not_left_out() {
        let record = |seconds, state: ProbeState, why: &str| ProbeStateRecord {
            state: state.into(),
            state_message: why.to_owned(),
            time: Some(prost_types::Timestamp { seconds, nanos: 0 }),
            ..ProbeStateRecord::default()
        };
        let why = "it was hit 75810 times a second, each hit takes 1074 ns";
        let states = [record(60, ProbeState::Tripped, why), record(0, ProbeState::Armed, "")];
        let page = Page { room: Some(60), ..Page::endless(Style::new(false)) };
        let table = history(&states);
        let (text, left_out) = table.render(page);
        assert!(left_out.is_empty(), "{left_out:?}");
        insta::assert_snapshot!(text, @r"
        SINCE                 STATE    WHY
        1970-01-01T00:01:00Z  tripped  it was hit 75810 times a
                                       second, each hit takes 1074
                                       ns
        1970-01-01T00:00:00Z  armed    -
        ");
    }

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
            (past.hits_per_second, past.last_hit_after)
        };
        assert_eq!(past(Vec::new()), (None, None));
        assert_eq!(past(vec![point(0, 0, 0)]), (None, None), "no daemon watched");
        let busy = vec![point(0, 30, 600), point(30, 30, 60), point(60, 30, 0)];
        assert_eq!(past(busy), (Some(1.0), Some("1970-01-01T00:00:30Z".to_owned())));
        // What is not in the kernel any more, or is off, has no rate.
        for state in [ProbeState::Failed, ProbeState::Disabled, ProbeState::Tripped] {
            let gone = Probe { uid: 7, state: state.into(), ..Probe::default() };
            let series =
                vec![HitSeries { probe_uid: 7, points: vec![point(60, 30, 60)], ..HitSeries::default() }];
            let past = ProbePast::new(&gone, Vec::new(), None, &HitRates { step_seconds: 10, series });
            assert_eq!(past.hits_per_second, None, "{state:?}");
            assert_eq!(past.last_hit_after.as_deref(), Some("1970-01-01T00:01:00Z"), "{state:?}");
        }
        // It is watched for half a minute only.
        assert_eq!(past(vec![point(60, 30, 60)]).0, Some(2.0));
    }
}
