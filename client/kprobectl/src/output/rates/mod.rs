//! Hits over time: charts, CSV, JSON and YAML.

mod chart;
mod merged;

pub(crate) use chart::Chart;

use std::io;

use kprobed_client::HitRates;
use kprobed_document::json::Json;
use serde::Serialize;

use super::Output;
use super::time::rfc3339;

/// Hits over time, as JSON and YAML.
#[derive(Serialize)]
struct RatesView {
    step_seconds: u32,
    series: Vec<Json>,
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
    pub(crate) fn hits_over_time(&mut self, rates: &HitRates, chart: &Chart) -> io::Result<()> {
        let view = RatesView {
            step_seconds: rates.step_seconds,
            series: rates.series.iter().map(Json::full).collect(),
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
        self.text(&text)
    }
}
