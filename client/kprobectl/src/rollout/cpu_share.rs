//! CPU time of a daemon as a share of one core, for the gate `cpu`.
//!
//! Owns the time that the share is taken of, during a soak and at its end, and which readings give
//! no share. It reads nothing.

use std::fmt;

use super::gate::Limit;
use super::reading::Spent;

/// CPU time as a share of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuShare {
    used_ns: u64,
    time_ns: u64,
    /// Whether the soak is still running.
    is_so_far: bool,
}

impl CpuShare {
    /// The share since a soak began. `soak_ms` is the length of the soak: until it is over, the
    /// share is of the whole soak, so that it only grows. 0: it is over. None at the first reading.
    ///
    /// # Errors
    /// Why it is not known.
    pub(super) fn since(
        begun: Option<&Spent>,
        now: Option<&Spent>,
        soak_ms: u64,
    ) -> Result<Option<Self>, &'static str> {
        let now = now.ok_or("the host does not know it")?;
        let Some(begun) = begun else { return Ok(None) };
        let anew = "the daemon was started anew";
        let used_ns = now.processor_ns.checked_sub(begun.processor_ns).ok_or(anew)?;
        let passed_ns = now.uptime_ns.checked_sub(begun.uptime_ns).ok_or(anew)?;
        match passed_ns.max(soak_ms.saturating_mul(1_000_000)) {
            0 => Err("no time passed between two readings"),
            time_ns => Ok(Some(Self { used_ns, time_ns, is_so_far: soak_ms > 0 })),
        }
    }

    /// Whether it is within the limit.
    pub(super) fn is_within(self, limit: Limit) -> bool {
        limit.covers(self.used_ns, self.time_ns)
    }
}

impl fmt::Display for CpuShare {
    /// Two decimal places, rounded up, so that a share above a limit looks so.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = (u128::from(self.used_ns) * 10_000).div_ceil(u128::from(self.time_ns));
        let so_far = if self.is_so_far { " so far" } else { "" };
        write!(f, "{}.{:02}% of one core{so_far}", hundredths / 100, hundredths % 100)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::gate::Gates;
    use super::super::judgement::{Since, judge};
    use super::super::reading::Reading;
    use super::*;

    /// What the gate of processor time says: a failure, what is missing, or the figure.
    fn spent(gate: &str, begun: Option<Spent>, now: Option<Spent>, soak_ms: u64) -> (String, String, String) {
        let before = Reading::default();
        let since = Since { before: &before, last: None, soak_begun: begun.as_ref(), soak_ms };
        let now = Reading { spent: now, ..Reading::default() };
        let gates = Gates::with(&[gate.parse().unwrap()]);
        let judgement = judge(&since, &now, &BTreeMap::new(), &gates);
        let figure = judgement.figures.get("cpu").cloned().unwrap_or_default();
        (judgement.failed.join("; "), judgement.missing.join("; "), figure)
    }

    const SECOND_NS: u64 = 1_000_000_000;

    fn at(processor_ns: u64, uptime_ns: u64) -> Spent {
        Spent { processor_ns, uptime_ns }
    }

    #[test]
    fn processor_time_is_that_of_the_soak() {
        let begun = Some(at(500 * SECOND_NS, 1000 * SECOND_NS));
        let after = |processor_ns: u64, uptime_ns: u64, soak_ms| {
            let now = at(500 * SECOND_NS + processor_ns, 1000 * SECOND_NS + uptime_ns);
            spent("cpu<=25%", begun, Some(now), soak_ms)
        };
        let good = |figure: &str| (String::new(), String::new(), figure.to_owned());
        assert_eq!(after(SECOND_NS / 4, SECOND_NS, 0), good("25.00% of one core"));
        let above = |figure: &str| (format!("cpu<=25%: {figure}"), String::new(), figure.to_owned());
        assert_eq!(after(SECOND_NS / 4 + 1, SECOND_NS, 0), above("25.01% of one core"));
        // In the middle of it, a share of the whole: it can rest until the end.
        assert_eq!(after(SECOND_NS / 4, SECOND_NS / 4, 1000), good("25.00% of one core so far"));
        assert_eq!(after(SECOND_NS / 4 + 1, SECOND_NS / 4, 1000), above("25.01% of one core so far"));
        assert_eq!(after(0, SECOND_NS, 0), good("0.00% of one core"));
        // Four threads.
        assert_eq!(after(4 * SECOND_NS, SECOND_NS, 0).2, "400.00% of one core");
    }

    #[test]
    fn processor_time_that_is_not_known_is_missing() {
        let missing = |begun, now| spent("cpu<=25%", begun, now, 0);
        let because = |why: &str| (String::new(), format!("cpu: {why}"), String::new());
        assert_eq!(missing(None, None), because("the host does not know it"));
        assert_eq!(missing(Some(at(1, 1)), None), because("the host does not know it"));
        assert_eq!(missing(Some(at(1, 1)), Some(at(1, 1))), because("no time passed between two readings"));
        assert_eq!(missing(Some(at(5, 5)), Some(at(4, 6))), because("the daemon was started anew"));
        assert_eq!(missing(Some(at(5, 5)), Some(at(6, 4))), because("the daemon was started anew"));
        assert_eq!(missing(None, Some(at(1, 1))), Default::default(), "the first reading");
        assert_eq!(spent("cpu=off", Some(at(5, 5)), None, 0), Default::default());
    }

    proptest! {
        #[test]
        fn what_fails_before_the_end_does_not_pass_at_the_end(
            limit in 0_u32..2_000_000, soak_ms in 1_u64..100_000,
            used in any::<[u32; 2]>(), times in any::<[prop::sample::Index; 2]>(),
        ) {
            let soak_ns = usize::try_from(soak_ms * 1_000_000).unwrap();
            let [mut first, mut end] = times.map(|time| time.index(soak_ns) as u64 + 1);
            if first > end {
                (first, end) = (end, first);
            }
            let gate = format!("cpu<={}.{:04}%", limit / 10_000, limit % 10_000);
            let used = used.map(u64::from);
            let early = spent(&gate, Some(at(0, 0)), Some(at(used[0], first)), soak_ms);
            let late = spent(&gate, Some(at(0, 0)), Some(at(used[0] + used[1], end)), 0);
            prop_assert!(early.0.is_empty() || !late.0.is_empty(), "{:?} {:?}", early, late);
        }

        #[test]
        fn a_daemon_that_was_started_anew_neither_passes_nor_fails(
            begun in any::<(u64, u64)>(), now in any::<(u64, u64)>(), soak_ms in any::<u64>(),
        ) {
            let is_anew = now.0 < begun.0 || now.1 < begun.1;
            let (failed, missing, figure) =
                spent("cpu<=25%", Some(at(begun.0, begun.1)), Some(at(now.0, now.1)), soak_ms);
            prop_assert_eq!(missing == "cpu: the daemon was started anew", is_anew);
            prop_assert!(!is_anew || failed.is_empty() && figure.is_empty());
        }
    }
}
