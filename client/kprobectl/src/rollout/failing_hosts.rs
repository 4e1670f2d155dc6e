//! Hosts that do not answer, refuse, or fail a gate.
//!
//! Owns the consequences: a host without an answer is left out if enough are tolerated, or the
//! roll-out pauses; after a refusal or a failed gate it is undone or pauses, as `--on-failure`
//! says.

use super::state::{OnFailure, State, Step};
use super::transition::{happened, pause, take_back};
use super::world::{HostAnswer, HostFailure, Stopped, World};

/// Reasons for which hosts are left out, as messages begin.
pub(super) const REFUSED: &str = "the change is refused";
pub(super) const SILENT: &str = "no answer";

/// Notes why a host failed.
pub(super) fn trouble(
    state: &mut State,
    index: usize,
    said: Result<HostAnswer, HostFailure>,
    silent: &mut Vec<usize>,
    refused: &mut Vec<usize>,
) {
    let trouble = match said {
        Err(trouble) => trouble,
        Ok(_) => HostFailure { is_refusal: false, message: "it answered something else".to_owned() },
    };
    state.hosts[index].note = trouble.message;
    if trouble.is_refusal { refused.push(index) } else { silent.push(index) }
}

/// Whether this many more hosts may be left out.
pub(super) fn are_tolerated(state: &State, hosts: usize) -> bool {
    let before = state.hosts.iter().filter(|host| host.step == Step::LeftOut).count();
    hosts == 0 || (before + hosts) as u64 <= state.setting.tolerated
}

/// Leaves hosts out and continues. `what` says why.
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

/// Continues without hosts that do not answer if they are tolerated, or pauses. True: it continues.
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

/// Handles a failed gate. `what` names it.
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

/// Most hosts that a reason names; the state has the others.
const NAMED: usize = 3;

/// The reason of hosts, in one line.
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
