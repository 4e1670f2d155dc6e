//! The status of each exporter: state, account, failures.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use kprobed_proto::v1::{ExporterLedger, ExporterState};

use super::Sent;
use super::account::{Account, Walked};
use super::read::cursor_of;
use kprobed_trace::pipeline::Hub;
use kprobed_trace::spool::Cursor;

#[derive(Debug)]
struct Inner {
    /// Without the account and the place, and what follows from them.
    ledger: ExporterLedger,
    account: Account,
    place: Option<Cursor>,
    /// The last chunk was not acknowledged, and is sent again: until it is, a connection proves
    /// nothing.
    owes: bool,
}

impl Inner {
    fn run(&mut self) {
        let ledger = &mut self.ledger;
        if ledger.state() == ExporterState::Failing {
            let since = ledger.failing_since.and_then(|since| SystemTime::try_from(since).ok());
            let outage_s = since.and_then(|since| since.elapsed().ok()).unwrap_or_default().as_secs();
            tracing::info!(exporter = ledger.name, outage_s, "the receiver accepts events again");
        }
        ledger.set_state(ExporterState::Running);
        ledger.error.clear();
        (ledger.failing_since, ledger.failures_in_a_row, ledger.retry_time) = (None, 0, None);
    }
}

/// The status of an exporter, shared with its readers.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) name: &'static str,
    hub: Arc<Hub>,
    /// This run of the daemon.
    now: Cursor,
    inner: Mutex<Inner>,
}

