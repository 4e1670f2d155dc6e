//! Commands of the control thread: the requests that it takes, and the handle that sends them.
//!
//! Owns their types, and when a caller has gone. Whose turn it is, is in [`super::turn`]. Never carries a command
//! out: that is [`super::controller`].

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::Probe;
use super::plan::PlannedStep;
use super::turn::{Account, QueuedCommand};
use super::{AdoptRequest, Adopted, CountedHits, Ledger, Reconciliation};
use crate::auth::Caller;
use crate::error::Error;
use crate::places::Places;
use crate::store::RequestKey;
use kprobed_lang::model::{HitProfile, LabelChange, Labels, MetadataChange, ProbeName, ProbeUid};
use kprobed_verdict::checker::DefinitionText;

/// Make a probe.
#[derive(Clone, Debug, Default)]
pub struct CreateRequest {
    /// The client's text.
    pub definition: Arc<DefinitionText>,
    /// Its name, for a definition that leaves it out.
    pub name: Option<ProbeName>,
    /// Record from now on.
    pub enabled: bool,
    /// Kernel filter; empty for none.
    pub filter: String,
    /// Record the call stack of the kernel with each event.
    pub stack: bool,
    /// Its labels.
    pub labels: Labels,
    /// Its other metadata.
    pub metadata: MetadataChange,
    /// Makes the request safe to repeat.
    pub request: Option<RequestKey>,
    /// Check only.
    pub validate_only: bool,
}

/// Change a probe.
#[derive(Clone, Debug)]
pub struct UpdateRequest {
    /// `GROUP/EVENT` or `EVENT`.
    pub name: String,
    /// Replace the definition.
    pub definition: Option<Arc<DefinitionText>>,
    /// Switch recording.
    pub enabled: Option<bool>,
    /// Replace the filter; empty removes it.
    pub filter: Option<String>,
    /// Labels to set and to remove.
    pub labels: LabelChange,
    /// Its other metadata.
    pub metadata: MetadataChange,
    /// Change it although a file declares it. It belongs to the file no more then.
    pub take_over: bool,
    /// Accept what it records on this kernel as what it is meant to record, and change nothing else.
    pub accept: bool,
    /// Only if the probe still has this etag.
    pub etag: Option<String>,
    /// Makes the request safe to repeat.
    pub request: Option<RequestKey>,
    /// Check only.
    pub validate_only: bool,
}

/// Remove a probe.
#[derive(Clone, Debug)]
pub struct RemoveRequest {
    /// `GROUP/EVENT` or `EVENT`.
    pub name: String,
    /// Remove it although a file declares it.
    pub take_over: bool,
    /// Only if the probe still has this etag.
    pub etag: Option<String>,
    /// Makes the request safe to repeat.
    pub request: Option<RequestKey>,
    /// Check only.
    pub validate_only: bool,
}

/// What was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Its name.
    pub name: ProbeName,
    /// Its last hit counts. Absent when the kernel did not have it.
    pub profile: Option<HitProfile>,
    /// What its owner should know; may be empty.
    pub note: &'static str,
}

/// One of several changes.
#[derive(Clone, Debug)]
pub enum Change {
    /// Make a probe.
    Create(CreateRequest),
    /// Change one.
    Update(UpdateRequest),
    /// Remove one.
    Remove(RemoveRequest),
}

/// A change, and who asks for it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// Who asks.
    pub(super) caller: Caller,
    /// For what.
    pub(super) change: Change,
}

/// Which of several changes are made all or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Each change independently.
    Each,
    /// All of them together.
    All,
}

/// The outcome of a change.
#[derive(Clone, Debug)]
pub enum Changed {
    /// The probe as it is now; with `validate_only`, as it would be.
    Probe(Arc<Probe>),
    /// It is gone.
    Removed(Removed),
}

impl Changed {
    /// The probe, of a change that leaves one.
    ///
    /// # Errors
    /// When the daemon is stopping if there is none, which does not happen for such a change.
    pub fn probe(self) -> Result<Arc<Probe>, Error> {
        match self {
            Self::Probe(probe) => Ok(probe),
            Self::Removed(_) => Err(Error::stopping()),
        }
    }

    /// What was removed, of a change that removes.
    ///
    /// # Errors
    /// When the daemon is stopping if nothing was removed, which does not happen for such a change.
    pub fn removed(self) -> Result<Removed, Error> {
        match self {
            Self::Removed(removed) => Ok(removed),
            Self::Probe(_) => Err(Error::stopping()),
        }
    }
}

impl Change {
    /// The request that its client may repeat.
    pub(super) const fn request(&self) -> Option<&RequestKey> {
        match self {
            Self::Create(request) => request.request.as_ref(),
            Self::Update(request) => request.request.as_ref(),
            Self::Remove(request) => request.request.as_ref(),
        }
    }

