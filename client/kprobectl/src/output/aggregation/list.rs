//! Lists of aggregations, and messages about created and deleted ones.

use std::io;

use kprobed_client::api::aggregation_spec::Aggregation as Spec;
use kprobed_client::api::{Aggregation, AggregationSnapshot, ContextKey};
use kprobed_document::json::Json;
use serde::Serialize;

use super::bucket::{LatencyUnit, Quantity};
use super::columns::key_notation;
use crate::output::Output;
use crate::output::table::{Cell, Table};
use crate::output::time::rfc3339;

/// An aggregation, as JSON and YAML.
#[derive(Serialize)]
struct AggregationView {
    #[serde(flatten)]
    aggregation: Json,
    /// The keys as `--by` takes them.
    by: Vec<String>,
}

/// What an aggregation counts, in the words of the options that make one.
struct Counted<'a> {
    kind: &'static str,
    probes: Vec<&'a str>,
    by: Vec<String>,
    sums: &'a [String],
    bucket_ns: u64,
    filters: Vec<&'a str>,
}

/// What was counted until the end.
#[derive(Serialize)]
struct DeletedView<'a> {
    name: &'a str,
    hits: Option<u64>,
    dropped: Option<u64>,
}

impl AggregationView {
    fn new(aggregation: &Aggregation) -> Self {
        Self { aggregation: Json::full(aggregation), by: Counted::of(aggregation).by }
    }
}

impl<'a> Counted<'a> {
    fn of(aggregation: &'a Aggregation) -> Self {
        match aggregation.spec.as_ref().and_then(|spec| spec.aggregation.as_ref()) {
            Some(Spec::Histogram(spec)) => Self {
                kind: "histogram",
                probes: vec![&spec.probe],
                by: spec.keys.iter().map(key_notation).collect(),
                sums: &spec.sums,
                bucket_ns: 0,
                filters: vec![&spec.filter],
            },
            Some(Spec::Latency(spec)) => {
                let name = |key: ContextKey| match key {
                    ContextKey::Unspecified => "?",
                    ContextKey::Thread => "thread",
                    ContextKey::Comm => "comm",
                    ContextKey::Cpu => "cpu",
                    ContextKey::Stack => "stack",
                };
                Self {
                    kind: "latency",
                    probes: vec![&spec.start_probe, &spec.end_probe],
                    by: spec.keys().map(|key| name(key).to_owned()).collect(),
                    sums: &[],
                    bucket_ns: spec.bucket_ns,
                    filters: vec![&spec.start_filter, &spec.end_filter],
                }
            }
            None => Self {
                kind: "unknown",
                probes: Vec::new(),
                by: Vec::new(),
                sums: &[],
                bucket_ns: 0,
                filters: Vec::new(),
            },
        }
    }

    /// The two ends of a latency, or the one probe.
    fn probes(&self) -> String {
        self.probes.join(" -> ")
    }

    fn by(&self) -> String {
        let mut by = self.by.clone();
        if self.bucket_ns > 0 {
            let bucket = Quantity::Nanoseconds(LatencyUnit::Auto).plain(self.bucket_ns.into());
            by.push(format!("buckets of {bucket}"));
        }
        by.join(",")
    }

    fn filters(&self) -> String {
        let given: Vec<_> = self.filters.iter().copied().filter(|filter| !filter.is_empty()).collect();
        given.join(" / ")
    }
}

impl Output {
    /// Prints an aggregation that was made: its name, which is all that a script wants.
    pub(crate) fn aggregation_kept(&mut self, aggregation: &Aggregation) -> io::Result<()> {
        if self.structured(&AggregationView::new(aggregation))? {
            return Ok(());
        }
        self.line(&aggregation.name)
    }

    /// Prints a list of aggregations.
    pub(crate) fn aggregations(&mut self, aggregations: &[Aggregation]) -> io::Result<()> {
        if self.structured(&aggregations.iter().map(AggregationView::new).collect::<Vec<_>>())? {
            return Ok(());
        }
        let wide = self.is_wide();
        let mut headings = vec!["NAME", "KIND", "PROBES", "BY", "ENDS"];
        if wide {
            headings.extend(["SUMS", "FILTER", "CREATED"]);
        }
        let mut table = Table::new(&headings);
        for aggregation in aggregations {
            let counted = Counted::of(aggregation);
            let ends = match rfc3339(aggregation.expire_time.as_ref()) {
                _ if aggregation.bound_to_stream => "with its command".to_owned(),
                Some(time) => time,
                None => "when deleted".to_owned(),
            };
            let (probes, by) = (counted.probes(), counted.by());
            let mut cells: Vec<_> =
                [aggregation.name.as_str(), counted.kind, &probes, &by, &ends].map(Cell::text).into();
            if wide {
                let created = rfc3339(aggregation.create_time.as_ref()).unwrap_or_default();
                cells.extend([counted.sums.join(","), counted.filters(), created].map(Cell::text));
            }
            table.row(cells);
        }
        self.table(&table)
    }

    /// Prints aggregations that were deleted, with what they had counted where that could be read.
    pub(crate) fn aggregations_deleted(
        &mut self,
        deleted: &[(String, Option<AggregationSnapshot>)],
    ) -> io::Result<()> {
        let view = |(name, last): &'_ (String, Option<AggregationSnapshot>)| {
            (name.clone(), last.as_ref().map(|last| last.hits), last.as_ref().map(|last| last.dropped))
        };
        let deleted: Vec<_> = deleted.iter().map(view).collect();
        let views: Vec<_> = deleted
            .iter()
            .map(|(name, hits, dropped)| DeletedView { name, hits: *hits, dropped: *dropped })
            .collect();
        if self.structured(&views)? {
            return Ok(());
        }
        let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
        views.iter().try_for_each(|view| {
            self.line(&format!("{} hits={} dropped={}", view.name, number(view.hits), number(view.dropped)))
        })
    }
}
