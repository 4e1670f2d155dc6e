//! What may be there after a fault: what was acknowledged exactly, and what was not as a whole or not at all.
//!
//! Owns the comparison of the daemon's probes, and of what the kernel has, with that. Never makes a change.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result, ensure};
use kprobed_client::Error;
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome;
use kprobed_client::api::{Probe, ProbeState};

use crate::daemon::{DaemonGuest, TRACEFS};

/// Another program's event: nobody touches it.
pub(crate) const FOREIGN: &str = "p:theirs/foreign vfs_statx x=%di:u64";

/// A probe as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) definition: String,
    pub(crate) enabled: bool,
    pub(crate) filter: String,
    pub(crate) labels: BTreeMap<String, String>,
}

/// All probes, by `GROUP/EVENT`.
pub(crate) type Model = BTreeMap<String, Wanted>;

/// What became of a request.
pub(crate) struct Fate {
    /// The probe that each change is about, what it is if that is made, and whether the client knows.
    changes: Vec<(String, Option<Wanted>, Known)>,
    whole: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Done,
    Refused,
    /// The connection was lost before an answer.
    No,
}

impl Fate {
    /// No change was asked for.
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

    /// What the client was told about these changes of a state.
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

    /// How many changes the client was told are made.
    pub(crate) fn acknowledged(&self) -> usize {
        self.changes.iter().filter(|(_, _, known)| *known == Known::Done).count()
    }

    /// The states that fit.
    pub(crate) fn possible(&self, before: &Model) -> Possible {
        let mut states = vec![before.clone()];
        let apply = |state: &mut Model, name: &String, after: &Option<Wanted>| {
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
        Ok(_) => Known::Done,
        Err(error) if is_answer(error) => Known::Refused,
        Err(_) => Known::No,
    }
}

/// The probe that a change is about, and what it is afterwards.
fn made(before: &Model, change: &Change) -> (String, Option<Wanted>) {
    match change {
        Change::Create(request) => {
            let name = request.definition.split([':', ' ']).nth(1).unwrap_or_default().to_owned();
            let wanted = Wanted {
                definition: request.definition.clone(),
                enabled: request.enabled,
                filter: request.filter.clone(),
                labels: sorted(&request.labels),
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

    fn find(&self, probes: &[Probe]) -> Result<&Model> {
        self.find_state(&probes.iter().map(|probe| (probe.name.clone(), wanted(probe))).collect())
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

fn wanted(probe: &Probe) -> Wanted {
    Wanted {
        definition: probe.definition.clone(),
        enabled: probe.enabled,
        filter: probe.filter.clone(),
        labels: sorted(&probe.labels),
    }
}

/// What a daemon shows that has met an error: what it acknowledged, and nothing that it refused.
pub(crate) fn check_live(guest: &DaemonGuest, possible: &Possible) -> Result<()> {
    let probes = guest.probes().with_context(|| format!("after the error:\n{}", guest.log()))?;
    possible.find(&probes).map(drop).with_context(|| format!("after the error:\n{}", guest.log()))
}

/// What is there after a start without faults, in the daemon and in the kernel; answers the state.
pub(crate) fn check(guest: &DaemonGuest, possible: &Possible) -> Result<Model> {
    judge(guest, possible)
        .with_context(|| format!("{}\n{}", guest.tracefs("kprobe_events").unwrap_or_default(), guest.log()))
}

fn judge(guest: &DaemonGuest, possible: &Possible) -> Result<Model> {
    let probes = guest.probes()?;
    let state = possible.find(&probes)?;
    for probe in &probes {
        let expected = if probe.enabled { ProbeState::Armed } else { ProbeState::Disabled };
        ensure!(probe.state() == expected && probe.state_reason.is_empty(), "{probe:?}");
    }
    // The kernel has these probes, each once, and the event of the other program.
    let events = guest.tracefs("kprobe_events")?;
    let mut names: Vec<_> = events.lines().filter_map(|line| line.split([':', ' ']).nth(1)).collect();
    names.sort_unstable();
    let mut expected: Vec<_> = state.keys().map(String::as_str).collect();
    expected.push("theirs/foreign");
    expected.sort_unstable();
    ensure!(names == expected, "the kernel has {names:?}, not {expected:?}");
    ensure!(events.lines().any(|line| line == FOREIGN), "the event of another program was changed");
    ensure!(guest.tracefs("instances/theirs/events/theirs/foreign/enable")?.trim() == "1");
    for probe in &probes {
        let argument =
            |line: &str| -> Option<String> { Some(line.split(' ').nth(2)?.split('=').next()?.to_owned()) };
        ensure!(argument(&probe.definition) == argument(&probe.kernel_definition), "{probe:?}");
        ensure!(events.lines().any(|line| line == probe.kernel_definition), "{probe:?}\n{events}");
    }
    let instance = guest.instance()?;
    let switches = guest.shell(&format!(
        "cd {instance}/events/kprobes && for event in *; do [ -d $event ] && echo $event $(cat $event/enable) $(cat $event/filter); done; true"
    ))?;
    let mut switches: Vec<_> = switches.lines().collect();
    switches.sort_unstable();
    let expected: Vec<_> = state
        .iter()
        .map(|(name, wanted)| {
            let filter = if wanted.filter.is_empty() { "none" } else { &wanted.filter };
            format!("{} {} {filter}", name.trim_start_matches("kprobes/"), u8::from(wanted.enabled))
        })
        .collect();
    ensure!(switches == expected, "{switches:?} is not {expected:?}");
    let instances = guest.shell(&format!("ls {TRACEFS}/instances"))?;
    let own = instance.rsplit('/').next().unwrap_or_default();
    let mut expected = [own, "theirs"];
    expected.sort_unstable();
    ensure!(instances.lines().eq(expected), "{instances}");
    closes(guest)?;
    Ok(state.clone())
}

/// The probes record, and every hit is accounted for.
fn closes(guest: &DaemonGuest) -> Result<()> {
    guest.workload(&["number", "5"])?;
    let ledger = guest.ledger()?;
    ensure!(ledger.problems.is_empty(), "{:?}", ledger.problems);
    for probe in &ledger.probes {
        let hits = probe.hits.context("no hits")?;
        ensure!(hits == probe.read + probe.undecodable + probe.not_read, "{probe:?}");
        ensure!(probe.undecodable == 0 && probe.lost.unwrap_or(0) == 0, "{probe:?}");
    }
    let read = ledger.probes.iter().find(|probe| probe.probe == "kprobes/many8").map(|probe| probe.read);
    ensure!(read.is_none_or(|read| read >= 5), "{:?}", ledger.probes);
    Ok(())
}
