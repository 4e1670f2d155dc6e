//! Undo of a roll-out: each host back to its state before the change.
//!
//! Owns what is put back and what is left alone: a probe that another client has changed since is
//! not touched, and a host that cannot be put back keeps the roll-out from being undone.

use std::collections::BTreeMap;

use kprobed_client::api::Probe;

use super::change::requests;
use super::failing_hosts::{reason, trouble};
use super::recorded_change::{self, ChangeEvidence};
use super::state::{FormError, Phase, State, Step};
use super::transition::happened;
use super::world::{ChangeDone, HostAnswer, HostQuery, Stopped, World};

/// Undoes the change on all hosts that may have it. False: some hosts could not be put back.
pub(super) async fn undo<W: World>(world: &W, state: &mut State) -> Result<bool, Stopped<W::Error>> {
    let (mut silent, mut refused) = (Vec::new(), Vec::new());
    intend(world, state, &mut silent, &mut refused).await?;
    send(world, state, &mut silent, &mut refused).await?;
    silent.extend(refused);
    silent.sort_unstable();
    if silent.is_empty() {
        state.phase = Phase::Undone;
        happened(world, state, "undone", &[], String::new())?;
    } else {
        let message = reason(state, "not everything could be put back", &silent);
        happened(world, state, "undoing", &silent, message)?;
    }
    Ok(silent.is_empty())
}

/// Records the requests that put each host back.
async fn intend<W: World>(
    world: &W,
    state: &mut State,
    silent: &mut Vec<usize>,
    refused: &mut Vec<usize>,
) -> Result<(), Stopped<W::Error>> {
    let touched: Vec<_> = (0..state.hosts.len())
        .filter(|index| state.hosts[*index].is_touched() && state.hosts[*index].step != Step::UndoIntended)
        .collect();
    if touched.is_empty() {
        return Ok(());
    }
    let asks = touched.iter().map(|index| (*index, HostQuery::Probes)).collect();
    let mut found: BTreeMap<usize, Vec<Probe>> = BTreeMap::new();
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(HostAnswer::Probes(probes)) => {
            found.insert(index, probes);
        }
        other => trouble(state, index, other, silent, refused),
    };
    world.ask(state, asks, &mut said).await.map_err(Stopped::World)?;
    for (index, probes) in found {
        match reversals(state, index, &probes)? {
            Ok(back) => {
                let host = &mut state.hosts[index];
                host.step = if back.is_empty() { Step::Undone } else { Step::UndoIntended };
                (host.undo, host.note) = (back, String::new());
            }
            Err(problem) => {
                state.hosts[index].note = problem;
                refused.push(index);
            }
        }
    }
    world.save(state).map_err(Stopped::World)
}

/// The requests that put a host back, or why that is not possible.
fn reversals(
    state: &mut State,
    index: usize,
    probes: &[Probe],
) -> Result<Result<Vec<recorded_change::Change>, String>, FormError> {
    let documents = state.documents()?;
    let mut asked = Vec::new();
    let mut foreign = Vec::new();
    for change in &state.hosts[index].changes {
        let document = documents.iter().find(|document| document.name == change.probe);
        let document =
            document.ok_or_else(|| FormError::Damaged(format!("`{}` has no document", change.probe)))?;
        let wanted = recorded_change::wanted_after(change, document).map_err(FormError::Damaged)?;
        let live = probes.iter().find(|probe| probe.name == change.probe);
        match recorded_change::trace(change, &wanted, state.hosts[index].armed.get(&change.probe), live) {
            _ if recorded_change::is_back(change, live) => {}
            ChangeEvidence::NotDone => {}
            ChangeEvidence::Foreign => foreign.push(format!("`{}`", change.probe)),
            ChangeEvidence::Done(_) => {
                let Some(live) = live else { continue };
                if let Some(back) = recorded_change::reversal(change, live).map_err(FormError::Damaged)? {
                    asked.push((change.probe.clone(), back, live.clone()));
                }
            }
        }
    }
    if !foreign.is_empty() {
        return Ok(Err(format!(
            "{} was changed by someone else since, and is left alone: put it back by hand, then `kprobectl rollout undo` again",
            foreign.join(", ")
        )));
    }
    let mut back = Vec::new();
    for (name, request, live) in asked {
        back.push(state.record(&name, request, Some(&live)).map_err(FormError::Damaged)?);
    }
    Ok(Ok(back))
}

/// Sends the recorded requests.
async fn send<W: World>(
    world: &W,
    state: &mut State,
    silent: &mut Vec<usize>,
    refused: &mut Vec<usize>,
) -> Result<(), Stopped<W::Error>> {
    let intended: Vec<_> =
        (0..state.hosts.len()).filter(|index| state.hosts[*index].step == Step::UndoIntended).collect();
    if intended.is_empty() {
        return Ok(());
    }
    let asks = requests(state, &intended, true)?;
    let mut back = Vec::new();
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(HostAnswer::Made(done)) if done.len() == state.hosts[index].undo.len() => {
            let host = &mut state.hosts[index];
            let differs = host.undo.iter().zip(&done).find(|(sent, done)| {
                let change = host.changes.iter().find(|change| change.probe == sent.probe);
                let live = match done {
                    ChangeDone::Probe(probe) => Some(&**probe),
                    ChangeDone::Deleted => None,
                };
                !change.is_some_and(|change| recorded_change::is_back(change, live))
            });
            if let Some((sent, _)) = differs {
                host.note = format!("`{}` was put back, and is not as it was", sent.probe);
                refused.push(index);
            } else {
                (host.step, host.note) = (Step::Undone, String::new());
                back.push(index);
            }
        }
        other => {
            trouble(state, index, other, silent, refused);
            // After a refusal the next attempt looks at the host again; a request without an answer
            // is sent again unchanged.
            if refused.last() == Some(&index) {
                state.hosts[index].step = Step::Changed;
            }
        }
    };
    world.ask(state, asks, &mut said).await.map_err(Stopped::World)?;
    back.sort_unstable();
    if !back.is_empty() {
        happened(world, state, "undone", &back, String::new())?;
    }
    Ok(())
}
