//! Change of a wave: verdict, recorded requests, and sending them.
//!
//! Owns that a request is in the state before it is sent, and the check whether it was carried out.

use std::collections::BTreeMap;

use kprobed_client::api::Probe;
use kprobed_document::Document;

use super::failing_hosts::{REFUSED, fail, go_on_without, trouble};
use super::recorded_change::{self, Armed, ChangeEvidence};
use super::state::{FormError, Host, State, Step};
use super::transition::happened;
use super::world::{ChangeDone, HostAnswer, HostQuery, Inspection, Stopped, World};

/// Asks the hosts of a wave once more for their verdict, and records the requests.
pub(super) async fn intend<W: World>(
    world: &W,
    state: &mut State,
    hosts: Vec<usize>,
) -> Result<(), Stopped<W::Error>> {
    let asks = hosts.iter().map(|index| (*index, HostQuery::Look)).collect();
    let (mut found, mut silent, mut refused) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(HostAnswer::Inspected(looked)) => {
            state.hosts[index].note = looked.verdict.objection();
            if state.hosts[index].note.is_empty() {
                found.insert(index, looked);
            } else {
                refused.push(index);
            }
        }
        other => trouble(state, index, other, &mut silent, &mut refused),
    };
    world.ask(state, asks, &mut said).await.map_err(Stopped::World)?;
    if !refused.is_empty() {
        return fail(world, state, REFUSED, &refused);
    }
    if !go_on_without(world, state, &silent)? {
        return Ok(());
    }
    let intended: Vec<_> = found.keys().copied().collect();
    for (index, looked) in found {
        write_down(state, index, *looked).map_err(FormError::Damaged)?;
    }
    happened(world, state, "intended", &intended, String::new())
}

/// Turns a host's verdict into the requests to send.
fn write_down(state: &mut State, index: usize, looked: Inspection) -> Result<(), String> {
    let Inspection { verdict, reading } = looked;
    let (mut changes, mut armed) = (Vec::new(), BTreeMap::new());
    for one in verdict.planned {
        match (one.change, &one.live) {
            (Some(asked), live) => changes.push(state.record(&one.name, asked, live.as_ref())?),
            (None, Some(live)) => {
                armed.insert(one.name, Armed { uid: live.uid, etag: live.etag.clone() });
            }
            (None, None) => {}
        }
    }
    let host = &mut state.hosts[index];
    host.step = if changes.is_empty() { Step::Changed } else { Step::Intended };
    (host.kernel, host.before, host.last) = (verdict.kernel, Some(reading), None);
    (host.changes, host.armed) = (changes, armed);
    Ok(())
}

/// Sends the recorded requests.
pub(super) async fn make<W: World>(
    world: &W,
    state: &mut State,
    hosts: Vec<usize>,
) -> Result<(), Stopped<W::Error>> {
    let asks = requests(state, &hosts, false)?;
    let (mut made, mut silent, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(HostAnswer::Made(done)) if done.len() == state.hosts[index].changes.len() => {
            let host = &mut state.hosts[index];
            for (change, done) in host.changes.iter().zip(done) {
                if let ChangeDone::Probe(probe) = done {
                    host.armed.insert(change.probe.clone(), Armed { uid: probe.uid, etag: probe.etag });
                }
            }
            (host.step, host.note) = (Step::Changed, String::new());
            made.push(index);
        }
        other => trouble(state, index, other, &mut silent, &mut refused),
    };
    world.ask(state, asks, &mut said).await.map_err(Stopped::World)?;
    let refused = carried_out_before(world, state, &refused, &mut made, &mut silent).await?;
    made.sort_unstable();
    if !made.is_empty() {
        happened(world, state, "changed", &made, String::new())?;
    }
    if !refused.is_empty() {
        for index in &refused {
            // All or nothing: such a host has no change.
            let host = &mut state.hosts[*index];
            host.step = Step::Waiting;
            host.changes.clear();
        }
        return fail(world, state, "the change failed", &refused);
    }
    go_on_without(world, state, &silent).map(|_goes_on| ())
}

/// Looks at hosts that refused: a repeated request whose id the host has forgotten looks like a
/// refusal, and the host's probes show which it is. Returns the hosts that did refuse.
async fn carried_out_before<W: World>(
    world: &W,
    state: &mut State,
    refused: &[usize],
    made: &mut Vec<usize>,
    silent: &mut Vec<usize>,
) -> Result<Vec<usize>, Stopped<W::Error>> {
    let mut still = Vec::new();
    if refused.is_empty() {
        return Ok(still);
    }
    let documents = state.documents()?;
    let asks = refused.iter().map(|index| (*index, HostQuery::Probes)).collect();
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(HostAnswer::Probes(probes)) => {
            let host = &mut state.hosts[index];
            match all_done(host, &documents, &probes) {
                Some(armed) => {
                    host.armed.extend(armed);
                    (host.step, host.note) = (Step::Changed, String::new());
                    made.push(index);
                }
                None => still.push(index),
            }
        }
        other => trouble(state, index, other, silent, &mut still),
    };
    world.ask(state, asks, &mut said).await.map_err(Stopped::World)?;
    Ok(still)
}

/// The probes of a host, if all of its changes were carried out.
fn all_done(host: &Host, documents: &[Document], probes: &[Probe]) -> Option<Vec<(String, Armed)>> {
    let one = |change: &recorded_change::Change| {
        let document = documents.iter().find(|document| document.name == change.probe)?;
        let wanted = recorded_change::wanted_after(change, document).ok()?;
        let live = probes.iter().find(|probe| probe.name == change.probe);
        match recorded_change::trace(change, &wanted, None, live) {
            ChangeEvidence::Done(armed) => Some((change.probe.clone(), armed)),
            ChangeEvidence::NotDone | ChangeEvidence::Foreign => None,
        }
    };
    host.changes.iter().map(one).collect()
}

/// The recorded requests of hosts: the changes, or those that put them back.
pub(super) fn requests(
    state: &State,
    hosts: &[usize],
    back: bool,
) -> Result<Vec<(usize, HostQuery)>, FormError> {
    let request = |index: &usize| {
        let host = &state.hosts[*index];
        let changes = if back { &host.undo } else { &host.changes };
        let asked = changes.iter().map(recorded_change::decoded).collect::<Result<Vec<_>, _>>();
        Ok((*index, HostQuery::Make(asked.map_err(FormError::Damaged)?)))
    };
    hosts.iter().map(request).collect()
}
