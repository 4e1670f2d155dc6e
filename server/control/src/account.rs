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
    pub(super) baseline: Sample,
    /// Hits while the daemon paused recording.
    paused: u64,
    /// Hits while the probe was disabled, up to the last time that it was enabled.
    disabled: u64,
    /// The kernel's count of hits when it was disabled; absent while it is enabled.
    disabled_at: Option<u64>,
    /// Hits while it was being switched off: between the counts before and after. The kernel records nothing from
    /// early on, and counts until the probe is out of its code. Those that were recorded are among it.
    switched_off: u64,
    /// Whether it had a filter at any time.
    pub(super) had_filter: bool,
    /// Whether another program also recorded the event at any time.
    pub(super) shared: bool,
    /// Whether another program has changed what is recorded, or had the kernel record nothing for a time: the kernel
    /// does not count what it did not record. From there on the rest is not taken for hits that a filter held back, or
    /// for the daemon's own.
    pub(super) suspect: bool,
    /// The rest that was unexplained when the last such change had ended, with the hits around the pauses since.
    unexplained: u64,
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
    /// The part of `not_read` that was lost in the buffers or in a pause, or that another program has
    /// taken out of the buffers. Absent if the buffers do not show whose events they lost.
    pub lost: Option<u64>,
    /// Hits while the daemon paused recording. A part of `lost`.
    pub paused: u64,
    /// Hits while the probe was disabled and another program kept it armed, and those that were not recorded while
    /// it was being switched off: at most so many as came then.
    pub disabled: u64,
    /// Hits that the filter held back; if there was a filter, the daemon's own hits are included.
    /// Absent if it is not known.
    pub filtered: Option<u64>,
    /// Hits by the daemon's own threads. Absent if they cannot be distinguished from others. If `lost` and
    /// `filtered` are known, they are part of `filtered`.
    pub own: Option<u64>,
    /// The rest of `not_read` until the end of the last time in which another program had changed what is
    /// recorded, and around pauses: `filtered` and `own` until then are among it, and cannot be told from what was
    /// lost. Absent if `lost` is not known either.
    pub unexplained: Option<u64>,
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

    /// So many hits were not recorded, since the daemon paused recording. Of `around` it is not known: they came
    /// between a switch and the count beside it.
    pub(super) const fn note_pause(&mut self, hits: u64, around: u64) {
        self.paused += hits;
        self.unexplained += around;
    }

    /// What another program had changed is as it was. The rest until now stays unexplained, and what comes from
    /// here on is explained again. If it is not known what was lost, nothing is known of the rest either.
    pub(super) fn end_suspicion(&mut self, terms: &Terms) {
        if let (true, Some(unexplained)) = (self.suspect, terms.unexplained) {
            (self.suspect, self.unexplained) = (false, unexplained);
        }
    }

    /// Whether it is suspect, or was.
    pub(super) const fn was_suspect(&self) -> bool {
        self.suspect || self.unexplained > 0
    }

    /// It was disabled; the kernel counted so many hits by then, and so many of them while it was being switched off.
    pub(super) const fn note_disabled(&mut self, hits: u64, meanwhile: u64) {
        if self.disabled_at.is_none() {
            self.disabled_at = Some(hits);
            self.switched_off += meanwhile;
        }
    }

    /// It is about to be enabled; the kernel has counted so many hits by now.
    pub(super) const fn note_enabled(&mut self, hits: u64) {
        if let Some(since) = self.disabled_at.take() {
            self.disabled += hits.saturating_sub(since);
        }
    }

    /// Where the hits between baseline and now went. No term is larger than what was counted, whatever
    /// the counters are: they are not read at one moment, and the buffers also count events of others.
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
        let disabled =
            self.disabled + self.disabled_at.map_or(0, |since| now.hits.hits.saturating_sub(since));
        let disabled = disabled.min(not_read);
        let paused = self.paused.min(not_read - disabled);
        let lost = is_known.then(|| of_buffers.saturating_add(paused).min(not_read - disabled));
        let rest = lost.map(|lost| not_read - disabled - lost);
        // Only what is missing was not recorded.
        let switched_off = self.switched_off.min(rest.unwrap_or(0));
        let disabled = disabled + switched_off;
        let rest = rest.map(|rest| rest - switched_off);
        // If nothing is missing, nothing was lost, whatever was changed.
        let (filtered, own, unexplained) = if self.suspect && rest != Some(0) {
            (None, None, rest)
        } else {
            let unexplained = self.unexplained.min(rest.unwrap_or(not_read - disabled));
            let explained = rest.map(|rest| rest - unexplained);
            let (filtered, own) = if self.had_filter { (explained, None) } else { (Some(0), explained) };
            (filtered, own, Some(unexplained))
        };
        let shared = self.shared;
        Terms { hits, counts, not_read, lost, paused, disabled, filtered, own, unexplained, shared }
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
        /// Another program changes what is recorded, and so many hits are not.
        Silenced(u8),
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
        silenced: u64,
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
                silenced: 0,
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
                    self.account.shared = true;
                    self.truth.shared = true;
                    self.now.losses.events += u64::from(hits);
                    self.of_others += u64::from(hits);
                }
                Step::Pause(hits) => {
                    let hits = self.unread(hits);
                    self.account.note_pause(hits, 0);
                    self.truth.paused += hits;
                    add(&mut self.truth.lost, hits);
                }
                Step::Disabled(hits) => {
                    self.account.note_disabled(self.now.hits.hits, 0);
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
                    self.account.had_filter = true;
                    self.has_filter = true;
                }
                Step::ClearFilter => self.has_filter = false,
                Step::Reset => self.now.losses.resets += 1,
                Step::Silenced(hits) => {
                    self.account.suspect = true;
                    self.silenced += self.unread(hits);
                }
            }
        }
    }

    fn count_of(step: fn(u8) -> Step) -> impl Strategy<Value = Option<Step>> {
        any::<u8>().prop_map(move |count| Some(step(count)))
    }

    /// Any counters, whether they can be true together or not.
    fn counters() -> impl Strategy<Value = Sample> {
        any::<[u16; 5]>().prop_map(|[hits, nmissed, read, undecodable, lost]| Sample {
            hits: Hits { hits: hits.into(), nmissed: nmissed.into() },
            counts: ProbeCounts {
                read: read.into(),
                undecodable: undecodable.into(),
                ..ProbeCounts::default()
            },
            losses: Losses { events: lost.into(), resets: 0 },
        })
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
            trouble in prop_oneof![6 => Just(None), 1 => Just(Some(Step::Reset)), 1 => count_of(Step::Silenced)],
        ) {
            let mut world = World::new(baseline, filter_at_first);
            let had_filter = filter_at_first || steps.iter().any(|step| matches!(step, Step::SetFilter));
            steps.into_iter().chain(trouble).for_each(|step| world.step(step));
            let World { now, account, truth, silenced, .. } = world;
            let terms = account.terms(&now);

            prop_assert_eq!((terms.hits, terms.counts, terms.not_read), (truth.hits, truth.counts, truth.not_read));
            prop_assert_eq!((terms.paused, terms.disabled, terms.shared), (truth.paused, truth.disabled, truth.shared));
            prop_assert_eq!(terms.hits.hits, terms.counts.read + terms.counts.undecodable + terms.not_read);

            let is_reset = matches!(trouble, Some(Step::Reset));
            let blurred = truth.shared && world.overwritten + world.of_others > 0;
            let lost = truth.lost.filter(|_| !is_reset && !blurred);
            prop_assert_eq!(terms.lost, lost);
            let rest = lost.and(truth.filtered.zip(truth.own)).filter(|_| !is_reset);
            let missing = rest.map(|(filtered, own)| filtered + own + silenced);
            let is_unexplained = matches!(trouble, Some(Step::Silenced(_))) && missing != Some(0);
            prop_assert_eq!(terms.unexplained, if is_unexplained { missing } else { Some(0) });
            if is_unexplained {
                prop_assert_eq!((terms.filtered, terms.own), (None, None));
            } else if had_filter {
                prop_assert_eq!((terms.filtered, terms.own), (rest.map(|(filtered, own)| filtered + own), None));
            } else {
                prop_assert_eq!((terms.filtered, terms.own), (Some(0), rest.map(|(_, own)| own)));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever the counters are, no term is larger than what was counted, the terms that are given
        /// add up, and a rest is called filtered or own only if nothing was changed.
        #[test]
        fn no_term_is_larger_than_what_was_counted(
            baseline in counters(),
            now in counters(),
            [enabled, has_filter, is_shared, is_suspect, is_mended]: [bool; 5],
            [paused, around, before, switched_off]: [u16; 4],
        ) {
            let mut account = Account::begin(baseline, enabled, has_filter);
            if is_shared {
                account.shared = true;
            }
            if is_mended {
                account.suspect = true;
                account.end_suspicion(&Terms { unexplained: Some(before.into()), ..Terms::default() });
            }
            if is_suspect {
                account.suspect = true;
            }
            account.note_pause(paused.into(), around.into());
            account.note_disabled(baseline.hits.hits.max(now.hits.hits), switched_off.into());
            let terms = account.terms(&now);
            let Terms { not_read, lost, paused, disabled, filtered, own, unexplained, .. } = terms;
            let parts = [lost, Some(disabled), filtered, own, unexplained];
            let sum: u64 = parts.iter().flatten().sum();
            prop_assert!(not_read <= terms.hits.hits && sum <= not_read, "{:?}", terms);
            prop_assert!(lost.is_none_or(|lost| paused <= lost && sum == not_read), "{:?}", terms);
            let is_explained = filtered > Some(0) || own > Some(0);
            prop_assert!(!is_suspect || !is_explained, "{:?}", terms);
            let most = u64::from(around) + if is_mended { before.into() } else { 0 };
            prop_assert!(is_suspect || unexplained <= Some(most), "{:?}", terms);
        }
    }

    #[test]
    fn what_was_not_recorded_stays_unexplained_and_what_follows_is_explained() {
        let mut world = World::new(Sample::default(), false);
        let end = |world: &mut World| {
            let terms = world.account.terms(&world.now);
            world.account.end_suspicion(&terms);
        };
        for step in [Step::Own(1), Step::Silenced(5), Step::Recorded(6)] {
            world.step(step);
        }
        let parts = |world: &World| {
            let terms = world.account.terms(&world.now);
            (terms.filtered, terms.own, terms.unexplained)
        };
        assert_eq!(parts(&world), (None, None, Some(6)));
        end(&mut world);
        assert_eq!((parts(&world), world.account.was_suspect()), ((Some(0), Some(0), Some(6)), true));
        for step in [Step::Own(3), Step::Overwritten(2), Step::Pause(4)] {
            world.step(step);
        }
        let terms = world.account.terms(&world.now);
        assert_eq!((terms.lost, parts(&world)), (Some(6), (Some(0), Some(3), Some(6))));
        // Once more. A filter holds back what follows.
        world.step(Step::Silenced(2));
        assert_eq!(parts(&world), (None, None, Some(11)));
        end(&mut world);
        for step in [Step::SetFilter, Step::HeldBack(7)] {
            world.step(step);
        }
        assert_eq!(parts(&world), (Some(7), None, Some(11)));
        // What the buffers have lost is not known from here on: nor is the rest, and what was missing stays.
        world.step(Step::Reset);
        assert_eq!(parts(&world), (None, None, Some(11)));
        world.account.suspect = true;
        end(&mut world);
        assert!(world.account.suspect);
    }

    #[test]
    fn hits_around_a_pause_are_not_called_own() {
        let mut world = World::new(Sample::default(), false);
        for step in [Step::Recorded(6), Step::Own(3), Step::Pause(2)] {
            world.step(step);
        }
        // Of five hits between the switch and the count, two were recorded.
        world.step(Step::Recorded(2));
        world.unread(3);
        world.account.note_pause(0, 5);
        let terms = world.account.terms(&world.now);
        assert_eq!(
            (terms.lost, terms.filtered, terms.own, terms.unexplained),
            (Some(2), Some(0), Some(1), Some(5))
        );
        // What comes later is explained.
        world.step(Step::Own(4));
        let terms = world.account.terms(&world.now);
        assert_eq!((terms.own, terms.unexplained), (Some(5), Some(5)));
        // If nothing is missing, nothing was lost.
        let mut world = World::new(Sample::default(), false);
        world.step(Step::Recorded(5));
        world.account.note_pause(0, 5);
        let terms = world.account.terms(&world.now);
        assert_eq!((terms.own, terms.unexplained), (Some(0), Some(0)));
    }

    #[test]
    fn hits_while_a_probe_is_switched_off_are_not_called_own() {
        let mut world = World::new(Sample::default(), false);
        for step in [Step::Recorded(6), Step::Own(1), Step::Overwritten(2)] {
            world.step(step);
        }
        // Of seven hits between the counts before and after, two were recorded.
        world.step(Step::Recorded(2));
        world.unread(5);
        world.account.note_disabled(world.now.hits.hits, 7);
        let parts = |world: &World| {
            let terms = world.account.terms(&world.now);
            (terms.lost, terms.disabled, terms.own, terms.unexplained)
        };
        // How many of them were recorded is not known, and what was lost is.
        assert_eq!(parts(&world), (Some(2), 6, Some(0), Some(0)));
        world.account.note_enabled(world.now.hits.hits);
        for step in [Step::Own(3), Step::Recorded(4)] {
            world.step(step);
        }
        assert_eq!(parts(&world), (Some(2), 7, Some(2), Some(0)));
        // If nothing is missing, all were recorded.
        let mut world = World::new(Sample::default(), false);
        world.step(Step::Recorded(5));
        world.account.note_disabled(world.now.hits.hits, 5);
        assert_eq!(parts(&world), (Some(0), 0, Some(0), Some(0)));
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
