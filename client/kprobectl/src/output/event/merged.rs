//! Events of several hosts, state changes of hosts, and their accounts.

use std::io;

use jiff::SignedDuration;
use kprobed_client::event::format::Origin;
use kprobed_client::event::{Cursor, Loss};
use kprobed_client::fleet::{HostLedger, names};
use kprobed_client::merge::{ClockOffset, HostAccount, HostState, MergedEvent, StateChange};
use serde::Serialize;

use super::EventPrinter;
use super::json::EventView;
use crate::global::Format;
use crate::output::HostRecord;
use crate::output::fleet::LedgerView;

/// As text, the connections of up to this many hosts are reported one by one.
const NAMED: usize = 16;

/// The state of a host changed.
#[derive(Serialize)]
struct StateView<'a> {
    r#type: &'static str,
    host: &'a str,
    state: &'static str,
    /// `null`: that is as it should be.
    reason: Option<&'a str>,
    /// `null`: not measured now.
    clock: Option<ClockView>,
    /// How long it was away. `null` unless it is back.
    away_ns: Option<u64>,
}

/// How far its clock is from the one here.
#[derive(Serialize)]
struct ClockView {
    /// Its wall clock minus the one here.
    ahead_ns: i64,
    error_bound_ns: u64,
}

impl ClockView {
    fn new(clock: &ClockOffset) -> Self {
        Self { ahead_ns: clock.wall_ahead_ns, error_bound_ns: clock.error_bound_ns }
    }
}

/// The account of a host: read = shown + `not_shown`.
#[derive(Serialize)]
struct AccountView<'a> {
    r#type: &'static str,
    host: &'a str,
    outcome: &'static str,
    state: &'static str,
    reason: Option<&'a str>,
    kernel: Option<&'a str>,
    read: u64,
    shown: u64,
    late: u64,
    not_shown: u64,
    lost: u64,
    uncounted_gaps: u64,
    malformed: u64,
    interruptions: u64,
    clock: Option<ClockView>,
    closes: bool,
}

/// Something that a host sent cannot be read, and may come again.
#[derive(Serialize)]
struct GapView<'a> {
    r#type: &'static str,
    host: &'a str,
    cause: &'static str,
    reason: &'a str,
    /// Where its stream continues. `null`: it had sent nothing before.
    cursor: Option<String>,
}

/// The account of the fleet.
#[derive(Serialize)]
struct FleetView {
    r#type: &'static str,
    #[serde(flatten)]
    account: LedgerView,
}

fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// The clock in words: `its clock is 1.2 ms ahead of this one (±0.1 ms)`.
fn of_clock(clock: &ClockOffset) -> String {
    let ms = |ns: u64| format!("{:.3} ms", ns as f64 / 1e6);
    let way = if clock.wall_ahead_ns < 0 { "behind" } else { "ahead of" };
    format!(
        "its clock is {} {way} this one (±{})",
        ms(clock.wall_ahead_ns.unsigned_abs()),
        ms(clock.error_bound_ns)
    )
}

