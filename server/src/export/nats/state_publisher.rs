//! States and hit counts of probes, published to NATS.
//!
//! Owns what is published and when: all states after each connection and whenever changes were
//! missed, then every change; hit counts when they have changed. It watches probes as a client
//! does, so that a change of a probe never waits for it. While the server is away nothing is
//! queued: all states are published again after it is back.

use std::collections::hash_map::RandomState;
use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasher as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::Context;
use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::Stream;
use futures_util::{FutureExt as _, TryStreamExt as _};
use kprobed_event::published::{BOOT, CHANGE, MESSAGE_ID, Topic};
use kprobed_proto::v1;
use prost::Message as _;
use tokio::time::{Interval, MissedTickBehavior};

use super::connection::{Connection, causes};
use super::messages::Outgoing;
use super::profiles::Profiles;
use super::sink::publish;
use crate::config::export::Selection;
use crate::control::{ControlError, Probe, ProbeWatch, Registry, WatchPosition, Watched, WatchedEvent};
use crate::export::SinkError;
use crate::export::backoff::Backoff;
use crate::export::status::{self, Shared};
use crate::messages;
use crate::shutdown::Tasks;
use kprobed_host::kernel::HostIdentity;
use kprobed_lang::model::{HitProfile, Labels, ProbeName};
use kprobed_trace::pipeline::View;

/// Messages that may wait for their acknowledgements.
const WINDOW: usize = 64;

/// After so many deletions all states are published anew, which removes the messages of probes that
/// are gone.
const DELETIONS: usize = 256;

/// Reads how often probes were hit.
pub(in crate::export) type Counts = Box<
    dyn Fn() -> Pin<Box<dyn Future<Output = Result<Vec<HitProfile>, ControlError>> + Send>> + Send + Sync,
>;

/// Settings and sources of the publisher.
pub(in crate::export) struct StatePublisher {
    pub(in crate::export) connection: Connection,
    pub(in crate::export) host: HostIdentity,
    pub(in crate::export) selection: Selection,
    /// Whether states are.
    pub(in crate::export) states: bool,
    /// How often it is looked at hits.
    pub(in crate::export) profile_interval: Option<Duration>,
    pub(in crate::export) counts: Counts,
    pub(in crate::export) registry: Arc<Registry>,
    pub(in crate::export) shared: Arc<Shared>,
    pub(in crate::export) tasks: Tasks,
}

type Acknowledged = Pin<Box<dyn Future<Output = Result<PublishAck, PublishError>> + Send>>;

/// The counter of a message, for its acknowledgement.
type Count = fn(&mut status::StateCounts);

/// Messages on their way.
struct OnTheWay {
    context: Context,
    shared: Arc<Shared>,
    waiting: VecDeque<(String, Count, Acknowledged)>,
}

impl OnTheWay {
    async fn publish(&mut self, message: &Outgoing, count: Count) -> Result<(), SinkError> {
        while self.waiting.len() >= WINDOW {
            self.one().await?;
        }
        let acknowledged = publish(&self.context, message).await;
        let acknowledged = acknowledged.map_err(|error| failed(&message.subject, &error))?;
        self.waiting.push_back((message.subject.clone(), count, Box::pin(acknowledged)));
        Ok(())
    }

    async fn one(&mut self) -> Result<(), SinkError> {
        let Some((subject, count, acknowledged)) = self.waiting.pop_front() else { return Ok(()) };
        acknowledged.await.map_err(|error| failed(&subject, &error))?;
        self.shared.count_states(count);
        Ok(())
    }

    /// Waits until the server has them all.
    async fn settle(&mut self) -> Result<(), SinkError> {
        while !self.waiting.is_empty() {
            self.one().await?;
        }
        Ok(())
    }
}

fn failed(subject: &str, error: &PublishError) -> SinkError {
    SinkError::new(format_args!("publish to `{subject}`"), causes(error))
}

/// The states of one connection.
struct States {
    stream: Stream,
    watch: ProbeWatch,
    /// Those of all probes, until they are all there.
    present: Vec<Arc<Probe>>,
    deletions: usize,
}

