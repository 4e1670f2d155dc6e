//! State of a roll-out: everything that another machine needs to continue it.
//!
//! Owns the form of the file and its validation. Keys and certificates are never in it.

use std::collections::{BTreeMap, BTreeSet};

use kprobed_client::Target;
use kprobed_client::api::Probe;
use kprobed_client::api::probe_change::Change as Asked;
use kprobed_document::Document;
use serde::{Deserialize, Serialize};

use super::gate::Gates;
use super::reading::{Reading, Spent};
use super::recorded_change::{Armed, Change, decoded};

/// Version of the file format.
pub(super) const FORMAT: u32 = 1;

/// Phase of a roll-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// It is running, or its client was stopped while it was.
    Running,
    /// It is paused until `resume` or `undo`.
    Paused,
    /// It is being undone, or its client was stopped while it was.
    Undoing,
    /// Every host is back in its state before the change.
    Undone,
    /// Every host has passed.
    Done,
}

impl Phase {
    /// Its name in files and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Undoing => "undoing",
            Self::Undone => "undone",
            Self::Done => "done",
        }
    }
}

/// State of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// It was not asked yet.
    Waiting,
    /// It accepts the change. Nothing is changed yet.
    Accepted,
    /// Its requests are recorded; they may have been sent.
    Intended,
    /// It has the change, or had it before.
    Changed,
    /// It has the change, and passed all gates.
    Passed,
    /// It did not answer, or refused before anything was changed, and that is tolerated.
    LeftOut,
    /// The requests that put it back are recorded; they may have been sent.
    UndoIntended,
    /// It is back in its state before the change.
    Undone,
}

impl Step {
    /// Its name in files and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Accepted => "accepted",
            Self::Intended => "intended",
            Self::Changed => "changed",
            Self::Passed => "passed",
            Self::LeftOut => "left_out",
            Self::UndoIntended => "undo_intended",
            Self::Undone => "undone",
        }
    }
}

/// Action if a gate fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnFailure {
    /// Undo the change on all hosts
    Undo,
    /// Pause, and change no further host
    Pause,
}

/// A host of the roll-out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Host {
    pub(crate) name: String,
    /// Where its daemon is, with the scheme.
    pub(crate) address: String,
    /// The name in its certificate, if it is not that of the address.
    pub(crate) domain: Option<String>,
    /// Its wave, from 0.
    pub(crate) wave: usize,
    pub(crate) step: Step,
    /// Release of its kernel, when it was asked.
    pub(crate) kernel: String,
    /// Before the change.
    pub(crate) before: Option<Reading>,
    /// The latest since the change.
    pub(crate) last: Option<Reading>,
    /// CPU time of its daemon at the first reading of the soak.
    pub(crate) soak_begun: Option<Spent>,
    /// All probes of the roll-out, as the change left them.
    pub(crate) armed: BTreeMap<String, Armed>,
    /// Requests of the change, sent or not.
    pub(crate) changes: Vec<Change>,
    /// Requests that put it back, sent or not.
    pub(crate) undo: Vec<Change>,
    /// The worst figure of each gate, as read last.
    pub(crate) figures: BTreeMap<String, String>,
    /// What is wrong with it. Empty: nothing is.
    pub(crate) note: String,
}

impl Host {
    /// A host that was not asked yet.
    pub(crate) fn new(name: String, address: String, domain: Option<String>) -> Self {
        Self {
            name,
            address,
            domain,
            wave: 0,
            step: Step::Waiting,
            kernel: String::new(),
            before: None,
            last: None,
            soak_begun: None,
            armed: BTreeMap::new(),
            changes: Vec::new(),
            undo: Vec::new(),
            figures: BTreeMap::new(),
            note: String::new(),
        }
    }

    /// Whether it may have been changed, and was not put back.
    pub(crate) fn is_touched(&self) -> bool {
        !self.changes.is_empty() && self.step != Step::Undone
    }
}

/// An event of a roll-out.
#[derive(Clone, Debug)]
pub(crate) struct RolloutEvent {
    /// In milliseconds since 1970.
    pub(crate) time_ms: u64,
    /// The wave, from 1.
    pub(crate) wave: usize,
    /// `started`, `accepted`, `intended`, `changed`, `passed`, `left_out`, `gate_failed`, `paused`,
    /// `resumed`, `undoing`, `undone` or `done`.
    pub(crate) event: &'static str,
    /// The hosts that it concerns. Empty: the whole roll-out.
    pub(crate) hosts: Vec<String>,
    /// Message.
    pub(crate) message: String,
}

/// Options of a roll-out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setting {
    /// Documents of the probes, whole.
    pub(crate) documents: String,
    /// How far the waves reach, for people.
    pub(crate) waves: String,
    pub(crate) gates: Gates,
    /// How long a wave is watched, in milliseconds.
    pub(crate) soak_ms: u64,
    pub(crate) on_failure: OnFailure,
    /// How many hosts may be left out.
    pub(crate) tolerated: u64,
}

