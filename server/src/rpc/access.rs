//! Access to what probes record: which of them a caller may observe.
//!
//! Owns the question for each probe or event that a stream or an aggregation is about. Changes are
//! judged by the control thread instead. Never decides itself: [`kprobed_rights`] does.

use std::fmt::Write as _;
use std::sync::Arc;

use kprobed_audit::{Action, Entry};
use kprobed_rights::{Limit, Object, Read, Reads};
use tonic::Request;

use crate::auth::{Caller, Rights, Share};
use crate::control::{Registry, permission};
use crate::error::Error;
use kprobed_lang::model::{Labels, ProbeName, ProbeUid};
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

impl Access {
    /// Refuses a caller that may not observe a probe, or an event of the host. `also` is what is read
    /// besides its fields.
    pub(super) fn require(&self, caller: &Caller, name: &ProbeName, also: Option<Read>) -> Result<(), Error> {
        let Some(probe) = self.registry.get(name) else {
            permission::on_event(&self.rights, caller, name)?;
            return Ok(());
        };
        let mut object = probe.object();
        object.reads = also.map_or(object.reads, |read| object.reads.and(Reads::NONE.with(read)));
        self.rights.require(caller, Some(&object))?;
        Ok(())
    }

    /// Whether a caller may observe a probe, or an event of the host. Not being able to is no refusal.
    pub(super) fn allows(&self, caller: &Caller, name: &ProbeName, also: Option<Read>) -> bool {
        let none = Labels::default();
        let probe = self.registry.get(name);
        let object =
            probe.as_ref().map_or_else(|| permission::host_event(name, &none), |probe| probe.object());
        let reads = also.map_or(object.reads, |read| object.reads.and(Reads::NONE.with(read)));
        self.rights.allows(caller, Some(&Object { reads, ..object }))
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
    /// yet, nothing is known that a rule could be compared with. Events of the host have negative ids.
    fn may_receive(&self, caller: &Caller, name: &ProbeName, uid: ProbeUid) -> bool {
        match self.registry.by_uid(uid) {
            Some(probe) => self.rights.allows(caller, Some(&probe.object())),
            None if uid.0 < 0 => {
                let none = Labels::default();
                let object = permission::host_event(name, &none);
                self.rights.allows(caller, Some(&object))
            }
            None => false,
        }
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
