//! An aggregation as text: tables, bars for a key with buckets, and the account of events in rows and in none.

use std::fmt::Write as _;

use kprobed_client::api::key_value::Value;
use kprobed_client::api::{AggregationSnapshot, KeyValue};

use super::bucket::{Bucket, Distribution, Quantity, Scale, value};
use super::columns::{Columns, CountColumn};
use super::order::{Chosen, Group};
use super::stack::frames;
use crate::output::data::{counted, one_line};
use crate::output::table::{Cell, Table};
use crate::output::terminal::{Style, Tone};

/// Characters of the longest bar.
const BAR_WIDTH: usize = 52;

/// The value of a key on one line.
pub(super) fn key_text(key: Option<&KeyValue>, column: &CountColumn) -> String {
    if let Some(shown) = key.and_then(|key| key.shown.as_deref()) {
        return one_line(shown);
    }
    let value = value(key);
    match value {
        Some(Value::Unsigned(number)) => column.quantity.plain((*number).into()),
        Some(Value::Signed(number)) => column.quantity.plain((*number).into()),
        Some(Value::Text(text) | Value::Symbol(text)) => one_line(text),
        Some(Value::Thread(thread)) => format!("{}-{}", one_line(&thread.comm), thread.tid),
        Some(Value::Stack(stack)) => one_line(&frames(stack).join(" <- ")),
        Some(Value::UnsignedBucket(_) | Value::SignedBucket(_)) => match Bucket::of(value) {
            Some(bucket) => bucket.label(column.scale.unwrap_or(Scale::Linear(1)), column.quantity),
            None => "?".to_owned(),
        },
        None => "?".to_owned(),
    }
}

/// How much of all this is.
pub(super) fn share(count: u64, total: u64) -> String {
    if total == 0 { "-".to_owned() } else { format!("{:.1}%", count as f64 * 100.0 / total as f64) }
}

/// The heading of the counts: another one where a key is called `count`.
fn counts_heading(keys: &[String]) -> &'static str {
    if keys.iter().any(|key| key == "COUNT") { "EVENTS" } else { "COUNT" }
}

/// A line for each row.
pub(super) fn table(chosen: &Chosen<'_>, columns: &Columns) -> Table {
    let mut headings: Vec<String> = columns.keys.iter().map(|key| key.label().to_uppercase()).collect();
    headings.extend([counts_heading(&headings).to_owned(), "SHARE".to_owned()]);
    for sum in &columns.sums {
        let name = sum.label().to_uppercase();
        headings.extend([format!("SUM({name})"), format!("AVERAGE({name})")]);
    }
    let mut table = Table::new(&headings);
    for group in &chosen.groups {
        let key = |(index, column)| {
            let key = group.key(index);
            let cell = Cell::text(key_text(key, column));
            if matches!(value(key), Some(Value::Unsigned(_) | Value::Signed(_))) {
                cell.right()
            } else {
                cell
            }
        };
        let mut cells: Vec<Cell> = columns.keys.iter().enumerate().map(key).collect();
        cells.push(Cell::number(group.count));
        cells.push(Cell::text(share(group.count, chosen.total)).right());
        for (column, sum) in columns.sums.iter().zip(&group.sums) {
            cells.push(Cell::text(column.quantity.plain(*sum)).right());
            cells.push(Cell::text(column.quantity.average(*sum, group.count)).right());
        }
        table.row(cells);
    }
    table
}

/// Bars along a key, for each group.
pub(super) fn bars(chosen: &Chosen<'_>, columns: &Columns, axis: usize, style: Style) -> String {
    let mut text = String::new();
    let Some(column) = columns.keys.get(axis) else { return text };
    for group in &chosen.groups {
        if !text.is_empty() {
            text.push('\n');
        }
        let title = title(group, columns);
        if !title.is_empty() {
            writeln!(text, "{}", style.paint(Tone::Strong, &title)).ok();
        }
        let distribution = Distribution::of(&group.rows, axis);
        drawing(&mut text, &distribution, column, style);
        summary(&mut text, group, columns, &distribution, column);
    }
    text
}

