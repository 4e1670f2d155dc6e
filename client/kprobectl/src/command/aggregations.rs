//! `kprobectl aggregations`: list, read and delete aggregations, whoever created them.

use std::time::Duration;

use clap::{Args, Subcommand};
use kprobed_client::api::stream_aggregation_request::Source;

use super::connection::connect;
use super::counting::{Counting, ReadingOptions, RowOptions, refuse_folded};
use super::stop_condition::StopCondition;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{CountPrinter, CountView, LatencyUnit, Output};
use crate::quantity::duration;

/// Arguments of `aggregations`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/aggregations.txt"))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
}

impl Arguments {
    /// Whether it prints a list.
    pub(crate) fn prints_list(&self) -> bool {
        matches!(self.action, None | Some(Action::List))
    }
}

/// What to do with them.
#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// List all aggregations; the same as no subcommand
    List,
    /// Show the counts of an aggregation
    Read(ReadArguments),
    /// Stop counting, and print the last counts
    Delete {
        /// Names of aggregations
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

/// Arguments of `aggregations read`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReadArguments {
    /// Name of the aggregation
    name: String,
    #[command(flatten)]
    readings: ReadingOptions,
    /// Stop reading after this time; counting continues [default: until Ctrl-C]
    #[arg(long = "for", alias = "duration", value_name = "DURATION", value_parser = duration, requires = "interval")]
    duration: Option<Duration>,
    /// Unit of latencies
    #[arg(long, value_name = "UNIT", default_value = "auto")]
    unit: LatencyUnit,
    /// Print one line for each call stack, as flame graph tools read them
    #[arg(long, conflicts_with_all = ["interval", "output"])]
    folded: bool,
    #[command(flatten)]
    shown: RowOptions,
}

/// Waits for signals itself: following one ends in order.
pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let action = match arguments.action {
        Some(Action::Read(arguments)) if arguments.readings.interval.is_some() => {
            return follow(global, arguments, output).await;
        }
        action => action.unwrap_or(Action::List),
    };
    let left = matches!(action, Action::Delete { .. })
        .then_some("the daemon may have deleted some: `kprobectl aggregations` shows the others");
    let once = async {
        match action {
            Action::List => list(global, output).await,
            Action::Read(arguments) => read(global, arguments, output).await,
            Action::Delete { names } => delete(global, names, output).await,
        }
    };
    tokio::select! {
        result = once => result,
        _ = tokio::signal::ctrl_c() => Err(Failure::interrupted(left)),
    }
}

async fn list(global: &Global, output: &mut Output) -> Result<Exit, Failure> {
    let aggregations = connect(global).await?.list_aggregations().await?;
    output.rows(&aggregations)?;
    if aggregations.is_empty() {
        output.remark("there are no aggregations: `kprobectl hist`, `latency` and `stacks` make them");
    }
    Ok(Exit::Success)
}

/// Continues with the next name after a failure. The worst exit code wins.
async fn delete(global: &Global, names: Vec<String>, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let mut exit = Exit::Success;
    for name in names {
        match client.delete_aggregation(&name).await {
            Ok(last) => output.aggregation_deleted(&name, last.as_ref())?,
            Err(error) => exit = exit.max(Failure::from(error).report(output)),
        }
    }
    Ok(exit)
}

async fn read(global: &Global, arguments: ReadArguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let (aggregation, snapshot) = client.read_aggregation(&arguments.name).await?;
    let sums: Vec<_> = aggregation.sums.iter().map(|sum| sum.name.clone()).collect();
    let view = CountView { is_folded: arguments.folded, ..arguments.shown.view(&sums, arguments.unit)? };
    refuse_folded(view, aggregation.spec.as_ref())?;
    CountPrinter::new(output, &aggregation, view, false, false).last(&snapshot)?;
    Ok(Exit::Success)
}

/// The aggregation outlives the command, and so there is no last reading.
async fn follow(global: &Global, arguments: ReadArguments, output: &mut Output) -> Result<Exit, Failure> {
    let ReadArguments { name, readings, duration, unit, folded: _, shown } = arguments;
    let mut stop = StopCondition::new()?;
    let opened = Box::pin(async {
        let client = connect(global).await?;
        let interval = readings.interval.unwrap_or_default();
        let stream = client.stream_aggregation(Source::Name(name), interval, readings.deltas).await?;
        Ok::<_, Failure>((client, stream))
    });
    let (client, stream) = stop.unless_stopped(opened, None).await?;
    stop.begin(duration);
    let sums: Vec<_> = stream.aggregation().sums.iter().map(|sum| sum.name.clone()).collect();
    let view = shown.view(&sums, unit)?;
    let mut counting = Counting { client, stream, stop, readings };
    let mut printer = counting.printer(view, output);
    let reason = counting.follow(&mut printer, false).await.map_err(Failure::in_stream)?;
    Ok(reason.exit(duration.is_some()))
}
