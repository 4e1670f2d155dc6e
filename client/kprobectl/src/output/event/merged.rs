//! Events of several hosts, state changes of hosts, and their accounts.

use std::io;

use jiff::SignedDuration;
use kprobed_client::event::Cursor;
use kprobed_client::fleet::{HostLedger, Outcome, names};
use kprobed_client::merge::{ClockOffset, HostAccount, HostState, StateChange};
use serde_json::{Value, json};

use super::EventPrinter;
use crate::output::data::counted;
use crate::output::fleet::{known, ledger_object};
use crate::output::{HostOutput, HostRecord};

/// As text, the connections of up to this many hosts are reported one by one.
const NAMED: usize = 16;

/// How far the clock of a host is from the one here: `ahead_ns` is its wall clock minus the one here.
fn clock_object(clock: &ClockOffset) -> Value {
    json!({ "ahead_ns": clock.wall_ahead_ns, "error_bound_ns": clock.error_bound_ns })
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
    /// Prints that a message of one of several hosts could not be read. `cursor`: where its stream
    /// continues.
    pub(crate) fn gap(&mut self, host: &str, problem: &str, cursor: Option<&Cursor>) -> io::Result<()> {
        let cursor = cursor.map(ToString::to_string);
        if !self.is_for_people() {
            return self.object(&json!({
                "type": "gap",
                "host": host,
                "cause": "malformed",
                "reason": problem,
                "cursor": cursor,
            }));
        }
        let at = cursor.map(|cursor| format!(", behind {cursor}")).unwrap_or_default();
        self.warn(Some(host), "gap:", &format!("{problem}{at}"))
    }

    /// Prints a change of a host's state. `hosts` is the number of hosts: with many, text output
    /// leaves out normal states.
    pub(crate) fn host_state(&mut self, change: &StateChange<'_>, hosts: usize) -> io::Result<()> {
        if change.state == HostState::Back {
            self.summary.reconnects += 1;
        }
        if !self.is_for_people() {
            // Null: `reason` when all is as it should be, `clock` when it is not measured now, `away_ns` unless it is
            // back.
            return self.object(&json!({
                "type": "host_state",
                "host": change.host,
                "state": change.state.name(),
                "reason": known(&change.reason),
                "clock": change.clock.as_ref().map(clock_object),
                "away_ns": change.away.map(|away| u64::try_from(away.as_nanos()).unwrap_or(u64::MAX)),
            }));
        }
        self.write()?;
        let host = change.host;
        let clock = change.clock.as_ref().map(of_clock).unwrap_or_default();
        let warning = |text: &str| self.output.error_style.warning(text);
        let text = match change.state {
            HostState::Connecting | HostState::Ended => return Ok(()),
            HostState::Live if hosts > NAMED => return Ok(()),
            HostState::Live if self.style.quiet => return Ok(()),
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

    /// Prints messages of a host on stderr; the one host has no name.
    pub(crate) fn host_messages(&mut self, host: &str, messages: String) -> io::Result<()> {
        self.write()?;
        if host.is_empty() {
            self.output.message(&messages);
        } else {
            let (host, kernel, said) = (host.to_owned(), String::new(), HostOutput::messages(messages));
            self.output.host_messages(&[HostRecord { host, outcome: Outcome::Answered, kernel, said }]);
        }
        Ok(())
    }

    /// Prints the account of every host, for programs, and of those without an answer, for people;
    /// and the ledger of hosts for both.
    pub(crate) fn host_accounts(&mut self, accounts: &[HostAccount], ledger: &HostLedger) -> io::Result<()> {
        if !self.is_for_people() {
            for account in accounts {
                // read = shown + not_shown
                self.object(&json!({
                    "type": "host",
                    "host": account.host,
                    "outcome": account.outcome.name(),
                    "state": account.state.name(),
                    "reason": known(&account.reason),
                    "kernel": known(&account.kernel),
                    "read": account.read,
                    "shown": account.given,
                    "late": account.late,
                    "not_shown": account.waiting,
                    "lost": account.lost,
                    "uncounted_gaps": account.uncounted_gaps,
                    "malformed": account.malformed,
                    "interruptions": account.interruptions,
                    "clock": account.clock.as_ref().map(clock_object),
                    "closes": account.closes(),
                }))?;
            }
            return self.object(&json!({ "type": "ledger", "ledger": ledger_object(ledger) }));
        }
        self.write()?;
        let mut missing: Vec<_> = accounts
            .iter()
            .filter(|account| account.outcome != Outcome::Answered)
            .map(|account| (account.outcome, account.reason.as_str(), account.host.as_str()))
            .collect();
        missing.sort_unstable();
        for same in missing.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)) {
            let Some((outcome, reason, _)) = same.first() else { continue };
            let hosts: Vec<_> = same.iter().map(|(.., host)| *host).collect();
            let count = counted(hosts.len(), "host");
            let what = self.output.error_style.error(&outcome.name().replace('_', " "));
            self.output.message(&format!("{} ({count}): {what}: {reason}\n", names::fold(hosts)));
        }
        self.output.message(&format!("hosts: {ledger}\n"));
        Ok(())
    }
}
