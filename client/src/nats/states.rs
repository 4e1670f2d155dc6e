//! States of the probes of many hosts, from the stream of states of NATS.
//!
//! The stream keeps one message for each probe, and one for each host with the names of its probes;
//! this module owns the changes that follow from them.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::stream::Stream;
use futures_util::StreamExt as _;
use kprobed_event::published::{Subjects, Topic};
use prost::Message as _;

use super::source::{NatsError, NatsSource, hosts};
use crate::api::{Probe, ProbeRoster, WatchEvent, WatchProbesResponse};

type Wanted<T> = Arc<dyn Fn(&T) -> bool + Send + Sync>;

/// Which probes of which hosts.
#[derive(Clone, Default)]
pub struct NatsWatchRequest {
    hosts: Option<Wanted<str>>,
    probes: Option<Wanted<Probe>>,
}

impl fmt::Debug for NatsWatchRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NatsWatchRequest")
    }
}

impl NatsWatchRequest {
    /// Only hosts whose names this holds for.
    #[must_use]
    pub fn hosts(mut self, wanted: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.hosts = Some(Arc::new(wanted));
        self
    }

    /// Only probes that match this. A probe that no longer matches is reported as deleted.
    #[must_use]
    pub fn probes(mut self, wanted: impl Fn(&Probe) -> bool + Send + Sync + 'static) -> Self {
        self.probes = Some(Arc::new(wanted));
        self
    }
}

/// A change of a host's probes.
#[derive(Clone, Debug, PartialEq)]
pub struct HostWatched {
    /// The host.
    pub host: String,
    /// As its daemon would send it. Tokens are those of the daemon.
    pub message: WatchProbesResponse,
}

/// Watch of the probes of many hosts: all of them, host by host, and then every change.
pub struct NatsWatch {
    stream: Stream,
    subjects: Subjects,
    request: NatsWatchRequest,
    messages: Ordered,
    /// By host and name.
    known: BTreeMap<String, BTreeMap<String, Probe>>,
    /// All probes that existed at the beginning were delivered.
    synced: bool,
    /// Messages that are still to be read until then.
    pending: u64,
    ready: VecDeque<HostWatched>,
}

impl fmt::Debug for NatsWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsWatch").field("hosts", &self.known.len()).finish_non_exhaustive()
    }
}

impl NatsSource {
    /// Watches probes.
    ///
    /// # Errors
    /// See [`NatsError`].
    pub async fn watch(&self, request: NatsWatchRequest) -> Result<NatsWatch, NatsError> {
        let stream = self.states().await?;
        let subjects = self.subjects.clone();
        let (messages, pending) = consume(&stream).await?;
        let (known, ready) = (BTreeMap::new(), VecDeque::new());
        Ok(NatsWatch { stream, subjects, request, messages, known, synced: false, pending, ready })
    }

    /// The hosts that publish the states of their probes, sorted by name.
    ///
    /// # Errors
    /// See [`NatsError`].
    pub async fn hosts_with_states(&self) -> Result<Vec<String>, NatsError> {
        let stream = self.states().await?;
        hosts(&stream, &self.subjects, self.subjects.rosters(), |topic| *topic == Topic::Roster).await
    }

    async fn states(&self) -> Result<Stream, NatsError> {
        let name = format!("{}_STATE", self.stream.cached_info().config.name);
        let found = self.context.get_stream(&name).await;
        found.map_err(|error| NatsError::request(format!("open the stream `{name}`"), &error))
    }
}

/// Everything that the stream has, and how much that is.
async fn consume(stream: &Stream) -> Result<(Ordered, u64), NatsError> {
    let failed = |error: &dyn std::error::Error| NatsError::request("read the states of probes", error);
    let consumer = stream.create_consumer(OrderedConfig::default()).await.map_err(|error| failed(&error))?;
    let pending = consumer.cached_info().num_pending;
    Ok((consumer.messages().await.map_err(|error| failed(&error))?, pending))
}

