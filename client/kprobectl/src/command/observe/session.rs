//! One run of `observe` or `trace`, from the request to the exit code.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kprobed_client::Client;
use kprobed_client::api::{CreateProbeRequest, EventOrder};
use kprobed_client::event::{ResumingStream, StreamRequest};
use kprobed_client::fleet::names::fold;
use kprobed_client::fleet::{HostLedger, Outcome};
use kprobed_client::merge::{HostAccount, HostState, MergeOptions, MergedStream};

use super::follow::{End, Follow};
use super::joined::JoinedCalls;
use super::observed::{AllCounts, CountsBefore, ObservedProbes};
use super::options::OutputOptions;
use super::source::{CursorFile, Source};
use super::temporary_probes::{HostProbes, TemporaryProbes};
use crate::command::connection::connect;
use crate::command::definitions::{Definitions, are_calls, definitions};
use crate::command::many_hosts::{HostCommand, HostRun, OnHost, Problem, confirm, exit, raise, remember};
use crate::command::stop_condition::StopCondition;
use crate::command::{Exit, Failure};
use crate::global::{Fleet, Global};
use crate::output::{EventPrinter, EventStyle, Output};

/// Which events to follow, for how long, and how to show them.
pub(super) struct Session {
    pub(super) request: StreamRequest,
    /// Temporary probes.
    pub(super) definitions: Vec<String>,
    /// They record the call stack of the kernel with each event.
    pub(super) stack: bool,
    /// The program to run as a child process. Empty for none.
    pub(super) command: Vec<String>,
    pub(super) count: Option<u64>,
    pub(super) duration: Option<Duration>,
    /// How long the others wait for a silent host.
    pub(super) max_wait: Duration,
    pub(super) quiet: bool,
    pub(super) form: OutputOptions,
    /// Put the events of one daemon into the order of time here as well.
    pub(super) ordered: bool,
    /// Where the stream of one daemon begins and ends.
    pub(super) cursor_file: Option<CursorFile>,
    /// Do not connect again.
    pub(super) once: bool,
}

/// Streams that have begun, or begin.
pub(super) struct Opened {
    source: Source,
    /// Temporary probes, by host.
    probes: HashMap<String, Arc<TemporaryProbes>>,
    /// What is observed of one daemon, in words.
    observing: Option<String>,
    /// Counts of the observed probes, if the end of the command is to say which runs the kernel skipped.
    before: Option<AllCounts>,
    /// Names of all selected hosts. Empty for one daemon.
    names: Vec<String>,
    /// The hosts that are not in the stream, and why.
    missing: Vec<HostAccount>,
    /// A signal came before there was a stream.
    is_interrupted: bool,
}

impl Opened {
    /// Hosts of these names, all of which are in the stream.
    pub(super) fn hosts(
        merged: MergedStream,
        names: Vec<String>,
        calls: JoinedCalls,
        since_ns: Option<i64>,
    ) -> Self {
        let source = Source::of_many(merged, names.len(), calls, since_ns);
        let (probes, observing, before) = (HashMap::new(), None, None);
        Self { source, probes, observing, before, names, missing: Vec::new(), is_interrupted: false }
    }
}

impl Session {
    /// Follows the events of the daemon, or of all hosts.
    pub(super) async fn run(mut self, global: &Global, output: &mut Output) -> Result<Exit, Failure> {
        for field in &self.form.fields {
            self.request = self.request.field(field.clone());
        }
        let calls = JoinedCalls::of(&self.definitions, &mut self.request)?;
        if !calls.is_empty() {
            if self.stack {
                let hint =
                    "trace the function alone: `FUNCTION` for its calls, `FUNCTION%return` for its returns";
                return Err(Failure::usage("a call has two events, and no stack", hint));
            }
            if !self.form.fields.is_empty() {
                let message =
                    "`--fields` selects fields of single events, and a call has those that it names";
                return Err(Failure::usage(message, "name them in the call"));
            }
            self.ordered = true;
            self.request = self.request.order(EventOrder::Time);
        }
        if self.quiet {
            output.without_progress();
        }
        let Some(fleet) = &global.fleet else {
            let mut stop = StopCondition::new()?;
            // The daemon deletes probes that were already defined when their hold is dropped.
            let has_probes = !self.definitions.is_empty();
            let left =
                has_probes.then_some("the daemon deletes the probes that it has defined for this command");
            let opened = Box::pin(self.open_one(calls, global, output));
            let opened = stop.unless_stopped(opened, left).await?;
            return Ok(self.show(opened, stop, global, output).await?.0);
        };
        if !self.definitions.is_empty() {
            confirm(Some(self.plan()), global, fleet, output).await?;
        }
        let mut stop = StopCondition::new()?;
        let opened = self.open_many((global, fleet), calls, &mut stop, output).await?;
        let (exit, accounts) = self.show(opened, stop, global, output).await?;
        let missing = accounts.iter().filter(|account| account.outcome != Outcome::Answered);
        remember(fleet, missing.map(|account| account.host.as_str()), output);
        Ok(exit)
    }

