//! Loop from the merged event stream of many hosts to the printer, and its end.
//!
//! It never defines probes: `trace_hosts` does, and `host_probes` switches and deletes them.

use std::collections::HashSet;
use std::time::Duration;

use kprobed_client::event::StreamRequest;
use kprobed_client::fleet::{HostLedger, Outcome, names};
use kprobed_client::merge::{HostAccount, HostState, MergeOptions, MergedItem, MergedStream};

use tokio::time::Instant;

use super::follow::REST;
use super::host_probes::{Deleted, Enabled, HostProbes};
use super::options::OutputOptions;
use crate::command::child::Child;
use crate::command::many_hosts::{exit, remember};
use crate::command::open_file_limit::raise;
use crate::command::stop_condition::{StopCondition, StopReason};
use crate::command::{Exit, Failure};
use crate::global::Fleet;
use crate::global::Global;
use crate::output::{EventPrinter, HostOutput, HostRecord, Output};

/// How long events are shown, and how.
pub(in crate::command) struct Show {
    pub(in crate::command) count: Option<u64>,
    pub(in crate::command) duration: Option<Duration>,
    pub(in crate::command) quiet: bool,
    pub(in crate::command) form: OutputOptions,
    /// The stream has an end.
    pub(in crate::command) ends: bool,
    /// Events before this are not shown, in nanoseconds since 1970.
    pub(in crate::command) since_ns: Option<i64>,
}

/// What to follow on all hosts.
pub(super) struct ObserveHosts {
    pub(super) request: StreamRequest,
    pub(super) show: Show,
    pub(super) max_wait: Duration,
    /// Do not connect again.
    pub(super) once: bool,
}

/// Hosts that are followed.
pub(super) struct MergedHosts {
    pub(super) merged: MergedStream,
    /// All selected hosts.
    pub(super) names: Vec<String>,
    /// Those of them that are not in the stream, and why.
    pub(super) missing: Vec<HostAccount>,
    /// A signal came before there was a stream.
    pub(super) is_interrupted: bool,
    /// Temporary probes.
    pub(super) traced: Option<HostProbes>,
}

impl MergedHosts {
    /// Hosts of these names, all of which are in the stream.
    pub(super) fn new(merged: MergedStream, names: Vec<String>) -> Self {
        Self { merged, names, missing: Vec::new(), is_interrupted: false, traced: None }
    }
}

/// How a stream ended.
enum End {
    Enough,
    Stopped(StopReason),
    /// No host has anything more.
    Over,
    /// A host did not answer, and nothing was to be done after that.
    Failed,
}

impl ObserveHosts {
    pub(super) async fn run(
        mut self,
        global: &Global,
        fleet: &Fleet,
        output: &mut Output,
    ) -> Result<Exit, Failure> {
        let stop = StopCondition::new(None).map_err(Failure::Signals)?;
        for field in &self.show.form.fields {
            self.request = self.request.field(field.clone());
        }
        let mut hosts = fleet.hosts.clone();
        for host in &mut hosts {
            host.options.connect_timeout = host.options.connect_timeout.min(self.max_wait);
            host.options.request_timeout = host.options.request_timeout.min(self.max_wait);
        }
        let default = MergeOptions::default();
        let options = MergeOptions {
            max_wait: self.max_wait,
            parallel: global.parallel.or(fleet.parallel).unwrap_or(default.parallel),
            reconnect: !self.once && !global.fail_fast,
            ..default
        };
        raise(hosts.len(), "name fewer hosts, or read their events from NATS (`--from`)")?;
        let names: Vec<String> = hosts.iter().map(|host| host.name.clone()).collect();
        let merged = MergedStream::open(hosts, self.request, options);
        let (exit, accounts) = self.show.run(MergedHosts::new(merged, names), stop, global, output).await?;
        remember_missing(fleet, &accounts, output);
        Ok(exit)
    }
}

