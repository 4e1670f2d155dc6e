//! Transitions of a roll-out: begin, pause, resume, take back, and the events that record them.
//!
//! Owns the order of a transition: the state changes, the file with the state is written, and only
//! then is the event reported. It never chooses a transition: `drive` and its steps do.

use super::state::{Phase, RolloutEvent, State, Step};
use super::world::{Stopped, World};

/// Begins a roll-out.
pub(crate) fn begin<W: World>(world: &W, state: &State) -> Result<(), Stopped<W::Error>> {
    happened(world, state, "started", &[], String::new())
}

/// Resumes a paused roll-out. One that is being undone stays so.
pub(crate) fn resume<W: World>(world: &W, state: &mut State) -> Result<(), Stopped<W::Error>> {
    if state.phase != Phase::Paused {
        return Ok(());
    }
    state.phase = Phase::Running;
    state.reason.clear();
    for host in &mut state.hosts {
        host.note.clear();
        // Its soak starts anew: what kept it from passing may be over.
        if host.step == Step::Changed {
            (host.before, host.last) = (None, None);
        }
    }
    happened(world, state, "resumed", &[], String::new())
}

/// Pauses a running roll-out.
pub(super) fn pause<W: World>(world: &W, state: &mut State, reason: String) -> Result<(), Stopped<W::Error>> {
    state.phase = Phase::Paused;
    state.reason.clone_from(&reason);
    happened(world, state, "paused", &[], reason)
}

/// Starts the undo, on all hosts that may have been changed.
pub(crate) fn take_back<W: World>(
    world: &W,
    state: &mut State,
    reason: String,
) -> Result<(), Stopped<W::Error>> {
    state.phase = Phase::Undoing;
    state.reason.clone_from(&reason);
    happened(world, state, "undoing", &[], reason)
}

/// Writes the state, and reports an event.
pub(super) fn happened<W: World>(
    world: &W,
    state: &State,
    event: &'static str,
    hosts: &[usize],
    message: String,
) -> Result<(), Stopped<W::Error>> {
    publish(world, state, &event_of(world, state, event, hosts, message))
}

/// An event of the current wave.
pub(super) fn event_of<W: World>(
    world: &W,
    state: &State,
    event: &'static str,
    hosts: &[usize],
    message: String,
) -> RolloutEvent {
    RolloutEvent {
        time_ms: world.now_ms(),
        wave: state.wave.saturating_add(1),
        event,
        hosts: hosts.iter().map(|index| state.hosts[*index].name.clone()).collect(),
        message,
    }
}

/// Reports an event after the state is written: what a reported event says outlives the process.
pub(super) fn publish<W: World>(
    world: &W,
    state: &State,
    happened: &RolloutEvent,
) -> Result<(), Stopped<W::Error>> {
    world.save(state).map_err(Stopped::World)?;
    world.tell(happened).map_err(Stopped::World)
}
