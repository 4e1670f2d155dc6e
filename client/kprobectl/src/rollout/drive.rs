//! Driver of a roll-out: the next action, until it pauses, is done or is undone.
//!
//! Owns the order of verdicts, changes and soaks. The state holds everything that the next action
//! depends on, so that another process can continue with [`drive`] after this one ends at any
//! point.

use super::change;
use super::soak::soak;
use super::state::{Phase, State, Step};
use super::transition::happened;
use super::undo::undo;
use super::verdict::judge_all;
use super::world::{Stopped, World};

/// Runs until the roll-out pauses, is done or is undone.
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

/// The next action of a running roll-out.
async fn forward<W: World>(world: &W, state: &mut State) -> Result<(), Stopped<W::Error>> {
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
