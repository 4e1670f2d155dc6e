//! Probes of one command on many hosts.
//!
//! Owns the order of `temporary` over all of them: the probes are made everywhere before the first of them records, each host's are enabled when it
//! has subscribed the command, and at the end they are deleted everywhere. What became of a host that has none is kept for its account. If the
//! command is killed, each daemon deletes its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kprobed_client::event::StreamRequest;
use kprobed_client::fleet::{FanOut, Host, NoAnswer, Operation, Outcome, Run};
use kprobed_client::merge::{HostAccount, HostState, MergeOptions, MergedStream};
use kprobed_client::{Client, Error as ClientError};
use thiserror::Error;
use tokio::task::JoinSet;

use super::merged::{Show, Shown};
use super::temporary::Temporary;
use crate::cli::Global;
use crate::command::connection::Fleet;
use crate::command::descriptors::make_room;
use crate::command::fleet::{Asked, confirm};
use crate::command::stop::Stop;
use crate::command::{Exit, Failure};
use crate::output::{HostRecord, Output, Said};

/// What to define and follow on all hosts.
pub(super) struct Tracing {
    pub(super) request: StreamRequest,
    pub(super) definitions: Vec<String>,
    /// A program to run meanwhile. Empty for none.
    pub(super) command: Vec<String>,
    pub(super) max_wait: Duration,
    pub(super) show: Show,
}

/// The probes on the hosts that have them.
pub(super) struct Traced {
    hosts: HashMap<String, Arc<Temporary>>,
    enabling: JoinSet<Enabled>,
    /// The form of what hosts say.
    form: Output,
    /// A program to run while they record.
    pub(super) command: Vec<String>,
}

/// A host whose probes were to record.
pub(super) struct Enabled {
    pub(super) host: String,
    /// What it says about them, or why they do not.
    pub(super) result: Result<String, (String, Outcome)>,
}

/// A host whose probes were to be deleted.
pub(super) struct Deleted {
    pub(super) host: String,
    /// Time of its trace clock when that was done, or why it was not.
    pub(super) result: Result<u64, ClientError>,
}

/// A host that has the probes.
struct Made {
    client: Client,
    temporary: Temporary,
    kernel: String,
    messages: String,
}

/// Why a host does not have them.
#[derive(Debug, Error)]
#[error("{reason}")]
struct NotMade {
    outcome: Outcome,
    reason: String,
    kernel: String,
    messages: String,
}

impl Operation for NotMade {
    fn outcome(&self) -> Outcome {
        self.outcome
    }
}

/// What became of all hosts.
#[derive(Default)]
struct Defined {
    made: HashMap<String, Made>,
    missing: Vec<HostAccount>,
    /// What they say, and why they do not have the probes.
    records: Vec<HostRecord>,
    is_interrupted: bool,
}

impl Tracing {
    pub(super) async fn run(
        mut self,
        global: &Global,
        fleet: &Fleet,
        output: &mut Output,
    ) -> Result<Exit, Failure> {
        confirm(Asked::Plan(self.definitions.clone()), global, fleet, output).await?;
        let mut stop = Stop::new(None).map_err(Failure::Signals)?;
        for field in &self.show.form.fields {
            self.request = self.request.field(field.clone());
        }
        make_room(fleet.hosts.len(), "name fewer hosts")?;
        let parallel = global.parallel.or(fleet.parallel).unwrap_or(FanOut::default().parallel);
        let fan_out = FanOut { parallel, deadline: global.timeout, fail_fast: global.fail_fast };
        let mut defined = self.define(&fleet.hosts, fan_out, &mut stop, output).await;
        output.host_messages(&defined.records);
        let (mut ways, mut hosts) = (Vec::new(), HashMap::new());
        for host in &fleet.hosts {
            let Some(Made { client, temporary, .. }) = defined.made.remove(&host.name) else { continue };
            let mut host = host.clone();
            // How long a stream may take to begin.
            host.options.request_timeout = host.options.request_timeout.min(self.max_wait);
            let probes = temporary.names().iter();
            let request = probes.fold(self.request.clone(), |request, name| request.probe(name.clone()));
            hosts.insert(host.name.clone(), Arc::new(temporary));
            ways.push((host, client, request));
        }
        let options = MergeOptions { max_wait: self.max_wait, parallel, ..MergeOptions::default() };
        let names = fleet.hosts.iter().map(|host| host.name.clone()).collect();
        let form = output.keeping();
        let shown = Shown {
            merged: MergedStream::open_on(ways, options),
            names,
            missing: defined.missing,
            is_interrupted: defined.is_interrupted,
            traced: Some(Traced { hosts, enabling: JoinSet::new(), form, command: self.command }),
        };
        let (exit, accounts) = self.show.run(shown, stop, global, output).await?;
        super::merged::remember_missing(fleet, &accounts, output);
        Ok(exit)
    }

