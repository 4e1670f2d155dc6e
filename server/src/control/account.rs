//! Ledger arithmetic: where the hits of a probe went, computed from two samples of its counters.
//!
//! Owns what must be remembered of a probe since its baseline. Plain functions: never reads a
//! counter or a clock.

use kprobed_lang::model::Hits;
use kprobed_trace::pipeline::{BufferCounts, ProbeCounts};

/// What all buffers together have lost. They do not know whose events it were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    /// Events, as far as the kernel counts them.
    pub(super) events: u64,
    /// Times that another program emptied a buffer: how many events were lost is not known then.
    pub(super) resets: u64,
}

impl Losses {
    pub(super) fn of(buffers: &[BufferCounts]) -> Self {
        let sum = |term: fn(&BufferCounts) -> u64| buffers.iter().map(term).sum();
        Self { events: sum(BufferCounts::lost), resets: sum(|buffer| buffer.resets) }
    }
}

/// Counters of a probe that belong to one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) hits: Hits,
    pub(super) counts: ProbeCounts,
    pub(super) losses: Losses,
}

/// What is remembered of a probe since its ledger began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    baseline: Sample,
    /// Hits while the daemon paused recording.
    paused: u64,
    /// Hits while the probe was disabled, up to the last time that it was enabled.
    disabled: u64,
    /// The kernel's count of hits when it was disabled; absent while it is enabled.
    disabled_at: Option<u64>,
    /// Whether it had a filter at any time.
    had_filter: bool,
    /// Whether another program also recorded the event at any time.
    shared: bool,
    /// Whether another program had switched recording off, or changed the size of the buffers: the
    /// kernel records nothing while it does.
    silenced: bool,
}

/// Where the hits of a probe went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Hits and skipped runs since the baseline, by the kernel's count.
    pub hits: Hits,
    /// Events that were decoded, and events that could not be.
    pub counts: ProbeCounts,
    /// Hits of which no event was read. Derived.
    pub not_read: u64,
    /// The part of `not_read` that was lost in the buffers or in a pause. Absent if the buffers do
    /// not show whose events they lost.
    pub lost: Option<u64>,
    /// Hits while the daemon paused recording. A part of `lost`.
    pub paused: u64,
    /// Hits while the probe was disabled and another program kept it armed.
    pub disabled: u64,
    /// Hits that the filter held back; if there was a filter, the daemon's own hits are included.
    /// Absent if it is not known.
    pub filtered: Option<u64>,
    /// Hits by the daemon's own threads. Absent if they cannot be distinguished from others. If `lost` and
    /// `filtered` are known, they are part of `filtered`.
    pub own: Option<u64>,
    /// Whether another program also recorded the event.
    pub shared: bool,
}

impl Account {
    /// Begins with that sample.
    pub(super) fn begin(baseline: Sample, enabled: bool, has_filter: bool) -> Self {
        Self {
            baseline,
            disabled_at: (!enabled).then_some(baseline.hits.hits),
            had_filter: has_filter,
            ..Self::default()
        }
    }

    /// What the kernel had counted before.
    pub(super) const fn before(&self) -> Hits {
        self.baseline.hits
    }

    /// So many hits were not recorded, since the daemon paused recording.
    pub(super) const fn note_pause(&mut self, hits: u64) {
        self.paused += hits;
    }

    /// It has a filter now.
    pub(super) const fn note_filter(&mut self) {
        self.had_filter = true;
    }

    /// Another program records the event too.
    pub(super) const fn note_sharing(&mut self) {
        self.shared = true;
    }

    /// Another program has switched recording off for a time, or had the kernel do so.
    pub(super) const fn note_silence(&mut self) {
        self.silenced = true;
    }

    /// It was disabled; the kernel counted so many hits by then.
    pub(super) const fn note_disabled(&mut self, hits: u64) {
        if self.disabled_at.is_none() {
            self.disabled_at = Some(hits);
        }
    }

    /// It is about to be enabled; the kernel has counted so many hits by now.
    pub(super) const fn note_enabled(&mut self, hits: u64) {
        if let Some(since) = self.disabled_at.take() {
            self.disabled += hits.saturating_sub(since);
        }
    }

