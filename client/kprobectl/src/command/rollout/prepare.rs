//! Arguments of `rollout plan` and `rollout apply`, and the roll-out that they describe.
//!
//! Owns the checks of documents, hosts and waves. It never asks a host.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kprobed_client::Client;
use kprobed_client::fleet::Host;

use super::super::connection::{Destination, destination};
use super::super::{Failure, apply, documents};
use crate::config::{Config, rollout_file};
use crate::global::Global;
use crate::output::Output;
use crate::quantity::duration;
use crate::rollout::{self, Gate, Gates, OnFailure, RolloutName, Setting, State, Waves};

/// Options of `rollout plan` and `rollout apply`.
#[derive(Clone, Debug, Args)]
pub(super) struct RolloutOptions {
    #[command(flatten)]
    files: apply::Files,
    /// Number or percentage of hosts that are changed at the end of each wave, in the order of
    /// their names; percentages are rounded up
    #[arg(long, value_name = "LIST", default_value = "1,5%,100%")]
    waves: Waves,
    /// Limit that must hold before the next wave, as `kprobectl help rollout` lists them with their
    /// defaults; may be given more than once
    #[arg(long = "gate", value_name = "GATE")]
    gates: Vec<Gate>,
    /// How long the hosts of a wave are watched
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    soak: Duration,
    /// Action if a gate fails
    #[arg(long, value_name = "WHAT", default_value = "undo")]
    on_failure: OnFailure,
    /// Name of the roll-out: its probes have the label `kprobed/rollout=NAME`, which
    /// `list -o wide` shows [default: one that follows from the names of the probes]
    #[arg(long, value_name = "NAME")]
    name: Option<RolloutName>,
    #[command(flatten)]
    place: StateLocation,
}

/// Where the state is.
#[derive(Clone, Debug, Args)]
pub(super) struct StateLocation {
    /// The file with the state [default: one for each context]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

impl StateLocation {
    pub(super) fn path(self, global: &Global) -> Result<PathBuf, Failure> {
        let Self { state: None } = self else { return Ok(self.state.unwrap_or_default()) };
        let config = Config::read()?;
        let context = config.context(global.context.as_deref())?.map(|(name, _)| name);
        let hint = "name a file with `--state FILE`".to_owned();
        rollout_file(context).ok_or_else(|| {
            Failure::usage("there is no directory for state: HOME is not set".to_owned(), Some(hint))
        })
    }
}

/// The shortest time in which two readings tell a rate.
const SHORTEST_SOAK: Duration = Duration::from_millis(100);

/// A roll-out that can begin.
pub(super) struct Prepared {
    pub(super) state: State,
    /// Path of its state file.
    pub(super) path: PathBuf,
    /// The most hosts that are changed without a confirmation.
    pub(super) limit: u64,
}

/// Reads documents and hosts. None: the documents have problems, which were reported.
pub(super) async fn prepare(
    global: &Global,
    wanted: RolloutOptions,
    output: &mut Output,
) -> Result<Option<Prepared>, Failure> {
    let RolloutOptions { files, waves, gates, soak, on_failure, name, place } = wanted;
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
    let Destination::Many(fleet) = destination(global).await? else {
        let message = "a roll-out changes many hosts, and the command does not name them".to_owned();
        return Err(Failure::usage(
            message,
            Some("add `--hosts all`, or name the hosts; `apply` is for one daemon".to_owned()),
        ));
    };
    let path = place.path(global)?;
    let mut hosts = fleet.hosts;
    hosts.sort_by(|a, b| a.name.cmp(&b.name));
    let mut documents: Vec<_> = declared.into_iter().map(|declared| declared.entry.document).collect();
    let name = name.unwrap_or_else(|| RolloutName::of(&documents));
    name.mark(&mut documents).map_err(|error| {
        let hint =
            "leave that label out of the document: the roll-out sets it, and `--name` names it".to_owned();
        Failure::usage(error.to_string(), Some(hint))
    })?;
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
    let limit = fleet.confirm_above.unwrap_or(super::super::many_hosts::CONFIRM_ABOVE);
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
