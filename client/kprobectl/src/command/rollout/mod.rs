//! `kprobectl rollout`: changes over a fleet in waves.
//!
//! Owns the subcommands and the exit codes. `prepare` reads the arguments, `crate::rollout` decides each
//! step, and `live_world` carries it out.

mod host_requests;
mod live_world;
mod prepare;

use std::path::Path;

use clap::{Args, Subcommand};
use kprobed_client::fleet::Host;
use tokio::signal::unix::{SignalKind, signal};

use self::live_world::LiveWorld;
use self::prepare::{Prepared, RolloutOptions, StateLocation, prepare};
use super::connection::at_addresses;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;
use crate::rollout::{self, Outlook, Phase, State, StateError, StateFile, Stopped, drive};

const AFTER_HELP: &str = "\
`apply` changes the hosts of --hosts wave by wave. First it asks every host of every wave for its verdict. \
If a host refuses, nothing is changed anywhere; if a host does not answer, the roll-out pauses. Up to \
--tolerate such hosts are left out instead. Right before its change, each host of a wave is asked again; \
all changes of a host are made, or none. Then the command reads the hosts for --soak, and every gate must \
hold on each of them:

  errors<=0        probes of the host that are not as requested
  health<=0        checks of `kprobectl doctor` that fail, and did not before
  loss<=0.1%       lost events of a probe, of its hits since the change; or a number
  misses<=0.1%     runs of a probe that the kernel skipped; or a number
  hits<=100000/s   hits per second of a probe between two readings: the load on the tasks that hit it
  cpu<=25%         CPU time of the daemon, of one core over the soak, for events and these readings

A probe that a host has disarmed for its cost (`tripped`) is a failure too, whatever the gates are, unless it \
was so before the change. So is another probe of the host that is disarmed for the budget of the host.

These are the defaults; --gate replaces one, and `--gate loss=off` disables it. Missing data never passes: \
a host that does not answer, an unknown value, a counter that went backwards, or a restarted daemon pauses \
the roll-out. If a gate fails, the roll-out stops and is undone on all hosts: new probes are deleted, the \
others get back their definition, filter, labels and switch. A probe that another client has changed since \
is left alone and reported. A restored lease starts anew, and the counters of a restored definition start \
at zero.

The probes that a roll-out creates and changes get the label `kprobed/rollout=NAME`. `apply` leaves the label \
as it is, and a roll-back takes it off.

`plan` takes the same options, asks all hosts for their verdict, and shows the waves with each answer. It \
changes nothing and writes no state.

The state is a file that is replaced as a whole before and after each step. It has the documents, the \
addresses, the hosts that have accepted, the probes before the change, and the id of each request: if this \
command ends at any point, Ctrl-C among them, `resume` continues, here or on another machine, and makes no \
change twice. What an event says is in the file before it is printed. Readings are not in it: the soak of a \
wave starts anew. It has no private keys: each machine uses its own. Without --state it is one file for each \
context in kprobectl/rollout in $XDG_STATE_HOME or ~/.local/state.

With -o json each event is one line: rollout, time, wave, event (started, accepted, intended, changed, \
passed, left_out, gate_failed, paused, resumed, undoing, undone, done), hosts and message; the last line \
is the roll-out as `status` prints it.

Exit codes: 0 all hosts have passed; 1 it was undone; 4 it is paused, or a host could not be put back. \
Of `plan`: 0 `apply` would begin; 1 a host refuses; 4 an answer is missing.

Examples:
  kprobectl rollout plan -f probes/ --hosts all --waves 1,5%,100%
  kprobectl rollout apply -f probes/ --hosts all --waves 1,5%,100% --soak 5m --yes
  kprobectl rollout apply -f probes.yaml --hosts 'web*' --gate misses<=0 --gate cpu<=5% --state roll.json
  kprobectl rollout status --state roll.json
  kprobectl rollout resume --state roll.json
  kprobectl rollout undo";

/// Arguments of `rollout`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// HostQuery all hosts for their verdict, show the waves, and change nothing
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
        Action::Plan(wanted) => {
            let Some(mut prepared) = prepare(global, wanted, output).await? else { return Ok(Exit::Refused) };
            plan(global, &mut prepared, output).await
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
        Action::Resume(place) => {
            let (file, state) = locked(&place.path(global)?)?;
            if matches!(state.phase, Phase::Done | Phase::Undone) {
                output.note(&format!(
                    "this roll-out is {}: there is nothing to go on with",
                    state.phase.name()
                ));
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
        Phase::Running | Phase::Paused | Phase::Undoing => Exit::Interrupted,
    }
}

fn locked(path: &Path) -> Result<(StateFile, State), Failure> {
    // Before the lock, which would create its file even if there is no state.
    StateFile::read(path)?;
    let file = StateFile::lock(path)?;
    let state = StateFile::read(file.path())?;
    Ok((file, state))
}

async fn start(global: &Global, mut prepared: Prepared, output: &mut Output) -> Result<Exit, Failure> {
    let (hosts, limit) = (prepared.state.hosts.len(), prepared.limit);
    if hosts as u64 > limit && !global.yes {
        plan(global, &mut prepared, output).await?;
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
    let damaged = |problem| StateError::Form { path: file.path().to_owned(), problem };
    let hosts = hosts(global, &state)?;
    let documents = state.documents().map_err(damaged)?;
    // Before the first event is reported: a signal that follows it is not lost.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::Signals)?;
    let world = LiveWorld::new(global, hosts, documents, Some(file), &state.id, output)?;
    let work = async {
        match way {
            Direction::New => rollout::begin(&world, &state)?,
            Direction::Forward => rollout::resume(&world, &mut state)?,
            Direction::Back if state.phase == Phase::Undoing => {}
            Direction::Back => {
                rollout::take_back(&world, &mut state, "`kprobectl rollout undo` asked for it".to_owned())?;
            }
        }
        drive(&world, &mut state).await
    };
    let result = tokio::select! {
        result = work => result,
        _ = interrupt.recv() => return Err(Failure::RolloutInterrupted(file.path().to_owned())),
    };
    drop(world);
    result.map_err(|stopped| match stopped {
        Stopped::World(failure) => failure,
        Stopped::State(problem) => damaged(problem).into(),
    })?;
    output.rollout_end(&state, file.path())?;
    Ok(exit(state.phase))
}

/// Asks all hosts for their verdict, and shows what each says.
async fn plan(global: &Global, prepared: &mut Prepared, output: &mut Output) -> Result<Exit, Failure> {
    let Prepared { state, path, .. } = prepared;
    let damaged = |problem| StateError::Form { path: path.clone(), problem };
    let (hosts, documents) = (hosts(global, state)?, state.documents().map_err(damaged)?);
    let world = LiveWorld::new(global, hosts, documents, None, &state.id, output)?;
    let all = (0..state.hosts.len()).collect();
    let verdicts = rollout::ask_for_verdicts(&world, state, all).await.map_err(|stopped| match stopped {
        Stopped::World(failure) => failure,
        Stopped::State(problem) => damaged(problem).into(),
    })?;
    drop(world);
    state.reason = verdicts.reason(state);
    output.rollout(state, None)?;
    output.note("nothing was changed");
    Ok(match verdicts.outlook(state) {
        Outlook::Good => Exit::Success,
        Outlook::Refused => Exit::Refused,
        Outlook::Unknown => Exit::Interrupted,
    })
}
