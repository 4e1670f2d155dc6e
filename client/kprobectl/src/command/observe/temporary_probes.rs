//! Temporary probes, which last as long as a command, on one host or on many.
//!
//! Owns the order in which no event is lost and no probe is left behind: the command takes a hold,
//! defines the probes disabled, subscribes, and enables them. At the end it deletes them, and the daemon
//! reads what they recorded. If the command is killed, the daemon deletes them when the connection ends.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome;
use kprobed_client::api::{CreateProbeRequest, DeleteProbeRequest, Probe, UpdateProbeRequest};
use kprobed_client::event::StreamRequest;
use kprobed_client::{Client, Error, Hold};
use tokio::task::JoinSet;
use tonic::Code;

use crate::command::by_source;
use crate::command::changes::{self, RequestedChange, is_taken_back};
use crate::command::{Exit, Failure};
use crate::global::Global;
use crate::output::{Output, SkippedRuns};

/// Temporary probes of a command.
pub(in crate::command) struct TemporaryProbes {
    client: Client,
    /// Deletes them when it is dropped.
    _hold: Hold,
    probes: Vec<Probe>,
}

impl TemporaryProbes {
    /// Shows the plan for these definitions.
    pub(in crate::command) async fn plan(
        client: &Client,
        global: &Global,
        definitions: &[String],
        output: &mut Output,
    ) -> Result<Exit, Failure> {
        let definitions = by_source::lines(client, global, definitions, output).await?;
        let asked = definitions.iter().zip(1..).map(|(definition, number)| {
            let place = if definitions.len() > 1 { format!("definition {number}") } else { String::new() };
            let definition = line(definition);
            RequestedChange::create(CreateProbeRequest { definition, ..Default::default() }, place)
        });
        changes::create(client, &asked.collect::<Vec<_>>(), true, output).await
    }

    /// Defines all of them, disabled, or none.
    pub(super) async fn define(
        client: &Client,
        global: &Global,
        definitions: &[String],
        output: &mut Output,
    ) -> Result<Self, Failure> {
        let definitions = by_source::lines(client, global, definitions, output).await?;
        if definitions.len() > Client::CHANGES_AT_ONCE {
            let most = Client::CHANGES_AT_ONCE;
            let message =
                format!("one command can define {most} probes, and {} are given", definitions.len());
            return Err(Failure::usage(message, None));
        }
        let hold = client.hold().await?;
        let create = |definition: &String| {
            let (definition, lease) = (line(definition), Some(hold.lease()));
            Change::Create(CreateProbeRequest { definition, lease, ..Default::default() })
        };
        let probes = all(client, definitions.iter().map(create).collect(), output).await?;
        for probe in &probes {
            output.probe_warnings(probe);
        }
        Ok(Self { client: client.clone(), _hold: hold, probes })
    }

    /// The request for their events as well.
    pub(super) fn select(&self, request: StreamRequest) -> StreamRequest {
        self.probes.iter().fold(request, |request, probe| request.probe(probe.name.clone()))
    }

    /// Enables all of them, or none.
    async fn enable(&self, output: &mut Output) -> Result<(), Failure> {
        let enable = |probe: &Probe| {
            let request =
                UpdateProbeRequest { name: probe.name.clone(), enabled: Some(true), ..Default::default() };
            Change::Update(request)
        };
        let probes = all(&self.client, self.probes.iter().map(enable).collect(), output).await?;
        for probe in &probes {
            output.note_state(probe);
        }
        Ok(())
    }

    /// Deletes them. What they have recorded is in the daemon's queue for this command then, or was sent already.
    /// Returns the runs that the kernel skipped.
    ///
    /// # Errors
    /// When that cannot be done now. The daemon does it when this is dropped.
    async fn delete(&self) -> Result<Vec<SkippedRuns>, Error> {
        let delete = |probe: &Probe| DeleteProbeRequest { name: probe.name.clone(), ..Default::default() };
        let outcomes = self.client.delete_probes(self.probes.iter().map(delete).collect()).await?;
        let mut skipped = Vec::new();
        for (probe, outcome) in self.probes.iter().zip(outcomes) {
            match outcome {
                // Another client was faster.
                Err(Error::Rpc(error)) if error.code == Code::NotFound => {}
                Err(error) => return Err(error),
                Ok(deleted) => {
                    skipped.extend(deleted.profile.and_then(|last| SkippedRuns::of(probe, &last)));
                }
            }
        }
        Ok(skipped)
    }
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
    /// Asks the daemon, after the deletion: for one subscriber, or for the time.
    async fn read(client: &Client, subscriber_id: Option<u64>) -> Result<Self, Error> {
        let Some(id) = subscriber_id else { return Ok(Self::Before(client.read_clock().await?.received_ns)) };
        let ledger = client.ledger().await?;
        let ours = ledger.subscribers.iter().find(|subscriber| subscriber.subscriber_id == id);
        Ok(match ours {
            Some(ours) => {
                Self::Counted { events: ours.delivered + ours.queued, left_out: ours.dropped + ours.limited }
            }
            None => Self::Unknown("the daemon does not know this command any more".to_owned()),
        })
    }
}