/// What a group has in common: its keys but for those that are shown otherwise.
pub(super) fn title(group: &Group<'_>, columns: &Columns) -> String {
    let others = columns.keys.iter().enumerate().filter(|(index, _)| Some(*index) != columns.axis);
    let keys =
        others.map(|(index, column)| format!("{}={}", column.label(), key_text(group.key(index), column)));
    keys.collect::<Vec<_>>().join(" ")
}

fn drawing(text: &mut String, distribution: &Distribution, column: &CountColumn, style: Style) {
    let scale = column.scale.unwrap_or(Scale::Linear(1));
    let lines: Vec<_> = distribution
        .lines(scale)
        .into_iter()
        .map(|line| match line {
            Some((bucket, count)) => (bucket.label(scale, column.quantity), Some(count)),
            None => ("...".to_owned(), None),
        })
        .collect();
    let heading = match column.quantity {
        Quantity::Nanoseconds(unit) if unit.heading().is_empty() => "LATENCY".to_owned(),
        Quantity::Nanoseconds(unit) => format!("LATENCY ({})", unit.heading()),
        Quantity::Number | Quantity::Hexadecimal => column.label().to_uppercase(),
    };
    let labels = lines.iter().map(|(label, _)| label.len());
    let label_width = labels.chain([heading.chars().count()]).max().unwrap_or(0);
    let highest = distribution.highest();
    let counts = counts_heading(std::slice::from_ref(&heading));
    let count_width = highest.to_string().len().max(counts.len());
    let heading = format!("{heading:<label_width$}  {counts:>count_width$}");
    writeln!(text, "{}", style.paint(Tone::Strong, &heading)).ok();
    for (label, count) in lines {
        match count {
            None => writeln!(text, "{label}").ok(),
            Some(count) => {
                let bar = "@".repeat(bar_length(count, highest));
                writeln!(text, "{label:<label_width$}  {count:>count_width$} |{bar:<BAR_WIDTH$}|").ok()
            }
        };
    }
}

/// Characters of a bar. The highest one is full.
fn bar_length(count: u64, highest: u64) -> usize {
    let length = u128::from(count) * BAR_WIDTH as u128 / u128::from(highest.max(1));
    usize::try_from(length).unwrap_or(BAR_WIDTH).min(BAR_WIDTH)
}

/// Percentiles and sums of a group.
fn summary(
    text: &mut String,
    group: &Group<'_>,
    columns: &Columns,
    distribution: &Distribution,
    column: &CountColumn,
) {
    write!(text, "count {}", group.count).ok();
    for (sum, value) in columns.sums.iter().zip(&group.sums) {
        let name = if columns.is_latency { "" } else { &format!(" {}", sum.label()) };
        let (average, total) = (sum.quantity.average(*value, group.count), sum.quantity.plain(*value));
        write!(text, ", average{name} {average}, total{name} {total}").ok();
    }
    text.push('\n');
    let scale = column.scale.unwrap_or(Scale::Linear(1));
    let range = |percent| Some(distribution.percentile(percent)?.label(scale, column.quantity));
    if let (Some(p50), Some(p90), Some(p99), Some(max)) = (range(50), range(90), range(99), range(100)) {
        writeln!(text, "p50 in {p50}, p90 in {p90}, p99 in {p99}, greatest in {max}").ok();
    }
}

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
        write!(text, "{hits} measured, {}, {match_dropped} not matched", counted(starts, "start")).ok();
    } else {
        text += &counted(hits, "hit");
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
        remark(Tone::Plain, format!("{} without a measured end: {why}", counted(open, "start")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fit() {
        assert_eq!([0, 1, 50, 100].map(|count| bar_length(count, 100)), [0, 0, 26, 52]);
        assert_eq!((bar_length(0, 0), bar_length(u64::MAX, u64::MAX)), (0, BAR_WIDTH));
    }

    #[test]
    fn a_key_that_is_called_count_is_not_the_count() {
        let heading =
            |keys: &[&str]| counts_heading(&keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>());
        assert_eq!((heading(&["COMM"]), heading(&["COMM", "COUNT"])), ("COUNT", "EVENTS"));
    }

    #[test]
    fn shares() {
        assert_eq!((share(1, 3), share(0, 0)), ("33.3%".to_owned(), "-".to_owned()));
    }
}
