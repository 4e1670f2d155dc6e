//! `kprobectl trace` on many hosts.
//!
//! Owns the definition of the temporary probes on all hosts, before the first of them records, and the
//! account of hosts that do not have them. If the command is killed, each daemon deletes its own probes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kprobed_client::event::StreamRequest;
use kprobed_client::fleet::{FanOut, Host, NoAnswer, Operation, Outcome, Run};
use kprobed_client::merge::{HostAccount, HostState, MergeOptions, MergedStream};
use kprobed_client::{Client, Error as ClientError};
use thiserror::Error;
use tokio::task::JoinSet;

use super::host_probes::HostProbes;
use super::merged_hosts::{MergedHosts, Show};
use super::temporary_probes::TemporaryProbes;
use crate::command::connection::connect;
use crate::command::many_hosts::{HostCommand, OnHost, confirm};
use crate::command::open_file_limit::raise;
use crate::command::stop_condition::StopCondition;
use crate::command::{Exit, Failure};
use crate::global::Fleet;
use crate::global::Global;
use crate::output::{HostOutput, HostRecord, Output};

/// What to define and follow on all hosts.
pub(in crate::command) struct TraceOnHosts {
    pub(in crate::command) request: StreamRequest,
    pub(in crate::command) definitions: Vec<String>,
    /// The program to run as a child process. Empty for none.
    pub(in crate::command) command: Vec<String>,
    pub(in crate::command) max_wait: Duration,
    pub(in crate::command) show: Show,
}

/// A host that has the probes.
struct Made {
    client: Client,
    temporary: TemporaryProbes,
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

/// The outcome of all hosts.
#[derive(Default)]
struct Defined {
    made: HashMap<String, Made>,
    missing: Vec<HostAccount>,
    /// What they say, and why they do not have the probes.
    records: Vec<HostRecord>,
    is_interrupted: bool,
}

impl TraceOnHosts {
    pub(in crate::command) async fn run(
        mut self,
        global: &Global,
        fleet: &Fleet,
        output: &mut Output,
    ) -> Result<Exit, Failure> {
        confirm(Some(self.plan()), global, fleet, output).await?;
        let mut stop = StopCondition::new(None).map_err(Failure::Signals)?;
        for field in &self.show.form.fields {
            self.request = self.request.field(field.clone());
        }
        raise(fleet.hosts.len(), "name fewer hosts")?;
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
        let shown = MergedHosts {
            merged: MergedStream::open_on(ways, options),
            names,
            missing: defined.missing,
            is_interrupted: defined.is_interrupted,
            traced: Some(HostProbes { hosts, enabling: JoinSet::new(), form, command: self.command }),
        };
        let (exit, accounts) = self.show.run(shown, stop, global, output).await?;
        super::merged_hosts::remember_missing(fleet, &accounts, output);
        Ok(exit)
    }

    /// Shows what would be defined on a host, and changes nothing.
    fn plan(&self) -> HostCommand {
        let definitions = Arc::new(self.definitions.clone());
        let run = move |global: Global, mut output: Output| -> OnHost {
            let definitions = Arc::clone(&definitions);
            Box::pin(async move {
                let planned = async {
                    let client = connect(&global).await?;
                    TemporaryProbes::plan(&client, &definitions, &mut output).await
                };
                (planned.await, output)
            })
        };
        HostCommand { run: Arc::new(run), is_change: true, is_strict: false }
    }

    /// Makes the probes on all hosts. They do not record yet.
    async fn define(
        &self,
        hosts: &[Host],
        fan_out: FanOut,
        stop: &mut StopCondition,
        output: &Output,
    ) -> Defined {
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
                    let said = HostOutput::messages(messages);
                    defined.records.push(HostRecord { host: host.clone(), outcome, kernel, said });
                    defined.made.insert(host, made);
                    continue;
                }
                Err(NoAnswer::Operation { error, .. }) => (error.reason, error.kernel, error.messages),
                // Without the address, so that hosts with the same problem are shown together.
                Err(NoAnswer::Unreachable(ClientError::Connect { kind, .. })) => {
                    (kind.to_string(), String::new(), kind.to_string())
                }
                Err(NoAnswer::NotTried) => {
                    let reason = "the run ended before".to_owned();
                    (reason.clone(), String::new(), reason)
                }
                Err(other) => (other.to_string(), String::new(), other.to_string()),
            };
            let said = HostOutput::messages(messages);
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
        TemporaryProbes::define(&client, definitions, &mut output).await
    };
    match made.await {
        Ok(temporary) => {
            let messages = output.into_kept().messages;
            Ok(Made { client, temporary, kernel, messages })
        }
        Err(failure) => {
            let (outcome, reason) = (failure.outcome(), failure.to_string());
            failure.report(&mut output);
            let messages = output.into_kept().messages;
            Err(NotMade { outcome, reason, kernel, messages })
        }
    }
}