    /// Whether it has a definition that is judged.
    pub const fn has_definition(&self) -> bool {
        match self {
            Self::Create(_) => true,
            Self::Update(request) => request.definition.is_some(),
            Self::Remove(_) => false,
        }
    }

    /// Whether it is only checked.
    pub(super) const fn validate_only(&self) -> bool {
        match self {
            Self::Create(request) => request.validate_only,
            Self::Update(request) => request.validate_only,
            Self::Remove(request) => request.validate_only,
        }
    }
}

/// The outcomes of several changes.
#[derive(Debug)]
pub struct Applied {
    /// The outcome of each, in their order.
    pub outcomes: Vec<Result<Changed, Error>>,
    /// What would be done for those that were only checked, in order.
    pub plan: Vec<PlannedStep>,
}

pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

#[derive(Debug)]
pub(super) enum Command {
    Apply(Vec<Asked>, Unit, Reply<Applied>),
    Aggregation(super::aggregation::AggregationCommand),
    HitProfiles(Reply<Vec<HitProfile>>),
    CountedHits(Reply<Vec<CountedHits>>),
    Sample(Reply<()>),
    Ledger(Reply<Ledger>),
    Observe(Vec<ProbeUid>, Reply<Vec<Arc<Probe>>>),
    /// Answer: the thread lives.
    Beat(oneshot::Sender<()>),
    Adopt(Caller, AdoptRequest, Reply<Adopted>),
    Reconcile {
        force: bool,
        validate_only: bool,
        reply: Reply<Reconciliation>,
    },
    /// Without a sender if no caller waits for the end.
    Stop(Option<oneshot::Sender<()>>),
}

impl Command {
    /// Whether the caller has gone: its deadline has passed, it has cancelled the call, or its
    /// connection has closed.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Self::Apply(_, _, reply) => reply.is_closed(),
            Self::Aggregation(command) => command.is_abandoned(),
            Self::HitProfiles(reply) => reply.is_closed(),
            Self::CountedHits(reply) => reply.is_closed(),
            Self::Sample(reply) => reply.is_closed(),
            Self::Ledger(reply) => reply.is_closed(),
            Self::Observe(_, reply) => reply.is_closed(),
            Self::Adopt(_, _, reply) => reply.is_closed(),
            Self::Reconcile { reply, .. } => reply.is_closed(),
            // The daemon has to stop all the same; and to answer a watchdog costs nothing.
            Self::Stop(_) | Self::Beat(_) => false,
        }
    }

    /// Whether it may write to the kernel.
    pub(super) const fn writes(&self) -> bool {
        match self {
            Self::Apply(..)
            | Self::Aggregation(_)
            | Self::Adopt(..)
            | Self::Ledger(_)
            | Self::CountedHits(_)
            | Self::Reconcile { .. } => true,
            Self::HitProfiles(_) | Self::Sample(_) | Self::Observe(..) | Self::Beat(_) | Self::Stop(_) => {
                false
            }
        }
    }

    /// Who asks. Of changes that are carried out together: who asks for the first.
    pub(super) fn caller(&self) -> Option<&Caller> {
        match self {
            Self::Apply(changes, ..) => changes.first().map(|asked| &asked.caller),
            Self::Adopt(caller, ..) => Some(caller),
            Self::Aggregation(command) => command.caller(),
            Self::HitProfiles(_)
            | Self::CountedHits(_)
            | Self::Sample(_)
            | Self::Ledger(_)
            | Self::Observe(..)
            | Self::Beat(_)
            | Self::Reconcile { .. }
            | Self::Stop(_) => None,
        }
    }

    /// What it asks for, for the log.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Apply(changes, ..) => match changes.as_slice() {
                [Asked { change: Change::Create(_), .. }] => "create",
                [Asked { change: Change::Update(_), .. }] => "update",
                [Asked { change: Change::Remove(_), .. }] => "remove",
                _ => "apply",
            },
            Self::Aggregation(_) => "aggregation",
            Self::HitProfiles(_) => "hit profiles",
            Self::CountedHits(_) => "counted hits",
            Self::Sample(_) => "sample",
            Self::Ledger(_) => "ledger",
            Self::Observe(..) => "observe",
            Self::Adopt(..) => "adopt",
            Self::Reconcile { .. } => "reconcile",
            Self::Beat(_) => "beat",
            Self::Stop(_) => "stop",
        }
    }
}

/// Sends commands to the control thread.
#[derive(Clone, Debug)]
pub struct ControlHandle {
    /// As many as there are places.
    pub(super) commands: mpsc::UnboundedSender<QueuedCommand>,
    pub(super) places: Places<Account>,
}

