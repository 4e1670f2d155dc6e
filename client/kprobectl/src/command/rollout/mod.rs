//! `kprobectl rollout`: a change that goes over a fleet in waves.
//!
//! Owns the words of the command and the exit codes. `prepare` makes a roll-out of them; what is done next is decided in `rollout`, and `world` does
//! it.

mod ask;
mod plan;
mod prepare;
mod world;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kprobed_client::fleet::Host;

use self::prepare::{Prepared, Wanted, prepare};
use self::world::Fleet;
use super::connection::at_addresses;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::config::{Config, rollout_file};
use crate::output::Output;
use crate::rollout::{self, Phase, State, StateError, StateFile, Stopped, drive, pause_file};

const AFTER_HELP: &str = "\
`apply` changes the hosts of --hosts wave by wave. First every host of every wave is asked for its verdict: if one refuses, nothing is changed \
anywhere, and if one does not answer, the roll-out waits, both unless no more hosts than --tolerate do so, which are left out. The hosts of a wave \
are asked again right before it; then all changes of a host are made or none; then the hosts are read for --soak, and every \
gate has to hold on each of them:

  errors<=0        probes of the host that are not as wanted
  health<=0        checks of `kprobectl doctor` that fail, and did not before
  loss<=0.1%       events of a probe that were lost, of its hits since the change; or a number
  misses<=0.1%     hits of a probe that the kernel skipped; or a number
  hits<=100000/s   hits of a probe in a second between two readings: what it costs the tasks that hit it
  cpu<=25%         processor time of the daemon, of one core over the soak: what events and these readings cost it

These are the defaults; --gate replaces one, and `--gate loss=off` opens it. Missing data never passes: a host that does not \
answer, a figure that it does not know, a counter that went backwards or a daemon that was started anew pauses the roll-out. \
A gate that is not passed stops it, and puts everything back on all hosts: new probes are deleted, the others get their \
definition, filter, labels and switch back. A probe that someone else has changed since is left alone, and that is said. A lease \
that is put back begins anew, and counters of a definition that is put back begin at zero.

`plan` takes the same options, asks all hosts for their verdict, and shows the waves with what each host says. It changes nothing, and \
writes no state.

The state is a file that is replaced as a whole before and after each step. It has the documents, the addresses, the hosts that have \
accepted, what was there before, and the id of each request: after the end of this command at any point, `resume` goes on, here or on another \
machine, and no change is made twice. Each event is in the file before it is printed. Readings are not in it: a wave that was being watched is watched \
anew. It has no keys: those are of the machine that goes on. Without --state it is one file for \
each context in kprobectl/rollout in $XDG_STATE_HOME or ~/.local/state.

With -o json each thing that happens is one line: rollout, time, wave, event (started, accepted, intended, changed, passed, left_out, \
gate_failed, paused, resumed, undoing, undone, done), hosts and message; the last line has the roll-out as `status` prints it.

Exit codes: 0 all hosts have passed; 1 everything was put back; 4 it is paused, or something could not be put back. \
Of `plan`: 0 `apply` would begin; 1 a host refuses; 4 an answer is missing.

Examples:
  kprobectl rollout plan -f probes/ --hosts all --waves 1,5%,100%
  kprobectl rollout apply -f probes/ --hosts all --waves 1,5%,100% --soak 5m --yes
  kprobectl rollout apply -f probes.yaml --hosts 'web*' --gate misses<=0 --gate cpu<=5% --state roll.json
  kprobectl rollout status --state roll.json
  kprobectl rollout pause
  kprobectl rollout resume --state roll.json
  kprobectl rollout undo
  kprobectl rollout history -o json";

/// Arguments of `rollout`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Ask all hosts for their verdict, show the waves, and change nothing
    Plan(Wanted),
    /// Make probes what documents say, wave by wave
    Apply(Wanted),
    /// Show how the roll-out stands
    Status(Place),
    /// Let it wait, and leave everything as it is
    Pause(Place),
    /// Go on with one that waits, or whose client has ended
    Resume(Place),
    /// Put everything back on all hosts that it changed
    Undo(Place),
    /// Show what has happened
    History(Place),
}

