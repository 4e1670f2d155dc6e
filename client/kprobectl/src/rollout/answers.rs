//! Hosts by their answers, and what follows for those that do not answer, refuse, or fail a gate.
//!
//! Owns the consequences: a host without an answer is left out if enough are tolerated, or the roll-out
//! pauses; after a refusal or a failed gate it is undone or pauses, as `--on-failure` says.

use super::drive::{happened, pause, take_back};
use super::state::{OnFailure, State, Step};
use super::world::{HostFailure, World};

/// Reasons for which hosts are left out, as messages begin.
pub(super) const REFUSED: &str = "the change is refused";
pub(super) const SILENT: &str = "no answer";

/// Hosts by their answers, as indexes into the state, in its order. Each host is in one of the lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    pub(crate) done: Vec<usize>,
    pub(crate) refused: Vec<usize>,
    /// Without an answer.
    pub(crate) silent: Vec<usize>,
}

impl Answers {
    /// Notes whether a host has done what was asked for, or why it has not.
    pub(super) fn note(&mut self, state: &mut State, index: usize, answer: Result<(), HostFailure>) {
        let (list, note) = match answer {
            Ok(()) => (&mut self.done, String::new()),
            Err(HostFailure::Silent(message)) => (&mut self.silent, message),
            Err(HostFailure::Refused(message) | HostFailure::Foreign(message)) => {
                (&mut self.refused, message)
            }
        };
        list.insert(list.partition_point(|before| *before < index), index);
        state.hosts[index].note = note;
    }

    /// Why the roll-out does not go on without the hosts that failed. Absent: it does.
    pub(crate) fn obstacle(&self, state: &State) -> Option<String> {
        if are_tolerated(state, self.refused.len() + self.silent.len()) {
            None
        } else if self.refused.is_empty() {
            Some(reason(state, SILENT, &self.silent))
        } else {
            Some(reason(state, REFUSED, &self.refused))
        }
    }
}

/// Whether this many more hosts may be left out.
fn are_tolerated(state: &State, hosts: usize) -> bool {
    let before = state.of_all_waves(Step::LeftOut).len();
    hosts == 0 || (before + hosts) as u64 <= state.setting.tolerated
}

/// Leaves hosts out and continues. `what` says why.
pub(super) fn leave_out<W: World>(
    world: &W,
    state: &mut State,
    what: &str,
    hosts: &[usize],
) -> Result<(), W::Error> {
    if hosts.is_empty() {
        return Ok(());
    }
    for index in hosts {
        state.hosts[*index].step = Step::LeftOut;
    }
    let message = reason(state, what, hosts);
    happened(world, state, "left_out", hosts, message)
}

/// Continues without hosts that do not answer if they are tolerated, or pauses. True: it continues.
pub(super) fn go_on_without<W: World>(
    world: &W,
    state: &mut State,
    silent: &[usize],
) -> Result<bool, W::Error> {
    let goes_on = are_tolerated(state, silent.len());
    if goes_on {
        leave_out(world, state, SILENT, silent)?;
    } else {
        let reason = reason(state, SILENT, silent);
        pause(world, state, reason)?;
    }
    Ok(goes_on)
}

/// Handles a failed gate. `what` names it.
pub(super) fn fail<W: World>(
    world: &W,
    state: &mut State,
    what: &str,
    hosts: &[usize],
) -> Result<(), W::Error> {
    let reason = reason(state, what, hosts);
    happened(world, state, "gate_failed", hosts, reason.clone())?;
    match state.setting.on_failure {
        OnFailure::Undo => take_back(world, state, reason),
        OnFailure::Pause => pause(world, state, reason),
    }
}

/// Most hosts that a reason names; the state has the others.
const NAMED: usize = 3;

/// The reason of hosts, in one line.
pub(super) fn reason(state: &State, what: &str, hosts: &[usize]) -> String {
    let named = hosts.iter().take(NAMED).map(|index| &state.hosts[*index]);
    let mut parts: Vec<_> = named.map(|host| format!("{}: {}", host.name, host.note)).collect();
    if hosts.len() > NAMED {
        parts.push(format!("and {} more hosts", hosts.len() - NAMED));
    }
    format!("{what}: {}", parts.join("; "))
}
