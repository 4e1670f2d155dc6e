//! Hits over time: charts, CSV, JSON and YAML.

mod chart;
mod merged;

pub(crate) use chart::Chart;

use std::io;

use kprobed_client::HitRates;
use kprobed_client::api::{HitRate, HitSeries};
use serde::Serialize;

use super::Output;
use super::time::rfc3339;

/// Hits over time, as JSON and YAML.
#[derive(Serialize)]
struct RatesView<'a> {
    step_seconds: u32,
    series: Vec<SeriesView<'a>>,
}

#[derive(Serialize)]
struct SeriesView<'a> {
    probe: &'a str,
    probe_uid: i64,
    boot_id: &'a str,
    kernel_release: &'a str,
    points: Vec<PointView>,
}

/// Hits of one interval.
#[derive(Serialize)]
struct PointView {
    start: Option<String>,
    covered_seconds: u32,
    hits: u64,
    nmissed: u64,
    /// `null` when nothing is known of the interval.
    hits_per_second: Option<f64>,
}

impl PointView {
    fn new(point: &HitRate) -> Self {
        Self {
            start: rfc3339(point.start_time.as_ref()),
            covered_seconds: point.covered_seconds,
            hits: point.hits,
            nmissed: point.nmissed,
            hits_per_second: point.hits_per_second,
        }
    }
}

impl<'a> SeriesView<'a> {
    fn new(series: &'a HitSeries) -> Self {
        Self {
            probe: &series.probe,
            probe_uid: series.probe_uid,
            boot_id: &series.boot_id,
            kernel_release: &series.kernel_release,
            points: series.points.iter().map(PointView::new).collect(),
        }
    }
}

/// A line of comma-separated values for each interval.
fn rows(rates: &HitRates) -> impl Iterator<Item = [String; 10]> {
    rates.series.iter().flat_map(|series| {
        series.points.iter().map(|point| {
            [
                series.probe.clone(),
                series.probe_uid.to_string(),
                series.boot_id.clone(),
                series.kernel_release.clone(),
                rfc3339(point.start_time.as_ref()).unwrap_or_default(),
                rates.step_seconds.to_string(),
                point.covered_seconds.to_string(),
                point.hits.to_string(),
                point.nmissed.to_string(),
                point.hits_per_second.map(|rate| rate.to_string()).unwrap_or_default(),
            ]
        })
    })
}

impl Output {
    /// Prints hits over time: bars for people, every point for programs.
    pub(crate) fn hit_rates(&mut self, rates: &HitRates, chart: &Chart) -> io::Result<()> {
        let view = RatesView {
            step_seconds: rates.step_seconds,
            series: rates.series.iter().map(SeriesView::new).collect(),
        };
        if self.structured(&view)? {
            return Ok(());
        }
        let headings = [
            "probe",
            "probe_uid",
            "boot_id",
            "kernel_release",
            "start",
            "step_seconds",
            "covered_seconds",
            "hits",
            "nmissed",
            "hits_per_second",
        ];
        if self.csv(headings, rows(rates))? {
            return Ok(());
        }
        if rates.series.is_empty() {
            self.empty("no hits were sampled in that time");
            return Ok(());
        }
        let (columns, style) = (super::width::columns(), self.style);
        let text = chart.draw(rates, columns, super::width::has_unicode(), self.is_wide(), style);
        self.raw(text.as_bytes())
    }
}
