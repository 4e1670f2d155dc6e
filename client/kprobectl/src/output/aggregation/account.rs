//! Account of an aggregation: events in rows, and events in none.

use std::fmt::Write as _;

use kprobed_client::api::AggregationSnapshot;

use super::columns::Columns;
use super::order::Chosen;
use crate::output::data::{counted, one_line};
use crate::output::style::{Style, Tone};

/// The account of a reading, as text.
pub(super) fn account(
    snapshot: &AggregationSnapshot,
    chosen: &Chosen<'_>,
    columns: &Columns,
    style: Style,
) -> String {
    let AggregationSnapshot { hits, dropped, starts, match_dropped, .. } = *snapshot;
    let is_latency = columns.is_latency;
    let mut text = String::new();
    // Writing to a string cannot fail.
    if is_latency {
        write!(text, "{hits} measured, {starts} starts, {match_dropped} not matched").ok();
    } else {
        write!(text, "{hits} hits").ok();
    }
    write!(text, ", {dropped} dropped, {}", counted(snapshot.rows.len(), "row")).ok();
    if snapshot.kernel_rows as usize > snapshot.rows.len() {
        write!(text, " ({} in the kernel)", snapshot.kernel_rows).ok();
    }
    text.push('\n');
    let mut remark = |tone, line: String| writeln!(text, "  {}", style.paint(tone, &line)).ok();
    if hits > chosen.total {
        let late = hits - chosen.total;
        remark(
            Tone::Plain,
            format!("{late} of them happened while the rows were read, and are in no row yet"),
        );
    } else if hits < chosen.total {
        let more = chosen.total - hits;
        remark(
            Tone::Plain,
            format!("the rows have {more} more than the hits, which were read a moment earlier"),
        );
    }
    if chosen.hidden_rows > 0 {
        let (count, rows) = (chosen.hidden_count, counted(chosen.hidden_rows, "row"));
        remark(Tone::Plain, format!("{count} of them are in {rows} that `--top` hides"));
    }
    if let Some(own @ 1..) = snapshot.own {
        remark(
            Tone::Plain,
            format!("{own} more by kprobed's own threads are left out; `--include-self` counts them"),
        );
    }
    if let Some(unread @ 1..) = snapshot.unread {
        remark(Tone::Bad, format!("{unread} more are in no row: a value that decides could not be read"));
    }
    for warning in &columns.warnings {
        remark(Tone::Doubtful, format!("warning: {}", one_line(&warning.message)));
    }
    if dropped > 0 {
        let why = "the kernel's table was full; use a larger `--size` or coarser keys";
        remark(Tone::Bad, format!("{dropped} dropped, and in no row: {why}"));
    }
    if match_dropped > 0 {
        let why = "the kernel's table of starts was full; use `--start-filter` and `--end-filter`";
        remark(Tone::Bad, format!("{match_dropped} starts or ends not matched: {why}"));
    }
    let nmissed = snapshot.nmissed.unwrap_or(0);
    if nmissed > 0 {
        let what = if is_latency { "ends" } else { "runs" };
        let why = "if it is a return probe, define it as `rN:NAME FUNCTION`, with N for the calls at a time";
        remark(
            Tone::Bad,
            format!("{nmissed} {what} were skipped by the kernel (NMISSED), and are in no row: {why}"),
        );
    }
    let open = starts.saturating_sub(hits).saturating_sub(nmissed);
    if is_latency && !snapshot.delta && open > 0 {
        let why =
            "still open, replaced by a second start, excluded by `--end-filter`, not matched or dropped";
        remark(Tone::Plain, format!("{open} starts without a measured end: {why}"));
    }
    text
}