    /// How the temporary probes are defined.
    fn form_of_probes(&self) -> CreateProbeRequest {
        CreateProbeRequest { stack: self.stack, ..Default::default() }
    }

    /// Connects to one daemon, makes the probes and begins the stream of their events.
    async fn open_one(
        &mut self,
        mut calls: JoinedCalls,
        global: &Global,
        output: &mut Output,
    ) -> Result<Opened, Failure> {
        let mut request = self.request.clone();
        let client = connect(global).await?;
        let mut probes = HashMap::new();
        let has_probes = !self.definitions.is_empty();
        if has_probes {
            let mut unseen = output.keeping();
            let notes = if self.quiet { &mut unseen } else { &mut *output };
            let Definitions { lines, calls: places } =
                definitions(&client, &global.lines, &self.definitions, global.yes, notes).await?;
            let temporary = TemporaryProbes::define(&client, lines, &self.form_of_probes(), output).await?;
            request = temporary.select(request);
            calls.add_host("", temporary.probes(), &places)?;
            probes.insert(String::new(), Arc::new(temporary));
        }
        let mut observing = None;
        let mut before = None;
        let mut selected = None;
        if !self.quiet {
            let observed = ObservedProbes::by(&client, &request).await?;
            if self.request.ends() {
                observed.note_absence(&request, output);
            } else {
                if !has_probes {
                    observed.note_silence(&request, output);
                }
                observing = Some(observed.description());
                before = CountsBefore::read(&client, &request).await.ok().map(AllCounts::of_one);
            }
            observed.note_lacking_fields(&self.form.fields, output);
            selected = (!has_probes).then_some(observed);
        }
        // Temporary probes end with the connection, so that it is not made again.
        let once = self.once || has_probes;
        let stream = ResumingStream::open(&client, request).await?;
        if let (Some(observed), Some(started)) = (selected, stream.started()) {
            observed.note_filters(&started.filters, output);
        }
        let source = Source::of_one(stream, once, self.ordered, self.cursor_file.take(), calls);
        let (names, missing) = (Vec::new(), Vec::new());
        Ok(Opened { source, probes, observing, before, names, missing, is_interrupted: false })
    }

    /// Begins the streams of all hosts, after all of them have the probes. These do not record yet.
    async fn open_many(
        &self,
        (global, fleet): (&Global, &Fleet),
        mut calls: JoinedCalls,
        stop: &mut StopCondition,
        output: &mut Output,
    ) -> Result<Opened, Failure> {
        let instead = match self.definitions.as_slice() {
            [] => "name fewer hosts, or read their events from NATS (`--from`)",
            _ => "name fewer hosts",
        };
        raise(fleet.hosts.len(), instead)?;
        let mut hosts = fleet.hosts.clone();
        for host in &mut hosts {
            host.options.connect_timeout = host.options.connect_timeout.min(self.max_wait);
            host.options.request_timeout = host.options.request_timeout.min(self.max_wait);
        }
        let names: Vec<String> = hosts.iter().map(|host| host.name.clone()).collect();
        let default = MergeOptions::default();
        let options = MergeOptions {
            max_wait: self.max_wait,
            parallel: fleet.parallel.unwrap_or(default.parallel),
            reconnect: !self.once && !global.fail_fast,
            ..default
        };
        let before = (!self.quiet && !self.request.ends()).then(AllCounts::default);
        if self.definitions.is_empty() {
            let merged = MergedStream::open(hosts, self.request.clone(), options);
            return Ok(Opened { before, ..Opened::hosts(merged, names, calls, None) });
        }
        let (arguments, quiet, shared) = (self.definitions.clone(), self.quiet, global.clone());
        let form = self.form_of_probes();
        let mut run = HostRun::start(global, fleet, output, true, move |client: Client, mut output| {
            let (arguments, form, global) = (arguments.clone(), form.clone(), shared.clone());
            async move {
                let made = async {
                    let mut unseen = output.keeping();
                    let notes = if quiet { &mut unseen } else { &mut output };
                    let Definitions { lines, calls } =
                        definitions(&client, &global.lines, &arguments, global.yes, notes).await?;
                    let made = TemporaryProbes::define(&client, lines, &form, &mut output).await?;
                    Ok::<_, Failure>((made, calls))
                };
                match made.await {
                    Ok((temporary, calls)) => Ok(((client, temporary, calls), output)),
                    Err(failure) => Err(Problem::new(&failure, output)),
                }
            }
        });
        let (mut made, mut missing, mut records) = (HashMap::new(), Vec::new(), Vec::new());
        while let Some((record, answer)) = run.next(stop).await {
            match answer {
                Ok(host) => drop(made.insert(record.host.clone(), host)),
                Err(why) => {
                    let account = HostAccount::new(record.host.clone());
                    let (outcome, kernel) = (record.outcome, record.kernel.clone());
                    let (state, reason) = (HostState::GivenUp, why.reason);
                    missing.push(HostAccount { outcome, state, reason, kernel, ..account });
                }
            }
            records.push(record);
        }
        output.host_messages(&records);
        let (mut ways, mut probes) = (Vec::new(), HashMap::new());
        for host in hosts {
            let Some((client, temporary, places)) = made.remove(&host.name) else { continue };
            let request = temporary.select(self.request.clone());
            calls.add_host(&host.name, temporary.probes(), &places)?;
            probes.insert(host.name.clone(), Arc::new(temporary));
            ways.push((host, client, request));
        }
        let opened = Opened::hosts(MergedStream::open_on(ways, options), names, calls, None);
        Ok(Opened { probes, before, missing, is_interrupted: run.is_interrupted, ..opened })
    }

