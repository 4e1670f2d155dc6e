//! Hits over time: bars for people, a row of CSV for each interval, a series of the API for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::iter::Sum;
use std::rc::Rc;

use jiff::Timestamp;
use kprobed_client::HitRates;
use kprobed_client::api::{HitRate, HitSeries};
use kprobed_document::json::json;
use serde_json::Value;

use super::table::{Page, Table};
use super::terminal::{self, Style, Tone, cut};
use super::{Cell, Column, Output, Row};
use crate::global::Format;

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

/// Hits of one interval of a series.
struct HitPoint {
    series: Rc<HitSeries>,
    step_seconds: u32,
    point: HitRate,
}

impl Row for HitPoint {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("PROBE", |row| Cell::text(&row.series.probe)),
        Column::new("PROBE UID", |row| Cell::text(row.series.probe_uid.to_string())),
        Column::new("BOOT ID", |row| Cell::text(&row.series.boot_id)),
        Column::new("KERNEL RELEASE", |row| Cell::text(&row.series.kernel_release)),
        Column::new("START", |row| Cell::time(row.point.start_time.as_ref())),
        Column::new("STEP SECONDS", |row| Cell::number(row.step_seconds.into())),
        Column::new("COVERED SECONDS", |row| Cell::number(row.point.covered_seconds.into())),
        Column::new("HITS", |row| Cell::number(row.point.hits)),
        Column::new("NMISSED", |row| Cell::number(row.point.nmissed)),
        Column::new("HITS PER SECOND", |row| {
            Cell::text(row.point.hits_per_second.map(|rate| rate.to_string()).unwrap_or_default())
        }),
    ];

    fn json(&self) -> io::Result<Value> {
        Ok(json(&self.point)?)
    }
}

fn points(HitRates { step_seconds, series }: HitRates) -> Vec<HitPoint> {
    let of_series = |mut series: HitSeries| {
        let points = std::mem::take(&mut series.points);
        let series = Rc::new(series);
        points.into_iter().map(move |point| HitPoint { series: Rc::clone(&series), step_seconds, point })
    };
    series.into_iter().flat_map(of_series).collect()
}

impl Output {
    /// Prints hits over time.
    pub(crate) fn hits_over_time(&mut self, rates: HitRates, chart: &Chart) -> io::Result<()> {
        match self.format {
            Format::Json | Format::Yaml => {
                self.begin_list();
                for series in &rates.series {
                    let mut value = json(series)?;
                    value["step_seconds"] = rates.step_seconds.into();
                    self.structured_stream(&value)?;
                }
            }
            Format::Csv => self.rows(&points(rates))?,
            Format::Name => {
                let mut points = points(rates);
                points.dedup_by(|one, other| one.series.probe == other.series.probe);
                self.rows(&points)?;
            }
            _ => {
                if rates.series.is_empty() {
                    self.remark("no hits were sampled in that time");
                    return Ok(());
                }
                let page = Page { room: Some(terminal::columns()), ..self.page() };
                self.text(&chart.draw(&rates, page, terminal::has_unicode()))?;
            }
        }
        Ok(())
    }
}

