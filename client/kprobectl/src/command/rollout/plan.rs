//! `kprobectl rollout plan`: what all hosts say, and nothing else.

use super::super::{Exit, Failure};
use super::hosts;
use super::prepare::Prepared;
use super::world::Fleet;
use crate::cli::Global;
use crate::output::Output;
use crate::rollout::{self, Outlook, StateError, Stopped};

/// Asks all hosts for their verdict, and shows what each says.
pub(super) async fn plan(
    global: &Global,
    prepared: &mut Prepared,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let Prepared { state, path, .. } = prepared;
    let damaged = |problem| StateError::Form { path: path.clone(), problem };
    let (hosts, documents) = (hosts(global, state)?, state.documents().map_err(damaged)?);
    let world = Fleet::new(global, hosts, documents, None, &state.id, output)?;
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
