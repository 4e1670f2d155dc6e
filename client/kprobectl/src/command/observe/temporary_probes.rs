//! Temporary probes, which last as long as a command, on one host or on many.
//!
//! Owns the order in which no event is lost and no probe is left behind: the command takes a hold,
//! defines the probes disabled, subscribes, and enables them. At the end it deletes them, and the daemon
//! reads what they recorded. If the command is killed, the daemon deletes them when the connection ends.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome;
use kprobed_client::api::{CreateProbeRequest, DeleteProbeRequest, Probe, StreamStarted, UpdateProbeRequest};
use kprobed_client::event::StreamRequest;
use kprobed_client::{Client, Error, Hold};
use tokio::task::JoinSet;
use tonic::Code;

use crate::command::changes::{self, RequestedChange, is_taken_back};
use crate::command::definitions::definitions;
use crate::command::{Exit, Failure};
use crate::global::Global;
use crate::output::{Output, Recorded, SkippedRuns};

/// Temporary probes of a command.
pub(in crate::command) struct TemporaryProbes {
    client: Client,
    /// Deletes them when it is dropped.
    _hold: Hold,
    probes: Vec<Probe>,
}

/// A filter of the kernel that no event passes. Hits are counted before it.
pub(in crate::command) const NO_EVENT: &str = "common_pid < 0";

/// Probes that one request defines: large enough that the daemon reads its lists seldom, and small enough that people
/// see how far it is.
const DEFINED_AT_ONCE: usize = 50;

impl TemporaryProbes {
    /// Shows the plan for these arguments.
    pub(in crate::command) async fn plan(
        client: &Client,
        global: &Global,
        arguments: &[String],
        output: &mut Output,
    ) -> Result<Exit, Failure> {
        let definitions = definitions(client, &global.lines, arguments, global.yes, output).await?.lines;
        let count = definitions.len();
        let asked = definitions.into_iter().zip(1..).map(|(definition, number)| {
            let place = if count > 1 { format!("definition {number}") } else { String::new() };
            RequestedChange::create(CreateProbeRequest { definition, ..Default::default() }, place)
        });
        changes::create(client, &asked.collect::<Vec<_>>(), true, output).await
    }

    /// Defines all probes, or none: `form` says how, such as whether they are enabled. Of a command that ends before
    /// all of them are there, the daemon deletes those that are.
    pub(in crate::command) async fn define(
        client: &Client,
        definitions: Vec<String>,
        form: &CreateProbeRequest,
        output: &mut Output,
    ) -> Result<Self, Failure> {
        let hold = client.hold().await?;
        let progress = output.progress("defining probes", definitions.len());
        let mut probes = Vec::with_capacity(definitions.len());
        for part in definitions.chunks(DEFINED_AT_ONCE) {
            let create = |definition: &String| {
                let (definition, lease) = (definition.clone(), Some(hold.lease()));
                Change::Create(CreateProbeRequest { definition, lease, ..form.clone() })
            };
            probes.extend(all(client, part.iter().map(create).collect(), output).await?);
            progress.set(probes.len());
        }
        drop(progress);
        for probe in &probes {
            output.probe_warnings(probe);
        }
        Ok(Self { client: client.clone(), _hold: hold, probes })
    }

    /// As they were defined.
    pub(in crate::command) fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// The request for their events as well.
    pub(super) fn select(&self, request: StreamRequest) -> StreamRequest {
        self.probes.iter().fold(request, |request, probe| request.probe(probe.name.clone()))
    }

    /// Enables all of them, or none. Those that the filter of the stream concerns get what the kernel can do of it: it
    /// then records no more than it must.
    async fn enable(&self, started: Option<&StreamStarted>, output: &mut Output) -> Result<(), Failure> {
        let filters = kernel_filters(started);
        let probes = match self.enable_with(&filters, &mut output.keeping()).await {
            // The kernel can refuse a filter for a reason that only it knows. The daemon filters in any case.
            Err(_) if !filters.is_empty() => self.enable_with(&HashMap::new(), output).await?,
            enabled => enabled?,
        };
        for probe in &probes {
            output.note_state(probe);
        }
        Ok(())
    }

    async fn enable_with(
        &self,
        filters: &HashMap<&str, &str>,
        output: &mut Output,
    ) -> Result<Vec<Probe>, Failure> {
        let enable = |probe: &Probe| {
            let filter = filters.get(probe.name.as_str()).map(|&filter| filter.to_owned());
            let name = probe.name.clone();
            Change::Update(UpdateProbeRequest { name, enabled: Some(true), filter, ..Default::default() })
        };
        let mut enabled = Vec::with_capacity(self.probes.len());
        for part in self.probes.chunks(Client::CHANGES_AT_ONCE) {
            enabled.extend(all(&self.client, part.iter().map(enable).collect(), output).await?);
        }
        Ok(enabled)
    }