/// The temporary probes of each host.
pub(super) struct HostProbes {
    hosts: HashMap<String, Arc<TemporaryProbes>>,
    enabling: JoinSet<Enabled>,
    /// Output for messages of hosts.
    form: Output,
}

/// Result of enabling the probes of a host: its messages, or why it failed.
pub(super) struct Enabled {
    pub(super) host: String,
    pub(super) result: Result<String, Failure>,
}

/// Result of deleting the probes of a host.
pub(super) struct Deleted {
    pub(super) host: String,
    /// Runs that the kernel skipped.
    pub(super) skipped: Vec<SkippedRuns>,
    pub(super) failure: Option<Error>,
    pub(super) last: Last,
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

    /// Enables the probes of a host, which has subscribed this command.
    pub(super) fn enable(&mut self, host: &str) {
        let Some(temporary) = self.hosts.get(host).map(Arc::clone) else { return };
        let (host, mut output) = (host.to_owned(), self.form.keeping());
        self.enabling.spawn(async move {
            let result = temporary.enable(&mut output).await.map(|()| output.into_kept().messages);
            Enabled { host, result }
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
    /// daemon's queue for this command.
    pub(super) fn delete(self, gone: &HashSet<String>, subscriber_id: Option<u64>) -> JoinSet<Deleted> {
        let there = self.hosts.into_iter().filter(|(host, _)| !gone.contains(host));
        let mut deleting = JoinSet::new();
        for (host, temporary) in there {
            deleting.spawn(async move {
                let (skipped, failure) = match temporary.delete().await {
                    Ok(skipped) => (skipped, None),
                    Err(error) => (Vec::new(), Some(error)),
                };
                let last = Last::read(&temporary.client, subscriber_id).await;
                let last = last.unwrap_or_else(|error| Last::Unknown(error.to_string()));
                Deleted { host, skipped, failure, last }
            });
        }
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

/// The definition of an argument: a function's name alone means its entry.
fn line(argument: &str) -> String {
    if is_function(argument.trim()) { format!("p {}", argument.trim()) } else { argument.to_owned() }
}

/// Whether this is nothing but the name of a function. The kernel's language begins with `p` or
/// `r`, with a number or a name after a colon; a prototype has parentheses: neither looks like
/// this.
fn is_function(word: &str) -> bool {
    let mut characters = word.chars();
    let begins = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    let is_command =
        word.strip_prefix(['p', 'r']).is_some_and(|rest| rest.bytes().all(|c| c.is_ascii_digit()));
    begins && !is_command && characters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_not_a_name_stays_as_it_is(argument in r"[ \t]?[-a-zA-Z0-9_.:$+(),%]{0,8}[ ]?\PC{0,4}") {
            let line = line(&argument);
            let word = argument.trim();
            let is_name = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
            let named = format!("p {word}");
            prop_assert!(line == argument || (is_name && line == named));
        }
    }

    #[test]
    fn a_function_alone_is_its_entry() {
        for name in ["kernel_clone", " vfs_read ", "_raw_spin_lock", "foo.constprop.0", "prepare", "r", "p1x"]
        {
            let expected = if name == "r" { name.to_owned() } else { format!("p {}", name.trim()) };
            assert_eq!(line(name), expected);
        }
        for other in [
            "p:fork kernel_clone",
            "r kernel_clone",
            "ip_rcv(x64 skb)",
            "p",
            "p1",
            "r32",
            "p:a",
            "",
            "-:a",
            "0x1",
        ] {
            assert_eq!(line(other), other);
        }
    }
}
