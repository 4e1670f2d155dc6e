//! Configuration of `kprobectl`: contexts with hosts, groups and certificates.
//!
//! Owns the form of the file, its path, how it is written, and which hosts `--hosts` selects. It
//! never connects to a host.

mod file;
mod hosts;

pub(crate) use file::{replace, rollout_file, state_file, user_directory, variable};
pub(crate) use hosts::{NamedHost, choose, place};

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use kprobed_client::TargetError;
use kprobed_client::fleet::names::NamesError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// The context that is used when none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current_context: Option<String>,
    /// All contexts by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) contexts: BTreeMap<String, Context>,
}

/// A fleet, or one daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Context {
    /// The daemon of commands that name no hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
    /// Certificate of the authority; like the next two relative to the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    /// Certificate of this client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cert: Option<PathBuf>,
    /// Path of its private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// Name in the certificates of the daemons; `{}` stands for the host's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) domain: Option<String>,
    /// Port of addresses that have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<u16>,
    /// Most hosts that are asked at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parallel: Option<NonZeroUsize>,
    /// Commands that change something ask for `--yes` on more hosts than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) confirm_above: Option<u64>,
    /// A further file with `hosts` and `groups`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inventory: Option<PathBuf>,
    /// Hosts by name, or by names with a range.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) hosts: BTreeMap<String, Option<HostEntry>>,
    /// Names, globs and ranges of hosts by group.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) groups: BTreeMap<String, Vec<String>>,
}

/// Hosts and their groups: the form of an inventory file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Inventory {
    /// By name, or by names with a range.
    hosts: BTreeMap<String, Option<HostEntry>>,
    /// Names, globs and ranges of hosts by group.
    groups: BTreeMap<String, Vec<String>>,
}

/// A host, or several that differ in a number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HostEntry {
    /// Address; `{}` stands for the name. Absent: the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<String>,
    /// Name in its certificate; `{}` stands for the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) domain: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
}

/// Reads a file of the user. A problem says in which line and column it is.
fn read_yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { budget: None, with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}

/// What is wrong with the configuration, or with what is asked of it.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error("cannot read `{path}`: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write `{path}`: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error("`{path}` is not a valid configuration: {problem}")]
    Form { path: PathBuf, problem: String },
    #[error(
        "there is no place for the configuration: neither KPROBECTL_CONFIG, XDG_CONFIG_HOME nor HOME is set"
    )]
    NoPlace,
    #[error("there is no context `{0}`")]
    NoContext(String),
    #[error("no context is current")]
    NoCurrent,
    #[error("`{0}` is not a name: use letters, digits, `.`, `_` and `-`, and begin with a letter or a digit")]
    Name(String),
    #[error("the host `{0}` is in the inventory more than once")]
    Twice(String),
    #[error("the address of `{0}` has no port")]
    NoPort(String),
    #[error("`{0}` is neither a host, a group nor an address with a port")]
    UnknownHost(String),
    #[error("no host matches `{0}`")]
    NoMatch(String),
    #[error("no host of `{0}` has labels that `--host-selector` selects")]
    NoLabels(String),
    #[error("`{first}` and `{second}` are one daemon, at {target}")]
    OneDaemon { first: String, second: String, target: String },
    #[error("no host is known here: no context with `hosts` is current")]
    NoHosts,
    #[error("every host of the last run answered, or there was no run: `@failed` names no host")]
    NothingFailed,
    #[error("the context `{context}` has {hosts} hosts, and the command does not say which are meant")]
    SeveralHosts { context: String, hosts: usize },
    #[error(transparent)]
    Names(#[from] NamesError),
    #[error(transparent)]
    Target(#[from] TargetError),
}

impl ConfigError {
    /// What to do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Form { .. } => "`kprobectl help config` has an example of the file",
            Self::NoPlace => "set KPROBECTL_CONFIG to the path of a file",
            Self::NoContext(_) | Self::NoCurrent => {
                "`kprobectl config get-contexts` lists contexts, and `kprobectl config use-context NAME` makes one current"
            }
            Self::NoPort(_) => "write `HOST:PORT`, or `port: PORT` in the context",
            Self::UnknownHost(_) | Self::NoMatch(_) | Self::NoLabels(_) => {
                "`kprobectl config get-hosts` lists the hosts of the context"
            }
            Self::OneDaemon { .. } => {
                "name it once: it would be asked twice; `kprobectl config get-hosts` lists the addresses"
            }
            Self::NoHosts => {
                "`kprobectl help config` shows where hosts are named; `--hosts HOST:PORT` needs no context"
            }
            Self::SeveralHosts { .. } => {
                "add `--hosts all`, or name the hosts, as in `--hosts 'web[001-480]'`"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

/// Whether a text can be the name of a context, a group or a host.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}
