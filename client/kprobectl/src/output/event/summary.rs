//! Summary of an event stream: events recorded, shown and lost.

use std::collections::BTreeMap;
use std::fmt;

use kprobed_client::api::{HitProfile, Probe, ProbeKind};
use kprobed_client::event::{Incomplete, Loss, LossCause};

use super::text::cause;
use crate::output::counted;

/// Counts of a stream.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Events that arrived.
    pub(crate) delivered: u64,
    /// Events that were printed.
    pub(crate) shown: u64,
    /// Events of the selected probes that were recorded. Absent if that is not known.
    pub(crate) recorded: Option<Recorded>,
    /// Events that were shown after later ones, although the order of time was requested.
    pub(crate) late: u64,
    /// Connections that were lost and made again.
    pub(crate) reconnects: u64,
    /// Why events that the probes recorded last may be missing, uncounted.
    pub(crate) unread: Option<String>,
    /// Runs that the kernel skipped of the command's own probes and of those that it observed, by the probe's name.
    skipped: BTreeMap<String, SkippedRuns>,
    lost: BTreeMap<LossCause, Lost>,
    /// Calls, by what they lack: nothing, or an end for this reason.
    calls: BTreeMap<Option<Incomplete>, u64>,
    /// Calls that were printed, which are among what was.
    pub(crate) shown_calls: u64,
}

/// Events that the daemons read of the selected probes while the command followed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) events: u64,
    /// Those that the filter of the command or its sampling left out.
    pub(crate) unselected: u64,
}

impl std::ops::Add for Recorded {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            events: self.events.saturating_add(other.events),
            unselected: self.unselected.saturating_add(other.unselected),
        }
    }
}

/// Runs of a probe that the kernel skipped: they made no event, and are no hits.
#[derive(Clone, Debug)]
pub(crate) struct SkippedRuns {
    probe: String,
    kind: ProbeKind,
    definition: String,
    hits: u64,
    nmissed: u64,
}

impl SkippedRuns {
    /// Those of a probe with its last counts. Absent if none was skipped.
    pub(crate) fn of(probe: &Probe, last: &HitProfile) -> Option<Self> {
        let HitProfile { hits, nmissed, .. } = *last;
        let (kind, definition) = (probe.kind(), probe.definition.clone());
        let probe = probe.name.clone();
        (nmissed > 0).then_some(Self { probe, kind, definition, hits, nmissed })
    }
}

impl fmt::Display for SkippedRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { probe, kind, definition, hits, nmissed } = self;
        let was = if *nmissed == 1 { "was" } else { "were" };
        if *kind != ProbeKind::Return {
            // Old kernels count a fault in the handler as a run that was skipped (arch/x86/kernel/kprobes/core.c:
            // kprobe_fault_handler).
            let why = "it was hit while another probe ran on the same CPU; before Linux 5.14, each read of memory \
                       that failed counts too";
            let runs = counted(*nmissed, "run");
            return write!(f, "{runs} of `{probe}` {was} skipped by the kernel (NMISSED): {why}");
        }
        let after = definition.strip_prefix('r');
        let rest = after.map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
        let digits = after.zip(rest).and_then(|(after, rest)| after.strip_suffix(rest));
        let now: u64 = digits.and_then(|digits| digits.parse().ok()).unwrap_or(0);
        write!(f, "{} {was} skipped by the kernel (NMISSED): ", counted(*nmissed, "return"))?;
        if now >= MOST_INSTANCES {
            return write!(f, "`{probe}` has room for {now} calls at a time, and no kernel gives more");
        }
        let most = hits.saturating_add(*nmissed).min(MOST_INSTANCES - 1) / 100 * 100 + 100;
        let most = most.max(now.saturating_mul(2)).min(MOST_INSTANCES);
        match rest {
            Some(rest) => write!(f, "write `r{most}{rest}`"),
            None => write!(f, "write `{definition}` as `r{most}:NAME FUNCTION`"),
        }?;
        write!(f, ", which has room for {most} calls at a time")
    }
}

/// The most calls at a time that a return probe has room for (kernel/trace/trace_kprobe.c:
/// KRETPROBE_MAXACTIVE_MAX).
const MOST_INSTANCES: u64 = 4096;

#[derive(Debug, Default)]
struct Lost {
    events: u64,
    uncounted_gaps: u64,
}

