//! Changes of probes: the one way in which commands ask for them.
//!
//! Owns requests of many changes, the report of those that fail, and that a file of definitions is carried out as
//! a whole.

use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome;
use kprobed_client::api::{CreateProbeRequest, PlannedStep, Probe, UpdateProbeRequest};
use kprobed_client::{Client, Error};

use super::{Exit, Failure};
use crate::output::Output;

/// A change to make.
#[derive(Clone, Debug)]
pub(super) struct RequestedChange {
    pub(super) change: Change,
    /// Where it is written, for messages. Empty: nowhere, or there is only one.
    pub(super) place: String,
}

impl RequestedChange {
    pub(super) fn create(request: CreateProbeRequest, place: String) -> Self {
        Self { change: Change::Create(request), place }
    }
}

impl From<Change> for RequestedChange {
    fn from(change: Change) -> Self {
        Self { change, place: String::new() }
    }
}

/// How changes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// They are only checked.
    Check,
    /// Each by itself.
    Each,
    /// All of a request, or none.
    All,
}

/// What became of changes.
#[derive(Debug)]
pub(super) struct Sent {
    /// One for each change. None: it failed, which was reported.
    pub(super) outcomes: Vec<Option<Outcome>>,
    /// What would be done, if they were only checked.
    pub(super) plan: Vec<PlannedStep>,
    /// The worst of all.
    pub(super) exit: Exit,
}

impl Sent {
    /// The probes that were made or changed.
    pub(super) fn probes(self) -> Vec<Probe> {
        let probe = |outcome| match outcome {
            Outcome::Probe(probe) => Some(*probe),
            _ => None,
        };
        self.outcomes.into_iter().flatten().filter_map(probe).collect()
    }
}

/// Asks for changes, and reports those that fail. Those that failed only because of another one are left out.
///
/// # Errors
/// What keeps the first request from being carried out; a later one is reported, and the rest is not asked for.
pub(super) async fn send(
    client: &Client,
    changes: &[RequestedChange],
    mode: Mode,
    output: &mut Output,
) -> Result<Sent, Failure> {
    let mut sent =
        Sent { outcomes: Vec::with_capacity(changes.len()), plan: Vec::new(), exit: Exit::Success };
    for part in changes.chunks(Client::CHANGES_AT_ONCE) {
        let asked = part.iter().map(|one| one.change.clone()).collect();
        let answer = match mode {
            Mode::Check => client.plan_probes(asked).await.map(|planned| {
                sent.plan.extend(planned.plan);
                planned.outcomes
            }),
            Mode::Each => client.apply_probes(asked).await,
            Mode::All => client.apply_all_or_nothing(asked).await,
        };
        let answer = match answer {
            Err(error) if sent.outcomes.is_empty() => return Err(error.into()),
            Err(error) => {
                sent.exit = sent.exit.max(Failure::from(error).report(output));
                break;
            }
            Ok(answer) => answer,
        };
        let mut taken_back = None;
        for (one, outcome) in part.iter().zip(answer) {
            sent.outcomes.push(match outcome {
                Ok(outcome) => Some(outcome),
                Err(error) if is_taken_back(&error) => {
                    taken_back = Some(error);
                    None
                }
                Err(error) => {
                    output.document_place(&one.place);
                    sent.exit = sent.exit.max(Failure::from(error).report(output));
                    None
                }
            });
        }
        if let Some(error) = taken_back.filter(|_| sent.exit == Exit::Success) {
            sent.exit = Failure::from(error).report(output);
        }
    }
    sent.outcomes.resize(changes.len(), None);
    Ok(sent)
}

/// Changes probes, and reports each failure. Returns those that were changed, and the worst exit code.
pub(super) async fn update(
    client: &Client,
    requests: Vec<UpdateProbeRequest>,
    mode: Mode,
    output: &mut Output,
) -> Result<(Vec<Probe>, Exit), Failure> {
    let changes: Vec<_> = requests.into_iter().map(|request| Change::Update(request).into()).collect();
    let sent = send(client, &changes, mode, output).await?;
    let exit = sent.exit;
    Ok((sent.probes(), exit))
}

/// Makes all probes or none, and prints them; with `dry_run` only checks them, and shows what would
/// be done. More than one request can carry are checked as a whole, and made one request at a time.
pub(super) async fn create(
    client: &Client,
    asked: &[RequestedChange],
    dry_run: bool,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let checked = send(client, asked, Mode::Check, output).await?;
    if checked.exit != Exit::Success {
        output.note("nothing was changed");
        return Ok(checked.exit);
    }
    if dry_run {
        let plan = checked.plan.clone();
        output.probes_created(&checked.probes())?;
        output.planned(&plan);
        return Ok(Exit::Success);
    }
    for (number, part) in asked.chunks(Client::CHANGES_AT_ONCE).enumerate() {
        let sent = send(client, part, Mode::All, output).await;
        if !sent.as_ref().is_ok_and(|sent| sent.exit == Exit::Success) {
            match number * Client::CHANGES_AT_ONCE {
                // Without an answer, it may have been carried out.
                0 if sent.is_err() => {}
                0 => output.note("nothing was changed"),
                made => output.note(&format!(
                    "the first {made} definitions were carried out, and those after them were not"
                )),
            }
            return sent.map(|sent| sent.exit);
        }
        output.probes_created(&sent?.probes())?;
    }
    Ok(Exit::Success)
}

/// The daemon's code for a change that was taken back because another one failed.
const BATCH_FAILED: &str = "BATCH_FAILED";

/// Whether a change failed for no reason of its own.
pub(super) fn is_taken_back(error: &Error) -> bool {
    error.rpc().is_some_and(|error| error.reason == BATCH_FAILED)
}