    /// Where the hits between baseline and now went.
    pub(super) fn terms(&self, now: &Sample) -> Terms {
        let base = &self.baseline;
        let hits = Hits {
            hits: now.hits.hits.saturating_sub(base.hits.hits),
            nmissed: now.hits.nmissed.saturating_sub(base.hits.nmissed),
        };
        let counts = ProbeCounts {
            read: now.counts.read.saturating_sub(base.counts.read),
            read_span: now.counts.read_span,
            undecodable: now.counts.undecodable.saturating_sub(base.counts.undecodable),
        };
        let not_read = hits.hits.saturating_sub(counts.read + counts.undecodable);
        let of_buffers = now.losses.events.saturating_sub(base.losses.events);
        let is_known = now.losses.resets == base.losses.resets && (of_buffers == 0 || !self.shared);
        let lost = is_known.then_some(of_buffers + self.paused);
        let disabled =
            self.disabled + self.disabled_at.map_or(0, |since| now.hits.hits.saturating_sub(since));
        let rest = lost.map(|lost| not_read.saturating_sub(lost + disabled));
        let (filtered, own) = match (self.silenced, self.had_filter) {
            (true, _) => (None, None),
            (false, true) => (rest, None),
            (false, false) => (Some(0), rest),
        };
        let (paused, shared) = (self.paused, self.shared);
        Terms { hits, counts, not_read, lost, paused, disabled, filtered, own, shared }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What happens to a probe, and how often.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Hits that are recorded and read.
        Recorded(u8),
        /// Events that are read and cannot be decoded.
        Undecodable(u8),
        /// Hits by the daemon's own threads.
        Own(u8),
        /// Hits that the filter holds back, if there is one.
        HeldBack(u8),
        /// Events that are lost in the buffers.
        Overwritten(u8),
        /// Events of others that are lost in the buffers.
        OthersOverwritten(u8),
        /// A pause with so many hits.
        Pause(u8),
        /// Disabled for so many hits that something else makes the kernel count.
        Disabled(u8),
        /// Skipped runs.
        Skipped(u8),
        SetFilter,
        ClearFilter,
        Reset,
        Silenced,
    }

    fn step() -> impl Strategy<Value = Step> {
        let count = || any::<u8>();
        prop_oneof![
            4 => count().prop_map(Step::Recorded),
            1 => count().prop_map(Step::Undecodable),
            2 => count().prop_map(Step::Own),
            2 => count().prop_map(Step::HeldBack),
            1 => count().prop_map(Step::Overwritten),
            1 => count().prop_map(Step::OthersOverwritten),
            1 => count().prop_map(Step::Pause),
            1 => count().prop_map(Step::Disabled),
            1 => count().prop_map(Step::Skipped),
            1 => Just(Step::SetFilter),
            1 => Just(Step::ClearFilter),
        ]
    }

    /// A probe with what truly became of its hits.
    struct World {
        now: Sample,
        account: Account,
        truth: Terms,
        has_filter: bool,
        of_others: u64,
        overwritten: u64,
    }

    impl World {
        fn new(baseline: Sample, has_filter: bool) -> Self {
            Self {
                now: baseline,
                account: Account::begin(baseline, true, has_filter),
                truth: Terms { lost: Some(0), filtered: Some(0), own: Some(0), ..Terms::default() },
                has_filter,
                of_others: 0,
                overwritten: 0,
            }
        }

        fn hit(&mut self, hits: u8) -> u64 {
            let hits = u64::from(hits);
            self.now.hits.hits += hits;
            self.truth.hits.hits += hits;
            hits
        }

        fn unread(&mut self, hits: u8) -> u64 {
            let hits = self.hit(hits);
            self.truth.not_read += hits;
            hits
        }

        fn step(&mut self, step: Step) {
            let add = |term: &mut Option<u64>, more| *term = term.map(|term| term + more);
            match step {
                Step::Recorded(hits) => {
                    let hits = self.hit(hits);
                    self.now.counts.read += hits;
                    self.truth.counts.read += hits;
                }
                Step::Undecodable(hits) => {
                    let hits = self.hit(hits);
                    self.now.counts.undecodable += hits;
                    self.truth.counts.undecodable += hits;
                }
                Step::Own(hits) => {
                    let hits = self.unread(hits);
                    add(&mut self.truth.own, hits);
                }
                Step::HeldBack(hits) if self.has_filter => {
                    let hits = self.unread(hits);
                    add(&mut self.truth.filtered, hits);
                }
                Step::HeldBack(_) => {}
                Step::Overwritten(hits) => {
                    let hits = self.unread(hits);
                    self.now.losses.events += hits;
                    self.overwritten += hits;
                    add(&mut self.truth.lost, hits);
                }
                Step::OthersOverwritten(hits) => {
                    self.account.note_sharing();
                    self.truth.shared = true;
                    self.now.losses.events += u64::from(hits);
                    self.of_others += u64::from(hits);
                }
                Step::Pause(hits) => {
                    let hits = self.unread(hits);
                    self.account.note_pause(hits);
                    self.truth.paused += hits;
                    add(&mut self.truth.lost, hits);
                }
                Step::Disabled(hits) => {
                    self.account.note_disabled(self.now.hits.hits);
                    let hits = self.unread(hits);
                    self.truth.disabled += hits;
                    // In the middle of it the count is known as well.
                    assert_eq!(self.account.terms(&self.now).disabled, self.truth.disabled);
                    self.account.note_enabled(self.now.hits.hits);
                }
                Step::Skipped(times) => {
                    self.now.hits.nmissed += u64::from(times);
                    self.truth.hits.nmissed += u64::from(times);
                }
                Step::SetFilter => {
                    self.account.note_filter();
                    self.has_filter = true;
                }
                Step::ClearFilter => self.has_filter = false,
                Step::Reset => self.now.losses.resets += 1,
                Step::Silenced => self.account.note_silence(),
            }
        }
    }

