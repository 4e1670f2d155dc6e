//! Printer of aggregations: bars, tables, stacks, JSON and YAML.
//!
//! Owns the choice of the form, which follows from the keys. Every form reports dropped events and
//! hidden rows.

mod bucket;
mod columns;
mod list;
mod order;
mod stack;
#[cfg(test)]
mod tests;
mod text;

pub(crate) use bucket::LatencyUnit;
#[cfg(test)]
pub(crate) use columns::key_notation;
pub(crate) use columns::{LATENCY_COLUMN, context_key};
pub(crate) use order::{CountOrder, CountView};

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use kprobed_client::api::aggregation_spec::Aggregation as Spec;
use kprobed_client::api::{Aggregation, AggregationSnapshot};
use kprobed_document::json::json;
use serde_json::Value;

use self::columns::Columns;
use self::order::choose;
use self::text::account;
use super::Output;
use super::data::{counted, instant, one_line};
use super::table::Page;
use super::terminal::{Style, Tone};

/// Moves to the upper left corner, and removes what is on the screen.
const CLEAR_SCREEN: &[u8] = b"\x1b[H\x1b[2J";

/// Prints readings of one aggregation.
pub(crate) struct CountPrinter<'a> {
    output: &'a mut Output,
    columns: Columns,
    view: CountView,
    /// Whether there is more than one reading, which says when each was made.
    several: bool,
    /// Whether each takes the place of the one before.
    redraw: bool,
    printed: bool,
}

impl<'a> CountPrinter<'a> {
    /// `redraw` counts for people at a terminal only.
    pub(crate) fn new(
        output: &'a mut Output,
        aggregation: &Aggregation,
        view: CountView,
        several: bool,
        redraw: bool,
    ) -> Self {
        let columns = Columns::of(aggregation, view.unit);
        let redraw = redraw && io::stdout().is_terminal();
        Self { output, columns, view, several, redraw, printed: false }
    }

    /// Prints a reading and writes it out.
    pub(crate) fn reading(&mut self, snapshot: &AggregationSnapshot) -> io::Result<()> {
        self.print(snapshot, false)?;
        self.output.flush()
    }

    /// Prints the last reading.
    pub(crate) fn last(&mut self, snapshot: &AggregationSnapshot) -> io::Result<()> {
        self.print(snapshot, true)
    }

    fn print(&mut self, snapshot: &AggregationSnapshot, last: bool) -> io::Result<()> {
        let chosen = choose(&snapshot.rows, &self.columns, self.view);
        if self.output.is_structured() {
            let value = snapshot_json(snapshot, &chosen, &self.columns, last)?;
            let is_printed = if self.several {
                self.output.structured_stream(&value)
            } else {
                self.output.structured(&value)
            };
            return is_printed.map(drop);
        }
        if self.view.is_folded {
            return self.fold(snapshot, &chosen);
        }
        let style = self.output.style;
        let mut text = String::new();
        if self.several {
            if self.redraw {
                self.output.raw(CLEAR_SCREEN)?;
            } else if self.printed {
                text.push('\n');
            }
            text.push_str(&style.paint(Tone::Faint, &heading(snapshot, &TimeZone::system())));
            text.push('\n');
        }
        text.push_str(&rows(&chosen, &self.columns, style));
        text.push_str(&account(snapshot, &chosen, &self.columns, style));
        self.printed = true;
        self.output.text(&text)
    }

    /// Nothing but stacks goes to standard output.
    fn fold(&mut self, snapshot: &AggregationSnapshot, chosen: &order::Chosen<'_>) -> io::Result<()> {
        // Commands do not ask for it where there is none.
        let Some(stack) = self.columns.stack else { return Ok(()) };
        let (folded, left_out) = stack::folded(chosen, &self.columns, stack);
        self.output.raw(folded.as_bytes())?;
        let account = account(snapshot, chosen, &self.columns, Style::new(false));
        self.output.note(account.trim_end());
        if left_out > 0 {
            let stacks = counted(left_out, "stack");
            self.output.note(&format!("left out {stacks} with a sum below 1"));
        }
        Ok(())
    }
}