/// A roll-out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    pub(super) format: u32,
    /// Unique: request ids begin with it.
    pub(crate) id: String,
    pub(crate) setting: Setting,
    pub(crate) phase: Phase,
    /// Why it is paused or being undone. Empty: it is neither.
    pub(crate) reason: String,
    /// The current wave, from 0.
    pub(crate) wave: usize,
    /// Number of the next request id.
    pub(super) next_request: u64,
    /// By wave.
    pub(crate) hosts: Vec<Host>,
}

/// Why bytes are not a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormError {
    /// Not JSON, or other fields.
    #[error("it is not the state of a roll-out: {0}")]
    Form(String),
    /// Another number of the form.
    #[error(
        "it has the form {found}, and this command reads the form {FORMAT}: use the version that wrote it"
    )]
    Version {
        /// The number that it has.
        found: u64,
    },
    /// A value that is not valid.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

impl State {
    /// A roll-out over these hosts, which are in the order of the waves.
    pub(crate) fn new(id: String, setting: Setting, hosts: Vec<Host>) -> Self {
        Self {
            format: FORMAT,
            id,
            setting,
            phase: Phase::Running,
            reason: String::new(),
            wave: 0,
            next_request: 0,
            hosts,
        }
    }

    /// Waves that have hosts.
    pub(crate) fn waves(&self) -> usize {
        self.hosts.iter().map(|host| host.wave + 1).max().unwrap_or(0)
    }

    /// Hosts of the current wave in this state.
    pub(super) fn at(&self, step: Step) -> Vec<usize> {
        (0..self.hosts.len())
            .filter(|index| self.hosts[*index].wave == self.wave && self.hosts[*index].step == step)
            .collect()
    }

    /// Hosts of all waves in this state.
    pub(crate) fn of_all_waves(&self, step: Step) -> Vec<usize> {
        (0..self.hosts.len()).filter(|index| self.hosts[*index].step == step).collect()
    }

    /// Records a request under an id of its own.
    pub(super) fn record(
        &mut self,
        probe: &str,
        asked: Asked,
        before: Option<&Probe>,
    ) -> Result<Change, String> {
        let request_id = format!("{}-{}", self.id, self.next_request);
        self.next_request = self.next_request.saturating_add(1);
        Change::new(probe, request_id, asked, before)
    }

    /// The documents.
    ///
    /// # Errors
    /// When they cannot be read, which is damage.
    pub(crate) fn documents(&self) -> Result<Vec<Document>, FormError> {
        let entries = kprobed_document::read(&self.setting.documents).map_err(|problems| {
            let first = problems.first().map_or_else(String::new, |problem| problem.message.clone());
            FormError::Damaged(format!("`setting.documents`: {first}"))
        })?;
        Ok(entries.into_iter().map(|entry| entry.document).collect())
    }

    /// The bytes of the file.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// For bytes that [`State::encode`] does not write.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormError> {
        let form = |error: serde_json::Error| FormError::Form(error.to_string());
        // The version first: the fields of another one are not known here.
        let whole: serde_json::Value = serde_json::from_slice(bytes).map_err(form)?;
        match whole.get("format").and_then(serde_json::Value::as_u64) {
            Some(found) if found != u64::from(FORMAT) => return Err(FormError::Version { found }),
            Some(_) => {}
            None => return Err(FormError::Form("the number `format` is missing".to_owned())),
        }
        let state: Self = serde_json::from_slice(bytes).map_err(form)?;
        state.check()?;
        Ok(state)
    }

    fn check(&self) -> Result<(), FormError> {
        let damaged = |what: String| Err(FormError::Damaged(what));
        if self.id.is_empty() || self.id.len() > 64 {
            return damaged("`id` must have 1 to 64 bytes".to_owned());
        }
        if !self.setting.gates.is_whole() {
            return damaged("`setting.gates` must have each gate once, in order".to_owned());
        }
        if self.documents()?.is_empty() {
            return damaged("`setting.documents` has no document".to_owned());
        }
        let mut names = BTreeSet::new();
        let mut wave = 0;
        for host in &self.hosts {
            if !names.insert(&host.name) {
                return damaged(format!("the host `{}` is there twice", host.name));
            }
            if let Err(error) = host.address.parse::<Target>() {
                return damaged(format!("the host `{}`: {error}", host.name));
            }
            if host.wave != wave && host.wave != wave + 1 {
                return damaged(format!(
                    "the host `{}` is in wave {}, behind wave {wave}",
                    host.name, host.wave
                ));
            }
            wave = host.wave;
            for change in host.changes.iter().chain(&host.undo) {
                if let Err(problem) = decoded(change) {
                    return damaged(format!("the host `{}`, `{}`: {problem}", host.name, change.probe));
                }
            }
        }
        if self.wave > self.waves() {
            return damaged(format!("`wave` is {}, and there are {}", self.wave, self.waves()));
        }
        Ok(())
    }
}
