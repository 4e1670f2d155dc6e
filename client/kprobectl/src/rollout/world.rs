//! What a roll-out needs from outside: hosts, the state file, the clock, and a reader of its events.
//!
//! Behind [`World`] are real hosts and a file on disk, or those of a test. It decides nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use kprobed_client::Error;
use kprobed_client::api::{Probe, ProbeState};
use kprobed_client::fleet::{NoAnswer, Operation, Outcome};
use kprobed_document::{Document, document_of};

use super::change::{Armed, Target};
use super::judgement::Reading;
use super::state::{RolloutEvent, State};

/// What a host says of the change before it is made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Release of its kernel.
    pub(crate) kernel: String,
    /// Read before the host worked on its verdict.
    pub(crate) reading: Reading,
    /// As in [`Host`](super::Host).
    pub(crate) changes: BTreeMap<String, Option<String>>,
    /// As in [`Host`](super::Host).
    pub(crate) before: Vec<Document>,
    /// The probes that are as their documents say.
    pub(crate) armed: BTreeMap<String, Armed>,
    /// Why it refuses the change. Empty: it does not.
    pub(crate) refusals: Vec<String>,
}

/// Why a host failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum HostFailure {
    /// It refused, and changed nothing.
    #[error("{0}")]
    Refused(String),
    /// A probe is not as this roll-out left it.
    #[error("{0}")]
    Foreign(String),
    /// It gave no answer, and may have carried out the request.
    #[error("{0}")]
    Silent(String),
}

impl Plan {
    /// Adds the probe that the host has for a document, if any. `is_changed`: it is not as the document says.
    pub(crate) fn add(&mut self, name: &str, live: Option<&Probe>, is_changed: bool) {
        let Some(live) = live else {
            self.changes.insert(name.to_owned(), None);
            return;
        };
        if !is_changed {
            self.armed.insert(name.to_owned(), Armed::of(live));
            return;
        }
        if live.lease.as_ref().is_some_and(|lease| !lease.holder.is_empty()) {
            self.refusals.push(format!(
                "`{name}` lives as long as a client holds it, and could not be put back: end that client, or use another name"
            ));
        }
        self.changes.insert(name.to_owned(), Some(live.etag.clone()));
        // One whose lease has ended is out of the kernel, and will be forgotten: there was no probe.
        if live.state() != ProbeState::Expired {
            self.before.push(document_of(live));
        }
    }

    /// The plan, if the host takes the change, and the change can be undone.
    pub(super) fn accepted(self) -> Result<Self, HostFailure> {
        if self.refusals.is_empty() { Ok(self) } else { Err(HostFailure::Refused(self.refusals.join("; "))) }
    }
}

impl HostFailure {
    /// The failure of a request.
    pub(crate) fn of(outcome: Outcome, message: String) -> Self {
        if outcome == Outcome::Refused { Self::Refused(message) } else { Self::Silent(message) }
    }
}

impl From<Error> for HostFailure {
    fn from(error: Error) -> Self {
        Self::of(error.outcome(), error.to_string())
    }
}

impl From<NoAnswer<Self>> for HostFailure {
    fn from(why: NoAnswer<Self>) -> Self {
        match why {
            NoAnswer::Operation(error) => error,
            other => Self::of(other.outcome(), other.to_string()),
        }
    }
}

impl Operation for HostFailure {
    fn outcome(&self) -> Outcome {
        if matches!(self, Self::Silent(_)) { Outcome::Failed } else { Outcome::Refused }
    }
}

/// Takes the answer of a host, which the index in the state names.
pub(crate) type Note<'a, T> = &'a mut dyn FnMut(&mut State, usize, Result<T, HostFailure>);

/// Interface to everything outside. Several hosts are asked at a time, and each answer is noted as it arrives;
/// the state is written from time to time meanwhile.
pub(crate) trait World {
    /// Why it fails.
    type Error;

    /// Asks hosts for their verdict on the documents, and for a reading. Changes nothing.
    async fn plan(&self, state: &mut State, hosts: &[usize], note: Note<'_, Plan>)
    -> Result<(), Self::Error>;

    /// Changes probes of hosts, all of a host or none. The answer has the probes that it changed, as
    /// [`settled`](super::settled) says.
    async fn apply(
        &self,
        state: &mut State,
        targets: Vec<(usize, Vec<Target>)>,
        note: Note<'_, BTreeMap<String, Armed>>,
    ) -> Result<(), Self::Error>;

    /// Reads counters and health of hosts.
    async fn read(
        &self,
        state: &mut State,
        hosts: &[usize],
        note: Note<'_, Reading>,
    ) -> Result<(), Self::Error>;

    /// Writes the state durably: it survives the process and a power failure.
    fn save(&self, state: &State) -> Result<(), Self::Error>;

    /// Reports an event. The saved state is the one after it.
    fn tell(&self, event: &RolloutEvent) -> Result<(), Self::Error>;

    /// Shows how much of a soak is over.
    fn soaks(&self, done: Duration, whole: Duration);

    /// Sleeps.
    async fn wait(&self, time: Duration) -> Result<(), Self::Error>;

    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;
}
