//! Verdicts of all hosts before the first change.
//!
//! Owns which hosts were asked, and what a refusal or a missing answer means: the roll-out stops
//! while nothing is changed anywhere. The state records that a host has accepted, so that another
//! process does not ask it again; its own wave asks it once more, right before its change.

use super::failing_hosts::{REFUSED, SILENT, are_tolerated, fail, leave_out, reason, trouble};
use super::state::{State, Step};
use super::transition::{happened, pause};
use super::world::{HostAnswer, HostQuery, Stopped, World};

/// Verdicts of hosts, as indexes into the state, each host in one of the lists.
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
    /// It continues: no more hosts than tolerated refuse or do not answer.
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

    /// Why it does not continue. Empty: it does.
    pub(crate) fn reason(&self, state: &State) -> String {
        match self.outlook(state) {
            Outlook::Good => String::new(),
            Outlook::Refused => reason(state, REFUSED, &self.refused),
            Outlook::Unknown => reason(state, SILENT, &self.silent),
        }
    }
}

/// Asks hosts of all waves that were not asked yet, and notes each answer.
///
/// # Errors
/// When the state cannot be written.
pub(crate) async fn ask_for_verdicts<W: World>(
    world: &W,
    state: &mut State,
    hosts: Vec<usize>,
) -> Result<Verdicts, Stopped<W::Error>> {
    let asks = hosts.into_iter().map(|index| (index, HostQuery::Judge)).collect();
    let Verdicts { mut accepted, mut refused, mut silent } = Verdicts::default();
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(HostAnswer::Judged(verdict)) => {
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

/// Asks the hosts that were not asked yet, and continues only if all accept, apart from tolerated
/// ones.
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
