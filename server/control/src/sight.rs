//! Sight: which probes and events a caller may look at.
//!
//! Owns what lists leave out, and what the answers of other calls say about probes, events and aggregations that
//! are not the caller's business. What a probe records is not part of these answers: who may receive that is in
//! [`super::permission`]. Never decides itself: [`kprobed_rights`] does.

use std::sync::Arc;

use kprobed_rights::{Known, Method, Object, Reads, Scope, Verb};

use super::plan::PlannedStep;
use super::{Probe, Registry, permission};
use crate::auth::{Caller, Rights};
use crate::error::Error;
use kprobed_lang::definition::{Code, DeleteDefinition, Diagnostic};
use kprobed_lang::model::{Labels, ProbeName, ProbeUid};
use kprobed_verdict::checker::{CheckError, Taken};

/// What one caller may look at. Roles that change close its connection, so that it stays as it is for
/// as long as a call.
#[derive(Clone, Debug)]
pub struct Sight {
    rights: Arc<Rights>,
    /// By a method that looks at probes.
    caller: Caller,
    sees_all: bool,
}

impl Sight {
    /// Of a caller, by the method that it calls. A method that is not about looking at probes shows those that
    /// `GetProbe` shows.
    pub fn new(rights: &Arc<Rights>, caller: Caller) -> Self {
        let looks = |method: &&'static Method| method.verb == Verb::Read && method.scope == Scope::Object;
        let method =
            caller.method.and_then(|method| Some(method).filter(looks).or_else(|| Method::named("GetProbe")));
        let caller = Caller { method, ..caller };
        let sees_all =
            caller.method.is_none_or(|method| rights.roles().is_unconditional(&caller.principal, method));
        Self { rights: Arc::clone(rights), caller, sees_all }
    }

    /// Whether everything is shown, also what was deleted: of that nothing is known which a rule could be
    /// compared with.
    pub const fn is_everything(&self) -> bool {
        self.sees_all
    }

    /// Whether a probe is shown. Its own probes are, to everybody: also one whose place is not known now.
    pub fn shows(&self, probe: &Probe) -> bool {
        self.sees_all
            || probe.creator == self.caller.principal.account()
            || self.rights.allows(&self.caller, Some(&probe.object()))
    }

    /// Whether a step of a plan is shown: not one about a probe that is not.
    pub(crate) fn shows_step(&self, registry: &Registry, step: &PlannedStep) -> bool {
        let probe = step.event.as_ref().and_then(|name| registry.get(name));
        probe.is_none_or(|probe| self.shows(&probe))
    }

    /// Refuses to show one probe, with the rule.
    pub fn require(&self, probe: &Probe) -> Result<(), Error> {
        if !self.shows(probe) {
            self.rights.require(&self.caller, Some(&probe.object()))?;
        }
        Ok(())
    }

    /// Whether the probe of this uid is shown, which may be gone.
    pub fn shows_uid(&self, registry: &Registry, uid: ProbeUid) -> bool {
        self.sees_all || registry.by_uid(uid).is_some_and(|probe| self.shows(&probe))
    }

    /// Whether what is about the host and not about a probe is shown, as `GetHost` shows it.
    pub fn shows_host(&self) -> bool {
        self.allows_method("GetHost")
    }

    /// Whether the caller may call a method at all.
    pub fn allows_method(&self, method: &str) -> bool {
        self.caller.method.is_none()
            || Method::named(method).is_some_and(|method| {
                let caller = Caller { method: Some(method), ..self.caller.clone() };
                self.rights.allows(&caller, None)
            })
    }

    /// Whether an event of the host is shown that is not a probe.
    pub(crate) fn shows_event(&self, name: &ProbeName) -> bool {
        let none = Labels::default();
        self.sees_all || self.rights.allows(&self.caller, Some(&permission::host_event(name, &none)))
    }

    /// Whether a foreign probe is shown, by its name and its place as the kernel lists them. A name that no
    /// probe of the daemon can have is shown to those who see all.
    pub fn shows_foreign(&self, name: &str, place: &str) -> bool {
        if self.sees_all {
            return true;
        }
        let Ok(name) = name.parse::<ProbeName>() else { return false };
        let (module, symbol) = place.split_once(':').unwrap_or(("vmlinux", place));
        // After its beginning, the place can lie in another function than the one that is written.
        let function = symbol.strip_suffix("+0").unwrap_or(symbol);
        let functions: Vec<_> =
            Some(function).filter(|name| !name.contains('+')).map(str::to_owned).into_iter().collect();
        self.shows_named(&name, &functions, Some(module))
    }

    /// Whether something is shown of which no more than its name and its place are looked at.
    fn shows_named(&self, name: &ProbeName, functions: &[String], module: Option<&str>) -> bool {
        let (labels, reads) = (&Labels::default(), Reads::NONE);
        let object = Object { name, labels, functions, module, reads, known: Known::Part };
        self.sees_all || self.rights.allows(&self.caller, Some(&object))
    }

    /// Whether a difference between a file and the host is shown, which is about this probe, if about one. A file
    /// declares probes of any group: who does not see all sees what is about a probe that is shown.
    pub fn shows_declaration(&self, registry: &Registry, probe: Option<&ProbeName>) -> bool {
        let probe = probe.and_then(|name| registry.get(name));
        self.sees_all || probe.is_some_and(|probe| self.shows(&probe))
    }

    /// The probes that a line deletes, or why it cannot, as the caller may be told it: as if there were no other
    /// probes than those that are shown.
    pub fn told_of_deletion(
        &self,
        registry: &Registry,
        delete: &DeleteDefinition,
        deleted: Result<Vec<ProbeName>, CheckError>,
    ) -> Result<Vec<ProbeName>, CheckError> {
        let is_about_names =
            |problem: &Diagnostic| problem.code == Code::ForeignProbe || problem.code == Code::NoSuchProbe;
        match deleted {
            _ if self.sees_all => deleted,
            Ok(mut names) => {
                names.retain(|name| registry.get(name).is_some_and(|probe| self.shows(&probe)));
                if names.is_empty() { Err(none(String::new(), delete)) } else { Ok(names) }
            }
            Err(CheckError::Definition { text, diagnostics }) if diagnostics.iter().any(is_about_names) => {
                Err(none(text, delete))
            }
            Err(error) => Err(error),
        }
    }

    /// The problem with a name, as the caller may be told it: what the event of a probe that is not shown looks
    /// like is left out.
    pub fn told(&self, registry: &Registry, mut taken: Taken) -> Taken {
        let is_shown = match registry.get(&taken.name) {
            Some(probe) if taken.ours => self.shows(&probe),
            // Of an event of another program nothing is looked at here but its name.
            _ => self.shows_named(&taken.name, &[], None),
        };
        if !is_shown {
            let name = &taken.name;
            taken.ours = false;
            taken.problem = Diagnostic {
                message: format!("the name `{name}` is taken on this host: choose another one"),
                ..Diagnostic::error(Code::EventExist, taken.problem.span, "")
            };
        }
        taken
    }
}

/// There is nothing to delete, as far as the caller may know.
fn none(text: String, delete: &DeleteDefinition) -> CheckError {
    let message = "there is no such probe that you may see";
    let diagnostics = vec![Diagnostic::error(Code::NoSuchProbe, delete.span, message)];
    CheckError::Definition { text, diagnostics }
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use kprobed_rights::{Method, Principal, Roles};

    use super::*;
    use crate::auth::{AuditQueue, Operation};
    use crate::samples::probe as test_probe;

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
