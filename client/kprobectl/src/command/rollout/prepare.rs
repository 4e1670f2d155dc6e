//! Arguments of `rollout plan` and `rollout apply`, and the roll-out that they describe.
//!
//! Owns the checks of documents, hosts and waves. It never asks a host.

use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::Args;
use kprobed_client::Client;
use kprobed_lines::Definition;

use super::super::connection::{Destination, destination};
use super::super::many_hosts::CONFIRM_ABOVE;
use super::super::{Exit, Failure, apply, documents};
use crate::config::{Config, rollout_file};
use crate::global::Global;
use crate::quantity::duration;
use crate::rollout::{Gate, Gates, Host, OnFailure, RolloutName, Setting, State, Waves};

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
        if let Some(path) = self.state {
            return Ok(path);
        }
        let config = Config::read()?;
        let context = config.context(global.context.as_deref())?.map(|(name, _)| name);
        rollout_file(context).ok_or_else(|| {
            Failure::usage(
                "there is no directory for state: HOME is not set",
                "name a file with `--state FILE`",
            )
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

/// Reads documents and hosts.
pub(super) async fn prepare(global: &Global, options: RolloutOptions) -> Result<Prepared, Failure> {
    let RolloutOptions { files, waves, gates, soak, on_failure, name, place } = options;
    if soak < SHORTEST_SOAK {
        return Err(Failure::usage(
            format!("{soak:?} is too short to read a rate"),
            "give `--soak` at least 100ms",
        ));
    }
    let declared = documents::read(&files.paths, files.recursive).await?;
    let (count, most) = (declared.len(), Client::CHANGES_AT_ONCE);
    if count > most {
        let message =
            format!("these are {count} documents, and a host can change at most {most} probes as a whole");
        return Err(Failure::usage(message, "roll the files out one by one"));
    }
    for one in &declared {
        let definition = &one.entry.document.definition;
        if Definition::by_source(definition).is_some() {
            return Err(Failure::usage(
                format!(
                    "{}: `{definition}` is another line on each kernel, and a roll-out has one for all",
                    one.place()
                ),
                "`kprobectl lines -D` prints the line of a kernel; `kprobectl apply --hosts` finds that of each host",
            ));
        }
    }
    let Destination::Many(fleet) = destination(global).await? else {
        return Err(Failure::usage(
            "a roll-out changes many hosts, and the command does not name them",
            "add `--hosts all`, or name the hosts; `apply` is for one daemon",
        ));
    };
    let path = place.path(global)?;
    let mut documents: Vec<_> = declared.into_iter().map(|declared| declared.entry.document).collect();
    let name = name.unwrap_or_else(|| RolloutName::of(&documents));
    name.mark(&mut documents).map_err(|error| {
        Failure::usage(
            error,
            "leave that label out of the document: the roll-out sets it, and `--name` names it",
        )
    })?;
    let mut hosts = fleet.hosts;
    let count = hosts.len() as u64;
    let tolerated = (0..=count).rev().find(|missing| global.tolerate.covers(*missing, count)).unwrap_or(0);
    hosts.sort_by(|a, b| a.name.cmp(&b.name));
    let cut = waves.cut(hosts.len()).map_err(|error| Failure::new(Exit::Usage, error, []))?;
    let wave_of = cut.into_iter().enumerate().flat_map(|(wave, range)| range.map(move |_host| wave));
    let hosts = hosts.into_iter().zip(wave_of).map(|(host, wave)| {
        let domain = host.options.tls.and_then(|tls| tls.domain);
        Host { name: host.name, address: host.target.to_string(), domain, wave: wave + 1, ..Host::default() }
    });
    let setting = Setting {
        documents,
        waves: waves.to_string(),
        gates: Gates::with(&gates),
        soak_ms: u64::try_from(soak.as_millis()).unwrap_or(u64::MAX),
        on_failure,
        tolerated,
    };
    let state = State::new(unique(), setting, hosts.collect());
    Ok(Prepared { state, path, limit: fleet.confirm_above.unwrap_or(CONFIRM_ABOVE) })
}

/// An id that no other roll-out has: the hashes of the standard library begin with random keys of the system.
fn unique() -> String {
    let half = || RandomState::new().hash_one((std::process::id(), SystemTime::now()));
    format!("{:016x}{:016x}", half(), half())
}
