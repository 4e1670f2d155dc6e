//! State of a roll-out: everything that another machine needs to continue it.
//!
//! Owns the form of the file and its validation. Keys and certificates are never in it.

use std::collections::{BTreeMap, BTreeSet};

use kprobed_client::Target;
use kprobed_document::Document;
use serde::{Deserialize, Serialize};

use super::change::Armed;
use super::gate::{Figure, Gates, Metric};
use super::judgement::Reading;
use super::waves::Waves;

/// Version of the file format.
const FORMAT: u32 = 1;

/// Shows a choice by its name in the file.
macro_rules! shown_as_serialized {
    ($($choice:ty),+) => {$(
        impl std::fmt::Display for $choice {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                serde::Serialize::serialize(self, f)
            }
        }
    )+};
}
pub(super) use shown_as_serialized;

shown_as_serialized!(Phase, Step, OnFailure);

/// Phase of a roll-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// It has not begun, and is not in a file.
    Planned,
    /// It is running, or its client was killed while it was.
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

/// State of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// It was not asked yet.
    #[default]
    Waiting,
    /// It accepts the change. Nothing is changed yet.
    Accepted,
    /// What it has before the change is recorded; the change may have been sent.
    Intended,
    /// It has the change, or had it before.
    Changed,
    /// It has the change, and passed all gates.
    Passed,
    /// It did not answer, or refused before anything was changed, and that is tolerated.
    LeftOut,
    /// It is back in its state before the change.
    Undone,
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Host {
    pub(crate) name: String,
    /// Where its daemon is, with the scheme.
    pub(crate) address: String,
    /// The name in its certificate, if it is not that of the address.
    pub(crate) domain: Option<String>,
    /// Its wave, from 1.
    pub(crate) wave: usize,
    pub(crate) step: Step,
    /// Release of its kernel, when it was asked.
    pub(crate) kernel: String,
    /// The probes that the roll-out changes, with the etag that they had before; null: there was none.
    pub(crate) changes: BTreeMap<String, Option<String>>,
    /// Those that were there before, as they were: `kprobectl apply` reads it.
    #[serde(with = "text")]
    pub(crate) before: Vec<Document>,
    /// All probes of the roll-out, as the change left them.
    pub(crate) armed: BTreeMap<String, Armed>,
    /// Counters and health before the change.
    pub(crate) base: Option<Reading>,
    /// Whether a person has resumed the roll-out since its last reading.
    pub(crate) is_resumed: bool,
    /// The worst figure of each gate, as read last.
    pub(crate) figures: BTreeMap<Metric, Figure>,
    /// What is wrong with it. Empty: nothing is.
    pub(crate) note: String,
}

impl Host {
    /// Whether it may have been changed, and was not put back.
    pub(crate) fn is_touched(&self) -> bool {
        !self.changes.is_empty() && !matches!(self.step, Step::Waiting | Step::Accepted | Step::Undone)
    }
}

/// An event of a roll-out.
#[derive(Clone, Debug)]
pub(crate) struct RolloutEvent {
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

impl RolloutEvent {
    /// An event of the current wave.
    pub(super) fn new(state: &State, event: &'static str, hosts: &[usize], message: String) -> Self {
        let hosts = hosts.iter().map(|index| state.hosts[*index].name.clone()).collect();
        // After the last wave, the state has the number of the next one.
        Self { wave: state.wave.min(state.waves()), event, hosts, message }
    }
}

/// Options of a roll-out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setting {
    /// Documents of the probes, as text.
    #[serde(with = "text")]
    pub(crate) documents: Vec<Document>,
    /// How far the waves reach, of the hosts that are not left out before the first change.
    pub(crate) waves: String,
    pub(crate) gates: Gates,
    /// How long a wave is watched, in milliseconds.
    pub(crate) soak_ms: u64,
    pub(crate) on_failure: OnFailure,
    /// How many hosts may be left out.
    pub(crate) tolerated: u64,
}

/// A roll-out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    format: u32,
    /// Unique: request ids begin with it.
    pub(crate) id: String,
    pub(crate) setting: Setting,
    pub(crate) phase: Phase,
    /// Why it is paused or being undone. Empty: it is neither.
    pub(crate) reason: String,
    /// The current wave, from 1.
    pub(crate) wave: usize,
    /// By wave.
    pub(crate) hosts: Vec<Host>,
}

