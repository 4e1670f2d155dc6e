//! Outcomes of the hosts of a run, and their sum.
//!
//! It never decides the outcome of a host: `run` does.

use std::fmt;

/// Outcome of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The daemon gave the answer that was requested. A verdict such as "refused" of a check is an
    /// answer.
    Answered,
    /// The daemon refused the request by its rules.
    Refused,
    /// It broke in the middle: the request may have been carried out.
    Failed,
    /// The deadline of the host passed. The request may have been carried out.
    TimedOut,
    /// There was no connection: nothing was asked.
    Unreachable,
    /// Nothing was sent to the host: the run ended before.
    #[default]
    NotTried,
}

impl Outcome {
    /// All classes, in the order in which they are declared and printed.
    pub const ALL: [Self; 6] =
        [Self::Answered, Self::Refused, Self::Failed, Self::TimedOut, Self::Unreachable, Self::NotTried];

    /// Its name for programs, in lower snake case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Unreachable => "unreachable",
            Self::NotTried => "not_tried",
        }
    }
}

/// The account of a run: every selected host is in exactly one class, or still waited
/// for.
///
/// targeted = answered + refused + failed + timed out + unreachable + not tried, once the run is
/// over ([`HostLedger::closes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLedger {
    targeted: u64,
    counts: [u64; Outcome::ALL.len()],
}

impl HostLedger {
    /// The account of a run over this many hosts, before the first answer.
    pub fn new(targeted: u64) -> Self {
        Self { targeted, counts: [0; Outcome::ALL.len()] }
    }

    /// Counts the outcome of one more host.
    pub fn record(&mut self, outcome: Outcome) {
        let count = &mut self.counts[outcome as usize];
        *count = count.saturating_add(1);
    }

    /// Selected hosts.
    pub fn targeted(&self) -> u64 {
        self.targeted
    }

    /// Hosts of a class.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.counts[outcome as usize]
    }

    /// Hosts whose outcome is known.
    pub fn accounted(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Hosts that did not give the answer that was requested, whatever the reason.
    pub fn missing(&self) -> u64 {
        self.targeted.saturating_sub(self.count(Outcome::Answered))
    }

    /// Whether every host is in exactly one class.
    pub fn closes(&self) -> bool {
        self.accounted() == self.targeted
    }
}

impl fmt::Display for HostLedger {
    /// One line, with all classes: `3 targeted = 2 answered + 0 refused + ...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} targeted =", self.targeted)?;
        for (index, outcome) in Outcome::ALL.into_iter().enumerate() {
            let plus = if index == 0 { "" } else { " +" };
            write!(f, "{plus} {} {}", self.count(outcome), outcome.name().replace('_', " "))?;
        }
        if !self.closes() {
            write!(f, "; the ledger does not close: {} are accounted for", self.accounted())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_closes_when_every_host_is_counted_once_and_only_then(
            outcomes in proptest::collection::vec(0_usize..Outcome::ALL.len(), 0..50),
            more in 0_u64..3,
        ) {
            let mut ledger = HostLedger::new(outcomes.len() as u64 + more);
            for outcome in &outcomes {
                ledger.record(Outcome::ALL[*outcome]);
            }
            let sum: u64 = Outcome::ALL.iter().map(|outcome| ledger.count(*outcome)).sum();
            prop_assert_eq!(sum, outcomes.len() as u64);
            prop_assert_eq!(ledger.closes(), more == 0);
            ledger.record(Outcome::Answered);
            prop_assert_eq!(ledger.closes(), more == 1);
        }
    }

    #[test]
    fn it_prints_every_class() {
        let mut ledger = HostLedger::new(2);
        ledger.record(Outcome::TimedOut);
        assert_eq!(
            ledger.to_string(),
            "2 targeted = 0 answered + 0 refused + 0 failed + 1 timed out + 0 unreachable + 0 not tried; \
             the ledger does not close: 1 are accounted for"
        );
    }
}