impl ControlHandle {
    pub(super) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply)).await?;
        answer.await.unwrap_or_else(|_gone| Err(Error::stopping()))
    }

    /// Has a command carried out when its principal has its turn.
    async fn send(&self, command: Command) -> Result<(), Error> {
        let queued = QueuedCommand::new(command, &self.places).await;
        self.commands.send(queued).map_err(|_closed| Error::stopping())
    }

    /// Carries out changes at the cost of one. Returns the outcomes in their order.
    ///
    /// # Errors
    /// When the daemon is stopping; each change has an outcome of its own.
    pub async fn apply(&self, caller: &Caller, changes: Vec<Change>, unit: Unit) -> Result<Applied, Error> {
        let asked = changes.into_iter().map(|change| Asked { caller: caller.clone(), change }).collect();
        self.ask(|reply| Command::Apply(asked, unit, reply)).await
    }

    async fn apply_one(&self, caller: &Caller, change: Change) -> Result<Changed, Error> {
        let applied = self.apply(caller, vec![change], Unit::Each).await?;
        applied.outcomes.into_iter().next_back().unwrap_or_else(|| Err(Error::stopping()))
    }

    /// Creates a probe.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create(&self, caller: &Caller, request: CreateRequest) -> Result<Arc<Probe>, Error> {
        self.apply_one(caller, Change::Create(request)).await?.probe()
    }

    /// Changes a probe.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn update(&self, caller: &Caller, request: UpdateRequest) -> Result<Arc<Probe>, Error> {
        self.apply_one(caller, Change::Update(request)).await?.probe()
    }

    /// Removes a probe. Returns its name and last hit counts.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn remove(&self, caller: &Caller, request: RemoveRequest) -> Result<Removed, Error> {
        self.apply_one(caller, Change::Remove(request)).await?.removed()
    }

    /// Reads the current hit counts of all probes.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn hit_profiles(&self) -> Result<Vec<HitProfile>, Error> {
        self.ask(Command::HitProfiles).await
    }

    /// Reads the current hit counts of all probes with the daemon's own part of them.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn counted_hits(&self) -> Result<Vec<CountedHits>, Error> {
        self.ask(Command::CountedHits).await
    }

    /// Stores the current hit counts, so that the stored past reaches until now. A failure is
    /// reported in the log and in the checks of the host: the past can be read in any case.
    ///
    /// # Errors
    /// When the daemon is stopping.
    pub async fn sample(&self) -> Result<(), Error> {
        self.ask(Command::Sample).await
    }

    /// Reads the ledger.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn ledger(&self) -> Result<Ledger, Error> {
        self.ask(Command::Ledger).await
    }

    /// Reads what the kernel has of these probes while nothing is being changed. Those that are
    /// gone are left out.
    ///
    /// # Errors
    /// When the daemon is stopping.
    pub(super) async fn observe(&self, probes: Vec<ProbeUid>) -> Result<Vec<Arc<Probe>>, Error> {
        self.ask(|reply| Command::Observe(probes, reply)).await
    }

    /// Returns when the control thread has come to this request. There is no limit to the wait.
    ///
    /// # Errors
    /// When the daemon is stopping, also if the thread has ended.
    pub async fn beat(&self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Beat(reply)).await?;
        answer.await.map_err(|_no_answer| Error::stopping())
    }

    /// Makes a probe of an event that the kernel has.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn adopt(&self, caller: &Caller, request: AdoptRequest) -> Result<Adopted, Error> {
        self.ask(|reply| Command::Adopt(caller.clone(), request, reply)).await
    }

    /// Looks at all probes now, and repairs those that can be repaired and are due; with `force`
    /// also those that were repaired too often or too recently, and with `validate_only` none.
    ///
    /// # Errors
    /// When the daemon is stopping.
    pub async fn reconcile(&self, force: bool, validate_only: bool) -> Result<Reconciliation, Error> {
        self.ask(|reply| Command::Reconcile { force, validate_only, reply }).await
    }

    /// Refuses when the control thread has ended or is about to.
    ///
    /// # Errors
    /// When the daemon is stopping.
    pub fn require_running(&self) -> Result<(), Error> {
        if self.commands.is_closed() { Err(Error::stopping()) } else { Ok(()) }
    }

    /// Ends the control thread and waits until the kernel is as the configuration wants it. Whoever opened the database
    /// closes it then.
    pub async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        if self.send(Command::Stop(Some(done))).await.is_ok() && stopped.await.is_err() {
            tracing::error!("the control thread ended before it was done");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Controller;

    #[tokio::test]
    async fn a_command_knows_that_its_caller_has_gone() {
        let (control, mut queue) = Controller::channel();
        let asking = tokio::runtime::Handle::current()
            .spawn(async move { control.create(&Caller::daemon(), CreateRequest::default()).await });
        let command = queue.next_for_test().await;
        assert_eq!((command.kind(), command.is_abandoned()), ("create", false));
        asking.abort();
        assert!(asking.await.unwrap_err().is_cancelled());
        assert!(command.is_abandoned());
    }
}