impl StatePublisher {
    /// Publishes until the daemon stops.
    pub(in crate::export) async fn run(self) {
        let (mut backoff, random) = (Backoff::default(), RandomState::new());
        let stopping = self.tasks.stopping().clone();
        loop {
            let error = tokio::select! {
                round = self.round(&mut backoff) => match round {
                    Ok(()) => return,
                    Err(error) => error,
                },
                () = stopping.cancelled() => return,
            };
            self.shared.count_states(|counts| counts.error = error.to_string());
            let wait = backoff.next(random.hash_one(SystemTime::now()));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stopping.cancelled() => return,
            }
        }
    }

    /// One connection. It ends with an error, or when the daemon stops.
    async fn round(&self, backoff: &mut Backoff) -> Result<(), SinkError> {
        let open = self.connection.open("states").await?;
        let mut states = None;
        if self.states {
            states = Some(self.begin(self.connection.states(&open.context).await?));
        }
        if self.profile_interval.is_some() {
            self.connection.events(&open.context).await?;
        }
        let mut out = OnTheWay {
            context: open.context.clone(),
            shared: Arc::clone(&self.shared),
            waiting: VecDeque::new(),
        };
        let mut profiles = Profiles::default();
        let mut ticks = self.profile_interval.map(|interval| {
            let mut ticks = tokio::time::interval(interval);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        loop {
            tokio::select! {
                () = open.lost.cancelled() => {
                    return Err(SinkError::new("publish states of probes", "the connection was lost"));
                }
                watched = next(&mut states) => {
                    let Some(watched) = watched else { return Ok(()) };
                    if let Some(states) = &mut states {
                        self.states(states, watched, &mut out).await?;
                    }
                }
                () = tick(&mut ticks) => self.profiles(&mut profiles, &mut out).await?,
            }
            backoff.reset();
            self.shared.count_states(|counts| counts.error.clear());
        }
    }

    fn selects(&self) -> impl Fn(&ProbeName, &Labels) -> bool + Send + use<> {
        let Selection { probes, labels, .. } = self.selection.clone();
        let view = View { probes, labels, ..View::default() };
        move |name, labels| view.selects(name, labels)
    }

    fn begin(&self, stream: Stream) -> States {
        let selects = self.selects();
        let selects = move |probe: &Probe| selects(&probe.name, &probe.spec.labels);
        let watch = ProbeWatch::new(&self.registry, None, Box::new(selects));
        States { stream, watch, present: Vec::new(), deletions: 0 }
    }

    /// Publishes what has happened, and what else has until then.
    async fn states(
        &self,
        states: &mut States,
        watched: Watched,
        out: &mut OnTheWay,
    ) -> Result<(), SinkError> {
        let mut next = Some(watched);
        while let Some(watched) = next {
            match (watched.event, &watched.probe, watched.position) {
                (WatchedEvent::Restarted, ..) => states.present.clear(),
                (WatchedEvent::Present, Some(probe), _) => states.present.push(Arc::clone(probe)),
                (WatchedEvent::Synced, _, Some(position)) => self.all(states, position, out).await?,
                (event, Some(probe), Some(position)) => {
                    self.state(event, probe, position, out).await?;
                    states.deletions += usize::from(event == WatchedEvent::Deleted);
                }
                _ => {}
            }
            next = states.watch.next().now_or_never().flatten();
        }
        out.settle().await?;
        if states.deletions > DELETIONS {
            *states = self.begin(states.stream.clone());
        }
        Ok(())
    }

    /// Publishes all states, and which those are.
    async fn all(
        &self,
        states: &mut States,
        position: WatchPosition,
        out: &mut OnTheWay,
    ) -> Result<(), SinkError> {
        let probes = std::mem::take(&mut states.present);
        for probe in &probes {
            self.state(WatchedEvent::Present, probe, position, out).await?;
        }
        let entry =
            |probe: &Arc<Probe>| v1::RosterEntry { probe: probe.name.to_string(), probe_uid: probe.uid.0 };
        let token = messages::watch_token(position);
        let roster = v1::ProbeRoster {
            probes: probes.iter().map(entry).collect(),
            time: Some(messages::timestamp(SystemTime::now())),
            resume_token: token.clone(),
        };
        let message = self.message(&Topic::Roster, &token, roster.encode_to_vec());
        out.publish(&message, |counts| counts.states += 1).await?;
        out.settle().await?;
        // Readers use the roster: a message that cannot be removed does no harm.
        if let Err(error) = self.remove_others(&states.stream, &probes).await {
            tracing::debug!(%error, "cannot remove states of deleted probes from the stream");
        }
        Ok(())
    }

    async fn remove_others(&self, stream: &Stream, probes: &[Arc<Probe>]) -> Result<(), SinkError> {
        let subjects = self.connection.subjects();
        let host = &self.host.hostname;
        let subject = |probe: &Arc<Probe>| subjects.of(host, &Topic::State(probe.name.to_string()));
        let there: HashSet<String> = probes.iter().map(subject).collect();
        let action = "remove the states of probes that are gone";
        let listed = stream.info_with_subjects(subjects.states_of(host)).await;
        let listed = listed.map_err(|error| SinkError::new(action, causes(&error)))?;
        let listed: Vec<(String, usize)> =
            listed.try_collect().await.map_err(|error| SinkError::new(action, causes(&error)))?;
        for (subject, _) in listed.into_iter().filter(|(subject, _)| !there.contains(subject)) {
            let purged = stream.purge().filter(subject).await;
            purged.map_err(|error| SinkError::new(action, causes(&error)))?;
        }
        Ok(())
    }

    async fn state(
        &self,
        event: WatchedEvent,
        probe: &Arc<Probe>,
        position: WatchPosition,
        out: &mut OnTheWay,
    ) -> Result<(), SinkError> {
        let watched = Watched { event, probe: Some(Arc::clone(probe)), position: Some(position) };
        let message = messages::watched(&watched);
        let topic = Topic::State(probe.name.to_string());
        let message = self.message(&topic, &message.resume_token, message.encode_to_vec());
        out.publish(&message, |counts| counts.states += 1).await
    }

    /// Publishes the hits that have changed.
    async fn profiles(&self, profiles: &mut Profiles, out: &mut OnTheWay) -> Result<(), SinkError> {
        let counts = (self.counts)().await;
        let mut counts = counts.map_err(|error| SinkError::new("read the hits of probes", error))?;
        let (selects, none) = (self.selects(), Labels::default());
        counts.retain(|profile| {
            let probe = self.registry.by_uid(profile.uid);
            selects(&profile.name, probe.as_ref().map_or(&none, |probe| &probe.spec.labels))
        });
        for profile in profiles.changes(counts) {
            out.publish(&self.profile(&profile), |counts| counts.profiles += 1).await?;
        }
        out.settle().await
    }

    fn profile(&self, profile: &HitProfile) -> Outgoing {
        let nanoseconds = profile.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let change = format!("{}.{nanoseconds}", profile.uid.0);
        let topic = Topic::Profile(profile.name.to_string());
        self.message(&topic, &change, messages::profile(profile).encode_to_vec())
    }

    /// What is the same has the same id: the boot, the number of the change, the subject.
    fn message(&self, topic: &Topic, change: &str, payload: Vec<u8>) -> Outgoing {
        let subject = self.connection.subjects().of(&self.host.hostname, topic);
        let boot = &self.host.boot_id;
        let id = format!("{boot}:{change}:{subject}");
        let headers = vec![(MESSAGE_ID, id.clone()), (BOOT, boot.clone()), (CHANGE, change.to_owned())];
        Outgoing { subject, id, headers, payload: payload.into(), events: 0 }
    }
}

/// The next change of a probe. Never returns if states are not published.
async fn next(states: &mut Option<States>) -> Option<Watched> {
    match states {
        Some(states) => states.watch.next().await,
        None => std::future::pending().await,
    }
}

async fn tick(ticks: &mut Option<Interval>) {
    match ticks {
        Some(ticks) => drop(ticks.tick().await),
        None => std::future::pending().await,
    }
}