    fn baseline() -> impl Strategy<Value = Sample> {
        (any::<u32>(), any::<u16>(), any::<u16>(), any::<u8>()).prop_map(|(hits, read, lost, resets)| {
            Sample {
                hits: Hits { hits: hits.into(), nmissed: read.into() },
                counts: ProbeCounts { read: read.into(), undecodable: lost.into(), ..ProbeCounts::default() },
                losses: Losses { events: lost.into(), resets: resets.into() },
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever happens, every term that is given is true, and every term that can be known is
        /// given.
        #[test]
        fn terms_are_what_happened(
            baseline in baseline(),
            filter_at_first: bool,
            steps in prop::collection::vec(step(), 0..40),
            trouble in prop_oneof![6 => Just(None), 1 => Just(Some(Step::Reset)), 1 => Just(Some(Step::Silenced))],
        ) {
            let mut world = World::new(baseline, filter_at_first);
            let had_filter = filter_at_first || steps.iter().any(|step| matches!(step, Step::SetFilter));
            steps.into_iter().chain(trouble).for_each(|step| world.step(step));
            let World { now, account, truth, .. } = world;
            let terms = account.terms(&now);

            prop_assert_eq!((terms.hits, terms.counts, terms.not_read), (truth.hits, truth.counts, truth.not_read));
            prop_assert_eq!((terms.paused, terms.disabled, terms.shared), (truth.paused, truth.disabled, truth.shared));
            prop_assert_eq!(terms.hits.hits, terms.counts.read + terms.counts.undecodable + terms.not_read);

            let is_reset = matches!(trouble, Some(Step::Reset));
            let blurred = truth.shared && world.overwritten + world.of_others > 0;
            let lost = truth.lost.filter(|_| !is_reset && !blurred);
            prop_assert_eq!(terms.lost, lost);
            let rest = lost.and(truth.filtered.zip(truth.own)).filter(|_| trouble.is_none());
            if matches!(trouble, Some(Step::Silenced)) {
                prop_assert_eq!((terms.filtered, terms.own), (None, None));
            } else if had_filter {
                prop_assert_eq!((terms.filtered, terms.own), (rest.map(|(filtered, own)| filtered + own), None));
            } else {
                prop_assert_eq!((terms.filtered, terms.own), (Some(0), rest.map(|(_, own)| own)));
            }
        }
    }

    #[test]
    fn hits_by_the_daemon_are_not_filtered() {
        let mut world = World::new(Sample::default(), false);
        for step in [Step::Recorded(6), Step::Own(3), Step::Overwritten(2)] {
            world.step(step);
        }
        let terms = world.account.terms(&world.now);
        assert_eq!((terms.filtered, terms.own, terms.lost, terms.not_read), (Some(0), Some(3), Some(2), 5));
    }

    #[test]
    fn a_probe_that_is_made_disabled_counts_nothing_as_its_own() {
        let mut account = Account::begin(Sample::default(), false, false);
        let sample = |hits| Sample { hits: Hits { hits, nmissed: 0 }, ..Sample::default() };
        assert_eq!((account.terms(&sample(7)).disabled, account.terms(&sample(7)).own), (7, Some(0)));
        account.note_enabled(9);
        // Enabled a second time, nothing changes.
        account.note_enabled(10);
        let terms = account.terms(&sample(12));
        assert_eq!((terms.disabled, terms.own), (9, Some(3)));
    }
}
