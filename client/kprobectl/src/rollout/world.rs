//! Interface of a roll-out to hosts, the state file and the clock: queries and answers.
//!
//! Owns the types between decisions and actions. Behind [`World`] are real hosts and a file on
//! disk, or those of a test. It decides nothing.

use std::time::Duration;

use kprobed_client::api::Probe;
use kprobed_client::api::probe_change::Change as Asked;

use super::reading::Reading;
use super::state::{FormError, RolloutEvent, State};

/// A query to a host.
#[derive(Clone, Debug)]
pub(crate) enum HostQuery {
    /// The verdict on the documents. Changes nothing.
    Judge,
    /// The verdict and the counters.
    Look,
    /// These changes, all or none.
    Make(Vec<Asked>),
    /// Its counters.
    Read,
    /// The probes that the roll-out is about.
    Probes,
}

impl HostQuery {
    /// Whether another process needs the answer. Other queries are repeated.
    pub(crate) const fn is_kept(&self) -> bool {
        matches!(self, Self::Judge | Self::Make(_))
    }
}

/// An answer of a host.
#[derive(Clone, Debug)]
pub(crate) enum HostAnswer {
    Judged(Box<Verdict>),
    Inspected(Box<Inspection>),
    /// The outcome of each change, in order.
    Made(Vec<ChangeDone>),
    Read(Box<Reading>),
    Probes(Vec<Probe>),
}

/// A host's verdict on the documents.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// Release of its kernel.
    pub(crate) kernel: String,
    /// One for each document, in their order.
    pub(crate) planned: Vec<PlannedProbe>,
    /// Why it refuses the change. Empty: it does not.
    pub(crate) refusals: Vec<String>,
}

impl Verdict {
    /// Why the host must not be changed: its refusals, and changes that could not be undone. Empty:
    /// it can be changed.
    pub(super) fn objection(&self) -> String {
        let obstacles = self.planned.iter().filter_map(PlannedProbe::obstacle);
        self.refusals.iter().cloned().chain(obstacles).collect::<Vec<_>>().join("; ")
    }
}

/// A host before it is changed.
#[derive(Clone, Debug)]
pub(crate) struct Inspection {
    pub(crate) verdict: Verdict,
    pub(crate) reading: Reading,
}

/// A document on a host.
#[derive(Clone, Debug)]
pub(crate) struct PlannedProbe {
    pub(crate) name: String,
    /// The probe that the host has, if any.
    pub(crate) live: Option<Probe>,
    /// Absent: the probe matches the document.
    pub(crate) change: Option<Asked>,
}

impl PlannedProbe {
    /// Why the probe could not be put back after this change. None: it could.
    fn obstacle(&self) -> Option<String> {
        let live = self.live.as_ref()?;
        self.change.as_ref()?;
        let holder = live.lease.as_ref().map_or("", |lease| lease.holder.as_str());
        (!holder.is_empty()).then(|| {
            format!(
                "`{}` lives as long as a client holds it, and could not be put back: end that client, or use another name",
                self.name
            )
        })
    }
}

/// A change that was made.
#[derive(Clone, Debug)]
pub(crate) enum ChangeDone {
    Probe(Box<Probe>),
    Deleted,
}

/// Why a host failed.
#[derive(Clone, Debug)]
pub(crate) struct HostFailure {
    /// Whether it refused, and changed nothing. Otherwise it may have carried out the request.
    pub(crate) is_refusal: bool,
    pub(crate) message: String,
}

/// Why the process stops. The state has everything that was done.
#[derive(Debug)]
pub(crate) enum Stopped<E> {
    /// The world failed, as when the state cannot be written.
    World(E),
    /// The state is damaged.
    State(FormError),
}

impl<E> From<FormError> for Stopped<E> {
    fn from(error: FormError) -> Self {
        Self::State(error)
    }
}

/// Handles an answer: the host's index in the state, and the answer.
pub(crate) type AnswerHandler<'a> = dyn FnMut(&mut State, usize, Result<HostAnswer, HostFailure>) + 'a;

/// Interface to everything outside.
pub(crate) trait World {
    /// Why it fails.
    type Error;

    /// Asks hosts, several at a time, and passes each answer on as it arrives. If answers are kept
    /// ([`HostQuery::is_kept`]), the state is written from time to time.
    async fn ask(
        &self,
        state: &mut State,
        asks: Vec<(usize, HostQuery)>,
        said: &mut AnswerHandler<'_>,
    ) -> Result<(), Self::Error>;

    /// Writes the state durably: it survives the process and a power failure.
    fn save(&self, state: &State) -> Result<(), Self::Error>;

    /// Writes the state for `rollout status` if the file is old. Nothing new in it is needed to
    /// continue.
    fn show(&self, state: &State) -> Result<(), Self::Error>;

    /// Reports an event. The saved state is the one after it.
    fn tell(&self, happened: &RolloutEvent) -> Result<(), Self::Error>;

    /// Sleeps.
    async fn wait(&self, time: Duration) -> Result<(), Self::Error>;

    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;
}
