//! Chart of hits over time: a row of bars for each probe, as wide as the terminal.

use std::fmt::Write as _;

use jiff::Timestamp;
use kprobed_client::HitRates;

use super::merged::{Interval, by_name, sum};
use crate::output::style::{Style, Tone};
use crate::output::width::cut;

/// Bars that rise, the one for no hits, and the one for a time of which nothing is known.
const UNICODE: (&[char], char, char) = (&['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'], '·', ' ');
const ASCII: (&[char], char, char) = (&['.', ':', '-', '=', '+', '*', '#', '@'], '_', ' ');

/// Bars that share a line with numbers have at least this many columns; otherwise they get a line
/// of their own.
const FEWEST_COLUMNS: usize = 24;

/// Between two columns.
const GAP: &str = "  ";

/// The range that is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chart {
    /// From here on.
    pub(crate) start: Timestamp,
    /// Until there.
    pub(crate) end: Timestamp,
}

/// A row: a name, its numbers, and its bars.
struct Row {
    name: String,
    numbers: Vec<String>,
    bars: String,
}

impl Chart {
    /// Draws a row for each name. No line is wider than `columns`.
    pub(super) fn draw(
        &self,
        rates: &HitRates,
        columns: usize,
        unicode: bool,
        wide: bool,
        style: Style,
    ) -> String {
        let step = i64::from(rates.step_seconds.max(1));
        let first = self.start.as_second().div_euclid(step);
        let last = (self.end.as_nanosecond() - 1).div_euclid(1_000_000_000 * i128::from(step));
        let last = i64::try_from(last).unwrap_or(first).max(first);
        let intervals = usize::try_from(last - first + 1).unwrap_or(1);
        let names = by_name(rates, first, intervals);

        let mut headings = vec!["PROBE", "HITS", "HITS/s", "HIGHEST"];
        if wide {
            headings.push("NMISSED");
        }
        let rows = |in_column: usize| -> Vec<Row> {
            names.iter().map(|(name, row)| Row::new(name, row, in_column, unicode, wide)).collect()
        };
        // Names of probes are ASCII, as the kernel wants them: one column for each character.
        // The widths do not depend on how many intervals are in a column, but for the highest rate,
        // which gets no longer.
        let table = rows(1);
        let widths: Vec<usize> = (0..headings.len())
            .map(|column| table.iter().map(|row| row.cell(column).chars().count()).max().unwrap_or(0))
            .zip(&headings)
            .map(|(width, heading)| width.max(heading.len()))
            .collect();
        let numbers: usize = widths.iter().map(|width| width + GAP.len()).sum();
        let beside = columns.saturating_sub(numbers) >= FEWEST_COLUMNS;
        let room = if beside { columns - numbers } else { columns.max(1) };
        let in_column = intervals.div_ceil(room);

        let seconds = u64::from(rates.step_seconds).saturating_mul(in_column as u64);
        let from = Timestamp::from_second(first * step).unwrap_or(self.start);
        let mut text = String::new();
        writeln!(text, "{}", cut(&format!("from {from}, {} a column", length(seconds)), columns)).ok();
        let heading =
            line(&headings.iter().map(|heading| (*heading).to_owned()).collect::<Vec<_>>(), &widths);
        writeln!(text, "{}", style.paint(Tone::Strong, &cut(heading.trim_end(), columns))).ok();
        for row in rows(in_column) {
            let cells: Vec<_> = (0..headings.len()).map(|column| row.cell(column).to_owned()).collect();
            let numbers = line(&cells, &widths);
            if beside {
                writeln!(text, "{}", format!("{numbers}{GAP}{}", row.bars).trim_end()).ok();
            } else {
                writeln!(text, "{}\n{}", cut(numbers.trim_end(), columns), row.bars.trim_end()).ok();
            }
        }
        let (bars, none, _) = if unicode { UNICODE } else { ASCII };
        let highest = bars.last().copied().unwrap_or_default();
        let legend =
            format!("`{highest}` is the highest of its row, `{none}` not hit, and a blank not known");
        writeln!(text, "{}", cut(&legend, columns)).ok();
        text
    }
}

impl Row {
    fn new(name: &str, intervals: &[Interval], in_column: usize, unicode: bool, wide: bool) -> Self {
        let shown: Vec<_> = intervals.chunks(in_column.max(1)).map(sum).collect();
        let highest = shown
            .iter()
            .filter_map(|interval| interval.rate())
            .fold(None, |highest, rate| Some(highest.map_or(rate, |highest: f64| highest.max(rate))));
        let all = sum(intervals);
        let mut numbers = vec![all.hits.to_string(), rate_text(all.rate()), rate_text(highest)];
        if wide {
            numbers.push(all.nmissed.to_string());
        }
        let bars =
            shown.iter().map(|interval| bar(interval.rate(), highest.unwrap_or(0.0), unicode)).collect();
        Self { name: name.to_owned(), numbers, bars }
    }

    fn cell(&self, column: usize) -> &str {
        match column.checked_sub(1) {
            None => &self.name,
            Some(number) => self.numbers.get(number).map(String::as_str).unwrap_or_default(),
        }
    }
}

/// The name on the left, numbers on the right.
fn line(cells: &[String], widths: &[usize]) -> String {
    let mut text = String::new();
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        match column {
            0 => write!(text, "{cell:<width$}").ok(),
            _ => write!(text, "{GAP}{cell:>width$}").ok(),
        };
    }
    text
}

