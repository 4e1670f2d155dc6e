//! Counting in the kernel for as long as a command runs.
//!
//! Owns the life of such an aggregation, and the loop from its readings to the printer. It is bound to the stream of its readings: the
//! daemon deletes it when this process ends, however it ends.

mod histogram;
mod key;
mod merged;

use std::time::Duration;

use clap::Args;
use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::aggregation_spec::Aggregation;
use kprobed_client::api::stream_aggregation_request::Source;
use kprobed_client::api::{AggregationKey, AggregationSnapshot, AggregationSpec, ContextKey};
use kprobed_client::{AggregationStream, Client};

pub(super) use self::histogram::Histogram;
pub(super) use self::key::By;
use super::connection::connect;
use super::stop::{Stop, StopReason};
use super::{Exit, Failure};
use crate::cli::{Format, Global};
use crate::output::{CountOrder, CountPrinter, CountView, LatencyUnit, Output};
use crate::quantity::duration;

/// Time between two readings that the user did not ask for: each costs the daemon a look at the kernel's tables.
const IDLE_INTERVAL: Duration = Duration::from_hours(1);

/// How long a new aggregation counts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Duration")]
pub(crate) struct Life {
    /// Stop after this time [default: with Ctrl-C]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    readings: Readings,
    /// Count on under this name after the command has ended: `kprobectl aggregations` reads and deletes it
    #[arg(
        long, value_name = "NAME", conflicts_with_all = ["duration", "interval", "deltas", "scroll", "sort", "top"]
    )]
    keep: Option<String>,
    /// Delete the kept aggregation after this time [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "keep")]
    ttl: Option<Duration>,
}

/// Readings in between.
#[derive(Debug, Args)]
pub(crate) struct Readings {
    /// Show the counts repeatedly, this time apart, 100ms or more [default: once, at the end]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) interval: Option<Duration>,
    /// Show only what was counted since the previous reading
    #[arg(long, requires = "interval")]
    pub(super) deltas: bool,
    /// Print readings one below the other, also on a terminal
    #[arg(long, requires = "interval")]
    pub(super) scroll: bool,
}

impl Readings {
    /// Refuses `-o folded` where there are no stacks.
    ///
    /// # Errors
    /// When there are several readings, whose stacks would be added up by whoever reads them, or no stacks.
    pub(super) fn refuse_folded(
        &self,
        global: &Global,
        spec: Option<&AggregationSpec>,
    ) -> Result<(), Failure> {
        if global.output != Format::Folded {
            return Ok(());
        }
        if self.interval.is_some() {
            let message = "`-o folded` prints one reading, and `--interval` makes many".to_owned();
            return Err(Failure::usage(message, Some("leave out `--interval`".to_owned())));
        }
        let is_stack = |key: &AggregationKey| key.key == Some(Key::Context(ContextKey::Stack.into()));
        match spec.and_then(|spec| spec.aggregation.as_ref()) {
            Some(Aggregation::Histogram(spec)) if spec.keys.iter().any(is_stack) => Ok(()),
            _ => {
                let message = "`-o folded` prints call stacks, and this does not count by stack".to_owned();
                Err(Failure::usage(message, Some("add `--by stack`".to_owned())))
            }
        }
    }
}

/// Which rows are shown, and in which order.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Shown {
    /// Show only the first N rows, and the sum of the others [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    top: Option<u32>,
    /// Order of rows: `count` (largest first), `key` (smallest first), or a field of `--sum` (largest first)
    #[arg(long, value_name = "COLUMN", default_value = "count")]
    sort: String,
}

impl Shown {
    /// The same for the printer.
    ///
    /// # Errors
    /// When there is no such sum to sort by.
    pub(super) fn view(&self, sums: &[String], unit: LatencyUnit) -> Result<CountView, Failure> {
        let order = match self.sort.as_str() {
            "count" => CountOrder::Count,
            "key" => CountOrder::Key,
            name => {
                let index = sums.iter().position(|sum| sum == name);
                CountOrder::Sum(index.ok_or_else(|| no_column(name, sums))?)
            }
        };
        let top = self.top.map(|top| usize::try_from(top).unwrap_or(usize::MAX));
        Ok(CountView { order, top, unit })
    }
}