impl Shared {
    pub(super) fn new(name: &'static str, destination: String, hub: Arc<Hub>, now: Cursor) -> Self {
        let ledger = ExporterLedger {
            name: name.to_owned(),
            destination,
            start_time: Some(SystemTime::now().into()),
            state: ExporterState::Starting.into(),
            ..ExporterLedger::default()
        };
        let inner = Inner { ledger, account: Account::default(), place: None, owes: false };
        Self { name, hub, now, inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It goes on here.
    pub(super) fn begin_at(&self, place: Option<Cursor>) {
        let mut inner = self.inner();
        inner.place = inner.place.or(place);
    }

    /// The receiver is ready.
    pub(super) fn opened(&self) {
        let mut inner = self.inner();
        if !inner.owes {
            inner.run();
        }
    }

    /// The receiver did not acknowledge what was sent.
    pub(super) fn not_taken(&self) {
        self.inner().owes = true;
    }

    /// A round of sending has failed.
    pub(super) fn failed(&self, error: &str, retry_time: SystemTime) {
        let mut inner = self.inner();
        let ledger = &mut inner.ledger;
        ledger.failures += 1;
        ledger.failures_in_a_row += 1;
        // A server that is away for a night is one line, not thousands.
        if ledger.failures_in_a_row == 1 {
            ledger.failing_since = Some(SystemTime::now().into());
            tracing::warn!(exporter = self.name, error, "the receiver does not accept events: trying again");
        } else {
            let failures = ledger.failures_in_a_row;
            tracing::debug!(exporter = self.name, error, failures, "sending failed again");
        }
        ledger.set_state(ExporterState::Failing);
        error.clone_into(&mut ledger.error);
        ledger.retry_time = Some(retry_time.into());
    }

    /// The receiver has acknowledged a part of the log.
    pub(super) fn settled(&self, place: Option<Cursor>, walked: &Walked, sent: &Sent) {
        let refusal = &sent.reason;
        let mut inner = self.inner();
        inner.owes = false;
        inner.run();
        inner.account.settle(walked, sent.dropped);
        inner.place = place.or(inner.place);
        let ledger = &mut inner.ledger;
        ledger.dropped_spans += sent.dropped_spans;
        ledger.acknowledged_time = Some(SystemTime::now().into());
        if !refusal.is_empty() && ledger.refusal != *refusal {
            tracing::warn!(exporter = self.name, refusal, "the receiver refused events finally");
            refusal.clone_into(&mut ledger.refusal);
        }
    }

    /// Whether its place could be written down.
    pub(super) fn saved(&self, error: Option<String>) {
        let mut inner = self.inner();
        let error = error.unwrap_or_default();
        if !error.is_empty() && inner.ledger.place_error.is_empty() {
            tracing::warn!(
                exporter = self.name,
                error,
                "cannot store the cursor of the exporter: events may be sent again"
            );
        }
        inner.ledger.place_error = error;
    }

    fn status(&self) -> ExporterLedger {
        let inner = self.inner();
        let (ledger, account, place) = (inner.ledger.clone(), inner.account, inner.place);
        drop(inner);
        // After the place: what is published meanwhile is queued.
        let head = self.hub.sequence();
        let is_of_now = |place: &Cursor| (place.boot_id, place.epoch) == (self.now.boot_id, self.now.epoch);
        let queued = place.filter(is_of_now).map(|place| head.saturating_sub(place.sequence));
        let Account { acknowledged, dropped, expired, not_selected, passed, unknown_gaps } = account;
        ExporterLedger {
            read: queued.map(|queued| passed + queued),
            acknowledged,
            queued,
            dropped,
            expired,
            not_selected,
            unknown_gaps,
            cursor: place.map(|place| cursor_of(&place).into()),
            ..ledger
        }
    }
}

/// All exporters of events.
#[derive(Clone, Debug, Default)]
pub struct Exporters(pub(super) Arc<[Arc<Shared>]>);

impl Exporters {
    /// How each of them stands, in the order of the configuration's documentation.
    pub fn statuses(&self) -> Vec<ExporterLedger> {
        self.0.iter().map(|exporter| exporter.status()).collect()
    }
}

#[cfg(test)]
impl Exporters {
    /// Whether every position of the log that an exporter has passed is in exactly one term of its account.
    pub(crate) fn accounts_close(&self) -> bool {
        self.0.iter().all(|exporter| exporter.inner().account.closes())
    }
}

#[cfg(test)]
mod tests {
    use kprobed_proto::v1;
    use kprobed_trace::pipeline::samples::{hub, publish, source};
    use kprobed_trace::spool::BootId;

    use super::*;

    /// Every term reaches the message. A field of the message without a line here does not compile.
    #[test]
    fn every_term_arrives() {
        let place = Cursor { boot_id: BootId([7; 16]), epoch: 1, sequence: 2 };
        let hub = hub();
        let shared = Shared::new("otlp", "http://127.0.0.1:4317".to_owned(), Arc::clone(&hub), place);
        publish(&hub, &source("a", 1), 0, 7, 1000);
        let retry_time = SystemTime::UNIX_EPOCH;
        shared.failed("no route", retry_time);
        let walked = Walked { places: 10, selected: 3, not_selected: 4, expired: 3, unknown_gaps: 6 };
        shared.settled(
            Some(place),
            &walked,
            &Sent { dropped: 2, dropped_spans: 8, reason: "no body".to_owned() },
        );
        let running = shared.status();
        assert_eq!((running.state(), running.error.as_str()), (ExporterState::Running, ""));
        assert_eq!((running.failing_since, running.failures_in_a_row, running.retry_time), (None, 0, None));
        shared.failed("connection refused", retry_time);
        shared.failed("connection refused", retry_time);
        shared.saved(Some("the disk is full".to_owned()));
        let status = shared.status();
        assert!(status.failing_since.is_some() && status.acknowledged_time.is_some());
        let expected = ExporterLedger {
            name: "otlp".to_owned(),
            start_time: status.start_time,
            read: Some(15),
            acknowledged: 1,
            queued: Some(5),
            dropped: 2,
            expired: 3,
            not_selected: 4,
            unknown_gaps: 6,
            failures: 3,
            destination: "http://127.0.0.1:4317".to_owned(),
            state: ExporterState::Failing.into(),
            error: "connection refused".to_owned(),
            failing_since: status.failing_since,
            failures_in_a_row: 2,
            retry_time: Some(retry_time.into()),
            acknowledged_time: status.acknowledged_time,
            cursor: Some(v1::Cursor { boot_id: place.boot_id.to_string(), epoch: 1, sequence: 2 }),
            refusal: "no body".to_owned(),
            place_error: "the disk is full".to_owned(),
            dropped_spans: 8,
        };
        assert_eq!(status, expected);
    }
}
