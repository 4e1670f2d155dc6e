//! Own hits: the part of a probe's hits that the daemon's own threads have made.
//!
//! Owns when that part is known of all hits that the kernel has counted, and why it is not otherwise. The
//! kernel counts the hits of all tasks together and never records those of the daemon: the ledger has the
//! difference, from its baseline on. Never estimates.

use super::account::Terms;
use super::controller::Controller;
use crate::error::Error;
use kprobed_lang::model::{HitProfile, Hits};

/// Why they are not known: the kernel drops both without a trace.
const FILTER: &str = "the probe has or had a filter, and the kernel does not tell its own hits from those that the \
                      filter held back";

/// They could be lost events.
const LOST: &str = "buffers lost events while several probes recorded, or another program emptied one, and the kernel \
                    does not count that by probe";

/// They could be hits that were not recorded.
const UNEXPLAINED: &str =
    "another program has changed what the daemon's instance records, and the kernel counted on";

/// Nothing was recorded, of no one.
const NOT_RECORDED: &str =
    "the probe was off, or recording was paused, for some of its hits, and the kernel counted on";

/// They are older than the ledger.
const EARLIER: &str =
    "some of its hits are older than what the daemon accounts for: from before its start, or its adoption";

/// The hits of a probe, and the daemon's own part of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedHits {
    /// What the kernel has counted.
    pub profile: HitProfile,
    /// The part by the daemon's own threads; or why it is not known.
    pub own: Result<u64, &'static str>,
}

/// The own part of all hits, by the terms of the ledger and what was counted before it began.
fn own_of_all(terms: &Terms, before: Hits) -> Result<u64, &'static str> {
    if before.hits > 0 {
        return Err(EARLIER);
    }
    match (terms.own, terms.lost, terms.filtered) {
        // Its own hits are among those, in an unknown number.
        (Some(_), ..) if terms.disabled > 0 || terms.paused > 0 => Err(NOT_RECORDED),
        (Some(own), ..) => Ok(own),
        (None, None, _) => Err(LOST),
        (None, Some(_), Some(_)) => Err(FILTER),
        (None, Some(_), None) => Err(UNEXPLAINED),
    }
}

impl Controller {
    /// The current hit counts of all probes that the kernel has, by name, with the daemon's own part. Of
    /// a probe whose part is known, both belong to one moment.
    pub(super) fn counted_hits(&mut self) -> Result<Vec<CountedHits>, Error> {
        let ledger = self.ledger()?;
        let counted = |profile: HitProfile| {
            let uid = profile.uid;
            let mut counted = CountedHits { profile, own: Err(EARLIER) };
            let found = ledger.probes.iter().find(|found| found.has_hits && found.uid == uid);
            if let Some((found, live)) = found.zip(self.live.get(&uid)) {
                let before = live.account.baseline.hits;
                counted.own = own_of_all(&found.terms, before);
                let Hits { hits, nmissed } = found.terms.hits;
                counted.profile.hits = Hits { hits: before.hits + hits, nmissed: before.nmissed + nmissed };
            }
            counted
        };
        Ok(self.hit_profiles()?.into_iter().map(counted).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_is_of_all_hits_or_not_known() {
        let terms = Terms { lost: Some(2), filtered: Some(0), own: Some(3), ..Terms::default() };
        let none = Hits::default();
        assert_eq!(own_of_all(&terms, none), Ok(3));
        let missed = Hits { hits: 0, nmissed: 4 };
        assert_eq!(own_of_all(&terms, missed), Ok(3), "a skipped run is no hit");
        let before = Hits { hits: 1, nmissed: 0 };
        assert_eq!(own_of_all(&terms, before), Err(EARLIER));
        for (other, why) in [
            (Terms { own: None, filtered: Some(9), ..terms }, FILTER),
            (Terms { own: None, lost: None, ..terms }, LOST),
            (Terms { own: None, filtered: None, ..terms }, UNEXPLAINED),
            (Terms { disabled: 1, ..terms }, NOT_RECORDED),
            (Terms { paused: 1, ..terms }, NOT_RECORDED),
        ] {
            assert_eq!(own_of_all(&other, none), Err(why), "{other:?}");
        }
    }
}
