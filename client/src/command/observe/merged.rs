//! Many hosts, in one order of time.

use std::collections::HashSet;
use std::time::Duration;

use kprobed_client::event::StreamRequest;
use kprobed_client::fleet::{HostLedger, Outcome};
use kprobed_client::merge::{HostAccount, HostState, MergeOptions, MergedItem, MergedStream};

use super::options::Form;
use crate::cli::Global;
use crate::command::connection::Fleet;
use crate::command::descriptors::make_room;
use crate::command::fleet::{exit, remember};
use crate::command::stop::{Stop, StopReason};
use crate::command::{Exit, Failure};
use crate::output::{EventPrinter, Output};

/// How long events are shown, and how.
pub(super) struct Show {
    pub(super) count: Option<u64>,
    pub(super) duration: Option<Duration>,
    pub(super) quiet: bool,
    pub(super) form: Form,
    /// The stream has an end.
    pub(super) ends: bool,
    /// Events before this are not shown, in nanoseconds since 1970.
    pub(super) since_ns: Option<i64>,
}

/// What to follow on all hosts.
pub(super) struct Merged {
    pub(super) request: StreamRequest,
    pub(super) show: Show,
    pub(super) max_wait: Duration,
    /// Do not connect again.
    pub(super) once: bool,
}

/// How following ended.
enum End {
    Enough,
    Stopped(StopReason),
    /// No host has anything more.
    Over,
    /// A host did not answer, and nothing was to be done after that.
    Failed,
}

impl Merged {
    pub(super) async fn run(
        mut self,
        global: &Global,
        fleet: &Fleet,
        output: &mut Output,
    ) -> Result<Exit, Failure> {
        let stop = Stop::new(None).map_err(Failure::Signals)?;
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
        make_room(hosts.len(), "name fewer hosts, or read their events from NATS (`--from`)")?;
        let names: Vec<String> = hosts.iter().map(|host| host.name.clone()).collect();
        let merged = MergedStream::open(hosts, self.request, options);
        let (exit, accounts) = self.show.run((merged, &names), stop, global, output).await?;
        remember(fleet, &missing(&accounts), output);
        Ok(exit)
    }
}

impl Show {
    /// Shows the events of hosts of these names. Answers what became of each.
    pub(super) async fn run(
        self,
        (merged, names): (MergedStream, &[String]),
        stop: Stop,
        global: &Global,
        output: &mut Output,
    ) -> Result<(Exit, Vec<HostAccount>), Failure> {
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
        let style = self.form.style(global, None, self.quiet, Some(width.max("HOST".len())));
        let mut printer = EventPrinter::new(output, style);
        printer.start()?;
        let mut follow = Follow {
            merged,
            connecting: names.len(),
            hosts: names.len(),
            limit: self.count,
            duration: self.duration,
            since_ns: self.since_ns,
            fail_fast: global.fail_fast,
        };
        let mut end = follow.follow(stop, &mut printer).await;
        let is_broken_pipe = end.as_ref().is_err_and(Failure::is_broken_pipe);
        if !is_broken_pipe {
            follow.merged.finish();
            if !matches!(end, Ok(End::Enough))
                && let Err(failure) = follow.rest(&mut printer).await
            {
                end = Err(failure);
            }
        }
        let accounts = follow.merged.accounts();
        let limited = self.count.is_some() || self.duration.is_some() || self.ends;
        let worst = match end? {
            // Without a limit an interrupt is how following ends; with one, it comes too early.
            End::Stopped(StopReason::Signal) if limited => Exit::Interrupted,
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
        Ok((exit(&ledger, worst, global), accounts))
    }
}

/// The hosts without an answer, line by line.
fn missing(accounts: &[HostAccount]) -> String {
    let missing = accounts.iter().filter(|account| account.outcome != Outcome::Answered);
    let mut text = String::new();
    for account in missing {
        text.push_str(&account.host);
        text.push('\n');
    }
    text
}

struct Follow {
    merged: MergedStream,
    /// Hosts of which nothing is known yet.
    connecting: usize,
    hosts: usize,
    limit: Option<u64>,
    duration: Option<Duration>,
    since_ns: Option<i64>,
    fail_fast: bool,
}

impl Follow {
    async fn follow(&mut self, mut stop: Stop, printer: &mut EventPrinter<'_>) -> Result<End, Failure> {
        let mut pending = false;
        let mut known = HashSet::new();
        loop {
            let item = tokio::select! {
                biased;
                reason = stop.wait() => return Ok(End::Stopped(reason)),
                item = self.merged.next() => item,
                // Nothing has arrived: write out what was printed.
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
                    Some(change.host.to_owned())
                }
                _ => None,
            };
            if !is_before(&item, self.since_ns) {
                print(item, self.hosts, printer)?;
            }
            if let Some(host) = first_of.filter(|_| self.connecting > 0)
                && known.insert(host)
            {
                self.connecting -= 1;
                if self.connecting == 0 {
                    // The time begins when there is something to see.
                    stop.begin(self.duration);
                    let here = self.merged.accounts();
                    let here = here.iter().filter(|account| account.outcome == Outcome::Answered).count();
                    printer.observing(&format!("{here} of {} hosts", self.hosts))?;
                }
            }
            if self.limit.is_some_and(|limit| printer.summary.shown >= limit) {
                return Ok(End::Enough);
            }
            if self.fail_fast && self.merged.has_missing() {
                return Ok(End::Failed);
            }
            // On a terminal people watch line by line.
            if printer.is_terminal() {
                printer.flush()?;
            }
        }
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

/// Whether an item is an event from before the time that was asked for.
fn is_before(item: &MergedItem<'_>, since_ns: Option<i64>) -> bool {
    matches!(item, MergedItem::Event(event) if since_ns.is_some_and(|since_ns| event.corrected_ns < since_ns))
}

fn print(item: MergedItem<'_>, hosts: usize, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
    match item {
        MergedItem::Event(event) => printer.merged_row(&event)?,
        MergedItem::Loss { host, loss } => printer.merged_loss(host, &loss)?,
        MergedItem::MayMiss { host, cursor } => printer.merged_may_miss(host, &cursor)?,
        MergedItem::State(change) => printer.host_state(&change, hosts)?,
        // Kinds of items that this command does not know yet.
        _ => {}
    }
    Ok(())
}
