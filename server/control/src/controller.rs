//! The control thread: its state, its loop, and the steps that several requests share.
//!
//! Owns the order in which commands, samples, repairs, leases and state changes take their turn.
//! Never parses or judges a definition.

use std::collections::{HashMap, HashSet};
use std::future::ready;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tracing::{Instrument as _, Span};

use super::account::Account;
use super::aggregation::{Aggregations, remove_leftovers};
use super::budget::{self, Budget, BudgetSettings, Costs};
use super::command::{Applied, Asked, Change, Command, ControlHandle, Unit};
use super::foreign::place;
use super::handover::Growth;
use super::interference::Interference;
use super::lease::{Holds, Leases};
use super::observed::Observed;
use super::reconcile::{Found, find};
use super::retries::Retries;
use super::sample::{Sampler, until_next};
use super::triggers::Triggers;
use super::turn::{MOST_OF_ONE, QueuedCommand, Turns};
use super::{Observer, Registry, own};
use super::{Probe, Sight};
use crate::auth::{Caller, Rights};
use crate::error::{Error, Reason};
use crate::places::Places;
use crate::store::{HitRetention, Store};
use kprobed_host::kernel::{FactsCache, HostIdentity};
use kprobed_host::tracefs::{
    Claim, CurrentInstance, Instance, InstanceOptions, ListedProbe, Mounted, Tracefs,
};
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_trace::pipeline::{
    Activity, BufferDemand, EventSource, Hub, ReaderContext, ReaderPulse, Readers, SourceTable,
};
use kprobed_verdict::checker::Checker;

/// Time after which states that were noted are stored.
const STATES_STORED_AFTER: Duration = Duration::from_secs(1);

/// What the daemon leaves in the kernel when it stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExit {
    /// The daemon removes everything that it put into the kernel. The next start puts it back.
    #[default]
    Restore,
    /// Probes stay armed and go on recording into the daemon's instance.
    Keep,
}

/// What the control thread works with.
#[derive(Debug)]
pub struct ControllerParts {
    /// Mounted file systems.
    pub mounted: Mounted,
    /// The daemon's instance. A deletion can replace it by another one.
    pub instance: Instance,
    /// Keeps other daemons from the instance.
    pub claim: Claim,
    /// How an instance is made. The name is that of the first one, the size is that of the present
    /// one.
    pub instance_options: InstanceOptions,
    /// The same instance, for readers outside of the control thread.
    pub current_instance: Arc<CurrentInstance>,
    /// The database.
    pub store: Store,
    /// Facts of the kernel.
    pub facts: Arc<FactsCache>,
    /// Judge of definitions.
    pub checker: Arc<Checker>,
    /// The roles of this host.
    pub rights: Arc<Rights>,
    /// The probes as clients see them.
    pub registry: Arc<Registry>,
    /// Where events go.
    pub hub: Arc<Hub>,
    /// This host.
    pub host: HostIdentity,
    /// Usually `/proc`.
    pub procfs: std::path::PathBuf,
    /// Usually `/sys`.
    pub sysfs: std::path::PathBuf,
    /// What the daemon leaves in the kernel when it stops.
    pub on_exit: OnExit,
    /// Time between two samples of the hit counts.
    pub sample_interval: Duration,
    /// How long hits are kept.
    pub hit_retention: HitRetention,
    /// Time between two looks at what other programs have done to the probes. Absent: never.
    pub repair_interval: Option<Duration>,
    /// Holds: probes that last only as long as a client is connected.
    pub holds: Arc<Holds>,
    /// How long a probe stays listed after its lease has ended.
    pub lease_keep: Duration,
    /// What probes may cost.
    pub budget: BudgetSettings,
    /// What a hit takes.
    pub costs: Arc<Costs>,
}

