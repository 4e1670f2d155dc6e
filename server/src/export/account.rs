//! The account of one exporter: read = acknowledged + dropped + expired + not selected + queued.
//!
//! Owns the terms: every position of the log that an exporter passes is counted in exactly one of
//! them.

use kprobed_trace::spool::Cursor;

/// The account of an exporter since the daemon was started: what happened to the events that it has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// Events that the receiver has acknowledged.
    pub(super) acknowledged: u64,
    /// Events that the receiver refused finally, and those that cannot be sent to it.
    pub(super) dropped: u64,
    /// Events that the history no longer had, or never had.
    pub(super) expired: u64,
    /// Events that its settings do not select.
    pub(super) not_selected: u64,
    /// Positions of the log that were passed.
    pub(super) passed: u64,
    /// Gaps with an unknown number of missing events.
    pub(super) unknown_gaps: u64,
}

impl Account {
    /// Adds a part of the log that the receiver has acknowledged; it refused `dropped` of the
    /// selected events.
    pub(super) fn settle(&mut self, walked: &Walked, dropped: u64) {
        let dropped = dropped.min(walked.selected);
        self.acknowledged += walked.selected - dropped;
        self.dropped += dropped;
        self.expired += walked.expired;
        self.not_selected += walked.not_selected;
        self.passed += walked.places;
        self.unknown_gaps += walked.unknown_gaps;
    }
}

/// A part of the log that was walked through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Places of the log.
    pub places: u64,
    /// Events that are selected.
    pub selected: u64,
    /// Events that are not.
    pub not_selected: u64,
    /// Events that are missing.
    pub expired: u64,
    /// Gaps with an unknown number of missing events.
    pub unknown_gaps: u64,
}

/// The position of an exporter in the log, as far as it has read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Walk {
    place: Option<Cursor>,
    /// Nothing was sent of the run of the daemon that this is in.
    is_new: bool,
    /// Positions that were passed without an event for this exporter, and are in no term yet.
    jumped: u64,
    /// Events that were reported as missing, and whose places were not passed yet.
    missing: u64,
    walked: Walked,
}

impl Walk {
    /// Begins at a cursor; without one, at the beginning of the first epoch.
    pub(super) fn from(place: Option<Cursor>) -> Self {
        Self { place, ..Self::default() }
    }

    /// Begins at a cursor of a run of which nothing was sent.
    pub(super) fn first(place: Cursor) -> Self {
        Self { is_new: true, ..Self::from(Some(place)) }
    }

    /// The current position.
    pub(super) const fn place(&self) -> Option<Cursor> {
        self.place
    }

    /// What follows is of this run of the daemon, from this position on. Returns whether the run
    /// has changed, or is the first one.
    pub(super) fn epoch(&mut self, cursor: Cursor) -> bool {
        match self.place {
            Some(place) if (place.boot_id, place.epoch) == (cursor.boot_id, cursor.epoch) => {
                self.reach(cursor.sequence);
                std::mem::take(&mut self.is_new)
            }
            _ => {
                self.tell_apart();
                // The end of the previous run is missing: its positions are passed as missing.
                self.walked.places += self.missing;
                self.walked.expired += std::mem::take(&mut self.missing);
                self.place = Some(cursor);
                true
            }
        }
    }

    /// Everything before a position was read.
    pub(super) fn reach(&mut self, sequence: u64) {
        let Some(place) = &mut self.place else { return };
        let passed = sequence.saturating_sub(place.sequence);
        place.sequence += passed;
        self.walked.places += passed;
        self.jumped += passed;
    }

    /// An entry of the log, with its number of events and of selected events.
    pub(super) fn entry(&mut self, sequence: u64, log_events: u64, selected: u64) {
        self.reach(sequence);
        self.tell_apart();
        let Some(place) = &mut self.place else { return };
        let end = sequence.saturating_add(log_events);
        // Of an entry that was read before, only what is new counts.
        let passed = end.saturating_sub(place.sequence);
        place.sequence += passed;
        let selected = selected.min(passed);
        self.walked.places += passed;
        self.walked.selected += selected;
        self.walked.not_selected += passed - selected;
    }

