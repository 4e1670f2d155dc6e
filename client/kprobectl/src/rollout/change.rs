//! The change of a wave.
//!
//! Owns that it is written down before it is sent, and the difference between what was sent and what was carried out.

use std::collections::BTreeMap;

use kprobed_client::api::Probe;
use kprobed_document::Document;

use super::drive::happened;
use super::plan::{self, Trace};
use super::setback::{fail, go_on_without, trouble};
use super::state::{Armed, FormError, Host, State, Step};
use super::verdict::REFUSED;
use super::world::{Ask, Done, Looked, Said, Stopped, World};

/// Asks the hosts of a wave once more for their verdict, and writes down what is to be sent.
pub(super) async fn intend<W: World>(
    world: &W,
    state: &mut State,
    hosts: Vec<usize>,
) -> Result<(), Stopped<W::Error>> {
    let asks = hosts.iter().map(|index| (*index, Ask::Look)).collect();
    let (mut found, mut silent, mut refused) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(Said::Looked(looked)) => {
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

/// Turns what a host said into the requests that it is sent.
fn write_down(state: &mut State, index: usize, looked: Looked) -> Result<(), String> {
    let Looked { verdict, reading } = looked;
    let (mut changes, mut armed) = (Vec::new(), BTreeMap::new());
    for one in verdict.planned {
        match (one.change, &one.live) {
            (Some(asked), live) => changes.push(state.intend(&one.name, asked, live.as_ref())?),
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

/// Sends what is written down.
pub(super) async fn make<W: World>(
    world: &W,
    state: &mut State,
    hosts: Vec<usize>,
) -> Result<(), Stopped<W::Error>> {
    let asks = requests(state, &hosts, false)?;
    let (mut made, mut silent, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(Said::Made(done)) if done.len() == state.hosts[index].changes.len() => {
            let host = &mut state.hosts[index];
            for (change, done) in host.changes.iter().zip(done) {
                if let Done::Probe(probe) = done {
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
            // All or nothing: such a host has nothing.
            let host = &mut state.hosts[*index];
            host.step = Step::Waiting;
            host.changes.clear();
        }
        return fail(world, state, "the change failed", &refused);
    }
    go_on_without(world, state, &silent).map(|_goes_on| ())
}

/// Looks at hosts that refused: an id that a host has forgotten looks like a refusal, and what it has tells the two apart. Gives the hosts that did
/// refuse.
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
    let asks = refused.iter().map(|index| (*index, Ask::Probes)).collect();
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(Said::Probes(probes)) => {
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
    let one = |change: &super::state::Change| {
        let document = documents.iter().find(|document| document.name == change.probe)?;
        let wanted = plan::wanted_after(change, document).ok()?;
        let live = probes.iter().find(|probe| probe.name == change.probe);
        match plan::trace(change, &wanted, None, live) {
            Trace::Done(armed) => Some((change.probe.clone(), armed)),
            Trace::NotDone | Trace::Foreign => None,
        }
    };
    host.changes.iter().map(one).collect()
}

/// The requests of hosts as they are written down: the changes, or what puts them back.
pub(super) fn requests(state: &State, hosts: &[usize], back: bool) -> Result<Vec<(usize, Ask)>, FormError> {
    let request = |index: &usize| {
        let host = &state.hosts[*index];
        let changes = if back { &host.undo } else { &host.changes };
        let asked = changes.iter().map(plan::decoded).collect::<Result<Vec<_>, _>>();
        Ok((*index, Ask::Make(asked.map_err(FormError::Damaged)?)))
    };
    hosts.iter().map(request).collect()
}
