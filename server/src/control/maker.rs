//! Makers: whose the events of a probe are, for the limit on what the history keeps of them.
//!
//! Owns finding the limit of a principal that need not be connected: by the names that it had when
//! it made the probe, and the roles in force. Never counts bytes: the history does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use kprobed_rights::{Limit, Principal};
use kprobed_trace::pipeline::{Maker, Origin};

use crate::auth::{Asked, Rights};
use crate::store::Record;

/// A principal that has made a probe, or attached an event.
#[derive(Debug)]
struct Creator {
    account: Arc<str>,
    principal: Principal,
    rights: Arc<Rights>,
}

impl Maker for Creator {
    fn account(&self) -> &Arc<str> {
        &self.account
    }

    fn most_history_bytes(&self) -> Option<u64> {
        self.rights.bound(&self.principal, Limit::HistoryBytes).map(|bound| bound.most)
    }

    fn history_is_full(&self, held: u64, more: u64) {
        // The roles may have changed since the limit was asked for.
        if let Some(bound) = self.rights.bound(&self.principal, Limit::HistoryBytes) {
            let reached = self.rights.outgrown(&self.principal, bound, Asked { held, more });
            tracing::warn!(
                "{reached}: what does not fit is not stored until some of its events have expired"
            );
        }
    }
}

/// The makers of what is recorded now, one for each set of names: probes of one principal share it.
#[derive(Debug)]
pub struct Makers {
    rights: Arc<Rights>,
    known: Mutex<HashMap<Vec<String>, Weak<Creator>>>,
}

impl Makers {
    /// None yet.
    pub fn new(rights: Arc<Rights>) -> Self {
        Self { rights, known: Mutex::default() }
    }

    /// The maker with these names. None for names that no principal has.
    pub(super) fn named(&self, names: &[String]) -> Option<Arc<dyn Maker>> {
        let principal = Principal::of_names(names).ok()?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(creator) = known.get(names).and_then(Weak::upgrade) {
            return Some(creator);
        }
        known.retain(|_, creator| creator.strong_count() > 0);
        let (account, rights) = (principal.account().into(), Arc::clone(&self.rights));
        let creator = Arc::new(Creator { account, principal, rights });
        known.insert(names.to_vec(), Arc::downgrade(&creator));
        Some(creator)
    }

    /// Says of the origin of a probe's events what they do not say themselves: its labels, and who
    /// has made it. What a file declares has no maker.
    pub(super) fn describe(&self, origin: &Origin, record: &Record) {
        origin.set_labels(record.spec.labels.clone());
        let is_declared = record.spec.metadata.declared_by.is_some();
        origin.set_maker(if is_declared { None } else { self.named(&record.creator_names) });
    }
}

#[cfg(test)]
mod tests {
    use kprobed_audit::Action;
    use kprobed_lang::model::Metadata;
    use kprobed_rights::Roles;
    use kprobed_trace::pipeline::samples::source;

    use super::*;
    use crate::auth::AuditQueue;
    use crate::control::test_probe;

    fn roles(most: &str) -> Roles {
        Roles::parse(&format!(
            "[[role]]\nname = \"team\"\nprincipals = [\"group:storage\"]\n[role.limits]\nhistory_bytes = {most}\n"
        ))
        .unwrap()
    }

    #[test]
    fn the_limit_is_that_of_the_names_that_made_the_probe() {
        let (queue, mut inbox) = AuditQueue::new();
        let rights = Arc::new(Rights::new(roles("1000"), queue));
        let names = ["user:eve", "uid:1000", "group:storage"].map(str::to_owned);
        let eve = Principal::of_names(&names).unwrap();
        let makers = Makers::new(Arc::clone(&rights));
        let probe = test_probe(1, "storage/a").with(|record| *record = record.clone().by(&eve));
        let origin = &source("a", 1).origin;
        makers.describe(origin, &probe);
        let maker = origin.maker().unwrap();
        let again = makers.named(&probe.creator_names).unwrap();
        assert!(Arc::ptr_eq(&maker, &again), "probes of one principal share it");
        assert_eq!((&**maker.account(), maker.most_history_bytes()), ("uid:1000", Some(1000)));
        maker.history_is_full(990, 20);
        let entry = inbox.entries.try_recv().unwrap();
        assert_eq!((entry.action, entry.principal.as_str()), (Action::Refused, "user:eve"));
        assert_eq!(entry.rule, "role `team`, line 5");
        let full = "`user:eve` has 990 bytes of events in the history, and 20 more do not fit: the limit `history_bytes` of role `team`, line 5 is 1000";
        assert_eq!(entry.reason, full);
        // By the roles in force now.
        rights.replace(roles("\"unlimited\""));
        assert_eq!(maker.most_history_bytes(), None);
        maker.history_is_full(990, 20);
        assert!(inbox.entries.try_recv().is_err(), "there is no limit to name");
        // What a file declares is of no principal, and neither is what the daemon makes.
        let declared = Metadata { declared_by: Some("10-a.yaml".to_owned()), ..Metadata::default() };
        let probe = probe.with(|record| record.spec.metadata = declared);
        makers.describe(origin, &probe);
        assert!(origin.maker().is_none());
        let own = test_probe(2, "storage/b").with(|record| *record = record.clone().by(&Principal::Daemon));
        makers.describe(origin, &own);
        assert!(origin.maker().is_none());
    }
}