impl Chart {
    /// Draws a row for each name. No line is wider than the page.
    fn draw(&self, rates: &HitRates, page: Page, unicode: bool) -> String {
        let columns = page.room.unwrap_or(usize::MAX);
        let step = i64::from(rates.step_seconds.max(1));
        let first = self.start.as_second().div_euclid(step);
        let last = (self.end.as_nanosecond() - 1).div_euclid(1_000_000_000 * i128::from(step));
        let last = i64::try_from(last).unwrap_or(first).max(first);
        let intervals = usize::try_from(last - first + 1).unwrap_or(1);
        let names = by_name(rates, first, intervals);

        let table = |in_column: usize| {
            let nmissed = page.is_whole.then_some("NMISSED");
            let headings: Vec<_> =
                ["PROBE", "HITS", "HITS/s", "HIGHEST"].into_iter().chain(nmissed).collect();
            let mut table = Table::new(&headings);
            for (name, intervals) in &names {
                let (all, highest) = (sum_of(intervals), highest(&shown(intervals, in_column)));
                let mut cells = vec![Cell::text(name), Cell::number(all.hits)];
                cells.extend([all.rate(), highest].map(|rate| Cell::text(rate_text(rate)).right()));
                cells.extend(nmissed.map(|_| Cell::number(all.nmissed)));
                table.row(cells);
            }
            table
        };
        // The highest rate gets no longer if there are more intervals in a column of the page.
        let numbers = table(1).width(page) + GAP.len();
        let beside = columns.saturating_sub(numbers) >= FEWEST_COLUMNS;
        let room = if beside { columns - numbers } else { columns.max(1) };
        let in_column = intervals.div_ceil(room);

        let seconds = u64::from(rates.step_seconds).saturating_mul(in_column as u64);
        let from = Timestamp::from_second(first * step).unwrap_or(self.start);
        let mut text = String::new();
        writeln!(text, "{}", cut(&format!("from {from}, {} a column", length(seconds)), columns)).ok();
        let plain = Page { room: None, style: Style::new(false), ..page };
        let (table, _) = table(in_column).render(plain);
        let mut lines = table.lines();
        if page.has_headings
            && let Some(heading) = lines.next()
        {
            writeln!(text, "{}", page.style.paint(Tone::Strong, &cut(heading, columns))).ok();
        }
        for (numbers, intervals) in lines.zip(names.values()) {
            let shown = shown(intervals, in_column);
            let highest = highest(&shown).unwrap_or(0.0);
            let bars: String = shown.iter().map(|interval| bar(interval.rate(), highest, unicode)).collect();
            if beside {
                writeln!(text, "{}", format!("{numbers}{GAP}{bars}").trim_end()).ok();
            } else {
                writeln!(text, "{}\n{}", cut(numbers, columns), bars.trim_end()).ok();
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

/// The intervals, so many in a column of the page.
fn shown(intervals: &[Interval], in_column: usize) -> Vec<Interval> {
    intervals.chunks(in_column.max(1)).map(sum_of).collect()
}

/// The highest rate, if any is known.
fn highest(shown: &[Interval]) -> Option<f64> {
    shown.iter().filter_map(|interval| interval.rate()).reduce(f64::max)
}

/// Hits of one interval, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Interval {
    pub(super) covered_seconds: u64,
    pub(super) hits: u64,
    pub(crate) nmissed: u64,
}

impl Interval {
    /// Hits per second, if anything is known.
    pub(crate) fn rate(self) -> Option<f64> {
        (self.covered_seconds > 0).then(|| self.hits as f64 / self.covered_seconds as f64)
    }

    fn and(self, other: Self) -> Self {
        Self {
            covered_seconds: self.covered_seconds.saturating_add(other.covered_seconds),
            hits: self.hits.saturating_add(other.hits),
            nmissed: self.nmissed.saturating_add(other.nmissed),
        }
    }
}

impl From<&HitRate> for Interval {
    fn from(point: &HitRate) -> Self {
        Self { covered_seconds: point.covered_seconds.into(), hits: point.hits, nmissed: point.nmissed }
    }
}

impl Sum for Interval {
    fn sum<I: Iterator<Item = Self>>(intervals: I) -> Self {
        intervals.fold(Self::default(), Self::and)
    }
}

fn sum_of(intervals: &[Interval]) -> Interval {
    intervals.iter().copied().sum()
}

/// All intervals of each probe together, by its number: a series is of one boot.
pub(crate) fn totals(rates: &HitRates) -> BTreeMap<i64, Interval> {
    let mut totals = BTreeMap::<i64, Interval>::new();
    for series in &rates.series {
        let total = totals.entry(series.probe_uid).or_default();
        *total = total.and(series.points.iter().map(Interval::from).sum());
    }
    totals
}

/// The intervals of each name from `first` on, which is counted in steps since 1970.
fn by_name(rates: &HitRates, first: i64, intervals: usize) -> BTreeMap<&str, Vec<Interval>> {
    let step = i64::from(rates.step_seconds.max(1));
    let mut names = BTreeMap::<&str, Vec<Interval>>::new();
    for series in &rates.series {
        let row = names.entry(series.probe.as_str()).or_insert_with(|| vec![Interval::default(); intervals]);
        for point in &series.points {
            let number = point.start_time.as_ref().map(|time| time.seconds.div_euclid(step));
            let index = number.and_then(|number| usize::try_from(number.checked_sub(first)?).ok());
            if let Some(interval) = index.and_then(|index| row.get_mut(index)) {
                *interval = interval.and(point.into());
            }
        }
    }
    names
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

    fn page(columns: usize, is_whole: bool) -> Page {
        Page { room: Some(columns), is_whole, ..Page::endless(Style::new(false)) }
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
        let text = chart(600, 600 + 12 * 60).draw(&rates(), page(100, true), true);
        insta::assert_snapshot!(text, @"
        from 1970-01-01T00:10:00Z, 1m a column
        PROBE           HITS  HITS/s  HIGHEST  NMISSED
        kprobes/idle       0       0        0        2         ··
        kprobes/rising  3390    5.38     11.0       11  ·▁▂▃▃▄ ▆▆▇██
        `█` is the highest of its row, `·` not hit, and a blank not known
        ");
        let text = chart(600, 600 + 12 * 60).draw(&rates(), page(30, false), false);
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
            let text = chart(0, end).draw(&rates, page(columns, true), unicode);
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
