//! Sums of the ledger, added up again here and not taken from the daemon.

use kprobed_client::api::{ExporterLedger, ProbeLedger, SpoolLedger, SubscriberLedger};

/// Adds without wrapping: a sum that does not fit equals nothing.
fn sum(terms: &[u64]) -> Option<u64> {
    terms.iter().try_fold(0_u64, |sum, term| sum.checked_add(*term))
}

/// `None` for an event of the host: there is nothing to add up to.
pub(super) fn probe_closes(probe: &ProbeLedger) -> Option<bool> {
    let hits = probe.hits?;
    let known = [probe.lost, Some(probe.disabled), probe.filtered, probe.own, probe.unexplained];
    let known: Vec<_> = known.into_iter().flatten().collect();
    let parts_close = match (probe.lost, probe.filtered) {
        // The daemon's own hits are part of FILTERED if they are not counted apart.
        (Some(lost), _) if probe.filtered.is_some() || probe.unexplained.is_some() => {
            probe.paused <= lost && sum(&known) == Some(probe.not_read)
        }
        // What is not known is the rest. Without a filter it is known that none held anything back.
        (_, None | Some(0)) if probe.own.is_none() => sum(&known).is_some_and(|sum| sum <= probe.not_read),
        _ => false,
    };
    Some(parts_close && sum(&[probe.read, probe.undecodable, probe.not_read]) == Some(hits))
}

pub(super) fn subscriber_closes(subscriber: &SubscriberLedger) -> bool {
    let terms = [
        subscriber.not_selected,
        subscriber.filtered,
        subscriber.sampled_out,
        subscriber.limited,
        subscriber.dropped,
        subscriber.queued,
        subscriber.delivered,
    ];
    sum(&terms) == Some(subscriber.read)
}

pub(super) fn spool_closes(spool: &SpoolLedger) -> bool {
    sum(&[spool.stored, spool.in_memory, spool.not_stored]) == Some(spool.read)
}

/// `None` while a term is not known.
pub(super) fn exporter_closes(exporter: &ExporterLedger) -> Option<bool> {
    let (read, queued) = (exporter.read?, exporter.queued?);
    let terms = [exporter.acknowledged, queued, exporter.dropped, exporter.expired, exporter.not_selected];
    Some(sum(&terms) == Some(read))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        let closes = |probe: ProbeLedger| probe_closes(&probe);
        let good = ProbeLedger { hits: Some(10), read: 6, undecodable: 1, not_read: 3, ..Default::default() };
        let parts = |lost, disabled, filtered, own| {
            closes(ProbeLedger { lost, disabled, filtered, own, ..good.clone() })
        };
        assert_eq!(closes(good.clone()), Some(true), "nothing is known of the parts");
        assert_eq!(parts(Some(1), 0, Some(2), None), Some(true), "a probe with a filter");
        assert_eq!(parts(Some(1), 0, Some(1), None), Some(false));
        assert_eq!(parts(Some(1), 1, Some(0), Some(1)), Some(true), "a probe without a filter");
        assert_eq!(parts(Some(1), 0, Some(0), Some(1)), Some(false));
        assert_eq!(parts(None, 1, Some(0), None), Some(true), "losses are shared");
        assert_eq!(parts(None, 4, Some(0), None), Some(false), "more than was not read");
        assert_eq!(parts(None, 0, Some(1), None), Some(false), "derived from what is not known");
        assert_eq!(parts(None, 0, Some(0), Some(1)), Some(false), "derived from what is not known");
        assert_eq!(parts(Some(3), 0, None, None), Some(true), "somebody else switched recording off");
        assert_eq!(parts(Some(4), 0, None, None), Some(false));
        let changed =
            |lost, unexplained| closes(ProbeLedger { lost, unexplained, disabled: 1, ..good.clone() });
        assert_eq!(changed(Some(1), Some(1)), Some(true), "another program changed what is recorded");
        assert_eq!(changed(Some(1), Some(0)), Some(false), "a rest that nothing explains is missing");
        assert_eq!(changed(None, None), Some(true), "and losses are shared");
        let paused = ProbeLedger { lost: Some(1), filtered: Some(2), paused: 2, ..good.clone() };
        assert_eq!(closes(paused), Some(false), "a pause is a part of what was lost");
        assert_eq!(closes(ProbeLedger { hits: Some(11), ..good.clone() }), Some(false));
        assert_eq!(closes(ProbeLedger { read: u64::MAX, ..good.clone() }), Some(false), "no wrapping");
        assert_eq!(closes(ProbeLedger { hits: None, ..good }), None, "an event of the host");
        let subscriber = SubscriberLedger {
            read: 28,
            not_selected: 1,
            filtered: 2,
            sampled_out: 3,
            limited: 4,
            dropped: 5,
            queued: 6,
            delivered: 7,
            replayed: 99,
            expired: 99,
            ..Default::default()
        };
        assert!(subscriber_closes(&subscriber), "what is replayed is no part of the sum");
        assert!(!subscriber_closes(&SubscriberLedger { limited: 3, ..subscriber }));
        let spool = SpoolLedger { read: 6, stored: 3, in_memory: 1, not_stored: 2, ..Default::default() };
        assert!(spool_closes(&spool) && !spool_closes(&SpoolLedger { stored: 4, ..spool }));
        let exporter = ExporterLedger {
            read: Some(15),
            acknowledged: 1,
            queued: Some(2),
            dropped: 3,
            expired: 4,
            not_selected: 5,
            unknown_gaps: 99,
            failures: 99,
            ..Default::default()
        };
        assert_eq!(exporter_closes(&exporter), Some(true));
        assert_eq!(exporter_closes(&ExporterLedger { queued: None, ..exporter.clone() }), None);
        assert_eq!(exporter_closes(&ExporterLedger { dropped: 2, ..exporter }), Some(false));
    }
}
