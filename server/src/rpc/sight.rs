//! Sight: which probes and events a caller may look at.
//!
//! Owns what lists leave out. What a probe records is not part of these answers: who may receive that is
//! in [`super::access`]. Never decides itself: [`kprobed_rights`] does.

use std::sync::Arc;

use kprobed_rights::{Method, Object, Reads};

use crate::auth::{Caller, Rights};
use crate::control::{Probe, Registry, permission};
use crate::error::Error;
use kprobed_lang::model::{Labels, ProbeName, ProbeUid};

/// What one caller may look at. Roles that change close its connection, so that it stays as it is for
/// as long as a call.
#[derive(Clone, Debug)]
pub(super) struct Sight {
    rights: Arc<Rights>,
    caller: Caller,
    sees_all: bool,
}

impl Sight {
    /// Of a caller, by the method that it calls.
    pub(super) fn new(rights: &Arc<Rights>, caller: Caller) -> Self {
        let sees_all =
            caller.method.is_none_or(|method| rights.roles().is_unconditional(&caller.principal, method));
        Self { rights: Arc::clone(rights), caller, sees_all }
    }

    /// Whether everything is shown, also what was deleted: of that nothing is known which a rule could be
    /// compared with.
    pub(super) const fn is_everything(&self) -> bool {
        self.sees_all
    }

    /// Whether a probe is shown. Its own probes are, to everybody: also one whose place is not known now.
    pub(super) fn shows(&self, probe: &Probe) -> bool {
        self.sees_all
            || probe.creator == self.caller.principal.account()
            || self.rights.allows(&self.caller, Some(&probe.object()))
    }

    /// Refuses to show one probe, with the rule.
    pub(super) fn require(&self, probe: &Probe) -> Result<(), Error> {
        if !self.shows(probe) {
            self.rights.require(&self.caller, Some(&probe.object()))?;
        }
        Ok(())
    }

    /// Whether the probe of this uid is shown, which may be gone.
    pub(super) fn shows_uid(&self, registry: &Registry, uid: ProbeUid) -> bool {
        self.sees_all || registry.by_uid(uid).is_some_and(|probe| self.shows(&probe))
    }

    /// Whether what is about the host and not about a probe is shown, as `GetHost` shows it.
    pub(super) fn shows_host(&self) -> bool {
        Method::named("GetHost").is_some_and(|method| {
            let caller = Caller { method: Some(method), ..self.caller.clone() };
            self.rights.allows(&caller, None)
        })
    }

    /// Whether an event of the host is shown that is not a probe.
    pub(super) fn shows_event(&self, name: &ProbeName) -> bool {
        let none = Labels::default();
        self.sees_all || self.rights.allows(&self.caller, Some(&permission::host_event(name, &none)))
    }

    /// Whether a foreign probe is shown, by its name and its place as the kernel lists them. A name that no
    /// probe of the daemon can have is shown to those who see all.
    pub(super) fn shows_foreign(&self, name: &str, place: &str) -> bool {
        if self.sees_all {
            return true;
        }
        let Ok(name) = name.parse::<ProbeName>() else { return false };
        let (module, symbol) = place.split_once(':').unwrap_or(("vmlinux", place));
        let function = symbol.split_once('+').map_or(symbol, |(function, _)| function);
        let object = Object {
            name: &name,
            labels: &Labels::default(),
            functions: &[function.to_owned()],
            module: Some(module),
            reads: Reads::NONE,
        };
        self.rights.allows(&self.caller, Some(&object))
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use kprobed_rights::{Method, Principal, Roles};

    use super::*;
    use crate::auth::{AuditQueue, Operation};
    use crate::control::test_probe;

    fn sight(rule: &str) -> Sight {
        let roles = format!(
            "[[role]]\nname = \"a\"\nprincipals = [\"user:alice\"]\n[[role.allow]]\nmethods = [\"read\"]\n{rule}\n"
        );
        let rights = Arc::new(Rights::new(Roles::parse(&roles).unwrap(), AuditQueue::new().0));
        let alice = Principal::of_names(&["user:alice".to_owned(), "uid:1000".to_owned()]).unwrap();
        let method = Method::named("ListProbes").unwrap();
        Sight::new(&rights, Caller::new(Arc::new(alice), method, Operation::default()))
    }

    #[test]
    fn lists_have_what_roles_show() {
        let limited = sight("groups = [\"storage\"]\nfunctions = [\"vfs_*\"]\nmodules = [\"vmlinux\"]");
        // It is not resolved, so that its function is unknown.
        let probe = test_probe(1, "storage/a");
        assert!(!limited.shows(&probe) && !limited.is_everything());
        let message = limited.require(&probe).unwrap_err().to_string();
        assert!(message.contains("does not allow the"), "{message}");
        let account = limited.caller.principal.account();
        let own = test_probe(2, "storage/b").with(|record| record.creator = account);
        assert!(limited.shows(&own) && limited.require(&own).is_ok());
        let registry: Registry = once(own).chain(once(probe)).collect();
        assert!(limited.shows_uid(&registry, ProbeUid(2)) && !limited.shows_uid(&registry, ProbeUid(1)));
        assert!(!limited.shows_uid(&registry, ProbeUid(3)));
        for (name, place, shown) in [
            ("storage/x", "vfs_read+0", true),
            ("storage/x", "vfs_read", true),
            ("storage/x", "xfs:vfs_read+4", false),
            ("storage/x", "tcp_connect+0", false),
            ("other/x", "vfs_read+0", false),
            ("no name", "vfs_read+0", false),
        ] {
            assert_eq!(limited.shows_foreign(name, place), shown, "{name} {place}");
        }
        assert!(!limited.shows_event(&"storage/x".parse().unwrap()), "an event has no function");
        assert!(sight("groups = [\"sched\"]").shows_event(&"sched/sched_switch".parse().unwrap()));
    }

    #[test]
    fn what_is_about_the_host_is_for_those_who_may_ask_for_it() {
        let methods = |methods: &str| sight(&format!("[[role.deny]]\nmethods = [{methods}]"));
        assert!(sight("").shows_host() && methods("\"GetProbe\"").shows_host());
        assert!(sight("groups = [\"storage\"]").shows_host(), "it is about no group");
        assert!(!methods("\"GetHost\"").shows_host());
    }

    #[test]
    fn without_a_condition_lists_have_everything() {
        let all = sight("reads = []");
        let probe = test_probe(1, "storage/a");
        assert!(all.is_everything() && all.shows(&probe) && all.shows_foreign("no name", "x"));
        assert!(all.shows_uid(&Registry::default(), ProbeUid(7)));
    }
}
