//! Permission for a change: what a request is about, once that is known, against the roles.
//!
//! Owns where the control thread asks: on a probe as it is, and on the probe that it would become; and how many probes
//! a caller may have, and for how long. What exists in memory only is counted by [`crate::auth::Holdings`].
//! Never decides itself: [`kprobed_rights`] does.

use std::collections::HashMap;
use std::sync::Arc;

use super::controller::Controller;
use super::footprint::Footprint;
use super::source::host_event_fields;
use super::{Probe, Sight, Trouble};
use crate::auth::{Asked, Caller, Rights};
use crate::error::{Error, Reason};
use kprobed_lang::definition::{ProbeDefinition, ProbeKind};
use kprobed_lang::model::{Labels, LeaseTerm, ProbeName};
use kprobed_rights::{Known, Limit, Method, Object, Question, Read, Reads, RuleName};
use kprobed_verdict::checker::{DefinitionText, group_of};

impl Controller {
    /// Refuses a change of a probe that its caller may not make, or a probe that it may not have made.
    pub(super) fn require(&self, caller: &Caller, probe: &Probe) -> Result<Option<RuleName>, Error> {
        let rights = &self.parts.rights;
        if probe.kind == ProbeKind::Event && probe.schema.is_none() && !probe.spec.filter.is_empty() {
            // It is not recorded yet, and what its filter tells depends on its fields.
            let schema = host_event_fields(self.tracefs(), &self.parts.checker, &probe.name).ok();
            let known = Probe { schema, ..probe.clone() };
            return on_probe(rights, caller, &known, &known.object());
        }
        on_probe(rights, caller, probe, &probe.object())
    }

    /// The same for a probe as a change would leave it. The refusal says what it reads then to those who may look at
    /// it as it is.
    pub(super) fn require_changed(
        &self,
        caller: &Caller,
        probe: &Probe,
        changed: &Probe,
    ) -> Result<Option<RuleName>, Error> {
        on_probe(&self.parts.rights, caller, probe, &changed.object())
    }

    /// Refuses the removal of a probe that its caller may not remove. A probe of its own whose function is not known
    /// goes by its name and labels: nothing is read by that.
    pub(super) fn require_removal(&self, caller: &Caller, probe: &Probe) -> Result<Option<RuleName>, Error> {
        let is_its = probe.creator == caller.principal.account();
        let object = probe.object();
        let known = if is_its && object.known == Known::Part { Known::Text } else { object.known };
        on_probe(&self.parts.rights, caller, probe, &Object { known, ..object })
    }

    /// Refuses a definition by what its text says alone, before anything of the kernel or of other probes is
    /// looked at: a refusal would tell of them.
    pub(super) fn require_text(
        &self,
        caller: &Caller,
        definition: &DefinitionText,
        name: Option<&ProbeName>,
        labels: &Labels,
    ) -> Result<(), Error> {
        self.require_place(caller, definition)?;
        let reading = self.parts.checker.reading(definition);
        let written = reading.written();
        match (name, written) {
            (Some(name), _) => self.require_named(caller, name, labels),
            // Rules have no condition on the event.
            (None, Some(written)) => match ProbeName::new(group_of(written), "unnamed") {
                Ok(name) => on_group(&self.parts.rights, caller, &name, labels),
                // The definition is refused for it.
                Err(_) => Ok(()),
            },
            // What is said about a text that is no definition is in the text.
            (None, None) => Ok(()),
        }
    }

    /// The same for a name and labels.
    pub(super) fn require_named(
        &self,
        caller: &Caller,
        name: &ProbeName,
        labels: &Labels,
    ) -> Result<(), Error> {
        self.parts.rights.require(caller, Some(&written(name, labels))).map(drop)
    }

    /// Refuses a place that is an address to a caller that may not see addresses.
    pub(super) fn require_place(&self, caller: &Caller, definition: &DefinitionText) -> Result<(), Error> {
        let reading = self.parts.checker.reading(definition);
        let shows_addresses = self.parts.rights.show_addresses(caller);
        reading.written().map_or(Ok(()), |written| on_place(shows_addresses, written))
    }

