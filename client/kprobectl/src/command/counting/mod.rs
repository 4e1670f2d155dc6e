//! Aggregations that last as long as a command runs.
//!
//! Owns their lifetime and the loop from readings to the printer. An aggregation is bound to the stream
//! of its readings: the daemon deletes it when this process ends, however it ends.

mod count_key;
mod many_hosts;
mod probes;

use std::time::Duration;

use clap::Args;
use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::aggregation_spec::Aggregation;
use kprobed_client::api::stream_aggregation_request::Source;
use kprobed_client::api::{AggregationKey, AggregationSnapshot, AggregationSpec, ContextKey};
use kprobed_client::{AggregationStream, Client};

pub(super) use self::count_key::CountKey;
pub(super) use self::probes::is_probe;
use super::connection::connect;
use super::stop_condition::{StopCondition, StopReason};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{CountOrder, CountPrinter, CountView, LatencyUnit, Output};
use crate::quantity::duration;

/// Interval of readings that are not shown: each makes the daemon read the kernel's tables.
const IDLE_INTERVAL: Duration = Duration::from_hours(1);

/// Options for how long an aggregation counts.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Duration")]
pub(crate) struct Lifetime {
    /// Stop after this time [default: until Ctrl-C]
    #[arg(long = "for", alias = "duration", value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    readings: ReadingOptions,
    /// Keep counting under this name after the command ends; `kprobectl aggregations` reads and
    /// deletes it [default: stop with the command]
    #[arg(
        long, value_name = "NAME", conflicts_with_all = ["duration", "interval", "deltas", "scroll", "sort", "top"]
    )]
    keep: Option<String>,
    /// Delete the kept aggregation after this time [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "keep")]
    lease: Option<Duration>,
}

/// Options for readings in between.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReadingOptions {
    /// Show the counts repeatedly, this time apart, 100ms or more [default: once]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) interval: Option<Duration>,
    /// Show only the counts since the previous reading
    #[arg(long, requires = "interval")]
    pub(super) deltas: bool,
    /// Print readings one below the other on a terminal, instead of redrawing
    #[arg(long, requires = "interval")]
    pub(super) scroll: bool,
}

/// Refuses `--folded` where there are no call stacks.
pub(super) fn refuse_folded(view: CountView, spec: Option<&AggregationSpec>) -> Result<(), Failure> {
    let is_stack = |key: &AggregationKey| key.key == Some(Key::Context(ContextKey::Stack.into()));
    match spec.and_then(|spec| spec.aggregation.as_ref()) {
        _ if !view.is_folded => Ok(()),
        Some(Aggregation::Histogram(spec)) if spec.keys.iter().any(is_stack) => Ok(()),
        _ => {
            let message = "`--folded` prints call stacks, and this does not count by stack";
            Err(Failure::usage(message, "add `--by stack`"))
        }
    }
}

/// Options for the rows that are shown, and their order.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct RowOptions {
    /// Show only the first N rows, and the sum of the others [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    top: Option<u32>,
    /// Order of rows: `count` (largest first), `key` (smallest first), or a field of `--sum` (largest first)
    #[arg(long, value_name = "COLUMN", default_value = "count")]
    sort: String,
}

impl RowOptions {
    /// The same for the printer.
    ///
    /// # Errors
    /// When no sum has the name to sort by.
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
        Ok(CountView { order, top, unit, is_folded: false })
    }
}

fn no_column(name: &str, sums: &[String]) -> Failure {
    let sums: Vec<_> = sums.iter().map(|sum| format!(", `{sum}`")).collect();
    let columns = format!("the columns are `count`, `key`{}", sums.concat());
    Failure::usage(format!("cannot sort by `{name}`: there is no such column"), &columns)
}

/// What to count, for how long, and how to show it.
pub(super) struct Count {
    /// With the probes as they were written.
    pub(super) spec: AggregationSpec,
    /// Of many hosts, the counts of each, and not their sums.
    pub(super) is_by_host: bool,
    pub(super) life: Lifetime,
    pub(super) view: CountView,
}

