//! Probes in memory, for tests of this crate and of the daemon.
//!
//! Never used by the daemon itself.

#![expect(clippy::unwrap_used, reason = "what tests make fits")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use kprobed_host::kernel::Livepatches;
use kprobed_host::tracefs::{KprobeList, OwnEvent};
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::{Moment, ProbeName, ProbeUid};
use kprobed_rights::Roles;
use kprobed_verdict::checker::{Checker, DefinitionText};
use kprobed_verdict::validate::Arming;

use crate::auth::{AuditQueue, Caller, Rights};
use crate::create::new_probe;
use crate::guard::look;
use crate::judge::Grounds;
use crate::observed::Switches;
use crate::reconcile::{as_probe, job};
use crate::store::{ProbeSpec, Record};
use crate::{CreateRequest, Observed, Probe, ProbeState, Registry, Step};

/// A probe that is armed.
pub fn probe(uid: i64, name: &str) -> Probe {
    let name: ProbeName = name.parse().unwrap();
    let line = format!("p:{name} kernel_clone");
    let definition = Arc::new(DefinitionText::new(line.clone()));
    let spec = ProbeSpec { definition, enabled: true, ..ProbeSpec::default() };
    let record = Record::new(name.clone(), spec, line.clone(), SystemTime::UNIX_EPOCH);
    Probe {
        own: Some(OwnEvent::made(&name, &line, 1500)),
        location: "kernel_clone+0x0".to_owned(),
        told_location: "kernel_clone+0x0".to_owned(),
        arming: Some(Arming::Ftrace),
        ..Probe::unresolved(Record { uid: ProbeUid(uid), ..record }, ProbeKind::Entry, ProbeState::Armed)
    }
}

impl Probe {
    /// The same probe with another record.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Record)) -> Self {
        change(&mut self.record);
        self
    }
}

/// Puts a probe that was seen.
pub fn note(registry: &Registry, probe: Probe) -> Arc<Probe> {
    registry.put(probe.clone());
    registry.seen(probe)
}

/// Forgets a probe.
pub fn forget(registry: &Registry, name: &str) {
    registry.remove(&name.parse().unwrap());
}

/// A host on which everything can fire, and that has no event of ours.
pub(crate) fn observed() -> Observed {
    let switches = Switches {
        instance: "/nonexistent".to_owned(),
        altered: Vec::new(),
        kprobes: true,
        ftrace: true,
        repaired_every: None,
    };
    Observed { switches, events: HashMap::new(), livepatches: Livepatches::default() }
}

/// The probe that a request makes, before the kernel has it.
pub fn made(checker: &Checker, request: CreateRequest) -> Probe {
    made_by(checker, request).0
}

/// The same, with what is done in the kernel for it.
pub(crate) fn made_by(checker: &Checker, request: CreateRequest) -> (Probe, Vec<Step>) {
    let mut grounds = Grounds::new(checker.recent_facts(), observed());
    let now = Moment { wall: SystemTime::now(), boot_id: "boot".into(), boot_ns: 0 };
    let told = |taken| taken;
    let job = new_probe(checker, (&Caller::daemon(), &told), request, &mut grounds, &|| now.clone()).unwrap();
    let steps = job.steps().cloned().collect();
    (job.probe, steps)
}

/// The probes that a start makes of records whose events the kernel does not have: compared
/// with what they meant, and judged anew.
pub fn recalled(checker: &Checker, records: Vec<Record>) -> Vec<Probe> {
    let list = KprobeList::default();
    let (observed, mut facts) = (observed(), checker.recent_facts());
    let rights = Rights::new(Roles::default(), AuditQueue::new().0);
    let recalled = records.into_iter().map(|record| {
        let probe = as_probe(checker, record);
        let Ok(guarded) = look(checker, &rights, &probe, &mut facts) else {
            panic!("`{}` is held back", probe.name)
        };
        let probe = probe.guarded(guarded);
        job(checker, &mut facts, &observed, &list, &probe, None).unwrap().probe
    });
    recalled.collect()
}