    /// Refuses one more probe of a caller that has as many as it may have. `made_by` has those of each
    /// account with those that the same batch makes, as far as they were counted.
    pub(super) fn require_room(
        &self,
        caller: &Caller,
        probe: &ProbeName,
        made_by: &mut HashMap<String, u64>,
    ) -> Result<(), Error> {
        let rights = &self.parts.rights;
        let Some(bound) = rights.bound(&caller.principal, Limit::Probes) else { return Ok(()) };
        let account = caller.principal.account();
        let counted = || self.parts.registry.made_by(&account);
        let held = made_by.entry(account.clone()).or_insert_with(counted);
        if *held >= bound.most {
            return Err(rights.reached(caller, Some(probe), &bound, Asked { held: *held, more: 1 }));
        }
        *held += 1;
        Ok(())
    }

    /// Refuses a probe that would last longer than its caller may have one. One that is held lasts as
    /// long as a connection.
    pub(super) fn require_lease(
        &self,
        caller: &Caller,
        probe: &ProbeName,
        lease: Option<&LeaseTerm>,
    ) -> Result<(), Error> {
        let rights = &self.parts.rights;
        let Some(bound) = rights.bound(&caller.principal, Limit::LeaseMaxS) else { return Ok(()) };
        let more = match lease {
            Some(LeaseTerm::Held(_)) => return Ok(()),
            Some(LeaseTerm::For(duration)) => {
                // A part of a second is one more.
                duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
            }
            None => u64::MAX,
        };
        if more <= bound.most {
            return Ok(());
        }
        Err(rights.reached(caller, Some(probe), &bound, Asked { held: 0, more }))
    }
}

/// Refuses a place that is an address to a caller that may not see addresses: whatever is said of the code there, a
/// verdict too, tells where the kernel is.
pub fn on_place(shows_addresses: bool, written: &ProbeDefinition) -> Result<(), Error> {
    if shows_addresses || !written.is_at_address() {
        return Ok(());
    }
    let message = "a probe point that is a number needs a role that may see addresses";
    let fix = "name the function, or ask for a rule with `addresses` in `reads`";
    Err(Error::new(Reason::NOT_ALLOWED, message).fix(fix))
}

/// Refuses what a caller may not do with a probe that it names, which rules see as this object. The refusal says what
/// the probe reads to those who may look at it.
pub fn on_probe(
    rights: &Arc<Rights>,
    caller: &Caller,
    probe: &Probe,
    object: &Object<'_>,
) -> Result<Option<RuleName>, Error> {
    if Sight::new(rights, caller.clone()).shows(probe) {
        return rights.require(caller, Some(object));
    }
    let refused = |error: Error| error.with("probe", &probe.name);
    rights.require_hidden(caller, object, &format!("`{}`", probe.name)).map_err(refused)
}

/// A probe of which only the text is known.
fn written<'a>(name: &'a ProbeName, labels: &'a Labels) -> Object<'a> {
    Object { name, labels, functions: &[], module: None, reads: Reads::ALL, known: Known::Text }
}

/// Refuses a probe without a name by its group and labels. The name is any of that group: the refusal does not say it.
fn on_group(rights: &Rights, caller: &Caller, name: &ProbeName, labels: &Labels) -> Result<(), Error> {
    let on = format!("a new probe of the group `{}`", name.group());
    rights.require_hidden(caller, &written(name, labels), &on).map(drop)
}

/// Why a probe is not armed although its definition means what it meant: its address was not known when the roles of
/// who made it were asked, and they do not allow it where it is. Absent if they do, and for what no client has made.
pub(super) fn denied_to_maker(rights: &Rights, probe: &Probe, footprint: &Footprint) -> Option<Trouble> {
    let (maker, method) = (probe.record.maker()?, Method::named("CreateProbe")?);
    let object = footprint.object(&probe.name, &probe.spec.labels);
    let object = Object { reads: footprint.reads_of_spec(&probe.spec, probe.schema.as_deref()), ..object };
    let decision = rights.roles().decide(Question { principal: &maker, method, object: Some(&object) });
    if decision.is_allowed() {
        return None;
    }
    let reason = format!(
        "its address was not known when `{maker}` made it, and `{maker}` may not have it there: {decision}"
    );
    let hint = "delete it, or ask the administrator of this host; enabling it asks again".to_owned();
    Some(Trouble { code: "NOT_ALLOWED", reason, hint })
}

/// An event of the host, for rules. It has no labels and no function, and all of its fields can be
/// read.
pub(crate) const fn host_event<'a>(event: &'a ProbeName, none: &'a Labels) -> Object<'a> {
    let reads = Reads::NONE.with(Read::HostEvents);
    Object { name: event, labels: none, functions: &[], module: None, reads, known: Known::All }
}

#[cfg(test)]
mod tests {
    use kprobed_rights::{Principal, Roles};
    use kprobed_verdict::checker::Target;