/// What all forms of the file have.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl State {
    /// A roll-out over these hosts, which are in the order of the waves.
    pub(crate) fn new(id: String, setting: Setting, hosts: Vec<Host>) -> Self {
        Self { format: FORMAT, id, setting, phase: Phase::Planned, reason: String::new(), wave: 1, hosts }
    }

    /// Waves that have hosts.
    pub(crate) fn waves(&self) -> usize {
        self.hosts.iter().map(|host| host.wave).max().unwrap_or(0)
    }

    /// Cuts the waves anew, before any host is changed: a first wave whose hosts are all left out would be watched on
    /// none. `out`: hosts that are left out now.
    pub(super) fn cut_without(&mut self, out: &[usize]) {
        let stays = |(index, host): (usize, &Host)| host.step != Step::LeftOut && !out.contains(&index);
        let staying: Vec<bool> = self.hosts.iter().enumerate().map(stays).collect();
        let count = staying.iter().filter(|stays| **stays).count();
        let Ok(cut) = self.setting.waves.parse::<Waves>().and_then(|waves| waves.cut(count)) else { return };
        let mut waves = cut.into_iter().zip(1..).flat_map(|(range, wave)| range.map(move |_host| wave));
        let mut wave = 1;
        for (host, stays) in self.hosts.iter_mut().zip(staying) {
            if stays {
                wave = waves.next().unwrap_or(wave);
            }
            host.wave = wave;
        }
    }

    /// Hosts of the current wave in this state.
    pub(super) fn at(&self, step: Step) -> Vec<usize> {
        let mut hosts = self.of_all_waves(step);
        hosts.retain(|index| self.hosts[*index].wave == self.wave);
        hosts
    }

    /// Hosts of all waves in this state.
    pub(super) fn of_all_waves(&self, step: Step) -> Vec<usize> {
        (0..self.hosts.len()).filter(|index| self.hosts[*index].step == step).collect()
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
    /// For bytes that [`State::encode`] does not write: what is wrong with them.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let form = |error: serde_json::Error| format!("it is not the state of a roll-out: {error}");
        // The version first: the fields of another one are not known here.
        let Version { format } = serde_json::from_slice(bytes).map_err(form)?;
        if format != FORMAT {
            return Err(format!(
                "it has the form {format}, and this command reads the form {FORMAT}: use the version that wrote it"
            ));
        }
        let state: Self = serde_json::from_slice(bytes).map_err(form)?;
        state.problem().map_or(Ok(state), |problem| Err(format!("it is damaged: {problem}")))
    }

    /// What is wrong with the values of a state that was read.
    fn problem(&self) -> Option<String> {
        if self.id.is_empty() || self.id.len() > 64 {
            return Some("`id` must have 1 to 64 bytes".to_owned());
        }
        let documents: BTreeSet<_> = self.setting.documents.iter().map(|document| &document.name).collect();
        if documents.is_empty() {
            return Some("`setting.documents` has no document".to_owned());
        }
        let (mut names, mut wave) = (BTreeSet::new(), 1);
        for host in &self.hosts {
            let of_host = |problem: String| Some(format!("the host `{}` {problem}", host.name));
            if !names.insert(&host.name) {
                return of_host("is there twice".to_owned());
            }
            if let Err(error) = host.address.parse::<Target>() {
                return of_host(format!("has no address: {error}"));
            }
            if host.wave != wave && host.wave != wave + 1 {
                return of_host(format!("is in wave {}, behind wave {wave}", host.wave));
            }
            if let Some(name) = host.changes.keys().find(|name| !documents.contains(name)) {
                return of_host(format!("has `{name}`, and there is no document of it"));
            }
            wave = host.wave;
        }
        let waves = self.waves();
        (self.wave == 0 || self.wave > waves + 1)
            .then(|| format!("`wave` is {}, and there are {waves}", self.wave))
    }
}

/// Documents in the file: as the text that `kprobectl get -o yaml` prints and `kprobectl apply` reads.
pub(super) mod text {
    use kprobed_document::{Document, read, write};
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(documents: &[Document], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&write(documents).map_err(S::Error::custom)?)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Document>, D::Error> {
        let problem = |problem: &str| D::Error::custom(format!("documents: {problem}"));
        let entries = read(&String::deserialize(deserializer)?)
            .map_err(|problems| problem(problems.first().map_or("", |first| first.message.as_str())))?;
        Ok(entries.into_iter().map(|entry| entry.document).collect())
    }
}
