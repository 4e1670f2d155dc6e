//! What is wanted of the probes, and the states that are allowed after a fault.

use std::collections::BTreeMap;
use std::sync::Arc;

use kprobed_lang::model::Lease;

use crate::{Probe, ProbeState};

/// A probe as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) definition: String,
    pub(super) enabled: bool,
    pub(super) filter: String,
    pub(super) label: String,
    /// The file that declares it, if one does.
    pub(super) file: String,
    pub(super) term: Term,
}

/// How long it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Term {
    None,
    Lasts,
    Held,
    /// Its lease is over: it is listed, and not in the kernel.
    Ended,
    /// It means something else on this kernel, or its module is not there: the same.
    HeldBack,
    /// It cost too much: it is off.
    Tripped,
}

impl Term {
    pub(super) const fn is_in_kernel(self) -> bool {
        !matches!(self, Self::Ended | Self::HeldBack)
    }
}

/// All probes, by `GROUP/EVENT`.
pub(super) type Model = BTreeMap<String, Wanted>;

/// What a client knows about a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Done,
    Refused,
    /// The daemon has ended before its answer.
    No,
}

/// What becomes of a probe, and what the client knows.
pub(super) type Fate = (String, Option<Wanted>, Known);

/// What may be there.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    /// What is shown by a daemon that has met an error and goes on.
    pub(super) live: Vec<Model>,
    /// What is there after the next start.
    pub(super) found: Vec<Model>,
    /// The daemon has stopped.
    pub(super) is_stopped: bool,
    /// It works on what was promised: what it shows may lag behind.
    pub(super) is_settling: bool,
}

impl Expected {
    pub(super) fn unchanged(before: &Model) -> Self {
        Self::after(before, &[], false)
    }

    pub(super) fn after(before: &Model, fates: &[Fate], is_whole: bool) -> Self {
        let found = possible(before, fates, is_whole);
        Self { live: found.clone(), found, is_stopped: false, is_settling: false }
    }
}

fn apply(state: &mut Model, name: &str, wanted: Option<&Wanted>) {
    match wanted {
        Some(wanted) => state.insert(name.to_owned(), wanted.clone()),
        None => state.remove(name),
    };
}

/// The states that fit what became of changes.
pub(super) fn possible(before: &Model, fates: &[Fate], is_whole: bool) -> Vec<Model> {
    let mut states = vec![before.clone()];
    if is_whole && fates.iter().all(|(_, _, known)| *known == Known::No) {
        let mut after = before.clone();
        for (name, wanted, _) in fates {
            apply(&mut after, name, wanted.as_ref());
        }
        states.push(after);
        return states;
    }
    for (name, wanted, known) in fates {
        match known {
            Known::Refused => {}
            Known::Done => states.iter_mut().for_each(|state| apply(state, name, wanted.as_ref())),
            Known::No => {
                let mut after = states.clone();
                for state in &mut after {
                    apply(state, name, wanted.as_ref());
                }
                states.extend(after);
            }
        }
    }
    states
}

/// What a daemon shows.
pub(super) fn shown(probes: &[Arc<Probe>]) -> Model {
    let wanted = |probe: &Probe| {
        let term = match (&probe.state, &probe.spec.metadata.lease) {
            (ProbeState::Expired(_), _) => Term::Ended,
            (ProbeState::HeldBack(_), _) => Term::HeldBack,
            (ProbeState::Tripped(_), _) => Term::Tripped,
            (_, Some(Lease::Until { .. })) => Term::Lasts,
            (_, Some(Lease::Held { .. })) => Term::Held,
            (_, None) => Term::None,
        };
        Wanted {
            definition: probe.spec.definition.as_str().to_owned(),
            enabled: probe.spec.enabled,
            filter: probe.spec.filter.clone(),
            label: probe.spec.labels.to_string(),
            file: probe.spec.metadata.declared_by.clone().unwrap_or_default(),
            term,
        }
    };
    probes.iter().map(|probe| (probe.name.to_string(), wanted(probe))).collect()
}

/// Probes of the base that are deleted together.
pub(super) const MANY: usize = 3;

/// A probe that reads memory.
pub(super) fn definition(name: &str) -> String {
    format!("p:kprobes/{name} vfs_read number=+0x70(%di):u64")
}

/// What each case begins with.
pub(super) fn base() -> Model {
    let wanted = |name: &str, enabled: bool, filter: &str| {
        let wanted = Wanted {
            definition: definition(name),
            enabled,
            filter: filter.to_owned(),
            label: format!("role={name}"),
            file: String::new(),
            term: Term::None,
        };
        (format!("kprobes/{name}"), wanted)
    };
    let mut model = Model::from([
        wanted("keep", true, "number == 3"),
        wanted("off", false, ""),
        // What replaces its definition has no `number`.
        wanted("target", true, "common_pid > 1"),
        wanted("leased", true, "number == 6"),
    ]);
    if let Some(leased) = model.get_mut("kprobes/leased") {
        leased.term = Term::Lasts;
    }
    model.extend((0..MANY).map(|number| wanted(&format!("many{number}"), true, "")));
    let (event, filter) = EVENTS[0];
    let (_, mut recorded) = wanted("sched_process_exec", true, filter);
    event.clone_into(&mut recorded.definition);
    model.insert(event.to_owned(), recorded);
    model
}

/// The event of the host that is recorded in the base, and the one that an act records.
pub(super) const EVENTS: [(&str, &str); 2] =
    [("sched/sched_process_exec", "pid > 1"), ("sched/sched_process_exit", "pid > 2")];

impl Wanted {
    /// Whether it is an event of the host, and not one that the daemon defines.
    pub(super) fn is_of_the_host(&self) -> bool {
        !self.definition.contains(':')
    }
}