    use super::*;
    use crate::auth::{AuditQueue, Operation};
    use crate::samples::probe as test_probe;

    #[test]
    fn a_place_that_is_resolved_later_is_judged_by_the_roles_of_its_maker() {
        let roles = "[[role]]\nname = \"team\"\nprincipals = [\"group:net\"]\n[[role.allow]]\nmethods = [\"change\"]\n\
            reads = [\"registers\"]\n[[role.deny]]\nfunctions = [\"*_key\"]\n";
        let rights = Rights::new(Roles::parse(roles).unwrap(), AuditQueue::new().0);
        let maker = Principal::of_names(&["uid:7".to_owned(), "group:net".to_owned()]).unwrap();
        let probe = test_probe(1, "net/rx").with(|record| *record = record.clone().by(&maker));
        let at = |functions: &[&str]| {
            let functions = functions.iter().map(|name| (*name).to_owned()).collect();
            let target = Target { functions, module: Some("nf".to_owned()), whole: true };
            Footprint { target, reads: Reads::NONE, ..Footprint::default() }
        };
        assert_eq!(denied_to_maker(&rights, &probe, &at(&["nf_hook"])), None);
        let denied = denied_to_maker(&rights, &probe, &at(&["nf_hook", "nf_key"])).unwrap();
        assert_eq!(denied.code, "NOT_ALLOWED");
        assert!(
            denied.reason.contains("`uid:7` may not have it there: role `team`, line 7 forbids it"),
            "{denied:?}"
        );
        // Its group is one of the names that were kept with it: without it, it has no role.
        let nameless = probe.clone().with(|record| record.creator_names.clear());
        let denied = denied_to_maker(&rights, &nameless, &at(&["nf_hook"])).unwrap();
        assert!(denied.reason.ends_with("it has no role"), "{denied:?}");
        // What a file declares belongs to the daemon.
        let own = probe.with(|record| record.creator.clear());
        assert_eq!(denied_to_maker(&rights, &own, &at(&["nf_key"])), None);
    }

    #[test]
    fn a_refusal_names_no_probe_that_its_caller_did_not_name() {
        let roles = "[[role]]\nname = \"team\"\nprincipals = [\"uid:7\"]\n[[role.allow]]\nmethods = [\"change\"]\n\
            groups = [\"net\"]\nreads = []\n";
        let rights = Rights::new(Roles::parse(roles).unwrap(), AuditQueue::new().0);
        let principal = Arc::new(Principal::of_names(&["uid:7".to_owned()]).unwrap());
        let caller = Caller::new(principal, Method::named("CreateProbe").unwrap(), Operation::default());
        let of = |group: &str| {
            let name = ProbeName::new(group, "unnamed").unwrap();
            on_group(&rights, &caller, &name, &Labels::default()).map_err(|error| error.message)
        };
        assert_eq!(of("net"), Ok(()));
        assert_eq!(
            of("kprobes").unwrap_err(),
            "`uid:7` may not call `CreateProbe` on a new probe of the group `kprobes`: role `team`, line 4 does not \
             allow the group"
        );
    }

    #[test]
    fn what_a_probe_reads_is_told_to_those_who_may_look_at_it() {
        let roles = "[[role]]\nname = \"team\"\nprincipals = [\"uid:7\", \"uid:8\"]\n[[role.allow]]\n\
            methods = [\"change\"]\nreads = [\"registers\"]\n\
            [[role]]\nname = \"looks\"\nprincipals = [\"uid:8\"]\n[[role.allow]]\nmethods = [\"read\"]\n";
        let rights = Arc::new(Rights::new(Roles::parse(roles).unwrap(), AuditQueue::new().0));
        let probe = test_probe(1, "net/rx");
        let refusal = |uid: &str, probe: &Probe| {
            let principal = Arc::new(Principal::of_names(&[uid.to_owned()]).unwrap());
            let caller = Caller::new(principal, Method::named("DeleteProbe").unwrap(), Operation::default());
            let error = on_probe(&rights, &caller, probe, &probe.object()).unwrap_err();
            assert!(error.metadata.contains(&("probe", "net/rx".to_owned())), "{error:?}");
            error.message
        };
        assert!(refusal("uid:8", &probe).contains("does not allow to read "));
        let hidden = refusal("uid:7", &probe);
        assert!(hidden.ends_with("does not allow what it reads"), "{hidden}");
        let own = probe.with(|record| record.creator = "uid:7".to_owned());
        assert!(refusal("uid:7", &own).contains("does not allow to read "));
    }
}
