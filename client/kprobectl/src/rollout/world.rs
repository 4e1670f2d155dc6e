//! What a roll-out asks of the outside, and the answers.
//!
//! Owns the words between what decides and what acts: behind [`World`] are hosts over a network and a file on a disk, or those of a test. It
//! decides nothing.

use std::time::Duration;

use kprobed_client::api::Probe;
use kprobed_client::api::probe_change::Change as Asked;

use super::plan;
use super::reading::Reading;
use super::state::{FormError, Happened, State};

/// What is asked of a host.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// What it says to the documents. Changes nothing.
    Judge,
    /// The same, and its counters.
    Look,
    /// These changes, all or none.
    Make(Vec<Asked>),
    /// Its counters.
    Read,
    /// The probes that the roll-out is about.
    Probes,
}

impl Ask {
    /// Whether a process that follows needs the answer. The others are asked for again.
    pub(crate) const fn is_kept(&self) -> bool {
        matches!(self, Self::Judge | Self::Make(_))
    }
}

/// What a host says.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Judged(Box<Verdict>),
    Looked(Box<Looked>),
    /// What became of each change, in order.
    Made(Vec<Done>),
    Read(Box<Reading>),
    Probes(Vec<Probe>),
}

/// What a host says to the documents.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// Release of its kernel.
    pub(crate) kernel: String,
    /// One for each document, in their order.
    pub(crate) planned: Vec<Planned>,
    /// Why it refuses the change. Empty: it does not.
    pub(crate) refusals: Vec<String>,
}

impl Verdict {
    /// Why the host is not to be changed, by itself or because it could not be put back. Empty: it can be.
    pub(super) fn objection(&self) -> String {
        let obstacles = self.planned.iter().filter_map(plan::obstacle);
        self.refusals.iter().cloned().chain(obstacles).collect::<Vec<_>>().join("; ")
    }
}

/// A host before it is changed.
#[derive(Clone, Debug)]
pub(crate) struct Looked {
    pub(crate) verdict: Verdict,
    pub(crate) reading: Reading,
}

/// A document on a host.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) name: String,
    /// The probe as it is.
    pub(crate) live: Option<Probe>,
    /// Absent: it is as the document says.
    pub(crate) change: Option<Asked>,
}

/// A change that was made.
#[derive(Clone, Debug)]
pub(crate) enum Done {
    Probe(Box<Probe>),
    Deleted,
}

/// Why a host did not do what it was asked.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    /// Whether it said no: nothing was changed. Otherwise it may have done it.
    pub(crate) is_refusal: bool,
    pub(crate) message: String,
}

/// Why a process does not go on. The state has all that was done.
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

/// Takes in what a host says: the host's place in the state, and its answer.
pub(crate) type Heard<'a> = dyn FnMut(&mut State, usize, Result<Said, Trouble>) + 'a;

/// Everything outside.
pub(crate) trait World {
    /// Why it fails.
    type Error;

    /// Asks hosts, several at a time, and hands over what each says as it comes. Where answers are kept ([`Ask::is_kept`]) the state is
    /// written now and then between them.
    async fn ask(
        &self,
        state: &mut State,
        asks: Vec<(usize, Ask)>,
        said: &mut Heard<'_>,
    ) -> Result<(), Self::Error>;

    /// Writes the state, so that it outlives the process and the machine's power.
    fn save(&self, state: &State) -> Result<(), Self::Error>;

    /// Lets others see the state, if it was not written for long. Nothing that is new in it is needed to go on.
    fn show(&self, state: &State) -> Result<(), Self::Error>;

    /// Tells something that happened. It is in the state that was saved.
    fn tell(&self, happened: &Happened) -> Result<(), Self::Error>;

    /// Lets time pass.
    async fn wait(&self, time: Duration) -> Result<(), Self::Error>;

    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;

    /// Whether someone asked for a pause.
    fn is_pause_asked(&self) -> bool;
}