fn no_column(name: &str, sums: &[String]) -> Failure {
    let sums: Vec<_> = sums.iter().map(|sum| format!(", `{sum}`")).collect();
    let columns = format!("the columns are `count`, `key`{}", sums.concat());
    Failure::usage(format!("cannot sort by `{name}`: there is no such column"), Some(columns))
}

/// Counts until it is time to stop, and shows what was counted, on many hosts together or by host; or leaves it to count.
pub(super) async fn count(
    global: &Global,
    (spec, is_by_host): (AggregationSpec, bool),
    life: Life,
    view: CountView,
    output: &mut Output,
) -> Result<Exit, Failure> {
    life.readings.refuse_folded(global, Some(&spec))?;
    if let Some(fleet) = &global.fleet {
        return merged::count(global, fleet, (spec, is_by_host), life, view, output).await;
    }
    if is_by_host {
        let message = "`--by host` tells several hosts apart, and one daemon is asked".to_owned();
        let hint = "add `--hosts`; a field of that name is `host.exact`".to_owned();
        return Err(Failure::usage(message, Some(hint)));
    }
    if let Some(name) = &life.keep {
        let made = async {
            let client = connect(global).await?;
            Ok::<_, Failure>(client.create_aggregation(name, spec, life.ttl).await?)
        };
        let made = tokio::select! {
            made = made => made?,
            _ = tokio::signal::ctrl_c() => return Err(Failure::Interrupted),
        };
        output.aggregation_kept(&made)?;
        return Ok(Exit::Success);
    }
    let mut stop = Stop::new(None).map_err(Failure::Signals)?;
    let client = tokio::select! {
        client = connect(global) => client?,
        _ = stop.wait() => return Err(Failure::Interrupted),
    };
    let interval = life.readings.interval.unwrap_or(IDLE_INTERVAL);
    // Not given up half-way: what the daemon has made would not know yet that nobody waits for it.
    let stream = client.stream_aggregation(Source::Spec(spec), interval, life.readings.deltas).await?;
    output.counting_begins(stream.aggregation(), life.duration);
    stop.after(life.duration);
    let mut counting = Counting { client, stream, stop, readings: life.readings };
    let mut printer = counting.printer(view, output);
    let reason = counting.follow(&mut printer, true).await.map_err(Failure::in_stream)?;
    let last = counting.end().await?;
    printer.last(&last)?;
    // Without a limit an interrupt is how counting ends; with one, it comes too early.
    let early = reason == StopReason::Signal && life.duration.is_some();
    Ok(if early { Exit::Interrupted } else { Exit::Success })
}

/// An aggregation that is being read.
pub(super) struct Counting {
    pub(super) client: Client,
    pub(super) stream: AggregationStream,
    pub(super) stop: Stop,
    pub(super) readings: Readings,
}

impl Counting {
    pub(super) fn printer<'a>(&self, view: CountView, output: &'a mut Output) -> CountPrinter<'a> {
        let redraw = !self.readings.deltas && !self.readings.scroll;
        let several = self.readings.interval.is_some();
        CountPrinter::new(output, self.stream.aggregation(), view, several, several && redraw)
    }

    /// Shows readings until it is time to stop. `fresh`: the first of deltas is no more than where counting begins.
    pub(super) async fn follow(
        &mut self,
        printer: &mut CountPrinter<'_>,
        fresh: bool,
    ) -> Result<StopReason, Failure> {
        loop {
            let snapshot = tokio::select! {
                biased;
                reason = self.stop.wait() => return Ok(reason),
                snapshot = self.stream.next() => snapshot?.ok_or(Failure::StreamEnded)?,
            };
            let is_beginning = fresh && self.readings.deltas && !snapshot.delta;
            if self.readings.interval.is_some() && !is_beginning {
                printer.reading(&snapshot)?;
            }
        }
    }

    /// Stops counting. What was counted until then is in the answer, so that nothing is missed between a last reading and the end.
    async fn end(mut self) -> Result<AggregationSnapshot, Failure> {
        let name = self.stream.aggregation().name.clone();
        self.stop.after(None);
        let last = tokio::select! {
            last = self.client.delete_aggregation(&name) => last?,
            // Asked for a second time.
            _ = self.stop.wait() => return Err(Failure::Interrupted),
        };
        last.ok_or(Failure::NotCounted)
    }
}
