//! Own hits: the part of a probe's hits that the daemon's own threads have made.
//!
//! Owns when that part is known of all hits that the kernel has counted, and why it is not otherwise. The
//! kernel counts the hits of all tasks together and never records those of the daemon: the ledger has the
//! difference, from its baseline on. Never estimates.

use thiserror::Error;

use super::account::Terms;
use super::controller::Controller;
use crate::error;
use kprobed_lang::model::{HitProfile, Hits};

/// Why the daemon's own hits of a probe are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OwnUnknown {
    /// The kernel drops both without a trace.
    #[error(
        "the probe has or had a filter, and the kernel does not tell its own hits from those that the filter held back"
    )]
    Filter,
    /// They could be lost events.
    #[error(
        "buffers lost events while several probes recorded, or another program emptied one, and the kernel does not count that by probe"
    )]
    Lost,
    /// They could be hits that were not recorded.
    #[error("another program has changed what the daemon's instance records, and the kernel counted on")]
    Unexplained,
    /// Nothing was recorded, of no one.
    #[error("the probe was off, or recording was paused, for some of its hits, and the kernel counted on")]
    NotRecorded,
    /// They are older than the ledger.
    #[error(
        "some of its hits are older than what the daemon accounts for: from before its start, or its adoption"
    )]
    Earlier,
}

/// The hits of a probe, and the daemon's own part of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedHits {
    /// What the kernel has counted.
    pub profile: HitProfile,
    /// The part by the daemon's own threads.
    pub own: Result<u64, OwnUnknown>,
}

/// The own part of all hits, by the terms of the ledger and what was counted before it began.
fn own_of_all(terms: &Terms, before: Hits) -> Result<u64, OwnUnknown> {
    if before.hits > 0 {
        return Err(OwnUnknown::Earlier);
    }
    match (terms.own, terms.lost, terms.filtered) {
        // Its own hits are among those, in an unknown number.
        (Some(_), ..) if terms.disabled > 0 || terms.paused > 0 => Err(OwnUnknown::NotRecorded),
        (Some(own), ..) => Ok(own),
        (None, None, _) => Err(OwnUnknown::Lost),
        (None, Some(_), Some(_)) => Err(OwnUnknown::Filter),
        (None, Some(_), None) => Err(OwnUnknown::Unexplained),
    }
}

impl Controller {
    /// The current hit counts of all probes that the kernel has, by name, with the daemon's own part. Of
    /// a probe whose part is known, both belong to one moment.
    pub(super) fn counted_hits(&mut self) -> Result<Vec<CountedHits>, error::Error> {
        let ledger = self.ledger()?;
        let counted = |profile: HitProfile| {
            let uid = profile.uid;
            let mut counted = CountedHits { profile, own: Err(OwnUnknown::Earlier) };
            let found = ledger.probes.iter().find(|found| found.has_hits && found.uid == uid);
            if let Some((found, live)) = found.zip(self.live.get(&uid)) {
                let before = live.account.before();
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
        assert_eq!(own_of_all(&terms, before), Err(OwnUnknown::Earlier));
        for (other, why) in [
            (Terms { own: None, filtered: Some(9), ..terms }, OwnUnknown::Filter),
            (Terms { own: None, lost: None, ..terms }, OwnUnknown::Lost),
            (Terms { own: None, filtered: None, ..terms }, OwnUnknown::Unexplained),
            (Terms { disabled: 1, ..terms }, OwnUnknown::NotRecorded),
            (Terms { paused: 1, ..terms }, OwnUnknown::NotRecorded),
        ] {
            assert_eq!(own_of_all(&other, none), Err(why), "{other:?}");
        }
    }
}