impl EventPrinter<'_> {
    fn is_for_people(&self) -> bool {
        matches!(
            self.output.format,
            Format::Table | Format::Wide | Format::Name | Format::Folded | Format::Csv
        )
    }

    /// Prints an event of one of several hosts.
    pub(crate) fn merged_row(&mut self, event: &MergedEvent<'_>) -> io::Result<()> {
        let corrected_ns = event.corrected_ns.max(0).unsigned_abs();
        let origin = Origin { host: event.host, corrected_ns, late: event.late };
        match self.output.format {
            Format::Json => self.json.push_merged(&mut self.buffer, &event.row, origin),
            Format::Yaml => self.yaml(&EventView(&event.row, Some(origin)))?,
            _ => {
                let width = self.host_width.unwrap_or_default();
                self.text.push_merged(&mut self.buffer, &event.row, origin, width);
            }
        }
        self.summary.shown += 1;
        if self.buffer.len() >= super::PIECE_BYTES { self.write() } else { Ok(()) }
    }

    /// Prints a gap in the events of one of several hosts.
    pub(crate) fn merged_loss(&mut self, host: &str, loss: &Loss) -> io::Result<()> {
        self.loss_of(Some(host), loss)
    }

    /// Prints that a run of the daemon of one of several hosts did not stop cleanly.
    pub(crate) fn merged_may_miss(&mut self, host: &str, cursor: &Cursor) -> io::Result<()> {
        self.may_miss_of(Some(host), cursor)
    }

    /// Prints that a message of one of several hosts could not be read. `cursor`: where its stream
    /// continues.
    pub(crate) fn merged_gap(
        &mut self,
        host: &str,
        problem: &str,
        cursor: Option<&Cursor>,
    ) -> io::Result<()> {
        let cursor = cursor.map(ToString::to_string);
        if !self.is_for_people() {
            return self.object(&GapView {
                r#type: "gap",
                host,
                cause: "malformed",
                reason: problem,
                cursor,
            });
        }
        self.write()?;
        let gap = self.output.error_style.warning("gap:");
        let at = cursor.map(|cursor| format!(", behind {cursor}")).unwrap_or_default();
        self.output.message(&format!("{host}: {gap} {problem}{at}\n"));
        Ok(())
    }

    /// Prints a change of a host's state. `hosts` is the number of hosts: with many, text output
    /// leaves out normal states.
    pub(crate) fn host_state(&mut self, change: &StateChange<'_>, hosts: usize) -> io::Result<()> {
        if change.state == HostState::Back {
            self.summary.reconnects += 1;
        }
        if !self.is_for_people() {
            return self.object(&StateView {
                r#type: "host_state",
                host: change.host,
                state: change.state.name(),
                reason: some(&change.reason),
                clock: change.clock.as_ref().map(ClockView::new),
                away_ns: change.away.map(|away| u64::try_from(away.as_nanos()).unwrap_or(u64::MAX)),
            });
        }
        self.write()?;
        let host = change.host;
        let clock = change.clock.as_ref().map(of_clock).unwrap_or_default();
        let warning = |text: &str| self.output.error_style.warning(text);
        let text = match change.state {
            HostState::Connecting | HostState::Ended => return Ok(()),
            HostState::Live if hosts > NAMED => return Ok(()),
            HostState::Live if self.quiet => return Ok(()),
            HostState::Live => format!("{host}: {clock}"),
            HostState::Lost => format!("{host}: {} {}; connecting again", warning("lost:"), change.reason),
            HostState::Late => {
                format!(
                    "{host}: {} {}; the other hosts no longer wait for it",
                    warning("late:"),
                    change.reason
                )
            }
            HostState::Back => {
                let away = SignedDuration::try_from(change.away.unwrap_or_default()).unwrap_or_default();
                format!("{host}: back after {:.1} s; {clock}", away.as_secs_f64())
            }
            HostState::GivenUp => format!("{host}: {} {}", warning("given up:"), change.reason),
        };
        self.output.message(&format!("{text}\n"));
        Ok(())
    }

    /// Prints that hosts are not among those whose events come, as JSON and YAML.
    pub(crate) fn hosts_not_there(&mut self, accounts: &[HostAccount]) -> io::Result<()> {
        if self.is_for_people() {
            return Ok(());
        }
        for account in accounts {
            let (host, state, reason) = (account.host.as_str(), account.state, account.reason.clone());
            self.host_state(&StateChange { host, state, reason, clock: None, away: None }, accounts.len())?;
        }
        Ok(())
    }

    /// Prints messages of hosts on stderr, equal ones once.
    pub(crate) fn host_messages(&mut self, records: &[HostRecord]) -> io::Result<()> {
        self.write()?;
        self.output.host_messages(records);
        Ok(())
    }

    /// Prints the account of every host, for programs, and of those without an answer, for people;
    /// and the ledger of hosts for both.
    pub(crate) fn host_accounts(&mut self, accounts: &[HostAccount], ledger: &HostLedger) -> io::Result<()> {
        if !self.is_for_people() {
            for account in accounts {
                self.object(&AccountView {
                    r#type: "host",
                    host: &account.host,
                    outcome: account.outcome.name(),
                    state: account.state.name(),
                    reason: some(&account.reason),
                    kernel: some(&account.kernel),
                    read: account.read,
                    shown: account.given,
                    late: account.late,
                    not_shown: account.waiting,
                    lost: account.lost,
                    uncounted_gaps: account.uncounted_gaps,
                    malformed: account.malformed,
                    interruptions: account.interruptions,
                    clock: account.clock.as_ref().map(ClockView::new),
                    closes: account.closes(),
                })?;
            }
            return self.object(&FleetView { r#type: "ledger", account: LedgerView::new(ledger) });
        }
        self.write()?;
        let mut missing: Vec<_> = accounts
            .iter()
            .filter(|account| account.outcome != kprobed_client::fleet::Outcome::Answered)
            .map(|account| (account.outcome, account.reason.as_str(), account.host.as_str()))
            .collect();
        missing.sort_unstable();
        for same in missing.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)) {
            let Some((outcome, reason, _)) = same.first() else { continue };
            let hosts: Vec<_> = same.iter().map(|(.., host)| *host).collect();
            let count = if hosts.len() == 1 { "1 host".to_owned() } else { format!("{} hosts", hosts.len()) };
            let what = self.output.error_style.error(&outcome.name().replace('_', " "));
            self.output.message(&format!("{} ({count}): {what}: {reason}\n", names::fold(hosts)));
        }
        self.output.message(&format!("hosts: {ledger}\n"));
        Ok(())
    }
}