impl Show {
    /// Shows the events of these hosts. Returns the account of each.
    pub(super) async fn run(
        self,
        shown: MergedHosts,
        mut stop: StopCondition,
        global: &Global,
        output: &mut Output,
    ) -> Result<(Exit, Vec<HostAccount>), Failure> {
        let MergedHosts { merged, names, missing, is_interrupted, traced } = shown;
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
        let style = self.form.style(global, None, self.quiet, Some(width.max("HOST".len())));
        let mut printer = EventPrinter::new(output, style);
        printer.start()?;
        printer.hosts_not_there(&missing)?;
        let runs = traced.as_ref().is_some_and(|traced| !traced.command.is_empty());
        let mut follow = Follow {
            connecting: merged.accounts().len(),
            merged,
            traced,
            child: None,
            has_begun: false,
            hosts: names.len(),
            limit: self.count,
            duration: self.duration,
            since_ns: self.since_ns,
            fail_fast: global.fail_fast,
        };
        let mut end = if is_interrupted {
            Ok(End::Stopped(StopReason::Signal))
        } else if global.fail_fast && !missing.is_empty() {
            Ok(End::Failed)
        } else {
            follow.follow(&mut stop, &mut printer).await
        };
        end = follow.delete(end, &mut stop, &mut printer).await;
        let is_broken_pipe = end.as_ref().is_err_and(Failure::is_broken_pipe);
        if !is_broken_pipe {
            follow.merged.finish();
            if !matches!(end, Ok(End::Enough))
                && let Err(failure) = follow.rest(&mut printer).await
            {
                end = Err(failure);
            }
        }
        let mut accounts = follow.merged.accounts();
        accounts.extend(missing);
        let child = follow.child.take();
        let limited = self.count.is_some() || self.duration.is_some() || self.ends || runs;
        let mut worst = match end? {
            // Without a limit an interrupt is the regular end; with one, it is early.
            End::Stopped(StopReason::Signal) if limited || is_interrupted => Exit::Interrupted,
            End::Enough | End::Over | End::Failed | End::Stopped(_) => Exit::Success,
        };
        let mut ledger = HostLedger::new(accounts.len() as u64);
        for account in &accounts {
            ledger.record(account.outcome);
        }
        printer.summary.delivered = accounts.iter().map(|account| account.read).sum();
        printer.summary.late = accounts.iter().map(|account| account.late).sum();
        printer.host_accounts(&accounts, &ledger)?;
        printer.flush()?;
        printer.print_summary();
        if let Some(child) = child.filter(|_| worst == Exit::Success) {
            tokio::select! {
                how = child.wait() => how.iter().for_each(|how| printer.note(how)),
                () = stop.signal() => worst = Exit::Interrupted,
            }
        }
        Ok((exit(&ledger, worst, global), accounts))
    }
}

/// Saves the names of the hosts without an answer for `@failed`.
pub(super) fn remember_missing(fleet: &Fleet, accounts: &[HostAccount], output: &mut Output) {
    let missing = accounts.iter().filter(|account| account.outcome != Outcome::Answered);
    let mut text = String::new();
    for account in missing {
        text.push_str(&account.host);
        text.push('\n');
    }
    remember(fleet, &text, output);
}

struct Follow {
    merged: MergedStream,
    traced: Option<HostProbes>,
    /// The child process.
    child: Option<Child>,
    /// All hosts are known, and all temporary probes record.
    has_begun: bool,
    /// Hosts of which nothing is known yet.
    connecting: usize,
    hosts: usize,
    limit: Option<u64>,
    duration: Option<Duration>,
    since_ns: Option<i64>,
    fail_fast: bool,
}

impl Follow {
    async fn follow(
        &mut self,
        stop: &mut StopCondition,
        printer: &mut EventPrinter<'_>,
    ) -> Result<End, Failure> {
        let mut pending = false;
        let mut known = HashSet::new();
        loop {
            let item = tokio::select! {
                biased;
                reason = stop.wait() => return Ok(End::Stopped(reason)),
                enabled = next_enabled(self.traced.as_mut()) => {
                    self.enabled(enabled, printer)?;
                    self.begin(stop, printer)?;
                    continue;
                }
                item = self.merged.next() => item,
                // Nothing has arrived: flush the output.
                () = std::future::ready(()), if pending => {
                    printer.flush()?;
                    pending = false;
                    continue;
                }
            };
            pending = true;
            let Some(item) = item else { return Ok(End::Over) };
            let first_of = match &item {
                MergedItem::State(change) if change.state != HostState::Connecting => {
                    Some((change.host.to_owned(), change.state))
                }
                _ => None,
            };
            if !is_before(&item, self.since_ns) {
                print(item, self.hosts, printer)?;
            }
            if let Some((host, state)) = first_of {
                if let Some(traced) = self.traced.as_mut().filter(|_| state == HostState::Live) {
                    traced.enable(&host);
                }
                self.connecting -= usize::from(known.insert(host));
                self.begin(stop, printer)?;
            }
            if self.limit.is_some_and(|limit| printer.summary.shown >= limit) {
                return Ok(End::Enough);
            }
            if self.fail_fast && self.merged.has_missing() {
                return Ok(End::Failed);
            }
            // On a terminal every line is flushed.
            if printer.is_terminal() {
                printer.flush()?;
            }
        }
    }

    /// Reports what is observed, and starts the child process, when every host is known.
    fn begin(&mut self, stop: &mut StopCondition, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
        let is_enabling = self.traced.as_ref().is_some_and(HostProbes::is_enabling);
        if self.has_begun || self.connecting > 0 || is_enabling {
            return Ok(());
        }
        self.has_begun = true;
        let here = self.merged.accounts();
        let here = here.iter().filter(|account| account.outcome == Outcome::Answered).count();
        let command = self.traced.as_ref().map_or(&[][..], |traced| &traced.command);
        if here > 0 && !command.is_empty() {
            self.child = Some(Child::start(command)?);
        }
        // The duration counts from here: events can arrive now.
        stop.begin(self.duration);
        stop.or_after(self.child.as_ref());
        printer.observing(&format!("{here} of {} hosts", self.hosts))?;
        Ok(())
    }

