//! Driver of a roll-out: the next action, until it pauses, is done or is undone.
//!
//! Owns the order of verdicts, changes and soaks, and of a transition: the state changes, the file with the
//! state is written, and only then is the event reported. The state holds everything that the next action
//! depends on, so that another process can continue with [`drive`] after this one ends at any point.

use super::answers::{Answers, REFUSED, SILENT, fail, leave_out};
use super::change;
use super::soak::soak;
use super::state::{Phase, RolloutEvent, State, Step};
use super::world::{HostFailure, Plan, World};

/// Runs until the roll-out pauses, is done or is undone.
///
/// # Errors
/// When the state cannot be written, or the process is to end.
pub(crate) async fn drive<W: World>(world: &W, state: &mut State) -> Result<(), W::Error> {
    loop {
        match state.phase {
            Phase::Running => forward(world, state).await?,
            Phase::Undoing => return change::undo(world, state).await,
            Phase::Planned | Phase::Paused | Phase::Undone | Phase::Done => return Ok(()),
        }
    }
}

/// The next action of a running roll-out.
async fn forward<W: World>(world: &W, state: &mut State) -> Result<(), W::Error> {
    if state.wave > state.waves() {
        state.phase = Phase::Done;
        return happened(world, state, "done", &[], String::new());
    }
    // Hosts of all waves: no host is changed while one was not asked.
    let waiting = state.of_all_waves(Step::Waiting);
    if !waiting.is_empty() {
        return judge_all(world, state, &waiting).await;
    }
    let accepted = state.at(Step::Accepted);
    if !accepted.is_empty() {
        return change::intend(world, state, &accepted).await;
    }
    let intended = state.at(Step::Intended);
    if !intended.is_empty() {
        return change::make(world, state, &intended).await;
    }
    soak(world, state).await
}

/// Asks hosts of all waves that were not asked yet for their verdict, and notes each answer. The state records
/// that a host has accepted, so that another process does not ask it again.
///
/// # Errors
/// When the state cannot be written.
pub(crate) async fn ask_for_verdicts<W: World>(
    world: &W,
    state: &mut State,
    hosts: &[usize],
) -> Result<Answers, W::Error> {
    let mut answers = Answers::default();
    let mut note = |state: &mut State, index: usize, answer: Result<Plan, HostFailure>| {
        let host = &mut state.hosts[index];
        let answer = answer.and_then(|plan| {
            host.kernel.clone_from(&plan.kernel);
            plan.accepted()
        });
        if answer.is_ok() {
            host.step = Step::Accepted;
        }
        answers.note(state, index, answer.map(drop));
    };
    world.plan(state, hosts, &mut note).await?;
    Ok(answers)
}

/// Asks the hosts that were not asked yet, and continues only if all accept, apart from tolerated ones.
async fn judge_all<W: World>(world: &W, state: &mut State, hosts: &[usize]) -> Result<(), W::Error> {
    let answers = ask_for_verdicts(world, state, hosts).await?;
    if !answers.done.is_empty() {
        happened(world, state, "accepted", &answers.done, String::new())?;
    }
    match answers.obstacle(state) {
        None => {
            state.cut_without(&[answers.refused.as_slice(), &answers.silent].concat());
            leave_out(world, state, REFUSED, &answers.refused)?;
            leave_out(world, state, SILENT, &answers.silent)
        }
        Some(reason) if answers.refused.is_empty() => pause(world, state, reason),
        Some(_) => fail(world, state, REFUSED, &answers.refused),
    }
}

/// Begins a roll-out.
pub(crate) fn begin<W: World>(world: &W, state: &mut State) -> Result<(), W::Error> {
    state.phase = Phase::Running;
    happened(world, state, "started", &[], String::new())
}

/// Resumes a paused roll-out. One that is being undone stays so.
pub(crate) fn resume<W: World>(world: &W, state: &mut State) -> Result<(), W::Error> {
    if state.phase != Phase::Paused {
        return Ok(());
    }
    state.phase = Phase::Running;
    state.reason.clear();
    for host in &mut state.hosts {
        host.note.clear();
        host.is_resumed = host.step == Step::Changed;
    }
    happened(world, state, "resumed", &[], String::new())
}

/// Pauses a running roll-out.
pub(crate) fn pause<W: World>(world: &W, state: &mut State, reason: String) -> Result<(), W::Error> {
    state.phase = Phase::Paused;
    state.reason.clone_from(&reason);
    happened(world, state, "paused", &[], reason)
}

/// Starts the undo, on all hosts that may have been changed.
pub(crate) fn take_back<W: World>(world: &W, state: &mut State, reason: String) -> Result<(), W::Error> {
    state.phase = Phase::Undoing;
    state.reason.clone_from(&reason);
    happened(world, state, "undoing", &[], reason)
}

/// Writes the state, and reports an event of the current wave.
pub(super) fn happened<W: World>(
    world: &W,
    state: &State,
    event: &'static str,
    hosts: &[usize],
    message: String,
) -> Result<(), W::Error> {
    publish(world, state, &RolloutEvent::new(state, event, hosts, message))
}

/// Reports an event after the state is written: what a reported event says outlives the process.
pub(super) fn publish<W: World>(world: &W, state: &State, event: &RolloutEvent) -> Result<(), W::Error> {
    world.save(state)?;
    world.tell(event)
}