/// The message of the API, with the chosen rows in their order; the names of their keys and sums, what is in the
/// other rows, and whether counting has ended.
fn snapshot_json(
    snapshot: &AggregationSnapshot,
    chosen: &order::Chosen<'_>,
    columns: &Columns,
    last: bool,
) -> io::Result<Value> {
    let rows = chosen.groups.iter().flat_map(|group| &group.rows).copied().cloned().collect();
    let mut value = json(&AggregationSnapshot { rows, ..snapshot.clone() })?;
    value["key_names"] = columns.keys.iter().map(|key| key.name.as_str()).collect();
    value["sum_names"] = columns.sums.iter().map(|sum| sum.name.as_str()).collect();
    value["not_shown"] = serde_json::json!({
        "rows": chosen.hidden_rows.to_string(),
        "count": chosen.hidden_count.to_string(),
    });
    let unproven = columns.keys.iter().chain(&columns.sums).filter(|column| column.unproven);
    let unproven: Vec<_> = unproven.map(|column| column.name.as_str()).collect();
    if !unproven.is_empty() {
        value["unproven"] = unproven.into();
    }
    if !columns.warnings.is_empty() {
        let warnings: Result<_, serde_json::Error> = columns.warnings.iter().map(json).collect();
        value["warnings"] = Value::Array(warnings?);
    }
    value["last"] = last.into();
    Ok(value)
}

/// The rows in the form that fits their keys, and an empty line.
fn rows(chosen: &order::Chosen<'_>, columns: &Columns, style: Style) -> String {
    if chosen.groups.is_empty() {
        return String::new();
    }
    let mut text = match (columns.axis, columns.stack) {
        (Some(axis), _) => text::bars(chosen, columns, axis, style),
        (None, Some(stack)) => stack::blocks(chosen, columns, stack, style),
        (None, None) => text::table(chosen, columns).render(Page::endless(style)).0,
    };
    text.push('\n');
    text
}

/// When a reading was made, and since when it counts.
fn heading(snapshot: &AggregationSnapshot, zone: &TimeZone) -> String {
    let time = |time: Option<&prost_types::Timestamp>| {
        let local = |time: Timestamp| time.to_zoned(zone.clone()).strftime("%H:%M:%S%.3f").to_string();
        instant(time).map_or_else(|| "?".to_owned(), local)
    };
    format!("{}, counted since {}", time(snapshot.time.as_ref()), time(snapshot.since.as_ref()))
}

impl Output {
    /// Reports that counting has begun: the first reading may take long.
    pub(crate) fn counting_begins(&mut self, aggregation: &Aggregation, duration: Option<Duration>) {
        let what = match aggregation.spec.as_ref().and_then(|spec| spec.aggregation.as_ref()) {
            Some(Spec::Histogram(spec)) => format!("counting {}", spec.probe),
            Some(Spec::Latency(spec)) => format!("measuring from {} to {}", spec.start_probe, spec.end_probe),
            None => "counting".to_owned(),
        };
        let until = match duration {
            Some(duration) => format!("for {duration:?}"),
            None => "until Ctrl-C".to_owned(),
        };
        self.note(&format!("{what} {until}"));
        self.counting_warnings(aggregation);
    }

    /// Reports what the daemon says of the counts.
    pub(super) fn counting_warnings(&mut self, aggregation: &Aggregation) {
        for found in &aggregation.warnings {
            let warning = self.error_style.warning("warning:");
            let mut message = format!("{warning} {}\n", one_line(&found.message));
            if !found.hint.is_empty() {
                self.push_hints(&mut message, std::slice::from_ref(&found.hint));
            }
            self.message(&message);
        }
    }
}