impl Count {
    /// Counts until the stop condition, and shows the counts, of all hosts together or by host; with
    /// `--keep`, leaves the aggregation running.
    pub(super) async fn run(self, global: &Global, output: &mut Output) -> Result<Exit, Failure> {
        refuse_folded(self.view, Some(&self.spec))?;
        probes::judge(&self.spec)?;
        if let Some(fleet) = &global.fleet {
            return self.run_on_many(global, fleet, output).await;
        }
        let Self { mut spec, is_by_host, life, view } = self;
        if is_by_host {
            let message = "`--by host` tells several hosts apart, and one daemon is asked";
            let hint = "add `--hosts`; a field of that name is `host.exact`";
            return Err(Failure::usage(message, hint));
        }
        let mut stop = StopCondition::new()?;
        if let Some(name) = &life.keep {
            let made = Box::pin(async {
                let client = connect(global).await?;
                if let Some(refused) = probes::not_kept(&probes::undefined(&client, &spec).await?) {
                    return Err(refused);
                }
                Ok::<_, Failure>(client.create_aggregation(name, spec, life.lease).await?)
            });
            let left = "the daemon may have made the aggregation: `kprobectl aggregations` shows them";
            output.aggregation_kept(&stop.unless_stopped(made, Some(left)).await?)?;
            return Ok(Exit::Success);
        }
        let ready = Box::pin(async {
            let client = connect(global).await?;
            let probes = probes::define(&client, &global.lines, &mut spec, output).await?;
            Ok::<_, Failure>((client, probes))
        });
        let (client, probes) = stop.unless_stopped(ready, None).await?;
        let interval = life.readings.interval.unwrap_or(IDLE_INTERVAL);
        // Not cancelled: the daemon would keep an aggregation that no client waits for.
        let stream = client.stream_aggregation(Source::Spec(spec), interval, life.readings.deltas).await?;
        output.counting_begins(stream.aggregation(), life.duration);
        stop.begin(life.duration);
        let mut counting = Counting { client, stream, stop, readings: life.readings };
        let mut printer = counting.printer(view, output);
        let reason = counting.follow(&mut printer, true).await.map_err(Failure::in_stream)?;
        let last = counting.end().await?;
        printer.last(&last)?;
        if let Some(probes) = probes {
            let deleted = tokio::select! {
                deleted = probes.delete() => deleted.map(drop),
                () = counting.stop.signal() => Ok(()),
            };
            if let Err(error) = deleted {
                output.note(&format!("the daemon deletes the probes when this command has ended: {error}"));
            }
        }
        Ok(reason.exit(life.duration.is_some()))
    }
}

/// A running aggregation.
pub(super) struct Counting {
    pub(super) client: Client,
    pub(super) stream: AggregationStream,
    pub(super) stop: StopCondition,
    pub(super) readings: ReadingOptions,
}

impl Counting {
    pub(super) fn printer<'a>(&self, view: CountView, output: &'a mut Output) -> CountPrinter<'a> {
        let redraw = !self.readings.deltas && !self.readings.scroll;
        let several = self.readings.interval.is_some();
        CountPrinter::new(output, self.stream.aggregation(), view, several, several && redraw)
    }

    /// Shows readings until it is time to stop. `fresh`: the first delta only shows where counting
    /// begins, and is not printed.
    pub(super) async fn follow(
        &mut self,
        printer: &mut CountPrinter<'_>,
        fresh: bool,
    ) -> Result<StopReason, Failure> {
        loop {
            let snapshot = tokio::select! {
                biased;
                reason = self.stop.wait() => return Ok(reason),
                snapshot = self.stream.next() => snapshot?.ok_or_else(Failure::stream_ended)?,
            };
            let is_beginning = fresh && self.readings.deltas && !snapshot.delta;
            if self.readings.interval.is_some() && !is_beginning {
                printer.reading(&snapshot)?;
            }
        }
    }

    /// Deletes the aggregation. The answer has the final counts, so that no event is missed after
    /// the last reading.
    async fn end(&mut self) -> Result<AggregationSnapshot, Failure> {
        let name = self.stream.aggregation().name.clone();
        self.stop.begin(None);
        let left = "the daemon deletes the aggregation when this command has ended";
        // A second signal stops the wait.
        let last = Box::pin(self.client.delete_aggregation(&name));
        let last = self.stop.unless_stopped(last, Some(left)).await?;
        last.ok_or_else(|| {
            let hint = "the daemon's log has the reason: `journalctl -u kprobed`";
            Failure::refused("cannot read the final counts", hint)
        })
    }
}