/// The single writer.
#[derive(Debug)]
pub struct Controller {
    pub(super) parts: ControllerParts,
    pub(super) observer: Observer,
    pub(super) sources: Arc<SourceTable>,
    pub(super) readers: Readers,
    /// Sources by probe, for the ledger.
    pub(super) live: HashMap<ProbeUid, LiveProbe>,
    pub(super) sampler: Sampler,
    pub(super) aggregations: Aggregations,
    /// Of probes that others have changed, or that could not be removed when their time was over.
    pub(super) retries: Retries,
    pub(super) leases: Leases,
    pub(super) triggers: Triggers,
    demand: Arc<BufferDemand>,
    pub(super) activity: Arc<Activity>,
    pub(super) budget: Budget,
    pub(super) growth: Growth,
    pub(super) interference: Interference,
    /// What a change under way has made of probes: the registry has it when the change is settled, and a hand-over
    /// until then takes it along.
    pub(super) making: Vec<Arc<Probe>>,
}

/// What is known of a probe that the kernel has.
#[derive(Debug)]
pub(super) struct LiveProbe {
    pub(super) source: Arc<EventSource>,
    /// Whether the event was enabled in our instance at any time: its removal then empties the
    /// buffers.
    pub(super) ever_enabled: bool,
    pub(super) account: Account,
}

impl Controller {
    /// Brings kernel and database together and starts reading. What an earlier run of the daemon
    /// has left recording goes on: nothing of it is lost, and it is read before the ledger begins.
    ///
    /// # Errors
    /// [`Error`] when the database or tracefs cannot be used at all; a single probe that
    /// cannot be brought back is only marked.
    pub async fn start(parts: ControllerParts) -> Result<Self, Error> {
        let sources = Arc::<SourceTable>::default();
        // Before any probe is removed: the kernel refuses to remove one that is counted.
        remove_leftovers(&parts.mounted.tracefs, &parts.instance_options.name)?;
        budget::remove_leftovers(&parts.mounted.tracefs, &parts.instance_options.name)?;
        let rows = parts.store.probes().await?;
        let sampler = Sampler::begin(&parts.mounted.tracefs, &rows);
        let mut observer = Observer::new(
            parts.mounted.tracefs.clone(),
            Arc::clone(&parts.current_instance),
            parts.procfs.clone(),
            parts.sysfs.clone(),
        );
        observer.repaired_every = parts.repair_interval;
        let mut leases = Leases::new(&parts)?;
        let budget = Budget::new(parts.budget);
        let Found { live, unfinished, wanted } = find(&parts, &sources, &mut leases, rows).await?;
        let demand = Arc::<BufferDemand>::default();
        let activity = Arc::<Activity>::default();
        let context = ReaderContext {
            tracefs: parts.mounted.tracefs.clone(),
            instance: parts.instance.clone(),
            procfs: parts.procfs.clone(),
            sources: Arc::clone(&sources),
            hub: Arc::clone(&parts.hub),
            facts: Arc::clone(&parts.facts),
            demand: Arc::clone(&demand),
            activity: Arc::clone(&activity),
        };
        let readers = Readers::start(&context)?;
        let mut controller = Self {
            parts,
            observer,
            sources,
            readers,
            live,
            sampler,
            aggregations: Aggregations::default(),
            retries: Retries::default(),
            leases,
            triggers: Triggers::default(),
            demand,
            activity,
            budget,
            growth: Growth::default(),
            interference: Interference::default(),
            making: Vec::new(),
        };
        // First, since it may have the name of another one.
        controller.take_back_unfinished(unfinished).await;
        controller.bring_back(&wanted).await;
        // Leases that ended while no daemon ran, and probes of an earlier hold that could not be removed
        // just now.
        controller.parts.holds.look_again();
        controller.attend_leases().await;
        controller.begin_ledger()?;
        controller.calibrate().await;
        controller.budget.note_armed();
        let probes = controller.parts.registry.all();
        controller.note_states(&probes, &controller.observer.observe(&probes));
        Ok(controller)
    }

    /// The pulse of the readers.
    pub fn reader_pulse(&self) -> ReaderPulse {
        self.readers.pulse()
    }

