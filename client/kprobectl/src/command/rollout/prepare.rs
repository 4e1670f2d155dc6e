//! From the command line to a roll-out that can begin.
//!
//! Owns which documents, hosts and waves are meant, and what is wrong with them. It asks no host.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kprobed_client::Client;
use kprobed_client::fleet::Host;

use super::super::connection::{Aim, aim};
use super::super::{Failure, apply, documents};
use super::Place;
use crate::cli::Global;
use crate::output::Output;
use crate::quantity::duration;
use crate::rollout::{self, Gate, Gates, OnFailure, Setting, State, Waves};

/// What is to be changed, and when it goes on.
#[derive(Debug, Args)]
pub(super) struct Wanted {
    #[command(flatten)]
    files: apply::Files,
    /// How many hosts are changed when each wave is over, counted from the first by name; percentages are rounded up
    #[arg(long, value_name = "LIST", default_value = "1,5%,100%")]
    waves: Waves,
    /// What must hold before the next wave; may be given more than once
    #[arg(long = "gate", value_name = "GATE")]
    gates: Vec<Gate>,
    /// How long a wave is watched
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    soak: Duration,
    /// What is done when a gate is not passed
    #[arg(long, value_name = "WHAT", default_value = "undo")]
    on_failure: OnFailure,
    #[command(flatten)]
    place: Place,
}

/// The shortest time in which two readings tell a rate.
const SHORTEST_SOAK: Duration = Duration::from_millis(100);

/// A roll-out that can begin.
pub(super) struct Prepared {
    pub(super) state: State,
    /// Where its state is to be.
    pub(super) path: PathBuf,
    /// The most hosts that are changed without a confirmation.
    pub(super) limit: u64,
}

/// Reads documents and hosts. Absent: the documents have mistakes, which were told.
pub(super) async fn prepare(
    global: &Global,
    wanted: Wanted,
    output: &mut Output,
) -> Result<Option<Prepared>, Failure> {
    let Wanted { files, waves, gates, soak, on_failure, place } = wanted;
    if soak < SHORTEST_SOAK {
        let message = format!("{soak:?} is too short to read a rate");
        return Err(Failure::usage(message, Some("give `--soak` at least 100ms".to_owned())));
    }
    let Some(declared) = documents::read(&files.files, files.recursive, output).await? else {
        output.note("nothing was changed");
        return Ok(None);
    };
    if declared.len() > Client::CHANGES_AT_ONCE {
        let message = format!(
            "these are {} documents, and a host can change at most {} probes as a whole",
            declared.len(),
            Client::CHANGES_AT_ONCE
        );
        return Err(Failure::usage(message, Some("roll the files out one by one".to_owned())));
    }
    let Aim::Many(fleet) = aim(global).await? else {
        let message =
            "a roll-out goes over a fleet, and the command does not say which hosts are meant".to_owned();
        return Err(Failure::usage(
            message,
            Some("add `--hosts all`, or name the hosts; `apply` is for one daemon".to_owned()),
        ));
    };
    let path = place.path(global)?;
    let mut hosts = fleet.hosts;
    hosts.sort_by(|a, b| a.name.cmp(&b.name));
    let documents: Vec<_> = declared.into_iter().map(|declared| declared.entry.document).collect();
    let text =
        kprobed_document::write(&documents).map_err(|error| Failure::usage(error.to_string(), None))?;
    let setting = Setting {
        documents: text,
        waves: waves.to_string(),
        gates: Gates::with(&gates),
        soak_ms: u64::try_from(soak.as_millis()).unwrap_or(u64::MAX),
        on_failure,
        tolerated: (0..=hosts.len() as u64)
            .rev()
            .find(|missing| global.tolerate.covers(*missing, hosts.len() as u64))
            .unwrap_or(0),
    };
    let cut = waves.cut(hosts.len()).map_err(|error| Failure::usage(error.to_string(), None))?;
    let mut members: Vec<_> = hosts.iter().map(member).collect();
    for (wave, range) in cut.into_iter().enumerate() {
        for member in members.get_mut(range).unwrap_or_default() {
            member.wave = wave;
        }
    }
    let state = State::new(unique(), setting, members);
    let limit = fleet.confirm_above.unwrap_or(super::super::fleet::CONFIRM_ABOVE);
    Ok(Some(Prepared { state, path, limit }))
}

fn member(host: &Host) -> rollout::Host {
    let domain = host.options.tls.as_ref().and_then(|tls| tls.domain.clone());
    rollout::Host::new(host.name.clone(), host.target.to_string(), domain)
}

/// An id that no other roll-out has: the hashes of the standard library begin with random keys of the system.
fn unique() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    let half =
        |salt: u64| RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now(), salt));
    format!("{:016x}{:016x}", half(0), half(1))
}
