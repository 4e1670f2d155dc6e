//! Summary of an event stream: events delivered, shown and lost.

use std::collections::BTreeMap;
use std::fmt;

use kprobed_client::event::{Loss, LossCause};

use super::text::cause;

/// Counts of a stream.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Events that arrived.
    pub(crate) delivered: u64,
    /// Events that were printed.
    pub(crate) shown: u64,
    /// Events that were shown after later ones, although the order of time was requested.
    pub(crate) late: u64,
    /// Times the connection was lost.
    pub(crate) reconnects: u64,
    /// Why events that the probes recorded last may be missing, uncounted.
    pub(crate) unread: Option<String>,
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
            None => lost.uncounted_gaps = lost.uncounted_gaps.saturating_add(loss.gaps),
        }
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
        write!(f, "{} delivered, {} shown, {least}{lost} lost", self.delivered, self.shown)?;
        if self.late > 0 {
            write!(f, ", {} late", self.late)?;
        }
        match self.reconnects {
            0 => {}
            1 => write!(f, ", 1 reconnect")?,
            several => write!(f, ", {several} reconnects")?,
        }
        for (why, lost) in &self.lost {
            write!(f, "\n  {} lost", lost.events)?;
            if lost.uncounted_gaps > 0 {
                write!(f, " and {} gaps of unknown size", lost.uncounted_gaps)?;
            }
            write!(f, ": {}", cause(*why))?;
        }
        if let Some(why) = &self.unread {
            write!(f, "\n  the last events may be missing: {why}")?;
        }
        Ok(())
    }
}