    /// Deletes them. What they have recorded is in the daemon's queue for this command then, or was sent already.
    /// Returns the runs that the kernel skipped, of each that was still there.
    ///
    /// # Errors
    /// When that cannot be done now. The daemon does it when this is dropped.
    pub(in crate::command) async fn delete(&self) -> Result<Vec<SkippedRuns>, Error> {
        let delete = |probe: &Probe| DeleteProbeRequest { name: probe.name.clone(), ..Default::default() };
        let mut skipped = Vec::new();
        // The last one first: the return probe of a call, which began before the entry probe, ends after it.
        for part in self.probes.rchunks(Client::CHANGES_AT_ONCE) {
            let outcomes = self.client.delete_probes(part.iter().rev().map(delete).collect()).await?;
            for (probe, outcome) in part.iter().rev().zip(outcomes) {
                match outcome {
                    // Another client was faster.
                    Err(Error::Rpc(error)) if error.code == Code::NotFound => {}
                    Err(error) => return Err(error),
                    Ok(deleted) => {
                        skipped.extend(deleted.profile.and_then(|last| SkippedRuns::of(probe, &last)));
                    }
                }
            }
        }
        Ok(skipped)
    }
}

/// What the kernel is to do of the filter of a stream, by probe. Of a probe that lacks a field of the filter, no event
/// is selected.
fn kernel_filters(started: Option<&StreamStarted>) -> HashMap<&str, &str> {
    let filters = started.into_iter().flat_map(|started| &started.filters);
    let pairs = filters.map(|found| match found.problem {
        Some(_) => (found.probe.as_str(), NO_EVENT),
        None => (found.probe.as_str(), found.kernel_filter.as_str()),
    });
    pairs.filter(|(_, filter)| !filter.is_empty()).collect()
}

/// Where the events of deleted probes end.
pub(super) enum Last {
    /// With the events before this time of the host's trace clock, in nanoseconds.
    Before(u64),
    /// When so many were delivered, or reported as left out of the queue.
    Counted { events: u64, left_out: u64 },
    /// That is not known, for this reason.
    Unknown(String),
}

impl Last {
    /// Asks the daemon, after the deletion, where the events of a subscriber end, and how many events of its probes
    /// were recorded while it was subscribed. The events of one host are counted, those of many end with the time.
    async fn read(
        client: &Client,
        subscriber_id: Option<u64>,
        is_one: bool,
    ) -> Result<(Self, Option<Recorded>), Error> {
        let ours = match subscriber_id {
            Some(id) => client.ledger().await.map(|ledger| {
                let ours = ledger.subscribers.into_iter().find(|one| one.subscriber_id == id);
                ours.ok_or_else(|| "the daemon does not know this command any more".to_owned())
            }),
            None => Ok(Err(String::new())),
        };
        let recorded = match &ours {
            Ok(Ok(ours)) => Some(Recorded {
                events: ours.read.saturating_sub(ours.not_selected),
                unselected: ours.filtered.saturating_add(ours.sampled_out),
            }),
            _ => None,
        };
        let last = match (subscriber_id, is_one) {
            (Some(_), true) => match ours? {
                Ok(ours) => Self::Counted {
                    events: ours.delivered + ours.queued,
                    left_out: ours.dropped + ours.limited,
                },
                Err(why) => Self::Unknown(why),
            },
            _ => Self::Before(client.read_clock().await?.received_ns),
        };
        Ok((last, recorded))
    }
}

/// The temporary probes of each host that has some.
pub(super) struct HostProbes {
    hosts: HashMap<String, Arc<TemporaryProbes>>,
    enabling: JoinSet<Enabled>,
    /// Output for messages of hosts.
    form: Output,
}

/// A host whose probes were enabled: its messages, or why that failed.
pub(super) type Enabled = (String, Result<String, Failure>);

/// Result of deleting the probes of a host.
pub(super) struct Deleted {
    pub(super) host: String,
    /// Runs that the kernel skipped.
    pub(super) skipped: Vec<SkippedRuns>,
    pub(super) failure: Option<Error>,
    pub(super) last: Last,
    /// Events of its selected probes. Absent if that is not known.
    pub(super) recorded: Option<Recorded>,
}

