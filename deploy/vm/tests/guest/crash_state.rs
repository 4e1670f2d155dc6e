//! The states that are allowed after a fault: acknowledged changes exactly, other changes as a
//! whole or not at all.
//!
//! Owns what follows from the answers to a client. Never looks at a guest: [`crate::crash_check`]
//! does.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result};
use kprobed_client::Error;
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome;
use kprobed_client::api::{Lease, Probe, ProbeState};

/// A probe as it was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestedProbe {
    pub(crate) definition: String,
    pub(crate) enabled: bool,
    pub(crate) filter: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) term: Term,
}

/// How long a probe is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Term {
    #[default]
    None,
    /// A lease of so many seconds.
    Lasts(i64),
    /// Such a lease is over: the probe is listed, and not in the kernel.
    Ended(i64),
    /// As long as a client is connected.
    Held,
    /// What the definition means has changed: the probe is listed, and not in the kernel.
    HeldBack,
}

impl Term {
    /// Whether the kernel has the probe.
    pub(crate) fn is_in_kernel(self) -> bool {
        !matches!(self, Self::Ended(_) | Self::HeldBack)
    }
}

/// All probes, by `GROUP/EVENT`.
pub(crate) type Model = BTreeMap<String, RequestedProbe>;

/// What became of a request.
pub(crate) struct Fate {
    /// The probe that each change is about, what it is if that is made, and whether the client
    /// knows.
    changes: Vec<(String, Option<RequestedProbe>, Known)>,
    whole: bool,
}

/// What a client knows about a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Done,
    Refused,
    /// The connection was lost before an answer.
    No,
}

impl Fate {
    /// No change was requested.
    pub(crate) fn nothing_asked() -> Self {
        Self { changes: Vec::new(), whole: true }
    }

    /// Nothing is known about these changes of a state.
    pub(crate) fn unknown(before: &Model, changes: &[Change], whole: bool) -> Self {
        let changes = changes.iter().map(|change| {
            let (name, after) = made(before, change);
            (name, after, Known::No)
        });
        Self { changes: changes.collect(), whole }
    }

    /// The outcome, as the client knows it, of one change that makes this probe.
    pub(crate) fn of_one<T>(name: &str, after: RequestedProbe, outcome: &Result<T, Error>) -> Self {
        Self { changes: vec![(name.to_owned(), Some(after), known_of(outcome))], whole: false }
    }

    /// Nothing is known about what becomes of these probes, each for itself.
    pub(crate) fn may_become(changes: impl IntoIterator<Item = (String, Option<RequestedProbe>)>) -> Self {
        let changes = changes.into_iter().map(|(name, after)| (name, after, Known::No));
        Self { changes: changes.collect(), whole: false }
    }

    /// The outcomes, as the client knows them, of these changes of a state.
    pub(crate) fn of(
        before: &Model,
        changes: &[Change],
        whole: bool,
        outcomes: &Result<Vec<Result<Outcome, Error>>, Error>,
    ) -> Self {
        let known: Vec<_> = match outcomes {
            Ok(outcomes) => outcomes.iter().map(known).collect(),
            Err(error) => vec![if is_answer(error) { Known::Refused } else { Known::No }; changes.len()],
        };
        let made = changes.iter().zip(known).map(|(change, known)| {
            let (name, after) = made(before, change);
            (name, after, known)
        });
        Self { changes: made.collect(), whole }
    }

    /// How many changes were acknowledged to the client.
    pub(crate) fn acknowledged(&self) -> usize {
        self.changes.iter().filter(|(_, _, known)| *known == Known::Done).count()
    }

    /// The states that fit.
    pub(crate) fn possible(&self, before: &Model) -> Possible {
        let mut states = vec![before.clone()];
        let apply = |state: &mut Model, name: &String, after: &Option<RequestedProbe>| {
            match after {
                Some(wanted) => state.insert(name.clone(), wanted.clone()),
                None => state.remove(name),
            };
        };
        if self.whole && self.changes.iter().all(|(_, _, known)| *known == Known::No) {
            let mut after = before.clone();
            for (name, wanted, _) in &self.changes {
                apply(&mut after, name, wanted);
            }
            states.push(after);
            return Possible(states);
        }
        for (name, wanted, known) in &self.changes {
            match known {
                Known::Refused => {}
                Known::Done => states.iter_mut().for_each(|state| apply(state, name, wanted)),
                Known::No => {
                    let mut after = states.clone();
                    for state in &mut after {
                        apply(state, name, wanted);
                    }
                    states.extend(after);
                }
            }
        }
        Possible(states)
    }
}

