//! Counting on many hosts: sums over all of them, or the counts of each host.
//!
//! Owns the outcome of each host. A host that could not begin, or could not report its counts, is not
//! part of the sums and is reported.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::aggregation_spec::Aggregation as Kind;
use kprobed_client::api::stream_aggregation_request::Source;
use kprobed_client::api::{Aggregation, AggregationKey, AggregationSnapshot, AggregationSpec, ContextKey};
use kprobed_client::fleet::{FanOut, Host, HostLedger, NoAnswer, Operation as _, Outcome, Run};
use kprobed_client::{AggregationStream, Client, Error, add_snapshots};
use tokio::task::JoinSet;

use super::{IDLE_INTERVAL, Lifetime};
use crate::command::many_hosts::{exit, remember};
use crate::command::open_file_limit::raise;
use crate::command::stop_condition::{StopCondition, StopReason};
use crate::command::{Exit, Failure};
use crate::global::Fleet;
use crate::global::{Format, Global};
use crate::output::{CountPrinter, CountView, HostOutput, HostRecord, Output};

/// A host that counts.
struct CountingHost {
    client: Client,
    /// The daemon counts until this is dropped.
    stream: AggregationStream,
    kernel: String,
}

/// Counts of a host.
struct HostCounts {
    kernel: String,
    aggregation: Aggregation,
    snapshot: AggregationSnapshot,
}

/// Refuses options that have no meaning for several hosts.
fn judge(spec: &AggregationSpec, is_by_host: bool, life: &Lifetime) -> Result<(), Failure> {
    let refused = |what: &str, hint: &str| Err(Failure::usage(what.to_owned(), Some(hint.to_owned())));
    if life.keep.is_some() {
        return refused(
            "`--keep` leaves an aggregation on one host, and `--hosts` asks for several",
            "count for a time with `--duration`, or name one host with `--server`",
        );
    }
    if life.readings.interval.is_some() {
        return refused(
            "`--interval` shows readings of one host, and `--hosts` asks for several",
            "leave `--interval` out, or name one host with `--server`",
        );
    }
    let is_thread = |key: &AggregationKey| key.key == Some(Key::Context(ContextKey::Thread.into()));
    let by_thread = match &spec.aggregation {
        Some(Kind::Histogram(spec)) => spec.keys.iter().any(is_thread),
        Some(Kind::Latency(spec)) => spec.keys().any(|key| key == ContextKey::Thread),
        None => false,
    };
    if by_thread && !is_by_host {
        return refused(
            "threads of several hosts have the same ids, so that counts by `thread` cannot be added up",
            "count by `comm`, add `host`, or name one host with `--server`",
        );
    }
    Ok(())
}

/// Counts on all hosts until it is time to stop, and shows the sums, or what each of them counted.
pub(super) async fn count(
    global: &Global,
    fleet: &Fleet,
    (spec, is_by_host): (AggregationSpec, bool),
    life: Lifetime,
    view: CountView,
    output: &mut Output,
) -> Result<Exit, Failure> {
    judge(&spec, is_by_host, &life)?;
    let mut stop = StopCondition::new(None).map_err(Failure::Signals)?;
    let mut records = Records::new(fleet);
    raise(fleet.hosts.len(), "name fewer hosts")?;
    let (begun, is_interrupted) = begin(global, fleet, spec, (&mut stop, &mut records), output).await;
    if let Some((_, one)) = begun.first()
        && !is_interrupted
        && !(global.fail_fast && records.is_missing_some())
    {
        output.counting_begins(one.stream.aggregation(), life.duration);
        output.note(&format!("{} of {} hosts count", begun.len(), fleet.hosts.len()));
        stop.after(life.duration);
    } else {
        stop.after(Some(Duration::ZERO));
    }
    let reason = stop.wait().await;
    let counted = end(begun, global.timeout, &mut stop, &mut records).await;
    for (host, one) in &counted {
        let mut kept = output.keeping();
        CountPrinter::new(&mut kept, &one.aggregation, view, false, false).last(&one.snapshot)?;
        records.add(host.clone(), Outcome::Answered, one.kernel.clone(), kept.into_kept());
    }
    for record in &records.all {
        output.host_record(record)?;
    }
    if let Some((_, one)) = counted.first().filter(|_| !is_by_host) {
        let mut whole =
            add_snapshots(&counted.iter().map(|(_, one)| one.snapshot.clone()).collect::<Vec<_>>());
        whole.name = format!("{} hosts", counted.len());
        let several = output.is_structured();
        CountPrinter::new(output, &one.aggregation, view, several, false).last(&whole)?;
        output.flush()?;
    }
    let missing = records.missing();
    let names: Vec<_> = missing.iter().map(|record| format!("{}\n", record.host)).collect();
    let shown = if is_by_host { records.by_host(global.output == Format::Folded, output)? } else { missing };
    output.hosts(&shown, &[], &records.ledger)?;
    remember(fleet, &names.concat(), output);
    // Without a limit an interrupt is the regular end; with one, it is early.
    let early = is_interrupted || reason == StopReason::Signal && life.duration.is_some();
    Ok(exit(&records.ledger, if early { Exit::Interrupted } else { Exit::Success }, global))
}

