//! Joining of equal entries: the first is written at once, and those that follow within a time are
//! one entry that says how many there were.
//!
//! Owns the bound of its memory, and of what one principal can write in that time. A pure machine,
//! driven by the time that it is given.

use std::collections::HashMap;
use std::time::Duration;

use kprobed_audit::{Action, Entry};
use tokio::time::Instant;

use kprobed_control::store::OWN_NAME;

/// For how long equal entries are joined.
pub(super) const WINDOW: Duration = Duration::from_mins(1);

/// Different entries of one principal within that time. Further ones are joined without their
/// particulars.
pub(super) const MOST_OF_ONE: usize = 64;

/// Different entries of all principals within that time.
pub(super) const MOST: usize = 1024;

/// The entries of the last time.
#[derive(Debug, Default)]
pub(super) struct Joined {
    known: HashMap<Entry, Repeated>,
}

#[derive(Debug)]
struct Repeated {
    until: Instant,
    more: u64,
}

impl Joined {
    /// Takes an entry. Returns the one to write now, if it is the first of its kind.
    pub(super) fn add(&mut self, entry: Entry, now: Instant) -> Option<Entry> {
        if let Some(repeated) = self.known.get_mut(&entry) {
            repeated.more += 1;
            return None;
        }
        let new = Repeated { until: now + WINDOW, more: 0 };
        let of_one = self.known.keys().filter(|known| known.principal == entry.principal).count();
        if of_one < MOST_OF_ONE && self.known.len() < MOST {
            self.known.insert(entry.clone(), new);
            return Some(entry);
        }
        // A principal is a name in a certificate, of which an authority can issue any number.
        let principal = if self.known.len() < MOST { entry.principal } else { "others".to_owned() };
        let rest = Entry {
            reason: "further requests, too many to list".to_owned(),
            ..Entry::new(entry.action, principal)
        };
        self.known.entry(rest).or_insert(new).more += 1;
        None
    }

    /// The entries whose time is over, as far as there was more than the first; all with `is_last`.
    pub(super) fn take_over(&mut self, now: Instant, is_last: bool) -> Vec<Entry> {
        let over = self.known.extract_if(|_, repeated| is_last || repeated.until <= now);
        let more = over.filter(|(_, repeated)| repeated.more > 0);
        more.map(|(entry, Repeated { more: times, .. })| Entry { times, ..entry }).collect()
    }

    /// When the first time is over.
    pub(super) fn due(&self) -> Option<Instant> {
        self.known.values().map(|repeated| repeated.until).min()
    }
}

/// Entries that found no place in the queue, as one.
pub(super) fn omitted(times: u64) -> Option<Entry> {
    (times > 0).then(|| Entry {
        reason: "requests that are not in the log: the queue was full, or the disk failed".to_owned(),
        times,
        ..Entry::new(Action::Refused, OWN_NAME)
    })
}
