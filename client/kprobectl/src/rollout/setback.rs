//! Hosts that do not do what they are asked.
//!
//! Owns what that means: one that does not answer is left out if so many are tolerated, or lets the roll-out wait; one that says no, or does
//! not pass a gate, takes everything back or lets it wait, as was asked for.

use super::drive::{happened, pause, take_back};
use super::state::{OnFailure, State, Step};
use super::verdict::SILENT;
use super::world::{Said, Stopped, Trouble, World};

/// Notes why a host did not answer as it should.
pub(super) fn trouble(
    state: &mut State,
    index: usize,
    said: Result<Said, Trouble>,
    silent: &mut Vec<usize>,
    refused: &mut Vec<usize>,
) {
    let trouble = match said {
        Err(trouble) => trouble,
        Ok(_) => Trouble { is_refusal: false, message: "it answered something else".to_owned() },
    };
    state.hosts[index].note = trouble.message;
    if trouble.is_refusal { refused.push(index) } else { silent.push(index) }
}

/// Whether so many more hosts may be left out.
pub(super) fn are_tolerated(state: &State, hosts: usize) -> bool {
    let before = state.hosts.iter().filter(|host| host.step == Step::LeftOut).count();
    hosts == 0 || (before + hosts) as u64 <= state.setting.tolerated
}

/// Goes on without hosts. `what` is what keeps them out.
pub(super) fn leave_out<W: World>(
    world: &W,
    state: &mut State,
    what: &str,
    hosts: &[usize],
) -> Result<(), Stopped<W::Error>> {
    if hosts.is_empty() {
        return Ok(());
    }
    for index in hosts {
        state.hosts[*index].step = Step::LeftOut;
    }
    let message = reason(state, what, hosts);
    happened(world, state, "left_out", hosts, message)
}

/// Goes on without hosts that do not answer, if so many are tolerated, or pauses. True: it goes on.
pub(super) fn go_on_without<W: World>(
    world: &W,
    state: &mut State,
    silent: &[usize],
) -> Result<bool, Stopped<W::Error>> {
    if are_tolerated(state, silent.len()) {
        leave_out(world, state, SILENT, silent)?;
        return Ok(true);
    }
    let reason = reason(state, SILENT, silent);
    pause(world, state, reason)?;
    Ok(false)
}

/// A gate is not passed. `what` says which, for people.
pub(super) fn fail<W: World>(
    world: &W,
    state: &mut State,
    what: &str,
    hosts: &[usize],
) -> Result<(), Stopped<W::Error>> {
    let reason = reason(state, what, hosts);
    happened(world, state, "gate_failed", hosts, reason.clone())?;
    match state.setting.on_failure {
        OnFailure::Undo => take_back(world, state, reason),
        OnFailure::Pause => pause(world, state, reason),
    }
}

/// Hosts in a reason are few: the others are in the state.
const NAMED: usize = 3;

/// What happened to hosts, in one line.
pub(super) fn reason(state: &State, what: &str, hosts: &[usize]) -> String {
    let mut parts: Vec<_> = hosts
        .iter()
        .take(NAMED)
        .map(|index| format!("{}: {}", state.hosts[*index].name, state.hosts[*index].note))
        .collect();
    if hosts.len() > NAMED {
        parts.push(format!("and {} more hosts", hosts.len() - NAMED));
    }
    format!("{what}: {}", parts.join("; "))
}