/// Begins to count on all hosts. Returns those that count, and whether a signal came before all
/// were asked.
async fn begin(
    global: &Global,
    fleet: &Fleet,
    spec: AggregationSpec,
    (stop, records): (&mut StopCondition, &mut Records),
    output: &Output,
) -> (Vec<(String, CountingHost)>, bool) {
    let fan_out = FanOut {
        parallel: global.parallel.or(fleet.parallel).unwrap_or(FanOut::default().parallel),
        deadline: global.timeout,
        fail_fast: global.fail_fast,
    };
    let mut run = Run::start(fleet.hosts.clone(), fan_out, move |_host: Host, client: Client| {
        let spec = spec.clone();
        async move {
            let kernel = client.host_basics().await?.kernel_release;
            let stream = client.stream_aggregation(Source::Spec(spec), IDLE_INTERVAL, false).await?;
            Ok::<_, Error>(CountingHost { client, stream, kernel })
        }
    });
    let (mut begun, mut is_interrupted) = (Vec::new(), false);
    loop {
        let report = tokio::select! {
            report = run.next() => report,
            () = stop.signal() => {
                is_interrupted = true;
                run.interrupt();
                continue;
            }
        };
        let Some(report) = report else { break };
        let outcome = report.outcome();
        let host = report.host.name;
        match report.result {
            Ok(one) => begun.push((host, one)),
            Err(NoAnswer::Operation { error, .. }) => {
                let mut kept = output.keeping();
                Failure::from(error).report(&mut kept);
                records.add(host, outcome, String::new(), kept.into_kept());
            }
            Err(NoAnswer::Unreachable(Error::Connect { kind, .. })) => {
                records.fail(host, outcome, String::new(), kind.to_string());
            }
            Err(NoAnswer::NotTried) => {
                records.fail(host, outcome, String::new(), "the run ended before".to_owned());
            }
            Err(other) => records.fail(host, outcome, String::new(), other.to_string()),
        }
    }
    (begun, is_interrupted)
}

/// Stops counting everywhere, and gathers what was counted until then. After a signal it waits for
/// no host: their daemons stop counting when the streams end.
async fn end(
    begun: Vec<(String, CountingHost)>,
    deadline: Duration,
    stop: &mut StopCondition,
    records: &mut Records,
) -> Vec<(String, HostCounts)> {
    let (mut tasks, mut asked) = (JoinSet::new(), HashMap::new());
    for (host, one) in begun {
        let kernel = one.kernel.clone();
        let task = tasks.spawn(async move {
            let aggregation = one.stream.aggregation().clone();
            let last = tokio::time::timeout(deadline, one.client.delete_aggregation(&aggregation.name)).await;
            (aggregation, last)
        });
        asked.insert(task.id(), (host, kernel));
    }
    let mut counted = Vec::new();
    loop {
        let joined = tokio::select! {
            joined = tasks.join_next_with_id() => joined,
            () = stop.signal() => {
                tasks.abort_all();
                continue;
            }
        };
        let (id, done) = match joined {
            Some(Ok((id, done))) => (id, Ok(done)),
            Some(Err(error)) => (error.id(), Err(error)),
            None => break,
        };
        let Some((host, kernel)) = asked.remove(&id) else { continue };
        let (aggregation, last) = match done {
            Ok(done) => done,
            Err(error) => {
                let why = if error.is_cancelled() {
                    "interrupted before it said what it had counted".to_owned()
                } else {
                    format!("the operation broke: {error}")
                };
                records.fail(host, Outcome::Failed, kernel, why);
                continue;
            }
        };
        match last {
            Ok(Ok(Some(snapshot))) => counted.push((host, HostCounts { kernel, aggregation, snapshot })),
            Ok(Ok(None)) => {
                records.fail(
                    host,
                    Outcome::Failed,
                    kernel,
                    "it could not read what it had counted".to_owned(),
                );
            }
            Ok(Err(error)) => {
                // It had begun: what it counted until then is missing.
                let outcome = match error.outcome() {
                    Outcome::TimedOut => Outcome::TimedOut,
                    _ => Outcome::Failed,
                };
                records.fail(host, outcome, kernel, format!("what it counted is missing: {error}"));
            }
            Err(_elapsed) => {
                records.fail(host, Outcome::TimedOut, kernel, format!("no answer within {deadline:?}"));
            }
        }
    }
    counted.sort_by(|one, other| one.0.cmp(&other.0));
    counted
}

/// The outcome of the hosts.
struct Records {
    all: Vec<HostRecord>,
    ledger: HostLedger,
}

impl Records {
    fn new(fleet: &Fleet) -> Self {
        Self { all: Vec::new(), ledger: HostLedger::new(fleet.hosts.len() as u64) }
    }

    fn add(&mut self, host: String, outcome: Outcome, kernel: String, said: HostOutput) {
        self.ledger.record(outcome);
        self.all.push(HostRecord { host, outcome, kernel, said });
    }

    fn fail(&mut self, host: String, outcome: Outcome, kernel: String, why: String) {
        self.add(host, outcome, kernel, HostOutput::messages(why));
    }

    /// The records that are shown separately. Stacks for other programs are printed here, with the
    /// host as the outermost frame.
    fn by_host(&self, is_folded: bool, output: &mut Output) -> io::Result<Vec<HostRecord>> {
        if !is_folded {
            return Ok(self.all.clone());
        }
        for record in self.all.iter().filter(|record| record.outcome == Outcome::Answered) {
            for line in record.said.data.lines() {
                output.raw(format!("{};{line}\n", record.host).as_bytes())?;
            }
        }
        output.flush()?;
        Ok(self.missing())
    }

    fn is_missing_some(&self) -> bool {
        !self.all.is_empty()
    }

    fn missing(&self) -> Vec<HostRecord> {
        self.all.iter().filter(|record| record.outcome != Outcome::Answered).cloned().collect()
    }
}
