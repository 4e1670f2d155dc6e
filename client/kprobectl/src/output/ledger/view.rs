//! The ledger as JSON and YAML: the message of the API, and beside each sum whether it closes.

use kprobed_client::api::{ExporterLedger, GetLedgerResponse, ProbeLedger, SpoolLedger, SubscriberLedger};
use kprobed_document::json::Json;
use prost::Name;
use serde::Serialize;

use super::sums::{exporter_closes, probe_closes, spool_closes, subscriber_closes};

/// The ledger, as JSON and YAML.
#[derive(Serialize)]
pub(super) struct LedgerView {
    /// What has no sum.
    #[serde(flatten)]
    ledger: Json,
    /// Whether every sum closes.
    closes: bool,
    probes: Vec<Account>,
    subscribers: Vec<Account>,
    /// `null`: no history is kept.
    spool: Option<Account>,
    exporters: Vec<Account>,
}

/// An account of the API, and whether it adds up.
#[derive(Serialize)]
pub(super) struct Account {
    #[serde(flatten)]
    account: Json,
    /// `null` if there is no sum, or a term of it is not known.
    closes: Option<bool>,
}

impl Account {
    fn new(account: &impl Name, closes: Option<bool>) -> Self {
        Self { account: Json::full(account), closes }
    }
}

impl LedgerView {
    pub(super) fn new(ledger: &GetLedgerResponse, closes: bool) -> Self {
        let probe = |probe: &ProbeLedger| Account::new(probe, probe_closes(probe));
        let subscriber =
            |subscriber: &SubscriberLedger| Account::new(subscriber, Some(subscriber_closes(subscriber)));
        let spool = |spool: &SpoolLedger| Account::new(spool, Some(spool_closes(spool)));
        let exporter = |exporter: &ExporterLedger| Account::new(exporter, exporter_closes(exporter));
        Self {
            ledger: Json::full(ledger).without(&["probes", "subscribers", "spool", "exporters"]),
            closes,
            probes: ledger.probes.iter().map(probe).collect(),
            subscribers: ledger.subscribers.iter().map(subscriber).collect(),
            spool: ledger.spool.as_ref().map(spool),
            exporters: ledger.exporters.iter().map(exporter).collect(),
        }
    }
}
