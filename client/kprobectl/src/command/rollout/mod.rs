//! `kprobectl rollout`: changes over a fleet in waves.
//!
//! Owns the subcommands and the exit codes. `prepare` reads the arguments, `crate::rollout` decides each
//! step, and `live_world` carries it out.

mod live_world;
mod prepare;
mod state_file;

use std::path::Path;

use clap::{Args, Subcommand};
use kprobed_client::fleet::Host;

use self::live_world::LiveWorld;
use self::prepare::{Prepared, RolloutOptions, StateLocation, prepare};
use self::state_file::StateFile;
use super::connection::at_addresses;
use super::many_hosts::not_confirmed;
use super::stop_condition::StopCondition;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;
use crate::rollout::{self, Phase, State, drive};

/// Arguments of `rollout`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("../help/rollout.txt"))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Ask all hosts for their verdict, show the waves, and change nothing
    Plan(RolloutOptions),
    /// Create and change probes as documents describe them, wave by wave
    Apply(RolloutOptions),
    /// Show the state of the roll-out
    Status(StateLocation),
    /// Continue a roll-out that is paused, or whose client has ended
    Resume(StateLocation),
    /// Undo the change on all hosts
    Undo(StateLocation),
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    match arguments.action {
        Action::Plan(options) => plan(global, &mut prepare(global, options).await?.state, output).await,
        Action::Apply(options) => start(global, prepare(global, options).await?, output).await,
        Action::Status(place) => {
            let path = place.path(global)?;
            output.rollout(&StateFile::read(&path)?)?;
            Ok(Exit::Success)
        }
        Action::Resume(place) => {
            let (file, state) = locked(&place.path(global)?)?;
            if matches!(state.phase, Phase::Done | Phase::Undone) {
                output.note(&format!("this roll-out is {}: nothing is left to do", state.phase));
                return Ok(exit(state.phase));
            }
            go_on(global, &file, state, Direction::Forward, output).await
        }
        Action::Undo(place) => {
            let (file, state) = locked(&place.path(global)?)?;
            if state.phase == Phase::Undone {
                output.note("this roll-out is undone already");
                return Ok(Exit::Success);
            }
            match go_on(global, &file, state, Direction::Back, output).await? {
                // That everything was put back is what was requested.
                Exit::Refused => Ok(Exit::Success),
                other => Ok(other),
            }
        }
    }
}

fn exit(phase: Phase) -> Exit {
    match phase {
        Phase::Done => Exit::Success,
        Phase::Undone => Exit::Refused,
        Phase::Planned | Phase::Running | Phase::Paused | Phase::Undoing => Exit::Interrupted,
    }
}

fn locked(path: &Path) -> Result<(StateFile, State), Failure> {
    // Before the lock, which would create its file even if there is no state.
    StateFile::read(path)?;
    let file = StateFile::lock(path)?;
    let state = StateFile::read(&file.path)?;
    Ok((file, state))
}

async fn start(global: &Global, prepared: Prepared, output: &mut Output) -> Result<Exit, Failure> {
    let Prepared { mut state, path, limit } = prepared;
    let hosts = state.hosts.len();
    if hosts as u64 > limit && !global.yes {
        plan(global, &mut state, output).await?;
        return Err(not_confirmed(hosts, limit));
    }
    let file = StateFile::lock(&path)?;
    if file.path.exists() {
        let earlier = StateFile::read(&file.path)?;
        let phase = earlier.phase;
        if phase == Phase::Done && earlier.hosts.iter().any(rollout::Host::is_touched) {
            let kept = file.keep(&earlier)?;
            let kept = kept.display();
            output.note(&format!(
                "`kprobectl rollout undo --state {kept}` undoes the roll-out before this one"
            ));
        } else if !matches!(phase, Phase::Done | Phase::Undone) {
            let message = format!("`{}` has a roll-out that is {phase}", path.display());
            let hint = "`kprobectl rollout resume` continues it and `rollout undo` undoes it; or name another file with `--state`";
            return Err(Failure::usage(message, hint));
        }
    }
    go_on(global, &file, state, Direction::New, output).await
}

/// The hosts of a state, in its order, as this machine reaches them.
fn hosts(global: &Global, state: &State) -> Result<Vec<Host>, Failure> {
    let address = |host: &rollout::Host| (host.name.clone(), host.address.clone(), host.domain.clone());
    at_addresses(global, &state.hosts.iter().map(address).collect::<Vec<_>>())
}

/// Which way a roll-out goes when it is taken up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    New,
    Forward,
    Back,
}

async fn go_on(
    global: &Global,
    file: &StateFile,
    mut state: State,
    way: Direction,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let hosts = hosts(global, &state)?;
    // Before the first event is reported: a signal that follows it is not lost.
    let mut stop = StopCondition::new()?;
    let world = LiveWorld::new(global, hosts, &state, Some(file), output)?;
    let work = async {
        match way {
            Direction::New => rollout::begin(&world, &mut state)?,
            Direction::Forward => rollout::resume(&world, &mut state)?,
            Direction::Back if state.phase == Phase::Undoing => {}
            Direction::Back => {
                rollout::take_back(&world, &mut state, "`kprobectl rollout undo` asked for it".to_owned())?;
            }
        }
        drive(&world, &mut state).await
    };
    let ended = tokio::select! {
        result = work => result.map_err(|failure| failure.to_string()),
        () = stop.signal() => Err("its client was interrupted".to_owned()),
    };
    if let Err(why) = ended {
        if state.phase == Phase::Running {
            // What ended it may keep this from being told too.
            rollout::pause(&world, &mut state, why.clone()).ok();
        }
        return Err(stands(&file.path, &why));
    }
    drop(world);
    output.rollout_end(&state, &file.path)?;
    Ok(exit(state.phase))
}

/// A roll-out whose client has ended before it: it was interrupted, or its output is read no more.
fn stands(state: &Path, why: &str) -> Failure {
    let path = state.display();
    let hint = format!(
        "`kprobectl rollout resume --state {path}` continues, and `kprobectl rollout undo --state {path}` undoes all changes"
    );
    Failure::new(Exit::Interrupted, format!("{why}: the roll-out stands in `{path}`"), [hint])
}

/// Asks all hosts for their verdict, and shows what each says.
async fn plan(global: &Global, state: &mut State, output: &mut Output) -> Result<Exit, Failure> {
    let world = LiveWorld::new(global, hosts(global, state)?, state, None, output)?;
    let all: Vec<_> = (0..state.hosts.len()).collect();
    let answers = rollout::ask_for_verdicts(&world, state, &all).await?;
    drop(world);
    let obstacle = answers.obstacle(state);
    let exit = match &obstacle {
        None => Exit::Success,
        Some(_) if answers.refused.is_empty() => Exit::Interrupted,
        Some(_) => Exit::Refused,
    };
    state.reason = obstacle.unwrap_or_default();
    output.rollout(state)?;
    output.note("nothing was changed");
    Ok(exit)
}