    /// A handle to send commands with, and the queue that [`Controller::run`] takes them from.
    pub fn channel() -> (ControlHandle, CommandQueue) {
        let (commands, inbox) = mpsc::unbounded_channel();
        (ControlHandle { commands, places: Places::new(MOST_OF_ONE) }, CommandQueue(inbox))
    }

    /// Carries out commands until one of them is `Stop`. Blocks on kernel I/O: run it on a thread
    /// of its own.
    pub async fn run(mut self, mut queue: CommandQueue) {
        // Rates begin with the first sample.
        let mut next_sample = Instant::now();
        let mut next_repair = self.next_repair();
        let mut noted = self.parts.registry.log().newest();
        let mut store_states_at = None;
        let mut waiting = Turns::default();
        self.triggers = Triggers::begin(self.parts.repair_interval.is_some());
        loop {
            while let Ok(queued) = queue.0.try_recv() {
                waiting.push(queued);
            }
            self.triggers.follow(&self.parts);
            // A probe that is held back can be armed when its module is loaded, and an event of the host can come.
            let depends_on_others = !self.live.is_empty() || self.has_modules_to_watch();
            let look_at = self.triggers.due().filter(|_| depends_on_others);
            let expiry = self.aggregations.next_expiry();
            let budget_at = self.budget.due();
            // Without probes there is nothing to repair.
            next_repair = next_repair.filter(|_| depends_on_others).or_else(|| self.next_repair());
            // Commands and what is due take turns. However many commands wait, a probe that is too dear is disarmed in
            // time, and a lease ends; and clients are answered, however long a look takes that is due again at its end.
            let queued = tokio::select! {
                biased;
                () = ready(()), if waiting.has_turn() => None,
                // Without probes nothing is hit, and the thread need not wake up.
                () = sleep_until(next_sample), if depends_on_others => {
                    self.watch_modules().await;
                    self.sample(false).await;
                    next_sample = Instant::now() + until_next(self.parts.sample_interval, SystemTime::now());
                    continue;
                }
                () = sleep_until(next_repair.unwrap_or(next_sample)), if next_repair.is_some() => {
                    self.repair().await;
                    next_repair = None;
                    continue;
                }
                () = self.triggers.written(), if self.triggers.due().is_none() && depends_on_others => {
                    self.triggers.note(Instant::now());
                    continue;
                }
                () = self.triggers.module_changed(), if depends_on_others => {
                    self.leave_absent_modules().await;
                    self.triggers.note(Instant::now());
                    continue;
                }
                () = sleep_until(look_at.unwrap_or(next_sample)), if look_at.is_some() => {
                    self.repair().await;
                    continue;
                }
                // All of them together, after the commands that clients wait for.
                Ok(()) = noted.changed(), if store_states_at.is_none() => {
                    store_states_at = Some(Instant::now() + STATES_STORED_AFTER);
                    continue;
                }
                () = sleep_until(store_states_at.unwrap_or(next_sample)), if store_states_at.is_some() => {
                    store_states_at = None;
                    self.store_states().await;
                    continue;
                }
                () = sleep_until(expiry.unwrap_or(next_sample)), if expiry.is_some() => {
                    self.expire_aggregations().await;
                    continue;
                }
                () = sleep_until(budget_at.unwrap_or(next_sample)), if budget_at.is_some() => {
                    self.triggers.set_apart();
                    self.attend_budget().await;
                    continue;
                }
                () = self.activity.rung() => {
                    self.budget.note_activity();
                    continue;
                }
                () = self.leases.woken() => {
                    self.triggers.set_apart();
                    self.attend_leases().await;
                    self.triggers.forget_own();
                    continue;
                }
                wanted_kib = self.demand.raised() => {
                    self.triggers.set_apart();
                    self.grow(wanted_kib);
                    self.triggers.forget_own();
                    continue;
                }
                () = ready(()), if !waiting.is_empty() => None,
                queued = queue.0.recv() => {
                    Some(queued.unwrap_or_else(|| QueuedCommand::new(Command::Stop(None))))
                }
            };
            if let Some(queued) = queued {
                waiting.push(queued);
                continue;
            }
            let Some(queued) = waiting.next() else { continue };
            let writes = queued.writes;
            if writes {
                self.triggers.set_apart();
            }
            let span = queued.caller.as_ref().map_or_else(Span::none, Caller::span);
            let carried_out = self.carry_out(queued, &mut waiting).instrument(span).await;
            if let ControlFlow::Break(done) = carried_out {
                // Whoever asks from now on knows that the daemon ends.
                queue.0.close();
                self.shut_down().await;
                if done.is_some_and(|done| done.send(()).is_err()) {
                    tracing::debug!("the caller has gone before the control thread ended");
                }
                return;
            }
            if writes {
                self.triggers.forget_own();
            }
        }
    }