    /// Events of the log are missing.
    pub(super) fn missing(&mut self, count: Option<u64>) {
        match count {
            Some(count) => self.missing += count,
            None => self.walked.unknown_gaps += 1,
        }
    }

    /// Assigns positions without an event to missing events or to events that are not selected.
    fn tell_apart(&mut self) {
        let expired = self.jumped.min(self.missing);
        self.missing -= expired;
        self.walked.expired += expired;
        self.walked.not_selected += std::mem::take(&mut self.jumped) - expired;
    }

    /// The part of the log that was passed since the last call.
    pub(super) fn take(&mut self) -> Walked {
        self.tell_apart();
        std::mem::take(&mut self.walked)
    }
}

#[cfg(test)]
impl Account {
    /// Whether every position of the log that was passed is in exactly one term.
    pub(super) const fn closes(&self) -> bool {
        self.acknowledged + self.dropped + self.expired + self.not_selected == self.passed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use kprobed_trace::spool::BootId;

    fn at(epoch: u64, sequence: u64) -> Cursor {
        Cursor { boot_id: BootId([7; 16]), epoch, sequence }
    }

    #[test]
    fn every_place_has_its_term() {
        let mut walk = Walk::from(None);
        assert!(walk.epoch(at(1, 10)));
        // 10 to 13: three of four; 14 to 19: not there any more; 20 to 24: not selected; 25, 26:
        // both.
        walk.entry(10, 4, 3);
        walk.missing(Some(6));
        walk.reach(25);
        walk.entry(25, 2, 2);
        let walked = walk.take();
        let expected = Walked { places: 17, selected: 5, not_selected: 6, expired: 6, unknown_gaps: 0 };
        assert_eq!(walked, expected);
        // The end of the run is missing, and an unknown part of the next one.
        walk.missing(Some(3));
        walk.missing(None);
        assert!(walk.epoch(at(2, 0)));
        walk.entry(0, 1, 1);
        let walked = walk.take();
        let expected = Walked { places: 4, selected: 1, not_selected: 0, expired: 3, unknown_gaps: 1 };
        assert_eq!(walked, expected);
        assert_eq!(walk.place(), Some(at(2, 1)));
        let mut account = Account::default();
        account.settle(&walked, 1);
        let expected = Account { dropped: 1, expired: 3, passed: 4, unknown_gaps: 1, ..Account::default() };
        assert_eq!((account, account.closes()), (expected, true));
    }

    #[test]
    fn what_was_seen_counts_once() {
        let mut walk = Walk::from(Some(at(1, 5)));
        assert!(!walk.epoch(at(1, 3)));
        walk.entry(3, 4, 4);
        assert_eq!(walk.take(), Walked { places: 2, selected: 2, ..Walked::default() });
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]
        /// Steps in any order: entries, gaps told before or after their places, other runs, breaks
        /// after which it begins where it was settled.
        #[test]
        fn the_account_closes(steps in proptest::collection::vec((0..6_u8, 0..50_u64, 0..50_u64), 0..60)) {
            let mut account = Account::default();
            let mut walk = Walk::from(Some(at(1, 0)));
            let mut end = at(1, 0);
            let mut unsettled = 0;
            for (step, a, b) in steps {
                let here = walk.place().unwrap();
                match step {
                    0 => walk.entry(here.sequence, a, b.min(a)),
                    1 => walk.reach(here.sequence + a),
                    2 => { walk.missing(Some(a)); unsettled += a; }
                    3 => { walk.epoch(at(here.epoch + 1, a)); unsettled = 0; }
                    4 => { account.settle(&walk.take(), b); end = walk.place().unwrap(); }
                    _ => { walk = Walk::from(Some(end)); unsettled = 0; }
                }
            }
            account.settle(&walk.take(), 0);
            prop_assert!(account.closes(), "{account:?}");
            prop_assert!(walk.missing <= unsettled);
        }
    }
}
