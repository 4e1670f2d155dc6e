//! Counting on many hosts: sums over all of them, or the counts of each host.
//!
//! A host that could not begin, or could not report its counts, is not part of the sums and is reported.

use std::sync::Arc;
use std::time::Duration;

use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::aggregation_spec::Aggregation as Kind;
use kprobed_client::api::stream_aggregation_request::Source;
use kprobed_client::api::{AggregationKey, AggregationSnapshot, AggregationSpec, ContextKey};
use kprobed_client::fleet::{HostLedger, Operation as _, Outcome};
use kprobed_client::{AggregationStream, Client, Error, add_marks, add_snapshots};
use tokio::task::JoinSet;

use super::probes::{define, not_confirmed, undefined};
use super::{Count, IDLE_INTERVAL};
use crate::command::many_hosts::{HostRun, Problem, exit, is_confirmed, raise, remember};
use crate::command::observe::TemporaryProbes;
use crate::command::stop_condition::StopCondition;
use crate::command::{Exit, Failure};
use crate::global::{Fleet, Global};
use crate::lines::Lines;
use crate::output::{CountPrinter, HostOutput, HostRecord, Output};

/// A host that counts, until its stream is dropped.
struct CountingHost {
    record: HostRecord,
    client: Client,
    stream: AggregationStream,
    /// Those that last as long as the command.
    probes: Option<Arc<TemporaryProbes>>,
}

impl Count {
    /// Refuses options that have no meaning for several hosts.
    fn judge(&self) -> Result<(), Failure> {
        let refused = |what: &str, hint: &str| Err(Failure::usage(what, hint));
        if self.life.keep.is_some() {
            return refused(
                "`--keep` leaves an aggregation on one host, and `--hosts` asks for several",
                "count for a time with `--for`, or name one host with `--server`",
            );
        }
        if self.life.readings.interval.is_some() {
            return refused(
                "`--interval` shows readings of one host, and `--hosts` asks for several",
                "leave `--interval` out, or name one host with `--server`",
            );
        }
        let is_thread = |key: &AggregationKey| key.key == Some(Key::Context(ContextKey::Thread.into()));
        let by_thread = match &self.spec.aggregation {
            Some(Kind::Histogram(spec)) => spec.keys.iter().any(is_thread),
            Some(Kind::Latency(spec)) => spec.keys().any(|key| key == ContextKey::Thread),
            None => false,
        };
        if by_thread && !self.is_by_host {
            return refused(
                "threads of several hosts have the same ids, so that counts by `thread` cannot be added up",
                "count by `comm`, add `host`, or name one host with `--server`",
            );
        }
        Ok(())
    }