impl Summary {
    /// Counts a gap.
    pub(super) fn lose(&mut self, loss: &Loss) {
        let lost = self.lost.entry(loss.cause).or_default();
        match loss.count {
            Some(count) => lost.events = lost.events.saturating_add(count),
            None => lost.uncounted_gaps = lost.uncounted_gaps.saturating_add(loss.gaps),
        }
    }

    /// Adds runs that the kernel skipped of a probe, on one host.
    pub(crate) fn skip(&mut self, skipped: SkippedRuns) {
        match self.skipped.get_mut(&skipped.probe) {
            Some(known) => {
                known.hits = known.hits.saturating_add(skipped.hits);
                known.nmissed = known.nmissed.saturating_add(skipped.nmissed);
            }
            None => _ = self.skipped.insert(skipped.probe.clone(), skipped),
        }
    }

    /// Counts a call, which is shown or left out by the filter.
    pub(crate) fn count_call(&mut self, incomplete: Option<Incomplete>) {
        *self.calls.entry(incomplete).or_default() += 1;
    }

    /// Events that the daemon had, and did not put into the queue of this command.
    pub(crate) fn left_out(&self) -> u64 {
        let causes = [LossCause::SubscriberQueue, LossCause::RateLimit];
        causes.iter().filter_map(|cause| self.lost.get(cause)).map(|lost| lost.events).sum()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = self.lost.values().fold(0_u64, |sum, lost| sum.saturating_add(lost.events));
        let least = if self.unread.is_some() { "at least " } else { "" };
        let mut arrived = self.delivered;
        if let Some(Recorded { events, unselected }) = self.recorded {
            write!(f, "{events} recorded, ")?;
            if self.unread.is_none() {
                arrived = events.saturating_sub(unselected).saturating_sub(self.left_out());
            }
        }
        write!(f, "{} shown, {least}{lost} lost", self.shown)?;
        if self.late > 0 {
            write!(f, ", {} late", self.late)?;
        }
        if self.reconnects > 0 {
            write!(f, ", {}", counted(self.reconnects, "reconnect"))?;
        }
        if let Some(Recorded { unselected: unselected @ 1.., .. }) = self.recorded {
            let were = if unselected == 1 { "was" } else { "were" };
            write!(f, "\n  {unselected} of them {were} not selected")?;
        }
        // A call has one event for each of its ends.
        let in_calls = self.calls.iter().map(|(why, calls)| if why.is_none() { 2 * calls } else { *calls });
        let further = arrived.saturating_sub(self.shown - self.shown_calls).saturating_sub(in_calls.sum());
        if further > 0 {
            write!(f, "\n  {further} more came, not shown")?;
        }
        for (why, lost) in &self.lost {
            write!(f, "\n  {} lost", lost.events)?;
            if lost.uncounted_gaps > 0 {
                write!(f, " and {} of unknown size", counted(lost.uncounted_gaps, "gap"))?;
            }
            write!(f, ": {}", cause(*why))?;
        }
        let calls: u64 = self.calls.values().sum();
        if self.shown_calls < calls {
            let are = if calls == 1 { "is" } else { "are" };
            write!(f, "\n  {} of {} {are} shown", self.shown_calls, counted(calls, "call"))?;
        }
        for (incomplete, calls) in &self.calls {
            let calls = counted(*calls, "call");
            match incomplete {
                None => write!(f, "\n  {calls} with both ends"),
                Some(why) => write!(f, "\n  {calls} {why}"),
            }?;
        }
        for skipped in self.skipped.values() {
            write!(f, "\n  {skipped}")?;
        }
        if let Some(why) = &self.unread {
            write!(f, "\n  the last events may be missing: {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_shown_is_not_mistaken_for_loss() {
        let recorded = Some(Recorded { events: 2172, unselected: 2169 });
        let summary = Summary { delivered: 3, shown: 3, recorded, ..Summary::default() };
        assert_eq!(summary.to_string(), "2172 recorded, 3 shown, 0 lost\n  2169 of them were not selected");
        // The command had enough, and did not read the rest.
        let recorded = Some(Recorded { events: 202, unselected: 0 });
        let summary = Summary { delivered: 150, shown: 3, recorded, ..Summary::default() };
        assert_eq!(summary.to_string(), "202 recorded, 3 shown, 0 lost\n  199 more came, not shown");
        let summary = Summary { delivered: 202, shown: 3, ..Summary::default() };
        assert_eq!(summary.to_string(), "3 shown, 0 lost\n  199 more came, not shown");
        let recorded = Some(Recorded { events: 3, unselected: 0 });
        let summary = Summary { delivered: 3, shown: 3, recorded, ..Summary::default() };
        assert_eq!(summary.to_string(), "3 recorded, 3 shown, 0 lost");
    }

    #[test]
    fn calls_that_a_filter_leaves_out_are_counted() {
        let recorded = Some(Recorded { events: 9, unselected: 0 });
        let mut summary = Summary { delivered: 9, recorded, ..Summary::default() };
        for incomplete in [None, None, None, None, Some(Incomplete::NoEntry)] {
            summary.count_call(incomplete);
        }
        (summary.shown, summary.shown_calls) = (1, 1);
        let text = summary.to_string();
        assert!(
            text.starts_with(
                "9 recorded, 1 shown, 0 lost\n  1 of 5 calls are shown\n  4 calls with both ends"
            ),
            "{text}"
        );
        (summary.shown, summary.shown_calls) = (5, 5);
        assert!(!summary.to_string().contains("are shown"), "{summary}");
    }

    #[test]
    fn one_is_not_many() {
        let recorded = Some(Recorded { events: 4, unselected: 1 });
        let mut summary = Summary { delivered: 3, recorded, ..Summary::default() };
        summary.count_call(None);
        assert_eq!(
            summary.to_string(),
            "4 recorded, 0 shown, 0 lost\n  1 of them was not selected\n  1 more came, not shown\n  \
             0 of 1 call is shown\n  1 call with both ends"
        );
        summary.count_call(None);
        assert!(
            summary.to_string().ends_with("\n  0 of 2 calls are shown\n  2 calls with both ends"),
            "{summary}"
        );
        let probe = Probe { name: "in".to_owned(), kind: ProbeKind::Entry.into(), ..Probe::default() };
        let skipped = SkippedRuns::of(&probe, &HitProfile { hits: 1, nmissed: 1, ..HitProfile::default() });
        assert!(skipped.unwrap().to_string().starts_with("1 run of `in` was skipped by the kernel"));
    }

    #[test]
    fn skipped_runs_are_in_the_summary_with_what_to_write() {
        let skipped = |kind: ProbeKind, definition: &str, hits, nmissed| {
            let name = definition.split([':', ' ']).nth(1).unwrap().to_owned();
            let definition = definition.to_owned();
            let probe = Probe { name, kind: kind.into(), definition, ..Probe::default() };
            SkippedRuns::of(&probe, &HitProfile { hits, nmissed, ..HitProfile::default() })
        };
        assert!(skipped(ProbeKind::Return, "r:acc f", 10, 0).is_none());
        let mut summary = Summary::default();
        // Of two hosts.
        for _ in 0..2 {
            summary.skip(skipped(ProbeKind::Return, "r8:acc f sk=$retval", 5, 95).unwrap());
        }
        summary.skip(skipped(ProbeKind::Return, "r:big f", 1 << 40, 1).unwrap());
        summary.skip(skipped(ProbeKind::Entry, "p:in g", 1, 2).unwrap());
        // A larger number than there is, and never a smaller one.
        summary.skip(skipped(ProbeKind::Return, "r512:more f", 5, 1).unwrap());
        summary.skip(skipped(ProbeKind::Return, "r4096:most f", 5, 1).unwrap());
        assert_eq!(
            summary.to_string(),
            "0 shown, 0 lost\n  \
             190 returns were skipped by the kernel (NMISSED): write `r300:acc f sk=$retval`, which has room for 300 calls at a time\n  \
             1 return was skipped by the kernel (NMISSED): write `r4096:big f`, which has room for 4096 calls at a time\n  \
             2 runs of `in` were skipped by the kernel (NMISSED): it was hit while another probe ran on the same CPU; before Linux 5.14, each read of memory that failed counts too\n  \
             1 return was skipped by the kernel (NMISSED): write `r1024:more f`, which has room for 1024 calls at a time\n  \
             1 return was skipped by the kernel (NMISSED): `most` has room for 4096 calls at a time, and no kernel gives more"
        );
    }
}
