//! Hit counts that have changed since they were last published.

use std::collections::HashMap;
use std::time::SystemTime;

use kprobed_lang::model::{HitProfile, Hits, ProbeUid};

/// The last published counts of each probe.
#[derive(Debug, Default)]
pub(super) struct Profiles {
    known: HashMap<ProbeUid, Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    hits: Hits,
    published: SystemTime,
    /// When it was still the same.
    seen: SystemTime,
}

impl Profiles {
    /// The counts to publish: those that have changed. Counts that were unchanged for a while are
    /// preceded by their last unchanged reading, so that a reader knows when they began to change.
    pub(super) fn changes(&mut self, counts: Vec<HitProfile>) -> Vec<HitProfile> {
        let mut changes = Vec::new();
        let mut known = HashMap::with_capacity(counts.len());
        for profile in counts {
            let (uid, hits, seen) = (profile.uid, profile.hits, profile.time);
            let before = self.known.get(&uid).copied();
            if let Some(before) = before.filter(|before| before.hits == hits) {
                known.insert(uid, Known { seen, ..before });
                continue;
            }
            if let Some(before) = before.filter(|before| before.seen > before.published) {
                changes.push(HitProfile { time: before.seen, hits: before.hits, ..profile.clone() });
            }
            changes.push(profile);
            known.insert(uid, Known { hits, published: seen, seen });
        }
        self.known = known;
        changes
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use kprobed_lang::model::ProbeName;

    fn count(uid: i64, seconds: u64, hits: u64) -> HitProfile {
        HitProfile {
            uid: ProbeUid(uid),
            name: ProbeName::new("kprobes", &format!("p{uid}")).unwrap(),
            boot_id: "boot".to_owned(),
            time: UNIX_EPOCH + Duration::from_secs(seconds),
            hits: Hits { hits, nmissed: 0 },
        }
    }

    #[test]
    fn only_what_is_new_is_published_and_since_when_it_is() {
        let mut profiles = Profiles::default();
        assert_eq!(profiles.changes(vec![count(1, 0, 5), count(2, 0, 0)]), [count(1, 0, 5), count(2, 0, 0)]);
        assert_eq!(profiles.changes(vec![count(1, 10, 6), count(2, 10, 0)]), [count(1, 10, 6)]);
        assert_eq!(profiles.changes(vec![count(1, 20, 7), count(2, 20, 0)]), [count(1, 20, 7)]);
        let expected = [count(1, 30, 8), count(2, 20, 0), count(2, 30, 3)];
        assert_eq!(profiles.changes(vec![count(1, 30, 8), count(2, 30, 3)]), expected);
        // One that has gone, and is there again, is published at once.
        assert_eq!(profiles.changes(vec![count(2, 40, 3)]), []);
        assert_eq!(profiles.changes(vec![count(1, 50, 8), count(2, 50, 3)]), [count(1, 50, 8)]);
    }
}
