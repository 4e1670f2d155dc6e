//! Creation of several probes from one file: all of them, or none.
//!
//! Owns the order: the daemon checks every definition before it creates the first probe, and creates
//! those of one request as a whole.

use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome;
use kprobed_client::api::{CreateProbeRequest, Probe};
use kprobed_client::{Client, Error, PlannedChanges};

use super::{Exit, Failure};
use crate::output::Output;

/// A probe to make.
#[derive(Debug)]
pub(super) struct Creation {
    pub(super) request: CreateProbeRequest,
    /// Where its definition is, for messages. Empty: there is only one.
    pub(super) place: String,
}

/// Makes all probes or none, and prints them; with `dry_run` only checks them, and shows what would
/// be done. A refusal is reported with its place.
pub(super) async fn create(
    client: &Client,
    asked: &[Creation],
    dry_run: bool,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let (mut exit, mut checked, mut plan) = (Exit::Success, Vec::with_capacity(asked.len()), Vec::new());
    for part in asked.chunks(Client::CHANGES_AT_ONCE) {
        let PlannedChanges { outcomes, plan: steps } = client.plan_probes(changes(part)).await?;
        plan.extend(steps);
        exit = exit.max(sort(part, outcomes, &mut checked, output));
    }
    if exit != Exit::Success {
        output.note("nothing was changed");
        return Ok(exit);
    }
    if dry_run {
        output.probes_created(&checked)?;
        output.plan(&plan);
        output.note("nothing was changed");
        return Ok(exit);
    }
    let mut made = 0;
    for part in asked.chunks(Client::CHANGES_AT_ONCE) {
        let outcomes = match client.apply_all_or_nothing(changes(part)).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                note_made(made, output);
                return Err(error.into());
            }
        };
        let mut created = Vec::with_capacity(part.len());
        exit = sort(part, outcomes, &mut created, output);
        if exit != Exit::Success {
            if made == 0 {
                output.note("nothing was changed");
            }
            note_made(made, output);
            return Ok(exit);
        }
        output.probes_created(&created)?;
        made += part.len();
    }
    Ok(exit)
}

fn changes(asked: &[Creation]) -> Vec<Change> {
    asked.iter().map(|one| Change::Create(one.request.clone())).collect()
}

/// Says that a file that is too long for one request was carried out in part.
fn note_made(made: usize, output: &mut Output) {
    if made > 0 {
        output.note(&format!("the first {made} definitions were carried out, and those after them were not"));
    }
}

/// Keeps the probes, and reports what was refused. Changes that were only taken back because of
/// another one are left out.
fn sort(
    asked: &[Creation],
    outcomes: Vec<Result<Outcome, Error>>,
    probes: &mut Vec<Probe>,
    output: &mut Output,
) -> Exit {
    let (mut exit, mut taken_back) = (Exit::Success, None);
    for (one, outcome) in asked.iter().zip(outcomes) {
        let error = match outcome {
            Ok(Outcome::Probe(probe)) => {
                probes.push(*probe);
                continue;
            }
            Ok(_) => Error::Incomplete("outcomes"),
            Err(error) if is_taken_back(&error) => {
                taken_back = Some(error);
                continue;
            }
            Err(error) => error,
        };
        output.document_place(&one.place);
        exit = exit.max(Failure::from(error).report(output));
    }
    match taken_back {
        Some(error) if exit == Exit::Success => Failure::from(error).report(output),
        _ => exit,
    }
}

/// The daemon's code for a change that was taken back because another one failed.
const BATCH_FAILED: &str = "BATCH_FAILED";

/// Whether a change failed for no reason of its own.
pub(super) fn is_taken_back(error: &Error) -> bool {
    error.rpc().is_some_and(|error| error.reason == BATCH_FAILED)
}