    /// Shows what would be defined on a host, and changes nothing.
    fn plan(&self) -> HostCommand {
        let definitions = Arc::new(self.definitions.clone());
        let run = move |global: Global, mut output: Output| -> OnHost {
            let definitions = Arc::clone(&definitions);
            Box::pin(async move {
                let planned = async {
                    let client = connect(&global).await?;
                    TemporaryProbes::plan(&client, &global, &definitions, &mut output).await
                };
                (planned.await, output)
            })
        };
        HostCommand { run: Arc::new(run), is_change: true, is_strict: false }
    }

    /// Shows the events until the end, and the accounts. Returns the account of each host that has a name.
    pub(super) async fn show(
        &self,
        opened: Opened,
        mut stop: StopCondition,
        global: &Global,
        output: &mut Output,
    ) -> Result<(Exit, Vec<HostAccount>), Failure> {
        let Opened { source, probes, observing, before, names, missing, is_interrupted } = opened;
        let is_one = names.is_empty();
        let width = names.iter().map(|name| name.chars().count()).max().map(|width| width.max("HOST".len()));
        let style = self.form.style(global, self.quiet, width);
        let style = EventStyle { are_calls: are_calls(&self.definitions), limit: self.count, ..style };
        let probes = HostProbes::new(probes, output.keeping());
        let mut printer = EventPrinter::new(output, style);
        if !is_one {
            printer.start()?;
        }
        printer.hosts_not_there(&missing)?;
        let fail_fast = global.fail_fast;
        let mut follow =
            Follow { session: self, source, probes, observing, before, fail_fast, has_begun: false };
        let end = if is_interrupted {
            Ok(End::Interrupted)
        } else if fail_fast && !missing.is_empty() {
            Ok(End::Failed)
        } else {
            follow.follow(&mut stop, &mut printer).await
        };
        let ends = self.request.ends();
        // A command with temporary probes ends when it loses the connection.
        let is_lost =
            is_one && !ends && matches!(end, Ok(End::Stopped(_))) && follow.source.started("").is_none();
        let mut end = follow.delete(end, &mut stop, &mut printer).await;
        let Follow { mut source, probes, before, has_begun, .. } = follow;
        // Those that are left are deleted by their daemons now.
        drop(probes);
        if !end.as_ref().is_err_and(Failure::is_broken_pipe)
            && let Err(failure) = source.finish(&mut printer).await
        {
            end = Err(failure);
        }
        let end = match end {
            Err(failure) if failure.is_broken_pipe() || !has_begun => return Err(failure),
            end => end,
        };
        printer.flush()?;
        source.save()?;
        if let Some(before) = before {
            for runs in before.skipped().await {
                printer.summary.skip(runs);
            }
        }
        let mut accounts = source.accounts();
        // What the probes of a host recorded since it was lost is neither shown nor counted.
        let lost = accounts.iter().filter(|one| one.outcome != Outcome::Answered && !one.kernel.is_empty());
        let lost: Vec<_> = lost.map(|account| account.host.as_str()).collect();
        if self.definitions.is_empty() && !lost.is_empty() && !matches!(end, Ok(End::Enough)) {
            printer.summary.unread = Some(format!("{} did not send them", fold(lost)));
        }
        accounts.extend(missing);
        let mut ledger = HostLedger::new(accounts.len() as u64);
        for account in &accounts {
            ledger.record(account.outcome);
        }
        if !is_one {
            printer.host_accounts(&accounts, &ledger)?;
            printer.flush()?;
        }
        if is_lost {
            printer.summary.unread = Some("the connection was lost, and not made again".to_owned());
        }
        printer.print_summary();
        let limited = self.count.is_some() || self.duration.is_some() || ends || !self.command.is_empty();
        let mut worst = match end.map_err(Failure::in_stream)? {
            End::Over if is_one && !ends => return Err(Failure::stream_ended()),
            End::Interrupted => Exit::Interrupted,
            End::Stopped(_) if is_lost => Exit::Interrupted,
            End::Stopped(reason) => reason.exit(limited),
            End::Enough | End::Over | End::Failed => Exit::Success,
        };
        if let Some(child) = stop.child.take().filter(|_| worst == Exit::Success) {
            tokio::select! {
                how = child.wait() => how.iter().for_each(|how| printer.note(how)),
                () = stop.signal() => worst = Exit::Interrupted,
            }
        }
        Ok((if is_one { worst } else { exit(&ledger, worst, global) }, accounts))
    }
}