impl HostProbes {
    /// `form`: in which their hosts' messages are kept.
    pub(super) fn new(hosts: HashMap<String, Arc<TemporaryProbes>>, form: Output) -> Self {
        Self { hosts, enabling: JoinSet::new(), form }
    }

    /// The hosts that have them.
    pub(super) fn names(&self) -> HashSet<String> {
        self.hosts.keys().cloned().collect()
    }

    /// Enables the probes of a host, which has subscribed this command. `started`: what it said of that.
    pub(super) fn enable(&mut self, host: &str, started: Option<StreamStarted>) {
        let Some(temporary) = self.hosts.get(host).map(Arc::clone) else { return };
        let (host, mut output) = (host.to_owned(), self.form.keeping());
        self.enabling.spawn(async move {
            let enabled = temporary.enable(started.as_ref(), &mut output).await;
            (host, enabled.map(|()| output.into_kept().messages))
        });
    }

    /// Whether some hosts are still enabling theirs.
    pub(super) fn is_enabling(&self) -> bool {
        !self.enabling.is_empty()
    }

    /// The next host that finished enabling. Never completes if none is pending.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn enabled(&mut self) -> Enabled {
        loop {
            match self.enabling.join_next().await {
                Some(Ok(enabled)) => return enabled,
                Some(Err(_broken)) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// The request for the events of a host, with those of its probes.
    pub(super) fn select(&self, host: &str, request: StreamRequest) -> StreamRequest {
        match self.hosts.get(host) {
            Some(temporary) => temporary.select(request),
            None => request,
        }
    }

    /// Drops the hold of a host: its daemon deletes the probes.
    pub(super) fn forget(&mut self, host: &str) {
        self.hosts.remove(host);
    }

    /// Deletes the probes of all hosts that are not gone. What they recorded was sent then, or is in the
    /// daemon's queue for this command. `subscriber_id`: of the stream of a host.
    pub(super) fn delete(
        &mut self,
        gone: &HashSet<String>,
        subscriber_id: impl Fn(&str) -> Option<u64>,
        is_one: bool,
    ) -> JoinSet<Deleted> {
        let hosts = std::mem::take(&mut self.hosts);
        let there = hosts.into_iter().filter(|(host, _)| !gone.contains(host));
        let mut deleting = JoinSet::new();
        for (host, temporary) in there {
            let subscriber_id = subscriber_id(&host);
            deleting.spawn(async move {
                let (skipped, failure) = match temporary.delete().await {
                    Ok(skipped) => (skipped, None),
                    Err(error) => (Vec::new(), Some(error)),
                };
                let last = Last::read(&temporary.client, subscriber_id, is_one).await;
                let (last, recorded) = last.unwrap_or_else(|error| (Last::Unknown(error.to_string()), None));
                Deleted { host, skipped, failure, last, recorded }
            });
        }
        self.enabling.abort_all();
        deleting
    }
}

/// Makes all changes, or none, and reports all failures but the last.
async fn all(client: &Client, changes: Vec<Change>, output: &mut Output) -> Result<Vec<Probe>, Failure> {
    let (mut probes, mut failures) = (Vec::new(), Vec::new());
    for outcome in client.apply_all_or_nothing(changes).await? {
        match outcome {
            Ok(Outcome::Probe(probe)) => probes.push(*probe),
            Ok(_) => failures.push(Error::Incomplete("outcomes")),
            Err(error) => failures.push(error),
        }
    }
    let (others, mut causes): (Vec<_>, Vec<_>) = failures.into_iter().partition(is_taken_back);
    let Some(last) = causes.pop().or_else(|| others.into_iter().next()) else { return Ok(probes) };
    for cause in causes {
        Failure::from(cause).report(output);
    }
    Err(last.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The daemon says what the kernel can do of the filter.
    #[test]
    fn the_kernel_gets_its_part_of_the_filter() {
        use kprobed_client::api::{Diagnostic, ProbeFilter};
        let one = |probe: &str, kernel_filter: &str, problem: Option<Diagnostic>| ProbeFilter {
            probe: probe.to_owned(),
            kernel_filter: kernel_filter.to_owned(),
            problem,
            ..ProbeFilter::default()
        };
        let filters = vec![
            one("a/all", "", None),
            one("a/some", "COMM == \"x\"", None),
            one("a/none", "", Some(Diagnostic::default())),
        ];
        let started = StreamStarted { filters, ..StreamStarted::default() };
        let expected = HashMap::from([("a/some", "COMM == \"x\""), ("a/none", NO_EVENT)]);
        assert_eq!(kernel_filters(Some(&started)), expected);
        assert_eq!(kernel_filters(None), HashMap::new());
    }
}