/// An error that the daemon itself gave, and not one of the way to it.
fn is_answer(error: &Error) -> bool {
    error.rpc().is_some_and(|rpc| !rpc.reason.is_empty())
}

fn known(outcome: &Result<Outcome, Error>) -> Known {
    match outcome {
        Ok(Outcome::Failed(_)) => Known::Refused,
        other => known_of(other),
    }
}

/// What the client knows after a call that makes one change.
pub(crate) fn known_of<T>(outcome: &Result<T, Error>) -> Known {
    match outcome {
        Ok(_) => Known::Done,
        Err(error) if is_answer(error) => Known::Refused,
        Err(_) => Known::No,
    }
}

/// The probe that a change is about, and what it is afterwards.
pub(crate) fn made(before: &Model, change: &Change) -> (String, Option<RequestedProbe>) {
    match change {
        Change::Create(request) => {
            let mut words = request.definition.split([':', ' ']);
            // An event of the host is its name.
            let (first, name) = (words.next().unwrap_or_default(), words.next());
            let name = name.unwrap_or(first).to_owned();
            let wanted = RequestedProbe {
                definition: request.definition.clone(),
                enabled: request.enabled,
                filter: request.filter.clone(),
                labels: sorted(&request.labels),
                term: request.lease.as_ref().map_or(Term::None, term),
            };
            (name, Some(wanted))
        }
        Change::Update(request) => {
            let wanted = before.get(&request.name).cloned().map(|mut wanted| {
                if let Some(definition) = &request.definition {
                    wanted.definition.clone_from(definition);
                }
                if let Some(enabled) = request.enabled {
                    wanted.enabled = enabled;
                }
                if let Some(filter) = &request.filter {
                    wanted.filter.clone_from(filter);
                }
                wanted.labels.extend(sorted(&request.set_labels));
                if let Some(lease) = &request.lease {
                    wanted.term = term(lease);
                }
                wanted
            });
            (request.name.clone(), wanted)
        }
        Change::Delete(request) => (request.name.clone(), None),
    }
}

fn sorted(labels: &HashMap<String, String>) -> BTreeMap<String, String> {
    labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The states that may be found.
pub(crate) struct Possible(Vec<Model>);

impl Possible {
    pub(crate) fn only(model: Model) -> Self {
        Self(vec![model])
    }

    /// The state, if only one fits.
    pub(crate) fn single(self) -> Option<Model> {
        <[Model; 1]>::try_from(self.0).ok().map(|[state]| state)
    }

    /// The one of them that the daemon shows.
    pub(crate) fn find(&self, probes: &[Probe]) -> Result<&Model> {
        self.find_state(&shown(probes))
    }

    /// The one of them that was found.
    pub(crate) fn find_state(&self, found: &Model) -> Result<&Model> {
        self.0.iter().find(|state| *state == found).with_context(|| {
            format!(
                "none of the {} states that may be there:\n{found:#?}\nthe first one:\n{:#?}",
                self.0.len(),
                self.0.first()
            )
        })
    }
}

/// What the daemon shows.
pub(crate) fn shown(probes: &[Probe]) -> Model {
    probes.iter().map(|probe| (probe.name.clone(), wanted(probe))).collect()
}

fn wanted(probe: &Probe) -> RequestedProbe {
    let term = match probe.lease.as_ref().map_or(Term::None, term) {
        Term::Lasts(seconds) if probe.state() == ProbeState::Expired => Term::Ended(seconds),
        _ if probe.state() == ProbeState::HeldBack => Term::HeldBack,
        term => term,
    };
    RequestedProbe {
        definition: probe.definition.clone(),
        enabled: probe.enabled,
        filter: probe.filter.clone(),
        labels: sorted(&probe.labels),
        term,
    }
}

fn term(lease: &Lease) -> Term {
    match &lease.duration {
        Some(duration) => Term::Lasts(duration.seconds),
        None if lease.holder.is_empty() => Term::None,
        None => Term::Held,
    }
}