    /// Reports what a host answered when its probes were enabled.
    fn enabled(&mut self, enabled: Enabled, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
        let Enabled { host, result } = enabled;
        match result {
            Ok(messages) => {
                let said = HostOutput::messages(messages);
                let (outcome, kernel) = (Outcome::Answered, String::new());
                printer.host_messages(&[HostRecord { host, outcome, kernel, said }])?;
            }
            Err((reason, outcome)) => {
                self.merged.give_up(&host, reason, outcome);
                if let Some(traced) = &mut self.traced {
                    traced.forget(&host);
                }
            }
        }
        Ok(())
    }

    /// Deletes the temporary probes, and prints what they recorded until then, unless the limit was
    /// reached.
    async fn delete(
        &mut self,
        end: Result<End, Failure>,
        stop: &mut StopCondition,
        printer: &mut EventPrinter<'_>,
    ) -> Result<End, Failure> {
        let Some(traced) = self.traced.take().filter(|traced| !traced.is_empty()) else { return end };
        let recording: HashSet<String> = traced.hosts.keys().cloned().collect();
        let mut end = end?;
        let accounts = self.merged.accounts();
        let gone: HashSet<&str> = accounts
            .iter()
            .filter(|account| account.state == HostState::GivenUp)
            .map(|account| account.host.as_str())
            .collect();
        let mut deleting = traced.delete(|host| !gone.contains(host));
        let mut failed: Vec<(String, String)> = Vec::new();
        let mut is_shown = !matches!(end, End::Enough);
        let mut patience = None;
        while !deleting.is_empty() || is_shown {
            if deleting.is_empty() {
                patience.get_or_insert_with(|| Instant::now() + REST);
            }
            tokio::select! {
                biased;
                // A second signal stops the wait. The daemons delete the probes by themselves.
                () = stop.signal() => {
                    end = End::Stopped(StopReason::Signal);
                    break;
                }
                Some(deleted) = deleting.join_next() => {
                    let Ok(Deleted { host, result }) = deleted else { continue };
                    match result {
                        Ok(trace_ns) => self.merged.end_host(&host, trace_ns),
                        Err(error) => {
                            self.merged.end_host(&host, 0);
                            failed.push((error.to_string(), host));
                        }
                    }
                }
                () = until(patience) => break,
                item = self.merged.next(), if is_shown => match item {
                    None => is_shown = false,
                    Some(item) => {
                        print(item, self.hosts, printer)?;
                        if self.limit.is_some_and(|limit| printer.summary.shown >= limit) {
                            is_shown = false;
                            end = End::Enough;
                        }
                    }
                }
            }
        }
        if !matches!(end, End::Enough) {
            let mut unread: Vec<String> = failed.iter().map(|(_, host)| host.clone()).collect();
            let accounts = self.merged.accounts().into_iter();
            let open = accounts.filter(|account| account.state != HostState::Ended);
            unread.extend(open.map(|account| account.host).filter(|host| recording.contains(host)));
            let hosts = names::fold(unread.iter().map(String::as_str));
            printer.summary.unread = (!unread.is_empty()).then(|| format!("{hosts} did not send them"));
        }
        failed.sort_unstable();
        for same in failed.chunk_by(|one, other| one.0 == other.0) {
            let hosts = names::fold(same.iter().map(|(_, host)| host.as_str()));
            let reason = same.first().map_or("", |(reason, _)| reason.as_str());
            printer.note(&format!(
                "{hosts}: the daemon deletes the probes when this command has ended: {reason}"
            ));
        }
        Ok(end)
    }

    /// Prints what had arrived when following stopped.
    async fn rest(&mut self, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
        while let Some(item) = self.merged.next().await {
            if !is_before(&item, self.since_ns) {
                print(item, self.hosts, printer)?;
            }
            if self.limit.is_some_and(|limit| printer.summary.shown >= limit) {
                break;
            }
        }
        Ok(())
    }
}

/// The next host whose probes record, or do not.
async fn next_enabled(traced: Option<&mut HostProbes>) -> Enabled {
    match traced {
        Some(traced) => traced.enabled().await,
        None => std::future::pending().await,
    }
}

/// Waits until then. Never ends if that is not known.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Whether an item is an event from before the time that was requested.
fn is_before(item: &MergedItem<'_>, since_ns: Option<i64>) -> bool {
    matches!(item, MergedItem::Event(event) if since_ns.is_some_and(|since_ns| event.corrected_ns < since_ns))
}

fn print(item: MergedItem<'_>, hosts: usize, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
    match item {
        MergedItem::Event(event) => printer.merged_row(&event)?,
        MergedItem::Loss { host, loss } => printer.merged_loss(host, &loss)?,
        MergedItem::MayMiss { host, cursor } => printer.merged_may_miss(host, &cursor)?,
        MergedItem::Malformed { host, problem, cursor } => {
            printer.merged_gap(host, &problem, cursor.as_ref())?;
        }
        MergedItem::State(change) => printer.host_state(&change, hosts)?,
        // Kinds of items that this command does not know yet.
        _ => {}
    }
    Ok(())
}
