//! Lists of aggregations, and messages about created and deleted ones.

use std::io;

use kprobed_client::api::aggregation_spec::Aggregation as Spec;
use kprobed_client::api::{Aggregation, AggregationSnapshot};
use kprobed_document::json::json;

use super::bucket::{LatencyUnit, Quantity};
use super::columns::{context_name, key_notation};
use crate::output::table::Cell;
use crate::output::{Column, MessageRow, Output};

/// What an aggregation counts, in the words of the options that make one.
#[derive(Default)]
struct Counted<'a> {
    kind: &'static str,
    probes: Vec<&'a str>,
    by: Vec<String>,
    sums: &'a [String],
    bucket_ns: u64,
    filters: Vec<&'a str>,
}

impl<'a> Counted<'a> {
    fn of(aggregation: &'a Aggregation) -> Self {
        match aggregation.spec.as_ref().and_then(|spec| spec.aggregation.as_ref()) {
            Some(Spec::Histogram(spec)) => Self {
                kind: "histogram",
                probes: vec![&spec.probe],
                by: spec.keys.iter().map(key_notation).collect(),
                sums: &spec.sums,
                filters: vec![&spec.filter],
                ..Self::default()
            },
            Some(Spec::Latency(spec)) => Self {
                kind: "latency",
                probes: vec![&spec.start_probe, &spec.end_probe],
                by: spec.keys().map(|key| context_name(key).to_owned()).collect(),
                bucket_ns: spec.bucket_ns,
                filters: vec![&spec.start_filter, &spec.end_filter],
                ..Self::default()
            },
            None => Self { kind: "unknown", ..Self::default() },
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

impl MessageRow for Aggregation {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("NAME", |aggregation| Cell::text(&aggregation.name)),
        Column::new("KIND", |aggregation| Cell::text(Counted::of(aggregation).kind)),
        Column::new("PROBES", |aggregation| Cell::text(Counted::of(aggregation).probes())),
        Column::new("BY", |aggregation| Cell::text(Counted::of(aggregation).by())),
        Column::new("ENDS", |aggregation| match &aggregation.expire_time {
            _ if aggregation.bound_to_stream => Cell::text("with its command"),
            None => Cell::text("when deleted"),
            time => Cell::time(time.as_ref()),
        }),
        Column::wide("SUMS", |aggregation| Cell::text(Counted::of(aggregation).sums.join(","))),
        Column::wide("FILTER", |aggregation| Cell::text(Counted::of(aggregation).filters())),
        Column::wide("CREATED", |aggregation| Cell::time(aggregation.create_time.as_ref())),
    ];
}

impl Output {
    /// Prints an aggregation that was made: its name, which is all that a script wants.
    pub(crate) fn aggregation_kept(&mut self, aggregation: &Aggregation) -> io::Result<()> {
        if self.message_structured(aggregation)? {
            return Ok(());
        }
        self.counting_warnings(aggregation);
        self.line(&aggregation.name)
    }

    /// Prints an aggregation that was deleted, with what it had counted where that could be read.
    pub(crate) fn aggregation_deleted(
        &mut self,
        name: &str,
        last: Option<&AggregationSnapshot>,
    ) -> io::Result<()> {
        if self.is_structured() {
            let value = last.map_or_else(|| Ok(serde_json::json!({ "name": name })), json)?;
            return self.structured_stream(&value).map(drop);
        }
        let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
        let (hits, dropped) = (last.map(|last| last.hits), last.map(|last| last.dropped));
        self.line(&format!("{name} hits={} dropped={}", number(hits), number(dropped)))
    }
}
