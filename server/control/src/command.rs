//! Commands of the control thread: the requests that it takes, and the handle that sends them.
//!
//! Owns their types. Whose turn it is, is in [`super::turn`]. Never carries a command out: that is
//! [`super::controller`].

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::Probe;
use super::controller::{Controller, answer};
use super::plan::PlannedStep;
use super::turn::{Account, QueuedCommand};
use super::{AdoptRequest, CountedHits, Ledger, Reconciliation};
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

/// Change a probe. The default changes nothing.
#[derive(Clone, Debug, Default)]
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
    /// Make a probe of an event that the kernel has.
    Adopt(AdoptRequest),
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
    /// Whether it has a definition that is judged.
    pub const fn has_definition(&self) -> bool {
        match self {
            Self::Create(_) => true,
            Self::Update(request) => request.definition.is_some(),
            Self::Remove(_) | Self::Adopt(_) => false,
        }
    }

    /// Whether it is only checked.
    pub(super) const fn validate_only(&self) -> bool {
        match self {
            Self::Create(request) => request.validate_only,
            Self::Update(request) => request.validate_only,
            Self::Remove(request) => request.validate_only,
            Self::Adopt(request) => request.validate_only,
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

/// What is done for a command, until it is answered.
type Action = Box<dyn for<'a> FnOnce(&'a mut Controller) -> Pin<Box<dyn Future<Output = ()> + 'a>> + Send>;

pub(super) enum Command {
    /// Changes of probes: further ones can be carried out with them.
    Apply(Vec<Asked>, Unit, Reply<Applied>),
    /// Anything else.
    Other(Action),
    /// Without a sender if no caller waits for the end.
    Stop(Option<oneshot::Sender<()>>),
}

impl Command {
    /// Does something, and answers with its outcome.
    fn other<T: Send + 'static>(
        act: impl AsyncFnOnce(&mut Controller) -> Result<T, Error> + Send + 'static,
        reply: Reply<T>,
    ) -> Self {
        Self::Other(Box::new(|controller| Box::pin(async move { answer(reply, act(controller).await) })))
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
    /// Has a command carried out when its principal has its turn, unless its caller has gone by then.
    async fn ask<T>(
        &self,
        (kind, caller, writes): (&'static str, Option<&Caller>, bool),
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        // It goes with this future, and so with the caller.
        let waits = Arc::new(());
        let alive = Some(Arc::downgrade(&waits));
        let caller = caller.cloned();
        self.send(QueuedCommand { caller, kind, writes, alive, ..QueuedCommand::new(command(reply)) })
            .await?;
        answer.await.unwrap_or_else(|_gone| Err(Error::stopping()))
    }

    /// Has something done that may write to the kernel. `kind` is for the log.
    pub(super) async fn act<T: Send + 'static>(
        &self,
        kind: &'static str,
        caller: Option<&Caller>,
        act: impl AsyncFnOnce(&mut Controller) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.ask((kind, caller, true), |reply| Command::other(act, reply)).await
    }

    /// Has something looked up. Nothing is written to the kernel.
    async fn look<T: Send + 'static>(
        &self,
        kind: &'static str,
        look: impl AsyncFnOnce(&mut Controller) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.ask((kind, None, false), |reply| Command::other(look, reply)).await
    }

    async fn send(&self, mut queued: QueuedCommand) -> Result<(), Error> {
        queued.place = self.places.take(&queued.account()).await;
        self.commands.send(queued).map_err(|_closed| Error::stopping())
    }

    /// Carries out changes at the cost of one. Returns the outcomes in their order.
    ///
    /// # Errors
    /// When the daemon is stopping; each change has an outcome of its own.
    pub async fn apply(&self, caller: &Caller, changes: Vec<Change>, unit: Unit) -> Result<Applied, Error> {
        self.apply_as("apply", caller, changes, unit).await
    }

    async fn apply_as(
        &self,
        kind: &'static str,
        caller: &Caller,
        changes: Vec<Change>,
        unit: Unit,
    ) -> Result<Applied, Error> {
        let asked = changes.into_iter().map(|change| Asked { caller: caller.clone(), change }).collect();
        self.ask((kind, Some(caller), true), |reply| Command::Apply(asked, unit, reply)).await
    }

    /// The outcome of a change, and what would be done for it if it was only checked.
    async fn planned(
        &self,
        kind: &'static str,
        caller: &Caller,
        change: Change,
    ) -> Result<(Changed, Vec<PlannedStep>), Error> {
        let Applied { outcomes, plan } = self.apply_as(kind, caller, vec![change], Unit::Each).await?;
        let outcome = outcomes.into_iter().next_back().unwrap_or_else(|| Err(Error::stopping()));
        Ok((outcome?, plan))
    }

    /// Creates a probe.
    pub async fn create(&self, caller: &Caller, request: CreateRequest) -> Result<Arc<Probe>, Error> {
        self.planned("create", caller, Change::Create(request)).await?.0.probe()
    }

    /// Changes a probe.
    pub async fn update(&self, caller: &Caller, request: UpdateRequest) -> Result<Arc<Probe>, Error> {
        self.planned("update", caller, Change::Update(request)).await?.0.probe()
    }

    /// Removes a probe. Returns its name and last hit counts.
    pub async fn remove(&self, caller: &Caller, request: RemoveRequest) -> Result<Removed, Error> {
        self.planned("remove", caller, Change::Remove(request)).await?.0.removed()
    }

    /// Reads the current hit counts of all probes.
    pub async fn hit_profiles(&self) -> Result<Vec<HitProfile>, Error> {
        self.look("hit profiles", async |controller| controller.hit_profiles()).await
    }

    /// Reads the current hit counts of all probes with the daemon's own part of them.
    pub async fn counted_hits(&self) -> Result<Vec<CountedHits>, Error> {
        self.act("counted hits", None, async |controller| controller.counted_hits()).await
    }

    /// Stores the current hit counts, so that the stored past reaches until now. A failure is
    /// reported in the log and in the checks of the host: the past can be read in any case.
    ///
    /// # Errors
    /// When the daemon is stopping.
    pub async fn sample(&self) -> Result<(), Error> {
        let sample = async |controller: &mut Controller| {
            controller.sample(true).await;
            Ok(())
        };
        self.look("sample", sample).await
    }

    /// Reads the ledger.
    pub async fn ledger(&self) -> Result<Ledger, Error> {
        self.act("ledger", None, async |controller| controller.ledger()).await
    }

    /// Reads what the kernel has of these probes while nothing is being changed. Those that are
    /// gone are left out.
    ///
    /// # Errors
    /// When the daemon is stopping.
    pub(super) async fn observe(&self, probes: Vec<ProbeUid>) -> Result<Vec<Arc<Probe>>, Error> {
        self.look("observe", async move |controller| Ok(controller.observe(&probes))).await
    }

    /// Returns when the control thread has come to this request. There is no limit to the wait.
    ///
    /// # Errors
    /// When the daemon is stopping, also if the thread has ended.
    pub async fn beat(&self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        // To answer a watchdog that does not wait any more costs nothing, and is not worth a line in the log.
        let beat = Command::other(async |_: &mut Controller| Ok(()), reply);
        self.send(QueuedCommand::new(beat)).await?;
        answer.await.unwrap_or_else(|_gone| Err(Error::stopping()))
    }

    /// Makes a probe of an event that the kernel has. Returns it, and what would be done if that was only checked.
    pub async fn adopt(
        &self,
        caller: &Caller,
        request: AdoptRequest,
    ) -> Result<(Arc<Probe>, Vec<PlannedStep>), Error> {
        let (adopted, plan) = self.planned("adopt", caller, Change::Adopt(request)).await?;
        Ok((adopted.probe()?, plan))
    }

    /// Looks at all probes now, and repairs those that can be repaired and are due; with `force`
    /// also those that were repaired too often or too recently, and with `validate_only` none.
    ///
    /// # Errors
    /// When the daemon is stopping.
    pub async fn reconcile(&self, force: bool, validate_only: bool) -> Result<Reconciliation, Error> {
        let reconcile = async move |controller: &mut Controller| {
            Ok(if validate_only { controller.plan_repairs(force) } else { controller.reconcile(force).await })
        };
        self.act("reconcile", None, reconcile).await
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
        if self.send(QueuedCommand::new(Command::Stop(Some(done)))).await.is_ok() && stopped.await.is_err() {
            tracing::error!("the control thread ended before it was done");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_knows_that_its_caller_has_gone() {
        let (control, mut queue) = Controller::channel();
        let asking = tokio::runtime::Handle::current()
            .spawn(async move { control.create(&Caller::daemon(), CreateRequest::default()).await });
        let command = queue.next_for_test().await;
        assert_eq!((command.kind, command.is_abandoned()), ("create", false));
        asking.abort();
        assert!(asking.await.unwrap_err().is_cancelled());
        assert!(command.is_abandoned());
    }
}