fn bar(rate: Option<f64>, highest: f64, unicode: bool) -> char {
    let (bars, none, unknown) = if unicode { UNICODE } else { ASCII };
    let Some(rate) = rate else { return unknown };
    if rate <= 0.0 {
        return none;
    }
    // The lowest one that reaches it.
    let part = rate / highest * bars.len() as f64;
    let reached = (1..bars.len()).find(|level| part <= *level as f64 + 1e-9).unwrap_or(bars.len());
    bars.get(reached - 1).copied().unwrap_or(none)
}

/// Hits per second with about three digits.
fn rate_text(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(rate) if rate <= 0.0 => "0".to_owned(),
        Some(rate) if rate >= 99.95 => format!("{rate:.0}"),
        Some(rate) if rate >= 9.995 => format!("{rate:.1}"),
        Some(rate) if rate >= 0.01 => format!("{rate:.2}"),
        Some(rate) => format!("{rate:.1e}"),
    }
}

/// A length of time in the largest unit that has no rest.
fn length(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "m")];
    let whole = units.iter().find(|(unit, _)| seconds > 0 && seconds.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{seconds}s"), |(unit, name)| format!("{}{name}", seconds / unit))
}

#[cfg(test)]
mod tests {
    use kprobed_client::api::{HitRate, HitSeries};
    use proptest::prelude::*;

    use super::*;

    /// Points from a start on: seconds that are known, and hits.
    fn series(probe: &str, boot: &str, start: i64, step: i64, points: &[(u32, u64)]) -> HitSeries {
        let point = |(index, (covered_seconds, hits)): (i64, &(u32, u64))| HitRate {
            start_time: Some(prost_types::Timestamp { seconds: start + index * step, nanos: 0 }),
            covered_seconds: *covered_seconds,
            hits: *hits,
            nmissed: 1,
            hits_per_second: None,
        };
        HitSeries {
            probe: probe.to_owned(),
            boot_id: boot.to_owned(),
            points: (0..).zip(points).map(point).collect(),
            ..HitSeries::default()
        }
    }

    fn chart(start: i64, end: i64) -> Chart {
        let at = |second| Timestamp::from_second(second).unwrap();
        Chart { start: at(start), end: at(end) }
    }

    fn rates() -> HitRates {
        let rising: Vec<_> = (0..12).map(|minute| (60, minute * 60)).collect();
        HitRates {
            step_seconds: 60,
            series: vec![
                series("kprobes/rising", "one", 600, 60, &rising[..6]),
                // The host was booted in between, and another daemon has watched from the half of a
                // minute on.
                series("kprobes/rising", "two", 600 + 7 * 60, 60, &[&[(30, 210)], &rising[8..]].concat()),
                series("kprobes/idle", "two", 600 + 7 * 60, 60, &[(30, 0), (60, 0)]),
            ],
        }
    }

    #[test]
    fn bars_stand_beside_their_numbers() {
        let text = chart(600, 600 + 12 * 60).draw(&rates(), 100, true, true, Style::new(false));
        insta::assert_snapshot!(text, @"
        from 1970-01-01T00:10:00Z, 1m a column
        PROBE           HITS  HITS/s  HIGHEST  NMISSED
        kprobes/idle       0       0        0        2         ··
        kprobes/rising  3390    5.38     11.0       11  ·▁▂▃▃▄ ▆▆▇██
        `█` is the highest of its row, `·` not hit, and a blank not known
        ");
        let text = chart(600, 600 + 12 * 60).draw(&rates(), 30, false, false, Style::new(false));
        insta::assert_snapshot!(text, @"
        from 1970-01-01T00:10:00Z, 1m~
        PROBE           HITS  HITS/s ~
        kprobes/idle       0       0 ~
               __
        kprobes/rising  3390    5.38 ~
        _.:--= **#@@
        `@` is the highest of its row~
        ");
    }

    #[test]
    fn numbers_are_short() {
        let rates = [None, Some(0.0), Some(0.000_12), Some(0.5), Some(12.34), Some(123.4), Some(1e7)];
        assert_eq!(rates.map(rate_text), ["-", "0", "1.2e-4", "0.50", "12.3", "123", "10000000"]);
        assert_eq!([0, 1, 90, 300, 7200, 172_800].map(length), ["0s", "1s", "90s", "5m", "2h", "2d"]);
    }

    proptest! {
        #[test]
        fn every_width_is_kept(
            columns in 1_usize..200, points in prop::collection::vec((0_u32..=60, 0_u64..1000), 1..400), unicode: bool,
            name in "[a-z]{1,40}",
        ) {
            let end = 60 * points.len() as i64;
            let rates = HitRates { step_seconds: 60, series: vec![series(&name, "boot", 0, 60, &points)] };
            let text = chart(0, end).draw(&rates, columns, unicode, true, Style::new(false));
            for line in text.lines() {
                prop_assert!(line.chars().count() <= columns, "{columns}: {line}");
            }
            // The highest is drawn as such, if there is one.
            let (bars, none, _) = if unicode { UNICODE } else { ASCII };
            let is_known = points.iter().any(|(covered, _)| *covered > 0);
            let is_hit = points.iter().any(|(covered, hits)| *covered > 0 && *hits > 0);
            let drawn = text.lines().nth_back(1).unwrap_or_default();
            if is_hit {
                prop_assert!(drawn.contains(bars[bars.len() - 1]), "{drawn}");
            } else if is_known && points.iter().all(|(_, hits)| *hits == 0) {
                prop_assert!(drawn.contains(none), "{drawn}");
            }
        }
    }
}
