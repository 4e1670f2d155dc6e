//! What all hosts say before the first one is changed.
//!
//! Owns who was asked, and what a refusal or a missing answer means then: it stops the roll-out while nothing is changed anywhere. That a host
//! has accepted stands in the state, so that it is not asked again by a process that follows; its own wave asks it once more, right before
//! its change.

use super::drive::{happened, pause};
use super::setback::{are_tolerated, fail, leave_out, reason, trouble};
use super::state::{State, Step};
use super::world::{Ask, Said, Stopped, World};

/// What hosts say to the change, as places in the state, each host in one of the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdicts {
    pub(crate) accepted: Vec<usize>,
    pub(crate) refused: Vec<usize>,
    /// Without an answer.
    pub(crate) silent: Vec<usize>,
}

/// What the verdicts of all hosts mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// It goes on: no more hosts than tolerated refuse or do not answer.
    Good,
    /// The change is refused.
    Refused,
    /// An answer is missing.
    Unknown,
}

impl Verdicts {
    /// What they mean for the roll-out.
    pub(crate) fn outlook(&self, state: &State) -> Outlook {
        if are_tolerated(state, self.refused.len() + self.silent.len()) {
            Outlook::Good
        } else if self.refused.is_empty() {
            Outlook::Unknown
        } else {
            Outlook::Refused
        }
    }

    /// Why it does not go on, for people. Empty: it does.
    pub(crate) fn reason(&self, state: &State) -> String {
        match self.outlook(state) {
            Outlook::Good => String::new(),
            Outlook::Refused => reason(state, REFUSED, &self.refused),
            Outlook::Unknown => reason(state, SILENT, &self.silent),
        }
    }
}

pub(super) const REFUSED: &str = "the change is refused";
pub(super) const SILENT: &str = "no answer";

/// Asks hosts that were not asked yet, of whatever wave, and notes what each says.
///
/// # Errors
/// When the state cannot be written.
pub(crate) async fn ask_for_verdicts<W: World>(
    world: &W,
    state: &mut State,
    hosts: Vec<usize>,
) -> Result<Verdicts, Stopped<W::Error>> {
    let asks = hosts.into_iter().map(|index| (index, Ask::Judge)).collect();
    let Verdicts { mut accepted, mut refused, mut silent } = Verdicts::default();
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(Said::Judged(verdict)) => {
            let host = &mut state.hosts[index];
            host.note = verdict.objection();
            host.kernel = verdict.kernel;
            if host.note.is_empty() {
                host.step = Step::Accepted;
                accepted.push(index);
            } else {
                refused.push(index);
            }
        }
        other => trouble(state, index, other, &mut silent, &mut refused),
    };
    world.ask(state, asks, &mut said).await.map_err(Stopped::World)?;
    for list in [&mut accepted, &mut refused, &mut silent] {
        list.sort_unstable();
    }
    Ok(Verdicts { accepted, refused, silent })
}

/// Asks the hosts that were not asked yet, and goes on only if all of them accept, but for those that are tolerated.
pub(super) async fn judge_all<W: World>(
    world: &W,
    state: &mut State,
    hosts: Vec<usize>,
) -> Result<(), Stopped<W::Error>> {
    let verdicts = ask_for_verdicts(world, state, hosts).await?;
    if !verdicts.accepted.is_empty() {
        happened(world, state, "accepted", &verdicts.accepted, String::new())?;
    }
    match verdicts.outlook(state) {
        Outlook::Good => {
            leave_out(world, state, REFUSED, &verdicts.refused)?;
            leave_out(world, state, SILENT, &verdicts.silent)
        }
        Outlook::Refused => fail(world, state, REFUSED, &verdicts.refused),
        Outlook::Unknown => {
            let reason = verdicts.reason(state);
            pause(world, state, reason)
        }
    }
}