impl NatsWatch {
    /// The next change. After an error, [`NatsWatch::reopen`] continues.
    ///
    /// # Errors
    /// See [`NatsError`].
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<HostWatched, NatsError> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Ok(ready);
            }
            if !self.synced && self.pending == 0 {
                self.sync();
                continue;
            }
            let failed = |reason: String| NatsError::Request {
                action: "read the states of probes".to_owned(),
                reason,
            };
            let message = match self.messages.next().await {
                Some(Ok(message)) => message,
                Some(Err(error)) => return Err(failed(error.to_string())),
                None => return Err(failed("the server ended the stream".to_owned())),
            };
            self.pending = message.info().map_err(|error| failed(error.to_string()))?.pending;
            let Some((host, topic)) = self.subjects.read(&message.subject) else { continue };
            if self.request.hosts.as_ref().is_some_and(|wanted| !wanted(&host)) {
                continue;
            }
            let malformed = |error: prost::DecodeError| failed(format!("`{}`: {error}", message.subject));
            match topic {
                Topic::State(_) => {
                    let state = WatchProbesResponse::decode(message.payload.clone()).map_err(malformed)?;
                    self.state(&host, state);
                }
                Topic::Roster => {
                    self.roster(&host, &ProbeRoster::decode(message.payload.clone()).map_err(malformed)?);
                }
                _ => {}
            }
        }
    }

    /// Whether all probes that existed at the beginning were delivered.
    pub fn is_synced(&self) -> bool {
        self.synced && self.ready.is_empty()
    }

    /// Continues after an error: with [`WatchEvent::Restarted`] of each host, and then all probes.
    ///
    /// # Errors
    /// See [`NatsError`].
    pub async fn reopen(&mut self) -> Result<(), NatsError> {
        let (messages, pending) = consume(&self.stream).await?;
        (self.messages, self.pending) = (messages, pending);
        let hosts = std::mem::take(&mut self.known).into_keys();
        self.ready = if self.synced {
            hosts.map(|host| watched(host, WatchEvent::Restarted, None, String::new())).collect()
        } else {
            VecDeque::new()
        };
        self.synced = false;
        Ok(())
    }

    /// All messages that existed at the start have been read.
    fn sync(&mut self) {
        self.synced = true;
        for (host, probes) in &self.known {
            let present = |probe: &Probe| {
                watched(host.clone(), WatchEvent::Present, Some(probe.clone()), String::new())
            };
            self.ready.extend(probes.values().map(present));
            self.ready.push_back(watched(host.clone(), WatchEvent::Synced, None, String::new()));
        }
    }

    fn tell(&mut self, host: &str, event: WatchEvent, probe: Probe, token: &str) {
        if self.synced {
            self.ready.push_back(watched(host.to_owned(), event, Some(probe), token.to_owned()));
        }
    }

    fn state(&mut self, host: &str, state: WatchProbesResponse) {
        let (is_deleted, token) = (state.event() == WatchEvent::Deleted, state.resume_token);
        let Some(probe) = state.probe else { return };
        let is_wanted = !is_deleted && self.request.probes.as_ref().is_none_or(|wanted| wanted(&probe));
        let known = self.known.entry(host.to_owned()).or_default();
        if !is_wanted {
            if known.remove(&probe.name).is_some() {
                self.tell(host, WatchEvent::Deleted, probe, &token);
            }
            return;
        }
        match known.insert(probe.name.clone(), probe.clone()) {
            None => self.tell(host, WatchEvent::Added, probe, &token),
            // It was published twice.
            Some(before) if before == probe => {}
            Some(before) if before.uid == probe.uid => {
                self.tell(host, WatchEvent::Changed, probe, &token);
            }
            Some(before) => {
                self.tell(host, WatchEvent::Deleted, before, "");
                self.tell(host, WatchEvent::Added, probe, &token);
            }
        }
    }

    /// Probes that are not in the roster were deleted.
    fn roster(&mut self, host: &str, roster: &ProbeRoster) {
        let there: HashSet<&str> = roster.probes.iter().map(|entry| entry.probe.as_str()).collect();
        let known = self.known.entry(host.to_owned()).or_default();
        let gone: Vec<Probe> =
            known.extract_if(.., |name, _| !there.contains(name.as_str())).map(|(_, probe)| probe).collect();
        for probe in gone {
            self.tell(host, WatchEvent::Deleted, probe, &roster.resume_token);
        }
    }
}

fn watched(host: String, event: WatchEvent, probe: Option<Probe>, resume_token: String) -> HostWatched {
    HostWatched { host, message: WatchProbesResponse { event: event.into(), probe, resume_token } }
}
