//! Access to what probes record: which of them a caller may observe.
//!
//! Owns the question for each probe or event that a stream or an aggregation is about. Changes are
//! judged by the control thread instead. Never decides itself: [`kprobed_rights`] does.

use std::fmt::Write as _;
use std::sync::Arc;

use kprobed_audit::{Action, Entry};
use kprobed_rights::Limit;
use tonic::Request;

use kprobed_control::auth::{Caller, Rights, Share};
use kprobed_control::error::Error;
use kprobed_control::{Probe, Registry, permission};
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_trace::pipeline::{Permits, QueueLimits};

/// The roles of this host, and the probes that they are about.
#[derive(Clone, Debug)]
pub struct Access {
    /// The roles.
    pub rights: Arc<Rights>,
    /// The probes.
    pub registry: Arc<Registry>,
}

/// The caller of a request, as the front end has found it out. A request without one did not come
/// through the front end.
pub(super) fn caller<T>(request: &Request<T>) -> Result<Caller, Error> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Error::internal("the request has no caller"))
}

/// The connection of a call, as a unique number. The front end puts it into the extensions of each
/// request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId(pub u64);

/// What a stream keeps between two messages, charged to its caller. The front end puts it into the extensions of each
/// request.
#[derive(Clone)]
pub struct KeptBytes(Arc<dyn Fn(u64) -> Result<(), Error> + Send + Sync>);

impl KeptBytes {
    /// `charge` holds so many bytes for the caller, instead of those before, or refuses.
    pub fn new(charge: impl Fn(u64) -> Result<(), Error> + Send + Sync + 'static) -> Self {
        Self(Arc::new(charge))
    }

    /// So many bytes are kept from now on.
    pub(super) fn set(&self, bytes: usize) -> Result<(), Error> {
        (self.0)(bytes as u64)
    }
}

impl Access {
    /// Refuses a caller that names a probe which it may not observe.
    pub(super) fn require(&self, caller: &Caller, probe: &Probe) -> Result<(), Error> {
        permission::on_probe(&self.rights, caller, probe, &probe.object()).map(drop)
    }

    /// Has the audit log say that a caller begins to receive what these probes record.
    pub(super) fn note_read(&self, caller: &Caller, probes: &[String], what: &str) {
        let Some(method) = caller.method else { return };
        self.rights.audit().note(Entry {
            method: method.name().to_owned(),
            probe: shortened(probes),
            reason: what.to_owned(),
            ..Entry::new(Action::Read, caller.principal.to_string())
        });
    }

    /// Whether a stream may contain the events of this probe. Of one that does not exist, any more or
    /// yet, nothing is known that a rule could be compared with.
    fn may_receive(&self, caller: &Caller, name: &ProbeName, uid: ProbeUid) -> bool {
        // What the history has of another database is of no probe of this one.
        let probe = self.registry.by_uid(uid).filter(|probe| probe.name == *name);
        probe.is_some_and(|probe| self.rights.allows(caller, Some(&probe.object())))
    }

    /// The bytes that the queue of a stream may have, as a part of what its caller may have for all of its
    /// queues. `asked` is 0 if the client leaves it to the daemon: then it is the default, or a quarter
    /// of that limit if that is less.
    pub(super) fn queue(&self, caller: &Caller, asked: u64) -> Result<(u64, Share), Error> {
        let bytes = match (asked, self.rights.bound(&caller.principal, Limit::QueueBytes)) {
            (0, None) => QueueLimits::default().bytes,
            (0, Some(bound)) => QueueLimits::default().bytes.min(bound.most / 4),
            (asked, _) => asked,
        };
        Ok((bytes, self.rights.take(caller, Limit::QueueBytes, bytes)?))
    }

    /// What a stream of the caller may contain. Absent: everything.
    pub(super) fn permits(&self, caller: &Caller) -> Option<Permits> {
        let method = caller.method?;
        if self.rights.roles().is_unconditional(&caller.principal, method) {
            return None;
        }
        let shows_addresses = self.rights.show_addresses(caller);
        let (access, caller) = (self.clone(), caller.clone());
        Some(Permits::new(shows_addresses, move |name, uid| access.may_receive(&caller, name, uid)))
    }
}

/// Names that one entry lists.
const LISTED: usize = 32;

fn shortened(probes: &[String]) -> String {
    let mut names = probes.iter().take(LISTED).map(String::as_str).collect::<Vec<_>>().join(",");
    if probes.len() > LISTED {
        _ = write!(names, " and {} more", probes.len() - LISTED);
    }
    names
}

#[cfg(test)]
mod tests {
    use kprobed_rights::{Method, Principal, Roles};

    use super::*;
    use kprobed_control::auth::{AuditQueue, Operation};
    use kprobed_control::samples::probe as test_probe;

    /// Events of a lost database can carry the uid of a probe of the present one.
    #[test]
    fn a_uid_is_that_of_a_probe_under_its_name_alone() {
        let roles = "[[role]]\nname = \"a\"\nprincipals = [\"user:alice\"]\n[[role.allow]]\nmethods = [\"observe\"]\n\
                     groups = [\"narrow\"]\nreads = [\"all\"]\n";
        let rights = Arc::new(Rights::new(Roles::parse(roles).unwrap(), AuditQueue::new().0));
        let registry: Registry = std::iter::once(test_probe(1, "narrow/v2")).collect();
        let access = Access { rights, registry: Arc::new(registry) };
        let alice = Principal::of_names(&["user:alice".to_owned(), "uid:1000".to_owned()]).unwrap();
        let method = Method::named("StreamEvents").unwrap();
        let caller = Caller::new(Arc::new(alice), method, Operation::default());
        let may = |name: &str, uid| access.may_receive(&caller, &name.parse().unwrap(), ProbeUid(uid));
        assert!(may("narrow/v2", 1));
        assert!(!may("victim/v2", 1), "it is the uid of another probe");
        assert!(!may("narrow/v2", 2), "no probe has it");
    }
}