    /// Carries out one command, and the commands that can be carried out with it. Returns `Break`
    /// for `Stop`.
    async fn carry_out(
        &mut self,
        queued: QueuedCommand,
        waiting: &mut Turns,
    ) -> ControlFlow<Option<oneshot::Sender<()>>> {
        // A client that got no answer assumes that nothing was done.
        if queued.is_abandoned() {
            tracing::info!(request = queued.kind, "dropped a request: its caller left before it began");
            return ControlFlow::Continue(());
        }
        match queued.command {
            Command::Apply(mut changes, unit, reply) => {
                let mut replies = vec![(changes.len(), reply)];
                // Deletions that directly follow deletions are carried out with them.
                while unit == Unit::Each
                    && only_removes(&changes)
                    && let Some(next) = waiting.next()
                {
                    match next {
                        abandoned if abandoned.is_abandoned() => {}
                        // A repeated request must find the outcome of the first one.
                        QueuedCommand { command: Command::Apply(more, Unit::Each, reply), .. }
                            if only_removes(&more) && share_no_name(&changes, &more) =>
                        {
                            replies.push((more.len(), reply));
                            changes.extend(more);
                        }
                        other => {
                            waiting.put_back(other);
                            break;
                        }
                    }
                }
                let Applied { outcomes, mut plan } = self.apply(changes, unit).await;
                self.count_leases().await;
                let mut outcomes = outcomes.into_iter();
                for (count, reply) in replies {
                    let outcomes = outcomes.by_ref().take(count).collect();
                    answer(reply, Ok(Applied { outcomes, plan: std::mem::take(&mut plan) }));
                }
            }
            Command::Other(act) => act(self).await,
            Command::Stop(done) => return ControlFlow::Break(done),
        }
        ControlFlow::Continue(())
    }

    /// Leaves the kernel as the configuration wants it. The database stays open for those that still write to it.
    async fn shut_down(mut self) {
        self.end_all_holds().await;
        self.sample(true).await;
        self.store_states().await;
        self.delete_aggregations().await;
        let (registry, hub) = (Arc::clone(&self.parts.registry), Arc::clone(&self.parts.hub));
        match self.parts.on_exit {
            OnExit::Keep => self.readers.stop(),
            OnExit::Restore => self.take_everything_out(),
        }
        registry.log().close();
        hub.close();
    }

    pub(super) fn tracefs(&self) -> &Tracefs {
        &self.parts.mounted.tracefs
    }

    /// The probe that a caller means. Of those whose event alone it names, it means one that it may change or
    /// look at: the others are not told.
    pub(super) fn probe(&self, caller: &Caller, text: &str) -> Result<Arc<Probe>, Error> {
        let (rights, sight) = (&self.parts.rights, Sight::new(&self.parts.rights, caller.clone()));
        let meant = |probe: &Probe| sight.shows(probe) || rights.allows(caller, Some(&probe.object()));
        self.parts.registry.find_among(text, meant).map_err(|error| {
            let fix = match self.is_foreign_kprobe(&sight, text) {
                Some(true) => {
                    format!("another program has defined it: `kprobectl adopt {text}` takes it over")
                }
                Some(false) => {
                    format!("it is an event of the kernel: `kprobectl add {text}` makes a probe of it")
                }
                None => return error,
            };
            Error { reason: Reason::FOREIGN_PROBE, ..error }.with("fix", &fix)
        })
    }

