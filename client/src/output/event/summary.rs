//! What became of all events of a stream.

use std::collections::BTreeMap;
use std::fmt;

use kprobed_client::event::{Loss, LossCause};

use super::text::cause;

/// Counts of a stream.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// Events that arrived.
    pub(super) delivered: u64,
    /// Events that were printed.
    pub(super) shown: u64,
    lost: BTreeMap<LossCause, Lost>,
}

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
            None => lost.uncounted_gaps += 1,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = self.lost.values().fold(0_u64, |sum, lost| sum.saturating_add(lost.events));
        write!(f, "{} delivered, {} shown, {lost} lost", self.delivered, self.shown)?;
        for (why, lost) in &self.lost {
            write!(f, "\n  {} lost", lost.events)?;
            if lost.uncounted_gaps > 0 {
                write!(f, " and {} gaps of unknown size", lost.uncounted_gaps)?;
            }
            write!(f, ": {}", cause(*why))?;
        }
        Ok(())
    }
}