    /// Counts on all hosts until it is time to stop, and shows the sums, or what each of them counted.
    pub(super) async fn run_on_many(
        self,
        global: &Global,
        fleet: &Fleet,
        output: &mut Output,
    ) -> Result<Exit, Failure> {
        self.judge()?;
        let mut stop = StopCondition::new()?;
        raise(fleet.hosts.len(), "name fewer hosts")?;
        let (spec, lines, hosts) = (self.spec.clone(), global.lines.clone(), fleet.hosts.len());
        let is_confirmed = is_confirmed(global, fleet);
        let mut run = HostRun::start(global, fleet, output, false, move |client: Client, mut output| {
            let (spec, lines) = (spec.clone(), lines.clone());
            async move {
                match begin(&client, &lines, spec, is_confirmed, hosts, &mut output).await {
                    Ok((stream, probes)) => Ok(((client, stream, probes), output)),
                    Err(failure) => Err(Problem::new(&failure, output)),
                }
            }
        });
        let (mut begun, mut records) = (Vec::new(), Vec::new());
        while let Some((record, answer)) = run.next(&mut stop).await {
            match answer {
                Ok((client, stream, probes)) => {
                    begun.push(CountingHost { record, client, stream, probes: probes.map(Arc::new) });
                }
                Err(_missing) => records.push(record),
            }
        }
        begun.sort_by(|one, other| one.record.host.cmp(&other.record.host));
        let duration = self.life.duration;
        if let Some(one) = begun.first()
            && !run.is_interrupted
            && (!global.fail_fast || records.is_empty())
        {
            output.counting_begins(one.stream.aggregation(), duration);
            output.note(&format!("{} of {} hosts count", begun.len(), fleet.hosts.len()));
            stop.begin(duration);
        } else {
            stop.begin(Some(Duration::ZERO));
        }
        let reason = stop.wait().await;
        let ended = end(&begun, global.timeout, &mut stop).await;
        let (mut counted, mut notes) = (Vec::new(), Vec::new());
        for (host, last) in begun.into_iter().zip(ended) {
            let CountingHost { mut record, stream, .. } = host;
            // What it said when the probes were defined comes first.
            let mut messages = std::mem::take(&mut record.said.messages);
            match last {
                Ok(snapshot) => {
                    let mut kept = output.keeping();
                    let aggregation = stream.aggregation();
                    CountPrinter::new(&mut kept, aggregation, self.view, false, false).last(&snapshot)?;
                    let reading = kept.into_kept();
                    notes.push(HostRecord { said: HostOutput::messages(messages.clone()), ..record.clone() });
                    messages.push_str(&reading.messages);
                    record.said = HostOutput { messages, ..reading };
                    counted.push((aggregation.clone(), snapshot));
                }
                Err((outcome, why)) => {
                    record.outcome = outcome;
                    messages.push_str(&why);
                    record.said = HostOutput::messages(messages);
                }
            }
            records.push(record);
        }
        for record in &records {
            output.host_record(record)?;
        }
        if let Some((aggregation, _)) = counted.first().filter(|_| !self.is_by_host) {
            let mut aggregation = aggregation.clone();
            for (other, _) in &counted {
                add_marks(&mut aggregation, other);
            }
            let snapshots: Vec<_> = counted.iter().map(|(_, snapshot)| snapshot.clone()).collect();
            let mut whole = add_snapshots(&snapshots);
            whole.name = format!("{} hosts", counted.len());
            let several = output.is_structured();
            CountPrinter::new(output, &aggregation, self.view, several, false).last(&whole)?;
            output.flush()?;
        }
        let mut ledger = HostLedger::new(fleet.hosts.len() as u64);
        for record in &records {
            ledger.record(record.outcome);
        }
        if self.is_by_host && self.view.is_folded {
            // Stacks for other programs, with the host as the outermost frame.
            for record in records.iter().filter(|record| record.outcome == Outcome::Answered) {
                for line in record.said.data.lines() {
                    output.raw(format!("{};{line}\n", record.host).as_bytes())?;
                }
            }
            output.flush()?;
        }
        if !self.is_by_host || self.view.is_folded {
            let (missing, answered): (Vec<_>, Vec<_>) =
                records.into_iter().partition(|record| record.outcome != Outcome::Answered);
            records = missing;
            if !output.is_structured() {
                // The sums have an account of the whole, and folded stacks of each host have none.
                output.host_messages(if self.is_by_host { &answered } else { &notes });
            }
        }
        output.hosts(&records, &[], &ledger)?;
        let missing = records.iter().filter(|record| record.outcome != Outcome::Answered);
        remember(fleet, missing.map(|record| record.host.as_str()), output);
        let worst = if run.is_interrupted { Exit::Interrupted } else { reason.exit(duration.is_some()) };
        Ok(exit(&ledger, worst, global))
    }
}

/// Begins to count on one host.
async fn begin(
    client: &Client,
    lines: &Lines,
    mut spec: AggregationSpec,
    is_confirmed: bool,
    hosts: usize,
    output: &mut Output,
) -> Result<(AggregationStream, Option<TemporaryProbes>), Failure> {
    if !is_confirmed && let Some(refused) = not_confirmed(&undefined(client, &spec).await?, hosts) {
        return Err(refused);
    }
    let probes = define(client, lines, &mut spec, output).await?;
    let stream = client.stream_aggregation(Source::Spec(spec), IDLE_INTERVAL, false).await?;
    Ok((stream, probes))
}

/// Stops counting everywhere, and gathers what was counted until then, or why that is missing. After a signal it waits
/// for no host: their daemons stop counting when the streams end.
async fn end(
    begun: &[CountingHost],
    deadline: Duration,
    stop: &mut StopCondition,
) -> Vec<Result<AggregationSnapshot, (Outcome, String)>> {
    let mut tasks = JoinSet::new();
    for (number, host) in begun.iter().enumerate() {
        let (client, name) = (host.client.clone(), host.stream.aggregation().name.clone());
        let probes = host.probes.clone();
        tasks.spawn(async move {
            let last = tokio::time::timeout(deadline, client.delete_aggregation(&name)).await;
            // If this fails, the daemon deletes them when the command has ended.
            if let Some(probes) = probes {
                tokio::time::timeout(deadline, probes.delete()).await.ok();
            }
            (number, last.unwrap_or(Err(Error::Timeout { limit: deadline, is_change: true })))
        });
    }
    let interrupted = "interrupted before it said what it had counted";
    let mut ended = vec![Err((Outcome::Failed, interrupted.to_owned())); begun.len()];
    loop {
        let joined = tokio::select! {
            joined = tasks.join_next() => joined,
            () = stop.signal() => return ended,
        };
        let Some(joined) = joined else { return ended };
        let Ok((number, last)) = joined else { continue };
        let Some(place) = ended.get_mut(number) else { continue };
        *place = match last {
            Ok(Some(snapshot)) => Ok(snapshot),
            Ok(None) => Err((Outcome::Failed, "it could not read what it had counted".to_owned())),
            Err(error) => {
                // It had begun: what it counted until then is missing.
                let is_late = error.outcome() == Outcome::TimedOut;
                let outcome = if is_late { Outcome::TimedOut } else { Outcome::Failed };
                Err((outcome, format!("what it counted is missing: {error}")))
            }
        };
    }
}
