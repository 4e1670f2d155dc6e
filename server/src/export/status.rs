//! The status of each exporter: phase, account, failures.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::Sent;
use super::account::Account;
use kprobed_trace::pipeline::Hub;
use kprobed_trace::spool::Cursor;

/// What an exporter is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It opens its receiver for the first time.
    #[default]
    Starting,
    /// It sends events, or waits for some.
    Running,
    /// The receiver does not accept anything. It is tried again.
    Failing {
        /// What was tried, and its error.
        error: String,
        /// Since when.
        since: SystemTime,
        /// Failures in a row.
        failures: u64,
        /// When it is tried again.
        retry_time: SystemTime,
    },
}

/// How one exporter stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExporterStatus {
    /// Its section of the configuration, such as `jsonl`.
    pub name: &'static str,
    /// Where it sends, as an operator would write it.
    pub destination: String,
    /// Since when its terms are counted.
    pub start: SystemTime,
    /// What it is doing.
    pub phase: Phase,
    /// The account of its events.
    pub account: Account,
    /// Events of the log that it has not passed. Absent while its cursor is unknown, or in an
    /// earlier run of the daemon.
    pub queued: Option<u64>,
    /// Its cursor.
    pub place: Option<Cursor>,
    /// Time of the last acknowledgement.
    pub acknowledged_time: Option<SystemTime>,
    /// Requests that failed, or were answered too late.
    pub failures: u64,
    /// The last reason for which the receiver refused events finally. Empty: none.
    pub refusal: String,
    /// Spans that the receiver refused finally, and calls of which no span could be made.
    pub dropped_spans: u64,
    /// Why its cursor could not be stored. Empty: it could.
    pub place_error: String,
}

impl ExporterStatus {
    /// Events of the log since it began. Absent if `queued` is.
    pub fn read(&self) -> Option<u64> {
        Some(self.account.passed + self.queued?)
    }
}

#[derive(Debug)]
struct Inner {
    /// Without what is queued, which is counted when it is asked for.
    status: ExporterStatus,
    /// The last chunk was not acknowledged, and is sent again: until it is, a connection proves
    /// nothing.
    owes: bool,
}

impl Inner {
    fn run(&mut self) {
        let Self { status: ExporterStatus { name, phase, .. }, .. } = self;
        if let Phase::Failing { since, .. } = phase {
            let outage_s = since.elapsed().unwrap_or_default().as_secs();
            tracing::info!(exporter = *name, outage_s, "the receiver accepts events again");
        }
        *phase = Phase::Running;
    }
}

/// The status of an exporter, shared with its readers.
#[derive(Debug)]
pub(super) struct Shared {
    name: &'static str,
    hub: Arc<Hub>,
    /// This run of the daemon.
    now: Cursor,
    inner: Mutex<Inner>,
}

impl Shared {
    pub(super) fn new(name: &'static str, destination: String, hub: Arc<Hub>, now: Cursor) -> Self {
        let status = ExporterStatus {
            name,
            destination,
            start: SystemTime::now(),
            phase: Phase::default(),
            account: Account::default(),
            queued: None,
            place: None,
            acknowledged_time: None,
            failures: 0,
            refusal: String::new(),
            dropped_spans: 0,
            place_error: String::new(),
        };
        Self { name, hub, now, inner: Mutex::new(Inner { status, owes: false }) }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It goes on here.
    pub(super) fn begin_at(&self, place: Option<Cursor>) {
        let mut inner = self.inner();
        inner.status.place = inner.status.place.or(place);
        drop(inner);
    }

    /// The receiver is ready.
    pub(super) fn opened(&self) {
        let mut inner = self.inner();
        if !inner.owes {
            inner.run();
        }
    }

    /// The receiver could not be reached, or did not acknowledge what was sent.
    pub(super) fn failed(&self, error: &str, retry_time: SystemTime, was_sending: bool) {
        let mut inner = self.inner();
        inner.status.failures += 1;
        inner.owes |= was_sending;
        let (since, failures) = match &inner.status.phase {
            Phase::Failing { since, failures, .. } => (*since, failures + 1),
            Phase::Starting | Phase::Running => (SystemTime::now(), 1),
        };
        // A server that is away for a night is one line, not thousands.
        if failures == 1 {
            tracing::warn!(exporter = self.name, error, "the receiver does not accept events: trying again");
        } else {
            tracing::debug!(exporter = self.name, error, failures, "sending failed again");
        }
        inner.status.phase = Phase::Failing { error: error.to_owned(), since, failures, retry_time };
    }

    /// The receiver has acknowledged a part of the log.
    pub(super) fn settled(&self, place: Option<Cursor>, change: impl FnOnce(&mut Account), sent: &Sent) {
        let refusal = &sent.reason;
        let mut inner = self.inner();
        inner.owes = false;
        inner.run();
        change(&mut inner.status.account);
        inner.status.dropped_spans += sent.dropped_spans;
        inner.status.place = place.or(inner.status.place);
        inner.status.acknowledged_time = Some(SystemTime::now());
        if !refusal.is_empty() && inner.status.refusal != *refusal {
            tracing::warn!(exporter = self.name, refusal, "the receiver refused events finally");
            refusal.clone_into(&mut inner.status.refusal);
        }
    }

    /// Whether its place could be written down.
    pub(super) fn saved(&self, error: Option<String>) {
        let mut inner = self.inner();
        let error = error.unwrap_or_default();
        if !error.is_empty() && inner.status.place_error.is_empty() {
            tracing::warn!(
                exporter = self.name,
                error,
                "cannot store the cursor of the exporter: events may be sent again"
            );
        }
        inner.status.place_error = error;
    }

    fn status(&self) -> ExporterStatus {
        // First: what is published meanwhile is queued.
        let status = self.inner().status.clone();
        let head = self.hub.sequence();
        let is_of_now = |place: &Cursor| (place.boot_id, place.epoch) == (self.now.boot_id, self.now.epoch);
        let queued = status.place.filter(is_of_now).map(|place| head.saturating_sub(place.sequence));
        ExporterStatus { queued, ..status }
    }
}

/// All exporters of events.
#[derive(Clone, Debug, Default)]
pub struct Exporters {
    list: Arc<Mutex<Vec<Arc<Shared>>>>,
}

impl Exporters {
    pub(super) fn add(&self, exporter: Arc<Shared>) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(exporter);
    }

    /// How each of them stands, in the order of the configuration's documentation.
    pub fn statuses(&self) -> Vec<ExporterStatus> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner).clone();
        list.iter().map(|exporter| exporter.status()).collect()
    }
}
