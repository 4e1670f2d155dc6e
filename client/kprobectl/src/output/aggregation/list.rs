//! Lists of aggregations, and messages about created and deleted ones.

use std::io;

use kprobed_client::api::aggregation_spec::Aggregation as Spec;
use kprobed_client::api::{Aggregation, AggregationSnapshot, ContextKey};
use serde::Serialize;

use super::bucket::{LatencyUnit, Quantity};
use super::columns::key_notation;
use crate::output::Output;
use crate::output::table::{Cell, Table};
use crate::output::time::rfc3339;

/// An aggregation, as JSON and YAML.
#[derive(Serialize)]
struct AggregationView<'a> {
    name: &'a str,
    kind: &'static str,
    probes: Vec<&'a str>,
    by: Vec<String>,
    sums: &'a [String],
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    match_field: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket_ns: Option<u64>,
    filters: Vec<&'a str>,
    create_time: Option<String>,
    expire_time: Option<String>,
    bound_to_stream: bool,
}

/// What was counted until the end.
#[derive(Serialize)]
struct DeletedView<'a> {
    name: &'a str,
    hits: Option<u64>,
    dropped: Option<u64>,
}

impl<'a> AggregationView<'a> {
    fn new(aggregation: &'a Aggregation) -> Self {
        let mut view = Self {
            name: &aggregation.name,
            kind: "unknown",
            probes: Vec::new(),
            by: Vec::new(),
            sums: &[],
            match_field: None,
            bucket_ns: None,
            filters: Vec::new(),
            create_time: rfc3339(aggregation.create_time.as_ref()),
            expire_time: rfc3339(aggregation.expire_time.as_ref()),
            bound_to_stream: aggregation.bound_to_stream,
        };
        match aggregation.spec.as_ref().and_then(|spec| spec.aggregation.as_ref()) {
            Some(Spec::Histogram(spec)) => Self {
                kind: "histogram",
                probes: vec![&spec.probe],
                by: spec.keys.iter().map(key_notation).collect(),
                sums: &spec.sums,
                filters: vec![&spec.filter],
                ..view
            },
            Some(Spec::Latency(spec)) => {
                let name = |key: ContextKey| match key {
                    ContextKey::Unspecified => "?",
                    ContextKey::Thread => "thread",
                    ContextKey::Comm => "comm",
                    ContextKey::Cpu => "cpu",
                    ContextKey::Stack => "stack",
                };
                view.by = spec.keys().map(|key| name(key).to_owned()).collect();
                Self {
                    kind: "latency",
                    probes: vec![&spec.start_probe, &spec.end_probe],
                    match_field: Some(&spec.match_field),
                    bucket_ns: Some(spec.bucket_ns),
                    filters: vec![&spec.start_filter, &spec.end_filter],
                    ..view
                }
            }
            None => view,
        }
    }

    /// The two ends of a latency, or the one probe.
    fn probes(&self) -> String {
        self.probes.join(" -> ")
    }

    fn by(&self) -> String {
        let mut by = self.by.clone();
        if let Some(ns @ 1..) = self.bucket_ns {
            by.push(format!("buckets of {}", Quantity::Nanoseconds(LatencyUnit::Auto).plain(ns.into())));
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
        let views: Vec<_> = aggregations.iter().map(AggregationView::new).collect();
        if self.structured(&views)? {
            return Ok(());
        }
        let wide = self.is_wide();
        let mut headings = vec!["NAME", "KIND", "PROBES", "BY", "ENDS"];
        if wide {
            headings.extend(["SUMS", "FILTER", "CREATED"]);
        }
        let mut table = Table::new(&headings);
        for view in &views {
            let ends = match &view.expire_time {
                _ if view.bound_to_stream => "with its command",
                Some(time) => time,
                None => "when deleted",
            };
            let (probes, by) = (view.probes(), view.by());
            let mut cells: Vec<_> = [view.name, view.kind, &probes, &by, ends].map(Cell::text).into();
            if wide {
                let created = view.create_time.as_deref().unwrap_or_default();
                cells.extend([&view.sums.join(","), &view.filters(), created].map(Cell::text));
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