/// Where the state is.
#[derive(Debug, Args)]
struct Place {
    /// The file with the state [default: one for each context]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

impl Place {
    fn path(self, global: &Global) -> Result<PathBuf, Failure> {
        let Self { state: None } = self else { return Ok(self.state.unwrap_or_default()) };
        let config = Config::read()?;
        let context = config.context(global.context.as_deref())?.map(|(name, _)| name);
        let hint = "name a file with `--state FILE`".to_owned();
        rollout_file(context).ok_or_else(|| {
            Failure::usage("there is no directory for state: HOME is not set".to_owned(), Some(hint))
        })
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    match arguments.action {
        Action::Plan(wanted) => {
            let Some(mut prepared) = prepare(global, wanted, output).await? else { return Ok(Exit::Refused) };
            plan::plan(global, &mut prepared, output).await
        }
        Action::Apply(wanted) => {
            let Some(prepared) = prepare(global, wanted, output).await? else { return Ok(Exit::Refused) };
            start(global, prepared, output).await
        }
        Action::Status(place) => {
            let path = place.path(global)?;
            let state = StateFile::read(&path)?;
            output.rollout(&state, Some(&path))?;
            Ok(Exit::Success)
        }
        Action::History(place) => {
            let state = StateFile::read(&place.path(global)?)?;
            for happened in &state.history {
                output.rollout_event(&state.id, happened)?;
            }
            Ok(Exit::Success)
        }
        Action::Pause(place) => pause(&place.path(global)?, output),
        Action::Resume(place) => {
            let (file, state) = locked(&place.path(global)?)?;
            if matches!(state.phase, Phase::Done | Phase::Undone) {
                output.note(&format!(
                    "this roll-out is {}: there is nothing to go on with",
                    state.phase.name()
                ));
                return Ok(exit(state.phase));
            }
            go_on(global, &file, state, Way::Forward, output).await
        }
        Action::Undo(place) => {
            let (file, state) = locked(&place.path(global)?)?;
            if state.phase == Phase::Undone {
                output.note("this roll-out is undone already");
                return Ok(Exit::Success);
            }
            match go_on(global, &file, state, Way::Back, output).await? {
                // That everything was put back is what was asked for.
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
        Phase::Running | Phase::Paused | Phase::Undoing => Exit::Interrupted,
    }
}

fn locked(path: &Path) -> Result<(StateFile, State), Failure> {
    // Before the lock, whose file would be made beside a state that does not exist.
    StateFile::read(path)?;
    let file = StateFile::lock(path)?;
    let state = StateFile::read(file.path())?;
    Ok((file, state))
}

async fn start(global: &Global, mut prepared: Prepared, output: &mut Output) -> Result<Exit, Failure> {
    let (hosts, limit) = (prepared.state.hosts.len(), prepared.limit);
    if hosts as u64 > limit && !global.yes {
        plan::plan(global, &mut prepared, output).await?;
        let message = format!("this would change {hosts} hosts, and more than {limit} need a confirmation");
        return Err(Failure::usage(message, Some("add `--yes`".to_owned())));
    }
    let Prepared { state, path, .. } = prepared;
    let file = StateFile::lock(&path)?;
    if file.path().exists() {
        let before = StateFile::read(file.path())?;
        if !matches!(before.phase, Phase::Done | Phase::Undone) {
            let message = format!("`{}` has a roll-out that is {}", path.display(), before.phase.name());
            let hint = "`kprobectl rollout resume` goes on with it and `rollout undo` puts everything back; or name another file with `--state`";
            return Err(Failure::usage(message, Some(hint.to_owned())));
        }
    }
    go_on(global, &file, state, Way::New, output).await
}

/// The hosts of a state, in its order, as this machine reaches them.
fn hosts(global: &Global, state: &State) -> Result<Vec<Host>, Failure> {
    let address = |host: &rollout::Host| (host.name.clone(), host.address.clone(), host.domain.clone());
    at_addresses(global, &state.hosts.iter().map(address).collect::<Vec<_>>())
}

/// Which way a roll-out goes when it is taken up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    New,
    Forward,
    Back,
}

async fn go_on(
    global: &Global,
    file: &StateFile,
    mut state: State,
    way: Way,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let damaged = |problem| StateError::Form { path: file.path().to_owned(), problem };
    let hosts = hosts(global, &state)?;
    let documents = state.documents().map_err(damaged)?;
    // A wish for a pause that is older than this.
    std::fs::remove_file(pause_file(file.path())).ok();
    let world = Fleet::new(global, hosts, documents, Some(file), &state.id, output)?;
    let work = async {
        match way {
            Way::New => rollout::begin(&world, &mut state)?,
            Way::Forward => rollout::resume(&world, &mut state)?,
            Way::Back if state.phase == Phase::Undoing => {}
            Way::Back => {
                rollout::take_back(&world, &mut state, "`kprobectl rollout undo` asked for it".to_owned())?;
            }
        }
        drive(&world, &mut state).await
    };
    let result = tokio::select! {
        result = work => result,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.map_err(Failure::Signals)?;
            return Err(Failure::RolloutInterrupted(file.path().to_owned()));
        }
    };
    drop(world);
    result.map_err(|stopped| match stopped {
        Stopped::World(failure) => failure,
        Stopped::State(problem) => damaged(problem).into(),
    })?;
    output.rollout_end(&state, file.path())?;
    Ok(exit(state.phase))
}

/// Pauses a roll-out: by itself if no other process drives it, or by asking that one.
fn pause(path: &Path, output: &mut Output) -> Result<Exit, Failure> {
    match locked(path) {
        Ok((file, mut state)) => {
            if state.phase != Phase::Running {
                output.note(&format!("this roll-out is {}: nothing was changed", state.phase.name()));
                return Ok(Exit::Success);
            }
            state.phase = Phase::Paused;
            "`kprobectl rollout pause` asked for it".clone_into(&mut state.reason);
            file.write(&state)?;
            output.note("this roll-out is paused: its client had ended before");
            Ok(Exit::Success)
        }
        Err(Failure::Rollout(StateError::InUse(path))) => {
            let wish = pause_file(&path);
            crate::config::replace(&wish, b"")?;
            output.note("its client was asked to pause: it does before the next reading or change");
            Ok(Exit::Success)
        }
        Err(other) => Err(other),
    }
}
