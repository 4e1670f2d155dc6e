//! The next action, again and again, until a roll-out waits, is done or is undone.
//!
//! Owns the order of verdicts, changes and soaks, and the turns between forward, pause and back. Whatever it does first stands in the state: a
//! process that ends at any point is followed by another one that starts with [`drive`] again.

use super::change;
use super::soak::soak;
use super::state::{Happened, Phase, State, Step};
use super::undo::undo;
use super::verdict::judge_all;
use super::world::{Stopped, World};

/// Goes on until the roll-out waits for a person, is done or is undone.
///
/// # Errors
/// When the state cannot be written, or the process is to end.
pub(crate) async fn drive<W: World>(world: &W, state: &mut State) -> Result<(), Stopped<W::Error>> {
    loop {
        match state.phase {
            Phase::Running => forward(world, state).await?,
            Phase::Undoing => {
                if !undo(world, state).await? {
                    return Ok(());
                }
            }
            Phase::Paused | Phase::Undone | Phase::Done => return Ok(()),
        }
    }
}

/// One action of the way forward.
async fn forward<W: World>(world: &W, state: &mut State) -> Result<(), Stopped<W::Error>> {
    if is_paused(world, state)? {
        return Ok(());
    }
    if state.wave >= state.waves() {
        state.phase = Phase::Done;
        return happened(world, state, "done", &[], String::new());
    }
    // Hosts of all waves: no host is changed while one was not asked.
    let waiting = state.of_all_waves(Step::Waiting);
    if !waiting.is_empty() {
        return judge_all(world, state, waiting).await;
    }
    let accepted = state.at(Step::Accepted);
    if !accepted.is_empty() {
        return change::intend(world, state, accepted).await;
    }
    let intended = state.at(Step::Intended);
    if !intended.is_empty() {
        return change::make(world, state, intended).await;
    }
    soak(world, state).await
}

/// Begins a roll-out.
pub(crate) fn begin<W: World>(world: &W, state: &mut State) -> Result<(), Stopped<W::Error>> {
    happened(world, state, "started", &[], String::new())
}

/// Takes up a roll-out that is paused. One that goes back goes on doing so.
pub(crate) fn resume<W: World>(world: &W, state: &mut State) -> Result<(), Stopped<W::Error>> {
    if state.phase != Phase::Paused {
        return Ok(());
    }
    state.phase = Phase::Running;
    state.reason.clear();
    for host in &mut state.hosts {
        host.note.clear();
        // What kept it from passing may lie behind: it is watched anew from here.
        if host.step == Step::Changed {
            (host.before, host.last) = (None, None);
        }
    }
    happened(world, state, "resumed", &[], String::new())
}

/// Stops a roll-out that goes forward.
pub(super) fn pause<W: World>(world: &W, state: &mut State, reason: String) -> Result<(), Stopped<W::Error>> {
    state.phase = Phase::Paused;
    state.reason.clone_from(&reason);
    happened(world, state, "paused", &[], reason)
}

/// Pauses if someone asked for it. True: it did.
pub(super) fn is_paused<W: World>(world: &W, state: &mut State) -> Result<bool, Stopped<W::Error>> {
    if world.is_pause_asked() {
        pause(world, state, "`kprobectl rollout pause` asked for it".to_owned())?;
        return Ok(true);
    }
    Ok(false)
}

/// Lets a roll-out go back, on all hosts that it may have changed.
pub(crate) fn take_back<W: World>(
    world: &W,
    state: &mut State,
    reason: String,
) -> Result<(), Stopped<W::Error>> {
    state.phase = Phase::Undoing;
    state.reason.clone_from(&reason);
    happened(world, state, "undoing", &[], reason)
}

/// Remembers something, writes the state, and tells it.
pub(super) fn happened<W: World>(
    world: &W,
    state: &mut State,
    event: &str,
    hosts: &[usize],
    message: String,
) -> Result<(), Stopped<W::Error>> {
    let one = remember(world, state, event, hosts, message);
    publish(world, state, &one)
}

/// Puts something that has happened into the state.
pub(super) fn remember<W: World>(
    world: &W,
    state: &mut State,
    event: &str,
    hosts: &[usize],
    message: String,
) -> Happened {
    let one = Happened {
        time_ms: world.now_ms(),
        wave: state.wave.saturating_add(1),
        event: event.to_owned(),
        hosts: hosts.iter().map(|index| state.hosts[*index].name.clone()).collect(),
        message,
    };
    state.history.push(one.clone());
    one
}

/// Tells something when the state with it is written: what was told outlives the process.
pub(super) fn publish<W: World>(
    world: &W,
    state: &State,
    happened: &Happened,
) -> Result<(), Stopped<W::Error>> {
    world.save(state).map_err(Stopped::World)?;
    world.tell(happened).map_err(Stopped::World)
}