    /// Makes the probes on all hosts. They do not record yet.
    async fn define(&self, hosts: &[Host], fan_out: FanOut, stop: &mut Stop, output: &Output) -> Defined {
        let shared = Arc::new((self.definitions.clone(), output.keeping()));
        let mut run = Run::start(hosts.to_vec(), fan_out, move |_host: Host, client: Client| {
            let shared = Arc::clone(&shared);
            async move { make(client, &shared.0, shared.1.keeping()).await }
        });
        let mut defined = Defined::default();
        loop {
            let report = tokio::select! {
                report = run.next() => report,
                () = stop.signal() => {
                    defined.is_interrupted = true;
                    run.interrupt();
                    continue;
                }
            };
            let Some(report) = report else { break };
            let (outcome, host) = (report.outcome(), report.host.name);
            let (reason, kernel, messages) = match report.result {
                Ok(made) => {
                    let (kernel, messages) = (made.kernel.clone(), made.messages.clone());
                    let said = Said { data: String::new(), messages };
                    defined.records.push(HostRecord { host: host.clone(), outcome, kernel, said });
                    defined.made.insert(host, made);
                    continue;
                }
                Err(NoAnswer::Operation { error, .. }) => (error.reason, error.kernel, error.messages),
                // Without the address, so that hosts with the same trouble are shown together.
                Err(NoAnswer::Unreachable(ClientError::Connect { kind, .. })) => {
                    (kind.to_string(), String::new(), kind.to_string())
                }
                Err(NoAnswer::NotTried) => {
                    let reason = "the run ended before".to_owned();
                    (reason.clone(), String::new(), reason)
                }
                Err(other) => (other.to_string(), String::new(), other.to_string()),
            };
            let said = Said { data: String::new(), messages };
            defined.records.push(HostRecord { host: host.clone(), outcome, kernel: kernel.clone(), said });
            let state = HostState::GivenUp;
            defined.missing.push(HostAccount { outcome, state, reason, kernel, ..HostAccount::new(host) });
        }
        defined
    }
}

/// Makes the probes on one host.
async fn make(client: Client, definitions: &[String], mut output: Output) -> Result<Made, NotMade> {
    let mut kernel = String::new();
    let made = async {
        kernel = client.host().await?.kernel_release;
        Temporary::define(&client, definitions, &mut output).await
    };
    match made.await {
        Ok(temporary) => {
            let (_, messages) = output.into_kept();
            Ok(Made { client, temporary, kernel, messages })
        }
        Err(failure) => {
            let (outcome, reason) = (failure.outcome(), failure.to_string());
            failure.report(&mut output);
            let (_, messages) = output.into_kept();
            Err(NotMade { outcome, reason, kernel, messages })
        }
    }
}

impl Traced {
    /// Whether any host has them.
    pub(super) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Has those of a host record: it has subscribed this command.
    pub(super) fn enable(&mut self, host: &str) {
        let Some(temporary) = self.hosts.get(host).map(Arc::clone) else { return };
        let (host, mut output) = (host.to_owned(), self.form.keeping());
        self.enabling.spawn(async move {
            let result = match temporary.enable(&mut output).await {
                Ok(()) => Ok(output.into_kept().1),
                Err(failure) => Err((failure.to_string(), failure.outcome())),
            };
            Enabled { host, result }
        });
    }

    /// Whether some are about to record.
    pub(super) fn is_enabling(&self) -> bool {
        !self.enabling.is_empty()
    }

    /// The next host that is done with that. Never ends if none is about to.
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

    /// Drops the holds of a host: its daemon deletes the probes.
    pub(super) fn forget(&mut self, host: &str) {
        self.hosts.remove(host);
    }

    /// Deletes those of all hosts that are there. What they have recorded was sent then, or is in the daemon's queue for this command.
    pub(super) fn delete(self, is_there: impl Fn(&str) -> bool) -> JoinSet<Deleted> {
        let mut deleting = JoinSet::new();
        for (host, temporary) in self.hosts {
            if is_there(&host) {
                deleting.spawn(async move {
                    let result = async {
                        temporary.delete().await?;
                        Ok(temporary.client().read_clock().await?.received_ns)
                    };
                    let result = result.await;
                    Deleted { host, result }
                });
            }
        }
        deleting
    }
}