    /// Whether the event of that name, which is not ours, is a kprobe. None if there is no such event, or none that is
    /// shown. A name without its group is that of a kprobe.
    fn is_foreign_kprobe(&self, sight: &Sight, text: &str) -> Option<bool> {
        let list = self.tracefs().kprobe_list().ok()?;
        let name = text.parse::<ProbeName>().ok();
        let is_meant = |listed: &&ListedProbe| {
            let parts = listed.group_and_event();
            name.as_ref().map_or_else(
                || parts.is_some_and(|(_, event)| event == text),
                |name| parts == Some(name.parts()),
            )
        };
        let mut kprobes = list.probes().iter().filter(is_meant).peekable();
        if kprobes.peek().is_some() {
            let is_shown = |listed: &ListedProbe| {
                let theirs = listed
                    .name
                    .as_ref()
                    .filter(|name| self.parts.registry.listed(name, &listed.line).is_none());
                theirs.is_some_and(|name| sight.shows_foreign(&name.to_string(), place(&listed.line)))
            };
            return kprobes.any(is_shown).then_some(true);
        }
        let name = name?;
        (self.tracefs().has_event(name.group(), name.event()) && sight.shows_event(&name)).then_some(false)
    }

    /// Switches the event of a probe, if it is ours.
    pub(super) fn switch_own(&self, name: &ProbeName, on: bool) -> Result<(), Error> {
        if let Some(probe) = self.parts.registry.get(name)
            && let Some(event) = &probe.own
        {
            own::switch(self.tracefs(), &self.parts.instance, (&probe, event), on)?;
        }
        Ok(())
    }

    /// Looks at probes. Those that are gone are left out.
    pub(super) fn observe(&self, probes: &[ProbeUid]) -> Vec<Arc<Probe>> {
        let known: Vec<_> = probes.iter().filter_map(|uid| self.parts.registry.by_uid(*uid)).collect();
        let observed = self.observer.observe(&known);
        self.note_states(&known, &observed)
    }

    /// Notes what the kernel has of probes. Returns them with their states.
    pub(super) fn note_states(&self, probes: &[Arc<Probe>], observed: &Observed) -> Vec<Arc<Probe>> {
        probes.iter().map(|probe| self.parts.registry.seen(observed.shown(probe))).collect()
    }

    /// Stores what was noted of states. What cannot be stored now waits.
    async fn store_states(&self) {
        let log = self.parts.registry.log();
        let outcome = self.parts.store.add_states(&log.begin_storing()).await;
        log.end_storing(outcome.is_ok());
        if let Err(error) = outcome {
            tracing::debug!(%error, "cannot store the states of probes");
        }
    }
}

/// Commands on their way to the control thread.
#[derive(Debug)]
pub struct CommandQueue(pub(super) mpsc::UnboundedReceiver<QueuedCommand>);

#[cfg(test)]
impl CommandQueue {
    pub(super) async fn next_for_test(&mut self) -> QueuedCommand {
        self.0.recv().await.unwrap()
    }
}

pub(super) fn answer<T>(reply: super::command::Reply<T>, outcome: Result<T, Error>) {
    if reply.send(outcome).is_err() {
        tracing::debug!("the caller has gone before its answer");
    }
}

/// Whether other deletions can join: a change that is only checked has a plan of its own.
fn only_removes(changes: &[Asked]) -> bool {
    changes.iter().all(|one| matches!(one.change, Change::Remove(_)) && !one.change.validate_only())
}

/// Whether no two removals of these are about the same name.
fn share_no_name(some: &[Asked], others: &[Asked]) -> bool {
    let name = |one: &Asked| match &one.change {
        Change::Remove(request) => Some(request.name.clone()),
        _ => None,
    };
    let names: HashSet<_> = some.iter().filter_map(name).collect();
    !others.iter().filter_map(name).any(|name| names.contains(&name))
}
